//! The data path: post, poll, arm.

use crate::types::*;
use core::ffi::c_int;

/// The first operation of the data path that a context does not have, by its C name.
///
/// The functions below call those pointers unchecked, as C does: ask once, when the device is opened. Providers of rdma-core
/// set all of them (to stubs where need be) and never clear one.
///
/// # Safety
/// `context` is an open context.
#[must_use]
pub unsafe fn missing_fast_op(context: *const ibv_context) -> Option<&'static str> {
    // SAFETY: the caller vouches for the context; the operations are plain pointers, copied out.
    let ops = unsafe { (*context).ops };
    [
        ("post_send", ops.post_send.is_some()),
        ("post_recv", ops.post_recv.is_some()),
        ("post_srq_recv", ops.post_srq_recv.is_some()),
        ("poll_cq", ops.poll_cq.is_some()),
        ("req_notify_cq", ops.req_notify_cq.is_some()),
    ]
    .into_iter()
    .find_map(|(name, set)| (!set).then_some(name))
}

/// Posts a list of send requests. 0, or an errno value and the first request that was not posted in `bad_wr`.
///
/// # Safety
/// `qp` is alive, used by no other thread in a way that it does not lock, and its context has `post_send` ([`missing_fast_op`]). `wr` is a list whose
/// requests and scatter/gather lists are readable during the call; the memory that they name stays registered and allocated
/// until the completion, unless it is sent inline. `bad_wr` is writable.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller vouches for the QP and its requests, and that the pointer is set.
    unsafe { (*(*qp).context).ops.post_send.unwrap_unchecked()(qp, wr, bad_wr) }
}

/// Posts a list of receives to a QP. 0, or an errno value and the first request that was not posted in `bad_wr`.
///
/// # Safety
/// As for [`ibv_post_send`], with `post_recv`; the memory is written until the completion.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller vouches for the QP and its requests, and that the pointer is set.
    unsafe { (*(*qp).context).ops.post_recv.unwrap_unchecked()(qp, wr, bad_wr) }
}

/// Posts a list of receives to an SRQ. 0, or an errno value and the first request that was not posted in `bad_wr`.
///
/// # Safety
/// As for [`ibv_post_send`], with `srq` and `post_srq_recv`; the memory is written until the completion.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller vouches for the SRQ and its requests, and that the pointer is set.
    unsafe { (*(*srq).context).ops.post_srq_recv.unwrap_unchecked()(srq, wr, bad_wr) }
}

/// Takes up to `num_entries` completions. Their number (fewer than asked for: the CQ is empty now), or a negative value.
///
/// # Safety
/// `cq` is alive and its context has `poll_cq` ([`missing_fast_op`]); `wc` has room for `num_entries` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller vouches for the CQ and the room, and that the pointer is set.
    unsafe { (*(*cq).context).ops.poll_cq.unwrap_unchecked()(cq, num_entries, wc) }
}

/// Asks for an event at the next completion, or at the next solicited one. 0 or an errno value.
///
/// Completions that came before raise no event: poll once more after arming.
///
/// # Safety
/// `cq` is alive and its context has `req_notify_cq` ([`missing_fast_op`]).
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller vouches for the CQ, and that the pointer is set.
    unsafe { (*(*cq).context).ops.req_notify_cq.unwrap_unchecked()(cq, solicited_only) }
}
