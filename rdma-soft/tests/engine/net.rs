//! Nodes, a faulty wire between them, and a clock that jumps to the next thing that happens.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_wc_status,
};
use rdma_soft::core::config::GidEntry;
use rdma_soft::core::time::Instant;
use rdma_soft::core::{
    Ah, Data, Event, InlineData, MAX_FRAME, Path, Queue, RecvWqe, Refused, SendOp, SendWqe, Sge,
    SgeList, SrqId, Transmit, mtu_code,
};
use rdma_soft::link::{FaultLayer, Faults, Frame, IngressError, IpFields, IpIds, check};
use rdma_soft::wire::Packet;
use rdma_soft::wire::icrc::{Flow, icrc};

pub use super::node::{ALL, Mem, Node};

pub const PORT: u16 = 4791;

/// How a pair of Queue Pairs is connected.
#[derive(Clone, Debug)]
pub struct Conn {
    pub transport: Transport,
    /// Over the nodes' IPv6 addresses.
    pub v6: bool,
    pub qkey: u32,
    pub mtu: u32,
    /// First PSN of either direction.
    pub psn: [u32; 2],
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub rd_atomic: u8,
    pub dest_rd_atomic: u8,
    pub access: ibv_access_flags,
    pub sq_sig_all: bool,
}

impl Default for Conn {
    fn default() -> Conn {
        Conn {
            transport: Transport::Rc,
            v6: false,
            qkey: QKEY,
            mtu: 1024,
            psn: [0xff_fffe, 0x12_3456],
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            rd_atomic: 4,
            dest_rd_atomic: 4,
            access: ALL,
            sq_sig_all: true,
        }
    }
}

/// The Q_Key of Queue Pairs whose test does not care.
pub const QKEY: u32 = 0x1122_3344;

impl Conn {
    pub fn of(transport: Transport) -> Conn {
        Conn {
            transport,
            ..Conn::default()
        }
    }
}

pub struct Net {
    pub now: Instant,
    pub nodes: Vec<Node>,
    pub wire: FaultLayer,
    /// Frames that were handed to the wire, kept if asked for.
    pub recorded: Option<Vec<Frame>>,
    /// Which nodes take part in which multicast groups.
    groups: BTreeSet<(IpAddr, usize)>,
    buf: Vec<u8>,
}

/// Address of a node: entry 0 of its GID table.
pub fn addr(i: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + i as u8))
}

/// The other address of a node: entry 1 of its GID table.
pub fn addr6(i: usize) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + i as u16))
}

fn addr_of(i: usize, v6: bool) -> IpAddr {
    if v6 { addr6(i) } else { addr(i) }
}

/// An address vector to `dst` from the address of its family.
pub fn ah_attr(dst: IpAddr) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr {
        is_global: 1,
        port_num: 1,
        ..Default::default()
    };
    attr.grh.hop_limit = 64;
    attr.grh.sgid_index = dst.is_ipv6().into();
    attr.grh.dgid.raw = GidEntry::v2(dst).gid;
    attr
}

/// The packet in a frame, and its payload.
pub fn parsed(frame: &Frame) -> (Packet, Vec<u8>) {
    let (packet, payload) = Packet::parse(&frame.bytes[..frame.bytes.len() - 4]).unwrap();
    (packet, payload.to_vec())
}

/// What the way in tells of a frame from `src` to `dst`.
pub fn path(src: IpAddr, dst: IpAddr) -> Path {
    Path::new(1, src, dst)
}

pub fn recv_wqe(wr_id: u64, sges: &[Sge]) -> RecvWqe {
    let mut list = SgeList::new();
    for s in sges {
        assert!(list.push(*s));
    }
    RecvWqe {
        wr_id,
        seq: wr_id,
        sges: list,
    }
}

pub fn wqe(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWqe {
    let mut list = SgeList::new();
    for s in sges {
        assert!(list.push(*s));
    }
    SendWqe {
        wr_id,
        seq: wr_id,
        op,
        data: Data::Sges(list),
        signaled: true,
        solicited: false,
        fence: false,
        xrc_srq: 0,
    }
}

pub fn inline(wr_id: u64, op: SendOp, bytes: &[u8]) -> SendWqe {
    let mut data = InlineData::default();
    data.grow(bytes.len()).unwrap().copy_from_slice(bytes);
    SendWqe {
        data: Data::Inline(data),
        ..wqe(wr_id, op, &[])
    }
}

pub const SEND: SendOp = SendOp::Send {
    imm: None,
    invalidate: None,
};

pub const OK: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
pub const FLUSHED: ibv_wc_status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
pub const RESET: ibv_qp_state = ibv_qp_state::IBV_QPS_RESET;
pub const INIT: ibv_qp_state = ibv_qp_state::IBV_QPS_INIT;
pub const RTR: ibv_qp_state = ibv_qp_state::IBV_QPS_RTR;
pub const RTS: ibv_qp_state = ibv_qp_state::IBV_QPS_RTS;
pub const SQD: ibv_qp_state = ibv_qp_state::IBV_QPS_SQD;
pub const SQE: ibv_qp_state = ibv_qp_state::IBV_QPS_SQE;
pub const ERR: ibv_qp_state = ibv_qp_state::IBV_QPS_ERR;

impl Net {
    pub fn new(n: usize, active_mtu: u32, window: u32, faults: Faults, seed: u64) -> Net {
        let nodes = (0..n)
            .map(|i| Node::new(i, active_mtu, window, seed))
            .collect();
        Net {
            now: Instant::ZERO,
            nodes,
            wire: FaultLayer::new(faults, seed),
            recorded: None,
            groups: BTreeSet::new(),
            buf: vec![0; MAX_FRAME + 4],
        }
    }

    pub fn clean(n: usize) -> Net {
        Net::new(n, 4096, 64, "delay=5us".parse().unwrap(), 1)
    }

    /// A connected pair of Queue Pairs between two nodes (or on one).
    pub fn pair(&mut self, a: usize, b: usize, c: &Conn) -> (u32, u32) {
        let (qa, qb) = (self.nodes[a].create_qp(c), self.nodes[b].create_qp(c));
        self.connect(a, qa, b, qb, c);
        (qa, qb)
    }

    pub fn connect(&mut self, a: usize, qa: u32, b: usize, qb: u32, c: &Conn) {
        self.move_to_rtr(a, qa, b, qb, c, 1);
        self.move_to_rtr(b, qb, a, qa, c, 0);
        self.move_to_rts(a, qa, c, 0);
        self.move_to_rts(b, qb, c, 1);
    }

    /// RESET to RTR; the peer's packets start at `c.psn[rq]`. A Queue Pair of UD has no peer.
    pub fn move_to_rtr(&mut self, a: usize, qa: u32, b: usize, qb: u32, c: &Conn, rq: usize) {
        let mut attr = ibv_qp_attr {
            port_num: 1,
            qp_access_flags: c.access.bits(),
            qkey: c.qkey,
            ..Default::default()
        };
        self.advance(a, qa, INIT, &mut attr);
        attr.path_mtu = mtu_code(c.mtu);
        attr.dest_qp_num = qb;
        attr.rq_psn = c.psn[rq];
        attr.max_dest_rd_atomic = c.dest_rd_atomic;
        attr.min_rnr_timer = c.min_rnr_timer;
        attr.ah_attr = ah_attr(addr_of(b, c.v6));
        self.advance(a, qa, RTR, &mut attr);
    }

    /// RTR to RTS; packets start at `c.psn[sq]`.
    pub fn move_to_rts(&mut self, a: usize, qa: u32, c: &Conn, sq: usize) {
        let mut attr = ibv_qp_attr {
            timeout: c.timeout,
            retry_cnt: c.retry_cnt,
            rnr_retry: c.rnr_retry,
            sq_psn: c.psn[sq],
            max_rd_atomic: c.rd_atomic,
            ..Default::default()
        };
        self.advance(a, qa, RTS, &mut attr);
    }

    /// The next state, with the attributes that the step needs.
    fn advance(&mut self, a: usize, qa: u32, to: ibv_qp_state, attr: &mut ibv_qp_attr) {
        let (now, init) = self.nodes[a].engine.query_qp(qa).unwrap();
        attr.qp_state = to;
        let required = rules::required(init.transport, now.qp_state, to).unwrap();
        self.modify(a, qa, attr, required | ibv_qp_attr_mask::IBV_QP_STATE);
    }

    pub fn move_to_state(&mut self, a: usize, qa: u32, state: ibv_qp_state) {
        let attr = ibv_qp_attr {
            qp_state: state,
            ..Default::default()
        };
        self.modify(a, qa, &attr, ibv_qp_attr_mask::IBV_QP_STATE);
    }

    pub fn modify(&mut self, a: usize, qa: u32, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) {
        let got = self.nodes[a].engine.modify_qp(qa, attr, mask);
        assert_eq!(got.unwrap(), attr.qp_state);
        self.drain();
    }

    pub fn state(&self, a: usize, qa: u32) -> ibv_qp_state {
        self.nodes[a].engine.query_qp(qa).unwrap().0.qp_state
    }

    pub fn send(&mut self, a: usize, qa: u32, wqe: SendWqe) {
        self.nodes[a].engine.post_send(qa, wqe);
        self.drain();
    }

    pub fn recv(&mut self, a: usize, qa: u32, wr_id: u64, sges: &[Sge]) {
        let mut wqes = [recv_wqe(wr_id, sges)].into();
        self.nodes[a].engine.post_recvs(qa, &mut wqes);
        self.drain();
    }

    pub fn srq_recv(&mut self, a: usize, srq: SrqId, wr_id: u64, sges: &[Sge]) {
        self.nodes[a]
            .engine
            .post_srq_recv(srq, recv_wqe(wr_id, sges));
        self.drain();
    }

    /// An address handle of node `a` for `dst`.
    pub fn ah(&mut self, a: usize, dst: IpAddr) -> Ah {
        let node = &mut self.nodes[a];
        node.engine.create_ah(node.pd, &ah_attr(dst)).unwrap()
    }

    /// Attaches a Queue Pair to a group; the node listens to the group from then on.
    pub fn attach(&mut self, a: usize, qa: u32, group: IpAddr) {
        let gid = GidEntry::v2(group).gid;
        let first = self.nodes[a].engine.attach_mcast(qa, gid).unwrap();
        assert_eq!(self.groups.insert((group, a)), first);
    }

    pub fn detach(&mut self, a: usize, qa: u32, group: IpAddr) {
        let gid = GidEntry::v2(group).gid;
        if self.nodes[a].engine.detach_mcast(qa, gid).unwrap() {
            assert!(self.groups.remove(&(group, a)));
        }
    }

    /// Takes what every node has to send and to report.
    pub fn drain(&mut self) {
        for i in 0..self.nodes.len() {
            while let Some(t) = self.nodes[i].engine.poll_transmit(self.now) {
                assert!(t.packet.bth.psn.value() < 1 << 24);
                if t.is_multicast() {
                    self.nodes[i].engine.loopback(self.now, &t);
                }
                self.transmit(i, &t);
            }
            while let Some(event) = self.nodes[i].engine.poll_event() {
                let node = &mut self.nodes[i];
                match event {
                    Event::Completion { cq, wc, solicited } => {
                        node.done.push(wc);
                        node.cqs.push(cq);
                        node.solicited.push(solicited);
                    }
                    Event::Qp { kind, .. } => node.events.push(kind),
                    Event::Srq { srq, kind } => node.srq_events.push((srq, kind)),
                    Event::State { .. } => {}
                }
            }
        }
    }

    /// Makes a packet a frame, and puts it on the wire.
    fn transmit(&mut self, i: usize, t: &Transmit) {
        let Some(len) = self.nodes[i].engine.emit(t, &mut self.buf) else {
            return;
        };
        let (src, dst) = (SocketAddr::new(t.src, PORT), SocketAddr::new(t.dst, PORT));
        let crc = icrc(&Flow::new(src, dst), &self.buf[..len]);
        self.buf[len..len + 4].copy_from_slice(&crc.to_le_bytes());
        let bytes = self.buf[..len + 4].to_vec();
        let ip = IpFields {
            traffic_class: t.traffic_class,
            hop_limit: t.hop_limit,
            flow_label: t.flow_label,
        };
        let frame = Frame {
            src,
            dst,
            ip,
            bytes,
        };
        if let Some(all) = &mut self.recorded {
            all.push(frame.clone());
        }
        self.wire.offer(self.now, frame);
    }

    /// From now on the test itself delivers what the wire gets ([`Net::frames`]).
    pub fn by_hand(&mut self) {
        self.wire.set_faults("loss=100%".parse().unwrap());
        self.recorded = Some(vec![]);
    }

    /// The frames that went out since this was last called.
    pub fn frames(&mut self) -> Vec<Frame> {
        std::mem::take(self.recorded.as_mut().unwrap())
    }

    /// Gives a frame to whoever it is for.
    pub fn deliver(&mut self, frame: &Frame) {
        let (src, dst) = (frame.src.ip(), frame.dst.ip());
        for i in 0..self.nodes.len() {
            let is = |a: IpAddr| a == addr(i) || a == addr6(i);
            let listens = self.groups.contains(&(dst, i)) && !is(src);
            if is(dst) || listens {
                self.arrive(i, frame);
            }
        }
        self.drain();
    }

    pub fn arrive(&mut self, i: usize, frame: &Frame) {
        let node = &mut self.nodes[i];
        match check(frame.src, frame.dst, &frame.bytes, 0, IpIds::Own) {
            Ok((packet, payload)) => {
                let path = Path {
                    traffic_class: frame.ip.traffic_class,
                    hop_limit: frame.ip.hop_limit,
                    flow_label: frame.ip.flow_label,
                    ..path(frame.src.ip(), frame.dst.ip())
                };
                node.engine.handle_packet(self.now, &path, &packet, payload);
            }
            Err(e) => node.engine.refuse(match e {
                IngressError::TooShort(_) => Refused::TooShort,
                IngressError::BadIcrc => Refused::BadIcrc,
                IngressError::UnknownOpcode(_) => Refused::UnknownOpcode,
                _ => Refused::BadHeader,
            }),
        }
    }

    /// Does the next thing that happens; false if nothing ever will.
    pub fn step(&mut self) -> bool {
        if let Some(frame) = self.wire.poll(self.now) {
            self.deliver(&frame);
            return true;
        }
        let timers = self.nodes.iter().filter_map(|n| n.engine.next_timeout());
        let Some(next) = timers.chain(self.wire.next_timeout()).min() else {
            return false;
        };
        self.now = self.now.max(next);
        for node in &mut self.nodes {
            node.engine.handle_timeout(self.now);
        }
        self.drain();
        true
    }

    /// Runs until `done`, or nothing is left to happen, or the clock has moved by `limit`.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&Net) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            if self.now > end || !self.step() {
                return done(self);
            }
        }
        true
    }

    /// Runs until nothing happens any more.
    pub fn settle(&mut self) {
        self.run(Duration::from_secs(600), |_| false);
    }

    /// Statuses of a node's completions, in order, with their marks.
    pub fn ends(&self, a: usize) -> Vec<(u64, ibv_wc_status)> {
        let done = self.nodes[a].done.iter();
        done.map(|c| (c.wr_id, c.status)).collect()
    }

    /// The same of one Queue Pair's sends.
    pub fn sends(&self, a: usize, qa: u32) -> Vec<(u64, ibv_wc_status)> {
        let done = self.nodes[a].done.iter();
        done.filter(|c| c.qp_num == qa && c.queue == Queue::Send)
            .map(|c| (c.wr_id, c.status))
            .collect()
    }

    /// The same of one Queue Pair's receives, its own and those of a shared queue.
    pub fn receives(&self, a: usize, qa: u32) -> Vec<(u64, ibv_wc_status)> {
        let done = self.nodes[a].done.iter();
        done.filter(|c| c.qp_num == qa && c.queue != Queue::Send)
            .map(|c| (c.wr_id, c.status))
            .collect()
    }

    /// How many frames a node refused for a reason.
    pub fn refused(&self, a: usize, why: Refused) -> u64 {
        self.nodes[a].engine.counters().refused(why)
    }

    /// Frames that arrived are accepted or in exactly one counter.
    pub fn balanced(&self) {
        for node in &self.nodes {
            let k = node.engine.counters();
            let refused: u64 = Refused::ALL.iter().map(|&r| k.refused(r)).sum();
            assert_eq!(k.rx_frames, k.rx_accepted + refused);
        }
    }
}
