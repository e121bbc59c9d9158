//! Queue Pairs.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;
use rustix::io::Errno;

use super::{fail, object};
use crate::core::QpInit;
use crate::node::{Node, Qp};

/// Our part of an `ibv_qp`.
pub(super) struct QpObject {
    pub(super) node: Arc<Node>,
    pub(super) qp: Arc<Qp>,
    /// What it was created with.
    pub(super) init: QpInit,
    /// Bytes of the longest message, by the port that the QP was told.
    pub(super) max_msg_sz: AtomicU32,
}

/// Creates a Queue Pair. Its capacities are exactly those asked for, so there is nothing to write
/// back.
///
/// # Safety
/// The objects are null or live, of some verbs provider.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: the caller's promise.
    let (context, pd_soft, send_cq, recv_cq) = unsafe {
        (
            object::context(pd)?,
            object::soft(pd)?,
            object::soft(attr.send_cq)?,
            object::soft(attr.recv_cq)?,
        )
    };
    // SAFETY: all three are live and of ours, as the lines above found out.
    let (ctx, of_cqs) = unsafe {
        (
            (*pd).context,
            [(*attr.send_cq).context, (*attr.recv_cq).context],
        )
    };
    if of_cqs != [ctx; 2] {
        return Err(Errno::INVAL);
    }
    let transport = Transport::from_qp_type(attr.qp_type).ok_or(Errno::INVAL)?;
    if !attr.srq.is_null() {
        return Err(Errno::OPNOTSUPP);
    }
    let cap = attr.cap;
    let init = QpInit {
        transport,
        pd: pd_soft.id,
        send_cq: send_cq.cq.id,
        recv_cq: recv_cq.cq.id,
        sq_sig_all: attr.sq_sig_all != 0,
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    };
    let node = Arc::clone(&context.node);
    let (send, recv) = (Arc::clone(&send_cq.cq), Arc::clone(&recv_cq.cq));
    let qp = node.create_qp(init, send, recv, Arc::clone(&context.events))?;
    context.objects().qps.insert(qp.num, Arc::clone(&qp));
    let mut abi = ibv_qp_ex::zeroed();
    abi.qp_base.context = ctx;
    abi.qp_base.qp_context = attr.qp_context;
    abi.qp_base.pd = pd;
    abi.qp_base.send_cq = attr.send_cq;
    abi.qp_base.recv_cq = attr.recv_cq;
    abi.qp_base.handle = qp.num;
    abi.qp_base.qp_num = qp.num;
    abi.qp_base.state = ibv_qp_state::IBV_QPS_RESET;
    abi.qp_base.qp_type = attr.qp_type;
    let max_msg_sz = AtomicU32::new(0);
    let soft = QpObject {
        node,
        qp: Arc::clone(&qp),
        init,
        max_msg_sz,
    };
    let handle = object::create::<ibv_qp>(abi, soft);
    qp.handle.store(handle as usize, Ordering::Release);
    Ok(handle)
}

pub(super) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    if attr.is_null() {
        return fail(Errno::INVAL);
    }
    let mut all = ibv_qp_init_attr_ex::zeroed();
    // SAFETY: not null, so it is the struct that ibv_create_qp(3) asks for; its objects are such that
    // the application got from a verbs provider and has not destroyed.
    let made = unsafe {
        all.qp_context = (*attr).qp_context;
        all.send_cq = (*attr).send_cq;
        all.recv_cq = (*attr).recv_cq;
        all.srq = (*attr).srq;
        all.cap = (*attr).cap;
        all.qp_type = (*attr).qp_type;
        all.sq_sig_all = (*attr).sq_sig_all;
        create(pd, &all)
    };
    made.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn create_qp_ex(
    ctx: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    if attr.is_null() {
        return fail(Errno::INVAL);
    }
    // SAFETY: not null, so it is the struct that ibv_create_qp_ex(3) asks for.
    let all = unsafe { attr.read() };
    let mask = ibv_qp_init_attr_mask::from_bits_retain(all.comp_mask);
    let known = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
        | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS;
    let no_flags = !mask.contains(ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS)
        || all.create_flags == 0;
    if mask.bits() & !known.bits() != 0 || !no_flags {
        return fail(Errno::OPNOTSUPP);
    }
    let has_pd = mask.contains(ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD);
    if !has_pd {
        return fail(Errno::INVAL);
    }
    // SAFETY: the PD and the other objects are such that the application got from a verbs provider and
    // has not freed or destroyed.
    let made = unsafe {
        match object::context(all.pd) {
            Ok(_) if (*all.pd).context == ctx => create(all.pd, &all),
            _ => Err(Errno::INVAL),
        }
    };
    made.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(qp) } {
        Ok(_) if attr.is_null() => return Errno::INVAL.raw_os_error(),
        Ok(soft) => soft,
        Err(errno) => return errno.raw_os_error(),
    };
    let mask = ibv_qp_attr_mask::from_bits_retain(attr_mask as u32);
    // SAFETY: not null, so it is the struct that ibv_modify_qp(3) asks for. Fields whose bit is not in
    // the mask may be uninitialised; they are copied as bytes and not looked at by the engine.
    let attr = unsafe { attr.read() };
    match soft.node.modify_qp(&soft.qp, &attr, mask) {
        Ok(state) => {
            if mask.contains(ibv_qp_attr_mask::IBV_QP_PORT) {
                let port = usize::from(attr.port_num).checked_sub(1);
                let port = port.and_then(|at| soft.node.config().ports.get(at));
                soft.max_msg_sz
                    .store(port.map_or(0, |p| p.max_msg_sz), Ordering::Release);
            }
            if mask.contains(ibv_qp_attr_mask::IBV_QP_STATE) {
                // SAFETY: one of ours, as found out above.
                unsafe { (*qp).state = state };
            }
            0
        }
        Err(error) => {
            tracing::debug!(qp_num = soft.qp.num, %error, "ibv_modify_qp refused");
            error.errno().raw_os_error()
        }
    }
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // What rdma-core answers for every device of the kernel (cmd.c, ibv_cmd_query_qp).
    let standard = (IBV_QP_DEST_QPN.bits() << 1) - 1;
    if attr_mask as u32 & !standard != 0 {
        return Errno::OPNOTSUPP.raw_os_error();
    }
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(qp) } {
        Ok(_) if attr.is_null() || init_attr.is_null() => return Errno::INVAL.raw_os_error(),
        Ok(soft) => soft,
        Err(errno) => return errno.raw_os_error(),
    };
    let Some((mut now, init)) = soft.node.query_qp(&soft.qp) else {
        return Errno::INVAL.raw_os_error();
    };
    now.cap = ibv_qp_cap {
        max_send_wr: init.max_send_wr,
        max_recv_wr: init.max_recv_wr,
        max_send_sge: init.max_send_sge,
        max_recv_sge: init.max_recv_sge,
        max_inline_data: init.max_inline,
    };
    let mut made = ibv_qp_init_attr::zeroed();
    made.cap = now.cap;
    made.sq_sig_all = c_int::from(init.sq_sig_all);
    // SAFETY: one of ours, as found out above; neither place is null, so each has room for its struct
    // by the rules of ibv_query_qp(3).
    unsafe {
        made.qp_context = (*qp).qp_context;
        made.send_cq = (*qp).send_cq;
        made.recv_cq = (*qp).recv_cq;
        made.qp_type = (*qp).qp_type;
        (*qp).state = now.qp_state;
        attr.write(now);
        init_attr.write(made);
    }
    0
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    let destroyed = unsafe { object::context(qp).and_then(|c| Ok((c, object::soft(qp)?))) }
        .and_then(|(context, soft)| {
            soft.node.destroy_qp(&soft.qp)?;
            context.objects().qps.remove(&soft.qp.num);
            Ok(soft)
        });
    match destroyed {
        Ok(soft) => {
            soft.qp.retire_events();
            // SAFETY: one of ours, the engine has forgotten it, and no event of it is outstanding:
            // the application is done with it.
            unsafe { object::free(qp) };
            0
        }
        Err(errno) => errno.raw_os_error(),
    }
}

/// No Queue Pair of this device has the extended posting calls yet.
pub(super) unsafe extern "C" fn qp_to_qp_ex(_qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    null_mut()
}

/// Bytes of a message need not land in order: a lost packet's come later.
pub(super) unsafe extern "C" fn query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

pub(super) unsafe extern "C" fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    match unsafe { object::soft(qp) } {
        Ok(_) if ece.is_null() => Errno::INVAL.raw_os_error(),
        Ok(_) => Errno::OPNOTSUPP.raw_os_error(),
        Err(errno) => errno.raw_os_error(),
    }
}

pub(super) unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's promises are those that `query_ece` asks for.
    unsafe { query_ece(qp, ece) }
}
