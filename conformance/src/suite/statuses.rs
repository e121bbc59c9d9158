//! Completion statuses: which a device of this kind can produce, and the check that produces each.

use rdma_core_sys::rules::Transport::{Rc, Ud};
use rdma_core_sys::*;

use super::{Arm, Check, Done, Outcome, SOURCE, Setting, TARGET, Trouble, expect};
use crate::device::{Bind, Buffer, Window};

/// How a status comes about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The check of this name produces it.
    Check(&'static str),
    /// It needs a peer that breaks the protocol: the test of this name produces it.
    Test(&'static str),
    /// No device of this kind produces it, and why.
    Never(&'static str),
}

const RD: &str = "it belongs to RD, a transport that no verbs provider has";

/// Every completion status of verbs.
pub const STATUSES: &[(ibv_wc_status, Origin)] = &[
    (IBV_WC_SUCCESS, Origin::Check("statuses/SUCCESS")),
    (IBV_WC_LOC_LEN_ERR, Origin::Check("statuses/LOC_LEN_ERR")),
    (
        IBV_WC_LOC_QP_OP_ERR,
        Origin::Check("statuses/LOC_QP_OP_ERR"),
    ),
    (IBV_WC_LOC_EEC_OP_ERR, Origin::Never(RD)),
    (IBV_WC_LOC_PROT_ERR, Origin::Check("statuses/LOC_PROT_ERR")),
    (IBV_WC_WR_FLUSH_ERR, Origin::Check("statuses/WR_FLUSH_ERR")),
    (IBV_WC_MW_BIND_ERR, Origin::Check("statuses/MW_BIND_ERR")),
    (
        IBV_WC_BAD_RESP_ERR,
        Origin::Test("rdma-soft/tests/engine/statuses.rs"),
    ),
    (
        IBV_WC_LOC_ACCESS_ERR,
        Origin::Never(
            "a WRITE_WITH_IMM that may not write is refused before it takes a receive, so no receive ends with it",
        ),
    ),
    (
        IBV_WC_REM_INV_REQ_ERR,
        Origin::Check("statuses/REM_INV_REQ_ERR"),
    ),
    (
        IBV_WC_REM_ACCESS_ERR,
        Origin::Check("statuses/REM_ACCESS_ERR"),
    ),
    (IBV_WC_REM_OP_ERR, Origin::Check("statuses/REM_OP_ERR")),
    (
        IBV_WC_RETRY_EXC_ERR,
        Origin::Check("statuses/RETRY_EXC_ERR"),
    ),
    (
        IBV_WC_RNR_RETRY_EXC_ERR,
        Origin::Check("statuses/RNR_RETRY_EXC_ERR"),
    ),
    (IBV_WC_LOC_RDD_VIOL_ERR, Origin::Never(RD)),
    (IBV_WC_REM_INV_RD_REQ_ERR, Origin::Never(RD)),
    (
        IBV_WC_REM_ABORT_ERR,
        Origin::Never("no operation of RC, UC, UD or XRC is aborted by the peer"),
    ),
    (IBV_WC_INV_EECN_ERR, Origin::Never(RD)),
    (IBV_WC_INV_EEC_STATE_ERR, Origin::Never(RD)),
    (
        IBV_WC_FATAL_ERR,
        Origin::Never(
            "a device that fails flushes its queues and says so by IBV_EVENT_DEVICE_FATAL",
        ),
    ),
    (
        IBV_WC_RESP_TIMEOUT_ERR,
        Origin::Never(
            "a response that does not come is asked for again, and ends with RETRY_EXC_ERR",
        ),
    ),
    (
        IBV_WC_GENERAL_ERR,
        Origin::Never("every error of this device has a status of its own"),
    ),
    (
        IBV_WC_TM_ERR,
        Origin::Never("the device has no tag matching"),
    ),
    (
        IBV_WC_TM_RNDV_INCOMPLETE,
        Origin::Never("the device has no tag matching"),
    ),
];

pub(super) fn checks() -> Vec<Check> {
    let of = |name: &str, body: fn(&Arm) -> Outcome| Check::rule(format!("statuses/{name}"), body);
    vec![
        of("SUCCESS", success),
        of("LOC_LEN_ERR", too_long_for_the_receive),
        of("LOC_LEN_ERR/UD", too_long_for_a_datagram),
        of("LOC_QP_OP_ERR", invalidates_an_unknown_key),
        of("LOC_PROT_ERR", unknown_local_key),
        of("LOC_PROT_ERR/beyond-the-region", beyond_the_region),
        of("LOC_PROT_ERR/of-another-domain", region_of_another_domain),
        of("WR_FLUSH_ERR", flushed),
        of("MW_BIND_ERR", bind_without_the_right),
        of("REM_INV_REQ_ERR", too_long_seen_by_the_sender),
        of("REM_INV_REQ_ERR/the-QP-does-not-allow-it", access_of_the_qp),
        of("REM_INV_REQ_ERR/atomic-not-aligned", atomic_not_aligned),
        of("REM_ACCESS_ERR", unknown_remote_key),
        of("REM_ACCESS_ERR/beyond-the-region", beyond_the_remote_region),
        of(
            "REM_ACCESS_ERR/the-region-does-not-allow-it",
            access_of_the_region,
        ),
        of(
            "REM_ACCESS_ERR/of-another-domain",
            remote_region_of_another_domain,
        ),
        of("REM_OP_ERR", receive_of_a_bad_key),
        of("RETRY_EXC_ERR", nobody_answers),
        of("RNR_RETRY_EXC_ERR", no_receive),
    ]
}

fn rc(arm: &Arm) -> Setting {
    Setting::new(Rc, arm.mtu())
}

fn success(arm: &Arm) -> Outcome {
    arm.fresh(rc(arm))?.exchange(1, 100)?;
    Ok(Done::Passed)
}

/// What a failed request leaves behind: both ends in ERR, where the peer saw the error too.
fn broken(pair: &super::Pair, both: bool) -> Outcome {
    pair.a.in_state(IBV_QPS_ERR)?;
    if both {
        pair.b.in_state(IBV_QPS_ERR)?;
    }
    Ok(Done::Passed)
}

fn too_long_for_the_receive(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    pair.make_room(5, 99)?;
    pair.ask(pair.request(IBV_WR_SEND, 100))?;
    let wc = pair.received()?;
    expect("the receive's status", wc.status, IBV_WC_LOC_LEN_ERR)?;
    expect("the receive's wr_id", wc.wr_id, 5)?;
    Ok(Done::Passed)
}

/// The receive ends with an error, and the QP goes on.
fn too_long_for_a_datagram(arm: &Arm) -> Outcome {
    let pair = arm.fresh(Setting::new(Ud, arm.mtu()))?;
    pair.make_room(5, 99)?;
    pair.ends_with(pair.request(IBV_WR_SEND, 100), IBV_WC_SUCCESS)?;
    let wc = pair.received()?;
    expect("the receive's status", wc.status, IBV_WC_LOC_LEN_ERR)?;
    expect("the receive's wr_id", wc.wr_id, 5)?;
    pair.b.in_state(IBV_QPS_RTS)?;
    pair.exchange(6, 100)?;
    Ok(Done::Passed)
}

fn invalidates_an_unknown_key(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let mut send = pair.request(IBV_WR_LOCAL_INV, 0);
    send.invalidate = 0x5eed_0100;
    pair.ends_with(send, IBV_WC_LOC_QP_OP_ERR)?;
    broken(&pair, false)
}

fn unknown_local_key(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let mut send = pair.request(IBV_WR_SEND, 100);
    send.sges[0].lkey ^= 0x5a5a_5a00;
    pair.ends_with(send, IBV_WC_LOC_PROT_ERR)?;
    broken(&pair, false)
}

fn beyond_the_region(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let mut send = pair.request(IBV_WR_SEND, 0);
    send.sges = vec![pair.a.side.buffer.sge(super::MEMORY - 50, 51)];
    pair.ends_with(send, IBV_WC_LOC_PROT_ERR)?;
    broken(&pair, false)
}

fn region_of_another_domain(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let pd = crate::device::Pd::new(&pair.a.side.device)?;
    let other = Buffer::new(&pd, 4096)?;
    let mut send = pair.request(IBV_WR_SEND, 0);
    send.sges = vec![other.sge(0, 100)];
    pair.ends_with(send, IBV_WC_LOC_PROT_ERR)?;
    broken(&pair, false)
}

fn flushed(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    pair.b.receive(3, &[])?;
    let attr = pair.b.attributes(&pair.a);
    pair.b.go(&attr, &[IBV_QPS_RTS, IBV_QPS_ERR])?;
    let wc = pair.received()?;
    expect(
        "the status of a receive in ERR",
        wc.status,
        IBV_WC_WR_FLUSH_ERR,
    )?;
    expect("its wr_id", wc.wr_id, 3)?;
    pair.a.go(&attr, &[IBV_QPS_RTS, IBV_QPS_ERR])?;
    pair.ends_with(pair.request(IBV_WR_SEND, 1), IBV_WC_WR_FLUSH_ERR)?;
    broken(&pair, true)
}

fn bind_without_the_right(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let side = &pair.a.side;
    let buffer = Buffer::new(&side.pd, 4096)?;
    let window = Window::new(&side.pd, IBV_MW_TYPE_2)?;
    let mut send = pair.request(IBV_WR_BIND_MW, 0);
    send.bind = Some(Bind {
        rkey: ops::ibv_inc_rkey(window.rkey()),
        window,
        buffer,
        offset: 0,
        len: 100,
        access: IBV_ACCESS_REMOTE_WRITE,
    });
    pair.ends_with(send, IBV_WC_MW_BIND_ERR)?;
    broken(&pair, false)
}

fn too_long_seen_by_the_sender(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    pair.make_room(5, 99)?;
    pair.ends_with(pair.request(IBV_WR_SEND, 100), IBV_WC_REM_INV_REQ_ERR)?;
    broken(&pair, true)
}

fn access_of_the_qp(arm: &Arm) -> Outcome {
    for (opcode, len, right) in [
        (IBV_WR_RDMA_WRITE, 100, IBV_ACCESS_REMOTE_WRITE),
        (IBV_WR_RDMA_READ, 100, IBV_ACCESS_REMOTE_READ),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_ACCESS_REMOTE_ATOMIC),
    ] {
        let mut setting = rc(arm);
        setting.access -= right;
        let pair = arm.fresh(setting)?;
        pair.b.side.buffer.write(TARGET, &[0xee; 100]);
        pair.ends_with(pair.request(opcode, len), IBV_WC_REM_INV_REQ_ERR)?;
        expect(
            "memory",
            pair.b.side.buffer.read(TARGET, 100),
            vec![0xee; 100],
        )?;
    }
    Ok(Done::Passed)
}

fn atomic_not_aligned(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let mut send = pair.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
    send.remote.0 += 4;
    send.operands = (1, 0);
    match pair.a.qp.post_send(&send) {
        // rdma-core's provider for rxe looks at it during the post.
        Err(failed) if failed.errno == libc::EINVAL && !arm.strict => return Ok(Done::Refused),
        other => other?,
    }
    expect("the status", pair.sent()?.status, IBV_WC_REM_INV_REQ_ERR)?;
    broken(&pair, true)
}

fn denied(arm: &Arm, change: impl Fn(&mut crate::device::Send)) -> Outcome {
    for (opcode, len) in [
        (IBV_WR_RDMA_WRITE, 100),
        (IBV_WR_RDMA_READ, 100),
        (IBV_WR_ATOMIC_CMP_AND_SWP, 8),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
    ] {
        let pair = arm.fresh(rc(arm))?;
        pair.b.side.buffer.write(TARGET, &[0xee; 100]);
        pair.a.side.buffer.write(SOURCE, &[0x11; 100]);
        let mut send = pair.request(opcode, len);
        change(&mut send);
        pair.ends_with(send, IBV_WC_REM_ACCESS_ERR)?;
        expect(
            "memory",
            pair.b.side.buffer.read(TARGET, 100),
            vec![0xee; 100],
        )?;
        broken(&pair, true)?;
    }
    Ok(Done::Passed)
}

fn unknown_remote_key(arm: &Arm) -> Outcome {
    denied(arm, |send| send.remote.1 ^= 0x5a5a_5a00)
}

fn beyond_the_remote_region(arm: &Arm) -> Outcome {
    let end = arm.sides[1].buffer.address(super::MEMORY);
    denied(arm, |send| send.remote.0 = end)
}

/// A region with no right for peers.
fn access_of_the_region(arm: &Arm) -> Outcome {
    let side = &arm.sides[1];
    let buffer = Buffer::with_access(&side.pd, 4096, IBV_ACCESS_LOCAL_WRITE)?;
    let remote = (buffer.address(0), buffer.rkey());
    denied(arm, |send| send.remote = remote)
}

fn remote_region_of_another_domain(arm: &Arm) -> Outcome {
    let pd = crate::device::Pd::new(&arm.sides[1].device)?;
    let buffer = Buffer::new(&pd, 4096)?;
    let remote = (buffer.address(0), buffer.rkey());
    denied(arm, |send| send.remote = remote)
}

fn receive_of_a_bad_key(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let mut sge = pair.b.side.buffer.sge(TARGET, 100);
    sge.lkey ^= 0x5a5a_5a00;
    pair.b.receive(8, &[sge])?;
    pair.ends_with(pair.request(IBV_WR_SEND, 100), IBV_WC_REM_OP_ERR)?;
    let wc = pair.received()?;
    expect("the receive's status", wc.status, IBV_WC_LOC_PROT_ERR)?;
    expect("the receive's wr_id", wc.wr_id, 8)?;
    broken(&pair, true)
}

fn nobody_answers(arm: &Arm) -> Outcome {
    let pair = arm.fresh(Setting {
        // About 17 ms, three times.
        timeout: 12,
        retry_cnt: 2,
        answers_in: IBV_QPS_INIT,
        ..rc(arm)
    })?;
    pair.ends_with(pair.request(IBV_WR_SEND, 100), IBV_WC_RETRY_EXC_ERR)?;
    pair.b.in_state(IBV_QPS_INIT)?;
    broken(&pair, false)
}

fn no_receive(arm: &Arm) -> Outcome {
    let pair = arm.fresh(Setting {
        rnr_retry: 0,
        ..rc(arm)
    })?;
    pair.ends_with(pair.request(IBV_WR_SEND, 100), IBV_WC_RNR_RETRY_EXC_ERR)?;
    pair.b.in_state(IBV_QPS_RTS)?;
    match pair.b.receives.poll()? {
        None => broken(&pair, false),
        Some(wc) => Err(Trouble::Wrong(format!("a receive ended: {:?}", wc.status))),
    }
}
