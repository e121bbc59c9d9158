//! Completion queues, classic and extended, and completion channels.

use super::*;
use core::ffi::{c_int, c_uint, c_void};

c_flags! {
    /// What `ibv_modify_cq` changes.
    pub flags ibv_cq_attr_mask: u32 {
        /// `moderate`.
        IBV_CQ_ATTR_MODERATE = 1 << 0,
    }

    /// The valid optional fields of [`ibv_cq_init_attr_ex`].
    pub flags ibv_cq_init_attr_mask: u32 {
        /// `flags` is set.
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0,
        /// `parent_domain` is set.
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
    }

    /// How an extended CQ is made.
    pub flags ibv_create_cq_attr_flags: u32 {
        /// One thread at a time uses it.
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0,
        /// Overrun loses entries silently.
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    }
}

c_struct! {
    /// A completion channel.
    pub struct ibv_comp_channel [16, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// The file descriptor to poll for events.
        pub fd: c_int = 8,
        /// CQs that use it; the library's own.
        pub refcnt: c_int = 12,
    }

    /// A completion queue.
    pub struct ibv_cq [128, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// Its completion channel, or null.
        pub channel: *mut ibv_comp_channel = 8,
        /// The application's own pointer.
        pub cq_context: *mut c_void = 16,
        /// The kernel's handle.
        pub handle: u32 = 24,
        /// Its entries.
        pub cqe: c_int = 28,
        /// The library's own.
        pub mutex: libc::pthread_mutex_t = 32,
        /// The library's own.
        pub cond: libc::pthread_cond_t = 72,
        /// Completion events acknowledged; the library's own.
        pub comp_events_completed: u32 = 120,
        /// Asynchronous events acknowledged; the library's own.
        pub async_events_completed: u32 = 124,
    }

    /// The argument of `ibv_start_poll`.
    pub struct ibv_poll_cq_attr [4, 4] {
        /// Must be 0.
        pub comp_mask: u32 = 0,
    }

    /// What a tag matching completion tells.
    pub struct ibv_wc_tm_info [16, 8] {
        /// The tag of the header.
        pub tag: u64 = 0,
        /// The sender's own data.
        pub priv_: u32 = 8 as "priv",
    }

    /// A completion queue with readers. Its head is an [`ibv_cq`].
    pub struct ibv_cq_ex [288, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// Its completion channel, or null.
        pub channel: *mut ibv_comp_channel = 8,
        /// The application's own pointer.
        pub cq_context: *mut c_void = 16,
        /// The kernel's handle.
        pub handle: u32 = 24,
        /// Its entries.
        pub cqe: c_int = 28,
        /// The library's own.
        pub mutex: libc::pthread_mutex_t = 32,
        /// The library's own.
        pub cond: libc::pthread_cond_t = 72,
        /// Completion events acknowledged; the library's own.
        pub comp_events_completed: u32 = 120,
        /// Asynchronous events acknowledged; the library's own.
        pub async_events_completed: u32 = 124,
        /// Which fields below are valid; 0.
        pub comp_mask: u32 = 128,
        /// The status of the current completion.
        pub status: ibv_wc_status = 132,
        /// The `wr_id` of the current completion.
        pub wr_id: u64 = 136,
        /// Takes the first completion of a batch; `ENOENT` when there is none.
        pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int> = 144,
        /// Takes the next completion of the batch; `ENOENT` when there is none.
        pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int> = 152,
        /// Ends the batch.
        pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)> = 160,
        /// The opcode.
        pub read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> ibv_wc_opcode> = 168,
        /// The vendor's error number.
        pub read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32> = 176,
        /// The bytes.
        pub read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32> = 184,
        /// Immediate data in network byte order, or the invalidated key.
        pub read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32> = 192,
        /// The local QP.
        pub read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32> = 200,
        /// The remote QP.
        pub read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32> = 208,
        /// Bits of [`ibv_wc_flags`].
        pub read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint> = 216,
        /// The source LID.
        pub read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32> = 224,
        /// The service level.
        pub read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8> = 232,
        /// The low bits of the destination LID.
        pub read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8> = 240,
        /// The timestamp, in the device's clock.
        pub read_completion_ts: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64> = 248,
        /// The VLAN tag.
        pub read_cvlan: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u16> = 256,
        /// The flow tag.
        pub read_flow_tag: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32> = 264,
        /// Tag matching.
        pub read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)> = 272,
        /// The timestamp, in nanoseconds of the wall clock.
        pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64> = 280,
    }

    /// CQ moderation: an event after so many completions or so much time.
    pub struct ibv_moderate_cq [4, 2] {
        /// Completions.
        pub cq_count: u16 = 0,
        /// Microseconds.
        pub cq_period: u16 = 2,
    }

    /// The argument of `ibv_modify_cq`.
    pub struct ibv_modify_cq_attr [8, 4] {
        /// Bits of [`ibv_cq_attr_mask`].
        pub attr_mask: u32 = 0,
        /// Moderation.
        pub moderate: ibv_moderate_cq = 4,
    }

    /// The argument of `ibv_create_cq_ex`.
    pub struct ibv_cq_init_attr_ex [56, 8] {
        /// Entries wanted.
        pub cqe: u32 = 0,
        /// The application's own pointer.
        pub cq_context: *mut c_void = 8,
        /// The completion channel, or null.
        pub channel: *mut ibv_comp_channel = 16,
        /// The completion vector, below the context's `num_comp_vectors`.
        pub comp_vector: u32 = 24,
        /// Bits of [`ibv_create_cq_wc_flags`].
        pub wc_flags: u64 = 32,
        /// Which fields below are valid, bits of [`ibv_cq_init_attr_mask`].
        pub comp_mask: u32 = 40,
        /// Bits of [`ibv_create_cq_attr_flags`].
        pub flags: u32 = 44,
        /// The parent domain.
        pub parent_domain: *mut ibv_pd = 48,
    }
}
