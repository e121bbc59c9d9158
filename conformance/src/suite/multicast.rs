//! Multicast groups.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use libc::EINVAL;
use rdma_core_sys::rules::Transport::{Rc, Ud};
use rdma_core_sys::*;

use super::{
    Arm, Check, Done, End, GRHS, Outcome, Pair, QKEY, SOURCE, Setting, TARGET, Trouble, expect,
    refused, way_to, within,
};
use crate::bytes::{pattern, same};
use crate::device::{Ah, Send, To};

/// Every QP that is attached to a group.
const ALL: u32 = 0xff_ffff;

pub(super) fn checks() -> Vec<Check> {
    let rule =
        |name: &str, body: fn(&Arm) -> Outcome| Check::rule(format!("multicast/{name}"), body);
    vec![
        rule("one-copy-for-each-member", members),
        rule("none-after-detach", detached),
        rule("none-for-another-key", other_key),
        rule("a-unicast-address-is-no-group", unicast),
        rule("only-datagrams-have-groups", connected),
        rule("detach-from-a-group-it-is-not-in", not_attached),
    ]
}

/// A group of the family of the arm's addresses.
fn group(arm: &Arm, number: u8) -> ibv_gid {
    match arm.sides[0].is_v4() {
        true => Ipv4Addr::new(239, 77, 1, number).to_ipv6_mapped().into(),
        false => Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x77, number.into()).into(),
    }
}

/// A datagram QP in RTS on one side of the arm.
fn member(arm: &Arm, side: usize) -> Result<End, Trouble> {
    let end = End::new(&arm.sides[side], Setting::new(Ud, arm.mtu()), false)?;
    end.go(&end.attributes(&end), way_to(IBV_QPS_RTS))?;
    Ok(end)
}

/// A QP's place in a group, which it leaves when this goes.
struct Joined<'a> {
    end: &'a End,
    group: ibv_gid,
}

impl Joined<'_> {
    fn new(end: &End, group: ibv_gid) -> Result<Joined<'_>, Trouble> {
        end.qp.attach(&group)?;
        Ok(Joined { end, group })
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        // A QP that cannot leave cannot be destroyed either, and that is counted.
        let _ = self.end.qp.detach(&self.group);
    }
}

fn receive(end: &End, at: usize) -> Result<(), Trouble> {
    let (grh, target) = (GRHS + 64 * at, TARGET + 256 * at);
    let parts = [(grh, 40), (target, 200)];
    end.receive(at as u64, &end.side.buffer.sges(&parts))
}

/// Sends a datagram of 100 bytes to a group.
fn send(end: &End, group: ibv_gid, number: u32, qkey: u32) -> Result<(), Trouble> {
    let buffer = &end.side.buffer;
    buffer.write(SOURCE, &pattern(number, 100));
    // It stays until the request is done: a device may look at it any time before.
    let ah = Ah::new(&end.side.pd, &end.side.vector(group))?;
    end.qp.post_send(&Send {
        flags: IBV_SEND_SIGNALED,
        sges: vec![buffer.sge(SOURCE, 100)],
        to: Some(To {
            ah: ah.clone(),
            qp_num: ALL,
            qkey,
        }),
        ..Send::default()
    })?;
    let wc = super::next(&end.sends, "the datagram")?;
    expect("the status of the datagram", wc.status, IBV_WC_SUCCESS)
}

/// A copy has come to a member, and no second one.
fn came(end: &End, from: &End, at: usize, number: u32) -> Result<(), Trouble> {
    let wc = within(&end.receives, Duration::from_millis(1500))?;
    let wc = wc.ok_or_else(|| Trouble::Lost(format!("member {at} got no copy")))?;
    expect("the status of a copy", wc.status, IBV_WC_SUCCESS)?;
    expect("the receive of a copy", wc.wr_id, at as u64)?;
    expect("byte_len of a copy", wc.byte_len, 140)?;
    expect("the sender of a copy", wc.src_qp, from.qp.number())?;
    let found = end.side.buffer.read(TARGET + 256 * at, 100);
    Ok(same(&found, &pattern(number, 100))?)
}

fn nothing(end: &End, who: &str) -> Result<(), Trouble> {
    match within(&end.receives, Duration::from_millis(50))? {
        None => Ok(()),
        Some(_) => Err(format!("{who} got a copy").into()),
    }
}

/// Members on both sides, two on the second, and one QP that is none; the sender is a member, too.
fn members(arm: &Arm) -> Outcome {
    let group = group(arm, 1);
    let ends = [member(arm, 0)?, member(arm, 1)?, member(arm, 1)?];
    let stranger = member(arm, 1)?;
    let mut joined = Vec::new();
    for (at, end) in ends.iter().enumerate() {
        joined.push(Joined::new(end, group)?);
        receive(end, 2 * at)?;
        // Room for a copy too many.
        receive(end, 2 * at + 1)?;
    }
    receive(&stranger, 8)?;
    send(&ends[0], group, 5, QKEY)?;
    for (at, end) in ends.iter().enumerate() {
        came(end, &ends[0], 2 * at, 5)?;
    }
    for end in &ends {
        nothing(end, "a member that has one")?;
    }
    nothing(&stranger, "a QP that is not attached")?;
    Ok(Done::Passed)
}

fn detached(arm: &Arm) -> Outcome {
    let group = group(arm, 2);
    let (from, stays, goes) = (member(arm, 0)?, member(arm, 1)?, member(arm, 1)?);
    let _joined = Joined::new(&stays, group)?;
    goes.qp.attach(&group)?;
    receive(&stays, 0)?;
    receive(&goes, 1)?;
    goes.qp.detach(&group)?;
    send(&from, group, 6, QKEY)?;
    came(&stays, &from, 0, 6)?;
    nothing(&goes, "a QP that was detached")?;
    Ok(Done::Passed)
}

fn other_key(arm: &Arm) -> Outcome {
    let group = group(arm, 3);
    let (from, to) = (member(arm, 0)?, member(arm, 1)?);
    let _joined = Joined::new(&to, group)?;
    receive(&to, 0)?;
    send(&from, group, 7, QKEY + 1)?;
    nothing(&to, "a QP of another Q_Key")?;
    send(&from, group, 8, QKEY)?;
    came(&to, &from, 0, 8)?;
    Ok(Done::Passed)
}

fn unicast(arm: &Arm) -> Outcome {
    let end = member(arm, 0)?;
    refused(
        "a host's address as a group",
        end.qp.attach(&arm.sides[1].gid),
        &[EINVAL],
    )
}

fn connected(arm: &Arm) -> Outcome {
    let pair = Pair::new(arm, Setting::new(Rc, arm.mtu()))?;
    refused(
        "an RC QP in a group",
        pair.a.qp.attach(&group(arm, 4)),
        &[EINVAL],
    )
}

fn not_attached(arm: &Arm) -> Outcome {
    let end = member(arm, 0)?;
    refused(
        "leaving a group that it is not in",
        end.qp.detach(&group(arm, 5)),
        &[EINVAL],
    )
}
