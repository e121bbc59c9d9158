//! The last work of a process, in a handler of exit(3).
//!
//! A program may call `exit` in a handler of a signal, as many do in that of SIGTERM, though the signal has interrupted a call of
//! the device on the same thread: what that call had locked, nobody unlocks any more. So the work is done by a thread of its
//! own, and the process ends without it when it no longer gets on.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the work may take for one step.
const STEP: Duration = Duration::from_millis(500);

/// Steps that were made.
static STEPS: AtomicU32 = AtomicU32::new(0);

/// The work gets on.
pub(crate) fn step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Does `work`, which tells its [`step`]s. False if it was given up: it waits for something that does not come.
pub(crate) fn do_last(work: fn()) -> bool {
    let done = Arc::new((Mutex::new(false), Condvar::new()));
    let told = Arc::clone(&done);
    let thread = spawn("rdma-soft-end", move || {
        work();
        *told.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        told.1.notify_one();
    });
    let Ok(thread) = thread else {
        work();
        return true;
    };
    let mut ended = done.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*ended {
        let before = STEPS.load(Ordering::Relaxed);
        let waited = done.1.wait_timeout(ended, STEP);
        let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        ended = now;
        if timeout.timed_out() && !*ended && STEPS.load(Ordering::Relaxed) == before {
            return false;
        }
    }
    drop(ended);
    // It has nothing more to do but to end.
    let _ = thread.join();
    true
}

/// Starts a thread that takes none of the program's signals: all are blocked there.
///
/// # Errors
/// The system has no thread.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    // SAFETY: sets of integers, to write to and to read. A thread begins with the mask of the one that makes it, which gets its
    // own back.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        thread
    }
}
