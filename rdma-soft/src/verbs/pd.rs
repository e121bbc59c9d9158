//! Protection domains.

use std::ffi::c_int;

use rdma_core_sys::{ibv_context, ibv_pd};

use super::{context, fail, object};
use crate::core::PdId;

/// Our part of an `ibv_pd`.
pub(super) struct PdObject {
    pub(super) id: PdId,
}

pub(super) unsafe extern "C" fn alloc_pd(ctx: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let made = unsafe { context::soft(ctx) }.and_then(|context| {
        let id = context.node.alloc_pd()?;
        context.objects().pds.insert(id);
        Ok(id)
    });
    match made {
        Ok(id) => {
            let mut abi = ibv_pd::zeroed();
            abi.context = ctx;
            abi.handle = id.0;
            object::create(abi, PdObject { id })
        }
        Err(errno) => fail(errno),
    }
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a PD that the application got from a verbs provider and has not freed.
    let freed = unsafe { object::context(pd).and_then(|c| Ok((c, object::soft(pd)?))) }.and_then(
        |(context, soft)| {
            context.node.dealloc_pd(soft.id)?;
            context.objects().pds.remove(&soft.id);
            Ok(())
        },
    );
    match freed {
        Ok(()) => {
            // SAFETY: one of ours, and no MR or QP uses it: the application is done with it.
            unsafe { object::free(pd) };
            0
        }
        Err(errno) => errno.raw_os_error(),
    }
}
