//! A Queue Pair was reset and used again, and completions of its former life came late.

use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

/// Two pairs whose sends complete in one CQ, four each, turn by turn, none polled.
struct Scene {
    p: End,
    q: End,
    a: Device,
    b: Device,
}

impl Scene {
    fn new() -> Scene {
        let (a, b) = (Device::plain(), Device::plain());
        let (p, q) = (
            End::bare(&a, Options::default()),
            End::bare(&b, Options::default()),
        );
        Scene { p, q, a, b }
    }

    fn pair(&self) -> (Qp, Qp) {
        let x = Qp::new(&self.a, &self.p, IBV_QPT_RC);
        let y = Qp::new(&self.b, &self.q, IBV_QPT_RC);
        join(&self.a, &x, &self.b, &y);
        (x, y)
    }

    fn four_each(&self, first: &Qp, second: &Qp) {
        let to = Buf::new(&self.q, 8);
        for id in 0..4 {
            for (qp, id) in [(first, id), (second, 10 + id)] {
                assert_eq!(
                    qp.send(&mut rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0)),
                    0
                );
            }
        }
        // No poll: the CQ is to hold all eight.
        for qp in [first, second] {
            until("all four are done", || {
                query(qp.qp).0.sq_psn == qp.opt.psn + 4
            });
        }
        drained(&self.a, first);
        drained(&self.a, second);
    }

    fn second_only(&self, second: &Qp) {
        for id in 10..14 {
            let wc = ok(self.p.sent());
            assert_eq!((wc.wr_id, wc.qp_num), (id, second.num()));
        }
        nothing(self.p.scq, Duration::from_millis(5));
    }
}

/// Waits until all that was posted has completed, without polling for it.
fn drained(device: &Device, qp: &Qp) {
    let notify = |attr: &mut ibv_qp_attr, mask: &mut ibv_qp_attr_mask| {
        attr.en_sqd_async_notify = 1;
        *mask |= IBV_QP_EN_SQD_ASYNC_NOTIFY;
    };
    let nobody = Peer::nobody(device);
    assert_eq!(qp.step_with(IBV_QPS_SQD, nobody, notify), 0);
    assert!(device.has_async_event(PATIENCE));
    assert_eq!(device.async_event().event_type, IBV_EVENT_SQ_DRAINED);
    qp.step(IBV_QPS_RTS, nobody);
}

#[test]
fn none_after_reset() {
    let scene = Scene::new();
    let ((first, _y), (second, _z)) = (scene.pair(), scene.pair());
    scene.four_each(&first, &second);
    assert_eq!(first.to(IBV_QPS_RESET), 0);
    scene.second_only(&second);
}

/// Nor after destruction, and a new QP gets none of them: its number is another one.
#[test]
fn none_after_destruction() {
    let scene = Scene::new();
    let ((first, _y), (second, _z)) = (scene.pair(), scene.pair());
    scene.four_each(&first, &second);
    let old = first.num();
    drop(first);
    let (third, _w) = scene.pair();
    assert_ne!(third.num(), old, "a number is not used again at once");
    scene.second_only(&second);
    let to = Buf::new(&scene.q, 8);
    assert_eq!(
        third.send(&mut rdma(IBV_WR_RDMA_WRITE, 77, &mut [], &to, 0)),
        0
    );
    let wc = ok(scene.p.sent());
    assert_eq!((wc.wr_id, wc.qp_num), (77, third.num()));
}

/// Receives likewise.
#[test]
fn none_of_the_receive_queue() {
    let scene = Scene::new();
    let (x, y) = scene.pair();
    for id in 0..4 {
        assert_eq!(y.recv(id, &mut []), 0);
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
        ok(scene.p.sent());
    }
    until("all four are received", || {
        scene.b.counter("rx_accepted") >= 4
    });
    assert_eq!(y.to(IBV_QPS_RESET), 0);
    nothing(scene.q.rcq, Duration::from_millis(5));
}

/// RESET discards what is outstanding without a completion; ERR first gives a flush for each.
#[test]
fn reset_discards_and_err_flushes() {
    for err_first in [false, true] {
        let scene = Scene::new();
        let (x, _y) = scene.pair();
        assert!(rdma_soft::partition(&scene.a.name, address(&scene.b), true));
        for id in 0..3 {
            assert_eq!(x.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
            assert_eq!(x.recv(id, &mut []), 0);
        }
        if err_first {
            assert_eq!(x.to(IBV_QPS_ERR), 0);
            for id in 0..3 {
                for wc in [scene.p.sent(), scene.p.received()] {
                    assert_eq!((wc.wr_id, wc.status), (id, IBV_WC_WR_FLUSH_ERR));
                }
            }
        }
        assert_eq!(x.to(IBV_QPS_RESET), 0);
        nothing(scene.p.scq, Duration::from_millis(5));
        nothing(scene.p.rcq, Duration::from_millis(5));
    }
}

/// ERR, RESET and up again with new PSNs, a thousand times: each life carries its own traffic.
#[test]
fn a_thousand_lives() {
    let scene = Scene::new();
    let (mut x, mut y) = scene.pair();
    let (from, to) = (Buf::new(&scene.p, 3000), Buf::new(&scene.q, 3000));
    for round in 0..1000u32 {
        let id = u64::from(round);
        let data = from.fill(round as u8);
        assert_eq!(y.recv(id, &mut [to.sge(0, 3000)]), 0);
        // Left behind by every life.
        assert_eq!(y.recv(1_000_000, &mut []), 0);
        assert_eq!(
            x.send(&mut wr(IBV_WR_SEND, id, &mut [from.sge(0, 3000)])),
            0
        );
        assert_eq!(ok(scene.p.sent()).wr_id, id);
        assert_eq!(ok(scene.q.received()).wr_id, id, "life {round}");
        assert!(to.read(0, 3000) == data, "life {round}");
        for qp in [&x, &y] {
            assert_eq!((qp.to(IBV_QPS_ERR), qp.to(IBV_QPS_RESET)), (0, 0));
        }
        x.opt.psn = round.wrapping_mul(0x9e37_79b9) & 0xff_ffff;
        y.opt.psn = x.opt.psn ^ 0x5a_5a5a;
        join(&scene.a, &x, &scene.b, &y);
    }
}
