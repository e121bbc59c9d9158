//! Two connected ends in one process, on the software device.
#![allow(dead_code)]

pub mod datagram;

use std::time::Duration;

use rdma_qp::{Access, Cq, Device, Memory, Mr, Pd, Peer, Qp, Timing};
use rdma_soft::Profile;

/// Longer than anything here takes, so that a hang is a failure and not a hang.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Everything that a peer may do.
pub fn all() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// A device of its own, with that profile. With `QP_TEST_DEVICE` in the environment it is the device of that name of the
/// system's libibverbs, which has no profile: the tests that need one are left out where that is set.
pub fn device(profile: Profile) -> Device {
    if let Ok(name) = std::env::var("QP_TEST_DEVICE") {
        return Device::open(&rdma_core_sys::Verbs::open().unwrap(), &name).unwrap();
    }
    let name = rdma_soft::add_device(profile).unwrap();
    Device::open(rdma_soft::verbs(), &name).unwrap()
}

/// One end: a QP, its CQ, and a region.
pub struct End {
    pub qp: Qp,
    pub cq: Cq,
    pub mr: Mr,
    pub pd: Pd,
}

impl End {
    pub fn new(device: &Device, len: usize) -> End {
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let mr = pd.register(Memory::zeroed(len), all()).unwrap();
        let qp = pd
            .rc(&cq)
            .send_depth(32)
            .recv_depth(32)
            .send_sge(4)
            .recv_sge(4)
            .inline_data(64);
        let qp = qp.create().unwrap();
        End { qp, cq, mr, pd }
    }

    /// The region's first bytes.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    /// What this end tells the other.
    pub fn describe(&mut self, device: &Device) -> Peer {
        let gid = device.port(1).unwrap().best_gid().unwrap();
        Peer {
            endpoint: self.qp.endpoint(gid).unwrap(),
            regions: vec![self.mr.remote()],
        }
    }
}

/// Connects two ends: both to RTR, then both to RTS. Returns what each knows of the other.
pub fn connect(a: (&mut End, &Device), b: (&mut End, &Device), timing: Timing) -> (Peer, Peer) {
    let (of_a, of_b) = (a.0.describe(a.1), b.0.describe(b.1));
    let agreed_a = a.0.qp.connect_begin(&of_b, timing).unwrap();
    let agreed_b = b.0.qp.connect_begin(&of_a, timing).unwrap();
    a.0.qp.connect_finish(agreed_a, timing).unwrap();
    b.0.qp.connect_finish(agreed_b, timing).unwrap();
    (of_b, of_a)
}

/// Two connected ends on one device. With each, what it knows of the other.
pub fn pair(device: &Device, len: usize) -> ((End, Peer), (End, Peer)) {
    let (mut a, mut b) = (End::new(device, len), End::new(device, len));
    let (of_b, of_a) = connect((&mut a, device), (&mut b, device), Timing::default());
    ((a, of_b), (b, of_a))
}
