//! The default partition key was not at index 0: the job connected and hung.

use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::{Profile, verbs};

fn with_keys(pkeys: &[u16]) -> Device {
    let mut profile = Profile::default();
    profile.ports[0].pkeys = pkeys.to_vec();
    Device::new(profile)
}

/// RETRY_EXC comes soon.
fn impatient() -> Options {
    Options {
        timeout: 10,
        retry_cnt: 2,
        ..Options::default()
    }
}

/// Connects two RC Queue Pairs with their own indices.
fn pair_of(a: &Device, p: &End, at: u16, b: &Device, q: &End, there: u16) -> (Qp, Qp) {
    let (x, y) = (Qp::new(a, p, IBV_QPT_RC), Qp::new(b, q, IBV_QPT_RC));
    for (qp, index, peer) in [(&x, at, Peer::of(b, &y)), (&y, there, Peer::of(a, &x))] {
        let choose = |attr: &mut ibv_qp_attr, _: &mut _| attr.pkey_index = index;
        assert_eq!(qp.step_with(IBV_QPS_INIT, peer, choose), 0, "{}", why());
        qp.step(IBV_QPS_RTR, peer);
        qp.step(IBV_QPS_RTS, peer);
    }
    (x, y)
}

/// An index beyond the table, or of an empty entry.
#[test]
fn an_index_that_holds_no_key_is_refused() {
    let device = with_keys(&[0xffff, 0, 0x8001]);
    let end = End::bare(&device, impatient());
    for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
        let qp = Qp::new(&device, &end, kind);
        let peer = Peer::of(&device, &qp);
        for index in [1, 3, 0xffff] {
            let choose = |attr: &mut ibv_qp_attr, _: &mut _| attr.pkey_index = index;
            assert_eq!(qp.step_with(IBV_QPS_INIT, peer, choose), EINVAL);
            says(&[
                &format!("pkey_index is {index}"),
                "table",
                "0xffff",
                "0x8001",
            ]);
        }
        assert_eq!(qp.state(), IBV_QPS_RESET);
        let choose = |attr: &mut ibv_qp_attr, _: &mut _| attr.pkey_index = 2;
        assert_eq!(qp.step_with(IBV_QPS_INIT, peer, choose), 0);
    }
}

/// Keys of different partitions: nothing gets through, the receiver counts, the sender ends.
#[test]
fn different_partitions_end_in_retry_exceeded() {
    let keys = [0xffff, 0x8001];
    let (a, b) = (with_keys(&keys), with_keys(&keys));
    let (p, q) = (End::bare(&a, impatient()), End::bare(&b, impatient()));
    let (x, y) = pair_of(&a, &p, 0, &b, &q, 1);
    assert_eq!(y.recv(1, &mut []), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 2, &mut [])), 0);
    let wc = p.sent();
    assert_eq!((wc.wr_id, wc.status), (2, IBV_WC_RETRY_EXC_ERR));
    // The request and two retries.
    b.counts("rx_bad_pkey", 0, 3);
    let mut port = ibv_port_attr::zeroed();
    // SAFETY: the context is open, `port` is a whole struct.
    let result = unsafe { ops::ibv_query_port(verbs(), b.ctx, 1, &mut port) };
    assert_eq!((result, port.bad_pkey_cntr), (0, 3));
    assert_eq!(b.counter("tx_frames"), 0, "not a word");
    nothing(q.rcq, Duration::from_millis(5));
    assert_eq!(y.state(), IBV_QPS_RTS);
}

/// The high bit is full membership: two limited members do not talk, any other two do.
#[test]
fn membership() {
    const LIMITED: u16 = 0x0001;
    const FULL: u16 = 0x8001;
    for (here, there, talk) in [
        (FULL, FULL, true),
        (LIMITED, FULL, true),
        (FULL, LIMITED, true),
        (LIMITED, LIMITED, false),
    ] {
        let (a, b) = (with_keys(&[0xffff, here]), with_keys(&[0xffff, there]));
        let (p, q) = (End::bare(&a, impatient()), End::bare(&b, impatient()));
        let (x, y) = pair_of(&a, &p, 1, &b, &q, 1);
        assert_eq!(y.recv(1, &mut []), 0);
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, 2, &mut [])), 0);
        let status = p.sent().status;
        if talk {
            assert_eq!(status, IBV_WC_SUCCESS, "{here:#x} to {there:#x}");
            ok(q.received());
        } else {
            assert_eq!(status, IBV_WC_RETRY_EXC_ERR, "{here:#x} to {there:#x}");
            b.counts("rx_bad_pkey", 0, 3);
        }
    }
}

/// Datagrams of another partition are dropped in silence, and counted.
#[test]
fn datagrams_of_another_partition() {
    let keys = [0xffff, 0x8001];
    let (a, b) = (with_keys(&keys), with_keys(&keys));
    let (p, q) = (End::bare(&a, impatient()), End::bare(&b, impatient()));
    let (x, y) = (Qp::new(&a, &p, IBV_QPT_UD), Qp::new(&b, &q, IBV_QPT_UD));
    x.up(Peer::nobody(&a));
    let choose = |attr: &mut ibv_qp_attr, _: &mut _| attr.pkey_index = 1;
    let peer = Peer::nobody(&b);
    assert_eq!(y.step_with(IBV_QPS_INIT, peer, choose), 0);
    y.step(IBV_QPS_RTR, peer);
    let into = Buf::new(&q, 40);
    assert_eq!(y.recv(1, &mut [into.sge(0, 40)]), 0);
    let ah = Ah::new(&p, b.gid());
    assert_eq!(x.send(&mut datagram(2, &mut [], &ah, y.num(), QKEY)), 0);
    ok(p.sent());
    b.counts("rx_bad_pkey", 0, 1);
    nothing(q.rcq, Duration::from_millis(5));
}
