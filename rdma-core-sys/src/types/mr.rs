//! Memory regions, device memory, access flags.

use super::*;
use core::ffi::{c_int, c_void};

c_flags! {
    /// What may be done with a memory region, or through a QP (`qp_access_flags`).
    pub flags ibv_access_flags: u32 {
        /// The device may write for local requests (receives, READ and atomic results). Local reading is always allowed.
        IBV_ACCESS_LOCAL_WRITE = 1 << 0,
        /// Peers may RDMA WRITE; needs `LOCAL_WRITE` on a region.
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        /// Peers may RDMA READ.
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        /// Peers may do atomics; needs `LOCAL_WRITE` on a region.
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        /// Memory windows may be bound to the region.
        IBV_ACCESS_MW_BIND = 1 << 4,
        /// Addresses count from the start of the region, not of the address space.
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        /// Pages are brought in on demand, not pinned.
        IBV_ACCESS_ON_DEMAND = 1 << 6,
        /// The region is backed by huge pages.
        IBV_ACCESS_HUGETLB = 1 << 7,
        /// Peers may flush to global visibility.
        IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
        /// Peers may flush to persistence.
        IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
        /// The device may reorder its writes on the bus (an optional flag, see [`IBV_ACCESS_OPTIONAL_RANGE`]).
        IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
    }

    /// What `ibv_rereg_mr` changes.
    pub flags ibv_rereg_mr_flags: u32 {
        /// Address and length.
        IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
        /// The protection domain.
        IBV_REREG_MR_CHANGE_PD = 1 << 1,
        /// The access flags.
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
    }

    /// The valid optional fields of [`ibv_dm`].
    pub flags ibv_dm_mask: u32 {
        /// `handle` is set.
        IBV_DM_MASK_HANDLE = 1 << 0,
    }
}

/// The access bits that a device or kernel may ignore when it does not know them (bits 20 to 29): mask them, never refuse them.
pub const IBV_ACCESS_OPTIONAL_RANGE: u32 = ((1 << 30) - 1) & !((1 << 20) - 1);

c_enum! {
    /// What a failed `ibv_rereg_mr` left behind (negative return values).
    pub enum ibv_rereg_mr_err_code: i32 {
        /// Bad input; the old region is still valid.
        IBV_REREG_MR_ERR_INPUT = -1,
        /// Fork protection of the new range failed; the old region is still valid.
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
        /// Lifting fork protection of the old range failed; the new region is valid.
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
        /// The command failed; the region must not be used.
        IBV_REREG_MR_ERR_CMD = -4,
        /// The command failed and so did undoing fork protection; the region must not be used.
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
    }

    /// The advice of `ibv_advise_mr`.
    pub enum ibv_advise_mr_advice: u32 {
        /// Prefetch for reading.
        IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
        /// Prefetch for writing.
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
        /// Prefetch what is already present, without page faults.
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
    }
}

/// `ibv_advise_mr`: return only when the advice has been carried out.
pub const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1;

c_struct! {
    /// A registered memory region.
    pub struct ibv_mr [48, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// Its protection domain.
        pub pd: *mut ibv_pd = 8,
        /// The first byte.
        pub addr: *mut c_void = 16,
        /// The length in bytes.
        pub length: usize = 24,
        /// The kernel's handle.
        pub handle: u32 = 32,
        /// The key for local use, in scatter/gather entries.
        pub lkey: u32 = 36,
        /// The key that a peer presents, in host byte order.
        pub rkey: u32 = 40,
    }

    /// The attributes of device memory.
    pub struct ibv_alloc_dm_attr [16, 8] {
        /// Bytes wanted.
        pub length: usize = 0,
        /// Alignment as a power of two.
        pub log_align_req: u32 = 8,
        /// Must be 0.
        pub comp_mask: u32 = 12,
    }

    /// Device memory.
    pub struct ibv_dm [32, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// Copies into it: (dm, offset in it, source, length).
        pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int> = 8,
        /// Copies out of it: (destination, dm, offset in it, length).
        pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int> = 16,
        /// Which optional fields are valid, bits of [`ibv_dm_mask`].
        pub comp_mask: u32 = 24,
        /// The kernel's handle.
        pub handle: u32 = 28,
    }
}
