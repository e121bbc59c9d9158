//! One QP, many threads that post to it.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use common::{LIMIT, device, pair};
use rdma_qp::{Access, Memory, PostFlags, SharedQp, SharedSlice, ToErr, op};
use rdma_soft::Profile;

/// Four threads, more requests than the queue has room for, a quarter of them unsignaled: every request has one end, and
/// every byte is where it belongs.
#[test]
fn every_request_of_every_thread_ends_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let device = device(Profile::default());
    let ((a, of_b), (b, _)) = pair(&device, (THREADS * EACH * 8) as usize);
    let remote = of_b.region(0).unwrap();
    let source = Memory::zeroed((THREADS * EACH * 8) as usize);
    let source = Arc::new(a.pd.register(source, Access::empty()).unwrap());
    for cell in 0..THREADS * EACH {
        source
            .write_at((cell * 8) as usize, &(cell + 1).to_ne_bytes())
            .unwrap();
    }
    let shared = SharedQp::new(a.qp, 64);
    let over = AtomicBool::new(false);
    let mut ended = BTreeSet::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shared, source, over) = (shared.clone(), source.clone(), &over);
            scope.spawn(move || {
                for each in 0..EACH {
                    let cell = thread * EACH + each;
                    let local = SharedSlice::new(&source, (cell * 8) as usize, 8).unwrap();
                    let write = op::Write {
                        remote: remote.at(cell * 8),
                    };
                    let flags = if each % 4 == 1 {
                        PostFlags::UNSIGNALED
                    } else {
                        PostFlags::empty()
                    };
                    while shared.post(write, local.clone(), flags, cell).is_err() {
                        assert!(!over.load(Relaxed), "the poller has given up");
                        std::thread::yield_now();
                    }
                }
            });
        }
        // The last request of all may be a silent one: then it has ended when nothing is outstanding.
        let mut quiet = 0;
        while (ended.len() as u64) < THREADS * EACH && quiet < 100 {
            let wait = std::time::Duration::from_millis(100);
            match a.cq.wait_any(wait).unwrap() {
                Some(done) => {
                    quiet = 0;
                    done.outcome.unwrap();
                    ended.extend(shared.finish(&done));
                }
                None => quiet += 1,
            }
            while let Some(context) = shared.finish_silent() {
                ended.insert(context);
            }
            if quiet > 2 && shared.with(|qp| qp.send_account().accepted) == THREADS * EACH {
                break;
            }
        }
        over.store(true, Relaxed);
    });
    assert!(shared.take_refused().is_none());
    let account = shared.with(|qp| qp.send_account());
    assert_eq!(account.accepted, THREADS * EACH);
    assert_eq!(
        (account.failed, account.flushed, account.discarded),
        (0, 0, 0)
    );
    // Unsignaled requests after the last signaled one have no outcome yet; all others have their context back.
    assert_eq!(account.succeeded, ended.len() as u64);
    assert!(account.pending <= THREADS);
    let marker = SharedSlice::new(&source, 0, 0).unwrap();
    let write = op::Write {
        remote: remote.at(0),
    };
    shared
        .post(write, marker, PostFlags::empty(), u64::MAX)
        .unwrap();
    let done = a.cq.wait_any(LIMIT).unwrap().unwrap();
    assert_eq!(shared.finish(&done), Some(u64::MAX));
    while let Some(context) = shared.finish_silent() {
        assert!(ended.insert(context), "{context} twice");
    }
    assert_eq!(ended.len() as u64, THREADS * EACH);
    for cell in 0..THREADS * EACH {
        assert_eq!(
            b.bytes((cell * 8) as usize, 8),
            (cell + 1).to_ne_bytes(),
            "cell {cell}"
        );
    }
}

#[test]
fn what_cannot_be_posted_comes_back_with_its_reason() {
    let device = device(Profile::default());
    let ((a, of_b), _b) = pair(&device, 4096);
    let remote = of_b.region(0).unwrap();
    let mr =
        a.pd.register(Memory::zeroed(8192), Access::empty())
            .unwrap();
    let mr = Arc::new(mr);
    let shared = SharedQp::new(a.qp, 8);
    let local = SharedSlice::new(&mr, 0, 8192).unwrap();
    let write = op::Write {
        remote: remote.at(0),
    };
    shared.post(write, local, PostFlags::empty(), 7).unwrap();
    let (context, error) = shared.take_refused().unwrap();
    assert_eq!(context, 7);
    assert!(
        matches!(
            error,
            rdma_qp::PostError::OutOfRemoteRegion {
                len: 8192,
                room: 4096
            }
        ),
        "{error}"
    );
    assert!(SharedSlice::new(&mr, 8000, 400).is_err());

    shared.with(|qp| qp.to(ToErr)).unwrap();
    shared.post(op::Send, None, PostFlags::empty(), 8).unwrap();
    let done = a.cq.wait_any(LIMIT).unwrap().unwrap();
    assert!(done.outcome.unwrap_err().is_flush());
    assert_eq!(shared.finish(&done), Some(8));
    assert_eq!(shared.take_refused(), None);
}
