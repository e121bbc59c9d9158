//! Queue Pairs were destroyed with requests outstanding, because nothing told reliably that they were empty.

use std::time::Duration;

use crate::common::*;
use crate::fake::{self, Fake, wc};
use rdma_core_sys::*;
use rdma_qp::{Device, DrainProblem, NOTHING, PostFlags, QueueKind, ToErr, op};
use rdma_soft::Profile;

/// Five unsignaled sends that the peer does not take, three receives, ERR, and a marker: everything is flushed, unsignaled or
/// not, in order, and the marker comes last.
#[test]
fn flushes_are_as_many_as_requests_and_the_marker_is_the_last() {
    let device = device(Profile::default());
    let ((mut a, _), _b) = pair(&device, 4096);
    let mut sends: Vec<_> = (0..5)
        .map(|_| {
            a.qp.post(op::Send, a.mr.slice(0, 8).unwrap(), PostFlags::UNSIGNALED)
                .unwrap()
        })
        .collect();
    let receives: Vec<_> = (0..3)
        .map(|_| a.qp.recv(a.mr.slice(0, 8).unwrap()).unwrap())
        .collect();
    a.qp.to(ToErr).unwrap();
    sends.push(a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap());
    let mut flushed = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let done = a.cq.wait_any(LIMIT).unwrap().expect("a flush");
        assert!(done.outcome.unwrap_err().is_flush());
        match done.queue {
            QueueKind::Send => flushed.0.push(done.ticket),
            _ => flushed.1.push(done.ticket),
        }
    }
    assert_eq!(flushed, (sends, receives));
    assert!(a.cq.poll().unwrap().is_none());
}

/// The call that knows when both queues are empty.
#[test]
fn drain_returns_when_both_queues_are_empty_and_not_before() {
    let device = device(Profile::default());
    let ((mut a, _), _b) = pair(&device, 4096);
    for _ in 0..5 {
        a.qp.post(op::Send, a.mr.slice(0, 8).unwrap(), PostFlags::UNSIGNALED)
            .unwrap();
    }
    for _ in 0..3 {
        a.qp.recv(a.mr.slice(0, 8).unwrap()).unwrap();
    }
    let drained = a.qp.drain(&[&a.cq], LIMIT).unwrap();
    assert_eq!((drained.send.flushed, drained.recv.flushed), (5, 3));
    assert_eq!(
        (a.qp.send_account().pending, a.qp.recv_account().pending),
        (0, 0)
    );
    // Nothing holds the region any more.
    a.mr.close().unwrap();
    a.qp.close().unwrap();
    a.cq.close().unwrap();
}

/// A NIC that takes the marker and never completes it, and never tells an event.
#[test]
fn a_marker_that_never_completes_is_a_deadline_with_numbers() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    for _ in 0..5 {
        qp.post(op::Send, NOTHING, PostFlags::UNSIGNALED).unwrap();
    }
    let receive = qp.recv(NOTHING).unwrap();
    fake.complete(0, wc(receive.wr_id(), IBV_WC_WR_FLUSH_ERR));
    let error = qp.drain(&[&cq], Duration::from_millis(10)).unwrap_err();
    assert!(
        matches!(error.reason, DrainProblem::TimedOut { send: 5, recv: 0 }),
        "{error}"
    );
    assert_eq!(
        fake.count("post_send"),
        6,
        "the marker was posted, and is not counted"
    );
    assert_eq!(error.drained.completions[0].ticket, receive);
    // The marker comes late: it tells that the five before it succeeded.
    let marker = fake.send_id(qp.qp_num(), 5);
    fake.complete(0, wc(marker, IBV_WC_WR_FLUSH_ERR));
    let drained = qp.drain(&[&cq], LIMIT).unwrap();
    assert_eq!(drained.send.succeeded, 5);
    assert!(
        drained.completions.is_empty(),
        "the marker is the library's"
    );
}

/// The same, but every request of the application has its outcome: then the marker is missed by nobody.
#[test]
fn a_marker_that_nobody_needs_costs_the_deadline_and_no_more() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    let send = qp.post(op::Send, NOTHING, PostFlags::UNSIGNALED).unwrap();
    let error = qp.drain(&[&cq], Duration::from_millis(5)).unwrap_err();
    assert!(
        matches!(error.reason, DrainProblem::TimedOut { send: 1, recv: 0 }),
        "{error}"
    );
    fake.complete(0, wc(send.wr_id(), IBV_WC_WR_FLUSH_ERR));
    let drained = qp.drain(&[&cq], Duration::from_millis(5)).unwrap();
    assert_eq!(drained.completions[0].ticket, send);
    assert_eq!((drained.send.flushed, fake.count("post_send")), (1, 2));
}
