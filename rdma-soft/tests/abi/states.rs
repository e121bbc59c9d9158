//! Which posts each state takes, and what becomes of them.

use std::time::Duration;

use rdma_core_sys::*;

use crate::common::*;
use crate::kinds::*;

/// A pair of one kind; the second end of an XRC pair is the target.
struct Pair {
    // Queue Pairs before what they use.
    x: Qp,
    y: Qp,
    srq: Option<Srq>,
    _xrcd: Option<Xrcd>,
    ah: Option<Ah>,
    /// Where the second end receives: room for a datagram's header.
    landing: Buf,
    p: End,
    q: End,
}

impl Pair {
    fn new(a: &Device, b: &Device, kind: ibv_qp_type) -> Pair {
        let (p, q) = (
            End::bare(a, Options::default()),
            End::bare(b, Options::default()),
        );
        let x = Qp::new(a, &p, kind);
        let landing = Buf::new(&q, 40);
        if kind == IBV_QPT_XRC_SEND {
            let xrcd = Xrcd::private(b);
            let srq = Srq::xrc(b, &q, &xrcd, 8);
            let y = Qp::target(b, &q, &xrcd);
            return Pair {
                x,
                y,
                srq: Some(srq),
                _xrcd: Some(xrcd),
                ah: None,
                landing,
                p,
                q,
            };
        }
        let ah = (kind == IBV_QPT_UD).then(|| Ah::new(&p, b.gid()));
        let y = Qp::new(b, &q, kind);
        Pair {
            x,
            y,
            srq: None,
            _xrcd: None,
            ah,
            landing,
            p,
            q,
        }
    }

    /// Posts an empty send; gives what the call gives.
    fn send(&self, wr_id: u64) -> i32 {
        let mut request = match &self.ah {
            Some(ah) => datagram(wr_id, &mut [], ah, self.y.num(), QKEY),
            None => wr(IBV_WR_SEND, wr_id, &mut []),
        };
        if let Some(srq) = &self.srq {
            request = to_srq(request, srq.num());
        }
        self.x.send(&mut request)
    }
}

const KINDS: [ibv_qp_type; 4] = [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND];

/// RESET takes nothing; INIT and RTR take receives; from RTS on both are taken.
#[test]
fn take_posts() {
    let (a, b) = (Device::plain(), Device::plain());
    for kind in KINDS {
        let pair = Pair::new(&a, &b, kind);
        let peer = Peer::of(&b, &pair.y);
        let recvs = kind != IBV_QPT_XRC_SEND;
        let taken = |send: bool, recv: bool| {
            let expected = |taken: bool| if taken { 0 } else { EINVAL };
            let state = pair.x.state();
            assert_eq!(pair.send(1), expected(send), "{kind:?} send in {state}");
            if !send {
                says(&["send queue", &state.to_string()]);
            }
            let got = pair.x.recv(2, &mut []);
            assert_eq!(got, expected(recv && recvs), "{kind:?} recv in {state}");
        };
        taken(false, false);
        pair.x.step(IBV_QPS_INIT, peer);
        taken(false, true);
        pair.x.step(IBV_QPS_RTR, peer);
        taken(false, true);
        pair.x.step(IBV_QPS_RTS, peer);
        taken(true, true);
        assert_eq!(pair.x.to(IBV_QPS_SQD), 0);
        taken(true, true);
        assert_eq!(pair.x.to(IBV_QPS_ERR), 0);
        taken(true, true);
        assert_eq!(pair.x.to(IBV_QPS_RESET), 0);
        taken(false, false);
        // A target takes none in any state.
        if kind == IBV_QPT_XRC_SEND {
            let here = Peer::of(&a, &pair.x);
            for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR] {
                pair.y.step(state, here);
                assert_eq!(pair.y.send(&mut wr(IBV_WR_SEND, 1, &mut [])), EINVAL);
                assert_eq!(pair.y.recv(1, &mut []), EINVAL);
            }
        }
    }
}

/// What is posted in SQD waits for RTS; what is posted in ERR is flushed at once, in order.
#[test]
fn hold_and_flush() {
    let (a, b) = (Device::plain(), Device::plain());
    for kind in KINDS {
        let pair = Pair::new(&a, &b, kind);
        join(&a, &pair.x, &b, &pair.y);
        for id in 0..2 {
            let mut sges = [pair.landing.sge(0, 40)];
            let posted = match &pair.srq {
                Some(srq) => srq.recv(id, &mut sges),
                None => pair.y.recv(id, &mut sges),
            };
            assert_eq!(posted, 0);
        }
        assert_eq!(pair.x.to(IBV_QPS_SQD), 0);
        assert_eq!(pair.send(1), 0);
        nothing(pair.p.scq, Duration::from_millis(2));
        nothing(pair.q.rcq, Duration::from_millis(1));
        assert_eq!(pair.x.to(IBV_QPS_RTS), 0, "{}", why());
        assert_eq!(ok(wait(pair.p.scq)).wr_id, 1);
        ok(wait(pair.q.rcq));
        assert_eq!(pair.x.to(IBV_QPS_ERR), 0);
        for id in 10..13 {
            assert_eq!(pair.send(id), 0);
        }
        for id in 10..13 {
            let wc = wait(pair.p.scq);
            assert_eq!((wc.wr_id, wc.status), (id, IBV_WC_WR_FLUSH_ERR), "{kind:?}");
        }
        if kind != IBV_QPT_XRC_SEND {
            assert_eq!(pair.x.recv(20, &mut []), 0);
            let wc = wait(pair.p.rcq);
            assert_eq!((wc.wr_id, wc.status), (20, IBV_WC_WR_FLUSH_ERR), "{kind:?}");
        }
    }
}

/// UC and UD are in SQE after a send that failed here: sends are flushed, receives go on; the
/// application brings them back to RTS.
#[test]
fn send_errors_leave_the_receives() {
    let (a, b) = (Device::plain(), Device::plain());
    for kind in [IBV_QPT_UC, IBV_QPT_UD] {
        let pair = Pair::new(&a, &b, kind);
        join(&a, &pair.x, &b, &pair.y);
        let (mine, theirs) = (Buf::new(&pair.p, 128), Buf::new(&pair.q, 128));
        let mut bad = [ibv_sge {
            lkey: mine.lkey() ^ 1,
            ..mine.sge(0, 8)
        }];
        let mut request = match &pair.ah {
            Some(ah) => datagram(1, &mut bad, ah, pair.y.num(), QKEY),
            None => wr(IBV_WR_SEND, 1, &mut bad),
        };
        assert_eq!(pair.x.send(&mut request), 0);
        assert_eq!(wait(pair.p.scq).status, IBV_WC_LOC_PROT_ERR);
        assert_eq!(pair.x.state(), IBV_QPS_SQE, "{kind:?}");
        assert_eq!(pair.send(2), 0);
        assert_eq!(wait(pair.p.scq).status, IBV_WC_WR_FLUSH_ERR);
        // The other way.
        assert_eq!(pair.x.recv(3, &mut [mine.sge(0, 128)]), 0);
        let mut sges = [theirs.sge(0, 8)];
        let back = (kind == IBV_QPT_UD).then(|| Ah::new(&pair.q, a.gid()));
        let mut request = match &back {
            Some(ah) => datagram(4, &mut sges, ah, pair.x.num(), QKEY),
            None => wr(IBV_WR_SEND, 4, &mut sges),
        };
        assert_eq!(pair.y.send(&mut request), 0);
        ok(wait(pair.q.scq));
        assert_eq!(ok(wait(pair.p.rcq)).wr_id, 3);
        assert_eq!(pair.x.to(IBV_QPS_RTS), 0, "{}", why());
        assert_eq!(pair.y.recv(5, &mut [theirs.sge(0, 128)]), 0);
        assert_eq!(pair.send(6), 0);
        ok(wait(pair.p.scq));
        assert_eq!(ok(wait(pair.q.rcq)).wr_id, 5);
    }
}

/// Operations that a transport has not are refused when they are posted, by name.
#[test]
fn operations_that_a_transport_has_not() {
    let (a, b) = (Device::plain(), Device::plain());
    let uc = Pair::new(&a, &b, IBV_QPT_UC);
    join(&a, &uc.x, &b, &uc.y);
    let buf = Buf::new(&uc.p, 64);
    for opcode in [
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_SEND_WITH_INV,
    ] {
        let mut sges = [buf.sge(0, 8)];
        assert_eq!(uc.x.send(&mut wr(opcode, 1, &mut sges)), EINVAL);
        says(&["UC", opcode.name().expect("a name")]);
    }
    let rc = Pair::new(&a, &b, IBV_QPT_RC);
    join(&a, &rc.x, &b, &rc.y);
    let local = Buf::new(&rc.p, 64);
    for opcode in [
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_ATOMIC_CMP_AND_SWP,
    ] {
        let mut sges = [local.sge(0, 8)];
        let request = flagged(wr(opcode, 1, &mut sges), IBV_SEND_INLINE);
        assert_eq!(rc.x.send(&mut { request }), EINVAL);
        says(&["IBV_SEND_INLINE"]);
    }
    nothing(uc.p.scq, Duration::from_millis(1));
    nothing(rc.p.scq, Duration::from_millis(1));
}
