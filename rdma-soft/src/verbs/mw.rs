//! Memory windows: none yet.

use std::ffi::c_int;

use rdma_core_sys::{ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp};
use rustix::io::Errno;

use super::fail;

pub(super) unsafe extern "C" fn alloc_mw(_pd: *mut ibv_pd, _kind: ibv_mw_type) -> *mut ibv_mw {
    fail(Errno::OPNOTSUPP)
}

pub(super) unsafe extern "C" fn bind_mw(
    _qp: *mut ibv_qp,
    _mw: *mut ibv_mw,
    _bind: *mut ibv_mw_bind,
) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}

pub(super) unsafe extern "C" fn dealloc_mw(_mw: *mut ibv_mw) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}
