//! Asynchronous events, and events of completion channels.

use std::rc::Rc;
use std::time::Duration;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::{
    Arm, Check, DEPTH, Done, End, Outcome, Pair, Setting, Trouble, expect, next, patience,
};
use crate::device::{Channel, Cq, Subject};

/// What must not come has not come after so long.
const NEVER: Duration = Duration::from_millis(50);

pub(super) fn checks() -> Vec<Check> {
    let rule = |name: &str, body: fn(&Arm) -> Outcome| Check::rule(name, body);
    vec![
        rule("events/communication-established", established),
        rule("events/access-error", access_error),
        rule("events/invalid-request", invalid_request),
        rule("events/none-without-a-reason", quiet_life),
        rule("channels/a-completion-after-arming", after_arming),
        rule("channels/a-completion-before-arming", before_arming),
        rule("channels/one-event-for-one-arming", one_event),
        rule("channels/solicited-only", solicited),
        rule("channels/errors-are-solicited", errors),
        rule("channels/two-cqs-on-one", two_cqs),
    ]
}

fn rc(arm: &Arm) -> Setting {
    Setting::new(Transport::Rc, arm.mtu())
}

/// Waits for an event of an end's QP; gives what came before it, of the same QP.
fn event(end: &End, kind: ibv_event_type) -> Result<Vec<ibv_event_type>, Trouble> {
    let mut before = Vec::new();
    while let Some(event) = end.side.device.event(Duration::from_secs(2))? {
        if event.subject == Subject::Qp(end.qp.number()) {
            if event.kind == kind {
                return Ok(before);
            }
            before.push(event.kind);
        }
    }
    Err(format!("no {kind:?}, but {before:?}").into())
}

/// The first packet in RTR.
fn established(arm: &Arm) -> Outcome {
    let pair = arm.fresh(Setting {
        answers_in: IBV_QPS_RTR,
        ..rc(arm)
    })?;
    pair.exchange(1, 8)?;
    event(&pair.b, IBV_EVENT_COMM_EST)?;
    pair.b
        .go(&pair.b.attributes(&pair.a), &[IBV_QPS_RTR, IBV_QPS_RTS])?;
    pair.exchange(2, 8)?;
    Ok(Done::Passed)
}

fn access_error(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let mut send = pair.request(IBV_WR_RDMA_WRITE, 8);
    send.remote.1 ^= 0x5a5a_5a00;
    pair.ends_with(send, IBV_WC_REM_ACCESS_ERR)?;
    event(&pair.b, IBV_EVENT_QP_ACCESS_ERR)?;
    Ok(Done::Passed)
}

fn invalid_request(arm: &Arm) -> Outcome {
    let pair = arm.fresh(Setting {
        access: ibv_access_flags::empty(),
        ..rc(arm)
    })?;
    pair.ends_with(pair.request(IBV_WR_RDMA_WRITE, 8), IBV_WC_REM_INV_REQ_ERR)?;
    event(&pair.b, IBV_EVENT_QP_REQ_ERR)?;
    Ok(Done::Passed)
}

fn quiet_life(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    pair.exchange(1, 8)?;
    let numbers = [pair.a.qp.number(), pair.b.qp.number()];
    for end in [&pair.a, &pair.b] {
        while let Some(event) = end.side.device.event(NEVER)? {
            let own = numbers.iter().any(|&n| event.subject == Subject::Qp(n));
            if own && event.kind != IBV_EVENT_COMM_EST {
                return Err(format!("{:?} without a reason", event.kind).into());
            }
        }
    }
    Ok(Done::Passed)
}

/// A pair whose answering end's receives complete on a CQ with a channel.
fn heard(arm: &Arm) -> Result<(Pair, Rc<Channel>), Trouble> {
    let setting = rc(arm);
    let [a, b] = &arm.sides;
    let channel = Channel::new(&b.device)?;
    let depth = 4 * DEPTH.cast_signed();
    let cqs = [
        Cq::new(&b.device, depth)?,
        Cq::on(&b.device, depth, Some(&channel))?,
    ];
    let b = End::on(b, setting, true, cqs)?;
    let pair = Pair::of(setting, End::new(a, setting, false)?, b)?;
    pair.connect()?;
    Ok((pair, channel))
}

/// Sends a message that is not polled at the answering end. On RC it has its completion there before the sender has one.
fn send(pair: &Pair, flags: ibv_send_flags) -> Result<(), Trouble> {
    pair.make_room(1, 8)?;
    let mut send = pair.request(IBV_WR_SEND, 8);
    send.flags |= flags;
    pair.ends_with(send, IBV_WC_SUCCESS)?;
    Ok(())
}

fn none(channel: &Channel, what: &str) -> Result<(), Trouble> {
    expect(what, channel.next(NEVER)?, None)
}

fn one(channel: &Channel, cq: &Cq, what: &str) -> Result<(), Trouble> {
    expect(what, channel.next(patience())?, Some(cq.id()))
}

const PLAIN: ibv_send_flags = ibv_send_flags::empty();

fn after_arming(arm: &Arm) -> Outcome {
    let (pair, channel) = heard(arm)?;
    send(&pair, PLAIN)?;
    none(&channel, "an event of a CQ that was never armed")?;
    next(&pair.b.receives, "the receive")?;
    pair.b.receives.arm(false)?;
    none(&channel, "an event of an empty CQ")?;
    send(&pair, PLAIN)?;
    one(&channel, &pair.b.receives, "the event")?;
    next(&pair.b.receives, "the receive")?;
    Ok(Done::Passed)
}

/// What is there when the CQ is armed raises nothing, what comes then does: poll once more after arming.
fn before_arming(arm: &Arm) -> Outcome {
    let (pair, channel) = heard(arm)?;
    send(&pair, PLAIN)?;
    pair.b.receives.arm(false)?;
    none(&channel, "an event of what was there before")?;
    send(&pair, PLAIN)?;
    one(&channel, &pair.b.receives, "the event of what came then")?;
    Ok(Done::Passed)
}

fn one_event(arm: &Arm) -> Outcome {
    let (pair, channel) = heard(arm)?;
    pair.b.receives.arm(false)?;
    for _ in 0..3 {
        send(&pair, PLAIN)?;
    }
    one(&channel, &pair.b.receives, "the event")?;
    none(&channel, "a second event")?;
    for _ in 0..3 {
        next(&pair.b.receives, "the receive")?;
    }
    Ok(Done::Passed)
}

fn solicited(arm: &Arm) -> Outcome {
    let (pair, channel) = heard(arm)?;
    pair.b.receives.arm(true)?;
    send(&pair, PLAIN)?;
    none(&channel, "an event of a message that is not solicited")?;
    send(&pair, IBV_SEND_SOLICITED)?;
    one(&channel, &pair.b.receives, "the event of one that is")?;
    Ok(Done::Passed)
}

fn errors(arm: &Arm) -> Outcome {
    let (pair, channel) = heard(arm)?;
    pair.b.receives.arm(true)?;
    pair.make_room(1, 8)?;
    pair.b
        .go(&pair.b.attributes(&pair.a), &[IBV_QPS_RTS, IBV_QPS_ERR])?;
    one(&channel, &pair.b.receives, "the event of a flush")?;
    Ok(Done::Passed)
}

fn two_cqs(arm: &Arm) -> Outcome {
    let (pair, channel) = heard(arm)?;
    let other = Cq::on(&pair.b.side.device, 16, Some(&channel))?;
    other.arm(false)?;
    pair.b.receives.arm(false)?;
    send(&pair, PLAIN)?;
    one(&channel, &pair.b.receives, "the CQ of the event")?;
    none(&channel, "an event of the other CQ")?;
    Ok(Done::Passed)
}
