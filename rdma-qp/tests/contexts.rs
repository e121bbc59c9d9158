//! Numbers that users keep beside requests, completions that are lent, and the short ways alone.

mod fake;

use std::time::Duration;

use fake::{Fake, FakeSend, wc};
use rdma_core_sys::*;
use rdma_qp::{
    Access, Cq, Device, Doorbell, Errno, Memory, Mr, Pd, PostError, PostFlags, Qp, QueueKind,
    Quick, QuickPost, Rc, ToReset, op,
};

/// Two QPs in RTS that report to one CQ, number 0.
fn two(fake: &Fake) -> (Pd, Cq, Mr, [Qp<Rc>; 2]) {
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    let qps = [(); 2].map(|()| {
        let qp = pd.rc(&cq).send_depth(8).recv_depth(8).create().unwrap();
        fake.set_state(qp.qp_num(), IBV_QPS_RTS);
        qp
    });
    (pd, cq, mr, qps)
}

/// Puts successes of sends into the CQ: of which QP, and the how manyeth.
fn succeed(fake: &Fake, done: &[(&Qp<Rc>, usize)]) {
    for (qp, index) in done {
        let id = fake.send_id(qp.qp_num(), *index);
        fake.complete(0, wc(id, IBV_WC_SUCCESS));
    }
}

const NO_FLAGS: PostFlags = PostFlags::empty();

#[test]
fn a_number_comes_back_with_its_request_whatever_way_the_completion_goes() {
    let fake = Fake::new();
    let (_pd, mut cq, mr, [mut a, mut b]) = two(&fake);
    let slice = || mr.slice(0, 8).unwrap();
    for round in 0..3u64 {
        let (first, at) = (100 * round, 4 * round as usize);
        for i in 0..4 {
            a.post_with(first + i, op::Send, slice(), NO_FLAGS).unwrap();
            b.post_with(first + 10 + i, op::Send, slice(), NO_FLAGS)
                .unwrap();
        }
        let recv = a.recv_with(first + 20, slice()).unwrap();
        succeed(&fake, &[(&a, at), (&a, at + 1), (&b, at), (&a, at + 2)]);
        fake.complete(0, wc(recv.wr_id(), IBV_WC_SUCCESS));
        succeed(&fake, &[(&b, at + 1), (&b, at + 2)]);
        let mut batch = cq.poll_batch().unwrap();
        let mut seen = Vec::new();
        while let Some(context) = batch.next_by(
            |usual| (usual.context(), usual.qp_num(), usual.queue()),
            |done, context| (context, done.qp_num, done.queue),
        ) {
            seen.push(context);
        }
        drop(batch);
        let (of_a, of_b) = ((a.qp_num(), QueueKind::Send), (b.qp_num(), QueueKind::Send));
        let want = [
            (first, of_a),
            (first + 1, of_a),
            (first + 10, of_b),
            (first + 2, of_a),
            (first + 20, (a.qp_num(), QueueKind::Recv)),
            (first + 11, of_b),
            (first + 12, of_b),
        ];
        assert_eq!(
            seen,
            want.map(|(context, (qp, queue))| (context, qp, queue))
        );
        // One at a time.
        succeed(&fake, &[(&a, at + 3)]);
        let one = cq.poll_by(|usual| usual.context(), |_, context| context + 1000);
        assert_eq!(one.unwrap(), Some(first + 3));
        succeed(&fake, &[(&b, at + 3)]);
        let done = cq.poll().unwrap().unwrap();
        assert_eq!(cq.context(&done), first + 13);
    }
    let failing = a.post_with(7, op::Send, slice(), NO_FLAGS).unwrap();
    fake.complete(0, wc(failing.wr_id(), IBV_WC_RETRY_EXC_ERR));
    let one = cq.poll_by(
        |_| (0, true),
        |done, context| (context, done.outcome.is_ok()),
    );
    assert_eq!(one.unwrap(), Some((7, false)));
}

/// Whoever polls may be another thread than who posts: until the next completion is taken, the number of the last one is there,
/// though the queue has been filled again.
#[test]
fn a_number_is_there_although_the_queue_is_full_again() {
    let fake = Fake::new();
    let (_pd, mut cq, mr, [mut a, _b]) = two(&fake);
    let slice = || mr.slice(0, 8).unwrap();
    for context in 0..8 {
        a.post_with(context, op::Send, slice(), NO_FLAGS).unwrap();
        a.recv_with(100 + context, slice()).unwrap();
    }
    for next in 0..40u64 {
        succeed(&fake, &[(&a, next as usize)]);
        let done = cq.poll().unwrap().unwrap();
        a.post_with(next + 8, op::Send, slice(), NO_FLAGS).unwrap();
        assert_eq!(cq.context(&done), next);
        let recv = fake.recv_id(a.qp_num(), next as usize);
        fake.complete(0, wc(recv, IBV_WC_SUCCESS));
        let mut posted = false;
        let taken = cq.poll_by(
            |usual| {
                a.recv_with(108 + next, slice()).unwrap();
                posted = true;
                usual.context()
            },
            |_, context| context,
        );
        assert_eq!(taken.unwrap(), Some(100 + next));
        if !posted {
            a.recv_with(108 + next, slice()).unwrap();
        }
    }
    // A failure, and what is flushed.
    fake.complete(0, wc(fake.send_id(a.qp_num(), 40), IBV_WC_RETRY_EXC_ERR));
    let done = cq.poll().unwrap().unwrap();
    a.post_with(48, op::Send, slice(), NO_FLAGS).unwrap();
    assert_eq!(cq.context(&done), 40);
}

/// One that is kept while later ones are waited for, for more than a round of the queue.
#[test]
fn a_number_is_kept_with_its_completion() {
    let fake = Fake::new();
    let (_pd, cq, mr, [mut a, _b]) = two(&fake);
    let slice = || mr.slice(0, 8).unwrap();
    a.post_with(7, op::Send, slice(), NO_FLAGS).unwrap();
    succeed(&fake, &[(&a, 0)]);
    for later in 1..40 {
        let ticket = a
            .post_with(1000 + later, op::Send, slice(), NO_FLAGS)
            .unwrap();
        succeed(&fake, &[(&a, later as usize)]);
        cq.wait(&ticket, Duration::from_secs(5)).unwrap();
    }
    let done = cq.poll().unwrap().unwrap();
    assert_eq!(cq.context(&done), 7);
}

/// What is under way of a life does not reach the next one, however far a batch is handed out.
#[test]
fn a_qp_that_is_reset_while_its_batch_is_handed_out_gives_no_more_of_it() {
    let fake = Fake::new();
    let (_pd, mut cq, mr, [mut a, mut b]) = two(&fake);
    let slice = || mr.slice(0, 8).unwrap();
    let mut tickets = Vec::new();
    for qp in [&mut a, &mut b] {
        tickets.push([(); 4].map(|()| qp.send(slice()).unwrap()));
    }
    succeed(
        &fake,
        &[(&a, 0), (&a, 1), (&a, 2), (&b, 0), (&a, 3), (&b, 1)],
    );
    let mut seen = Vec::new();
    for done in cq.poll_batch().unwrap() {
        seen.push(done.ticket);
        if seen.len() == 2 {
            a.to(ToReset).unwrap();
        }
    }
    let want = [tickets[0][0], tickets[0][1], tickets[1][0], tickets[1][1]];
    assert_eq!(seen, want);
    assert_eq!(cq.stale(), 2);
    let account = a.send_account();
    assert_eq!((account.succeeded, account.discarded), (2, 2));
    // The next life is counted anew, in the same batch as one that goes on.
    fake.set_state(a.qp_num(), IBV_QPS_RTS);
    let again = [(); 2].map(|()| a.send(slice()).unwrap());
    let ids = again.map(|ticket| ticket.wr_id());
    fake.complete(0, wc(ids[0], IBV_WC_SUCCESS));
    succeed(&fake, &[(&b, 2)]);
    fake.complete(0, wc(ids[1], IBV_WC_SUCCESS));
    let seen: Vec<_> = cq.poll_batch().unwrap().map(|done| done.ticket).collect();
    assert_eq!(seen, [again[0], tickets[1][2], again[1]]);
}

#[test]
fn the_short_ways_alone_say_what_they_leave_to_others() {
    let fake = Fake::new();
    let (_pd, mut cq, mr, [mut a, _b]) = two(&fake);
    let slice = || mr.slice(0, 8).unwrap();
    assert_eq!(cq.poll_quick(|_| ()), Quick::Nothing);
    let is_other = matches!(
        a.post_quick(1, op::Send, slice(), NO_FLAGS),
        QuickPost::Other
    );
    assert!(is_other, "like none before it");
    assert_eq!(a.send_account().accepted, 0);
    a.post_with(1, op::Send, slice(), NO_FLAGS).unwrap();
    for context in 2..=4 {
        assert!(matches!(
            a.post_quick(context, op::Send, slice(), NO_FLAGS),
            QuickPost::Done(_)
        ));
    }
    // Refused: what is asked why, and what is not, are both out of the books. The next one looks for its place again.
    for (ask, accepted) in [(true, 5), (false, 6)] {
        a.post_with(5, op::Send, slice(), NO_FLAGS).unwrap();
        fake.fail("post_send", 12);
        let QuickPost::Refused(refused) = a.post_quick(9, op::Send, slice(), NO_FLAGS) else {
            panic!("not refused");
        };
        if ask {
            let error = refused.error();
            assert!(matches!(
                error,
                PostError::Refused {
                    errno: Errno::ENOMEM,
                    ..
                }
            ));
        } else {
            drop(refused);
        }
        let account = a.send_account();
        assert_eq!((account.accepted, account.pending), (accepted, accepted));
    }
    // Two at a time are not for the short way at first, and are not lost by that.
    succeed(&fake, &[(&a, 0), (&a, 1)]);
    let context = |cq: &mut Cq| cq.poll_quick(|usual| usual.context());
    assert_eq!(context(&mut cq), Quick::Other);
    assert_eq!(context(&mut cq), Quick::Done(1));
    assert_eq!(context(&mut cq), Quick::Done(2));
    assert_eq!(context(&mut cq), Quick::Nothing);
    succeed(&fake, &[(&a, 2)]);
    assert_eq!(context(&mut cq), Quick::Done(3));
    let failed = fake.send_id(a.qp_num(), 5);
    fake.complete(0, wc(failed, IBV_WC_RETRY_EXC_ERR));
    assert_eq!(context(&mut cq), Quick::Other);
    assert!(cq.poll().unwrap().unwrap().outcome.is_err());
    assert_eq!(context(&mut cq), Quick::Nothing);
    fake.fail("poll_cq", 5);
    assert_eq!(context(&mut cq), Quick::Other);
    assert!(cq.poll().is_err(), "what it came to is told");
    // A queue that is full is for others, too, and so is one where room is not known of.
    a.post_with(0, op::Send, slice(), NO_FLAGS).unwrap();
    let mut posted = 1;
    while let QuickPost::Done(_) = a.post_quick(0, op::Send, slice(), NO_FLAGS) {
        posted += 1;
    }
    assert_eq!(posted, 8);
    let error = a.post_with(0, op::Send, slice(), NO_FLAGS).unwrap_err();
    assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
    assert_eq!(a.recv_quick(5, slice()), None, "like none before it");
    a.recv_with(5, slice()).unwrap();
    let next = a.recv_quick(6, slice()).unwrap();
    fake.fail("post_recv", 12);
    assert_eq!(a.recv_quick(7, slice()), None);
    let account = a.recv_account();
    assert_eq!((account.accepted, account.pending), (2, 2));
    fake.complete(0, wc(fake.recv_id(a.qp_num(), 1), IBV_WC_SUCCESS));
    let done = cq.poll().unwrap().unwrap();
    assert_eq!((done.ticket, cq.context(&done)), (next, 6));
}

/// Sends in a row that are refused in the middle, before the list is full: those that were accepted are in the books, and the
/// next list is whole.
#[test]
fn sends_in_a_row_that_are_refused_in_the_middle_are_told_exactly() {
    let fake = Fake::new();
    let (_pd, _cq, mr, [mut a, _b]) = two(&fake);
    a.set_doorbell(Doorbell::Every(7), Doorbell::Each).unwrap();
    let mut tickets = Vec::new();
    for round in 0..2 {
        let mut sends = a.sends();
        for at in 0..5 {
            let slice = mr.slice(at, 1).unwrap();
            tickets.push(
                sends
                    .post_with(at as u64, op::Send, slice, NO_FLAGS)
                    .unwrap(),
            );
        }
        fake.state().refuse_at = (round == 0).then_some(3);
        match (round, sends.ring()) {
            (
                0,
                Err(PostError::List {
                    accepted: 3,
                    refused: 2,
                    first,
                    ..
                }),
            ) => {
                assert_eq!(first, tickets[3]);
                tickets.truncate(3);
            }
            (1, Ok(())) => {}
            other => panic!("{other:?}"),
        }
    }
    let sends: Vec<FakeSend> = fake.state().qps[&a.qp_num()].sends.clone();
    let ids: Vec<u64> = sends.iter().map(|send| send.wr_id).collect();
    let want: Vec<u64> = tickets.iter().map(|ticket| ticket.wr_id()).collect();
    assert_eq!(ids, want);
    let places: Vec<u64> = sends
        .iter()
        .map(|send| send.entries[0].0 - mr.addr())
        .collect();
    assert_eq!(places, [0, 1, 2, 0, 1, 2, 3, 4]);
    assert_eq!(a.send_account().accepted, 8);
}
