//! Nodes with domains, SRQs, targets and initiators, on software devices of one process.
#![allow(dead_code)]

use std::time::{Duration, Instant};

use rdma_core_sys::*;
use rdma_qp::exchange::tcp;
use rdma_qp::{
    Access, AckTimeout, Completion, Cq, Device, Memory, Mr, Pd, Peer, RetryCount, Ticket, Timing,
};
use rdma_soft::Profile;
use rdma_xrc::{Opening, SrqNum, XrcDomain, XrcInitiator, XrcSrq, XrcTarget};

/// Longer than anything here takes, so that a hang is a failure and not a hang.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Long enough to see that nothing comes.
pub const QUIET: Duration = Duration::from_millis(60);

/// Everything that a peer may do.
pub fn all() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// A dead peer is an error soon.
pub fn impatient() -> Timing {
    Timing {
        timeout: AckTimeout::from_code(11).unwrap(),
        retry_cnt: RetryCount::new(2).unwrap(),
        ..Timing::default()
    }
}

/// A device, as one process of its node has it open, and the XRC domain that it has of the node.
pub struct Node {
    pub device: Device,
    pub domain: XrcDomain,
}

impl Node {
    /// A node of one process.
    pub fn new(profile: Profile) -> Node {
        let name = rdma_soft::add_device(profile).unwrap();
        let device = Device::open(rdma_soft::verbs(), &name).unwrap();
        let domain = XrcDomain::anonymous(&device).unwrap();
        Node { device, domain }
    }

    pub fn plain() -> Node {
        Node::new(Profile::default())
    }

    /// Two processes of one node, each with the device open by itself, that share a domain by a file.
    pub fn two_processes() -> [Node; 2] {
        let name = rdma_soft::add_device(Profile::default()).unwrap();
        let file = tempfile();
        [Opening::CreateNew, Opening::Existing].map(|opening| {
            let device = Device::open(rdma_soft::verbs(), &name).unwrap();
            let domain = XrcDomain::of_file(&device, &file, opening).unwrap();
            Node { device, domain }
        })
    }

    pub fn target(&self) -> XrcTarget {
        self.domain.create_target().unwrap()
    }

    pub fn receiver(&self, depth: u32) -> Receiver {
        Receiver::new(self, &self.domain, depth)
    }

    pub fn sender(&self) -> Sender {
        Sender::new(self)
    }
}

/// A file without a name.
pub fn tempfile() -> std::fs::File {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("xrc-domain-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = std::fs::File::create(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

/// A process that receives: its PD, a CQ, an XRC SRQ, and a region.
pub struct Receiver {
    pub srq: XrcSrq,
    pub cq: Cq,
    pub mr: Mr,
    pub pd: Pd,
}

/// Bytes of the region of a process.
pub const REGION: usize = 1 << 16;

impl Receiver {
    /// Up to `depth` receives; none is posted.
    pub fn new(node: &Node, domain: &XrcDomain, depth: u32) -> Receiver {
        let (pd, cq) = (
            node.device.alloc_pd().unwrap(),
            node.device.create_cq(256).unwrap(),
        );
        let mr = pd.register(Memory::zeroed(REGION), all()).unwrap();
        let srq = pd
            .xrc_srq(domain, &cq)
            .depth(depth)
            .sge(4)
            .create()
            .unwrap();
        Receiver { srq, cq, mr, pd }
    }

    pub fn num(&self) -> SrqNum {
        self.srq.srq_num()
    }

    /// Posts a receive of `len` bytes at `offset` of the region.
    pub fn recv(&mut self, offset: usize, len: usize) -> Ticket {
        self.srq.recv(self.mr.slice(offset, len).unwrap()).unwrap()
    }

    /// Posts so many receives of 64 bytes, one behind the other from the beginning of the region.
    pub fn recvs(&mut self, count: usize) {
        for at in 0..count {
            self.recv(64 * at, 64);
        }
    }

    /// The next completion.
    pub fn next(&self) -> Completion {
        self.cq.wait_any(LIMIT).unwrap().expect("a completion")
    }

    /// Waits for a message, which comes by that target.
    #[track_caller]
    pub fn got_by(&self, target: &XrcTarget) -> Completion {
        let done = self.next();
        assert!(done.outcome.is_ok(), "{:?}", self.cq.explain(&done));
        assert_eq!(done.qp_num, target.qp_num(), "who sent");
        done
    }

    /// Nothing comes.
    #[track_caller]
    pub fn quiet(&self) {
        assert_eq!(self.cq.wait_any(QUIET).unwrap(), None);
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
    pub fn new(node: &Node) -> Sender {
        let (pd, cq) = (
            node.device.alloc_pd().unwrap(),
            node.device.create_cq(256).unwrap(),
        );
        let mr = pd.register(Memory::zeroed(REGION), all()).unwrap();
        let qp = pd.xrc(&cq).send_depth(64).send_sge(4).inline_data(64);
        let qp = qp.create().unwrap();
        Sender { qp, cq, mr, pd }
    }

    /// Posts a SEND of the first `len` bytes of the region.
    #[track_caller]
    pub fn send(&mut self, srq: SrqNum, len: usize) -> Ticket {
        self.qp
            .send_to(self.mr.slice(0, len).unwrap(), srq)
            .unwrap()
    }

    /// Sends, and waits until the peer has it.
    #[track_caller]
    pub fn deliver(&mut self, srq: SrqNum, len: usize) {
        let ticket = self.send(srq, len);
        self.cq.wait(&ticket, LIMIT).unwrap();
    }

    /// Waits until a request has failed by itself, with that status.
    #[track_caller]
    pub fn fails(&self, ticket: &Ticket, status: ibv_wc_status) {
        let done = self.cq.wait_any(LIMIT).unwrap().expect("a completion");
        assert_eq!(done.ticket, *ticket);
        assert_eq!(done.outcome.unwrap_err().status, status);
    }

    /// Waits until a request is flushed because that other one failed.
    #[track_caller]
    pub fn flushed(&self, ticket: &Ticket, because_of: &Ticket) {
        let done = self.cq.wait_any(LIMIT).unwrap().expect("a completion");
        assert_eq!(done.ticket, *ticket);
        let failure = done.outcome.unwrap_err();
        assert!(failure.is_flush());
        assert_eq!(failure.root.unwrap().ticket, *because_of);
    }
}

/// Describes both ends to each other, and brings them to RTS.
pub fn connect(
    (qp, from): (&mut XrcInitiator, &Node),
    (target, to): (&mut XrcTarget, &Node),
    timing: Timing,
) {
    let gid = |node: &Node| node.device.port(1).unwrap().best_gid().unwrap();
    let peer = |endpoint| Peer {
        endpoint,
        regions: Vec::new(),
    };
    let here = peer(qp.endpoint(gid(from)).unwrap());
    let there = peer(target.endpoint(gid(to)).unwrap());
    let at_target = target.connect_begin(&here, timing).unwrap();
    let at_initiator = qp.connect_begin(&there, timing).unwrap();
    target.connect_finish(at_target, timing).unwrap();
    qp.connect_finish(at_initiator, timing).unwrap();
}

/// A sender on one node, connected to a target of its own on another.
pub fn pair(from: &Node, to: &Node, timing: Timing) -> (Sender, XrcTarget) {
    let (mut sender, mut target) = (from.sender(), to.target());
    connect((&mut sender.qp, from), (&mut target, to), timing);
    (sender, target)
}

/// Waits until that is so.
#[track_caller]
pub fn until(mut it_is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !it_is_so() {
        assert!(Instant::now() < end, "it never is so");
        std::thread::yield_now();
    }
}

/// Both ends in that state.
#[track_caller]
pub fn both_in(sender: &Sender, target: &XrcTarget, state: ibv_qp_state) {
    let states = (sender.qp.state().unwrap(), target.state().unwrap());
    assert_eq!(states, (state, state), "the initiator's, and the target's");
}

/// Two ends of an exchange.
pub fn exchange() -> [tcp::Channel; 2] {
    let listener = tcp::listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = std::thread::spawn(move || listener.accept(LIMIT).unwrap());
    let connected = tcp::connect(address, LIMIT).unwrap();
    [connected, accepted.join().unwrap()]
}
