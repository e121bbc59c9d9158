//! Sends in a row, with what they need of the queue at hand.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rdma_core_sys::ibv_send_wr;

use super::post::{Asked, is_of};
use super::qp::QpHandle;
use super::rarely;
use super::region::{LocalSlice, Region, holds_some};
use super::ring::{Form, Place, Slot};
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

/// A slot without a form, for a run that is none.
static NOWHERE: Nowhere = Nowhere(Slot::empty(ibv_send_wr::zeroed()));

struct Nowhere(Slot<ibv_send_wr>);

// SAFETY: it is never changed, and what its pointers lead to is never looked at: they are null.
unsafe impl Sync for Nowhere {}

fn nowhere() -> *mut Slot<ibv_send_wr> {
    (&raw const NOWHERE.0).cast_mut()
}

/// Sends that are built one after another, with what the short way needs to know of the queue at hand. They are entered into
/// the books, and wait in the list, when this ends; whoever forgets it has built nothing.
///
/// Its invariant: `mark` is that of the next request and `slot` its place in the ring; there is room in the queue for those from
/// there up to the slot `stop`, whose form is 0 and will be `form` again; or `slot` is [`NOWHERE`]. Those that are built and not
/// entered are on regions that are borrowed for `'m`, which lasts until they are entered, because `Drop` does that. That is so
/// as long as nobody else uses the handle, which is behind `owner`, borrowed.
pub(crate) struct Run<'q, 'm, Q: HasQp> {
    mark: u64,
    slot: *mut Slot<ibv_send_wr>,
    stop: *mut Slot<ibv_send_wr>,
    form: Form,
    owner: NonNull<Q>,
    borrowed: PhantomData<(&'q mut Q, LocalSlice<'m>)>,
}

impl<'q, 'm, Q: HasQp> Run<'q, 'm, Q> {
    #[inline(always)]
    pub(crate) fn new(owner: &'q mut Q) -> Run<'q, 'm, Q> {
        let (mark, (slot, stop, form)) = Self::begin(owner);
        Run {
            mark,
            slot,
            stop,
            form,
            owner: NonNull::from(owner),
            borrowed: PhantomData,
        }
    }

    /// Where the next request goes, and the short way ends.
    #[inline(always)]
    fn begin(owner: &mut Q) -> (u64, Place<ibv_send_wr>) {
        let handle = owner.handle();
        let (queue, ring) = (&*handle.send, &mut handle.sends);
        let mark = queue.posted();
        let mut room = distance(queue.limit().load(Relaxed), mark);
        if room == 0 {
            room = queue.find_room();
        }
        (mark, ring.begin(room))
    }

    /// The same, out of line.
    #[inline(never)]
    fn begin_again(owner: &mut Q) -> (u64, Place<ibv_send_wr>) {
        Self::begin(owner)
    }

    /// Enters what is built.
    #[inline(always)]
    fn enter(&mut self) {
        if self.slot == nowhere() {
            return;
        }
        // SAFETY: it is borrowed for `'q`, and this is the only reference to it.
        let handle = unsafe { self.owner.as_mut() }.handle();
        handle.send.enter_below(self.mark);
        // SAFETY: they are from the ring (the invariant), which nobody used since.
        unsafe { handle.sends.fill_to(self.slot, self.stop, self.form) };
    }

    /// Does something with the owner of the handle, after what is built is entered.
    #[inline(always)]
    pub(crate) fn with<R>(&mut self, f: impl FnOnce(&mut Q) -> R) -> R {
        self.enter();
        // Should `f` panic, nothing is built any more.
        self.slot = nowhere();
        // SAFETY: it is borrowed for `'q`, and this is the only reference to it.
        let owner = unsafe { self.owner.as_mut() };
        let result = f(owner);
        (self.mark, (self.slot, self.stop, self.form)) = Self::begin_again(owner);
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
        context: Option<u64>,
        fill: impl FnOnce(&mut ibv_send_wr),
    ) -> Option<u64> {
        // SAFETY: a slot of the ring, whose owner is borrowed, or the static (the invariant); nobody changes it meanwhile.
        let slot = unsafe { &*self.slot };
        // SAFETY: it is borrowed for `'q`, and this is the only reference to it.
        let max_msg_sz = || unsafe { self.owner.as_mut() }.handle().max_msg_sz();
        if !is_of(slot, local, asked, max_msg_sz) {
            rarely();
            return None;
        }
        // SAFETY: it has a form, so it is a slot of the ring before `stop`, to which this is the only reference.
        let slot = unsafe { &mut *self.slot };
        slot.aim(local.addr(), local.len() as u32);
        let id = self.mark | operation as u64;
        slot.request.wr_id = id;
        fill(&mut slot.request);
        if let Some(context) = context {
            // SAFETY: as above.
            unsafe { self.owner.as_mut() }
                .handle()
                .send
                .keep(self.mark, context);
        }
        self.mark = self.mark.wrapping_add(STEP);
        // SAFETY: it is before `stop`, so there is one behind it.
        self.slot = unsafe { self.slot.add(1) };
        Some(id)
    }
}

impl<'m, Q: HasQp> Run<'_, 'm, Q> {
    /// As [`Run::build_alike`], for several in a row on one region: `ask` says of each its context, first byte and length, none of
    /// which is empty, and what else it fills in. Returns how many were built: all, or those before the first that is not for this
    /// way.
    #[inline(always)]
    pub(crate) fn build_row<S, F: FnOnce(&mut ibv_send_wr)>(
        &mut self,
        operation: Operation,
        asked: Asked,
        region: &'m Region,
        items: &[S],
        ask: impl Fn(&S) -> Option<(u64, usize, usize, F)>,
    ) -> usize {
        let own = region.form_of(asked);
        let (start, size) = (region.addr(), region.len());
        let (mut mark, mut slot) = (self.mark, self.slot);
        let mut one = |item: &S, kept: &AtomicU64| -> bool {
            // SAFETY: a slot of the ring, or the static (the invariant); nobody changes it meanwhile.
            if !unsafe { &*slot }.is_of(own) {
                return false;
            }
            let Some((context, offset, len, fill)) = ask(item) else {
                return false;
            };
            if !holds_some(size, offset, len) {
                return false;
            }
            // SAFETY: it has a form, so it is a slot of the ring before `stop`, to which this is the only reference.
            let filled = unsafe { &mut *slot };
            filled.aim(start + offset as u64, len as u32);
            filled.request.wr_id = mark | operation as u64;
            fill(&mut filled.request);
            kept.store(context, Relaxed);
            mark = mark.wrapping_add(STEP);
            // SAFETY: it is before `stop`, so there is one behind it.
            slot = unsafe { slot.add(1) };
            true
        };
        let mut built = 0;
        while built < items.len() {
            // SAFETY: it is borrowed for `'q`, and this is the only reference to it.
            let kept = unsafe { self.owner.as_mut() }
                .handle()
                .send
                .contexts_from(self.mark.wrapping_add(built as u64 * STEP));
            // What is kept beside the requests of a queue goes round.
            let rest = &items[built..];
            let stretch = rest.len().min(kept.len());
            let row = rest[..stretch].iter().zip(&kept[..stretch]);
            let done = row.take_while(|(item, kept)| one(item, kept)).count();
            built += done;
            if done < stretch {
                break;
            }
        }
        (self.mark, self.slot) = (mark, slot);
        built
    }
}

impl<Q: HasQp> Drop for Run<'_, '_, Q> {
    #[inline(always)]
    fn drop(&mut self) {
        self.enter();
    }
}
