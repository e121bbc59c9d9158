//! XRC domains.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use rdma_core_sys::*;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{context, fail, object, refuse};
use crate::core::{CallError, XrcdId};
use crate::node::DomainFile;

/// Our part of an `ibv_xrcd`.
pub(super) struct XrcdObject {
    /// The domain.
    pub(super) id: XrcdId,
    /// Which of the context's open domains this is.
    pub(super) number: u32,
}

/// What a descriptor of the application names.
fn file_of(fd: c_int) -> Result<DomainFile, CallError> {
    let bad = || CallError::new(Errno::BADF, format!("fd is {fd}: that is no open file"));
    if fd < 0 {
        return Err(bad());
    }
    // With O_PATH it holds the file, and when it is closed the application keeps its locks of the file, which
    // it would lose with a duplicate (fcntl_locking(2)). That is for where there is no /proc.
    let path = format!("/proc/self/fd/{fd}");
    let held = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let held = held.or_else(|_| {
        // SAFETY: not negative, and the system answers EBADF if the descriptor is not open; it is used
        // for this call only, and the application closes none that it passes meanwhile.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|_| bad())
    })?;
    let stat = rustix::fs::fstat(&held).map_err(|_| bad())?;
    let inode = (stat.st_dev, stat.st_ino);
    Ok(DomainFile { _fd: held, inode })
}

pub(super) unsafe extern "C" fn open_xrcd(
    ctx: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let open = || -> Result<*mut ibv_xrcd, CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft(ctx)? };
        if attr.is_null() {
            return Err(CallError::invalid("the attributes are null"));
        }
        // SAFETY: not null, so it is the struct that ibv_open_xrcd(3) asks for.
        let attr = unsafe { attr.read() };
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if attr.comp_mask != needed.bits() {
            return Err(CallError::invalid(format!(
                "comp_mask is {:#x}: fd and oflags are both mandatory, and there is nothing else",
                attr.comp_mask
            )));
        }
        let file = if attr.fd == -1 {
            None
        } else {
            Some(file_of(attr.fd)?)
        };
        let flags = OFlags::from_bits_retain(attr.oflags as u32);
        let create = flags.contains(OFlags::CREATE);
        let exclusive = flags.contains(OFlags::EXCL);
        let id = context.node.open_xrcd(file, create, exclusive)?;
        let number = context.objects().add_xrcd(id);
        let mut abi = ibv_xrcd::zeroed();
        abi.context = ctx;
        Ok(object::create(abi, XrcdObject { id, number }))
    };
    open().unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    let close = || -> Result<(), CallError> {
        // SAFETY: a domain that the application got from a verbs provider and has not closed.
        let (context, soft) = unsafe { (object::context(xrcd)?, object::soft(xrcd)?) };
        let mut objects = context.objects();
        objects.unused_xrcd(soft.number)?;
        context.node.close_xrcd(soft.id)?;
        objects.remove_xrcd(soft.number);
        Ok(())
    };
    if let Err(error) = close() {
        return refuse(error);
    }
    // SAFETY: one of ours, and nothing was made in it that is still there: the application is done
    // with it.
    unsafe { object::free(xrcd) };
    0
}
