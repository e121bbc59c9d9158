//! Completion channels.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_core_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use super::event::nothing_taken;
use super::{context, fail, minus_one, object, refuse};
use crate::core::CallError;
use crate::node::{CqEvent, EventQueue};

/// Our part of an `ibv_comp_channel`.
pub(super) struct Channel {
    pub(super) queue: Arc<EventQueue<CqEvent>>,
    /// CQs that use it.
    pub(super) users: AtomicUsize,
}

pub(super) unsafe extern "C" fn create_comp_channel(
    ctx: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = unsafe { context::soft(ctx) };
    match (context.map_err(CallError::from)).and_then(|_| Ok(EventQueue::new()?)) {
        Ok(queue) => {
            let mut abi = ibv_comp_channel::zeroed();
            abi.context = ctx;
            abi.fd = queue.raw_fd();
            let users = AtomicUsize::new(0);
            object::create(
                abi,
                Channel {
                    queue: Arc::new(queue),
                    users,
                },
            )
        }
        Err(errno) => fail(errno),
    }
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a channel that the application got from a verbs provider and has not destroyed.
    match unsafe { object::soft(channel) } {
        Ok(soft) if soft.users.load(Ordering::Acquire) > 0 => refuse(CallError::busy(format!(
            "{} CQs use the completion channel",
            soft.users.load(Ordering::Acquire)
        ))),
        Ok(_) => {
            // SAFETY: one of ours, and no CQ uses it: the application is done with it.
            unsafe { object::free(channel) };
            0
        }
        Err(errno) => refuse(errno),
    }
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(channel) } {
        Ok(soft) => soft,
        Err(errno) => return minus_one(errno),
    };
    if cq.is_null() || cq_context.is_null() {
        return minus_one(CallError::invalid("no place for the CQ or its context"));
    }
    match soft.queue.take(|event| event.0.comp_acks.taken()) {
        Ok(CqEvent(event)) => {
            let handle = event.handle.load(Ordering::Acquire) as *mut ibv_cq;
            // SAFETY: the places are not null, so they are as ibv_get_cq_event(3) asks; the CQ is
            // live, since its destruction waits until the event that was just taken is acknowledged.
            unsafe {
                *cq = handle;
                *cq_context = (*handle).cq_context;
            }
            0
        }
        Err(errno) => nothing_taken(errno),
    }
}

pub(super) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: a CQ that the application got from a verbs provider and has not destroyed.
    if let Ok(soft) = unsafe { object::soft(cq) } {
        // The last acknowledgement lets a waiting `destroy_cq` free the object: the counts must
        // outlive that.
        Arc::clone(&soft.cq).comp_acks.ack(nevents);
    }
}
