//! Shared receive queues.

use super::*;
use core::ffi::c_void;

c_flags! {
    /// What `ibv_modify_srq` changes.
    pub flags ibv_srq_attr_mask: u32 {
        /// `max_wr`: resize.
        IBV_SRQ_MAX_WR = 1 << 0,
        /// `srq_limit`: arm the limit event.
        IBV_SRQ_LIMIT = 1 << 1,
    }

    /// The valid fields of [`ibv_srq_init_attr_ex`].
    pub flags ibv_srq_init_attr_mask: u32 {
        /// `srq_type` is set.
        IBV_SRQ_INIT_ATTR_TYPE = 1 << 0,
        /// `pd` is set.
        IBV_SRQ_INIT_ATTR_PD = 1 << 1,
        /// `xrcd` is set.
        IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
        /// `cq` is set.
        IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
        /// `tm_cap` is set.
        IBV_SRQ_INIT_ATTR_TM = 1 << 4,
    }
}

c_enum! {
    /// The type of an SRQ.
    pub enum ibv_srq_type: u32 {
        /// For RC and UD QPs.
        IBV_SRQT_BASIC = 0,
        /// For XRC: addressed by its number, with a CQ of its own.
        IBV_SRQT_XRC = 1,
        /// With tag matching.
        IBV_SRQT_TM = 2,
    }
}

c_struct! {
    /// The attributes of an SRQ.
    pub struct ibv_srq_attr [12, 4] {
        /// Receives that may be outstanding.
        pub max_wr: u32 = 0,
        /// Scatter entries per receive.
        pub max_sge: u32 = 4,
        /// An event is raised once when fewer receives than this are left; 0 = not armed. Ignored at creation.
        pub srq_limit: u32 = 8,
    }

    /// The argument of `ibv_create_srq`.
    pub struct ibv_srq_init_attr [24, 8] {
        /// The application's own pointer.
        pub srq_context: *mut c_void = 0,
        /// In: wanted; out: given.
        pub attr: ibv_srq_attr = 8,
    }

    /// Tag matching capacity of an SRQ.
    pub struct ibv_tm_cap [8, 4] {
        /// Tags in the matching list.
        pub max_num_tags: u32 = 0,
        /// Outstanding list operations.
        pub max_ops: u32 = 4,
    }

    /// The argument of `ibv_create_srq_ex`. Its head is [`ibv_srq_init_attr`].
    pub struct ibv_srq_init_attr_ex [64, 8] {
        /// The application's own pointer.
        pub srq_context: *mut c_void = 0,
        /// In: wanted; out: given.
        pub attr: ibv_srq_attr = 8,
        /// Which fields below are valid, bits of [`ibv_srq_init_attr_mask`].
        pub comp_mask: u32 = 20,
        /// The type.
        pub srq_type: ibv_srq_type = 24,
        /// The protection domain.
        pub pd: *mut ibv_pd = 32,
        /// The XRC domain, for XRC.
        pub xrcd: *mut ibv_xrcd = 40,
        /// The CQ of the receives, for XRC and tag matching.
        pub cq: *mut ibv_cq = 48,
        /// Tag matching capacity.
        pub tm_cap: ibv_tm_cap = 56,
    }

    /// A shared receive queue.
    pub struct ibv_srq [128, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// The application's own pointer.
        pub srq_context: *mut c_void = 8,
        /// Its protection domain.
        pub pd: *mut ibv_pd = 16,
        /// The kernel's handle.
        pub handle: u32 = 24,
        /// Guards `events_completed`; the library's own.
        pub mutex: libc::pthread_mutex_t = 32,
        /// Signals acknowledged events; the library's own.
        pub cond: libc::pthread_cond_t = 72,
        /// Events acknowledged; the library's own.
        pub events_completed: u32 = 120,
    }
}
