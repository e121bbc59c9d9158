//! How to know that a Queue Pair is empty before destroying it: ERR flushes everything, in order.

use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

/// Takes `ids` from a CQ, all of them flushes of `qp`, and asserts that there is nothing more.
fn flushes(cq: *mut ibv_cq, qp: &Qp, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        let wc = wait(cq);
        let got = (wc.wr_id, wc.status, wc.qp_num);
        assert_eq!(got, (id, IBV_WC_WR_FLUSH_ERR, qp.num()), "{:?}", qp.kind());
    }
    nothing(cq, Duration::from_millis(5));
}

/// Five unsignaled sends that nobody answers and three receives, then ERR and a marker: the marker is the
/// last of six sends, and three receives are flushed.
#[test]
fn the_marker_is_flushed_last() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    let (x, y) = (Qp::new(&a, &p, IBV_QPT_RC), Qp::new(&b, &q, IBV_QPT_RC));
    join(&a, &x, &b, &y);
    assert!(rdma_soft::partition(&a.name, address(&b), true));
    let from = Buf::new(&p, 64);
    for id in 0..5 {
        let mut sges = [from.sge(0, 64)];
        assert_eq!(x.send(&mut unsignaled(wr(IBV_WR_SEND, id, &mut sges))), 0);
    }
    for id in 0..3 {
        assert_eq!(x.recv(id, &mut []), 0);
    }
    assert_eq!(x.to(IBV_QPS_ERR), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 99, &mut [])), 0);
    flushes(p.scq, &x, [0, 1, 2, 3, 4, 99]);
    flushes(p.rcq, &x, 0..3);
}

/// What has completed is not flushed; what is posted in ERR is, signaled or not, on both queues, for every
/// kind that has them. Both counts come out.
#[test]
fn every_request_completes_once() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND] {
        let (x, y) = (Qp::new(&a, &p, kind), Qp::new(&b, &q, kind));
        join(&a, &x, &b, &y);
        let ah = Ah::new(&p, b.gid());
        let request = |id| match kind {
            IBV_QPT_UD => datagram(id, &mut [], &ah, y.num(), QKEY),
            _ => wr(IBV_WR_SEND, id, &mut []),
        };
        let receives = kind != IBV_QPT_XRC_SEND;
        if receives {
            for id in 0..4 {
                assert_eq!(x.recv(id, &mut []), 0);
            }
        }
        assert_eq!(x.to(IBV_QPS_ERR), 0);
        for id in 10..14 {
            let post = if id % 2 == 0 {
                request(id)
            } else {
                unsignaled(request(id))
            };
            assert_eq!(x.send(&mut post.clone()), 0, "{kind:?}");
        }
        flushes(p.scq, &x, 10..14);
        if receives {
            for id in 4..7 {
                assert_eq!(x.recv(id, &mut []), 0, "{kind:?}");
            }
            flushes(p.rcq, &x, 0..7);
        }
    }
}

/// A queue as deep as it can be: every slot comes out, and none twice.
#[test]
fn full_queues_come_out_whole() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        send_wr: 200,
        recv_wr: 300,
        cqe: 1000,
        ..Options::default()
    };
    let (p, q) = (End::bare(&a, opt), End::bare(&b, opt));
    let (x, y) = (Qp::new(&a, &p, IBV_QPT_RC), Qp::new(&b, &q, IBV_QPT_RC));
    join(&a, &x, &b, &y);
    assert!(rdma_soft::partition(&a.name, address(&b), true));
    for id in 0..200 {
        assert_eq!(x.send(&mut unsignaled(wr(IBV_WR_SEND, id, &mut []))), 0);
    }
    for id in 0..300 {
        assert_eq!(x.recv(id, &mut []), 0);
    }
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 0, &mut [])), ENOMEM);
    assert_eq!(x.recv(0, &mut []), ENOMEM);
    assert_eq!(x.to(IBV_QPS_ERR), 0);
    flushes(p.scq, &x, 0..200);
    flushes(p.rcq, &x, 0..300);
}
