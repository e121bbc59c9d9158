//! Memory windows.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_core_sys::*;

use super::object::named;
use super::qp::QpObject;
use super::request::{self, Parts};
use super::{fail, mr, object, refuse};
use crate::core::{CallError, Data, SendOp, SgeList, WindowBind};
use crate::node::Node;

/// Our part of an `ibv_mw`.
pub(super) struct MwObject {
    node: Arc<Node>,
    /// The remote key that it had first.
    first: u32,
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    let alloc = || -> Result<*mut ibv_mw, CallError> {
        // SAFETY: a PD that the application got from a verbs provider and has not freed.
        let (context, soft) = unsafe { (object::context(pd)?, object::soft(pd)?) };
        let rkey = context.node.alloc_mw(soft.id, kind)?;
        context.objects().mws.insert(rkey);
        mr::note_other_keys();
        let mut abi = ibv_mw::zeroed();
        // SAFETY: a live PD, as above.
        abi.context = unsafe { (*pd).context };
        abi.pd = pd;
        abi.rkey = rkey;
        abi.handle = rkey;
        abi.type_ = kind;
        let node = Arc::clone(&context.node);
        Ok(object::create(abi, MwObject { node, first: rkey }))
    };
    alloc().unwrap_or_else(fail)
}

/// Reads what a window is to be bound to.
///
/// # Errors
/// `EINVAL` for a window or a region that is missing or of another context.
///
/// # Safety
/// `mw` and `info.mr` are null or live objects of some verbs provider.
pub(super) unsafe fn binding(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<WindowBind, CallError> {
    // SAFETY: a live QP of ours, as the caller found out; the others by the caller's promise.
    let (window, lkey) = unsafe {
        let ctx = (*qp).context;
        let missing = || CallError::invalid("mw is null");
        named(ctx, "mw", mw)?.ok_or_else(missing)?;
        let region = named(ctx, "mr", info.mr)?;
        ((*mw).rkey, region.map(|_| (*info.mr).lkey))
    };
    Ok(WindowBind {
        window,
        rkey,
        lkey,
        addr: info.addr,
        len: info.length,
        access: ibv_access_flags::from_bits_retain(info.mw_access_flags),
    })
}

/// Posts the bind of a window of type 1; the window's key is the new one once that is posted
/// (ibv_bind_mw(3)).
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    let post = || -> Result<(), CallError> {
        // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
        let soft: &QpObject = unsafe { object::soft(qp)? };
        if bind.is_null() {
            return Err(CallError::invalid("the bind is null"));
        }
        // SAFETY: not null, so it is the struct that ibv_bind_mw(3) asks for; window and region are
        // such that the application got from a verbs provider and has not freed.
        let (bind, mut wanted) = unsafe {
            let bind = bind.read();
            (bind, binding(qp, mw, 0, &bind.bind_info)?)
        };
        wanted.rkey = soft.node.next_window_key(wanted.window)?;
        let parts = Parts {
            wr_id: bind.wr_id,
            flags: ibv_send_flags::from_bits_retain(bind.send_flags),
            op: SendOp::BindWindow(wanted),
            data: Data::Sges(SgeList::new()),
            xrc_srq: 0,
        };
        let mut wqe = request::build(soft, parts)?;
        let mut queue = soft.qp.post_send();
        wqe.seq = queue.slot()?;
        let signaled = wqe.signaled;
        queue.push(wqe, signaled);
        // Before anybody can see the request complete.
        // SAFETY: one of ours, as found out above. The queue is locked until `send`, so the bind is not done, and until it is the
        // application keeps the window.
        unsafe { (*mw).rkey = wanted.rkey };
        Arc::clone(&soft.node).send(&soft.qp, queue);
        Ok(())
    };
    post().map_or_else(refuse, |()| 0)
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let dealloc = || -> Result<(), CallError> {
        // SAFETY: a window that the application got from a verbs provider and has not freed.
        let (context, soft) = unsafe { (object::context(mw)?, object::soft(mw)?) };
        soft.node.dealloc_mw(soft.first)?;
        context.objects().mws.remove(&soft.first);
        Ok(())
    };
    if let Err(error) = dealloc() {
        return refuse(error);
    }
    // SAFETY: one of ours, and the engine has forgotten it: the application is done with it.
    unsafe { object::free(mw) };
    0
}
