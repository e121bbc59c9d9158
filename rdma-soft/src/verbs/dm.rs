//! Device memory: buffers that belong to the device, which applications copy into and out of, and register.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core_sys::*;
use rustix::io::Errno;

use super::device::Device;
use super::object::{NotOurs, named};
use super::{context, fail, mr, object, refuse, sys};
use crate::core::CallError;
use crate::mem::Region;

/// What offsets and lengths of copies are multiples of: adapters that have device memory ask for that.
const GRAIN: u64 = 4;
/// The coarsest alignment, as a power of two: a page of a device.
const MAX_LOG_ALIGN: u32 = 12;

/// A buffer, of which there may be several handles.
pub(super) struct DeviceMemory {
    bytes: Region,
    device: &'static Device,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let len = self.bytes.len();
        self.device.dm_used.fetch_sub(len, Ordering::AcqRel);
    }
}

/// Our part of an `ibv_dm`.
pub(super) struct DmObject {
    memory: Arc<DeviceMemory>,
    handle: u32,
    /// [`sys::forks`] when it was allocated or imported.
    forks: u32,
}

impl DmObject {
    /// The part that a copy is about.
    fn part(&self, offset: u64, length: usize) -> Result<Region, CallError> {
        if self.forks != sys::forks() {
            return Err(NotOurs::Inherited.into());
        }
        let part = self.memory.bytes.part(offset, length).map_err(|_| {
            let have = self.memory.bytes.len();
            let why = format!("{length} bytes from {offset} on: the device memory has {have}");
            CallError::new(Errno::FAULT, why)
        })?;
        if !offset.is_multiple_of(GRAIN) || !(length as u64).is_multiple_of(GRAIN) {
            let why = format!("{length} bytes from {offset} on: both are multiples of {GRAIN}");
            return Err(CallError::invalid(why));
        }
        Ok(part)
    }
}

/// What the application holds of device memory.
pub(super) fn object_of(
    ctx: *mut ibv_context,
    handle: u32,
    memory: Arc<DeviceMemory>,
) -> *mut ibv_dm {
    let mut abi = ibv_dm::zeroed();
    abi.context = ctx;
    abi.memcpy_to_dm = Some(memcpy_to_dm);
    abi.memcpy_from_dm = Some(memcpy_from_dm);
    abi.handle = handle;
    let forks = sys::forks();
    let soft = DmObject {
        memory,
        handle,
        forks,
    };
    object::create(abi, soft)
}

/// Allocates device memory. A child may do so in a context of its parent, as with the kernel's help, because that needs no
/// node; the memory is the child's own, and cannot be registered.
pub(super) unsafe extern "C" fn alloc_dm(
    ctx: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    static HANDLES: AtomicU32 = AtomicU32::new(1);
    let alloc = || -> Result<*mut ibv_dm, CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft_of_any_process(ctx)? };
        if attr.is_null() {
            return Err(CallError::invalid("no attributes"));
        }
        // SAFETY: not null, so it is the struct that ibv_alloc_dm(3) asks for.
        let attr = unsafe { attr.read() };
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > MAX_LOG_ALIGN {
            return Err(CallError::invalid(format!(
                "length is {}, log_align_req {}, comp_mask {:#x}: wanted are some bytes, at most {MAX_LOG_ALIGN}, and 0",
                attr.length, attr.log_align_req, attr.comp_mask
            )));
        }
        let (used, max) = (
            &context.device.dm_used,
            context.node.config().caps.max_dm_size,
        );
        let taken = used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            let sum = used.checked_add(attr.length as u64)?;
            (sum <= max).then_some(sum)
        });
        taken.map_err(|used| {
            let why = format!(
                "{} bytes: max_dm_size is {max}, {used} are in use",
                attr.length
            );
            CallError::new(Errno::NOMEM, why)
        })?;
        let memory = Arc::new(DeviceMemory {
            bytes: Region::owned_at(attr.length, 1 << attr.log_align_req),
            device: context.device,
        });
        let handle = HANDLES.fetch_add(1, Ordering::Relaxed);
        if !context.is_inherited() {
            context.objects().dms.insert(handle, Arc::clone(&memory));
        }
        Ok(object_of(ctx, handle, memory))
    };
    alloc().unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    let free = || -> Result<(), CallError> {
        // SAFETY: device memory that the application got from a verbs provider and has not freed.
        let (context, soft) = unsafe { object::of_any_process(dm)? };
        if context.is_inherited() {
            return Ok(());
        }
        let mut objects = context.objects();
        let regions: Vec<_> = (objects.mrs.iter())
            .filter(|(_, of)| {
                of.dm
                    .as_ref()
                    .is_some_and(|dm| Arc::ptr_eq(dm, &soft.memory))
            })
            .map(|(lkey, _)| format!("{lkey:#x}"))
            .collect();
        if !regions.is_empty() {
            let regions = regions.join(", ");
            return Err(CallError::busy(format!(
                "regions lie in the device memory: lkey {regions}"
            )));
        }
        let known = objects.dms.remove(&soft.handle);
        known.map(drop).ok_or_else(|| {
            CallError::invalid("the device memory was freed through another handle of it")
        })
    };
    if let Err(error) = free() {
        return refuse(error);
    }
    // SAFETY: one of ours, and no region lies in it: the application is done with it.
    unsafe { object::free(dm) };
    0
}

/// Registers a part of device memory. The addresses of the region begin with 0, whatever `dm_offset` is.
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    let register = || -> Result<*mut ibv_mr, CallError> {
        // SAFETY: a PD and device memory that the application got from a verbs provider and has not freed.
        let found = unsafe {
            object::soft(pd)?;
            named((*pd).context, "dm", dm)?
        };
        let found = found.ok_or_else(|| CallError::invalid("dm is null"))?;
        let access = mr::rights(access)?;
        if !access.contains(ibv_access_flags::IBV_ACCESS_ZERO_BASED) {
            return Err(CallError::invalid(
                "access has no IBV_ACCESS_ZERO_BASED: regions of device memory are zero-based",
            ));
        }
        let part = found.memory.bytes.part(dm_offset, length);
        // A region without bytes is one, as in the kernel (UVERBS_METHOD_DM_MR_REG).
        let part = part.map_err(|_| {
            let have = found.memory.bytes.len();
            CallError::invalid(format!(
                "{length} bytes from {dm_offset} on: the device memory has {have}"
            ))
        })?;
        let place = mr::Place {
            region: part,
            iova: 0,
            start: 0,
            dm: Some(Arc::clone(&found.memory)),
        };
        mr::note_other_keys();
        // SAFETY: a live PD, as above.
        unsafe { mr::register(pd, place, access) }
    };
    register().unwrap_or_else(fail)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: device memory that was not freed, and memory that can be read, by the rules of ibv_memcpy_to_dm(3).
    unsafe { copy(dm, dm_offset, host_addr.cast_mut(), length, true) }
}

unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: device memory that was not freed, and memory that can be written, by the rules of ibv_memcpy_from_dm(3).
    unsafe { copy(dm, dm_offset, host_addr, length, false) }
}

/// Copies between device memory and the application's.
///
/// # Safety
/// `dm` is live, of some verbs provider; `host` can be read for `length` bytes, or written if `into` is false, and nobody holds a
/// Rust reference to it that excludes that.
unsafe fn copy(
    dm: *mut ibv_dm,
    offset: u64,
    host: *mut c_void,
    length: usize,
    into: bool,
) -> c_int {
    let copy = || -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        let (_, soft) = unsafe { object::of_any_process(dm)? };
        let part = soft.part(offset, length)?;
        if host.is_null() && length > 0 {
            return Err(CallError::invalid("the address is null"));
        }
        // SAFETY: the caller's promise for the time of this call, which the region does not outlive; it is written in one case only.
        let host = unsafe { Region::from_raw(host.cast(), length as u64) };
        let done = match into {
            true => host.copy_to(0, &part, 0, length),
            false => part.copy_to(0, &host, 0, length),
        };
        done.map_err(|_| Errno::FAULT.into())
    };
    copy().map_or_else(refuse, |()| 0)
}
