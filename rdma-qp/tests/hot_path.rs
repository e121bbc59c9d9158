//! Posting and polling allocate nothing.

mod fake;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fake::{Fake, wc};
use rdma_core_sys::*;
use rdma_qp::xrc::SrqNum;
use rdma_qp::{
    Access, Connections, Device, Memory, Operation, PostFlags, Refill, RemoteRegion, ToInit,
    ToReset, op,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of what this thread asks of it.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static POSTED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

unsafe extern "C" fn post_send(
    _: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> i32 {
    // SAFETY: the caller passes a request.
    POSTED.set((unsafe { (*wr).wr_id }, 1));
    0
}

unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> i32 {
    // SAFETY: the caller passes a request.
    POSTED.set((unsafe { (*wr).wr_id }, 1));
    0
}

unsafe extern "C" fn poll_cq(_: *mut ibv_cq, _: i32, into: *mut ibv_wc) -> i32 {
    let (wr_id, waiting) = POSTED.get();
    if waiting != 0 {
        POSTED.set((0, 0));
        // SAFETY: the caller passes room for at least one completion.
        unsafe { *into = wc(wr_id, IBV_WC_SUCCESS) };
    }
    waiting as i32
}

#[test]
fn polling_beside_a_region_that_waits_allocates_nothing() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    qp.recv(mr.all()).unwrap();
    drop(mr);
    assert!(cq.poll().unwrap().is_none());
    let before = ALLOCATIONS.get();
    let calls = fake.count("poll_cq");
    fake.state().calls.reserve(10_000);
    let reserved = ALLOCATIONS.get() - before;
    for _ in 0..1000 {
        assert!(cq.poll().unwrap().is_none());
    }
    assert_eq!(ALLOCATIONS.get() - before, reserved);
    assert_eq!(fake.count("poll_cq") - calls, 1000);
    assert_eq!(pd.retired_regions(), 1);
}

#[test]
fn posting_and_polling_allocate_nothing() {
    let _fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mr = pd
        .register(Memory::zeroed(4096), Access::LOCAL_WRITE)
        .unwrap();
    let mut qp = pd.rc(&cq).send_sge(2).create().unwrap();
    // SAFETY: the QP is live and nobody uses its context at the moment.
    unsafe {
        let ops = &mut (*(*qp.as_ptr()).context).ops;
        ops.post_send = Some(post_send);
        ops.post_recv = Some(post_recv);
        ops.poll_cq = Some(poll_cq);
    }
    let remote = RemoteRegion {
        addr: 0,
        len: 4096,
        rkey: 1,
    };
    let mut initiator = pd.xrc(&cq).create().unwrap();
    let srqs = [1, 2].map(|number| SrqNum::new(number).unwrap());
    let mut round = || {
        let slice = mr.slice(64, 64).unwrap();
        for srq in srqs {
            initiator.send_to(slice, srq).unwrap();
            assert!(cq.poll().unwrap().unwrap().outcome.is_ok());
        }
        qp.write([slice, slice], remote.at(8)).unwrap();
        assert!(cq.poll().unwrap().unwrap().outcome.is_ok());
        qp.recv(slice).unwrap();
        assert!(cq.poll().unwrap().unwrap().outcome.is_ok());
        qp.post(
            op::FetchAdd {
                remote: remote.at(0),
                add: 1,
            },
            mr.slice(0, 8).unwrap(),
            PostFlags::FENCE,
        )
        .unwrap();
        assert!(cq.poll().unwrap().is_some() && cq.poll().unwrap().is_none());
    };
    round();
    let before = ALLOCATIONS.get();
    for _ in 0..10_000 {
        round();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    let before = ALLOCATIONS.get();
    drop(Box::new(7));
    assert_eq!(ALLOCATIONS.get() - before, 1, "the count counts");
}

thread_local! {
    static SHARED: Cell<(u64, u64, u32)> = const { Cell::new((0, 0, 0)) };
}

unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> i32 {
    // SAFETY: the caller passes a request.
    SHARED.set((unsafe { (*wr).wr_id }, 1, SHARED.get().2));
    0
}

unsafe extern "C" fn poll_shared(_: *mut ibv_cq, _: i32, into: *mut ibv_wc) -> i32 {
    let (wr_id, waiting, qp_num) = SHARED.get();
    if waiting != 0 {
        SHARED.set((0, 0, qp_num));
        let done = ibv_wc {
            qp_num,
            byte_len: 8,
            ..wc(wr_id, IBV_WC_SUCCESS)
        };
        // SAFETY: the caller passes room for at least one completion.
        unsafe { *into = done };
    }
    waiting as i32
}

/// Receives of an SRQ, their demultiplexing, and the buffers that are posted and handed out.
#[test]
fn receiving_from_an_srq_allocates_nothing() {
    let _fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let srq = pd.srq().depth(16).create().unwrap();
    let qp = pd.rc(&cq).srq(&srq).create().unwrap();
    // SAFETY: the QP is live and nobody uses its context at the moment.
    unsafe {
        let ops = &mut (*(*qp.as_ptr()).context).ops;
        ops.post_srq_recv = Some(post_srq_recv);
        ops.poll_cq = Some(poll_shared);
    }
    SHARED.set((0, 0, qp.qp_num()));
    let mut connections = Connections::new();
    connections.insert(&qp, 7);
    let mut receives = Refill::new(srq, pd.buffers(16, 64).unwrap(), 1);
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    let mut round = || {
        receives.queue_mut().recv(mr.all()).unwrap();
        let done = cq.poll().unwrap().unwrap();
        assert_eq!(connections.of(&done), Some(&7));
        let buffer = receives.pool().take().unwrap();
        receives.queue_mut().recv_buffer(buffer).unwrap();
        let done = cq.poll().unwrap().unwrap();
        let message = receives.take(&done).unwrap();
        assert_eq!((message.len(), message.qp_num), (8, qp.qp_num()));
    };
    round();
    let before = ALLOCATIONS.get();
    for _ in 0..10_000 {
        round();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(receives.queue().account().succeeded, 20_002);
}

/// Completions that wait for their turn are never more than the CQ has room for, however many lives are behind them.
#[test]
fn waiting_allocates_nothing_over_many_lives() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    let mut qp = pd.rc(&cq).send_depth(8).recv_depth(8).create().unwrap();
    fake.state().calls.reserve(100_000);
    for life in 0..100 {
        qp.to(ToReset).unwrap();
        let (port, pkey_index, access) = (1, 0, Access::empty());
        qp.to(ToInit {
            port,
            pkey_index,
            access,
        })
        .unwrap();
        let tickets: Vec<_> = (0..8).map(|_| qp.send(mr.all()).unwrap()).collect();
        for index in 0..8 {
            let id = fake.send_id(qp.qp_num(), 8 * life + index);
            fake.complete(0, wc(id, IBV_WC_SUCCESS));
        }
        let before = ALLOCATIONS.get();
        cq.wait(&tickets[7], std::time::Duration::ZERO).unwrap();
        assert_eq!(ALLOCATIONS.get() - before, 0, "in life {life}");
    }
}

/// The library's own note of what a request asks for is used again when its place in the queue is.
#[test]
fn a_silent_request_is_remembered_for_what_it_was() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    let mut qp = pd.rc(&cq).send_depth(2).recv_depth(1).create().unwrap();
    let (addr, len, rkey) = (0, 64, 1);
    let remote = RemoteRegion { addr, len, rkey }.at(0);
    let (op, flags) = (op::Write { remote }, PostFlags::UNSIGNALED);
    let silent = qp.post(op, mr.all(), flags).unwrap();
    for index in 1..6 {
        let sent = qp.send(mr.all()).unwrap();
        assert_eq!(sent.operation(), Operation::Send);
        fake.complete(0, wc(fake.send_id(qp.qp_num(), index), IBV_WC_SUCCESS));
        cq.wait(&sent, std::time::Duration::ZERO).unwrap();
    }
    let success = cq.wait(&silent, std::time::Duration::ZERO).unwrap();
    assert_eq!(success.operation, Operation::Write);
}
