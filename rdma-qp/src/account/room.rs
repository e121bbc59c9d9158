//! The room of a CQ.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The entries of a CQ, and how many of them are promised to queues.
pub(crate) struct Room {
    pub(crate) capacity: u32,
    promised: AtomicU32,
}

impl Room {
    pub(crate) fn new(capacity: u32) -> Room {
        Room {
            capacity,
            promised: AtomicU32::new(0),
        }
    }

    /// Entries not promised to any queue yet.
    pub(crate) fn unreserved(&self) -> u32 {
        self.capacity - self.promised.load(Relaxed)
    }

    /// Promises `entries`. `false`: there is not so much room.
    pub(crate) fn reserve(&self, entries: u32) -> bool {
        let more = |promised: u32| {
            let promised = promised.checked_add(entries)?;
            (promised <= self.capacity).then_some(promised)
        };
        self.promised.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Takes a promise back.
    pub(crate) fn release(&self, entries: u32) {
        self.promised.fetch_sub(entries, Relaxed);
    }
}
