//! An SRQ without receives.

use rdma_core_sys::*;
use rdma_qp::{RnrRetry, RnrTimer, Timing};

use crate::common::*;

/// Repeats quickly.
fn hasty() -> Timing {
    Timing {
        min_rnr_timer: RnrTimer::from_code(5).unwrap(),
        ..Timing::default()
    }
}

#[test]
fn an_empty_srq_stalls_what_is_behind_it() {
    let (a, b) = (Node::plain(), Node::plain());
    let [mut empty, mut full] = [b.receiver(8), b.receiver(8)];
    full.recvs(2);
    let (mut sender, target) = pair(&a, &b, hasty());
    let sent = [
        sender.send(full.num(), 8),
        sender.send(empty.num(), 8),
        sender.send(full.num(), 8),
    ];
    full.got_by(&target);
    full.quiet();
    empty.recvs(1);
    empty.got_by(&target);
    full.got_by(&target);
    for ticket in &sent {
        sender.cq.wait(ticket, LIMIT).unwrap();
    }
}

#[test]
fn receives_that_come_late_lose_nothing() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    let (mut sender, target) = pair(&a, &b, hasty());
    let mut sent = Vec::new();
    for number in 0..20u8 {
        let place = usize::from(number) * 8;
        sender.mr.write_at(place, &[number; 8]).unwrap();
        let local = sender.mr.slice(place, 8).unwrap();
        sent.push(sender.qp.send_to(local, receiver.num()).unwrap());
    }
    for number in 0..20u8 {
        receiver.recv(0, 64);
        receiver.got_by(&target);
        assert_eq!(receiver.bytes(0, 8), [number; 8]);
    }
    for ticket in &sent {
        sender.cq.wait(ticket, LIMIT).unwrap();
    }
    receiver.quiet();
}

#[test]
fn a_limit_on_repetitions_ends_the_initiator_alone() {
    let (a, b) = (Node::plain(), Node::plain());
    let [empty, mut full] = [b.receiver(8), b.receiver(8)];
    full.recvs(2);
    let timing = Timing {
        rnr_retry: RnrRetry::times(2).unwrap(),
        ..hasty()
    };
    let (mut sender, target) = pair(&a, &b, timing);
    let sent = sender.send(empty.num(), 8);
    let behind = sender.send(full.num(), 8);
    sender.fails(&sent, IBV_WC_RNR_RETRY_EXC_ERR);
    sender.flushed(&behind, &sent);
    assert_eq!(sender.qp.state().unwrap(), IBV_QPS_ERR);
    assert_eq!(target.state().unwrap(), IBV_QPS_RTS);
    full.quiet();
}

#[test]
fn an_empty_srq_stalls_no_other_initiator() {
    let (a, b) = (Node::plain(), Node::plain());
    let [mut empty, mut full] = [b.receiver(8), b.receiver(8)];
    full.recvs(4);
    let (mut stalled, its_target) = pair(&a, &b, hasty());
    let (mut free, target) = pair(&a, &b, hasty());
    let waits = stalled.send(empty.num(), 8);
    for _ in 0..4 {
        free.deliver(full.num(), 8);
        full.got_by(&target);
    }
    assert_eq!(stalled.qp.send_account().pending, 1);
    empty.recvs(1);
    empty.got_by(&its_target);
    stalled.cq.wait(&waits, LIMIT).unwrap();
}

#[test]
fn an_empty_srq_serves_what_needs_no_receive() {
    let (a, b) = (Node::plain(), Node::plain());
    let empty = b.receiver(8);
    let (mut sender, _target) = pair(&a, &b, hasty());
    let (srq, remote) = (empty.num(), empty.mr.remote());
    sender.mr.write_at(0, &[7; 64]).unwrap();
    let Sender { qp, cq, mr, .. } = &mut sender;
    let write = qp
        .write_to(mr.slice(0, 64).unwrap(), srq, remote.at(128))
        .unwrap();
    cq.wait(&write, LIMIT).unwrap();
    assert_eq!(empty.bytes(128, 64), [7; 64]);
    let read = qp
        .read_from(mr.slice(64, 64).unwrap(), srq, remote.at(128))
        .unwrap();
    assert_eq!(cq.wait(&read, LIMIT).unwrap().byte_len, 64);
    let local = mr.slice(128, 8).unwrap();
    let add = qp.fetch_and_add_at(local, srq, remote.at(0), 5).unwrap();
    cq.wait(&add, LIMIT).unwrap();
    assert_eq!(empty.bytes(0, 8), 5u64.to_ne_bytes());
    assert_eq!(empty.srq.account().accepted, 0);
}
