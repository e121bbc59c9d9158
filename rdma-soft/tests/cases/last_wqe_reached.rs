//! A Queue Pair on a shared receive queue was never destroyed: the event it waited for never came.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const SOON: Duration = Duration::from_millis(20);

/// Two QPs of one node that share a receive queue, and their peers on another.
struct Scene {
    p1: Qp,
    p2: Qp,
    q1: Qp,
    q2: Qp,
    srq: Srq,
    p: End,
    q: End,
    _a: Device,
    b: Device,
}

fn scene(a: Device, opt: Options, receives: u32) -> Scene {
    let b = Device::plain();
    let (p, q) = (End::bare(&a, opt), End::bare(&b, opt));
    let srq = Srq::new(&q, receives);
    let (q1, q2) = (
        Qp::on_srq(&b, &q, IBV_QPT_RC, &srq),
        Qp::on_srq(&b, &q, IBV_QPT_RC, &srq),
    );
    let (p1, p2) = (Qp::new(&a, &p, IBV_QPT_RC), Qp::new(&a, &p, IBV_QPT_RC));
    join(&a, &p1, &b, &q1);
    join(&a, &p2, &b, &q2);
    Scene {
        p1,
        p2,
        q1,
        q2,
        srq,
        p,
        q,
        _a: a,
        b,
    }
}

/// The next event is the last-WQE one of `qp`.
fn last_wqe(device: &Device, qp: &Qp) {
    assert!(device.has_async_event(PATIENCE), "an event");
    let event = device.async_event();
    assert_eq!(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    // SAFETY: the event's kind says that the member is set.
    let of = unsafe { event.element.qp };
    assert!(std::ptr::eq(of, qp.qp), "of that QP");
}

/// Eight receives, two of them consumed and not polled: the event comes once, and the other QP can use the
/// remaining six.
#[test]
fn comes_once_and_the_rest_stays() {
    let s = scene(
        Device::plain(),
        Options {
            rnr_retry: 0,
            ..Options::default()
        },
        8,
    );
    for id in 0..8 {
        assert_eq!(s.srq.recv(id, &mut []), 0);
    }
    for id in 0..2 {
        assert_eq!(s.p1.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
        ok(s.p.sent());
    }
    assert!(!s.b.has_async_event(SOON), "nothing yet");
    assert_eq!(s.q1.to(IBV_QPS_ERR), 0);
    last_wqe(&s.b, &s.q1);
    // In ERR again: that is no second event.
    assert_eq!(s.q1.to(IBV_QPS_ERR), 0);
    assert!(!s.b.has_async_event(SOON), "exactly one");
    for id in 0..2 {
        let wc = ok(s.q.received());
        assert_eq!(
            (wc.wr_id, wc.qp_num),
            (id, s.q1.num()),
            "completed before the event"
        );
    }
    nothing(s.q.rcq, SOON);
    for id in 2..8 {
        assert_eq!(s.p2.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
        ok(s.p.sent());
        let wc = ok(s.q.received());
        assert_eq!((wc.wr_id, wc.qp_num), (id, s.q2.num()));
    }
    assert_eq!(s.p2.send(&mut wr(IBV_WR_SEND, 8, &mut [])), 0);
    assert_eq!(
        s.p.sent().status,
        IBV_WC_RNR_RETRY_EXC_ERR,
        "eight and no more"
    );
}

/// Also for a QP that has taken no receive, and for one that fails by itself.
#[test]
fn comes_whatever_was_taken() {
    let s = scene(Device::plain(), Options::default(), 8);
    assert_eq!(s.q1.to(IBV_QPS_ERR), 0);
    last_wqe(&s.b, &s.q1);
    // The peer's forbidden access ends the other one.
    let from = Buf::new(&s.p, 8);
    let mut sges = [from.sge(0, 8)];
    let mut request = wr(IBV_WR_RDMA_WRITE, 1, &mut sges);
    request.wr.rdma = ibv_send_wr_rdma {
        remote_addr: 0x1000,
        rkey: 0x1000,
    };
    assert_eq!(s.p2.send(&mut request), 0);
    assert_eq!(s.p.sent().status, IBV_WC_REM_ACCESS_ERR);
    let mut kinds = Vec::new();
    while kinds.len() < 2 {
        assert!(s.b.has_async_event(PATIENCE), "after {kinds:?}");
        let event = s.b.async_event();
        // SAFETY: both kinds set this member.
        assert!(std::ptr::eq(unsafe { event.element.qp }, s.q2.qp));
        kinds.push(event.event_type);
    }
    assert!(kinds.contains(&IBV_EVENT_QP_ACCESS_ERR), "{kinds:?}");
    assert!(kinds.contains(&IBV_EVENT_QP_LAST_WQE_REACHED), "{kinds:?}");
    assert!(!s.b.has_async_event(SOON));
    nothing(s.q.rcq, SOON);
}

/// A receive that a message had begun to fill is flushed by ERR, before the event; all others stay: none is
/// lost.
#[test]
fn a_receive_that_was_taken_is_flushed() {
    let (s, _message, _into) = in_the_middle_of_a_message();
    assert_eq!(s.q1.to(IBV_QPS_ERR), 0);
    last_wqe(&s.b, &s.q1);
    let wc = s.q.received();
    assert_eq!(
        (wc.wr_id, wc.status, wc.qp_num),
        (0, IBV_WC_WR_FLUSH_ERR, s.q1.num())
    );
    others_serve(&s, [1, 2]);
}

/// RESET gives such a receive back: it is the next one again.
#[test]
fn reset_gives_the_receive_back() {
    let (s, _message, _into) = in_the_middle_of_a_message();
    assert_eq!(s.q1.to(IBV_QPS_RESET), 0);
    assert!(!s.b.has_async_event(SOON));
    others_serve(&s, [0, 1, 2]);
}

/// A node that sends one packet every so often is in the middle of a long message; three receives.
fn in_the_middle_of_a_message() -> (Scene, Buf, Buf) {
    let mut profile = rdma_soft::Profile {
        window: 1,
        ..Default::default()
    };
    profile.faults = "delay=10ms".parse().expect("faults");
    let opt = Options {
        timeout: 18,
        rnr_retry: 0,
        ..Options::default()
    };
    let s = scene(Device::new(profile), opt, 3);
    let (message, into) = (Buf::new(&s.p, 100 << 10), Buf::new(&s.q, 100 << 10));
    for id in 0..3 {
        assert_eq!(s.srq.recv(id, &mut [into.sge(0, 100 << 10)]), 0);
    }
    assert_eq!(
        s.p1.send(&mut wr(IBV_WR_SEND, 1, &mut [message.sge(0, 100 << 10)])),
        0
    );
    until("the message has begun", || s.b.counter("rx_accepted") >= 2);
    (s, message, into)
}

/// The other QP gets exactly these receives.
fn others_serve<const N: usize>(s: &Scene, ids: [u64; N]) {
    for id in ids {
        assert_eq!(s.p2.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
        ok(wait_for(s.p.scq, s.p2.num()));
        let wc = ok(s.q.received());
        assert_eq!((wc.wr_id, wc.qp_num), (id, s.q2.num()));
    }
    assert_eq!(s.p2.send(&mut wr(IBV_WR_SEND, 99, &mut [])), 0);
    assert_eq!(
        wait_for(s.p.scq, s.p2.num()).status,
        IBV_WC_RNR_RETRY_EXC_ERR
    );
}

/// The next completion of one QP; those of others are dropped.
fn wait_for(cq: *mut ibv_cq, num: u32) -> ibv_wc {
    loop {
        let wc = wait(cq);
        if wc.qp_num == num {
            return wc;
        }
    }
}

/// Destruction waits for the event's acknowledgement; afterwards there is no event of that QP.
#[test]
fn destruction_waits_for_the_acknowledgement() {
    let s = scene(Device::plain(), Options::default(), 1);
    assert_eq!(s.q1.to(IBV_QPS_ERR), 0);
    assert!(s.b.has_async_event(PATIENCE));
    let mut event = ibv_async_event::zeroed();
    // SAFETY: the context is open, `event` is writable.
    assert_eq!(unsafe { verbs().get_async_event(s.b.ctx, &mut event) }, 0);
    assert_eq!(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    struct Moved(Qp);
    // SAFETY: the QP is dropped by the thread that it moves to.
    unsafe impl Send for Moved {}
    let moved = Moved(s.q1);
    let gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let gone = &gone;
        scope.spawn(move || {
            let Moved(qp) = { moved };
            drop(qp);
            gone.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(SOON);
        assert!(
            !gone.load(Ordering::SeqCst),
            "the event is not acknowledged"
        );
        // SAFETY: an event that was got above, acknowledged once.
        unsafe { verbs().ack_async_event(&mut event) };
    });
    // One that nobody took goes with its QP.
    assert_eq!(s.q2.to(IBV_QPS_ERR), 0);
    assert!(s.b.has_async_event(PATIENCE));
    drop(s.q2);
    assert!(!s.b.has_async_event(SOON), "no event after destruction");
}

/// What the workaround keyed on: a vendor number that is not zero, in the space that belongs to nobody.
#[test]
fn the_vendor_number_is_not_zero() {
    let device = Device::plain();
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: the context is open, `attr` is a whole struct.
    assert_eq!(unsafe { verbs().query_device(device.ctx, &mut attr) }, 0);
    assert_eq!(attr.vendor_id, 0x02_52_51);
    assert_eq!(
        attr.vendor_id >> 16 & 3,
        2,
        "locally administered, of one station"
    );
}
