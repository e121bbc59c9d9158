//! Frames of every class, forged and mutated, against Queue Pairs of every transport in every state.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_access_flags, ibv_mw_type, ibv_qp_state};
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Path, SendOp, SendWqe, Sge, SrqId, WindowBind};
use rdma_soft::link::{Frame, IpFields};
use rdma_soft::wire::icrc::{Flow, icrc};
use rdma_soft::wire::{
    Aeth, AtomicEth, Bth, Class, Deth, Headers, Opcode, Packet, Psn, Reth, Syndrome, pad_for,
};

use super::datagram::datagram;
use super::net::*;

const EVERYBODY: u32 = 0xff_ffff;
const MTU: usize = 256;

fn group() -> std::net::IpAddr {
    "239.1.2.3".parse().unwrap()
}

/// Node 1 under attack, with a Queue Pair of each transport in each state that it can be in.
struct Victim {
    net: Net,
    qps: Vec<(Transport, u32)>,
    srqs: [SrqId; 2],
    /// What peers may reach: all of one region, and a window on a part of the other.
    open: Mem,
    windowed: Mem,
    window: u32,
    /// Regions around and beside them that no peer may reach.
    closed: Vec<Mem>,
    inbox: Mem,
    conn: Conn,
}

const STATES: [ibv_qp_state; 7] = [RESET, INIT, RTR, RTS, SQD, SQE, ERR];
const KINDS: [(Transport, bool); 7] = [
    (Transport::Rc, false),
    (Transport::Rc, true),
    (Transport::Uc, false),
    (Transport::Uc, true),
    (Transport::Ud, false),
    (Transport::XrcIni, false),
    (Transport::XrcTgt, false),
];

impl Victim {
    fn new() -> Victim {
        let mut net = Net::clean(2);
        let conn = Conn {
            mtu: MTU as u32,
            psn: [50, 90],
            ..Conn::default()
        };
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let node = &mut net.nodes[1];
        let open = node.mem(0x10_0000, 4096, ALL);
        let bindable = local | ibv_access_flags::IBV_ACCESS_MW_BIND;
        let windowed = node.mem(0x20_0000, 4096, bindable);
        let closed = [0x10_0000 - 4096, 0x10_1000, 0x20_0000 - 4096, 0x20_1000];
        let closed = closed.map(|at| node.mem(at, 4096, local)).into();
        let inbox = node.mem(0x30_0000, 4096, local);
        let xrcd = node.engine.open_xrcd();
        let srqs = [node.create_srq(2, None), node.create_srq(2, Some(xrcd))];
        let mut victim = Victim {
            net,
            qps: vec![],
            srqs,
            open,
            windowed,
            window: 0,
            closed,
            inbox,
            conn,
        };
        for (transport, shared) in KINDS {
            let can =
                |s: &ibv_qp_state| *s != SQE || matches!(transport, Transport::Uc | Transport::Ud);
            for state in STATES.into_iter().filter(can) {
                let c = Conn {
                    transport,
                    ..victim.conn.clone()
                };
                let node = &mut victim.net.nodes[1];
                let qp = match (transport, shared) {
                    (Transport::XrcTgt, _) => node.create_target(xrcd),
                    (_, true) => node.create_qp_on(&c, srqs[0]),
                    (_, false) => node.create_qp(&c),
                };
                victim.put(qp, transport, state);
                if transport == Transport::Ud {
                    victim.net.attach(1, qp, group());
                }
                victim.qps.push((transport, qp));
            }
        }
        victim.bind();
        victim
    }

    fn sends(transport: Transport) -> bool {
        transport != Transport::XrcTgt
    }

    /// Takes a Queue Pair in RESET to a state, with requests that wait for their answers where it has any.
    fn put(&mut self, qp: u32, transport: Transport, state: ibv_qp_state) {
        if state == RESET {
            return;
        }
        let (c, net) = (self.conn.clone(), &mut self.net);
        if state == INIT {
            let attr = rdma_core_sys::ibv_qp_attr {
                qp_state: INIT,
                port_num: 1,
                qkey: QKEY,
                ..Default::default()
            };
            let mask = rdma_core_sys::rules::required(transport, RESET, INIT).unwrap();
            let mask = mask | rdma_core_sys::ibv_qp_attr_mask::IBV_QP_STATE;
            net.modify(1, qp, &attr, mask);
            return;
        }
        net.move_to_rtr(1, qp, 0, 7, &c, 0);
        if state == RTR {
            return;
        }
        net.move_to_rts(1, qp, &c, 1);
        if Victim::sends(transport) {
            let remote = self.open.remote(0);
            let fetch = matches!(transport, Transport::Rc | Transport::XrcIni);
            let ops: &[SendOp] = if fetch {
                &[SendOp::Read { remote }, SEND]
            } else {
                &[]
            };
            for op in ops {
                let w = wqe(8, *op, &[self.inbox.sge(0, 600)]);
                self.net.send(1, qp, w);
            }
        }
        match state {
            RTS => {}
            SQE => {
                let bad = Sge {
                    addr: 0,
                    len: 1,
                    lkey: 1,
                };
                let op = match transport {
                    Transport::Ud => datagram(self.net.ah(1, addr(0)), 7),
                    _ => SEND,
                };
                self.net.send(1, qp, wqe(9, op, &[bad]));
                assert_eq!(self.net.state(1, qp), SQE);
            }
            _ => self.net.move_to_state(1, qp, state),
        }
    }

    /// A window on bytes 1000..2000 of its region, bound by the first RC Queue Pair in RTS.
    fn bind(&mut self) {
        let (_, qp) = self.qps[3];
        let node = &mut self.net.nodes[1];
        let window = node.engine.alloc_mw(node.pd, ibv_mw_type::IBV_MW_TYPE_2);
        let window = window.unwrap();
        self.window = window ^ 1;
        let bind = WindowBind {
            window,
            rkey: self.window,
            lkey: Some(self.windowed.lkey),
            addr: self.windowed.iova + 1000,
            len: 1000,
            access: ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        };
        self.net.send(1, qp, wqe(10, SendOp::BindWindow(bind), &[]));
    }

    /// Receives for everybody, into cells of 200 bytes with guards behind.
    fn feed(&mut self) {
        for i in 0..self.qps.len() {
            let (transport, qp) = self.qps[i];
            let own = !matches!(transport, Transport::XrcIni | Transport::XrcTgt);
            let (_, init) = self.net.nodes[1].engine.query_qp(qp).unwrap();
            if own && init.srq.is_none() && self.net.state(1, qp) != RESET {
                let into = self.inbox.sge(i as u64 % 16 * 256, 200);
                self.net.recv(1, qp, 1, &[into]);
            }
        }
        for srq in self.srqs {
            self.net.srq_recv(1, srq, 1, &[self.inbox.sge(0, 200)]);
        }
    }

    /// Queue Pairs that broke are put into another state.
    fn heal(&mut self, rng: &mut Rng) {
        for i in 0..self.qps.len() {
            let (transport, qp) = self.qps[i];
            if self.net.state(1, qp) == ERR && rng.chance(0.2) {
                self.net.move_to_state(1, qp, RESET);
                let state = [INIT, RTR, RTS, RTS, SQD][rng.below(5) as usize];
                self.put(qp, transport, state);
            }
        }
    }

    /// A packet with a known opcode and fields near what would be right.
    fn forge(&mut self, rng: &mut Rng) -> (Path, Packet) {
        let (transport, qp) = self.qps[rng.below(self.qps.len() as u64) as usize];
        let class = match transport {
            Transport::Uc => Class::Uc,
            Transport::Ud => Class::Ud,
            Transport::Rc => Class::Rc,
            _ => Class::Xrc,
        };
        let fits = |o: &&&rdma_soft::wire::OpcodeInfo| o.class == class;
        let all: Vec<_> = Opcode::all().collect();
        let of_class: Vec<_> = all.iter().filter(fits).copied().collect();
        let among = if rng.chance(0.9) { &of_class } else { &all };
        let info = among[rng.below(among.len() as u64) as usize];
        let (attr, _) = self.net.nodes[1].engine.query_qp(qp).unwrap();
        let due = if info.is_request() { attr.rq_psn } else { 90 };
        let off = if rng.chance(0.7) {
            0
        } else {
            rng.below(5) as u32
        };
        let many = transport == Transport::Ud && rng.chance(0.3);
        let mut p = Packet::new(Bth {
            opcode: info.opcode,
            dest_qp: if many { EVERYBODY } else { qp },
            psn: Psn::new(due).plus(off).minus(off / 2),
            ack_req: rng.chance(0.5),
            pkey: if rng.chance(0.95) {
                0xffff
            } else {
                rng.next_u32() as u16
            },
            solicited: rng.chance(0.5),
            ..Bth::default()
        });
        let has = |h| info.headers.contains(h);
        let mem = if rng.chance(0.8) {
            &self.open
        } else {
            &self.windowed
        };
        let near = [0, 900, 1000, 1999, 4000, 4095][rng.below(6) as usize];
        let va = mem.iova.wrapping_add(near).wrapping_sub(rng.below(3));
        let va = if rng.chance(0.05) { rng.next_u64() } else { va };
        let rkey =
            [mem.rkey, mem.rkey, self.window, mem.lkey, rng.next_u32()][rng.below(5) as usize];
        let len = [0, 1, 256, 257, 700, rng.next_u32()][rng.below(6) as usize];
        let srq = [
            self.srqs[1].0,
            self.srqs[1].0,
            self.srqs[0].0,
            rng.next_u32() >> 8,
        ][rng.below(4) as usize];
        p.xrceth = has(Headers::XRCETH).then_some(srq);
        let qkey = if rng.chance(0.8) {
            QKEY
        } else {
            rng.next_u32()
        };
        let src_qp = if rng.chance(0.5) { qp } else { 7 };
        p.deth = has(Headers::DETH).then_some(Deth { qkey, src_qp });
        p.reth = has(Headers::RETH).then_some(Reth { va, rkey, len });
        p.atomic = has(Headers::ATOMIC_ETH).then(|| AtomicEth {
            va,
            rkey,
            swap_or_add: rng.next_u64(),
            compare: 0,
        });
        p.aeth = has(Headers::AETH).then(|| Aeth {
            syndrome: Syndrome::from_byte(rng.next_u64() as u8),
            msn: rng.next_u32() & 0xff_ffff,
        });
        p.atomic_ack = has(Headers::ATOMIC_ACK_ETH).then(|| rng.next_u64());
        p.imm = has(Headers::IMM).then(|| rng.next_u32());
        p.ieth = has(Headers::IETH).then_some(rkey);
        let to = if many { group() } else { addr(1) };
        let from = if rng.chance(0.95) { addr(0) } else { addr(1) };
        let mut path = path(from, to);
        path.port = if rng.chance(0.95) { 1 } else { 2 };
        (path, p)
    }

    /// Gives one packet to the victim, and sees that it is counted once.
    fn give(&mut self, path: &Path, packet: &Packet, payload: &[u8]) {
        let now = self.net.now;
        let before = self.net.nodes[1].engine.counters().rx_frames;
        let engine = &mut self.net.nodes[1].engine;
        engine.handle_packet(now, path, packet, payload);
        assert_eq!(engine.counters().rx_frames, before + 1);
        self.net.balanced();
    }

    /// What nobody may touch is as it was.
    fn unharmed(&self, what: &str) {
        for m in &self.closed {
            assert!(m.bytes(0, 4096) == [0; 4096], "{what}: {:#x}", m.iova);
        }
        assert!(
            self.windowed.bytes(0, 4096) == [0; 4096],
            "{what}: no WRITE"
        );
        for cell in 0..16 {
            let guard = self.inbox.bytes(cell * 256 + 200, 56);
            // The READ of 600 bytes lands over the guards of the first cells.
            assert!(cell < 3 || guard == [0; 56], "{what}: cell {cell}");
        }
    }

    /// New Queue Pairs talk as if nothing had happened.
    fn alive(&mut self) {
        self.net.settle();
        for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
            let c = Conn::of(transport);
            let (qa, qb) = self.net.pair(0, 1, &c);
            self.net.recv(1, qb, 1, &[self.inbox.sge(0, 200)]);
            let op = match transport {
                Transport::Ud => datagram(self.net.ah(0, addr(1)), qb),
                _ => SEND,
            };
            self.net.send(0, qa, wqe(1, op, &[]));
            self.net.settle();
            assert_eq!(self.net.receives(1, qb), [(1, OK)], "{transport:?}");
        }
    }
}

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
        net.settle();
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
