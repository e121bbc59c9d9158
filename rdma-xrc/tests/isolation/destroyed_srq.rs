//! An SRQ that is gone, and numbers that are none.

use rdma_core_sys::*;
use rdma_qp::Timing;
use rdma_xrc::{CloseDomainError, SrqNum, XrcDomain};

use super::target::{half_a_message, slow_node};
use crate::common::*;

#[test]
fn a_number_that_is_none_ends_the_pair() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    receiver.recvs(1);
    let (mut sender, target) = pair(&a, &b, Timing::default());
    // Devices count from small numbers or draw them, so nobody has this one.
    let none = SrqNum::new(0xab_cdef).unwrap();
    let sent = sender.send(none, 8);
    let behind = sender.send(receiver.num(), 8);
    sender.fails(&sent, IBV_WC_REM_INV_REQ_ERR);
    sender.flushed(&behind, &sent);
    both_in(&sender, &target, IBV_QPS_ERR);
    receiver.quiet();
}

#[test]
fn the_number_of_another_domain_ends_the_pair() {
    let (a, b) = (Node::plain(), Node::plain());
    let elsewhere = XrcDomain::anonymous(&b.device).unwrap();
    let mut receiver = Receiver::new(&b, &elsewhere, 8);
    receiver.recvs(1);
    let (mut sender, target) = pair(&a, &b, Timing::default());
    let sent = sender.send(receiver.num(), 8);
    sender.fails(&sent, IBV_WC_REM_INV_REQ_ERR);
    both_in(&sender, &target, IBV_QPS_ERR);
    receiver.quiet();
}

#[test]
fn an_srq_destroyed_in_the_middle_of_a_message() {
    let (a, b) = (slow_node(), Node::plain());
    let mut receiver = b.receiver(8);
    let (mut sender, target) = pair(&a, &b, Timing::default());
    let sent = half_a_message(&mut sender, &b, &mut receiver);
    let Receiver { srq, cq, mr, .. } = receiver;
    srq.close().unwrap();
    // Nothing of the device's reaches the region any more.
    assert_eq!(mr.close().unwrap().len(), REGION);
    sender.fails(&sent, IBV_WC_REM_INV_REQ_ERR);
    both_in(&sender, &target, IBV_QPS_ERR);
    assert_eq!(cq.wait_any(QUIET).unwrap(), None);
}

#[test]
fn a_destroyed_srq_leaves_other_pairs() {
    let (a, b) = (Node::plain(), Node::plain());
    let [gone, mut stays] = [b.receiver(8), b.receiver(8)];
    stays.recvs(3);
    let (mut one, its_target) = pair(&a, &b, Timing::default());
    let (mut other, target) = pair(&a, &b, Timing::default());
    let number = gone.num();
    drop(gone);
    let sent = one.send(number, 8);
    one.fails(&sent, IBV_WC_REM_INV_REQ_ERR);
    both_in(&one, &its_target, IBV_QPS_ERR);
    for _ in 0..3 {
        other.deliver(stays.num(), 8);
        stays.got_by(&target);
    }
}

#[test]
fn nobody_holds_an_srq_back() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    receiver.recvs(2);
    let (mut sender, target) = pair(&a, &b, Timing::default());
    sender.deliver(receiver.num(), 8);
    receiver.got_by(&target);
    let (number, Receiver { srq, .. }) = (receiver.num(), receiver);
    let Node {
        device: _device,
        domain,
    } = b;
    // The domain is held by both.
    let CloseDomainError::Busy {
        domain,
        targets,
        srqs,
    } = domain.close().unwrap_err()
    else {
        panic!("closed, or refused");
    };
    assert_eq!((targets, srqs), (vec![target.qp_num()], vec![number]));
    srq.close().unwrap();
    let CloseDomainError::Busy { srqs, .. } = domain.close().unwrap_err() else {
        panic!("closed, or refused");
    };
    assert_eq!(srqs, []);
    assert_eq!(target.state().unwrap(), IBV_QPS_RTS);
}
