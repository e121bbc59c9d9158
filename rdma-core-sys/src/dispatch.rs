//! Which function table an object belongs to, known by the object itself.
//!
//! A process may hold devices of libibverbs and of several copies of a device in Rust: one that was preloaded, one that the program
//! links. Whoever passes an object of one to a function of another crashes. So a device in Rust carries a [`Mark`], in a
//! place where devices of libibverbs are known to hold nothing like it, and [`table_of`] reads it:
//!
//! - a device in `ibv_device::_ops`, which `verbs.h` calls obsolete and never used: two null pointers in libibverbs' devices;
//! - a context behind `verbs_context::priv`, which in libibverbs is the head of a `struct verbs_ex_private`. From rdma-core v20 on that
//!   begins with a bitmap of the provider's operations, one bit each, in sixteen bytes. There are fewer operations than bits, and
//!   the bits beyond them are all 0 or all 1 (`MOST_OPERATIONS`), which those of the mark are not. A context of an older
//!   libibverbs is known by its size, and nothing behind it is looked at;
//! - every other object through its context, which is its first field.
//!
//! The mark holds a function that finds functions by name, and no table: so copies that were built apart, with tables of different
//! length or layout, understand one another.
//!
//! ```
//! use rdma_core_sys::{dispatch, ibv_device};
//!
//! let mut real = ibv_device::zeroed();
//! // SAFETY: a device as libibverbs makes them, and alive.
//! assert!(unsafe { dispatch::table_of(&raw mut real) }.is_none());
//! ```

use crate::types::*;
use crate::verbs::{LoadError, Verbs};
use core::ffi::{CStr, c_char, c_void};
use core::mem::offset_of;
use std::sync::{PoisonError, RwLock};

/// Finds a function of [`Verbs::SYMBOLS`] by its name: its address, or null.
pub type Find = unsafe extern "C" fn(name: *const c_char) -> *mut c_void;

/// What makes an object known as one of a device in Rust.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    find: Find,
    magic: usize,
}

/// No function can have this address, and no operations bitmap this second word.
const MAGIC: usize = usize::from_be_bytes(*b"rdmasoft");

/// The most operations that libibverbs can have before a bitmap of them could be taken for a mark.
///
/// It has 65 in rdma-core v20, 72 in v33, 83 in v64 and 93 in what becomes v65 (`struct verbs_context_ops` in `libibverbs/driver.h`
/// at commit 691953d8d502). The bits beyond are all 0, or all 1 once `bitmap_fill` (`util/bitmap.h`) has filled whole words for
/// a kernel that knows no ioctl (`libibverbs/cmd_fallback.c`).
const MOST_OPERATIONS: u32 = 126;
const _: () = {
    let first = MOST_OPERATIONS - usize::BITS;
    let (beyond, ones) = (MAGIC >> first, usize::MAX >> first);
    assert!(beyond != 0 && beyond != ones);
};

impl Mark {
    /// The mark of a device whose functions `find` finds.
    ///
    /// # Safety
    /// What `find` gives for a name of [`Verbs::SYMBOLS`] is null or a function as [`Verbs::new`] asks for, and it finds
    /// every required one. It takes any C string, from any thread, and stays for the life of the process.
    #[must_use]
    pub const unsafe fn new(find: Find) -> Self {
        Self { find, magic: MAGIC }
    }

    /// What goes into `ibv_device::_ops`.
    #[must_use]
    pub const fn device_ops(&self) -> _ibv_device_ops {
        _ibv_device_ops {
            _dummy1: Some(self.find),
            _dummy2: self.magic,
        }
    }

    /// What goes into `verbs_context::priv_`.
    #[must_use]
    pub const fn context_priv(&'static self) -> *mut verbs_ex_private {
        core::ptr::from_ref(self).cast_mut().cast()
    }
}

/// What verbs functions take a pointer to: a device, a context, or what was made in one.
///
/// # Safety
/// `mark` reads nothing beyond the C struct and what its fields point to in every live object, whoever made it.
pub unsafe trait Object {
    /// The mark of the device that the object belongs to, `None` for one of libibverbs.
    ///
    /// # Safety
    /// `this` points to a live object of this type.
    unsafe fn mark(this: *mut Self) -> Option<Mark>;
}

// SAFETY: only the first field is read, which every libibverbs since the first has there.
unsafe impl Object for ibv_device {
    unsafe fn mark(this: *mut Self) -> Option<Mark> {
        // SAFETY: a live device by the caller's promise; its first field is two words that nobody writes after it was made.
        let ops = unsafe { &raw const (*this)._ops };
        // SAFETY: as above. The first word is a function's address or null, whatever made it.
        match unsafe { ((*ops)._dummy1, (*ops)._dummy2) } {
            (Some(find), MAGIC) => Some(Mark { find, magic: MAGIC }),
            _ => None,
        }
    }
}

// SAFETY: what lies in front of the context is read only where the context says that it is there, and has the field.
unsafe impl Object for ibv_context {
    unsafe fn mark(this: *mut Self) -> Option<Mark> {
        const PRIV: usize = offset_of!(verbs_context, context) - offset_of!(verbs_context, priv_);
        const SZ: usize = offset_of!(verbs_context, context) - offset_of!(verbs_context, sz);
        /// The size that extended contexts have had since rdma-core v20, where `alloc_null_mr` was new.
        const V20: usize = size_of::<verbs_context>() - offset_of!(verbs_context, alloc_null_mr);
        // SAFETY: a live context by the caller's promise. `abi_compat` says that it is the tail of an extended one, which has its
        // size at the same distance in every version; a size that goes beyond `priv` says that this is there too.
        let private = unsafe {
            if (*this).abi_compat as usize != VERBS_ABI_IS_EXTENDED
                || *this.byte_sub(SZ).cast::<usize>() < V20
            {
                return None;
            }
            *this.byte_sub(PRIV).cast::<*const Mark>()
        };
        if private.is_null() {
            return None;
        }
        // SAFETY: behind `priv` is a mark, or the `struct verbs_ex_private` of a libibverbs of rdma-core v20 or later, by the size: its
        // bitmap alone is as long as a mark and as aligned. Both live as long as the context. The second word is read alone, as
        // the integer that it is in both.
        let magic = unsafe { (&raw const (*private).magic).read() };
        // SAFETY: no operations bitmap has this value (see the module), so it is a mark, made by `Mark::new`.
        (magic == MAGIC).then(|| unsafe { *private })
    }
}

macro_rules! in_a_context {
    ($($object:ty),* $(,)?) => { $(
        // SAFETY: only the first field is read, which is the context in every libibverbs since the first, and then that.
        unsafe impl Object for $object {
            unsafe fn mark(this: *mut Self) -> Option<Mark> {
                const { assert!(offset_of!($object, context) == 0) };
                // SAFETY: a live object by the caller's promise; its context lives longer.
                let context = unsafe { (*this).context };
                // SAFETY: as above, where it is not null.
                if context.is_null() { None } else { unsafe { ibv_context::mark(context) } }
            }
        }
    )* };
}

in_a_context!(
    ibv_pd,
    ibv_mr,
    ibv_mw,
    ibv_dm,
    ibv_td,
    ibv_ah,
    ibv_xrcd,
    ibv_comp_channel,
    ibv_cq,
    ibv_cq_ex,
    ibv_srq,
    ibv_qp,
    ibv_wq,
);

/// The table that serves `object`; `None` for null and for an object of libibverbs.
///
/// # Safety
/// `object` is null or points to a live object of its type, of libibverbs or of a device that carries a [`Mark`].
#[must_use]
pub unsafe fn table_of<T: Object>(object: *mut T) -> Option<&'static Verbs> {
    if object.is_null() || !object.is_aligned() {
        return None;
    }
    // SAFETY: not null, so a live object by the caller's promise.
    unsafe { T::mark(object) }.map(|mark| table(&mark))
}

/// The table of a mark: made when it is first seen, one for all objects of the same copy.
fn table(mark: &Mark) -> &'static Verbs {
    static KNOWN: RwLock<Vec<(usize, &'static Verbs)>> = RwLock::new(Vec::new());
    let key = mark.find as usize;
    let look = |known: &[(usize, &'static Verbs)]| {
        let found = known.iter().find(|(find, _)| *find == key);
        found.map(|(_, verbs)| *verbs)
    };
    if let Some(verbs) = look(&KNOWN.read().unwrap_or_else(PoisonError::into_inner)) {
        return verbs;
    }
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(verbs) = look(&known) {
        return verbs;
    }
    let verbs: &'static Verbs = Box::leak(Box::new(ask(mark)));
    known.push((key, verbs));
    verbs
}

/// Asks a mark for all functions.
fn ask(mark: &Mark) -> Verbs {
    let find = |symbol: &CStr, version: &CStr| {
        // SAFETY: `Mark::new` was promised that it takes any C string.
        let address = unsafe { (mark.find)(symbol.as_ptr()) };
        if address.is_null() {
            return Err(LoadError::missing("a device in Rust", symbol, version));
        }
        Ok(address)
    };
    // SAFETY: `Mark::new` was promised that these are the functions of the names.
    unsafe { Verbs::resolve("a device in Rust", find) }
        .unwrap_or_else(|error| unreachable!("a mark that breaks its promise: {error}"))
}

#[cfg(test)]
mod tests;
