//! A completion arrived between the poll that found nothing and the arming, and was waited for for ever.

use std::ffi::c_uint;
use std::ptr::null_mut;
use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const SOON: Duration = Duration::from_millis(20);

fn with_events() -> Options {
    Options {
        events: true,
        ..Options::default()
    }
}

fn arm(cq: *mut ibv_cq, solicited_only: bool) {
    // SAFETY: the callers' CQs are live.
    let result = unsafe { ops::ibv_req_notify_cq(cq, solicited_only.into()) };
    assert_eq!(result, 0);
}

fn fd(end: &End) -> i32 {
    // SAFETY: the channel is live.
    unsafe { (*end.channel).fd }
}

/// Takes one event and acknowledges it; gives its CQ, or errno.
fn event(end: &End) -> Result<*mut ibv_cq, i32> {
    let (mut cq, mut context) = (null_mut(), null_mut());
    // SAFETY: the channel is live, both places are writable.
    match unsafe { verbs().get_cq_event(end.channel, &mut cq, &mut context) } {
        0 => {
            // SAFETY: the event's CQ is live, its owner is `end`.
            unsafe { verbs().ack_cq_events(cq, 1 as c_uint) };
            Ok(cq)
        }
        _ => Err(errno()),
    }
}

fn no_event(end: &End) {
    assert!(!readable(fd(end), SOON), "an event");
    assert_eq!(event(end), Err(libc::EAGAIN));
}

/// Sends one empty message and waits until the receiver's CQ holds its completion, without polling there.
fn inject(x: &End, device: &Device, id: u64, solicited: bool) {
    let before = device.counter("rx_accepted");
    let mut request = wr(IBV_WR_SEND, id, &mut []);
    if solicited {
        request = flagged(request, IBV_SEND_SOLICITED);
    }
    assert_eq!(x.send(&mut request), 0);
    ok(x.sent());
    // Asking for counters goes through the node's lock, behind the delivery.
    until("the message is received", || {
        device.counter("rx_accepted") > before
    });
}

/// What is there when the CQ is armed raises no event, so a poll after arming finds it; what comes afterwards
/// raises exactly one.
#[test]
fn an_armed_cq_looks_forward_only() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, with_events());
    set_nonblocking(fd(&y));
    for id in 0..6 {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    assert_eq!(poll_once(y.rcq).expect("a poll").map(|wc| wc.wr_id), None);
    // The gap.
    inject(&x, &b, 0, false);
    arm(y.rcq, false);
    no_event(&y);
    let found = poll_once(y.rcq).expect("a poll").expect("it is there");
    assert_eq!(ok(found).wr_id, 0);

    // It is still armed, for the next one.
    inject(&x, &b, 1, false);
    inject(&x, &b, 2, false);
    assert!(readable(fd(&y), PATIENCE));
    assert_eq!(event(&y), Ok(y.rcq));
    no_event(&y);
    for id in [1, 2] {
        assert_eq!(ok(y.received()).wr_id, id);
    }
    // Once is once.
    inject(&x, &b, 3, false);
    no_event(&y);
    assert_eq!(ok(y.received()).wr_id, 3);
    // Armed twice, one event.
    arm(y.rcq, false);
    arm(y.rcq, false);
    inject(&x, &b, 4, false);
    assert!(readable(fd(&y), PATIENCE));
    assert_eq!(event(&y), Ok(y.rcq));
    no_event(&y);
}

/// Armed for solicited ones, a CQ waits for such a message or an error; armed for all on top, for any.
#[test]
fn solicited_only() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, with_events());
    set_nonblocking(fd(&y));
    for id in 0..6 {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    arm(y.rcq, true);
    inject(&x, &b, 0, false);
    no_event(&y);
    inject(&x, &b, 1, true);
    assert!(readable(fd(&y), PATIENCE));
    assert_eq!(event(&y), Ok(y.rcq));

    arm(y.rcq, true);
    arm(y.rcq, false);
    inject(&x, &b, 2, false);
    assert!(readable(fd(&y), PATIENCE));
    assert_eq!(event(&y), Ok(y.rcq));

    arm(y.rcq, true);
    y.to(IBV_QPS_ERR);
    assert!(readable(fd(&y), PATIENCE), "a flush is an error");
    assert_eq!(event(&y), Ok(y.rcq));
}

/// Two CQs on one channel: each event says whose it is, and each CQ has its own gap.
#[test]
fn two_cqs_on_one_channel() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, with_events());
    set_nonblocking(fd(&y));
    for id in 0..2 {
        assert_eq!((y.recv(id, &mut []), x.recv(id, &mut [])), (0, 0));
    }
    // Something in each of them before they are armed.
    inject(&x, &b, 0, false);
    assert_eq!(y.send(&mut wr(IBV_WR_SEND, 0, &mut [])), 0);
    ok(x.received());
    // By a packet, or by a word in shared memory.
    until("it is acknowledged", || {
        let all = b.counters();
        all.engine.rx_accepted + all.link.rx_shm_executed >= 2
    });
    arm(y.rcq, false);
    arm(y.scq, false);
    no_event(&y);
    assert_eq!(
        ok(poll_once(y.rcq).expect("a poll").expect("there")).wr_id,
        0
    );
    assert_eq!(
        ok(poll_once(y.scq).expect("a poll").expect("there")).wr_id,
        0
    );
    inject(&x, &b, 1, false);
    assert!(readable(fd(&y), PATIENCE));
    assert_eq!(event(&y), Ok(y.rcq));
    assert_eq!(y.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    assert!(readable(fd(&y), PATIENCE));
    assert_eq!(event(&y), Ok(y.scq));
}

/// Waits for one completion of `cq` as a program does that sleeps: poll, arm, poll, sleep.
fn next(end: &End, cq: *mut ibv_cq) -> ibv_wc {
    loop {
        if let Some(wc) = poll_once(cq).expect("a poll") {
            return ok(wc);
        }
        arm(cq, false);
        if let Some(wc) = poll_once(cq).expect("a poll") {
            return ok(wc);
        }
        assert!(readable(fd(end), PATIENCE), "a wake-up is lost");
        event(end).expect("an event");
    }
}

/// Ping-pong of two threads that sleep whenever there is nothing to do. Sends complete in silence but for
/// one in sixteen, which frees the slots.
fn round_trips(rounds: u64) {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, with_events());
    struct Ends<'a>(&'a End);
    // SAFETY: each end is used by one thread here.
    unsafe impl Send for Ends<'_> {}
    fn say(end: &End, id: u64) {
        let mut request = wr(IBV_WR_SEND, id, &mut []);
        let signaled = id.is_multiple_of(16);
        if !signaled {
            request = unsignaled(request);
        }
        assert_eq!(end.send(&mut request), 0);
        if signaled {
            assert_eq!(ok(end.sent()).wr_id, id);
        }
    }
    for id in 0..2 {
        assert_eq!((x.recv(id, &mut []), y.recv(id, &mut [])), (0, 0));
    }
    std::thread::scope(|s| {
        let far = Ends(&y);
        s.spawn(move || {
            let Ends(y) = { far };
            for id in 0..rounds {
                assert_eq!(next(y, y.rcq).wr_id, id);
                assert_eq!(y.recv(id + 2, &mut []), 0);
                say(y, id);
            }
        });
        for id in 0..rounds {
            say(&x, id);
            assert_eq!(next(&x, x.rcq).wr_id, id);
            assert_eq!(x.recv(id + 2, &mut []), 0);
        }
    });
}

#[test]
fn no_round_trip_stalls() {
    round_trips(20_000);
}

#[test]
#[ignore = "run by ci/long.sh"]
fn no_round_trip_of_a_million_stalls() {
    round_trips(1_000_000);
}
