//! Posting by `ibv_wr_*`.

use libc::EINVAL;
use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::matrix::{TRANSPORTS, transport_name};
use super::{Arm, Check, Done, INLINE, Outcome, SOURCE, Setting, TARGET, expect, refused};
use crate::bytes::{pattern, same, word};
use crate::device::{Bind, Send, Window};

pub(super) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    for transport in TRANSPORTS {
        let name = transport_name(transport);
        let of = |what: &str, body: fn(&Arm, Transport) -> Outcome| {
            Check::rule(format!("wr/{name}/{what}"), move |arm| body(arm, transport))
        };
        all.push(of("messages", messages));
        all.push(of("inline-data", inline));
        all.push(of("a-batch-in-order", batch));
        all.push(of("an-aborted-batch-leaves-nothing", aborted));
        all.push(of("a-bad-request-posts-nothing-of-its-batch", bad));
        if transport.supports(IBV_WR_RDMA_WRITE) {
            all.push(of("writes", writes));
        }
        if transport.supports(IBV_WR_RDMA_READ) {
            all.push(of("read-and-atomics", fetches));
            all.push(of("windows", windows));
        }
    }
    all
}

fn setting(arm: &Arm, transport: Transport) -> Setting {
    Setting {
        extended: true,
        ..Setting::new(transport, arm.mtu())
    }
}

fn messages(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(setting(arm, transport))?;
    pair.exchange(1, 0)?;
    pair.exchange(2, 100)?;
    let a = &pair.a.side.buffer;
    a.write(SOURCE, &pattern(3, 60));
    pair.make_room(3, 60)?;
    let mut send = pair.request(IBV_WR_SEND_WITH_IMM, 0);
    send.sges = a.sges(&[(SOURCE, 25), (SOURCE + 25, 0), (SOURCE + 25, 35)]);
    send.imm = 0x0102_0304;
    pair.ends_with(send, IBV_WC_SUCCESS)?;
    let wc = pair.received()?;
    expect("the immediate data", wc.imm_data(), Some(0x0102_0304))?;
    same(&pair.b.side.buffer.read(TARGET, 60), &pattern(3, 60))?;
    pair.quiet()?;
    Ok(Done::Passed)
}

fn inline(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(setting(arm, transport))?;
    let data = pattern(4, INLINE as usize);
    let several = data.chunks(20).map(<[u8]>::to_vec).collect();
    for pieces in [vec![data.clone()], several, vec![]] {
        let len: usize = pieces.iter().map(Vec::len).sum();
        pair.make_room(4, INLINE as usize)?;
        let mut send = pair.request(IBV_WR_SEND, 0);
        send.inline = Some(pieces);
        pair.ends_with(send, IBV_WC_SUCCESS)?;
        let wc = pair.received()?;
        let header = if transport == Transport::Ud { 40 } else { 0 };
        expect("byte_len", wc.byte_len as usize, len + header)?;
        same(&pair.b.side.buffer.read(TARGET, len), &data[..len])?;
    }
    Ok(Done::Passed)
}

fn batch(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(setting(arm, transport))?;
    let mut sends = Vec::new();
    for at in 0..5 {
        pair.make_room(at, 8)?;
        let mut send = pair.address(pair.request(IBV_WR_SEND, 8))?;
        send.wr_id = at;
        sends.push(send);
    }
    pair.a.qp.post_extended(&sends)?;
    for at in 0..5 {
        let wc = pair.sent()?;
        expect("a send", (wc.status, wc.wr_id), (IBV_WC_SUCCESS, at))?;
        expect("its receive", pair.received()?.wr_id, at)?;
    }
    pair.quiet()?;
    Ok(Done::Passed)
}

fn aborted(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(setting(arm, transport))?;
    let send = pair.address(pair.request(IBV_WR_SEND, 8))?;
    pair.a.qp.abort_extended(&[send.clone(), send])?;
    pair.exchange(6, 8)?;
    pair.quiet()?;
    Ok(Done::Passed)
}

fn bad(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(setting(arm, transport))?;
    let good = pair.address(pair.request(IBV_WR_SEND, 8))?;
    let most = pair.a.qp.cap().max_inline_data as usize;
    let mut bad = good.clone();
    bad.inline = Some(vec![vec![0; most + 1]]);
    let posted = pair.a.qp.post_extended(&[good, bad]);
    let outcome = refused(
        "a batch with too much inline data",
        posted,
        // The manual page names none; rxe's provider takes the last one.
        // The manual page names none; rxe's provider takes the last one.
        &[EINVAL, libc::ENOMEM, libc::ENOSPC],
    )?;
    pair.exchange(7, 8)?;
    pair.quiet()?;
    Ok(outcome)
}

fn writes(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(setting(arm, transport))?;
    for (opcode, number) in [(IBV_WR_RDMA_WRITE, 8), (IBV_WR_RDMA_WRITE_WITH_IMM, 9)] {
        let data = pattern(number, 500);
        pair.a.side.buffer.write(SOURCE, &data);
        pair.b.side.buffer.write(TARGET, &[0; 500]);
        pair.make_room(1, 0)?;
        let mut send = pair.request(opcode, 500);
        send.imm = number;
        pair.ends_with(send, IBV_WC_SUCCESS)?;
        if opcode == IBV_WR_RDMA_WRITE {
            // Something behind it tells that it came.
            pair.ends_with(pair.request(IBV_WR_SEND, 0), IBV_WC_SUCCESS)?;
        }
        let wc = pair.received()?;
        let imm = (opcode == IBV_WR_RDMA_WRITE_WITH_IMM).then_some(number);
        expect("the immediate data", wc.imm_data(), imm)?;
        same(&pair.b.side.buffer.read(TARGET, 500), &data)?;
    }
    Ok(Done::Passed)
}

fn fetches(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(setting(arm, transport))?;
    let (a, b) = (&pair.a.side.buffer, &pair.b.side.buffer);
    b.write(TARGET, &pattern(10, 300));
    pair.ends_with(pair.request(IBV_WR_RDMA_READ, 300), IBV_WC_SUCCESS)?;
    same(&a.read(SOURCE, 300), &pattern(10, 300))?;
    b.write(TARGET, &7_u64.to_ne_bytes());
    for (opcode, operands, after) in [
        (IBV_WR_ATOMIC_FETCH_AND_ADD, (5, 0), 12),
        (IBV_WR_ATOMIC_CMP_AND_SWP, (12, 99), 99),
    ] {
        let before = word(&b.read(TARGET, 8));
        let send = Send {
            operands,
            ..pair.request(opcode, 8)
        };
        pair.ends_with(send, IBV_WC_SUCCESS)?;
        expect("what came back", word(&a.read(SOURCE, 8)), before)?;
        expect("the word", word(&b.read(TARGET, 8)), after)?;
    }
    Ok(Done::Passed)
}

/// Bind and local invalidate.
fn windows(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(setting(arm, transport))?;
    let side = &pair.a.side;
    let window = Window::new(&side.pd, IBV_MW_TYPE_2)?;
    let rkey = ops::ibv_inc_rkey(window.rkey());
    let bind = Bind {
        window,
        rkey,
        buffer: std::rc::Rc::clone(&side.buffer),
        offset: TARGET,
        len: 4096,
        access: IBV_ACCESS_REMOTE_WRITE,
    };
    let mut send = pair.request(IBV_WR_BIND_MW, 0);
    // The window lives until it is invalidated.
    send.bind = Some(bind.clone());
    let wc = pair.ends_with(send, IBV_WC_SUCCESS)?;
    expect("the opcode", wc.opcode, IBV_WC_BIND_MW)?;
    let mut send = pair.request(IBV_WR_LOCAL_INV, 0);
    send.invalidate = bind.rkey;
    let wc = pair.ends_with(send, IBV_WC_SUCCESS)?;
    expect("the opcode", wc.opcode, IBV_WC_LOCAL_INV)?;
    Ok(Done::Passed)
}
