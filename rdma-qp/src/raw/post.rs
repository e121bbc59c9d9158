//! The post calls of a Queue Pair.
//!
//! A request takes the short way if it is like the one that was in its place before: the same region, operation and flags
//! (its *form*). Then all that depends on those is checked and written already. Everything else takes the long way.

use rdma_core_sys::*;

use super::ah::Datagram;
use super::errno_of;
use super::mw::Binding;
use super::pd::LocalSlice;
use super::qp::QpHandle;
use super::ring::{Entries, Form, LONG, Refused, Request, Ring};
use crate::account::{Operation, Queue};
use crate::errno::Errno;
use crate::wr_id::{QueueKind, STEP};

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
    /// The `wr_id` of the first of those.
    pub(crate) first: u64,
    /// What it said.
    pub(crate) errno: Errno,
}

/// The books of a queue, and its requests that are being built.
pub(super) struct Lane<R: Request> {
    /// The mark at which the queue is full, as far as known.
    pub(super) limit: u64,
    pub(super) ring: Ring<R>,
}

impl<R: Request> Lane<R> {
    pub(super) fn new(width: u32, queue: &Queue) -> Lane<R> {
        Lane {
            limit: queue.posted(),
            ring: Ring::new(1, width),
        }
    }

    /// The mark for the next request. `None`: the queue is full.
    pub(super) fn next_mark(&mut self, queue: &Queue) -> Option<u64> {
        let mark = queue.posted();
        if mark == self.limit {
            self.limit = queue.limit();
        }
        (mark != self.limit).then_some(mark)
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
            first: refused.first,
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
    pub(super) fn begin_new_life(&mut self, queue: &Queue) {
        self.ring.clear();
        queue.begin_new_life();
        self.limit = queue.posted();
    }
}

/// What a request of one range asks for, as far as it is in its form.
#[derive(Clone, Copy)]
pub(crate) struct Asked(Form);

impl Asked {
    /// Flags are those of [`ibv_send_flags`] that a form can have.
    #[inline(always)]
    pub(crate) const fn send(opcode: ibv_wr_opcode, flags: ibv_send_flags) -> Asked {
        let asked = (opcode.0 as Form) << 8 | flags.bits() as Form;
        assert!(asked < LONG);
        // A signaled SEND is what costs nothing to ask for.
        Asked(asked ^ ((IBV_WR_SEND.0 as Form) << 8 | IBV_SEND_SIGNALED.bits() as Form))
    }
}

/// Whether a request on that range which asks for that is of a form, and not longer than a message can be.
#[inline(always)]
pub(super) fn is_of(
    form: Form,
    local: LocalSlice<'_>,
    asked: Asked,
    max_msg_sz: impl FnOnce() -> u32,
) -> bool {
    let own = local.region().form() | asked.0;
    form == own || form == own | LONG && local.len() <= max_msg_sz() as usize
}

/// What the short way to post came to.
pub(crate) enum Alike {
    /// Posted, with that `wr_id`.
    Posted(u64),
    /// The library refused it; it is in the books.
    Refused(i32),
    /// It is not for the short way; nothing was done.
    Other,
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

impl Names<'_> {
    /// Whether it names nothing.
    #[inline(always)]
    pub(crate) fn are_none(&self) -> bool {
        matches!(self, Names::Nothing)
    }
}

impl QpHandle {
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
    pub(crate) fn takes_last_place(&self) -> bool {
        let next = self.send.posted().wrapping_add(STEP);
        next == self.sends.limit && next == self.send.limit()
    }

    /// The short way to post: a send request of one range, whose form is that of the request before it in its place. `len` is
    /// not 0, and no longer than the queue takes; `asked` is what is asked for. An unsignaled one is not for this way if it
    /// would take the last place of the queue, as far as known.
    ///
    /// With `list`, it may wait for the doorbell; else it is handed over at once, and a queue whose requests wait is not for
    /// this way.
    #[inline(always)]
    pub(crate) fn post_send_alike<const LIST: bool>(
        &mut self,
        operation: Operation,
        asked: Asked,
        signaled: bool,
        names: Names<'_>,
        local: LocalSlice<'_>,
        fill: impl FnOnce(&mut ibv_send_wr),
    ) -> Alike {
        let (send, sends) = (&*self.send, &mut self.sends);
        let mark = send.posted();
        if mark == sends.limit || !signaled && mark.wrapping_add(STEP) == sends.limit {
            return Alike::Other;
        }
        let form = if LIST {
            let (form, slots) = sends.ring.form();
            if slots == 0 {
                return Alike::Other;
            }
            form
        } else {
            sends.ring.only_form()
        };
        if !is_of(form, local, asked, || self.max_msg_sz) {
            return Alike::Other;
        }
        let (slot, bad) = if LIST {
            (sends.ring.next_slot(), std::ptr::null_mut())
        } else {
            sends.ring.first()
        };
        match names {
            Names::Nothing => {}
            Names::To(to) => match to.lend(self.pd_id) {
                Some(to) => slot.request.wr.ud = to,
                None => return Alike::Other,
            },
            Names::Bind(_) => return Alike::Other,
        }
        slot.aim(local.addr(), local.len() as u32);
        let id = mark | operation as u64;
        slot.request.wr_id = id;
        fill(&mut slot.request);
        send.enter(mark);
        let qp = self.ptr.as_ptr();
        let status = if LIST {
            if !sends.ring.filled() {
                return Alike::Posted(id);
            }
            // SAFETY: as for `ring_sends`: the use of the region is noted, because the form is its.
            sends
                .ring
                .hand_over(|first, bad| unsafe { ops::ibv_post_send(qp, first, bad) })
        } else {
            // SAFETY: as for `ring_sends`: the use of the region is noted, because the form is its.
            unsafe { ops::ibv_post_send(qp, &mut slot.request, bad) }
        };
        match status {
            0 => Alike::Posted(id),
            status => Alike::Refused(status),
        }
    }

    /// Makes sure that there is a place for the next send in the list, and looks for room in the queue again if none is
    /// known.
    pub(crate) fn make_place(&mut self) -> Result<(), NotPosted> {
        if !self.sends.ring.is_of_one() && self.sends.ring.left() == 0 {
            self.ring_sends()?;
        }
        self.sends.next_mark(&self.send);
        Ok(())
    }

    /// What the library refused on the short way.
    #[cold]
    pub(crate) fn refused_send(&mut self, status: i32) -> NotPosted {
        NotPosted::Refused(self.sends.take_back_list(&self.send, status))
    }

    /// Builds one send request on ranges of regions of this PD, and hands it over with those before it if the doorbell is
    /// due. Returns its `wr_id`. All lengths together are below 2^32, and there are no more ranges than the queue takes.
    /// `names` is what else it names.
    pub(crate) fn post_send<'a>(
        &mut self,
        operation: Operation,
        asked: Option<Asked>,
        names: Names<'_>,
        local: impl ExactSizeIterator<Item = LocalSlice<'a>>,
        fill: impl FnOnce(&mut ibv_send_wr),
    ) -> Result<u64, NotPosted> {
        let (pd, max) = (self.pd_id, self.max_msg_sz);
        self.build_send(operation, asked, names, fill, local.len(), |entries| {
            lend(entries, QueueKind::Send, pd, max, local)
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
        let id = self.build_send(operation, None, names, fill, 1, |entries| {
            entries.set(0, entry);
            Ok((u32::from(!bytes.is_empty()), 0))
        })?;
        // The bytes are borrowed for this call only.
        self.ring_sends()?;
        Ok(id)
    }

    /// Builds the next request, whose entries, no more than `ranges`, are set by `set`, as [`lend`] does; and hands it over if
    /// the doorbell is due. `None` asks for something that no form has.
    fn build_send(
        &mut self,
        operation: Operation,
        asked: Option<Asked>,
        names: Names<'_>,
        fill: impl FnOnce(&mut ibv_send_wr),
        ranges: usize,
        set: impl FnOnce(&mut Entries<'_>) -> Result<(u32, Form), NotPosted>,
    ) -> Result<u64, NotPosted> {
        if self.sends.ring.left() == 0 {
            self.ring_sends()?;
        }
        let send = &*self.send;
        let mark = self.sends.next_mark(send).ok_or(NotPosted::Full)?;
        let (request, mut entries) = self.sends.ring.next(ranges);
        let (entries, region) = set(&mut entries)?;
        request.num_sge = entries as i32;
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
        if let Some(Asked(asked)) = asked
            && region != 0
        {
            self.sends.ring.set_form(region | asked);
        }
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

    /// The short way to post a receive into one range, which is not empty and shorter than 2^32: it is handed over at once, and
    /// of the form of the one before it. The region can be written to.
    #[inline(always)]
    pub(crate) fn post_recv_alike(&mut self, local: LocalSlice<'_>) -> Alike {
        let (recv, recvs) = (&*self.recv, &mut self.recvs);
        let mark = recv.posted();
        if mark == recvs.limit || recvs.ring.only_form() != local.region().form() {
            return Alike::Other;
        }
        let (slot, bad) = recvs.ring.first();
        slot.aim(local.addr(), local.len() as u32);
        let id = mark | Operation::Recv as u64;
        slot.request.wr_id = id;
        recv.enter(mark);
        // SAFETY: as for `ring_recvs`: the use of the region is noted, because the form is its.
        match unsafe { ops::ibv_post_recv(self.ptr.as_ptr(), &mut slot.request, bad) } {
            0 => Alike::Posted(id),
            status => Alike::Refused(status),
        }
    }

    /// What the library refused on the short way.
    #[cold]
    pub(crate) fn refused_recv(&mut self, status: i32) -> NotPosted {
        NotPosted::Refused(self.recvs.take_back_list(&self.recv, status))
    }

    /// Builds one receive into ranges of regions of this PD, and hands it over with those before it if the doorbell is
    /// due. Returns its `wr_id`. Each length is below 2^32, and there are no more ranges than the queue takes.
    pub(crate) fn post_recv<'a>(
        &mut self,
        local: impl ExactSizeIterator<Item = LocalSlice<'a>>,
    ) -> Result<u64, NotPosted> {
        let recv = &*self.recv;
        let mark = self.recvs.next_mark(recv).ok_or(NotPosted::Full)?;
        let (request, mut entries) = self.recvs.ring.next(local.len());
        let (entries, form) = lend(&mut entries, QueueKind::Recv, self.pd_id, u32::MAX, local)?;
        request.num_sge = entries as i32;
        let id = mark | Operation::Recv as u64;
        request.wr_id = id;
        if form != 0 {
            self.recvs.ring.set_form(form);
        }
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
}

/// Sets the entries of a request to ranges of regions of PD `pd`, and notes their use by the queue of this kind.
/// Returns how many there are, and, if it is one, what the form of the request begins with; else 0. A message has `max`
/// bytes at most.
///
/// Empty ranges are left out: some devices take a length of 0 for 2^31.
#[inline]
pub(super) fn lend<'a>(
    entries: &mut Entries<'_>,
    kind: QueueKind,
    pd: u64,
    max: u32,
    local: impl ExactSizeIterator<Item = LocalSlice<'a>>,
) -> Result<(u32, Form), NotPosted> {
    let (mut count, mut form) = (0, 0);
    let single = local.len() == 1;
    for (index, slice) in local.enumerate() {
        let entry = slice.lend(kind, pd).ok_or(NotPosted::OtherPd(index))?;
        entries.set(count, entry);
        if entry.length != 0 {
            count += 1;
            if single {
                let region = slice.region();
                let long = region.len() > max as usize;
                form = region.form() | if long { LONG } else { 0 };
            }
        }
    }
    Ok((count as u32, form))
}
