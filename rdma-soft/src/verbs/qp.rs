//! Queue Pairs.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;
use rustix::io::Errno;

use super::context;
use super::object::{self, named};
use super::qp_ex::{self, Extended};
use super::{ah, fail, refuse};
use crate::core::{CallError, QpInit};
use crate::node::{Node, Qp, QpHandle};

/// Our part of an `ibv_qp`.
pub(super) struct QpObject {
    pub(super) node: Arc<Node>,
    pub(super) qp: Arc<Qp>,
    /// This `ibv_qp` of the Queue Pair: an XRC target may have several.
    pub(super) handle: Arc<QpHandle>,
    /// What it was created with.
    pub(super) init: QpInit,
    /// The port that the QP was told.
    pub(super) port: AtomicU8,
    /// Bytes of the longest message, by that port.
    pub(super) max_message: AtomicU32,
    /// Which of the context's open XRC domains it was made in.
    xrcd: Option<u32>,
    /// What it has for extended posting, if it was created for that.
    pub(super) extended: Option<Box<Extended>>,
}

impl QpObject {
    fn new(node: &Arc<Node>, handle: &Arc<QpHandle>, init: QpInit, xrcd: Option<u32>) -> QpObject {
        QpObject {
            node: Arc::clone(node),
            qp: Arc::clone(&handle.qp),
            handle: Arc::clone(handle),
            init,
            port: AtomicU8::new(0),
            max_message: AtomicU32::new(0),
            xrcd,
            extended: None,
        }
    }

    /// Remembers what a port that the QP was told means for its messages.
    fn set_port(&self, number: u8) {
        let longest = self
            .node
            .port(number)
            .map_or(0, |port| match self.init.transport {
                Transport::Ud => port.config.active_mtu,
                _ => port.config.max_msg_sz,
            });
        self.port.store(number, Ordering::Release);
        self.max_message.store(longest, Ordering::Release);
    }
}

/// The field of an argument that the mask says is there; null without it.
fn masked<T>(mask: u32, bit: ibv_qp_init_attr_mask, field: *mut T) -> *mut T {
    if mask & bit.bits() == 0 {
        null_mut()
    } else {
        field
    }
}

/// Reads the flags of a new QP; gives whether multicast of its own is kept from it.
fn create_flags(attr: &ibv_qp_init_attr_ex) -> Result<bool, CallError> {
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let unknown = attr.comp_mask & !known.bits();
    if unknown != 0 {
        let why = format!("comp_mask has bits that this device does not offer: {unknown:#x}");
        return Err(CallError::new(Errno::OPNOTSUPP, why));
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS.bits() == 0 {
        return Ok(false);
    }
    let block = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.bits();
    let unknown = attr.create_flags & !block;
    let blocks = attr.create_flags & block != 0;
    if unknown != 0 || blocks && attr.qp_type != IBV_QPT_UD {
        let why = format!(
            "create_flags is {:#x}: this device has IBV_QP_CREATE_BLOCK_SELF_MCAST_LB on UD, and no others",
            attr.create_flags
        );
        return Err(CallError::new(Errno::OPNOTSUPP, why));
    }
    Ok(blocks)
}

/// The transport of a type of QP.
///
/// # Errors
/// `EOPNOTSUPP` for one that verbs know and this device does not, `EINVAL` for an unknown one.
fn transport(kind: ibv_qp_type) -> Result<Transport, CallError> {
    Transport::from_qp_type(kind).ok_or_else(|| match kind.name() {
        Some(name) => CallError::new(Errno::OPNOTSUPP, format!("this device has no {name}")),
        None => CallError::invalid(format!("qp_type {} is none of verbs'", kind.0)),
    })
}

/// Creates a Queue Pair, and writes back the capacities that it has: those asked for, but for queues
/// that it does not have.
///
/// # Errors
/// `EINVAL` for parts that the transport has not, that are missing, or that belong to another context;
/// `EOPNOTSUPP` for what this device does not offer; and what the engine refuses.
///
/// # Safety
/// The objects are null or live, of some verbs provider.
unsafe fn create(
    ctx: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, CallError> {
    let block_self_multicast = create_flags(attr)?;
    let transport = transport(attr.qp_type)?;
    let extended = match attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.bits() {
        0 => None,
        _ => Some(Box::new(Extended::new(transport, attr.send_ops_flags)?)),
    };
    let target = transport == Transport::XrcTgt;
    let pd_field = masked(attr.comp_mask, IBV_QP_INIT_ATTR_PD, attr.pd);
    let xrcd_field = masked(attr.comp_mask, IBV_QP_INIT_ATTR_XRCD, attr.xrcd);
    // SAFETY: the caller's promise.
    let (context, pd, send_cq, recv_cq, srq, xrcd) = unsafe {
        (
            context::soft(ctx)?,
            named(ctx, "pd", pd_field)?,
            named(ctx, "send_cq", attr.send_cq)?,
            named(ctx, "recv_cq", attr.recv_cq)?,
            named(ctx, "srq", attr.srq)?,
            named(ctx, "xrcd", xrcd_field)?,
        )
    };
    // An initiator has no receive queue. Programs name a CQ for it all the same, and the kernel does not
    // look at it (uverbs_cmd.c, create_qp).
    let recv_cq = recv_cq.filter(|_| transport != Transport::XrcIni);
    if target && (send_cq.is_some() || recv_cq.is_some()) {
        return Err(CallError::invalid(
            "XRC_RECV: send_cq and recv_cq must be null: receives complete in the CQ of their SRQ",
        ));
    }
    let cap = &mut attr.cap;
    // Receives come from an SRQ: what is said of a receive queue is ignored (ibv_create_qp(3)), and
    // programs say something of that of a target, too.
    if target || srq.is_some() && transport != Transport::XrcIni {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    if target {
        cap.max_inline_data = 0;
    }
    let init = QpInit {
        transport,
        pd: pd.filter(|_| !target).map(|pd| pd.id),
        send_cq: send_cq.map(|cq| cq.cq.id),
        recv_cq: recv_cq.map(|cq| cq.cq.id),
        srq: srq.map(|srq| srq.srq.id),
        xrcd: xrcd.map(|xrcd| xrcd.id),
        block_self_multicast,
        sq_sig_all: attr.sq_sig_all != 0,
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    };
    let cqs = [send_cq, recv_cq].map(|cq| cq.map(|cq| Arc::clone(&cq.cq)));
    let [send, recv] = cqs;
    let events = Arc::clone(&context.events);
    let handle = context.node.create_qp(init, send, recv, events)?;
    let mut abi = ibv_qp_ex::zeroed();
    abi.qp_base.context = ctx;
    abi.qp_base.qp_context = attr.qp_context;
    abi.qp_base.pd = pd_field;
    abi.qp_base.send_cq = attr.send_cq;
    abi.qp_base.recv_cq = attr.recv_cq;
    abi.qp_base.srq = attr.srq;
    abi.qp_base.handle = handle.qp.num;
    abi.qp_base.qp_num = handle.qp.num;
    abi.qp_base.state = ibv_qp_state::IBV_QPS_RESET;
    abi.qp_base.qp_type = attr.qp_type;
    if extended.is_some() {
        qp_ex::set_functions(&mut abi);
    }
    let mut soft = QpObject::new(&context.node, &handle, init, xrcd.map(|x| x.number));
    soft.extended = extended;
    Ok(publish(context, &handle, abi, soft))
}

/// Makes the `ibv_qp` of a handle, and the handle known to its context.
fn publish(
    context: &context::Context,
    handle: &Arc<QpHandle>,
    abi: ibv_qp_ex,
    soft: QpObject,
) -> *mut ibv_qp {
    context.objects().add_qp(handle, soft.xrcd);
    let qp = object::create::<ibv_qp>(abi, soft);
    handle.handle.store(qp as usize, Ordering::Release);
    qp
}

pub(super) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    if attr.is_null() {
        return fail(CallError::invalid("the attributes are null"));
    }
    let mut all = ibv_qp_init_attr_ex::zeroed();
    all.comp_mask = IBV_QP_INIT_ATTR_PD.bits();
    all.pd = pd;
    // SAFETY: not null, so it is the struct that ibv_create_qp(3) asks for; its objects and the PD are
    // such that the application got from a verbs provider and has not destroyed.
    let made = unsafe {
        all.qp_context = (*attr).qp_context;
        all.send_cq = (*attr).send_cq;
        all.recv_cq = (*attr).recv_cq;
        all.srq = (*attr).srq;
        all.cap = (*attr).cap;
        all.qp_type = (*attr).qp_type;
        all.sq_sig_all = (*attr).sq_sig_all;
        object::context(pd)
            .map_err(CallError::from)
            .and_then(|_| create((*pd).context, &mut all))
    };
    match made {
        Ok(qp) => {
            // SAFETY: as above.
            unsafe { (*attr).cap = all.cap };
            qp
        }
        Err(error) => fail(error),
    }
}

pub(super) unsafe extern "C" fn create_qp_ex(
    ctx: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    if attr.is_null() {
        return fail(CallError::invalid("the attributes are null"));
    }
    // SAFETY: not null, so it is the struct that ibv_create_qp_ex(3) asks for; its objects are such
    // that the application got from a verbs provider and has not destroyed.
    let made = unsafe {
        let mut all = attr.read();
        create(ctx, &mut all).map(|qp| (qp, all.cap))
    };
    match made {
        Ok((qp, cap)) => {
            // SAFETY: as above.
            unsafe { (*attr).cap = cap };
            qp
        }
        Err(error) => fail(error),
    }
}

/// Opens an XRC target that this or another context made, as one more `ibv_qp`.
pub(super) unsafe extern "C" fn open_qp(
    ctx: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    let open = || -> Result<*mut ibv_qp, CallError> {
        if attr.is_null() {
            return Err(CallError::invalid("the attributes are null"));
        }
        // SAFETY: not null, so it is the struct that ibv_open_qp(3) asks for, all of whose fields are
        // plain data.
        let attr = unsafe { attr.read() };
        let mask = ibv_qp_open_attr_mask::from_bits_retain(attr.comp_mask);
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        let known = needed | IBV_QP_OPEN_ATTR_CONTEXT;
        if !mask.contains(needed) || mask.bits() & !known.bits() != 0 {
            return Err(CallError::invalid(format!(
                "comp_mask is {:#x}: a target is opened by NUM, XRCD and TYPE, and CONTEXT if there is one",
                attr.comp_mask
            )));
        }
        if attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(CallError::invalid(
                "only QPs of type IBV_QPT_XRC_RECV are opened",
            ));
        }
        // SAFETY: the context and the domain are such that the application got from a verbs provider
        // and has not closed.
        let (context, xrcd) = unsafe { (context::soft(ctx)?, named(ctx, "xrcd", attr.xrcd)?) };
        let xrcd = xrcd.ok_or_else(|| CallError::invalid("xrcd is null"))?;
        let events = Arc::clone(&context.events);
        let (handle, init) = context.node.open_qp(attr.qp_num, xrcd.id, events)?;
        let mut abi = ibv_qp_ex::zeroed();
        abi.qp_base.context = ctx;
        if mask.contains(IBV_QP_OPEN_ATTR_CONTEXT) {
            abi.qp_base.qp_context = attr.qp_context;
        }
        abi.qp_base.handle = attr.qp_num;
        abi.qp_base.qp_num = attr.qp_num;
        // It is in whatever state its maker brought it to; a query tells.
        abi.qp_base.state = ibv_qp_state::IBV_QPS_UNKNOWN;
        abi.qp_base.qp_type = IBV_QPT_XRC_RECV;
        let soft = QpObject::new(&context.node, &handle, init, Some(xrcd.number));
        Ok(publish(context, &handle, abi, soft))
    };
    open().unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(qp) } {
        Ok(_) if attr.is_null() => return refuse(CallError::invalid("the attributes are null")),
        Ok(soft) => soft,
        Err(error) => return refuse(error),
    };
    let mask = ibv_qp_attr_mask::from_bits_retain(attr_mask as u32);
    // SAFETY: not null, so it is the struct that ibv_modify_qp(3) asks for. Fields whose bit is not in
    // the mask may be uninitialised; they are copied as bytes and not looked at by the engine.
    let mut attr = unsafe { attr.read() };
    if mask.contains(ibv_qp_attr_mask::IBV_QP_AV) {
        ah::cut_flow_label(&mut attr.ah_attr);
    }
    let told = |state| {
        if mask.contains(ibv_qp_attr_mask::IBV_QP_STATE) {
            // SAFETY: one of ours, as found out above, which the application does not destroy during the call.
            unsafe { (*qp).state = state };
        }
    };
    // Requests that it flushes may be polled before it is over, and then the application may close the device.
    let node = Arc::clone(&soft.node);
    match node.modify_qp(&soft.qp, &attr, mask, told) {
        Ok(()) => {
            if mask.contains(ibv_qp_attr_mask::IBV_QP_PORT) {
                soft.set_port(attr.port_num);
            }
            0
        }
        Err(error) => {
            tracing::debug!(qp_num = soft.qp.num, %error, "ibv_modify_qp refused");
            refuse(error)
        }
    }
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // What rdma-core answers for every device of the kernel (cmd.c, ibv_cmd_query_qp). The bits between
    // IBV_QP_DEST_QPN and this one have no name, and programs that ask for everything set them.
    let standard = IBV_QP_RATE_LIMIT.bits() - 1;
    if attr_mask as u32 & !standard != 0 {
        return refuse(CallError::new(
            Errno::OPNOTSUPP,
            format!("attr_mask has IBV_QP_RATE_LIMIT or bits beyond it: {attr_mask:#x}"),
        ));
    }
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(qp) } {
        Ok(_) if attr.is_null() || init_attr.is_null() => {
            return refuse(CallError::invalid("the places for the answer are null"));
        }
        Ok(soft) => soft,
        Err(error) => return refuse(error),
    };
    // A thread that asks must not write what another one has changed meanwhile.
    // SAFETY: one of ours, as found out above, which the application does not destroy during the call.
    let told = |state| unsafe { (*qp).state = state };
    let Some((mut now, init)) = soft.node.query_qp(&soft.qp, told) else {
        return refuse(CallError::invalid("the QP is not there any more"));
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
        made.srq = (*qp).srq;
        made.qp_type = (*qp).qp_type;
        attr.write(now);
        init_attr.write(made);
    }
    0
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let destroy = || -> Result<(), CallError> {
        // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
        let (context, soft) = unsafe { (object::context(qp)?, object::soft(qp)?) };
        soft.node.destroy_qp(&soft.handle)?;
        context.objects().remove_qp(&soft.handle, soft.xrcd);
        soft.handle.retire_events();
        Ok(())
    };
    if let Err(error) = destroy() {
        return refuse(error);
    }
    // SAFETY: one of ours, the engine has forgotten it, and no event of it is outstanding: the
    // application is done with it.
    unsafe { object::free(qp) };
    0
}

/// The extended posting calls of a Queue Pair that was created for them (`send_ops_flags`); null for
/// others.
pub(super) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    match unsafe { object::soft(qp) } {
        // Every `ibv_qp` of this device lies at the front of an `ibv_qp_ex`.
        Ok(soft) if soft.extended.is_some() => qp.cast(),
        Ok(_) => fail(CallError::invalid(
            "the QP was created without send_ops_flags",
        )),
        Err(error) => fail(error),
    }
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
        Ok(_) if ece.is_null() => refuse(CallError::invalid("the place for the ECE is null")),
        Ok(_) => refuse(CallError::new(
            Errno::OPNOTSUPP,
            "this device has no enhanced connection establishment",
        )),
        Err(error) => refuse(error),
    }
}

pub(super) unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's promises are those that `query_ece` asks for.
    unsafe { query_ece(qp, ece) }
}
