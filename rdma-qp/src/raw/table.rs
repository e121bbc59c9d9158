//! The table by which the poller of a CQ finds the books of a queue.
//!
//! A `wr_id` names the place of its queue. The place leads to the queue's [`Outcomes`] while it is *open*, and to those of
//! no queue otherwise: then no completion is of the next request there, and the poller takes its long way, on which it
//! sees that the queue was reset. So the short way does not ask.

use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::account::{Outcomes, Queue};
use crate::wr_id::SLOT_UNIT;

/// Where a closed place leads.
static NONE: Outcomes = Outcomes::none();

/// One place. Its size is what the slot counts in within a `wr_id`, so that a masked `wr_id` is the distance of its place
/// from the first one.
#[repr(align(16))]
struct Place(AtomicPtr<Outcomes>);

const _: () = assert!(size_of::<Place>() == SLOT_UNIT);

/// The places of one CQ, a power of two.
///
/// Its invariant: each leads to [`NONE`], or to the outcomes of a queue that the poller of the CQ holds (the caller of
/// [`Table::open`] sees to it).
pub(super) struct Table(Box<[Place]>);

impl Table {
    fn new(places: usize) -> Table {
        let closed = || Place(AtomicPtr::new((&raw const NONE).cast_mut()));
        Table((0..places).map(|_| closed()).collect())
    }

    /// Enough for `slot`, with all that is open. The caller keeps others from closing places meanwhile.
    pub(super) fn grown(self: &Arc<Table>, slot: u32) -> Arc<Table> {
        if (slot as usize) < self.0.len() {
            return self.clone();
        }
        let table = Table::new((slot as usize + 1).next_power_of_two());
        for (to, from) in table.0.iter().zip(&self.0) {
            to.0.store(from.0.load(SeqCst), SeqCst);
        }
        Arc::new(table)
    }

    /// Closes a place: its queue was reset, which its books know already.
    pub(super) fn close(&self, slot: u32) {
        if let Some(place) = self.0.get(slot as usize) {
            place.0.store((&raw const NONE).cast_mut(), SeqCst);
        }
    }

    /// Opens the place of a queue, unless it was reset and its poller has not seen that. The poller holds the queue until
    /// the place leads elsewhere.
    pub(super) fn open(&self, queue: &Queue) {
        let open = (&raw const *queue.outcomes()).cast_mut();
        let Some(place) = self.0.get(queue.slot as usize) else {
            return;
        };
        if place.0.load(Relaxed) == open {
            return;
        }
        place.0.store(open, SeqCst);
        // Who resets first tells the books, then closes: one of both sees the other.
        if queue.is_reset() {
            self.close(queue.slot);
        }
    }

    /// The first place, and the bits of a `wr_id` that tell the distance of its place from there.
    pub(super) fn parts(&self) -> Parts {
        Parts {
            first: self.0.as_ptr(),
            mask: (self.0.len() - 1) * SLOT_UNIT,
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
}

impl Parts {
    /// Books the success `wr_id` if it is of the next request of its queue, as [`Outcomes::retire_next`] does, and says of which.
    ///
    /// # Safety
    /// The table is alive, and the caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn retire_next<'a>(self, wr_id: u64) -> Option<&'a Outcomes> {
        // SAFETY: the mask keeps the place inside the table, which is alive. What a place leads to is either a static or
        // the part of a queue that the caller holds (the invariant of the table).
        let queue = unsafe {
            &*(*self.first.byte_add(wr_id as usize & self.mask))
                .0
                .load(Relaxed)
        };
        // SAFETY: only the poller writes it, and that is the caller, so nobody writes it now.
        let retired = unsafe { *queue.retired().as_ptr() };
        queue.retire_next(wr_id, retired).then_some(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr_id::QueueKind;

    #[test]
    fn a_place_is_closed_until_its_queue_is_entered_and_after_it_was_reset() {
        let table = Arc::new(Table::default()).grown(5);
        let queue = |slot| Queue::new(QueueKind::Send, slot, 4, 1, 0, Arc::default());
        let (a, b) = (queue(4), queue(5));
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
        let table = table.grown(9);
        assert!(takes(&table, of_a) && takes(&table, of_b | 8));
        assert!(!takes(&table, of_a), "not twice");
        let of_a = post(&a);
        a.begin_new_life();
        table.close(4);
        table.open(&a);
        assert!(!takes(&table, of_a), "the poller has not seen the reset");
        assert_eq!(a.retire(of_a, crate::account::Ending::Success), None);
        table.open(&a);
        assert!(!takes(&table, of_a), "of a former life");
        assert!(takes(&table, post(&a)));
        for id in [0, u64::MAX, 1, 1 << 30] {
            assert!(!takes(&Table::default(), id ^ 1 << 60), "{id:#x}");
        }
    }
}
