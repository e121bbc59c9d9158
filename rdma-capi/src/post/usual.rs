//! What most programs post in their loops, the short way.

use std::ffi::c_int;

use rdma_qp::*;

use super::any::{self, READ, SEND, WRITE};
use super::{nothing, qp_recv, qp_send};
use crate::export::{Out, hot_boundary};
use crate::fault::Fault;
use crate::pair::{Any, Pair, any};
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

/// Posts a list, all of it the short way if it asks for one thing on one region, or goes on with what is not.
#[inline(always)]
pub(super) fn list(
    mut entered: With<Pair, Mr>,
    sends: &[qp_send],
    posted: Option<Out<'_, usize>>,
) -> c_int {
    let (pair, mr) = entered.both();
    let mut done = 0;
    if let Any::Rc(qp) = &mut pair.qp
        && sends[0].op | sends[0].flags == SEND
    {
        let mut list = qp.sends();
        done = list.post_row(
            mr,
            PostFlags::empty(),
            sends,
            as_first::<SEND, _>(sends, |_| op::Send),
        );
        if done == sends.len() {
            if let Err(error) = list.ring() {
                return not_rung(error, done, posted);
            }
            if let Some(mut posted) = posted {
                posted.set(done);
            }
            return 0;
        }
    }
    list_left(entered, sends, done, posted)
}

/// Tells of a list of `done` requests, the last that were built, of which some were refused.
#[cold]
#[inline(never)]
fn not_rung(error: PostError, done: usize, posted: Option<Out<'_, usize>>) -> c_int {
    hot_boundary(|| {
        let refused = match &error {
            PostError::List { refused, .. } => *refused as usize,
            _ => 1,
        };
        if let Some(mut posted) = posted {
            posted.set(done.saturating_sub(refused));
        }
        Err(error.into())
    })
}

/// What one of a list asks for, if that is the operation `OP` without flags on the region of the first.
#[inline(always)]
fn as_first<const OP: u32, O>(
    sends: &[qp_send],
    op: impl Fn(&qp_send) -> O + Copy,
) -> impl Fn(&qp_send) -> Option<(u64, O, usize, usize)> + Copy {
    let region = sends[0].mr;
    #[inline(always)]
    move |send| {
        // One comparison.
        let what = u64::from(send.op) | u64::from(send.flags) << 32;
        (what == u64::from(OP) && send.mr == region)
            .then(|| (send.context, op(send), send.offset, send.len))
    }
}

/// Goes on with a list of which the first `done` are posted.
#[cold]
#[inline(never)]
fn list_left(
    mut entered: With<Pair, Mr>,
    sends: &[qp_send],
    done: usize,
    posted: Option<Out<'_, usize>>,
) -> c_int {
    hot_boundary(|| list_on(entered.both().0, sends, done, posted))
}

/// The same: row after row, and one by one what is not for the short way.
pub(super) fn list_on(
    pair: &mut Pair,
    sends: &[qp_send],
    mut done: usize,
    posted: Option<Out<'_, usize>>,
) -> Result<(), Fault> {
    let accepted = |pair: &Pair| any!(&pair.qp, qp => qp.send_account().accepted);
    // Those that are built are in the books.
    let before = accepted(pair).wrapping_sub(done as u64);
    let mut result = Ok(());
    while done < sends.len() && result.is_ok() {
        result = self::sends(pair, &sends[done..], &mut done);
    }
    // Whatever the doorbell is: sends in a row may wait for each other.
    let rung = any!(&mut pair.qp, qp => qp.ring()).map_err(Fault::from);
    // What is refused when it waited is before what could not be posted after it.
    let result = rung.and(result);
    if result.is_err() {
        // What is refused is out of the books again.
        done = accepted(pair).saturating_sub(before) as usize;
    }
    if let Some(mut posted) = posted {
        posted.set(done);
    }
    result
}

/// Posts requests, at least the first, of the same region, which is looked up once; and adds their number to `done`.
fn sends(pair: &mut Pair, sends: &[qp_send], done: &mut usize) -> Result<(), Fault> {
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
        let (mut list, flags) = (qp.sends(), PostFlags::empty());
        let posted = match first.op | first.flags {
            SEND => list.post_row(mr, flags, sends, as_first::<SEND, _>(sends, |_| op::Send)),
            WRITE => list.post_row(
                mr,
                flags,
                sends,
                as_first::<WRITE, _>(sends, |send| op::Write {
                    remote: remote(send),
                }),
            ),
            READ => list.post_row(
                mr,
                flags,
                sends,
                as_first::<READ, _>(sends, |send| op::Read {
                    remote: remote(send),
                }),
            ),
            _ => 0,
        };
        drop(list);
        *done += posted;
        if posted > 0 {
            return Ok(());
        }
    }
    any::post(pair, first, &[mr.slice(first.offset, first.len)?][..])?;
    *done += 1;
    Ok(())
}
