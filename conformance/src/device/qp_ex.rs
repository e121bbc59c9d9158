//! Posting by `ibv_wr_*`.

use std::ffi::c_void;

use libc::EOPNOTSUPP;
use rdma_core_sys::*;

use super::{Failed, Qp, Send, failed, outcome};

impl Qp {
    /// Posts sends as one batch of `ibv_wr_*` calls: all of them, or none.
    ///
    /// # Errors
    /// The errno of `ibv_wr_complete`; `EOPNOTSUPP` where the QP was made without one of the calls.
    ///
    /// # Panics
    /// As [`post_sends`](Qp::post_sends).
    pub fn post_extended(&self, sends: &[Send]) -> Result<(), Failed> {
        let ex = self.batch(sends)?;
        // SAFETY: started by `batch`.
        outcome("ibv_wr_complete", unsafe { ops::ibv_wr_complete(ex) })
    }

    /// Begins a batch with these sends and drops it.
    ///
    /// # Errors
    /// As [`post_extended`](Qp::post_extended).
    ///
    /// # Panics
    /// As [`post_sends`](Qp::post_sends).
    pub fn abort_extended(&self, sends: &[Send]) -> Result<(), Failed> {
        let ex = self.batch(sends)?;
        // SAFETY: started by `batch`.
        unsafe { ops::ibv_wr_abort(ex) };
        Ok(())
    }

    /// Begins a batch and builds these sends.
    fn batch(&self, sends: &[Send]) -> Result<*mut ibv_qp_ex, Failed> {
        for send in sends {
            self.check(send);
            if !self.init().send_ops.contains(operation(send.opcode)?) {
                return Err(unsupported(send.opcode));
            }
        }
        let verbs = &self.init().pd.device.verbs;
        // SAFETY: the QP is alive until the drop and of this table.
        let ex = unsafe { verbs.qp_to_qp_ex(self.qp.as_ptr()) };
        if ex.is_null() {
            return Err(failed("ibv_qp_to_qp_ex"));
        }
        // SAFETY: the extended face of a QP that is alive until the drop and used by this thread alone. Its provider set
        // the pointers of the operations that it was made with, which the loop above asked for, and those that set data and
        // address for them (ibv_create_qp_ex(3)).
        unsafe {
            ops::ibv_wr_start(ex);
            for send in sends {
                build(ex, send);
            }
        }
        Ok(ex)
    }
}

fn unsupported(opcode: ibv_wr_opcode) -> Failed {
    Failed {
        call: format!("ibv_wr_* of {opcode:?}"),
        errno: EOPNOTSUPP,
    }
}

/// The flag by which a QP is made with this operation.
fn operation(opcode: ibv_wr_opcode) -> Result<ibv_qp_create_send_ops_flags, Failed> {
    Ok(match opcode {
        IBV_WR_RDMA_WRITE => IBV_QP_EX_WITH_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM => IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        IBV_WR_SEND => IBV_QP_EX_WITH_SEND,
        IBV_WR_SEND_WITH_IMM => IBV_QP_EX_WITH_SEND_WITH_IMM,
        IBV_WR_RDMA_READ => IBV_QP_EX_WITH_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        IBV_WR_LOCAL_INV => IBV_QP_EX_WITH_LOCAL_INV,
        IBV_WR_BIND_MW => IBV_QP_EX_WITH_BIND_MW,
        IBV_WR_SEND_WITH_INV => IBV_QP_EX_WITH_SEND_WITH_INV,
        other => return Err(unsupported(other)),
    })
}

/// Builds one request of a batch.
///
/// # Safety
/// `ex` was started and has the calls for this operation; what `send` names is alive during the call.
unsafe fn build(ex: *mut ibv_qp_ex, send: &Send) {
    let (addr, rkey) = send.remote;
    let (compare_add, swap) = send.operands;
    let imm = send.imm.to_be();
    // SAFETY: as the caller says. Inline pieces are readable during the call, and nothing else is read through pointers but
    // handle, window and region, which are alive by their `Rc`.
    unsafe {
        (*ex).wr_id = send.wr_id;
        // Inline data is named by the call that gives it, not by a flag.
        (*ex).wr_flags = (send.send_flags() - IBV_SEND_INLINE).bits();
        match send.opcode {
            IBV_WR_RDMA_WRITE => ops::ibv_wr_rdma_write(ex, rkey, addr),
            IBV_WR_RDMA_WRITE_WITH_IMM => ops::ibv_wr_rdma_write_imm(ex, rkey, addr, imm),
            IBV_WR_SEND => ops::ibv_wr_send(ex),
            IBV_WR_SEND_WITH_IMM => ops::ibv_wr_send_imm(ex, imm),
            IBV_WR_SEND_WITH_INV => ops::ibv_wr_send_inv(ex, send.invalidate),
            IBV_WR_RDMA_READ => ops::ibv_wr_rdma_read(ex, rkey, addr),
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                ops::ibv_wr_atomic_cmp_swp(ex, rkey, addr, compare_add, swap);
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                ops::ibv_wr_atomic_fetch_add(ex, rkey, addr, compare_add)
            }
            IBV_WR_LOCAL_INV => ops::ibv_wr_local_inv(ex, send.invalidate),
            _ => {
                if let Some(bind) = &send.bind {
                    ops::ibv_wr_bind_mw(ex, bind.window.mw(), bind.rkey, &bind.info());
                }
            }
        }
        if let Some(to) = &send.to {
            ops::ibv_wr_set_ud_addr(ex, to.ah.ah(), to.qp_num, to.qkey);
        }
        if send.srq != 0 {
            ops::ibv_wr_set_xrc_srqn(ex, send.srq);
        }
        match (&send.inline, &send.sges[..]) {
            (Some(pieces), _) => match &pieces[..] {
                [one] => {
                    let first = one.as_ptr().cast_mut().cast::<c_void>();
                    ops::ibv_wr_set_inline_data(ex, first, one.len());
                }
                several => {
                    let pieces: Vec<_> = several.iter().map(|piece| buffer(piece)).collect();
                    ops::ibv_wr_set_inline_data_list(ex, pieces.len(), pieces.as_ptr());
                }
            },
            (None, []) => {}
            (None, [one]) => ops::ibv_wr_set_sge(ex, one.lkey, one.addr, one.length),
            (None, several) => ops::ibv_wr_set_sge_list(ex, several.len(), several.as_ptr()),
        }
    }
}

fn buffer(piece: &[u8]) -> ibv_data_buf {
    ibv_data_buf {
        addr: piece.as_ptr().cast_mut().cast(),
        length: piece.len(),
    }
}
