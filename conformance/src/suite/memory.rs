//! Memory regions: rights, registration anew, and their end.

use libc::EINVAL;
use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::{Arm, Check, Done, Outcome, Setting, TARGET, expect, refused};
use crate::device::{Buffer, Pd, Send};

pub(super) fn checks() -> Vec<Check> {
    let rule = |name: &str, body: fn(&Arm) -> Outcome| Check::rule(format!("memory/{name}"), body);
    vec![
        rule("remote-write-needs-local-write", |arm| {
            no_local_write(arm, IBV_ACCESS_REMOTE_WRITE)
        }),
        rule("remote-atomic-needs-local-write", |arm| {
            no_local_write(arm, IBV_ACCESS_REMOTE_ATOMIC)
        }),
        rule("receives-need-local-write", receive_needs_write),
        rule("sends-need-no-right", send_needs_nothing),
        rule("a-deregistered-key-opens-nothing", deregistered),
        rule("rereg-changes-rights-and-keeps-keys", rereg),
        rule("rereg-to-what-cannot-be", rereg_refused),
        Check::ours("memory/local-and-remote-key-differ", keys_differ),
    ]
}

fn rc(arm: &Arm) -> Setting {
    Setting::new(Transport::Rc, arm.mtu())
}

fn no_local_write(arm: &Arm, access: ibv_access_flags) -> Outcome {
    let made = Buffer::with_access(&arm.sides[0].pd, 4096, access).map(drop);
    refused("a region that only peers may write", made, &[EINVAL])
}

fn receive_needs_write(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let buffer = Buffer::with_access(&pair.b.side.pd, 4096, ibv_access_flags::empty())?;
    pair.b.receive(1, &[buffer.sge(0, 100)])?;
    pair.ends_with(pair.request(IBV_WR_SEND, 8), IBV_WC_REM_OP_ERR)?;
    expect("the receive", pair.received()?.status, IBV_WC_LOC_PROT_ERR)?;
    expect("the region", buffer.read(0, 8), vec![0; 8])?;
    Ok(Done::Passed)
}

fn send_needs_nothing(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let buffer = Buffer::with_access(&pair.a.side.pd, 4096, ibv_access_flags::empty())?;
    buffer.write(0, b"readable");
    pair.make_room(1, 8)?;
    let mut send = pair.request(IBV_WR_SEND, 0);
    send.sges = vec![buffer.sge(0, 8)];
    pair.ends_with(send, IBV_WC_SUCCESS)?;
    pair.received()?;
    expect(
        "the message",
        &pair.b.side.buffer.read(TARGET, 8)[..],
        b"readable",
    )?;
    Ok(Done::Passed)
}

fn deregistered(arm: &Arm) -> Outcome {
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let pair = arm.fresh(rc(arm))?;
        let buffer = Buffer::new(&pair.b.side.pd, 4096)?;
        let remote = (buffer.address(0), buffer.rkey());
        let ask = || Send {
            remote,
            ..pair.request(opcode, 8)
        };
        pair.ends_with(ask(), IBV_WC_SUCCESS)?;
        buffer.write(0, &[0x77; 8]);
        buffer.deregister()?;
        pair.ends_with(ask(), IBV_WC_REM_ACCESS_ERR)?;
        expect("the memory", buffer.read(0, 8), vec![0x77; 8])?;
    }
    Ok(Done::Passed)
}

fn rereg(arm: &Arm) -> Outcome {
    let pair = arm.fresh(rc(arm))?;
    let buffer = Buffer::new(&pair.b.side.pd, 4096)?;
    let keys = (buffer.lkey(), buffer.rkey());
    let ask = || Send {
        remote: (buffer.address(0), keys.1),
        ..pair.request(IBV_WR_RDMA_WRITE, 8)
    };
    pair.ends_with(ask(), IBV_WC_SUCCESS)?;
    buffer.reregister(Some(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ))?;
    expect("the keys", (buffer.lkey(), buffer.rkey()), keys)?;
    let read = Send {
        opcode: IBV_WR_RDMA_READ,
        ..ask()
    };
    pair.ends_with(read, IBV_WC_SUCCESS)?;
    pair.ends_with(ask(), IBV_WC_REM_ACCESS_ERR)?;
    Ok(Done::Passed)
}

fn rereg_refused(arm: &Arm) -> Outcome {
    let buffer = Buffer::new(&arm.sides[0].pd, 4096)?;
    let done = buffer.reregister(Some(IBV_ACCESS_REMOTE_WRITE));
    refused("rights without local write", done, &[EINVAL])
}

/// Devices may give one number twice, and then a mix-up goes unseen.
fn keys_differ(arm: &Arm) -> Outcome {
    let pd = Pd::new(&arm.sides[0].device)?;
    for _ in 0..32 {
        let buffer = Buffer::new(&pd, 64)?;
        expect(
            "a mix-up that is seen",
            buffer.lkey() != buffer.rkey(),
            true,
        )?;
    }
    Ok(Done::Passed)
}
