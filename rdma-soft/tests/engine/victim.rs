//! A node under attack: Queue Pairs of every transport in every state, and packets that are near what they
//! wait for.

use super::datagram::datagram;
use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_access_flags, ibv_mw_type, ibv_qp_state};
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Path, SendOp, Sge, SrqId, WindowBind};
use rdma_soft::wire::{
    Aeth, AtomicEth, Bth, Class, Deth, Headers, Opcode, Packet, Psn, Reth, Syndrome,
};

use super::net::*;

pub const EVERYBODY: u32 = 0xff_ffff;
pub const MTU: usize = 256;

pub fn group() -> std::net::IpAddr {
    "239.1.2.3".parse().unwrap()
}

/// Node 1 under attack, with a Queue Pair of each transport in each state that it can be in.
pub struct Victim {
    pub net: Net,
    pub qps: Vec<(Transport, u32)>,
    pub srqs: [SrqId; 2],
    /// What peers may reach: all of one region, and a window on a part of the other.
    pub open: Mem,
    pub windowed: Mem,
    pub window: u32,
    /// Regions around and beside them that no peer may reach.
    pub closed: Vec<Mem>,
    pub inbox: Mem,
    pub conn: Conn,
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
    pub fn new() -> Victim {
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

    pub fn sends(transport: Transport) -> bool {
        transport != Transport::XrcTgt
    }

    /// Takes a Queue Pair in RESET to a state, with requests that wait for their answers where it has any.
    pub fn put(&mut self, qp: u32, transport: Transport, state: ibv_qp_state) {
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
    pub fn bind(&mut self) {
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
    pub fn feed(&mut self) {
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
    pub fn heal(&mut self, rng: &mut Rng) {
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
    pub fn forge(&mut self, rng: &mut Rng) -> (Path, Packet) {
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
    pub fn give(&mut self, path: &Path, packet: &Packet, payload: &[u8]) {
        let now = self.net.now;
        let before = self.net.nodes[1].engine.counters().rx_frames;
        let engine = &mut self.net.nodes[1].engine;
        engine.handle_packet(now, path, packet, payload);
        assert_eq!(engine.counters().rx_frames, before + 1);
        self.net.balanced();
    }

    /// What nobody may touch is as it was.
    pub fn unharmed(&self, what: &str) {
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
    pub fn alive(&mut self) {
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
