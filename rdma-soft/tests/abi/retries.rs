//! Receivers that are not ready, peers that do not answer, rights that are missing.

use std::time::{Duration, Instant};

use crate::common::*;
use rdma_core_sys::*;

/// A QP that is not yet in RTR is silent: the sender ends with RETRY_EXC, never RNR.
#[test]
fn a_peer_that_is_not_ready_to_receive_is_silent() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        timeout: 8,
        retry_cnt: 2,
        ..Options::default()
    };
    let (x, y) = (End::new(&a, opt), End::new(&b, opt));
    x.to_init();
    y.to_init();
    assert_eq!(y.recv(1, &mut []), 0);
    x.to_rtr(y.qpn(), b.gid(), opt.psn);
    x.to_rts();
    let start = Instant::now();
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    assert_eq!(x.sent().status, IBV_WC_RETRY_EXC_ERR);
    let one = Duration::from_nanos(4096 << 8);
    assert!(
        start.elapsed() >= 3 * one,
        "three times the timeout: {:?}",
        start.elapsed()
    );
    // The request and two retries.
    b.counts("rx_qp_state", 0, 3);
    assert_eq!(b.counter("tx_frames"), 0, "not a word");
    assert_eq!(y.state(), IBV_QPS_INIT);
}

/// Cases 41 and 42: a key or an address that is wrong in any way opens nothing.
#[test]
fn wrong_keys_and_addresses() {
    let attempt = |change: &dyn Fn(&mut ibv_send_wr, &mut ibv_sge, &Buf)| {
        let (a, b) = (Device::plain(), Device::plain());
        let (x, y) = pair(&a, &b, Options::default());
        let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 64));
        let mut sges = [from.sge(0, 64)];
        let mut request = rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0);
        let mut sge = sges[0];
        change(&mut request, &mut sge, &to);
        sges[0] = sge;
        request.sg_list = sges.as_mut_ptr();
        assert_eq!(x.send(&mut request), 0);
        let status = x.sent().status;
        assert_eq!(to.read(0, 64), [0; 64]);
        status
    };
    let remote = |f: &dyn Fn(ibv_send_wr_rdma, &Buf) -> ibv_send_wr_rdma| {
        attempt(&|request, _, to| request.wr.rdma = f(request.rdma(), to))
    };
    let denied = IBV_WC_REM_ACCESS_ERR;
    assert_eq!(
        remote(&|r, _| ibv_send_wr_rdma {
            rkey: r.rkey.swap_bytes(),
            ..r
        }),
        denied
    );
    assert_eq!(
        remote(&|r, to| ibv_send_wr_rdma {
            rkey: to.lkey(),
            ..r
        }),
        denied,
        "an lkey"
    );
    let low = |r: ibv_send_wr_rdma| r.remote_addr & 0xffff_ffff;
    assert_eq!(
        remote(&|r, _| ibv_send_wr_rdma {
            remote_addr: low(r),
            ..r
        }),
        denied
    );
    let after = |r: ibv_send_wr_rdma| r.remote_addr + 1;
    assert_eq!(
        remote(&|r, _| ibv_send_wr_rdma {
            remote_addr: after(r),
            ..r
        }),
        denied,
        "too far"
    );
    let end = |r: ibv_send_wr_rdma| r.remote_addr.wrapping_neg();
    assert_eq!(
        remote(&|r, _| ibv_send_wr_rdma {
            remote_addr: end(r),
            ..r
        }),
        denied
    );
    let local = IBV_WC_LOC_PROT_ERR;
    assert_eq!(attempt(&|_, sge, _| sge.lkey ^= 1), local);
    assert_eq!(attempt(&|_, sge, _| sge.addr -= 1), local);
    assert_eq!(attempt(&|_, sge, _| sge.addr = u64::MAX), local);
}

/// Memory that is deregistered opens nothing, even with the key that was handed out.
#[test]
fn a_key_dies_with_its_region() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let from = Buf::new(&x, 64);
    let mut sges = [from.sge(0, 64)];
    let to = Buf::new(&y, 64);
    let mut request = rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0);
    assert_eq!(x.send(&mut request), 0);
    ok(x.sent());
    drop(to);
    let _other = Buf::new(&y, 64);
    assert_eq!(x.send(&mut request), 0);
    assert_eq!(x.sent().status, IBV_WC_REM_ACCESS_ERR);
}
