//! What each state accepts, and the ways between states that traffic shows.

use std::time::Duration;

use libc::EINVAL;
use rdma_core_sys::rules::{self, Transport, Work};
use rdma_core_sys::*;

use super::matrix::{TRANSPORTS, transport_name};
use super::{
    Arm, Check, Done, End, Outcome, Pair, SOURCE, Setting, Trouble, expect, next, patience, within,
};
use crate::device::{Failed, Subject};

/// What must not come has not come after so long.
const NEVER: Duration = Duration::from_millis(30);

pub(super) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    let states = [
        IBV_QPS_RESET,
        IBV_QPS_INIT,
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        IBV_QPS_SQD,
        IBV_QPS_SQE,
        IBV_QPS_ERR,
    ];
    for transport in TRANSPORTS {
        let name = transport_name(transport);
        let sqe = matches!(transport, Transport::Uc | Transport::Ud);
        for state in states {
            if state == IBV_QPS_SQE && !sqe {
                continue;
            }
            all.push(Check::rule(
                format!("states/{name}/posts-in-{state}"),
                move |arm| posts(arm, transport, state),
            ));
            if state != IBV_QPS_RESET {
                all.push(Check::rule(
                    format!("states/{name}/reset-from-{state}"),
                    move |arm| reset(arm, transport, state),
                ));
            }
        }
        let of = |what: &str, body: fn(&Arm, Transport) -> Outcome| {
            Check::rule(format!("states/{name}/{what}"), move |arm| {
                body(arm, transport)
            })
        };
        all.push(of("drains-and-goes-on", drains));
        all.push(of("err-flushes-in-order", flushes));
        all.push(Check::ours(
            format!("states/{name}/no-completion-outlives-reset"),
            move |arm| outlives(arm, transport),
        ));
        if sqe {
            all.push(of("sqe-flushes-sends-and-takes-messages", send_error));
        }
    }
    all
}

/// A pair whose asking end is in this state, and whose answering end is in RTS.
fn pair_in(arm: &Arm, transport: Transport, state: ibv_qp_state) -> Result<Pair, Trouble> {
    let pair = Pair::new(arm, Setting::new(transport, arm.mtu()))?;
    let Pair { a, b, .. } = &pair;
    b.go(&b.attributes(a), super::way_to(IBV_QPS_RTS))?;
    let attr = a.attributes(b);
    match state {
        IBV_QPS_SQD | IBV_QPS_ERR => {
            a.go(&attr, super::way_to(IBV_QPS_RTS))?;
            a.go(&attr, &[IBV_QPS_RTS, state])?;
        }
        IBV_QPS_SQE => {
            a.go(&attr, super::way_to(IBV_QPS_RTS))?;
            let mut send = pair.request(IBV_WR_SEND, 0);
            send.sges = vec![a.side.buffer.sge(super::MEMORY - 4, 8)];
            pair.ends_with(send, IBV_WC_LOC_PROT_ERR)?;
        }
        _ => a.go(&attr, super::way_to(state))?,
    }
    a.in_state(state)?;
    Ok(pair)
}

fn accepted(what: &str, result: Result<(), Failed>, wanted: bool) -> Result<bool, Trouble> {
    let errno = result.err().map(|failed| failed.errno);
    expect(what, errno, (!wanted).then_some(EINVAL))?;
    Ok(wanted)
}

/// Posts a send and a receive; what is accepted must fare as the rules say.
fn posts(arm: &Arm, transport: Transport, state: ibv_qp_state) -> Outcome {
    let pair = pair_in(arm, transport, state)?;
    let posts = rules::allowed_posts(transport, state).ok_or("a state without rules")?;
    pair.make_room(1, 8)?;
    let mut send = pair.address(pair.request(IBV_WR_SEND, 8))?;
    send.wr_id = 2;
    let sent = accepted("a send", pair.a.qp.post_send(&send), posts.post_send)?;
    let received = accepted("a receive", pair.a.qp.post_recv(3, &[]), posts.post_recv)?;
    let quiet = |cq: &crate::device::Cq| -> Result<(), Trouble> {
        let wc = within(cq, NEVER)?;
        expect(
            "a completion that must not come",
            wc.map(|wc| wc.status),
            None,
        )
    };
    if sent {
        match posts.send {
            Work::Processed => {
                expect("the send", pair.sent()?.status, IBV_WC_SUCCESS)?;
                expect("the peer's receive", pair.received()?.wr_id, 1)?;
            }
            Work::Flushed => {
                let wc = pair.sent()?;
                expect("the send", (wc.status, wc.wr_id), (IBV_WC_WR_FLUSH_ERR, 2))?;
            }
            Work::Drains | Work::Idle => quiet(&pair.a.sends)?,
        }
    }
    if received && posts.recv == Work::Flushed {
        let wc = next(&pair.a.receives, "the receive")?;
        expect(
            "the receive",
            (wc.status, wc.wr_id),
            (IBV_WC_WR_FLUSH_ERR, 3),
        )?;
    } else {
        quiet(&pair.a.receives)?;
    }
    // An XRC target has neither queue.
    Ok(if sent || received {
        Done::Passed
    } else {
        Done::Refused
    })
}

/// RESET, from any state: what was posted is gone without a word, and the pair can be connected again.
fn reset(arm: &Arm, transport: Transport, state: ibv_qp_state) -> Outcome {
    let pair = pair_in(arm, transport, state)?;
    let posts = rules::allowed_posts(transport, state).ok_or("a state without rules")?;
    if posts.post_recv && state != IBV_QPS_ERR {
        pair.a.qp.post_recv(1, &[])?;
    }
    let attr = pair.a.attributes(&pair.b);
    pair.a.go(&attr, &[state, IBV_QPS_RESET])?;
    pair.b.go(&attr, &[IBV_QPS_RTS, IBV_QPS_RESET])?;
    expect("the state", pair.a.qp.query()?.qp_state, IBV_QPS_RESET)?;
    pair.quiet()?;
    pair.connect()?;
    pair.exchange(5, 100)?;
    pair.quiet()?;
    Ok(Done::Passed)
}

/// SQD: what was begun is finished, and an event says so; what is posted waits for RTS.
fn drains(arm: &Arm, transport: Transport) -> Outcome {
    let pair = pair_in(arm, transport, IBV_QPS_RTS)?;
    for at in 0..4 {
        pair.make_room(at, 8)?;
    }
    let send = |wr_id| -> Result<(), Trouble> {
        let mut send = pair.request(IBV_WR_SEND, 8);
        send.wr_id = wr_id;
        pair.ask(send)
    };
    (0..3).try_for_each(send)?;
    let mut attr = pair.a.attributes(&pair.b);
    (attr.qp_state, attr.en_sqd_async_notify) = (IBV_QPS_SQD, 1);
    pair.a
        .qp
        .modify(&attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY)?;
    let number = pair.a.qp.number();
    loop {
        let event = pair.a.side.device.event(patience())?;
        let event = event.ok_or("no event tells that the queue is drained")?;
        if event.kind == IBV_EVENT_SQ_DRAINED && event.subject == Subject::Qp(number) {
            break;
        }
    }
    let found = pair.a.qp.query()?;
    expect(
        "state and draining",
        (found.qp_state, found.sq_draining),
        (IBV_QPS_SQD, 0),
    )?;
    for at in 0..3 {
        let wc = pair
            .a
            .sends
            .poll()?
            .ok_or("a send without a completion after the drain")?;
        expect(
            "a send before SQD",
            (wc.status, wc.wr_id),
            (IBV_WC_SUCCESS, at),
        )?;
        pair.received()?;
    }
    send(3)?;
    let early = within(&pair.a.sends, NEVER)?;
    expect(
        "a send that completes in SQD",
        early.map(|wc| wc.status),
        None,
    )?;
    pair.a.go(&attr, &[IBV_QPS_SQD, IBV_QPS_RTS])?;
    let wc = pair.sent()?;
    expect(
        "the send after SQD",
        (wc.status, wc.wr_id),
        (IBV_WC_SUCCESS, 3),
    )?;
    pair.received()?;
    Ok(Done::Passed)
}

fn flushes(arm: &Arm, transport: Transport) -> Outcome {
    let pair = pair_in(arm, transport, IBV_QPS_SQD)?;
    let attr = pair.a.attributes(&pair.b);
    let receives = transport != Transport::XrcIni;
    for at in 0..4 {
        let mut send = pair.request(IBV_WR_SEND, 8);
        // Unsignaled requests are flushed with a completion, too.
        (send.wr_id, send.flags) = (at, ibv_send_flags::empty());
        pair.ask(send)?;
        if receives {
            pair.a.qp.post_recv(10 + at, &[])?;
        }
    }
    pair.a.go(&attr, &[IBV_QPS_SQD, IBV_QPS_ERR])?;
    for at in 0..4 {
        let wc = pair.sent()?;
        expect("a send", (wc.status, wc.wr_id), (IBV_WC_WR_FLUSH_ERR, at))?;
        if receives {
            let wc = next(&pair.a.receives, "the receive")?;
            expect(
                "a receive",
                (wc.status, wc.wr_id),
                (IBV_WC_WR_FLUSH_ERR, 10 + at),
            )?;
        }
    }
    pair.quiet()?;
    Ok(Done::Passed)
}

/// Completions that nobody has polled when the QP goes to RESET are of a former life.
fn outlives(arm: &Arm, transport: Transport) -> Outcome {
    let pair = pair_in(arm, transport, IBV_QPS_RTS)?;
    pair.exchange(1, 8)?;
    pair.make_room(2, 8)?;
    pair.ask(pair.request(IBV_WR_SEND, 8))?;
    // Done by the time that the peer has it and the queue is drained; nobody polls.
    pair.received()?;
    std::thread::sleep(Duration::from_millis(5));
    let attr = pair.a.attributes(&pair.b);
    pair.a.go(&attr, &[IBV_QPS_RTS, IBV_QPS_RESET])?;
    pair.quiet()?;
    Ok(Done::Passed)
}

/// A send that fails in the node itself: SQE. Sends are flushed, messages still come in, and RTS is a move away.
fn send_error(arm: &Arm, transport: Transport) -> Outcome {
    let pair = pair_in(arm, transport, IBV_QPS_SQE)?;
    let mut send = pair.request(IBV_WR_SEND, 8);
    send.wr_id = 4;
    pair.ends_with(send, IBV_WC_WR_FLUSH_ERR)?;
    // The other way round.
    let back = Back::of(&pair)?;
    back.exchange()?;
    let attr = pair.a.attributes(&pair.b);
    pair.a.go(&attr, &[IBV_QPS_SQE, IBV_QPS_RTS])?;
    pair.exchange(6, 100)?;
    Ok(Done::Passed)
}

/// The way from the answering end to the asking one.
struct Back<'a> {
    a: &'a End,
    b: &'a End,
    to: Option<crate::device::To>,
}

impl Back<'_> {
    fn of(pair: &Pair) -> Result<Back<'_>, Trouble> {
        let (a, b) = (&pair.a, &pair.b);
        let to = match pair.setting.transport {
            Transport::Ud => Some(crate::device::To {
                ah: crate::device::Ah::new(&b.side.pd, &b.side.vector(a.side.gid))?,
                qp_num: a.qp.number(),
                qkey: super::QKEY,
            }),
            _ => None,
        };
        Ok(Back { a, b, to })
    }

    fn exchange(&self) -> Result<(), Trouble> {
        let parts = [(super::GRHS, 40), (super::TARGET, 100)];
        self.a.receive(9, &self.a.side.buffer.sges(&parts))?;
        self.b.qp.post_send(&crate::device::Send {
            flags: IBV_SEND_SIGNALED,
            sges: vec![self.b.side.buffer.sge(SOURCE, 50)],
            to: self.to.clone(),
            ..crate::device::Send::default()
        })?;
        let sent = next(&self.b.sends, "the answering end's request")?;
        expect("the answering end's request", sent.status, IBV_WC_SUCCESS)?;
        let lost = || Trouble::Lost("the message did not come".to_owned());
        let wc = within(&self.a.receives, Duration::from_millis(1500))?.ok_or_else(lost)?;
        expect(
            "a message in SQE",
            (wc.status, wc.wr_id),
            (IBV_WC_SUCCESS, 9),
        )
    }
}
