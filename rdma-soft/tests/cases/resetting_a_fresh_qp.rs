//! Resetting a Queue Pair that is already reset broke its next move on one adapter.

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

const KINDS: [ibv_qp_type; 5] = [
    IBV_QPT_RC,
    IBV_QPT_UC,
    IBV_QPT_UD,
    IBV_QPT_XRC_SEND,
    IBV_QPT_XRC_RECV,
];

/// The states that a Queue Pair of `kind` can be in: only a failed send of UC or UD leads to SQE.
fn states(kind: ibv_qp_type) -> Vec<ibv_qp_state> {
    let mut states = vec![
        IBV_QPS_RESET,
        IBV_QPS_INIT,
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        IBV_QPS_SQD,
        IBV_QPS_ERR,
    ];
    if kind == IBV_QPT_UC || kind == IBV_QPT_UD {
        states.push(IBV_QPS_SQE);
    }
    states
}

/// Brings a fresh Queue Pair to `state`.
fn bring(qp: &Qp, state: ibv_qp_state, peer: Peer, end: &End) {
    let way: &[_] = match state {
        IBV_QPS_RESET => &[],
        IBV_QPS_INIT => &[IBV_QPS_INIT],
        IBV_QPS_RTR => &[IBV_QPS_INIT, IBV_QPS_RTR],
        IBV_QPS_SQD => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD],
        IBV_QPS_ERR => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR],
        _ => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS],
    };
    for &step in way {
        qp.step(step, peer);
    }
    if state == IBV_QPS_SQE {
        // Memory that no key opens: the send fails before anything leaves.
        let ah = Ah::new(end, peer.gid);
        let mut nothing = [ibv_sge {
            addr: 0x1000,
            length: 8,
            lkey: 0,
        }];
        let mut wr = match qp.kind() {
            IBV_QPT_UD => datagram(1, &mut nothing, &ah, peer.qpn, QKEY),
            _ => wr(IBV_WR_SEND, 1, &mut nothing),
        };
        assert_eq!(qp.send(&mut wr), 0, "{}", why());
        assert_eq!(end.sent().status, IBV_WC_LOC_PROT_ERR);
    }
    assert_eq!(qp.state(), state, "{:?}", qp.kind());
}

/// From every state of every kind: RESET, RESET again, INIT.
#[test]
fn twice_from_every_state() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let xrcd = Xrcd::private(&device);
    for kind in KINDS {
        for state in states(kind) {
            let qp = match kind {
                IBV_QPT_XRC_RECV => Qp::target(&device, &end, &xrcd),
                _ => Qp::new(&device, &end, kind),
            };
            // A Queue Pair that talks to itself is as good a peer as any.
            let peer = Peer::of(&device, &qp);
            bring(&qp, state, peer, &end);
            assert_eq!(qp.to(IBV_QPS_RESET), 0, "{kind:?} {state}: {}", why());
            assert_eq!(qp.to(IBV_QPS_RESET), 0, "{kind:?} {state}: {}", why());
            assert_eq!(qp.state(), IBV_QPS_RESET);
            qp.step(IBV_QPS_INIT, peer);
            assert_eq!(qp.state(), IBV_QPS_INIT, "{kind:?} {state}");
        }
    }
}

/// What was reset twice carries traffic.
#[test]
fn and_then_it_connects() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = (
        End::new(&a, Options::default()),
        End::new(&b, Options::default()),
    );
    for end in [&x, &y] {
        end.to(IBV_QPS_RESET);
        end.to(IBV_QPS_RESET);
    }
    connect(&a, &x, &b, &y);
    let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 64));
    let data = from.fill(3);
    assert_eq!(y.recv(7, &mut [to.sge(0, 64)]), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [from.sge(0, 64)])), 0);
    ok(x.sent());
    assert_eq!(ok(y.received()).wr_id, 7);
    assert_eq!(to.read(0, 64), data);
}
