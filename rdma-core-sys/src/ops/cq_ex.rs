//! Polling an extended CQ: [`ibv_start_poll`], the readers, [`ibv_next_poll`], [`ibv_end_poll`].

use crate::types::*;
use core::ffi::{c_int, c_uint};

/// The classic face of an extended CQ: its head is the same struct.
#[must_use]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

macro_rules! cq {
    ($( $(#[$doc:meta])* $name:ident = $op:ident ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// `cq` is alive, was made with the flag for this reader (`ibv_cq_init_attr_ex::wc_flags`), so that its provider set the
        /// pointer, and is polled by no other thread; the readers only between a poll that returned 0 and the next one.
        #[inline]
        pub unsafe fn $name(cq: *mut ibv_cq_ex $(, $arg: $ty)*) $(-> $ret)? {
            // SAFETY: the caller vouches for the CQ, that the pointer is set, and for the arguments.
            unsafe { (*cq).$op.unwrap_unchecked()(cq $(, $arg)*) }
        }
    )* };
}

cq! {
    /// Takes the first completion of a batch. 0, or `ENOENT` when there is none (then there is nothing to end), or another errno value.
    ibv_start_poll = start_poll(attr: *mut ibv_poll_cq_attr) -> c_int;
    /// Takes the next completion of the batch. 0, or `ENOENT` when there is none, or another errno value.
    ibv_next_poll = next_poll() -> c_int;
    /// Ends the batch.
    ibv_end_poll = end_poll();
    /// What completed.
    ibv_wc_read_opcode = read_opcode() -> ibv_wc_opcode;
    /// A number of the vendor's own.
    ibv_wc_read_vendor_err = read_vendor_err() -> u32;
    /// The bytes.
    ibv_wc_read_byte_len = read_byte_len() -> u32;
    /// Immediate data in network byte order.
    ibv_wc_read_imm_data = read_imm_data() -> u32;
    /// The key that was invalidated.
    ibv_wc_read_invalidated_rkey = read_imm_data() -> u32;
    /// The local QP.
    ibv_wc_read_qp_num = read_qp_num() -> u32;
    /// The remote QP (UD).
    ibv_wc_read_src_qp = read_src_qp() -> u32;
    /// Bits of [`ibv_wc_flags`].
    ibv_wc_read_wc_flags = read_wc_flags() -> c_uint;
    /// The source LID (UD).
    ibv_wc_read_slid = read_slid() -> u32;
    /// The service level (UD).
    ibv_wc_read_sl = read_sl() -> u8;
    /// The low bits of the destination LID (UD).
    ibv_wc_read_dlid_path_bits = read_dlid_path_bits() -> u8;
    /// The timestamp, in the device's clock.
    ibv_wc_read_completion_ts = read_completion_ts() -> u64;
    /// The timestamp, in nanoseconds of the wall clock.
    ibv_wc_read_completion_wallclock_ns = read_completion_wallclock_ns() -> u64;
    /// The VLAN tag.
    ibv_wc_read_cvlan = read_cvlan() -> u16;
    /// The flow tag.
    ibv_wc_read_flow_tag = read_flow_tag() -> u32;
    /// Tag matching.
    ibv_wc_read_tm_info = read_tm_info(tm_info: *mut ibv_wc_tm_info);
}
