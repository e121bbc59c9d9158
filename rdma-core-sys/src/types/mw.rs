//! Memory windows.

use super::*;
use core::ffi::c_uint;

c_enum! {
    /// The type of a memory window.
    pub enum ibv_mw_type: u32 {
        /// Bound by `ibv_bind_mw`; belongs to a protection domain.
        IBV_MW_TYPE_1 = 1,
        /// Bound by a posted work request; belongs to a QP once bound.
        IBV_MW_TYPE_2 = 2,
    }
}

c_struct! {
    /// What a memory window is bound to.
    pub struct ibv_mw_bind_info [32, 8] {
        /// The region; null with length 0 takes a type 1 binding away.
        pub mr: *mut ibv_mr = 0,
        /// The first byte of the window.
        pub addr: u64 = 8,
        /// The length in bytes.
        pub length: u64 = 16,
        /// Bits of [`ibv_access_flags`].
        pub mw_access_flags: c_uint = 24,
    }

    /// A memory window.
    pub struct ibv_mw [32, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// Its protection domain.
        pub pd: *mut ibv_pd = 8,
        /// The current remote key.
        pub rkey: u32 = 16,
        /// The kernel's handle.
        pub handle: u32 = 20,
        /// The type (C calls it `type`).
        pub type_: ibv_mw_type = 24 as "type",
    }

    /// The argument of `ibv_bind_mw`.
    pub struct ibv_mw_bind [48, 8] {
        /// Comes back in the completion.
        pub wr_id: u64 = 0,
        /// Bits of [`ibv_send_flags`].
        pub send_flags: c_uint = 8,
        /// What to bind to.
        pub bind_info: ibv_mw_bind_info = 16,
    }
}
