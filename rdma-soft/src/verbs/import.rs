//! Contexts that share an open device and its objects: `ibv_import_device` and what is imported into its contexts.
//!
//! The kernel knows an open device by the descriptor through which commands go to it, and a duplicate of that is the same open
//! device. No commands go to a kernel here, so the descriptor is an empty file in memory, and its inode says which open device it
//! is. It says so within the process whose node it is: other processes that are given the descriptor cannot import it.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rdma_core_sys::*;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::device::{Device, name_of};
use super::inventory::Objects;
use super::object::{Abi, NotOurs};
use super::{context, dm, fail, mr, object, pd, sys, why};
use crate::core::{CallError, PdId};
use crate::node::{EventQueue, Node, lock};

/// An open device: what its context and those that are imported from it have in common.
pub(super) struct Shared {
    pub(super) device: &'static Device,
    pub(super) node: Arc<Node>,
    objects: Mutex<Objects>,
}

impl Shared {
    /// An open device without objects.
    pub(super) fn new(device: &'static Device, node: Arc<Node>) -> Arc<Shared> {
        let objects = Mutex::default();
        Arc::new(Shared {
            device,
            node,
            objects,
        })
    }

    /// The objects that were made and not destroyed yet.
    pub(super) fn objects(&self) -> MutexGuard<'_, Objects> {
        lock(&self.objects)
    }
}

impl Drop for Shared {
    /// Objects that the application left behind end here, as they do in the kernel: nothing may touch its memory afterwards.
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.objects());
        left.end(&self.node);
    }
}

/// The command descriptors of all open contexts of this process, by which they can be imported.
static COMMANDS: Mutex<Vec<Known>> = Mutex::new(Vec::new());

struct Known {
    fd: RawFd,
    inode: (u64, u64),
    /// [`sys::forks`] when it was opened.
    forks: u32,
    shared: Weak<Shared>,
}

/// The command descriptor of a context.
pub(super) struct Command(OwnedFd);

impl Command {
    /// A new one.
    pub(super) fn new(shared: &Arc<Shared>) -> Result<Command, Errno> {
        let name = name_of(shared.device);
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        let inode = inode(&fd)?;
        Ok(Command::known(fd, inode, shared))
    }

    fn known(fd: OwnedFd, inode: (u64, u64), shared: &Arc<Shared>) -> Command {
        lock(&COMMANDS).push(Known {
            fd: fd.as_raw_fd(),
            inode,
            forks: sys::forks(),
            shared: Arc::downgrade(shared),
        });
        Command(fd)
    }

    /// The descriptor, for the ABI's struct.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let fd = self.raw_fd();
        lock(&COMMANDS).retain(|known| known.fd != fd || known.forks != sys::forks());
    }
}

/// What tells the files of this system apart.
fn inode(fd: impl AsFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The open device that a descriptor names.
fn shared_by(cmd_fd: c_int, inode: (u64, u64)) -> Result<Arc<Shared>, CallError> {
    let commands = lock(&COMMANDS);
    let of_it = || commands.iter().filter(|known| known.inode == inode);
    let own = |known: &&Known| known.forks == sys::forks();
    if of_it().filter(own).any(|known| known.fd == cmd_fd) {
        return Err(CallError::invalid(
            "cmd_fd is a context's own descriptor, which is closed with it: pass a duplicate (ibv_import_device(3))",
        ));
    }
    if let Some(shared) = of_it().filter(own).find_map(|known| known.shared.upgrade()) {
        return Ok(shared);
    }
    if of_it().any(|known| !own(&known)) {
        return Err(NotOurs::Inherited.into());
    }
    let why = "cmd_fd is of no context that is open in this process, and the device of another process cannot be imported";
    Err(CallError::new(Errno::OPNOTSUPP, why))
}

/// Imports an open device into a context of its own. The descriptor is the context's then, and closed with it; where the call
/// fails it stays the caller's.
pub(super) unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    let import = || -> Result<*mut ibv_context, CallError> {
        let bad = || CallError::new(Errno::BADF, format!("cmd_fd is {cmd_fd}: no open file"));
        if cmd_fd < 0 {
            return Err(bad());
        }
        // SAFETY: not negative, and the system answers EBADF if it is not open; it is used for this call only.
        let inode = inode(unsafe { BorrowedFd::borrow_raw(cmd_fd) }).map_err(|_| bad())?;
        let shared = shared_by(cmd_fd, inode)?;
        shared.node.check_alive()?;
        let events = EventQueue::new()?;
        let acquired = shared.device.acquire().map_err(|error| {
            let why = error.to_string();
            CallError::new(error.errno(), why)
        })?;
        if !Arc::ptr_eq(&acquired, &shared.node) {
            shared.device.release();
            let why = "the last context of the device was closed meanwhile";
            return Err(CallError::new(Errno::NODEV, why));
        }
        // SAFETY: open, as `inode` found, and no context's own: the caller gives it away (ibv_import_device(3)).
        let fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        let command = Command::known(fd, inode, &shared);
        Ok(context::create(shared, command, events))
    };
    import().unwrap_or_else(fail)
}

/// What a handle names, where it is not known.
fn unknown(what: &str, handle: u32) -> CallError {
    CallError::new(
        Errno::NOENT,
        format!("the open device has no {what} with handle {handle}"),
    )
}

pub(super) unsafe extern "C" fn import_pd(ctx: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    let import = || -> Result<*mut ibv_pd, CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft(ctx)? };
        match context.objects().pds.contains(&PdId(handle)) {
            true => Ok(pd::object_of(ctx, PdId(handle))),
            false => Err(unknown("PD", handle)),
        }
    };
    import().unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    let import = || -> Result<*mut ibv_mr, CallError> {
        // SAFETY: a PD that the application got from a verbs provider and has not freed.
        let context = unsafe { object::context(pd)? };
        let known = context.objects().mrs.get(&handle).cloned();
        let registration = known.ok_or_else(|| unknown("MR", handle))?;
        mr::note_other_keys();
        // SAFETY: one of ours, and live, as above.
        Ok(unsafe { mr::object_of(pd, registration) })
    };
    import().unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn import_dm(ctx: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    let import = || -> Result<*mut ibv_dm, CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft(ctx)? };
        let known = context.objects().dms.get(&handle).cloned();
        let memory = known.ok_or_else(|| unknown("device memory", handle))?;
        Ok(dm::object_of(ctx, handle, memory))
    };
    import().unwrap_or_else(fail)
}

/// Frees a handle and leaves what it names alone.
///
/// # Safety
/// `this` is null or live, of some verbs provider, and the application is done with it.
unsafe fn unimport<A: Abi>(this: *mut A) {
    // SAFETY: the caller's promise.
    match unsafe { object::context(this) } {
        // SAFETY: one of ours, and the application is done with it.
        Ok(_) => unsafe { object::free(this) },
        Err(error) => {
            why::note(error);
        }
    }
}

pub(super) unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: a PD that the application got from a verbs provider, and that it is done with.
    unsafe { unimport(pd) };
}

pub(super) unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: an MR that the application got from a verbs provider, and that it is done with.
    unsafe { unimport(mr) };
}

pub(super) unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: device memory that the application got from a verbs provider, and that it is done with.
    unsafe { unimport(dm) };
}
