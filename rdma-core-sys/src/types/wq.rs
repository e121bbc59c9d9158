//! Stand-alone work queues (receive side scaling).

use super::*;
use core::ffi::{c_int, c_void};

c_enum! {
    /// The type of a work queue.
    pub enum ibv_wq_type: u32 {
        /// A receive queue.
        IBV_WQT_RQ = 0,
    }

    /// The state of a work queue.
    pub enum ibv_wq_state: u32 {
        /// Just created, or reset.
        IBV_WQS_RESET = 0,
        /// Working.
        IBV_WQS_RDY = 1,
        /// In error.
        IBV_WQS_ERR = 2,
        /// Not known.
        IBV_WQS_UNKNOWN = 3,
    }
}

c_struct! {
    /// The attributes of a work queue.
    pub struct ibv_wq_init_attr [48, 8] {
        /// The application's own pointer.
        pub wq_context: *mut c_void = 0,
        /// The type.
        pub wq_type: ibv_wq_type = 8,
        /// Receives that may be outstanding.
        pub max_wr: u32 = 12,
        /// Scatter entries per receive.
        pub max_sge: u32 = 16,
        /// The protection domain.
        pub pd: *mut ibv_pd = 24,
        /// The CQ.
        pub cq: *mut ibv_cq = 32,
        /// Which fields below are valid.
        pub comp_mask: u32 = 40,
        /// Creation flags.
        pub create_flags: u32 = 44,
    }

    /// The argument of `ibv_modify_wq`.
    pub struct ibv_wq_attr [20, 4] {
        /// Which fields are valid.
        pub attr_mask: u32 = 0,
        /// The new state.
        pub wq_state: ibv_wq_state = 4,
        /// The state that the queue is assumed to be in.
        pub curr_wq_state: ibv_wq_state = 8,
        /// New flags.
        pub flags: u32 = 12,
        /// Which flags change.
        pub flags_mask: u32 = 16,
    }

    /// A stand-alone work queue.
    pub struct ibv_wq [152, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// The application's own pointer.
        pub wq_context: *mut c_void = 8,
        /// Its protection domain.
        pub pd: *mut ibv_pd = 16,
        /// Its CQ.
        pub cq: *mut ibv_cq = 24,
        /// Its number.
        pub wq_num: u32 = 32,
        /// The kernel's handle.
        pub handle: u32 = 36,
        /// The cached state.
        pub state: ibv_wq_state = 40,
        /// The type.
        pub wq_type: ibv_wq_type = 44,
        /// Posts receives.
        pub post_recv: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int> = 48,
        /// The library's own.
        pub mutex: libc::pthread_mutex_t = 56,
        /// The library's own.
        pub cond: libc::pthread_cond_t = 96,
        /// The library's own.
        pub events_completed: u32 = 144,
        /// Which optional fields are valid.
        pub comp_mask: u32 = 148,
    }
}
