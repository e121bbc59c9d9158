//! `rnr_retry` was left at 0, which is no retry at all: one lost race ended the connection.

use std::time::Duration;

use crate::common::*;
use rdma_core_sys::*;

fn options(rnr_retry: u8) -> Options {
    Options {
        rnr_retry,
        // Long enough that the RNR timer alone sets the pace.
        timeout: 18,
        ..Options::default()
    }
}

/// 0: the first NAK ends it. 3: three more transmissions, then the end. Later sends are flushed.
#[test]
fn attempts_are_counted_exactly() {
    for (rnr_retry, transmissions) in [(0, 1), (3, 4), (6, 7)] {
        let (a, b) = (Device::plain(), Device::plain());
        let (x, y) = pair(&a, &b, options(rnr_retry));
        for id in 1..4 {
            assert_eq!(x.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
        }
        let wc = x.sent();
        assert_eq!((wc.wr_id, wc.status.0), (1, 13));
        for id in 2..4 {
            let wc = x.sent();
            assert_eq!((wc.wr_id, wc.status.0), (id, 5));
        }
        assert_eq!(x.state(), IBV_QPS_ERR);
        assert_eq!(y.state(), IBV_QPS_RTS, "the receiver did nothing wrong");
        b.counts("tx_rnr_naks", 0, transmissions);
        a.counts("rx_rnr_naks", 0, transmissions);
        let stats = rdma_soft::qp_stats(&a.name, x.qpn()).expect("the QP");
        assert_eq!(stats.rnr_naks_received, transmissions);
    }
}

/// A receive that comes in time saves it.
#[test]
fn three_are_enough_for_one_late_receive() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        // 81.92 ms: room to post the receive in.
        min_rnr_timer: 26,
        ..options(3)
    };
    let (x, y) = pair(&a, &b, opt);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    until("a NAK", || a.counter("rx_rnr_naks") > 0);
    assert_eq!(y.recv(5, &mut []), 0);
    ok(x.sent());
    assert_eq!(ok(y.received()).wr_id, 5);
}

/// 7 is without limit.
#[test]
fn seven_waits_for_the_receive() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, options(7));
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    nothing(x.scq, Duration::from_millis(50));
    until("it asks again and again", || a.counter("rx_rnr_naks") > 8);
    assert_eq!(y.recv(5, &mut []), 0);
    ok(x.sent());
    assert_eq!(ok(y.received()).wr_id, 5);
}
