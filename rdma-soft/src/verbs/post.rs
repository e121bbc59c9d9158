//! Posting work requests: lists of them, up to the first that is refused.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::qp::QpObject;
use super::request::{push_recv, push_send};
use super::{object, refuse};
use crate::core::CallError;
use crate::node::Posting;

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    let soft: &QpObject = match unsafe { object::soft(qp) } {
        Ok(soft) => soft,
        Err(error) => return bad(error, wr, bad_wr),
    };
    if let Err(error) = check_send_queue(soft) {
        return bad(error, wr, bad_wr);
    }
    let mut queue = soft.qp.post_send();
    let (accepted, outcome) = stage(&mut queue, wr, bad_wr, |queue, request, seq| {
        // SAFETY: not null, so it is a request of the list that ibv_post_send(3) asks for, and the QP
        // is one of ours.
        unsafe { push_send(queue, qp, soft, request, seq) }
    });
    if accepted {
        Arc::clone(&soft.node).send(&soft.qp, queue);
    }
    outcome
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    let soft: &QpObject = match unsafe { object::soft(qp) } {
        Ok(soft) => soft,
        Err(error) => return bad(error, wr, bad_wr),
    };
    if let Err(error) = check_recv_queue(soft) {
        return bad(error, wr, bad_wr);
    }
    let mut queue = soft.qp.post_recv();
    let max_sge = soft.init.max_recv_sge;
    let (accepted, outcome) = stage(&mut queue, wr, bad_wr, |queue, request, seq| {
        // SAFETY: not null, so it is a request of the list that ibv_post_recv(3) asks for.
        unsafe { push_recv(queue, max_sge, request, seq) }
    });
    // The engine takes them when a message comes. Whoever moves the QP to ERR tells the queue so under its lock, and takes
    // what is there afterwards: either it finds these, or the queue flushes already.
    if accepted && queue.flushes() {
        Arc::clone(&soft.node).flush(&soft.qp, queue);
    }
    outcome
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: an SRQ that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(srq) } {
        Ok(soft) => soft,
        Err(error) => return bad(error, wr, bad_wr),
    };
    let mut queue = soft.srq.post();
    let max_sge = soft.init.max_sge;
    let (accepted, outcome) = stage(&mut queue, wr, bad_wr, |queue, request, seq| {
        // SAFETY: not null, so it is a request of the list that ibv_post_srq_recv(3) asks for.
        unsafe { push_recv(queue, max_sge, request, seq) }
    });
    if accepted {
        soft.node.mark_srq(&soft.srq, queue);
    }
    outcome
}

/// `EINVAL` for a QP that takes no sends in any state.
pub(super) fn check_send_queue(soft: &QpObject) -> Result<(), CallError> {
    match soft.init.transport {
        Transport::XrcTgt => Err(CallError::invalid("XRC_RECV: a target has no send queue")),
        _ => Ok(()),
    }
}

/// `EINVAL` for a QP that has no receive queue.
fn check_recv_queue(soft: &QpObject) -> Result<(), CallError> {
    let why = match soft.init.transport {
        Transport::XrcIni => "XRC_SEND: initiator QPs have no receive queue",
        Transport::XrcTgt => {
            "XRC_RECV: a target has no receive queue: post to the SRQs of its domain"
        }
        _ if soft.init.srq.is_some() => {
            "the QP takes its receives from an SRQ: post them there (ibv_post_srq_recv)"
        }
        _ => return Ok(()),
    };
    Err(CallError::invalid(why))
}

/// Appends the requests of a list to a queue, up to the first one that is refused. `push` appends a
/// request, which is not null, at a position, and gives the one after it.
///
/// Returns whether any was accepted, and what the post call returns.
fn stage<R, W>(
    queue: &mut Posting<'_, W>,
    list: *mut R,
    bad_wr: *mut *mut R,
    push: impl Fn(&mut Posting<'_, W>, *mut R, u64) -> Result<*mut R, CallError>,
) -> (bool, c_int) {
    let (mut next, mut accepted) = (list, false);
    // The list ends at the latest when the queue is full, even if it is a circle.
    while !next.is_null() {
        match queue.slot().and_then(|seq| push(queue, next, seq)) {
            Ok(after) => (next, accepted) = (after, true),
            Err(error) => return (accepted, bad(error, next, bad_wr)),
        }
    }
    (accepted, 0)
}

/// Names the request that was refused, and why.
#[cold]
fn bad<W>(error: impl Into<CallError>, wr: *mut W, bad_wr: *mut *mut W) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: not null, so it is the place that ibv_post_send(3) and ibv_post_recv(3) ask for.
        unsafe { *bad_wr = wr };
    }
    refuse(error)
}
