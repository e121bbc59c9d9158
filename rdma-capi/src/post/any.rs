//! Sends of any kind, over any transport.

use rdma_qp::op::ToSrq;
use rdma_qp::xrc::{SrqNum, XrcSend};
use rdma_qp::*;

use super::{FLAGS, SIGNALED, qp_send};
use crate::cq::qp_op;
use crate::fault::Fault;
use crate::pair::{Any, Pair, no_such};
use crate::slots::Held;

/// The flags of a request.
#[inline(always)]
pub(super) fn flags(send: &qp_send) -> Result<PostFlags, Fault> {
    if send.flags & !FLAGS != 0 {
        return Err(unknown_flags(send));
    }
    Ok(PostFlags::from_bits_retain(send.flags & !SIGNALED))
}

#[cold]
fn unknown_flags(send: &qp_send) -> Fault {
    Fault::range(format!(
        "flags {:#x} of struct qp_send has unknown bits: set it to all zero first",
        send.flags
    ))
}

#[cold]
fn bad_op(send: &qp_send, transport: &str) -> Fault {
    match send.op {
        0..=8 => no_such(transport, &format!("operation {} (enum qp_op)", send.op)),
        op => Fault::range(format!(
            "op is {op}, which is none of enum qp_op that can be posted (0 to 8)"
        )),
    }
}

pub(super) const SEND: u32 = qp_op::QP_SEND as u32;
const SEND_WITH_IMM: u32 = qp_op::QP_SEND_WITH_IMM as u32;
const SEND_WITH_INV: u32 = qp_op::QP_SEND_WITH_INV as u32;
pub(super) const WRITE: u32 = qp_op::QP_WRITE as u32;
const WRITE_WITH_IMM: u32 = qp_op::QP_WRITE_WITH_IMM as u32;
pub(super) const READ: u32 = qp_op::QP_READ as u32;
const CMP_AND_SWP: u32 = qp_op::QP_CMP_AND_SWP as u32;
const FETCH_AND_ADD: u32 = qp_op::QP_FETCH_AND_ADD as u32;
const LOCAL_INV: u32 = qp_op::QP_LOCAL_INV as u32;

/// What takes requests of a transport, once: a Queue Pair, a shared one or a supervised connection, with the local side of
/// the request.
pub(crate) trait Takes<T: Transport> {
    fn take<O: Asks<T>>(self, context: u64, op: O, flags: PostFlags) -> Result<(), Fault>;
}

/// An operation of a transport, now or later.
pub(crate) trait Asks<T: Transport>: Op<T> + Into<AnyOp> {}

impl<T: Transport, O: Op<T> + Into<AnyOp>> Asks<T> for O {}

/// Bytes that are copied during the call.
pub(crate) struct Copied<'a>(pub(crate) &'a [u8]);

/// A local side, ranges or bytes to copy, for whom it goes to.
pub(crate) struct To<'q, Q, L>(pub(crate) &'q mut Q, pub(crate) L);

impl<T: Transport> Takes<T> for To<'_, Qp<T>, &[MrSlice<'_>]> {
    fn take<O: Asks<T>>(self, context: u64, op: O, flags: PostFlags) -> Result<(), Fault> {
        self.0.post_with(context, op, self.1, flags)?;
        Ok(())
    }
}

impl<T: Transport> Takes<T> for To<'_, Qp<T>, Copied<'_>> {
    fn take<O: Asks<T>>(self, context: u64, op: O, flags: PostFlags) -> Result<(), Fault> {
        self.0.post_inline_with(context, op, self.1.0, flags)?;
        Ok(())
    }
}

/// Posts the request of a struct over RC.
pub(crate) fn rc(to: impl Takes<Rc>, send: &qp_send) -> Result<(), Fault> {
    let flags = flags(send)?;
    let remote = send.remote.at(send.remote_offset);
    let (context, imm) = (send.context, send.imm);
    match send.op {
        SEND => to.take(context, op::Send, flags),
        SEND_WITH_IMM => to.take(context, op::SendImm(imm), flags),
        SEND_WITH_INV => to.take(context, op::SendInv(imm), flags),
        WRITE => to.take(context, op::Write { remote }, flags),
        WRITE_WITH_IMM => to.take(context, op::WriteImm { remote, imm }, flags),
        READ => to.take(context, op::Read { remote }, flags),
        CMP_AND_SWP => to.take(context, compare_swap(send), flags),
        FETCH_AND_ADD => to.take(context, fetch_add(send), flags),
        LOCAL_INV => to.take(context, op::LocalInv(imm), flags),
        _ => Err(bad_op(send, "RC")),
    }
}

/// Posts the request of a struct over UC.
pub(crate) fn uc(to: impl Takes<Uc>, send: &qp_send) -> Result<(), Fault> {
    let flags = flags(send)?;
    let remote = send.remote.at(send.remote_offset);
    let (context, imm) = (send.context, send.imm);
    match send.op {
        SEND => to.take(context, op::Send, flags),
        SEND_WITH_IMM => to.take(context, op::SendImm(imm), flags),
        WRITE => to.take(context, op::Write { remote }, flags),
        WRITE_WITH_IMM => to.take(context, op::WriteImm { remote, imm }, flags),
        LOCAL_INV => to.take(context, op::LocalInv(imm), flags),
        _ => Err(bad_op(send, "UC")),
    }
}

/// Posts the request of a struct over UD.
pub(crate) fn ud(to: impl Takes<Ud>, send: &qp_send) -> Result<(), Fault> {
    // What it would never be sent with is told first.
    flags(send)?;
    if !matches!(send.op, SEND | SEND_WITH_IMM) {
        return Err(bad_op(send, "UD"));
    }
    let peer = Held::<Destination>::of(send.to, "send->to")?;
    ud_to(to, send, &peer)
}

/// The same to that peer.
pub(crate) fn ud_to(to: impl Takes<Ud>, send: &qp_send, peer: &Destination) -> Result<(), Fault> {
    let flags = flags(send)?;
    let (context, imm) = (send.context, send.imm);
    match send.op {
        SEND => to.take(context, op::SendTo { to: peer }, flags),
        SEND_WITH_IMM => to.take(context, op::SendToImm { to: peer, imm }, flags),
        _ => Err(bad_op(send, "UD")),
    }
}

/// Posts the request of a struct over XRC.
pub(crate) fn xrc(to: impl Takes<XrcSend>, send: &qp_send) -> Result<(), Fault> {
    let flags = flags(send)?;
    let remote = send.remote.at(send.remote_offset);
    let (context, imm) = (send.context, send.imm);
    if send.op == LOCAL_INV {
        return to.take(context, op::LocalInv(imm), flags);
    }
    let srq = SrqNum::new(send.srq_num)?;
    macro_rules! take {
        ($op:expr) => {
            to.take(context, ToSrq { srq, op: $op }, flags)
        };
    }
    match send.op {
        SEND => take!(op::Send),
        SEND_WITH_IMM => take!(op::SendImm(imm)),
        SEND_WITH_INV => take!(op::SendInv(imm)),
        WRITE => take!(op::Write { remote }),
        WRITE_WITH_IMM => take!(op::WriteImm { remote, imm }),
        READ => take!(op::Read { remote }),
        CMP_AND_SWP => take!(compare_swap(send)),
        FETCH_AND_ADD => take!(fetch_add(send)),
        _ => Err(bad_op(send, "XRC")),
    }
}

fn compare_swap(send: &qp_send) -> op::CompareSwap {
    op::CompareSwap {
        remote: send.remote.at(send.remote_offset),
        compare: send.compare_add,
        swap: send.swap,
    }
}

fn fetch_add(send: &qp_send) -> op::FetchAdd {
    op::FetchAdd {
        remote: send.remote.at(send.remote_offset),
        add: send.compare_add,
    }
}

/// Posts the request of a struct.
pub(super) fn post<L>(pair: &mut Pair, send: &qp_send, local: L) -> Result<(), Fault>
where
    for<'q> To<'q, Qp<Rc>, L>: Takes<Rc>,
    for<'q> To<'q, Qp<Uc>, L>: Takes<Uc>,
    for<'q> To<'q, Qp<Ud>, L>: Takes<Ud>,
    for<'q> To<'q, Qp<XrcSend>, L>: Takes<XrcSend>,
{
    match &mut pair.qp {
        Any::Rc(qp) => rc(To(qp, local), send),
        Any::Uc(qp) => uc(To(qp, local), send),
        Any::Ud(qp) => ud(To(qp, local), send),
        Any::Xrc(qp) => xrc(To(qp, local), send),
    }
}
