//! A provider that does almost nothing, so that what remains is what its user spends.
//!
//! [`verbs`] is a table like any other: the safe layer opens `fake0` and makes PDs, regions, CQs and QPs of it. A signaled
//! send that is posted is done: the CQ of its QP hands it out at the next poll, in the order of posting over all QPs that
//! report there, with the fields that `ibv_poll_cq(3)` promises for a send. Unsignaled sends leave no trace. A list ends at
//! the first request that there is no room for ([`IN_FLIGHT`]): `ENOMEM`, and `bad_wr` names it. Receives are refused with `EOPNOTSUPP`.
//!
//! Everything that a loop of posts and polls reaches in here has a name that begins with `fake_`, and is called through the
//! pointers of the context alone, so a profile can tell it from its caller.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use rdma_core_sys::*;

/// Signaled sends that may be posted and not polled at a time, over all QPs of a CQ: few, so that the ring of them stays in
/// the nearest cache, as a real CQ in use does. A power of two.
pub const IN_FLIGHT: usize = 64;

/// A CQ: the verbs struct first, then a ring of what was posted and not polled yet.
#[repr(C)]
struct FakeCq {
    ibv: ibv_cq,
    posted: u64,
    polled: u64,
    ring: [(u64, u32); IN_FLIGHT],
}

/// What a CQ saw since it was made: signaled sends posted, completions polled.
///
/// # Safety
/// `cq` is a live CQ of this provider that nobody uses at the moment.
#[must_use]
pub unsafe fn seen(cq: *mut ibv_cq) -> (u64, u64) {
    // SAFETY: every CQ of this provider is the first field of a `FakeCq`; the caller vouches for the rest.
    unsafe { ((*cq.cast::<FakeCq>()).posted, (*cq.cast::<FakeCq>()).polled) }
}

#[inline(never)]
unsafe extern "C" fn fake_post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a live QP of this provider, whose `send_cq` is a live `FakeCq`, a list of requests that ends
    // with null, and a place for the first one that is refused.
    unsafe {
        let (cq, qp_num) = ((*qp).send_cq.cast::<FakeCq>(), (*qp).qp_num);
        while !wr.is_null() {
            if (*wr).send_flags & IBV_SEND_SIGNALED.bits() != 0 {
                if (*cq).posted - (*cq).polled == IN_FLIGHT as u64 {
                    *bad = wr;
                    return libc::ENOMEM;
                }
                (*cq).ring[(*cq).posted as usize % IN_FLIGHT] = ((*wr).wr_id, qp_num);
                (*cq).posted += 1;
            }
            wr = (*wr).next;
        }
    }
    0
}

#[inline(never)]
unsafe extern "C" fn fake_poll_cq(cq: *mut ibv_cq, n: c_int, into: *mut ibv_wc) -> c_int {
    let mut given = 0;
    // SAFETY: the caller passes a live CQ of this provider and room for `n` completions.
    unsafe {
        let cq = cq.cast::<FakeCq>();
        while given < n && (*cq).polled != (*cq).posted {
            let (wr_id, qp_num) = (*cq).ring[(*cq).polled as usize % IN_FLIGHT];
            (*cq).polled += 1;
            let wc = into.add(given as usize);
            (*wc).wr_id = wr_id;
            (*wc).status = IBV_WC_SUCCESS;
            (*wc).opcode = IBV_WC_SEND;
            (*wc).byte_len = 0;
            (*wc).qp_num = qp_num;
            (*wc).wc_flags = 0;
            given += 1;
        }
    }
    given
}

unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a place for the refused request.
    unsafe { *bad = wr };
    libc::EOPNOTSUPP
}

unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a place for the refused request.
    unsafe { *bad = wr };
    libc::EOPNOTSUPP
}

unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let mut device = Box::new(ibv_device::zeroed());
    for (to, from) in device.name.iter_mut().zip(b"fake0\0") {
        *to = *from as c_char;
    }
    // SAFETY: the caller passes null or a place for the count.
    unsafe {
        if !count.is_null() {
            *count = 1;
        }
    }
    // A device lives for ever, as an open context may name it.
    Box::into_raw(Box::new([Box::into_raw(device), null_mut()])).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the list came from `get_device_list`, which boxed an array of two.
    drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller passes a device of the list; none is ever freed.
    unsafe { (*device).name.as_ptr() }
}

unsafe extern "C" fn get_device_guid(_: *mut ibv_device) -> u64 {
    1
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let mut context = ibv_context::zeroed();
    context.device = device;
    context.ops.poll_cq = Some(fake_poll_cq);
    context.ops.post_send = Some(fake_post_send);
    context.ops.post_recv = Some(post_recv);
    context.ops.post_srq_recv = Some(post_srq_recv);
    context.ops.req_notify_cq = Some(req_notify_cq);
    context.async_fd = -1;
    Box::into_raw(Box::new(context))
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: made by `open_device`, closed once.
    drop(unsafe { Box::from_raw(context) });
    0
}

unsafe extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    let mut device = ibv_device_attr::zeroed();
    (device.phys_port_cnt, device.max_mr_size) = (1, 1 << 30);
    (device.max_qp_wr, device.max_sge) = (1024, 16);
    (device.max_cqe, device.max_pd) = (1 << 16, 16);
    (device.max_qp_rd_atom, device.max_qp_init_rd_atom) = (16, 16);
    // SAFETY: the caller passes a place for the attributes.
    unsafe { *attr = device };
    0
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    Box::into_raw(Box::new(ibv_pd {
        context,
        ..ibv_pd::zeroed()
    }))
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: made by `alloc_pd`, freed once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: c_int,
) -> *mut ibv_mr {
    Box::into_raw(Box::new(ibv_mr {
        // SAFETY: the caller passes a live PD of this provider.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length,
        handle: 0,
        lkey: 7,
        rkey: 8,
    }))
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: made by `reg_mr`, freed once.
    drop(unsafe { Box::from_raw(mr) });
    0
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    let ibv = ibv_cq {
        context,
        cq_context,
        channel,
        cqe,
        ..ibv_cq::zeroed()
    };
    Box::into_raw(Box::new(FakeCq {
        ibv,
        posted: 0,
        polled: 0,
        ring: [(0, 0); IN_FLIGHT],
    }))
    .cast()
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: made by `create_cq`, destroyed once.
    drop(unsafe { Box::from_raw(cq.cast::<FakeCq>()) });
    0
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static NEXT: AtomicU32 = AtomicU32::new(0x40);
    // SAFETY: the caller passes a live PD of this provider and a whole structure.
    let (context, init) = unsafe { ((*pd).context, *init) };
    Box::into_raw(Box::new(ibv_qp {
        context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        qp_num: NEXT.fetch_add(1, Relaxed),
        qp_type: init.qp_type,
        ..ibv_qp::zeroed()
    }))
}

/// Every move is granted; the state is what was asked for last.
unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    if ibv_qp_attr_mask::from_bits_retain(mask as u32).contains(IBV_QP_STATE) {
        // SAFETY: the caller passes a live QP of this provider and a whole structure.
        unsafe { (*qp).state = (*attr).qp_state };
    }
    0
}

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes a live QP of this provider and two whole structures.
    unsafe {
        *attr = ibv_qp_attr::zeroed();
        (*attr).qp_state = (*qp).state;
        *init = ibv_qp_init_attr::zeroed();
    }
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: made by `create_qp`, destroyed once.
    drop(unsafe { Box::from_raw(qp) });
    0
}

/// The provider's table. What it does not have comes from the software device's, and is never called.
#[must_use]
pub fn verbs() -> Verbs {
    let functions = Functions {
        source: "a provider that does nothing",
        get_device_list,
        free_device_list,
        get_device_name,
        get_device_guid,
        open_device,
        close_device,
        query_device,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        create_cq,
        destroy_cq,
        create_qp,
        modify_qp,
        query_qp,
        destroy_qp,
        ..**rdma_soft::verbs()
    };
    // SAFETY: the functions above keep the contract of libibverbs' for objects that they made, which are the only ones that
    // a user of this table gets.
    unsafe { Verbs::new(functions) }
}
