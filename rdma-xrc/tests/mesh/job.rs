//! A job whose processes are values of this process: one software device for each node, one mesh for each process.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma_core_sys::rules::Transport;
use rdma_qp::{Access, Device, Memory, Mr};
use rdma_soft::Profile;
use rdma_xrc::XrcDomain;
use rdma_xrc::mesh::{Event, Joining, Layout, Mesh, Options, Over, Rank, SendError};

/// Longer than anything here takes, so that a hang is a failure and not a hang.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Held by tests that keep all processors busy, so that they do so one after the other.
pub fn alone() -> MutexGuard<'static, ()> {
    static BUSY: Mutex<()> = Mutex::new(());
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a mesh is over, without a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transports {
    Rc,
    Xrc,
    Datagrams,
}

pub struct Node {
    pub device: Device,
    pub domain: XrcDomain,
}

impl Node {
    pub fn new() -> Node {
        Node::with(Profile::default())
    }

    pub fn with(profile: Profile) -> Node {
        let name = rdma_soft::add_device(profile).unwrap();
        let device = Device::open(rdma_soft::verbs(), &name).unwrap();
        let domain = XrcDomain::anonymous(&device).unwrap();
        Node { device, domain }
    }

    pub fn begin(&self, over: Transports, layout: &Layout, me: Rank, options: &Options) -> Joining {
        let over = match over {
            Transports::Rc => Over::Rc,
            Transports::Xrc => Over::Xrc(self.domain.clone()),
            Transports::Datagrams => Over::Datagrams,
        };
        let gid = self.device.port(1).unwrap().best_gid().unwrap();
        Mesh::begin(&self.device, &gid, over, layout, me, options).unwrap()
    }

    /// Queue Pairs of a transport that the device says it has.
    pub fn qps(&self, transport: Transport) -> usize {
        let qps = rdma_soft::queue_pairs(self.device.name()).unwrap();
        qps.iter().filter(|(_, of)| *of == transport).count()
    }
}

pub struct Job {
    /// Before the nodes: meshes end first.
    pub meshes: Vec<Mesh>,
    pub nodes: Vec<Node>,
    pub layout: Layout,
    /// The region that each process offers, if they offer any.
    pub regions: Vec<Mr>,
}

impl Job {
    pub fn new(nodes: u32, per_node: u32, over: Transports, options: &Options) -> Job {
        Job::of(Layout::even(nodes, per_node), over, options)
    }

    pub fn of(layout: Layout, over: Transports, options: &Options) -> Job {
        Job::make(layout, over, options, 0, &Profile::default())
    }

    /// Each process offers a region of 64 bytes.
    pub fn with_regions(nodes: u32, per_node: u32, over: Transports, options: &Options) -> Job {
        let layout = Layout::even(nodes, per_node);
        Job::make(layout, over, options, 64, &Profile::default())
    }

    /// Frames between the nodes have these faults.
    pub fn on_bad_network(
        nodes: u32,
        per_node: u32,
        over: Transports,
        options: &Options,
        faults: &str,
    ) -> Job {
        let profile = Profile {
            faults: faults.parse().unwrap(),
            ..Profile::default()
        };
        Job::make(Layout::even(nodes, per_node), over, options, 0, &profile)
    }

    fn make(
        layout: Layout,
        over: Transports,
        options: &Options,
        size: usize,
        profile: &Profile,
    ) -> Job {
        let nodes: Vec<Node> = (0..layout.nodes())
            .map(|_| Node::with(profile.clone()))
            .collect();
        let ranks = (0..layout.processes() as u32).map(Rank);
        let mut joining: Vec<Joining> = ranks
            .map(|me| nodes[layout.node_of(me).unwrap()].begin(over, &layout, me, options))
            .collect();
        let mut regions = Vec::new();
        for one in joining.iter_mut().filter(|_| size > 0) {
            let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let region = one.pd().register(Memory::zeroed(size), all).unwrap();
            one.offer(region.remote());
            regions.push(region);
        }
        let cards: Vec<Vec<u8>> = joining.iter().map(|one| one.card().unwrap()).collect();
        let meshes = joining.into_iter().map(|one| one.join(&cards).unwrap());
        Job {
            meshes: meshes.collect(),
            nodes,
            layout,
            regions,
        }
    }

    /// Polls until so many handles of targets of others are open.
    pub fn until_opened(&mut self, wanted: usize) {
        let until = Instant::now() + LIMIT;
        let opened = |job: &Job| {
            job.meshes
                .iter()
                .map(|mesh| mesh.counts().opened)
                .sum::<usize>()
        };
        while opened(self) < wanted {
            assert!(Instant::now() < until, "targets are not open");
            self.turn(|rank, event| panic!("{rank}: {event:?}"));
        }
        assert_eq!(opened(self), wanted);
    }

    /// Nothing gets from or to a node any more.
    pub fn cut_off(&self, node: usize) {
        let address = |node: &Node| {
            node.device
                .port(1)
                .unwrap()
                .best_gid()
                .unwrap()
                .entry()
                .gid
                .ip()
        };
        let cut = &self.nodes[node];
        for other in &self.nodes {
            let names = (other.device.name(), cut.device.name());
            if names.0 != names.1 {
                assert!(rdma_soft::partition(names.0, address(cut), true));
                assert!(rdma_soft::partition(names.1, address(other), true));
            }
        }
    }

    pub fn qps(&self, transport: Transport) -> usize {
        self.nodes.iter().map(|node| node.qps(transport)).sum()
    }

    /// Polls each mesh, and hands its events to `see`.
    pub fn turn(&mut self, mut see: impl FnMut(Rank, Event)) {
        for mesh in &mut self.meshes {
            while let Some(event) = mesh.poll().unwrap() {
                see(mesh.rank(), event);
            }
        }
    }

    /// Connects everything.
    pub fn bring_up(&mut self) {
        self.meshes.iter_mut().for_each(Mesh::connect_all);
        let until = Instant::now() + LIMIT;
        while self.meshes.iter().any(|mesh| mesh.ways_missing() > 0) {
            assert!(Instant::now() < until, "not all ways are up");
            self.turn(|rank, event| panic!("{rank}: {event:?}"));
        }
    }

    /// Polls until `seen` has what it wants.
    pub fn until(&mut self, mut seen: impl FnMut(Rank, Event) -> bool) {
        let until = Instant::now() + LIMIT;
        let mut enough = false;
        while !enough {
            assert!(Instant::now() < until, "it did not happen");
            self.turn(|rank, event| enough |= seen(rank, event));
        }
    }
}

/// Sends, unless there is no room now.
pub fn try_send(mesh: &mut Mesh, to: Rank, bytes: &[u8]) -> bool {
    match mesh.send(to, bytes) {
        Ok(_) => true,
        Err(SendError::Busy) => false,
        Err(error) => panic!("{error}"),
    }
}
