//! The libibverbs behind this library.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rdma_core_sys::Verbs;

/// What rdma-core installs.
const LIBRARY: &CStr = c"libibverbs.so.1";

/// The functions of libibverbs, `None` where there is none.
///
/// That of the process is taken, if the program or a library of it links one; else the one that the program loads by hand; else
/// the system's.
pub(crate) fn verbs() -> Option<&'static Verbs> {
    real().map(|real| &real.verbs)
}

/// The address behind this library of a symbol that is not in the table.
pub(crate) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the handle is RTLD_NEXT, or came from dlopen(3) and is never closed; the name is a C string.
    let address = real().map(|real| unsafe { libc::dlsym(real.handle, name.as_ptr()) })?;
    (!address.is_null()).then_some(address)
}

/// The program asked for a libibverbs by this path, before any was needed: its devices come from there.
pub(crate) fn prefer(path: &CStr) {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    asked.get_or_insert_with(|| path.to_owned());
}

static ASKED: Mutex<Option<CString>> = Mutex::new(None);

struct Real {
    verbs: Verbs,
    /// For dlsym(3).
    handle: *mut c_void,
}

// SAFETY: a handle of dlopen(3) is a name that any thread may use, and it is never closed.
unsafe impl Send for Real {}
// SAFETY: as above.
unsafe impl Sync for Real {}

fn real() -> Option<&'static Real> {
    static REAL: OnceLock<Option<Real>> = OnceLock::new();
    REAL.get_or_init(|| {
        let at = |source, handle| {
            // SAFETY: what the process has under the names and versions of libibverbs is a libibverbs, as it is for the program;
            // a library that the program links cannot be unloaded, and one that is loaded here never is.
            let verbs = unsafe { Verbs::from_handle(source, handle) }.ok()?;
            Some(Real { verbs, handle })
        };
        let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner).take();
        at("the process's libibverbs", libc::RTLD_NEXT)
            .or_else(|| at("the program's libibverbs", load(asked.as_deref()?)?))
            .or_else(|| at("the system's libibverbs", load(LIBRARY)?))
    })
    .as_ref()
}

/// Loads a library past our own `dlopen`.
fn load(path: &CStr) -> Option<*mut c_void> {
    // SAFETY: a path, and flags of dlopen(3). It is a libibverbs by its name, whose initialisers may run at any time.
    let handle = unsafe { dlopen()(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!handle.is_null()).then_some(handle)
}

/// The type of dlopen(3).
pub(crate) type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The C library's dlopen(3), which stands behind ours.
pub(crate) fn dlopen() -> Dlopen {
    static DLOPEN: Next = Next::new(c"dlopen");
    // SAFETY: the type is that of dlopen(3).
    unsafe { DLOPEN.get() }
}

/// The function that stands behind ours of the same name, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// The function of this name.
    pub(crate) const fn new(name: &'static CStr) -> Next {
        let address = AtomicPtr::new(std::ptr::null_mut());
        Next { name, address }
    }

    /// Its address.
    ///
    /// Ends the process if there is none: the program calls a function that its C library does not have.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function.
    pub(crate) unsafe fn get<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: a special handle and a C string.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if address.is_null() {
                crate::say(format_args!(
                    "the C library has no {}",
                    self.name.to_string_lossy()
                ));
                std::process::abort();
            }
            self.address.store(address, Ordering::Relaxed);
        }
        // SAFETY: the address of the function of this name, of which `F` is the type by the caller's promise.
        unsafe { std::mem::transmute_copy(&address) }
    }
}
