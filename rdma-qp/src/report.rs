//! What a person needs to know about a failed request.

use std::fmt;
use std::time::{Duration, Instant};

use rdma_core_sys::*;

use crate::account::{Account, Operation};
use crate::cq::{Completion, Failure, Root, Ticket};
use crate::gid::{Gid, GidEntry};
use crate::qp::{PathInfo, QpInfo};
use crate::units::{AckTimeout, RetryCount, RnrRetry, Timing};
use crate::wr_id::QueueKind;

/// A failed request, with everything that the library knows about its connection.
///
/// One of these tells what happened: the flushes after a failure refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureReport {
    /// The request.
    pub ticket: Ticket,
    /// What it asked for.
    pub operation: Operation,
    /// Its queue.
    pub queue: QueueKind,
    /// Why it failed.
    pub status: ibv_wc_status,
    /// The vendor's own code.
    pub vendor_err: u32,
    /// For a flushed request: the failure that it comes from.
    pub root: Option<Root>,
    /// Number of the QP.
    pub qp_num: u32,
    /// Device, port and QP, as in `soft0/1 QP 0x4f`.
    pub qp: String,
    /// GID of the peer.
    pub remote_gid: Option<Gid>,
    /// QP number of the peer.
    pub remote_qp_num: Option<u32>,
    /// First PSN that was sent to the peer.
    pub sq_psn: Option<u32>,
    /// First PSN that the peer was expected to send.
    pub rq_psn: Option<u32>,
    /// The local GID.
    pub source: Option<GidEntry>,
    /// The timeout that was set.
    pub timeout: Option<AckTimeout>,
    /// The repetitions after a timeout that were set.
    pub retry_cnt: Option<RetryCount>,
    /// The code of the RNR repetitions that was set.
    pub rnr_retry: Option<u8>,
    /// How long ago the QP became ready to send.
    pub age: Option<Duration>,
    /// The books of the queue; all zero if its QP was reset or destroyed since.
    pub account: Account,
}

impl FailureReport {
    pub(crate) fn new(
        done: &Completion,
        failure: Failure,
        known: Option<(&QpInfo, Account)>,
    ) -> FailureReport {
        let (qp, path, account) = match known {
            Some((info, account)) => (info.name(), info.path().clone(), account),
            None => (
                format!("QP {:#x}", done.qp_num),
                PathInfo::default(),
                Account::default(),
            ),
        };
        FailureReport {
            ticket: done.ticket,
            operation: failure.operation,
            queue: done.queue,
            status: failure.status,
            vendor_err: failure.vendor_err,
            root: failure.root,
            qp_num: done.qp_num,
            qp,
            remote_gid: path.dgid,
            remote_qp_num: path.dest_qp_num,
            sq_psn: path.sq_psn,
            rq_psn: path.rq_psn,
            source: path.source,
            timeout: path
                .timeout
                .and_then(|code| AckTimeout::from_code(code).ok()),
            retry_cnt: path.retry_cnt.and_then(|count| RetryCount::new(count).ok()),
            rnr_retry: path.rnr_retry,
            age: path
                .ready_since
                .map(|since| Instant::now().duration_since(since)),
            account,
        }
    }

    /// How long the QP repeats before it gives up on a peer that does not answer; `None` if that is for ever or not known.
    pub fn budget(&self) -> Option<Duration> {
        let timing = Timing {
            timeout: self.timeout?,
            retry_cnt: self.retry_cnt?,
            ..Timing::default()
        };
        timing.budget()
    }

    /// The usual causes of the status, most likely first.
    pub fn causes(&self) -> &'static str {
        causes(self.status)
    }
}

/// The usual causes of a status.
fn causes(status: ibv_wc_status) -> &'static str {
    match status {
        IBV_WC_RETRY_EXC_ERR => {
            "no acknowledgement came: the peer is dead or not yet in RTR, or QP number, PSN, GID or path MTU do not match, or \
             UDP port 4791 is blocked, or the timeout is too short for the path"
        }
        IBV_WC_RNR_RETRY_EXC_ERR => {
            "the peer had no receive posted, for longer than rnr_retry allows"
        }
        IBV_WC_REM_ACCESS_ERR => {
            "the peer's region does not allow this: wrong rkey or address, out of its bounds, deregistered, or without the access"
        }
        IBV_WC_REM_INV_REQ_ERR => {
            "the peer cannot take this request: its receive is too short, its QP does not allow the operation, an atomic is \
             not at a multiple of 8, or the path MTUs differ"
        }
        IBV_WC_REM_OP_ERR => "the peer's device could not do it",
        IBV_WC_LOC_LEN_ERR => {
            "the message is longer than the receive that it went into, or than the port allows"
        }
        IBV_WC_LOC_PROT_ERR => {
            "the local region does not allow this: it was deregistered, or lacks the access"
        }
        IBV_WC_LOC_QP_OP_ERR => "the local QP cannot do this request",
        IBV_WC_LOC_ACCESS_ERR => "a region of this side did not allow what the peer's write needed",
        IBV_WC_WR_FLUSH_ERR => "the QP is in the error state, and what is outstanding is flushed",
        IBV_WC_MW_BIND_ERR => "the memory window could not be bound",
        IBV_WC_BAD_RESP_ERR => "the peer's answer made no sense",
        IBV_WC_FATAL_ERR => "the device is broken",
        _ => "see the status in ibv_poll_cq(3)",
    }
}

impl fmt::Display for FailureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.status == IBV_WC_WR_FLUSH_ERR {
            "was flushed"
        } else {
            "failed"
        };
        write!(f, "{} {verb} on {}", self.operation, self.qp)?;
        if let Some(gid) = self.remote_gid {
            write!(f, " towards {gid}")?;
            if let Some(qp_num) = self.remote_qp_num {
                write!(f, " QP {qp_num:#x}")?;
            }
        }
        write!(
            f,
            ": {} ({})",
            self.status.name().unwrap_or("unknown status"),
            self.status.0
        )?;
        if let Some(root) = &self.root {
            let name = root.status.name().unwrap_or("unknown status");
            write!(
                f,
                ", because {} {} failed before it: {name} ({})",
                root.operation, root.ticket, root.status.0
            )?;
            return write!(f, "; {}", causes(root.status));
        }
        write!(f, "; {}", self.causes())?;
        write!(
            f,
            " [request {}, vendor error {:#x}",
            self.ticket, self.vendor_err
        )?;
        if let Some(source) = &self.source {
            write!(f, "; from GID {source}")?;
        }
        if let Some(psn) = self.sq_psn {
            write!(f, "; sends from PSN {psn:#08x}")?;
        }
        if let Some(psn) = self.rq_psn {
            write!(f, "; receives from PSN {psn:#08x}")?;
        }
        if let (Some(timeout), Some(retries)) = (self.timeout, self.retry_cnt) {
            write!(f, "; timeout {timeout}, {} repetitions", retries.get())?;
            if let Some(budget) = self.budget() {
                write!(f, ", so {budget:?} in all")?;
            }
        }
        if let Some(code) = self.rnr_retry {
            match RnrRetry::times(code) {
                Ok(times) => write!(f, "; RNR repeated {times}")?,
                Err(_) => write!(f, "; RNR repeated {}", RnrRetry::FOREVER)?,
            }
        }
        if let Some(age) = self.age {
            write!(f, "; ready to send for {age:?}")?;
        }
        let books = &self.account;
        // Books without the request itself are those of nobody: the QP was reset or destroyed.
        if books.accepted > 0 {
            write!(
                f,
                "; {} of {} requests of this queue succeeded before",
                books.succeeded, books.accepted
            )?;
            if books.flushed > 0 {
                write!(f, ", {} after it were flushed", books.flushed)?;
            }
            if books.pending > 0 {
                write!(f, ", {} are not reported yet", books.pending)?;
            }
        }
        f.write_str("]")
    }
}

impl std::error::Error for FailureReport {}
