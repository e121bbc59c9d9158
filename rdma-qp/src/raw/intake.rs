//! What a poller takes off a completion queue, and the short way from a completion to the books of its queue.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys::*;

use super::cq::CqHandle;
use super::errno_of;
use crate::account::Queue;
use crate::errno::Errno;
use crate::wr_id::{self, QueueKind};

/// Completions taken from the device by one call.
pub(crate) const BATCH: usize = 32;

/// A place that is in no batch.
const NOWHERE: usize = BATCH + 1;

/// Completions that were taken from the device, and the queues that they may be of.
///
/// It is not `Sync`, and lends nothing: each method reaches into the cells for the time of a few statements, in which no
/// code but this module's runs. So no two references to their contents ever exist at a time (invariant of this type).
pub(crate) struct Intake {
    cq: NonNull<ibv_cq>,
    /// The next completion to be looked at; [`NOWHERE`] while others go first.
    next: Cell<usize>,
    /// Completions in the batch.
    filled: Cell<usize>,
    batch: UnsafeCell<[ibv_wc; BATCH]>,
    /// Whether there were completions, as far as the device had none afterwards.
    progress: Cell<bool>,
    /// What the library returned when it failed, until [`Intake::take`] tells it.
    failed: Cell<Option<Errno>>,
    /// By slot.
    queues: UnsafeCell<Vec<Arc<Queue>>>,
}

// SAFETY: a CQ may be polled from any thread, one at a time: the type is not Sync. The rest are plain values.
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
    pub(crate) fn of(queue: &Queue, wc: &ibv_wc) -> Taken {
        Taken {
            wc: *wc,
            qp_num: queue.qp_num(),
            kind: queue.kind,
            header: queue.header,
        }
    }
}

/// What the short way came to.
pub(crate) enum Look {
    Taken(Taken),
    /// The next completion is none for the short way, or others go first.
    Unusual,
    /// The device has none.
    Empty,
}

impl Intake {
    /// The intake of `cq`, which must outlive it: its owner holds an `Arc` to the handle.
    pub(crate) fn new(cq: &CqHandle) -> Intake {
        Intake {
            cq: cq.ptr,
            next: Cell::new(0),
            filled: Cell::new(0),
            batch: UnsafeCell::new([ibv_wc::zeroed(); BATCH]),
            progress: Cell::new(false),
            failed: Cell::new(None),
            queues: UnsafeCell::default(),
        }
    }

    /// Looks at the next completion, and books it if it is of the next request of its queue and a success.
    #[inline(always)]
    pub(crate) fn look(&self) -> Look {
        let at = self.next.get();
        if at != self.filled.get() {
            return self.judge(at);
        }
        let found = self.ask();
        if (found as u32).wrapping_sub(1) >= BATCH as u32 {
            return if self.is_empty(found) {
                Look::Empty
            } else {
                Look::Unusual
            };
        }
        self.filled.set(found as usize);
        self.judge(0)
    }

    /// Asks the device for a batch, and returns what it did: how many there are, 0, or that it failed.
    #[inline(always)]
    fn ask(&self) -> i32 {
        // SAFETY: the CQ is live: the owner holds its handle. The batch has room for as many as are asked for, and no
        // reference to it exists.
        unsafe { ops::ibv_poll_cq(self.cq.as_ptr(), BATCH as i32, self.batch.get().cast()) }
    }

    /// The short way with the completion at a place of the batch.
    #[inline(always)]
    fn judge(&self, at: usize) -> Look {
        // SAFETY: no other reference to the batch exists (the invariant).
        let Some(wc) = (unsafe { &*self.batch.get() }).get(at) else {
            return Look::Unusual;
        };
        // SAFETY: no other reference to the table exists (the invariant), and it ends with this function.
        let queues = unsafe { &*self.queues.get() };
        if wc.status == IBV_WC_SUCCESS
            && let Some(queue) = queues.get(wr_id::slot(wc.wr_id) as usize)
            && queue.retire_next(wc.wr_id)
        {
            self.next.set(at + 1);
            return Look::Taken(Taken::of(queue, wc));
        }
        self.next.set(at);
        Look::Unusual
    }

    /// What the library returned was no number of completions. `false`: it failed, which [`Intake::take`] tells.
    #[cold]
    #[inline(never)]
    fn is_empty(&self, found: i32) -> bool {
        if self.next.get() != 0 {
            self.progress.set(true);
        }
        self.next.set(0);
        self.filled.set(0);
        let errno = match found {
            0 => return true,
            // A library that claims more than it was asked for cannot be believed.
            1.. => Errno::EIO,
            _ => errno_of(found),
        };
        self.failed.set(Some(errno));
        false
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
        if self.next.get() >= self.filled.get() {
            let found = self.ask();
            if !(1..=BATCH as i32).contains(&found) {
                let empty = self.is_empty(found);
                return if empty { Ok(None) } else { self.take() };
            }
            self.next.set(0);
            self.filled.set(found as usize);
        }
        Ok(self.take_taken())
    }

    /// Takes the next of the completions that were taken off the device already.
    pub(crate) fn take_taken(&self) -> Option<ibv_wc> {
        let at = self.next.get();
        if at >= self.filled.get() {
            return None;
        }
        self.next.set(at + 1);
        // SAFETY: no other reference to the batch exists (the invariant).
        unsafe { &*self.batch.get() }.get(at).copied()
    }

    /// Makes the short way stop until [`Intake::go_on`], because other completions go first. The batch is used up.
    pub(crate) fn wait(&self) {
        self.next.set(NOWHERE);
        self.filled.set(0);
    }

    /// Ends [`Intake::wait`].
    pub(crate) fn go_on(&self) {
        if self.next.get() == NOWHERE {
            self.next.set(0);
        }
    }

    /// The queue at the slot that a `wr_id` names.
    pub(crate) fn find(&self, id: u64) -> Option<Arc<Queue>> {
        // SAFETY: no other reference to the table exists (the invariant); this one ends with the statement.
        unsafe { &*self.queues.get() }
            .get(wr_id::slot(id) as usize)
            .cloned()
    }

    /// Enters a queue at its slot.
    pub(crate) fn enter(&self, queue: &Arc<Queue>) {
        let slot = queue.slot as usize;
        // SAFETY: no other reference to the table exists (the invariant). What runs before this one ends is an allocation
        // and the drop of a `Queue`, which is plain values.
        let queues = unsafe { &mut *self.queues.get() };
        if queues.len() <= slot {
            queues.resize_with(slot + 1, || Arc::new(Queue::none()));
        }
        queues[slot] = queue.clone();
    }

    /// Numbers of the QPs whose queues still report here.
    pub(crate) fn live_qps(&self) -> Vec<u32> {
        // SAFETY: no other reference to the table exists (the invariant); the closures are this function's.
        let mut qps: Vec<u32> = unsafe { &*self.queues.get() }
            .iter()
            .filter(|queue| queue.qp_num() != 0 && !queue.is_ended())
            .map(|queue| queue.qp_num())
            .collect();
        qps.dedup();
        qps
    }
}
