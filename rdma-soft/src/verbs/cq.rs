//! Completion queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::cq_ex::{self, Current};
use super::pd::Member;
use super::turn::Turn;
use super::{POISON, context, fail, object, refuse, td};
use crate::core::{CallError, Completion, Queue};
use crate::node::{Cq, CqInit, Node, Overrun};

/// Our part of an `ibv_cq`.
pub(super) struct CqObject {
    pub(super) node: Arc<Node>,
    pub(super) cq: Arc<Cq>,
    /// Undefined fields of failed completions hold [`POISON`].
    pub(super) poison: bool,
    /// The completion that an extended CQ is read at.
    pub(super) current: Turn<Current>,
    /// Counts it as made in a parent domain.
    _parent: Option<Member>,
}

/// A number of entries that a CQ may have.
fn depth(node: &Node, cqe: u32) -> Result<u32, CallError> {
    // As ibv_query_device tells it: the number is an int.
    let max = node.config().caps.max_cqe.min(c_int::MAX as u32);
    match cqe {
        0 => Err(CallError::invalid(
            "cqe is 0: a CQ holds at least one completion",
        )),
        _ if cqe > max => Err(CallError::invalid(format!(
            "cqe is {cqe}: max_cqe is {max}"
        ))),
        _ => Ok(cqe),
    }
}

/// Creates a completion queue; the attributes of a classic one are those of an extended one without
/// anything optional.
///
/// # Safety
/// The objects are null or live, of some verbs provider.
pub(super) unsafe fn create(
    ctx: *mut ibv_context,
    attr: &ibv_cq_init_attr_ex,
    extended: bool,
) -> Result<*mut ibv_cq, CallError> {
    // SAFETY: the caller's promise.
    let context = unsafe { context::soft(ctx)? };
    let depth = depth(&context.node, attr.cqe)?;
    let timestamps = cq_ex::check(attr)?;
    if attr.comp_vector != 0 {
        return Err(CallError::invalid(format!(
            "comp_vector is {}: there is one, 0",
            attr.comp_vector
        )));
    }
    let parent = match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD.bits() {
        0 => None,
        // SAFETY: the caller's promise.
        _ => Some(unsafe { td::member_of_parent(attr.parent_domain, ctx)? }),
    };
    let channel_soft = if attr.channel.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        let (soft, of) = unsafe { (object::soft(attr.channel)?, (*attr.channel).context) };
        if of != ctx {
            return Err(CallError::invalid(
                "the completion channel belongs to another context",
            ));
        }
        Some(soft)
    };
    let cq = context.node.create_cq(CqInit {
        depth,
        channel: channel_soft.map(|c| Arc::clone(&c.queue)),
        events: Arc::clone(&context.events),
        timestamps,
    })?;
    if let Some(channel) = channel_soft {
        channel.users.fetch_add(1, Ordering::AcqRel);
    }
    context.objects().cqs.insert(cq.id.0, Arc::clone(&cq));
    let mut abi = ibv_cq_ex::zeroed();
    abi.context = ctx;
    abi.channel = attr.channel;
    abi.cq_context = attr.cq_context;
    abi.handle = cq.id.0;
    abi.cqe = depth as c_int;
    if extended {
        cq_ex::set_functions(&mut abi);
    }
    let soft = CqObject {
        node: Arc::clone(&context.node),
        cq: Arc::clone(&cq),
        poison: context.node.config().strict.poison,
        current: Current::none(),
        _parent: parent,
    };
    let handle = object::create::<ibv_cq>(abi, soft);
    cq.handle.store(handle as usize, Ordering::Release);
    Ok(handle)
}

pub(super) unsafe extern "C" fn create_cq(
    ctx: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    // A negative number becomes one that is too large.
    (attr.cqe, attr.comp_vector) = (cqe as u32, comp_vector as u32);
    (attr.cq_context, attr.channel) = (cq_context, channel);
    // SAFETY: the context and the channel are such that the application got from a verbs provider
    // and has not closed or destroyed.
    unsafe { create(ctx, &attr, false) }.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a CQ that the application got from a verbs provider and has not destroyed.
    let resized = unsafe { object::soft(cq) }
        .map_err(CallError::from)
        .and_then(|soft| {
            let depth = depth(&soft.node, cqe as u32)?;
            soft.cq.resize(depth)
        });
    match resized {
        Ok(()) => {
            // SAFETY: one of ours, as the call above found out.
            unsafe { (*cq).cqe = cqe };
            0
        }
        Err(error) => refuse(error),
    }
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let destroy = || -> Result<&CqObject, CallError> {
        // SAFETY: a CQ that the application got from a verbs provider and has not destroyed.
        let (context, soft) = unsafe { (object::context(cq)?, object::soft(cq)?) };
        soft.node.destroy_cq(&soft.cq)?;
        context.objects().cqs.remove(&soft.cq.id.0);
        Ok(soft)
    };
    let soft = match destroy() {
        Ok(soft) => soft,
        Err(error) => return refuse(error),
    };
    soft.cq.retire_events();
    // SAFETY: one of ours; its channel, if it has one, cannot be destroyed while the CQ counts as a
    // user. No QP uses the CQ, and no event of it is outstanding: the application is done with it.
    unsafe {
        let channel = (*cq).channel;
        if let Ok(channel) = object::soft(channel) {
            channel.users.fetch_sub(1, Ordering::AcqRel);
        }
        object::free(cq);
    }
    0
}

/// A completion as verbs report it.
///
/// Of a failed one only `wr_id`, `status`, `vendor_err` and `qp_num` are defined (ibv_poll_cq(3)): with
/// `poison` the other fields hold a value that no program takes for something it expects.
pub(super) fn to_abi(wc: &Completion, poison: bool) -> ibv_wc {
    let mut abi = ibv_wc::zeroed();
    abi.wr_id = wc.wr_id;
    abi.status = wc.status;
    abi.qp_num = wc.qp_num;
    if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
        if poison {
            abi.opcode = ibv_wc_opcode(POISON);
            abi.byte_len = POISON;
            abi.imm.imm_data = POISON;
            abi.src_qp = POISON;
            abi.wc_flags = POISON;
            (abi.pkey_index, abi.slid) = (POISON as u16, POISON as u16);
            (abi.sl, abi.dlid_path_bits) = (POISON as u8, POISON as u8);
        }
        return abi;
    }
    abi.opcode = wc.opcode;
    abi.byte_len = wc.byte_len;
    if wc.queue == Queue::Send {
        return abi;
    }
    let mut flags = ibv_wc_flags::empty();
    if let Some(imm) = wc.imm {
        abi.imm.imm_data = imm.to_be();
        flags |= ibv_wc_flags::IBV_WC_WITH_IMM;
    }
    if let Some(rkey) = wc.invalidated {
        abi.imm.invalidated_rkey = rkey;
        flags |= ibv_wc_flags::IBV_WC_WITH_INV;
    }
    if let Some(sender) = wc.sender {
        abi.src_qp = sender.qp_num;
        abi.sl = sender.sl;
        abi.pkey_index = sender.pkey_index;
        flags |= ibv_wc_flags::IBV_WC_GRH;
    }
    abi.wc_flags = flags.bits();
    abi
}

/// What polling a CQ gives that lost completions, once those which it kept are polled.
#[cold]
pub(super) fn overrun() -> CallError {
    CallError::new(
        Errno::OVERFLOW,
        "the CQ overran: completions are lost, and its QPs are in ERR; make it larger, or poll more often",
    )
}

pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: a CQ that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(cq) } {
        Ok(soft) => soft,
        Err(errno) => return -refuse(errno),
    };
    let max = match usize::try_from(num_entries) {
        Ok(max) if max == 0 || !wc.is_null() => max,
        _ => return -refuse(CallError::invalid("num_entries is negative, or wc is null")),
    };
    let store = |at: usize, entry: &Completion, _stamp: u64| {
        // SAFETY: `at` is below `num_entries`, and the caller says that there is room for so many.
        unsafe { wc.add(at).write(to_abi(entry, soft.poison)) };
    };
    let polled = match soft.cq.poll(max, store) {
        Ok(0) if max > 0 => match soft.node.progress(&soft.cq) {
            true => soft.cq.poll(max, store),
            false => Ok(0),
        },
        polled => {
            soft.node.polled();
            polled
        }
    };
    match polled {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(Overrun) => -refuse(overrun()),
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a CQ that the application got from a verbs provider and has not destroyed.
    match unsafe { object::soft(cq) } {
        Ok(soft) => {
            soft.node.arm(&soft.cq, solicited_only != 0);
            0
        }
        Err(error) => refuse(error),
    }
}
