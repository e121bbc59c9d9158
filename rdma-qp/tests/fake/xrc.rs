//! XRC: what the provider does behind the extended context.

use std::ffi::c_int;

use rdma_core_sys::*;

use super::{born, called, died, new_qp, null, state};

/// Sets what an extended context has for XRC.
pub fn set_operations(front: &mut verbs_context) {
    front.sz = size_of::<verbs_context>();
    front.context.abi_compat = std::ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED);
    front.open_xrcd = Some(open_xrcd);
    front.close_xrcd = Some(close_xrcd);
    front.create_srq_ex = Some(create_srq_ex);
    front.get_srq_num = Some(get_srq_num);
    front.create_qp_ex = Some(create_qp_ex);
    front.open_qp = Some(open_qp);
}

unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the caller passes a whole structure.
    let attr = unsafe { *attr };
    let errno = called(context, "open_xrcd");
    if errno != 0 {
        return null(errno);
    }
    born(context, "xrcd");
    state(context)
        .lock()
        .unwrap()
        .domains
        .push((attr.fd, attr.oflags));
    Box::into_raw(Box::new(ibv_xrcd { context }))
}

unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller passes a live domain of this provider.
    let context = unsafe { (*xrcd).context };
    let errno = called(context, "close_xrcd");
    if errno == 0 {
        died(context, "xrcd");
        // SAFETY: made by `open_xrcd`, closed once.
        drop(unsafe { Box::from_raw(xrcd) });
    }
    errno
}

unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the caller passes a whole structure.
    let init = unsafe { *init };
    let errno = called(context, "create_srq_ex");
    if errno != 0 {
        return null(errno);
    }
    born(context, "srq");
    Box::into_raw(Box::new(ibv_srq {
        context,
        pd: init.pd,
        srq_context: init.srq_context,
        ..ibv_srq::zeroed()
    }))
}

unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the caller passes a live SRQ of this provider, and a place.
    unsafe {
        let context = (*srq).context;
        *number = state(context).lock().unwrap().srq_num;
        called(context, "get_srq_num")
    }
}

unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller passes a whole structure.
    let init = unsafe { *init };
    let errno = called(context, "create_qp_ex");
    if errno != 0 {
        return null(errno);
    }
    let mut basic = ibv_qp_init_attr::zeroed();
    (basic.cap, basic.qp_type) = (init.cap, init.qp_type);
    (basic.send_cq, basic.recv_cq) = (init.send_cq, init.recv_cq);
    new_qp(context, init.pd, &basic)
}

unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller passes a whole structure.
    let attr = unsafe { *attr };
    let errno = called(context, "open_qp");
    if errno != 0 {
        return null(errno);
    }
    born(context, "qp");
    Box::into_raw(Box::new(ibv_qp {
        context,
        qp_num: attr.qp_num,
        qp_type: attr.qp_type,
        ..ibv_qp::zeroed()
    }))
}
