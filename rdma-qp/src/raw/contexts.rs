//! What users keep beside the requests of a queue.

use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// What leads nowhere in particular.
static NOWHERE: AtomicU64 = AtomicU64::new(0);

/// A number for each request that can be outstanding on a queue, by the low bits of the request's sequence.
///
/// Its invariant: `first` is the first of `mask + 1` places, a power of two, that this owns; or it is [`NOWHERE`], and `mask`
/// is 0.
pub(crate) struct Contexts {
    first: NonNull<AtomicU64>,
    mask: usize,
}

// SAFETY: the places are atomics that this owns, or a static.
unsafe impl Send for Contexts {}
// SAFETY: as above.
unsafe impl Sync for Contexts {}

impl Contexts {
    /// Places for so many requests at a time.
    pub(crate) fn new(requests: u32) -> Contexts {
        let places = (requests.max(2) as usize).next_power_of_two();
        let places: Box<[AtomicU64]> = (0..places).map(|_| AtomicU64::new(0)).collect();
        Contexts {
            mask: places.len() - 1,
            first: NonNull::from(Box::leak(places)).cast(),
        }
    }

    /// Those of no queue.
    pub(crate) const fn none() -> Contexts {
        Contexts {
            // SAFETY: no static is at address 0.
            first: unsafe { NonNull::new_unchecked((&raw const NOWHERE).cast_mut()) },
            mask: 0,
        }
    }

    #[inline(always)]
    fn place(&self, sequence: u64) -> &AtomicU64 {
        // SAFETY: the mask keeps it among the places (the invariant), which live as long as this.
        unsafe { self.first.add(sequence as usize & self.mask).as_ref() }
    }

    /// The places of the request of that sequence, and of those behind it, up to the last place.
    #[inline(always)]
    pub(crate) fn from(&self, sequence: u64) -> &[AtomicU64] {
        let at = sequence as usize & self.mask;
        // SAFETY: the mask keeps the first among the places (the invariant), and there are so many from there on; they live as
        // long as this.
        unsafe { std::slice::from_raw_parts(self.first.add(at).as_ptr(), self.mask + 1 - at) }
    }

    /// Keeps `context` for the request of that sequence.
    #[inline(always)]
    pub(crate) fn put(&self, sequence: u64, context: u64) {
        self.place(sequence).store(context, Relaxed);
    }

    /// What is kept for the request of that sequence, or was for the one before in its place.
    #[inline(always)]
    pub(crate) fn get(&self, sequence: u64) -> u64 {
        self.place(sequence).load(Relaxed)
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        if self.mask != 0 {
            let places = ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.mask + 1);
            // SAFETY: they came from a box of so many (the invariant), and this is their end.
            drop(unsafe { Box::from_raw(places) });
        }
    }
}
