//! Acknowledging each event took a lock each time and was the main cost. A CQ counts them and acknowledges many at once.

use std::ffi::c_uint;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::{End, LIMIT, all, connect};
use rdma_core_sys::{Functions, Verbs, ibv_cq};
use rdma_qp::{Device, Memory, Timing};
use rdma_soft::Profile;

static EVENTS: AtomicU32 = AtomicU32::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);

/// The device's own acknowledgement, counted.
unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    EVENTS.fetch_add(events, Relaxed);
    CALLS.fetch_add(1, Relaxed);
    // SAFETY: the caller's arguments go on as they are.
    unsafe { rdma_soft::verbs().ack_cq_events(cq, events) };
}

#[test]
fn events_are_acknowledged_in_batches_and_the_rest_before_the_end() {
    const ROUNDS: u32 = 1000;
    let name = rdma_soft::add_device(Profile::default()).unwrap();
    // SAFETY: a table of the software device's functions, one of them wrapped.
    let verbs = unsafe {
        Verbs::new(Functions {
            ack_cq_events,
            ..**rdma_soft::verbs()
        })
    };
    let device = Device::open(&verbs, &name).unwrap();
    let end = || {
        let (pd, cq) = (
            device.alloc_pd().unwrap(),
            device.create_event_cq(64).unwrap(),
        );
        let mr = pd.register(Memory::zeroed(64), all()).unwrap();
        let qp = pd.rc(&cq).create().unwrap();
        End { qp, cq, mr, pd }
    };
    let (mut a, mut b) = (end(), end());
    connect((&mut a, &device), (&mut b, &device), Timing::default());
    for _ in 0..ROUNDS {
        b.qp.recv(b.mr.slice(0, 8).unwrap()).unwrap();
        assert_eq!(b.cq.arm().unwrap(), rdma_qp::Armed::Sleep);
        let sent = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
        b.cq.wait_any(LIMIT).unwrap().unwrap();
        b.cq.take_events().unwrap();
        a.cq.wait(&sent, LIMIT).unwrap();
    }
    let calls = CALLS.load(Relaxed);
    assert!(calls <= ROUNDS / 100, "{calls} calls");
    drop((a.qp, b.qp));
    b.cq.close()
        .expect("no event is left that the library would wait for");
    let events = EVENTS.load(Relaxed);
    assert!((1..=ROUNDS).contains(&events), "{events} events");
}
