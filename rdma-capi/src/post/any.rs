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

/// How the local side is handed over: ranges, or bytes to copy.
pub(super) trait Local<T: Transport> {
    fn post<O: Op<T>>(
        &self,
        qp: &mut Qp<T>,
        context: u64,
        op: O,
        flags: PostFlags,
    ) -> Result<Ticket, PostError>;
}

impl<T: Transport> Local<T> for &[MrSlice<'_>] {
    fn post<O: Op<T>>(
        &self,
        qp: &mut Qp<T>,
        context: u64,
        op: O,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        qp.post_with(context, op, self, flags)
    }
}

/// Bytes that are copied during the call.
pub(super) struct Copied<'a>(pub(super) &'a [u8]);

impl<T: Transport> Local<T> for Copied<'_> {
    fn post<O: Op<T>>(
        &self,
        qp: &mut Qp<T>,
        context: u64,
        op: O,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        qp.post_inline_with(context, op, self.0, flags)
    }
}

/// Posts the request of a struct.
pub(super) fn post<L>(pair: &mut Pair, send: &qp_send, local: L) -> Result<(), Fault>
where
    L: Local<Rc> + Local<Uc> + Local<Ud> + Local<XrcSend>,
{
    let flags = flags(send)?;
    let remote = send.remote.at(send.remote_offset);
    let qp_send {
        context,
        imm,
        compare_add,
        swap,
        ..
    } = *send;
    let posted = match &mut pair.qp {
        Any::Rc(qp) => match send.op {
            SEND => local.post(qp, context, op::Send, flags),
            SEND_WITH_IMM => local.post(qp, context, op::SendImm(imm), flags),
            SEND_WITH_INV => local.post(qp, context, op::SendInv(imm), flags),
            WRITE => local.post(qp, context, op::Write { remote }, flags),
            WRITE_WITH_IMM => local.post(qp, context, op::WriteImm { remote, imm }, flags),
            READ => local.post(qp, context, op::Read { remote }, flags),
            CMP_AND_SWP => local.post(
                qp,
                context,
                op::CompareSwap {
                    remote,
                    compare: compare_add,
                    swap,
                },
                flags,
            ),
            FETCH_AND_ADD => local.post(
                qp,
                context,
                op::FetchAdd {
                    remote,
                    add: compare_add,
                },
                flags,
            ),
            LOCAL_INV => local.post(qp, context, op::LocalInv(imm), flags),
            _ => return Err(bad_op(send, "RC")),
        },
        Any::Uc(qp) => match send.op {
            SEND => local.post(qp, context, op::Send, flags),
            SEND_WITH_IMM => local.post(qp, context, op::SendImm(imm), flags),
            WRITE => local.post(qp, context, op::Write { remote }, flags),
            WRITE_WITH_IMM => local.post(qp, context, op::WriteImm { remote, imm }, flags),
            LOCAL_INV => local.post(qp, context, op::LocalInv(imm), flags),
            _ => return Err(bad_op(send, "UC")),
        },
        Any::Xrc(qp) => {
            if send.op == LOCAL_INV {
                local.post(qp, context, op::LocalInv(imm), flags)
            } else {
                let srq = SrqNum::new(send.srq_num)?;
                match send.op {
                    SEND => local.post(qp, context, ToSrq { srq, op: op::Send }, flags),
                    SEND_WITH_IMM => local.post(
                        qp,
                        context,
                        ToSrq {
                            srq,
                            op: op::SendImm(imm),
                        },
                        flags,
                    ),
                    SEND_WITH_INV => local.post(
                        qp,
                        context,
                        ToSrq {
                            srq,
                            op: op::SendInv(imm),
                        },
                        flags,
                    ),
                    WRITE => local.post(
                        qp,
                        context,
                        ToSrq {
                            srq,
                            op: op::Write { remote },
                        },
                        flags,
                    ),
                    WRITE_WITH_IMM => local.post(
                        qp,
                        context,
                        ToSrq {
                            srq,
                            op: op::WriteImm { remote, imm },
                        },
                        flags,
                    ),
                    READ => local.post(
                        qp,
                        context,
                        ToSrq {
                            srq,
                            op: op::Read { remote },
                        },
                        flags,
                    ),
                    CMP_AND_SWP => {
                        let op = op::CompareSwap {
                            remote,
                            compare: compare_add,
                            swap,
                        };
                        local.post(qp, context, ToSrq { srq, op }, flags)
                    }
                    FETCH_AND_ADD => {
                        let op = op::FetchAdd {
                            remote,
                            add: compare_add,
                        };
                        local.post(qp, context, ToSrq { srq, op }, flags)
                    }
                    _ => return Err(bad_op(send, "XRC")),
                }
            }
        }
        Any::Ud(qp) => {
            if !matches!(send.op, SEND | SEND_WITH_IMM) {
                return Err(bad_op(send, "UD"));
            }
            let to = &Held::<Destination>::of(send.to, "send->to")?;
            match send.op {
                SEND => local.post(qp, context, op::SendTo { to }, flags),
                _ => local.post(qp, context, op::SendToImm { to, imm }, flags),
            }
        }
    };
    posted?;
    Ok(())
}
