//! Something that one thread has from one C call to a later one.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::io::Errno;

use crate::core::CallError;
use crate::node::lock;

/// A value that one thread at a time has, from [`begin`](Turn::begin) to [`end`](Turn::end): from
/// `ibv_start_poll` to `ibv_end_poll`, from `ibv_wr_start` to `ibv_wr_complete`. Others wait.
///
/// Why that holds: `holder` becomes a thread's number only by that thread's exchange from 0, and 0 only by
/// the thread whose number it is, so a thread that reads its own number has the turn, and no other thread
/// changes that. The exchange acquires what the former holder's store released, so the value is seen as it
/// was left. No waiter sleeps for ever: it looks at `holder` with the lock of `waiting` and gives the lock
/// up only by sleeping, and whoever ends a turn takes that lock between the store and the wake-up. So
/// either the waiter gets the lock later and sees the store, or it sleeps by the time of the wake-up.
pub(super) struct Turn<T> {
    /// [`me`] of the thread that has it, or 0.
    holder: AtomicUsize,
    waiting: Mutex<()>,
    free: Condvar,
    value: UnsafeCell<T>,
}

/// A number that no other running thread has, and that is not 0.
fn me() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl<T> Turn<T> {
    /// Nobody has it.
    pub(super) fn new(value: T) -> Turn<T> {
        Turn {
            holder: AtomicUsize::new(0),
            waiting: Mutex::new(()),
            free: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the turn, once no other thread has it.
    ///
    /// # Errors
    /// `EBUSY` if this thread has it already: it would wait for itself.
    pub(super) fn begin(&self) -> Result<(), CallError> {
        let me = me();
        let take = || {
            self.holder
                .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        };
        let Err(holder) = take() else { return Ok(()) };
        if holder == me {
            return Err(CallError::new(
                Errno::BUSY,
                "this thread has begun already, and not ended what it began",
            ));
        }
        let mut waiting = lock(&self.waiting);
        while take().is_err() {
            waiting = (self.free.wait(waiting)).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Gives the turn up, if this thread has it.
    pub(super) fn end(&self) {
        if self.get().is_some() {
            self.holder.store(0, Ordering::Release);
            // Whoever saw it taken waits by now, or has not got the lock yet and looks again.
            drop(lock(&self.waiting));
            self.free.notify_one();
        }
    }

    /// The value, if this thread has the turn: then nobody else uses it until the turn ends.
    pub(super) fn get(&self) -> Option<*mut T> {
        // Only this thread ever writes its own number.
        (self.holder.load(Ordering::Relaxed) == me()).then(|| self.value.get())
    }
}
