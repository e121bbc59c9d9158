//! What RC Queue Pairs have, the ends of XRC have as well: reports, books, changes while connected, refills, many threads.

mod common;

use std::sync::Arc;

use common::*;
use rdma_core_sys::*;
use rdma_qp::{
    Access, AckTimeout, AsyncEvent, Change, Connections, PathOptions, PostError, QueueKind, Refill,
    SharedQp, SharedSlice, Timing, ToErr, WaitError, op,
};

#[test]
fn attributes_that_mean_nothing_are_told_and_do_no_harm() {
    let node = Node::plain();
    let (mut sender, mut target) = (node.sender(), node.target());
    connect(
        (&mut sender.qp, &node),
        (&mut target, &node),
        Timing::default(),
    );
    let mut attr = ibv_qp_attr::zeroed();
    (attr.min_rnr_timer, attr.max_dest_rd_atomic) = (31, 255);
    (attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (99, 99, 255);
    let of_a_responder = IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC;
    let of_a_requester = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    let modified = sender.qp.modify(&attr, of_a_responder).unwrap();
    assert_eq!(modified.ignored, of_a_responder);
    let modified = target.modify(&attr, of_a_requester).unwrap();
    assert_eq!(modified.ignored, of_a_requester);
    // What the one ignores, the other takes, or says that this move has no place for it.
    let refused = sender.qp.check(&attr, of_a_requester).unwrap_err();
    assert!(refused.to_string().contains("not allowed"), "{refused}");
    attr.min_rnr_timer = 12;
    let ignored = target.check(&attr, IBV_QP_MIN_RNR_TIMER).unwrap();
    assert_eq!(ignored, ibv_qp_attr_mask::empty());
}

#[test]
fn a_query_a_dump_and_the_advice_know_which_end_it_is() {
    let (a, b) = (Node::plain(), Node::plain());
    let (mut sender, mut target) = (a.sender(), b.target());
    let gid = |node: &Node| node.device.port(1).unwrap().best_gid().unwrap();
    let marked = PathOptions {
        traffic_class: 104,
        ..PathOptions::default()
    };
    let peer = |endpoint| rdma_qp::Peer {
        endpoint,
        regions: Vec::new(),
    };
    let here = peer(sender.qp.endpoint_with(gid(&a), marked).unwrap());
    let there = peer(target.endpoint_with(gid(&b), marked).unwrap());
    let (of_a, of_b) = (here.endpoint.clone(), there.endpoint.clone());
    target.connect_begin(&here, Timing::default()).unwrap();
    let agreed = sender.qp.connect_begin(&there, Timing::default()).unwrap();
    sender.qp.connect_finish(agreed, Timing::default()).unwrap();
    for (dump, name, state) in [
        (sender.qp.dump(), "XRC_INI", "RTS"),
        (target.dump(), "XRC_TGT", "RTR"),
    ] {
        assert_eq!((&dump.qp.transport[..], &dump.qp.state[..]), (name, state));
        let endpoint = dump.endpoint.expect("what was told");
        let (mine, other) = if name == "XRC_INI" {
            (&of_a, &of_b)
        } else {
            (&of_b, &of_a)
        };
        assert_eq!(endpoint.here, *mine);
        assert_eq!(endpoint.there.as_ref(), Some(other));
        assert_eq!(
            dump.qp
                .attributes
                .path
                .unwrap()
                .global
                .unwrap()
                .traffic_class,
            104
        );
        // An initiator serves no READs, and a target issues none.
        let serves = dump.qp.attributes.max_dest_rd_atomic.is_some();
        assert_eq!(serves, name == "XRC_TGT");
    }
    let text = target.to_string();
    assert!(
        text.contains("XRC_TGT") && text.contains("serves"),
        "{text}"
    );
    assert!(!text.contains("issues"), "{text}");
    let text = sender.qp.to_string();
    assert!(
        text.contains("issues") && !text.contains("serves"),
        "{text}"
    );
    // Never to repeat is as harmful as on RC, at the end that would.
    let rash = Timing {
        retry_cnt: rdma_qp::RetryCount::new(0).unwrap(),
        rnr_retry: rdma_qp::RnrRetry::times(0).unwrap(),
        ..Timing::default()
    };
    let (sender, target) = pair(&a, &b, rash);
    let codes = |findings: Vec<rdma_qp::lint::Finding>| -> Vec<_> {
        let codes = findings.iter().map(|finding| finding.code().to_string());
        codes.filter(|code| code.contains("retry")).collect()
    };
    let mut found = codes(sender.qp.lint(None));
    found.sort();
    assert_eq!(found, ["retry-cnt-zero", "rnr-retry-zero"]);
    assert!(codes(target.lint(None)).is_empty());
}

#[test]
fn what_an_initiator_posted_is_accounted_for_when_it_is_drained() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    receiver.recvs(2);
    let (mut sender, mut target) = pair(&a, &b, Timing::default());
    for _ in 0..2 {
        sender.deliver(receiver.num(), 8);
    }
    // The SRQ is empty, so these wait.
    let waiting = [(); 5].map(|()| sender.send(receiver.num(), 8));
    let drained = sender.qp.drain(&[&sender.cq], LIMIT).unwrap();
    let flushed: Vec<_> = drained.completions.iter().map(|done| done.ticket).collect();
    assert_eq!(flushed, waiting);
    assert_eq!((drained.send.flushed, drained.send.pending), (5, 0));
    let account = sender.qp.send_account();
    assert_eq!(
        (account.accepted, account.succeeded, account.flushed),
        (7, 2, 5)
    );
    // What came by the target, and nobody had looked at.
    let drained = target.drain(&[&receiver.cq]).unwrap();
    assert_eq!(drained.completions.len(), 2);
    assert!(
        drained
            .completions
            .iter()
            .all(|done| done.qp_num == target.qp_num())
    );
    assert_eq!(drained.transport, rules::Transport::XrcTgt);
}

#[test]
fn both_ends_are_changed_while_connected() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    receiver.recvs(2);
    let (mut sender, mut target) = pair(&a, &b, Timing::default());
    sender.deliver(receiver.num(), 8);
    let slower = Change {
        timeout: Some(AckTimeout::from_code(17).unwrap()),
        ..Change::default()
    };
    sender.qp.drain_and_modify(&slower, LIMIT).unwrap();
    target.drain_and_modify(&slower, LIMIT).unwrap();
    assert_eq!(sender.qp.query().unwrap().attr.timeout, 17);
    assert_eq!(target.query().unwrap().attr.timeout, 17);
    sender.deliver(receiver.num(), 8);
    both_in(&sender, &target, IBV_QPS_RTS);
}

/// What the target lets an initiator do counts on top of what a region does.
#[test]
fn a_target_may_forbid_what_a_region_allows() {
    let (a, b) = (Node::plain(), Node::plain());
    let receiver = b.receiver(8);
    let mut sender = a.sender();
    let mut target = b.target().with_access(Access::REMOTE_READ);
    connect((&mut sender.qp, &a), (&mut target, &b), Timing::default());
    let remote = receiver.mr.remote().at(0);
    let local = sender.mr.slice(0, 8).unwrap();
    let read = sender.qp.read_from(local, receiver.num(), remote).unwrap();
    sender.cq.wait(&read, LIMIT).unwrap();
    let write = sender.qp.write_to(local, receiver.num(), remote).unwrap();
    let Err(WaitError::Failed(report)) = sender.cq.wait(&write, LIMIT) else {
        panic!("it was done");
    };
    assert!(report.remote_qp_num == Some(target.qp_num()), "{report}");
    assert!(
        [IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR].contains(&report.status),
        "{report}"
    );
}

#[test]
fn an_srq_is_refilled_by_its_low_water_mark_and_by_its_event() {
    let (a, b) = (Node::plain(), Node::plain());
    let Receiver { srq, cq, pd, .. } = b.receiver(16);
    let number = srq.srq_num();
    let mut receives = Refill::new(srq, pd.buffers(16, 256).unwrap(), 8);
    assert_eq!(receives.top_up().unwrap(), 16);
    let (mut sender, target) = pair(&a, &b, Timing::default());
    let mut connections = Connections::new();
    connections.insert_target(&target, "the sender");
    let mut refilled = 0;
    for round in 0..40u8 {
        sender.mr.write_at(0, &[round; 32]).unwrap();
        sender.deliver(number, 32);
        let done = cq.wait_any(LIMIT).unwrap().unwrap();
        assert_eq!(connections.of(&done), Some(&"the sender"));
        let message = receives.take(&done).unwrap();
        assert_eq!(
            (&message[..], message.qp_num),
            (&[round; 32][..], target.qp_num())
        );
        drop(message);
        refilled += receives.top_up().unwrap();
    }
    assert!(refilled >= 32, "{refilled} of 40");
    // The event, without any look at the queue in between.
    for _ in 0..9 {
        sender.deliver(number, 32);
    }
    let event = b.device.next_event(LIMIT).unwrap().expect("an event");
    assert!(matches!(event, AsyncEvent::Srq { srq, .. } if srq == receives.queue().number()));
    while let Some(done) = cq.poll().unwrap() {
        drop(receives.take(&done));
    }
    assert!(receives.on_event(&event).unwrap());
    assert_eq!(receives.queue().account().pending, 16);
    connections.remove(target.qp_num());
    assert!(connections.is_empty());
}

#[test]
fn many_threads_share_an_initiator() {
    let (a, b) = (Node::plain(), Node::plain());
    let receiver = b.receiver(8);
    let (srq, remote) = (receiver.num(), receiver.mr.remote());
    let (sender, _target) = pair(&a, &b, Timing::default());
    let Sender { qp, cq, mr, .. } = sender;
    let mr = Arc::new(mr);
    let shared = SharedQp::new(qp, 64);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (shared, mr) = (shared.clone(), mr.clone());
            scope.spawn(move || {
                let at = thread as usize * 64;
                mr.write_at(at, &[thread as u8 + 1; 64]).unwrap();
                let local = SharedSlice::new(&mr, at, 64).unwrap();
                let op = op::Write {
                    remote: remote.at(at as u64),
                };
                let flags = rdma_qp::PostFlags::empty();
                shared
                    .post(op::ToSrq { srq, op }, local, flags, thread)
                    .unwrap();
            });
        }
    });
    let mut done = Vec::new();
    while done.len() < 4 {
        let completion = cq.wait_any(LIMIT).unwrap().unwrap();
        done.extend(shared.finish(&completion));
    }
    done.sort();
    assert_eq!(done, [0, 1, 2, 3]);
    for thread in 0..4 {
        assert_eq!(receiver.bytes(thread * 64, 64), [thread as u8 + 1; 64]);
    }
}

#[test]
fn a_receive_that_is_too_short_is_explained_with_the_target_s_path() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(8);
    let (mut sender, target) = pair(&a, &b, Timing::default());
    target.report_on(&receiver.cq).unwrap();
    receiver.recv(0, 16);
    let sent = sender.send(receiver.num(), 64);
    let done = receiver.next();
    assert_eq!(done.queue, QueueKind::SharedRecv);
    assert_eq!(done.outcome.unwrap_err().status, IBV_WC_LOC_LEN_ERR);
    let report = receiver.cq.explain(&done).unwrap();
    assert_eq!(report.remote_qp_num, Some(sender.qp.qp_num()));
    assert!(
        report
            .to_string()
            .contains(&format!("{:#x}", target.qp_num())),
        "{report}"
    );
    sender.fails(&sent, IBV_WC_REM_INV_REQ_ERR);
    assert!(target.dump().last_error.is_some());
    both_in(&sender, &target, IBV_QPS_ERR);
}

#[test]
fn nothing_is_posted_before_it_is_connected_and_the_reason_is_said() {
    let node = Node::plain();
    let mut sender = node.sender();
    let (number, local) = (node.receiver(1).num(), sender.mr.slice(0, 8).unwrap());
    let refused = sender.qp.send_to(local, number).unwrap_err();
    assert!(
        matches!(
            refused,
            PostError::WrongState {
                state: IBV_QPS_RESET,
                ..
            }
        ),
        "{refused}"
    );
    let mut target = node.target();
    let refused = target.to(ToErr).unwrap_err();
    assert!(refused.to_string().contains("RESET"), "{refused}");
}

/// Each side of a pair of nodes has a record of an initiator and one of a target, which are easily mixed up.
#[test]
fn an_initiator_connects_to_a_target_and_to_nothing_else() {
    let node = Node::plain();
    let gid = node.device.port(1).unwrap().best_gid().unwrap();
    let peer = |endpoint| rdma_qp::Peer {
        endpoint,
        regions: Vec::new(),
    };
    let (mut sender, mut other, mut target) = (node.sender(), node.sender(), node.target());
    let mut rc = other.pd.rc(&other.cq).create().unwrap();
    sender.qp.endpoint(&gid).unwrap();
    for wrong in [other.qp.endpoint(&gid).unwrap(), rc.endpoint(&gid).unwrap()] {
        let error = sender
            .qp
            .connect_begin(&peer(wrong), Timing::default())
            .unwrap_err();
        assert!(
            error.to_string().contains("not that of an XRC target"),
            "{error}"
        );
    }
    let right = target.endpoint(&gid).unwrap();
    for wrong in [right.clone(), rc.endpoint(&gid).unwrap()] {
        let error = target
            .connect_begin(&peer(wrong), Timing::default())
            .unwrap_err();
        assert!(
            error.to_string().contains("not that of an XRC initiator"),
            "{error}"
        );
    }
    both_in(&sender, &target, IBV_QPS_RESET);
    sender
        .qp
        .connect_begin(&peer(right), Timing::default())
        .unwrap();
}

/// Whoever has a target open is told what happens to it.
#[test]
fn events_of_a_target_come_to_each_opener() {
    let a = Node::plain();
    let nodes = Node::two_processes();
    let (mut sender, target) = pair(&a, &nodes[0], Timing::default());
    let _opened = nodes[1].domain.open_target(target.qp_num()).unwrap();
    let none = rdma_xrc::SrqNum::new(0xab_cdef).unwrap();
    let sent = sender.send(none, 8);
    sender.fails(&sent, IBV_WC_REM_INV_REQ_ERR);
    for node in &nodes {
        let event = node.device.next_event(LIMIT).unwrap();
        let (kind, qp_num) = (IBV_EVENT_QP_REQ_ERR, target.qp_num());
        assert_eq!(event, Some(AsyncEvent::Qp { kind, qp_num }));
    }
}

/// What is kept of an SRQ that is gone is not handed out as that of the next one, which has its number: nor does it take room there.
#[test]
fn an_srq_has_nothing_of_the_one_before() {
    let (a, b) = (Node::plain(), Node::plain());
    let Receiver {
        mut srq,
        cq,
        mr,
        pd,
    } = b.receiver(4);
    let (mut sender, _target) = pair(&a, &b, Timing::default());
    let tickets = [0, 64, 128].map(|at| srq.recv(mr.slice(at, 64).unwrap()).unwrap());
    for _ in tickets {
        sender.deliver(srq.srq_num(), 8);
    }
    // The first two are kept.
    cq.wait(&tickets[2], LIMIT).unwrap();
    let number = srq.number();
    srq.close().unwrap();
    let mut next = pd.xrc_srq(&b.domain, &cq).depth(4).create().unwrap();
    assert_eq!(next.number(), number, "the number is given again");
    assert!(cq.poll().unwrap().is_none());
    for round in 0..6 {
        let ticket = next
            .recv_with(round, mr.slice(0, 64).unwrap())
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        sender.deliver(next.srq_num(), 8);
        let done = cq.wait_any(LIMIT).unwrap().unwrap();
        assert_eq!((done.ticket, cq.context(&done)), (ticket, round));
    }
}
