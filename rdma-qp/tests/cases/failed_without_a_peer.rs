//! "RECV failed: retry exceeded", said a log, which cannot happen: of a failed completion the opcode means nothing. And
//! status 12 alone does not say which host did not answer.

use crate::common::*;
use rdma_core_sys::{IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR};
use rdma_qp::{AckTimeout, Operation, QueueKind, RetryCount, Timing, WaitError};
use rdma_soft::Profile;
use std::time::Instant;

const TIMING_CODE: u8 = 10;

/// Two ends on two devices, of which the second is gone.
fn widowed() -> (rdma_qp::Device, End, rdma_qp::Peer, Timing) {
    let (here, there) = (device(Profile::default()), device(Profile::default()));
    let (mut a, mut b) = (End::new(&here, 4096), End::new(&there, 4096));
    let timing = Timing {
        timeout: AckTimeout::from_code(TIMING_CODE).unwrap(),
        retry_cnt: RetryCount::new(1).unwrap(),
        ..Timing::default()
    };
    let (of_b, _) = connect((&mut a, &here), (&mut b, &there), timing);
    drop(b);
    (here, a, of_b, timing)
}

#[test]
fn a_failure_tells_its_queue_and_its_operation_from_the_librarys_own_books() {
    let (_device, mut a, _, _) = widowed();
    let receives: Vec<_> = (0..2)
        .map(|at| a.qp.recv(a.mr.slice(at * 64, 64).unwrap()).unwrap())
        .collect();
    let sent = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
    let failed = a.cq.wait_any(LIMIT).unwrap().unwrap();
    let failure = failed.outcome.unwrap_err();
    assert_eq!((failed.ticket, failed.queue), (sent, QueueKind::Send));
    assert_eq!(
        (failure.status, failure.operation),
        (IBV_WC_RETRY_EXC_ERR, Operation::Send)
    );
    assert_eq!(failed.qp_num, a.qp.qp_num());
    for receive in receives {
        let flushed = a.cq.wait_any(LIMIT).unwrap().unwrap();
        let failure = flushed.outcome.unwrap_err();
        assert_eq!((flushed.ticket, flushed.queue), (receive, QueueKind::Recv));
        assert_eq!(
            (failure.status, failure.operation),
            (IBV_WC_WR_FLUSH_ERR, Operation::Recv)
        );
        assert_eq!(flushed.qp_num, a.qp.qp_num());
    }
}

/// Eight sends outstanding when the peer dies: one report with everything, and seven flushes that refer to it.
#[test]
fn one_report_names_the_peer_and_the_flushes_refer_to_it() {
    let (_device, mut a, of_b, timing) = widowed();
    let since = Instant::now();
    let tickets: Vec<_> = (0..8)
        .map(|_| a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap())
        .collect();
    let first = a.cq.wait_any(LIMIT).unwrap().unwrap();
    let took = since.elapsed();
    // (retry_cnt + 1) x the timeout, and not more than three times that; the machine may be slow, so only hangs fail.
    assert!(took >= timing.timeout.interval().unwrap(), "{took:?}");
    assert!(took < LIMIT);
    for ticket in &tickets[1..] {
        let flushed = a.cq.wait_any(LIMIT).unwrap().unwrap();
        assert_eq!(flushed.ticket, *ticket);
        let root = flushed.outcome.unwrap_err().root.expect("a root");
        assert_eq!(
            (root.ticket, root.status),
            (tickets[0], IBV_WC_RETRY_EXC_ERR)
        );
    }
    let report = a.cq.explain(&first).unwrap();
    let endpoint = &of_b.endpoint;
    assert_eq!(report.remote_gid, Some(endpoint.gid));
    assert_eq!(report.remote_qp_num, Some(endpoint.qp_num));
    assert_eq!((report.account.failed, report.account.flushed), (1, 7));
    let text = report.to_string();
    let peer = format!("towards {} QP {:#x}", endpoint.gid, endpoint.qp_num);
    let here = format!("/1 QP {:#x}", a.qp.qp_num());
    let wr_id = format!("wr_id {:#x}", tickets[0].wr_id());
    for part in [
        "SEND failed on",
        &here,
        &peer,
        "IBV_WC_RETRY_EXC_ERR (12)",
        "from GID",
        &wr_id,
        "1 repetition,",
        &format!("timeout {}", timing.timeout),
        "7 after it were flushed",
        "ready to send for",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let error = a.cq.wait(&tickets[3], LIMIT).unwrap_err();
    assert!(matches!(error, WaitError::Taken(_)), "{error}");
}
