//! From a completion of the device to the queue that it belongs to, and into its books.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use rdma_core_sys::{IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_wc};

use super::{Completion, Failure, Root, Success, Ticket};
use crate::account::{Ending, Operation, Queue, Retired};
use crate::qp::QpInfo;
use crate::raw::pd::PdHandle;
use crate::report::FailureReport;
use crate::wr_id;

/// Completions taken from the device by one call.
pub(super) const BATCH: usize = 16;

/// A queue that reports here.
pub(super) struct Entry {
    pub(super) queue: Arc<Queue>,
    pub(super) info: Arc<QpInfo>,
    pub(super) pd: Weak<PdHandle>,
    pub(super) root: Option<Root>,
}

/// What only the owner of the CQ touches.
pub(super) struct Poller {
    /// By slot.
    pub(super) table: Vec<Option<Entry>>,
    /// Completions taken from the device and not looked at: `batch[next..filled]`.
    pub(super) batch: [ibv_wc; BATCH],
    pub(super) next: usize,
    pub(super) filled: usize,
    /// Some request got an outcome since regions were last looked at, so one of them may be free now.
    pub(super) progress: bool,
    /// Completions looked at while waiting for another one.
    pub(super) stash: VecDeque<(Completion, Retired)>,
}

impl Poller {
    /// Keeps a completion until somebody asks for it. What is kept and not stale holds room of the CQ, so that never
    /// takes more than there was from the start.
    pub(super) fn keep(&mut self, done: (Completion, Retired)) {
        if self.stash.len() == self.stash.capacity() {
            self.drop_stale();
        }
        self.stash.push_back(done);
    }

    /// Drops what was kept of QPs that were reset or destroyed since.
    pub(super) fn drop_stale(&mut self) {
        let Poller { table, stash, .. } = self;
        stash.retain(|(done, _)| {
            find(table, done.ticket.wr_id())
                .is_some_and(|entry| !entry.queue.is_stale(done.ticket.sequence()))
        });
    }
}

/// The queue that a `wr_id` belongs to.
#[inline]
pub(super) fn find(table: &[Option<Entry>], id: u64) -> Option<&Entry> {
    let entry = table.get(wr_id::slot(id))?.as_ref()?;
    entry.queue.prefix.owns(id).then_some(entry)
}

/// Books a completion; with it comes its queue. `None`: it belongs to no outstanding request.
#[inline]
pub(super) fn book<'t>(
    table: &'t mut [Option<Entry>],
    cq: u32,
    wc: &ibv_wc,
) -> Option<(Completion, Retired, &'t Queue)> {
    let entry = table.get_mut(wr_id::slot(wc.wr_id))?.as_mut()?;
    if !entry.queue.prefix.owns(wc.wr_id) {
        return None;
    }
    let ending = match wc.status {
        IBV_WC_SUCCESS => Ending::Success,
        IBV_WC_WR_FLUSH_ERR => Ending::Flush,
        _ => Ending::Error,
    };
    let retired = entry.queue.retire(wc.wr_id, ending)?;
    let operation = entry.queue.operation(retired.sequence);
    let ticket = Ticket::new(cq, &entry.queue, retired.sequence, operation, true);
    let outcome = if ending == Ending::Success {
        let receives = matches!(operation, Operation::Recv);
        let returns = matches!(
            operation,
            Operation::Read | Operation::CompareSwap | Operation::FetchAdd
        );
        Ok(Success {
            operation,
            byte_len: if receives || returns { wc.byte_len } else { 0 },
            imm: if receives { wc.imm_data() } else { None },
            by_write: receives && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM,
        })
    } else {
        Err(fail(entry, ticket, wc, operation, ending))
    };
    Some((
        Completion {
            ticket,
            qp_num: entry.queue.qp_num(),
            queue: entry.queue.kind,
            outcome,
        },
        retired,
        &entry.queue,
    ))
}

/// The failure of a request, tied to the one that it comes from.
#[cold]
fn fail(
    entry: &mut Entry,
    ticket: Ticket,
    wc: &ibv_wc,
    operation: Operation,
    ending: Ending,
) -> Failure {
    let (status, vendor_err) = (wc.status, wc.vendor_err);
    // A root of a former life says nothing about this one.
    let root = entry
        .root
        .filter(|root| !entry.queue.is_stale(root.ticket.sequence()));
    entry.root = match ending {
        Ending::Flush => root,
        _ => Some(root.unwrap_or(Root {
            ticket,
            status,
            vendor_err,
            operation,
        })),
    };
    Failure {
        status,
        vendor_err,
        operation,
        root: if ending == Ending::Flush { root } else { None },
    }
}

/// Gives the room of a completion back, because the application gets it. `false`: its QP was reset or destroyed.
#[inline]
pub(super) fn release(table: &[Option<Entry>], done: &Completion, retired: Retired) -> bool {
    find(table, done.ticket.wr_id()).is_some_and(|entry| entry.queue.release(retired))
}

pub(super) fn report(
    table: &[Option<Entry>],
    done: &Completion,
    failure: Failure,
) -> FailureReport {
    // The slot may have got another QP since, and the QP another peer: both are not what failed.
    let entry = find(table, done.ticket.wr_id())
        .filter(|entry| !entry.queue.is_stale(done.ticket.sequence()));
    FailureReport::new(
        done,
        failure,
        entry.map(|entry| (&*entry.info, entry.queue.account())),
    )
}
