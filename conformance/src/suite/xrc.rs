//! XRC: initiators, targets and the SRQs that they share.

use std::rc::Rc;

use libc::EINVAL;
use rdma_core_sys::rules::Transport::XrcIni;
use rdma_core_sys::*;

use super::{
    Arm, Check, Done, End, Outcome, Pair, SOURCE, Setting, TARGET, Trouble, expect, next, refused,
};
use crate::bytes::{pattern, same};
use crate::device::{Cq, Qp, QpInit, Srq, Xrcd};

pub(super) fn checks() -> Vec<Check> {
    let rule = |name: &str, body: fn(&Arm) -> Outcome| Check::rule(format!("xrc/{name}"), body);
    vec![
        rule("two-srqs-through-one-target", two_srqs),
        rule("two-targets-into-one-srq", two_targets),
        rule("a-target-opened-twice-ends-with-the-last", opened_twice),
        rule("a-closed-number-cannot-be-opened", open_unknown),
        rule("an-srq-that-is-not-there", |arm| wrong_srq(arm, false)),
        rule("an-srq-of-another-domain", |arm| wrong_srq(arm, true)),
        rule("write-with-imm-takes-a-receive-of-the-srq", write_with_imm),
        rule("an-initiator-takes-no-receive", initiator_receives),
        rule("a-target-takes-no-send", target_sends),
        rule("a-target-takes-no-receive", target_receives),
        rule("an-initiator-with-an-srq", initiator_with_srq),
        rule("a-target-without-a-domain", target_without_domain),
        Check::ours(
            "xrc/an-initiator-with-a-receive-queue",
            initiator_with_queue,
        ),
        Check::ours("xrc/a-target-with-a-send-queue", target_with_queue),
    ]
}

fn setting(arm: &Arm) -> Setting {
    Setting::new(XrcIni, arm.mtu())
}

/// Another SRQ of the domain of an end, with a CQ of its own and one receive.
fn more(end: &End, xrcd: &Rc<Xrcd>, wr_id: u64) -> Result<(Rc<Srq>, Rc<Cq>), Trouble> {
    let cq = Cq::new(&end.side.device, 16)?;
    let srq = Srq::xrc(&end.side.pd, xrcd, &cq, 16, 2)?;
    srq.post(wr_id, &[end.side.buffer.sge(TARGET, 64)])?;
    Ok((srq, cq))
}

fn domain(end: &End) -> Result<&Rc<Xrcd>, Trouble> {
    Ok(end.xrcd.as_ref().ok_or("an XRC domain")?)
}

fn two_srqs(arm: &Arm) -> Outcome {
    let pair = arm.fresh(setting(arm))?;
    let (srq, cq) = more(&pair.b, domain(&pair.b)?, 70)?;
    pair.exchange(1, 64)?;
    pair.a.side.buffer.write(SOURCE, &pattern(2, 64));
    let mut send = pair.address(pair.request(IBV_WR_SEND, 64))?;
    send.srq = srq.number()?;
    pair.a.qp.post_send(&send)?;
    expect("the status", pair.sent()?.status, IBV_WC_SUCCESS)?;
    let wc = next(&cq, "the second SRQ's receive")?;
    expect("the receive's status", wc.status, IBV_WC_SUCCESS)?;
    expect("the receive", wc.wr_id, 70)?;
    expect(
        "the receive's QP, the target",
        wc.qp_num,
        pair.b.qp.number(),
    )?;
    same(&pair.b.side.buffer.read(TARGET, 64), &pattern(2, 64))?;
    pair.quiet()?;
    pair.exchange(3, 64)?;
    Ok(Done::Passed)
}

/// A second pair whose target stands in the domain of the first one's.
fn second(arm: &Arm, first: &Pair) -> Result<Pair, Trouble> {
    let mut pair = Pair::new(arm, setting(arm))?;
    let xrcd = Rc::clone(domain(&first.b)?);
    let mut init = pair.b.qp.init().clone();
    init.xrcd = Some(Rc::clone(&xrcd));
    pair.b.qp = Qp::new(&init)?;
    pair.b.xrcd = Some(xrcd);
    pair.b.srq = first.b.srq.clone();
    pair.b.receives = Rc::clone(&first.b.receives);
    pair.connect()?;
    Ok(pair)
}

fn two_targets(arm: &Arm) -> Outcome {
    let one = arm.fresh(setting(arm))?;
    let two = second(arm, &one)?;
    for (at, pair) in [&one, &two, &two, &one].into_iter().enumerate() {
        one.make_room(at as u64, 64)?;
        pair.ends_with(pair.request(IBV_WR_SEND, 64), IBV_WC_SUCCESS)?;
        let wc = one.received()?;
        expect("the receive", wc.wr_id, at as u64)?;
        expect("the target that took it", wc.qp_num, pair.b.qp.number())?;
    }
    Ok(Done::Passed)
}

fn opened_twice(arm: &Arm) -> Outcome {
    let pair = arm.fresh(setting(arm))?;
    let number = pair.b.qp.number();
    let again = Qp::open(&pair.b.side.pd, domain(&pair.b)?, number)?;
    expect("its number", again.number(), number)?;
    expect("its state", again.query()?.qp_state, IBV_QPS_RTS)?;
    let Pair { a, mut b, .. } = pair;
    // The first one goes, and the target stays.
    b.qp = again;
    let pair = Pair {
        setting: setting(arm),
        a,
        b,
        ah: None,
    };
    pair.exchange(1, 64)?;
    Ok(Done::Passed)
}

fn open_unknown(arm: &Arm) -> Outcome {
    let pair = arm.fresh(setting(arm))?;
    let xrcd = Rc::clone(domain(&pair.b)?);
    let (pd, number) = (Rc::clone(&pair.b.side.pd), pair.b.qp.number());
    drop(pair);
    let opened = Qp::open(&pd, &xrcd, number).map(drop);
    refused("a target that is gone", opened, &[EINVAL, libc::ENOENT])
}

/// Invalid request: the target goes to ERR, and the initiator is told.
fn wrong_srq(arm: &Arm, exists: bool) -> Outcome {
    let pair = arm.fresh(setting(arm))?;
    let elsewhere = Xrcd::new(&pair.b.side.device)?;
    let (srq, cq) = more(&pair.b, &elsewhere, 5)?;
    let number = srq.number()?;
    drop((!exists).then_some(srq));
    let mut send = pair.request(IBV_WR_SEND, 8);
    send = pair.address(send)?;
    send.srq = number;
    pair.a.qp.post_send(&send)?;
    expect("the status", pair.sent()?.status, IBV_WC_REM_INV_REQ_ERR)?;
    pair.a.in_state(IBV_QPS_ERR)?;
    pair.b.in_state(IBV_QPS_ERR)?;
    expect("a receive that was taken", cq.poll()?.is_none(), true)?;
    Ok(Done::Passed)
}

fn write_with_imm(arm: &Arm) -> Outcome {
    let pair = arm.fresh(setting(arm))?;
    pair.make_room(6, 0)?;
    let mut send = pair.request(IBV_WR_RDMA_WRITE_WITH_IMM, 64);
    send.imm = 0xabcd_0123;
    pair.ends_with(send, IBV_WC_SUCCESS)?;
    let wc = pair.received()?;
    expect("the receive", wc.wr_id, 6)?;
    expect("its opcode", wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM)?;
    expect("its immediate data", wc.imm_data(), Some(0xabcd_0123))?;
    expect("its byte_len", wc.byte_len, 64)?;
    Ok(Done::Passed)
}

fn initiator_receives(arm: &Arm) -> Outcome {
    let pair = arm.fresh(setting(arm))?;
    refused("a receive", pair.a.qp.post_recv(1, &[]), &[EINVAL])
}

fn target_sends(arm: &Arm) -> Outcome {
    let pair = arm.fresh(setting(arm))?;
    let send = pair.address(pair.request(IBV_WR_SEND, 8))?;
    refused("a send", pair.b.qp.post_send(&send), &[EINVAL])
}

fn target_receives(arm: &Arm) -> Outcome {
    let pair = arm.fresh(setting(arm))?;
    refused("a receive", pair.b.qp.post_recv(1, &[]), &[EINVAL])
}

/// What an end of a pair is made of, changed, must not make a QP.
fn not_made(what: &str, end: &End, change: impl Fn(&mut QpInit)) -> Outcome {
    let mut init = end.qp.init().clone();
    change(&mut init);
    refused(what, Qp::new(&init).map(drop), &[EINVAL])
}

fn ends(arm: &Arm) -> Result<Pair, Trouble> {
    Pair::new(arm, setting(arm))
}

fn initiator_with_srq(arm: &Arm) -> Outcome {
    let pair = ends(arm)?;
    let srq = Srq::new(&pair.a.side.pd, 4, 1)?;
    not_made("an initiator with an SRQ", &pair.a, |init| {
        init.srq = Some(Rc::clone(&srq));
    })
}

fn target_without_domain(arm: &Arm) -> Outcome {
    let pair = ends(arm)?;
    not_made("a target without a domain", &pair.b, |init| {
        init.xrcd = None
    })
}

fn initiator_with_queue(arm: &Arm) -> Outcome {
    let pair = ends(arm)?;
    not_made("an initiator with a receive queue", &pair.a, |init| {
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (8, 1);
    })
}

fn target_with_queue(arm: &Arm) -> Outcome {
    let pair = ends(arm)?;
    not_made("a target with a send queue", &pair.b, |init| {
        (init.cap.max_send_wr, init.cap.max_send_sge) = (8, 1);
    })
}
