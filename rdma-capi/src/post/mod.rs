//! Posting: a struct that says what to do, and the range of a region that it is about.

pub(crate) mod any;
mod ranges;
mod usual;

use rdma_qp::{Mr, MrSlice, NOTHING};

use crate::dest::qp_dest;
use crate::export::{Array, In, Out, export};
use crate::fault::*;
use crate::memory::qp_mr;
use crate::pair::{Any, Pair, any, no_such, qp_pair};
use crate::slots::{Alone, Later};
use crate::values::qp_region;
use any::Copied;
use ranges::Ranges;
pub(crate) use ranges::nothing;

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

/// Hands over what waits for the doorbell.
fn ring(pair: &mut Pair) -> Result<(), Fault> {
    if pair.batch > 1 {
        any!(&mut pair.qp, qp => qp.ring())?;
    }
    Ok(())
}

/// Posts a receive of a struct.
fn post_recv(pair: &mut Pair, recv: &qp_recv, local: &[MrSlice<'_>]) -> Result<(), Fault> {
    let context = recv.context;
    match &mut pair.qp {
        Any::Rc(qp) => qp.recv_with(context, local),
        Any::Uc(qp) => qp.recv_with(context, local),
        Any::Ud(qp) => qp.recv_with(context, local),
        Any::Xrc(_) => return Err(no_receives()),
    }?;
    Ok(())
}

pub(crate) fn no_receives() -> Fault {
    no_such(
        "an XRC initiator",
        "receives: they are the SRQs' of its peer",
    )
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
    hot fn qp_post_send(pair: *mut qp_pair as Later<Pair>, send: *const qp_send as In<'_, qp_send>) first {
        let send = send.0;
        Some(usual::send(pair.glance_with::<Mr>(send.mr)?, send))
    } then {
        let send = send.0;
        if send.mr.is_null() {
            nothing(send.len, "send")?;
            let mut pair = pair.alone()?;
            any::post(&mut pair, send, &NOTHING[..])?;
            return ring(&mut pair);
        }
        let mut entered = pair.with::<Mr>(send.mr, "send->mr")?;
        let (pair, mr) = entered.both();
        any::post(pair, send, &[mr.slice(send.offset, send.len)?][..])?;
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
        pair: *mut qp_pair as Later<Pair>,
        sends: *const qp_send as Array<'_, qp_send>,
        count: usize,
        posted: *mut usize as Option<Out<'_, usize>>,
    ) first {
        // SAFETY: `count` is the length of `sends`, says the header.
        let sends = unsafe { sends.glance_of(count) }?;
        Some(usual::list(pair.glance_with::<Mr>(sends[0].mr)?, sends, posted))
    } then {
        if let Some(posted) = &mut posted {
            posted.set(0);
        }
        // SAFETY: `count` is the length of `sends`, says the header.
        let sends = unsafe { sends.of(count) }?;
        usual::list_on(&mut *pair.alone()?, sends, 0, posted)
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
        ranges.lend(|local| any::post(&mut pair, send.0, local))??;
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
        any::post(&mut pair, send.0, Copied(bytes))
    }

    /// Posts a receive: the next message of the peer goes there. In any state but RESET.
    ///
    /// @param recv  Where to. It is looked at during the call only.
    /// @return As qp_post_send().
    hot fn qp_post_recv(pair: *mut qp_pair as Later<Pair>, recv: *const qp_recv as In<'_, qp_recv>) first {
        let recv = recv.0;
        Some(usual::recv(pair.glance_with::<Mr>(recv.mr)?, recv))
    } then {
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
