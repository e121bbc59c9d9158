//! Work requests.

use super::*;
use core::ffi::{c_int, c_uint, c_void};

c_enum! {
    /// What a send work request asks for.
    pub enum ibv_wr_opcode: u32 {
        /// RDMA WRITE.
        IBV_WR_RDMA_WRITE = 0,
        /// RDMA WRITE that also consumes a receive and delivers immediate data.
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        /// SEND.
        IBV_WR_SEND = 2,
        /// SEND with immediate data.
        IBV_WR_SEND_WITH_IMM = 3,
        /// RDMA READ.
        IBV_WR_RDMA_READ = 4,
        /// Compare and swap of 8 bytes.
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        /// Fetch and add of 8 bytes.
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        /// Local invalidate.
        IBV_WR_LOCAL_INV = 7,
        /// Bind of a type 2 memory window.
        IBV_WR_BIND_MW = 8,
        /// SEND that invalidates a key of the peer.
        IBV_WR_SEND_WITH_INV = 9,
        /// Segmentation offload.
        IBV_WR_TSO = 10,
        /// For a vendor's driver.
        IBV_WR_DRIVER1 = 11,
        /// RDMA FLUSH.
        IBV_WR_FLUSH = 14,
        /// RDMA ATOMIC WRITE.
        IBV_WR_ATOMIC_WRITE = 15,
    }

    /// The operation of an [`ibv_ops_wr`].
    pub enum ibv_ops_wr_opcode: u32 {
        /// Add a tag.
        IBV_WR_TAG_ADD = 0,
        /// Remove a tag.
        IBV_WR_TAG_DEL = 1,
        /// Synchronise the lists.
        IBV_WR_TAG_SYNC = 2,
    }
}

c_flags! {
    /// How a send work request is carried out.
    pub flags ibv_send_flags: u32 {
        /// Wait for all earlier RDMA READs and atomics of this QP.
        IBV_SEND_FENCE = 1 << 0,
        /// Make a completion on success too.
        IBV_SEND_SIGNALED = 1 << 1,
        /// Raise the peer's solicited event.
        IBV_SEND_SOLICITED = 1 << 2,
        /// The data is copied during the post; the lkeys are not looked at.
        IBV_SEND_INLINE = 1 << 3,
        /// Offload the IP checksum.
        IBV_SEND_IP_CSUM = 1 << 4,
    }
}

c_struct! {
    /// A buffer of `ibv_wr_set_inline_data_list`.
    pub struct ibv_data_buf [16, 8] {
        /// The first byte.
        pub addr: *mut c_void = 0,
        /// The length in bytes.
        pub length: usize = 8,
    }

    /// A scatter/gather entry.
    pub struct ibv_sge [16, 8] {
        /// The first byte.
        pub addr: u64 = 0,
        /// The length in bytes.
        pub length: u32 = 8,
        /// The key of the region that covers it.
        pub lkey: u32 = 12,
    }

    /// Immediate data, or a key to invalidate; the opcode tells.
    pub union ibv_send_wr_imm (c "ibv_send_wr" "") [4, 4] {
        /// Immediate data in network byte order.
        pub imm_data: u32 = 0,
        /// The rkey to invalidate.
        pub invalidate_rkey: u32 = 0,
    }

    /// The remote side of RDMA WRITE and READ.
    pub struct ibv_send_wr_rdma (c "ibv_send_wr" "wr.rdma") [16, 8] {
        /// The first remote byte.
        pub remote_addr: u64 = 0,
        /// The peer's key for it, in host byte order.
        pub rkey: u32 = 8,
    }

    /// The remote side and operands of an atomic.
    pub struct ibv_send_wr_atomic (c "ibv_send_wr" "wr.atomic") [32, 8] {
        /// The remote 8 bytes, 8-aligned.
        pub remote_addr: u64 = 0,
        /// The value to compare with, or to add.
        pub compare_add: u64 = 8,
        /// The value to store when the comparison holds.
        pub swap: u64 = 16,
        /// The peer's key.
        pub rkey: u32 = 24,
    }

    /// The destination of a UD send.
    pub struct ibv_send_wr_ud (c "ibv_send_wr" "wr.ud") [16, 8] {
        /// The address handle.
        pub ah: *mut ibv_ah = 0,
        /// The remote QP.
        pub remote_qpn: u32 = 8,
        /// Its Q_Key; with the high bit set the sender's own Q_Key is used.
        pub remote_qkey: u32 = 12,
    }

    /// What the opcode needs; the opcode and the transport tell which member.
    pub union ibv_send_wr_wr (c "ibv_send_wr" "wr") [32, 8] {
        /// RDMA WRITE and READ.
        pub rdma: ibv_send_wr_rdma = 0,
        /// Atomics.
        pub atomic: ibv_send_wr_atomic = 0,
        /// UD.
        pub ud: ibv_send_wr_ud = 0,
    }

    /// What XRC needs.
    pub struct ibv_send_wr_xrc (c "ibv_send_wr" "qp_type.xrc") [4, 4] {
        /// The number of the remote SRQ.
        pub remote_srqn: u32 = 0,
    }

    /// What the transport needs.
    pub union ibv_send_wr_qp_type (c "ibv_send_wr" "qp_type") [4, 4] {
        /// XRC.
        pub xrc: ibv_send_wr_xrc = 0,
    }

    /// What a memory window bind needs.
    pub struct ibv_send_wr_bind_mw (c "ibv_send_wr" "bind_mw") [48, 8] {
        /// The window.
        pub mw: *mut ibv_mw = 0,
        /// Its new key.
        pub rkey: u32 = 8,
        /// What to bind to.
        pub bind_info: ibv_mw_bind_info = 16,
    }

    /// What segmentation offload needs.
    pub struct ibv_send_wr_tso (c "ibv_send_wr" "tso") [16, 8] {
        /// The header.
        pub hdr: *mut c_void = 0,
        /// Its length.
        pub hdr_sz: u16 = 8,
        /// The segment size.
        pub mss: u16 = 10,
    }

    /// What the rarer opcodes need (anonymous in C).
    pub union ibv_send_wr_ext (c "ibv_send_wr" "") [48, 8] {
        /// Memory window bind.
        pub bind_mw: ibv_send_wr_bind_mw = 0,
        /// Segmentation offload.
        pub tso: ibv_send_wr_tso = 0,
    }

    /// A send work request.
    pub struct ibv_send_wr [128, 8] {
        /// Comes back in the completion.
        pub wr_id: u64 = 0,
        /// The next request of the list, or null.
        pub next: *mut ibv_send_wr = 8,
        /// The gather list.
        pub sg_list: *mut ibv_sge = 16,
        /// Its entries.
        pub num_sge: c_int = 24,
        /// The operation.
        pub opcode: ibv_wr_opcode = 28,
        /// Bits of [`ibv_send_flags`].
        pub send_flags: c_uint = 32,
        /// Immediate data or the key to invalidate; see [`ibv_send_wr::set_imm_data`].
        pub imm: ibv_send_wr_imm = 36 as "imm_data",
        /// What the operation needs.
        pub wr: ibv_send_wr_wr = 40,
        /// What the transport needs.
        pub qp_type: ibv_send_wr_qp_type = 72,
        /// What the rarer operations need.
        pub ext: ibv_send_wr_ext = 80 as "bind_mw",
    }

    /// A receive work request.
    pub struct ibv_recv_wr [32, 8] {
        /// Comes back in the completion.
        pub wr_id: u64 = 0,
        /// The next request of the list, or null.
        pub next: *mut ibv_recv_wr = 8,
        /// The scatter list.
        pub sg_list: *mut ibv_sge = 16,
        /// Its entries.
        pub num_sge: c_int = 24,
    }

    /// The tag to add of an [`ibv_ops_wr`].
    pub struct ibv_ops_wr_tm_add (c "ibv_ops_wr" "tm.add") [40, 8] {
        /// Comes back when a message matched.
        pub recv_wr_id: u64 = 0,
        /// The scatter list.
        pub sg_list: *mut ibv_sge = 8,
        /// Its entries.
        pub num_sge: c_int = 16,
        /// The tag.
        pub tag: u64 = 24,
        /// The bits of the tag that are compared.
        pub mask: u64 = 32,
    }

    /// The tag matching part of an [`ibv_ops_wr`].
    pub struct ibv_ops_wr_tm (c "ibv_ops_wr" "tm") [48, 8] {
        /// Unexpected messages that software has seen.
        pub unexpected_cnt: u32 = 0,
        /// The entry's handle.
        pub handle: u32 = 4,
        /// The tag to add.
        pub add: ibv_ops_wr_tm_add = 8,
    }

    /// An operation on a tag matching SRQ.
    pub struct ibv_ops_wr [72, 8] {
        /// Comes back in the completion.
        pub wr_id: u64 = 0,
        /// The next request of the list, or null.
        pub next: *mut ibv_ops_wr = 8,
        /// The operation.
        pub opcode: ibv_ops_wr_opcode = 16,
        /// 1 = signaled, 2 = synchronise.
        pub flags: c_int = 20,
        /// Its arguments.
        pub tm: ibv_ops_wr_tm = 24,
    }
}

impl ibv_send_wr {
    /// The flags as a bit mask; unknown bits are kept.
    #[must_use]
    pub const fn flags(&self) -> ibv_send_flags {
        ibv_send_flags::from_bits_retain(self.send_flags)
    }

    /// Sets immediate data, given in host byte order.
    pub const fn set_imm_data(&mut self, imm: u32) {
        self.imm.imm_data = imm.to_be();
    }

    /// The immediate data in host byte order; meaningful for the `_WITH_IMM` opcodes.
    #[must_use]
    pub const fn imm_data(&self) -> u32 {
        // SAFETY: both members of the union are u32 at offset 0, so the four bytes are a valid u32 whichever was written.
        u32::from_be(unsafe { self.imm.imm_data })
    }

    /// The key to invalidate; meaningful for `IBV_WR_SEND_WITH_INV` and `IBV_WR_LOCAL_INV`.
    #[must_use]
    pub const fn invalidate_rkey(&self) -> u32 {
        // SAFETY: both members of the union are u32 at offset 0, so the four bytes are a valid u32 whichever was written.
        unsafe { self.imm.invalidate_rkey }
    }

    /// The remote side of RDMA WRITE and READ; meaningful for those opcodes.
    #[must_use]
    pub const fn rdma(&self) -> ibv_send_wr_rdma {
        // SAFETY: each of the three members begins with at least twelve bytes without padding, so whichever was written last, the
        // two integers of this one are initialised; any bits are valid integers.
        unsafe { self.wr.rdma }
    }

    /// The remote side and operands of an atomic; meaningful for those opcodes.
    ///
    /// # Safety
    /// The member `atomic` was written, or the request was zeroed before a shorter one was.
    #[must_use]
    pub const unsafe fn atomic(&self) -> ibv_send_wr_atomic {
        // SAFETY: the caller says that all of the member is initialised.
        unsafe { self.wr.atomic }
    }

    /// The number of the remote SRQ, for XRC.
    #[must_use]
    pub const fn remote_srqn(&self) -> u32 {
        // SAFETY: the union has this one member, an integer.
        unsafe { self.qp_type.xrc.remote_srqn }
    }
}
