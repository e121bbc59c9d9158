//! The list of devices, and what they run.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rdma_core_sys::*;
use rustix::io::Errno;

use super::import::{Command, Shared};
use super::{context, fail, sys, why};
use crate::core::CallError;
use crate::core::rng::Rng;
use crate::node::{EventQueue, Node, Snapshot, StartError, lock, random_seed};
use crate::profile::{Profile, ProfileError};

/// A device. It lives until the process ends.
#[repr(C)]
pub(super) struct Device {
    abi: ibv_device,
    /// Providers that mistake the device for one of theirs read behind the ABI's struct.
    _room: [u8; 1024 - size_of::<ibv_device>()],
    name: String,
    pub(super) guid: u64,
    index: c_int,
    pub(super) profile: Profile,
    running: Mutex<Running>,
    /// Queries of each port.
    queries: Box<[AtomicU64]>,
    /// Bytes of device memory that are in use.
    pub(super) dm_used: AtomicU64,
}

/// The node of a device.
#[derive(Default)]
struct Running {
    node: Option<Arc<Node>>,
    opens: usize,
    last: Option<Snapshot>,
    /// Why it could not be opened, the last time that it was tried.
    error: Option<Arc<StartError>>,
    /// [`sys::forks`] when the node started.
    forks: u32,
}

/// All devices of the process, in the order in which they were added.
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// Adds a device with `profile` to the process and gives its name; the first is "soft0", with the
/// profile of the environment.
///
/// It is in the list that `ibv_get_device_list` gives from then on. Its node starts when it is
/// first opened, and stops when it is last closed; it can be opened again.
///
/// ```
/// use rdma_soft::{Profile, add_device};
///
/// let mut profile = Profile::default();
/// profile.faults = "loss=1%,seed=7".parse().unwrap();
/// let name = add_device(profile)?;
/// assert!(name.starts_with("soft"));
/// # Ok::<(), rdma_soft::ProfileError>(())
/// ```
///
/// # Errors
/// [`ProfileError`] if the profile, or that of the environment, is wrong.
pub fn add_device(profile: Profile) -> Result<String, ProfileError> {
    profile.check()?;
    let mut devices = lock(&DEVICES);
    with_first(&mut devices)?;
    Ok(push(&mut devices, profile).name.clone())
}

/// Makes sure that the device of the environment is there.
fn with_first(devices: &mut Vec<&'static Device>) -> Result<(), ProfileError> {
    if devices.is_empty() {
        push(devices, Profile::from_env()?);
    }
    Ok(())
}

fn push(devices: &mut Vec<&'static Device>, profile: Profile) -> &'static Device {
    let number = devices.len();
    let name = format!("soft{number}");
    let mut abi = ibv_device::zeroed();
    abi._ops = context::MARK.device_ops();
    abi.node_type = ibv_node_type::IBV_NODE_CA;
    abi.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
    set_text(&mut abi.name, &name);
    set_text(&mut abi.dev_name, &format!("uverbs-{name}"));
    set_text(
        &mut abi.dev_path,
        &format!("/sys/class/infiniband_verbs/uverbs-{name}"),
    );
    set_text(
        &mut abi.ibdev_path,
        &format!("/sys/class/infiniband/{name}"),
    );
    // Without random bytes the process number still tells the processes of this host apart.
    let seed = random_seed().unwrap_or_else(|_| u64::from(std::process::id()));
    let queries = profile.ports.iter().map(|_| AtomicU64::new(0)).collect();
    let device: &'static Device = Box::leak(Box::new(Device {
        abi,
        _room: [0; 1024 - size_of::<ibv_device>()],
        guid: guid(seed, number),
        index: c_int::try_from(number + 1).unwrap_or(c_int::MAX),
        name,
        profile,
        running: Mutex::default(),
        queries,
        dm_used: AtomicU64::new(0),
    }));
    devices.push(device);
    device
}

/// A locally administered EUI-64 that ends in the device's number.
fn guid(seed: u64, number: usize) -> u64 {
    let random = Rng::new(seed).next_u64();
    let local = (random & !0x0300_0000_0000_ffff) | 0x0200_0000_0000_0000;
    local | (number as u64 & 0xffff)
}

/// Writes a text into a zeroed field, cut to fit with its terminator.
pub(super) fn set_text(field: &mut [c_char], text: &str) {
    let room = field.len().saturating_sub(1);
    for (to, from) in field.iter_mut().take(room).zip(text.bytes()) {
        *to = from as c_char;
    }
}

impl Device {
    /// The pointer that C knows the device by.
    pub(super) fn as_abi(&'static self) -> *mut ibv_device {
        // C declares the struct mutable, and nobody writes it.
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Starts the node if it does not run, and counts one user more.
    pub(super) fn acquire(&self) -> Result<Arc<Node>, Arc<StartError>> {
        sys::count_forks();
        let mut running = lock(&self.running);
        if running.forks != sys::forks() {
            // The parent's node. It is not for this process to end it.
            std::mem::forget(running.node.take());
            (running.opens, running.forks) = (0, sys::forks());
        }
        let node = match running.node.take() {
            Some(node) => node,
            None => match Node::start(&self.profile) {
                Ok(node) => node,
                Err(error) => {
                    let error = Arc::new(error);
                    running.error = Some(Arc::clone(&error));
                    return Err(error);
                }
            },
        };
        if self.profile.explain {
            why::explain();
        }
        running.node = Some(Arc::clone(&node));
        running.opens += 1;
        running.error = None;
        Ok(node)
    }

    /// Counts one user less, and stops the node after the last.
    pub(super) fn release(&self) {
        let mut running = lock(&self.running);
        running.opens = running.opens.saturating_sub(1);
        if running.opens == 0
            && let Some(node) = running.node.take()
        {
            running.last = Some(node.stop());
        }
    }

    /// Counts a query of a port that there is.
    pub(super) fn count_query(&self, port: u8) {
        if let Some(queries) = self.queries(port) {
            queries.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Does something with the node, if it runs. That of a parent does not: its thread is not in this
    /// process, its locks may be held for ever, and its sockets are the parent's.
    pub(super) fn with_node<R>(&self, call: impl FnOnce(&Node) -> R) -> Option<R> {
        let running = lock(&self.running);
        let own = running.forks == sys::forks();
        let node = running.node.clone().filter(|_| own);
        drop(running);
        node.map(|node| call(&node))
    }

    /// The counters of the node that ran last, when it stopped.
    pub(super) fn last_counters(&self) -> Option<Snapshot> {
        lock(&self.running).last.clone()
    }

    /// Why it could not be opened the last time that it was tried.
    pub(super) fn last_error(&self) -> Option<Arc<StartError>> {
        lock(&self.running).error.clone()
    }

    /// Queries of a port, from 1.
    fn queries(&self, port: u8) -> Option<&AtomicU64> {
        self.queries.get(usize::from(port).checked_sub(1)?)
    }

    /// How often a port was asked about.
    pub(super) fn query_count(&self, port: u8) -> Option<u64> {
        Some(self.queries(port)?.load(Ordering::Relaxed))
    }
}

/// The device of that name.
pub(super) fn named(name: &str) -> Option<&'static Device> {
    lock(&DEVICES).iter().copied().find(|d| d.name == name)
}

/// The device behind a pointer that an application passed.
fn find(device: *mut ibv_device) -> Option<&'static Device> {
    lock(&DEVICES)
        .iter()
        .copied()
        .find(|d| ptr::eq(d.as_abi(), device))
}

pub(super) unsafe extern "C" fn get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let mut devices = lock(&DEVICES);
    if let Err(error) = with_first(&mut devices) {
        tracing::error!(%error, "the software device has no valid profile");
        return fail(CallError::invalid(error.to_string()));
    }
    let list: Box<[*mut ibv_device]> = (devices.iter().map(|d| d.as_abi()))
        .chain([ptr::null_mut()])
        .collect();
    if !num_devices.is_null() {
        // SAFETY: not null, so by the rules of ibv_get_device_list(3) it points to an int.
        unsafe { *num_devices = c_int::try_from(devices.len()).unwrap_or(c_int::MAX) };
    }
    Box::into_raw(list).cast()
}

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    let mut len = 0;
    // SAFETY: the caller passes a list of `get_device_list`, whose last entry is null: every entry
    // up to that one is inside.
    while !unsafe { *list.add(len) }.is_null() {
        len += 1;
    }
    let list = ptr::slice_from_raw_parts_mut(list, len + 1);
    // SAFETY: `get_device_list` made it by `Box::into_raw` from a slice of this length, and the
    // caller gives it back.
    drop(unsafe { Box::from_raw(list) });
}

pub(super) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    match find(device) {
        Some(device) => device.abi.name.as_ptr(),
        None => fail::<c_char>(unknown(Errno::INVAL)).cast_const(),
    }
}

pub(super) unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    find(device).map_or(0, |device| device.guid.to_be())
}

pub(super) unsafe extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    find(device).map_or(-1, |device| device.index)
}

fn unknown(errno: Errno) -> CallError {
    CallError::new(errno, "the device is none of this process's list")
}

pub(super) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Some(device) = find(device) else {
        return fail(unknown(Errno::NODEV));
    };
    match device.acquire() {
        Ok(node) => {
            let shared = Shared::new(device, node);
            let parts = Command::new(&shared).and_then(|command| Ok((command, EventQueue::new()?)));
            match parts {
                Ok((command, events)) => context::create(shared, command, events),
                Err(errno) => {
                    device.release();
                    fail(errno)
                }
            }
        }
        Err(error) => {
            tracing::error!(device = device.name, %error, "the software device cannot start");
            fail(CallError::new(error.errno(), error.to_string()))
        }
    }
}

// Nothing here is copied on fork and nothing marks pages: a fork needs no protection.
pub(super) unsafe extern "C" fn fork_init() -> c_int {
    0
}

pub(super) unsafe extern "C" fn is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status::IBV_FORK_UNNEEDED
}

/// The name of a running or known device, for messages.
pub(super) fn name_of(device: &'static Device) -> &'static str {
    // SAFETY: the field holds a terminated text, written once by `set_text`.
    let text = unsafe { CStr::from_ptr(device.abi.name.as_ptr()) };
    text.to_str().unwrap_or_default()
}
