//! What most programs post in their loops, the short way.

use std::ffi::c_int;

use rdma_qp::*;

use super::any::{self, READ, SEND, WRITE};
use super::{nothing, qp_recv, qp_send};
use crate::export::hot_boundary;
use crate::fault::Fault;
use crate::pair::{Any, Pair};
use crate::slots::{Held, With};

/// Posts a SEND without flags over RC, which is what costs least, or goes on with anything else; and gives what the function
/// returns.
#[inline(always)]
pub(super) fn send(mut entered: With<Pair, Mr>, send: &qp_send) -> c_int {
    let (pair, mr) = entered.both();
    if let Any::Rc(qp) = &mut pair.qp
        && send.op | send.flags == SEND
        && let Some(local) = mr.get(send.offset, send.len)
    {
        match qp.post_quick(send.context, op::Send, local, PostFlags::empty()) {
            QuickPost::Done(_) => return 0,
            QuickPost::Refused(not) => return refused(not),
            QuickPost::Other => {}
        }
    }
    send_on(entered, send)
}

const _: () = assert!(SEND == 0);

/// Posts any other request of one range.
#[inline(never)]
fn send_on(mut entered: With<Pair, Mr>, send: &qp_send) -> c_int {
    let (pair, mr) = entered.both();
    if let Any::Rc(qp) = &mut pair.qp
        && let Some(local) = mr.get(send.offset, send.len)
        && let Ok(flags) = any::flags(send)
    {
        let (context, remote) = (send.context, send.remote.at(send.remote_offset));
        let posted = match send.op {
            SEND => qp.post_quick(context, op::Send, local, flags),
            WRITE => qp.post_quick(context, op::Write { remote }, local, flags),
            READ => qp.post_quick(context, op::Read { remote }, local, flags),
            _ => QuickPost::Other,
        };
        match posted {
            QuickPost::Done(_) => return 0,
            QuickPost::Refused(not) => return refused(not),
            QuickPost::Other => {}
        }
    }
    send_any(entered, send)
}

/// Posts whatever is not for the short way.
#[cold]
#[inline(never)]
fn send_any(mut entered: With<Pair, Mr>, send: &qp_send) -> c_int {
    hot_boundary(|| {
        let (pair, mr) = entered.both();
        any::post(pair, send, &[mr.slice(send.offset, send.len)?][..])?;
        super::ring(pair)
    })
}

#[cold]
#[inline(never)]
fn refused(not: NotTaken<'_, Rc>) -> c_int {
    hot_boundary(|| Err(not.error().into()))
}

/// Posts a receive of a Queue Pair's own, or goes on with anything else.
#[inline(always)]
pub(super) fn recv(mut entered: With<Pair, Mr>, recv: &qp_recv) -> c_int {
    let (pair, mr) = entered.both();
    if let Any::Rc(qp) = &mut pair.qp
        && let Some(local) = mr.get(recv.offset, recv.len)
        && qp.recv_quick(recv.context, local).is_some()
    {
        return 0;
    }
    recv_any(entered, recv)
}

#[cold]
#[inline(never)]
fn recv_any(mut entered: With<Pair, Mr>, recv: &qp_recv) -> c_int {
    hot_boundary(|| {
        let (pair, mr) = entered.both();
        super::post_recv(pair, recv, &[mr.slice(recv.offset, recv.len)?])
    })
}

/// Posts requests, at least the first, of the same region, which is looked up once; and adds their number to `done`.
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
    if let Any::Rc(qp) = &mut pair.qp {
        let remote = |send: &qp_send| send.remote.at(send.remote_offset);
        let posted = match first.op | first.flags {
            SEND => row(qp, mr, sends, |_| op::Send),
            WRITE => row(qp, mr, sends, |send| op::Write {
                remote: remote(send),
            }),
            READ => row(qp, mr, sends, |send| op::Read {
                remote: remote(send),
            }),
            _ => 0,
        };
        *done += posted;
        if posted > 0 {
            return Ok(());
        }
    }
    any::post(pair, first, &[mr.slice(first.offset, first.len)?][..])?;
    *done += 1;
    Ok(())
}

/// Posts requests without flags as long as they are for the short way and ask for what the first does, of the same region. Says
/// how many.
#[inline(never)]
fn row<O: Op<Rc>>(
    qp: &mut Qp<Rc>,
    mr: &Mr,
    sends: &[qp_send],
    op: impl Fn(&qp_send) -> O,
) -> usize {
    let mut list = qp.sends();
    // One comparison.
    let what = |send: &qp_send| u64::from(send.op) | u64::from(send.flags) << 32;
    let (first, region) = (u64::from(sends[0].op), sends[0].mr);
    let mut posted = 0;
    for send in sends {
        if what(send) != first || send.mr != region {
            break;
        }
        let Some(local) = mr.get(send.offset, send.len) else {
            break;
        };
        if !list.post_quick(send.context, op(send), local, PostFlags::empty()) {
            break;
        }
        posted += 1;
    }
    posted
}
