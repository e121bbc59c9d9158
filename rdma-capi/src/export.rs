//! The border to C. A function crosses it only by [`export!`], which is the panic boundary, the NULL check and the
//! look-up of handles: what it hands to the body has been looked at.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::fault::{Fault, QP_CODE_NULL, QP_CODE_SHORT_BUFFER, QP_CODE_TEXT};
use crate::log;

/// Exports functions to C.
///
/// `name: c_type` is a number, or a struct of numbers. `name: c_type as Type` is anything else: `Type` takes it over with
/// [`Take`], which looks at it and refuses. The body gives a `Result<(), Fault>`, which becomes 0, or an errno with errno
/// set and the sentence noted. With `-> type, else value` the function cannot fail; `value` is what a panic gives.
///
/// `hot fn` leaves out the look whether the call comes from within the log callback: for what is called for every message.
/// With `first { ... } then { ... }` the first block does what most of the calls ask for, and gives `Some` of what the function
/// returns. It runs outside the panic boundary, so that nothing has to be saved for that: whatever can panic is put behind one
/// out of line. `None`,
/// or an argument that is refused: nothing was done, and the second block, the body, is run.
macro_rules! export {
    () => {};
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $c:ty $(as $take:ty)?),* $(,)?) $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $c),*) -> std::ffi::c_int {
            $crate::export::boundary(|| {
                $(#[allow(unused_mut)] let mut $arg = $crate::export::export!(@take $arg, $c $(, $take)?);)*
                $body
            })
        }
        $crate::export::export! { $($rest)* }
    };
    ($(#[$meta:meta])* hot fn $name:ident($($arg:ident: $c:ty $(as $take:ty)?),* $(,)?) $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $c),*) -> std::ffi::c_int {
            $crate::export::hot_boundary(#[inline(always)] || {
                $(#[allow(unused_mut)] let mut $arg = $crate::export::export!(@take $arg, $c $(, $take)?);)*
                $body
            })
        }
        $crate::export::export! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        hot fn $name:ident($($arg:ident: $c:ty $(as $take:ty)?),* $(,)?) first $usual:block then $body:block $($rest:tt)*
    ) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $c),*) -> std::ffi::c_int {
            #[cold]
            #[inline(never)]
            fn any($($arg: $c),*) -> std::ffi::c_int {
                $crate::export::hot_boundary(|| {
                    $(#[allow(unused_mut)] let mut $arg = $crate::export::export!(@take $arg, $c $(, $take)?);)*
                    $body
                })
            }
            let usual = $crate::export::usual(#[inline(always)] || {
                $(#[allow(unused_mut)] let mut $arg = $crate::export::export!(@glance $arg, $c $(, $take)?);)*
                $usual
            });
            match usual {
                Some(code) => code,
                None => any($($arg),*),
            }
        }
        $crate::export::export! { $($rest)* }
    };
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $c:ty),* $(,)?) -> $ret:ty, else $panicked:expr; $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $c),*) -> $ret {
            $crate::export::total_boundary(|| {
                $(let $arg = $crate::export::export!(@take $arg, $c);)*
                $body
            }, $panicked)
        }
        $crate::export::export! { $($rest)* }
    };
    (@take $arg:ident, $c:ty) => { $crate::export::plain::<$c>($arg) };
    (@take $arg:ident, $c:ty, $take:ty) => {
        // SAFETY: the argument comes from C, whose caller was told by the header what the pointer must be if it is not NULL,
        // and keeps it valid, and unchanged by others, during this call; what is taken does not leave the call.
        unsafe { <$take as $crate::export::Take<$c>>::take($arg, stringify!($arg)) }?
    };
    (@glance $arg:ident, $c:ty) => { $crate::export::plain::<$c>($arg) };
    (@glance $arg:ident, $c:ty, $take:ty) => {
        // SAFETY: as for `take` above.
        unsafe { <$take as $crate::export::Take<$c>>::glance($arg, stringify!($arg)) }?
    };
}
pub(crate) use export;

/// What a function returns to C.
fn answer(result: std::thread::Result<Result<(), Fault>>) -> c_int {
    match result {
        Ok(Ok(())) => 0,
        Ok(Err(fault)) => fault.tell(),
        Err(payload) => Fault::panicked(&*payload).tell(),
    }
}

/// Runs the body of an exported function: no panic leaves it, and it does not run within the log callback.
pub(crate) fn boundary(body: impl FnOnce() -> Result<(), Fault>) -> c_int {
    // A body that panicked has left the objects that it was at: each is whole, or marked so that nobody gets it any more.
    answer(catch_unwind(AssertUnwindSafe(|| {
        log::refuse_within()?;
        body()
    })))
}

/// Like [`boundary`], without the look at the log callback.
#[inline(always)]
pub(crate) fn hot_boundary(body: impl FnOnce() -> Result<(), Fault>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        other => answer(other),
    }
}

/// Runs what most calls ask for: it does not panic.
#[inline(always)]
pub(crate) fn usual(first: impl FnOnce() -> Option<c_int>) -> Option<c_int> {
    first()
}

/// Runs the body of a function that cannot fail.
pub(crate) fn total_boundary<T>(body: impl FnOnce() -> T, panicked: T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(panicked)
}

/// What can be handed over without a look at it: any bit pattern is a value.
pub(crate) trait Plain: Copy {}

macro_rules! plain {
    ($($ty:ty)+) => { $(impl Plain for $ty {})+ };
}
plain! { u8 u16 u32 u64 usize i32 i64 }
/// The program's own pointer for its callback: never looked at.
impl Plain for *mut c_void {}
/// A function of the program's: what it is called with, the header says.
impl Plain for crate::log::qp_log_fn {}
impl Plain for crate::exchange::qp_swap_fn {}
impl Plain for crate::supervised::qp_tell_fn {}
impl Plain for crate::supervised::qp_hear_fn {}
impl Plain for crate::datagrams::qp_stranger_fn {}
/// (It is the type of a repost function too.)
impl Plain for crate::exchange::qp_barrier_fn {}
impl Plain for crate::adopted::qp_wc_fn {}
impl Plain for crate::join::qp_completion_fn {}

#[inline(always)]
pub(crate) fn plain<T: Plain>(value: T) -> T {
    value
}

/// How an argument from C becomes what the body works with.
pub(crate) trait Take<C>: Sized {
    /// Looks at `raw`, the argument `name`.
    ///
    /// # Safety
    /// A pointer is NULL, or what the header says of the argument, during the call.
    unsafe fn take(raw: C, name: &'static str) -> Result<Self, Fault>;

    /// The same for `first`: why it is refused, `take` says afterwards.
    ///
    /// # Safety
    /// As for `take`.
    #[inline(always)]
    unsafe fn glance(raw: C, name: &'static str) -> Option<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::take(raw, name) }.ok()
    }
}

/// An argument is NULL that must not be.
#[cold]
#[inline(never)]
fn null(name: &str) -> Fault {
    Fault::new(QP_CODE_NULL, libc::EINVAL, format!("{name} is NULL"))
}

/// A struct that the caller gives.
pub(crate) struct In<'a, T>(pub(crate) &'a T);

impl<T> Take<*const T> for In<'_, T> {
    #[inline(always)]
    unsafe fn take(raw: *const T, name: &'static str) -> Result<Self, Fault> {
        // SAFETY: as the caller promises.
        unsafe { Self::glance(raw, name) }.ok_or_else(|| null(name))
    }

    #[inline(always)]
    unsafe fn glance(raw: *const T, _: &'static str) -> Option<Self> {
        // SAFETY: it is NULL or points to a T of the caller's during the call, and T is plain data (the header has no
        // struct with a value that Rust would not allow).
        unsafe { raw.as_ref() }.map(In)
    }
}

/// A struct that the caller may give.
impl<T> Take<*const T> for Option<In<'_, T>> {
    unsafe fn take(raw: *const T, _: &'static str) -> Result<Self, Fault> {
        // SAFETY: as for `In`.
        Ok(unsafe { raw.as_ref() }.map(In))
    }
}

/// Where a result goes. What is there before is not looked at.
pub(crate) struct Out<'a, T>(NonNull<T>, PhantomData<&'a mut T>);

impl<T> Out<'_, T> {
    #[inline(always)]
    pub(crate) fn set(&mut self, value: T) {
        // SAFETY: `take` was promised that the place can be written during the call, and this does not outlive it.
        unsafe { self.0.as_ptr().write(value) }
    }
}

impl<T> Out<'_, T> {
    /// The place itself.
    #[inline(always)]
    pub(crate) fn place(&mut self) -> &mut MaybeUninit<T> {
        // SAFETY: as in `set`; it has any content, and nobody else has it during the call.
        unsafe { self.0.cast().as_mut() }
    }
}

impl<T> Take<*mut T> for Out<'_, T> {
    #[inline(always)]
    unsafe fn take(raw: *mut T, name: &'static str) -> Result<Self, Fault> {
        // SAFETY: as the caller promises.
        unsafe { Self::glance(raw, name) }.ok_or_else(|| null(name))
    }

    #[inline(always)]
    unsafe fn glance(raw: *mut T, _: &'static str) -> Option<Self> {
        NonNull::new(raw).map(|at| Out(at, PhantomData))
    }
}

/// A result that the caller may not want.
impl<T> Take<*mut T> for Option<Out<'_, T>> {
    #[inline(always)]
    unsafe fn take(raw: *mut T, _: &'static str) -> Result<Self, Fault> {
        Ok(NonNull::new(raw).map(|at| Out(at, PhantomData)))
    }
}

/// A string of the caller's.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl Take<*const c_char> for Text<'_> {
    unsafe fn take(raw: *const c_char, name: &'static str) -> Result<Self, Fault> {
        // SAFETY: the promise to `take` is that of `Option<Text>`.
        let text = unsafe { <Option<Text<'_>> as Take<*const c_char>>::take(raw, name) }?;
        text.ok_or_else(|| null(name))
    }
}

impl Take<*const c_char> for Option<Text<'_>> {
    unsafe fn take(raw: *const c_char, name: &'static str) -> Result<Self, Fault> {
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: it is not NULL, so it is a string that ends with a zero byte, during the call.
        let text = unsafe { CStr::from_ptr(raw) };
        let text = text.to_str().map_err(|error| {
            Fault::new(
                QP_CODE_TEXT,
                libc::EINVAL,
                format!("{name} is not UTF-8: {error}"),
            )
        })?;
        Ok(Some(Text(text)))
    }
}

/// An object of libibverbs that the program owns.
pub(crate) struct Raw<T>(pub(crate) NonNull<T>);

impl<T> Take<*mut T> for Raw<T> {
    unsafe fn take(raw: *mut T, name: &'static str) -> Result<Self, Fault> {
        NonNull::new(raw).map(Raw).ok_or_else(|| null(name))
    }
}

/// The address of an array, whose length is another argument: [`Array::of`] puts the two together.
pub(crate) struct Array<'a, T> {
    at: *const T,
    name: &'static str,
    life: PhantomData<&'a [T]>,
}

impl<T> Take<*const T> for Array<'_, T> {
    unsafe fn take(at: *const T, name: &'static str) -> Result<Self, Fault> {
        let life = PhantomData;
        Ok(Array { at, name, life })
    }
}

impl<'a, T> Array<'a, T> {
    /// The same as [`Array::of`] for `first`; `None` also where it has no element.
    ///
    /// # Safety
    /// As for `of`.
    #[inline(always)]
    pub(crate) unsafe fn glance_of(&self, len: usize) -> Option<&'a [T]> {
        if self.at.is_null() || len == 0 || len > isize::MAX as usize / size_of::<T>() {
            return None;
        }
        // SAFETY: as in `of`.
        Some(unsafe { std::slice::from_raw_parts(self.at, len) })
    }

    /// The array, if it has `len` elements. NULL is fine for none.
    ///
    /// # Safety
    /// `len` is the argument that the header names as the array's length.
    pub(crate) unsafe fn of(&self, len: usize) -> Result<&'a [T], Fault> {
        if len == 0 {
            return Ok(&[]);
        }
        if self.at.is_null() {
            return Err(null(self.name));
        }
        fits::<T>(len, self.name)?;
        // SAFETY: the caller of the C function has `len` elements there, plain data, during the call; they do not wrap
        // round the address space, which was just looked at.
        Ok(unsafe { std::slice::from_raw_parts(self.at, len) })
    }
}

/// The address of an array for results, whose length is another argument.
pub(crate) struct Room<'a, T> {
    at: *mut T,
    name: &'static str,
    life: PhantomData<&'a mut [T]>,
}

impl<T> Take<*mut T> for Room<'_, T> {
    #[inline(always)]
    unsafe fn take(at: *mut T, name: &'static str) -> Result<Self, Fault> {
        let life = PhantomData;
        Ok(Room { at, name, life })
    }
}

impl<'a, T> Room<'a, T> {
    /// Room for `len` elements. NULL is fine for none.
    ///
    /// # Safety
    /// `len` is the argument that the header names as the array's length.
    #[inline(always)]
    pub(crate) unsafe fn of(&mut self, len: usize) -> Result<Places<'a, T>, Fault> {
        if self.at.is_null() && len != 0 {
            return Err(null(self.name));
        }
        fits::<T>(len, self.name)?;
        let (at, life) = (self.at, PhantomData);
        Ok(Places { at, len, life })
    }

    /// The same for `first`.
    ///
    /// # Safety
    /// As for `of`.
    #[inline(always)]
    pub(crate) unsafe fn glance_of(&mut self, len: usize) -> Option<Places<'a, T>> {
        let (at, life) = (self.at, PhantomData);
        (!at.is_null() && len <= isize::MAX as usize / size_of::<T>()).then_some(Places {
            at,
            len,
            life,
        })
    }

    /// Room for one element. `None`: there is none.
    ///
    /// # Safety
    /// The argument that the header names as the array's length is not 0.
    #[inline(always)]
    pub(crate) unsafe fn one(&mut self) -> Option<Out<'a, T>> {
        NonNull::new(self.at).map(|at| Out(at, PhantomData))
    }
}

/// Room for results. What is there before is not looked at.
pub(crate) struct Places<'a, T> {
    at: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<'a, T> From<Out<'a, T>> for Places<'a, T> {
    fn from(out: Out<'a, T>) -> Places<'a, T> {
        let (at, len, life) = (out.0.as_ptr(), 1, PhantomData);
        Places { at, len, life }
    }
}

impl<T> Places<'_, T> {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The places from that one on.
    #[inline(always)]
    pub(crate) fn from(&mut self, place: usize) -> &mut [MaybeUninit<T>] {
        let place = place.min(self.len);
        // SAFETY: there are `len` places that this alone has, see `Room::of`, of any content, in the caller's memory during the
        // call.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(place).cast(), self.len - place) }
    }

    /// Puts as many results as there is room for, from the first place on.
    pub(crate) fn fill(&mut self, values: &[T])
    where
        T: Copy,
    {
        self.fill_from(0, values);
    }

    /// Puts a message, all of it or nothing.
    pub(crate) fn fill_whole(&mut self, message: &[T]) -> Result<(), Fault>
    where
        T: Copy,
    {
        let (len, room) = (message.len(), self.len);
        if len > room {
            let text = format!("the message has {len} bytes; there is room for {room}");
            return Err(Fault::new(QP_CODE_SHORT_BUFFER, libc::ENOSPC, text));
        }
        self.fill(message);
        Ok(())
    }

    /// The same from that place on.
    pub(crate) fn fill_from(&mut self, place: usize, values: &[T])
    where
        T: Copy,
    {
        let count = values.len().min(self.len.saturating_sub(place));
        if count != 0 {
            // SAFETY: `count` places from `place` on are of the `len` that `Room::of` was promised, in memory of the caller's, which
            // no slice of this library is.
            unsafe { (self.at.add(place)).copy_from_nonoverlapping(values.as_ptr(), count) }
        }
    }

    /// Puts a result at a place; nothing happens beyond the end.
    #[inline(always)]
    pub(crate) fn set(&mut self, place: usize, value: T) {
        if place < self.len {
            // SAFETY: the place is one of the `len` that `Room::of` was promised.
            unsafe { self.at.add(place).write(value) }
        }
    }
}

/// No array of C is longer than half the address space.
#[inline(always)]
fn fits<T>(len: usize, name: &str) -> Result<(), Fault> {
    if len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(no_length(len, name));
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn no_length(len: usize, name: &str) -> Fault {
    Fault::range(format!(
        "the length {len} of {name} is no length of an array"
    ))
}

/// Copies `text` with its end into a buffer of `len` bytes; `needed` gets the length of the whole text, its end included.
pub(crate) fn put_text(
    text: &str,
    buffer: &mut Places<'_, c_char>,
    needed: Option<Out<'_, usize>>,
) -> Result<(), Fault> {
    if let Some(mut needed) = needed {
        needed.set(text.len() + 1);
    }
    let room = buffer.len();
    // What is cut off is cut between characters.
    let mut kept = text.len().min(room.saturating_sub(1));
    while !text.is_char_boundary(kept) {
        kept -= 1;
    }
    for (place, byte) in text.bytes().take(kept).chain([0]).enumerate() {
        buffer.set(place, byte as c_char);
    }
    if kept < text.len() || room == 0 {
        let text = format!(
            "the text has {} bytes with its end; the buffer has {room}",
            text.len() + 1
        );
        return Err(Fault::new(QP_CODE_SHORT_BUFFER, libc::ENOSPC, text));
    }
    Ok(())
}
