//! UD: who gets a datagram, what its buffer and its completion say, and why others get none.

use std::net::IpAddr;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_wc_opcode, ibv_wc_status};
use rdma_soft::core::config::{Caps, Config, GidEntry, PortConfig, Strict};
use rdma_soft::core::{Ah, Mishap, Path, QpInit, Queue, Refused, SendOp, Sender};
use rdma_soft::wire::{Bth, Deth, Opcode, Packet};

use super::net::*;
use super::pair::*;

pub fn ud() -> Pair {
    pair(&Conn::of(Transport::Ud))
}

pub fn datagram(ah: Ah, qp_num: u32) -> SendOp {
    SendOp::Datagram {
        ah,
        qp_num,
        qkey: QKEY,
        imm: None,
    }
}

/// The datagram that a peer with this Q_Key would send, made by hand.
fn forged(to: u32, qkey: u32) -> Packet {
    let mut p = Packet::new(Bth {
        opcode: Opcode::UD_SEND_ONLY,
        dest_qp: to,
        pkey: 0xffff,
        ..Bth::default()
    });
    p.deth = Some(Deth { qkey, src_qp: 77 });
    p
}

fn there() -> Path {
    path(addr(0), addr(1))
}

impl Pair {
    /// Sends `len` bytes from `at` to the other's Queue Pair.
    fn say(&mut self, wr_id: u64, at: u64, len: u32) {
        let ah = self.net.ah(0, addr(1));
        let w = wqe(wr_id, datagram(ah, self.qb), &[self.a.sge(at, len)]);
        self.net.send(0, self.qa, w);
        self.net.settle();
    }
}

#[test]
fn a_datagram_says_who_sent_it() {
    let mut p = ud();
    let ah = p.net.ah(0, addr(1));
    for (i, len) in [0u32, 1, 1000, 4096].into_iter().enumerate() {
        for imm in [None, Some(0xabcd_ef01)] {
            let into = p.b.sge(0, 40 + len);
            p.net.recv(1, p.qb, i as u64, &[into]);
            let op = SendOp::Datagram {
                ah,
                qp_num: p.qb,
                qkey: QKEY,
                imm,
            };
            p.net.send(0, p.qa, wqe(9, op, &[p.a.sge(5, len)]));
            p.net.settle();
            let got = *p.done(1, Queue::Recv).last().unwrap();
            assert_eq!(
                (got.wr_id, got.status, got.opcode, got.byte_len, got.imm),
                (i as u64, OK, ibv_wc_opcode::IBV_WC_RECV, 40 + len, imm)
            );
            let sender = Sender {
                qp_num: p.qa,
                sl: 0,
                pkey_index: 0,
            };
            assert_eq!((got.qp_num, got.sender), (p.qb, Some(sender)));
            assert_eq!(p.b.bytes(40, len as usize), p.a.bytes(5, len as usize));
        }
    }
    assert!(p.net.ends(0).iter().all(|e| *e == (9, OK)));
}

/// What `ibv_init_ah_from_wc` reads, to answer: rdma-core takes bytes 20..40 for an IPv4 header if the first
/// nibble is not 6 and byte 20 begins with 4 (`get_grh_header_version`), and the addresses from there.
#[test]
fn the_grh_of_an_ipv4_datagram_is_an_ipv4_header_in_its_second_half() {
    let mut p = ud();
    let into = p.b.sge(0, 100);
    p.net.recv(1, p.qb, 1, &[into]);
    p.say(1, 0, 9);
    let grh = p.b.bytes(0, 40);
    assert_ne!(grh[0] >> 4, 6);
    let ip = &grh[20..];
    assert_eq!(ip[0], 0x45, "version 4, five words");
    // IP, UDP, BTH, DETH, 9 bytes padded to 12, ICRC.
    let len = 20 + 8 + 12 + 8 + 12 + 4;
    assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), len);
    assert_eq!((ip[1], ip[8], ip[9]), (0, 64, 17));
    assert_eq!(ip[12..20], [10, 0, 0, 1, 10, 0, 0, 2]);
    let words = ip
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    assert_eq!(
        (sum & 0xffff) + (sum >> 16),
        0xffff,
        "the header's checksum"
    );
}

#[test]
fn the_grh_of_an_ipv6_datagram_is_its_header() {
    let mut p = ud();
    let into = p.b.sge(0, 100);
    p.net.recv(1, p.qb, 1, &[into]);
    let ah = p.net.ah(0, addr6(1));
    let w = wqe(1, datagram(ah, p.qb), &[p.a.sge(0, 8)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(p.net.ends(1), [(1, OK)]);
    let grh = p.b.bytes(0, 40);
    assert_eq!(grh[0] >> 4, 6);
    assert_eq!(u16::from_be_bytes([grh[4], grh[5]]), 8 + 12 + 8 + 8 + 4);
    let octets = |a: IpAddr| GidEntry::v2(a).gid;
    assert_eq!(grh[8..24], octets(addr6(0)));
    assert_eq!(grh[24..40], octets(addr6(1)));
}

#[test]
fn traffic_class_and_flow_label_reach_the_other_end() {
    let mut p = ud();
    let into = p.b.sge(0, 100);
    for i in 0..2 {
        p.net.recv(1, p.qb, i, &[into]);
    }
    let node = &mut p.net.nodes[0];
    let mut attr = ah_attr(addr6(1));
    attr.grh.traffic_class = 0xa8;
    attr.grh.flow_label = 0xb_cdef;
    attr.grh.hop_limit = 9;
    let ah = node.engine.create_ah(node.pd, &attr).unwrap();
    p.net.send(0, p.qa, wqe(1, datagram(ah, p.qb), &[]));
    p.net.settle();
    let grh = p.b.bytes(0, 40);
    assert_eq!(grh[..4], [0x6a, 0x8b, 0xcd, 0xef]);
    assert_eq!(grh[7], 9);
    let got = p.done(1, Queue::Recv)[0].sender.unwrap();
    assert_eq!((got.qp_num, got.sl), (p.qa, 5), "the upper three bits");
    // A service level without a traffic class is sent as one.
    let node = &mut p.net.nodes[0];
    let mut attr = ah_attr(addr(1));
    attr.sl = 3;
    let ah = node.engine.create_ah(node.pd, &attr).unwrap();
    p.net.send(0, p.qa, wqe(2, datagram(ah, p.qb), &[]));
    p.net.settle();
    assert_eq!(p.b.bytes(21, 1), [3 << 5]);
    assert_eq!(p.done(1, Queue::Recv)[1].sender.unwrap().sl, 3);
}

#[test]
fn a_buffer_of_several_pieces_is_filled_across_the_grh() {
    let mut p = ud();
    let pieces = [p.b.sge(0, 7), p.b.sge(100, 34), p.b.sge(200, 500)];
    p.net.recv(1, p.qb, 1, &pieces);
    p.say(1, 0, 300);
    assert_eq!(p.net.ends(1), [(1, OK)]);
    assert_eq!(p.b.bytes(100 + 13, 20)[12..], [10, 0, 0, 1, 10, 0, 0, 2]);
    // One byte of the payload is in the second piece, the rest in the third.
    assert_eq!(p.b.bytes(133, 1), p.a.bytes(0, 1));
    assert_eq!(p.b.bytes(200, 299), p.a.bytes(1, 299));
}

#[test]
fn a_wrong_q_key_is_dropped_and_counted() {
    let mut p = ud();
    p.net.recv(1, p.qb, 1, &[p.b.sge(0, 100)]);
    let ah = p.net.ah(0, addr(1));
    let op = SendOp::Datagram {
        ah,
        qp_num: p.qb,
        qkey: QKEY + 1,
        imm: None,
    };
    p.net.send(0, p.qa, wqe(1, op, &[]));
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, OK)], "nobody tells the sender");
    assert!(p.net.ends(1).is_empty());
    assert_eq!(p.net.refused(1, Refused::BadQkey), 1);
    assert_eq!(p.b.bytes(0, 100), [0; 100]);
    p.say(2, 0, 4);
    assert_eq!(p.net.ends(1), [(1, OK)], "and used no receive");
}

#[test]
fn a_q_key_with_the_high_bit_means_the_queue_pairs_own() {
    let mut p = ud();
    p.net.recorded = Some(vec![]);
    p.net.recv(1, p.qb, 1, &[p.b.sge(0, 100)]);
    let ah = p.net.ah(0, addr(1));
    let op = SendOp::Datagram {
        ah,
        qp_num: p.qb,
        qkey: 0x8000_0000,
        imm: None,
    };
    p.net.send(0, p.qa, wqe(1, op, &[]));
    p.net.settle();
    let (packet, _) = parsed(&p.net.frames()[0]);
    let sent = Deth {
        qkey: QKEY,
        src_qp: p.qa,
    };
    assert_eq!(packet.deth, Some(sent));
    assert_eq!(p.net.ends(1), [(1, OK)]);
    // A privileged key on the wire is compared like any other.
    let (now, node) = (p.net.now, &mut p.net.nodes[1]);
    let packet = forged(p.qb, 0x8000_0000);
    node.engine.handle_packet(now, &there(), &packet, &[]);
    assert_eq!(p.net.refused(1, Refused::BadQkey), 1);
}

#[test]
fn a_changed_q_key_counts_from_then_on() {
    use ibv_qp_attr_mask as M;
    let mut p = ud();
    for i in 0..2 {
        p.net.recv(1, p.qb, i, &[p.b.sge(0, 100)]);
    }
    let attr = ibv_qp_attr {
        qp_state: RTS,
        qkey: 5,
        ..Default::default()
    };
    p.net
        .modify(1, p.qb, &attr, M::IBV_QP_STATE | M::IBV_QP_QKEY);
    p.say(1, 0, 0);
    assert_eq!(p.net.refused(1, Refused::BadQkey), 1);
    let (now, node) = (p.net.now, &mut p.net.nodes[1]);
    node.engine
        .handle_packet(now, &there(), &forged(p.qb, 5), &[]);
    p.net.drain();
    assert_eq!(p.net.ends(1), [(0, OK)]);
}

#[test]
fn a_datagram_without_room_ends_its_receive_and_not_the_queue_pair() {
    let mut p = ud();
    // Forty bytes forgotten, and a buffer that the GRH alone does not fit in.
    for (i, len) in [(1, 100), (2, 39), (3, 140)] {
        let into = p.b.sge(1000 * i, len);
        p.net.recv(1, p.qb, i, &[into]);
    }
    for i in 0..3 {
        p.say(i, 0, 100);
    }
    let short = ibv_wc_status::IBV_WC_LOC_LEN_ERR;
    assert_eq!(p.net.ends(1), [(1, short), (2, short), (3, OK)]);
    assert_eq!(p.net.refused(1, Refused::TooLong), 2);
    let noted = p.net.nodes[1].engine.counters().mishaps();
    let noted = noted.iter().filter_map(|mishap| match *mishap {
        Mishap::Receive { room, len, .. } => Some((room, len)),
        _ => None,
    });
    assert_eq!(
        noted.collect::<Vec<_>>(),
        [(100, Some(140)), (39, Some(140))],
        "room, and what came, with the GRH"
    );
    assert_eq!(p.b.bytes(1100, 40), [0; 40], "nothing past the receive");
    assert_eq!(p.b.bytes(2039, 40), [0; 40]);
    assert_eq!(p.states(), [RTS, RTS]);
    assert!(p.net.ends(0).iter().all(|e| e.1 == OK));
}

#[test]
fn a_datagram_without_a_receive_is_lost_and_counted() {
    let mut p = ud();
    p.say(1, 0, 100);
    assert_eq!(p.net.refused(1, Refused::NoReceive), 1);
    p.net.recv(1, p.qb, 1, &[p.b.sge(0, 200)]);
    p.net.settle();
    assert!(p.net.ends(1).is_empty(), "it is not kept for later");
    p.say(2, 50, 100);
    assert_eq!(p.net.ends(1), [(1, OK)]);
    assert_eq!(p.b.bytes(40, 100), p.a.bytes(50, 100));
    p.net.balanced();
}

#[test]
fn another_partition_another_port_another_transport_and_nobody() {
    let mut p = ud();
    p.net.recv(1, p.qb, 1, &[p.b.sge(0, 200)]);
    let (rc, _) = p.net.pair(1, 0, &Conn::default());
    let init = p.net.nodes[1].create_qp(&Conn::of(Transport::Ud));
    let mut give = |path: &Path, packet: &Packet, why: Refused| {
        let before = p.net.refused(1, why);
        let now = p.net.now;
        let node = &mut p.net.nodes[1].engine;
        node.handle_packet(now, path, packet, &[]);
        assert_eq!(p.net.refused(1, why), before + 1, "{}", why.name());
    };
    let good = forged(p.qb, QKEY);
    let mut other = good;
    other.bth.pkey = 0x9234;
    give(&there(), &other, Refused::BadPkey);
    give(&Path { port: 2, ..there() }, &good, Refused::WrongPeer);
    give(&there(), &forged(rc, QKEY), Refused::WrongTransport);
    give(&there(), &forged(init, QKEY), Refused::QpState);
    give(&there(), &forged(0xabc, QKEY), Refused::UnknownQp);
    let mut rc_packet = good;
    rc_packet.bth.opcode = Opcode::RC_SEND_ONLY;
    rc_packet.deth = None;
    give(&there(), &rc_packet, Refused::WrongTransport);
    assert!(p.net.ends(1).is_empty());
    // Anybody may send: UD has no peer.
    let now = p.net.now;
    let from = path(addr(7), addr(1));
    p.net.nodes[1].engine.handle_packet(now, &from, &good, &[]);
    p.net.drain();
    assert_eq!(p.net.ends(1), [(1, OK)]);
    p.net.balanced();
}

#[test]
fn one_queue_pair_speaks_to_many_and_each_answers_by_the_completion() {
    let mut net = Net::clean(4);
    let c = Conn::of(Transport::Ud);
    let qps: Vec<u32> = (0..4).map(|i| net.nodes[i].create_qp(&c)).collect();
    let mems: Vec<_> = (0..4)
        .map(|i| net.nodes[i].mem(0x1000, 4096, ALL))
        .collect();
    for i in 0..4 {
        net.move_to_rtr(i, qps[i], 0, 0, &c, 0);
        net.move_to_rts(i, qps[i], &c, 0);
        for k in 0..3 {
            net.recv(i, qps[i], k, &[mems[i].sge(k * 100, 100)]);
        }
        mems[i].region.write(2000, &[i as u8 + 1; 8]).unwrap();
    }
    for i in 1..4 {
        let ah = net.ah(0, addr(i));
        net.send(
            0,
            qps[0],
            wqe(i as u64, datagram(ah, qps[i]), &[mems[0].sge(2000, 8)]),
        );
    }
    net.settle();
    for i in 1..4 {
        assert_eq!(net.receives(i, qps[i]), [(0, OK)]);
        let from = net.nodes[i].done[0].sender.unwrap();
        let back = net.ah(i, addr(0));
        net.send(
            i,
            qps[i],
            wqe(1, datagram(back, from.qp_num), &[mems[i].sge(2000, 8)]),
        );
    }
    net.settle();
    let mut said: Vec<u8> = (0..3).map(|k| mems[0].bytes(k * 100 + 40, 1)[0]).collect();
    said.sort_unstable();
    assert_eq!(said, [2, 3, 4]);
}

#[test]
fn an_address_handle_may_go_as_soon_as_it_was_posted_with() {
    let mut p = ud();
    p.net.recv(1, p.qb, 1, &[p.b.sge(0, 200)]);
    let node = &mut p.net.nodes[0];
    let ah = node.engine.create_ah(node.pd, &ah_attr(addr(1))).unwrap();
    let busy = node.engine.dealloc_pd(node.pd).unwrap_err();
    assert_eq!(busy.errno, rustix::io::Errno::BUSY);
    node.engine
        .post_send(p.qa, wqe(1, datagram(ah, p.qb), &[p.a.sge(0, 9)]));
    node.engine.destroy_ah(&ah);
    p.net.settle();
    p.net.drain();
    p.net.settle();
    assert_eq!(
        (p.net.ends(0), p.net.ends(1)),
        (vec![(1, OK)], vec![(1, OK)])
    );
}

#[test]
fn an_address_handle_that_cannot_work_is_refused_with_the_reason() {
    let mut net = Net::clean(1);
    let node = &mut net.nodes[0];
    type Spoil = fn(&mut rdma_core_sys::ibv_ah_attr);
    let spoiled: [(&str, Spoil); 5] = [
        ("port", |a| a.port_num = 3),
        ("is_global", |a| a.is_global = 0),
        ("sgid_index", |a| a.grh.sgid_index = 9),
        ("dgid", |a| a.grh.dgid.raw = [0; 16]),
        ("IPv6", |a| a.grh.dgid.raw = [0x20; 16]),
    ];
    for (what, spoil) in spoiled {
        let mut attr = ah_attr(addr(0));
        spoil(&mut attr);
        let why = node.engine.create_ah(node.pd, &attr).unwrap_err();
        assert_eq!(why.errno, rustix::io::Errno::INVAL, "{what}");
        assert!(why.to_string().contains(what), "{what}: {why}");
    }
}

#[test]
fn the_partition_key_of_the_index_is_sent_and_expected() {
    let port = PortConfig {
        gids: vec![GidEntry::v2(addr(0))],
        pkeys: vec![0xffff, 0, 0x8123],
        active_mtu: 1024,
        max_msg_sz: 1 << 31,
    };
    let config = Config {
        ports: vec![port],
        caps: Caps::default(),
        window: 8,
        strict: Strict::default(),
    };
    let mut net = Net::clean(1);
    net.nodes[0] = Node::with(config, 1);
    let c = Conn::of(Transport::Ud);
    let m = net.nodes[0].mem(0x1000, 4096, ALL);
    use ibv_qp_attr_mask as M;
    let mut qps = vec![];
    for index in [2, 2, 0] {
        let qp = net.nodes[0].create_qp(&c);
        let attr = ibv_qp_attr {
            qp_state: INIT,
            port_num: 1,
            qkey: QKEY,
            pkey_index: index,
            ..Default::default()
        };
        let mask = M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_QKEY;
        net.modify(0, qp, &attr, mask);
        net.move_to_state(0, qp, RTR);
        net.move_to_rts(0, qp, &c, 0);
        net.recv(0, qp, 1, &[m.sge(0, 100)]);
        qps.push(qp);
    }
    let ah = net.ah(0, addr(0));
    net.recorded = Some(vec![]);
    net.send(0, qps[0], wqe(1, datagram(ah, qps[1]), &[]));
    net.send(0, qps[0], wqe(2, datagram(ah, qps[2]), &[]));
    net.settle();
    assert!(net.frames().iter().all(|f| parsed(f).0.bth.pkey == 0x8123));
    assert_eq!(net.receives(0, qps[1]), [(1, OK)]);
    let got = net.nodes[0].done.iter().find(|c| c.queue == Queue::Recv);
    assert_eq!(got.unwrap().sender.unwrap().pkey_index, 2);
    assert!(net.receives(0, qps[2]).is_empty());
    assert_eq!(net.refused(0, Refused::BadPkey), 1);
}

#[test]
fn datagrams_stay_in_the_node_when_both_ends_are_there() {
    let mut net = Net::clean(1);
    let c = Conn::of(Transport::Ud);
    let (qa, qb) = net.pair(0, 0, &c);
    let m = net.nodes[0].mem(0x1000, 4096, ALL);
    m.region.write(2000, &[7; 100]).unwrap();
    let ah = net.ah(0, addr(0));
    let (now, node) = (net.now, &mut net.nodes[0].engine);
    for i in 0..2 {
        let receive = recv_wqe(i, &[m.sge(200 * i, 200)]);
        node.post_recvs(qb, &mut [receive].into());
    }
    node.post_send(qa, wqe(5, datagram(ah, qb), &[m.sge(2000, 100)]));
    node.post_send(qa, inline(6, datagram(ah, qb), &[9; 60]));
    while let Some(t) = node.poll_transmit(now) {
        node.loopback(now, &t);
    }
    net.drain();
    assert_eq!(net.receives(0, qb), [(0, OK), (1, OK)]);
    assert_eq!(net.sends(0, qa), [(5, OK), (6, OK)]);
    assert_eq!(
        (m.bytes(40, 100), m.bytes(240, 60)),
        (vec![7; 100], vec![9; 60])
    );
    assert_eq!(m.bytes(32, 8), [10, 0, 0, 1, 10, 0, 0, 1]);
    assert_eq!(net.wire.counters().offered, 0);
}

#[test]
fn a_failed_send_stops_the_sends_and_not_the_receives() {
    let mut p = ud();
    let ah = p.net.ah(0, addr(1));
    p.net.recv(0, p.qa, 50, &[p.a.sge(40_000, 100)]);
    let bad = rdma_soft::core::Sge {
        addr: 0,
        len: 8,
        lkey: 1,
    };
    let op = datagram(ah, p.qb);
    for (i, sge) in [(1, p.a.sge(0, 8)), (2, bad), (3, p.a.sge(0, 8))] {
        p.net.send(0, p.qa, wqe(i, op, &[sge]));
    }
    let prot = ibv_wc_status::IBV_WC_LOC_PROT_ERR;
    assert_eq!(p.net.sends(0, p.qa), [(1, OK), (2, prot), (3, FLUSHED)]);
    assert_eq!(p.states(), [SQE, RTS]);
    let back = p.net.ah(1, addr(0));
    p.net.send(1, p.qb, wqe(1, datagram(back, p.qa), &[]));
    p.net.settle();
    assert_eq!(p.net.receives(0, p.qa), [(50, OK)]);
    p.net.move_to_state(0, p.qa, RTS);
    p.net.recv(1, p.qb, 4, &[p.b.sge(0, 100)]);
    p.net.send(0, p.qa, wqe(4, op, &[]));
    p.net.settle();
    assert_eq!(p.net.sends(0, p.qa).last(), Some(&(4, OK)));
    assert_eq!(p.net.receives(1, p.qb).last(), Some(&(4, OK)));
}

#[test]
fn datagrams_take_their_receives_from_a_shared_queue() {
    let mut net = Net::clean(2);
    let c = Conn::of(Transport::Ud);
    let srq = net.nodes[1].create_srq(0, None);
    let qa = net.nodes[0].create_qp(&c);
    let init = QpInit {
        srq: Some(srq),
        max_recv_wr: 0,
        max_recv_sge: 0,
        ..net.nodes[1].init(&c)
    };
    let qbs: Vec<u32> = (0..2)
        .map(|_| net.nodes[1].engine.create_qp(init).unwrap())
        .collect();
    let b = net.nodes[1].mem(0x1000, 4096, ALL);
    for (node, qp) in [(0, qa), (1, qbs[0]), (1, qbs[1])] {
        net.move_to_rtr(node, qp, 0, 0, &c, 0);
        net.move_to_rts(node, qp, &c, 0);
    }
    for i in 0..4 {
        net.srq_recv(1, srq, i, &[b.sge(i * 100, 100)]);
    }
    let ah = net.ah(0, addr(1));
    for i in 0..4 {
        net.send(0, qa, wqe(i, datagram(ah, qbs[i as usize % 2]), &[]));
    }
    net.settle();
    let got = net.nodes[1].done.iter();
    let got: Vec<_> = got.map(|c| (c.wr_id, c.qp_num, c.queue)).collect();
    let want = [(0, 0), (1, 1), (2, 0), (3, 1)];
    assert_eq!(got, want.map(|(i, q)| (i, qbs[q], Queue::Srq(srq))));
}
