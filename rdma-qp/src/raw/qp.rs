//! Queue Pairs: creation, transitions, and the end. The post calls are in [`super::post`].

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys::*;

use super::ah::Through;
use super::cq::CqHandle;
use super::pd::PdHandle;
use super::ring::Ring;
use super::srq::SrqHandle;
use super::{pointer, status};
use crate::account::{Books, Queue};
use crate::errno::Errno;
use crate::wr_id::QueueKind;

/// What a QP is made of.
pub(crate) struct Parts<'a> {
    pub(crate) pd: &'a Arc<PdHandle>,
    pub(crate) send_cq: &'a Arc<CqHandle>,
    pub(crate) recv_cq: &'a Arc<CqHandle>,
    /// Where it takes its receives from, if not from its own queue. [`SrqHandle::attach`] let them complete on `recv_cq`.
    pub(crate) srq: Option<&'a Arc<SrqHandle>>,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) create_flags: ibv_qp_create_flags,
    /// Bytes that the device writes into each receive before the message.
    pub(crate) recv_header: u32,
}

/// Why a QP was not made.
pub(crate) enum NotMade {
    /// The CQ of this queue has not so much room left.
    NoRoom(QueueKind),
    /// The library refused.
    Refused(Errno),
}

/// A Queue Pair with the books of its two queues.
pub(crate) struct QpHandle {
    pub(super) ptr: NonNull<ibv_qp>,
    /// [`PdHandle::id`] of its PD.
    pub(super) pd_id: u64,
    /// What its datagrams go through.
    pub(super) through: Through,
    pub(crate) send: Arc<Queue>,
    pub(crate) recv: Arc<Queue>,
    pub(super) sends: Ring<ibv_send_wr>,
    pub(super) recvs: Ring<ibv_recv_wr>,
    /// What creation granted.
    pub(crate) cap: ibv_qp_cap,
    /// Bytes inline that creation asked for.
    pub(crate) inline_asked: u32,
    number: u32,
    /// Longest message that it sends.
    pub(super) max_msg_sz: u32,
    pd: Arc<PdHandle>,
    send_cq: Arc<CqHandle>,
    recv_cq: Arc<CqHandle>,
    srq: Option<Arc<SrqHandle>>,
    destroyed: bool,
    /// The multicast groups that it is attached to, each with its LID.
    pub(super) groups: Vec<(ibv_gid, u16)>,
}

// SAFETY: an ibv_qp and all calls on it may be used from any thread.
unsafe impl Send for QpHandle {}
// SAFETY: through `&QpHandle` only queries and modifies are possible, which the library serialises.
unsafe impl Sync for QpHandle {}

impl QpHandle {
    /// Makes a QP and reserves the room that its completions need in its CQs.
    pub(crate) fn create(parts: &Parts<'_>) -> Result<QpHandle, NotMade> {
        let Parts {
            pd,
            send_cq,
            recv_cq,
            srq,
            qp_type,
            cap,
            create_flags,
            recv_header,
        } = *parts;
        let (depths, verbs) = ((cap.max_send_wr, cap.max_recv_wr), pd.context.verbs);
        let send_slot = send_cq
            .reserve(depths.0)
            .ok_or(NotMade::NoRoom(QueueKind::Send))?;
        let Some(recv_slot) = recv_cq.reserve(depths.1) else {
            send_cq.release(send_slot.0, depths.0, send_slot.1);
            return Err(NotMade::NoRoom(QueueKind::Recv));
        };
        let mut init = ibv_qp_init_attr_ex::zeroed();
        (init.comp_mask, init.pd) = (IBV_QP_INIT_ATTR_PD.bits(), pd.as_ptr());
        if !create_flags.is_empty() {
            init.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS.bits();
            init.create_flags = create_flags.bits();
        }
        (init.send_cq, init.recv_cq) = (send_cq.as_ptr(), recv_cq.as_ptr());
        if qp_type == IBV_QPT_XRC_SEND {
            // It receives nothing, and where it would complete is nowhere.
            init.recv_cq = std::ptr::null_mut();
        }
        (init.cap, init.qp_type) = (cap, qp_type);
        init.srq = srq.map_or(std::ptr::null_mut(), |srq| srq.as_ptr());
        // SAFETY: the PD, both CQs and the SRQ, if any, are live (invariant 1) and of one context (the builder checked);
        // `init` is whole.
        let made = unsafe { ops::ibv_create_qp_ex(&verbs, pd.context.as_ptr(), &mut init) };
        let made = pointer(made);
        let ptr = match made {
            Ok(ptr) => ptr,
            Err(errno) => {
                send_cq.release(send_slot.0, depths.0, send_slot.1);
                recv_cq.release(recv_slot.0, depths.1, recv_slot.1);
                return Err(NotMade::Refused(errno));
            }
        };
        // SAFETY: the library just made it; it is valid until it is destroyed.
        let number = unsafe { ptr.as_ref().qp_num };
        let queue = |kind, (slot, start), depth, header, cq: &CqHandle| {
            let attention = cq.attention.clone();
            let queue = Queue::new(kind, slot, depth, start, header, attention).of_qp(number);
            let queue = Arc::new(queue);
            pd.enter_queue(Books::Queue(queue.clone()));
            queue
        };
        let send = queue(QueueKind::Send, send_slot, depths.0, 0, send_cq);
        let recv = queue(QueueKind::Recv, recv_slot, depths.1, recv_header, recv_cq);
        Ok(QpHandle {
            ptr,
            pd_id: pd.id,
            through: Through::new(pd.id, 0),
            sends: Ring::new(1, init.cap.max_send_sge),
            recvs: Ring::new(1, init.cap.max_recv_sge),
            send,
            recv,
            cap: init.cap,
            inline_asked: cap.max_inline_data,
            number,
            max_msg_sz: u32::MAX,
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: srq.inspect(|srq| srq.join(number)).cloned(),
            destroyed: false,
            groups: Vec::new(),
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Longest message that it sends; `u32::MAX` before it is known.
    pub(crate) fn max_msg_sz(&self) -> u32 {
        self.max_msg_sz
    }

    pub(crate) fn set_max_msg_sz(&mut self, bytes: u32) {
        self.max_msg_sz = bytes;
        self.sends.forget_forms();
    }

    pub(crate) fn pd(&self) -> &Arc<PdHandle> {
        &self.pd
    }

    /// Where it takes its receives from, if not from its own queue.
    pub(crate) fn srq(&self) -> Option<&SrqHandle> {
        self.srq.as_deref()
    }

    /// The verbs object, for callers that know what they do with it.
    pub(crate) fn as_ptr(&self) -> *mut ibv_qp {
        self.ptr.as_ptr()
    }

    /// `ibv_modify_qp`. On success of a move to RESET the outstanding requests are gone, which the books are told.
    pub(crate) fn modify(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), Errno> {
        let mut attr = *attr;
        if mask.contains(IBV_QP_STATE) && attr.qp_state == IBV_QPS_INIT && self.srq.is_some() {
            // It is in RESET, or in INIT, where it takes no receives: the caller has looked.
            self.pd.context.forget_waiting_last_wqe(self.number);
        }
        // SAFETY: the QP is live (invariant 1); `attr` is whole.
        let result = status(unsafe {
            self.pd
                .context
                .verbs
                .modify_qp(self.as_ptr(), &mut attr, mask.bits() as _)
        });
        if result.is_ok() && mask.contains(IBV_QP_PORT) {
            self.through = Through::new(self.pd_id, attr.port_num);
        }
        if result.is_ok() && mask.contains(IBV_QP_STATE) && attr.qp_state == IBV_QPS_RESET {
            // The device has let go of every request: a reset queue is empty.
            self.send.begin_new_life();
            self.recv.begin_new_life();
            // What was not handed over yet is gone too.
            self.sends.clear();
            self.recvs.clear();
            self.send_cq.close(&self.send);
            self.recv_cq.close(&self.recv);
            if self.srq.is_some() {
                self.pd.context.forget_last_wqe(self.number);
            }
            self.pd.sweep();
        }
        result
    }

    /// `ibv_query_qp` of everything that `mask` names.
    pub(crate) fn query(
        &self,
        mask: ibv_qp_attr_mask,
    ) -> Result<(ibv_qp_attr, ibv_qp_init_attr), Errno> {
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        // SAFETY: the QP is live (invariant 1); `attr` and `init` are whole.
        status(unsafe {
            self.pd
                .context
                .verbs
                .query_qp(self.as_ptr(), &mut attr, mask.bits() as _, &mut init)
        })?;
        Ok((attr, init))
    }

    /// Destroys the QP. After success the device touches nothing of it, which the books are told.
    pub(crate) fn destroy(&mut self) -> Result<(), Errno> {
        if self.destroyed {
            return Ok(());
        }
        // ibv_destroy_qp(3): it fails if the QP is attached to a multicast group.
        self.detach_all();
        // SAFETY: the QP is live (invariant 1), and `destroyed` keeps this from happening twice.
        status(unsafe { self.pd.context.verbs.destroy_qp(self.as_ptr()) })?;
        self.destroyed = true;
        for (queue, cq) in [(&self.send, &self.send_cq), (&self.recv, &self.recv_cq)] {
            queue.end();
            cq.close(queue);
            cq.release(queue.slot, queue.depth, queue.sequence());
        }
        if let Some(srq) = self.srq.take() {
            srq.leave(self.number);
            self.pd.context.forget_last_wqe(self.number);
        }
        self.pd.leave_queues();
        self.pd.sweep();
        Ok(())
    }
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        if let Err(errno) = self.destroy() {
            tracing::error!(
                device = %self.pd.context.name, qp = self.number, %errno,
                "a QP could not be destroyed; it stays, with its PD, its CQs, its SRQ and every region that it may use"
            );
            // The device may go on using them: they must outlive the process's interest in them.
            let parents = (self.pd.clone(), self.send_cq.clone(), self.recv_cq.clone());
            std::mem::forget((parents, self.srq.clone()));
        }
    }
}
