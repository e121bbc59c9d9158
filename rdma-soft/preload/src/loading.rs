//! Programs that load libibverbs by hand get this library, where they find the same functions; and UCX, which loads its part for
//! verbs by hand, is told what it must know of the device.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::real;

/// dlopen(3) of the program.
///
/// The C library's own looks at its return address, to know whose RPATH and namespace count: so this asks [`target`] which
/// function the call is for, and jumps there with registers and stack as they came.
///
/// # Safety
/// That of dlopen(3).
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(filename: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {target}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        target = sym target,
    )
}

/// dlopen(3) of the program.
///
/// The C library's own looks at its return address, to know whose RPATH and namespace count: so this asks [`target`] which
/// function the call is for, and jumps there with registers and stack as they came.
///
/// # Safety
/// That of dlopen(3).
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(filename: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "stp x0, x1, [sp, #-32]!",
        "str x30, [sp, #16]",
        "bl {target}",
        "mov x16, x0",
        "ldr x30, [sp, #16]",
        "ldp x0, x1, [sp], #32",
        "br x16",
        target = sym target,
    )
}

/// The function that serves dlopen(3) of this file name.
unsafe extern "C" fn target(filename: *const c_char) -> real::Dlopen {
    if !filename.is_null() {
        // SAFETY: not null, so a C string by the rules of dlopen(3).
        let path = unsafe { CStr::from_ptr(filename) };
        if is_library(path.to_bytes(), b"libibverbs.so") {
            return ourselves;
        }
        if is_library(path.to_bytes(), b"libuct_ib.so") {
            tell_ucx();
        }
    }
    real::dlopen()
}

/// A library of this name, with or without a version, in any directory.
fn is_library(path: &[u8], wanted: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next();
    let rest = name.and_then(|name| name.strip_prefix(wanted));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

/// UCX 1.13 takes from `wc.sl` of a datagram which IP version it came by, as ConnectX adapters tell it there, and drops what it takes
/// for wrong. This device has the service level in that field, as verbs have it. So UCX is told not to look, unless the user has
/// said something: it reads its settings from the environment after it has loaded its part for verbs.
fn tell_ucx() {
    const NAME: &CStr = c"UCX_UD_VERBS_ETH_DGID_CHECK";
    const SETTING: &CStr = c"UCX_UD_VERBS_ETH_DGID_CHECK=n";
    unsafe extern "C" {
        static mut environ: *mut *const c_char;
    }
    // SAFETY: the environment is an array with a null at its end, or null (environ(7)). It is replaced by a longer one, as a program
    // may do, and both stay: who reads it meanwhile reads one or the other, which setenv(3) would not promise. Who changes it
    // meanwhile would do harm without this, too, because UCX is about to read it.
    unsafe {
        if !libc::getenv(NAME.as_ptr()).is_null() {
            return;
        }
        let now = AtomicPtr::from_ptr(&raw mut environ);
        let mut entry = now.load(Ordering::Acquire);
        let mut all = Vec::new();
        while !entry.is_null() && !(*entry).is_null() {
            all.push(*entry);
            entry = entry.add(1);
        }
        all.extend([SETTING.as_ptr(), std::ptr::null()]);
        now.store(
            Box::leak(all.into_boxed_slice()).as_mut_ptr(),
            Ordering::Release,
        );
    }
}

/// dlopen(3) of this library, which is loaded already.
unsafe extern "C" fn ourselves(filename: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: a C string, as `target` saw it.
    real::prefer(unsafe { CStr::from_ptr(filename) });
    // SAFETY: all-zero is valid for pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address of this library, and a place for what is known of it.
    let known = unsafe { libc::dladdr(ourselves as *const c_void, &mut info) };
    let path = if known == 0 { filename } else { info.dli_fname };
    // SAFETY: a C string of the dynamic linker's, or of the caller; the flags are the caller's.
    unsafe { real::dlopen()(path, flags) }
}
