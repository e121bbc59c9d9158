//! What the checks stand on: one device or two.

use std::cell::RefCell;
use std::rc::Rc;

use rdma_core_sys::*;

use super::{Pair, Setting, Trouble};
use crate::device::{Buffer, Device, Failed, Pd};

/// The port that is used.
pub const PORT: u8 = 1;
/// Bytes of each side's memory.
pub const MEMORY: usize = 8 << 20;
/// Where the bytes of a message come from ...
pub const SOURCE: usize = 4096 + 64;
/// ... where they go ...
pub const TARGET: usize = (4 << 20) + 64;
/// ... and where the global route headers of datagrams go.
pub const GRHS: usize = 7 << 20;

/// A device on one side of an arm, with a domain and memory.
#[derive(Debug)]
pub struct Side {
    /// The device.
    pub device: Rc<Device>,
    /// A protection domain of this side.
    pub pd: Rc<Pd>,
    /// Memory for messages, [`MEMORY`] bytes.
    pub buffer: Rc<Buffer>,
    /// The GID in use, by its index at [`PORT`].
    pub gid_index: u8,
    /// The GID itself.
    pub gid: ibv_gid,
    /// The MTU in force at the port.
    pub mtu: ibv_mtu,
    /// What the device says of itself.
    pub attr: ibv_device_attr,
}

impl Side {
    /// Takes a device and a GID of its port.
    ///
    /// # Errors
    /// The first call that failed.
    pub fn new(device: &Rc<Device>, gid_index: u8) -> Result<Rc<Side>, Failed> {
        let pd = Pd::new(device)?;
        Ok(Rc::new(Side {
            buffer: Buffer::with_access(&pd, MEMORY, Buffer::ALL)?,
            pd,
            gid_index,
            gid: device.gid(PORT, gid_index)?,
            mtu: device.port(PORT)?.active_mtu,
            attr: device.attributes()?,
            device: Rc::clone(device),
        }))
    }

    /// The address vector to another side.
    #[must_use]
    pub fn vector(&self, gid: ibv_gid) -> ibv_ah_attr {
        let mut attr = ibv_ah_attr::zeroed();
        attr.is_global = 1;
        attr.port_num = PORT;
        attr.grh.dgid = gid;
        attr.grh.sgid_index = self.gid_index;
        attr.grh.hop_limit = 64;
        attr
    }

    /// True for an IPv4 address.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        std::net::Ipv6Addr::from(self.gid)
            .to_ipv4_mapped()
            .is_some()
    }
}

/// One or two devices that the checks run on.
#[derive(Debug)]
pub struct Arm {
    /// What it is called: `self IPv4`, `udp IPv6`.
    pub name: String,
    /// The asking and the answering side.
    pub sides: [Rc<Side>; 2],
    /// Fewer lengths.
    pub quick: bool,
    /// What is illegal must be refused with `EINVAL` at the post; else a completion that says so will do, too.
    pub strict: bool,
    pair: RefCell<Option<Rc<Pair>>>,
}

impl Arm {
    /// An arm over one device, or two; each side is a domain of its own.
    ///
    /// # Errors
    /// The first call that failed.
    pub fn new(
        name: impl Into<String>,
        devices: [(&Rc<Device>, u8); 2],
        quick: bool,
        strict: bool,
    ) -> Result<Arm, Failed> {
        let side = |(device, gid_index)| Side::new(device, gid_index);
        Ok(Arm {
            name: name.into(),
            sides: [side(devices[0])?, side(devices[1])?],
            quick,
            strict,
            pair: RefCell::default(),
        })
    }

    /// True where messages go through sockets, which may lose them.
    #[must_use]
    pub fn is_wire(&self) -> bool {
        self.sides[0].device.name() != self.sides[1].device.name()
    }

    /// The MTU that both ports have in force.
    #[must_use]
    pub fn mtu(&self) -> ibv_mtu {
        let [a, b] = &self.sides;
        ibv_mtu(a.mtu.0.min(b.mtu.0))
    }

    /// A connected pair; that of the check before where it will do.
    ///
    /// # Errors
    /// What kept it from being connected.
    pub fn pair(&self, setting: Setting) -> Result<Rc<Pair>, Trouble> {
        let kept = self.pair.borrow().clone();
        if let Some(pair) = kept.filter(|pair| pair.setting == setting) {
            return Ok(pair);
        }
        self.forget();
        let pair = Rc::new(self.fresh(setting)?);
        *self.pair.borrow_mut() = Some(Rc::clone(&pair));
        Ok(pair)
    }

    /// A connected pair that no other check gets.
    ///
    /// # Errors
    /// What kept it from being connected.
    pub fn fresh(&self, setting: Setting) -> Result<Pair, Trouble> {
        Pair::connected(self, setting)
    }

    /// Lets go of the pair that [`pair`](Arm::pair) keeps: it is of no use any more.
    pub fn forget(&self) {
        self.pair.borrow_mut().take();
    }
}
