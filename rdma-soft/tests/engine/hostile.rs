//! Packets that no honest peer sends: nothing panics, and no memory is touched that was not given.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_access_flags, ibv_qp_state, ibv_wc_status};
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Path, Refused, SendOp};
use rdma_soft::wire::{
    Aeth, AtomicEth, Bth, Deth, Headers, NakCode, Opcode, Packet, Psn, Reth, Syndrome,
};

use super::net::*;

/// A packet with a known opcode and fields near what would be right.
fn packet(rng: &mut Rng, qpn: u32, psn: u32, mem: &Mem) -> Packet {
    let rows: Vec<_> = Opcode::all().collect();
    let among = if rng.chance(0.8) { 23 } else { rows.len() };
    let info = rows[rng.below(among as u64) as usize];
    let off = if rng.chance(0.7) {
        2
    } else {
        rng.below(5) as u32
    };
    let mut p = Packet::new(Bth {
        opcode: info.opcode,
        dest_qp: qpn,
        psn: Psn::new(psn).plus(off).minus(2),
        ack_req: rng.chance(0.5),
        pkey: 0xffff,
        solicited: rng.chance(0.5),
        ..Bth::default()
    });
    let has = |h| info.headers.contains(h);
    let va = mem.iova.wrapping_add(rng.below(300)).wrapping_sub(20);
    let va = if rng.chance(0.1) { rng.next_u64() } else { va };
    let rkey = if rng.chance(0.9) {
        mem.rkey
    } else {
        rng.next_u32()
    };
    let len = if rng.chance(0.9) {
        rng.below(3000) as u32
    } else {
        rng.next_u32()
    };
    p.xrceth = has(Headers::XRCETH).then(|| rng.next_u32() & 0xff_ffff);
    p.deth = has(Headers::DETH).then_some(Deth { qkey: 0, src_qp: 1 });
    p.reth = has(Headers::RETH).then_some(Reth { va, rkey, len });
    p.atomic = has(Headers::ATOMIC_ETH).then(|| AtomicEth {
        va,
        rkey,
        swap_or_add: rng.next_u64(),
        compare: 0,
    });
    p.aeth = has(Headers::AETH).then(|| Aeth {
        syndrome: Syndrome::from_byte(rng.next_u64() as u8),
        msn: 0,
    });
    p.atomic_ack = has(Headers::ATOMIC_ACK_ETH).then(|| rng.next_u64());
    p.imm = has(Headers::IMM).then(|| rng.next_u32());
    p.ieth = has(Headers::IETH).then(|| rng.next_u32());
    p
}

/// Receives that wait, and requests whose answers may be forged.
fn prepare(net: &mut Net, qb: u32, inbox: &Mem, m: &Mem) {
    for i in 0..4 {
        net.recv(1, qb, i, &[inbox.sge(i * 256, 200)]);
    }
    let read = SendOp::Read {
        remote: m.remote(0),
    };
    net.send(1, qb, wqe(9, read, &[inbox.sge(0, 100)]));
    net.send(1, qb, wqe(8, SEND, &[inbox.sge(0, 600)]));
}

#[test]
fn hostile_packets_touch_nothing_beyond_their_rights() {
    let mut accepted = 0;
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut net = Net::clean(2);
        let c = Conn {
            mtu: 256,
            psn: [50, 90],
            ..Conn::default()
        };
        let (qa, qb) = net.pair(0, 1, &c);
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        // One region for all, between two that a peer must not reach.
        let m = net.nodes[1].mem(0x10_0000, 256, ALL);
        let below = net.nodes[1].mem(0x10_0000 - 256, 256, local);
        let above = net.nodes[1].mem(0x10_0000 + 256, 256, local);
        let inbox = net.nodes[1].mem(0x30_0000, 1024, local);
        prepare(&mut net, qb, &inbox, &m);
        for _ in 0..200 {
            if net.state(1, qb) == ibv_qp_state::IBV_QPS_ERR {
                // A fatal NAK ends the connection: the next one is attacked as well.
                net.move_to_state(1, qb, ibv_qp_state::IBV_QPS_RESET);
                net.move_to_rtr(1, qb, 0, qa, &c, 0);
                net.move_to_rts(1, qb, &c, 1);
                prepare(&mut net, qb, &inbox, &m);
            }
            let due = net.nodes[1].engine.query_qp(qb).unwrap().0;
            let psn = if rng.chance(0.7) { due.rq_psn } else { 90 };
            let to = if rng.chance(0.95) { qb } else { qa };
            let p = packet(&mut rng, to, psn, &m);
            let payload = vec![0xa5; [0, 1, 100, 256, 257, 4096][rng.below(6) as usize]];
            let path = path(addr(0), addr(1));
            let now = net.now;
            net.nodes[1].engine.handle_packet(now, &path, &p, &payload);
            net.drain();
        }
        net.settle();
        for (what, m) in [("below", &below), ("above", &above)] {
            assert_eq!(m.bytes(0, 256), [0; 256], "{what}, seed {seed}");
        }
        for i in 0..4 {
            assert_eq!(
                inbox.bytes(i * 256 + 200, 56),
                [0; 56],
                "past a receive, seed {seed}"
            );
        }
        net.balanced();
        accepted += net.nodes[1].engine.counters().rx_accepted;
    }
    assert!(
        accepted > 300,
        "the packets were not hostile enough to be useful: {accepted}"
    );
}

#[test]
fn packets_of_strangers_are_refused_by_name() {
    let mut net = Net::clean(3);
    let (_, qb) = net.pair(0, 1, &Conn::default());
    let mut p = Packet::new(Bth {
        opcode: Opcode::RC_SEND_ONLY,
        dest_qp: qb,
        psn: Psn::new(0xff_fffe),
        pkey: 0xffff,
        ..Bth::default()
    });
    let good = path(addr(0), addr(1));
    let mut give = |path: &Path, p: &Packet, why: Refused| {
        let now = net.now;
        let node = &mut net.nodes[1].engine;
        let before = node.counters().refused(why);
        node.handle_packet(now, path, p, &[]);
        assert_eq!(node.counters().refused(why), before + 1, "{}", why.name());
    };
    give(
        &Path {
            src: addr(2),
            ..good
        },
        &p,
        Refused::WrongPeer,
    );
    give(
        &Path {
            dst: addr(2),
            ..good
        },
        &p,
        Refused::WrongPeer,
    );
    p.bth.pkey = 0x1234;
    give(&good, &p, Refused::BadPkey);
    p.bth.pkey = 0x7fff; // a limited member and a full one
    give(&good, &p, Refused::NoReceive);
    p.bth.dest_qp ^= 1;
    give(&good, &p, Refused::UnknownQp);
    p.bth.dest_qp = qb;
    p.bth.opcode = Opcode::UC_SEND_ONLY;
    give(&good, &p, Refused::WrongTransport);
    p.bth.opcode = Opcode::CNP;
    give(&good, &p, Refused::Congestion);
    p.bth.opcode = Opcode(0x1f);
    give(&good, &p, Refused::UnknownOpcode);
    p.bth.opcode = Opcode::RC_ACKNOWLEDGE;
    p.aeth = Some(Aeth {
        syndrome: Syndrome::Ack { credits: 31 },
        msn: 0,
    });
    p.bth.psn = Psn::new(0x12_3456);
    give(&good, &p, Refused::GhostResponse);
}

#[test]
fn a_peer_that_repeats_itself_gets_no_more_answers_than_it_has_requests_open() {
    let mut net = Net::clean(2);
    let c = Conn {
        psn: [0, 0],
        ..Conn::default()
    };
    let (_, qb) = net.pair(0, 1, &c);
    let m = net.nodes[1].mem(0x10_0000, 1 << 16, ALL);
    let path = path(addr(0), addr(1));
    let request = |opcode, psn| {
        Packet::new(Bth {
            opcode,
            dest_qp: qb,
            psn: Psn::new(psn),
            ack_req: true,
            pkey: 0xffff,
            ..Bth::default()
        })
    };
    let mut read = request(Opcode::RC_RDMA_READ_REQUEST, 0);
    read.reth = Some(Reth {
        va: m.iova,
        rkey: m.rkey,
        len: 8 * 1024,
    });
    let now = net.now;
    let node = &mut net.nodes[1].engine;
    // One READ of 8 packets, then over and over: a SEND that finds no receive, the READ again, and a
    // SEND from too far ahead. None of the answers is taken out meanwhile.
    for _ in 0..1000 {
        node.handle_packet(now, &path, &read, &[]);
        node.handle_packet(now, &path, &request(Opcode::RC_SEND_ONLY, 8), &[]);
        node.handle_packet(now, &path, &request(Opcode::RC_SEND_ONLY, 9), &[]);
    }
    let mut answers = 0;
    while node.poll_transmit(now).is_some() {
        answers += 1;
    }
    assert_eq!(answers, 8 + 1, "the READ's packets and one RNR NAK");
    assert_eq!(node.counters().tx_rnr_naks, 1);
}

#[test]
fn an_invalidation_that_cannot_be_done_is_refused() {
    let mut net = Net::clean(2);
    let c = Conn {
        psn: [0, 0],
        ..Conn::default()
    };
    let (_, qb) = net.pair(0, 1, &c);
    let m = net.nodes[1].mem(0x10_0000, 64, ALL);
    net.recv(1, qb, 1, &[m.sge(0, 64)]);
    let mut p = Packet::new(Bth {
        opcode: Opcode::RC_SEND_ONLY_WITH_INVALIDATE,
        dest_qp: qb,
        pkey: 0xffff,
        ..Bth::default()
    });
    p.ieth = Some(m.rkey);
    let path = path(addr(0), addr(1));
    net.nodes[1]
        .engine
        .handle_packet(net.now, &path, &p, &[1; 8]);
    let nak = net.nodes[1]
        .engine
        .poll_transmit(net.now)
        .unwrap()
        .packet
        .aeth
        .unwrap();
    assert_eq!(nak.syndrome, Syndrome::Nak(NakCode::RemoteAccessError));
    net.drain();
    let invalid = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
    assert_eq!(
        net.ends(1),
        [(1, invalid)],
        "and the message is not delivered"
    );
}

#[test]
fn a_message_that_changes_its_srq_half_way_ends_the_connection() {
    let mut net = Net::clean(2);
    let node = &mut net.nodes[1];
    let xrcd = node.engine.open_xrcd();
    let srqs = [0, 1].map(|_| node.create_srq(0, Some(xrcd)));
    let target = node.create_target(xrcd);
    let m = node.mem(0x10_0000, 8192, ALL);
    let c = Conn {
        mtu: 256,
        psn: [0, 0],
        ..Conn::of(Transport::XrcTgt)
    };
    net.move_to_rtr(1, target, 0, 7, &c, 0);
    for (i, srq) in srqs.into_iter().enumerate() {
        net.srq_recv(1, srq, i as u64, &[m.sge(4096 * i as u64, 4096)]);
    }
    let parts = [Opcode::XRC_SEND_FIRST, Opcode::XRC_SEND_LAST];
    for (psn, (opcode, srq)) in parts.into_iter().zip(srqs).enumerate() {
        let mut part = Packet::new(Bth {
            opcode,
            dest_qp: target,
            psn: Psn::new(psn as u32),
            pkey: 0xffff,
            ..Bth::default()
        });
        part.xrceth = Some(srq.0);
        let (now, from) = (net.now, path(addr(0), addr(1)));
        let engine = &mut net.nodes[1].engine;
        engine.handle_packet(now, &from, &part, &[7; 256]);
    }
    net.drain();
    assert_eq!(net.ends(1), [(0, FLUSHED)]);
    assert_eq!(net.state(1, target), ERR);
    assert_eq!(m.bytes(256, 4096), [0; 4096]);
}
