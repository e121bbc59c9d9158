//! Posting: a struct that says what to do, and the range of a region that it is about.

use rdma_qp::op::ToSrq;
use rdma_qp::xrc::{SrqNum, XrcSend};
use rdma_qp::*;

use crate::cq::{PairContexts, qp_op};
use crate::dest::qp_dest;
use crate::export::{Array, In, Out, export};
use crate::fault::*;
use crate::memory::qp_mr;
use crate::pair::{Any, Pair, any, no_such, qp_pair};
use crate::slots::{Alone, Held, Later};
use crate::values::qp_region;

/// In qp_send.flags, as IBV_SEND_FENCE: begin only when all earlier READs and atomics of the Queue Pair are done.
pub const QP_FENCE: u32 = 1;
/// In qp_send.flags, as IBV_SEND_SOLICITED: wake the peer even if it sleeps for solicited completions only.
pub const QP_SOLICITED: u32 = 4;
/// In qp_send.flags, as IBV_SEND_INLINE: copy the data during the call, so that the region is free at once.
pub const QP_INLINE: u32 = 8;
/// In qp_send.flags: no completion on success. The request is done when a later signaled one of its Queue Pair is.
pub const QP_UNSIGNALED: u32 = 0x8000_0000;

/// IBV_SEND_SIGNALED, which every request has that is not QP_UNSIGNALED.
const SIGNALED: u32 = 2;
const FLAGS: u32 = QP_FENCE | QP_SOLICITED | QP_INLINE | QP_UNSIGNALED | SIGNALED;

/// A send request. Set it to all zero first.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_send {
    /// The program's own: it comes back with the completion.
    pub context: u64,
    /// What to do: one of enum qp_op.
    pub op: u32,
    /// QP_FENCE and so on.
    pub flags: u32,
    /// The region of the local side: what is sent, or where the result of READ and atomics goes (8 bytes); NULL: no data.
    pub mr: *mut qp_mr,
    /// First byte, counted from the start of the region.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// WRITE, READ and atomics: the peer's region.
    pub remote: qp_region,
    /// WRITE, READ and atomics: the place in it, counted from its start; of atomics at an address that is a multiple of 8.
    pub remote_offset: u64,
    /// Compare and swap: the expected value. Fetch and add: what to add. Host byte order.
    pub compare_add: u64,
    /// Compare and swap: the new value. Host byte order.
    pub swap: u64,
    /// Immediate data, in host byte order, or the key to invalidate.
    pub imm: u32,
    /// XRC: which SRQ of the peer's node it is for, see qp_srq_xrc_number(); else 0.
    pub srq_num: u32,
    /// UD: where the datagram goes.
    pub to: *mut qp_dest,
}

/// A range of a region.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_range {
    /// The region.
    pub mr: *mut qp_mr,
    /// First byte, counted from the start of the region.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// A receive. Set it to all zero first.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_recv {
    /// The program's own: it comes back with the completion.
    pub context: u64,
    /// The region that the message goes to; NULL: no room for data, for WRITE with immediate. On UD the first 40 bytes are the
    /// device's.
    pub mr: *mut qp_mr,
    /// First byte, counted from the start of the region.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Most ranges that one request can have here.
const MOST_RANGES: usize = 32;

/// Ranges of regions that a call uses.
pub(crate) struct Ranges {
    held: [Option<(Held<Mr>, usize, usize)>; MOST_RANGES],
    count: usize,
}

impl Ranges {
    pub(crate) fn enter(ranges: &[qp_range]) -> Result<Ranges, Fault> {
        if ranges.len() > MOST_RANGES {
            let text = format!(
                "{} ranges: one request can have {MOST_RANGES}",
                ranges.len()
            );
            return Err(Fault::range(text));
        }
        let mut held = [const { None }; MOST_RANGES];
        for (place, range) in held.iter_mut().zip(ranges) {
            *place = Some((Held::of(range.mr, "ranges->mr")?, range.offset, range.len));
        }
        let count = ranges.len();
        Ok(Ranges { held, count })
    }

    /// Calls `f` with the ranges, if each is inside its region.
    pub(crate) fn lend<R>(&self, f: impl FnOnce(&[MrSlice<'_>]) -> R) -> Result<R, Fault> {
        let slice = |place: usize| match &self.held[place] {
            Some((mr, offset, len)) => Ok(mr.slice(*offset, *len)?),
            None => Err(Fault::range("no such range")),
        };
        if self.count == 0 {
            return Ok(f(&[]));
        }
        let mut slices = [slice(0)?; MOST_RANGES];
        for (place, kept) in slices.iter_mut().enumerate().take(self.count) {
            *kept = slice(place)?;
        }
        Ok(f(&slices[..self.count]))
    }
}

/// The flags of a request.
#[inline(always)]
fn flags(send: &qp_send) -> Result<PostFlags, Fault> {
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

const SEND: u32 = qp_op::QP_SEND as u32;
const SEND_WITH_IMM: u32 = qp_op::QP_SEND_WITH_IMM as u32;
const SEND_WITH_INV: u32 = qp_op::QP_SEND_WITH_INV as u32;
const WRITE: u32 = qp_op::QP_WRITE as u32;
const WRITE_WITH_IMM: u32 = qp_op::QP_WRITE_WITH_IMM as u32;
const READ: u32 = qp_op::QP_READ as u32;
const CMP_AND_SWP: u32 = qp_op::QP_CMP_AND_SWP as u32;
const FETCH_AND_ADD: u32 = qp_op::QP_FETCH_AND_ADD as u32;
const LOCAL_INV: u32 = qp_op::QP_LOCAL_INV as u32;

/// How the local side is handed over: ranges, or bytes to copy.
trait Local<T: Transport> {
    fn post<O: Op<T>>(&self, qp: &mut Qp<T>, op: O, flags: PostFlags) -> Result<Ticket, PostError>;
}

impl<T: Transport> Local<T> for &[MrSlice<'_>] {
    #[inline(always)]
    fn post<O: Op<T>>(&self, qp: &mut Qp<T>, op: O, flags: PostFlags) -> Result<Ticket, PostError> {
        qp.post(op, self, flags)
    }
}

/// One range, which every queue takes.
impl<T: Transport> Local<T> for MrSlice<'_> {
    #[inline(always)]
    fn post<O: Op<T>>(&self, qp: &mut Qp<T>, op: O, flags: PostFlags) -> Result<Ticket, PostError> {
        qp.post(op, self, flags)
    }
}

/// Bytes that are copied during the call.
struct Copied<'a>(&'a [u8]);

impl<T: Transport> Local<T> for Copied<'_> {
    fn post<O: Op<T>>(&self, qp: &mut Qp<T>, op: O, flags: PostFlags) -> Result<Ticket, PostError> {
        qp.post_inline(op, self.0, flags)
    }
}

/// Posts the request of a struct with one range. SEND, WRITE and READ over RC, which are what most programs post in
/// their loops, do not go by way of `post`.
#[inline(always)]
fn post_range(pair: &mut Pair, send: &qp_send, mr: &Mr) -> Result<(), Fault> {
    let Pair {
        qp: Any::Rc(qp),
        contexts,
        ..
    } = pair
    else {
        return post_other(pair, send, mr);
    };
    let (local, flags) = (mr.slice(send.offset, send.len)?, flags(send)?);
    match send.op {
        SEND => end(qp.post(op::Send, local, flags), contexts, send),
        WRITE => {
            let remote = send.remote.at(send.remote_offset);
            end(qp.post(op::Write { remote }, local, flags), contexts, send)
        }
        READ => {
            let remote = send.remote.at(send.remote_offset);
            end(qp.post(op::Read { remote }, local, flags), contexts, send)
        }
        _ => post_other(pair, send, mr),
    }
}

/// Ends a post: each operation does it by itself, so that what came of it is never in memory.
#[inline(always)]
fn end(
    posted: Result<Ticket, PostError>,
    contexts: &PairContexts,
    send: &qp_send,
) -> Result<(), Fault> {
    match posted {
        Ok(ticket) => {
            contexts.send.put(ticket.sequence(), send.context);
            Ok(())
        }
        Err(error) => Err(refused(error)),
    }
}

/// Posts what is not usual.
#[inline(never)]
fn post_other(pair: &mut Pair, send: &qp_send, mr: &Mr) -> Result<(), Fault> {
    post(pair, send, mr.slice(send.offset, send.len)?)
}

#[cold]
#[inline(never)]
fn refused(error: PostError) -> Fault {
    error.into()
}

/// Posts the request of a struct.
#[inline(never)]
fn post<L>(pair: &mut Pair, send: &qp_send, local: L) -> Result<(), Fault>
where
    L: Local<Rc> + Local<Uc> + Local<Ud> + Local<XrcSend>,
{
    let flags = flags(send)?;
    let remote = send.remote.at(send.remote_offset);
    let qp_send {
        imm,
        compare_add,
        swap,
        ..
    } = *send;
    let posted = match &mut pair.qp {
        Any::Rc(qp) => match send.op {
            SEND => local.post(qp, op::Send, flags),
            SEND_WITH_IMM => local.post(qp, op::SendImm(imm), flags),
            SEND_WITH_INV => local.post(qp, op::SendInv(imm), flags),
            WRITE => local.post(qp, op::Write { remote }, flags),
            WRITE_WITH_IMM => local.post(qp, op::WriteImm { remote, imm }, flags),
            READ => local.post(qp, op::Read { remote }, flags),
            CMP_AND_SWP => local.post(
                qp,
                op::CompareSwap {
                    remote,
                    compare: compare_add,
                    swap,
                },
                flags,
            ),
            FETCH_AND_ADD => local.post(
                qp,
                op::FetchAdd {
                    remote,
                    add: compare_add,
                },
                flags,
            ),
            LOCAL_INV => local.post(qp, op::LocalInv(imm), flags),
            _ => return Err(bad_op(send, "RC")),
        },
        Any::Uc(qp) => match send.op {
            SEND => local.post(qp, op::Send, flags),
            SEND_WITH_IMM => local.post(qp, op::SendImm(imm), flags),
            WRITE => local.post(qp, op::Write { remote }, flags),
            WRITE_WITH_IMM => local.post(qp, op::WriteImm { remote, imm }, flags),
            LOCAL_INV => local.post(qp, op::LocalInv(imm), flags),
            _ => return Err(bad_op(send, "UC")),
        },
        Any::Xrc(qp) => {
            if send.op == LOCAL_INV {
                local.post(qp, op::LocalInv(imm), flags)
            } else {
                let srq = SrqNum::new(send.srq_num)?;
                match send.op {
                    SEND => local.post(qp, ToSrq { srq, op: op::Send }, flags),
                    SEND_WITH_IMM => local.post(
                        qp,
                        ToSrq {
                            srq,
                            op: op::SendImm(imm),
                        },
                        flags,
                    ),
                    SEND_WITH_INV => local.post(
                        qp,
                        ToSrq {
                            srq,
                            op: op::SendInv(imm),
                        },
                        flags,
                    ),
                    WRITE => local.post(
                        qp,
                        ToSrq {
                            srq,
                            op: op::Write { remote },
                        },
                        flags,
                    ),
                    WRITE_WITH_IMM => local.post(
                        qp,
                        ToSrq {
                            srq,
                            op: op::WriteImm { remote, imm },
                        },
                        flags,
                    ),
                    READ => local.post(
                        qp,
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
                        local.post(qp, ToSrq { srq, op }, flags)
                    }
                    FETCH_AND_ADD => {
                        let op = op::FetchAdd {
                            remote,
                            add: compare_add,
                        };
                        local.post(qp, ToSrq { srq, op }, flags)
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
                SEND => local.post(qp, op::SendTo { to }, flags),
                _ => local.post(qp, op::SendToImm { to, imm }, flags),
            }
        }
    };
    let ticket = posted?;
    pair.contexts.send.put(ticket.sequence(), send.context);
    Ok(())
}

/// Posts requests as long as they are of the same region, which is looked up once, and adds their number to `done`.
fn post_some(pair: &mut Pair, sends: &[qp_send], done: &mut usize) -> Result<(), Fault> {
    let Some(first) = sends.first() else {
        return Ok(());
    };
    if first.mr.is_null() {
        nothing(first.len, "send")?;
        post(pair, first, &NOTHING[..])?;
        *done += 1;
        return Ok(());
    }
    let mr = Held::<Mr>::of(first.mr, "send->mr")?;
    let alike = sends.iter().take_while(|send| send.mr == first.mr);
    if let Pair {
        qp: Any::Rc(qp),
        contexts,
        ..
    } = pair
    {
        let mut list = qp.sends();
        let before = *done;
        for send in alike {
            let (local, flags) = (mr.slice(send.offset, send.len)?, flags(send)?);
            match send.op {
                SEND => end(list.post(op::Send, local, flags), contexts, send)?,
                WRITE => {
                    let remote = send.remote.at(send.remote_offset);
                    end(
                        list.post(op::Write { remote }, local, flags),
                        contexts,
                        send,
                    )?;
                }
                READ => {
                    let remote = send.remote.at(send.remote_offset);
                    end(list.post(op::Read { remote }, local, flags), contexts, send)?;
                }
                _ => break,
            }
            *done += 1;
        }
        // What is none of these comes first the next time.
        if *done > before {
            return Ok(());
        }
        drop(list);
        post_other(pair, first, &mr)?;
        *done += 1;
        return Ok(());
    }
    for send in alike {
        post(pair, send, mr.slice(send.offset, send.len)?)?;
        *done += 1;
    }
    Ok(())
}

/// Hands over what waits for the doorbell.
#[inline(always)]
fn ring(pair: &mut Pair) -> Result<(), Fault> {
    if pair.batched {
        any!(&mut pair.qp, qp => qp.ring())?;
    }
    Ok(())
}

/// What a request without a region says of its length.
pub(crate) fn nothing(len: usize, name: &str) -> Result<(), Fault> {
    if len != 0 {
        return Err(Fault::new(
            QP_CODE_NULL,
            libc::EINVAL,
            format!("{name}->mr is NULL, but {name}->len is {len}"),
        ));
    }
    Ok(())
}

/// Posts a receive of a struct.
#[inline(always)]
fn post_recv(pair: &mut Pair, recv: &qp_recv, local: &[MrSlice<'_>]) -> Result<(), Fault> {
    let ticket = match &mut pair.qp {
        Any::Rc(qp) => qp.recv(local),
        Any::Uc(qp) => qp.recv(local),
        Any::Ud(qp) => qp.recv(local),
        Any::Xrc(_) => {
            return Err(no_such(
                "an XRC initiator",
                "receives: they are the SRQs' of its peer",
            ));
        }
    }?;
    pair.contexts.recv.put(ticket.sequence(), recv.context);
    Ok(())
}

export! {
    /// Posts a send request, and hands it to the device.
    ///
    /// @param send  What to do. It is looked at during the call only; the region must stay until the request is done, which
    ///              qp_mr_destroy() sees to.
    /// @return 0; ENOMEM (QP_CODE_FULL): the queue is full, poll; EINVAL: QP_CODE_STATE, the Queue Pair is not in RTS,
    ///         QP_CODE_RANGE, outside the region, QP_CODE_REFUSED, not possible (too long, outside the peer's region ...),
    ///         QP_CODE_MISMATCH, of another protection domain; EOPNOTSUPP: the transport has no such operation; or what the
    ///         device said. Nothing was posted then.
    hot fn qp_post_send(pair: *mut qp_pair as Later<Pair>, send: *const qp_send as In<'_, qp_send>) {
        let send = send.0;
        if send.mr.is_null() {
            nothing(send.len, "send")?;
            let mut pair = pair.alone()?;
            post(&mut pair, send, &NOTHING[..])?;
            return ring(&mut pair);
        }
        let mut entered = pair.with::<Mr>(send.mr, "send->mr")?;
        let (pair, mr) = entered.both();
        post_range(pair, send, mr)?;
        ring(pair)
    }

    /// Posts several send requests, in order, and hands them to the device with as few calls as qp_pair_attr.send_batch says.
    ///
    /// @param sends   The requests.
    /// @param count   Their number.
    /// @param posted  Where the number of those that were posted goes, also when it is not all; may be NULL.
    /// @return 0, or why the first that was not posted was refused, as qp_post_send(). Those before it are posted; where the
    ///         device itself refuses some of those that were handed over together, qp_last_error() says which.
    hot fn qp_post_sends(
        pair: *mut qp_pair as Alone<Pair>,
        sends: *const qp_send as Array<'_, qp_send>,
        count: usize,
        posted: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `count` is the length of `sends`, says the header.
        let sends = unsafe { sends.of(count) }?;
        let mut done = 0;
        let mut result = Ok(());
        while done < sends.len() && result.is_ok() {
            result = post_some(&mut pair, &sends[done..], &mut done);
        }
        // Whatever the doorbell is: sends in a row may wait for each other.
        let rung = any!(&mut pair.qp, qp => qp.ring()).map_err(refused);
        if let Some(mut posted) = posted {
            posted.set(done);
        }
        result.and(rung)
    }

    /// Posts a send request whose data is gathered from several ranges (or, for READ, scattered to them), in order; mr, offset
    /// and len of the struct are not looked at. All else as qp_post_send().
    ///
    /// @param ranges  The ranges; NULL if count is 0.
    /// @param count   Their number, at most 32 and at most qp_pair_attr.send_ranges.
    hot fn qp_post_send_ranges(
        pair: *mut qp_pair as Alone<Pair>,
        send: *const qp_send as In<'_, qp_send>,
        ranges: *const qp_range as Array<'_, qp_range>,
        count: usize,
    ) {
        // SAFETY: `count` is the length of `ranges`, says the header.
        let ranges = Ranges::enter(unsafe { ranges.of(count) }?)?;
        ranges.lend(|local| post(&mut pair, send.0, local))??;
        ring(&mut pair)
    }

    /// Posts a send request of bytes that are copied during the call, so that they need no region; mr, offset and len of the
    /// struct are not looked at. All else as qp_post_send().
    ///
    /// @param data  The bytes; NULL if len is 0.
    /// @param len   Their number, at most what qp_pair_attr.inline_data asked for.
    hot fn qp_post_inline(
        pair: *mut qp_pair as Alone<Pair>,
        send: *const qp_send as In<'_, qp_send>,
        data: *const u8 as Array<'_, u8>,
        len: usize,
    ) {
        // SAFETY: `len` is the length of `data`, says the header.
        let bytes = unsafe { data.of(len) }?;
        post(&mut pair, send.0, Copied(bytes))
    }

    /// Posts a receive: the next message of the peer goes there. In any state but RESET.
    ///
    /// @param recv  Where to. It is looked at during the call only.
    /// @return As qp_post_send().
    hot fn qp_post_recv(pair: *mut qp_pair as Later<Pair>, recv: *const qp_recv as In<'_, qp_recv>) {
        let recv = recv.0;
        if recv.mr.is_null() {
            nothing(recv.len, "recv")?;
            return post_recv(&mut *pair.alone()?, recv, &NOTHING);
        }
        let mut entered = pair.with::<Mr>(recv.mr, "recv->mr")?;
        let (pair, mr) = entered.both();
        post_recv(pair, recv, &[mr.slice(recv.offset, recv.len)?])
    }

    /// Posts a receive that is scattered to several ranges; mr, offset and len of the struct are not looked at. All else as
    /// qp_post_recv(), and as qp_post_send_ranges().
    hot fn qp_post_recv_ranges(
        pair: *mut qp_pair as Alone<Pair>,
        recv: *const qp_recv as In<'_, qp_recv>,
        ranges: *const qp_range as Array<'_, qp_range>,
        count: usize,
    ) {
        // SAFETY: `count` is the length of `ranges`, says the header.
        let ranges = Ranges::enter(unsafe { ranges.of(count) }?)?;
        ranges.lend(|local| post_recv(&mut pair, recv.0, local))?
    }
}
