//! Posting work requests. Lists, entries and lengths come from the application and are checked
//! before anything is queued.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::object;
use super::qp::QpObject;
use crate::core::{Data, InlineData, RecvWqe, Remote, SendOp, SendWqe, Sge, SgeList};
use crate::mem::Region;
use crate::node::Posting;

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(qp) } {
        Ok(soft) => soft,
        Err(errno) => return refuse(errno, wr, bad_wr),
    };
    let mut queue = soft.qp.post_send();
    let (accepted, outcome) = stage(&mut queue, wr, bad_wr, |request, seq| {
        // SAFETY: not null, so it is a request of the list that ibv_post_send(3) asks for.
        unsafe { Ok((send_request(soft, request, seq)?, (*request).next)) }
    });
    drop(queue);
    if accepted {
        soft.node.kick(&soft.qp);
    }
    outcome
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a QP that the application got from a verbs provider and has not destroyed.
    let soft = match unsafe { object::soft(qp) } {
        Ok(soft) => soft,
        Err(errno) => return refuse(errno, wr, bad_wr),
    };
    let mut queue = soft.qp.post_recv();
    let (accepted, outcome) = stage(&mut queue, wr, bad_wr, |request, seq| {
        // SAFETY: not null, so it is a request of the list that ibv_post_recv(3) asks for.
        unsafe { Ok((recv_request(soft, request, seq)?, (*request).next)) }
    });
    let flushes = queue.flushes();
    drop(queue);
    if accepted && flushes {
        soft.node.kick(&soft.qp);
    } else if accepted {
        soft.node.mark(&soft.qp);
    }
    outcome
}

/// Appends the requests of a list to a queue, up to the first one that is refused. `take` reads a
/// request, which is not null, for a position, and gives the one after it.
///
/// Returns whether any was accepted, and what the post call returns.
fn stage<R, W>(
    queue: &mut Posting<'_, W>,
    list: *mut R,
    bad_wr: *mut *mut R,
    take: impl Fn(*mut R, u64) -> Result<(W, *mut R), Errno>,
) -> (bool, c_int) {
    let (mut next, mut accepted) = (list, false);
    // The list ends at the latest when the queue is full, even if it is a circle.
    while !next.is_null() {
        match queue.slot().and_then(|seq| take(next, seq)) {
            Ok((wqe, after)) => {
                queue.push(wqe);
                (next, accepted) = (after, true);
            }
            Err(errno) => return (accepted, refuse(errno, next, bad_wr)),
        }
    }
    (accepted, 0)
}

/// There are no shared receive queues yet.
pub(super) unsafe extern "C" fn post_srq_recv(
    _srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    refuse(Errno::OPNOTSUPP, wr, bad_wr)
}

/// Names the request that was refused, and why.
fn refuse<W>(errno: Errno, wr: *mut W, bad_wr: *mut *mut W) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: not null, so it is the place that ibv_post_send(3) and ibv_post_recv(3) ask for.
        unsafe { *bad_wr = wr };
    }
    errno.raw_os_error()
}

/// The entries of a request.
///
/// # Errors
/// `EINVAL` for a count that is negative or above `max`, and for a missing list.
///
/// # Safety
/// `list` is null or holds `count` entries.
unsafe fn entries(
    list: *mut ibv_sge,
    count: c_int,
    max: u32,
) -> Result<impl Iterator<Item = Sge>, Errno> {
    let count = u32::try_from(count).map_err(|_| Errno::INVAL)?;
    if count > max || (count > 0 && list.is_null()) {
        return Err(Errno::INVAL);
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

/// Collects entries; `EINVAL` if there are more than a request has room for.
fn collect(entries: impl Iterator<Item = Sge>) -> Result<SgeList, Errno> {
    let mut list = SgeList::new();
    for sge in entries {
        if !list.push(sge) {
            return Err(Errno::INVAL);
        }
    }
    Ok(list)
}

/// Copies inline data out of the application's memory.
///
/// # Errors
/// `EINVAL` if it is longer than the QP takes, or at no address.
///
/// # Safety
/// Each entry names readable memory.
unsafe fn copy_inline(entries: impl Iterator<Item = Sge>, max: u32) -> Result<InlineData, Errno> {
    let mut data = InlineData::default();
    let mut left = max;
    for sge in entries.filter(|sge| sge.len > 0) {
        left = left.checked_sub(sge.len).ok_or(Errno::INVAL)?;
        let room = data.grow(sge.len as usize).ok_or(Errno::INVAL)?;
        let from = sge.addr as usize as *mut u8;
        if from.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: readable for `len` bytes by the caller's promise; the region only lives here, and
        // is only read.
        let from = unsafe { Region::from_raw(from, sge.len.into()) };
        from.read(0, room).map_err(|_| Errno::INVAL)?;
    }
    Ok(data)
}

/// Checks and copies a send request.
///
/// # Errors
/// `EINVAL` for an unknown opcode, too many entries, inline data that is too long or that the
/// operation cannot carry, a message above the port's `max_msg_sz`, and an atomic whose entries are
/// not 8 bytes long in all; `EOPNOTSUPP` for an operation that verbs know and this device does not.
///
/// # Safety
/// `wr` is a request as ibv_post_send(3) asks for.
unsafe fn send_request(soft: &QpObject, wr: *mut ibv_send_wr, seq: u64) -> Result<SendWqe, Errno> {
    use ibv_wr_opcode as Op;
    // SAFETY: the caller's promise. Fields are read one by one: those that the opcode does not use
    // may be uninitialised.
    let (wr_id, opcode, flags) = unsafe {
        (
            (*wr).wr_id,
            (*wr).opcode,
            ibv_send_flags::from_bits_retain((*wr).send_flags),
        )
    };
    let imm = || {
        // SAFETY: the caller's promise; only called for opcodes with immediate data.
        u32::from_be(unsafe { (*wr).imm.imm_data })
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
    let op = match opcode {
        Op::IBV_WR_SEND => SendOp::Send { imm: None },
        Op::IBV_WR_SEND_WITH_IMM => SendOp::Send { imm: Some(imm()) },
        Op::IBV_WR_RDMA_WRITE => SendOp::Write {
            remote: rdma(),
            imm: None,
        },
        Op::IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::Write {
            remote: rdma(),
            imm: Some(imm()),
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
        _ if opcode.name().is_some() => return Err(Errno::OPNOTSUPP),
        _ => return Err(Errno::INVAL),
    };
    // SAFETY: the caller's promise.
    let entries = unsafe { entries((*wr).sg_list, (*wr).num_sge, soft.init.max_send_sge)? };
    let data = if flags.contains(ibv_send_flags::IBV_SEND_INLINE) {
        if op.is_fetch() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the entries of an inline request name readable memory (ibv_post_send(3)).
        Data::Inline(unsafe { copy_inline(entries, soft.init.max_inline)? })
    } else {
        Data::Sges(collect(entries)?)
    };
    let len = data.len();
    let is_atomic = matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
    let max_msg_sz = u64::from(soft.max_msg_sz.load(Ordering::Acquire));
    if len > max_msg_sz || (is_atomic && len != 8) {
        return Err(Errno::INVAL);
    }
    Ok(SendWqe {
        wr_id,
        seq,
        op,
        data,
        signaled: soft.init.sq_sig_all || flags.contains(ibv_send_flags::IBV_SEND_SIGNALED),
        solicited: flags.contains(ibv_send_flags::IBV_SEND_SOLICITED),
        fence: flags.contains(ibv_send_flags::IBV_SEND_FENCE),
    })
}

/// Checks and copies a receive request.
///
/// # Errors
/// `EINVAL` for too many entries.
///
/// # Safety
/// `wr` is a request as ibv_post_recv(3) asks for.
unsafe fn recv_request(soft: &QpObject, wr: *mut ibv_recv_wr, seq: u64) -> Result<RecvWqe, Errno> {
    // SAFETY: the caller's promise.
    let (wr_id, entries) = unsafe {
        (
            (*wr).wr_id,
            entries((*wr).sg_list, (*wr).num_sge, soft.init.max_recv_sge)?,
        )
    };
    Ok(RecvWqe {
        wr_id,
        seq,
        sges: collect(entries)?,
    })
}
