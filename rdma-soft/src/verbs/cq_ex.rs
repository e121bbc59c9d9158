//! Extended completion queues: one completion at a time, read field by field.

use std::ffi::{c_int, c_uint};

use rdma_core_sys::*;
use rustix::io::Errno;

use super::cq::{self, CqObject};
use super::object::{self, NotOurs};
use super::turn::Turn;
use super::{fail, refuse};
use crate::core::CallError;
use crate::node::Overrun;

/// The completion between `ibv_start_poll` and `ibv_end_poll`.
pub(super) struct Current {
    wc: ibv_wc,
    /// When it was stored, by the node's clock in nanoseconds.
    stamp: u64,
}

impl Current {
    /// None yet.
    pub(super) fn none() -> Turn<Current> {
        Turn::new(Current {
            wc: ibv_wc::zeroed(),
            stamp: 0,
        })
    }
}

/// The fields that completions of this device have.
const KNOWN: u32 = IBV_WC_STANDARD_FLAGS.bits() | STAMPS.bits();

const STAMPS: ibv_create_cq_wc_flags =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.union(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);

/// What of the attributes this device can do; true if completions are to be stamped.
pub(super) fn check(attr: &ibv_cq_init_attr_ex) -> Result<bool, CallError> {
    let unsupported = |why: String| Err(CallError::new(Errno::OPNOTSUPP, why));
    let known = (IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD).bits();
    let flags = match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS.bits() {
        0 => 0,
        _ => attr.flags,
    };
    if attr.comp_mask & !known != 0 {
        let more = attr.comp_mask & !known;
        return unsupported(format!("comp_mask has bits that are not known: {more:#x}"));
    }
    let single = IBV_CREATE_CQ_ATTR_SINGLE_THREADED.bits();
    if flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.bits() != 0 {
        return unsupported("this device never ignores an overrun".to_owned());
    }
    if flags & !single != 0 {
        let more = flags & !single;
        return unsupported(format!("flags has bits that are not known: {more:#x}"));
    }
    let more = attr.wc_flags & !u64::from(KNOWN);
    if more != 0 {
        return unsupported(format!(
            "wc_flags has {more:#x}: this device has the standard fields and both timestamps"
        ));
    }
    Ok(attr.wc_flags & u64::from(STAMPS.bits()) != 0)
}

/// Sets the functions that the header calls.
pub(super) fn set_functions(abi: &mut ibv_cq_ex) {
    abi.start_poll = Some(start_poll);
    abi.next_poll = Some(next_poll);
    abi.end_poll = Some(end_poll);
    abi.read_opcode = Some(read_opcode);
    abi.read_vendor_err = Some(read_vendor_err);
    abi.read_byte_len = Some(read_byte_len);
    abi.read_imm_data = Some(read_imm_data);
    abi.read_qp_num = Some(read_qp_num);
    abi.read_src_qp = Some(read_src_qp);
    abi.read_wc_flags = Some(read_wc_flags);
    abi.read_slid = Some(read_slid);
    abi.read_sl = Some(read_sl);
    abi.read_dlid_path_bits = Some(read_dlid_path_bits);
    abi.read_completion_ts = Some(read_completion_ts);
    abi.read_cvlan = Some(read_cvlan);
    abi.read_flow_tag = Some(read_flow_tag);
    abi.read_tm_info = Some(read_tm_info);
    abi.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

pub(super) unsafe extern "C" fn create_cq_ex(
    ctx: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    if attr.is_null() {
        return fail(CallError::invalid("no attributes"));
    }
    // SAFETY: not null, so it is the struct that ibv_create_cq_ex(3) asks for.
    let attr = unsafe { attr.read() };
    // SAFETY: context, channel and parent domain are such that the application got from a verbs provider
    // and has not closed or destroyed.
    match unsafe { cq::create(ctx, &attr, true) } {
        Ok(cq) => cq.cast(),
        Err(error) => fail(error),
    }
}

/// Our part of an extended CQ.
///
/// # Safety
/// `cq` was made by [`create_cq_ex`] and is not destroyed.
unsafe fn soft<'a>(cq: *mut ibv_cq_ex) -> Result<&'a CqObject, NotOurs> {
    // SAFETY: an extended CQ begins with an `ibv_cq`, and is live by the caller's promise.
    unsafe { object::soft(cq.cast::<ibv_cq>()) }
}

/// Takes the oldest completion into `current`, if there is one.
///
/// # Safety
/// `cq` is the live CQ of `soft`, and `current` that of the turn which this thread has.
unsafe fn take(
    cq: *mut ibv_cq_ex,
    soft: &CqObject,
    current: *mut Current,
) -> Result<bool, Overrun> {
    let count = soft.cq.poll(1, |_, wc, stamp| {
        let wc = cq::to_abi(wc, soft.poison);
        // SAFETY: a live CQ by the caller's promise; its two public fields and the current completion
        // belong to whoever has the turn.
        unsafe {
            ((*cq).wr_id, (*cq).status) = (wc.wr_id, wc.status);
            current.write(Current { wc, stamp });
        }
    })?;
    Ok(count > 0)
}

/// There is nothing to poll, which is no refusal.
const NOTHING: c_int = Errno::NOENT.raw_os_error();

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the header calls this through a CQ that `create_cq_ex` made.
    let soft = match unsafe { soft(cq) } {
        Ok(soft) => soft,
        Err(errno) => return refuse(errno),
    };
    // SAFETY: null or, by the rules of ibv_start_poll(3), a struct.
    if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
        return refuse(CallError::invalid("comp_mask must be 0"));
    }
    if let Err(error) = soft.current.begin() {
        return refuse(error);
    }
    // SAFETY: the header calls this through a live CQ, and this thread has just got the turn.
    let mut answer = unsafe { next_poll(cq) };
    if answer == NOTHING {
        if soft.node.progress(&soft.cq) {
            // SAFETY: as above.
            answer = unsafe { next_poll(cq) };
        }
    } else {
        soft.node.polled();
    }
    if answer != 0 {
        soft.current.end();
    }
    answer
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the header calls this through a CQ that `create_cq_ex` made.
    let soft = match unsafe { soft(cq) } {
        Ok(soft) => soft,
        Err(errno) => return refuse(errno),
    };
    let Some(current) = soft.current.get() else {
        return refuse(CallError::invalid(
            "this thread has not begun with ibv_start_poll",
        ));
    };
    // SAFETY: the CQ is live, and `get` has found that this thread has the turn.
    match unsafe { take(cq, soft, current) } {
        Ok(true) => 0,
        Ok(false) => NOTHING,
        Err(Overrun) => refuse(cq::overrun()),
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the header calls this through a CQ that `create_cq_ex` made.
    if let Ok(soft) = unsafe { soft(cq) } {
        soft.current.end();
    }
}

/// Reads the current completion; zeros for a thread that has not begun with `ibv_start_poll`.
///
/// # Safety
/// `cq` was made by [`create_cq_ex`] and is not destroyed.
unsafe fn current(cq: *mut ibv_cq_ex) -> (ibv_wc, u64) {
    // SAFETY: the caller's promise.
    let turn = unsafe { soft(cq) }.ok().and_then(|soft| soft.current.get());
    match turn {
        // SAFETY: `get` has found that this thread has the turn, so nobody writes it meanwhile.
        Some(current) => unsafe { ((*current).wc, (*current).stamp) },
        None => (ibv_wc::zeroed(), 0),
    }
}

/// Readers of the current completion.
macro_rules! readers {
    ($($name:ident -> $ty:ty = |$wc:ident| $value:expr;)*) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: the header calls this through a CQ that `create_cq_ex` made.
            let ($wc, _) = unsafe { current(cq) };
            $value
        }
    )* };
}

readers! {
    read_opcode -> ibv_wc_opcode = |wc| wc.opcode;
    read_vendor_err -> u32 = |wc| wc.vendor_err;
    read_byte_len -> u32 = |wc| wc.byte_len;
    // SAFETY: both members are a u32 at the same place, so either reads what was written.
    read_imm_data -> u32 = |wc| unsafe { wc.imm.imm_data };
    read_qp_num -> u32 = |wc| wc.qp_num;
    read_src_qp -> u32 = |wc| wc.src_qp;
    read_wc_flags -> c_uint = |wc| wc.wc_flags;
    read_slid -> u32 = |wc| wc.slid.into();
    read_sl -> u8 = |wc| wc.sl;
    read_dlid_path_bits -> u8 = |wc| wc.dlid_path_bits;
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the header calls this through a CQ that `create_cq_ex` made.
    unsafe { current(cq).1 }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the header calls this through a CQ that `create_cq_ex` made.
    let (soft, (_, stamp)) = unsafe { (soft(cq), current(cq)) };
    soft.map_or(0, |soft| soft.cq.wall_clock(stamp))
}

// What the device does not have, nobody can have asked for: `create_cq_ex` refuses that.

unsafe extern "C" fn read_cvlan(_cq: *mut ibv_cq_ex) -> u16 {
    0
}

unsafe extern "C" fn read_flow_tag(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    if !info.is_null() {
        // SAFETY: not null, so it has room for the struct by the rules of ibv_wc_read_tm_info(3).
        unsafe { info.write(ibv_wc_tm_info::zeroed()) };
    }
}
