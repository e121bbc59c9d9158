//! Messages of every shape: lengths around each MTU, many entries, nothing at all.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::matrix::{TRANSPORTS, transport_name};
use super::{Arm, Check, Done, GRHS, Outcome, SGES, SOURCE, Setting, TARGET, Trouble, expect};
use crate::bytes::{pattern, same};
use crate::device::Send;

const MTUS: [ibv_mtu; 5] = [
    IBV_MTU_256,
    IBV_MTU_512,
    IBV_MTU_1024,
    IBV_MTU_2048,
    IBV_MTU_4096,
];

pub(super) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    for transport in TRANSPORTS {
        let name = transport_name(transport);
        for mtu in MTUS {
            let bytes = mtu.bytes().unwrap_or(0);
            all.push(Check::rule(
                format!("shapes/{name}/lengths-around-{bytes}"),
                move |arm| around(arm, transport, mtu),
            ));
        }
        let of = |what: &str, body: fn(&Arm, Transport) -> Outcome| {
            Check::rule(format!("shapes/{name}/{what}"), move |arm| {
                body(arm, transport)
            })
        };
        all.push(of("pieces", pieces));
        all.push(of("more-entries-than-the-queue-takes", too_many_entries));
        all.push(of("nothing/no-entry", no_entry));
        all.push(of("nothing/an-empty-entry-of-any-key", empty_entry));
        all.push(of("nothing/empty-entries-among-others", empty_among_others));
        if transport.supports(IBV_WR_RDMA_WRITE) {
            all.push(of("nothing/needs-no-remote-key", no_remote_key));
        }
    }
    all
}

/// Every operation that moves bytes, with every length around multiples of the MTU.
fn around(arm: &Arm, transport: Transport, mtu: ibv_mtu) -> Outcome {
    if mtu.0 > arm.mtu().0 {
        return Err(Trouble::Skip(format!("the port does {:?}", arm.mtu())));
    }
    let bytes = mtu.bytes().unwrap_or(0) as usize;
    let greatest = match transport {
        // A datagram is cut by nothing but the port's MTU.
        Transport::Ud => arm.mtu().bytes().unwrap_or(0) as usize,
        _ => usize::MAX,
    };
    let mtu = if transport == Transport::Ud {
        arm.mtu()
    } else {
        mtu
    };
    let pair = arm.pair(Setting::new(transport, mtu))?;
    let mut number = 0;
    for times in [1, 2, 4] {
        for len in [times * bytes - 1, times * bytes, times * bytes + 1] {
            if len > greatest {
                continue;
            }
            number += 1;
            pair.exchange(number, len)?;
            let data = pattern(number ^ 0x55, len);
            let (a, b) = (&pair.a.side.buffer, &pair.b.side.buffer);
            if transport.supports(IBV_WR_RDMA_WRITE) {
                a.write(SOURCE, &data);
                // With immediate data: on UC nothing else tells that it came.
                pair.make_room(1, 0)?;
                pair.ends_with(
                    pair.request(IBV_WR_RDMA_WRITE_WITH_IMM, len),
                    IBV_WC_SUCCESS,
                )?;
                let wc = pair.received()?;
                expect("byte_len of a WRITE_WITH_IMM", wc.byte_len as usize, len)?;
                same(&b.read(TARGET, len), &data)?;
            }
            if transport.supports(IBV_WR_RDMA_READ) {
                a.write(SOURCE, &vec![0; len]);
                let wc = pair.ends_with(pair.request(IBV_WR_RDMA_READ, len), IBV_WC_SUCCESS)?;
                expect("byte_len of a READ", wc.byte_len as usize, len)?;
                same(&a.read(SOURCE, len), &data)?;
            }
        }
    }
    pair.quiet()?;
    Ok(Done::Passed)
}

/// Cuts `len` bytes from `start` into `count` entries of different lengths, with a gap behind each.
fn cut(start: usize, len: usize, count: usize) -> Vec<(usize, usize)> {
    let (mut parts, mut at, mut left) = (Vec::new(), start, len);
    for n in 0..count {
        let part = match n + 1 == count {
            true => left,
            false => (left / (count - n) + n * 7 % 5).min(left),
        };
        parts.push((at, part));
        (at, left) = (at + part + 3, left - part);
    }
    parts
}

/// A message gathered from many entries and scattered to another number of them.
fn pieces(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(Setting::new(transport, arm.mtu()))?;
    let (a, b) = (&pair.a.side.buffer, &pair.b.side.buffer);
    let mtu = arm.mtu().bytes().unwrap_or(0) as usize;
    let len = if transport == Transport::Ud {
        mtu
    } else {
        3 * mtu + 5
    };
    let data = pattern(77, len);
    let header = transport == Transport::Ud;
    let from = cut(SOURCE, len, SGES as usize);
    let to = cut(TARGET, len, SGES as usize - 3);
    let put = |buffer: &crate::device::Buffer, parts: &[(usize, usize)]| {
        let mut done = 0;
        for &(at, len) in parts {
            buffer.write(at, &data[done..done + len]);
            done += len;
        }
    };
    let get = |buffer: &crate::device::Buffer, parts: &[(usize, usize)]| -> Vec<u8> {
        parts
            .iter()
            .flat_map(|&(at, len)| buffer.read(at, len))
            .collect()
    };
    put(a, &from);
    b.write(TARGET, &vec![0xee; 2 * len]);
    let room: Vec<_> = header
        .then_some((GRHS, 40))
        .into_iter()
        .chain(to.clone())
        .collect();
    b.write(GRHS, &[0xee; 64]);
    pair.b.receive(1, &b.sges(&room))?;
    let mut send = pair.request(IBV_WR_SEND, 0);
    send.sges = a.sges(&from);
    pair.ends_with(send, IBV_WC_SUCCESS)?;
    let wc = pair.received()?;
    expect("the status of the receive", wc.status, IBV_WC_SUCCESS)?;
    same(&get(b, &to), &data)?;
    for &(at, len) in &to {
        expect(
            "a gap between two entries",
            b.read(at + len, 3),
            vec![0xee; 3],
        )?;
    }
    if transport.supports(IBV_WR_RDMA_READ) {
        b.write(TARGET, &data);
        a.write(SOURCE, &vec![0; 2 * len]);
        let mut send = pair.request(IBV_WR_RDMA_READ, 0);
        send.sges = a.sges(&from);
        pair.ends_with(send, IBV_WC_SUCCESS)?;
        same(&get(a, &from), &data)?;
    }
    Ok(Done::Passed)
}

fn too_many_entries(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(Setting::new(transport, arm.mtu()))?;
    let most = pair.a.qp.cap().max_send_sge as usize;
    let mut send = pair.request(IBV_WR_SEND, 0);
    send.sges = vec![pair.a.side.buffer.sge(SOURCE, 1); most + 1];
    super::refused(
        "one entry more than max_send_sge",
        pair.a.qp.post_send(&pair.address(send)?),
        &[libc::EINVAL],
    )
}

/// Sends a request of no byte, and checks that the peer's receive has none.
fn empty(arm: &Arm, transport: Transport, sges: &[ibv_sge]) -> Outcome {
    let pair = arm.pair(Setting::new(transport, arm.mtu()))?;
    pair.b.side.buffer.write(TARGET, &[0xee; 8]);
    pair.make_room(9, 8)?;
    let mut send = pair.request(IBV_WR_SEND, 0);
    send.sges = sges.to_vec();
    pair.ends_with(send, IBV_WC_SUCCESS)?;
    let wc = pair.received()?;
    expect("the status of the receive", wc.status, IBV_WC_SUCCESS)?;
    let header = if transport == Transport::Ud { 40 } else { 0 };
    expect("byte_len of nothing", wc.byte_len, header)?;
    expect(
        "the room for it",
        pair.b.side.buffer.read(TARGET, 8),
        vec![0xee; 8],
    )?;
    pair.quiet()?;
    Ok(Done::Passed)
}

fn no_entry(arm: &Arm, transport: Transport) -> Outcome {
    empty(arm, transport, &[])
}

/// No byte is touched, so no key is looked at.
fn empty_entry(arm: &Arm, transport: Transport) -> Outcome {
    let entry = ibv_sge {
        addr: 0x1000,
        length: 0,
        lkey: 0x5eed_0001,
    };
    empty(arm, transport, &[entry])
}

fn empty_among_others(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(Setting::new(transport, arm.mtu()))?;
    let (a, b) = (&pair.a.side.buffer, &pair.b.side.buffer);
    a.write(SOURCE, b"onetwo");
    pair.make_room(9, 6)?;
    let nothing = ibv_sge {
        addr: 8,
        length: 0,
        lkey: 0x5eed_0002,
    };
    let mut send = pair.request(IBV_WR_SEND, 0);
    send.sges = vec![
        nothing,
        a.sge(SOURCE, 3),
        nothing,
        a.sge(SOURCE + 3, 3),
        nothing,
    ];
    pair.ends_with(send, IBV_WC_SUCCESS)?;
    let wc = pair.received()?;
    expect("the status of the receive", wc.status, IBV_WC_SUCCESS)?;
    same(&b.read(TARGET, 6), b"onetwo")?;
    Ok(Done::Passed)
}

/// WRITE, WRITE_WITH_IMM and READ of no byte make no access: any key and address will do.
fn no_remote_key(arm: &Arm, transport: Transport) -> Outcome {
    let pair = arm.pair(Setting::new(transport, arm.mtu()))?;
    let ask = |opcode| Send {
        remote: (0xdead_0000, 0x5eed_0003),
        imm: 42,
        ..pair.request(opcode, 0)
    };
    pair.ends_with(ask(IBV_WR_RDMA_WRITE), IBV_WC_SUCCESS)?;
    if transport.supports(IBV_WR_RDMA_READ) {
        let wc = pair.ends_with(ask(IBV_WR_RDMA_READ), IBV_WC_SUCCESS)?;
        expect("byte_len of a READ of nothing", wc.byte_len, 0)?;
    }
    pair.make_room(9, 0)?;
    pair.ends_with(ask(IBV_WR_RDMA_WRITE_WITH_IMM), IBV_WC_SUCCESS)?;
    let wc = pair.received()?;
    expect("the status of the receive", wc.status, IBV_WC_SUCCESS)?;
    expect("its immediate data", wc.imm_data(), Some(42))?;
    expect("its byte_len", wc.byte_len, 0)?;
    // None of them took the receive of another.
    pair.exchange(10, 5)?;
    pair.quiet()?;
    Ok(Done::Passed)
}
