//! Work completions.

use core::ffi::c_uint;

c_enum! {
    /// The outcome of a work request.
    pub enum ibv_wc_status: u32 {
        /// Done.
        IBV_WC_SUCCESS = 0,
        /// Local length error: the message does not fit the posted buffer or the limits.
        IBV_WC_LOC_LEN_ERR = 1,
        /// Local QP operation error.
        IBV_WC_LOC_QP_OP_ERR = 2,
        /// Local EE context operation error (RD, obsolete).
        IBV_WC_LOC_EEC_OP_ERR = 3,
        /// Local protection error: the lkey does not cover the buffer.
        IBV_WC_LOC_PROT_ERR = 4,
        /// Flushed: the QP went to ERR before the request was done.
        IBV_WC_WR_FLUSH_ERR = 5,
        /// A memory window could not be bound.
        IBV_WC_MW_BIND_ERR = 6,
        /// An unexpected opcode came back.
        IBV_WC_BAD_RESP_ERR = 7,
        /// A local access error while an RDMA WRITE with immediate arrived.
        IBV_WC_LOC_ACCESS_ERR = 8,
        /// The peer found the request invalid.
        IBV_WC_REM_INV_REQ_ERR = 9,
        /// The peer refused the access.
        IBV_WC_REM_ACCESS_ERR = 10,
        /// The peer could not do the operation.
        IBV_WC_REM_OP_ERR = 11,
        /// No acknowledgement after all retries.
        IBV_WC_RETRY_EXC_ERR = 12,
        /// The peer had no receive posted after all RNR retries.
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        /// Local RDD violation (RD, obsolete).
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        /// Remote invalid RD request (RD, obsolete).
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        /// The peer aborted the operation.
        IBV_WC_REM_ABORT_ERR = 16,
        /// Invalid EE context number (RD, obsolete).
        IBV_WC_INV_EECN_ERR = 17,
        /// Invalid EE context state (RD, obsolete).
        IBV_WC_INV_EEC_STATE_ERR = 18,
        /// A fatal error of the device.
        IBV_WC_FATAL_ERR = 19,
        /// Response timeout.
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        /// Any other error.
        IBV_WC_GENERAL_ERR = 21,
        /// Tag matching error.
        IBV_WC_TM_ERR = 22,
        /// Tag matching rendezvous left to software.
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }

    /// What a completed work request was. On an error completion this field is not valid.
    pub enum ibv_wc_opcode: u32 {
        /// SEND.
        IBV_WC_SEND = 0,
        /// RDMA WRITE.
        IBV_WC_RDMA_WRITE = 1,
        /// RDMA READ.
        IBV_WC_RDMA_READ = 2,
        /// Compare and swap.
        IBV_WC_COMP_SWAP = 3,
        /// Fetch and add.
        IBV_WC_FETCH_ADD = 4,
        /// Memory window bind.
        IBV_WC_BIND_MW = 5,
        /// Local invalidate.
        IBV_WC_LOCAL_INV = 6,
        /// TCP segmentation offload.
        IBV_WC_TSO = 7,
        /// RDMA FLUSH.
        IBV_WC_FLUSH = 8,
        /// RDMA ATOMIC WRITE.
        IBV_WC_ATOMIC_WRITE = 9,
        /// A receive. All receive opcodes have this bit (128).
        IBV_WC_RECV = 1 << 7,
        /// A receive consumed by an RDMA WRITE with immediate.
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
        /// Tag added.
        IBV_WC_TM_ADD = 130,
        /// Tag removed.
        IBV_WC_TM_DEL = 131,
        /// Tag lists synchronised.
        IBV_WC_TM_SYNC = 132,
        /// A tagged message arrived.
        IBV_WC_TM_RECV = 133,
        /// A message without tag arrived.
        IBV_WC_TM_NO_TAG = 134,
        /// For a vendor's driver.
        IBV_WC_DRIVER1 = 135,
        /// For a vendor's driver.
        IBV_WC_DRIVER2 = 136,
        /// For a vendor's driver.
        IBV_WC_DRIVER3 = 137,
    }
}

c_flags! {
    /// What else a completion carries.
    pub flags ibv_wc_flags: u32 {
        /// A GRH lies in the first 40 bytes of the buffer (UD).
        IBV_WC_GRH = 1 << 0,
        /// Immediate data is valid.
        IBV_WC_WITH_IMM = 1 << 1,
        /// The IP checksum was right.
        IBV_WC_IP_CSUM_OK = 1 << 2,
        /// A key was invalidated.
        IBV_WC_WITH_INV = 1 << 3,
        /// Tag lists must be synchronised.
        IBV_WC_TM_SYNC_REQ = 1 << 4,
        /// A tag matched.
        IBV_WC_TM_MATCH = 1 << 5,
        /// Tagged data is in place.
        IBV_WC_TM_DATA_VALID = 1 << 6,
    }

    /// What the readers of an extended CQ shall be able to give (`ibv_cq_init_attr_ex::wc_flags`).
    pub flags ibv_create_cq_wc_flags: u32 {
        /// `ibv_wc_read_byte_len`.
        IBV_WC_EX_WITH_BYTE_LEN = 1 << 0,
        /// `ibv_wc_read_imm_data`.
        IBV_WC_EX_WITH_IMM = 1 << 1,
        /// `ibv_wc_read_qp_num`.
        IBV_WC_EX_WITH_QP_NUM = 1 << 2,
        /// `ibv_wc_read_src_qp`.
        IBV_WC_EX_WITH_SRC_QP = 1 << 3,
        /// `ibv_wc_read_slid`.
        IBV_WC_EX_WITH_SLID = 1 << 4,
        /// `ibv_wc_read_sl`.
        IBV_WC_EX_WITH_SL = 1 << 5,
        /// `ibv_wc_read_dlid_path_bits`.
        IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
        /// `ibv_wc_read_completion_ts`.
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
        /// `ibv_wc_read_cvlan`.
        IBV_WC_EX_WITH_CVLAN = 1 << 8,
        /// `ibv_wc_read_flow_tag`.
        IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
        /// `ibv_wc_read_tm_info`.
        IBV_WC_EX_WITH_TM_INFO = 1 << 10,
        /// `ibv_wc_read_completion_wallclock_ns`.
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
        /// Everything that a classic `ibv_wc` gives.
        IBV_WC_STANDARD_FLAGS = (1 << 7) - 1,
    }
}

c_struct! {
    /// Immediate data, or the key that was invalidated; `wc_flags` tells.
    pub union ibv_wc_imm (c "ibv_wc" "") [4, 4] {
        /// Immediate data in network byte order, with [`IBV_WC_WITH_IMM`].
        pub imm_data: u32 = 0,
        /// The invalidated rkey in host byte order, with [`IBV_WC_WITH_INV`].
        pub invalidated_rkey: u32 = 0,
    }

    /// A work completion. On an error only `wr_id`, `status`, `qp_num` and `vendor_err` are valid (man ibv_poll_cq).
    pub struct ibv_wc [48, 8] {
        /// What the application gave with the request.
        pub wr_id: u64 = 0,
        /// The outcome.
        pub status: ibv_wc_status = 8,
        /// What it was.
        pub opcode: ibv_wc_opcode = 12,
        /// A number of the vendor's own.
        pub vendor_err: u32 = 16,
        /// Bytes received, read or returned.
        pub byte_len: u32 = 20,
        /// Immediate data or invalidated key; read it through [`ibv_wc::imm_data`] or [`ibv_wc::invalidated_rkey`].
        pub imm: ibv_wc_imm = 24 as "imm_data",
        /// The local QP.
        pub qp_num: u32 = 28,
        /// The remote QP (UD only).
        pub src_qp: u32 = 32,
        /// Bits of [`ibv_wc_flags`].
        pub wc_flags: c_uint = 36,
        /// The P_Key index (GSI only).
        pub pkey_index: u16 = 40,
        /// The source LID (UD only).
        pub slid: u16 = 42,
        /// The service level (UD only).
        pub sl: u8 = 44,
        /// The low bits of the destination LID (UD only).
        pub dlid_path_bits: u8 = 45,
    }
}

impl ibv_wc {
    /// The flags as a bit mask; unknown bits are kept.
    #[must_use]
    pub const fn flags(&self) -> ibv_wc_flags {
        ibv_wc_flags::from_bits_retain(self.wc_flags)
    }

    /// The immediate data in host byte order, when the completion carries any.
    #[must_use]
    pub const fn imm_data(&self) -> Option<u32> {
        if self.flags().contains(IBV_WC_WITH_IMM) {
            // SAFETY: both members of the union are u32 at offset 0, so the four bytes are a valid u32 whichever was written.
            Some(u32::from_be(unsafe { self.imm.imm_data }))
        } else {
            None
        }
    }

    /// The key that was invalidated, when the completion tells of one.
    #[must_use]
    pub const fn invalidated_rkey(&self) -> Option<u32> {
        if self.flags().contains(IBV_WC_WITH_INV) {
            // SAFETY: both members of the union are u32 at offset 0, so the four bytes are a valid u32 whichever was written.
            Some(unsafe { self.imm.invalidated_rkey })
        } else {
            None
        }
    }
}
