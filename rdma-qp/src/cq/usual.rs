//! Successes that come in their turn, as they are in memory.

use rdma_core_sys::ibv_wc;

use super::books::success;
use super::{Completion, Cq, PollError, Polled, Ticket};
use crate::account::{Operation, Outcomes};
use crate::raw::intake::Taken;
use crate::wr_id::{self, QueueKind};

/// A success that came in its turn: what nearly all completions are. It is where the device put it, and lent for the time of a
/// call, so what is not asked for costs nothing. See [`Cq::poll_by`].
#[derive(Clone, Copy)]
pub struct Usual<'a> {
    wc: &'a ibv_wc,
    queue: &'a Outcomes,
    cq: &'a u32,
}

impl<'a> Usual<'a> {
    #[inline(always)]
    pub(super) fn new(wc: &'a ibv_wc, queue: &'a Outcomes, cq: &'a u32) -> Usual<'a> {
        Usual { wc, queue, cq }
    }

    /// The `wr_id` that the request went to the device with: that of its ticket.
    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }

    /// Which request.
    #[inline(always)]
    pub fn ticket(&self) -> Ticket {
        Ticket::new(self.wc.wr_id, true)
    }

    /// What the request was posted with, see [`Qp::post_with`]; anything if it was posted without.
    ///
    /// [`Qp::post_with`]: crate::Qp::post_with
    #[inline(always)]
    pub fn context(&self) -> u64 {
        self.queue.context(self.wc.wr_id)
    }

    /// Number of its QP.
    #[inline(always)]
    pub fn qp_num(&self) -> u32 {
        self.queue.qp_num()
    }

    /// Its queue.
    #[inline(always)]
    pub fn queue(&self) -> QueueKind {
        self.queue.kind()
    }

    /// What it asked for.
    #[inline(always)]
    pub fn operation(&self) -> Operation {
        Operation::from_code(wr_id::operation(self.wc.wr_id))
    }

    /// As [`Success::byte_len`](crate::Success::byte_len).
    #[inline(always)]
    pub fn byte_len(&self) -> u32 {
        if self.operation().has_length() {
            self.wc.byte_len.saturating_sub(self.queue.header())
        } else {
            0
        }
    }

    /// All that it says.
    #[inline(always)]
    pub fn completion(&self) -> Completion {
        success(*self.cq, &Taken::of(self.queue, self.wc))
    }

    /// The same by a call: for where it is asked for rarely, and the rest of this is to stay out of memory.
    #[inline(always)]
    pub fn to_completion(&self) -> Completion {
        #[cold]
        #[inline(never)]
        fn made(cq: &u32, queue: &Outcomes, wc: &ibv_wc) -> Completion {
            success(*cq, &Taken::of(queue, wc))
        }
        made(self.cq, self.queue, self.wc)
    }
}

impl std::fmt::Debug for Usual<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.completion().fmt(f)
    }
}

/// What [`Cq::poll_quick`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quick<R> {
    /// It did, with that result.
    Done(R),
    /// There is nothing to do at present.
    Nothing,
    /// It is not for the short way: another call goes on.
    Other,
}

impl Cq {
    /// Takes the next completion as [`Cq::poll`] does, and hands it to `usual` if it is a success that came in its turn, and to
    /// `other`, with its context, if it is anything else. For layers that have completions of a form of their own: the usual one
    /// goes into it without having been in another.
    ///
    /// ```
    /// # use rdma_qp::Device;
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let mut cq = device.create_cq(16)?;
    /// let context = cq.poll_by(|usual| (usual.context(), true), |other, context| (context, other.outcome.is_ok()))?;
    /// assert!(context.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The CQ does not work any more.
    #[inline(always)]
    pub fn poll_by<R>(
        &mut self,
        usual: impl FnOnce(Usual<'_>) -> R,
        other: impl FnOnce(Completion, u64) -> R,
    ) -> Result<Option<R>, PollError> {
        let taken = (self.intake).look_by(
            #[inline(always)]
            |wc, queue| usual(Usual::new(wc, queue, &self.id)),
        );
        if let Some(result) = taken {
            return Ok(Some(result));
        }
        match self.poll_on::<R>() {
            Polled::Nothing => Ok(None),
            Polled::Found => {
                let found = self.found.get();
                Ok(found.map(|done| other(done, self.context(&done))))
            }
            Polled::Failed => Err(self.failed.take().unwrap_or(PollError::NoChannel)),
        }
    }

    /// The short way of [`Cq::poll_by`] alone, for callers that have little room on their own short way. After
    /// [`Quick::Other`] any other call that polls goes on where this stopped, at once or later.
    ///
    /// ```
    /// # use rdma_qp::{Device, Quick};
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let mut cq = device.create_cq(16)?;
    /// assert_eq!(cq.poll_quick(|usual| usual.wr_id()), Quick::Nothing);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn poll_quick<R>(&mut self, usual: impl FnOnce(Usual<'_>) -> R) -> Quick<R> {
        let taken = (self.intake).look_in_place(
            #[inline(always)]
            |wc, queue| usual(Usual::new(wc, queue, &self.id)),
        );
        match taken {
            Some(result) => Quick::Done(result),
            None if self.has_nothing() => Quick::Nothing,
            None => Quick::Other,
        }
    }

    /// Whether there is nothing to do, after the short way took nothing.
    #[cold]
    #[inline(never)]
    fn has_nothing(&self) -> bool {
        self.intake.settle() && !self.is_asked_for_regions()
    }

    /// What the user keeps beside a request, see [`Qp::post_with`]. `completion` is the last that was handed out, or
    /// one that the last drain took: afterwards another request may have its place. Others may post meanwhile, but not reset the QP
    /// and fill its queue anew. 0: there is nothing.
    ///
    /// [`Qp::post_with`]: crate::Qp::post_with
    pub fn context(&self, completion: &Completion) -> u64 {
        let id = completion.ticket.wr_id();
        let (last, context) = self.context.get();
        if last == id {
            return context;
        }
        let poller = self.poller.borrow();
        if let Some(context) = poller.drained.get(&id) {
            return *context;
        }
        // One that came the short way: its place is not free before another one of its queue is polled, see `Queue::new`.
        let found = poller.find(&self.intake, id);
        found.map_or(0, |found| found.context(id))
    }
}
