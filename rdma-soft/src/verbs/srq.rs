//! Shared receive queues: none yet.

use std::ffi::c_int;

use rdma_core_sys::{ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use rustix::io::Errno;

use super::fail;

pub(super) unsafe extern "C" fn create_srq(
    _pd: *mut ibv_pd,
    _attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    fail(Errno::OPNOTSUPP)
}

pub(super) unsafe extern "C" fn modify_srq(
    _srq: *mut ibv_srq,
    _attr: *mut ibv_srq_attr,
    _mask: c_int,
) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}

pub(super) unsafe extern "C" fn query_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}

pub(super) unsafe extern "C" fn destroy_srq(_srq: *mut ibv_srq) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}
