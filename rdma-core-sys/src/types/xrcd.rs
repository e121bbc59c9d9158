//! XRC domains.

use super::*;
use core::ffi::c_int;

c_flags! {
    /// The valid fields of [`ibv_xrcd_init_attr`]. Both bits are mandatory.
    pub flags ibv_xrcd_init_attr_mask: u32 {
        /// `fd` is set.
        IBV_XRCD_INIT_ATTR_FD = 1 << 0,
        /// `oflags` is set.
        IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1,
    }
}

c_struct! {
    /// The attributes of `ibv_open_xrcd`.
    pub struct ibv_xrcd_init_attr [12, 4] {
        /// Which fields are valid, bits of [`ibv_xrcd_init_attr_mask`].
        pub comp_mask: u32 = 0,
        /// The file whose inode names the domain among processes, or -1 for a private domain.
        pub fd: c_int = 4,
        /// `O_CREAT`, `O_EXCL`, as for open(2).
        pub oflags: c_int = 8,
    }

    /// An XRC domain.
    pub struct ibv_xrcd [8, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
    }
}
