//! Shared receive queues.

use std::time::Duration;

use libc::{EINVAL, ENOMEM};
use rdma_core_sys::rules::Transport::{self, Rc, Ud};
use rdma_core_sys::*;

use super::{
    Arm, Check, DEPTH, Done, End, Outcome, Pair, Setting, TARGET, Trouble, expect, refused, within,
};
use crate::bytes::{pattern, same};
use crate::device::{Event, Qp, QpInit, Send, Srq, Subject};

/// An event that must not come has not come after so long.
const NEVER: Duration = Duration::from_millis(50);

pub(super) fn checks() -> Vec<Check> {
    let rule = |name: &str, body: fn(&Arm) -> Outcome| Check::rule(format!("srq/{name}"), body);
    vec![
        rule("messages-take-receives-in-order", |arm| in_order(arm, Rc)),
        rule("datagrams-take-receives-in-order", |arm| in_order(arm, Ud)),
        rule("one-srq-serves-many-qps", many_qps),
        rule("limit-event-once", limit),
        rule("query-gives-what-was-set", query),
        rule("no-more-receives-than-it-holds", full),
        rule("more-entries-than-it-takes", too_many_entries),
        rule("a-limit-above-its-size", limit_above),
        rule("no-receive-of-its-own-for-a-qp-on-an-srq", own_receive),
        rule("last-wqe-event-once", last_wqe),
        rule("receives-survive-a-dying-qp", conservation),
        rule("a-late-receive-ends-the-wait", late),
    ]
}

fn shared(arm: &Arm, transport: Transport) -> Setting {
    Setting {
        shared: true,
        ..Setting::new(transport, arm.mtu())
    }
}

fn srq(end: &End) -> Result<&std::rc::Rc<Srq>, Trouble> {
    Ok(end.srq.as_ref().ok_or("an SRQ")?)
}

fn in_order(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.fresh(shared(arm, transport))?;
    let header = if transport == Ud { 40 } else { 0 };
    let parts = |at: usize| {
        let grh = (header > 0).then_some((super::GRHS, header));
        let room = Some((TARGET + at * 64, 64));
        grh.into_iter().chain(room).collect::<Vec<_>>()
    };
    for at in 0..5 {
        pair.b
            .receive(at as u64, &pair.b.side.buffer.sges(&parts(at)))?;
    }
    for at in 0..5 {
        pair.a.side.buffer.write(super::SOURCE, &pattern(at, 64));
        pair.ends_with(pair.request(IBV_WR_SEND, 64), IBV_WC_SUCCESS)?;
        let wc = pair.received()?;
        expect("the status of a receive", wc.status, IBV_WC_SUCCESS)?;
        expect("the receive that is taken", wc.wr_id, at.into())?;
        expect("its QP", wc.qp_num, pair.b.qp.number())?;
        let found = pair.b.side.buffer.read(TARGET + at as usize * 64, 64);
        same(&found, &pattern(at, 64))?;
    }
    pair.quiet()?;
    Ok(Done::Passed)
}

/// Pairs whose answering ends share the SRQ and the CQ of the first one.
fn sharing(arm: &Arm, count: usize) -> Result<Vec<Pair>, Trouble> {
    let setting = shared(arm, Rc);
    let mut pairs = vec![Pair::new(arm, setting)?];
    for _ in 1..count {
        let mut pair = Pair::new(arm, setting)?;
        let first = &pairs[0].b;
        let cqs = [&pair.b.sends, &first.receives];
        let mut init = QpInit::new(&first.side.pd, cqs, IBV_QPT_RC, pair.b.qp.init().cap);
        init.srq = first.srq.clone();
        pair.b.qp = Qp::new(&init)?;
        (pair.b.srq, pair.b.receives) = (first.srq.clone(), std::rc::Rc::clone(&first.receives));
        pairs.push(pair);
    }
    pairs.iter().try_for_each(Pair::connect)?;
    Ok(pairs)
}

fn many_qps(arm: &Arm) -> Outcome {
    let pairs = sharing(arm, 4)?;
    for at in 0..16 {
        pairs[0].make_room(at, 8)?;
    }
    for pair in pairs.iter().cycle().take(16) {
        pair.ends_with(pair.request(IBV_WR_SEND, 8), IBV_WC_SUCCESS)?;
    }
    let mut taken = vec![0; pairs.len()];
    let mut seen = vec![0; 16];
    for _ in 0..16 {
        let wc = pairs[0].received()?;
        expect("the status of a receive", wc.status, IBV_WC_SUCCESS)?;
        let by = pairs
            .iter()
            .position(|pair| pair.b.qp.number() == wc.qp_num);
        taken[by.ok_or("a receive of a QP that is none of these")?] += 1;
        *seen
            .get_mut(wc.wr_id as usize)
            .ok_or("a wr_id that was not posted")? += 1;
    }
    expect("what each QP took", taken, vec![4; 4])?;
    expect("how often each receive ended", seen, vec![1; 16])?;
    Ok(Done::Passed)
}

fn set_limit(srq: &Srq, limit: u32) -> Result<(), Trouble> {
    let mut attr = ibv_srq_attr::zeroed();
    attr.srq_limit = limit;
    Ok(srq.modify(&attr, IBV_SRQ_LIMIT)?)
}

/// Events of other kinds, such as those of connections, are none of ours.
fn event(arm: &Arm, kind: ibv_event_type, patience: Duration) -> Result<Option<Event>, Trouble> {
    loop {
        match arm.sides[1].device.event(patience)? {
            Some(event) if event.kind != kind => {}
            other => return Ok(other),
        }
    }
}

/// Fewer than the limit are left: one event, which disarms it (ibv_modify_srq(3)).
fn limit(arm: &Arm) -> Outcome {
    let pair = arm.fresh(shared(arm, Rc))?;
    let srq = srq(&pair.b)?;
    let kind = IBV_EVENT_SRQ_LIMIT_REACHED;
    for at in 0..8 {
        pair.make_room(at, 8)?;
    }
    set_limit(srq, 4)?;
    expect("the limit that is set", srq.query()?.srq_limit, 4)?;
    let send = |count| -> Result<(), Trouble> {
        for _ in 0..count {
            pair.ends_with(pair.request(IBV_WR_SEND, 8), IBV_WC_SUCCESS)?;
        }
        Ok(())
    };
    send(4)?;
    expect(
        "an event with 4 receives left",
        event(arm, kind, NEVER)?,
        None,
    )?;
    send(1)?;
    let wanted = Event {
        kind,
        subject: Subject::Srq(srq.id()),
    };
    let found = event(arm, kind, super::patience())?;
    expect("the event with 3 receives left", found, Some(wanted))?;
    expect("the limit after it", srq.query()?.srq_limit, 0)?;
    send(2)?;
    expect("a second event", event(arm, kind, NEVER)?, None)?;
    Ok(Done::Passed)
}

fn query(arm: &Arm) -> Outcome {
    let pair = arm.fresh(shared(arm, Rc))?;
    let srq = srq(&pair.b)?;
    let (given, found) = (srq.given(), srq.query()?);
    let fits = given.max_wr >= DEPTH && given.max_sge >= super::SGES;
    expect("room for what was asked for", fits, true)?;
    expect("max_wr", found.max_wr, given.max_wr)?;
    expect("max_sge", found.max_sge, given.max_sge)?;
    expect("srq_limit", found.srq_limit, 0)?;
    Ok(Done::Passed)
}

fn full(arm: &Arm) -> Outcome {
    let srq = Srq::new(&arm.sides[1].pd, 4, 1)?;
    for at in 0..srq.query()?.max_wr {
        srq.post(at.into(), &[])?;
    }
    refused("a receive too many", srq.post(99, &[]), &[ENOMEM])
}

fn too_many_entries(arm: &Arm) -> Outcome {
    let srq = Srq::new(&arm.sides[1].pd, 4, 1)?;
    let entries = vec![arm.sides[1].buffer.sge(TARGET, 1); srq.given().max_sge as usize + 1];
    refused("an entry too many", srq.post(1, &entries), &[EINVAL])
}

fn limit_above(arm: &Arm) -> Outcome {
    let srq = Srq::new(&arm.sides[1].pd, 4, 1)?;
    let mut attr = ibv_srq_attr::zeroed();
    attr.srq_limit = srq.query()?.max_wr + 1;
    refused(
        "a limit above max_wr",
        srq.modify(&attr, IBV_SRQ_LIMIT),
        &[EINVAL],
    )
}

fn own_receive(arm: &Arm) -> Outcome {
    let pair = arm.fresh(shared(arm, Rc))?;
    refused(
        "a receive of its own",
        pair.b.qp.post_recv(1, &[]),
        &[EINVAL],
    )
}

/// Exactly one, also for a QP that had taken nothing.
fn last_wqe(arm: &Arm) -> Outcome {
    let kind = IBV_EVENT_QP_LAST_WQE_REACHED;
    for taken in [0, 2] {
        let pair = arm.fresh(shared(arm, Rc))?;
        for at in 0..4 {
            pair.make_room(at, 8)?;
        }
        for _ in 0..taken {
            pair.ends_with(pair.request(IBV_WR_SEND, 8), IBV_WC_SUCCESS)?;
        }
        pair.b
            .go(&pair.b.attributes(&pair.a), &[IBV_QPS_RTS, IBV_QPS_ERR])?;
        let wanted = Event {
            kind,
            subject: Subject::Qp(pair.b.qp.number()),
        };
        let found = event(arm, kind, Duration::from_secs(2))?;
        expect("the event", found, Some(wanted))?;
        expect("a second event", event(arm, kind, NEVER)?, None)?;
    }
    Ok(Done::Passed)
}

/// 8 receives, of which one QP takes 2 and dies: another one can take the other 6.
fn conservation(arm: &Arm) -> Outcome {
    let pairs = sharing(arm, 2)?;
    let (dying, other) = (&pairs[0], &pairs[1]);
    for at in 0..8 {
        dying.make_room(at, 8)?;
    }
    for _ in 0..2 {
        dying.ends_with(dying.request(IBV_WR_SEND, 8), IBV_WC_SUCCESS)?;
    }
    (dying.b).go(&dying.b.attributes(&dying.a), &[IBV_QPS_RTS, IBV_QPS_ERR])?;
    let mut seen = Vec::new();
    for _ in 0..6 {
        other.ends_with(other.request(IBV_WR_SEND, 8), IBV_WC_SUCCESS)?;
    }
    while let Some(wc) = within(&dying.b.receives, NEVER)? {
        expect("the status of a receive", wc.status, IBV_WC_SUCCESS)?;
        seen.push(wc.wr_id);
    }
    seen.sort_unstable();
    expect("the receives that were used", seen, (0..8).collect())?;
    Ok(Done::Passed)
}

/// The SRQ is empty when the message comes: RNR NAKs until a receive is posted.
fn late(arm: &Arm) -> Outcome {
    let pair = arm.fresh(shared(arm, Rc))?;
    pair.ask(Send {
        flags: IBV_SEND_SIGNALED,
        ..Send::default()
    })?;
    let early = within(&pair.a.sends, Duration::from_millis(20))?;
    expect(
        "a completion before there is a receive",
        early.is_none(),
        true,
    )?;
    pair.make_room(4, 0)?;
    expect("the status", pair.sent()?.status, IBV_WC_SUCCESS)?;
    expect("the receive", pair.received()?.wr_id, 4)?;
    Ok(Done::Passed)
}
