//! The operations that `infiniband/verbs.h` does inline, with the header's own guards.
//!
//! They go through pointers inside the objects, so one and the same code drives every device, whichever table made it.
//! Names, arguments and ways of telling errors are C's: an errno value, or null with errno set. Four of them fall back to an
//! exported function when the provider lacks the extended one, and take the table for that.
//!
//! An extended operation is called only if the context says that it is extended (`abi_compat`), is long enough to have it
//! (`sz`), and the pointer is set; otherwise the answer is `EOPNOTSUPP`.

mod cq_ex;
mod extended;
mod fast;
mod qp_ex;

pub use cq_ex::*;
pub use extended::*;
pub use fast::*;
pub use qp_ex::*;

use core::ffi::c_int;

/// Sets this thread's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: errno's location is this thread's own, valid and writable for the thread's life.
    unsafe { *libc::__errno_location() = errno };
}

/// This thread's errno.
#[must_use]
pub fn errno() -> c_int {
    // SAFETY: errno's location is this thread's own, valid and readable for the thread's life.
    unsafe { *libc::__errno_location() }
}

/// The next key of a type 2 memory window: the same index, the next tag (its low 8 bits, which wrap).
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

/// The UDP source port that belongs to a flow label (RoCE v2): 0xc000 and the label's bits folded to 14.
#[must_use]
pub const fn ibv_flow_label_to_udp_sport(flow_label: u32) -> u16 {
    let (low, high) = (flow_label & 0x3fff, flow_label & 0xf_c000);
    ((low ^ high >> 14) | 0xc000) as u16
}

/// Whether a mask of QP types (`supported_qpts` and the like) holds this one.
#[must_use]
pub const fn ibv_is_qpt_supported(caps: u32, qp_type: crate::ibv_qp_type) -> bool {
    qp_type.0 < 32 && caps >> qp_type.0 & 1 != 0
}
