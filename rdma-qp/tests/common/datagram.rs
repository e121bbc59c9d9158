//! UD QPs that are ready, on the software device.
#![allow(dead_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use rdma_qp::{
    Access, Completion, Cq, Destination, Device, Endpoint, Gid, Grh, Memory, Mr, NOTHING,
    OpenError, PathOptions, Pd, QKey, Qp, Success, Ticket, Ud,
};
use rdma_soft::Profile;

use super::LIMIT;

/// How long to look for what must not come.
pub const SOON: Duration = Duration::from_millis(20);

pub fn qkey(value: u32) -> QKey {
    QKey::new(value).unwrap()
}

/// The key of all that have no other.
pub const KEY: u32 = 0x1111_1111;

/// A UD QP with all that belongs to it.
pub struct Member {
    pub qp: Qp<Ud>,
    pub cq: Cq,
    pub mr: Mr,
    pub pd: Pd,
    pub here: Endpoint,
}

impl Member {
    pub fn new(device: &Device) -> Member {
        Member::with_key(device, KEY)
    }

    pub fn with_key(device: &Device, key: u32) -> Member {
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let qp = pd
            .ud(&cq)
            .send_depth(32)
            .recv_depth(32)
            .send_sge(2)
            .recv_sge(2)
            .inline_data(64)
            .create()
            .unwrap();
        Member::ready(device, pd, cq, qp, key)
    }

    /// A fresh QP, made ready, with a region.
    pub fn ready(device: &Device, pd: Pd, cq: Cq, mut qp: Qp<Ud>, key: u32) -> Member {
        let mr = pd
            .register(Memory::zeroed(16384), Access::LOCAL_WRITE)
            .unwrap();
        let gid = device.port(1).unwrap().best_gid().unwrap();
        let here = qp.activate(gid, qkey(key), PathOptions::default()).unwrap();
        Member {
            qp,
            cq,
            mr,
            pd,
            here,
        }
    }

    /// Posts a receive of `len` bytes and the header at `offset`.
    pub fn listen(&mut self, offset: usize, len: usize) -> Ticket {
        let place = self.mr.slice(offset, Grh::LEN + len).unwrap();
        self.qp.recv(place).unwrap()
    }

    /// Sends bytes and waits until they have left.
    pub fn say(&mut self, bytes: &[u8], to: &Destination) {
        self.mr.write_at(12000, bytes).unwrap();
        let ticket = match bytes {
            [] => self.qp.send_to(NOTHING, to),
            _ => self
                .qp
                .send_to(self.mr.slice(12000, bytes.len()).unwrap(), to),
        };
        self.done(&ticket.unwrap());
    }

    pub fn done(&self, ticket: &Ticket) -> Success {
        self.cq.wait(ticket, LIMIT).unwrap()
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    /// What comes within a short while; there should be nothing.
    pub fn stray(&self) -> Option<Completion> {
        self.cq.wait_any(SOON).unwrap()
    }

    pub fn gid(&self) -> Gid {
        self.here.gid
    }
}

/// A device at ::1, of which a host has one: as soon as no other test has it. Where there is no IPv6 it says that `test` is
/// skipped, and gives `None`.
pub fn at_ipv6_loopback(test: &str) -> Option<Device> {
    let mut profile = Profile::default();
    profile.ports[0].addresses = vec![IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let name = rdma_soft::add_device(profile).unwrap();
    let begin = Instant::now();
    loop {
        match Device::open(rdma_soft::verbs(), &name) {
            Ok(device) => return Some(device),
            Err(OpenError::Refused { source, .. })
                if source.name() == Some("EADDRINUSE") && begin.elapsed() < LIMIT =>
            {
                std::thread::sleep(SOON);
            }
            Err(error) => {
                println!("SKIP {test}: {error}");
                return None;
            }
        }
    }
}

/// A group of this process: others on this host may run the same test.
pub fn group(like: Gid, number: u8) -> Gid {
    let [low, high, ..] = std::process::id().to_le_bytes();
    match like.ip() {
        IpAddr::V4(_) => Ipv4Addr::new(239, high, low, number).into(),
        IpAddr::V6(_) => {
            let id = u16::from_be_bytes([high, low]);
            Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, id, number.into()).into()
        }
    }
}
