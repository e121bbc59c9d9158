//! Handles: what C holds is a number that only looks like a pointer. It names a slot of one table, the type of the object
//! there, and which of all objects that ever were in a slot is meant.
//!
//! ```text
//!  63 ........................ 24 | 23 ........ 6 | 5 ..... 0
//!  which of all objects, from 1   | slot          | type
//! ```
//!
//! No number is given twice: 2^40 objects can be made in the life of a process. So a handle that was destroyed, even if its
//! slot has been taken since, is told from one that lives, and a pointer to something else is no handle at all.
//!
//! Each slot has a *turn*: whoever enters an object takes it, so that an object serves one thread at a time, or, of objects
//! that many may use, is not destroyed meanwhile. A turn that is taken is not waited for: the call is refused.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::export::Take;
use crate::fault::*;

/// Bits of a handle that say its type.
const KIND_MASK: u64 = (1 << 6) - 1;
/// Bits of a handle that say its slot.
const SLOT_BITS: u32 = 17;
const SLOT_SHIFT: u32 = 6;
const SLOT_MASK: u64 = ((1 << SLOT_BITS) - 1) << SLOT_SHIFT;
/// Where the number of the object begins.
const NUMBER_SHIFT: u32 = 24;
/// Most objects at a time.
const SLOTS: usize = 1 << SLOT_BITS;

/// A turn that nobody has.
const FREE: u64 = 0;
/// A turn that one has alone. Below it is the number of those who share the object, or, above 2^24, the handle of the
/// region that a post with the object uses.
const ALONE: u64 = u64::MAX;

/// The types of objects. The numbers are in handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Device = 1,
    Pd = 2,
    Mr = 3,
    Cq = 4,
    Srq = 5,
    Pair = 6,
    Dest = 7,
    Exchange = 8,
    Listener = 9,
    Ref = 10,
    Domain = 11,
    Target = 12,
    Mesh = 13,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::Device,
        Kind::Pd,
        Kind::Mr,
        Kind::Cq,
        Kind::Srq,
        Kind::Pair,
        Kind::Dest,
        Kind::Exchange,
        Kind::Listener,
        Kind::Ref,
        Kind::Domain,
        Kind::Target,
        Kind::Mesh,
    ];

    /// Its type in C.
    fn name(self) -> &'static str {
        match self {
            Kind::Device => "qp_device",
            Kind::Pd => "qp_pd",
            Kind::Mr => "qp_mr",
            Kind::Cq => "qp_cq",
            Kind::Srq => "qp_srq",
            Kind::Pair => "qp_pair",
            Kind::Dest => "qp_dest",
            Kind::Exchange => "qp_exchange",
            Kind::Listener => "qp_listener",
            Kind::Ref => "qp_ref",
            Kind::Domain => "qp_xrc_domain",
            Kind::Target => "qp_xrc_target",
            Kind::Mesh => "qp_mesh",
        }
    }

    fn of(handle: u64) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .find(|kind| *kind as u64 == handle & KIND_MASK)
    }
}

/// An object that C has handles of.
///
/// # Safety
/// No two types have the same [`Object::KIND`].
pub(crate) unsafe trait Object: Send + Sized + 'static {
    /// Its type in C, which is never made: a pointer to it is a handle.
    type C;
    const KIND: Kind;
}

#[repr(align(64))]
struct Slot {
    /// The handle of the object that is here; 0 for none.
    handle: AtomicU64,
    /// Who is at it.
    turn: AtomicU64,
    /// A `Box` of the object.
    object: AtomicPtr<()>,
}

/// Pages of it that no slot was used of take no memory.
static TABLE: [Slot; SLOTS] = [const {
    Slot {
        handle: AtomicU64::new(0),
        turn: AtomicU64::new(FREE),
        object: AtomicPtr::new(ptr::null_mut()),
    }
}; SLOTS];

/// The slots that can be taken: those that were left, oldest first, and those from `fresh` on, which never had an object.
struct Pool {
    left: VecDeque<u32>,
    fresh: u32,
    /// Objects made so far.
    made: u64,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    left: VecDeque::new(),
    fresh: 0,
    made: 0,
});

/// Slots that were ever used: those to look through.
static USED: AtomicUsize = AtomicUsize::new(0);

/// So many slots stand between an object's end and the next one in its place, where there are enough.
const REST: usize = 1024;

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline(always)]
fn slot_of(handle: u64) -> &'static Slot {
    &TABLE[((handle & SLOT_MASK) >> SLOT_SHIFT) as usize]
}

/// The number that stands behind a pointer from C.
#[inline(always)]
pub(crate) fn number<T>(handle: *const T) -> u64 {
    handle.addr() as u64
}

/// Puts an object into a slot, and gives its handle.
pub(crate) fn insert<T: Object>(object: T) -> Result<*mut T::C, Fault> {
    let boxed = Box::new(object);
    let mut pool = pool();
    let fresh_first = (pool.fresh as usize) < SLOTS && pool.left.len() < REST;
    let index = if fresh_first {
        pool.fresh += 1;
        USED.store(pool.fresh as usize, Release);
        pool.fresh - 1
    } else {
        pool.left.pop_front().ok_or_else(|| {
            Fault::new(
                QP_CODE_LIMIT,
                libc::ENOMEM,
                format!("there are {SLOTS} objects already"),
            )
        })?
    };
    pool.made += 1;
    let handle = pool.made << NUMBER_SHIFT | u64::from(index) << SLOT_SHIFT | T::KIND as u64;
    drop(pool);
    let slot = slot_of(handle);
    slot.object.store(Box::into_raw(boxed).cast(), Relaxed);
    // Who reads the handle sees the object.
    slot.handle.store(handle, Release);
    Ok(ptr::without_provenance_mut(handle as usize))
}

/// Why a handle is none.
#[cold]
#[inline(never)]
fn no_object(handle: u64, wanted: Kind, name: &str) -> Fault {
    let wanted = wanted.name();
    if handle == 0 {
        return Fault::new(QP_CODE_NULL, libc::EINVAL, format!("{name} is NULL"));
    }
    let number = handle >> NUMBER_SHIFT;
    let known = (number != 0 && number <= pool().made)
        .then(|| Kind::of(handle))
        .flatten();
    match known.map(Kind::name) {
        None => {
            let text =
                format!("{name} is {handle:#x}, which is no handle: a {wanted} * was expected");
            Fault::new(QP_CODE_NO_HANDLE, libc::EBADF, text)
        }
        Some(found) if found != wanted => {
            let text = format!("{name} is a {found} *, but a {wanted} * was expected");
            Fault::new(QP_CODE_WRONG_HANDLE, libc::EBADF, text)
        }
        Some(_) => {
            let text = format!("{name} is a {wanted} * that was destroyed");
            Fault::new(QP_CODE_DESTROYED, libc::EBADF, text)
        }
    }
}

/// The same, by a function for each type: calls of one and the same would be made one, with what prepares it put in front
/// of the look.
#[cold]
#[inline(never)]
fn no_object_of<T: Object>(handle: u64, name: &str) -> Fault {
    no_object(handle, T::KIND, name)
}

#[cold]
#[inline(never)]
fn occupied(kind: Kind, name: &str) -> Fault {
    let text = format!(
        "{name} is in use by another thread, or by the call whose callback this is: one {} * serves one call at a time",
        kind.name()
    );
    Fault::new(QP_CODE_OCCUPIED, libc::EBUSY, text)
}

/// The slot of a handle that is alive now.
#[inline(always)]
fn find<T: Object>(handle: u64, name: &str) -> Result<&'static Slot, Fault> {
    let slot = slot_of(handle);
    if slot.handle.load(Acquire) != handle || handle & KIND_MASK != T::KIND as u64 {
        return Err(no_object_of::<T>(handle, name));
    }
    Ok(slot)
}

/// An object that one call has alone.
pub(crate) struct Alone<T: Object> {
    slot: &'static Slot,
    object: PhantomData<T>,
}

impl<T: Object> Alone<T> {
    /// Enters the object of a handle that came in a struct.
    pub(crate) fn of(raw: *mut T::C, name: &str) -> Result<Alone<T>, Fault> {
        Alone::enter(number(raw), name, ALONE)
    }

    /// Enters the object alone. `with` is the turn's value meanwhile: [`ALONE`], or the region that the call uses.
    #[inline(always)]
    fn enter(handle: u64, name: &str, with: u64) -> Result<Alone<T>, Fault> {
        let slot = find::<T>(handle, name)?;
        if slot
            .turn
            .compare_exchange(FREE, with, SeqCst, Relaxed)
            .is_err()
        {
            return Err(occupied(T::KIND, name));
        }
        let object = PhantomData;
        let entered = Alone { slot, object };
        // It may have been destroyed just before the turn was free.
        if slot.handle.load(SeqCst) != handle {
            return Err(no_object(handle, T::KIND, name));
        }
        Ok(entered)
    }
}

impl<T: Object> Deref for Alone<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the handle of this slot was of T's kind after the turn was taken, so `object` is the Box<T> that `insert`
        // put there; only `destroy` takes it away, which needs the turn too, and this value has it until it is dropped.
        unsafe { &*self.slot.object.load(Relaxed).cast::<T>() }
    }
}

impl<T: Object> DerefMut for Alone<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; nobody else has the turn, so nobody else has a reference to the object.
        unsafe { &mut *self.slot.object.load(Relaxed).cast::<T>() }
    }
}

impl<T: Object> Drop for Alone<T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slot.turn.store(FREE, Release);
    }
}

impl<T: Object> Take<*mut T::C> for Alone<T> {
    #[inline(always)]
    unsafe fn take(raw: *mut T::C, name: &'static str) -> Result<Self, Fault> {
        Alone::enter(number(raw), name, ALONE)
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
        let slot = find::<T>(handle, name)?;
        let more = |turn: u64| (turn < 1 << NUMBER_SHIFT).then_some(turn + 1);
        if slot.turn.fetch_update(SeqCst, Relaxed, more).is_err() {
            return Err(occupied(T::KIND, name));
        }
        let object = PhantomData;
        let entered = Held { slot, object };
        if slot.handle.load(SeqCst) != handle {
            return Err(no_object(handle, T::KIND, name));
        }
        Ok(entered)
    }
}

impl<T: Object + Sync> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the handle of this slot was of T's kind after the turn was shared, so `object` is the Box<T> that `insert`
        // put there; `destroy`, the only one that takes it away, needs the turn alone. T is Sync.
        unsafe { &*self.slot.object.load(Relaxed).cast::<T>() }
    }
}

impl<T: Object> Drop for Held<T> {
    fn drop(&mut self) {
        self.slot.turn.fetch_sub(1, Release);
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

impl<T: Object> Take<*mut T::C> for Option<Alone<T>> {
    unsafe fn take(raw: *mut T::C, name: &'static str) -> Result<Self, Fault> {
        if raw.is_null() {
            return Ok(None);
        }
        Alone::enter(number(raw), name, ALONE).map(Some)
    }
}

/// An object to post with, alone, and the object that the post uses, which many may use at a time: the first one's turn says
/// which that is, so nothing is written to the second one, and yet it is not destroyed meanwhile.
pub(crate) struct With<T: Object, U: Object> {
    poster: Alone<T>,
    used: &'static Slot,
    kind: PhantomData<U>,
}

impl<T: Object, U: Object + Sync> With<T, U> {
    #[inline(always)]
    pub(crate) fn enter(
        poster: *mut T::C,
        poster_name: &str,
        used: *mut U::C,
        used_name: &str,
    ) -> Result<With<T, U>, Fault> {
        let number_used = number(used);
        // What is no handle at all must not be taken for a count, or for a turn that nobody has.
        let slot = find::<U>(number_used, used_name)?;
        let poster = Alone::enter(number(poster), poster_name, number_used)?;
        // The turn was taken before this look, both in the one order of all such steps; `destroy` voids the handle and
        // looks at the turns afterwards. So either this look finds the handle void, or `destroy` finds the turn and waits.
        if slot.handle.load(SeqCst) != number_used {
            return Err(no_object(number_used, U::KIND, used_name));
        }
        let (used, kind) = (slot, PhantomData);
        Ok(With { poster, used, kind })
    }

    /// Both objects.
    #[inline(always)]
    pub(crate) fn both(&mut self) -> (&mut T, &U) {
        // SAFETY: the handle of this slot was of U's kind after the poster's turn named it, so `object` is the Box<U> that
        // `insert` put there; as long as the turn names it, which is as long as self lives, `destroy` waits before it takes
        // it away. U is Sync.
        let used = unsafe { &*self.used.object.load(Relaxed).cast::<U>() };
        (&mut self.poster, used)
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
}

impl<T: Object> Later<T> {
    /// Enters the object alone.
    #[inline(always)]
    pub(crate) fn alone(&self) -> Result<Alone<T>, Fault> {
        Alone::enter(number(self.handle), self.name, ALONE)
    }

    /// Enters the object alone, and `used`, which others may use.
    #[inline(always)]
    pub(crate) fn with<U: Object + Sync>(
        &self,
        used: *mut U::C,
        used_name: &str,
    ) -> Result<With<T, U>, Fault> {
        With::enter(self.handle, self.name, used, used_name)
    }

    /// Ends the object: `end` gives it back if it cannot be ended now, and then the handle is as before.
    pub(crate) fn destroy(
        self,
        end: impl FnOnce(T) -> Result<(), (T, Fault)>,
    ) -> Result<(), Fault> {
        destroy(number(self.handle), self.name, end)
    }
}

fn destroy<T: Object>(
    number: u64,
    name: &str,
    end: impl FnOnce(T) -> Result<(), (T, Fault)>,
) -> Result<(), Fault> {
    let slot = {
        let entered = Alone::<T>::enter(number, name, ALONE)?;
        let slot = entered.slot;
        slot.handle.store(0, SeqCst);
        // The turn is kept.
        std::mem::forget(entered);
        slot
    };
    // Posts that found the handle before end soon: they call nothing that waits.
    for other in TABLE.iter().take(USED.load(Acquire)) {
        while other.turn.load(SeqCst) == number {
            std::thread::yield_now();
        }
    }
    let object = slot.object.swap(ptr::null_mut(), Relaxed).cast::<T>();
    // SAFETY: the handle was of T's kind, so this is the Box<T> that `insert` put there; nobody finds it any more, nobody
    // has the turn, and nobody uses it by another's turn.
    let object = unsafe { Box::from_raw(object) };
    let leave = Leave { slot, number };
    match end(*object) {
        Ok(()) => Ok(()),
        Err((object, fault)) => {
            std::mem::forget(leave);
            slot.object
                .store(Box::into_raw(Box::new(object)).cast(), Relaxed);
            slot.handle.store(number, SeqCst);
            slot.turn.store(FREE, Release);
            Err(fault)
        }
    }
}

/// Makes a slot free again, whether its object ended well or with a panic.
struct Leave {
    slot: &'static Slot,
    number: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.slot.turn.store(FREE, Release);
        let index = (self.number & SLOT_MASK) >> SLOT_SHIFT;
        pool().left.push_back(index as u32);
    }
}
