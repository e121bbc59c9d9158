//! What a poller takes off a completion queue, and the short way from a completion to the books of its queue.

mod rest;

use std::cell::{Cell, UnsafeCell};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use rdma_core_sys::*;

pub(crate) use rest::Rest;

use super::cq::CqHandle;
use super::errno_of;
use super::table::{Parts, Table};
use crate::account::{Ending, Outcomes, Queue};
use crate::errno::Errno;
use crate::number::NumberHasher;
use crate::wr_id::{self, QueueKind};

/// Completions taken from the device by one call.
pub(crate) const BATCH: usize = 32;

/// What stands behind the last completion of a batch: anything that is no success.
const END: ibv_wc = ibv_wc {
    status: IBV_WC_GENERAL_ERR,
    ..ibv_wc::zeroed()
};

/// So many left that no place of the batch is that far from its end: other completions go first.
const LATER: usize = usize::MAX / 2;

/// Completions that were taken from the device, and the queues that they may be of.
///
/// It is not `Sync`, and lends nothing but through `&mut`: each method of `&self` reaches into the cells for the time of a few
/// statements, in which no code but this module's runs. So no two references to their contents ever exist at a time (invariant
/// of this type). And the last place of the batch, which the device is not given, has no success.
pub(crate) struct Intake {
    cq: NonNull<ibv_cq>,
    /// [`CqHandle::closed`].
    closed: Arc<AtomicU32>,
    /// Whether `left` is not 0: what the short way looks at.
    more: Cell<bool>,
    /// Completions of the batch that are not looked at; [`LATER`] while others go first. A batch of one that the short way
    /// takes at once is not noted.
    left: Cell<usize>,
    /// Completions in the batch.
    filled: Cell<usize>,
    /// What the library returned when [`Intake::look`] asked it and did not go on.
    asked: Cell<i32>,
    /// What `table` is made of.
    places: Cell<Parts>,
    batch: UnsafeCell<[ibv_wc; BATCH + 1]>,
    /// Whether there were completions, as far as the device had none afterwards.
    progress: Cell<bool>,
    /// The first completion of the last batch but the ones since `progress` was looked after.
    seen: Cell<u64>,
    /// What the library returned when it failed, until [`Intake::take`] tells it.
    failed: Cell<Option<Errno>>,
    /// By slot. A queue stays until another takes its slot, and so until its place in the table leads elsewhere.
    queues: UnsafeCell<HashMap<u32, Arc<Queue>, NumberHasher>>,
    table: UnsafeCell<Arc<Table>>,
}

// SAFETY: a CQ may be polled from any thread, one at a time: the type is not Sync. The table may be used from any thread, and
// so may the pointer to it that goes along. The rest are plain values.
unsafe impl Send for Intake {}

/// A completion of a request that was the next of its queue and succeeded. It is booked.
pub(crate) struct Taken {
    pub(crate) wc: ibv_wc,
    pub(crate) qp_num: u32,
    pub(crate) kind: QueueKind,
    /// Bytes in front of the message.
    pub(crate) header: u32,
}

impl Taken {
    /// A completion of a queue of a QP.
    #[inline(always)]
    pub(crate) fn of(queue: &Outcomes, wc: &ibv_wc) -> Taken {
        Taken {
            wc: *wc,
            qp_num: queue.qp_num(),
            kind: queue.kind(),
            header: queue.header(),
        }
    }
}

impl Intake {
    /// The intake of `cq`, which must outlive it: its owner holds an `Arc` to the handle.
    pub(crate) fn new(cq: &CqHandle) -> Intake {
        let table = Arc::new(Table::default());
        Intake {
            cq: cq.ptr,
            closed: cq.closed.clone(),
            more: Cell::new(false),
            left: Cell::new(0),
            filled: Cell::new(0),
            asked: Cell::new(0),
            places: Cell::new(table.parts()),
            batch: UnsafeCell::new([END; BATCH + 1]),
            progress: Cell::new(false),
            seen: Cell::new(0),
            failed: Cell::new(None),
            queues: UnsafeCell::default(),
            table: UnsafeCell::new(table),
        }
    }

    /// The short way: takes the next completion, and books it, if it is of the next request of its queue and a success.
    /// `None`: it is not, or there are none or several, or others go first: then [`Intake::look_on`] goes on.
    #[inline(always)]
    pub(crate) fn look(&self) -> Option<Taken> {
        self.look_at(|wc, queue| Taken::of(queue, wc))
    }

    /// The same, lent to `f`.
    #[inline(always)]
    pub(crate) fn look_by<R>(&mut self, f: impl FnOnce(&ibv_wc, &Outcomes) -> R) -> Option<R> {
        self.look_at(f)
    }

    /// The same, lent where it is: for callers with little room. What is left of a batch is taken out of line.
    #[inline(always)]
    pub(crate) fn look_in_place<R>(
        &mut self,
        f: impl FnOnce(&ibv_wc, &Outcomes) -> R,
    ) -> Option<R> {
        if self.more.get() {
            return self.look_left_in_place(f);
        }
        let found = self.ask();
        // SAFETY: no other reference to the batch exists (the invariant), and the intake is borrowed.
        let wc = unsafe { &(&*self.batch.get())[0] };
        // As in `look_at`.
        if (found as u32).wrapping_sub(1) | wc.status.0 == 0
            // SAFETY: as in `look_at`.
            && let Some(queue) = unsafe { self.places.get().retire_due(wc.wr_id) }
        {
            return Some(f(wc, queue));
        }
        self.asked.set(found);
        None
    }

    #[inline(never)]
    fn look_left_in_place<R>(&mut self, f: impl FnOnce(&ibv_wc, &Outcomes) -> R) -> Option<R> {
        self.look_left_at(
            #[inline(always)]
            |wc, queue| f(wc, queue),
        )
    }

    /// The same. Unless the intake is borrowed as `&mut`, `f` is this module's.
    #[inline(always)]
    fn look_at<R>(&self, f: impl FnOnce(&ibv_wc, &Outcomes) -> R) -> Option<R> {
        if self.more.get() {
            return self.look_left_at(f);
        }
        let found = self.ask();
        // SAFETY: no other reference to the batch exists (the invariant).
        let wc = unsafe { (&*self.batch.get())[0] };
        // One, and it is a success. Where there is none, the status is of an earlier one, and there it may be what it is.
        if (found as u32).wrapping_sub(1) | wc.status.0 == 0
            // SAFETY: `places` are those of `table`, and this is the poller: there is one intake of a CQ, and it is not Sync.
            && let Some(queue) = unsafe { self.places.get().retire_due(wc.wr_id) }
        {
            return Some(f(&wc, queue));
        }
        self.asked.set(found);
        None
    }

    /// The same with what is left of a batch.
    #[inline(always)]
    fn look_left_at<R>(&self, f: impl FnOnce(&ibv_wc, &Outcomes) -> R) -> Option<R> {
        let left = self.left.get();
        // SAFETY: no other reference to the batch exists (the invariant).
        let wc = *unsafe { &*self.batch.get() }.get(self.filled.get().wrapping_sub(left))?;
        if wc.status != IBV_WC_SUCCESS {
            return None;
        }
        // SAFETY: as in `look_at`.
        let queue = unsafe { self.places.get().retire_due(wc.wr_id) }?;
        self.set_left(left - 1);
        Some(f(&wc, queue))
    }

    /// Settles what [`Intake::look`] asked for and did not take, so that others can go on. `true`: the device had nothing, and
    /// there is nothing else.
    pub(crate) fn settle(&self) -> bool {
        !self.more.get() && !self.fill(self.asked.get()) && self.is_empty()
    }

    #[inline(always)]
    fn set_left(&self, left: usize) {
        self.left.set(left);
        self.more.set(left != 0);
    }

    /// Goes on after [`Intake::look`] did not take one: takes the next completion if it is a success of a queue of a QP.
    /// `None`: it is not, or it is stale, or there is none, or others go first. [`Intake::take`] knows more, unless the device
    /// has none, which [`Intake::is_empty`] says.
    pub(crate) fn look_on(&self) -> Option<Taken> {
        if !self.more.get() && !self.fill(self.asked.get()) {
            return None;
        }
        self.look_left()
    }

    /// The same with what is left of the batch.
    pub(crate) fn look_left(&self) -> Option<Taken> {
        let left = self.left.get();
        // SAFETY: no other reference to the batch exists (the invariant).
        let wc = *unsafe { &*self.batch.get() }.get(self.filled.get().wrapping_sub(left))?;
        if left == 0 || wc.status != IBV_WC_SUCCESS {
            return None;
        }
        // SAFETY: as for `judge`.
        let queue = match unsafe { self.places.get().retire_next(wc.wr_id) } {
            Some(queue) => queue,
            None => self.retire(wc.wr_id)?,
        };
        self.set_left(left - 1);
        Some(Taken::of(queue, &wc))
    }

    /// Books a success of any outstanding request of a queue of this CQ: the unsignaled ones before it are done, too.
    fn retire(&self, id: u64) -> Option<&Outcomes> {
        // SAFETY: no reference that changes the two exists (the invariant); a queue stays until another is entered.
        let (queues, table) = unsafe { (&*self.queues.get(), &*self.table.get()) };
        let queue = queues.get(&wr_id::slot(id))?;
        queue.retire(id, Ending::Success)?;
        table.open(queue);
        Some(queue.outcomes())
    }

    /// The rest of the batch, from the first to behind the last, and whether nothing goes before. From now on the poller looks
    /// whether places are closed.
    #[inline]
    fn rest(&mut self) -> (*const ibv_wc, *const ibv_wc, bool) {
        if self.closed.load(Relaxed) != 0 {
            // Who closed a place did that before, and whoever finds a queue does that afterwards.
            self.closed.swap(0, SeqCst);
        }
        let (left, filled) = (self.left.get(), self.filled.get());
        let from = if left == LATER { filled } else { filled - left };
        let batch = self.batch.get().cast::<ibv_wc>();
        // SAFETY: neither number is over that of the batch, which has a place more; no reference to it exists.
        let (next, end) = unsafe {
            (*batch.add(filled)).status = END.status;
            (batch.add(from), batch.add(filled))
        };
        (next, end, left != LATER)
    }

    /// Where no success ever is.
    fn last_place(&self) -> *const ibv_wc {
        // SAFETY: the batch has one more than that.
        unsafe { self.batch.get().cast::<ibv_wc>().add(BATCH) }
    }

    /// Asks the device for a batch if none is left and no others go first. `false`: there is nothing; what it failed with is told
    /// by [`Intake::take`].
    #[inline(always)]
    pub(crate) fn refill(&mut self) -> bool {
        self.left.get() != 0 || self.fill(self.ask())
    }

    /// Asks the device for a batch, and returns what it did: how many there are, 0, or that it failed.
    #[inline(always)]
    fn ask(&self) -> i32 {
        // SAFETY: the CQ is live: the owner holds its handle. The batch has room for as many as are asked for, and no
        // reference to it exists.
        unsafe { ops::ibv_poll_cq(self.cq.as_ptr(), BATCH as i32, self.batch.get().cast()) }
    }

    /// Whether [`Intake::look`] just found that the device has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.left.get() == 0 && self.failed.get().is_none()
    }

    /// Notes what the library returned for the batch. `false`: there is nothing in it, or it failed, which
    /// [`Intake::take`] tells.
    #[inline(always)]
    fn fill(&self, found: i32) -> bool {
        if (1..=BATCH as i32).contains(&found) {
            self.set_left(found as usize);
            self.filled.set(found as usize);
            return true;
        }
        self.fill_nothing(found);
        false
    }

    /// The same if there is nothing.
    #[cold]
    fn fill_nothing(&self, found: i32) {
        // No `wr_id` comes twice, and the device writes to the first place whenever it has one.
        // SAFETY: no other reference to the batch exists (the invariant).
        let last = unsafe { &*self.batch.get() }[0].wr_id;
        if self.seen.replace(last) != last {
            self.progress.set(true);
        }
        match found {
            0 => {}
            // A library that claims more than it was asked for cannot be believed.
            1.. => self.failed.set(Some(Errno::EIO)),
            _ => self.failed.set(Some(errno_of(found))),
        }
    }

    /// What the library failed with, if it did when [`Intake::refill`] asked it.
    pub(crate) fn take_failure(&self) -> Option<Errno> {
        self.failed.take()
    }

    /// Whether there were completions since [`Intake::take_progress`].
    pub(crate) fn progress(&self) -> bool {
        self.progress.get()
    }

    /// Whether there were completions since this was called last.
    pub(crate) fn take_progress(&self) -> bool {
        self.progress.take()
    }

    /// Takes the next completion, of whatever queue. It is not booked.
    pub(crate) fn take(&self) -> Result<Option<ibv_wc>, Errno> {
        if let Some(errno) = self.failed.take() {
            return Err(errno);
        }
        if matches!(self.left.get(), 0 | LATER) {
            self.set_left(0);
            if !self.fill(self.ask()) {
                return match self.failed.take() {
                    Some(errno) => Err(errno),
                    None => Ok(None),
                };
            }
        }
        Ok(self.take_taken())
    }

    /// Takes the next of the completions that were taken off the device already.
    pub(crate) fn take_taken(&self) -> Option<ibv_wc> {
        let left = self.left.get();
        let at = self.filled.get().checked_sub(left)?;
        // SAFETY: no other reference to the batch exists (the invariant).
        let taken = unsafe { &*self.batch.get() }[..self.filled.get()]
            .get(at)
            .copied();
        if taken.is_some() {
            self.set_left(left - 1);
        }
        taken
    }

    /// Makes the short way stop until [`Intake::go_on`], because other completions go first. The batch is used up.
    pub(crate) fn wait(&self) {
        self.set_left(LATER);
        self.filled.set(0);
    }

    /// Ends [`Intake::wait`].
    pub(crate) fn go_on(&self) {
        if self.left.get() == LATER {
            self.set_left(0);
        }
    }

    /// The queue at the slot that a `wr_id` names.
    pub(crate) fn find(&self, id: u64) -> Option<Arc<Queue>> {
        // SAFETY: no other reference to the queues exists (the invariant); this one ends with the statement.
        unsafe { &*self.queues.get() }
            .get(&wr_id::slot(id))
            .cloned()
    }

    /// Enters a queue at its slot of the CQ, which is that of [`Intake::new`].
    pub(crate) fn enter(&self, cq: &CqHandle, queue: &Arc<Queue>) {
        // SAFETY: no other reference to the two exists (the invariant). What runs before these end are allocations, and the
        // drop of a `Queue` and a `Table`, which are plain values.
        let (queues, table) = unsafe { (&mut *self.queues.get(), &mut *self.table.get()) };
        let entered = cq.enter(queue, queues.values());
        self.places.set(entered.parts());
        *table = entered;
        queues.insert(queue.slot, queue.clone());
    }

    /// Opens the short way to a queue again, after the poller has seen that it was reset.
    pub(crate) fn open(&self, queue: &Queue) {
        // SAFETY: no other reference to the table exists (the invariant); this one ends with the statement.
        unsafe { &*self.table.get() }.open(queue);
    }

    /// Numbers of the QPs whose queues still report here.
    pub(crate) fn live_qps(&self) -> Vec<u32> {
        // SAFETY: no other reference to the table exists (the invariant); the closures are this function's.
        let mut qps: Vec<u32> = unsafe { &*self.queues.get() }
            .values()
            .filter(|queue| !queue.is_ended())
            .map(|queue| queue.qp_num())
            .collect();
        qps.sort_unstable();
        qps.dedup();
        qps
    }
}
