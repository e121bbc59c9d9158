//! Receivers that are not ready, peers that do not answer, rights that are missing.

use std::time::{Duration, Instant};

use crate::common::*;
use rdma_core_sys::*;

/// Case 21: `rnr_retry` counts; 7 has no limit.
#[test]
fn receiver_not_ready() {
    for (rnr_retry, transmissions) in [(0, 1), (3, 4)] {
        let (a, b) = (Device::plain(), Device::plain());
        let (x, _y) = pair(
            &a,
            &b,
            Options {
                rnr_retry,
                // Long enough that the RNR timer alone sets the pace.
                timeout: 18,
                ..Options::default()
            },
        );
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, 2, &mut [])), 0);
        let wc = x.sent();
        assert_eq!((wc.wr_id, wc.status), (1, IBV_WC_RNR_RETRY_EXC_ERR));
        assert_eq!(wc.status.0, 13);
        let wc = x.sent();
        assert_eq!((wc.wr_id, wc.status), (2, IBV_WC_WR_FLUSH_ERR));
        assert_eq!(x.state(), IBV_QPS_ERR);
        b.counts("tx_rnr_naks", 0, transmissions);
        a.counts("rx_rnr_naks", 0, transmissions);
    }
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(
        &a,
        &b,
        Options {
            rnr_retry: 7,
            ..Options::default()
        },
    );
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    nothing(x.scq, Duration::from_millis(50));
    until("it asks again and again", || a.counter("rx_rnr_naks") > 8);
    assert_eq!(y.recv(5, &mut []), 0);
    ok(x.sent());
    assert_eq!(ok(y.received()).wr_id, 5);
}

/// Case 20: the timer is a code, and 0 is its longest: 655.36 ms. Only the lower bound is asserted.
#[test]
fn min_rnr_timer_is_a_code() {
    for (min_rnr_timer, at_least) in [(0, Duration::from_micros(655_360)), (12, Duration::ZERO)] {
        let (a, b) = (Device::plain(), Device::plain());
        let (x, y) = pair(
            &a,
            &b,
            Options {
                min_rnr_timer,
                ..Options::default()
            },
        );
        let start = Instant::now();
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
        until("the receiver says so", || b.counter("tx_rnr_naks") > 0);
        assert_eq!(y.recv(1, &mut []), 0);
        ok(x.sent());
        assert!(
            start.elapsed() >= at_least,
            "code {min_rnr_timer}: {:?}",
            start.elapsed()
        );
        ok(y.received());
        if min_rnr_timer == 0 {
            assert_eq!(b.counter("tx_rnr_naks"), 1, "one wait, and a long one");
        }
    }
}

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

/// Case 53: PSNs that do not match look like a peer that never answers.
#[test]
fn sequence_numbers_that_do_not_match() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, y) = (End::new(&a, opt), End::new(&b, opt));
    x.to_init();
    y.to_init();
    x.to_rtr(y.qpn(), b.gid(), opt.psn);
    y.to_rtr(x.qpn(), a.gid(), opt.psn + 0x1000);
    x.to_rts();
    y.to_rts();
    assert_eq!(y.recv(1, &mut []), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    assert_eq!(x.sent().status, IBV_WC_RETRY_EXC_ERR);
    nothing(y.rcq, Duration::from_millis(5));
    b.counts("rx_duplicate_request", 0, 2);
}

/// Case 41: what is missing for an atomic, one thing at a time.
#[test]
fn atomics_need_both_rights() {
    const WITHOUT_ATOMIC: u32 = 7;
    let attempt = |opt: Options, mr_access: u32, offset: usize| {
        let (a, b) = (Device::plain(), Device::plain());
        let (x, y) = (End::new(&a, opt), End::new(&b, opt));
        connect(&a, &x, &b, &y);
        let old = Buf::new(&x, 8);
        let word = Buf::with_access(&y, 64, mr_access);
        word.set_word(0, 41);
        let mut sges = [old.sge(0, 8)];
        let op = IBV_WR_ATOMIC_FETCH_AND_ADD;
        assert_eq!(
            x.send(&mut atomic(op, 1, &mut sges, &word, offset, 1, 0)),
            0
        );
        (x.sent().status, old.word(0), word.word(0))
    };
    let good = Options::default();
    let denied = attempt(good, WITHOUT_ATOMIC, 0);
    assert_eq!(denied, (IBV_WC_REM_ACCESS_ERR, 0, 41), "the MR allows none");
    let no_qp = Options {
        access: WITHOUT_ATOMIC,
        ..good
    };
    assert_eq!(
        attempt(no_qp, ALL_ACCESS, 0),
        (IBV_WC_REM_INV_REQ_ERR, 0, 41),
        "the QP allows none"
    );
    let no_depth = Options {
        dest_rd_atomic: 0,
        ..good
    };
    assert_eq!(
        attempt(no_depth, ALL_ACCESS, 0),
        (IBV_WC_REM_INV_REQ_ERR, 0, 41),
        "no depth"
    );
    assert_eq!(
        attempt(good, ALL_ACCESS, 4),
        (IBV_WC_REM_INV_REQ_ERR, 0, 41),
        "not aligned"
    );
    assert_eq!(attempt(good, ALL_ACCESS, 0), (IBV_WC_SUCCESS, 41, 42));
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
