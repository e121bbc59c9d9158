//! A target that failed, or that others have open.

use rdma_core_sys::*;
use rdma_qp::{AsyncEvent, Timing, ToErr};
use rdma_soft::Profile;

use crate::common::*;

#[test]
fn the_initiator_of_a_failed_target_gives_up() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    receiver.recvs(2);
    let (mut sender, mut target) = pair(&a, &b, impatient());
    target.to(ToErr).unwrap();
    let sent = sender.send(receiver.num(), 8);
    sender.fails(&sent, IBV_WC_RETRY_EXC_ERR);
    both_in(&sender, &target, IBV_QPS_ERR);
    assert_eq!(receiver.srq.account().pending, 2);
}

#[test]
fn a_failed_target_leaves_others_of_its_domain() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    receiver.recvs(2);
    let (_, mut failed) = pair(&a, &b, Timing::default());
    let (mut sender, target) = pair(&a, &b, Timing::default());
    failed.to(ToErr).unwrap();
    for _ in 0..2 {
        sender.deliver(receiver.num(), 8);
        receiver.got_by(&target);
    }
}

/// A sender whose messages are under way for a long time: each packet is in the air for so long, and one at a time.
pub fn slow_node() -> Node {
    let mut profile = Profile {
        faults: "delay=30ms".parse().unwrap(),
        window: 1,
        ..Profile::default()
    };
    profile.ports[0].active_mtu = 256;
    Node::new(profile)
}

/// Sends a message of 128 packets, and waits until the SRQ, of two receives, has given one away for it.
pub fn half_a_message(from: &mut Sender, node: &Node, receiver: &mut Receiver) -> rdma_qp::Ticket {
    const LEN: usize = REGION / 2;
    receiver.recv(0, LEN);
    receiver.recv(LEN, LEN);
    receiver.srq.arm_limit(2).unwrap();
    let sent = from.send(receiver.num(), LEN);
    let event = node.device.next_event(LIMIT).unwrap().expect("an event");
    let (kind, srq) = (IBV_EVENT_SRQ_LIMIT_REACHED, receiver.srq.number());
    assert_eq!(event, AsyncEvent::Srq { kind, srq });
    sent
}

#[test]
fn half_a_message_is_flushed_and_the_rest_stays() {
    let (a, b) = (slow_node(), Node::plain());
    let mut receiver = b.receiver(8);
    let (mut slow, mut failing) = pair(&a, &b, Timing::default());
    let (mut other, target) = pair(&b, &b, Timing::default());
    failing.report_on(&receiver.cq).unwrap();
    half_a_message(&mut slow, &b, &mut receiver);
    failing.to(ToErr).unwrap();
    let done = receiver.next();
    assert_eq!(done.outcome.unwrap_err().status, IBV_WC_WR_FLUSH_ERR);
    assert_eq!(done.qp_num, failing.qp_num());
    let account = receiver.srq.account();
    assert_eq!((account.flushed, account.pending), (1, 1));
    other.deliver(receiver.num(), 8);
    receiver.got_by(&target);
}

#[test]
fn one_opener_moves_the_target_of_all() {
    let a = Node::plain();
    let [first, second] = Node::two_processes();
    let (mut sender, target) = pair(&a, &first, impatient());
    let mut opened = second.domain.open_target(target.qp_num()).unwrap();
    assert_eq!(opened.state().unwrap(), IBV_QPS_RTS);
    let mut receivers = [first.receiver(2), second.receiver(2)];
    for receiver in &mut receivers {
        receiver.recvs(2);
        sender.deliver(receiver.num(), 8);
        receiver.got_by(&target);
    }
    opened.to(ToErr).unwrap();
    assert_eq!(target.state().unwrap(), IBV_QPS_ERR);
    let sent = sender.send(receivers[0].num(), 8);
    sender.fails(&sent, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_target_outlives_the_process_that_made_it() {
    let a = Node::plain();
    let [first, second] = Node::two_processes();
    let mut receiver = second.receiver(2);
    receiver.recvs(2);
    let (mut sender, target) = pair(&a, &first, impatient());
    let opened = second.domain.open_target(target.qp_num()).unwrap();
    sender.deliver(receiver.num(), 8);
    receiver.got_by(&target);
    // All that the first process had goes: its handle, its domain, its device.
    drop((target, first));
    sender.deliver(receiver.num(), 8);
    receiver.got_by(&opened);
    let number = opened.qp_num();
    opened.close().unwrap();
    let refused = second.domain.open_target(number).unwrap_err();
    assert_eq!(refused.qp_num, number);
    let sent = sender.send(receiver.num(), 8);
    sender.fails(&sent, IBV_WC_RETRY_EXC_ERR);
}
