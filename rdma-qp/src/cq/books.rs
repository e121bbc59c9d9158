//! From a completion of the device to the queue that it belongs to, and into its books.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use rdma_core_sys::{
    IBV_WC_GRH, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_wc,
};

use super::srq::Srqs;
use super::{Completion, Failure, Root, Sender, Success, Ticket};
use crate::account::{Ending, Operation, Queue, Retired, Share};
use crate::number::NumberHasher;
use crate::qp::QpInfo;
use crate::raw::intake::{Intake, Taken};
use crate::raw::pd::PdHandle;
use crate::report::FailureReport;
use crate::wr_id::{self, SHARED};

/// What is known of a queue that reports here, beyond its books.
pub(super) struct Entry {
    pub(super) info: Arc<QpInfo>,
    pub(super) pd: Weak<PdHandle>,
    pub(super) root: Option<Root>,
}

/// What only the owner of the CQ touches, and not on the short way.
pub(super) struct Poller {
    /// What is known of the queues, by slot.
    pub(super) entries: HashMap<u32, Entry, NumberHasher>,
    /// Completions looked at while waiting for another one. While there are any, nothing is left in the batch: what is
    /// handed out comes in order.
    pub(super) stash: VecDeque<Booked>,
    /// What the user keeps beside the requests whose completions the last drain took, by `wr_id`.
    pub(super) drained: HashMap<u64, u64, NumberHasher>,
    /// The shared receive queues whose receives complete here.
    pub(super) srqs: Srqs,
    /// Completions that belonged to no outstanding request.
    pub(super) stale: u64,
}

/// A completion that was entered into the books.
#[derive(Clone, Copy)]
pub(super) struct Booked {
    pub(super) done: Completion,
    pub(super) retired: Retired,
    /// What the user keeps beside the request: whoever posts may give its place to another from now on.
    pub(super) context: u64,
}

/// The books that a completion was entered into.
pub(super) enum Found {
    Queue(Arc<Queue>),
    Srq(Share),
}

impl Found {
    /// Notes that a completion is kept.
    fn hold(&self, retired: Retired) {
        match self {
            Found::Queue(queue) => queue.hold(retired),
            Found::Srq(share) => share.hold(),
        }
    }

    /// Notes that a kept completion is handed out. `false`: it is stale by now.
    pub(super) fn release(&self, retired: Retired) -> bool {
        match self {
            Found::Queue(queue) => queue.release(retired),
            Found::Srq(share) => share.release(),
        }
    }

    /// Whether request `id` belongs to a former life.
    pub(super) fn is_stale(&self, id: u64) -> bool {
        match self {
            Found::Queue(queue) => queue.is_stale(id),
            Found::Srq(share) => share.srq.is_ended(),
        }
    }

    /// Whether request `id` has an outcome.
    pub(super) fn is_retired(&self, id: u64) -> bool {
        match self {
            Found::Queue(queue) => queue.is_retired(id),
            Found::Srq(share) => share.srq.is_retired(id),
        }
    }

    /// What the user keeps beside request `id`.
    pub(super) fn context(&self, id: u64) -> u64 {
        match self {
            Found::Queue(queue) => queue.outcomes().context(id),
            Found::Srq(share) => share.srq.context(id),
        }
    }

    /// Whether request `id`, which has an outcome and no completion of its own, succeeded.
    pub(super) fn succeeded_silently(&self, id: u64) -> bool {
        match self {
            Found::Queue(queue) => queue.succeeded_silently(id),
            Found::Srq(_) => false,
        }
    }
}

impl Poller {
    /// The books that a `wr_id` names.
    pub(super) fn find(&self, intake: &Intake, id: u64) -> Option<Found> {
        match intake.find(id) {
            Some(queue) => Some(Found::Queue(queue)),
            None => self.srqs.find(id).cloned().map(Found::Srq),
        }
    }

    /// Takes a kept completion's room back. `false`: it is stale by now.
    pub(super) fn release(&self, intake: &Intake, kept: &Booked) -> bool {
        self.find(intake, kept.done.ticket.wr_id())
            .is_some_and(|found| found.release(kept.retired))
    }

    /// Keeps a completion until somebody asks for it. What is kept and not stale holds room of the CQ, so that never
    /// takes more than there was from the start.
    pub(super) fn keep(&mut self, intake: &Intake, booked: Booked) {
        if self.stash.len() == self.stash.capacity() {
            self.drop_stale(intake);
        }
        if let Some(found) = self.find(intake, booked.done.ticket.wr_id()) {
            found.hold(booked.retired);
        }
        self.stash.push_back(booked);
    }

    /// The oldest completion that was kept and is not stale by now, for the application.
    pub(super) fn next_kept(&mut self, intake: &Intake) -> Option<Booked> {
        while let Some(kept) = self.stash.pop_front() {
            if self.release(intake, &kept) {
                return Some(kept);
            }
        }
        None
    }

    /// Drops what was kept of QPs that were reset or destroyed since.
    pub(super) fn drop_stale(&mut self, intake: &Intake) {
        let mut stash = std::mem::take(&mut self.stash);
        stash.retain(|kept| {
            let id = kept.done.ticket.wr_id();
            self.find(intake, id)
                .is_some_and(|found| !found.is_stale(id))
        });
        self.stash = stash;
    }

    /// Books a completion. `None`: it is nobody's, because it belongs to no outstanding request, or to a drain's.
    pub(super) fn book(&mut self, intake: &Intake, cq: u32, wc: &ibv_wc) -> Option<Booked> {
        let ending = ending_of(wc);
        let Some(queue) = intake.find(wc.wr_id) else {
            return self.srqs.book(cq, wc).or_else(|| self.is_stale());
        };
        // Before it is free.
        let context = queue.outcomes().context(wc.wr_id);
        let Some(retired) = queue.retire(wc.wr_id, ending) else {
            return self.is_stale();
        };
        let booked = |done| Booked {
            done,
            retired,
            context,
        };
        intake.open(&queue);
        if ending == Ending::Success {
            return Some(booked(success(cq, &Taken::of(queue.outcomes(), wc))));
        }
        // It was posted in ERR, where all is flushed (see `ToErr`), so it is met here alone. The drain sees by the books that it
        // is done.
        if wr_id::is_marker(wc.wr_id) {
            return None;
        }
        let ticket = Ticket::new(wc.wr_id, true);
        let entry = self.entries.get_mut(&wr_id::slot(wc.wr_id))?;
        let failure = fail(entry, &queue, ticket, wc, ending);
        let done = Completion {
            ticket,
            qp_num: queue.qp_num(),
            queue: queue.kind(),
            outcome: Err(failure),
            cq,
        };
        if ending == Ending::Error {
            note(entry, &queue, &done, failure);
        }
        Some(booked(done))
    }

    #[cold]
    fn is_stale(&mut self) -> Option<Booked> {
        self.stale += 1;
        None
    }

    /// All that is known of a failed request.
    pub(super) fn report(
        &self,
        intake: &Intake,
        done: &Completion,
        failure: Failure,
    ) -> FailureReport {
        let id = done.ticket.wr_id();
        if wr_id::slot(id) & SHARED != 0 {
            return FailureReport::new(done, failure, self.srqs.known(done));
        }
        // The slot may have got another QP since, and the QP another peer: both are not what failed.
        let known = intake
            .find(id)
            .filter(|queue| !queue.is_stale(id))
            .zip(self.entries.get(&wr_id::slot(id)))
            .map(|(queue, entry)| (&*entry.info, queue.account()));
        FailureReport::new(done, failure, known)
    }
}

/// How a request ended.
pub(super) fn ending_of(wc: &ibv_wc) -> Ending {
    match wc.status {
        IBV_WC_SUCCESS => Ending::Success,
        IBV_WC_WR_FLUSH_ERR => Ending::Flush,
        _ => Ending::Error,
    }
}

/// The completion of a request that succeeded.
#[inline(always)]
pub(super) fn success(cq: u32, taken: &Taken) -> Completion {
    let wc = &taken.wc;
    let operation = Operation::from_code(wr_id::operation(wc.wr_id));
    let receives = operation == Operation::Recv;
    let datagram = receives && taken.header != 0;
    Completion {
        ticket: Ticket::new(wc.wr_id, true),
        qp_num: taken.qp_num,
        queue: taken.kind,
        outcome: Ok(Success {
            operation,
            byte_len: if operation.has_length() {
                wc.byte_len.saturating_sub(taken.header)
            } else {
                0
            },
            imm: if receives { wc.imm_data() } else { None },
            by_write: receives && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM,
            invalidated: if receives {
                wc.invalidated_rkey()
            } else {
                None
            },
            sender: datagram.then(|| Sender {
                qp_num: wc.src_qp,
                lid: wc.slid,
                service_level: wc.sl,
                has_grh: wc.flags().contains(IBV_WC_GRH),
            }),
        }),
        cq,
    }
}

/// Keeps a failure for the dump of its QP.
#[cold]
fn note(entry: &Entry, queue: &Queue, done: &Completion, failure: Failure) {
    let known = Some((&*entry.info, queue.account()));
    let report = FailureReport::new(done, failure, known);
    entry.info.failed((&report).into());
}

/// The failure of a request, tied to the one that it comes from.
#[cold]
fn fail(entry: &mut Entry, queue: &Queue, ticket: Ticket, wc: &ibv_wc, ending: Ending) -> Failure {
    let (status, vendor_err, operation) = (wc.status, wc.vendor_err, ticket.operation());
    // A root of a former life says nothing about this one.
    let root = entry
        .root
        .filter(|root| !queue.is_stale(root.ticket.wr_id()));
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
