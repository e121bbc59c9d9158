//! Queue Pairs.

use super::*;
use core::ffi::{c_int, c_uint, c_void};

c_enum! {
    /// The type of a QP, which is its transport.
    pub enum ibv_qp_type: u32 {
        /// Reliable connection.
        IBV_QPT_RC = 2,
        /// Unreliable connection.
        IBV_QPT_UC = 3,
        /// Unreliable datagram.
        IBV_QPT_UD = 4,
        /// Raw Ethernet packets.
        IBV_QPT_RAW_PACKET = 8,
        /// XRC initiator.
        IBV_QPT_XRC_SEND = 9,
        /// XRC target.
        IBV_QPT_XRC_RECV = 10,
        /// For a vendor's driver.
        IBV_QPT_DRIVER = 0xff,
    }

    /// The state of a QP.
    pub enum ibv_qp_state: u32 {
        /// Just created, or reset.
        IBV_QPS_RESET = 0,
        /// Receives may be posted.
        IBV_QPS_INIT = 1,
        /// Ready to receive.
        IBV_QPS_RTR = 2,
        /// Ready to send.
        IBV_QPS_RTS = 3,
        /// The send queue drains.
        IBV_QPS_SQD = 4,
        /// The send queue is in error (UC and UD).
        IBV_QPS_SQE = 5,
        /// In error: everything is flushed.
        IBV_QPS_ERR = 6,
        /// Not known.
        IBV_QPS_UNKNOWN = 7,
    }

    /// The state of path migration.
    pub enum ibv_mig_state: u32 {
        /// Migrated, or never armed.
        IBV_MIG_MIGRATED = 0,
        /// To be armed.
        IBV_MIG_REARM = 1,
        /// Armed.
        IBV_MIG_ARMED = 2,
    }
}

c_flags! {
    /// Which attributes a modify sets or a query asks for.
    pub flags ibv_qp_attr_mask: u32 {
        /// `qp_state`.
        IBV_QP_STATE = 1 << 0,
        /// `cur_qp_state`: the state that the caller takes the QP to be in.
        IBV_QP_CUR_STATE = 1 << 1,
        /// `en_sqd_async_notify`.
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
        /// `qp_access_flags`.
        IBV_QP_ACCESS_FLAGS = 1 << 3,
        /// `pkey_index`.
        IBV_QP_PKEY_INDEX = 1 << 4,
        /// `port_num`.
        IBV_QP_PORT = 1 << 5,
        /// `qkey`.
        IBV_QP_QKEY = 1 << 6,
        /// `ah_attr`.
        IBV_QP_AV = 1 << 7,
        /// `path_mtu`.
        IBV_QP_PATH_MTU = 1 << 8,
        /// `timeout`.
        IBV_QP_TIMEOUT = 1 << 9,
        /// `retry_cnt`.
        IBV_QP_RETRY_CNT = 1 << 10,
        /// `rnr_retry`.
        IBV_QP_RNR_RETRY = 1 << 11,
        /// `rq_psn`.
        IBV_QP_RQ_PSN = 1 << 12,
        /// `max_rd_atomic`.
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num`, `alt_timeout`.
        IBV_QP_ALT_PATH = 1 << 14,
        /// `min_rnr_timer`.
        IBV_QP_MIN_RNR_TIMER = 1 << 15,
        /// `sq_psn`.
        IBV_QP_SQ_PSN = 1 << 16,
        /// `max_dest_rd_atomic`.
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        /// `path_mig_state`.
        IBV_QP_PATH_MIG_STATE = 1 << 18,
        /// `cap`.
        IBV_QP_CAP = 1 << 19,
        /// `dest_qp_num`.
        IBV_QP_DEST_QPN = 1 << 20,
        /// `rate_limit`.
        IBV_QP_RATE_LIMIT = 1 << 25,
    }

    /// The valid fields of [`ibv_qp_init_attr_ex`].
    pub flags ibv_qp_init_attr_mask: u32 {
        /// `pd` is set.
        IBV_QP_INIT_ATTR_PD = 1 << 0,
        /// `xrcd` is set.
        IBV_QP_INIT_ATTR_XRCD = 1 << 1,
        /// `create_flags` is set.
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
        /// `max_tso_header` is set.
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3,
        /// `rwq_ind_tbl` is set.
        IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4,
        /// `rx_hash_conf` is set.
        IBV_QP_INIT_ATTR_RX_HASH = 1 << 5,
        /// `send_ops_flags` is set.
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
    }

    /// How a QP is made.
    pub flags ibv_qp_create_flags: u32 {
        /// Do not loop back multicast of one's own.
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1,
        /// Scatter the frame check sequence.
        IBV_QP_CREATE_SCATTER_FCS = 1 << 8,
        /// Strip VLAN tags.
        IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9,
        /// `source_qpn` is set.
        IBV_QP_CREATE_SOURCE_QPN = 1 << 10,
        /// Pad writes on the bus.
        IBV_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11,
    }

    /// Which `ibv_wr_*` calls an extended QP shall offer.
    pub flags ibv_qp_create_send_ops_flags: u64 {
        /// `ibv_wr_rdma_write`.
        IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0,
        /// `ibv_wr_rdma_write_imm`.
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
        /// `ibv_wr_send`.
        IBV_QP_EX_WITH_SEND = 1 << 2,
        /// `ibv_wr_send_imm`.
        IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
        /// `ibv_wr_rdma_read`.
        IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
        /// `ibv_wr_atomic_cmp_swp`.
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
        /// `ibv_wr_atomic_fetch_add`.
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
        /// `ibv_wr_local_inv`.
        IBV_QP_EX_WITH_LOCAL_INV = 1 << 7,
        /// `ibv_wr_bind_mw`.
        IBV_QP_EX_WITH_BIND_MW = 1 << 8,
        /// `ibv_wr_send_inv`.
        IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9,
        /// `ibv_wr_send_tso`.
        IBV_QP_EX_WITH_TSO = 1 << 10,
        /// `ibv_wr_flush`.
        IBV_QP_EX_WITH_FLUSH = 1 << 11,
        /// `ibv_wr_atomic_write`.
        IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12,
    }

    /// The valid fields of [`ibv_qp_open_attr`].
    pub flags ibv_qp_open_attr_mask: u32 {
        /// `qp_num` is set.
        IBV_QP_OPEN_ATTR_NUM = 1 << 0,
        /// `xrcd` is set.
        IBV_QP_OPEN_ATTR_XRCD = 1 << 1,
        /// `qp_context` is set.
        IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2,
        /// `qp_type` is set.
        IBV_QP_OPEN_ATTR_TYPE = 1 << 3,
    }
}

c_struct! {
    /// The capacity of a QP.
    pub struct ibv_qp_cap [20, 4] {
        /// Outstanding send requests.
        pub max_send_wr: u32 = 0,
        /// Outstanding receive requests.
        pub max_recv_wr: u32 = 4,
        /// Gather entries per send.
        pub max_send_sge: u32 = 8,
        /// Scatter entries per receive.
        pub max_recv_sge: u32 = 12,
        /// Bytes that may be sent inline.
        pub max_inline_data: u32 = 16,
    }

    /// The argument of `ibv_create_qp`.
    pub struct ibv_qp_init_attr [64, 8] {
        /// The application's own pointer.
        pub qp_context: *mut c_void = 0,
        /// The CQ of sends.
        pub send_cq: *mut ibv_cq = 8,
        /// The CQ of receives.
        pub recv_cq: *mut ibv_cq = 16,
        /// The SRQ, or null.
        pub srq: *mut ibv_srq = 24,
        /// In: wanted; out: given.
        pub cap: ibv_qp_cap = 32,
        /// The transport.
        pub qp_type: ibv_qp_type = 52,
        /// Non-zero: every send makes a completion.
        pub sq_sig_all: c_int = 56,
    }

    /// Receive hashing.
    pub struct ibv_rx_hash_conf [24, 8] {
        /// The function.
        pub rx_hash_function: u8 = 0,
        /// The key's length.
        pub rx_hash_key_len: u8 = 1,
        /// The key.
        pub rx_hash_key: *mut u8 = 8,
        /// The hashed fields.
        pub rx_hash_fields_mask: u64 = 16,
    }

    /// The argument of `ibv_create_qp_ex`. Its head is [`ibv_qp_init_attr`].
    pub struct ibv_qp_init_attr_ex [136, 8] {
        /// The application's own pointer.
        pub qp_context: *mut c_void = 0,
        /// The CQ of sends.
        pub send_cq: *mut ibv_cq = 8,
        /// The CQ of receives.
        pub recv_cq: *mut ibv_cq = 16,
        /// The SRQ, or null.
        pub srq: *mut ibv_srq = 24,
        /// In: wanted; out: given.
        pub cap: ibv_qp_cap = 32,
        /// The transport.
        pub qp_type: ibv_qp_type = 52,
        /// Non-zero: every send makes a completion.
        pub sq_sig_all: c_int = 56,
        /// Which fields below are valid, bits of [`ibv_qp_init_attr_mask`].
        pub comp_mask: u32 = 60,
        /// The protection domain.
        pub pd: *mut ibv_pd = 64,
        /// The XRC domain.
        pub xrcd: *mut ibv_xrcd = 72,
        /// Bits of [`ibv_qp_create_flags`].
        pub create_flags: u32 = 80,
        /// The greatest TSO header.
        pub max_tso_header: u16 = 84,
        /// The indirection table.
        pub rwq_ind_tbl: *mut ibv_rwq_ind_table = 88,
        /// Receive hashing.
        pub rx_hash_conf: ibv_rx_hash_conf = 96,
        /// The QP number in outgoing packets.
        pub source_qpn: u32 = 120,
        /// Bits of [`ibv_qp_create_send_ops_flags`].
        pub send_ops_flags: u64 = 128,
    }

    /// The argument of `ibv_open_qp`.
    pub struct ibv_qp_open_attr [32, 8] {
        /// Which fields are valid, bits of [`ibv_qp_open_attr_mask`].
        pub comp_mask: u32 = 0,
        /// The number of the QP to open.
        pub qp_num: u32 = 4,
        /// Its XRC domain.
        pub xrcd: *mut ibv_xrcd = 8,
        /// The application's own pointer.
        pub qp_context: *mut c_void = 16,
        /// Its type.
        pub qp_type: ibv_qp_type = 24,
    }

    /// The attributes of a QP.
    pub struct ibv_qp_attr [144, 8] {
        /// The state to move to, or the state found by a query.
        pub qp_state: ibv_qp_state = 0,
        /// The state that the caller takes the QP to be in.
        pub cur_qp_state: ibv_qp_state = 4,
        /// The path MTU.
        pub path_mtu: ibv_mtu = 8,
        /// The state of path migration.
        pub path_mig_state: ibv_mig_state = 12,
        /// The Q_Key (UD).
        pub qkey: u32 = 16,
        /// The first PSN to expect, 24 bits.
        pub rq_psn: u32 = 20,
        /// The first PSN to send, 24 bits.
        pub sq_psn: u32 = 24,
        /// The remote QP, 24 bits.
        pub dest_qp_num: u32 = 28,
        /// What the peer may do, bits of [`ibv_access_flags`].
        pub qp_access_flags: c_uint = 32,
        /// The capacity.
        pub cap: ibv_qp_cap = 36,
        /// The path.
        pub ah_attr: ibv_ah_attr = 56,
        /// The alternate path.
        pub alt_ah_attr: ibv_ah_attr = 88,
        /// The index of the P_Key.
        pub pkey_index: u16 = 120,
        /// The index of the P_Key on the alternate path.
        pub alt_pkey_index: u16 = 122,
        /// Non-zero: raise an event when SQD has drained.
        pub en_sqd_async_notify: u8 = 124,
        /// Found by a query: the send queue is still draining.
        pub sq_draining: u8 = 125,
        /// RDMA READs and atomics outstanding as initiator.
        pub max_rd_atomic: u8 = 126,
        /// RDMA READs and atomics served at a time as target.
        pub max_dest_rd_atomic: u8 = 127,
        /// The least delay that an RNR NAK asks for, a code of 5 bits (0 = 655.36 ms).
        pub min_rnr_timer: u8 = 128,
        /// The local port, counted from 1.
        pub port_num: u8 = 129,
        /// Local acknowledgement timeout, 4.096 us x 2^n; 0 = for ever.
        pub timeout: u8 = 130,
        /// Retries after a timeout, 0 to 7.
        pub retry_cnt: u8 = 131,
        /// Retries after an RNR NAK, 0 to 6; 7 = for ever.
        pub rnr_retry: u8 = 132,
        /// The port of the alternate path.
        pub alt_port_num: u8 = 133,
        /// The timeout of the alternate path.
        pub alt_timeout: u8 = 134,
        /// The rate limit, kbit/s (raw packet QPs).
        pub rate_limit: u32 = 136,
    }

    /// The argument of `ibv_modify_qp_rate_limit`.
    pub struct ibv_qp_rate_limit_attr [16, 4] {
        /// kbit/s.
        pub rate_limit: u32 = 0,
        /// The greatest burst, in bytes.
        pub max_burst_sz: u32 = 4,
        /// The usual packet, in bytes.
        pub typical_pkt_sz: u16 = 8,
        /// Must be 0.
        pub comp_mask: u32 = 12,
    }

    /// A Queue Pair.
    pub struct ibv_qp [160, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// The application's own pointer.
        pub qp_context: *mut c_void = 8,
        /// Its protection domain.
        pub pd: *mut ibv_pd = 16,
        /// The CQ of sends.
        pub send_cq: *mut ibv_cq = 24,
        /// The CQ of receives.
        pub recv_cq: *mut ibv_cq = 32,
        /// Its SRQ, or null.
        pub srq: *mut ibv_srq = 40,
        /// The kernel's handle.
        pub handle: u32 = 48,
        /// Its number.
        pub qp_num: u32 = 52,
        /// The state that the last successful modify or query found: a cache, stale after an asynchronous error.
        pub state: ibv_qp_state = 56,
        /// The transport.
        pub qp_type: ibv_qp_type = 60,
        /// The library's own.
        pub mutex: libc::pthread_mutex_t = 64,
        /// The library's own.
        pub cond: libc::pthread_cond_t = 104,
        /// Events acknowledged; the library's own.
        pub events_completed: u32 = 152,
    }

    /// A QP with calls that build work requests in place. Its head is an [`ibv_qp`].
    pub struct ibv_qp_ex [360, 8] {
        /// The QP.
        pub qp_base: ibv_qp = 0,
        /// Which fields below are valid; 0.
        pub comp_mask: u64 = 160,
        /// The `wr_id` of the next request.
        pub wr_id: u64 = 168,
        /// Bits of [`ibv_send_flags`] for the next request.
        pub wr_flags: c_uint = 176,
        /// (qp, rkey, remote address, compare, swap).
        pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)> = 184,
        /// (qp, rkey, remote address, addend).
        pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)> = 192,
        /// (qp, window, new rkey, what to bind to).
        pub wr_bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)> = 200,
        /// (qp, key).
        pub wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)> = 208,
        /// (qp, rkey, remote address).
        pub wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)> = 216,
        /// (qp, rkey, remote address).
        pub wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)> = 224,
        /// (qp, rkey, remote address, immediate data in network byte order).
        pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)> = 232,
        /// (qp).
        pub wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)> = 240,
        /// (qp, immediate data in network byte order).
        pub wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)> = 248,
        /// (qp, key of the peer).
        pub wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)> = 256,
        /// (qp, header, its length, segment size).
        pub wr_send_tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)> = 264,
        /// (qp, address handle, remote QP, remote Q_Key).
        pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)> = 272,
        /// (qp, remote SRQ).
        pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)> = 280,
        /// (qp, first byte, length).
        pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)> = 288,
        /// (qp, number, buffers).
        pub wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)> = 296,
        /// (qp, lkey, first byte, length).
        pub wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)> = 304,
        /// (qp, number, entries).
        pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)> = 312,
        /// (qp): begins a batch.
        pub wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)> = 320,
        /// (qp): posts the batch; an errno value when any call of it failed.
        pub wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int> = 328,
        /// (qp): drops the batch.
        pub wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)> = 336,
        /// (qp, rkey, remote address, 8 bytes to write).
        pub wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)> = 344,
        /// (qp, rkey, remote address, length, placement type, selectivity level).
        pub wr_flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)> = 352,
    }

    /// Enhanced connection establishment options.
    pub struct ibv_ece [12, 4] {
        /// The vendor's IEEE OUI.
        pub vendor_id: u32 = 0,
        /// The vendor's options.
        pub options: u32 = 4,
        /// Must be 0.
        pub comp_mask: u32 = 8,
    }
}

impl ibv_qp_state {
    /// `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE` or `ERR`; `None` for anything else.
    #[must_use]
    pub const fn short_name(self) -> Option<&'static str> {
        match self {
            IBV_QPS_RESET => Some("RESET"),
            IBV_QPS_INIT => Some("INIT"),
            IBV_QPS_RTR => Some("RTR"),
            IBV_QPS_RTS => Some("RTS"),
            IBV_QPS_SQD => Some("SQD"),
            IBV_QPS_SQE => Some("SQE"),
            IBV_QPS_ERR => Some("ERR"),
            _ => None,
        }
    }
}

impl core::fmt::Display for ibv_qp_state {
    /// The short name, or `state 9` for an unknown one.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.short_name() {
            Some(name) => f.pad(name),
            None => write!(f, "state {}", self.0),
        }
    }
}
