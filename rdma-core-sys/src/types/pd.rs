//! Protection domains, thread domains, parent domains.

use super::*;
use core::ffi::c_void;

c_struct! {
    /// A protection domain.
    pub struct ibv_pd [16, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// The kernel's handle.
        pub handle: u32 = 8,
    }

    /// The attributes of a thread domain.
    pub struct ibv_td_init_attr [4, 4] {
        /// Must be 0.
        pub comp_mask: u32 = 0,
    }

    /// A thread domain: its objects are used by one thread at a time, so a provider may leave out locks.
    pub struct ibv_td [8, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
    }

    /// The attributes of a parent domain.
    pub struct ibv_parent_domain_init_attr [48, 8] {
        /// The protection domain inside; never null.
        pub pd: *mut ibv_pd = 0,
        /// The thread domain inside, or null.
        pub td: *mut ibv_td = 8,
        /// Which of the fields below are valid, bits of [`ibv_parent_domain_init_attr_mask`].
        pub comp_mask: u32 = 16,
        /// Allocates queue memory: (pd, pd_context, size, alignment, resource type).
        pub alloc: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void> = 24,
        /// Frees what `alloc` gave: (pd, pd_context, pointer, resource type).
        pub free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)> = 32,
        /// Handed to `alloc` and `free`.
        pub pd_context: *mut c_void = 40,
    }
}

c_flags! {
    /// The valid optional fields of [`ibv_parent_domain_init_attr`].
    pub flags ibv_parent_domain_init_attr_mask: u32 {
        /// `alloc` and `free` are set.
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
        /// `pd_context` is set.
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    }
}
