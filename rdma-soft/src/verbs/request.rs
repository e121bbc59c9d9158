//! Work requests as the application wrote them: opcodes, entries and lengths are checked, and what the
//! engine is to have is copied.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;
use rustix::io::Errno;

use super::qp::QpObject;
use super::{ah, mw};
use crate::core::{
    Ah, CallError, Data, InlineData, MULTICAST_QP, RecvWqe, Remote, SendOp, SendWqe, Sge, SgeList,
};
use crate::mem::Region;
use crate::node::Posting;

/// The entries of a request as they lie in the application's memory.
///
/// # Errors
/// `EINVAL` for a count that is negative or above `max`, and for a missing list.
///
/// # Safety
/// `list` is null or holds `count` entries.
#[inline]
unsafe fn read_entries(
    list: *mut ibv_sge,
    count: c_int,
    max: u32,
) -> Result<impl Iterator<Item = Sge>, CallError> {
    let count = match u32::try_from(count) {
        Ok(count) if count <= max => count,
        _ => {
            return Err(CallError::invalid(format!(
                "num_sge is {count}: the queue was created for at most {max}"
            )));
        }
    };
    if count > 0 && list.is_null() {
        return Err(CallError::invalid("sg_list is null, but num_sge is not 0"));
    }
    Ok((0..count as usize).map(move |at| {
        // SAFETY: `at` is below the count, and the caller says that the list holds so many.
        let sge = unsafe { list.add(at).read() };
        Sge {
            addr: sge.addr,
            len: sge.length,
            lkey: sge.lkey,
        }
    }))
}

/// The entries of a request.
///
/// # Errors
/// `EINVAL` for a count that is negative, above `max` or above what a request has room for, and for a
/// missing list.
///
/// # Safety
/// `list` is null or holds `count` entries.
#[inline]
pub(super) unsafe fn entries(
    list: *mut ibv_sge,
    count: c_int,
    max: u32,
) -> Result<SgeList, CallError> {
    let mut entries = SgeList::new();
    // SAFETY: the caller's promise.
    fill(&mut entries, unsafe { read_entries(list, count, max)? })?;
    Ok(entries)
}

#[inline]
fn fill(entries: &mut SgeList, list: impl Iterator<Item = Sge>) -> Result<(), CallError> {
    for sge in list {
        if !entries.push(sge) {
            return Err(CallError::invalid(
                "more entries than a request has room for",
            ));
        }
    }
    Ok(())
}

/// Copies inline data out of the application's memory: ranges of it, by address and length.
///
/// # Errors
/// `EINVAL` if it is longer than the QP takes, or at no address.
///
/// # Safety
/// Each range is readable memory.
pub(super) unsafe fn copy_inline(
    ranges: impl Iterator<Item = (u64, usize)>,
    max: u32,
) -> Result<InlineData, CallError> {
    let mut data = InlineData::default();
    // SAFETY: the caller's promise.
    unsafe { fill_inline(&mut data, ranges, max)? };
    Ok(data)
}

/// As [`copy_inline`], to where the data is to be.
///
/// # Errors
/// As [`copy_inline`].
///
/// # Safety
/// As [`copy_inline`].
unsafe fn fill_inline(
    data: &mut InlineData,
    ranges: impl Iterator<Item = (u64, usize)>,
    max: u32,
) -> Result<(), CallError> {
    let too_long = |bytes| {
        CallError::invalid(format!(
            "{bytes} bytes of inline data: the QP was created with max_inline_data {max}"
        ))
    };
    let mut ranges = ranges.filter(|&(_, len)| len > 0);
    let mut total = 0usize;
    while let Some((addr, len)) = ranges.next() {
        total = total.saturating_add(len);
        let room = if total > max as usize {
            None
        } else {
            data.grow(len)
        };
        let Some(room) = room else {
            let all = ranges.fold(total, |sum, (_, len)| sum.saturating_add(len));
            return Err(too_long(all));
        };
        let from = addr as usize as *mut u8;
        if from.is_null() {
            return Err(CallError::invalid("the inline data is at address 0"));
        }
        // SAFETY: readable for `len` bytes by the caller's promise; the region only lives here, and
        // is only read.
        let from = unsafe { Region::from_raw(from, len as u64) };
        from.read(0, room).map_err(|_| Errno::INVAL)?;
    }
    Ok(())
}

/// The operation of a send request.
///
/// # Errors
/// `EINVAL` for an opcode that verbs or this device do not know; and what [`ah::of`] and
/// [`mw::binding`] refuse.
///
/// # Safety
/// `qp` is a live QP of ours, and `soft` its part; `wr` is a request as ibv_post_send(3) asks for.
#[inline]
unsafe fn operation(
    qp: *mut ibv_qp,
    soft: &QpObject,
    wr: *mut ibv_send_wr,
) -> Result<SendOp, CallError> {
    use ibv_wr_opcode as Op;
    // Fields are read one by one: those that the opcode does not use may be uninitialised.
    // SAFETY: the caller's promise.
    let opcode = unsafe { (*wr).opcode };
    let imm = || {
        // SAFETY: the caller's promise; only called for opcodes with immediate data.
        Some(u32::from_be(unsafe { (*wr).imm.imm_data }))
    };
    let key = || {
        // SAFETY: the caller's promise; only called for opcodes that invalidate a key.
        unsafe { (*wr).imm.invalidate_rkey }
    };
    let rdma = || {
        // SAFETY: the caller's promise; only called for RDMA opcodes.
        let (addr, rkey) = unsafe { ((*wr).wr.rdma.remote_addr, (*wr).wr.rdma.rkey) };
        Remote { addr, rkey }
    };
    let atomic = || {
        // SAFETY: the caller's promise; only called for atomic opcodes.
        let (addr, rkey) = unsafe { ((*wr).wr.atomic.remote_addr, (*wr).wr.atomic.rkey) };
        Remote { addr, rkey }
    };
    let send = |imm| -> Result<SendOp, CallError> {
        if soft.init.transport != Transport::Ud {
            let invalidate = None;
            return Ok(SendOp::Send { imm, invalidate });
        }
        // SAFETY: the caller's promise: a UD request names where it goes, with an address handle that
        // the application got from a verbs provider and has not destroyed.
        let (ah, to) = unsafe {
            let to = (*wr).wr.ud;
            (ah::of(qp, to.ah)?, to)
        };
        Ok(SendOp::Datagram {
            ah,
            qp_num: to.remote_qpn,
            qkey: to.remote_qkey,
            imm,
        })
    };
    Ok(match opcode {
        Op::IBV_WR_SEND => send(None)?,
        Op::IBV_WR_SEND_WITH_IMM => send(imm())?,
        Op::IBV_WR_SEND_WITH_INV => SendOp::Send {
            imm: None,
            invalidate: Some(key()),
        },
        Op::IBV_WR_RDMA_WRITE => SendOp::Write {
            remote: rdma(),
            imm: None,
        },
        Op::IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::Write {
            remote: rdma(),
            imm: imm(),
        },
        Op::IBV_WR_RDMA_READ => SendOp::Read { remote: rdma() },
        Op::IBV_WR_ATOMIC_CMP_AND_SWP => {
            // SAFETY: the caller's promise: both operands are set for this opcode.
            let (compare, swap) = unsafe { ((*wr).wr.atomic.compare_add, (*wr).wr.atomic.swap) };
            SendOp::CompareSwap {
                remote: atomic(),
                compare,
                swap,
            }
        }
        Op::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the caller's promise: the operand is set for this opcode.
            let add = unsafe { (*wr).wr.atomic.compare_add };
            SendOp::FetchAdd {
                remote: atomic(),
                add,
            }
        }
        Op::IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { rkey: key() },
        Op::IBV_WR_BIND_MW => {
            // SAFETY: the caller's promise: the window and what it is bound to are set for this
            // opcode, live objects if they are not null.
            unsafe {
                let bind = (*wr).ext.bind_mw;
                SendOp::BindWindow(mw::binding(qp, bind.mw, bind.rkey, &bind.bind_info)?)
            }
        }
        _ => {
            return Err(CallError::invalid(match opcode.name() {
                Some(name) => format!("this device does not do {name}"),
                None => format!("opcode {} is none of verbs'", opcode.0),
            }));
        }
    })
}

/// A send request in parts, as it is being built.
pub(super) struct Parts {
    /// The application's mark.
    pub(super) wr_id: u64,
    /// How it is carried out.
    pub(super) flags: ibv_send_flags,
    /// What it does.
    pub(super) op: SendOp,
    /// Its bytes.
    pub(super) data: Data,
    /// The peer's SRQ, for XRC.
    pub(super) xrc_srq: u32,
}

/// Where requests come before they have a place in their queue.
const NO_SEQ: u64 = 0;

/// Makes a send request of its parts; its place in the queue is still to be set.
///
/// # Errors
/// `EINVAL` for an operation that the transport has not ([`Transport::supports`]), for inline data of
/// an operation that fetches, for a message above the port's `max_msg_sz` (UD: above its MTU), for an
/// atomic whose entries are not 8 bytes long in all, for numbers of more than 24 bits, and for a
/// datagram without an address handle, with one of another protection domain or port, or with a number
/// that does not go with the address.
pub(super) fn build(soft: &QpObject, parts: Parts) -> Result<SendWqe, CallError> {
    check(soft, &parts.op, &parts.data, parts.xrc_srq)?;
    Ok(SendWqe {
        wr_id: parts.wr_id,
        seq: NO_SEQ,
        op: parts.op,
        data: parts.data,
        signaled: is_signaled(soft, parts.flags),
        solicited: parts.flags.contains(IBV_SEND_SOLICITED),
        fence: parts.flags.contains(IBV_SEND_FENCE),
        xrc_srq: parts.xrc_srq,
    })
}

/// Whether a request completes with an entry in the CQ even on success.
#[inline]
fn is_signaled(soft: &QpObject, flags: ibv_send_flags) -> bool {
    soft.init.sq_sig_all || flags.contains(IBV_SEND_SIGNALED)
}

/// The opcode of an operation.
#[inline]
fn opcode(op: &SendOp) -> ibv_wr_opcode {
    match op {
        SendOp::Send {
            invalidate: Some(_),
            ..
        } => IBV_WR_SEND_WITH_INV,
        SendOp::Send { imm: Some(_), .. } | SendOp::Datagram { imm: Some(_), .. } => {
            IBV_WR_SEND_WITH_IMM
        }
        SendOp::Send { .. } | SendOp::Datagram { .. } => IBV_WR_SEND,
        SendOp::Write { imm: Some(_), .. } => IBV_WR_RDMA_WRITE_WITH_IMM,
        SendOp::Write { .. } => IBV_WR_RDMA_WRITE,
        SendOp::Read { .. } => IBV_WR_RDMA_READ,
        SendOp::CompareSwap { .. } => IBV_WR_ATOMIC_CMP_AND_SWP,
        SendOp::FetchAdd { .. } => IBV_WR_ATOMIC_FETCH_AND_ADD,
        SendOp::LocalInvalidate { .. } => IBV_WR_LOCAL_INV,
        SendOp::BindWindow(_) => IBV_WR_BIND_MW,
    }
}

/// What [`build`] refuses.
#[inline]
fn check(soft: &QpObject, op: &SendOp, data: &Data, xrc_srq: u32) -> Result<(), CallError> {
    let transport = soft.init.transport;
    if !transport.supports(opcode(op)) {
        let what = opcode(op).name().unwrap_or_default();
        return Err(CallError::invalid(format!("{transport} has no {what}")));
    }
    match (op, transport) {
        (SendOp::Datagram { ah, qp_num, .. }, Transport::Ud) => check_datagram(soft, ah, *qp_num)?,
        (SendOp::Datagram { .. }, _) => {
            return Err(CallError::invalid(format!(
                "{transport} is connected: ibv_wr_set_ud_addr is for UD"
            )));
        }
        (_, Transport::Ud) => {
            return Err(CallError::invalid(
                "a UD request names where it goes: ibv_wr_set_ud_addr is missing",
            ));
        }
        _ => {}
    }
    if op.is_fetch() && matches!(data, Data::Inline(_)) {
        return Err(CallError::invalid(
            "IBV_SEND_INLINE is for data that is sent: a READ or an atomic brings some back",
        ));
    }
    let len = data.total();
    let max = u64::from(soft.max_message.load(Ordering::Acquire));
    if len > max {
        let limit = match transport {
            Transport::Ud => "the active MTU of the QP's port",
            _ => "max_msg_sz of the QP's port",
        };
        return Err(CallError::invalid(format!("{len} bytes: {limit} is {max}")));
    }
    let is_atomic = matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
    if is_atomic && len != 8 {
        return Err(CallError::invalid(format!(
            "the entries of an atomic are {len} bytes in all: it brings back 8"
        )));
    }
    if transport == Transport::XrcIni && !op.is_local() && xrc_srq > 0xff_ffff {
        return Err(CallError::invalid(format!(
            "remote_srqn is {xrc_srq:#x}: SRQ numbers have 24 bits"
        )));
    }
    Ok(())
}

fn check_datagram(soft: &QpObject, ah: &Ah, qp_num: u32) -> Result<(), CallError> {
    if Some(ah.pd()) != soft.init.pd {
        return Err(CallError::invalid(
            "the address handle belongs to another protection domain than the QP",
        ));
    }
    let port = soft.port.load(Ordering::Acquire);
    if ah.port() != port {
        return Err(CallError::invalid(format!(
            "the address handle is for port {}, the QP is on port {port}",
            ah.port()
        )));
    }
    if qp_num > 0xff_ffff {
        return Err(CallError::invalid(format!(
            "remote_qpn is {qp_num:#x}: QP numbers have 24 bits"
        )));
    }
    if ah.is_multicast() != (qp_num == MULTICAST_QP) {
        return Err(CallError::invalid(format!(
            "remote_qpn is {qp_num:#x}: {MULTICAST_QP:#x} goes with the address of a multicast group, and with no other"
        )));
    }
    Ok(())
}

/// Checks a send request, and appends a copy of it to its queue, at position `seq`; gives the one after it. A window that it binds reports the new
/// key at once, as the application's messages to the peer follow this request.
///
/// # Errors
/// `EINVAL` for too many entries and for inline data that is too long, and what [`operation`] and
/// [`build`] refuse.
///
/// # Safety
/// `qp` is a live QP of ours, and `soft` its part; `wr` is a request as ibv_post_send(3) asks for.
#[inline]
pub(super) unsafe fn push_send(
    queue: &mut Posting<'_, SendWqe>,
    qp: *mut ibv_qp,
    soft: &QpObject,
    wr: *mut ibv_send_wr,
    seq: u64,
) -> Result<*mut ibv_send_wr, CallError> {
    // SAFETY: the caller's promise.
    let op = unsafe { operation(qp, soft, wr)? };
    // SAFETY: the caller's promise. The number of an SRQ is only read where there is one.
    let (wr_id, flags, xrc_srq) = unsafe {
        let xrc_srq = match soft.init.transport {
            Transport::XrcIni => (*wr).qp_type.xrc.remote_srqn,
            _ => 0,
        };
        let flags = ibv_send_flags::from_bits_retain((*wr).send_flags);
        ((*wr).wr_id, flags, xrc_srq)
    };
    let inline = flags.contains(IBV_SEND_INLINE);
    // Made where it is to be, not from `Parts`: a request is large, and copies of it show.
    let wqe = SendWqe {
        wr_id,
        seq,
        op,
        data: match inline {
            true => Data::Inline(InlineData::default()),
            false => Data::Sges(SgeList::new()),
        },
        signaled: is_signaled(soft, flags),
        solicited: flags.contains(IBV_SEND_SOLICITED),
        fence: flags.contains(IBV_SEND_FENCE),
        xrc_srq,
    };
    queue.push_with(wqe, |wqe| -> Result<bool, CallError> {
        // What the entries of an inline request that fetches name is not to be read: it is refused below.
        let refused = inline && wqe.op.is_fetch();
        if !(wqe.op.is_local() || refused) {
            // SAFETY: the caller's promise.
            let list =
                unsafe { read_entries((*wr).sg_list, (*wr).num_sge, soft.init.max_send_sge)? };
            match &mut wqe.data {
                Data::Sges(sges) => fill(sges, list)?,
                Data::Inline(data) => {
                    let ranges = list.map(|sge| (sge.addr, sge.len as usize));
                    // SAFETY: the caller's promise; the entries of an inline request name readable memory
                    // (ibv_post_send(3)).
                    unsafe { fill_inline(data, ranges, soft.init.max_inline)? };
                }
            }
        }
        check(soft, &wqe.op, &wqe.data, xrc_srq)?;
        if let SendOp::BindWindow(bind) = &wqe.op {
            // SAFETY: the caller's promise, and `operation` found the window to be one of ours.
            unsafe { (*(*wr).ext.bind_mw.mw).rkey = bind.rkey };
        }
        Ok(wqe.signaled)
    })?;
    // SAFETY: the caller's promise.
    Ok(unsafe { (*wr).next })
}

/// Checks a receive request, and appends a copy of it to its queue, at position `seq`; gives the one after it.
///
/// # Errors
/// `EINVAL` for too many entries.
///
/// # Safety
/// `wr` is a request as ibv_post_recv(3) asks for.
#[inline]
pub(super) unsafe fn push_recv(
    queue: &mut Posting<'_, RecvWqe>,
    max_sge: u32,
    wr: *mut ibv_recv_wr,
    seq: u64,
) -> Result<*mut ibv_recv_wr, CallError> {
    // SAFETY: the caller's promise.
    let (wr_id, list) = unsafe {
        (
            (*wr).wr_id,
            read_entries((*wr).sg_list, (*wr).num_sge, max_sge)?,
        )
    };
    let sges = SgeList::new();
    queue.push_with(
        RecvWqe { wr_id, seq, sges },
        |wqe| -> Result<bool, CallError> {
            fill(&mut wqe.sges, list)?;
            Ok(true)
        },
    )?;
    // SAFETY: the caller's promise.
    Ok(unsafe { (*wr).next })
}
