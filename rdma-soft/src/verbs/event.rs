//! Asynchronous events.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::device::minus_one;
use super::{context, object};
use crate::node::Subject;

pub(super) unsafe extern "C" fn get_async_event(
    ctx: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = match unsafe { context::soft(ctx) } {
        Ok(_) if event.is_null() => return minus_one(Errno::INVAL),
        Ok(context) => context,
        Err(errno) => return minus_one(errno),
    };
    match context.events.take(|event| event.acks().taken()) {
        Ok(taken) => {
            let mut abi = ibv_async_event::zeroed();
            abi.event_type = taken.kind;
            abi.element = match &taken.subject {
                Subject::Cq(cq) => ibv_async_event_element {
                    cq: cq.handle.load(Ordering::Acquire) as *mut ibv_cq,
                },
                Subject::Qp(qp) => ibv_async_event_element {
                    qp: qp.handle.load(Ordering::Acquire) as *mut ibv_qp,
                },
            };
            // SAFETY: not null, so it has room for the event by the rules of ibv_get_async_event(3).
            unsafe { event.write(abi) };
            0
        }
        Err(errno) => minus_one(errno),
    }
}

/// What an event's element is, by the event's kind; `None` for kinds that this device never raises.
enum Element {
    Cq,
    Qp,
}

fn element(kind: ibv_event_type) -> Option<Element> {
    match kind {
        ibv_event_type::IBV_EVENT_CQ_ERR => Some(Element::Cq),
        ibv_event_type::IBV_EVENT_QP_FATAL
        | ibv_event_type::IBV_EVENT_QP_REQ_ERR
        | ibv_event_type::IBV_EVENT_QP_ACCESS_ERR
        | ibv_event_type::IBV_EVENT_COMM_EST
        | ibv_event_type::IBV_EVENT_SQ_DRAINED
        | ibv_event_type::IBV_EVENT_PATH_MIG
        | ibv_event_type::IBV_EVENT_PATH_MIG_ERR
        | ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED => Some(Element::Qp),
        _ => None,
    }
}

pub(super) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    if event.is_null() {
        return;
    }
    // The last acknowledgement lets whoever waits to destroy the object free it: the counts must
    // outlive that, so they are held by a reference of their own.
    // SAFETY: not null, so it is an event that `get_async_event` wrote: the union holds what its
    // kind says, an object that lives until the event is acknowledged.
    unsafe {
        match element((*event).event_type) {
            Some(Element::Cq) => {
                if let Ok(soft) = object::soft((*event).element.cq) {
                    Arc::clone(&soft.cq).async_acks.ack(1);
                }
            }
            Some(Element::Qp) => {
                if let Ok(soft) = object::soft((*event).element.qp) {
                    Arc::clone(&soft.qp).acks.ack(1);
                }
            }
            None => {}
        }
    }
}
