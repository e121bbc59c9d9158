//! Turns: how a call enters an object, alone or with others, and leaves it.
//!
//! What stands in a turn that is taken names the first slot of a type, so that it is no handle:
//!
//! * [`TAKEN`]: one call has the object alone.
//! * [`POSTING`]: one call has it alone, and uses a region by it.
//! * [`SHARER`] times a number: so many calls are at it.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};

use rdma_qp::Mr;

use super::{Kind, NUMBER_SHIFT, Object, Slot, TAKEN, destroy, number, refused, slot_of, used};
use crate::export::Take;
use crate::fault::Fault;

/// See [`With`].
const POSTING: u64 = 1;

/// See [`Held`]. Below it is all of a handle but the number of the object.
const SHARER: u64 = 1 << NUMBER_SHIFT;

/// The types of what posts.
const POSTERS: [Kind; 2] = [Kind::Pair, Kind::Srq];

/// An object that one call has alone.
pub(crate) struct Alone<T: Object> {
    slot: &'static Slot,
    object: PhantomData<T>,
}

impl<T: Object> Alone<T> {
    /// Enters the object of a handle that came in a struct.
    pub(crate) fn of(raw: *mut T::C, name: &str) -> Result<Alone<T>, Fault> {
        Alone::enter(number(raw), name)
    }

    #[inline(always)]
    pub(super) fn enter(handle: u64, name: &str) -> Result<Alone<T>, Fault> {
        Alone::try_enter(handle, TAKEN).ok_or_else(|| refused::<T>(handle, name))
    }

    /// Enters the object of a handle, whose turn is `with` meanwhile.
    #[inline(always)]
    pub(super) fn try_enter(handle: u64, with: u64) -> Option<Alone<T>> {
        let slot = slot_of::<T>(handle)?;
        // It is that handle only while the object is there and nobody has the turn.
        match slot.turn.compare_exchange(handle, with, SeqCst, Relaxed) {
            Ok(_) => Some(Alone {
                slot,
                object: PhantomData,
            }),
            // (No `Alone` was made: it would give the turn of another back.)
            Err(_) => None,
        }
    }

    /// The handle.
    pub(crate) fn handle(&self) -> *mut T::C {
        std::ptr::without_provenance_mut(self.slot.handle.load(Relaxed) as usize)
    }

    /// Keeps the turn for good.
    pub(super) fn keep(self) -> &'static Slot {
        let slot = self.slot;
        std::mem::forget(self);
        slot
    }
}

impl<T: Object> Deref for Alone<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the turn was that of a handle of T's kind, so `object` is the T that `insert` put there before; only
        // `destroy` takes it away, which needs the turn too, and this value has it until it is dropped.
        unsafe { &*self.slot.object.load(Relaxed).cast::<T>() }
    }
}

impl<T: Object> DerefMut for Alone<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        const { assert!(!matches!(T::KIND, Kind::Mr)) }
        // SAFETY: as for `deref`; nobody else has the turn, and it is no region, the only kind with other owners (`share`), so
        // nobody else has a reference to the object. The pointer is that of an Arc, made from a place that can be written.
        unsafe { &mut *self.slot.object.load(Relaxed).cast::<T>() }
    }
}

impl<T: Object> Drop for Alone<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // The handle changes only by who has the turn.
        let handle = self.slot.handle.load(Relaxed);
        self.slot.turn.store(handle, Release);
    }
}

impl<T: Object> Take<*mut T::C> for Alone<T> {
    #[inline(always)]
    unsafe fn take(raw: *mut T::C, name: &'static str) -> Result<Self, Fault> {
        Alone::enter(number(raw), name)
    }

    #[inline(always)]
    unsafe fn glance(raw: *mut T::C, _: &'static str) -> Option<Self> {
        Alone::try_enter(number(raw), TAKEN)
    }
}

impl<T: Object> Take<*mut T::C> for Option<Alone<T>> {
    unsafe fn take(raw: *mut T::C, name: &'static str) -> Result<Self, Fault> {
        if raw.is_null() {
            return Ok(None);
        }
        Alone::enter(number(raw), name).map(Some)
    }
}

/// An object that many calls may be at.
pub(crate) struct Held<T: Object> {
    slot: &'static Slot,
    object: PhantomData<T>,
}

impl<T: Object + Sync> Held<T> {
    /// Enters the object of a handle that came in a struct.
    pub(crate) fn of(raw: *mut T::C, name: &str) -> Result<Held<T>, Fault> {
        Held::enter(number(raw), name)
    }

    fn enter(handle: u64, name: &str) -> Result<Held<T>, Fault> {
        Held::try_enter(handle).ok_or_else(|| refused::<T>(handle, name))
    }

    fn try_enter(handle: u64) -> Option<Held<T>> {
        let slot = slot_of::<T>(handle)?;
        let more = |turn: u64| match turn {
            _ if turn == handle => Some(SHARER),
            _ if turn >= SHARER && turn.is_multiple_of(SHARER) => Some(turn + SHARER),
            _ => None,
        };
        slot.turn.fetch_update(SeqCst, Relaxed, more).ok()?;
        let object = PhantomData;
        let entered = Held { slot, object };
        // Those who share it may be at another object, which has the slot now.
        (slot.handle.load(SeqCst) == handle).then_some(entered)
    }
}

impl Held<Mr> {
    /// Makes the caller an owner, too: the region is not destroyed before it is let go of.
    pub(crate) fn share(&self) -> Arc<Mr> {
        let object: *const Mr = self.slot.object.load(Relaxed).cast();
        // SAFETY: as for `deref`: it is what `insert` made of an Arc<Mr>, and the slot is one of its owners as long as self
        // lives. The count that is added here is that of the Arc which is given out.
        unsafe {
            Arc::increment_strong_count(object);
            Arc::from_raw(object)
        }
    }
}

impl<T: Object + Sync> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the handle of this slot was of T's kind after the turn was shared, so `object` is the T that `insert`
        // put there; `destroy`, the only one that takes it away, needs the turn alone. T is Sync.
        unsafe { &*self.slot.object.load(Relaxed).cast::<T>() }
    }
}

impl<T: Object> Drop for Held<T> {
    fn drop(&mut self) {
        let slot = self.slot;
        let less = |turn: u64| match turn {
            // The last one. The handle changes only by who has the turn alone.
            SHARER => Some(slot.handle.load(Relaxed)),
            more => Some(more - SHARER),
        };
        // It is never refused.
        let _ = slot.turn.fetch_update(AcqRel, Relaxed, less);
    }
}

impl<T: Object + Sync> Take<*mut T::C> for Held<T> {
    unsafe fn take(raw: *mut T::C, name: &'static str) -> Result<Self, Fault> {
        Held::enter(number(raw), name)
    }
}

impl<T: Object + Sync> Take<*mut T::C> for Option<Held<T>> {
    unsafe fn take(raw: *mut T::C, name: &'static str) -> Result<Self, Fault> {
        if raw.is_null() {
            return Ok(None);
        }
        Held::enter(number(raw), name).map(Some)
    }
}

/// An object to post with, alone, and the region that the post uses, which many may use at a time: nothing is written to the
/// second one, and yet it is not destroyed meanwhile, because who destroys a region awaits every post that is under way.
pub(crate) struct With<T: Object, U: Object> {
    poster: Alone<T>,
    used: &'static Slot,
    kind: PhantomData<U>,
}

impl<T: Object, U: Object + Sync> With<T, U> {
    #[inline(always)]
    fn enter(
        poster: u64,
        poster_name: &str,
        used: u64,
        used_name: &str,
    ) -> Result<With<T, U>, Fault> {
        let poster =
            Alone::try_enter(poster, POSTING).ok_or_else(|| refused::<T>(poster, poster_name))?;
        With::using(poster, used).ok_or_else(|| refused::<U>(used, used_name))
    }

    #[inline(always)]
    fn using(poster: Alone<T>, handle: u64) -> Option<With<T, U>> {
        const {
            assert!(matches!(U::KIND, Kind::Mr));
            assert!(matches!(T::KIND, Kind::Pair | Kind::Srq));
        }
        let used = slot_of::<U>(handle)?;
        // The turn was taken before this look, both in the one order of all such steps; `destroy` voids the handle and
        // looks at the turns afterwards. So either this look finds the handle void, or `destroy` finds the turn and waits.
        let lives = used.handle.load(SeqCst) == handle;
        let kind = PhantomData;
        lives.then_some(With { poster, used, kind })
    }

    /// Both objects.
    #[inline(always)]
    pub(crate) fn both(&mut self) -> (&mut T, &U) {
        // SAFETY: the handle of this slot was of U's kind after the poster's turn said that it posts, so `object` is the
        // U that `insert` put there; as long as the turn says so, which is as long as self lives, `destroy` waits before
        // it takes it away. U is Sync.
        let used = unsafe { &*self.used.object.load(Relaxed).cast::<U>() };
        (&mut self.poster, used)
    }
}

/// Waits until no post is under way that began before this: they end soon, they call nothing that waits.
pub(super) fn await_posts() {
    for slot in POSTERS.into_iter().flat_map(used) {
        while slot.turn.load(SeqCst) == POSTING {
            std::thread::yield_now();
        }
    }
}

/// A handle that the body of the call looks up itself.
pub(crate) struct Later<T: Object> {
    handle: *mut T::C,
    name: &'static str,
}

impl<T: Object> Take<*mut T::C> for Later<T> {
    #[inline(always)]
    unsafe fn take(handle: *mut T::C, name: &'static str) -> Result<Self, Fault> {
        Ok(Later { handle, name })
    }

    #[inline(always)]
    unsafe fn glance(handle: *mut T::C, name: &'static str) -> Option<Self> {
        Some(Later { handle, name })
    }
}

impl<T: Object> Later<T> {
    /// Enters the object alone.
    #[inline(always)]
    pub(crate) fn alone(&self) -> Result<Alone<T>, Fault> {
        Alone::enter(number(self.handle), self.name)
    }

    /// Enters the object alone, and a region, which others may use.
    #[inline(always)]
    pub(crate) fn with<U: Object + Sync>(
        &self,
        used: *mut U::C,
        used_name: &str,
    ) -> Result<With<T, U>, Fault> {
        With::enter(number(self.handle), self.name, number(used), used_name)
    }

    /// The same for `first` of an exported function.
    #[inline(always)]
    pub(crate) fn glance_with<U: Object + Sync>(&self, used: *mut U::C) -> Option<With<T, U>> {
        With::using(
            Alone::try_enter(number(self.handle), POSTING)?,
            number(used),
        )
    }

    /// Ends the object: `end` gives it back if it cannot be ended now, and then the handle is as before.
    pub(crate) fn destroy(
        self,
        end: impl FnOnce(T) -> Result<(), (T, Fault)>,
    ) -> Result<(), Fault> {
        destroy(number(self.handle), self.name, end)
    }
}
