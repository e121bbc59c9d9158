//! Completion queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::{POISON, context, fail, object};
use crate::core::{Completion, Queue};
use crate::node::{Cq, Node, Overrun};

/// Our part of an `ibv_cq`.
pub(super) struct CqObject {
    pub(super) node: Arc<Node>,
    pub(super) cq: Arc<Cq>,
}

/// A number of entries that a CQ may have.
fn depth(node: &Node, cqe: c_int) -> Result<u32, Errno> {
    match u32::try_from(cqe) {
        Ok(depth) if depth > 0 && depth <= node.config().caps.max_cqe => Ok(depth),
        _ => Err(Errno::INVAL),
    }
}

pub(super) unsafe extern "C" fn create_cq(
    ctx: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the context and the channel are such that the application got from a verbs provider
    // and has not closed or destroyed.
    let made = unsafe { context::soft(ctx) }.and_then(|context| {
        let depth = depth(&context.node, cqe)?;
        if comp_vector != 0 {
            return Err(Errno::INVAL);
        }
        let channel_soft = if channel.is_null() {
            None
        } else {
            // SAFETY: as above.
            let (soft, of) = unsafe { (object::soft(channel)?, (*channel).context) };
            if of != ctx {
                return Err(Errno::INVAL);
            }
            Some(soft)
        };
        let queue = channel_soft.map(|c| Arc::clone(&c.queue));
        let cq = context
            .node
            .create_cq(depth, queue, Arc::clone(&context.events))?;
        if let Some(channel) = channel_soft {
            channel.users.fetch_add(1, Ordering::AcqRel);
        }
        context.objects().cqs.insert(cq.id.0, Arc::clone(&cq));
        Ok((context, cq))
    });
    let (context, cq) = match made {
        Ok(made) => made,
        Err(errno) => return fail(errno),
    };
    let mut abi = ibv_cq_ex::zeroed();
    abi.context = ctx;
    abi.channel = channel;
    abi.cq_context = cq_context;
    abi.handle = cq.id.0;
    abi.cqe = cqe;
    let soft = CqObject {
        node: Arc::clone(&context.node),
        cq: Arc::clone(&cq),
    };
    let handle = object::create::<ibv_cq>(abi, soft);
    cq.handle.store(handle as usize, Ordering::Release);
    handle
}

pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a CQ that the application got from a verbs provider and has not destroyed.
    let resized = unsafe { object::soft(cq) }.and_then(|soft| {
        let depth = depth(&soft.node, cqe)?;
        soft.cq.resize(depth)
    });
    match resized {
        Ok(()) => {
            // SAFETY: one of ours, as the call above found out.
            unsafe { (*cq).cqe = cqe };
            0
        }
        Err(errno) => errno.raw_os_error(),
    }
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a CQ that the application got from a verbs provider and has not destroyed.
    let destroyed = unsafe { object::context(cq).and_then(|c| Ok((c, object::soft(cq)?))) }
        .and_then(|(context, soft)| {
            soft.node.destroy_cq(&soft.cq)?;
            context.objects().cqs.remove(&soft.cq.id.0);
            Ok(soft)
        });
    let soft = match destroyed {
        Ok(soft) => soft,
        Err(errno) => return errno.raw_os_error(),
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
/// Of a failed one only `wr_id`, `status`, `vendor_err` and `qp_num` are defined (ibv_poll_cq(3)): the
/// other fields hold a value that no program takes for something it expects.
fn to_abi(wc: &Completion) -> ibv_wc {
    let mut abi = ibv_wc::zeroed();
    abi.wr_id = wc.wr_id;
    abi.status = wc.status;
    abi.qp_num = wc.qp_num;
    if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
        abi.opcode = ibv_wc_opcode(POISON);
        abi.byte_len = POISON;
        abi.imm.imm_data = POISON;
        abi.src_qp = POISON;
        abi.wc_flags = POISON;
        (abi.pkey_index, abi.slid) = (POISON as u16, POISON as u16);
        (abi.sl, abi.dlid_path_bits) = (POISON as u8, POISON as u8);
        return abi;
    }
    abi.opcode = wc.opcode;
    abi.byte_len = wc.byte_len;
    if let (Some(imm), Queue::Recv) = (wc.imm, wc.queue) {
        abi.imm.imm_data = imm.to_be();
        abi.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.bits();
    }
    abi
}

pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: a CQ that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(cq) } {
        Ok(soft) => soft,
        Err(errno) => return -errno.raw_os_error(),
    };
    let max = match usize::try_from(num_entries) {
        Ok(max) if max == 0 || !wc.is_null() => max,
        _ => return -Errno::INVAL.raw_os_error(),
    };
    let store = |at: usize, entry: &Completion| {
        // SAFETY: `at` is below `num_entries`, and the caller says that there is room for so many.
        unsafe { wc.add(at).write(to_abi(entry)) };
    };
    let polled = match soft.cq.poll(max, store) {
        Ok(0) if max > 0 => {
            soft.node.progress(&soft.cq);
            soft.cq.poll(max, store)
        }
        polled => polled,
    };
    match polled {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(Overrun) => -Errno::OVERFLOW.raw_os_error(),
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a CQ that the application got from a verbs provider and has not destroyed.
    match unsafe { object::soft(cq) } {
        Ok(soft) => {
            soft.node.arm(&soft.cq, solicited_only != 0);
            0
        }
        Err(errno) => errno.raw_os_error(),
    }
}
