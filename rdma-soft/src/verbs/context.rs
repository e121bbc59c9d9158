//! Open devices.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::{Arc, MutexGuard};

use rdma_core_sys::dispatch::Mark;
use rdma_core_sys::*;

use super::device::{Device, name_of};
use super::import::{Command, Shared};
use super::inventory::Objects;
use super::object::NotOurs;
use super::{cq, cq_ex, dm, limits, minus_one, mw, port, post, qp, srq, sys, td, xrcd};
use crate::node::{AsyncEvent, EventQueue, Node};

/// By this any copy of this library in the process, and a preload library, knows our devices and contexts, and finds the functions
/// that serve them.
// SAFETY: `find` takes any C string, and what it finds are the functions of our own table, the required ones included.
pub(super) static MARK: Mark = unsafe { Mark::new(find) };

unsafe extern "C" fn find(name: *const c_char) -> *mut c_void {
    // SAFETY: whoever asks a mark passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    (super::verbs_table().symbol(name)).unwrap_or(std::ptr::null_mut())
}

/// Our part of an open device.
pub(super) struct Context {
    pub(super) device: &'static Device,
    pub(super) node: Arc<Node>,
    /// [`sys::forks`] when it was opened.
    forks: u32,
    /// The context's asynchronous events.
    pub(super) events: Arc<EventQueue<AsyncEvent>>,
    shared: Arc<Shared>,
    /// The descriptor by which it can be imported; known as long as it is open.
    _command: Command,
}

impl Context {
    /// The objects that were made in this context, and in those that were imported from it or that it was imported from.
    pub(super) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.shared.objects()
    }

    /// True in a child of the process that opened it.
    pub(super) fn is_inherited(&self) -> bool {
        self.forks != sys::forks()
    }

    /// This context.
    ///
    /// # Errors
    /// `EIO` in a child of the process that opened it.
    pub(super) fn of_this_process(&self) -> Result<&Self, NotOurs> {
        match self.is_inherited() {
            true => Err(NotOurs::Inherited),
            false => Ok(self),
        }
    }
}

/// One allocation: the extended context in front, our part behind.
#[repr(C)]
struct Object {
    abi: verbs_context,
    soft: Context,
}

/// Where the context that applications see lies in an [`Object`].
const SEEN: usize = offset_of!(verbs_context, context);

/// The operations that the header calls through a context. Those that are missing here the header
/// looks for first, or no binary calls them.
fn operations() -> ibv_context_ops {
    let mut ops = ibv_context_ops::zeroed();
    ops._compat_query_device = Some(limits::query_device);
    ops._compat_query_port = Some(port::query_port);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops
}

/// Makes a context of a device that was just opened, or opened once more to import it.
pub(super) fn create(
    shared: Arc<Shared>,
    command: Command,
    events: EventQueue<AsyncEvent>,
) -> *mut ibv_context {
    let (device, node) = (shared.device, Arc::clone(&shared.node));
    let events = Arc::new(events);
    let mut abi = verbs_context::zeroed();
    abi.sz = size_of::<verbs_context>();
    abi.priv_ = MARK.context_priv();
    abi.query_port = Some(port::query_port_ex);
    abi.query_device_ex = Some(limits::query_device_ex);
    abi.query_rt_values = Some(limits::query_rt_values);
    abi.alloc_dm = Some(dm::alloc_dm);
    abi.free_dm = Some(dm::free_dm);
    abi.reg_dm_mr = Some(dm::reg_dm_mr);
    abi.alloc_td = Some(td::alloc_td);
    abi.dealloc_td = Some(td::dealloc_td);
    abi.alloc_parent_domain = Some(td::alloc_parent_domain);
    abi.create_cq_ex = Some(cq_ex::create_cq_ex);
    abi.create_qp_ex = Some(qp::create_qp_ex);
    abi.open_qp = Some(qp::open_qp);
    abi.create_srq_ex = Some(srq::create_srq_ex);
    abi.get_srq_num = Some(srq::get_srq_num);
    abi.open_xrcd = Some(xrcd::open_xrcd);
    abi.close_xrcd = Some(xrcd::close_xrcd);
    abi.context.device = device.as_abi();
    abi.context.ops = operations();
    abi.context.cmd_fd = command.raw_fd();
    abi.context.async_fd = events.raw_fd();
    abi.context.num_comp_vectors = 1;
    abi.context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut _;
    let forks = sys::forks();
    node.add_context(&events);
    let soft = Context {
        device,
        node,
        forks,
        events,
        shared,
        _command: command,
    };
    let object = Box::into_raw(Box::new(Object { abi, soft }));
    object.cast::<ibv_context>().wrapping_byte_add(SEEN)
}

/// True for a context of this library.
///
/// # Safety
/// `context` is null or points to a live context of some verbs provider.
pub(super) unsafe fn is_ours(context: *mut ibv_context) -> bool {
    if context.is_null() || !context.is_aligned() {
        return false;
    }
    // SAFETY: a live context by the caller's promise; `abi_compat` says whether an extended one lies
    // in front of it (verbs.h: verbs_get_ctx), and only then is `priv` read there.
    unsafe {
        (*context).abi_compat as usize == VERBS_ABI_IS_EXTENDED
            && std::ptr::eq(
                (*context.byte_sub(SEEN).cast::<verbs_context>()).priv_,
                MARK.context_priv(),
            )
    }
}

/// Our part of a context.
///
/// # Errors
/// `EINVAL` for a null pointer and for a context of another provider; `EIO` in a child of the
/// process that opened it.
///
/// # Safety
/// `context` is null or points to a live context of some verbs provider, and stays alive while the
/// result is used.
pub(super) unsafe fn soft<'a>(context: *mut ibv_context) -> Result<&'a Context, NotOurs> {
    // SAFETY: the caller's promise.
    unsafe { soft_of_any_process(context)? }.of_this_process()
}

/// Our part of a context; in a child that of its parent, too, in which nothing may be used that a thread or a lock of the parent
/// is needed for.
///
/// # Errors
/// `EINVAL` as [`soft`].
///
/// # Safety
/// As [`soft`].
pub(super) unsafe fn soft_of_any_process<'a>(
    context: *mut ibv_context,
) -> Result<&'a Context, NotOurs> {
    // SAFETY: the caller's promise is that of `is_ours`.
    if !unsafe { is_ours(context) } {
        let kind = "ibv_context";
        return Err(match context.is_null() || !context.is_aligned() {
            true => NotOurs::Nothing(kind),
            false => NotOurs::Foreign(kind),
        });
    }
    // SAFETY: one of ours, so `create` made it inside an `Object`, at `SEEN`. No reference is made
    // to the ABI's part.
    Ok(unsafe { &(*context.byte_sub(SEEN).cast::<Object>()).soft })
}

pub(super) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let closing = match unsafe { soft(context) } {
        Ok(closing) => closing,
        Err(errno) => return minus_one(errno),
    };
    let device = closing.device;
    tracing::debug!(device = name_of(device), "closed");
    // With the last context of those that share it ends what was left in them.
    // SAFETY: one of ours, made by `Box::into_raw` in `create`; the application is done with it.
    drop(unsafe { Box::from_raw(context.byte_sub(SEEN).cast::<Object>()) });
    device.release();
    0
}
