//! An initiator that failed, and its target with it.

use rdma_core_sys::*;
use rdma_qp::{Recovery, RemoteAddr, Timing};

use crate::common::*;

/// An address that no region of the peer has.
fn nowhere() -> RemoteAddr {
    RemoteAddr {
        addr: 8,
        rkey: 0x00de_ad00,
        room: 64,
    }
}

/// Posts a WRITE that the other side must refuse.
fn write_nowhere(sender: &mut Sender, receiver: &Receiver) -> rdma_qp::Ticket {
    let local = sender.mr.slice(0, 8).unwrap();
    sender
        .qp
        .write_to(local, receiver.num(), nowhere())
        .unwrap()
}

#[test]
fn a_refused_request_takes_what_was_posted_behind_it_to_other_srqs() {
    let (a, b) = (Node::plain(), Node::plain());
    let [one, mut two] = [b.receiver(8), b.receiver(8)];
    two.recvs(4);
    let (mut sender, target) = pair(&a, &b, Timing::default());
    sender
        .qp
        .set_doorbell(rdma_qp::Doorbell::Every(3), rdma_qp::Doorbell::Each)
        .unwrap();
    let refused = write_nowhere(&mut sender, &one);
    let behind = [sender.send(two.num(), 64), sender.send(two.num(), 64)];
    sender.fails(&refused, IBV_WC_REM_ACCESS_ERR);
    for ticket in &behind {
        sender.flushed(ticket, &refused);
    }
    both_in(&sender, &target, IBV_QPS_ERR);
    two.quiet();
    assert_eq!(two.srq.account().pending, 4);
}

#[test]
fn a_failed_initiator_leaves_those_of_its_process() {
    let (a, b, c) = (Node::plain(), Node::plain(), Node::plain());
    let (at_b, mut at_c) = (b.receiver(8), c.receiver(8));
    at_c.recvs(2);
    let (mut to_b, target_b) = pair(&a, &b, Timing::default());
    // Of the same process: one PD and one CQ.
    let mut to_c = to_b.pd.xrc(&to_b.cq).create().unwrap();
    let mut target_c = c.target();
    connect((&mut to_c, &a), (&mut target_c, &c), Timing::default());
    let refused = write_nowhere(&mut to_b, &at_b);
    to_b.fails(&refused, IBV_WC_REM_ACCESS_ERR);
    both_in(&to_b, &target_b, IBV_QPS_ERR);
    for _ in 0..2 {
        let sent = to_c.send_to(to_b.mr.slice(0, 64).unwrap(), at_c.num());
        to_b.cq.wait(&sent.unwrap(), LIMIT).unwrap();
        at_c.got_by(&target_c);
    }
}

#[test]
fn a_failed_initiator_leaves_others_of_the_same_srq() {
    let (a, b, c) = (Node::plain(), Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    receiver.recvs(3);
    let (mut fails, failed) = pair(&a, &b, Timing::default());
    let (mut same_node, target_a) = pair(&a, &b, Timing::default());
    let (mut other_node, target_c) = pair(&c, &b, Timing::default());
    fails.deliver(receiver.num(), 8);
    receiver.got_by(&failed);
    let refused = write_nowhere(&mut fails, &receiver);
    fails.fails(&refused, IBV_WC_REM_ACCESS_ERR);
    both_in(&fails, &failed, IBV_QPS_ERR);
    same_node.deliver(receiver.num(), 8);
    receiver.got_by(&target_a);
    other_node.deliver(receiver.num(), 8);
    receiver.got_by(&target_c);
    assert_eq!(receiver.srq.account().succeeded, 3);
}

#[test]
fn a_failed_pair_is_connected_again_over_the_same_srq() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    receiver.recvs(8);
    let (mut sender, mut target) = pair(&a, &b, Timing::default());
    target.report_on(&receiver.cq).unwrap();
    sender.deliver(receiver.num(), 8);
    let refused = write_nowhere(&mut sender, &receiver);
    let behind = sender.send(receiver.num(), 8);
    // A drain before the refusal has come would flush the request itself.
    until(|| sender.qp.state().unwrap() == IBV_QPS_ERR);
    let [mut here, mut there] = exchange();
    let gid = |node: &Node| node.device.port(1).unwrap().best_gid().unwrap();
    let (of_sender, of_target) = std::thread::scope(|scope| {
        let (receiver, b, target) = (&mut receiver, &b, &mut target);
        let at_target = scope.spawn(move || {
            target
                .recover(&[&receiver.cq], &mut there, &Recovery::new(gid(b)))
                .unwrap()
        });
        let how = Recovery::new(gid(&a));
        let cqs = [&sender.cq];
        let of_sender = sender.qp.recover(&cqs, &mut here, &how, LIMIT, |_| Ok(()));
        (of_sender.unwrap(), at_target.join().unwrap())
    });
    // What became of the former life: the refused request, and the one behind it.
    let outcomes = of_sender.drained.completions.iter();
    let ended: Vec<_> = outcomes
        .map(|done| (done.ticket, done.outcome.unwrap_err().status))
        .collect();
    let wanted = [
        (refused, IBV_WC_REM_ACCESS_ERR),
        (behind, IBV_WC_WR_FLUSH_ERR),
    ];
    assert_eq!(ended, wanted);
    // The message that had come before, and that nobody had polled.
    let [came] = of_target.drained.completions[..] else {
        panic!("{:?}", of_target.drained.completions);
    };
    assert!(came.outcome.is_ok());
    assert_eq!(receiver.srq.account().pending, 7, "the receives stayed");
    both_in(&sender, &target, IBV_QPS_RTS);
    for _ in 0..7 {
        sender.deliver(receiver.num(), 8);
        receiver.got_by(&target);
    }
}
