//! Changing a connected QP by way of SQD: on the software device, and where a provider has a will of its own.

mod common;
mod fake;

use std::time::Duration;

use common::{LIMIT, device, pair};
use fake::Fake;
use rdma_core_sys::*;
use rdma_qp::{
    Access, AckTimeout, Change, ChangeError, Device, Errno, Global, Path, Peer, Problem, Qp,
    RetryCount, RnrRetry, RnrTimer, Timing, ToErr, ToSqd,
};
use rdma_soft::Profile;

fn timeout(code: u8) -> Change {
    Change {
        timeout: Some(AckTimeout::from_code(code).unwrap()),
        ..Change::default()
    }
}

#[test]
fn everything_that_sqd_allows_is_changed_and_nothing_else() {
    let device = device(Profile::default());
    let ((mut a, _), _b) = pair(&device, 64);
    let before = a.qp.query().unwrap().attr;
    let change = Change {
        access: Some(Access::REMOTE_READ),
        timeout: Some(AckTimeout::from_code(17).unwrap()),
        retry_cnt: Some(RetryCount::new(3).unwrap()),
        rnr_retry: Some(RnrRetry::times(2).unwrap()),
        min_rnr_timer: Some(RnrTimer::from_code(20).unwrap()),
        max_rd_atomic: Some(1),
        max_dest_rd_atomic: Some(2),
        ..Change::default()
    };
    a.qp.drain_and_modify(&change, LIMIT).unwrap();
    let after = a.qp.query().unwrap().attr;
    assert_eq!(after.qp_state, IBV_QPS_RTS);
    assert_eq!(
        (
            after.qp_access_flags,
            after.timeout,
            after.retry_cnt,
            after.rnr_retry,
            after.min_rnr_timer,
            after.max_rd_atomic,
            after.max_dest_rd_atomic
        ),
        (IBV_ACCESS_REMOTE_READ.bits(), 17, 3, 2, 20, 1, 2)
    );
    assert_eq!(
        (after.dest_qp_num, after.path_mtu, after.port_num),
        (before.dest_qp_num, before.path_mtu, before.port_num)
    );
    assert_eq!(after.ah_attr.grh.dgid.raw, before.ah_attr.grh.dgid.raw);
}

/// Ten rounds of changes in the middle of traffic: every message arrives once, in order, and the books are even.
#[test]
fn nothing_in_flight_is_lost() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 1 << 16);
    for round in 0..10u32 {
        let receives: Vec<_> = (0..16)
            .map(|i| b.qp.recv(b.mr.slice(i * 64, 64).unwrap()).unwrap())
            .collect();
        for i in 0..8 {
            a.qp.send_with_imm(a.mr.slice(0, 64).unwrap(), round << 8 | i)
                .unwrap();
        }
        a.qp.drain_and_modify(&timeout(12 + round as u8), LIMIT)
            .unwrap();
        for i in 8..16 {
            a.qp.send_with_imm(a.mr.slice(0, 64).unwrap(), round << 8 | i)
                .unwrap();
        }
        for (i, receive) in receives.iter().enumerate() {
            let got = b.cq.wait(receive, LIMIT).unwrap();
            assert_eq!(got.imm, Some(round << 8 | i as u32));
        }
        for _ in 0..16 {
            let done = a.cq.wait_any(LIMIT).unwrap().expect("a completion");
            assert!(done.outcome.is_ok(), "{done:?}");
        }
        assert_eq!(a.qp.query().unwrap().attr.timeout, 12 + round as u8);
    }
    let books = a.qp.send_account();
    assert_eq!(
        (books.accepted, books.succeeded, books.pending),
        (160, 160, 0)
    );
    assert!(b.cq.poll().unwrap().is_none(), "nothing arrived twice");
}

/// The peer has no receive, so the send that has begun does not end; the one that is posted in SQD does not begin.
#[test]
fn a_drain_that_takes_too_long_says_how_to_go_on() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 4096);
    let first = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
    // Not before it has begun: what has not is no reason to wait.
    assert!(a.cq.wait(&first, Duration::from_millis(50)).is_err());
    let error =
        a.qp.drain_and_modify(&timeout(15), Duration::from_millis(30))
            .unwrap_err();
    assert!(matches!(error, ChangeError::TimedOut { .. }), "{error}");
    assert_eq!(a.qp.state().unwrap(), IBV_QPS_SQD);
    let second = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
    let refused = a.qp.resume().unwrap_err();
    assert_eq!(refused.problems, [Problem::Draining]);

    b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
    b.qp.recv(b.mr.slice(64, 64).unwrap()).unwrap();
    a.cq.wait(&first, LIMIT).unwrap();
    assert!(
        a.cq.wait(&second, Duration::from_millis(50)).is_err(),
        "nothing begins in SQD"
    );
    a.qp.drain_and_modify(&timeout(15), LIMIT).unwrap();
    a.cq.wait(&second, LIMIT).unwrap();
    assert_eq!(a.qp.query().unwrap().attr.timeout, 15);
    // In RTS already it changes nothing.
    a.qp.resume().unwrap();
}

#[test]
fn a_send_that_fails_while_draining_is_told() {
    let device = device(Profile::default());
    let ((mut a, of_b), (b, _)) = pair(&device, 4096);
    drop(b);
    let ticket =
        a.qp.write(a.mr.slice(0, 8).unwrap(), of_b.region(0).unwrap().at(0))
            .unwrap();
    assert!(a.cq.wait(&ticket, Duration::from_millis(20)).is_err());
    let error = a.qp.drain_and_modify(&timeout(15), LIMIT).unwrap_err();
    assert!(
        matches!(error, ChangeError::Failed { state, .. } if state == IBV_QPS_ERR),
        "{error}"
    );
    assert!(a.cq.wait(&ticket, LIMIT).is_err());
}

/// Nobody waits for a queue to drain, to be told then that the change was wrong.
#[test]
fn what_is_wrong_with_a_change_is_said_before_the_qp_is_touched() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 4096);
    let most = u8::try_from(device.attr().max_qp_init_rd_atom).unwrap();
    let change = Change {
        max_rd_atomic: Some(most + 1),
        qkey: Some(5),
        ..Change::default()
    };
    let error = a.qp.drain_and_modify(&change, LIMIT).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ChangeError::Refused(_)), "{text}");
    assert!(text.contains("not allowed IBV_QP_QKEY"), "{text}");
    assert!(
        text.contains(&format!("max_rd_atomic is {}", most + 1)),
        "{text}"
    );
    assert_eq!(a.qp.state().unwrap(), IBV_QPS_RTS);

    b.qp.to(ToErr).unwrap();
    let error = b.qp.drain_and_modify(&timeout(15), LIMIT).unwrap_err();
    assert!(
        matches!(error, ChangeError::NotReady { state, .. } if state == IBV_QPS_ERR),
        "{error}"
    );
}

/// A connected QP of the provider for tests.
fn connected() -> Qp {
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap();
    let there = Peer {
        endpoint: qp.endpoint(gid).unwrap(),
        regions: Vec::new(),
    };
    let agreed = qp.connect_begin(&there, Timing::default()).unwrap();
    qp.connect_finish(agreed, Timing::default()).unwrap();
    qp
}

/// As mlx5's kernel driver answers.
#[test]
fn a_device_without_sqd_is_told_with_the_ways_round_it() {
    let fake = Fake::new();
    let mut qp = connected();
    for errno in [22, 95] {
        fake.fail("modify_qp", errno);
        let error = qp.drain_and_modify(&timeout(15), LIMIT).unwrap_err();
        let text = error.to_string();
        let ChangeError::NoSqd(report) = error else {
            panic!("{text}")
        };
        assert_eq!(report.errno().raw_os_error(), errno);
        for part in ["has no SQD", "RESET and connect it again", "a second QP"] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert_eq!(qp.state().unwrap(), IBV_QPS_RTS);
    }
    fake.fail("modify_qp", 5);
    let error = qp.drain_and_modify(&timeout(15), LIMIT).unwrap_err();
    assert!(matches!(error, ChangeError::NotStopped(_)), "{error}");
}

#[test]
fn a_change_that_the_device_refuses_leaves_the_qp_in_rts() {
    let fake = Fake::new();
    let mut qp = connected();
    // The move to SQD works, the change does not.
    fake.fail("modify_qp", 0);
    fake.fail("modify_qp", 22);
    let error = qp.drain_and_modify(&timeout(15), LIMIT).unwrap_err();
    assert!(matches!(error, ChangeError::NotChanged(_)), "{error}");
    assert!(
        error.to_string().ends_with("The QP is in RTS again."),
        "{error}"
    );
    assert_eq!(qp.state().unwrap(), IBV_QPS_RTS);
    // The move to SQD and the change work, the way back does not.
    for errno in [0, 0, 5] {
        fake.fail("modify_qp", errno);
    }
    let error = qp.drain_and_modify(&timeout(15), LIMIT).unwrap_err();
    assert!(
        matches!(&error, ChangeError::Stuck { changed: true, source } if source.errno() == Errno::from_raw(5)),
        "{error}"
    );
    assert_eq!(qp.state().unwrap(), IBV_QPS_SQD);
    qp.resume().unwrap();
    assert_eq!(qp.state().unwrap(), IBV_QPS_RTS);
}

/// `ibv_modify_qp` succeeds long before the queue is drained: `sq_draining` counts.
#[test]
fn success_of_the_move_is_not_taken_for_drained() {
    let fake = Fake::new();
    let mut qp = connected();
    fake.state()
        .qps
        .get_mut(&qp.qp_num())
        .unwrap()
        .attr
        .sq_draining = 1;
    let before = fake.count("modify_qp");
    let error = qp
        .drain_and_modify(&timeout(15), Duration::from_millis(5))
        .unwrap_err();
    assert!(matches!(error, ChangeError::TimedOut { .. }), "{error}");
    assert_eq!(
        fake.count("modify_qp"),
        before + 1,
        "only the move to SQD was made"
    );
    // Not even a wrong attempt reaches the device.
    let error = qp.resume().unwrap_err();
    assert!(error.to_string().contains("still drains"), "{error}");
    assert_eq!(fake.count("modify_qp"), before + 1);
}

/// By hand, with an event at the end.
#[test]
fn the_event_says_that_the_queue_is_drained() {
    let device = device(Profile::default());
    let ((mut a, of_b), (b, of_a)) = pair(&device, 4096);
    let ticket =
        a.qp.write(a.mr.slice(0, 4096).unwrap(), of_b.region(0).unwrap().at(0))
            .unwrap();
    a.qp.to(ToSqd { notify: true }).unwrap();
    let event = device.next_event(LIMIT).unwrap().expect("an event");
    assert_eq!(event.kind(), IBV_EVENT_SQ_DRAINED);
    // A new path, by the plain mask: to the same peer.
    let gid = device.port(1).unwrap().best_gid().unwrap();
    let path = Path {
        global: Some(Global {
            dgid: of_b.endpoint.gid,
            sgid_index: u8::try_from(gid.entry().index).unwrap(),
            hop_limit: 7,
            traffic_class: 0,
            flow_label: 0,
        }),
        port: 1,
        lid: 0,
        service_level: 3,
    };
    let change = Change {
        path: Some(path),
        ..Change::default()
    };
    a.qp.drain_and_modify(&change, LIMIT).unwrap();
    let attr = a.qp.query().unwrap().attr;
    assert_eq!((attr.ah_attr.sl, attr.ah_attr.grh.hop_limit), (3, 7));
    a.cq.wait(&ticket, LIMIT).unwrap();
    let again =
        a.qp.write(a.mr.slice(0, 8).unwrap(), of_b.region(0).unwrap().at(0))
            .unwrap();
    a.cq.wait(&again, LIMIT).unwrap();
    drop((b, of_a));
}
