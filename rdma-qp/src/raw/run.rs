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
        ask: impl Fn(&S) -> Option<(u64, usize, usize, F)> + Copy,
    ) -> usize {
        let alike = Alike {
            own: region.form_of(asked),
            start: region.addr(),
            size: region.len(),
            ask,
        };
        let built = self.build_fours(operation, items, &alike);
        if built == items.len() {
            return built;
        }
        built + self.build_rest(operation, &items[built..], &alike)
    }

    /// The same, four at a time, as far as there are fours, and places for what is kept beside them until those go round.
    #[inline(always)]
    fn build_fours<S, F: FnOnce(&mut ibv_send_wr)>(
        &mut self,
        operation: Operation,
        items: &[S],
        alike: &Alike<impl Fn(&S) -> Option<(u64, usize, usize, F)> + Copy>,
    ) -> usize {
        // SAFETY: it is borrowed for `'q`, and this is the only reference to it.
        let handle = unsafe { self.owner.as_mut() }.handle();
        let kept = handle.send.contexts_from(self.mark);
        let id = self.mark | operation as u64;
        let (fours, kept) = (items.as_chunks().0, kept.as_chunks().0);
        // SAFETY: `slot` and those up to `stop` are of the ring, or it is the static (the invariant); nobody else uses them.
        let slot = unsafe { alike.build_fours(fours, kept, id, self.slot) };
        // SAFETY: both are of the ring, or the same.
        let built = unsafe { slot.offset_from(self.slot) } as usize;
        self.slot = slot;
        self.mark = self.mark.wrapping_add(built as u64 * STEP);
        built
    }

    /// The same with what is left: one that is not of four, or is the first of four that are not all for this way (some of them
    /// are built already, and are built again), and then four at a time again.
    #[inline(never)]
    fn build_rest<S, F: FnOnce(&mut ibv_send_wr)>(
        &mut self,
        operation: Operation,
        items: &[S],
        alike: &Alike<impl Fn(&S) -> Option<(u64, usize, usize, F)> + Copy>,
    ) -> usize {
        let mut built = 0;
        loop {
            built += self.build_fours(operation, &items[built..], alike);
            let Some(item) = items.get(built) else {
                return built;
            };
            // SAFETY: it is borrowed for `'q`, and this is the only reference to it.
            let handle = unsafe { self.owner.as_mut() }.handle();
            let kept = &handle.send.contexts_from(self.mark)[0];
            let id = self.mark | operation as u64;
            // SAFETY: a slot of the ring, or the static (the invariant), to which this is the only reference.
            if !unsafe { alike.build(item, kept, id, self.slot) } {
                return built;
            }
            self.mark = self.mark.wrapping_add(STEP);
            // SAFETY: it has a form, so it is before `stop`, and there is one behind it.
            self.slot = unsafe { self.slot.add(1) };
            built += 1;
        }
    }
}

/// What requests in a row have in common: their form, the region, and who says what each asks for.
#[derive(Clone, Copy)]
struct Alike<A> {
    own: Form,
    /// The first byte of the region, and its length.
    start: u64,
    size: usize,
    ask: A,
}

impl<A> Alike<A> {
    /// Builds requests four at a time, so that what the loop itself costs is paid once for four; it is a function of its own, so
    /// that all it needs is in registers. Returns the slot behind the last four of which all were built.
    ///
    /// # Safety
    /// The slot and those behind it, up to the first one without a form, can be read, and those with a form written; nobody else uses
    /// them.
    #[inline(never)]
    unsafe fn build_fours<S, F: FnOnce(&mut ibv_send_wr)>(
        &self,
        fours: &[[S; 4]],
        kept: &[[AtomicU64; 4]],
        mut id: u64,
        mut slot: *mut Slot<ibv_send_wr>,
    ) -> *mut Slot<ibv_send_wr>
    where
        A: Fn(&S) -> Option<(u64, usize, usize, F)> + Copy,
    {
        let alike = *self;
        'row: for (four, kept) in fours.iter().zip(kept) {
            for at in 0..4 {
                let id = id.wrapping_add(at as u64 * STEP);
                // SAFETY: those before it have a form, so there is one behind them; or it is the first one.
                if !unsafe { alike.build(&four[at], &kept[at], id, slot.add(at)) } {
                    break 'row;
                }
            }
            id = id.wrapping_add(4 * STEP);
            // SAFETY: as above.
            slot = unsafe { slot.add(4) };
        }
        slot
    }

    /// Builds a request, if it is for the short way. `false`: nothing was done.
    ///
    /// # Safety
    /// The slot can be read, and written if it has a form; nobody else uses it.
    #[inline(always)]
    unsafe fn build<S, F: FnOnce(&mut ibv_send_wr)>(
        &self,
        item: &S,
        kept: &AtomicU64,
        id: u64,
        slot: *mut Slot<ibv_send_wr>,
    ) -> bool
    where
        A: Fn(&S) -> Option<(u64, usize, usize, F)>,
    {
        // SAFETY: it can be read, says the caller.
        if !unsafe { &*slot }.is_of(self.own) {
            return false;
        }
        let Some((context, offset, len, fill)) = (self.ask)(item) else {
            return false;
        };
        if !holds_some(self.size, offset, len) {
            return false;
        }
        // SAFETY: it has a form, so it can be written, and this is the only reference to it, says the caller.
        let filled = unsafe { &mut *slot };
        filled.aim(self.start + offset as u64, len as u32);
        filled.request.wr_id = id;
        fill(&mut filled.request);
        kept.store(context, Relaxed);
        true
    }
}

impl<Q: HasQp> Drop for Run<'_, '_, Q> {
    #[inline(always)]
    fn drop(&mut self) {
        self.enter();
    }
}
