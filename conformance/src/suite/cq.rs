//! Completion queues: overrun, resize, extended ones.

use std::rc::Rc;
use std::time::Duration;

use libc::EINVAL;
use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::{Arm, Check, Done, End, Outcome, Pair, Setting, Trouble, expect, next, refused};
use crate::device::{Cq, Subject};

pub(super) fn checks() -> Vec<Check> {
    let rule = |name: &str, body: fn(&Arm) -> Outcome| Check::rule(format!("cq/{name}"), body);
    vec![
        rule("has-room-for-what-was-asked-for", room),
        rule("nothing-is-lost-when-full", full),
        rule("overrun-raises-an-event", overrun),
        Check::ours("cq/overrun-ends-cq-and-qps", overrun_ends),
        rule("one-for-both-queues", both),
        rule("grows-with-what-is-in-it", grows),
        rule("does-not-shrink-below-what-is-in-it", shrinks),
        rule("of-no-entry", of_none),
        rule("of-more-than-the-device-has", beyond),
        rule("extended/readers-give-what-poll-gives", readers),
        rule("extended/polled-as-a-classic-one", classic),
        rule("extended/timestamps-do-not-go-back", timestamps),
    ]
}

/// A pair whose answering end's receives complete on this CQ.
fn pair(arm: &Arm, receives: &Rc<Cq>, transport: Transport) -> Result<Pair, Trouble> {
    let setting = Setting::new(transport, arm.mtu());
    let [a, b] = &arm.sides;
    let sends = Cq::new(&b.device, 64)?;
    let b = End::on(b, setting, true, [sends, Rc::clone(receives)])?;
    let pair = Pair::of(setting, End::new(a, setting, false)?, b)?;
    pair.connect()?;
    Ok(pair)
}

/// A pair on a CQ of `depth` for receives, with so many completions in it.
fn filled(arm: &Arm, cq: &Rc<Cq>, count: u64) -> Result<Pair, Trouble> {
    let pair = pair(arm, cq, Transport::Rc)?;
    for at in 0..count {
        pair.make_room(at, 8)?;
        pair.ends_with(pair.request(IBV_WR_SEND, 8), IBV_WC_SUCCESS)?;
    }
    Ok(pair)
}

fn device(arm: &Arm) -> &Rc<crate::device::Device> {
    &arm.sides[1].device
}

/// All completions are there, in order.
fn holds(cq: &Cq, count: u64) -> Result<(), Trouble> {
    for at in 0..count {
        let wc = next(cq, "a receive")?;
        expect("a completion", (wc.status, wc.wr_id), (IBV_WC_SUCCESS, at))?;
    }
    expect("one completion more", cq.poll()?.map(|wc| wc.wr_id), None)
}

fn room(arm: &Arm) -> Outcome {
    for depth in [1, 5, 100] {
        let cq = Cq::new(device(arm), depth)?;
        expect("as much room as was asked for", cq.depth() >= depth, true)?;
    }
    Ok(Done::Passed)
}

fn full(arm: &Arm) -> Outcome {
    let cq = Cq::new(device(arm), 4)?;
    let count = cq.depth() as u64;
    let _pair = filled(arm, &cq, count)?;
    holds(&cq, count)?;
    Ok(Done::Passed)
}

/// One completion more than there is room for.
fn overran(arm: &Arm) -> Result<(Rc<Cq>, Pair), Trouble> {
    let cq = Cq::new(device(arm), 4)?;
    let count = cq.depth() as u64;
    let pair = filled(arm, &cq, count)?;
    pair.make_room(count, 8)?;
    pair.ask(pair.request(IBV_WR_SEND, 8))?;
    while let Some(event) = device(arm).event(Duration::from_secs(5))? {
        if (event.kind, event.subject) == (IBV_EVENT_CQ_ERR, Subject::Cq(cq.id())) {
            return Ok((cq, pair));
        }
    }
    Err("no IBV_EVENT_CQ_ERR".into())
}

fn overrun(arm: &Arm) -> Outcome {
    overran(arm).map(|_| Done::Passed)
}

fn overrun_ends(arm: &Arm) -> Outcome {
    let (cq, pair) = overran(arm)?;
    pair.b.in_state(IBV_QPS_ERR)?;
    let mut polls = 0;
    while let Ok(wc) = cq.poll() {
        polls += 1;
        let end = wc.is_none() || polls > cq.depth() + 1;
        expect("a poll that says nothing of the overrun", end, false)?;
    }
    Ok(Done::Passed)
}

fn both(arm: &Arm) -> Outcome {
    let side = &arm.sides[1];
    let setting = Setting::new(Transport::Rc, arm.mtu());
    let cq = Cq::new(&side.device, 64)?;
    let b = End::on(side, setting, true, [Rc::clone(&cq), Rc::clone(&cq)])?;
    let pair = Pair::of(setting, End::new(&arm.sides[0], setting, false)?, b)?;
    pair.connect()?;
    pair.exchange(1, 8)?;
    // Now one of each kind waits.
    pair.make_room(2, 8)?;
    pair.ends_with(pair.request(IBV_WR_SEND, 8), IBV_WC_SUCCESS)?;
    pair.a.receive(3, &[])?;
    pair.b.qp.post_send(&crate::device::Send {
        wr_id: 4,
        flags: IBV_SEND_SIGNALED,
        ..Default::default()
    })?;
    let mut found = [next(&cq, "either")?, next(&cq, "the other")?].map(|wc| (wc.wr_id, wc.opcode));
    found.sort_by_key(|&(wr_id, _)| wr_id);
    expect("the two", found, [(2, IBV_WC_RECV), (4, IBV_WC_SEND)])?;
    Ok(Done::Passed)
}

fn grows(arm: &Arm) -> Outcome {
    let cq = Cq::new(device(arm), 4)?;
    let pair = filled(arm, &cq, 4)?;
    cq.resize(40)?;
    expect("more room", cq.depth() >= 40, true)?;
    for at in 4..30 {
        pair.make_room(at, 8)?;
        pair.ends_with(pair.request(IBV_WR_SEND, 8), IBV_WC_SUCCESS)?;
    }
    holds(&cq, 30)?;
    Ok(Done::Passed)
}

fn shrinks(arm: &Arm) -> Outcome {
    let cq = Cq::new(device(arm), 32)?;
    let _pair = filled(arm, &cq, 6)?;
    let outcome = refused("a size below what is in it", cq.resize(2), &[EINVAL])?;
    holds(&cq, 6)?;
    Ok(outcome)
}

fn of_none(arm: &Arm) -> Outcome {
    let made = Cq::new(device(arm), 0).map(drop);
    refused("a CQ without an entry", made, &[EINVAL])
}

fn beyond(arm: &Arm) -> Outcome {
    let made = Cq::new(device(arm), arm.sides[1].attr.max_cqe + 1).map(drop);
    refused("a CQ above max_cqe", made, &[EINVAL])
}

fn extended(arm: &Arm, more: ibv_create_cq_wc_flags) -> Result<Rc<Cq>, Trouble> {
    Ok(Cq::extended(device(arm), 64, IBV_WC_STANDARD_FLAGS | more)?)
}

/// A datagram has every field that a reader can give.
fn readers(arm: &Arm) -> Outcome {
    let cq = extended(arm, ibv_create_cq_wc_flags::empty())?;
    let pair = pair(arm, &cq, Transport::Ud)?;
    expect("an empty one", cq.read_all()?.len(), 0)?;
    pair.make_room(17, 100)?;
    let mut send = pair.request(IBV_WR_SEND_WITH_IMM, 100);
    send.imm = 0x1234_5678;
    pair.ends_with(send, IBV_WC_SUCCESS)?;
    let wc = wait(&cq)?.0;
    expect("the status", wc.status, IBV_WC_SUCCESS)?;
    expect("the wr_id", wc.wr_id, 17)?;
    expect("the opcode", wc.opcode, IBV_WC_RECV)?;
    expect("byte_len", wc.byte_len, 140)?;
    expect("the immediate data", wc.imm_data(), Some(0x1234_5678))?;
    expect("the GRH flag", wc.flags().contains(IBV_WC_GRH), true)?;
    expect("the QP", wc.qp_num, pair.b.qp.number())?;
    expect("the sender", wc.src_qp, pair.a.qp.number())?;
    expect("one more", cq.read_all()?.len(), 0)?;
    Ok(Done::Passed)
}

/// The next completion of an extended CQ.
fn wait(cq: &Cq) -> Result<(ibv_wc, u64), Trouble> {
    let end = std::time::Instant::now() + Duration::from_millis(1500);
    loop {
        if let Some(first) = cq.read_all()?.into_iter().next() {
            return Ok(first);
        }
        if std::time::Instant::now() > end {
            return Err(Trouble::Lost("the message did not come".to_owned()));
        }
    }
}

fn classic(arm: &Arm) -> Outcome {
    let cq = extended(arm, ibv_create_cq_wc_flags::empty())?;
    let pair = pair(arm, &cq, Transport::Rc)?;
    pair.exchange(1, 100)?;
    Ok(Done::Passed)
}

fn timestamps(arm: &Arm) -> Outcome {
    let cq = extended(arm, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)?;
    let pair = pair(arm, &cq, Transport::Rc)?;
    let mut before = 0;
    for at in 0..5 {
        pair.make_room(at, 8)?;
        pair.ends_with(pair.request(IBV_WR_SEND, 8), IBV_WC_SUCCESS)?;
        let (wc, stamp) = wait(&cq)?;
        expect("the wr_id", wc.wr_id, at)?;
        expect("a time that is later", stamp > 0 && stamp >= before, true)?;
        before = stamp;
    }
    Ok(Done::Passed)
}
