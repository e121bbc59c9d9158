//! What most programs post in their loops, the short way.

use rdma_qp::*;

use super::any::{self, READ, SEND, WRITE};
use super::{nothing, qp_recv, qp_send};
use crate::fault::Fault;
use crate::pair::{Any, Pair};
use crate::slots::Held;

/// Posts a SEND, WRITE or READ over RC. `false`: nothing was done.
#[inline(always)]
pub(super) fn send(pair: &mut Pair, send: &qp_send, mr: &Mr) -> bool {
    let Any::Rc(qp) = &mut pair.qp else {
        return false;
    };
    if send.flags == 0 {
        return with_flags(qp, send, mr, PostFlags::empty());
    }
    flagged(qp, send, mr)
}

/// The same with flags.
#[inline(never)]
fn flagged(qp: &mut Qp<Rc>, send: &qp_send, mr: &Mr) -> bool {
    any::flags(send).is_ok_and(|flags| with_flags(qp, send, mr, flags))
}

#[inline(always)]
fn with_flags(qp: &mut Qp<Rc>, send: &qp_send, mr: &Mr, flags: PostFlags) -> bool {
    let Ok(local) = mr.slice(send.offset, send.len) else {
        return false;
    };
    let remote = || send.remote.at(send.remote_offset);
    let posted = match send.op {
        SEND => qp.post_quick(send.context, op::Send, local, flags),
        WRITE => qp.post_quick(send.context, op::Write { remote: remote() }, local, flags),
        READ => qp.post_quick(send.context, op::Read { remote: remote() }, local, flags),
        _ => return false,
    };
    matches!(posted, Quick::Done(_))
}

/// Posts a receive of a queue of the Queue Pair's own. `false`: nothing was done.
#[inline(always)]
pub(super) fn recv(pair: &mut Pair, recv: &qp_recv, mr: &Mr) -> bool {
    let Any::Rc(qp) = &mut pair.qp else {
        return false;
    };
    let Ok(local) = mr.slice(recv.offset, recv.len) else {
        return false;
    };
    matches!(qp.recv_quick(recv.context, local), Quick::Done(_))
}

/// Posts requests as long as they ask for what the first asks for, of the same region, which is looked up once; and adds their
/// number to `done`.
pub(super) fn sends(pair: &mut Pair, sends: &[qp_send], done: &mut usize) -> Result<(), Fault> {
    let Some(first) = sends.first() else {
        return Ok(());
    };
    if first.mr.is_null() {
        nothing(first.len, "send")?;
        any::post(pair, first, &NOTHING[..])?;
        *done += 1;
        return Ok(());
    }
    let mr = &*Held::<Mr>::of(first.mr, "send->mr")?;
    let flags = any::flags(first)?;
    let (what, region) = ((first.op, first.flags), first.mr);
    let row = sends
        .iter()
        .take_while(|send| (send.op, send.flags) == what && send.mr == region);
    if let Any::Rc(qp) = &mut pair.qp {
        let remote = |send: &qp_send| send.remote.at(send.remote_offset);
        match first.op {
            SEND => return send_row(qp.sends(), mr, row, flags, done, |_| op::Send),
            WRITE => {
                let write = |send: &qp_send| op::Write {
                    remote: remote(send),
                };
                return send_row(qp.sends(), mr, row, flags, done, write);
            }
            READ => {
                let read = |send: &qp_send| op::Read {
                    remote: remote(send),
                };
                return send_row(qp.sends(), mr, row, flags, done, read);
            }
            _ => {}
        }
    }
    for send in row {
        any::post(pair, send, &[mr.slice(send.offset, send.len)?][..])?;
        *done += 1;
    }
    Ok(())
}

#[inline(always)]
fn send_row<'s, 'm, O: Op<Rc>>(
    mut list: Sends<'_, 'm, Rc>,
    mr: &'m Mr,
    mut row: impl Iterator<Item = &'s qp_send>,
    flags: PostFlags,
    done: &mut usize,
    op: impl Fn(&qp_send) -> O,
) -> Result<(), Fault> {
    let mut posted = 0;
    let result = row.try_for_each(
        #[inline(always)]
        |send| {
            let local = mr.slice(send.offset, send.len)?;
            list.post_with(send.context, op(send), local, flags)?;
            posted += 1;
            Ok(())
        },
    );
    *done += posted;
    result
}
