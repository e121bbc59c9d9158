//! Any drop order, refused destruction, leftovers of former lives, and lost wake-ups, with a provider that misbehaves.

mod fake;

use fake::{Fake, wc};
use rdma_core_sys::*;
use rdma_qp::{
    Access, Armed, CloseMrError, CloseSrqError, Cq, Device, Memory, Mr, Pd, PollError, Qp,
    QueueKind, ToErr, ToInit, ToReset, WaitError,
};

/// Everything that a program makes, to be dropped in any order.
enum Thing {
    Device(#[allow(dead_code)] Device),
    Pd(#[allow(dead_code)] Pd),
    Cq(#[allow(dead_code)] Box<Cq>),
    Mr(#[allow(dead_code)] Mr),
    Qp(#[allow(dead_code)] Box<Qp>),
}

fn device() -> Device {
    Device::open(&fake::verbs(), "fake0").unwrap()
}

/// A domain with a region, and a CQ with a channel.
fn with_channel() -> (Device, Pd, Cq, Mr) {
    let device = device();
    let (pd, cq) = (
        device.alloc_pd().unwrap(),
        device.create_event_cq(64).unwrap(),
    );
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    (device, pd, cq, mr)
}

/// A QP with one send and one receive outstanding, and all that it needs.
fn things() -> Vec<Thing> {
    let (device, pd, cq, mr) = with_channel();
    let mut qp = pd.rc(&cq).create().unwrap();
    qp.to(ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    })
    .unwrap();
    qp.recv(mr.all()).unwrap();
    qp.send(mr.all()).unwrap();
    vec![
        Thing::Device(device),
        Thing::Pd(pd),
        Thing::Cq(Box::new(cq)),
        Thing::Mr(mr),
        Thing::Qp(Box::new(qp)),
    ]
}

/// All permutations of `0..n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in permutations(n - 1) {
        for at in 0..n {
            let mut longer = shorter.clone();
            longer.insert(at, n - 1);
            all.push(longer);
        }
    }
    all
}

#[test]
fn every_drop_order_leaves_nothing_behind() {
    let orders = permutations(5);
    assert_eq!(orders.len(), 120);
    for order in orders {
        let fake = Fake::new();
        let mut all: Vec<Option<Thing>> = things().into_iter().map(Some).collect();
        assert_eq!(fake.live(), 6, "context, PD, CQ, channel, MR, QP");
        for index in &order {
            all[*index] = None;
        }
        assert_eq!(fake.live(), 0, "order {order:?}");
    }
}

#[test]
fn setup_that_ends_early_leaves_nothing_behind_and_keeps_its_error() {
    for step in ["alloc_pd", "create_cq", "reg_mr", "create_qp", "modify_qp"] {
        let fake = Fake::new();
        fake.fail(step, 28);
        let setup = || -> Result<(), Box<dyn std::error::Error>> {
            let device = device();
            let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(64)?);
            let _mr = pd.register(Memory::zeroed(64), Access::LOCAL_WRITE)?;
            pd.rc(&cq).create()?.to(ToInit {
                port: 1,
                pkey_index: 0,
                access: Access::empty(),
            })?;
            Ok(())
        };
        let error = setup().unwrap_err().to_string();
        assert!(error.contains("ENOSPC (28)"), "{step}: {error}");
        assert_eq!(fake.live(), 0, "{step}");
    }
}

#[test]
fn what_cannot_be_destroyed_is_leaked_with_all_that_it_uses() {
    let fake = Fake::new();
    let all = things();
    fake.fail("destroy_qp", 16);
    drop(all);
    let live = fake.state().live.clone();
    assert_eq!(
        (
            live["qp"],
            live["mr"],
            live["cq"],
            live["pd"],
            live["context"]
        ),
        (1, 1, 1, 1, 1)
    );
}

#[test]
fn close_says_what_the_library_said_and_gives_the_object_back() {
    let fake = Fake::new();
    let all = things();
    fake.fail("destroy_qp", 16);
    for thing in all {
        if let Thing::Qp(qp) = thing {
            let error = qp.close().unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("could not be destroyed: EBUSY (16)"),
                "{error}"
            );
            error.qp.close().unwrap();
        }
    }
    assert_eq!(fake.live(), 0);
}

#[test]
fn closing_what_is_in_use_says_by_what() {
    let Bench {
        fake,
        pd,
        cq,
        qp,
        mr,
    } = bench();
    let number = qp.qp_num();
    let error = pd.close().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the protection domain still has QP {number:#x} and 1 region(s)")
    );
    let rdma_qp::ClosePdError::Busy { pd, .. } = error else {
        panic!("busy")
    };
    let error = cq.close().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the CQ is still used by QP {number:#x}")
    );
    let rdma_qp::CloseCqError::Busy { cq, .. } = error else {
        panic!("busy")
    };
    assert_eq!(fake.count("dealloc_pd") + fake.count("destroy_cq"), 0);
    drop((qp, mr));
    fake.fail("destroy_cq", 16);
    let error = cq.close().unwrap_err();
    let rdma_qp::CloseCqError::Refused { cq, source } = error else {
        panic!("refused")
    };
    assert_eq!(source.raw_os_error(), 16);
    cq.close().unwrap();
    pd.close().unwrap();
    assert_eq!(fake.live(), 0);
}

#[test]
fn a_region_that_cannot_be_deregistered_is_leaked_or_given_back() {
    let fake = Fake::new();
    let pd = device().alloc_pd().unwrap();
    let mr = pd
        .register(Memory::copy_of(b"bytes"), Access::LOCAL_WRITE)
        .unwrap();
    fake.fail("dereg_mr", 16);
    let error = mr.close().unwrap_err();
    assert!(matches!(error, CloseMrError::Refused { .. }), "{error}");
    let mr = error.into_mr();
    assert_eq!(&mr.close().unwrap()[..], b"bytes");
    let mr = pd.register(Memory::zeroed(8), Access::LOCAL_WRITE).unwrap();
    fake.fail("dereg_mr", 16);
    drop(mr);
    drop(pd);
    assert_eq!(fake.state().live["mr"], 1);
}

/// A region to which windows can be bound.
fn bindable(pd: &Pd) -> Mr {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    pd.register(Memory::zeroed(8), access).unwrap()
}

/// The window is gone, and in no books yet, when the region is refused because of it: the thread that frees the window frees the
/// region too.
#[test]
fn a_region_that_is_refused_while_its_window_goes_is_freed() {
    let fake = Fake::new();
    let pd = device().alloc_pd().unwrap();
    let (mr, window) = (bindable(&pd), pd.window().unwrap());
    let stop = fake.stop("dealloc_mw");
    std::thread::scope(|scope| {
        scope.spawn(move || drop(window));
        stop.wait();
        fake.fail("dereg_mr", 22);
        drop(mr);
        stop.wait();
    });
    assert_eq!(fake.count("dereg_mr"), 2);
    assert_eq!(fake.state().live["mr"], 0);
}

/// The window goes between the refusal of its region and the time when the region is known to wait, and another one stays.
#[test]
fn a_region_whose_window_went_after_it_was_refused_is_freed_beside_other_windows() {
    let fake = Fake::new();
    let pd = device().alloc_pd().unwrap();
    let (mr, window) = (bindable(&pd), pd.window().unwrap());
    let _other = pd.window().unwrap();
    fake.fail("dereg_mr", 22);
    let stop = fake.stop("dereg_mr");
    std::thread::scope(|scope| {
        scope.spawn(move || drop(mr));
        stop.wait();
        drop(window);
        stop.wait();
    });
    assert_eq!(fake.count("dereg_mr"), 2);
    assert_eq!(fake.state().live["mr"], 0);
}

/// Whoever polls holds the domain while it frees a region of it; the one who closes it has nothing left of it.
#[test]
fn closing_a_domain_waits_for_what_another_thread_is_freeing() {
    let Bench {
        fake,
        pd,
        cq,
        mut qp,
        mr,
    } = bench();
    qp.send(mr.all()).unwrap();
    drop(mr);
    fake.complete(0, wc(fake.send_id(qp.qp_num(), 0), IBV_WC_SUCCESS));
    let stop = fake.stop("dereg_mr");
    let closed = std::thread::scope(|scope| {
        scope.spawn(move || while cq.poll().unwrap().is_some() {});
        stop.wait();
        drop(qp);
        let closing = scope.spawn(move || pd.close());
        std::thread::sleep(std::time::Duration::from_millis(50));
        stop.wait();
        closing.join().unwrap()
    });
    closed.unwrap();
    assert_eq!(fake.live(), 0);
}

/// Whoever destroys a QP holds its CQ while a region is freed with it; the QP is none of the CQ's any more.
#[test]
fn closing_a_cq_waits_for_the_qp_that_another_thread_is_destroying() {
    let Bench {
        fake,
        pd,
        cq,
        mut qp,
        mr,
    } = bench();
    qp.send(mr.all()).unwrap();
    drop((mr, pd));
    let stop = fake.stop("dereg_mr");
    let closed = std::thread::scope(|scope| {
        scope.spawn(move || drop(qp));
        stop.wait();
        let closing = scope.spawn(move || cq.close());
        std::thread::sleep(std::time::Duration::from_millis(50));
        stop.wait();
        closing.join().unwrap()
    });
    closed.unwrap();
    assert_eq!(fake.live(), 0);
}

/// The moment between a QP that is none of the SRQ's any more and its thread that lets go of the SRQ is short.
#[test]
fn an_srq_is_destroyed_or_says_which_qp_uses_it() {
    let _fake = Fake::new();
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    for _ in 0..2_000 {
        let mut srq = pd.srq().create().unwrap();
        let qp = pd.rc(&cq).srq(&srq).create().unwrap();
        let number = qp.qp_num();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(qp));
            while let Err(error) = srq.close() {
                let CloseSrqError::Busy { srq: again, qps } = error else {
                    panic!("{error}")
                };
                assert_eq!(qps, [number]);
                srq = *again;
            }
        });
    }
}

/// One QP on a CQ, in INIT, with a region.
struct Bench {
    fake: Fake,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

fn bench() -> Bench {
    let fake = Fake::new();
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    let mut qp = pd.rc(&cq).send_depth(8).recv_depth(8).create().unwrap();
    qp.to(ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    })
    .unwrap();
    Bench {
        fake,
        pd,
        cq,
        qp,
        mr,
    }
}

#[test]
fn a_dropped_region_stays_until_every_queue_has_passed_its_mark() {
    let Bench {
        fake,
        pd,
        cq,
        mut qp,
        mr,
    } = bench();
    qp.send(mr.all()).unwrap();
    qp.recv(mr.all()).unwrap();
    let holders = mr.holders();
    assert_eq!(
        holders.iter().map(|h| h.queue).collect::<Vec<_>>(),
        [QueueKind::Send, QueueKind::Recv]
    );
    drop(mr);
    assert_eq!((fake.count("dereg_mr"), pd.retired_regions()), (0, 1));
    fake.complete(0, wc(fake.send_id(qp.qp_num(), 0), IBV_WC_SUCCESS));
    assert!(cq.poll().unwrap().is_some() && cq.poll().unwrap().is_none());
    assert_eq!(
        (fake.count("dereg_mr"), pd.retired_regions()),
        (0, 1),
        "the receive still holds it"
    );
    fake.complete(0, wc(fake.recv_id(qp.qp_num(), 0), IBV_WC_SUCCESS));
    assert!(cq.poll().unwrap().is_some() && cq.poll().unwrap().is_none());
    assert_eq!(fake.count("dereg_mr"), 1, "polling frees it");
}

#[test]
fn a_region_that_only_sends_used_does_not_wait_for_receives() {
    let Bench {
        fake,
        pd,
        cq,
        mut qp,
        mr,
    } = bench();
    let other = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    qp.recv(other.all()).unwrap();
    qp.send(mr.all()).unwrap();
    fake.complete(0, wc(fake.send_id(qp.qp_num(), 0), IBV_WC_SUCCESS));
    cq.poll().unwrap().unwrap();
    mr.close().unwrap();
    assert!(matches!(other.close(), Err(CloseMrError::Held { holders, .. }) if holders.len() == 1));
}

#[test]
fn reset_and_destruction_let_go_of_regions() {
    let Bench {
        fake,
        pd,
        cq: _cq,
        mut qp,
        mr,
    } = bench();
    qp.send(mr.all()).unwrap();
    let error = mr.close().unwrap_err();
    assert!(
        error.to_string().contains("SQ of QP") && error.to_string().contains("1 outstanding"),
        "{error}"
    );
    let mr = error.into_mr();
    qp.to(ToReset).unwrap();
    mr.close().unwrap();

    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    qp.to(ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    })
    .unwrap();
    qp.send(mr.all()).unwrap();
    drop(mr);
    assert_eq!(fake.count("dereg_mr"), 1);
    drop(qp);
    assert_eq!(fake.count("dereg_mr"), 2);
}

#[test]
fn forgetting_anything_only_leaks() {
    let Bench {
        fake,
        pd,
        cq,
        mut qp,
        mr,
    } = bench();
    // Tickets are plain values; there is nothing in them to forget.
    let _ = qp.send(mr.all()).unwrap();
    std::mem::forget(mr);
    std::mem::forget(qp);
    drop((pd, cq));
    let live = fake.state().live.clone();
    assert_eq!(
        (live["mr"], live["qp"], live["pd"], live["cq"]),
        (1, 1, 1, 1)
    );
}

#[test]
fn completions_of_a_former_life_are_not_delivered() {
    let Bench {
        fake,
        pd,
        cq,
        mut qp,
        mr,
    } = bench();
    let mut other = pd.rc(&cq).create().unwrap();
    let kept: Vec<_> = (0..4).map(|_| other.send(mr.all()).unwrap()).collect();
    let lost: Vec<_> = (0..4).map(|_| qp.send(mr.all()).unwrap()).collect();
    for index in 0..4 {
        fake.complete(0, wc(fake.send_id(qp.qp_num(), index), IBV_WC_SUCCESS));
        fake.complete(0, wc(fake.send_id(other.qp_num(), index), IBV_WC_SUCCESS));
    }
    qp.to(ToReset).unwrap();
    let mut polled = Vec::new();
    while let Some(done) = cq.poll().unwrap() {
        polled.push(done.ticket);
    }
    assert_eq!(polled, kept, "in order");
    assert_eq!(cq.stale(), 4);
    assert!(matches!(
        cq.wait(&lost[0], std::time::Duration::ZERO),
        Err(WaitError::Discarded(_))
    ));
    let books = qp.send_account();
    assert_eq!((books.accepted, books.discarded, books.pending), (4, 4, 0));

    // Already polled while waiting for another one, and then reset.
    qp.to(ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    })
    .unwrap();
    qp.send(mr.all()).unwrap();
    let last = qp.send(mr.all()).unwrap();
    fake.complete(0, wc(fake.send_id(qp.qp_num(), 4), IBV_WC_SUCCESS));
    fake.complete(0, wc(fake.send_id(qp.qp_num(), 5), IBV_WC_SUCCESS));
    cq.wait(&last, std::time::Duration::ZERO).unwrap();
    qp.to(ToReset).unwrap();
    assert!(cq.poll().unwrap().is_none());
}

#[test]
fn a_new_qp_gets_nothing_of_the_one_whose_place_it_took() {
    let Bench {
        fake,
        pd,
        cq,
        mut qp,
        mr,
    } = bench();
    qp.send(mr.all()).unwrap();
    let old = fake.send_id(qp.qp_num(), 0);
    drop(qp);
    let mut new = pd.rc(&cq).send_depth(8).recv_depth(8).create().unwrap();
    let ticket = new.send(mr.all()).unwrap();
    fake.complete(0, wc(old, IBV_WC_SUCCESS));
    assert!(cq.poll().unwrap().is_none());
    fake.complete(0, wc(fake.send_id(new.qp_num(), 0), IBV_WC_SUCCESS));
    assert_eq!(cq.poll().unwrap().unwrap().ticket, ticket);
}

#[test]
fn completions_that_nobody_asked_for_are_counted_and_dropped() {
    let Bench {
        fake, cq, qp: _qp, ..
    } = bench();
    for wr_id in [0, 1, u64::MAX, 1 << 62, (1 << 62) | (9 << 42)] {
        fake.complete(0, wc(wr_id, IBV_WC_SUCCESS));
    }
    assert!(cq.poll().unwrap().is_none());
    assert_eq!(cq.stale(), 5);
}

#[test]
fn flushes_refer_to_the_failure_that_they_come_from() {
    let Bench {
        fake,
        cq,
        mut qp,
        mr,
        ..
    } = bench();
    let sends: Vec<_> = (0..4).map(|_| qp.send(mr.all()).unwrap()).collect();
    let receive = qp.recv(mr.all()).unwrap();
    let mut failed = wc(fake.send_id(qp.qp_num(), 1), IBV_WC_RETRY_EXC_ERR);
    // What an error completion does not promise is garbage.
    (failed.vendor_err, failed.opcode, failed.byte_len) = (0x81, IBV_WC_RECV, 0xdead_beef);
    fake.complete(0, failed);
    for index in [2, 3] {
        fake.complete(0, wc(fake.send_id(qp.qp_num(), index), IBV_WC_WR_FLUSH_ERR));
    }
    fake.complete(0, wc(fake.recv_id(qp.qp_num(), 0), IBV_WC_WR_FLUSH_ERR));

    let root = cq.poll().unwrap().unwrap();
    let failure = root.outcome.unwrap_err();
    assert_eq!(
        (root.ticket, root.queue, root.qp_num),
        (sends[1], QueueKind::Send, qp.qp_num())
    );
    assert_eq!(
        (failure.status, failure.vendor_err, failure.root),
        (IBV_WC_RETRY_EXC_ERR, 0x81, None)
    );
    assert_eq!(failure.operation, rdma_qp::Operation::Send);
    let report = cq.explain(&root).unwrap().to_string();
    assert!(
        report.contains("SEND failed on fake0/1") && report.contains("no acknowledgement came"),
        "{report}"
    );
    let flushed = cq.poll().unwrap().unwrap();
    let reason = flushed.outcome.unwrap_err();
    assert!(reason.is_flush());
    assert_eq!(reason.root.unwrap().ticket, sends[1]);
    let error = cq
        .wait(&sends[3], std::time::Duration::ZERO)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("SEND was flushed") && error.contains("IBV_WC_RETRY_EXC_ERR"),
        "{error}"
    );
    let error = cq.wait(&receive, std::time::Duration::ZERO).unwrap_err();
    assert!(
        matches!(&error, WaitError::Failed(r) if r.root.is_none() && r.queue == QueueKind::Recv),
        "{error}"
    );

    let books = qp.send_account();
    assert_eq!(
        (books.accepted, books.succeeded, books.failed, books.flushed),
        (4, 1, 1, 2)
    );
    qp.to(ToErr).unwrap();
    qp.to(ToReset).unwrap();
    // A failure of a former life is not the root of a flush in this one.
    qp.to(ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    })
    .unwrap();
    qp.send(mr.all()).unwrap();
    fake.complete(0, wc(fake.send_id(qp.qp_num(), 4), IBV_WC_WR_FLUSH_ERR));
    assert_eq!(cq.poll().unwrap().unwrap().outcome.unwrap_err().root, None);
}

#[test]
fn a_completion_in_the_gap_between_poll_and_arm_is_found() {
    let fake = Fake::new();
    let (_device, pd, cq, mr) = with_channel();
    let mut qp = pd.rc(&cq).create().unwrap();
    let ticket = qp.recv(mr.all()).unwrap();
    let id = fake.recv_id(qp.qp_num(), 0);
    fake.state().in_the_gap.push(wc(id, IBV_WC_SUCCESS));
    // No event ever comes: only a second look at the queue finds it.
    cq.wait(&ticket, std::time::Duration::from_secs(20))
        .unwrap();

    qp.recv(mr.all()).unwrap();
    assert_eq!(cq.arm().unwrap(), Armed::Sleep);
    let id = fake.recv_id(qp.qp_num(), 1);
    fake.state().in_the_gap.push(wc(id, IBV_WC_SUCCESS));
    assert_eq!(cq.arm().unwrap(), Armed::Ready);
    assert!(cq.poll().unwrap().is_some());
}

/// No event ever comes of a QP that is destroyed.
#[test]
fn a_sleeping_wait_ends_when_another_thread_destroys_the_qp() {
    let _fake = Fake::new();
    let (_device, pd, cq, mr) = with_channel();
    let mut qp = pd.rc(&cq).create().unwrap();
    let ticket = qp.recv(mr.all()).unwrap();
    let waiting = std::thread::spawn(move || cq.wait(&ticket, std::time::Duration::from_secs(20)));
    std::thread::sleep(std::time::Duration::from_millis(50));
    drop(qp);
    let ended = waiting.join().unwrap();
    assert!(
        matches!(ended, Err(WaitError::Discarded(t)) if t == ticket),
        "{ended:?}"
    );
}

#[test]
fn a_failure_is_never_explained_with_the_qp_that_took_its_place() {
    let Bench {
        fake,
        pd,
        cq,
        mut qp,
        mr,
    } = bench();
    qp.send(mr.all()).unwrap();
    let number = qp.qp_num();
    fake.complete(0, wc(fake.send_id(number, 0), IBV_WC_RETRY_EXC_ERR));
    let failed = cq.poll().unwrap().unwrap();
    let before = cq.explain(&failed).unwrap();
    assert_eq!((before.qp_num, before.account.failed), (number, 1));
    drop(qp);
    let mut new = pd.rc(&cq).send_depth(8).recv_depth(8).create().unwrap();
    assert_ne!(new.qp_num(), number);
    new.send(mr.all()).unwrap();
    let report = cq.explain(&failed).unwrap();
    assert_eq!(report.status, IBV_WC_RETRY_EXC_ERR);
    assert_eq!(report.qp, format!("QP {number:#x}"));
    assert_eq!(report.account, rdma_qp::Account::default());
    assert!(!report.to_string().contains("0 of 0"), "{report}");
}

#[test]
fn a_broken_cq_is_an_error_and_not_silence() {
    let Bench {
        fake,
        cq,
        mut qp,
        mr,
        ..
    } = bench();
    let ticket = qp.send(mr.all()).unwrap();
    fake.fail("poll_cq", 5);
    let error = cq.poll().unwrap_err();
    assert!(
        matches!(&error, PollError::Cq { .. }) && error.to_string().contains("EIO (5)"),
        "{error}"
    );
    fake.fail("poll_cq", 5);
    assert!(matches!(
        cq.wait(&ticket, std::time::Duration::from_secs(20)),
        Err(WaitError::Poll(_))
    ));
    assert!(matches!(cq.arm(), Err(PollError::NoChannel)));
}

#[test]
fn room_is_held_until_the_application_has_the_completion() {
    let Bench {
        fake,
        cq,
        mut qp,
        mr,
        ..
    } = bench();
    for _ in 0..8 {
        qp.send(mr.all()).unwrap();
    }
    let last = qp.send(mr.all()).unwrap_err();
    assert!(last.to_string().contains("8 of 8 requests"), "{last}");
    for index in 0..8 {
        fake.complete(0, wc(fake.send_id(qp.qp_num(), index), IBV_WC_SUCCESS));
    }
    qp.send(mr.all()).unwrap_err();
    cq.poll().unwrap().unwrap();
    qp.send(mr.all()).unwrap();
    qp.send(mr.all()).unwrap_err();
}
