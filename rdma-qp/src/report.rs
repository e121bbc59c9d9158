//! What a person needs to know about a failed request.

use std::fmt;
use std::time::{Duration, Instant};

use rdma_core_sys::*;

use crate::account::{Account, Operation};
use crate::cq::{Completion, Failure, Root, Ticket};
use crate::doctor::causes;
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
    pub fn causes(&self) -> String {
        causes(self.status)
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
            let more = if retries.get() == 1 { "" } else { "s" };
            write!(f, "; timeout {timeout}, {} repetition{more}", retries.get())?;
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
            write!(f, "; ready to send for {:?}", crate::lint::rounded(age))?;
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
