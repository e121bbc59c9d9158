//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rdma_core_sys::*;
use rustix::io::Errno;

use super::dm::DeviceMemory;
use super::object::named;
use super::{fail, object, refuse, sys};
use crate::core::{CallError, MrKeys};
use crate::mem::Region;
use crate::node::lock;

/// A registration, of which there may be several handles.
pub(super) struct Registration {
    keys: MrKeys,
    /// The device memory that it lies in.
    pub(super) dm: Option<Arc<DeviceMemory>>,
    now: Mutex<Now>,
}

/// What a registration was made with, or given since.
struct Now {
    /// The application's address; 0 in device memory.
    start: usize,
    length: usize,
    access: ibv_access_flags,
}

/// Our part of an `ibv_mr`.
pub(super) struct MrObject {
    registration: Arc<Registration>,
}

/// Keys were given out that are not of registered memory of the application.
static OTHERS: AtomicBool = AtomicBool::new(false);

/// Whether this process was given remote keys that no call to register memory gave: of memory windows, of regions in device memory,
/// of imported regions. For whoever counts regions by the calls that make them.
///
/// The software device's own only.
pub fn has_other_keys() -> bool {
    OTHERS.load(Ordering::Relaxed)
}

/// From now on there are others.
pub(super) fn note_other_keys() {
    OTHERS.store(true, Ordering::Relaxed);
}

/// What is registered.
pub(super) struct Place {
    pub(super) region: Region,
    /// Where requests find its first byte.
    pub(super) iova: u64,
    /// The application's address; 0 in device memory.
    pub(super) start: usize,
    /// The device memory that it lies in.
    pub(super) dm: Option<Arc<DeviceMemory>>,
}

/// The rights that a program asks for, without those that are hints: a device that does not know them
/// ignores them.
///
/// # Errors
/// `EOPNOTSUPP` for on-demand paging.
pub(super) fn rights(access: u32) -> Result<ibv_access_flags, CallError> {
    let access = ibv_access_flags::from_bits_retain(access & !IBV_ACCESS_OPTIONAL_RANGE);
    if access.contains(ibv_access_flags::IBV_ACCESS_ON_DEMAND) {
        return Err(CallError::new(
            Errno::OPNOTSUPP,
            "this device has no on-demand paging (IBV_ACCESS_ON_DEMAND)",
        ));
    }
    Ok(access)
}

/// The memory `addr..addr + length`, for requests that name it from `iova` on.
///
/// # Errors
/// `EINVAL` for a length of 0 (so do kernel drivers, whose `ib_umem_get` refuses it), for a range
/// that wraps around, and for an `iova` that differs from `addr` in the offset within a page (uverbs
/// checks that); `EFAULT` for memory that is not mapped.
///
/// # Safety
/// `addr..addr + length` stays mapped until the region is deregistered or given other memory, as
/// ibv_reg_mr(3) asks, with the rights that `access` promises to peers, and nobody holds a Rust
/// reference to it meanwhile that excludes other access.
unsafe fn memory(
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: ibv_access_flags,
) -> Result<Region, CallError> {
    let page_mask = rustix::param::page_size() as u64 - 1;
    let start = addr as usize;
    if addr.is_null() || length == 0 {
        return Err(CallError::invalid("the address is null or the length is 0"));
    }
    if start.checked_add(length).is_none() || iova.checked_add(length as u64).is_none() {
        return Err(CallError::invalid("the range wraps around"));
    }
    if (start as u64 ^ iova) & page_mask != 0 {
        return Err(CallError::invalid(format!(
            "the iova {iova:#x} and the address {start:#x} differ in the offset within a page"
        )));
    }
    let write = access.contains(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE);
    sys::check_usable(start, length, write).map_err(|errno| {
        let rights = if write { "written" } else { "read" };
        CallError::new(
            errno,
            format!("{length} bytes from {start:#x} on cannot all be {rights}"),
        )
    })?;
    // SAFETY: mapped now with the rights that `access` gives away (a region without local write is only ever
    // read), and until deregistration by the caller's promise; `dereg_mr`, `rereg_mr` and the
    // closing of the context end every use of the region before the application may unmap it.
    Ok(unsafe { Region::from_raw(addr.cast(), length as u64) })
}

/// Registers `length` bytes at `addr` for requests that name them from `iova` on.
///
/// # Errors
/// What [`rights`], [`memory`] and [`register`] refuse.
///
/// # Safety
/// That of [`memory`].
unsafe fn register_memory(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, CallError> {
    let access = rights(access)?;
    let place = Place {
        // SAFETY: the caller's promise.
        region: unsafe { memory(addr, length, iova, access)? },
        iova,
        start: addr as usize,
        dm: None,
    };
    // SAFETY: a PD that the application got from a verbs provider and has not freed.
    let mr = unsafe { register(pd, place, access)? };
    // SAFETY: just made, and nobody else knows it yet.
    unsafe { (*mr).addr = addr };
    Ok(mr)
}

/// Registers `place`.
///
/// # Errors
/// What the engine refuses.
///
/// # Safety
/// `pd` is null, or a live PD of some verbs provider.
pub(super) unsafe fn register(
    pd: *mut ibv_pd,
    place: Place,
    access: ibv_access_flags,
) -> Result<*mut ibv_mr, CallError> {
    // SAFETY: the caller's promise.
    let (context, pd_soft) = unsafe { (object::context(pd)?, object::soft(pd)?) };
    let Place {
        region,
        iova,
        start,
        dm,
    } = place;
    let now = Now {
        start,
        length: usize::try_from(region.len()).unwrap_or(usize::MAX),
        access,
    };
    let keys = context.node.reg_mr(pd_soft.id, region, iova, access)?;
    let registration = Arc::new(Registration {
        keys,
        dm,
        now: Mutex::new(now),
    });
    (context.objects().mrs).insert(keys.lkey, Arc::clone(&registration));
    // SAFETY: a live PD, as above.
    Ok(unsafe { object_of(pd, registration) })
}

/// What the application holds of a registration: without its address, which is its own affair.
///
/// # Safety
/// `pd` is a live PD.
pub(super) unsafe fn object_of(pd: *mut ibv_pd, registration: Arc<Registration>) -> *mut ibv_mr {
    let mut abi = ibv_mr::zeroed();
    // SAFETY: a live PD by the caller's promise.
    abi.context = unsafe { (*pd).context };
    abi.pd = pd;
    abi.length = lock(&registration.now).length;
    abi.handle = registration.keys.lkey;
    abi.lkey = registration.keys.lkey;
    abi.rkey = registration.keys.rkey;
    object::create(abi, MrObject { registration })
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
    unsafe { register_memory(pd, addr, length, iova, access as u32) }.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the application keeps the promises of ibv_reg_mr(3), which are those asked for.
    unsafe { register_memory(pd, addr, length, iova, access as u32) }.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the application keeps the promises of ibv_reg_mr(3), which are those asked for.
    unsafe { register_memory(pd, addr, length, iova, access) }.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    let dereg = || -> Result<(), CallError> {
        // SAFETY: an MR that the application got from a verbs provider and has not deregistered.
        let (context, soft) = unsafe { (object::context(mr)?, object::soft(mr)?) };
        let lkey = soft.registration.keys.lkey;
        context.node.dereg_mr(lkey)?;
        context.objects().mrs.remove(&lkey);
        Ok(())
    };
    if let Err(error) = dereg() {
        return refuse(error);
    }
    // SAFETY: one of ours, and the engine has forgotten it: the application is done with it.
    unsafe { object::free(mr) };
    0
}

/// Changes a region in place: the memory, the protection domain, the rights, as `flags` say. What is
/// refused leaves the region as it was, so the code for that is always `IBV_REREG_MR_ERR_INPUT`
/// (ibv_rereg_mr(3)); `errno` says more.
pub(super) unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let flags = ibv_rereg_mr_flags::from_bits_retain(flags as u32);
    let rereg = || -> Result<(), CallError> {
        // SAFETY: an MR that the application got from a verbs provider and has not deregistered.
        let (context, soft) = unsafe { (object::context(mr)?, object::soft(mr)?) };
        let known =
            IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        if flags.is_empty() || flags.bits() & !known.bits() != 0 {
            return Err(CallError::invalid(format!(
                "flags is {:#x}: one or more of IBV_REREG_MR_CHANGE_TRANSLATION, _PD and _ACCESS",
                flags.bits()
            )));
        }
        if access != 0 && !flags.contains(IBV_REREG_MR_CHANGE_ACCESS) {
            return Err(CallError::invalid(
                "access is given, but not IBV_REREG_MR_CHANGE_ACCESS",
            ));
        }
        let new_access = match flags.contains(IBV_REREG_MR_CHANGE_ACCESS) {
            true => Some(rights(access as u32)?),
            false => None,
        };
        let mut now = lock(&soft.registration.now);
        let access = new_access.unwrap_or(now.access);
        let moves = flags.contains(IBV_REREG_MR_CHANGE_TRANSLATION);
        if soft.registration.dm.is_some() {
            let why = "the region lies in device memory: register what else is wanted";
            return Err(CallError::new(Errno::OPNOTSUPP, why));
        }
        let new_memory = if moves {
            let iova = own_address(addr, access.bits());
            // SAFETY: the application keeps the promises of ibv_rereg_mr(3): the new memory stays
            // mapped as that of ibv_reg_mr(3) does.
            Some((unsafe { memory(addr, length, iova, access)? }, iova))
        } else {
            if new_access.is_some() {
                // The rights must be those of the memory itself.
                let write = access.contains(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE);
                sys::check_usable(now.start, now.length, write)?;
            }
            None
        };
        let new_pd = if flags.contains(IBV_REREG_MR_CHANGE_PD) {
            // SAFETY: a PD that the application got from a verbs provider and has not freed.
            let found = unsafe { named((*mr).context, "pd", pd)? };
            Some(found.ok_or_else(|| CallError::invalid("pd is null"))?.id)
        } else {
            None
        };
        let lkey = soft.registration.keys.lkey;
        context
            .node
            .rereg_mr(lkey, new_memory, new_pd, new_access)?;
        now.access = access;
        if moves {
            (now.start, now.length) = (addr as usize, length);
        }
        Ok(())
    };
    if let Err(error) = rereg() {
        sys::set_errno(Errno::from_raw_os_error(refuse(error)));
        return ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
    }
    // SAFETY: a live MR of ours, as found out above.
    unsafe {
        if flags.contains(IBV_REREG_MR_CHANGE_TRANSLATION) {
            ((*mr).addr, (*mr).length) = (addr, length);
        }
        if flags.contains(IBV_REREG_MR_CHANGE_PD) {
            (*mr).pd = pd;
            object::moved(mr, pd);
        }
    }
    0
}
