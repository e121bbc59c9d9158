use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// An SRQ with its poster's view, and `cqs` CQs that have room for it.
struct Scene {
    srq: Arc<Shared>,
    seen: Seen,
    rooms: Vec<Arc<Room>>,
    shares: Vec<Share>,
}

fn scene(depth: u32, cqs: usize) -> Scene {
    starting_at(Shared::new(depth).unwrap(), cqs)
}

fn starting_at(srq: Shared, cqs: usize) -> Scene {
    let srq = Arc::new(srq);
    let rooms: Vec<_> = (0..cqs).map(|_| Arc::new(Room::new(srq.depth))).collect();
    let share = |room| srq.attach(room, &Arc::default()).unwrap().0;
    let shares = rooms.iter().map(share).collect();
    Scene {
        srq,
        seen: Seen::default(),
        rooms,
        shares,
    }
}

impl Scene {
    /// Posts one receive, if there is room.
    fn post(&mut self) -> Option<u64> {
        if self.srq.free(&mut self.seen) == 0 {
            return None;
        }
        let sequence = self.srq.next();
        self.srq.enter(sequence);
        Some(self.srq.mark(sequence) | 8)
    }

    fn posts(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.post().unwrap()).collect()
    }
}

#[test]
fn receives_end_in_any_order_on_any_cq_and_once() {
    let mut s = scene(4, 2);
    let ids = s.posts(4);
    assert_eq!(s.post(), None, "full");
    assert!(s.shares[1].retire(ids[2], Ending::Success));
    assert!(s.shares[0].retire(ids[0], Ending::Error));
    assert!(s.shares[1].retire(ids[3], Ending::Flush));
    for share in &s.shares {
        for id in [ids[0], ids[2], ids[3], 0, ids[1] ^ 1 << 4] {
            assert!(!share.retire(id, Ending::Success));
        }
    }
    assert_eq!(
        s.srq.account(),
        Account {
            accepted: 4,
            succeeded: 1,
            failed: 1,
            flushed: 1,
            discarded: 0,
            pending: 1
        }
    );
    assert!(s.srq.is_retired(ids[0]) && !s.srq.is_retired(ids[1]));
    assert_eq!(s.posts(3).len(), 3);
    assert_eq!(s.post(), None);
}

/// A receive that never ends keeps its place; the others go round it.
#[test]
fn one_that_stays_out_is_left_out_round_after_round() {
    let mut s = scene(4, 1);
    let stays = s.post().unwrap();
    let mark = s.srq.posted();
    for _ in 0..1000 {
        let id = s.post().unwrap();
        assert_ne!(id, stays);
        assert!(s.shares[0].retire(id, Ending::Success));
        assert!(!s.srq.passed(mark));
    }
    assert!(!s.srq.is_retired(stays));
    assert!(s.shares[0].retire(stays, Ending::Success));
    assert!(s.srq.passed(mark) && s.srq.passed(s.srq.posted()));
    assert_eq!(s.srq.account().succeeded, 1001);
}

#[test]
fn a_kept_completion_holds_room() {
    let mut s = scene(2, 1);
    let ids = s.posts(2);
    assert!(s.shares[0].retire(ids[0], Ending::Success));
    s.shares[0].hold();
    assert_eq!(s.post(), None);
    assert!(s.shares[0].release());
    assert!(s.post().is_some());
}

#[test]
fn what_was_refused_is_out_of_the_books_and_its_sequence_is_not_given_again() {
    let mut s = scene(4, 1);
    let stays = s.post().unwrap();
    let ids = s.posts(3);
    let mark = s.srq.posted();
    let first = s.srq.withdraw(2);
    assert_eq!(s.srq.mark(first), ids[1] & !wr_id::OPERATION_MASK);
    assert_eq!((s.srq.account().accepted, s.srq.account().pending), (2, 2));
    assert!(s.srq.is_retired(ids[1]) && s.srq.is_retired(ids[2]));
    let again = s.posts(2);
    assert!(again.iter().all(|id| !ids.contains(id)));
    for id in [stays, ids[0]] {
        assert!(!s.srq.passed(mark));
        assert!(s.shares[0].retire(id, Ending::Success));
    }
    assert!(s.srq.passed(mark), "what was posted later does not count");
}

/// A receive that a QP took with it stays pending until the SRQ is destroyed, and nothing else suffers.
#[test]
fn one_that_can_never_come_back_is_discarded_with_the_srq() {
    let mut s = scene(2, 1);
    let lost = s.post().unwrap();
    for _ in 0..10 {
        let id = s.post().unwrap();
        assert!(s.shares[0].retire(id, Ending::Success));
    }
    let mark = s.srq.posted();
    assert_eq!((s.srq.account().pending, s.srq.passed(mark)), (1, false));
    s.srq.end();
    let account = s.srq.account();
    assert_eq!((account.succeeded, account.discarded), (10, 1));
    assert_eq!(account.pending, 0);
    assert!(s.srq.passed(mark));
    assert!(
        !s.shares[0].retire(lost, Ending::Success),
        "stale from then on"
    );
}

#[test]
fn room_is_reserved_once_for_each_cq_until_the_end() {
    let s = scene(4, 1);
    assert_eq!(s.rooms[0].unreserved(), 0);
    let (_, new) = s.srq.attach(&s.rooms[0], &Arc::default()).unwrap();
    assert!(!new);
    let small = Arc::new(Room::new(3));
    assert!(s.srq.attach(&small, &Arc::default()).is_none());
    assert_eq!(small.unreserved(), 3);
    let large = Arc::new(Room::new(10));
    let (share, new) = s.srq.attach(&large, &Arc::default()).unwrap();
    assert_eq!((new, large.unreserved()), (true, 6));
    s.srq.detach(&share);
    assert_eq!(large.unreserved(), 10);
    s.srq.end();
    s.srq.end();
    assert_eq!(s.rooms[0].unreserved(), 4);
}

/// What a CQ that is gone had seen stays in the books.
#[test]
fn the_counts_of_a_cq_outlive_it() {
    let mut s = scene(4, 1);
    let ids = s.posts(3);
    assert!(s.shares[0].retire(ids[0], Ending::Success));
    s.rooms.clear();
    let room = Arc::new(Room::new(4));
    let (share, _) = s.srq.attach(&room, &Arc::default()).unwrap();
    assert!(share.retire(ids[1], Ending::Success));
    let account = s.srq.account();
    assert_eq!((account.succeeded, account.pending), (2, 1));
    assert_eq!(s.srq.free(&mut s.seen), 3);
}

/// A number is given again, and its sequence goes on: what is left of the former SRQ belongs to nobody.
#[test]
fn the_next_srq_of_a_number_is_not_mistaken_for_the_former() {
    let srq = Shared::starting_at(MAX_SLOTS - 1, 4, 77);
    let mut s = starting_at(srq, 1);
    let old = s.posts(3);
    let mut next = starting_at(Shared::starting_at(MAX_SLOTS - 1, 4, s.srq.posted()), 1);
    let new = next.posts(3);
    for id in &old {
        assert!(!new.contains(id));
        assert!(!next.shares[0].retire(*id, Ending::Success));
    }
}

#[test]
fn books_go_on_over_the_wrap_of_what_travels() {
    let start = (1 << 40) - 2;
    let mut s = starting_at(Shared::starting_at(MAX_SLOTS - 2, 4, start), 1);
    let ids = s.posts(4);
    let sequences: Vec<u64> = ids.iter().map(|id| wr_id::sequence(*id)).collect();
    assert_eq!(sequences, [(1 << 40) - 2, (1 << 40) - 1, 0, 1]);
    let mark = s.srq.posted();
    for id in ids.iter().rev() {
        assert!(!s.srq.passed(mark));
        assert!(s.shares[0].retire(*id, Ending::Success));
    }
    assert!(s.srq.passed(mark));
}

#[derive(Clone, Debug)]
enum Step {
    Post,
    /// The last of them are refused.
    Refuse(u8),
    /// Which outstanding one ends, on which CQ, how, and whether its completion is kept.
    End(u8, bool, u8, bool),
    /// A kept completion is handed out.
    HandOut(bool),
    /// Something that is not outstanding completes: an ended one, or what was never posted.
    Stale(u8, u64),
    /// A region is dropped: it notes the mark.
    Mark,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Post),
        1 => (1u8..4).prop_map(Step::Refuse),
        6 => any::<(u8, bool, u8, bool)>().prop_map(|(n, cq, how, kept)| Step::End(n, cq, how, kept)),
        2 => any::<bool>().prop_map(Step::HandOut),
        2 => any::<(u8, u64)>().prop_map(|(n, id)| Step::Stale(n, id)),
        1 => Just(Step::Mark),
    ]
}

proptest! {
    /// Any sequence of events leaves the books as a list of outstanding receives would.
    #[test]
    fn the_books_are_those_of_a_list(
        depth in 1u32..9,
        start in prop_oneof![Just(1u64), Just((1 << 40) - 5)],
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut s = starting_at(Shared::starting_at(MAX_SLOTS - 3, depth, start), 2);
        // In the order of their posts, with what is handed over and can still be refused at the end.
        let mut outstanding: Vec<u64> = Vec::new();
        let mut ended: Vec<u64> = Vec::new();
        let mut held = [0u32; 2];
        let mut model = Account::default();
        // Marks, each with what was outstanding then.
        let mut marks: Vec<(u64, HashSet<u64>)> = Vec::new();
        for step in steps {
            match step {
                Step::Post => {
                    let full = outstanding.len() as u32 + held[0] + held[1] >= depth;
                    let id = s.post();
                    prop_assert_eq!(id.is_none(), full);
                    if let Some(id) = id {
                        prop_assert!(!outstanding.contains(&id) && !ended.contains(&id));
                        outstanding.push(id);
                        model.accepted += 1;
                    }
                }
                Step::Refuse(count) => {
                    // Only what was posted after everything that has ended can be refused: a list that is handed over.
                    let last = outstanding.iter().rev();
                    let fresh = last.take_while(|id| {
                        let newer = |other: &u64| wr_id::is_before(*other, **id);
                        ended.iter().all(newer)
                    });
                    let count = usize::from(count).min(fresh.count());
                    if count > 0 {
                        let first = s.srq.withdraw(count as u32);
                        let gone = outstanding.split_off(outstanding.len() - count);
                        prop_assert_eq!(s.srq.mark(first), gone[0] & !wr_id::OPERATION_MASK);
                        for (_, held) in &mut marks {
                            held.retain(|id| !gone.contains(id));
                        }
                        ended.extend(gone);
                        model.accepted -= count as u64;
                    }
                }
                Step::End(which, cq, how, kept) if !outstanding.is_empty() => {
                    let id = outstanding.remove(usize::from(which) % outstanding.len());
                    let (ending, count) = match how % 3 {
                        0 => (Ending::Success, &mut model.succeeded),
                        1 => (Ending::Error, &mut model.failed),
                        _ => (Ending::Flush, &mut model.flushed),
                    };
                    *count += 1;
                    let cq = usize::from(cq);
                    prop_assert!(s.shares[cq].retire(id, ending));
                    if kept {
                        s.shares[cq].hold();
                        held[cq] += 1;
                    }
                    for (_, held) in &mut marks {
                        held.remove(&id);
                    }
                    ended.push(id);
                }
                Step::HandOut(cq) if held[usize::from(cq)] > 0 => {
                    held[usize::from(cq)] -= 1;
                    prop_assert!(s.shares[usize::from(cq)].release());
                }
                Step::Stale(which, foreign) => {
                    let former = ended.get(usize::from(which)).copied();
                    let next = s.srq.mark(s.srq.posted()) | 8;
                    for id in [Some(foreign), former, Some(next)].into_iter().flatten() {
                        if !outstanding.contains(&id) {
                            prop_assert!(!s.shares[0].retire(id, Ending::Success));
                        }
                    }
                }
                Step::Mark => marks.push((s.srq.posted(), outstanding.iter().copied().collect())),
                Step::End(..) | Step::HandOut(_) => {}
            }
            model.pending = outstanding.len() as u64;
            prop_assert_eq!(s.srq.account(), model);
            for id in &outstanding {
                prop_assert!(!s.srq.is_retired(*id));
            }
            for (mark, held) in &marks {
                prop_assert_eq!(s.srq.passed(*mark), held.is_empty(), "{} {:?}", mark, held);
            }
        }
        s.srq.end();
        (model.discarded, model.pending) = (model.pending, 0);
        prop_assert_eq!(s.srq.account(), model);
    }
}
