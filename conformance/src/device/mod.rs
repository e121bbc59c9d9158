//! A verbs device as these programs use it: safe to call, thin, and the same for every table.
//!
//! The one module of this crate with `unsafe`. Three rules make it safe to call:
//! - Objects own their parents by `Rc`, so none is destroyed before what stands on it, and no object leaves its thread.
//! - A device reaches memory by keys alone: [`Buffer`] deregisters its key before its memory goes, and is read and
//!   written by copies through raw pointers, never lent as a reference. So a request may name any address with any key;
//!   what a wrong one does is for the device to say.
//! - What a post reads without a key, inline data, is the request's own ([`Send::inline`]).

mod ah;
mod channel;
mod context;
mod cq;
mod memory;
mod over;
mod qp;
mod qp_ex;
mod request;
mod srq;

use std::cell::Cell;
use std::ffi::c_int;

use rdma_core_sys::ops;

pub use ah::Ah;
pub use channel::Channel;
pub use context::{Device, Event, Subject};
pub use cq::Cq;
pub use memory::{Buffer, Pd, Window};
pub use qp::{Qp, QpInit};
pub use request::{Bind, Send, To};
pub use srq::{Srq, Xrcd};

/// Where the verbs come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Source {
    /// The software device of this process.
    Soft,
    /// The system's libibverbs, and through it a device of the kernel.
    System,
}

/// A call that failed: its name and errno.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// The call, as verbs spell it, with what it was about.
    pub call: String,
    /// Its errno.
    pub errno: c_int,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "{}: {why}", self.call)
    }
}

impl std::error::Error for Failed {}

impl From<Failed> for String {
    fn from(failed: Failed) -> String {
        failed.to_string()
    }
}

/// A call that left its errno in errno.
fn failed(call: impl Into<String>) -> Failed {
    Failed {
        call: call.into(),
        errno: ops::errno(),
    }
}

/// Turns an errno value that a call returned into a result.
fn outcome(call: &str, errno: c_int) -> Result<(), Failed> {
    match errno {
        0 => Ok(()),
        errno => Err(Failed {
            call: call.to_owned(),
            errno,
        }),
    }
}

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Objects of this thread that could not be destroyed so far.
#[must_use]
pub fn left() -> u64 {
    LEFT.get()
}

/// Counts an object that could not be destroyed, and says so; the program goes on.
fn report(result: Result<(), Failed>) {
    if let Err(error) = result {
        LEFT.set(LEFT.get() + 1);
        eprintln!("{error}");
    }
}
