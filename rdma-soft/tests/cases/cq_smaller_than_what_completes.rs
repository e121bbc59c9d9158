//! Polling hung at 2000 Queue Pairs: the CQ was smaller than what completed, and its overflow was silent.

use std::ffi::c_int;
use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const CAPACITY: c_int = 4;

/// Ends whose CQs hold four.
fn ends(a: &Device, b: &Device) -> (End, End) {
    let opt = Options {
        cqe: CAPACITY,
        ..Options::default()
    };
    (End::bare(a, opt), End::bare(b, opt))
}

fn connected(a: &Device, p: &End, b: &Device, q: &End) -> (Qp, Qp) {
    let (x, y) = (Qp::new(a, p, IBV_QPT_RC), Qp::new(b, q, IBV_QPT_RC));
    join(a, &x, b, &y);
    (x, y)
}

/// As many as there is room for is no overrun.
#[test]
fn as_many_as_it_holds() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = ends(&a, &b);
    let (x, _y) = connected(&a, &p, &b, &q);
    let to = Buf::new(&q, 8);
    for id in 0..4 {
        assert_eq!(x.send(&mut rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0)), 0);
    }
    until("all are done", || query(x.qp).0.sq_psn == x.opt.psn + 4);
    assert!(!a.has_async_event(Duration::from_millis(20)));
    for id in 0..4 {
        assert_eq!(ok(p.sent()).wr_id, id);
    }
    nothing(p.scq, Duration::from_millis(5));
    assert_eq!(x.state(), IBV_QPS_RTS);
}

/// One more: an event of the CQ, one of every QP that uses it, whatever it did; all these QPs are in ERR; what
/// was in the CQ comes out unharmed, and then an error, for ever.
#[test]
fn one_more_is_never_silent() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = ends(&a, &b);
    let (x, _y) = connected(&a, &p, &b, &q);
    let (idle, _z) = connected(&a, &p, &b, &q);
    let to = Buf::new(&q, 8);
    for id in 0..5 {
        assert_eq!(x.send(&mut rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0)), 0);
    }
    let (mut of_cq, mut of_qps) = (0, Vec::new());
    for _ in 0..3 {
        assert!(a.has_async_event(PATIENCE), "after {of_cq} and {of_qps:?}");
        let event = a.async_event();
        // SAFETY: the event's kind says which member is set.
        unsafe {
            match event.event_type {
                IBV_EVENT_CQ_ERR => {
                    assert!(std::ptr::eq(event.element.cq, p.scq));
                    of_cq += 1;
                }
                IBV_EVENT_QP_FATAL => of_qps.push(qpn(event.element.qp)),
                other => panic!("{other:?}"),
            }
        }
    }
    of_qps.sort_unstable();
    let mut both = [x.num(), idle.num()];
    both.sort_unstable();
    assert_eq!((of_cq, of_qps), (1, both.to_vec()));
    assert!(!a.has_async_event(Duration::from_millis(20)), "one each");
    for qp in [&x, &idle] {
        assert_eq!(qp.state(), IBV_QPS_ERR);
    }
    for id in 0..4 {
        assert_eq!(ok(p.sent()).wr_id, id, "nothing is overwritten");
    }
    for _ in 0..3 {
        assert!(poll_once(p.scq).expect_err("an error") < 0);
    }
}

/// Receives overrun a CQ as well.
#[test]
fn nor_are_receives() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options::default();
    let p = End::bare(&a, opt);
    let (_, q) = ends(&a, &b);
    let (x, y) = (Qp::new(&a, &p, IBV_QPT_RC), Qp::new(&b, &q, IBV_QPT_RC));
    join(&a, &x, &b, &y);
    for id in 0..5 {
        assert_eq!(y.recv(id, &mut []), 0);
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
    }
    for kind in [IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL] {
        assert!(b.has_async_event(PATIENCE));
        assert_eq!(b.async_event().event_type, kind);
    }
    assert_eq!(y.state(), IBV_QPS_ERR);
    for id in 0..4 {
        assert_eq!(ok(q.received()).wr_id, id);
    }
    assert!(poll_once(q.rcq).expect_err("an error") < 0);
}

/// Resizing makes room, keeps what is there, in order, and refuses to lose any of it.
#[test]
fn resizing_keeps_what_is_there() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = ends(&a, &b);
    let (x, _y) = connected(&a, &p, &b, &q);
    let to = Buf::new(&q, 8);
    // SAFETY: the CQ is live.
    let resize = |cqe| unsafe { verbs().resize_cq(p.scq, cqe) };
    let write = |ids: std::ops::Range<u64>| {
        let done = x.opt.psn + ids.end as u32;
        for id in ids {
            assert_eq!(x.send(&mut rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0)), 0);
        }
        until("all are done", || query(x.qp).0.sq_psn == done);
        std::thread::sleep(Duration::from_millis(20));
    };
    write(0..4);
    assert_eq!(resize(3), EINVAL, "four lie there");
    assert_eq!(
        (resize(0), resize(-1), resize(c_int::MAX)),
        (EINVAL, EINVAL, EINVAL)
    );
    assert_eq!(resize(9), 0);
    write(4..9);
    assert_eq!(resize(8), EINVAL, "nine lie there");
    assert!(!a.has_async_event(Duration::from_millis(5)));
    for id in 0..7 {
        assert_eq!(ok(p.sent()).wr_id, id);
    }
    assert_eq!(resize(2), 0);
    for id in 7..9 {
        assert_eq!(ok(p.sent()).wr_id, id);
    }
    nothing(p.scq, Duration::from_millis(5));
}
