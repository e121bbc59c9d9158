//! Address handles and multicast: none yet, since they belong to UD.

use std::ffi::c_int;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::device::minus_one;
use super::fail;

pub(super) unsafe extern "C" fn create_ah(
    _pd: *mut ibv_pd,
    _attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    fail(Errno::OPNOTSUPP)
}

pub(super) unsafe extern "C" fn create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _port_num: u8,
) -> *mut ibv_ah {
    fail(Errno::OPNOTSUPP)
}

pub(super) unsafe extern "C" fn init_ah_from_wc(
    _context: *mut ibv_context,
    _port_num: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    minus_one(Errno::OPNOTSUPP)
}

pub(super) unsafe extern "C" fn destroy_ah(_ah: *mut ibv_ah) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}

pub(super) unsafe extern "C" fn attach_mcast(
    _qp: *mut ibv_qp,
    _gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}

pub(super) unsafe extern "C" fn detach_mcast(
    _qp: *mut ibv_qp,
    _gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}

/// There is no Ethernet below this device.
pub(super) unsafe extern "C" fn resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _eth_mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}
