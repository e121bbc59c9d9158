//! Frames of every class, forged and mutated, against Queue Pairs of every transport in every state.

use rdma_core_sys::rules::Transport;
use rdma_soft::core::SendWqe;
use rdma_soft::core::rng::Rng;
use rdma_soft::link::{Frame, IpFields};
use rdma_soft::wire::icrc::{Flow, icrc};
use rdma_soft::wire::{
    Aeth, AtomicEth, Bth, Class, Deth, Headers, Opcode, Packet, Psn, Reth, Syndrome, pad_for,
};

use super::net::*;
use super::victim::*;

#[test]
fn forged_packets_are_counted_once_and_touch_nothing_closed() {
    let mut accepted = 0;
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut v = Victim::new();
        for turn in 0..2000 {
            if turn % 20 == 0 {
                v.heal(&mut rng);
                v.feed();
            }
            let (path, packet) = v.forge(&mut rng);
            let len = [0, 1, 100, 255, 256, 257, 4096][rng.below(7) as usize];
            v.give(&path, &packet, &vec![0xa5; len]);
            v.net.drain();
        }
        v.unharmed(&format!("seed {seed}"));
        v.alive();
        accepted += v.net.nodes[1].engine.counters().rx_accepted;
    }
    assert!(
        accepted > 2000,
        "too many were refused to be useful: {accepted}"
    );
}

/// Frames that were right, with bits flipped, bytes cut off or added, and a new checksum.
#[test]
fn mutated_frames_are_counted_once_and_touch_nothing_closed() {
    let mut parsed_after_all = 0;
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut v = Victim::new();
        let originals = honest(&mut v);
        for turn in 0..2000 {
            if turn % 20 == 0 {
                v.heal(&mut rng);
                v.feed();
            }
            let mut frame = originals[rng.below(originals.len() as u64) as usize].clone();
            mutate(&mut rng, &mut frame);
            let before = v.net.nodes[1].engine.counters().rx_frames;
            v.net.deliver(&frame);
            assert_eq!(v.net.nodes[1].engine.counters().rx_frames, before + 1);
            v.net.balanced();
        }
        v.unharmed(&format!("seed {seed}"));
        v.alive();
        parsed_after_all += v.net.nodes[1].engine.counters().rx_accepted;
    }
    assert!(parsed_after_all > 1000, "{parsed_after_all}");
}

/// One good frame for each Queue Pair and kind of request.
fn honest(v: &mut Victim) -> Vec<Frame> {
    let mut frames = vec![];
    for &(transport, qp) in &v.qps {
        let (attr, _) = v.net.nodes[1].engine.query_qp(qp).unwrap();
        let class = match transport {
            Transport::Uc => Class::Uc,
            Transport::Ud => Class::Ud,
            Transport::Rc => Class::Rc,
            _ => Class::Xrc,
        };
        for info in Opcode::all().filter(|o| o.class == class && o.place.starts()) {
            let mut p = Packet::new(Bth {
                opcode: info.opcode,
                dest_qp: qp,
                psn: Psn::new(if info.is_request() { attr.rq_psn } else { 90 }),
                pkey: 0xffff,
                ..Bth::default()
            });
            let has = |h| info.headers.contains(h);
            let len = if info.place.ends() { 100 } else { MTU };
            let len = if info.payload { len } else { 0 };
            let (va, rkey) = (v.open.iova, v.open.rkey);
            p.bth.pad = pad_for(len);
            p.xrceth = has(Headers::XRCETH).then_some(v.srqs[1].0);
            let (qkey, src_qp) = (QKEY, 7);
            p.deth = has(Headers::DETH).then_some(Deth { qkey, src_qp });
            let announced = if info.place.ends() { len as u32 } else { 600 };
            p.reth = has(Headers::RETH).then_some(Reth {
                va,
                rkey,
                len: announced,
            });
            p.atomic = has(Headers::ATOMIC_ETH).then_some(AtomicEth {
                va,
                rkey,
                swap_or_add: 1,
                compare: 0,
            });
            p.aeth = has(Headers::AETH).then_some(Aeth {
                syndrome: Syndrome::Ack { credits: 31 },
                msn: 1,
            });
            p.atomic_ack = has(Headers::ATOMIC_ACK_ETH).then_some(1);
            p.imm = has(Headers::IMM).then_some(1);
            p.ieth = has(Headers::IETH).then_some(v.window);
            let mut bytes = vec![0; Packet::MAX_HEADER_LEN];
            let header = p.emit_header(&mut bytes);
            bytes.truncate(header);
            bytes.resize(header + len + usize::from(p.bth.pad), 0x5a);
            let to = addr(1);
            frames.push(sealed(to, bytes));
        }
        if transport == Transport::Ud {
            let mut to_all = frames[frames.len() - 1].clone();
            to_all.bytes.truncate(to_all.bytes.len() - 4);
            to_all.bytes[5..8].copy_from_slice(&[0xff; 3]);
            frames.push(sealed(group(), to_all.bytes));
        }
    }
    frames
}

/// A frame of node 0 with its checksum.
fn sealed(to: std::net::IpAddr, mut bytes: Vec<u8>) -> Frame {
    let (src, dst) = ((addr(0), PORT).into(), (to, PORT).into());
    let crc = icrc(&Flow::new(src, dst), &bytes);
    bytes.extend(crc.to_le_bytes());
    Frame {
        src,
        dst,
        ip: IpFields::default(),
        bytes,
    }
}

fn mutate(rng: &mut Rng, frame: &mut Frame) {
    let bytes = &mut frame.bytes;
    bytes.truncate(bytes.len() - 4);
    match rng.below(8) {
        0 => bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize),
        1 => bytes.extend((0..rng.below(5000)).map(|_| 0x77)),
        2 => {}
        _ => {
            // Headers more often than payload.
            let within = if rng.chance(0.8) { 40 } else { bytes.len() };
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(within.min(bytes.len()) as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
        }
    }
    let bytes = std::mem::take(bytes);
    let good = rng.chance(0.95);
    *frame = sealed(frame.dst.ip(), bytes);
    if !good && let Some(last) = frame.bytes.last_mut() {
        *last ^= 1;
    }
}

/// A peer that only talks cannot make a node hold more and more: not answers that nobody takes, not
/// reports.
#[test]
fn what_a_flood_leaves_behind_is_bounded() {
    let mut rng = Rng::new(77);
    let mut v = Victim::new();
    v.feed();
    v.net.drain();
    let counted = |v: &mut Victim| {
        let now = v.net.now;
        let engine = &mut v.net.nodes[1].engine;
        let mut held = 0;
        while engine.poll_transmit(now).is_some() {
            held += 1;
        }
        while engine.poll_event().is_some() {
            held += 1;
        }
        held
    };
    counted(&mut v);
    let mut most = 0;
    for _ in 0..4 {
        for _ in 0..10_000 {
            let (path, packet) = v.forge(&mut rng);
            v.give(&path, &packet, &[0; 256][..rng.below(257) as usize]);
        }
        most = most.max(counted(&mut v));
    }
    // READs that wait to be answered have up to 2^31 / 256 packets each by what a peer asks, but there are
    // no more than 4096 bytes to read here: 17 packets, for 2 x 4 requests, of few Queue Pairs.
    let bound = v.qps.len() * (2 * 4 * 17 + 8);
    assert!(most <= bound, "{most} answers and reports, at most {bound}");
}

/// The same for messages that never end: what is kept for each is one receive.
#[test]
fn messages_that_never_end_hold_one_receive_each() {
    for (transport, first) in [
        (Transport::Uc, Opcode::UC_SEND_FIRST),
        (Transport::Rc, Opcode::RC_SEND_FIRST),
    ] {
        let mut net = Net::clean(2);
        let srq = net.nodes[1].create_srq(0, None);
        let c = Conn {
            mtu: 256,
            psn: [0, 0],
            ..Conn::of(transport)
        };
        let m = net.nodes[1].mem(0x1000, 4096, ALL);
        let qps: Vec<u32> = (0..3).map(|_| net.nodes[1].create_qp_on(&c, srq)).collect();
        for &qp in &qps {
            net.move_to_rtr(1, qp, 0, 7, &c, 0);
            net.move_to_rts(1, qp, &c, 1);
        }
        for i in 0..10 {
            net.srq_recv(1, srq, i, &[m.sge(0, 4096)]);
        }
        for psn in 0..1000 {
            for &qp in &qps {
                let packet = Packet::new(Bth {
                    opcode: first,
                    dest_qp: qp,
                    psn: Psn::new(psn),
                    pkey: 0xffff,
                    ..Bth::default()
                });
                let now = net.now;
                let at = path(addr(0), addr(1));
                let engine = &mut net.nodes[1].engine;
                engine.handle_packet(now, &at, &packet, &[0; 256]);
            }
        }
        net.drain();
        // Destroyed, they give back what they held, in any case all that was not completed.
        let ended = net.nodes[1].done.len();
        for qp in qps {
            net.nodes[1].engine.destroy_qp(qp).unwrap();
        }
        let c = Conn::default();
        let qb = net.nodes[1].create_qp_on(&c, srq);
        let qa = net.nodes[0].create_qp(&c);
        net.connect(0, qa, 1, qb, &c);
        for i in ended..10 {
            net.send(0, qa, wqe(i as u64, SEND, &[]));
        }
        let limit = std::time::Duration::from_millis(100);
        net.run(limit, |net| net.nodes[1].done.len() == 10);
        assert_eq!(net.nodes[1].done.len(), 10, "{transport:?}");
        assert_eq!(net.receives(1, qb).len(), 10 - ended);
    }
}

/// An honest request that follows the flood is still served: an XRC target that was attacked through one SRQ
/// number serves the others.
#[test]
fn a_stray_srq_number_costs_the_connection_that_sent_it_and_no_other() {
    let mut v = Victim::new();
    let c = Conn::of(Transport::XrcIni);
    let xrcd = v.net.nodes[1].engine.query_qp(v.qps.last().unwrap().1);
    let xrcd = xrcd.unwrap().1.xrcd.unwrap();
    let pairs = [0, 1].map(|_| {
        let (ini, tgt) = (
            v.net.nodes[0].create_qp(&c),
            v.net.nodes[1].create_target(xrcd),
        );
        v.net.connect(0, ini, 1, tgt, &c);
        (ini, tgt)
    });
    v.feed();
    let send = |srq: u32| SendWqe {
        xrc_srq: srq,
        ..wqe(1, SEND, &[])
    };
    v.net.send(0, pairs[0].0, send(0x99_9999));
    v.net.send(0, pairs[1].0, send(v.srqs[1].0));
    v.net.settle();
    assert_eq!(v.net.state(1, pairs[0].1), ERR);
    assert_eq!(v.net.sends(0, pairs[1].0), [(1, OK)]);
}
