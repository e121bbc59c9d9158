//! Handles: what C holds is a number that only looks like a pointer. It names a slot of a table, the type of the object
//! there, and which of all objects that ever were made is meant.
//!
//! ```text
//!  63 ........................ 24 | 23 ........ 6 | 5 ..... 0
//!  which of all objects, from 1   | slot, from 1  | type
//! ```
//!
//! No number is given twice: 2^40 objects can be made in the life of a process. So a handle that was destroyed, even if its
//! slot has been taken since, is told from one that lives, and a pointer to something else is no handle at all. Each type
//! has slots of its own, so that a handle of another type is found in no slot of this one.
//!
//! Each slot has a *turn*: whoever enters an object takes it, so that an object serves one thread at a time, or, of objects
//! that many may use, is not destroyed meanwhile. A turn that is taken is not waited for: the call is refused. A turn that
//! nobody has *is* the handle: so one step finds the object and takes its turn.

mod turn;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fault::*;

pub(crate) use turn::{Alone, Held, Later, With};

/// Bits of a handle that say its type.
const KIND_MASK: u64 = (1 << 6) - 1;
/// Set beside the type of an object that is being ended, and may yet stay: no handle has it, for types are below it.
const ENDING: u64 = 1 << 5;
/// Where the slot begins. A slot is so large that these bits, alone, are its distance from the first one.
const SLOT_SHIFT: u32 = 6;
/// Where the number of the object begins.
const NUMBER_SHIFT: u32 = 24;

/// The types of objects. The numbers are in handles. (16 is left out, because pointers to anything else mostly end so.)
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
    Supervised = 14,
    Window = 15,
    Datagrams = 17,
    Shared = 18,
}

impl Kind {
    const ALL: [Kind; 17] = [
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
        Kind::Supervised,
        Kind::Window,
        Kind::Datagrams,
        Kind::Shared,
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
            Kind::Supervised => "qp_supervised",
            Kind::Window => "qp_window",
            Kind::Datagrams => "qp_datagrams",
            Kind::Shared => "qp_shared",
        }
    }

    fn of(handle: u64) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .find(|kind| *kind as u64 == handle & KIND_MASK)
    }

    /// Its place in [`Kind::ALL`].
    const fn index(self) -> usize {
        let number = self as usize;
        assert!(number < ENDING as usize);
        number - 1 - (number > 16) as usize
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

/// A place for an object.
///
/// No value of `turn` or `handle` but a handle of this slot is taken for one, because every other value names the first slot of
/// its type, and that is never used.
#[repr(align(64))]
struct Slot {
    /// The handle, if nobody has the turn; else who has it: see `turn`.
    turn: AtomicU64,
    /// The handle of the object that is here, with [`ENDING`] where it is being ended; 0 for none.
    handle: AtomicU64,
    /// The object, whose count of owners has one for this slot.
    object: AtomicPtr<()>,
}

const _: () = assert!(size_of::<Slot>() == 1 << SLOT_SHIFT);

/// The turn of a slot without object, or of an object that one call has alone.
const TAKEN: u64 = 0;

/// Slots of a type of which a program may have one, or several, for each peer; and of any other: a power of two, one more than
/// there can be objects at a time.
const MANY: usize = 1 << 16;
const FEW: usize = 1 << 13;

const fn empty<const N: usize>() -> [Slot; N] {
    [const {
        Slot {
            turn: AtomicU64::new(TAKEN),
            handle: AtomicU64::new(0),
            object: AtomicPtr::new(ptr::null_mut()),
        }
    }; N]
}

// Pages of them that no slot was used of take no memory.
static MRS: [Slot; MANY] = empty();
static PAIRS: [Slot; MANY] = empty();
static DESTS: [Slot; MANY] = empty();
static CQS: [Slot; FEW] = empty();
static OTHERS: [[Slot; FEW]; Kind::ALL.len()] = [const { empty() }; Kind::ALL.len()];

/// The slots of a type.
#[inline(always)]
fn table(kind: Kind) -> &'static [Slot] {
    match kind {
        Kind::Mr => &MRS,
        Kind::Pair => &PAIRS,
        Kind::Dest => &DESTS,
        Kind::Cq => &CQS,
        other => &OTHERS[other.index()],
    }
}

/// The slots of a type that can be taken: those that were left, oldest first, and those behind the first `used`, which never
/// had an object.
struct Pool {
    left: VecDeque<u32>,
    used: usize,
}

struct Pools {
    of: [Pool; Kind::ALL.len()],
    /// Objects made so far.
    made: u64,
}

static POOLS: Mutex<Pools> = Mutex::new(Pools {
    of: [const {
        Pool {
            left: VecDeque::new(),
            used: 1,
        }
    }; Kind::ALL.len()],
    made: 0,
});

/// Slots of each type that were ever used, and the first: those to look through.
static USED: [AtomicUsize; Kind::ALL.len()] = [const { AtomicUsize::new(1) }; Kind::ALL.len()];

/// So many slots stand between an object's end and the next one in its place, where there are enough.
const REST: usize = 1024;

fn pools() -> MutexGuard<'static, Pools> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The slot that a handle of T would have. `None`: it would have the first, which is nobody's.
#[inline(always)]
fn slot_of<T: Object>(handle: u64) -> Option<&'static Slot> {
    let slots = table(T::KIND);
    let distance = handle as usize & (slots.len() - 1) << SLOT_SHIFT;
    if distance == 0 {
        return None;
    }
    // SAFETY: the number of slots is a power of two, so the mask leaves the distance in bytes, see `SLOT_SHIFT`, of one of them
    // from the first.
    Some(unsafe { &*slots.as_ptr().byte_add(distance) })
}

/// The slots of a type that were ever used.
fn used(kind: Kind) -> &'static [Slot] {
    &table(kind)[..USED[kind.index()].load(Acquire)]
}

/// The number that stands behind a pointer from C.
#[inline(always)]
pub(crate) fn number<T>(handle: *const T) -> u64 {
    handle.addr() as u64
}

/// A slot that no object is in, for one that is about to be there.
pub(crate) struct Place<T: Object> {
    index: u32,
    object: PhantomData<T>,
}

impl<T: Object> Place<T> {
    /// Takes a slot.
    pub(crate) fn take() -> Result<Place<T>, Fault> {
        let pool = &mut pools().of[T::KIND.index()];
        let index = if pool.used < table(T::KIND).len() && pool.left.len() < REST {
            pool.used += 1;
            USED[T::KIND.index()].store(pool.used, Release);
            pool.used as u32 - 1
        } else {
            pool.left.pop_front().ok_or_else(|| {
                let (most, name) = (table(T::KIND).len() - 1, T::KIND.name());
                let text = format!("there are {most} objects of {name} already");
                Fault::new(QP_CODE_LIMIT, libc::ENOMEM, text)
            })?
        };
        let object = PhantomData;
        Ok(Place { index, object })
    }

    /// Puts an object there, and gives its handle.
    pub(crate) fn fill(self, object: T) -> *mut T::C {
        let index = self.index;
        std::mem::forget(self);
        let made = {
            let mut pools = pools();
            pools.made += 1;
            pools.made
        };
        let handle = made << NUMBER_SHIFT | u64::from(index) << SLOT_SHIFT | T::KIND as u64;
        let slot = &table(T::KIND)[index as usize];
        let object = Arc::into_raw(Arc::new(object)).cast_mut();
        slot.object.store(object.cast(), Relaxed);
        // Who reads the handle sees the object, here and there.
        slot.handle.store(handle, Release);
        slot.turn.store(handle, Release);
        ptr::without_provenance_mut(handle as usize)
    }
}

impl<T: Object> Drop for Place<T> {
    fn drop(&mut self) {
        table(T::KIND)[self.index as usize].handle.store(0, SeqCst);
        pools().of[T::KIND.index()].left.push_back(self.index);
    }
}

/// Puts an object into a slot, and gives its handle.
pub(crate) fn insert<T: Object>(object: T) -> Result<*mut T::C, Fault> {
    Ok(Place::take()?.fill(object))
}

/// Ends the object of a handle: `end` gives it back if it cannot be ended now, and then the handle is as before.
fn destroy<T: Object>(
    number: u64,
    name: &str,
    end: impl FnOnce(T) -> Result<(), (T, Fault)>,
) -> Result<(), Fault> {
    // The turn is kept.
    let slot = Alone::<T>::enter(number, name)?.keep();
    slot.handle.store(number | ENDING, SeqCst);
    if T::KIND == Kind::Mr {
        turn::await_posts();
    }
    let object = slot.object.swap(ptr::null_mut(), Relaxed).cast::<T>();
    // SAFETY: the turn was that of a handle of T's kind, so this is what `insert` made of an Arc<T>, with one of its owners;
    // nobody finds it any more, nobody else has the turn, and no post uses it: what may was awaited.
    let object = unsafe { Arc::from_raw(object) };
    // It is given to others, whether the object ends well or with a panic; its turn stays taken until it has one again.
    let place = Place::<T> {
        index: (number >> SLOT_SHIFT) as u32 & (table(T::KIND).len() - 1) as u32,
        object: PhantomData,
    };
    let ended = match Arc::try_unwrap(object) {
        Ok(object) => end(object).map_err(|(object, fault)| (Arc::new(object), fault)),
        Err(object) => {
            let text = format!("{name} is of a request that waits to be posted: poll, and advance");
            Err((object, Fault::new(QP_CODE_IN_USE, libc::EBUSY, text)))
        }
    };
    ended.map_err(|(object, fault)| {
        std::mem::forget(place);
        slot.object
            .store(Arc::into_raw(object).cast_mut().cast(), Relaxed);
        slot.handle.store(number, SeqCst);
        slot.turn.store(number, Release);
        fault
    })
}

/// Why a handle cannot be entered.
#[cold]
#[inline(never)]
fn refused<T: Object>(handle: u64, name: &str) -> Fault {
    let kind = T::KIND;
    if slot_of::<T>(handle).is_some_and(|slot| slot.handle.load(Acquire) & !ENDING == handle) {
        let text = format!(
            "{name} is in use by another thread, or by the call whose callback this is: one {} * serves one call at a time",
            kind.name()
        );
        return Fault::new(QP_CODE_OCCUPIED, libc::EBUSY, text);
    }
    no_object(handle, kind, name)
}

/// Why a handle is none.
#[cold]
fn no_object(handle: u64, wanted: Kind, name: &str) -> Fault {
    let wanted = wanted.name();
    if handle == 0 {
        return Fault::new(QP_CODE_NULL, libc::EINVAL, format!("{name} is NULL"));
    }
    let number = handle >> NUMBER_SHIFT;
    let known = (number != 0 && number <= pools().made)
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
