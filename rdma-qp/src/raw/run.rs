//! Sends in a row, with what they need of the queue at hand.

use std::marker::PhantomData;
use std::ptr::NonNull;

use rdma_core_sys::ibv_send_wr;

use super::pd::LocalSlice;
use super::post::{Asked, is_of};
use super::qp::QpHandle;
use super::ring::{Form, Slot};
use crate::account::Operation;
use crate::qp::{Qp, Transport};
use crate::wr_id::{STEP, distance};

/// Who has the handle of a QP.
///
/// # Safety
/// It is always the same handle, reached through the value alone.
pub(crate) unsafe trait HasQp {
    fn handle(&mut self) -> &mut QpHandle;
}

// SAFETY: `handle_mut` returns a field of the QP.
unsafe impl<T: Transport> HasQp for Qp<T> {
    fn handle(&mut self) -> &mut QpHandle {
        self.handle_mut()
    }
}

/// Sends that are built one after another, with what the short way needs to know of the queue at hand. They are entered into
/// the books, and wait in the list, when this ends; whoever forgets it has built nothing.
///
/// Its invariant: `mark` is that of the next request and `slot` its place in the ring, and the requests from there up to the
/// one with the mark `end` have room in the queue, and places, whose requests have the form `form`; or `end` is `mark`, and
/// `slot` may be null. Those that are built and not entered are on regions that are borrowed for `'m`, which lasts until they
/// are entered, because `Drop` does that. That is so as long as nobody else uses the handle, which is behind `owner`,
/// borrowed.
pub(crate) struct Run<'q, 'm, Q: HasQp> {
    mark: u64,
    end: u64,
    slot: *mut Slot<ibv_send_wr>,
    form: Form,
    owner: NonNull<Q>,
    borrowed: PhantomData<(&'q mut Q, LocalSlice<'m>)>,
}

impl<'q, 'm, Q: HasQp> Run<'q, 'm, Q> {
    #[inline(always)]
    pub(crate) fn new(owner: &'q mut Q) -> Run<'q, 'm, Q> {
        let (mark, end, slot, form) = Self::place(owner);
        Run {
            mark,
            end,
            slot,
            form,
            owner: NonNull::from(owner),
            borrowed: PhantomData,
        }
    }

    /// Where the next request goes, and the mark at which the short way ends.
    #[inline(never)]
    fn place(owner: &mut Q) -> (u64, u64, *mut Slot<ibv_send_wr>, Form) {
        let handle = owner.handle();
        let (queue, lane) = (&*handle.send, &mut handle.sends);
        let mark = queue.posted();
        lane.next_mark(queue);
        let (form, slots) = lane.ring.form();
        let room = distance(lane.limit, mark).min(slots.into());
        // Where each request is handed over at once, none is for this way.
        let room = if lane.ring.is_of_one() { 0 } else { room };
        let end = mark.wrapping_add(room * STEP);
        (mark, end, lane.ring.place(), form)
    }

    /// Enters what is built.
    #[inline(always)]
    fn enter(&mut self) {
        if self.slot.is_null() {
            return;
        }
        // SAFETY: it is borrowed for `'q`, and this is the only reference to it.
        let handle = unsafe { self.owner.as_mut() }.handle();
        handle.send.enter_below(self.mark);
        // SAFETY: `slot` is the place of the next request.
        unsafe { handle.sends.ring.fill_to(self.slot) };
    }

    /// Does something with the owner of the handle, after what is built is entered.
    #[inline(always)]
    pub(crate) fn with<R>(&mut self, f: impl FnOnce(&mut Q) -> R) -> R {
        self.enter();
        // Should `f` panic, nothing is built any more.
        (self.end, self.slot) = (self.mark, std::ptr::null_mut());
        // SAFETY: it is borrowed for `'q`, and this is the only reference to it.
        let owner = unsafe { self.owner.as_mut() };
        let result = f(owner);
        (self.mark, self.end, self.slot, self.form) = Self::place(owner);
        result
    }

    /// Ends the run, after what is built is entered.
    #[inline(always)]
    pub(crate) fn finish(mut self) -> &'q mut Q {
        self.enter();
        let mut owner = self.owner;
        std::mem::forget(self);
        // SAFETY: it is borrowed for `'q`, and the run is no more.
        unsafe { owner.as_mut() }
    }

    #[inline(always)]
    pub(crate) fn owner(&self) -> &Q {
        // SAFETY: it is borrowed for `'q`, and whoever changes it here has `&mut self`.
        unsafe { self.owner.as_ref() }
    }

    /// The short way to build a request, as [`QpHandle::post_send_alike`] posts one. Returns its `wr_id`. `None`: it is not
    /// for this way; nothing was done.
    #[inline(always)]
    pub(crate) fn build_alike(
        &mut self,
        operation: Operation,
        asked: Asked,
        local: LocalSlice<'m>,
        fill: impl FnOnce(&mut ibv_send_wr),
    ) -> Option<u64> {
        if self.mark == self.end {
            return None;
        }
        // SAFETY: it is borrowed for `'q`, and this is the only reference to it.
        let max_msg_sz = || unsafe { self.owner.as_mut() }.handle().max_msg_sz();
        if !is_of(self.form, local, asked, max_msg_sz) {
            return None;
        }
        // SAFETY: a slot of the ring, whose owner is borrowed (the invariant).
        let slot = unsafe { &mut *self.slot };
        slot.aim(local.addr(), local.len() as u32);
        let id = self.mark | operation as u64;
        slot.request.wr_id = id;
        fill(&mut slot.request);
        self.mark = self.mark.wrapping_add(STEP);
        // SAFETY: it is not behind the last slot, so there is a place behind it.
        self.slot = unsafe { self.slot.add(1) };
        Some(id)
    }
}

impl<Q: HasQp> Drop for Run<'_, '_, Q> {
    #[inline(always)]
    fn drop(&mut self) {
        self.enter();
    }
}
