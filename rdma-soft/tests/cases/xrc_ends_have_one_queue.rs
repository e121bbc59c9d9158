//! An XRC initiator was created with a receive queue, as every other kind of Queue Pair has one.

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

/// Creates a QP that must be refused; asserts that the words name `parts`.
#[track_caller]
fn refused(device: &Device, mut attr: ibv_qp_init_attr_ex, parts: &[&str]) {
    let made = Qp::create(device, &mut attr, Options::default());
    assert_eq!(made.err(), Some(EINVAL), "{parts:?}");
    says(parts);
}

/// Capacities {8, 8, 1, 1} for either end.
#[test]
fn symmetric_capacities_are_refused() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let xrcd = Xrcd::private(&device);
    let cap = ibv_qp_cap {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let mut initiator = end.init_attr_ex(IBV_QPT_XRC_SEND);
    initiator.cap = cap;
    let why = "initiator QPs have no receive queue";
    refused(&device, initiator, &["max_recv_wr", why]);
    initiator.cap.max_recv_wr = 0;
    refused(&device, initiator, &["max_recv_sge", why]);
    initiator.cap.max_recv_sge = 0;
    // Drivers let a CQ for receives pass, and programs name one; nothing will ever come there.
    initiator.recv_cq = end.rcq;
    drop(Qp::create(&device, &mut initiator, end.opt).expect("the correct one"));

    let mut target = end.init_attr_ex(IBV_QPT_XRC_RECV);
    target.xrcd = xrcd.xrcd;
    target.cap = cap;
    refused(&device, target, &["max_send_wr", "no send queue"]);
    target.cap.max_send_wr = 0;
    refused(&device, target, &["max_send_sge", "no send queue"]);
    target.cap.max_send_sge = 0;
    target.send_cq = end.scq;
    refused(&device, target, &["send_cq"]);
    target.send_cq = std::ptr::null_mut();
    // What is said of a receive queue that comes from elsewhere is ignored, as ibv_create_qp(3) has it for
    // SRQs; the capacities that are written back tell.
    drop(Qp::create(&device, &mut target, end.opt).expect("the correct one"));
    assert_eq!((target.cap.max_recv_wr, target.cap.max_recv_sge), (0, 0));
}

/// What each end cannot be without.
#[test]
fn a_target_needs_a_domain_and_an_initiator_a_pd() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let mut target = end.init_attr_ex(IBV_QPT_XRC_RECV);
    refused(&device, target, &["XRC domain"]);
    target.comp_mask = IBV_QP_INIT_ATTR_PD.bits();
    target.pd = end.pd;
    refused(&device, target, &["XRC domain"]);
    let mut initiator = end.init_attr_ex(IBV_QPT_XRC_SEND);
    initiator.comp_mask = 0;
    refused(&device, initiator, &["protection domain"]);
    let xrcd = Xrcd::private(&device);
    initiator.comp_mask = (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD).bits();
    initiator.xrcd = xrcd.xrcd;
    refused(&device, initiator, &["only a target takes an XRC domain"]);
}

/// Neither has a receive queue of its own, and a target has no send queue.
#[test]
fn posts_to_a_queue_that_is_not_there() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let xrcd = Xrcd::private(&device);
    let initiator = Qp::new(&device, &end, IBV_QPT_XRC_SEND);
    let target = Qp::target(&device, &end, &xrcd);
    for up in [false, true] {
        if up {
            join(&device, &initiator, &device, &target);
        }
        for qp in [&initiator, &target] {
            assert_eq!(qp.recv(1, &mut []), EINVAL, "{:?}", qp.kind());
            says(&["receive queue"]);
        }
        assert_eq!(target.send(&mut wr(IBV_WR_SEND, 1, &mut [])), EINVAL);
        says(&["send queue"]);
    }
}
