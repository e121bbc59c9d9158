//! The list of devices: libibverbs' and ours.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::sync::{Mutex, PoisonError};

use rdma_core_sys::{Verbs, ibv_context, ibv_device, ops};

use crate::{real, record, report};

/// The two lists that one of ours was made of, by its address.
static LISTS: Mutex<BTreeMap<usize, Parts>> = Mutex::new(BTreeMap::new());

struct Parts {
    /// The list itself, with its closing null.
    all: Box<[Device]>,
    real: Option<List>,
    soft: List,
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Device(*mut ibv_device);

// SAFETY: a device may be used from any thread (ibv_get_device_list(3) says nothing else, and programs do).
unsafe impl Send for Device {}

/// A list as one table gave it.
struct List {
    verbs: &'static Verbs,
    first: *mut *mut ibv_device,
    count: usize,
}

// SAFETY: a list may be freed by any thread.
unsafe impl Send for List {}

impl List {
    /// Asks `verbs`; `None` with errno if it has none.
    fn get(verbs: &'static Verbs) -> Option<List> {
        let mut count = 0;
        // SAFETY: `count` is writable.
        let first = unsafe { verbs.get_device_list(&mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        (!first.is_null()).then_some(List {
            verbs,
            first,
            count,
        })
    }

    fn devices(&self) -> impl Iterator<Item = Device> {
        // SAFETY: the list was not freed, and has `count` entries.
        (0..self.count).map(|i| Device(unsafe { *self.first.add(i) }))
    }

    fn free(self) {
        // SAFETY: the list came from this table and is freed once; it is gone after this.
        unsafe { self.verbs.free_device_list(self.first) };
    }
}

/// `ibv_get_device_list`.
///
/// # Safety
/// `num_devices` is null or writable.
pub(crate) unsafe fn get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    report::at_exit();
    record::begin();
    // A libibverbs that finds no kernel support has no list (ENOSYS); ours is all there is then.
    let real = real::verbs().and_then(List::get);
    let Some(soft) = List::get(rdma_soft::verbs()) else {
        let errno = ops::errno();
        if let Err(error) = rdma_soft::Profile::from_env() {
            crate::say(format_args!("{error}"));
        }
        real.into_iter().for_each(List::free);
        ops::set_errno(errno);
        return std::ptr::null_mut();
    };
    let devices = real.iter().flat_map(List::devices).chain(soft.devices());
    let mut all: Box<[Device]> = devices.chain([Device(std::ptr::null_mut())]).collect();
    let list = all.as_mut_ptr().cast::<*mut ibv_device>();
    if !num_devices.is_null() {
        // SAFETY: not null, so writable by the caller's promise.
        unsafe { *num_devices = c_int::try_from(all.len() - 1).unwrap_or(c_int::MAX) };
    }
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    lists.insert(list as usize, Parts { all, real, soft });
    list
}

/// `ibv_free_device_list`.
///
/// # Safety
/// `list` is null, or came from [`get_device_list`] or from libibverbs itself, and is not used any more.
pub(crate) unsafe fn free_device_list(list: *mut *mut ibv_device) {
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    let parts = lists.remove(&(list as usize));
    drop(lists);
    match parts {
        Some(Parts { all, real, soft }) => {
            drop(all);
            real.into_iter().for_each(List::free);
            soft.free();
        }
        None if list.is_null() => {}
        None => {
            if let Some(real) = real::verbs() {
                // SAFETY: none of ours, so by the caller's promise one of libibverbs, and not used any more.
                unsafe { real.free_device_list(list) };
            }
        }
    }
}

/// The names of our devices.
pub(crate) fn names() -> Vec<String> {
    let Some(list) = List::get(rdma_soft::verbs()) else {
        return Vec::new();
    };
    let names = list
        .devices()
        .map(|device| name(list.verbs, device.0))
        .collect();
    list.free();
    names
}

/// The name of a device of `verbs`.
fn name(verbs: &Verbs, device: *mut ibv_device) -> String {
    // SAFETY: the callers pass live devices of this table; the name is a C string that lives as long as its device.
    unsafe { CStr::from_ptr(verbs.get_device_name(device)) }
        .to_string_lossy()
        .into_owned()
}

/// `ibv_open_device`, on `verbs`, which the device belongs to. Says on standard error why one of ours cannot be opened: an errno
/// alone, such as that of an address in use, would not tell.
///
/// # Safety
/// `device` is null or a live device of `verbs`.
pub(crate) unsafe fn open_device(
    verbs: &'static Verbs,
    device: *mut ibv_device,
) -> *mut ibv_context {
    // SAFETY: the caller's promise.
    let context = unsafe { verbs.open_device(device) };
    if context.is_null() && !device.is_null() {
        let errno = ops::errno();
        let name = name(verbs, device);
        if let Some(error) = rdma_soft::open_error(&name) {
            crate::say(format_args!("{name}: {error}"));
        }
        ops::set_errno(errno);
    }
    context
}
