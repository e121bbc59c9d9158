//! The functions of the C library that take a path, in front of the real ones.

use std::ffi::{CStr, c_char, c_int};

use rdma_core_sys::ops;

use super::{Entry, entry};
use crate::real::Next;

/// What is made up at a path at which the real call found nothing, the last of which errno says.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn instead(path: *const c_char) -> Option<Entry> {
    let errno = ops::errno();
    if path.is_null() || errno != libc::ENOENT {
        return None;
    }
    // SAFETY: not null, so a C string by the caller's promise.
    let found = entry(unsafe { CStr::from_ptr(path) }.to_bytes());
    ops::set_errno(errno);
    found
}

/// Ends a call of this file as the C library does: -1 and errno.
fn failed(errno: c_int) -> c_int {
    ops::set_errno(errno);
    -1
}

/// A C string from an identifier.
macro_rules! name {
    ($name:ident) => {
        match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a name has no zero byte"),
        }
    };
}

/// Functions that fill in a stat: the real one first, then what is made up.
macro_rules! stats {
    ($($name:ident ($($before:ident: $type:ty,)*; path, buf $(, $after:ident: $after_type:ty)?);)*) => { $(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// That of stat(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $type,)* path: *const c_char, buf: *mut libc::stat $(, $after: $after_type)?) -> c_int {
            type Function = unsafe extern "C" fn($($type,)* *const c_char, *mut libc::stat $(, $after_type)?) -> c_int;
            static REAL: Next = Next::new(name!($name));
            // SAFETY: the type is that of the function of this name.
            let real: Function = unsafe { REAL.get() };
            // SAFETY: the caller keeps the contract of the real function.
            let result = unsafe { real($($before,)* path, buf $(, $after)?) };
            if result == 0 {
                return 0;
            }
            // SAFETY: a C string or null, as the function takes it.
            match unsafe { instead(path) } {
                Some(entry) if !buf.is_null() => {
                    // SAFETY: not null, so writable by the contract of the function. On 64 bits all of these take this struct.
                    unsafe { buf.write(entry.stat()) };
                    0
                }
                _ => result,
            }
        }
    )* };
}

stats! {
    stat(; path, buf);
    stat64(; path, buf);
    lstat(; path, buf);
    lstat64(; path, buf);
    __xstat(version: c_int,; path, buf);
    __xstat64(version: c_int,; path, buf);
    __lxstat(version: c_int,; path, buf);
    __lxstat64(version: c_int,; path, buf);
    fstatat(dir: c_int,; path, buf, flags: c_int);
    fstatat64(dir: c_int,; path, buf, flags: c_int);
}

/// access(2).
///
/// # Safety
/// That of access(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    type Function = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    static REAL: Next = Next::new(c"access");
    // SAFETY: the type is that of access(2).
    let real: Function = unsafe { REAL.get() };
    // SAFETY: the caller keeps the contract of the real function.
    let result = unsafe { real(path, mode) };
    if result == 0 {
        return 0;
    }
    // SAFETY: a C string or null, as the function takes it.
    match unsafe { instead(path) } {
        Some(entry) if entry.grants(mode) => 0,
        Some(_) => failed(libc::EACCES),
        None => result,
    }
}

/// Functions that open a file. The mode is an argument only where a file may be made; on the processors that this library knows an
/// argument that was not passed is a register with any value, and passing that on changes nothing.
macro_rules! opens {
    ($($name:ident ($($before:ident: $type:ty,)*; path, flags, mode);)*) => { $(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// That of open(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $type,)* path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
            type Function = unsafe extern "C" fn($($type,)* *const c_char, c_int, ...) -> c_int;
            static REAL: Next = Next::new(name!($name));
            // SAFETY: the type is that of the function of this name.
            let real: Function = unsafe { REAL.get() };
            // SAFETY: the caller keeps the contract of the real function.
            let result = unsafe { real($($before,)* path, flags, mode) };
            if result >= 0 {
                return result;
            }
            // SAFETY: a C string or null, as the function takes it.
            match unsafe { instead(path) } {
                Some(entry) => entry.open(flags).unwrap_or_else(failed),
                None => result,
            }
        }
    )* };
}

opens! {
    open(; path, flags, mode);
    open64(; path, flags, mode);
    openat(dir: c_int,; path, flags, mode);
    openat64(dir: c_int,; path, flags, mode);
}
