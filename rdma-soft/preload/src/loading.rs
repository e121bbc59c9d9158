//! Programs that load libibverbs by hand get this library, where they find the same functions.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};

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
        if is_libibverbs(path.to_bytes()) {
            return ourselves;
        }
    }
    real::dlopen()
}

/// `libibverbs.so`, with or without a version, in any directory.
fn is_libibverbs(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next();
    let rest = name.and_then(|name| name.strip_prefix(b"libibverbs.so"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
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
