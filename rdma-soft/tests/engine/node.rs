//! One node of the tests: its engine, what it reported, and its objects.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_access_flags, ibv_event_type};
use rdma_soft::core::config::{Caps, Config, GidEntry, PortConfig, Strict};
use rdma_soft::core::{
    Completion, CqId, Engine, PdId, QpInit, Remote, Sge, SrqId, SrqInit, XrcdId,
};
use rdma_soft::mem::Region;

use super::net::{Conn, addr, addr6};

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

pub struct Node {
    pub engine: Engine,
    pub pd: PdId,
    pub cq: CqId,
    pub done: Vec<Completion>,
    /// The queue that each of `done` went to.
    pub cqs: Vec<CqId>,
    pub solicited: Vec<bool>,
    pub events: Vec<ibv_event_type>,
    pub srq_events: Vec<(SrqId, ibv_event_type)>,
}

impl Node {
    pub fn new(i: usize, active_mtu: u32, window: u32, seed: u64) -> Node {
        let port = PortConfig {
            gids: vec![GidEntry::v2(addr(i)), GidEntry::v2(addr6(i))],
            pkeys: vec![0xffff],
            active_mtu,
            max_msg_sz: 1 << 31,
        };
        let config = Config {
            ports: vec![port],
            caps: Caps::default(),
            window,
            strict: Strict::default(),
        };
        Node::with(config, seed ^ (i as u64 + 1))
    }

    /// A node that is configured as the test likes it.
    pub fn with(config: Config, seed: u64) -> Node {
        let mut engine = Engine::new(config, seed);
        let pd = engine.alloc_pd().unwrap();
        let cq = engine.create_cq().unwrap();
        Node {
            engine,
            pd,
            cq,
            done: vec![],
            cqs: vec![],
            solicited: vec![],
            events: vec![],
            srq_events: vec![],
        }
    }

    /// What a Queue Pair of this transport is created with. An XRC target needs its domain yet.
    pub fn init(&self, c: &Conn) -> QpInit {
        let target = c.transport == Transport::XrcTgt;
        let initiator = c.transport == Transport::XrcIni;
        let (sends, receives) = (!target, !target && !initiator);
        QpInit {
            transport: c.transport,
            pd: sends.then_some(self.pd),
            send_cq: sends.then_some(self.cq),
            recv_cq: receives.then_some(self.cq),
            srq: None,
            xrcd: None,
            block_self_multicast: false,
            sq_sig_all: c.sq_sig_all,
            max_send_wr: if sends { 1024 } else { 0 },
            max_recv_wr: if receives { 1024 } else { 0 },
            max_send_sge: if sends { 16 } else { 0 },
            max_recv_sge: if receives { 16 } else { 0 },
            max_inline: if sends { 256 } else { 0 },
        }
    }

    pub fn create_qp(&mut self, c: &Conn) -> u32 {
        let init = self.init(c);
        self.engine.create_qp(init).unwrap()
    }

    /// A Queue Pair whose receives come from `srq`.
    pub fn create_qp_on(&mut self, c: &Conn, srq: SrqId) -> u32 {
        let init = QpInit {
            srq: Some(srq),
            max_recv_wr: 0,
            max_recv_sge: 0,
            ..self.init(c)
        };
        self.engine.create_qp(init).unwrap()
    }

    /// An XRC target of a domain.
    pub fn create_target(&mut self, xrcd: XrcdId) -> u32 {
        let init = QpInit {
            xrcd: Some(xrcd),
            ..self.init(&Conn::of(Transport::XrcTgt))
        };
        self.engine.create_qp(init).unwrap()
    }

    pub fn create_srq(&mut self, limit: u32, xrc: Option<XrcdId>) -> SrqId {
        let init = SrqInit {
            pd: self.pd,
            max_wr: 1024,
            max_sge: 4,
            limit,
            xrc: xrc.map(|xrcd| (xrcd, self.cq)),
        };
        self.engine.create_srq(init).unwrap()
    }

    /// Registers `len` bytes, at an address that does not depend on the process.
    pub fn mem(&mut self, iova: u64, len: usize, access: ibv_access_flags) -> Mem {
        self.mem_in(self.pd, iova, len, access)
    }

    /// The same in another domain.
    pub fn mem_in(&mut self, pd: PdId, iova: u64, len: usize, access: ibv_access_flags) -> Mem {
        let region = Region::owned(len);
        let keys = self.engine.reg_mr(pd, region.clone(), iova, access);
        let keys = keys.unwrap();
        Mem {
            region,
            iova,
            lkey: keys.lkey,
            rkey: keys.rkey,
        }
    }
}
