//! Open devices.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard};

use rdma_core_sys::dispatch::Mark;
use rdma_core_sys::*;
use rustix::io::Errno;

use super::device::{Device, name_of};
use super::inventory::Objects;
use super::object::NotOurs;
use super::{cq, cq_ex, limits, minus_one, mw, port, post, qp, srq, sys, td, xrcd};
use crate::node::{AsyncEvent, EventQueue, Node, lock};

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
    objects: Mutex<Objects>,
}

impl Context {
    /// The objects that were made in this context.
    pub(super) fn objects(&self) -> MutexGuard<'_, Objects> {
        lock(&self.objects)
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

/// Makes the context of a device that was just opened.
pub(super) fn create(device: &'static Device, node: Arc<Node>) -> Result<*mut ibv_context, Errno> {
    let events = Arc::new(EventQueue::new()?);
    let mut abi = verbs_context::zeroed();
    abi.sz = size_of::<verbs_context>();
    abi.priv_ = MARK.context_priv();
    abi.query_port = Some(port::query_port_ex);
    abi.query_device_ex = Some(limits::query_device_ex);
    abi.query_rt_values = Some(limits::query_rt_values);
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
    // No commands go to a kernel; programs duplicate the descriptor all the same, to share the device.
    abi.context.cmd_fd = events.raw_fd();
    abi.context.async_fd = events.raw_fd();
    abi.context.num_comp_vectors = 1;
    abi.context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut _;
    let objects = Mutex::default();
    let forks = sys::forks();
    node.add_context(&events);
    let soft = Context {
        device,
        node,
        forks,
        events,
        objects,
    };
    let object = Box::into_raw(Box::new(Object { abi, soft }));
    Ok(object.cast::<ibv_context>().wrapping_byte_add(SEEN))
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
    let soft = unsafe { &(*context.byte_sub(SEEN).cast::<Object>()).soft };
    if soft.forks != sys::forks() {
        return Err(NotOurs::Inherited);
    }
    Ok(soft)
}

pub(super) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let closing = match unsafe { soft(context) } {
        Ok(closing) => closing,
        Err(errno) => return minus_one(errno),
    };
    // Objects that the application left behind end here, as they do in the kernel: nothing may touch
    // its memory afterwards.
    let left = std::mem::take(&mut *closing.objects());
    left.end(&closing.node);
    let device = closing.device;
    tracing::debug!(device = name_of(device), "closed");
    // SAFETY: one of ours, made by `Box::into_raw` in `create`; the application is done with it.
    drop(unsafe { Box::from_raw(context.byte_sub(SEEN).cast::<Object>()) });
    device.release();
    0
}
