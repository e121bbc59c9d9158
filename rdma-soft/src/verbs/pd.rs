//! Protection domains.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_core_sys::{ibv_context, ibv_pd};

use super::td::{self, Parent};
use super::{context, fail, object, refuse};
use crate::core::{CallError, PdId};

/// Our part of an `ibv_pd`.
pub(super) struct PdObject {
    /// The protection domain; for a parent domain, the one that it stands for.
    pub(super) id: PdId,
    /// What a parent domain is made of.
    pub(super) parent: Option<Parent>,
    /// Parent domains that stand for this one.
    pub(super) parents: AtomicUsize,
    /// Objects that were made in this parent domain.
    members: Arc<AtomicUsize>,
}

/// An object that was made in a parent domain, which stays as long as it does.
pub(super) struct Member(Arc<AtomicUsize>);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PdObject {
    pub(super) fn new(id: PdId, parent: Option<Parent>) -> PdObject {
        PdObject {
            id,
            parent,
            parents: AtomicUsize::new(0),
            members: Arc::default(),
        }
    }

    /// One object more that is made in this parent domain; the engine counts those of others.
    pub(super) fn member(&self) -> Option<Member> {
        self.parent.as_ref()?;
        self.members.fetch_add(1, Ordering::AcqRel);
        Some(Member(Arc::clone(&self.members)))
    }
}

/// What the application holds of a protection domain.
pub(super) fn object_of(ctx: *mut ibv_context, id: PdId) -> *mut ibv_pd {
    let mut abi = ibv_pd::zeroed();
    abi.context = ctx;
    abi.handle = id.0;
    object::create(abi, PdObject::new(id, None))
}

pub(super) unsafe extern "C" fn alloc_pd(ctx: *mut ibv_context) -> *mut ibv_pd {
    let alloc = || -> Result<*mut ibv_pd, CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft(ctx)? };
        let id = context.node.alloc_pd()?;
        context.objects().pds.insert(id);
        Ok(object_of(ctx, id))
    };
    alloc().unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let dealloc = || -> Result<(), CallError> {
        // SAFETY: a PD that the application got from a verbs provider and has not freed.
        let (context, soft) = unsafe { (object::context(pd)?, object::soft(pd)?) };
        if let Some(parent) = &soft.parent {
            let members = soft.members.load(Ordering::Acquire);
            if members > 0 {
                return Err(CallError::busy(format!(
                    "{members} objects were made in the parent domain: destroy them first"
                )));
            }
            // SAFETY: the parent domain is freed below.
            unsafe { td::release(parent) };
            return Ok(());
        }
        if soft.parents.load(Ordering::Acquire) > 0 {
            return Err(CallError::busy("parent domains are made of the PD"));
        }
        context.node.dealloc_pd(soft.id)?;
        context.objects().pds.remove(&soft.id);
        Ok(())
    };
    if let Err(error) = dealloc() {
        return refuse(error);
    }
    // SAFETY: one of ours, and nothing uses it: the application is done with it.
    unsafe { object::free(pd) };
    0
}
