//! A batch that is taken in a row.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use rdma_core_sys::ibv_wc;

use super::Intake;
use crate::account::Outcomes;
use crate::cq::Cq;
use crate::raw::rarely;
use crate::raw::row::in_a_row;
use crate::raw::table::{Parts, Row};
use crate::wr_id::STEP;

/// Who has the intake of a CQ.
///
/// # Safety
/// It is always the same intake, reached through the value alone.
pub(crate) unsafe trait HasIntake {
    fn intake(&mut self) -> &mut Intake;
}

// SAFETY: `intake_mut` returns a field of the CQ.
unsafe impl HasIntake for Cq {
    fn intake(&mut self) -> &mut Intake {
        self.intake_mut()
    }
}

/// The rest of a batch, taken by the short way.
///
/// Its invariant: from `next` to `end` are the completions of the batch that are not looked at, and behind them is no success;
/// `places` are those of the table, and `row` is of it, begun after `closed` was 0. Or `end` is null, `next` is such an end, and
/// there is more to do. That is so as long as nobody else uses the intake, which is behind `owner`, borrowed.
pub(crate) struct Rest<'c, C: HasIntake> {
    next: *const ibv_wc,
    closed: NonNull<AtomicU32>,
    row: Row,
    places: Parts,
    end: *const ibv_wc,
    /// Nothing goes before the batch.
    plain: bool,
    owner: NonNull<C>,
    borrowed: PhantomData<&'c mut C>,
}

impl<'c, C: HasIntake> Rest<'c, C> {
    #[inline(always)]
    pub(crate) fn new(owner: &'c mut C) -> Rest<'c, C> {
        let intake = owner.intake();
        let (next, end, plain) = intake.rest();
        let places = intake.places.get();
        Rest {
            next,
            closed: NonNull::from(&*intake.closed),
            row: places.row(),
            places,
            end,
            plain,
            owner: NonNull::from(owner),
            borrowed: PhantomData,
        }
    }

    /// Tells the intake what was taken.
    #[inline(always)]
    fn leave(&mut self) {
        if self.end.is_null() {
            return;
        }
        // SAFETY: it is borrowed for `'c`, and this is the only reference to it.
        let intake = unsafe { self.owner.as_mut() }.intake();
        if self.plain {
            // SAFETY: both point into the batch, or behind it.
            intake.set_left(unsafe { self.end.offset_from(self.next) } as usize);
        }
    }

    /// Does something with the owner of the intake.
    #[inline(always)]
    pub(crate) fn with<R>(&mut self, f: impl FnOnce(&mut C) -> R) -> R {
        self.leave();
        // SAFETY: it is borrowed for `'c`, and this is the only reference to it.
        let owner = unsafe { self.owner.as_mut() };
        // Should `f` panic, nothing is for the short way any more.
        (self.next, self.end) = (owner.intake().last_place(), ptr::null());
        let result = f(owner);
        let intake = owner.intake();
        (self.next, self.end, self.plain) = intake.rest();
        self.places = intake.places.get();
        self.row = self.places.row();
        result
    }

    #[inline(always)]
    pub(crate) fn owner(&self) -> &C {
        // SAFETY: it is borrowed for `'c`, and whoever changes it here has `&mut self`.
        unsafe { self.owner.as_ref() }
    }

    /// Whether there is nothing left, and nothing else to do.
    #[inline(always)]
    pub(crate) fn is_done(&self) -> bool {
        self.next == self.end && self.plain
    }

    /// The short way: takes the next completion, and books it, as [`Intake::look`] does.
    #[inline(always)]
    pub(crate) fn look(&mut self) -> Option<(ibv_wc, &Outcomes)> {
        // SAFETY: a completion of the batch, or what is behind the last (the invariant), to which no other reference exists:
        // the intake has none, and is not used.
        let wc = unsafe { *self.next };
        // SAFETY: the intake has an `Arc` to it, always the same.
        let closed = unsafe { self.closed.as_ref() }.load(Relaxed);
        if wc.status.0 | closed != 0 {
            rarely();
            return None;
        }
        // SAFETY: `places` are those of the table, and `row` is of it (the invariant); this is the poller, as in the intake,
        // which nobody uses meanwhile.
        let queue = unsafe { self.places.retire_row(wc.wr_id, &mut self.row) }?;
        // SAFETY: it is a success, so it is not behind the last.
        self.next = unsafe { self.next.add(1) };
        Some((wc, queue))
    }
}

impl<C: HasIntake> Rest<'_, C> {
    /// The queue and the `wr_id` of the next completion, if it is for the short way: then a row begins with it.
    #[inline(always)]
    pub(crate) fn begin_row(&mut self) -> Option<(&Outcomes, u64)> {
        // SAFETY: a completion of the batch, or what is behind the last (the invariant), to which no other reference exists.
        let (status, wr_id) = unsafe { ((*self.next).status, (*self.next).wr_id) };
        // SAFETY: the intake has an `Arc` to it, always the same.
        let closed = unsafe { self.closed.as_ref() }.load(Relaxed);
        if status.0 | closed != 0 {
            rarely();
            return None;
        }
        // SAFETY: `places` are those of the table, and `row` is of it (the invariant); this is the poller.
        let queue = unsafe { self.places.begin_row(wr_id, &mut self.row) }?;
        Some((queue, wr_id))
    }

    /// Takes the row that [`Rest::begin_row`] has just found: the completions that come next of one queue, each a success in its
    /// turn that was asked for the same. Each goes to `each` with one of `places` and its context, as long as there are places.
    /// Returns how many. They are booked when all are taken; should `each` panic, none was. Without a row there are none.
    #[inline(always)]
    pub(crate) fn take_row<P>(
        &mut self,
        places: &mut [P],
        mut each: impl FnMut(&mut P, &ibv_wc, &Outcomes, u64),
    ) -> usize {
        let (next, due) = (self.next, self.row.due());
        // SAFETY: `row` is of the table (the invariant), which the intake holds as long as it is borrowed.
        let queue = unsafe { self.row.queue() };
        let kept = queue.contexts_from(due);
        // What is kept beside the requests of a queue goes round, and only those of the batch are looked at: the row ends there, at
        // the latest.
        let most = places.len().min(kept.len()).min(self.left());
        // SAFETY: a completion of the batch (the invariant), because so many are left, to which no other reference exists: the
        // intake has none, and is not used.
        let wc = |at: usize| unsafe { &*next.add(at) };
        let due_at = |at: usize| due.wrapping_add(at as u64 * STEP);
        let is = |at: usize| wc(at).status.0 == 0 && wc(at).wr_id == due_at(at);
        let are = |at: usize| {
            let statuses = wc(at).status.0 | wc(at + 1).status.0;
            statuses | wc(at + 2).status.0 | wc(at + 3).status.0 == 0
                && wc(at).wr_id == due_at(at)
                && wc(at + 1).wr_id == due_at(at + 1)
                && wc(at + 2).wr_id == due_at(at + 2)
                && wc(at + 3).wr_id == due_at(at + 3)
        };
        let taken = in_a_row(
            &mut places[..most],
            &kept[..most],
            are,
            is,
            #[inline(always)]
            |place, kept, at| each(place, wc(at), queue, kept.load(Relaxed)),
        );
        // SAFETY: no more than there are left.
        self.next = unsafe { next.add(taken) };
        self.row.retire_below(queue, due_at(taken));
        taken
    }

    /// How many completions are not looked at.
    #[inline(always)]
    fn left(&self) -> usize {
        if self.end.is_null() {
            return 0;
        }
        // SAFETY: both point into the batch, or behind it, and `next` is not behind `end` (the invariant).
        unsafe { self.end.offset_from(self.next) as usize }
    }
}

impl<C: HasIntake> Drop for Rest<'_, C> {
    #[inline(always)]
    fn drop(&mut self) {
        self.leave();
    }
}
