//! Waiting for one request, or for any.

use std::time::{Duration, Instant};

use super::books::Found;
use super::{Armed, Completion, Cq, PollError, Success, Ticket};
use crate::deadline::Deadline;
use crate::report::FailureReport;
use crate::wr_id::QueueKind;

/// A QP that another thread resets or destroys wakes nobody: so long may it take until a wait for its request ends.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Waiting for one request did not end with its success.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The request failed or was flushed.
    #[error(transparent)]
    Failed(Box<FailureReport>),
    /// It was not done in time. It is still under way.
    #[error(
        "{queue} request {ticket} of QP {qp_num:#x} is not done yet, and the deadline has passed ({pending} requests of that queue are outstanding)"
    )]
    TimedOut {
        /// The request.
        ticket: Ticket,
        /// Its queue.
        queue: QueueKind,
        /// Its QP; 0 for a receive of an SRQ.
        qp_num: u32,
        /// Requests of that queue without an outcome.
        pending: u64,
    },
    /// Its completion was already handed out; that of a receive of an SRQ may be on another CQ, too.
    #[error("the completion of request {0} was already taken, by poll or wait")]
    Taken(Ticket),
    /// The QP was reset or destroyed: the request was thrown away and has no outcome.
    #[error("request {0} was thrown away: its QP was reset or destroyed after the post")]
    Discarded(Ticket),
    /// The request reports to another CQ.
    #[error("request {0} does not report to this CQ")]
    OtherCq(Ticket),
    /// The CQ does not work any more.
    #[error(transparent)]
    Poll(#[from] PollError),
}

impl Cq {
    /// Waits until `ticket` is done, and takes its completion. Completions of other requests that come in meanwhile are
    /// kept for [`Cq::poll`] and later waits.
    ///
    /// A CQ with a channel polls as long as [`Cq::set_spin`] says, and sleeps then; one without polls, at first busily, then
    /// with short naps.
    ///
    /// An unsignaled request has no completion of its own: it is done when a later one of its queue is.
    ///
    /// # Errors
    /// The request failed or was flushed, or is not done by `deadline`; see [`WaitError`].
    pub fn wait(
        &self,
        ticket: &Ticket,
        deadline: impl Into<Deadline>,
    ) -> Result<Success, WaitError> {
        let deadline = deadline.into();
        let is_here = match ticket.is_shared() {
            true => self.poller.borrow().srqs.find(ticket.wr_id()).is_some(),
            // The slot may be another's by now, on another CQ.
            false => (self.intake.find(ticket.wr_id()))
                .is_some_and(|queue| !queue.is_ended() || queue.is_below(ticket.wr_id())),
        };
        if !is_here {
            return Err(WaitError::OtherCq(*ticket));
        }
        let (mut nap, mut spin) = (Nap::new(), self.spin());
        loop {
            if let Some(result) = self.look_for(ticket)? {
                return result;
            }
            if spin.goes_on() {
                continue;
            }
            if self.handle.event_fd().is_some() {
                // Whatever came before the arming gives no event: look once more.
                let _ = self.arm()?;
                if let Some(result) = self.look_for(ticket)? {
                    return result;
                }
                spin = self.spin();
                if !self.sleep(deadline.at_most(LOOK_AGAIN))? && deadline.passed() {
                    return self
                        .look_for(ticket)?
                        .unwrap_or_else(|| Err(self.too_late(ticket)));
                }
            } else if nap.due(deadline) {
                return Err(self.too_late(ticket));
            }
        }
    }

    fn too_late(&self, ticket: &Ticket) -> WaitError {
        let poller = self.poller.borrow();
        let (queue, qp_num, account) = match poller.find(&self.intake, ticket.wr_id()) {
            Some(Found::Queue(queue)) => (queue.kind(), queue.qp_num(), queue.account()),
            Some(Found::Srq(share)) => (QueueKind::SharedRecv, 0, share.srq.account()),
            None => return WaitError::Discarded(*ticket),
        };
        WaitError::TimedOut {
            ticket: *ticket,
            queue,
            qp_num,
            pending: account.pending,
        }
    }

    /// The outcome of `ticket`, if it has one by now.
    fn look_for(&self, ticket: &Ticket) -> Result<Option<Result<Success, WaitError>>, PollError> {
        let mut poller = self.poller.borrow_mut();
        let poller = &mut *poller;
        let mut found = poller
            .stash
            .iter()
            .position(|kept| kept.done.ticket == *ticket);
        while found.is_none() {
            let Some(booked) = self.next(poller)? else {
                break;
            };
            let is_it = booked.done.ticket == *ticket;
            poller.keep(&self.intake, booked);
            found = is_it.then(|| poller.stash.len() - 1);
        }
        self.keep_rest(poller);
        if let Some(kept) = found.and_then(|at| poller.stash.remove(at)) {
            let done = kept.done;
            return Ok(Some(if poller.release(&self.intake, &kept) {
                done.outcome.map_err(|failure| {
                    WaitError::Failed(Box::new(poller.report(&self.intake, &done, failure)))
                })
            } else {
                Err(WaitError::Discarded(*ticket))
            }));
        }
        let id = ticket.wr_id();
        let found = poller.find(&self.intake, id);
        let Some(found) = found.filter(|found| !found.is_stale(id)) else {
            return Ok(Some(Err(WaitError::Discarded(*ticket))));
        };
        if !found.is_retired(id) {
            return Ok(None);
        }
        // It has an outcome, and no completion here. Unsignaled requests before the first failure succeeded silently.
        let silent = !ticket.is_signaled() && found.succeeded_silently(id);
        Ok(Some(if silent {
            Ok(Success::silent(ticket.operation()))
        } else {
            Err(WaitError::Taken(*ticket))
        }))
    }

    /// Waits for any completion until `deadline`, and takes it. `None`: there was none.
    ///
    /// # Errors
    /// The CQ does not work any more.
    pub fn wait_any(&self, deadline: impl Into<Deadline>) -> Result<Option<Completion>, PollError> {
        let deadline = deadline.into();
        let (mut nap, mut spin) = (Nap::new(), self.spin());
        loop {
            if let Some(done) = self.poll()? {
                return Ok(Some(done));
            }
            if spin.goes_on() {
                continue;
            }
            if self.handle.event_fd().is_some() {
                spin = self.spin();
                if self.arm()? == Armed::Sleep && !self.sleep(deadline)? {
                    return self.poll();
                }
            } else if nap.due(deadline) {
                return Ok(None);
            }
        }
    }
}

impl Cq {
    /// How long a wait on a CQ with a channel polls before it sleeps; 0 if not set. To sleep and to be woken costs several
    /// microseconds: polling for about as long gives the latency of polling where completions come quickly, and costs at
    /// most twice the time of sleeping where they do not.
    ///
    /// ```
    /// # use rdma_qp::Device;
    /// # use std::time::Duration;
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// let cq = device.create_event_cq(16)?;
    /// cq.set_spin(Duration::from_micros(20));
    /// assert!(cq.wait_any(Duration::from_millis(1))?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_spin(&self, spin: Duration) {
        self.spin.set(spin);
    }

    fn spin(&self) -> Spin {
        Spin {
            limit: self.spin.get(),
            since: None,
            turns: 0,
        }
    }
}

/// The polling before a sleep.
struct Spin {
    limit: Duration,
    since: Option<Instant>,
    turns: u32,
}

impl Spin {
    /// Whether there is time for another poll.
    fn goes_on(&mut self) -> bool {
        if self.limit.is_zero() {
            return false;
        }
        self.turns = self.turns.wrapping_add(1);
        // A look at the clock costs about as much as a poll.
        if self.since.is_some() && !self.turns.is_multiple_of(8) {
            return true;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        since.elapsed() < self.limit
    }
}

/// How a wait without channel passes the time: busily for about a millisecond, then with naps.
struct Nap {
    turns: u32,
}

impl Nap {
    fn new() -> Nap {
        Nap { turns: 0 }
    }

    /// Passes some time. `true`: the deadline has passed.
    fn due(&mut self, deadline: Deadline) -> bool {
        self.turns = self.turns.saturating_add(1);
        match self.turns {
            0..64 => std::hint::spin_loop(),
            64..2048 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
        // A look at the clock costs about as much as a poll: do it now and then while busy.
        (self.turns.is_multiple_of(32) || self.turns >= 2048) && deadline.passed()
    }
}
