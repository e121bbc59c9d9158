//! Emptying queues, and the new life after a failure.

mod common;
mod fake;

use std::time::Duration;

use common::{End, LIMIT, connect, device, pair};
use fake::{Fake, wc};
use rdma_core_sys::*;
use rdma_qp::exchange::{Exchange, tcp};
use rdma_qp::{
    Access, Device, DrainProblem, Fate, Memory, NOTHING, PathOptions, Peer, PostFlags, QKey, Qp,
    QueueKind, RecoverProblem, Recovery, Ticket, Timing, ToErr, ToReset, Uc, op,
};
use rdma_soft::Profile;

fn tickets<'a>(
    done: impl IntoIterator<Item = &'a rdma_qp::Completion>,
    queue: QueueKind,
) -> Vec<Ticket> {
    done.into_iter()
        .filter(|done| done.queue == queue)
        .map(|done| done.ticket)
        .collect()
}

#[test]
fn both_queues_are_emptied_in_order_and_other_qps_keep_theirs() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 4096), End::new(&device, 4096));
    a.cq = device.create_cq(64).unwrap();
    a.qp = a.pd.rc(&a.cq).create().unwrap();
    connect((&mut a, &device), (&mut b, &device), Timing::default());
    // Another QP on the same CQ, with completions that nobody has taken yet.
    let mut other = a.pd.rc(&a.cq).create().unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    other.endpoint(gid).unwrap();
    other.init().unwrap();
    let theirs: Vec<_> = (0..3)
        .map(|_| other.recv(a.mr.slice(0, 8).unwrap()).unwrap())
        .collect();
    other.to(ToErr).unwrap();

    let receives: Vec<_> = (0..5)
        .map(|_| a.qp.recv(a.mr.slice(0, 8).unwrap()).unwrap())
        .collect();
    // The peer has no receive: these stay.
    let sends: Vec<_> = (0..4)
        .map(|_| a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap())
        .collect();
    let drained = a.qp.drain(&[&a.cq], LIMIT).unwrap();
    assert_eq!(a.qp.state().unwrap(), IBV_QPS_ERR);
    assert_eq!(tickets(&drained.completions, QueueKind::Send), sends);
    assert_eq!(tickets(&drained.completions, QueueKind::Recv), receives);
    assert_eq!(
        (drained.send.flushed, drained.recv.flushed),
        (4, 5),
        "{drained:?}"
    );
    assert_eq!((drained.send.root, drained.recv.root), (None, None));
    // Moved to ERR with sends under way: whether the peer executed them is not known.
    assert_eq!(drained.sends(Fate::Unknown).count(), 4);

    let mut kept = Vec::new();
    while let Some(done) = a.cq.poll().unwrap() {
        assert_eq!(done.qp_num, other.qp_num());
        kept.push(done.ticket);
    }
    assert_eq!(kept, theirs, "each once, in order");
    // There is nothing more to drain.
    let again = a.qp.drain(&[&a.cq], LIMIT).unwrap();
    assert!(again.completions.is_empty());
}

/// Unsignaled sends that succeeded give no completion, not even after the move to ERR.
#[test]
fn unsignaled_sends_at_the_end_are_accounted_for() {
    let device = device(Profile::default());
    let ((mut a, of_b), (b, _)) = pair(&device, 4096);
    let remote = of_b.region(0).unwrap().at(0);
    a.mr.write_at(0, b"silently").unwrap();
    let writes: Vec<_> = (0..7)
        .map(|_| {
            a.qp.post(
                op::Write { remote },
                a.mr.slice(0, 8).unwrap(),
                PostFlags::UNSIGNALED,
            )
            .unwrap()
        })
        .collect();
    while &b.bytes(0, 8) != b"silently" {
        std::thread::yield_now();
    }
    assert!(a.cq.poll().unwrap().is_none());
    let error = a.qp.finish_sends(&[&a.cq], LIMIT).unwrap_err();
    assert!(
        matches!(error.reason, DrainProblem::Silent { count: 7 }),
        "{error}"
    );
    assert_eq!(
        a.qp.state().unwrap(),
        IBV_QPS_RTS,
        "nothing was done to the QP"
    );
    let drained = a.qp.drain(&[&a.cq], LIMIT).unwrap();
    assert_eq!(
        drained.send.succeeded + drained.send.flushed,
        7,
        "{drained:?}"
    );
    assert_eq!(
        drained.completions.len() as u64,
        drained.send.flushed,
        "the marker is not the application's"
    );
    // Each is either known to be done, or was flushed before its acknowledgement was there.
    let done = |fate| {
        let fates = writes.iter().map(|ticket| drained.fate_of(ticket));
        fates.filter(|found| *found == Some(fate)).count() as u64
    };
    assert_eq!(done(Fate::Done), drained.send.succeeded);
    assert_eq!(done(Fate::Unknown), drained.send.flushed);
    let books = a.qp.send_account();
    assert_eq!((books.accepted, books.pending), (8, 0));
}

#[test]
fn a_queue_full_of_unsignaled_sends_drains_too() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 4096), End::new(&device, 4096));
    a.cq = device.create_cq(8).unwrap();
    a.qp = a.pd.rc(&a.cq).send_depth(4).recv_depth(4).create().unwrap();
    connect((&mut a, &device), (&mut b, &device), Timing::default());
    // One signaled, the rest not: the queue is full, and its last requests are silent.
    a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
    for _ in 0..3 {
        a.qp.post(op::Send, a.mr.slice(0, 8).unwrap(), PostFlags::UNSIGNALED)
            .unwrap();
    }
    let drained = a.qp.drain(&[&a.cq], LIMIT).unwrap();
    assert_eq!(drained.send.flushed, 4);
    assert_eq!(a.qp.send_account().pending, 0);
}

#[test]
fn sends_can_be_waited_for_without_an_error_state() {
    let device = device(Profile::default());
    let ((mut a, of_b), _b) = pair(&device, 1 << 16);
    let remote = of_b.region(0).unwrap().at(0);
    let receive = a.qp.recv(a.mr.slice(0, 8).unwrap()).unwrap();
    let writes: Vec<_> = (0..16)
        .map(|i| {
            let flags = if i % 4 == 3 {
                PostFlags::empty()
            } else {
                PostFlags::UNSIGNALED
            };
            a.qp.post(op::Write { remote }, a.mr.slice(0, 4096).unwrap(), flags)
                .unwrap()
        })
        .collect();
    let drained = a.qp.finish_sends(&[&a.cq], LIMIT).unwrap();
    assert_eq!((drained.send.succeeded, drained.send.pending), (16, 0));
    assert_eq!(drained.recv.pending, 1, "the receive stays");
    let signaled: Vec<_> = writes.iter().filter(|t| t.is_signaled()).copied().collect();
    assert_eq!(tickets(&drained.completions, QueueKind::Send), signaled);
    assert_eq!(drained.sends(Fate::Done).count(), 4);
    assert_eq!(a.qp.state().unwrap(), IBV_QPS_RTS);
    a.qp.drain(&[&a.cq], LIMIT).unwrap();
    assert!(a.cq.wait(&receive, LIMIT).is_err(), "the drain took it");
}

#[test]
fn two_cqs_are_both_drained_and_both_asked_for() {
    let device = device(Profile::default());
    let end = End::new(&device, 4096);
    let (sends, receives) = (device.create_cq(16).unwrap(), device.create_cq(16).unwrap());
    let mut qp = end.pd.rc(&sends).recv_cq(&receives).create().unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    qp.endpoint(gid).unwrap();
    qp.init().unwrap();
    let receive = qp.recv(end.mr.slice(0, 8).unwrap()).unwrap();
    let error = qp.drain(&[&sends], LIMIT).unwrap_err();
    assert!(
        matches!(
            error.reason,
            DrainProblem::OtherCq {
                queue: QueueKind::Recv
            }
        ),
        "{error}"
    );
    assert_eq!(qp.state().unwrap(), IBV_QPS_INIT);
    let drained = qp.drain(&[&sends, &receives], LIMIT).unwrap();
    assert_eq!(drained.completions[0].ticket, receive);
}

/// On UC and UD nobody acknowledges: that a message left is all that a success says.
#[test]
fn uc_and_ud_are_drained_and_promise_less() {
    let device = device(Profile::default());
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(256).unwrap());
    let mr = pd
        .register(Memory::zeroed(4096), Access::LOCAL_WRITE)
        .unwrap();
    let (mut a, mut b) = (pd.uc(&cq).create().unwrap(), pd.uc(&cq).create().unwrap());
    let describe = |qp: &mut Qp<Uc>| Peer {
        endpoint: qp.endpoint(gid).unwrap(),
        regions: Vec::new(),
    };
    let (of_a, of_b) = (describe(&mut a), describe(&mut b));
    let timing = Timing::default();
    let agreed = a.connect_begin(&of_b, timing).unwrap();
    let also = b.connect_begin(&of_a, timing).unwrap();
    a.connect_finish(agreed, timing).unwrap();
    b.connect_finish(also, timing).unwrap();
    let receive = b.recv(mr.slice(0, 64).unwrap()).unwrap();
    a.send(mr.slice(64, 8).unwrap()).unwrap();
    assert_eq!(cq.wait(&receive, LIMIT).unwrap().byte_len, 8);
    let silent = a.post(op::Send, NOTHING, PostFlags::UNSIGNALED).unwrap();
    let drained = a.drain(&[&cq], LIMIT).unwrap();
    assert_eq!(
        drained.sends(Fate::Unknown).count() as u64,
        1 + drained.send.flushed
    );
    assert_eq!(drained.fate_of(&silent), Some(Fate::Unknown));
    assert_eq!(drained.send.pending, 0);

    let (mut c, mut d) = (pd.ud(&cq).create().unwrap(), pd.ud(&cq).create().unwrap());
    let key = QKey::random().unwrap();
    c.activate(gid, key, PathOptions::default()).unwrap();
    let of_d = d.activate(gid, key, PathOptions::default()).unwrap();
    let to = c.destination(&of_d).unwrap();
    let receive = c.recv(mr.slice(0, 64).unwrap()).unwrap();
    for _ in 0..3 {
        let send = op::SendTo { to: &to };
        c.post(send, NOTHING, PostFlags::UNSIGNALED).unwrap();
    }
    let drained = c.drain(&[&cq], LIMIT).unwrap();
    assert_eq!(drained.send.succeeded + drained.send.flushed, 3);
    assert_eq!(drained.send.pending, 0);
    assert_eq!(tickets(&drained.completions, QueueKind::Recv), [receive]);
}

/// A device that loses completions, as some do with a marker that was posted in the error state.
#[test]
fn at_the_deadline_the_missing_requests_are_counted_and_nothing_that_came_is_lost() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).send_depth(8).recv_depth(8).create().unwrap();
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    let sends: Vec<_> = (0..3)
        .map(|_| qp.post(op::Send, NOTHING, PostFlags::empty()).unwrap())
        .collect();
    let receives: Vec<_> = (0..2).map(|_| qp.recv(NOTHING).unwrap()).collect();
    fake.complete(0, wc(sends[0].wr_id(), IBV_WC_RETRY_EXC_ERR));
    fake.complete(0, wc(receives[0].wr_id(), IBV_WC_WR_FLUSH_ERR));
    let error = qp.drain(&[&cq], Duration::from_millis(20)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the QP is not drained: the deadline has passed, and 2 requests of the SQ and 1 of the RQ have no outcome"
    );
    let drained = error.drained;
    assert_eq!(drained.completions.len(), 2);
    assert_eq!((drained.send.failed, drained.send.pending), (1, 2));
    assert_eq!((drained.recv.flushed, drained.recv.pending), (1, 1));
    // The rest comes late: it is there for the next drain, with the failure that it comes from.
    fake.complete(0, wc(sends[1].wr_id(), IBV_WC_WR_FLUSH_ERR));
    fake.complete(0, wc(sends[2].wr_id(), IBV_WC_WR_FLUSH_ERR));
    fake.complete(0, wc(receives[1].wr_id(), IBV_WC_WR_FLUSH_ERR));
    let drained = qp.drain(&[&cq], LIMIT).unwrap();
    let root = drained.send.root.unwrap();
    assert_eq!((root.ticket, root.status), (sends[0], IBV_WC_RETRY_EXC_ERR));
    assert_eq!(drained.sends(Fate::Unknown).count(), 2);
}

/// The request that a drain posts behind unsignaled ones may complete after the deadline: the application does not see it,
/// whatever way it polls, and the next drain does not miss it.
#[test]
fn what_marks_the_end_for_a_drain_is_not_handed_out_after_its_deadline() {
    const SOON: Duration = Duration::from_millis(20);
    for way in 0..4 {
        let fake = Fake::new();
        let device = Device::open(&fake::verbs(), "fake0").unwrap();
        let (pd, mut cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let mut qp = pd.rc(&cq).send_depth(8).recv_depth(8).create().unwrap();
        fake.set_state(qp.qp_num(), IBV_QPS_RTS);
        let silent = qp.post_with(7, op::Send, NOTHING, PostFlags::UNSIGNALED);
        let silent = silent.unwrap();
        let receive = qp.recv(NOTHING).unwrap();
        let error = qp.drain(&[&cq], SOON).unwrap_err().to_string();
        assert!(
            error.contains("1 requests of the SQ and 1 of the RQ"),
            "{error}"
        );
        let ids = [0, 1].map(|index| fake.send_id(qp.qp_num(), index));
        assert_eq!(ids[0], silent.wr_id());
        for id in ids {
            fake.complete(0, wc(id, IBV_WC_WR_FLUSH_ERR));
        }
        let mut seen = Vec::new();
        match way {
            0 => {
                while let Some(done) = cq.poll().unwrap() {
                    seen.push((done.ticket, cq.context(&done)));
                }
            }
            1 => {
                let mut batch = cq.poll_batch().unwrap();
                while let Some(done) = batch.next_by(
                    |usual| (usual.ticket(), usual.context()),
                    |done, context| (done.ticket, context),
                ) {
                    seen.push(done);
                }
            }
            2 => {
                // What waits for another one keeps both, and drops the one.
                assert!(cq.wait(&receive, SOON).is_err());
                while let Some(done) = cq.poll().unwrap() {
                    seen.push((done.ticket, cq.context(&done)));
                }
            }
            _ => {
                // The drain of another QP keeps both, and drops the one.
                let mut other = pd.rc(&cq).create().unwrap();
                fake.set_state(other.qp_num(), IBV_QPS_RTS);
                let drained = other.drain(&[&cq], LIMIT).unwrap();
                assert!(drained.completions.is_empty());
                while let Some(done) = cq.poll().unwrap() {
                    seen.push((done.ticket, cq.context(&done)));
                }
            }
        }
        assert_eq!(seen, [(silent, 7)], "way {way}");
        assert_eq!(cq.stale(), 0);
        let error = qp.drain(&[&cq], SOON).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the QP is not drained: the deadline has passed, and 0 requests of the SQ and 1 of the RQ have no outcome"
        );
        assert_eq!(error.drained.send, Default::default());
        // Behind another unsignaled one there is another mark.
        qp.post(op::Send, NOTHING, PostFlags::UNSIGNALED).unwrap();
        qp.drain(&[&cq], SOON).unwrap_err();
        for index in [2, 3] {
            let id = fake.send_id(qp.qp_num(), index);
            fake.complete(0, wc(id, IBV_WC_WR_FLUSH_ERR));
        }
        fake.complete(0, wc(receive.wr_id(), IBV_WC_WR_FLUSH_ERR));
        let drained = qp.drain(&[&cq], LIMIT).unwrap();
        assert_eq!((drained.send.flushed, drained.completions.len()), (1, 2));
        let books = qp.send_account();
        assert_eq!((books.accepted, books.flushed, books.pending), (4, 4, 0));
    }
}

/// What a requester can conclude of each status, by what the peer does: it executes in order, and acknowledges what it did.
#[test]
fn what_the_peer_made_of_a_send_follows_from_the_failure() {
    for (status, first, behind) in [
        (IBV_WC_RETRY_EXC_ERR, Fate::Unknown, Fate::Unknown),
        (IBV_WC_RNR_RETRY_EXC_ERR, Fate::NotDone, Fate::NotDone),
        (IBV_WC_REM_ACCESS_ERR, Fate::NotDone, Fate::NotDone),
        (IBV_WC_REM_INV_REQ_ERR, Fate::NotDone, Fate::NotDone),
        (IBV_WC_REM_OP_ERR, Fate::NotDone, Fate::NotDone),
        (IBV_WC_LOC_PROT_ERR, Fate::NotDone, Fate::NotDone),
        (IBV_WC_FATAL_ERR, Fate::Unknown, Fate::Unknown),
        (IBV_WC_WR_FLUSH_ERR, Fate::Unknown, Fate::Unknown),
    ] {
        let fake = Fake::new();
        let device = Device::open(&fake::verbs(), "fake0").unwrap();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let mut qp = pd.rc(&cq).create().unwrap();
        fake.set_state(qp.qp_num(), IBV_QPS_RTS);
        let sends: Vec<_> = (0..3)
            .map(|_| qp.post(op::Send, NOTHING, PostFlags::empty()).unwrap())
            .collect();
        fake.complete(0, wc(sends[0].wr_id(), IBV_WC_SUCCESS));
        fake.complete(0, wc(sends[1].wr_id(), status));
        fake.complete(0, wc(sends[2].wr_id(), IBV_WC_WR_FLUSH_ERR));
        let drained = qp.drain(&[&cq], LIMIT).unwrap();
        let fates: Vec<_> = drained
            .completions
            .iter()
            .map(|d| drained.fate(d))
            .collect();
        assert_eq!(fates, [Fate::Done, first, behind], "{status:?}");
    }
}

/// Unsignaled sends, by their tickets: before the failure done, the failed one, behind it, and what the application knows.
#[test]
fn the_fate_of_an_unsignaled_send_is_told_by_its_ticket() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).send_depth(16).create().unwrap();
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    let mut silent = |count| -> Vec<_> {
        (0..count)
            .map(|_| qp.post(op::Send, NOTHING, PostFlags::UNSIGNALED).unwrap())
            .collect()
    };
    let (before, failed, behind) = (silent(3), silent(1), silent(2));
    fake.complete(0, wc(failed[0].wr_id(), IBV_WC_REM_ACCESS_ERR));
    // The application takes the failure, and one of the flushes.
    fake.complete(0, wc(behind[0].wr_id(), IBV_WC_WR_FLUSH_ERR));
    for ticket in [failed[0], behind[0]] {
        assert_eq!(cq.poll().unwrap().unwrap().ticket, ticket);
    }
    fake.complete(0, wc(behind[1].wr_id(), IBV_WC_WR_FLUSH_ERR));
    let drained = qp.drain(&[&cq], LIMIT).unwrap();
    for ticket in &before {
        assert_eq!(drained.fate_of(ticket), Some(Fate::Done));
    }
    assert_eq!(drained.fate_of(&failed[0]), None, "it is known already");
    assert_eq!(drained.fate_of(&behind[0]), None);
    assert_eq!(drained.fate_of(&behind[1]), Some(Fate::NotDone));
    qp.to(ToReset).unwrap();
    let again = qp.drain(&[&cq], LIMIT).unwrap();
    assert_eq!(again.fate_of(&before[0]), None, "of a former life");
}

#[test]
fn a_fresh_or_reset_qp_is_empty() {
    let device = device(Profile::default());
    let ((mut a, _), _b) = pair(&device, 4096);
    a.qp.recv(a.mr.slice(0, 8).unwrap()).unwrap();
    a.qp.to(ToReset).unwrap();
    let drained = a.qp.drain(&[&a.cq], LIMIT).unwrap();
    assert!(drained.completions.is_empty());
    assert_eq!(a.qp.state().unwrap(), IBV_QPS_RESET);
}

/// The other end of `recovered`: it echoes, loses its QP when told to, and comes back.
fn echo(device: &Device, channel: &mut tcp::Channel, lives: u32) {
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let mut end = End::new(device, 4096);
    let here = end.qp.endpoint(gid).unwrap();
    let there = channel.swap(&here, &[end.mr.remote()]).unwrap();
    end.qp.init().unwrap();
    end.qp.recv(end.mr.slice(0, 64).unwrap()).unwrap();
    end.qp.connect(&there, channel, Timing::default()).unwrap();
    for life in 0..lives {
        // The other side breaks the connection: not before this one is in RTS.
        channel.barrier().unwrap();
        let done = end.cq.wait_any(LIMIT).unwrap().expect("a message");
        assert_eq!(done.outcome.unwrap().imm, Some(life), "of this life only");
        channel.barrier().unwrap();
        let offered = [end.mr.remote()];
        let how = Recovery {
            offered: &offered,
            ..Recovery::new(gid)
        };
        let mr = &end.mr;
        let recovered = end
            .qp
            .recover(&[&end.cq], channel, &how, LIMIT, |qp| {
                qp.recv(mr.slice(0, 64).unwrap()).map(|_| ())
            })
            .unwrap();
        assert!(
            recovered.drained.completions.is_empty(),
            "{:?}",
            recovered.drained
        );
    }
}

#[test]
fn a_failed_connection_comes_back_and_tells_what_became_of_every_send() {
    const LIVES: u32 = 8;
    let listener = tcp::listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let device = device(Profile::default());
    let other = device.clone();
    let peer = std::thread::spawn(move || {
        echo(&other, &mut listener.accept(LIMIT).unwrap(), LIVES);
    });
    let channel = &mut tcp::connect(address, LIMIT).unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let mut end = End::new(&device, 4096);
    let here = end.qp.endpoint(gid).unwrap();
    let mut there = channel.swap(&here, &[]).unwrap();
    end.qp.connect(&there, channel, Timing::default()).unwrap();
    let mut psns = vec![there.endpoint.psn];
    for life in 0..LIVES {
        channel.barrier().unwrap();
        let local = |len| end.mr.slice(0, len).unwrap();
        let region = there.region(0).unwrap();
        let sent = end.qp.send_with_imm(local(8), life).unwrap();
        end.cq.wait(&sent, LIMIT).unwrap();
        let written = end.qp.write(local(8), region.at(64)).unwrap();
        let mut wrong = region;
        wrong.rkey ^= 0x5555;
        let failed = end.qp.write(local(8), wrong.at(0)).unwrap();
        let behind: Vec<_> = (0..3)
            .map(|_| end.qp.write(local(8), region.at(128)).unwrap())
            .collect();
        let receive = end.qp.recv(local(8)).unwrap();
        // Not before the peer has refused it: the application sees the failure, and leaves the rest in the CQ.
        while end.qp.state().unwrap() != IBV_QPS_ERR {
            std::thread::yield_now();
        }
        channel.barrier().unwrap();
        let how = Recovery::new(gid);
        let recovered = end
            .qp
            .recover(&[&end.cq], channel, &how, LIMIT, |_| Ok(()))
            .unwrap();
        let drained = recovered.drained;
        assert_eq!(
            tickets(drained.sends(Fate::Done), QueueKind::Send),
            [written]
        );
        assert_eq!(
            tickets(drained.sends(Fate::NotDone), QueueKind::Send),
            [&[failed][..], &behind].concat()
        );
        assert_eq!(drained.sends(Fate::Unknown).count(), 0);
        assert_eq!(tickets(&drained.completions, QueueKind::Recv), [receive]);
        let root = drained.send.root.unwrap();
        assert_eq!(
            (root.ticket, root.status, drained.send.flushed),
            (failed, IBV_WC_REM_ACCESS_ERR, 3)
        );
        psns.push(recovered.there.endpoint.psn);
        there = recovered.there;
        assert!(end.cq.poll().unwrap().is_none());
    }
    peer.join().unwrap();
    psns.sort_by_key(|psn| psn.get());
    psns.dedup();
    assert_eq!(psns.len() as u32, LIVES + 1, "a fresh PSN for each life");
    let books = end.qp.send_account();
    assert_eq!(
        (books.accepted, books.pending, books.discarded),
        (u64::from(6 * LIVES), 0, 0)
    );
    assert_eq!(
        (books.succeeded, books.failed, books.flushed),
        (u64::from(2 * LIVES), u64::from(LIVES), u64::from(3 * LIVES))
    );
}

#[test]
fn a_recovery_without_a_peer_tells_what_was_drained_and_can_be_tried_again() {
    let listener = tcp::listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut channel = tcp::connect(address, LIMIT).unwrap();
    drop(listener.accept(LIMIT).unwrap());
    let device = device(Profile::default());
    let ((mut a, _), _b) = pair(&device, 4096);
    let send = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let how = Recovery::new(gid);
    let error =
        a.qp.recover(&[&a.cq], &mut channel, &how, LIMIT, |_| Ok(()))
            .unwrap_err();
    assert!(
        matches!(error.reason, RecoverProblem::Exchange(_)),
        "{error}"
    );
    assert_eq!(error.drained.completions[0].ticket, send);
    let error =
        a.qp.recover(&[&a.cq], &mut channel, &how, LIMIT, |_| Ok(()))
            .unwrap_err();
    assert!(error.drained.completions.is_empty(), "told once");
}
