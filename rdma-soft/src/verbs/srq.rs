//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::object::named;
use super::{context, fail, object, refuse};
use crate::core::{CallError, SrqInit};
use crate::node::{Node, Srq};

/// Our part of an `ibv_srq`.
pub(super) struct SrqObject {
    pub(super) node: Arc<Node>,
    pub(super) srq: Arc<Srq>,
    /// What it was created with.
    pub(super) init: SrqInit,
    /// Which of the context's open XRC domains it was made in.
    xrcd: Option<u32>,
}

/// Creates a shared receive queue. The capacities are exactly those asked for; the limit at creation is
/// ignored (ibv_create_srq(3)).
///
/// # Errors
/// `EINVAL` for parts that the type has not, that are missing, or that belong to another context;
/// `EOPNOTSUPP` for tag matching; and what the engine refuses.
///
/// # Safety
/// The objects are null or live, of some verbs provider.
unsafe fn create(
    ctx: *mut ibv_context,
    attr: &ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq, CallError> {
    let mask = ibv_srq_init_attr_mask::from_bits_retain(attr.comp_mask);
    let kind = if mask.contains(IBV_SRQ_INIT_ATTR_TYPE) {
        attr.srq_type
    } else {
        IBV_SRQT_BASIC
    };
    if kind == IBV_SRQT_TM || mask.contains(IBV_SRQ_INIT_ATTR_TM) {
        let why = "this device has no SRQs with tag matching";
        return Err(CallError::new(Errno::OPNOTSUPP, why));
    }
    let base = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    let domain = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    let unknown = mask.bits() & !(base | domain).bits();
    if unknown != 0 {
        let why = format!("comp_mask has bits that this device does not know: {unknown:#x}");
        return Err(CallError::invalid(why));
    }
    if !mask.contains(IBV_SRQ_INIT_ATTR_PD) {
        return Err(CallError::invalid("pd is missing (IBV_SRQ_INIT_ATTR_PD)"));
    }
    let xrc = match kind {
        IBV_SRQT_BASIC if mask.intersects(domain) => {
            return Err(CallError::invalid(
                "a basic SRQ has no XRC domain and no CQ of its own: set srq_type to IBV_SRQT_XRC, or leave xrcd and cq away",
            ));
        }
        IBV_SRQT_BASIC => false,
        IBV_SRQT_XRC if !mask.contains(domain) => {
            return Err(CallError::invalid(
                "an XRC SRQ needs a domain and a CQ (IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ)",
            ));
        }
        IBV_SRQT_XRC => true,
        _ => {
            let why = format!("srq_type is {}: there are basic and XRC ones", kind.0);
            return Err(CallError::invalid(why));
        }
    };
    // SAFETY: the caller's promise.
    let (context, pd) = unsafe { (context::soft(ctx)?, named(ctx, "pd", attr.pd)?) };
    let pd = pd.ok_or_else(|| CallError::invalid("pd is null"))?;
    let (xrcd, cq) = if xrc {
        // SAFETY: the caller's promise.
        let parts = unsafe { (named(ctx, "xrcd", attr.xrcd)?, named(ctx, "cq", attr.cq)?) };
        if parts.0.is_none() || parts.1.is_none() {
            return Err(CallError::invalid("xrcd or cq is null"));
        }
        parts
    } else {
        (None, None)
    };
    let init = SrqInit {
        pd: pd.id,
        max_wr: attr.attr.max_wr,
        max_sge: attr.attr.max_sge,
        limit: 0,
        xrc: xrcd.zip(cq).map(|(xrcd, cq)| (xrcd.id, cq.cq.id)),
    };
    let completes = cq.map(|cq| Arc::clone(&cq.cq));
    let events = Arc::clone(&context.events);
    let srq = context.node.create_srq(init, completes, events)?;
    let soft = SrqObject {
        node: Arc::clone(&context.node),
        srq: Arc::clone(&srq),
        init,
        xrcd: xrcd.map(|xrcd| xrcd.number),
    };
    context.objects().add_srq(&srq, soft.xrcd);
    let mut abi = ibv_srq::zeroed();
    abi.context = ctx;
    abi.srq_context = attr.srq_context;
    abi.pd = attr.pd;
    abi.handle = srq.id.0;
    let handle = object::create::<ibv_srq>(abi, soft);
    srq.handle.store(handle as usize, Ordering::Release);
    Ok(handle)
}

pub(super) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    if attr.is_null() {
        return fail(CallError::invalid("the attributes are null"));
    }
    let mut all = ibv_srq_init_attr_ex::zeroed();
    all.comp_mask = IBV_SRQ_INIT_ATTR_PD.bits();
    all.pd = pd;
    // SAFETY: not null, so it is the struct that ibv_create_srq(3) asks for; the PD is one that the
    // application got from a verbs provider and has not freed.
    let made = unsafe {
        all.srq_context = (*attr).srq_context;
        all.attr = (*attr).attr;
        object::context(pd)
            .map_err(CallError::from)
            .and_then(|_| create((*pd).context, &all))
    };
    made.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn create_srq_ex(
    ctx: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    if attr.is_null() {
        return fail(CallError::invalid("the attributes are null"));
    }
    // SAFETY: not null, so it is the struct that ibv_create_srq_ex(3) asks for; its objects are such
    // that the application got from a verbs provider and has not destroyed.
    unsafe { create(ctx, &attr.read()) }.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let modify = || -> Result<(), CallError> {
        // SAFETY: an SRQ that the application got from a verbs provider and has not destroyed.
        let soft = unsafe { object::soft(srq)? };
        if attr.is_null() {
            return Err(CallError::invalid("the attributes are null"));
        }
        let mask = ibv_srq_attr_mask::from_bits_retain(mask as u32);
        let unknown = mask - (IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT);
        if !unknown.is_empty() {
            return Err(CallError::invalid(format!(
                "the mask has unknown bits: {:#x}",
                unknown.bits()
            )));
        }
        // SAFETY: not null, so it is the struct that ibv_modify_srq(3) asks for; fields whose bit is
        // not in the mask are not looked at.
        let (max_wr, limit) = unsafe {
            (
                mask.contains(IBV_SRQ_MAX_WR).then(|| (*attr).max_wr),
                mask.contains(IBV_SRQ_LIMIT).then(|| (*attr).srq_limit),
            )
        };
        // The event that it may raise may be heard before it is over, and then the application may close the device.
        let node = Arc::clone(&soft.node);
        node.modify_srq(&soft.srq, max_wr, limit)
    };
    modify().map_or_else(refuse, |()| 0)
}

pub(super) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let query = || -> Result<ibv_srq_attr, CallError> {
        // SAFETY: an SRQ that the application got from a verbs provider and has not destroyed.
        let soft = unsafe { object::soft(srq)? };
        let now = soft.node.query_srq(&soft.srq).ok_or(Errno::INVAL)?;
        Ok(ibv_srq_attr {
            max_wr: now.max_wr,
            max_sge: now.max_sge,
            srq_limit: now.limit,
        })
    };
    match query() {
        Ok(_) if attr.is_null() => refuse(CallError::invalid("the place for the answer is null")),
        Ok(now) => {
            // SAFETY: not null, so it has room for the struct by the rules of ibv_query_srq(3).
            unsafe { attr.write(now) };
            0
        }
        Err(error) => refuse(error),
    }
}

pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, num: *mut u32) -> c_int {
    // SAFETY: an SRQ that the application got from a verbs provider and has not destroyed.
    match unsafe { object::soft(srq) } {
        Ok(_) if num.is_null() => refuse(CallError::invalid("the place for the number is null")),
        Ok(soft) if soft.init.xrc.is_none() => refuse(CallError::invalid(
            "a basic SRQ has no number: XRC requests name XRC SRQs",
        )),
        Ok(soft) => {
            // SAFETY: not null, so it has room for the number by the rules of ibv_get_srq_num(3).
            unsafe { num.write(soft.srq.id.0) };
            0
        }
        Err(error) => refuse(error),
    }
}

pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let destroy = || -> Result<(), CallError> {
        // SAFETY: an SRQ that the application got from a verbs provider and has not destroyed.
        let (context, soft) = unsafe { (object::context(srq)?, object::soft(srq)?) };
        soft.node.destroy_srq(&soft.srq)?;
        context.objects().remove_srq(&soft.srq, soft.xrcd);
        soft.srq.retire_events();
        Ok(())
    };
    if let Err(error) = destroy() {
        return refuse(error);
    }
    // SAFETY: one of ours, the engine has forgotten it, no QP uses it and no event of it is
    // outstanding: the application is done with it.
    unsafe { object::free(srq) };
    0
}
