//! One QP, many threads that post to it.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use common::{LIMIT, device, pair};
use rdma_qp::{
    Access, Destination, Grh, Memory, PathOptions, PostFlags, QKey, SharedQp, SharedSlice, ToErr,
    op,
};
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

/// Datagrams of two threads through one QP, to a QP that counts them; and the QP comes back when nothing of the queue is left.
#[test]
fn a_qp_for_datagrams_is_shared_and_taken_back() {
    const EACH: u64 = 100;
    let device = device(Profile::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let got = device.create_cq(300).unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let (mut a, mut b) = (
        pd.ud(&cq).send_depth(8).create().unwrap(),
        pd.ud(&got).recv_depth(256).create().unwrap(),
    );
    let key = QKey::new(0x77).unwrap();
    a.activate(gid, key, PathOptions::default()).unwrap();
    let there = b.activate(gid, key, PathOptions::default()).unwrap();
    let mr = pd.register(Memory::zeroed(256 * 48), Access::LOCAL_WRITE);
    let mr = Arc::new(mr.unwrap());
    for slot in 0..256 {
        b.recv_with(slot as u64, mr.slice(slot * 48, 48).unwrap())
            .unwrap();
    }
    let source = pd.register(Memory::zeroed(EACH as usize * 2 * 8), Access::empty());
    let source = Arc::new(source.unwrap());
    let to: Destination = a.destination(&there).unwrap();
    let qp_num = a.qp_num();
    let shared = SharedQp::new(a, 16);
    let mut sent = BTreeSet::new();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (shared, source, to) = (shared.clone(), source.clone(), to.clone());
            scope.spawn(move || {
                for each in 0..EACH {
                    let context = thread * EACH + each;
                    let at = context as usize * 8;
                    source.write_at(at, &context.to_ne_bytes()).unwrap();
                    let slice = SharedSlice::new(&source, at, 8).unwrap();
                    let imm = context as u32;
                    let flags = PostFlags::empty();
                    loop {
                        let local = slice.clone();
                        let posted = match each % 2 {
                            0 => shared.post(op::SendTo { to: &to }, local, flags, context),
                            _ => shared.post(op::SendToImm { to: &to, imm }, local, flags, context),
                        };
                        if posted.is_ok() {
                            break;
                        }
                        std::thread::yield_now();
                    }
                }
            });
        }
        while (sent.len() as u64) < 2 * EACH {
            let done = cq
                .wait_any(LIMIT)
                .unwrap()
                .expect("a datagram that is sent");
            done.outcome.unwrap();
            let of_cq = cq.context(&done);
            assert_eq!(shared.finish(&done), Some(of_cq));
            assert!(sent.insert(of_cq), "{of_cq} twice");
        }
    });
    drop(to);
    let mut came = BTreeSet::new();
    for _ in 0..2 * EACH {
        let done = got.wait_any(LIMIT).unwrap().expect("a datagram");
        let success = done.outcome.unwrap();
        let mut bytes = [0; 8];
        let slot = got.context(&done) as usize;
        mr.read_at(slot * 48 + Grh::LEN, &mut bytes).unwrap();
        let context = u64::from_ne_bytes(bytes);
        assert_eq!(success.imm, (context % 2 == 1).then_some(context as u32));
        assert!(came.insert(context), "{context} twice");
    }
    assert_eq!(came, sent);

    let other = shared.clone();
    let still = shared.into_qp().unwrap_err();
    assert_eq!((still.handles, still.waiting, still.refused), (1, 0, 0));
    assert_eq!(still.qp_num, qp_num);
    drop(other);
    let mut qp = still.shared.into_qp().unwrap();
    assert_eq!(qp.send_account().succeeded, 2 * EACH);
    // It is as it was: each request with its own doorbell.
    qp.send_to(
        source.slice(0, 8).unwrap(),
        &qp.destination(&there).unwrap(),
    )
    .unwrap();
    assert_eq!(qp.waiting(), (0, 0));
    cq.wait_any(LIMIT).unwrap().unwrap().outcome.unwrap();
}

/// What waits for room, and what was refused, keep the QP shared.
#[test]
fn a_qp_is_not_taken_back_before_all_is_told() {
    let device = device(Profile::default());
    let ((a, of_b), (mut b, _)) = pair(&device, 4096);
    let remote = of_b.region(0).unwrap();
    let mr =
        a.pd.register(Memory::zeroed(4096), Access::empty())
            .unwrap();
    let mr = Arc::new(mr);
    let shared = SharedQp::new(a.qp, 8);
    let local = SharedSlice::new(&mr, 0, 4).unwrap();
    let too_far = op::Write {
        remote: remote.at(4096),
    };
    let flags = PostFlags::empty();
    shared.post(too_far, local.clone(), flags, 1).unwrap();
    // The peer has no receive, so that 32 fill the send queue, and three wait.
    for context in 0..35 {
        shared
            .post(op::Send, local.clone(), flags, context)
            .unwrap();
    }
    assert_eq!(shared.waiting(), 3);
    let still = shared.into_qp().unwrap_err();
    assert_eq!((still.handles, still.waiting, still.refused), (0, 3, 1));
    let said = still.to_string();
    assert!(said.contains("3 requests that wait"), "{said}");
    let shared = still.shared;
    assert_eq!(shared.take_refused().unwrap().0, 1);
    for context in 0..35 {
        b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
        let done = a.cq.wait_any(LIMIT).unwrap().unwrap();
        assert_eq!(shared.finish(&done), Some(context));
        b.cq.wait_any(LIMIT).unwrap().unwrap();
    }
    let qp = shared.into_qp().unwrap();
    assert_eq!(qp.send_account().succeeded, 35);
}

/// One request at a time, while another thread looks at the QP all the time: none waits for a completion that never comes.
#[test]
fn a_request_is_posted_though_the_qp_is_being_looked_at() {
    const ROUNDS: u64 = 50_000;
    let device = device(Profile::default());
    let ((a, of_b), _b) = pair(&device, 4096);
    let write = op::Write {
        remote: of_b.region(0).unwrap().at(0),
    };
    let shared = SharedQp::new(a.qp, 8);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (looker, over) = (shared.clone(), &over);
        scope.spawn(move || {
            while !over.load(Relaxed) {
                assert!(looker.waiting() <= 1);
                assert_eq!(looker.take_refused(), None);
            }
        });
        for round in 0..ROUNDS {
            shared.post(write, None, PostFlags::empty(), round).unwrap();
            let done = a.cq.wait_any(LIMIT).unwrap();
            over.store(done.is_none() || round + 1 == ROUNDS, Relaxed);
            let done = done.expect("the request is posted");
            assert_eq!(shared.finish(&done), Some(round));
        }
    });
}
