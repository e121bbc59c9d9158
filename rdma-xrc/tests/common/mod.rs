//! Nodes with domains, SRQs, targets and initiators, on software devices of one process.
#![allow(dead_code)]

use std::time::Duration;

use rdma_qp::{Access, Completion, Cq, Device, Memory, Mr, Pd, Peer, Timing};
use rdma_soft::Profile;
use rdma_xrc::{XrcDomain, XrcInitiator, XrcSrq, XrcTarget};

/// Longer than anything here takes, so that a hang is a failure and not a hang.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Everything that a peer may do.
pub fn all() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// A device of its own, with that profile.
pub fn device(profile: Profile) -> Device {
    let name = rdma_soft::add_device(profile).unwrap();
    Device::open(rdma_soft::verbs(), &name).unwrap()
}

/// A process that receives: its PD, a CQ, an XRC SRQ, and a region.
pub struct Receiver {
    pub srq: XrcSrq,
    pub cq: Cq,
    pub mr: Mr,
    pub pd: Pd,
}

impl Receiver {
    /// With receives for `depth` messages.
    pub fn new(device: &Device, domain: &XrcDomain, depth: u32) -> Receiver {
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(256).unwrap());
        let mr = pd.register(Memory::zeroed(1 << 16), all()).unwrap();
        let srq = pd
            .xrc_srq(domain, &cq)
            .depth(depth)
            .sge(4)
            .create()
            .unwrap();
        Receiver { srq, cq, mr, pd }
    }

    /// Posts a receive of `len` bytes at `offset` of the region.
    pub fn recv(&mut self, offset: usize, len: usize) -> rdma_qp::Ticket {
        self.srq.recv(self.mr.slice(offset, len).unwrap()).unwrap()
    }

    /// The next completion.
    pub fn next(&self) -> Completion {
        self.cq.wait_any(LIMIT).unwrap().expect("a completion")
    }

    /// Bytes of the region.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

/// A process that sends: its PD, a CQ, a region, and an initiator.
pub struct Sender {
    pub qp: XrcInitiator,
    pub cq: Cq,
    pub mr: Mr,
    pub pd: Pd,
}

impl Sender {
    pub fn new(device: &Device) -> Sender {
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(256).unwrap());
        let mr = pd.register(Memory::zeroed(1 << 16), all()).unwrap();
        let qp = pd.xrc(&cq).send_depth(64).send_sge(4).inline_data(64);
        let qp = qp.create().unwrap();
        Sender { qp, cq, mr, pd }
    }
}

/// Connects an initiator to a target.
pub fn connect(a: (&mut XrcInitiator, &Device), b: (&mut XrcTarget, &Device), timing: Timing) {
    let gid = |device: &Device| device.port(1).unwrap().best_gid().unwrap();
    let peer = |endpoint| Peer {
        endpoint,
        regions: Vec::new(),
    };
    let here = peer(a.0.endpoint(gid(a.1)).unwrap());
    let there = peer(b.0.endpoint(gid(b.1)).unwrap());
    let target = b.0.connect_begin(&here, timing).unwrap();
    let initiator = a.0.connect_begin(&there, timing).unwrap();
    b.0.connect_finish(target, timing).unwrap();
    a.0.connect_finish(initiator, timing).unwrap();
}
