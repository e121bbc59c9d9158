//! Posting and polling many at a time, and requests that are like or unlike the one before.

mod common;

use common::datagram::Member;
use common::{LIMIT, all, device, pair};
use rdma_qp::{Cq, Doorbell, Memory, Operation, PostError, PostFlags, QueueKind, Ticket, op};
use rdma_soft::Profile;

/// The next `count` completions, in batches.
fn tickets(cq: &mut Cq, count: usize) -> Vec<Ticket> {
    let begin = std::time::Instant::now();
    let mut found = Vec::new();
    while found.len() < count {
        assert!(begin.elapsed() < LIMIT, "{} of {count}", found.len());
        found.extend(cq.poll_batch().unwrap().map(|done| {
            assert!(done.outcome.is_ok(), "{done:?}");
            done.ticket
        }));
    }
    found
}

#[test]
fn sends_in_a_row_arrive_whatever_they_are_and_complete_in_order() {
    let device = device(Profile::default());
    let ((mut a, of_b), (b, _)) = pair(&device, 4096);
    let other = a.pd.register(Memory::zeroed(64), all()).unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    a.mr.write_at(0, &bytes).unwrap();
    other.write_at(0, &[0xee; 64]).unwrap();
    let there = of_b.region(0).unwrap();
    for length in [1, 3, 8] {
        let each = Doorbell::Every(length);
        a.qp.set_doorbell(each, Doorbell::Each).unwrap();
        let mut posted = Vec::new();
        let mut sends = a.qp.sends();
        for i in 0..16 {
            let mine = a.mr.slice(i, 8).unwrap();
            let to = there.at(64 * i as u64);
            posted.push(match i % 5 {
                0..3 => sends.write(mine, to).unwrap(),
                3 => sends.write([mine, other.slice(0, 8).unwrap()], to).unwrap(),
                _ => sends.write(other.slice(8, 24).unwrap(), to).unwrap(),
            });
        }
        let back = sends.read(a.mr.slice(2048, 8).unwrap(), there.at(64));
        posted.push(back.unwrap());
        let add = op::FetchAdd {
            remote: there.at(2048),
            add: 5,
        };
        let flags = PostFlags::FENCE;
        posted.push(
            sends
                .post(add, a.mr.slice(3072, 8).unwrap(), flags)
                .unwrap(),
        );
        sends.ring().unwrap();
        assert_eq!(a.qp.waiting(), (0, 0));
        assert_eq!(tickets(&mut a.cq, posted.len()), posted);
        for i in 0..16 {
            let mut want = bytes[i..i + 8].to_vec();
            match i % 5 {
                0..3 => {}
                3 => want.extend([0xee; 8]),
                _ => want = vec![0xee; 24],
            }
            assert_eq!(b.bytes(64 * i, want.len()), want, "{i}");
        }
        assert_eq!(a.bytes(2048, 8), &bytes[1..9]);
    }
    assert_eq!(b.bytes(2048, 8), 15u64.to_ne_bytes());
    let account = a.qp.send_account();
    assert_eq!((account.accepted, account.succeeded), (54, 54));
}

#[test]
fn what_is_not_handed_over_waits_and_what_is_forgotten_was_never_posted() {
    let device = device(Profile::default());
    let ((mut a, of_b), (_b, _)) = pair(&device, 4096);
    let there = of_b.region(0).unwrap();
    let each = Doorbell::Every(8);
    a.qp.set_doorbell(each, Doorbell::Each).unwrap();
    for _ in 0..3 {
        let mut sends = a.qp.sends();
        for i in 0..3 {
            sends.write(a.mr.slice(i, 8).unwrap(), there.at(0)).unwrap();
        }
        drop(sends);
        assert_eq!(a.qp.waiting(), (3, 0));
        assert_eq!(a.qp.send_account().pending, 3);
        let fourth = a.qp.write(a.mr.slice(0, 8).unwrap(), there.at(0)).unwrap();
        assert_eq!(a.qp.waiting(), (4, 0), "one list");
        a.qp.ring().unwrap();
        a.cq.wait(&fourth, LIMIT).unwrap();
        assert_eq!(tickets(&mut a.cq, 3).len(), 3, "kept by the wait");
        let accepted = a.qp.send_account().accepted;
        let mut sends = a.qp.sends();
        let ticket = sends.write(a.mr.slice(0, 8).unwrap(), there.at(0)).unwrap();
        std::mem::forget(sends);
        assert_eq!(a.qp.send_account().accepted, accepted);
        a.qp.ring().unwrap();
        let next = a.qp.write(a.mr.slice(0, 8).unwrap(), there.at(0)).unwrap();
        assert_eq!(next, ticket, "its place is free");
        a.qp.ring().unwrap();
        assert_eq!(tickets(&mut a.cq, 1), [next]);
    }
}

#[test]
fn a_queue_that_is_full_takes_no_more_sends_in_a_row() {
    let device = device(Profile::default());
    let ((mut a, of_b), (_b, _)) = pair(&device, 4096);
    let there = of_b.region(0).unwrap();
    for doorbell in [Doorbell::Each, Doorbell::Every(64), Doorbell::Every(7)] {
        a.qp.set_doorbell(doorbell, Doorbell::Each).unwrap();
        for _ in 0..2 {
            let mut sends = a.qp.sends();
            let mut posted = 0;
            let full = loop {
                match sends.write(a.mr.slice(0, 8).unwrap(), there.at(0)) {
                    Ok(_) => posted += 1,
                    Err(error) => break error,
                }
            };
            let PostError::QueueFull {
                queue, outstanding, ..
            } = full
            else {
                panic!("{full}");
            };
            assert_eq!((posted, queue, outstanding), (32, QueueKind::Send, 32));
            sends.ring().unwrap();
            assert_eq!(tickets(&mut a.cq, 32).len(), 32);
        }
    }
}

#[test]
fn completions_that_are_not_looked_at_come_later_in_order() {
    let device = device(Profile::default());
    let ((mut a, of_b), (_b, _)) = pair(&device, 4096);
    let there = of_b.region(0).unwrap();
    let mut write = |flags| {
        let op = op::Write {
            remote: there.at(0),
        };
        a.qp.post(op, a.mr.slice(0, 8).unwrap(), flags).unwrap()
    };
    let posted: Vec<_> = (0..12).map(|_| write(PostFlags::empty())).collect();
    let _silent = write(PostFlags::UNSIGNALED);
    let last = write(PostFlags::empty());
    a.cq.wait(&posted[3], LIMIT).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 5 {
        seen.extend(a.cq.poll_batch().unwrap().take(1).map(|done| done.ticket));
    }
    seen.push(a.cq.wait_any(LIMIT).unwrap().unwrap().ticket);
    a.cq.wait(&last, LIMIT).unwrap();
    let left = 12 - 1 - seen.len();
    seen.extend(tickets(&mut a.cq, left));
    let all_but_one: Vec<_> = (posted.iter().copied())
        .filter(|ticket| *ticket != posted[3])
        .collect();
    assert_eq!(seen, all_but_one);
    assert!(a.cq.poll_batch().unwrap().next().is_none());
    assert_eq!(a.qp.send_account().succeeded, 14);
}

#[test]
fn a_batch_has_failures_among_the_rest() {
    let device = device(Profile::default());
    let ((mut a, of_b), (_b, _)) = pair(&device, 4096);
    let there = of_b.region(0).unwrap();
    let mut wrong = there;
    wrong.rkey ^= 0x5a5a;
    let mut sends = a.qp.sends();
    sends.write(a.mr.slice(0, 8).unwrap(), there.at(0)).unwrap();
    sends.write(a.mr.slice(0, 8).unwrap(), wrong.at(0)).unwrap();
    sends.write(a.mr.slice(0, 8).unwrap(), there.at(0)).unwrap();
    sends.ring().unwrap();
    let begin = std::time::Instant::now();
    let mut outcomes = Vec::new();
    while outcomes.len() < 3 && begin.elapsed() < LIMIT {
        outcomes.extend(a.cq.poll_batch().unwrap().map(|done| done.outcome));
    }
    assert!(outcomes[0].is_ok());
    let (failed, flushed) = (outcomes[1].unwrap_err(), outcomes[2].unwrap_err());
    assert!(!failed.is_flush() && flushed.is_flush());
    assert_eq!(flushed.root.unwrap().status, failed.status);
}

/// A request that is like the one before takes a shorter way; none of the checks may depend on that.
#[test]
fn what_is_unlike_the_request_before_it_is_checked_anew() {
    let device = device(Profile::default());
    let ((mut a, of_b), (_b, _)) = pair(&device, 4096);
    let there = of_b.region(0).unwrap();
    let readable = a.pd.register(Memory::zeroed(64), rdma_qp::Access::empty());
    let readable = readable.unwrap();
    let foreign = device.alloc_pd().unwrap();
    let foreign = foreign.register(Memory::zeroed(64), all()).unwrap();
    for _ in 0..3 {
        let ok = a.qp.write(readable.slice(0, 8).unwrap(), there.at(0));
        a.cq.wait(&ok.unwrap(), LIMIT).unwrap();
        let read = a.qp.read(readable.slice(0, 8).unwrap(), there.at(0));
        let (entry, operation) = (0, Operation::Read);
        assert_eq!(read, Err(PostError::NotWritable { entry, operation }));
        let other = a.qp.write(foreign.slice(0, 8).unwrap(), there.at(0));
        assert_eq!(other, Err(PostError::OtherPd { entry: 0 }));
        let far = a.qp.write(readable.slice(0, 8).unwrap(), there.at(4090));
        let (len, room) = (8, 6);
        assert_eq!(far, Err(PostError::OutOfRemoteRegion { len, room }));
        let empty = a.qp.write(readable.slice(0, 0).unwrap(), there.at(0));
        a.cq.wait(&empty.unwrap(), LIMIT).unwrap();
        a.qp.recv(a.mr.slice(0, 8).unwrap()).unwrap();
        let recv = a.qp.recv(readable.slice(0, 8).unwrap());
        let operation = Operation::Recv;
        assert_eq!(recv, Err(PostError::NotWritable { entry, operation }));
        let other = a.qp.recv(foreign.slice(0, 8).unwrap());
        assert_eq!(other, Err(PostError::OtherPd { entry: 0 }));
        a.qp.recv(a.mr.slice(8, 0).unwrap()).unwrap();
    }
    assert_eq!(a.qp.send_account().accepted, 6);
    assert_eq!(a.qp.recv_account().accepted, 6);
    assert!(foreign.holders().is_empty() && a.mr.holders()[0].queue == QueueKind::Recv);
    drop(readable);
    assert_eq!(a.pd.retired_regions(), 0);
}

/// The region is longer than a message can be, so each message is measured.
#[test]
fn a_message_that_is_too_long_is_refused_although_the_one_before_it_was_not() {
    let device = device(Profile::default());
    let (mut p, q) = (Member::new(&device), Member::new(&device));
    let to = p.qp.destination(&q.here).unwrap();
    let mtu = match p.qp.send_to(p.mr.slice(0, 4097).unwrap(), &to) {
        Err(PostError::MessageTooLong { len: 4097, max }) => max as usize,
        other => panic!("{other:?}"),
    };
    for _ in 0..3 {
        for len in [1, mtu] {
            let sent = p.qp.send_to(p.mr.slice(0, len).unwrap(), &to).unwrap();
            p.done(&sent);
        }
        let error = p.qp.send_to(p.mr.slice(0, mtu + 1).unwrap(), &to);
        let (len, max) = (mtu as u64 + 1, mtu as u32);
        assert_eq!(error, Err(PostError::MessageTooLong { len, max }));
    }
}

/// Whatever the doorbell is: the region is free when the call returns.
#[test]
fn what_is_copied_during_the_call_is_handed_over_with_what_waits() {
    let device = device(Profile::default());
    let ((mut a, of_b), (mut b, _)) = pair(&device, 4096);
    let remote = of_b.region(0).unwrap().at(1024);
    let each = Doorbell::Every(8);
    a.qp.set_doorbell(each, Doorbell::Each).unwrap();
    for round in 0..3usize {
        for slot in 0..2 {
            let at = 64 * slot;
            b.qp.recv(b.mr.slice(at, 64).unwrap()).unwrap();
        }
        a.mr.write_at(0, b"first...second..").unwrap();
        let first = a.mr.slice(0, 8).unwrap();
        let second = a.mr.slice(8, 8).unwrap();
        a.qp.write(first, remote).unwrap();
        assert_eq!(a.qp.waiting(), (1, 0));
        let flags = PostFlags::INLINE | PostFlags::UNSIGNALED;
        a.qp.post(op::Send, first, flags).unwrap();
        assert_eq!(a.qp.waiting(), (0, 0));
        let mut sends = a.qp.sends();
        sends.post(op::Send, second, PostFlags::INLINE).unwrap();
        drop(sends);
        assert_eq!(a.qp.waiting(), (0, 0));
        a.mr.write_at(0, &[0xee; 16]).unwrap();
        assert_eq!(tickets(&mut a.cq, 2).len(), 2);
        assert_eq!(tickets(&mut b.cq, 2).len(), 2);
        assert_eq!(b.bytes(0, 8), b"first...", "{round}");
        assert_eq!(b.bytes(64, 8), b"second..", "{round}");
    }
    // Whoever rings before the caller goes on may have it wait.
    a.qp.set_doorbell_of_calls(each, Doorbell::Each).unwrap();
    let first = a.mr.slice(0, 8).unwrap();
    let op = op::Write { remote };
    a.qp.post(op, first, PostFlags::INLINE).unwrap();
    assert_eq!(a.qp.waiting(), (1, 0));
    a.qp.ring().unwrap();
    assert_eq!(tickets(&mut a.cq, 1).len(), 1);
}
