//! Polling many completions at a time.

use std::fmt;

use super::books::success;
use super::{Completion, Cq, PollError, Usual};
use crate::account::Operation;
use crate::raw::intake::Rest;
use crate::raw::rarely;
use crate::wr_id;

/// Completions that one call took from the device, see [`Cq::poll_batch`]. What is not looked at is handed out later.
pub struct Completions<'c> {
    rest: Rest<'c, Cq>,
}

impl Cq {
    /// Takes what completions there are, up to 32, with one call into the device. Does not wait. It costs less than as many
    /// calls of [`Cq::poll`].
    ///
    /// ```
    /// # use rdma_qp::Device;
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let mut cq = device.create_cq(64)?;
    /// for done in cq.poll_batch()? {
    ///     println!("{:?}", done.outcome);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The CQ does not work any more.
    #[inline(always)]
    pub fn poll_batch(&mut self) -> Result<Completions<'_>, PollError> {
        if !self.intake.refill()
            && let Some(error) = self.trouble()
        {
            return Err(error);
        }
        Ok(Completions {
            rest: Rest::new(self),
        })
    }

    /// What is to be done when the device had nothing.
    #[cold]
    #[inline(never)]
    fn trouble(&mut self) -> Option<PollError> {
        if let Some(errno) = self.intake.take_failure() {
            return Some(self.broken(errno));
        }
        self.look_after_regions(&self.poller.borrow());
        None
    }

    /// The next completion that was taken from the device, whatever it is.
    #[inline(never)]
    fn next_taken(&mut self) -> Option<Completion> {
        if let Some(taken) = self.intake.look_left() {
            return Some(success(self.id, &taken));
        }
        let poller = &mut *self.poller.borrow_mut();
        if let Some(kept) = poller.next_kept(&self.intake) {
            return Some(self.hand_out(kept));
        }
        self.intake.go_on();
        while let Some(wc) = self.intake.take_taken() {
            if let Some(booked) = poller.book(&self.intake, self.id, &wc) {
                return Some(self.hand_out(booked));
            }
        }
        None
    }
}

impl<'c> Completions<'c> {
    /// Takes the next completion as the iterator does, and hands it to one of the two, as [`Cq::poll_by`] does.
    #[inline(always)]
    pub fn next_by<R>(
        &mut self,
        usual: impl FnOnce(Usual<'_>) -> R,
        other: impl FnOnce(Completion, u64) -> R,
    ) -> Option<R> {
        let id = self.rest.owner().id;
        if let Some((wc, queue)) = self.rest.look() {
            return Some(usual(Usual::new(&wc, queue, &id)));
        }
        rarely();
        let done = self.next_unusual()?;
        let context = self.rest.with(|cq| cq.context(&done));
        Some(other(done, context))
    }

    /// The next completions, if they are successes that came in their turn, as a row of one queue. `None`: there are none, or
    /// they are something else, and [`Completions::next_by`] or the iterator knows more.
    ///
    /// ```
    /// # use rdma_qp::Device;
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let mut cq = device.create_cq(64)?;
    /// let mut contexts = [0; 16];
    /// let mut batch = cq.poll_batch()?;
    /// while let Some(row) = batch.row() {
    ///     let taken = row.take(&mut contexts, |place, _, context| *place = context);
    ///     println!("{:?}", &contexts[..taken]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn row(&mut self) -> Option<Row<'_, 'c>> {
        let cq = self.rest.owner().id;
        let (queue, wr_id) = self.rest.begin_row()?;
        let (qp_num, operation) = (queue.qp_num(), wr_id::operation(wr_id));
        Some(Row {
            rest: &mut self.rest,
            qp_num,
            operation: Operation::from_code(operation),
            cq,
        })
    }

    /// Whether nothing is left of it.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.rest.is_done()
    }

    /// The next completion if it is not for the short way.
    #[inline(always)]
    fn next_unusual(&mut self) -> Option<Completion> {
        if self.rest.is_done() {
            return None;
        }
        self.rest.with(Cq::next_taken)
    }
}

/// Completions that come next, each the success of the request that was due, of one queue, all of which asked for the same. See
/// [`Completions::row`].
pub struct Row<'r, 'c> {
    rest: &'r mut Rest<'c, Cq>,
    qp_num: u32,
    operation: Operation,
    cq: u32,
}

impl Row<'_, '_> {
    /// Number of the QP of all of them.
    #[inline(always)]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// What all of them asked for.
    #[inline(always)]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Hands them to `each`, as long as there are places, with their contexts, see [`Qp::post_with`]; returns how many, at least one
    /// if there is a place. What is left begins another row. They are in the books when all are taken: should `each` panic, none
    /// was.
    ///
    /// [`Qp::post_with`]: crate::Qp::post_with
    #[inline(always)]
    pub fn take<P>(self, places: &mut [P], mut each: impl FnMut(&mut P, Usual<'_>, u64)) -> usize {
        let cq = self.cq;
        self.rest.take_row(
            places,
            #[inline(always)]
            |place, wc, queue, context| each(place, Usual::new(wc, queue, &cq), context),
        )
    }
}

impl fmt::Debug for Row<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Row({:?} of QP {:#x})", self.operation, self.qp_num)
    }
}

impl Iterator for Completions<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        let id = self.rest.owner().id;
        if let Some((wc, queue)) = self.rest.look() {
            return Some(Usual::new(&wc, queue, &id).completion());
        }
        rarely();
        self.next_unusual()
    }
}

impl fmt::Debug for Completions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completions({:?})", self.rest.owner())
    }
}
