//! The sentence behind an errno: verbs give a bare number, and this keeps what was wrong.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::sys;
use crate::core::CallError;

thread_local! {
    static LAST: RefCell<Option<CallError>> = const { RefCell::new(None) };
    /// Its place among `FIRST`, if it has one.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The first refusals of this process, of all threads.
static FIRST: Mutex<Vec<CallError>> = Mutex::new(Vec::new());
/// How many of them are kept.
const KEPT: usize = 64;
/// No more are kept.
static FULL: AtomicBool = AtomicBool::new(false);

/// Refusals also go to standard error.
static EXPLAIN: AtomicBool = AtomicBool::new(false);

/// What the last refused verbs call of this thread was told: the sentence behind the errno, with the
/// values that were wrong. Calls that succeed leave it alone, as they leave `errno`. `None` before the
/// first.
///
/// The software device's own calls only; a program in C gets the sentences on its standard error with
/// `RDMA_SOFT_EXPLAIN=1`.
///
/// ```
/// use rdma_soft::{last_refusal, verbs};
///
/// assert_eq!(last_refusal(), None);
/// // SAFETY: a null device is refused.
/// let context = unsafe { verbs().open_device(std::ptr::null_mut()) };
/// assert!(context.is_null());
/// assert_eq!(last_refusal().as_deref(), Some("the device is none of this process's list"));
/// ```
pub fn last_refusal() -> Option<String> {
    // A thread that is ending may have none any more: a handler of exit(3) runs then.
    let last = LAST.try_with(|last| last.borrow().as_ref().map(|error| error.why.clone()));
    Some(last.ok()??.into_owned())
}

/// The place among [`refusals`] of what the last refused verbs call of this thread was told: a call that leaves it was not
/// refused, whatever other threads were told meanwhile. `None` before the first, and where it was not kept.
///
/// ```
/// use rdma_soft::{last_refusal, refusal_place, refusals, verbs};
///
/// // SAFETY: a null device is refused.
/// unsafe { verbs().open_device(std::ptr::null_mut()) };
/// let place = refusal_place().expect("one of the first");
/// assert_eq!(Some(&refusals()[place].1), last_refusal().as_ref());
/// ```
pub fn refusal_place() -> Option<usize> {
    PLACE.try_with(Cell::get).ok().flatten()
}

/// What the refused verbs calls of this process were told, each with its errno: the first 64, of all threads. A sentence that
/// repeats the one before it is there once.
///
/// The software device's own calls only.
pub fn refusals() -> Vec<(i32, String)> {
    let first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    let told = |error: &CallError| (error.errno.raw_os_error(), error.why.clone().into_owned());
    first.iter().map(told).collect()
}

/// From now on refusals also go to standard error, one line each.
pub(super) fn explain() {
    EXPLAIN.store(true, Ordering::Relaxed);
}

/// Says something to the user on standard error, if somebody reads that: a program does not end because nobody does.
pub fn say(message: fmt::Arguments<'_>) {
    let line = format!("rdma-soft: {message}\n");
    // Where nobody can read it, nobody is told.
    let _ = sys::without_sigpipe(|| std::io::stderr().write_all(line.as_bytes()));
}

/// Keeps why a call is refused, and gives its errno.
#[cold]
pub(super) fn note(error: impl Into<CallError>) -> Errno {
    let error = error.into();
    let errno = error.errno;
    if EXPLAIN.load(Ordering::Relaxed) {
        say(format_args!("errno {}: {error}", errno.raw_os_error()));
    }
    let mut place = None;
    if !FULL.load(Ordering::Relaxed) {
        let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
        let again = first.last().is_some_and(|last| last.why == error.why);
        if !again && first.len() < KEPT {
            first.push(error.clone());
        }
        place = first
            .len()
            .checked_sub(1)
            .filter(|last| first[*last].why == error.why);
        FULL.store(first.len() == KEPT, Ordering::Relaxed);
    }
    // A thread that is ending may have none any more.
    let _ = PLACE.try_with(|last| last.set(place));
    let _ = LAST.try_with(|last| last.replace(Some(error)));
    errno
}

/// Ends a call that gives an errno value.
#[cold]
pub(super) fn refuse(error: impl Into<CallError>) -> c_int {
    note(error).raw_os_error()
}

/// Ends a call that gives null and leaves `errno`.
#[cold]
pub(super) fn fail<T>(error: impl Into<CallError>) -> *mut T {
    sys::set_errno(note(error));
    std::ptr::null_mut()
}

/// Ends a call that gives -1 and leaves `errno`.
#[cold]
pub(super) fn minus_one(error: impl Into<CallError>) -> c_int {
    sys::set_errno(note(error));
    -1
}
