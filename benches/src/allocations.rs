//! A count of what a thread asks of the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of the requests for memory. Make it the global one to have [`count`] count.
pub struct Counting;

// SAFETY: every call goes to the system's allocator unchanged, which keeps the contract; counting allocates nothing,
// because a `Cell` of a number needs neither lazy initialisation nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the layout is the caller's, who keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: the block came from `System` above, with the layout that the caller names.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Requests for memory that this thread made so far. Growing a block counts as one too: it is asked for as a new one.
#[must_use]
pub fn count() -> u64 {
    COUNT.get()
}

/// Bytes that this thread asked for so far, less those that it gave back, whoever had asked for them.
#[must_use]
pub fn held() -> i64 {
    HELD.get()
}
