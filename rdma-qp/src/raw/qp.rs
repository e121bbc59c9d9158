//! Queue Pairs: creation, transitions, and the post calls.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys::*;

use super::ah::Datagram;
use super::cq::CqHandle;
use super::mw::Binding;
use super::pd::{LocalSlice, PdHandle};
use super::ring::{Entries, Refused, Request, Ring};
use super::srq::SrqHandle;
use super::{errno_of, pointer, status};
use crate::account::{Books, Operation, Queue};
use crate::errno::Errno;
use crate::wr_id::{QueueKind, STEP};

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

/// Why a request was not posted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotPosted {
    /// The entry of that index is of another PD's region.
    OtherPd(usize),
    /// The address handle is of another PD.
    OtherPdAh,
    /// The memory window, or the region that it would be bound to, is of another PD.
    OtherPdWindow,
    /// The queue is full.
    Full,
    /// The library refused it, or some of those that were handed over with it.
    Refused(Box<Refusal>),
}

/// What the library refused of the requests that were handed over together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Those that were accepted.
    pub(crate) accepted: u32,
    /// Those that were not.
    pub(crate) refused: u32,
    /// The mark of the first of those.
    pub(crate) first: u64,
    /// What it said.
    pub(crate) errno: Errno,
}

/// The books of a queue, and its requests that are being built.
struct Lane<R: Request> {
    ring: Ring<R>,
    /// The mark at which the queue is full, as far as known.
    limit: u64,
}

impl<R: Request> Lane<R> {
    fn new(width: u32, queue: &Queue) -> Lane<R> {
        Lane {
            ring: Ring::new(1, width),
            limit: queue.posted(),
        }
    }

    /// The mark for the next request. `None`: the queue is full.
    #[inline]
    fn next_mark(&mut self, queue: &Queue) -> Option<u64> {
        let mark = queue.posted();
        (mark != self.limit || self.find_room(queue, mark)).then_some(mark)
    }

    #[cold]
    fn find_room(&mut self, queue: &Queue, mark: u64) -> bool {
        self.limit = queue.limit();
        mark != self.limit
    }

    /// What was handed over and refused goes out of the books again.
    #[cold]
    fn take_back(&mut self, queue: &Queue, refused: Refused) -> Box<Refusal> {
        queue.withdraw(refused.refused.into());
        // The next request looks for its place in the new count.
        self.limit = queue.posted();
        Box::new(Refusal {
            accepted: refused.accepted,
            refused: refused.refused,
            first: queue.posted(),
            errno: errno_of(refused.status),
        })
    }

    /// The same, after a full list came to that status.
    #[cold]
    fn take_back_list(&mut self, queue: &Queue, status: i32) -> Box<Refusal> {
        let refused = self.ring.refused(status);
        self.take_back(queue, refused)
    }

    /// The queue begins a new life: what was not handed over yet is gone too.
    fn begin_new_life(&mut self, queue: &Queue) {
        self.ring.clear();
        queue.begin_new_life();
        self.limit = queue.posted();
    }
}

/// What a send request names, beside ranges of regions.
#[derive(Clone, Copy)]
pub enum Names<'a> {
    /// Nothing.
    Nothing,
    /// Where a datagram goes.
    To(Datagram<'a>),
    /// A memory window, and what it is bound to.
    Bind(Binding<'a>),
}

/// A Queue Pair with the books of its two queues.
pub(crate) struct QpHandle {
    ptr: NonNull<ibv_qp>,
    /// [`PdHandle::id`] of its PD.
    pd_id: u64,
    pub(crate) send: Arc<Queue>,
    pub(crate) recv: Arc<Queue>,
    sends: Lane<ibv_send_wr>,
    recvs: Lane<ibv_recv_wr>,
    /// What creation granted.
    pub(crate) cap: ibv_qp_cap,
    /// Bytes inline that creation asked for.
    pub(crate) inline_asked: u32,
    number: u32,
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
            sends: Lane::new(init.cap.max_send_sge, &send),
            recvs: Lane::new(init.cap.max_recv_sge, &recv),
            send,
            recv,
            cap: init.cap,
            inline_asked: cap.max_inline_data,
            number,
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
        // SAFETY: the QP is live (invariant 1); `attr` is whole.
        let result = status(unsafe {
            self.pd
                .context
                .verbs
                .modify_qp(self.as_ptr(), &mut attr, mask.bits() as _)
        });
        if result.is_ok() && mask.contains(IBV_QP_STATE) && attr.qp_state == IBV_QPS_RESET {
            // The device has let go of every request: a reset queue is empty.
            self.sends.begin_new_life(&self.send);
            self.recvs.begin_new_life(&self.recv);
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

    /// How many requests a doorbell is for: sends, and receives. What was built and not handed over must be handed over
    /// before.
    pub(crate) fn set_doorbells(&mut self, sends: u32, recvs: u32) {
        debug_assert!(self.waiting() == (0, 0));
        self.sends.ring = Ring::new(sends, self.cap.max_send_sge);
        self.recvs.ring = Ring::new(recvs, self.cap.max_recv_sge);
    }

    /// Requests that are built and not handed over: sends, and receives.
    pub(crate) fn waiting(&self) -> (u32, u32) {
        (self.sends.ring.waiting(), self.recvs.ring.waiting())
    }

    /// Whether the next send would take the last place of the send queue.
    #[inline]
    pub(crate) fn takes_last_place(&mut self) -> bool {
        let next = self.send.posted().wrapping_add(STEP);
        next == self.sends.limit && next == self.send.limit()
    }

    /// Builds one send request on ranges of regions of this PD, and hands it over with those before it if the doorbell is
    /// due. Returns its `wr_id`. All lengths together are below 2^32, and there are no more ranges than the queue takes.
    /// `names` is what else it names.
    #[inline(always)]
    pub(crate) fn post_send<'a>(
        &mut self,
        operation: Operation,
        names: Names<'_>,
        local: impl Iterator<Item = LocalSlice<'a>>,
        fill: impl FnOnce(&mut ibv_send_wr),
    ) -> Result<u64, NotPosted> {
        let pd = self.pd_id;
        self.build_send(operation, names, fill, |entries| {
            lend(entries, QueueKind::Send, pd, local)
        })
    }

    /// As [`QpHandle::post_send`], of bytes that are copied during the call, which therefore hands over at once.
    pub(crate) fn post_inline(
        &mut self,
        operation: Operation,
        names: Names<'_>,
        bytes: &[u8],
        fill: impl FnOnce(&mut ibv_send_wr),
    ) -> Result<u64, NotPosted> {
        // With IBV_SEND_INLINE the library reads the bytes before the post call returns and does not look at the key.
        let entry = ibv_sge {
            addr: bytes.as_ptr() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        };
        let fill = |request: &mut ibv_send_wr| {
            fill(request);
            request.send_flags |= IBV_SEND_INLINE.bits();
        };
        let id = self.build_send(operation, names, fill, |entries| {
            entries.set(0, entry);
            Ok(u32::from(!bytes.is_empty()))
        })?;
        // The bytes are borrowed for this call only.
        self.ring_sends()?;
        Ok(id)
    }

    /// Builds the next request, whose entries are set by `set`, which says how many, and hands it over if the doorbell is
    /// due.
    #[inline(always)]
    fn build_send(
        &mut self,
        operation: Operation,
        names: Names<'_>,
        fill: impl FnOnce(&mut ibv_send_wr),
        set: impl FnOnce(&mut Entries<'_>) -> Result<u32, NotPosted>,
    ) -> Result<u64, NotPosted> {
        let send = &*self.send;
        let mark = self.sends.next_mark(send).ok_or(NotPosted::Full)?;
        let (request, mut entries) = self.sends.ring.next();
        request.num_sge = set(&mut entries)? as i32;
        match names {
            Names::Nothing => {}
            Names::To(to) => request.wr.ud = to.lend(self.pd_id).ok_or(NotPosted::OtherPdAh)?,
            Names::Bind(binding) => {
                request.ext.bind_mw = binding.lend(self.pd_id).ok_or(NotPosted::OtherPdWindow)?;
            }
        }
        let id = mark | operation as u64;
        request.wr_id = id;
        fill(request);
        send.enter(mark);
        if !self.sends.ring.filled() {
            return Ok(id);
        }
        let qp = self.ptr.as_ptr();
        // SAFETY: as for `ring_sends`.
        let posted = self
            .sends
            .ring
            .hand_over(|first, bad| unsafe { ops::ibv_post_send(qp, first, bad) });
        match posted {
            0 => Ok(id),
            status => Err(NotPosted::Refused(
                self.sends.take_back_list(&self.send, status),
            )),
        }
    }

    /// Hands over the sends that are built.
    pub(crate) fn ring_sends(&mut self) -> Result<(), NotPosted> {
        if self.sends.ring.waiting() == 0 {
            return Ok(());
        }
        let qp = self.ptr.as_ptr();
        // SAFETY: the QP is live (invariant 1). The ring links whole requests, each with so many initialised entries behind
        // `sg_list`. Each entry names either bytes that are copied during the call and that the caller, `post_inline`,
        // still borrows; or a range of a region of this PD, whose use by the send queue is noted and whose memory stays
        // registered and allocated until this queue's books let go of the request, which was entered (invariant 3). A
        // datagram names an address handle of this PD, and a bind a window and a region, whose use is noted: they are live
        // until then too.
        let posted = self
            .sends
            .ring
            .hand_over_some(|first, bad| unsafe { ops::ibv_post_send(qp, first, bad) });
        posted.map_err(|refused| NotPosted::Refused(self.sends.take_back(&self.send, refused)))
    }

    /// Builds one receive into ranges of regions of this PD, and hands it over with those before it if the doorbell is
    /// due. Returns its `wr_id`. Each length is below 2^32, and there are no more ranges than the queue takes.
    #[inline(always)]
    pub(crate) fn post_recv<'a>(
        &mut self,
        local: impl Iterator<Item = LocalSlice<'a>>,
    ) -> Result<u64, NotPosted> {
        let recv = &*self.recv;
        let mark = self.recvs.next_mark(recv).ok_or(NotPosted::Full)?;
        let (request, mut entries) = self.recvs.ring.next();
        request.num_sge = lend(&mut entries, QueueKind::Recv, self.pd_id, local)? as i32;
        let id = mark | Operation::Recv as u64;
        request.wr_id = id;
        recv.enter(mark);
        if !self.recvs.ring.filled() {
            return Ok(id);
        }
        let qp = self.ptr.as_ptr();
        // SAFETY: as for `ring_recvs`.
        let posted = self
            .recvs
            .ring
            .hand_over(|first, bad| unsafe { ops::ibv_post_recv(qp, first, bad) });
        match posted {
            0 => Ok(id),
            status => Err(NotPosted::Refused(
                self.recvs.take_back_list(&self.recv, status),
            )),
        }
    }

    /// Hands over the receives that are built.
    pub(crate) fn ring_recvs(&mut self) -> Result<(), NotPosted> {
        if self.recvs.ring.waiting() == 0 {
            return Ok(());
        }
        let qp = self.ptr.as_ptr();
        // SAFETY: the QP is live (invariant 1). The ring links whole requests, each with so many initialised entries behind
        // `sg_list`; each entry is a range of a region of this PD, whose use by the receive queue is noted and whose
        // memory stays registered and allocated until this queue's books let go of the request, which was entered
        // (invariant 3).
        let posted = self
            .recvs
            .ring
            .hand_over_some(|first, bad| unsafe { ops::ibv_post_recv(qp, first, bad) });
        posted.map_err(|refused| NotPosted::Refused(self.recvs.take_back(&self.recv, refused)))
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

/// Sets the entries of a request to ranges of regions of PD `pd`, and notes their use by the queue of this kind.
/// Returns how many there are.
///
/// Empty ranges are left out: some devices take a length of 0 for 2^31.
#[inline(always)]
pub(super) fn lend<'a>(
    entries: &mut Entries<'_>,
    kind: QueueKind,
    pd: u64,
    local: impl Iterator<Item = LocalSlice<'a>>,
) -> Result<u32, NotPosted> {
    let mut count = 0;
    for (index, slice) in local.enumerate() {
        let entry = slice.lend(kind, pd).ok_or(NotPosted::OtherPd(index))?;
        entries.set(count, entry);
        count += usize::from(entry.length != 0);
    }
    Ok(count as u32)
}
