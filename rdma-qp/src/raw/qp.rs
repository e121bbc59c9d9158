//! Queue Pairs: creation, transitions, and the post calls.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys::*;

use super::cq::CqHandle;
use super::pd::{LocalSlice, PdHandle};
use super::{pointer, status};
use crate::account::{Operation, Queue};
use crate::errno::Errno;
use crate::qp::Op;
use crate::wr_id::QueueKind;

/// What a QP is made of.
pub(crate) struct Parts<'a> {
    pub(crate) pd: &'a Arc<PdHandle>,
    pub(crate) send_cq: &'a Arc<CqHandle>,
    pub(crate) recv_cq: &'a Arc<CqHandle>,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) cap: ibv_qp_cap,
}

/// Why a QP was not made.
pub(crate) enum NotMade {
    /// The CQ of this queue has not so much room left.
    NoRoom(QueueKind),
    /// The library refused.
    Refused(Errno),
}

/// Why a request was not posted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotPosted {
    /// The entry of that index is of another PD's region, or longer than 4 GiB.
    Entry(usize),
    /// More entries than the queue takes.
    TooManyEntries,
    /// The library refused.
    Refused(Errno),
}

/// A Queue Pair with the books of its two queues.
pub(crate) struct QpHandle {
    pd: Arc<PdHandle>,
    send_cq: Arc<CqHandle>,
    recv_cq: Arc<CqHandle>,
    ptr: NonNull<ibv_qp>,
    number: u32,
    pub(crate) send: Arc<Queue>,
    pub(crate) recv: Arc<Queue>,
    /// The request of the next send post; what an operation does not read keeps its last value.
    request: ibv_send_wr,
    entries: Box<[ibv_sge]>,
    /// What creation granted.
    pub(crate) cap: ibv_qp_cap,
    /// Bytes inline that creation asked for.
    pub(crate) inline_asked: u32,
    destroyed: bool,
}

// SAFETY: an ibv_qp and all calls on it may be used from any thread; the pointers inside `request` are set and used within
// one call.
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
            qp_type,
            cap,
        } = *parts;
        let (depths, verbs) = ((cap.max_send_wr, cap.max_recv_wr), pd.context.verbs);
        let send_slot = send_cq
            .reserve(depths.0)
            .ok_or(NotMade::NoRoom(QueueKind::Send))?;
        let Some(recv_slot) = recv_cq.reserve(depths.1) else {
            send_cq.release(send_slot.0, depths.0, send_slot.1);
            return Err(NotMade::NoRoom(QueueKind::Recv));
        };
        let mut init = ibv_qp_init_attr::zeroed();
        (init.send_cq, init.recv_cq) = (send_cq.as_ptr(), recv_cq.as_ptr());
        (init.cap, init.qp_type) = (cap, qp_type);
        // SAFETY: the PD and both CQs are live (invariant 1) and of one context (the builder checked); `init` is whole.
        let made = pointer(unsafe { verbs.create_qp(pd.as_ptr(), &mut init) });
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
        let queue = |kind, (slot, start), depth, cq: &CqHandle| {
            let queue = Arc::new(Queue::new(kind, slot, depth, start, cq.sweep.clone()));
            queue.set_qp_num(number);
            pd.enter_queue(queue.clone());
            queue
        };
        let width = init.cap.max_send_sge.max(init.cap.max_recv_sge).max(1) as usize;
        Ok(QpHandle {
            send: queue(QueueKind::Send, send_slot, depths.0, send_cq),
            recv: queue(QueueKind::Recv, recv_slot, depths.1, recv_cq),
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            ptr,
            number,
            request: ibv_send_wr::zeroed(),
            entries: vec![ibv_sge::default(); width].into(),
            cap: init.cap,
            inline_asked: cap.max_inline_data,
            destroyed: false,
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn pd(&self) -> &Arc<PdHandle> {
        &self.pd
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
        // SAFETY: the QP is live (invariant 1); `attr` is whole.
        let result = status(unsafe {
            self.pd
                .context
                .verbs
                .modify_qp(self.as_ptr(), &mut attr, mask.bits() as _)
        });
        if result.is_ok() && mask.contains(IBV_QP_STATE) && attr.qp_state == IBV_QPS_RESET {
            // The device has let go of every request: a reset queue is empty.
            self.send.begin_new_life();
            self.recv.begin_new_life();
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

    /// Posts one send request on ranges of regions of this PD. Returns its sequence.
    #[inline]
    pub(crate) fn post_send<'a>(
        &mut self,
        op: &Op,
        local: impl Iterator<Item = LocalSlice<'a>>,
        flags: ibv_send_flags,
    ) -> Result<u64, NotPosted> {
        let count = self.fill(QueueKind::Send, local)?;
        self.send_request(op, count, flags)
    }

    /// Fills the entries with ranges of regions, and notes their use by the queue of this kind. Returns how many.
    ///
    /// Empty ranges are left out: some devices take a length of 0 for 2^31.
    #[inline]
    fn fill<'a>(
        &mut self,
        kind: QueueKind,
        local: impl Iterator<Item = LocalSlice<'a>>,
    ) -> Result<usize, NotPosted> {
        let mut count = 0;
        for (index, slice) in local.enumerate() {
            let entry = self
                .entries
                .get_mut(count)
                .ok_or(NotPosted::TooManyEntries)?;
            *entry = slice
                .lend(kind, self.pd.id)
                .ok_or(NotPosted::Entry(index))?;
            count += usize::from(entry.length != 0);
        }
        Ok(count)
    }

    /// Posts one send request whose data is copied during the call.
    pub(crate) fn post_inline(
        &mut self,
        op: &Op,
        bytes: &[u8],
        flags: ibv_send_flags,
    ) -> Result<u64, NotPosted> {
        let length = u32::try_from(bytes.len()).map_err(|_| NotPosted::Entry(0))?;
        let first = self.entries.first_mut().ok_or(NotPosted::TooManyEntries)?;
        // With IBV_SEND_INLINE the library reads the bytes before the call returns and does not look at the key.
        *first = ibv_sge {
            addr: bytes.as_ptr() as u64,
            length,
            lkey: 0,
        };
        self.send_request(op, 1, flags | IBV_SEND_INLINE)
    }

    /// Posts `self.request` with the first `count` entries.
    #[inline]
    fn send_request(
        &mut self,
        op: &Op,
        count: usize,
        flags: ibv_send_flags,
    ) -> Result<u64, NotPosted> {
        let sequence = self.send.enter(op.operation());
        let request = &mut self.request;
        request.wr_id = self.send.prefix.wr_id(sequence);
        request.next = ptr::null_mut();
        request.sg_list = self.entries.as_mut_ptr();
        request.num_sge = count as i32;
        request.send_flags = flags.bits();
        match *op {
            Op::Send { imm: None } => request.opcode = IBV_WR_SEND,
            Op::Send { imm: Some(imm) } => {
                request.opcode = IBV_WR_SEND_WITH_IMM;
                request.set_imm_data(imm);
            }
            Op::Write { remote, imm } => {
                request.opcode = IBV_WR_RDMA_WRITE;
                if let Some(imm) = imm {
                    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                    request.set_imm_data(imm);
                }
                request.wr.rdma = ibv_send_wr_rdma {
                    remote_addr: remote.addr,
                    rkey: remote.rkey,
                };
            }
            Op::Read { remote } => {
                request.opcode = IBV_WR_RDMA_READ;
                request.wr.rdma = ibv_send_wr_rdma {
                    remote_addr: remote.addr,
                    rkey: remote.rkey,
                };
            }
            Op::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                request.wr.atomic = ibv_send_wr_atomic {
                    remote_addr: remote.addr,
                    compare_add: compare,
                    swap,
                    rkey: remote.rkey,
                };
            }
            Op::FetchAdd { remote, add } => {
                request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                request.wr.atomic = ibv_send_wr_atomic {
                    remote_addr: remote.addr,
                    compare_add: add,
                    swap: 0,
                    rkey: remote.rkey,
                };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is live (invariant 1). The request is one, with `count` initialised entries behind `sg_list`. Each
        // names either bytes that are copied during the call (inline), or a range of a region of this PD, whose use by
        // the send queue is noted and whose memory stays registered and allocated until this queue's books let go of
        // `sequence`, which was entered above (invariant 3).
        let posted = status(unsafe { ops::ibv_post_send(self.ptr.as_ptr(), request, &mut bad) });
        posted.map_err(|errno| {
            self.send.withdraw();
            NotPosted::Refused(errno)
        })?;
        Ok(sequence)
    }

    /// Posts one receive into ranges of regions of this PD. Returns its sequence.
    #[inline]
    pub(crate) fn post_recv<'a>(
        &mut self,
        local: impl Iterator<Item = LocalSlice<'a>>,
    ) -> Result<u64, NotPosted> {
        let count = self.fill(QueueKind::Recv, local)?;
        let sequence = self.recv.enter(Operation::Recv);
        let mut request = ibv_recv_wr {
            wr_id: self.recv.prefix.wr_id(sequence),
            next: ptr::null_mut(),
            sg_list: self.entries.as_mut_ptr(),
            num_sge: count as i32,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is live (invariant 1). The request is one, with initialised entries behind `sg_list`, each a range
        // of a region of this PD, whose use by the receive queue is noted and whose memory stays registered and
        // allocated until this queue's books let go of `sequence`, which was entered above (invariant 3).
        let posted =
            status(unsafe { ops::ibv_post_recv(self.ptr.as_ptr(), &mut request, &mut bad) });
        posted.map_err(|errno| {
            self.recv.withdraw();
            NotPosted::Refused(errno)
        })?;
        Ok(sequence)
    }

    /// Destroys the QP. After success the device touches nothing of it, which the books are told.
    pub(crate) fn destroy(&mut self) -> Result<(), Errno> {
        if self.destroyed {
            return Ok(());
        }
        // SAFETY: the QP is live (invariant 1), and `destroyed` keeps this from happening twice.
        status(unsafe { self.pd.context.verbs.destroy_qp(self.as_ptr()) })?;
        self.destroyed = true;
        for (queue, cq) in [(&self.send, &self.send_cq), (&self.recv, &self.recv_cq)] {
            queue.end();
            cq.release(queue.slot, queue.depth, queue.posted());
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
                "a QP could not be destroyed; it stays, with its PD, its CQs and every region that it may use"
            );
            // The device may go on using them: they must outlive the process's interest in them.
            std::mem::forget((self.pd.clone(), self.send_cq.clone(), self.recv_cq.clone()));
        }
    }
}
