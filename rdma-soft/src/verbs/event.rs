//! Asynchronous events.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::{context, minus_one, object, sys};
use crate::core::CallError;
use crate::node::{AsyncEvent, Subject};

pub(super) unsafe extern "C" fn get_async_event(
    ctx: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = match unsafe { context::soft(ctx) } {
        Ok(_) if event.is_null() => return minus_one(CallError::invalid("no place for the event")),
        Ok(context) => context,
        Err(errno) => return minus_one(errno),
    };
    // Counted before anybody else can get at the queue: whoever destroys the object waits for it.
    let taken = context.events.take(|event| {
        if let Some(acks) = event.acks() {
            acks.taken();
        }
    });
    match taken {
        Ok(taken) => {
            // SAFETY: not null, so it has room for the event by the rules of ibv_get_async_event(3).
            unsafe { event.write(to_abi(&taken)) };
            0
        }
        Err(errno) => nothing_taken(errno),
    }
}

/// Ends a call that waited for an event and got none. That there is none, or that a signal came, is no
/// refusal.
pub(super) fn nothing_taken(errno: Errno) -> c_int {
    match errno {
        Errno::AGAIN | Errno::INTR => {
            sys::set_errno(errno);
            -1
        }
        _ => minus_one(errno),
    }
}

/// An event as verbs report it.
fn to_abi(event: &AsyncEvent) -> ibv_async_event {
    let mut abi = ibv_async_event::zeroed();
    abi.event_type = event.kind;
    match &event.subject {
        Subject::Cq(cq) => abi.element.cq = cq.handle.load(Ordering::Acquire) as *mut ibv_cq,
        Subject::Qp(qp) => abi.element.qp = qp.handle.load(Ordering::Acquire) as *mut ibv_qp,
        Subject::Srq(srq) => abi.element.srq = srq.handle.load(Ordering::Acquire) as *mut ibv_srq,
        Subject::Port(port) => abi.element.port_num = (*port).into(),
        Subject::Device => {}
    }
    abi
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
        match (*event).event_type.element() {
            Some(EventElement::Cq) => {
                if let Ok(soft) = object::soft((*event).element.cq) {
                    Arc::clone(&soft.cq).async_acks.ack(1);
                }
            }
            Some(EventElement::Qp) => {
                if let Ok(soft) = object::soft((*event).element.qp) {
                    Arc::clone(&soft.handle).acks.ack(1);
                }
            }
            Some(EventElement::Srq) => {
                if let Ok(soft) = object::soft((*event).element.srq) {
                    Arc::clone(&soft.srq).acks.ack(1);
                }
            }
            // Nobody destroys a port or a device.
            _ => {}
        }
    }
}
