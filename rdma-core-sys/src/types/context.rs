//! Device contexts and the operations that the header calls through them.

use super::*;
use core::ffi::{c_int, c_uint, c_void};

/// What `ibv_context::abi_compat` holds when the context is the tail of a [`verbs_context`] (C: `__VERBS_ABI_IS_EXTENDED`).
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

c_flags! {
    /// What `ibv_query_rt_values_ex` gives.
    pub flags ibv_values_mask: u32 {
        /// `raw_clock`.
        IBV_VALUES_MASK_RAW_CLOCK = 1 << 0,
    }
}

c_struct! {
    /// Real time values of a device.
    pub struct ibv_values_ex [24, 8] {
        /// In: what is asked for; out: what was given.
        pub comp_mask: u32 = 0,
        /// The device's clock, in its own ticks.
        pub raw_clock: libc::timespec = 8,
    }

    /// The operations that the header calls through a context.
    pub struct ibv_context_ops [256, 8] {
        /// The classic device query.
        pub _compat_query_device: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int> = 0,
        /// The classic port query.
        pub _compat_query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int> = 8,
        /// A place that old binaries know; not called.
        pub _compat_alloc_pd: Option<unsafe extern "C" fn() -> *mut c_void> = 16,
        /// A place that old binaries know; not called.
        pub _compat_dealloc_pd: Option<unsafe extern "C" fn() -> *mut c_void> = 24,
        /// A place that old binaries know; not called.
        pub _compat_reg_mr: Option<unsafe extern "C" fn() -> *mut c_void> = 32,
        /// A place that old binaries know; not called.
        pub _compat_rereg_mr: Option<unsafe extern "C" fn() -> *mut c_void> = 40,
        /// A place that old binaries know; not called.
        pub _compat_dereg_mr: Option<unsafe extern "C" fn() -> *mut c_void> = 48,
        /// `ibv_alloc_mw`.
        pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw> = 56,
        /// `ibv_bind_mw`.
        pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int> = 64,
        /// `ibv_dealloc_mw`.
        pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int> = 72,
        /// A place that old binaries know; not called.
        pub _compat_create_cq: Option<unsafe extern "C" fn() -> *mut c_void> = 80,
        /// `ibv_poll_cq`.
        pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int> = 88,
        /// `ibv_req_notify_cq`.
        pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int> = 96,
        /// A place that old binaries know; not called.
        pub _compat_cq_event: Option<unsafe extern "C" fn() -> *mut c_void> = 104,
        /// A place that old binaries know; not called.
        pub _compat_resize_cq: Option<unsafe extern "C" fn() -> *mut c_void> = 112,
        /// A place that old binaries know; not called.
        pub _compat_destroy_cq: Option<unsafe extern "C" fn() -> *mut c_void> = 120,
        /// A place that old binaries know; not called.
        pub _compat_create_srq: Option<unsafe extern "C" fn() -> *mut c_void> = 128,
        /// A place that old binaries know; not called.
        pub _compat_modify_srq: Option<unsafe extern "C" fn() -> *mut c_void> = 136,
        /// A place that old binaries know; not called.
        pub _compat_query_srq: Option<unsafe extern "C" fn() -> *mut c_void> = 144,
        /// A place that old binaries know; not called.
        pub _compat_destroy_srq: Option<unsafe extern "C" fn() -> *mut c_void> = 152,
        /// `ibv_post_srq_recv`.
        pub post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int> = 160,
        /// A place that old binaries know; not called.
        pub _compat_create_qp: Option<unsafe extern "C" fn() -> *mut c_void> = 168,
        /// A place that old binaries know; not called.
        pub _compat_query_qp: Option<unsafe extern "C" fn() -> *mut c_void> = 176,
        /// A place that old binaries know; not called.
        pub _compat_modify_qp: Option<unsafe extern "C" fn() -> *mut c_void> = 184,
        /// A place that old binaries know; not called.
        pub _compat_destroy_qp: Option<unsafe extern "C" fn() -> *mut c_void> = 192,
        /// `ibv_post_send`.
        pub post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int> = 200,
        /// `ibv_post_recv`.
        pub post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int> = 208,
        /// A place that old binaries know; not called.
        pub _compat_create_ah: Option<unsafe extern "C" fn() -> *mut c_void> = 216,
        /// A place that old binaries know; not called.
        pub _compat_destroy_ah: Option<unsafe extern "C" fn() -> *mut c_void> = 224,
        /// A place that old binaries know; not called.
        pub _compat_attach_mcast: Option<unsafe extern "C" fn() -> *mut c_void> = 232,
        /// A place that old binaries know; not called.
        pub _compat_detach_mcast: Option<unsafe extern "C" fn() -> *mut c_void> = 240,
        /// A place that old binaries know; not called.
        pub _compat_async_event: Option<unsafe extern "C" fn() -> *mut c_void> = 248,
    }

    /// An open device, as applications see it.
    pub struct ibv_context [328, 8] {
        /// The device.
        pub device: *mut ibv_device = 0,
        /// The operations that the header calls.
        pub ops: ibv_context_ops = 8,
        /// The file descriptor of the kernel's commands.
        pub cmd_fd: c_int = 264,
        /// The file descriptor to poll for asynchronous events.
        pub async_fd: c_int = 268,
        /// Completion vectors.
        pub num_comp_vectors: c_int = 272,
        /// The library's own.
        pub mutex: libc::pthread_mutex_t = 280,
        /// [`VERBS_ABI_IS_EXTENDED`] when a [`verbs_context`] lies in front.
        pub abi_compat: *mut c_void = 320,
    }

    /// The extended context: it lies in front of an [`ibv_context`] and grows at the front.
    ///
    /// Read an operation only through [`ops`](crate::ops), which looks at `sz` first.
    pub struct verbs_context [696, 8] {
        /// Frees a buffer (v64).
        pub free_buf: Option<unsafe extern "C" fn(*mut ibv_buf)> = 0,
        /// Allocates a buffer (v64).
        pub alloc_buf: Option<unsafe extern "C" fn(*mut ibv_pd, usize, *mut *mut ibv_buf) -> *mut c_void> = 8,
        /// Exports device memory (v62).
        pub dm_export_dmabuf_fd: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int> = 16,
        /// Registers memory with extended attributes (v59).
        pub reg_mr_ex: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr> = 24,
        /// Frees a DMA handle (v59).
        pub dealloc_dmah: Option<unsafe extern "C" fn(*mut ibv_dmah) -> c_int> = 32,
        /// Allocates a DMA handle (v59).
        pub alloc_dmah: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_dmah_init_attr) -> *mut ibv_dmah> = 40,
        /// The port query that knows the caller's size.
        pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int> = 48,
        /// `ibv_advise_mr`.
        pub advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, ibv_advise_mr_advice, u32, *mut ibv_sge, u32) -> c_int> = 56,
        /// `ibv_alloc_null_mr`.
        pub alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr> = 64,
        /// Reads flow counters.
        pub read_counters: Option<unsafe extern "C" fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int> = 72,
        /// Attaches flow counters.
        pub attach_counters_point_flow: Option<unsafe extern "C" fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int> = 80,
        /// Makes flow counters.
        pub create_counters: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters> = 88,
        /// Destroys flow counters.
        pub destroy_counters: Option<unsafe extern "C" fn(*mut ibv_counters) -> c_int> = 96,
        /// Registers device memory.
        pub reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr> = 104,
        /// Allocates device memory.
        pub alloc_dm: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm> = 112,
        /// Frees device memory.
        pub free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int> = 120,
        /// Changes an ESP action.
        pub modify_flow_action_esp: Option<unsafe extern "C" fn(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int> = 128,
        /// Destroys a flow action.
        pub destroy_flow_action: Option<unsafe extern "C" fn(*mut ibv_flow_action) -> c_int> = 136,
        /// Makes an ESP action.
        pub create_flow_action_esp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action> = 144,
        /// `ibv_modify_qp_rate_limit`.
        pub modify_qp_rate_limit: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int> = 152,
        /// `ibv_alloc_parent_domain`.
        pub alloc_parent_domain: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd> = 160,
        /// `ibv_dealloc_td`.
        pub dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int> = 168,
        /// `ibv_alloc_td`.
        pub alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td> = 176,
        /// `ibv_modify_cq`.
        pub modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int> = 184,
        /// `ibv_post_srq_ops`.
        pub post_srq_ops: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int> = 192,
        /// Destroys an indirection table.
        pub destroy_rwq_ind_table: Option<unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int> = 200,
        /// Makes an indirection table.
        pub create_rwq_ind_table: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table> = 208,
        /// `ibv_destroy_wq`.
        pub destroy_wq: Option<unsafe extern "C" fn(*mut ibv_wq) -> c_int> = 216,
        /// `ibv_modify_wq`.
        pub modify_wq: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int> = 224,
        /// `ibv_create_wq`.
        pub create_wq: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq> = 232,
        /// `ibv_query_rt_values_ex`.
        pub query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int> = 240,
        /// `ibv_create_cq_ex`.
        pub create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex> = 248,
        /// The library's own, or the software device's mark.
        pub priv_: *mut verbs_ex_private = 256 as "priv",
        /// `ibv_query_device_ex`.
        pub query_device_ex: Option<unsafe extern "C" fn(*mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex, usize) -> c_int> = 264,
        /// Destroys a flow rule.
        pub ibv_destroy_flow: Option<unsafe extern "C" fn(*mut ibv_flow) -> c_int> = 272,
        /// A hole.
        pub _abi_placeholder2: Option<unsafe extern "C" fn()> = 280 as "ABI_placeholder2",
        /// Makes a flow rule.
        pub ibv_create_flow: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow> = 288,
        /// A hole.
        pub _abi_placeholder1: Option<unsafe extern "C" fn()> = 296 as "ABI_placeholder1",
        /// `ibv_open_qp`.
        pub open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp> = 304,
        /// `ibv_create_qp_ex`.
        pub create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp> = 312,
        /// `ibv_get_srq_num`.
        pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int> = 320,
        /// `ibv_create_srq_ex`.
        pub create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq> = 328,
        /// `ibv_open_xrcd`.
        pub open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd> = 336,
        /// `ibv_close_xrcd`.
        pub close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int> = 344,
        /// A hole.
        pub _abi_placeholder3: u64 = 352 as "_ABI_placeholder3",
        /// The size of the whole struct as its maker knows it: what lies further in front does not exist.
        pub sz: usize = 360,
        /// The context that applications see.
        pub context: ibv_context = 368,
    }
}
