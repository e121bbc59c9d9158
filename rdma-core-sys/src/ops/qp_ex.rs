//! `ibv_wr_*`: work requests built in place.
//!
//! Between [`ibv_wr_start`] and [`ibv_wr_complete`]: set `wr_id` and `wr_flags` of the `ibv_qp_ex`, name the operation, then its
//! address (UD, XRC) and its data. Errors show at [`ibv_wr_complete`].

use crate::types::*;
use core::ffi::{c_int, c_void};

macro_rules! wr {
    ($( $(#[$doc:meta])* $name:ident = $op:ident ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// `qp` is alive, was made with the flag for this operation (`ibv_qp_init_attr_ex::send_ops_flags`), so that its provider
        /// set the pointer, and no other thread builds a request on it. What pointers name is readable during the call.
        #[inline]
        pub unsafe fn $name(qp: *mut ibv_qp_ex $(, $arg: $ty)*) $(-> $ret)? {
            // SAFETY: the caller vouches for the QP, that the pointer is set, and for the arguments.
            unsafe { (*qp).$op.unwrap_unchecked()(qp $(, $arg)*) }
        }
    )* };
}

wr! {
    /// Begins a batch.
    ibv_wr_start = wr_start();
    /// Posts the batch: all of it, or nothing and an errno value.
    ibv_wr_complete = wr_complete() -> c_int;
    /// Drops the batch.
    ibv_wr_abort = wr_abort();
    /// Compare and swap.
    ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// Fetch and add.
    ibv_wr_atomic_fetch_add = wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// Writes 8 bytes at once, in order (RDMA ATOMIC WRITE).
    ibv_wr_atomic_write = wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void);
    /// Binds a type 2 memory window.
    ibv_wr_bind_mw = wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);
    /// Flushes remote memory (RDMA FLUSH).
    ibv_wr_flush = wr_flush(rkey: u32, remote_addr: u64, len: usize, placement: u8, selectivity: u8);
    /// Invalidates a key of one's own.
    ibv_wr_local_inv = wr_local_inv(invalidate_rkey: u32);
    /// RDMA READ.
    ibv_wr_rdma_read = wr_rdma_read(rkey: u32, remote_addr: u64);
    /// RDMA WRITE.
    ibv_wr_rdma_write = wr_rdma_write(rkey: u32, remote_addr: u64);
    /// RDMA WRITE with immediate data, given in network byte order.
    ibv_wr_rdma_write_imm = wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: u32);
    /// SEND.
    ibv_wr_send = wr_send();
    /// SEND with immediate data, given in network byte order.
    ibv_wr_send_imm = wr_send_imm(imm_data: u32);
    /// SEND that invalidates a key of the peer.
    ibv_wr_send_inv = wr_send_inv(invalidate_rkey: u32);
    /// Segmentation offload.
    ibv_wr_send_tso = wr_send_tso(hdr: *mut c_void, hdr_sz: u16, mss: u16);
    /// The destination of a UD send.
    ibv_wr_set_ud_addr = wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    /// The destination of an XRC request.
    ibv_wr_set_xrc_srqn = wr_set_xrc_srqn(remote_srqn: u32);
    /// The data, copied now.
    ibv_wr_set_inline_data = wr_set_inline_data(addr: *mut c_void, length: usize);
    /// The data in pieces, copied now.
    ibv_wr_set_inline_data_list = wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf);
    /// The data in one registered piece, which stays registered and allocated until the completion.
    ibv_wr_set_sge = wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// The data in registered pieces, which stay registered and allocated until the completion.
    ibv_wr_set_sge_list = wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
}
