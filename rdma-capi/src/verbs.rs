//! Which verbs library an object belongs to.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::OnceLock;

use rdma_core_sys::dispatch::{self, Object};
use rdma_core_sys::{Verbs, ibv_qp};
use rdma_qp::QpRef;

use crate::fault::{Fault, QP_CODE_SYSTEM, QP_CODE_UNSUPPORTED};

/// The libibverbs of this process: that which the program has, or else the system's.
pub(crate) fn verbs() -> Result<&'static Verbs, Fault> {
    static FOUND: OnceLock<Verbs> = OnceLock::new();
    match FOUND.get() {
        Some(verbs) => Ok(verbs),
        // Another time it may be there.
        None => {
            let found = Verbs::open()?;
            Ok(FOUND.get_or_init(|| found))
        }
    }
}

/// The functions that an object of the program's was made by.
///
/// # Safety
/// The object is alive.
unsafe fn table_of<T: Object>(object: NonNull<T>) -> Result<&'static Verbs, Fault> {
    // SAFETY: the caller promises that the object is alive.
    match unsafe { dispatch::table_of(object.as_ptr()) } {
        Some(software) => Ok(software),
        None => verbs(),
    }
}

/// The Queue Pair of the program's, for the time of a call.
///
/// # Safety
/// What the header says of every `struct ibv_qp *`: it is alive, with its PD, CQs and context, and nobody modifies it during
/// the call.
pub(crate) unsafe fn borrow<'a>(qp: NonNull<ibv_qp>) -> Result<QpRef<'a>, Fault> {
    // SAFETY: the caller promises a live QP.
    let verbs = unsafe { table_of(qp) }?;
    // SAFETY: the caller promises what `from_raw` asks for, for the time of the call, which the value does not leave.
    unsafe { QpRef::from_raw(verbs, qp.as_ptr()) }.map_err(|errno| match errno.raw_os_error() {
        libc::EOPNOTSUPP => {
            let text = "the QP is of a type that the transition rules do not know";
            Fault::new(QP_CODE_UNSUPPORTED, libc::EOPNOTSUPP, text)
        }
        number => {
            let text = format!("the device of the QP does not tell its attributes: {errno}");
            Fault::new(QP_CODE_SYSTEM, number as c_int, text)
        }
    })
}
