//! Nodes, a faulty wire between them, and a clock that jumps to the next thing that happens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{
    ibv_access_flags, ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_wc_status,
};
use rdma_soft::core::config::{Caps, Config, GidEntry, PortConfig};
use rdma_soft::core::time::Instant;
use rdma_soft::core::{
    Completion, CqId, Data, Engine, Event, InlineData, MAX_FRAME, Path, PdId, QpInit, RecvWqe,
    Refused, Remote, SendOp, SendWqe, Sge, SgeList, mtu_code,
};
use rdma_soft::link::{FaultLayer, Faults, Frame, IngressError, IpIds, check};
use rdma_soft::mem::Region;
use rdma_soft::wire::icrc::{Flow, icrc};

pub const PORT: u16 = 4791;

/// Everything that peers and owners may do.
pub const ALL: ibv_access_flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
    .union(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)
    .union(ibv_access_flags::IBV_ACCESS_REMOTE_READ)
    .union(ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC);

/// A registered region.
#[derive(Clone)]
pub struct Mem {
    pub region: Region,
    pub iova: u64,
    pub lkey: u32,
    pub rkey: u32,
}

impl Mem {
    pub fn sge(&self, at: u64, len: u32) -> Sge {
        Sge {
            addr: self.iova + at,
            len,
            lkey: self.lkey,
        }
    }

    pub fn remote(&self, at: u64) -> Remote {
        Remote {
            addr: self.iova + at,
            rkey: self.rkey,
        }
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.region.read(at, &mut out).unwrap();
        out
    }

    pub fn word(&self, at: u64) -> u64 {
        u64::from_ne_bytes(self.bytes(at, 8).try_into().unwrap())
    }
}

/// How a pair of Queue Pairs is connected.
#[derive(Clone, Debug)]
pub struct Conn {
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

pub struct Node {
    pub engine: Engine,
    pub addr: IpAddr,
    pub pd: PdId,
    pub cq: CqId,
    pub done: Vec<Completion>,
    pub solicited: Vec<bool>,
    pub events: Vec<ibv_event_type>,
}

pub struct Net {
    pub now: Instant,
    pub nodes: Vec<Node>,
    pub wire: FaultLayer,
    /// Hash of every frame and completion, with its time.
    pub trace: u64,
    /// Frames that were handed to the wire, kept if asked for.
    pub recorded: Option<Vec<Frame>>,
    buf: Vec<u8>,
}

pub fn addr(i: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + i as u8))
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

pub const SEND: SendOp = SendOp::Send { imm: None };

impl Net {
    pub fn new(n: usize, active_mtu: u32, window: u32, faults: Faults, seed: u64) -> Net {
        let nodes = (0..n)
            .map(|i| Node::new(i, active_mtu, window, seed))
            .collect();
        Net {
            now: Instant::ZERO,
            nodes,
            wire: FaultLayer::new(faults, seed),
            trace: 0xcbf2_9ce4_8422_2325,
            recorded: None,
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

    /// RESET to RTR; the peer's packets start at `c.psn[rq]`.
    pub fn move_to_rtr(&mut self, a: usize, qa: u32, b: usize, qb: u32, c: &Conn, rq: usize) {
        use ibv_qp_attr_mask as M;
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: c.access.bits(),
            ..Default::default()
        };
        let mask = M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS;
        self.modify(a, qa, &attr, mask);
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = mtu_code(c.mtu);
        attr.dest_qp_num = qb;
        attr.rq_psn = c.psn[rq];
        attr.max_dest_rd_atomic = c.dest_rd_atomic;
        attr.min_rnr_timer = c.min_rnr_timer;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.hop_limit = 64;
        attr.ah_attr.grh.dgid.raw = GidEntry::v2(addr(b)).gid;
        let mask = M::IBV_QP_STATE
            | M::IBV_QP_AV
            | M::IBV_QP_PATH_MTU
            | M::IBV_QP_DEST_QPN
            | M::IBV_QP_RQ_PSN
            | M::IBV_QP_MAX_DEST_RD_ATOMIC
            | M::IBV_QP_MIN_RNR_TIMER;
        self.modify(a, qa, &attr, mask);
    }

    /// RTR to RTS; packets start at `c.psn[sq]`.
    pub fn move_to_rts(&mut self, a: usize, qa: u32, c: &Conn, sq: usize) {
        use ibv_qp_attr_mask as M;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: c.timeout,
            retry_cnt: c.retry_cnt,
            rnr_retry: c.rnr_retry,
            sq_psn: c.psn[sq],
            max_rd_atomic: c.rd_atomic,
            ..Default::default()
        };
        let mask = M::IBV_QP_STATE
            | M::IBV_QP_TIMEOUT
            | M::IBV_QP_RETRY_CNT
            | M::IBV_QP_RNR_RETRY
            | M::IBV_QP_SQ_PSN
            | M::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(a, qa, &attr, mask);
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
        let mut list = SgeList::new();
        for s in sges {
            assert!(list.push(*s));
        }
        let wqe = RecvWqe {
            wr_id,
            seq: wr_id,
            sges: list,
        };
        self.nodes[a].engine.post_recv(qa, wqe);
        self.drain();
    }

    /// Takes what every node has to send and to report.
    pub fn drain(&mut self) {
        for i in 0..self.nodes.len() {
            loop {
                let node = &mut self.nodes[i];
                let Some(t) = node.engine.poll_transmit(self.now) else {
                    break;
                };
                assert!(t.packet.bth.psn.value() < 1 << 24);
                let Some(len) = node.engine.emit(&t, &mut self.buf) else {
                    continue;
                };
                let (src, dst) = (SocketAddr::new(t.src, PORT), SocketAddr::new(t.dst, PORT));
                let crc = icrc(&Flow::new(src, dst), &self.buf[..len]);
                self.buf[len..len + 4].copy_from_slice(&crc.to_le_bytes());
                let bytes = self.buf[..len + 4].to_vec();
                self.hash(&bytes);
                let frame = Frame { src, dst, bytes };
                if let Some(all) = &mut self.recorded {
                    all.push(frame.clone());
                }
                self.wire.offer(self.now, frame);
            }
            while let Some(event) = self.nodes[i].engine.poll_event() {
                match event {
                    Event::Completion { wc, solicited, .. } => {
                        self.hash(format!("{wc:?}").as_bytes());
                        self.nodes[i].done.push(wc);
                        self.nodes[i].solicited.push(solicited);
                    }
                    Event::Qp { kind, .. } => self.nodes[i].events.push(kind),
                    Event::State { .. } => {}
                }
            }
        }
    }

    fn hash(&mut self, bytes: &[u8]) {
        for b in self.now.as_nanos().to_le_bytes().iter().chain(bytes) {
            self.trace = (self.trace ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub fn deliver(&mut self, frame: &Frame) {
        let Some(i) = self.nodes.iter().position(|n| n.addr == frame.dst.ip()) else {
            return;
        };
        let node = &mut self.nodes[i];
        match check(frame.src, frame.dst, &frame.bytes, IpIds::Own) {
            Ok((packet, payload)) => {
                let path = Path {
                    port: 1,
                    src: frame.src.ip(),
                    dst: frame.dst.ip(),
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
        self.drain();
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
        self.nodes[a]
            .done
            .iter()
            .map(|c| (c.wr_id, c.status))
            .collect()
    }
}

impl Node {
    fn new(i: usize, active_mtu: u32, window: u32, seed: u64) -> Node {
        let port = PortConfig {
            gids: vec![GidEntry::v2(addr(i))],
            pkeys: vec![0xffff],
            active_mtu,
            max_msg_sz: 1 << 31,
        };
        let config = Config {
            ports: vec![port],
            caps: Caps::default(),
            window,
        };
        let mut engine = Engine::new(config, seed ^ (i as u64 + 1));
        let pd = engine.alloc_pd().unwrap();
        let cq = engine.create_cq().unwrap();
        Node {
            engine,
            addr: addr(i),
            pd,
            cq,
            done: vec![],
            solicited: vec![],
            events: vec![],
        }
    }

    pub fn create_qp(&mut self, c: &Conn) -> u32 {
        let init = QpInit {
            transport: Transport::Rc,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            sq_sig_all: c.sq_sig_all,
            max_send_wr: 1024,
            max_recv_wr: 1024,
            max_send_sge: 16,
            max_recv_sge: 16,
            max_inline: 256,
        };
        self.engine.create_qp(init).unwrap()
    }

    /// Registers `len` bytes, at an address that does not depend on the process.
    pub fn mem(&mut self, iova: u64, len: usize, access: ibv_access_flags) -> Mem {
        let region = Region::owned(len);
        let keys = self
            .engine
            .reg_mr(self.pd, region.clone(), iova, access)
            .unwrap();
        Mem {
            region,
            iova,
            lkey: keys.lkey,
            rkey: keys.rkey,
        }
    }
}
