//! States, errors and new lives on the software device.

mod common;

use std::time::{Duration, Instant};

use common::{End, LIMIT, connect, device, pair};
use rdma_core_sys::*;
use rdma_qp::{
    Access, ConnectError, Peer, PostError, QueueKind, RetryCount, RnrRetry, Timing, ToErr, ToInit,
    ToReset, WaitError,
};
use rdma_soft::Profile;

#[test]
fn a_dead_peer_is_an_error_within_the_budget_that_names_it() {
    let device = device(Profile::default());
    // Not 7, which the kernel's rxe takes for ever.
    let timing = Timing {
        retry_cnt: RetryCount::new(6).unwrap(),
        ..Timing::default()
    };
    let (mut a, mut b) = (End::new(&device, 4096), End::new(&device, 4096));
    let (of_b, _) = connect((&mut a, &device), (&mut b, &device), timing);
    let (peer, remote) = (b.qp.qp_num(), of_b.region(0).unwrap());
    drop(b);
    let start = Instant::now();
    let tickets: Vec<_> = (0..8)
        .map(|_| a.qp.write(a.mr.slice(0, 8).unwrap(), remote.at(0)).unwrap())
        .collect();
    let WaitError::Failed(report) = a.cq.wait(&tickets[0], LIMIT).unwrap_err() else {
        panic!("no failure")
    };
    let budget = timing.budget().unwrap();
    assert!(start.elapsed() < LIMIT);
    assert_eq!(report.budget(), Some(budget));
    assert_eq!(
        (report.status, report.remote_qp_num),
        (IBV_WC_RETRY_EXC_ERR, Some(peer))
    );
    let text = report.to_string();
    for part in [
        format!(
            "RDMA WRITE failed on {}/1 QP {:#x}",
            device.name(),
            a.qp.qp_num()
        ),
        format!(
            "towards {} QP {peer:#x}: IBV_WC_RETRY_EXC_ERR (12)",
            of_b.endpoint.gid
        ),
        "timeout 14 (67.108864ms), 6 repetitions, so 469.762048ms in all".to_owned(),
        "0 of 8 requests of this queue succeeded before".to_owned(),
    ] {
        assert!(text.contains(&part), "{part:?} is not in {text:?}");
    }
    for ticket in &tickets[1..] {
        let WaitError::Failed(report) = a.cq.wait(ticket, LIMIT).unwrap_err() else {
            panic!("no failure")
        };
        assert_eq!(
            (report.status, report.root.unwrap().ticket),
            (IBV_WC_WR_FLUSH_ERR, tickets[0])
        );
    }
    let books = a.qp.send_account();
    assert_eq!(
        (books.accepted, books.failed, books.flushed, books.pending),
        (8, 1, 7, 0)
    );
    assert_eq!(a.qp.state().unwrap(), IBV_QPS_ERR);
}

#[test]
fn everything_in_the_error_state_is_flushed_in_order() {
    let device = device(Profile::default());
    let ((mut a, _of_b), _b) = pair(&device, 4096);
    let receives: Vec<_> = (0..3)
        .map(|_| a.qp.recv(a.mr.slice(0, 8).unwrap()).unwrap())
        .collect();
    a.qp.to(ToErr).unwrap();
    let late = a.qp.recv(a.mr.slice(0, 8).unwrap()).unwrap();
    let marker = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
    let mut flushed = (Vec::new(), Vec::new());
    while flushed.0.len() + flushed.1.len() < 5 {
        let done = a.cq.wait_any(LIMIT).unwrap().expect("a flush");
        assert!(done.outcome.unwrap_err().is_flush());
        if done.queue == QueueKind::Recv {
            &mut flushed.0
        } else {
            &mut flushed.1
        }
        .push(done.ticket);
    }
    assert_eq!(flushed.0, [&receives[..], &[late]].concat());
    assert_eq!(flushed.1, [marker]);
    assert_eq!(a.qp.recv_account().flushed, 4);
}

/// With the PSN of the last connection, packets that are still under way would fall into the window of the next one.
#[test]
fn each_connection_needs_a_description_of_its_own() {
    let device = device(Profile::default());
    let ((mut a, of_b), _b) = pair(&device, 64);
    a.qp.to(ToReset).unwrap();
    assert!(matches!(
        a.qp.connect_begin(&of_b, Timing::default()),
        Err(ConnectError::NoEndpoint)
    ));
    a.describe(&device);
    a.qp.connect_begin(&of_b, Timing::default()).unwrap();
}

#[test]
fn a_queue_pair_lives_a_thousand_lives() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 4096), End::new(&device, 4096));
    for life in 0..1000u32 {
        let (of_b, of_a) = connect((&mut a, &device), (&mut b, &device), Timing::default());
        assert_ne!(of_a.endpoint.psn, of_b.endpoint.psn);
        b.qp.recv(b.mr.slice(64, 64).unwrap()).unwrap();
        let receive = b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
        a.mr.write_at(0, &life.to_le_bytes()).unwrap();
        a.qp.send(a.mr.slice(0, 4).unwrap()).unwrap();
        let ticket = a.qp.send_with_imm(a.mr.slice(0, 4).unwrap(), life).unwrap();
        assert_eq!(b.cq.wait(&receive, LIMIT).unwrap().imm, Some(life));
        assert_eq!(b.bytes(0, 4), life.to_le_bytes());
        a.cq.wait(&ticket, LIMIT).unwrap();
        // Leave one request behind in every life.
        b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
        if life % 2 == 0 {
            a.qp.to(ToErr).unwrap();
            b.qp.to(ToErr).unwrap();
        }
        a.qp.to(ToReset).unwrap();
        b.qp.to(ToReset).unwrap();
    }
    let books = b.qp.recv_account();
    assert_eq!(books.accepted, 3000);
    assert_eq!(books.succeeded + books.flushed + books.discarded, 3000);
    assert_eq!(books.pending, 0);
}

#[test]
fn a_receiver_that_is_late_makes_the_sender_wait_or_fail() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 4096), End::new(&device, 4096));
    let impatient = Timing {
        rnr_retry: RnrRetry::times(0).unwrap(),
        ..Timing::default()
    };
    connect((&mut a, &device), (&mut b, &device), impatient);
    let ticket = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
    let error = a.cq.wait(&ticket, LIMIT).unwrap_err().to_string();
    assert!(
        error.contains("IBV_WC_RNR_RETRY_EXC_ERR (13)") && error.contains("no receive posted"),
        "{error}"
    );

    a.qp.to(ToReset).unwrap();
    b.qp.to(ToReset).unwrap();
    connect((&mut a, &device), (&mut b, &device), Timing::default());
    let ticket = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
    assert!(matches!(
        a.cq.wait(&ticket, Duration::from_millis(20)),
        Err(WaitError::TimedOut { .. })
    ));
    b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
    a.cq.wait(&ticket, LIMIT).unwrap();
}

#[test]
fn receives_are_taken_from_init_on_and_sends_from_rts_on() {
    let device = device(Profile::default());
    let mut end = End::new(&device, 4096);
    let refused = end.qp.recv(end.mr.slice(0, 8).unwrap()).unwrap_err();
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
    end.qp
        .to(ToInit {
            port: 1,
            pkey_index: 0,
            access: Access::empty(),
        })
        .unwrap();
    end.qp.recv(end.mr.slice(0, 8).unwrap()).unwrap();
    let refused = end.qp.send(end.mr.slice(0, 8).unwrap()).unwrap_err();
    assert!(
        matches!(
            refused,
            PostError::WrongState {
                state: IBV_QPS_INIT,
                ..
            }
        ),
        "{refused}"
    );
    assert_eq!(
        (
            end.qp.send_account().accepted,
            end.qp.recv_account().accepted
        ),
        (0, 1)
    );
}

#[test]
fn a_queue_pair_prints_what_the_device_says() {
    let device = device(Profile::default());
    let mut end = End::new(&device, 64);
    assert_eq!(
        end.qp.to_string(),
        format!("RC {} QP {:#x}: RESET", device.name(), end.qp.qp_num())
    );
    let mut other = End::new(&device, 64);
    let (of_other, _) = connect(
        (&mut end, &device),
        (&mut other, &device),
        Timing::default(),
    );
    let text = end.qp.to_string();
    for part in [
        format!("RC {}/1 QP {:#x}: RTS", device.name(), end.qp.qp_num()),
        format!(
            "to QP {:#x} at {}, sgid_index {}, hop_limit 64",
            other.qp.qp_num(),
            of_other.endpoint.gid,
            device.port(1).unwrap().best_gid().unwrap().entry().index
        ),
        "path MTU 4096".to_owned(),
        format!("receives from PSN {:#08x}", of_other.endpoint.psn.get()),
        "timeout 14 (67.108864ms), retry_cnt 6, rnr_retry 7".to_owned(),
    ] {
        assert!(text.contains(&part), "{part:?} is not in {text}");
    }
}

/// UC repeats nothing and has no READ: what the device says of that is nobody's.
#[test]
fn a_queue_pair_prints_what_its_transport_has() {
    let device = device(Profile::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.uc(&cq).create().unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap();
    let itself = Peer {
        endpoint: qp.endpoint(gid).unwrap(),
        regions: Vec::new(),
    };
    let agreed = qp.connect_begin(&itself, Timing::default()).unwrap();
    qp.connect_finish(agreed, Timing::default()).unwrap();
    let text = qp.to_string();
    assert!(
        text.contains("path MTU 4096\n  receives from PSN "),
        "{text}"
    );
    for part in ["reads", "RNR", "timeout", "retry"] {
        assert!(!text.contains(part), "{part:?} is in {text}");
    }
}

#[test]
fn a_wrong_rkey_is_the_peers_refusal_and_ends_the_connection() {
    let device = device(Profile::default());
    let ((mut a, of_b), (b, _)) = pair(&device, 4096);
    let mut wrong = of_b.region(0).unwrap();
    wrong.rkey = wrong.rkey.swap_bytes();
    let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), wrong.at(0)).unwrap();
    let error = a.cq.wait(&ticket, LIMIT).unwrap_err().to_string();
    assert!(
        error.contains("IBV_WC_REM_ACCESS_ERR (10)")
            && error.contains("the rkey or the address is wrong"),
        "{error}"
    );
    assert_eq!(b.bytes(0, 8), [0; 8]);
}
