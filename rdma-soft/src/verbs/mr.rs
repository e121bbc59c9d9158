//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};

use rdma_core_sys::*;
use rustix::io::Errno;

use super::{fail, object, sys};
use crate::mem::Region;

/// Our part of an `ibv_mr`.
pub(super) struct MrObject {
    lkey: u32,
}

/// Registers `length` bytes at `addr` for requests that name them from `iova` on.
///
/// # Errors
/// `EINVAL` for a length of 0 (so do kernel drivers, whose `ib_umem_get` refuses it), for a range
/// that wraps around, and for an `iova` that differs from `addr` in the offset within a page (uverbs
/// checks that); `EFAULT` for memory that is not mapped; `EOPNOTSUPP` for on-demand paging.
///
/// # Safety
/// `addr..addr + length` stays mapped until the region is deregistered, as ibv_reg_mr(3) asks, with
/// the rights that `access` promises to peers, and nobody holds a Rust reference to it meanwhile
/// that excludes other access.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: a PD that the application got from a verbs provider and has not freed.
    let (context, pd_soft) = unsafe { (object::context(pd)?, object::soft(pd)?) };
    // Optional rights are hints: a device that does not know them ignores them.
    let access = ibv_access_flags::from_bits_retain(access & !IBV_ACCESS_OPTIONAL_RANGE);
    if access.contains(ibv_access_flags::IBV_ACCESS_ON_DEMAND) {
        return Err(Errno::OPNOTSUPP);
    }
    let page_mask = rustix::param::page_size() as u64 - 1;
    let start = addr as usize;
    let wraps = start.checked_add(length).is_none() || iova.checked_add(length as u64).is_none();
    if addr.is_null() || length == 0 || wraps || (start as u64 ^ iova) & page_mask != 0 {
        return Err(Errno::INVAL);
    }
    sys::check_usable(
        start,
        length,
        access.contains(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
    )?;
    // SAFETY: mapped now with the rights that `access` gives away (a region without local write is only ever
    // read), and until deregistration by the caller's promise; `dereg_mr` and the
    // closing of the context end every use of the region before the application may unmap it.
    let region = unsafe { Region::from_raw(addr.cast(), length as u64) };
    let keys = context.node.reg_mr(pd_soft.id, region, iova, access)?;
    context.objects().mrs.insert(keys.lkey);
    let mut abi = ibv_mr::zeroed();
    // SAFETY: a live PD, as above.
    abi.context = unsafe { (*pd).context };
    abi.pd = pd;
    abi.addr = addr;
    abi.length = length;
    abi.handle = keys.lkey;
    abi.lkey = keys.lkey;
    abi.rkey = keys.rkey;
    Ok(object::create(abi, MrObject { lkey: keys.lkey }))
}

/// Where requests find a region that was registered without naming an address for it.
fn own_address(addr: *mut c_void, access: u32) -> u64 {
    let access = ibv_access_flags::from_bits_retain(access);
    if access.contains(ibv_access_flags::IBV_ACCESS_ZERO_BASED) {
        // As the kernel has it: zero but for the offset within the page.
        addr as u64 & (rustix::param::page_size() as u64 - 1)
    } else {
        addr as u64
    }
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let iova = own_address(addr, access as u32);
    // SAFETY: the application keeps the promises of ibv_reg_mr(3), which are those asked for.
    unsafe { register(pd, addr, length, iova, access as u32) }.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the application keeps the promises of ibv_reg_mr(3), which are those asked for.
    unsafe { register(pd, addr, length, iova, access as u32) }.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the application keeps the promises of ibv_reg_mr(3), which are those asked for.
    unsafe { register(pd, addr, length, iova, access) }.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: an MR that the application got from a verbs provider and has not deregistered.
    let freed = unsafe { object::context(mr).and_then(|c| Ok((c, object::soft(mr)?))) }.and_then(
        |(context, soft)| {
            context.node.dereg_mr(soft.lkey)?;
            context.objects().mrs.remove(&soft.lkey);
            Ok(())
        },
    );
    match freed {
        Ok(()) => {
            // SAFETY: one of ours, and the engine has forgotten it: the application is done with it.
            unsafe { object::free(mr) };
            0
        }
        Err(errno) => errno.raw_os_error(),
    }
}

/// Regions are not changed in place: deregister and register.
pub(super) unsafe extern "C" fn rereg_mr(
    _mr: *mut ibv_mr,
    _flags: c_int,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> c_int {
    sys::set_errno(Errno::OPNOTSUPP);
    ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0
}
