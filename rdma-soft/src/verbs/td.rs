//! Thread domains and parent domains.
//!
//! A thread domain promises that one thread at a time uses what is made with it. This device keeps its
//! locks all the same. A parent domain is a protection domain with such promises: what is made in it
//! belongs to the domain that it stands for, and neither can be freed before.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_core_sys::*;
use rustix::io::Errno;

use super::pd::{Member, PdObject};
use super::{context, fail, object, refuse};
use crate::core::CallError;

/// Our part of an `ibv_td`.
pub(super) struct TdObject {
    /// Parent domains with it.
    users: AtomicUsize,
}

/// What a parent domain is made of.
pub(super) struct Parent {
    pd: *mut ibv_pd,
    /// Or null.
    td: *mut ibv_td,
}

pub(super) unsafe extern "C" fn alloc_td(
    ctx: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    if let Err(errno) = unsafe { context::soft(ctx) } {
        return fail(errno);
    }
    // SAFETY: null, or the struct that ibv_alloc_td(3) asks for.
    if attr.is_null() || unsafe { (*attr).comp_mask } != 0 {
        let why = "no attributes, or a comp_mask that is not 0";
        return fail(CallError::new(Errno::OPNOTSUPP, why));
    }
    let mut abi = ibv_td::zeroed();
    abi.context = ctx;
    let users = AtomicUsize::new(0);
    object::create(abi, TdObject { users })
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: a thread domain that the application got from a verbs provider and has not freed.
    match unsafe { object::soft(td) } {
        Ok(soft) if soft.users.load(Ordering::Acquire) > 0 => refuse(CallError::busy(
            "the thread domain is part of a parent domain",
        )),
        Ok(_) => {
            // SAFETY: one of ours, and no parent domain has it: the application is done with it.
            unsafe { object::free(td) };
            0
        }
        Err(errno) => refuse(errno),
    }
}

/// Makes a parent domain. Its allocators are not called, which ibv_alloc_parent_domain(3) allows: nothing
/// that they could give memory for is shared with the application.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    ctx: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let alloc = || -> Result<*mut ibv_pd, CallError> {
        if attr.is_null() {
            return Err(CallError::invalid("no attributes"));
        }
        // SAFETY: not null, so it is the struct that ibv_alloc_parent_domain(3) asks for.
        let (pd, td, comp_mask) = unsafe { ((*attr).pd, (*attr).td, (*attr).comp_mask) };
        let known = ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
            | ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if comp_mask & !known.bits() != 0 {
            let why = format!("comp_mask has bits that are not known: {comp_mask:#x}");
            return Err(CallError::new(Errno::OPNOTSUPP, why));
        }
        // SAFETY: a context, a PD and, if any, a thread domain that the application got from a verbs
        // provider and has not closed or freed.
        let (soft, of_pd, td_soft) = unsafe {
            context::soft(ctx)?.node.check_alive()?;
            let td_soft = if td.is_null() {
                None
            } else {
                Some((object::soft(td)?, (*td).context))
            };
            (object::soft(pd)?, (*pd).context, td_soft)
        };
        if of_pd != ctx || td_soft.is_some_and(|(_, of)| of != ctx) {
            return Err(CallError::invalid("the domains belong to another context"));
        }
        if soft.parent.is_some() {
            return Err(CallError::invalid(
                "a parent domain cannot be made of another",
            ));
        }
        if let Some((td, _)) = td_soft {
            td.users.fetch_add(1, Ordering::AcqRel);
        }
        soft.parents.fetch_add(1, Ordering::AcqRel);
        let mut abi = ibv_pd::zeroed();
        abi.context = ctx;
        abi.handle = soft.id.0;
        let parent = Some(Parent { pd, td });
        Ok(object::create(abi, PdObject::new(soft.id, parent)))
    };
    alloc().unwrap_or_else(fail)
}

/// Gives up what a parent domain is made of.
///
/// # Safety
/// The parent domain is being freed, so its parts, which cannot be freed before, are live.
pub(super) unsafe fn release(parent: &Parent) {
    // SAFETY: live by the caller's promise; of ours, as found out when the parent domain was made.
    unsafe {
        if let Ok(pd) = object::soft(parent.pd) {
            pd.parents.fetch_sub(1, Ordering::AcqRel);
        }
        if let Ok(td) = object::soft(parent.td) {
            td.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Counts a CQ as made in a parent domain.
///
/// # Errors
/// `EINVAL` if it is none, or of another context.
///
/// # Safety
/// `pd` is null or live, of some verbs provider.
pub(super) unsafe fn member_of_parent(
    pd: *mut ibv_pd,
    ctx: *mut ibv_context,
) -> Result<Member, CallError> {
    // SAFETY: the caller's promise.
    let (soft, of) = unsafe { (object::soft(pd)?, (*pd).context) };
    let member = soft.member().filter(|_| of == ctx);
    member.ok_or_else(|| CallError::invalid("parent_domain is no parent domain of this context"))
}
