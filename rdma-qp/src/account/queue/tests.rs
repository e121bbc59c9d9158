use super::*;

fn queue(depth: u32, start: u64) -> Queue {
    Queue::new(QueueKind::Send, 3, depth, start, 0, Arc::default())
}

fn retire_next(q: &Queue, id: u64) -> bool {
    q.outcomes().retire_next(id)
}

fn post(q: &Queue) -> u64 {
    let mark = q.posted();
    q.enter(mark);
    mark
}

fn sum(account: Account) -> u64 {
    account.succeeded + account.failed + account.flushed + account.discarded + account.pending
}

#[test]
fn a_completion_ends_the_unsignaled_before_it() {
    let q = queue(8, 1);
    let marks: Vec<u64> = (0..5).map(|_| post(&q)).collect();
    let done = q.retire(marks[3] | 2, Ending::Success).unwrap();
    assert_eq!((done.mark, done.covered), (marks[3], 4));
    q.hold(done);
    assert_eq!(
        q.occupied(),
        5,
        "room is held until the application has the completion"
    );
    assert!(q.release(done));
    assert_eq!(q.occupied(), 1);
    let account = q.account();
    assert_eq!(
        (account.accepted, account.succeeded, account.pending),
        (5, 4, 1)
    );
}

#[test]
fn the_next_request_has_a_short_way() {
    let q = queue(8, 1);
    let marks: Vec<u64> = (0..3).map(|_| post(&q)).collect();
    assert!(
        !retire_next(&q, marks[1]),
        "not the next: unsignaled before it"
    );
    assert!(retire_next(&q, marks[0] | 4));
    assert!(!retire_next(&q, marks[0] | 4), "not twice");
    assert!(
        !retire_next(&q, marks[1] ^ 1 << 4),
        "a queue in another slot's place"
    );
    q.begin_new_life();
    let account = q.account();
    assert_eq!((account.succeeded, account.discarded), (1, 2));
}

#[test]
fn unsignaled_requests_before_an_error_succeeded_and_those_after_it_are_flushed() {
    let q = queue(8, 100);
    let marks: Vec<u64> = (0..6).map(|_| post(&q)).collect();
    q.retire(marks[2], Ending::Error).unwrap();
    for mark in &marks[3..] {
        assert_eq!(q.retire(*mark, Ending::Flush).unwrap().covered, 1);
    }
    let account = q.account();
    assert_eq!(
        (
            account.succeeded,
            account.failed,
            account.flushed,
            account.pending
        ),
        (2, 1, 3, 0)
    );
    assert_eq!(sum(account), account.accepted);
    assert!(q.succeeded_silently(marks[1]) && !q.succeeded_silently(marks[2]));
}

#[test]
fn a_former_life_is_fenced_off() {
    let q = queue(8, 1);
    let old: Vec<u64> = (0..4).map(|_| post(&q)).collect();
    let polled = q.retire(old[0], Ending::Success).unwrap();
    q.hold(polled);
    q.begin_new_life();
    assert!(
        !q.release(polled),
        "polled before the reset, asked for after it"
    );
    assert_eq!(q.occupied(), 0);
    let new = post(&q);
    assert_eq!(wr_id::sequence(new), 5, "the sequence goes on");
    for mark in old {
        assert_eq!(q.retire(mark, Ending::Success), None);
    }
    assert_eq!(q.occupied(), 1);
    q.retire(new, Ending::Success).unwrap();
    assert_eq!(q.occupied(), 0);
    let account = q.account();
    assert_eq!(
        (account.succeeded, account.discarded, account.pending),
        (2, 3, 0)
    );
    assert_eq!(sum(account), account.accepted);
}

#[test]
fn room_held_by_a_former_life_is_free_after_the_reset() {
    let q = queue(4, 1);
    let old = [post(&q), post(&q)];
    let kept = q.retire(old[0], Ending::Success).unwrap();
    q.hold(kept);
    q.retire(old[1], Ending::Error).unwrap();
    q.begin_new_life();
    let new = post(&q);
    assert_eq!(q.occupied(), 1, "before the poller has seen the reset");
    q.retire(new, Ending::Success).unwrap();
    assert_eq!(q.occupied(), 0);
    assert!(q.succeeded_silently(new));
    assert!(!q.release(kept));
    assert_eq!(q.occupied(), 0);
}

#[test]
fn what_was_never_posted_or_was_reported_already_is_stale() {
    let q = queue(8, 1);
    let mark = post(&q);
    assert_eq!(q.retire(mark + STEP, Ending::Success), None);
    assert!(q.retire(mark, Ending::Success).is_some());
    assert_eq!(q.retire(mark, Ending::Success), None);
    assert_eq!(q.retire(0, Ending::Success), None);
}

#[test]
fn books_go_on_over_the_wrap_of_the_sequence() {
    let start = (1 << 40) - 2;
    let q = queue(8, start);
    let marks: Vec<u64> = (0..4).map(|_| post(&q)).collect();
    assert_eq!(q.sequence(), start + 4);
    q.withdraw(3);
    assert_eq!((q.sequence(), q.account().accepted), (start + 1, 1));
    assert_eq!(
        (0..3).map(|_| post(&q)).collect::<Vec<_>>(),
        marks[1..],
        "what was refused is posted again"
    );
    assert_eq!(q.find_room(), 4);
    assert_eq!(q.limit().load(Relaxed), q.posted().wrapping_add(4 * STEP));
    assert_eq!(q.retire(marks[3], Ending::Success).unwrap().covered, 4);
    let account = q.account();
    assert_eq!((account.accepted, account.succeeded), (4, 4));
    let next = Queue::new(QueueKind::Recv, 3, 8, q.sequence(), 0, Arc::default());
    assert_eq!(next.posted(), q.posted());
    assert_eq!(next.account().accepted, 0);
}

#[test]
fn marks_pass_by_completion_reset_or_end() {
    let q = queue(8, 1);
    let first = post(&q);
    let mark = q.posted();
    assert!(!q.passed(mark));
    q.retire(first, Ending::Success);
    assert!(q.passed(mark));

    post(&q);
    let mark = q.posted();
    q.begin_new_life();
    assert!(q.passed(mark));

    post(&q);
    let mark = q.posted();
    assert!(!q.passed(mark));
    q.end();
    assert!(q.passed(mark));
}

#[test]
fn a_mark_read_during_a_refused_post_passes() {
    let q = queue(8, 1);
    post(&q);
    let mark = q.posted();
    q.withdraw(1);
    assert!(q.passed(mark));
    assert_eq!(q.account().accepted, 0);
}
