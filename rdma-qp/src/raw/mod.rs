//! The thin layer that talks to the verbs library: the only place of this crate with `unsafe`.
//!
//! Each type owns one verbs object and keeps the objects alive that it was made from. Three invariants carry the
//! proofs in here:
//!
//! 1. **Live.** A handle's pointer comes from the call that made the object and is valid until the handle's own
//!    destroy call returned success; afterwards it is not used again. A handle whose destroy call failed keeps its
//!    parents for ever.
//! 2. **Parents.** A handle holds its parents by `Arc`, so a parent is destroyed after its children.
//! 3. **Regions.** The memory of a registered region is freed or handed back only after `ibv_dereg_mr` succeeded, and
//!    that is called only when every queue that may hold requests on it has let go of them ([`crate::account`]) or is
//!    destroyed. While registered, the bytes are reached through raw pointers only, never through references. An address
//!    handle is destroyed when every send queue of its PD that may hold requests with it has let go of them.

pub(crate) mod ah;
pub(crate) mod chunks;
pub(crate) mod context;
pub(crate) mod contexts;
pub(crate) mod cq;
pub(crate) mod foreign;
pub(crate) mod intake;
pub(crate) mod last;
mod mcast;
pub(crate) mod memory;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod region;
mod ring;
mod row;
pub(crate) mod run;
mod slots;
pub(crate) mod srq;
mod table;
pub(crate) mod xrc;

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::errno::Errno;

/// Who calls this is on a path that the compiler is to keep out of the way of the usual one.
#[cold]
#[inline]
pub(crate) fn rarely() {}

/// The result of a verbs call that returns 0, an errno, or -1 with errno set.
#[inline]
fn status(returned: c_int) -> Result<(), Errno> {
    match returned {
        0 => Ok(()),
        number => Err(errno_of(number)),
    }
}

/// What a verbs call means that returned other than 0: an errno, or -1 with errno set.
#[cold]
fn errno_of(returned: c_int) -> Errno {
    match returned {
        -1 => Errno::last(),
        number => Errno::from_raw(number.saturating_abs()),
    }
}

/// The result of a verbs call that returns a pointer, or null with errno set.
fn pointer<T>(returned: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(returned).ok_or_else(Errno::last)
}
