//! Completion channels and asynchronous events, through their descriptors.

use std::ffi::c_uint;
use std::ptr::null_mut;
use std::time::Duration;

use crate::common::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const SOON: Duration = Duration::from_millis(20);

fn arm(cq: *mut ibv_cq) {
    // SAFETY: the callers' CQs are live.
    let result = unsafe { ops::ibv_req_notify_cq(cq, 0) };
    assert_eq!(result, 0);
}

fn fd(end: &End) -> i32 {
    // SAFETY: the channel is live.
    unsafe { (*end.channel).fd }
}

/// Takes one event; gives its CQ and context, or errno.
fn get(end: &End) -> Result<(*mut ibv_cq, usize), i32> {
    let (mut cq, mut context) = (null_mut(), null_mut());
    // SAFETY: the channel is live, both places are writable.
    match unsafe { verbs().get_cq_event(end.channel, &mut cq, &mut context) } {
        0 => Ok((cq, context as usize)),
        _ => Err(errno()),
    }
}

fn ack(cq: *mut ibv_cq, n: c_uint) {
    // SAFETY: the callers' CQs are live.
    unsafe { verbs().ack_cq_events(cq, n) }
}

fn send_one(x: &End, id: u64) {
    let mut request = wr(IBV_WR_SEND, id, &mut []);
    assert_eq!(x.send(&mut request), 0);
    ok(x.sent());
}

/// Destroying a CQ waits for the acknowledgement of events that were taken, and drops the others.
#[test]
fn destroying_a_cq_waits_for_acknowledgements() {
    let device = Device::plain();
    let opt = Options {
        events: true,
        ..Options::default()
    };
    let (x, y) = pair(&device, &device, opt);
    arm(y.rcq);
    assert_eq!(y.recv(0, &mut []), 0);
    send_one(&x, 0);
    assert!(readable(fd(&y), PATIENCE));
    let (cq, _) = get(&y).expect("an event");
    assert_eq!(y.recv(1, &mut []), 0);
    arm(y.rcq);
    send_one(&x, 1);
    assert!(
        readable(fd(&y), PATIENCE),
        "a second event, which nobody takes"
    );

    struct Moved(End);
    // SAFETY: the end is dropped by the thread that it moves to.
    unsafe impl Send for Moved {}
    let moved = Moved(y);
    let dropped = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let dropped = &dropped;
        s.spawn(move || {
            let Moved(end) = { moved };
            drop(end);
            dropped.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        std::thread::sleep(SOON);
        assert!(
            !dropped.load(std::sync::atomic::Ordering::SeqCst),
            "one event is not acknowledged"
        );
        ack(cq, 1);
    });
    drop(x);
}

/// Asynchronous events come through `async_fd`, and destroying their object waits for the
/// acknowledgement.
#[test]
fn asynchronous_events() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = (
        End::new(&a, Options::default()),
        End::new(&b, Options::default()),
    );
    x.to_init();
    y.to_init();
    x.to_rtr(y.qpn(), b.gid(), y.opt.psn);
    y.to_rtr(x.qpn(), a.gid(), x.opt.psn);
    x.to_rts();
    // SAFETY: the context is open.
    set_nonblocking(unsafe { (*b.ctx).async_fd });
    let mut event = ibv_async_event::zeroed();
    // SAFETY: the context is open, `event` is writable.
    let none = unsafe { verbs().get_async_event(b.ctx, &mut event) };
    assert_eq!((none, errno()), (-1, libc::EAGAIN));

    // The first packet that reaches a QP in RTR.
    assert_eq!(y.recv(0, &mut []), 0);
    send_one(&x, 0);
    assert!(b.has_async_event(PATIENCE));
    // SAFETY: the context is open, `event` is writable.
    assert_eq!(unsafe { verbs().get_async_event(b.ctx, &mut event) }, 0);
    assert_eq!(event.event_type, IBV_EVENT_COMM_EST);
    // SAFETY: the event's kind says that the member is set.
    assert!(std::ptr::eq(unsafe { event.element.qp }, y.qp));
    y.to_rts();
    let done = std::sync::atomic::AtomicBool::new(false);
    struct Moved(End);
    // SAFETY: the end is dropped by the thread that it moves to.
    unsafe impl Send for Moved {}
    let moved = Moved(y);
    std::thread::scope(|s| {
        let done = &done;
        s.spawn(move || {
            let Moved(end) = { moved };
            drop(end);
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        std::thread::sleep(SOON);
        assert!(
            !done.load(std::sync::atomic::Ordering::SeqCst),
            "the event is not acknowledged"
        );
        // SAFETY: an event that was got above, acknowledged once.
        unsafe { verbs().ack_async_event(&mut event) };
    });
}

/// A peer's forbidden access raises an event at the target, which makes no call.
#[test]
fn refused_access_raises_an_event_at_the_target() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let mut request = wr(IBV_WR_RDMA_WRITE, 1, &mut []);
    let from = Buf::new(&x, 8);
    let mut sges = [from.sge(0, 8)];
    request.sg_list = sges.as_mut_ptr();
    request.num_sge = 1;
    request.wr.rdma = ibv_send_wr_rdma {
        remote_addr: 0x1000,
        rkey: 0x1000,
    };
    assert_eq!(x.send(&mut request), 0);
    assert_eq!(x.sent().status, IBV_WC_REM_ACCESS_ERR);
    assert!(b.has_async_event(PATIENCE));
    let event = b.async_event();
    assert_eq!(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    // SAFETY: the event's kind says that the member is set.
    assert!(std::ptr::eq(unsafe { event.element.qp }, y.qp));
    assert_eq!(y.state(), IBV_QPS_ERR);
}

/// SQD: the event says when everything in flight is acknowledged.
#[test]
fn a_drained_send_queue_raises_an_event() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (from, to) = (Buf::new(&x, 1 << 18), Buf::new(&y, 1 << 18));
    let mut sges = [from.sge(0, 1 << 18)];
    let mut write = rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0);
    assert_eq!(x.send(&mut write), 0);
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_SQD;
    attr.en_sqd_async_notify = 1;
    let mask = IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY;
    assert_eq!(modify(x.qp, &mut attr, mask), 0);
    assert!(a.has_async_event(PATIENCE));
    assert_eq!(a.async_event().event_type, IBV_EVENT_SQ_DRAINED);
    assert_eq!(query(x.qp).0.sq_draining, 0);
    assert_eq!(x.send(&mut write), 0, "taken, and kept until RTS");
    ok(x.sent());
    nothing(x.scq, SOON);
    x.to(IBV_QPS_RTS);
    ok(x.sent());
}
