//! Emptying the queues of a QP, so that nothing of it is under way and everything has its outcome.

use std::fmt;

use rdma_core_sys::rules;
use rdma_core_sys::*;

use super::modify::{Moves, state};
use super::sqd::pause;
use super::transition::ToErr;
use super::{ModifyError, PostError, Qp, QueryQpError, Transport};
use crate::account::{Account, Operation};
use crate::cq::{Completion, Cq, PollError, Root, Ticket};
use crate::deadline::Deadline;
use crate::errno::Errno;
use crate::fd;
use crate::raw::post::{Names, NotPosted};
use crate::wr_id::{self, QueueKind};

/// How the requests of one queue ended while it was drained, unsignaled ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainedQueue {
    /// Ended well.
    pub succeeded: u64,
    /// Ended with an error of their own.
    pub failed: u64,
    /// Flushed: not executed, or not known to be, because the QP was in the error state.
    pub flushed: u64,
    /// Still without an outcome.
    pub pending: u64,
    /// The failure that the flushes come from, if one did: it may have been taken from the CQ before.
    pub root: Option<Root>,
}

/// What a drain found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Drained {
    /// Transport of the QP.
    pub transport: rules::Transport,
    /// Its completions that the application had not taken, in the order in which they came. They are the application's
    /// now: the CQ does not hand them out again.
    pub completions: Vec<Completion>,
    /// The send queue.
    pub send: DrainedQueue,
    /// The receive queue. An SRQ is none: receives that its QPs have not taken stay in it.
    pub recv: DrainedQueue,
    /// Where sends that succeeded without a completion lie, as marks: from the first up to the second.
    silent: (u64, u64),
}

/// What the peer made of a request, as far as it can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It was executed.
    Done,
    /// It was not executed. Part of the data of a longer RDMA WRITE may be at the peer all the same.
    NotDone,
    /// It may have been executed or not.
    Unknown,
}

/// A drain did not come to its end.
#[derive(Debug)]
#[non_exhaustive]
pub struct DrainError {
    /// What was drained until then. Its completions are not handed out again.
    pub drained: Box<Drained>,
    /// Why it ended.
    pub reason: DrainProblem,
}

/// Why a drain ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrainProblem {
    /// A CQ of the QP was not given.
    #[error("the {queue} reports to a CQ that was not given: give all CQs of the QP")]
    OtherCq {
        /// The queue.
        queue: QueueKind,
    },
    /// The QP could not be moved to ERR.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The QP could not be queried.
    #[error(transparent)]
    Query(#[from] QueryQpError),
    /// The device refused requests that waited for the doorbell, or the one that marks the end of the send queue.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A CQ does not work any more.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// Requests are without outcome, and the deadline has passed.
    #[error(
        "the deadline has passed, and {send} requests of the SQ and {recv} of the RQ have no outcome"
    )]
    TimedOut {
        /// Missing in the send queue.
        send: u64,
        /// Missing in the receive queue.
        recv: u64,
    },
    /// The device did not say by the deadline that the QP has taken its last receive from its SRQ, and all else is done.
    ///
    /// Some devices never say it. Receives that the QP had taken and that are not among the completions, if there are any,
    /// stay pending in the books of the SRQ.
    #[error(
        "the deadline has passed without the event that the QP has taken its last receive from SRQ {srq}; all else is done"
    )]
    NoLastWqe {
        /// Number of the SRQ.
        srq: u32,
    },
    /// The asynchronous events of the device cannot be read.
    #[error("the asynchronous events of the device cannot be read: {0}")]
    Events(#[source] Errno),
    /// The last requests of the send queue are unsignaled: nothing will tell that they are done.
    #[error(
        "the last {count} sends are unsignaled, so nothing tells when they are done: post a signaled one behind them"
    )]
    Silent {
        /// How many.
        count: u64,
    },
}

impl fmt::Display for DrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the QP is not drained: {}", self.reason)
    }
}

impl std::error::Error for DrainError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

impl Drained {
    /// Of a QP without queues of its own.
    pub(super) fn of(transport: rules::Transport, completions: Vec<Completion>) -> Drained {
        Drained {
            transport,
            completions,
            send: DrainedQueue::default(),
            recv: DrainedQueue::default(),
            silent: (0, 0),
        }
    }

    /// What a drain gives that ended so: what was drained by then is in either.
    pub(super) fn ended(self, result: Result<(), DrainProblem>) -> Result<Drained, DrainError> {
        match result {
            Ok(()) => Ok(self),
            Err(reason) => Err(DrainError {
                drained: Box::new(self),
                reason,
            }),
        }
    }

    /// What the peer made of a request, by its completion, see [`Fate::of`].
    pub fn fate(&self, done: &Completion) -> Fate {
        Fate::of(self.transport, done)
    }

    /// What the peer made of the send that a ticket names, unsignaled ones included. `None`: the application had its completion
    /// before, or it is no request of this life of this QP.
    pub fn fate_of(&self, ticket: &Ticket) -> Option<Fate> {
        if let Some(done) = self.completions.iter().find(|done| done.ticket == *ticket) {
            return Some(self.fate(done));
        }
        let (from, to) = self.silent;
        let id = ticket.wr_id();
        let silent = !ticket.is_signaled()
            && wr_id::slot(id) == wr_id::slot(from)
            && !wr_id::is_before(id, from)
            && wr_id::is_before(id, to);
        silent.then(|| Fate::of_success(self.transport, ticket.operation()))
    }

    /// The sends among the completions that met this fate.
    pub fn sends(&self, fate: Fate) -> impl Iterator<Item = &Completion> {
        self.completions
            .iter()
            .filter(move |done| done.queue == QueueKind::Send && self.fate(done) == fate)
    }
}

impl Fate {
    /// What the peer made of a request of a QP of that transport, by its completion.
    ///
    /// On RC and XRC a success is acknowledged, so the request was executed. One that the peer refused was not, nor was any
    /// behind it: a responder executes in order. But where no answer came (`IBV_WC_RETRY_EXC_ERR`), or where a QP was moved to
    /// ERR with requests under way, they may have been executed and the acknowledgement lost: the fate of that request and
    /// of those flushed behind it is unknown. On UC and UD nothing is acknowledged, so a success says that the message left.
    pub fn of(transport: rules::Transport, done: &Completion) -> Fate {
        let failure = match done.outcome {
            Ok(_) if done.queue != QueueKind::Send => return Fate::Done,
            Ok(done) => return Fate::of_success(transport, done.operation),
            Err(failure) => failure,
        };
        if done.queue != QueueKind::Send {
            return Fate::NotDone;
        }
        match failure.root {
            Some(root) => Fate::of_failure(root.status, root.operation),
            None => Fate::of_failure(failure.status, failure.operation),
        }
    }

    /// What the peer made of a send that succeeded.
    pub fn of_success(transport: rules::Transport, operation: Operation) -> Fate {
        let here = matches!(operation, Operation::LocalInv | Operation::BindWindow);
        let acknowledged = matches!(
            transport,
            rules::Transport::Rc | rules::Transport::XrcIni | rules::Transport::XrcTgt
        );
        if here || acknowledged {
            Fate::Done
        } else {
            Fate::Unknown
        }
    }

    /// What the peer made of the first send of a queue that failed, and of all that were flushed behind it: `status` and
    /// `operation` are those of the first.
    pub fn of_failure(status: ibv_wc_status, operation: Operation) -> Fate {
        match status {
            // The peer said so, and takes nothing behind it.
            IBV_WC_REM_INV_REQ_ERR
            | IBV_WC_REM_ACCESS_ERR
            | IBV_WC_REM_OP_ERR
            | IBV_WC_RNR_RETRY_EXC_ERR => Fate::NotDone,
            // Found before it left. What brings data back left before, and what is behind it may have left too.
            IBV_WC_LOC_LEN_ERR | IBV_WC_LOC_QP_OP_ERR | IBV_WC_LOC_PROT_ERR
            | IBV_WC_MW_BIND_ERR
                if !matches!(
                    operation,
                    Operation::Read | Operation::CompareSwap | Operation::FetchAdd
                ) =>
            {
                Fate::NotDone
            }
            _ => Fate::Unknown,
        }
    }
}

/// The books of both queues: sends, and receives.
type Books = (Account, Account);

impl<T: Transport> Qp<T> {
    /// Empties both queues: moves the QP to ERR, unless it is there, and takes its completions from its CQs until every
    /// request has its outcome. `cqs` are the CQs of its queues: one, or two. Completions of other QPs stay in them.
    ///
    /// To be sure of unsignaled requests at the end of the send queue, a signaled request without data is posted behind
    /// them. It is in the books, and not in the report, and no CQ hands it out later. A device that never completes it, as
    /// some do with what is posted in the error state, makes the drain last until its deadline.
    ///
    /// A QP in RESET has nothing to drain. One with an SRQ is drained when the device has said that it has taken its last
    /// receive (`IBV_EVENT_QP_LAST_WQE_REACHED`, ibv_get_async_event(3)): by then the receives that it had taken have
    /// completed, and are among the completions. Events that are found on the way, this one included, are kept for
    /// [`Device::next_event`](crate::Device::next_event). The other receives stay in the SRQ.
    ///
    /// # Errors
    /// Requests are without outcome at `deadline`, the QP could not be moved, or a CQ does not work. What was taken from the
    /// CQs by then is in the error.
    ///
    /// ```
    /// # use rdma_qp::{Access, Device, Memory, ToInit};
    /// # use std::time::Duration;
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// # let mut qp = pd.rc(&cq).create()?;
    /// # let mr = pd.register(Memory::zeroed(64), Access::LOCAL_WRITE)?;
    /// # qp.to(ToInit { port: 1, pkey_index: 0, access: Access::empty() })?;
    /// let receive = qp.recv(mr.all())?;
    /// let drained = qp.drain(&[&cq], Duration::from_secs(5))?;
    /// assert_eq!((drained.recv.flushed, drained.completions[0].ticket), (1, receive));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(
        &mut self,
        cqs: &[&Cq],
        deadline: impl Into<Deadline>,
    ) -> Result<Drained, DrainError> {
        self.empty(cqs, deadline.into(), true)
    }

    /// Waits until every send that was posted has its outcome, without moving the QP. Receives stay; those that complete
    /// meanwhile are among the completions.
    ///
    /// # Errors
    /// As [`Qp::drain`]; also when the last sends are unsignaled.
    pub fn finish_sends(
        &mut self,
        cqs: &[&Cq],
        deadline: impl Into<Deadline>,
    ) -> Result<Drained, DrainError> {
        self.empty(cqs, deadline.into(), false)
    }

    fn books(&self) -> Books {
        (self.send_account(), self.recv_account())
    }

    fn empty(
        &mut self,
        cqs: &[&Cq],
        deadline: Deadline,
        flush: bool,
    ) -> Result<Drained, DrainError> {
        let before = self.books();
        let mut drained = Drained::of(T::RULES, Vec::new());
        let mut marks = 0;
        let result = self.take_all(cqs, deadline, flush, &mut marks, &mut drained.completions);
        drained.send = ended(&before.0, &self.send_account(), QueueKind::Send, &drained);
        drained.send.flushed = drained.send.flushed.saturating_sub(marks);
        drained.recv = ended(&before.1, &self.recv_account(), QueueKind::Recv, &drained);
        let (from, to) = self.handle.send.succeeded();
        drained.silent = (from, to);
        drained.ended(result)
    }

    /// Takes completions until there is nothing to wait for. `marks` counts the markers that were among them.
    fn take_all(
        &mut self,
        cqs: &[&Cq],
        deadline: Deadline,
        flush: bool,
        marks: &mut u64,
        taken: &mut Vec<Completion>,
    ) -> Result<(), DrainProblem> {
        // The application may have polled that of the drain before.
        self.end_marker();
        for (queue, id) in [(QueueKind::Send, self.cqs.0), (QueueKind::Recv, self.cqs.1)] {
            if !cqs.iter().any(|cq| cq.id() == id) {
                return Err(DrainProblem::OtherCq { queue });
            }
        }
        let idle = flush && state(&self.handle, &self.info)? == IBV_QPS_RESET;
        if flush && !idle {
            // In ERR too: soft-RoCE learns of receives that were posted there only when something wakes it (rdma-core
            // providers/rxe/rxe.c, rxe_post_recv).
            self.make(&ToErr)?;
        }
        self.ring()?;
        for cq in cqs {
            cq.begin_drain();
        }
        let mut turn = 0;
        loop {
            // Asked first: what completed before the event is found afterwards.
            let last_wqe = !flush || idle || self.took_last_wqe()?;
            let before = taken.len();
            for cq in cqs {
                cq.take_of(self.qp_num(), taken)?;
            }
            *marks += u64::from(self.end_marker());
            let (send, recv) = self.books();
            let ended = send.pending == 0 && (!flush || recv.pending == 0);
            if ended && last_wqe {
                return Ok(());
            }
            let silent = self.silent_tail();
            if !flush && silent == send.pending {
                return Err(DrainProblem::Silent { count: silent });
            }
            let marked = flush && !idle && self.mark_end()?;
            if marked || taken.len() != before {
                turn = 0;
            } else if deadline.passed() {
                // A marker that the device keeps to itself, and that is pending therefore, is nobody's loss.
                let send = send.pending - u64::from(self.marker.is_some());
                if send != 0 || (flush && recv.pending != 0) {
                    let recv = recv.pending;
                    return Err(DrainProblem::TimedOut { send, recv });
                }
                return match self.srq().filter(|_| !last_wqe) {
                    Some(srq) => Err(DrainProblem::NoLastWqe { srq }),
                    None => Ok(()),
                };
            } else {
                pause(turn);
                turn += 1;
            }
        }
    }

    /// Whether nothing more comes of an SRQ: the QP, in ERR, has none, or the device said that the last was taken.
    fn took_last_wqe(&self) -> Result<bool, DrainProblem> {
        if self.srq().is_none() {
            return Ok(true);
        }
        let context = &self.handle.pd().context;
        let seen = fd::set_nonblocking(context.async_fd())
            .and_then(|()| context.saw_last_wqe(self.qp_num()));
        seen.map_err(DrainProblem::Events)
    }

    /// Forgets the marker if it has its outcome. `true`: it had.
    fn end_marker(&mut self) -> bool {
        let send = &self.handle.send;
        self.marker.take_if(|id| send.is_retired(*id)).is_some()
    }

    /// Posts a marker if unsignaled requests are the last of the send queue, and there is room. `true`: it did.
    fn mark_end(&mut self) -> Result<bool, DrainProblem> {
        if self.marker.is_some() || self.silent_tail() == 0 {
            return Ok(false);
        }
        // A datagram needs an address handle even if it is flushed.
        let own = self.own_ah();
        if T::RULES == rules::Transport::Ud && own.is_none() {
            return Ok(false);
        }
        let names = own
            .as_ref()
            .map_or(Names::Nothing, |own| Names::To(own.datagram()));
        let posted = self.handle.post_send(
            Operation::Send,
            None,
            names,
            std::iter::empty(),
            None,
            |request| {
                request.wr_id |= wr_id::MARKER;
                request.opcode = IBV_WR_SEND;
                request.send_flags = IBV_SEND_SIGNALED.bits();
            },
        );
        match posted {
            Ok(id) => {
                self.ring()?;
                self.marker = Some(id);
                Ok(true)
            }
            Err(NotPosted::Full) => Ok(false),
            Err(reason) => Err(self.not_posted(QueueKind::Send, reason).into()),
        }
    }
}

/// What ended between two looks at the books.
fn ended(before: &Account, after: &Account, queue: QueueKind, drained: &Drained) -> DrainedQueue {
    let of_queue = drained
        .completions
        .iter()
        .filter(|done| done.queue == queue);
    let root = of_queue
        .filter_map(|done| {
            let failure = done.outcome.err()?;
            let own = Root {
                ticket: done.ticket,
                status: failure.status,
                vendor_err: failure.vendor_err,
                operation: failure.operation,
            };
            failure.root.or((!failure.is_flush()).then_some(own))
        })
        .next();
    DrainedQueue {
        // (Not exact where another thread polls the CQs meanwhile.)
        succeeded: after.succeeded.saturating_sub(before.succeeded),
        failed: after.failed.saturating_sub(before.failed),
        flushed: after.flushed.saturating_sub(before.flushed),
        pending: after.pending,
        root,
    }
}
