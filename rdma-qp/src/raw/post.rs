//! The post calls of a Queue Pair.
//!
//! A request takes the short way if it is like the one that was in its place before: the same region, operation and flags
//! (its *form*). Then all that depends on those is checked and written already. Everything else takes the long way.

use rdma_core_sys::*;

use super::ah::{Datagram, Through};
use super::errno_of;
use super::mw::Binding;
use super::qp::QpHandle;
use super::region::{LocalSlice, Region};
use super::ring::{Entries, Form, LONG, Refused, Ring, Slot};
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
    /// The address handle is of another port.
    OtherPortAh {
        /// Its port.
        ah: u8,
        /// That of the QP.
        qp: u8,
    },
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

/// Why datagrams of a QP that sends by `through` cannot go there.
#[cold]
fn not_through(to: &Datagram<'_>, through: Through) -> NotPosted {
    if to.through().is_same_pd(through) {
        NotPosted::OtherPortAh {
            ah: to.through().port(),
            qp: through.port(),
        }
    } else {
        NotPosted::OtherPdAh
    }
}

/// What was handed over and refused goes out of the books again.
#[cold]
fn take_back(queue: &Queue, refused: Refused) -> NotPosted {
    queue.withdraw(refused.refused.into());
    NotPosted::Refused(Box::new(Refusal {
        accepted: refused.accepted,
        refused: refused.refused,
        first: refused.first,
        errno: errno_of(refused.status),
    }))
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

    /// Whether a success is to be told.
    #[inline(always)]
    const fn is_signaled(self) -> bool {
        self.0 & IBV_SEND_SIGNALED.bits() as Form == 0
    }
}

impl Region {
    /// The form of a request on it, if it is not longer than a message can be.
    #[inline(always)]
    pub(super) fn form_of(&self, asked: Asked) -> Form {
        self.form() | asked.0
    }
}

/// Whether a request on that range which asks for that is of the form of a slot, and not longer than a message can be.
#[inline(always)]
pub(super) fn is_of<R>(
    slot: &Slot<R>,
    local: LocalSlice<'_>,
    asked: Asked,
    max_msg_sz: impl FnOnce() -> u32,
) -> bool {
    let own = local.region().form() | asked.0;
    slot.is_of(own) || slot.is_also_of(own | LONG) && local.len() <= max_msg_sz() as usize
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

/// The mark at which a queue is full, as far as known, for its poster.
#[inline(always)]
fn limit_of(queue: &Queue) -> u64 {
    // SAFETY: only the poster writes it, and that is the caller: whoever has a handle as `&mut`. A plain load is part of the
    // comparison.
    unsafe { *queue.limit().as_ptr() }
}

impl QpHandle {
    /// How many requests a doorbell is for: sends, and receives. What was built and not handed over must be handed over
    /// before.
    pub(crate) fn set_doorbells(&mut self, sends: u32, recvs: u32) {
        debug_assert!(self.waiting() == (0, 0));
        self.sends = Ring::new(sends, self.cap.max_send_sge);
        self.recvs = Ring::new(recvs, self.cap.max_recv_sge);
    }

    /// Requests that are built and not handed over: sends, and receives.
    pub(crate) fn waiting(&self) -> (u32, u32) {
        (self.sends.waiting(), self.recvs.waiting())
    }

    /// Whether the next send would take the last place of the send queue.
    pub(crate) fn takes_last_place(&self) -> bool {
        let next = self.send.posted().wrapping_add(STEP);
        next == limit_of(&self.send) && self.send.find_room() == 1
    }

    /// The short way to post: a send request of one range, whose form is that of the request before it in its place. `len` is
    /// not 0, and no longer than the queue takes; `asked` is what is asked for. An unsignaled one is not for this way if it
    /// would take the last place of the queue, as far as known. `context` is what the user keeps beside it, if anything.
    ///
    /// With `list`, it may wait for the doorbell; else it is handed over at once, and a queue whose requests wait is not for
    /// this way.
    #[inline(always)]
    pub(crate) fn post_send_alike<const LIST: bool>(
        &mut self,
        operation: Operation,
        asked: Asked,
        names: Names<'_>,
        local: LocalSlice<'_>,
        context: Option<u64>,
        fill: impl FnOnce(&mut ibv_send_wr),
    ) -> Alike {
        let send = &*self.send;
        let mark = send.posted();
        let limit = limit_of(send);
        if mark == limit || !asked.is_signaled() && mark.wrapping_add(STEP) == limit {
            return Alike::Other;
        }
        let (slot, bad) = if LIST {
            (self.sends.next_slot(), std::ptr::null_mut())
        } else {
            self.sends.only()
        };
        if !is_of(slot, local, asked, || self.max_msg_sz) {
            return Alike::Other;
        }
        match names {
            Names::Nothing => {}
            Names::To(to) => match to.lend(self.through) {
                Some(to) => slot.request.wr.ud = to,
                None => return Alike::Other,
            },
            Names::Bind(_) => return Alike::Other,
        }
        slot.aim(local.addr(), local.len() as u32);
        let id = mark | operation as u64;
        slot.request.wr_id = id;
        fill(&mut slot.request);
        if let Some(context) = context {
            send.keep(mark, context);
        }
        send.enter(mark);
        let qp = self.ptr.as_ptr();
        let status = if LIST {
            if !self.sends.filled() {
                return Alike::Posted(id);
            }
            // SAFETY: as for `ring_sends`: the use of the region is noted, because the form is its.
            self.sends
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

    /// Looks for room in the send queue if none is known. `false`: it is full.
    pub(crate) fn find_room(&mut self) -> bool {
        self.send.next_mark().is_some()
    }

    /// Makes sure that there is a place for the next send in the list.
    pub(crate) fn make_place(&mut self) -> Result<(), NotPosted> {
        if self.sends.is_full() {
            self.ring_sends()?;
        }
        Ok(())
    }

    /// What the library refused on the short way.
    #[cold]
    pub(crate) fn refused_send(&mut self, status: i32) -> NotPosted {
        take_back(&self.send, self.sends.refused(status))
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
        context: Option<u64>,
        fill: impl FnOnce(&mut ibv_send_wr),
    ) -> Result<u64, NotPosted> {
        let (pd, max) = (self.pd_id, self.max_msg_sz);
        let ranges = local.len();
        let set = |entries: &mut Entries<'_>| lend(entries, QueueKind::Send, pd, max, local);
        self.build_send(operation, asked, names, context, fill, ranges, set)
    }

    /// As [`QpHandle::post_send`], of bytes that are copied during the call, which therefore hands over at once.
    pub(crate) fn post_inline(
        &mut self,
        operation: Operation,
        names: Names<'_>,
        bytes: &[u8],
        context: Option<u64>,
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
        let set = |entries: &mut Entries<'_>| {
            entries.set(0, entry);
            Ok((u32::from(!bytes.is_empty()), 0))
        };
        let id = self.build_send(operation, None, names, context, fill, 1, set)?;
        // The bytes are borrowed for this call only.
        self.ring_sends()?;
        Ok(id)
    }

    /// Builds the next request, whose entries, no more than `ranges`, are set by `set`, as [`lend`] does; and hands it over if
    /// the doorbell is due. `asked` of `None` asks for something that no form has.
    #[allow(clippy::too_many_arguments)]
    fn build_send(
        &mut self,
        operation: Operation,
        asked: Option<Asked>,
        names: Names<'_>,
        context: Option<u64>,
        fill: impl FnOnce(&mut ibv_send_wr),
        ranges: usize,
        set: impl FnOnce(&mut Entries<'_>) -> Result<(u32, Form), NotPosted>,
    ) -> Result<u64, NotPosted> {
        self.make_place()?;
        let send = &*self.send;
        let mark = send.next_mark().ok_or(NotPosted::Full)?;
        let (request, mut entries) = self.sends.next(ranges);
        let (entries, region) = set(&mut entries)?;
        request.num_sge = entries as i32;
        match names {
            Names::Nothing => {}
            Names::To(to) => {
                let mut through = self.through;
                if through.port() == 0 && through.is_same_pd(to.through()) {
                    // Without a port the QP is in RESET, which the device shall say.
                    through = to.through();
                }
                request.wr.ud = to.lend(through).ok_or_else(|| not_through(&to, through))?;
            }
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
            self.sends.set_form(region | asked);
        }
        if let Some(context) = context {
            send.keep(mark, context);
        }
        send.enter(mark);
        if !self.sends.filled() {
            return Ok(id);
        }
        let qp = self.ptr.as_ptr();
        // SAFETY: as for `ring_sends`.
        let posted = self
            .sends
            .hand_over(|first, bad| unsafe { ops::ibv_post_send(qp, first, bad) });
        match posted {
            0 => Ok(id),
            status => Err(self.refused_send(status)),
        }
    }

    /// How many of the sends right before number `index` of the list in the ring, which was handed over last, are unsignaled.
    #[cold]
    pub(crate) fn silent_before(&self, index: u32) -> u32 {
        let signaled = IBV_SEND_SIGNALED.bits();
        (self.sends).run_before(index, |request| request.send_flags & signaled == 0)
    }

    /// Hands over the sends that are built.
    #[inline]
    pub(crate) fn ring_sends(&mut self) -> Result<(), NotPosted> {
        let qp = self.ptr.as_ptr();
        // SAFETY: the QP is live (invariant 1). The ring links whole requests, each with so many initialised entries behind
        // `sg_list`. Each entry names either bytes that are copied during the call and that the caller, `post_inline`,
        // still borrows; or a range of a region of this PD, whose use by the send queue is noted and whose memory stays
        // registered and allocated until this queue's books let go of the request, which was entered (invariant 3). A
        // datagram names an address handle of this PD, and a bind a window and a region, whose use is noted: they are live
        // until then too.
        let posted = self
            .sends
            .hand_over_some(|first, bad| unsafe { ops::ibv_post_send(qp, first, bad) });
        posted
            .map_err(|(count, status)| take_back(&self.send, self.sends.refused_of(count, status)))
    }

    /// The short way to post a receive into one range, which is not empty and shorter than 2^32: it is handed over at once, and
    /// of the form of the one before it. The region can be written to.
    #[inline(always)]
    pub(crate) fn post_recv_alike(&mut self, local: LocalSlice<'_>, context: Option<u64>) -> Alike {
        let recv = &*self.recv;
        let mark = recv.posted();
        let (slot, bad) = self.recvs.only();
        if mark == limit_of(recv) || !slot.is_of(local.region().form()) {
            return Alike::Other;
        }
        slot.aim(local.addr(), local.len() as u32);
        let id = mark | Operation::Recv as u64;
        slot.request.wr_id = id;
        if let Some(context) = context {
            recv.keep(mark, context);
        }
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
        take_back(&self.recv, self.recvs.refused(status))
    }

    /// Builds one receive into ranges of regions of this PD, and hands it over with those before it if the doorbell is
    /// due. Returns its `wr_id`. Each length is below 2^32, and there are no more ranges than the queue takes.
    pub(crate) fn post_recv<'a>(
        &mut self,
        local: impl ExactSizeIterator<Item = LocalSlice<'a>>,
        context: Option<u64>,
    ) -> Result<u64, NotPosted> {
        let recv = &*self.recv;
        let mark = recv.next_mark().ok_or(NotPosted::Full)?;
        let (request, mut entries) = self.recvs.next(local.len());
        let (entries, form) = lend(&mut entries, QueueKind::Recv, self.pd_id, u32::MAX, local)?;
        request.num_sge = entries as i32;
        let id = mark | Operation::Recv as u64;
        request.wr_id = id;
        if form != 0 {
            self.recvs.set_form(form);
        }
        if let Some(context) = context {
            recv.keep(mark, context);
        }
        recv.enter(mark);
        if !self.recvs.filled() {
            return Ok(id);
        }
        let qp = self.ptr.as_ptr();
        // SAFETY: as for `ring_recvs`.
        let posted = self
            .recvs
            .hand_over(|first, bad| unsafe { ops::ibv_post_recv(qp, first, bad) });
        match posted {
            0 => Ok(id),
            status => Err(self.refused_recv(status)),
        }
    }

    /// Hands over the receives that are built.
    pub(crate) fn ring_recvs(&mut self) -> Result<(), NotPosted> {
        let qp = self.ptr.as_ptr();
        // SAFETY: the QP is live (invariant 1). The ring links whole requests, each with so many initialised entries behind
        // `sg_list`; each entry is a range of a region of this PD, whose use by the receive queue is noted and whose
        // memory stays registered and allocated until this queue's books let go of the request, which was entered
        // (invariant 3).
        let posted = self
            .recvs
            .hand_over_some(|first, bad| unsafe { ops::ibv_post_recv(qp, first, bad) });
        posted
            .map_err(|(count, status)| take_back(&self.recv, self.recvs.refused_of(count, status)))
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
