//! `min_rnr_timer` 0 is no wait of 0: it is the longest, 655.36 ms.

use std::time::{Duration, Instant};

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

/// What the codes stand for (the IBTA specification's table of RNR NAK timer values, as in the kernel's
/// `enum ib_rnr_timeout`).
const ZERO: Duration = Duration::from_micros(655_360);
const TWELVE: Duration = Duration::from_micros(640);

/// Messages of a sender that is 16 deep, to a receiver that is 4 deep and posts each receive again 5 ms after
/// its message came.
fn late_receives(messages: u64, code: u8) {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        send_wr: 16,
        recv_wr: 4,
        min_rnr_timer: code,
        // The RNR timer alone sets the pace.
        timeout: 20,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    for id in 0..4 {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    let start = Instant::now();
    let (mut posted, mut sent, mut got, mut receives) = (0, 0, 0, 4);
    let mut due = Vec::new();
    while sent < messages || got < messages {
        assert!(
            start.elapsed() < 10 * PATIENCE,
            "{sent} sent, {got} received"
        );
        if posted < messages && posted - sent < 16 {
            assert_eq!(x.send(&mut wr(IBV_WR_SEND, posted, &mut [])), 0);
            posted += 1;
        }
        if let Some(wc) = poll_once(x.scq).expect("a poll") {
            assert_eq!(ok(wc).wr_id, sent);
            sent += 1;
        }
        if let Some(wc) = poll_once(y.rcq).expect("a poll") {
            assert_eq!(ok(wc).wr_id, got);
            got += 1;
            due.push(Instant::now() + Duration::from_millis(5));
        }
        while due.first().is_some_and(|&at| at <= Instant::now()) {
            due.remove(0);
            assert_eq!(y.recv(receives, &mut []), 0);
            receives += 1;
        }
    }
    let wait = if code == 0 { ZERO } else { TWELVE };
    let here = rdma_soft::qp_stats(&a.name, x.qpn()).expect("the sender");
    let there = rdma_soft::qp_stats(&b.name, y.qpn()).expect("the receiver");
    assert!(there.rnr_naks_sent > 0, "receives came late");
    // A NAK that comes while its predecessor is waited for adds nothing.
    let (repeated, got_naks) = (a.counter("rx_duplicate_response"), here.rnr_naks_received);
    assert!(got_naks > 0 && got_naks <= there.rnr_naks_sent);
    assert!(got_naks + repeated >= there.rnr_naks_sent);
    assert_eq!((here.rnr_naks_sent, there.rnr_naks_received), (0, 0));
    let waits = u32::try_from(here.rnr_naks_received).expect("not that many");
    assert_eq!(
        here.rnr_wait,
        wait * waits,
        "each NAK costs what its code says"
    );
    assert_eq!(there.rnr_wait, Duration::ZERO);
    assert!(start.elapsed() >= here.rnr_wait, "it was waited for");
}

#[test]
fn code_12_waits_640_microseconds() {
    late_receives(64, 12);
}

/// Each wait is long enough for all four receives to be there again: a wait for every four messages.
#[test]
fn code_0_waits_655_milliseconds() {
    late_receives(12, 0);
}

/// Where nothing else is going on, one NAK is enough with code 0; the message takes as long as it says.
#[test]
fn one_late_receive() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        min_rnr_timer: 0,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let start = Instant::now();
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    until("the receiver says so", || b.counter("tx_rnr_naks") > 0);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(y.recv(1, &mut []), 0);
    ok(x.sent());
    assert!(start.elapsed() >= ZERO, "{:?}", start.elapsed());
    assert_eq!((b.counter("tx_rnr_naks"), a.counter("rx_rnr_naks")), (1, 1));
}

/// A code has five bits.
#[test]
fn there_is_no_code_32() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let qp = Qp::new(&device, &end, IBV_QPT_RC);
    let peer = Peer::of(&device, &qp);
    qp.step(IBV_QPS_INIT, peer);
    for code in [32, 255] {
        assert_eq!(
            qp.step_with(IBV_QPS_RTR, peer, |attr, _| attr.min_rnr_timer = code),
            EINVAL
        );
        says(&[&format!("min_rnr_timer is {code}"), "0 to 31"]);
        assert_eq!(qp.state(), IBV_QPS_INIT);
    }
    let last = |attr: &mut ibv_qp_attr, _: &mut _| attr.min_rnr_timer = 31;
    assert_eq!(qp.step_with(IBV_QPS_RTR, peer, last), 0);
}
