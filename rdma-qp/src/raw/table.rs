//! The table by which the poller of a CQ finds the books of a queue.
//!
//! A `wr_id` names the place of its queue. The place leads to the queue's [`Outcomes`] while it is *open*, and to those of
//! no queue, which the table has itself, otherwise: then no completion is of the next request there, and the poller takes its
//! long way, on which it sees that the queue was reset. So the short way does not ask.

use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::rarely;
use crate::account::{Outcomes, Queue};
use crate::wr_id::{self, SLOT_UNIT, STEP};

/// One place. Its size is what the slot counts in within a `wr_id`, so that a masked `wr_id` is the distance of its place
/// from the first one.
#[repr(align(16))]
struct Place(AtomicPtr<Outcomes>);

const _: () = assert!(size_of::<Place>() == SLOT_UNIT);

/// The places of one CQ, a power of two.
///
/// Its invariant: each leads to `none`, or to the outcomes of a queue that the poller of the CQ holds (the caller of
/// [`Table::open`] sees to it).
pub(super) struct Table {
    places: Box<[Place]>,
    /// Where a closed place leads.
    none: Arc<Outcomes>,
}

fn outcomes(queue: &Queue) -> *mut Outcomes {
    (&raw const *queue.outcomes()).cast_mut()
}

impl Table {
    fn new(places: usize) -> Table {
        let none = Arc::new(Outcomes::none());
        let closed = || Place(AtomicPtr::new(Arc::as_ptr(&none).cast_mut()));
        let places = (0..places).map(|_| closed()).collect();
        Table { places, none }
    }

    fn none(&self) -> *mut Outcomes {
        Arc::as_ptr(&self.none).cast_mut()
    }

    /// A table of so many places, a power of two, with what is open of the queues that the poller holds. The caller keeps
    /// others from closing places meanwhile.
    pub(super) fn grown<'a>(
        self: &Arc<Table>,
        places: usize,
        held: impl Iterator<Item = &'a Arc<Queue>>,
    ) -> Arc<Table> {
        if places == self.places.len() {
            return self.clone();
        }
        let table = Table::new(places);
        for queue in held.filter(|queue| self.is_open(queue)) {
            table.place(queue).store(outcomes(queue), SeqCst);
        }
        Arc::new(table)
    }

    fn place(&self, queue: &Queue) -> &AtomicPtr<Outcomes> {
        // The number of places is a power of two.
        &self.places[queue.slot as usize & (self.places.len() - 1)].0
    }

    fn is_open(&self, queue: &Queue) -> bool {
        self.place(queue).load(Relaxed) == outcomes(queue)
    }

    /// Closes the place of a queue that was reset, which its books know already.
    pub(super) fn close(&self, queue: &Queue) {
        if self.is_open(queue) {
            self.place(queue).store(self.none(), SeqCst);
        }
    }

    /// Opens the place of a queue, unless it was reset and its poller has not seen that. The poller holds the queue until
    /// the place leads elsewhere.
    pub(super) fn open(&self, queue: &Queue) {
        if self.is_open(queue) {
            return;
        }
        self.place(queue).store(outcomes(queue), SeqCst);
        // Who resets first tells the books, then closes: one of both sees the other.
        if queue.is_reset() {
            self.close(queue);
        }
    }

    /// The first place, and the bits of a `wr_id` that tell the distance of its place from there.
    pub(super) fn parts(&self) -> Parts {
        Parts {
            first: self.places.as_ptr(),
            mask: (self.places.len() - 1) * SLOT_UNIT,
            none: self.none(),
        }
    }
}

impl Default for Table {
    fn default() -> Table {
        Table::new(1)
    }
}

/// A table as the short way uses it.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    first: *const Place,
    mask: usize,
    none: *const Outcomes,
}

impl Parts {
    /// The outcomes of the queue that a `wr_id` may be of, or of another, or of none.
    ///
    /// # Safety
    /// The table is alive, and the caller is the poller.
    #[inline(always)]
    unsafe fn find<'a>(self, wr_id: u64) -> &'a Outcomes {
        // SAFETY: the mask keeps the place inside the table, which is alive. What a place leads to is either the table's own or
        // the part of a queue that the caller holds (the invariant of the table).
        unsafe {
            &*(*self.first.byte_add(wr_id as usize & self.mask))
                .0
                .load(Relaxed)
        }
    }

    /// Books the success `wr_id` if it is the one that is due of its queue, see [`Outcomes::due`], and says of which. `None`:
    /// nothing was done, and [`Parts::retire_next`] knows more.
    ///
    /// It does not look whether the queue was reset: whoever resets it closes its place in the table.
    ///
    /// # Safety
    /// The table is alive, and the caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn retire_due<'a>(self, wr_id: u64) -> Option<&'a Outcomes> {
        // SAFETY: as the caller promises.
        let queue = unsafe { self.find(wr_id) };
        // SAFETY: as the caller promises.
        if !unsafe { is_due(queue, wr_id) } {
            return None;
        }
        queue.retire_one();
        Some(queue)
    }

    /// The same in a row of completions: `row` is what it was after the one before. The caller looks whether a queue was reset
    /// since.
    ///
    /// # Safety
    /// As for [`Parts::retire_due`], and `row` is of the same table, and nobody else retires meanwhile.
    #[inline(always)]
    pub(super) unsafe fn retire_row<'a>(self, wr_id: u64, row: &mut Row) -> Option<&'a Outcomes> {
        if wr_id != row.due {
            rarely();
            // SAFETY: as the caller promises.
            let queue = unsafe { self.find(wr_id) };
            // SAFETY: as the caller promises.
            if !unsafe { is_due(queue, wr_id) } {
                return None;
            }
            (row.queue, row.due) = (queue, wr_id);
        }
        row.due = row.due.wrapping_add(STEP);
        // SAFETY: it was found in the table, which is alive, and so is the queue, or the table's own.
        let queue = unsafe { &*row.queue };
        queue.retire_below(row.due);
        Some(queue)
    }

    /// As [`Parts::retire_row`], but books nothing: `row` is of the queue then, if `Some`.
    ///
    /// # Safety
    /// As for [`Parts::retire_row`].
    #[inline(always)]
    pub(super) unsafe fn begin_row<'a>(self, wr_id: u64, row: &mut Row) -> Option<&'a Outcomes> {
        if wr_id != row.due {
            // SAFETY: as the caller promises.
            let queue = unsafe { self.find(wr_id) };
            // SAFETY: as the caller promises.
            if !unsafe { is_due(queue, wr_id) } {
                return None;
            }
            (row.queue, row.due) = (queue, wr_id);
        }
        // SAFETY: it was found in the table, which is alive, and so is the queue, or the table's own.
        Some(unsafe { &*row.queue })
    }

    /// Where a row begins.
    pub(super) fn row(self) -> Row {
        Row {
            queue: self.none,
            due: wr_id::NOBODY,
        }
    }

    /// The same if it is of the next request of its queue, as [`Outcomes::retire_next`] does.
    ///
    /// # Safety
    /// The table is alive, and the caller is the poller.
    pub(super) unsafe fn retire_next<'a>(self, wr_id: u64) -> Option<&'a Outcomes> {
        // SAFETY: as the caller promises.
        let queue = unsafe { self.find(wr_id) };
        queue.retire_next(wr_id).then_some(queue)
    }
}

/// The queue that the completion before was of, and what is due of it.
#[derive(Clone, Copy)]
pub(super) struct Row {
    queue: *const Outcomes,
    due: u64,
}

impl Row {
    /// What is due of the queue.
    #[inline(always)]
    pub(super) fn due(&self) -> u64 {
        self.due
    }

    /// The queue.
    ///
    /// # Safety
    /// The table that the row is of is alive, and so is what it led to when the row was begun.
    #[inline(always)]
    pub(super) unsafe fn queue<'a>(&self) -> &'a Outcomes {
        // SAFETY: as the caller promises.
        unsafe { &*self.queue }
    }

    /// Books the successes before `due`, which is one that the queue may come to next.
    #[inline(always)]
    pub(super) fn retire_below(&mut self, queue: &Outcomes, due: u64) {
        self.due = due;
        queue.retire_below(due);
    }
}

/// Whether a success is the one that is due of a queue.
///
/// # Safety
/// The caller is the poller of the queue.
#[inline(always)]
unsafe fn is_due(queue: &Outcomes, wr_id: u64) -> bool {
    // SAFETY: only the poller writes it, and that is the caller, so nobody writes it now. A plain load is part of the comparison.
    wr_id == unsafe { *queue.due().as_ptr() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr_id::QueueKind;

    #[test]
    fn a_place_is_closed_until_its_queue_is_entered_and_after_it_was_reset() {
        let queue = |slot| Arc::new(Queue::new(QueueKind::Send, slot, 4, 1, 0, Arc::default()));
        let (a, b) = (queue(4), queue(21));
        let table = Arc::new(Table::default()).grown(2, [].iter());
        // SAFETY: the table and the queues are alive, and nobody else polls.
        let takes = |table: &Table, id| unsafe { table.parts().retire_next(id) }.is_some();
        let post = |queue: &Queue| {
            let mark = queue.posted();
            queue.enter(mark);
            mark
        };
        let (of_a, of_b) = (post(&a), post(&b));
        assert!(!takes(&table, of_a), "not entered");
        table.open(&a);
        table.open(&b);
        let table = table.grown(16, [&a, &b].into_iter());
        assert!(takes(&table, of_a) && takes(&table, of_b | 8));
        assert!(!takes(&table, of_a), "not twice");
        let (of_a, of_b) = (post(&a), post(&b));
        a.begin_new_life();
        table.close(&a);
        table.open(&a);
        assert!(!takes(&table, of_a), "the poller has not seen the reset");
        let table = table.grown(32, [&a, &b].into_iter());
        assert!(!takes(&table, of_a), "not in a larger one either");
        assert!(takes(&table, of_b));
        assert_eq!(a.retire(of_a, crate::account::Ending::Success), None);
        table.open(&a);
        assert!(!takes(&table, of_a), "of a former life");
        assert!(takes(&table, post(&a)));
        let of_another = queue(4 + 32).posted();
        for id in [of_another, 0, u64::MAX, 1, 1 << 30, 0xff_fff0] {
            assert!(!takes(&table, id), "{id:#x}");
        }
    }
}
