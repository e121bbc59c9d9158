//! Ports: their state, and their GID and P_Key tables.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rdma_core_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_PORT_ACTIVE,
    IBV_QPF_GRH_REQUIRED, ibv_gid_entry, ibv_gid_type, ibv_port_attr, ibv_port_state,
};

use crate::endpoint::LinkLayer;
use crate::errno::Errno;
use crate::gid::{Gid, GidChoice, GidEntry, GidKind, NoUsableGid, choose};
use crate::qp::counters;
use crate::raw::context::ContextHandle;
use crate::units::PathMtu;

/// There is no such port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} has no port {port}: its ports are 1 to {count}")]
pub struct BadPort {
    /// The device.
    pub device: String,
    /// The port that was asked for.
    pub port: u8,
    /// Number of its ports; they are counted from 1.
    pub count: u8,
}

/// A port could not be queried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {device}/{port} cannot be queried: {source}")]
pub struct QueryPortError {
    /// The device.
    pub device: String,
    /// The port.
    pub port: u8,
    /// What was asked for.
    pub what: &'static str,
    /// What the library said.
    pub source: Errno,
}

/// A GID could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GidError {
    /// The table could not be read.
    #[error(transparent)]
    Query(#[from] QueryPortError),
    /// No entry can be used.
    #[error(transparent)]
    NoneUsable(#[from] NoUsableGid),
    /// The slot is empty.
    #[error("GID index {index} of {device}/{port} is empty; filled are {}", list(.filled))]
    Empty {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The slot that was asked for.
        index: u32,
        /// The slots that are filled.
        filled: Vec<GidEntry>,
    },
}

fn list(entries: &[GidEntry]) -> String {
    match entries {
        [] => "none".into(),
        entries => entries
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// What a port says of itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PortInfo {
    /// Its state; [`PortInfo::is_active`] tells whether it carries traffic.
    pub state: ibv_port_state,
    /// Largest MTU that it can have; `None` for a code that this library does not know.
    pub max_mtu: Option<PathMtu>,
    /// Largest path MTU at present; `None` for a code that this library does not know.
    pub active_mtu: Option<PathMtu>,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// Longest message, in bytes.
    pub max_msg_sz: u32,
    /// Slots of its GID table, filled or not.
    pub gid_tbl_len: u32,
    /// Slots of its P_Key table, filled or not.
    pub pkey_tbl_len: u16,
    /// Whether address vectors need a GRH here.
    pub grh_required: bool,
    /// Everything else, as verbs has it.
    pub raw: ibv_port_attr,
}

impl PortInfo {
    fn new(raw: ibv_port_attr) -> PortInfo {
        let link_layer = LinkLayer::from_code(raw.link_layer);
        PortInfo {
            state: raw.state,
            max_mtu: PathMtu::from_code(raw.max_mtu.0),
            active_mtu: PathMtu::from_code(raw.active_mtu.0),
            link_layer,
            lid: raw.lid,
            max_msg_sz: raw.max_msg_sz,
            gid_tbl_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_tbl_len: raw.pkey_tbl_len,
            grh_required: link_layer == LinkLayer::Ethernet
                || raw.flags & IBV_QPF_GRH_REQUIRED != 0,
            raw,
        }
    }

    /// Whether it is up and carries traffic.
    pub fn is_active(&self) -> bool {
        self.state == IBV_PORT_ACTIVE
    }
}

/// A port of an open device.
#[derive(Clone)]
pub struct Port {
    context: Arc<ContextHandle>,
    number: u8,
    count: u8,
}

impl Port {
    pub(crate) fn new(context: Arc<ContextHandle>, number: u8, count: u8) -> Result<Port, BadPort> {
        if (1..=count).contains(&number) {
            Ok(Port {
                context,
                number,
                count,
            })
        } else {
            Err(BadPort {
                device: context.name.clone(),
                port: number,
                count,
            })
        }
    }

    /// Its number, counted from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    fn refused(&self, what: &'static str) -> impl Fn(Errno) -> QueryPortError {
        let (device, port) = (self.context.name.clone(), self.number);
        move |source| QueryPortError {
            device: device.clone(),
            port,
            what,
            source,
        }
    }

    /// Its present state and limits.
    ///
    /// # Errors
    /// The library refused.
    pub fn query(&self) -> Result<PortInfo, QueryPortError> {
        self.context
            .query_port(self.number)
            .map(PortInfo::new)
            .map_err(self.refused("the state"))
    }

    /// The filled entries of its GID table, in table order. Holes are left out, and do not end the search.
    ///
    /// # Errors
    /// The library refused.
    pub fn gids(&self) -> Result<Vec<GidEntry>, QueryPortError> {
        let mut slots = self.slots()?;
        slots.retain(|entry| !entry.gid.is_zero());
        Ok(slots)
    }

    /// All slots of the GID table, in table order; those not filled have a zero GID.
    fn slots(&self) -> Result<Vec<GidEntry>, QueryPortError> {
        let info = self.query()?;
        let port = self.number;
        let empty = |index| GidEntry {
            port,
            index,
            gid: Gid::default(),
            kind: GidKind::Unknown,
            ifindex: 0,
        };
        let mut slots: Vec<GidEntry> = (0..info.gid_tbl_len).map(empty).collect();
        // The call gives the tables of all ports, which are of one length.
        let room = (slots.len() * usize::from(self.count)).max(64);
        match self
            .context
            .gid_table(room)
            .map_err(self.refused("the GID table"))?
        {
            Some(entries) => {
                for entry in entries
                    .iter()
                    .filter(|entry| entry.port_num == u32::from(port))
                {
                    if let Some(slot) = slots.get_mut(entry.gid_index as usize) {
                        *slot = from_entry(port, entry);
                    }
                }
            }
            None => {
                for slot in &mut slots {
                    let gid = self
                        .context
                        .query_gid(port, slot.index)
                        .map_err(self.refused("a GID"))?;
                    slot.gid = Gid::new(gid.raw);
                    if info.link_layer != LinkLayer::Ethernet {
                        slot.kind = GidKind::Ib;
                    }
                }
            }
        }
        Ok(slots)
    }

    /// The GID table entry at `index`.
    ///
    /// # Errors
    /// The slot is empty (the error lists the filled ones), or the library refused.
    pub fn gid(&self, index: u32) -> Result<GidEntry, GidError> {
        let filled = self.gids()?;
        match filled.iter().find(|entry| entry.index == index) {
            Some(entry) => Ok(*entry),
            None => Err(GidError::Empty {
                device: self.context.name.clone(),
                port: self.number,
                index,
                filled,
            }),
        }
    }

    /// Chooses a GID that peers can reach: never an empty slot, a link-local address or RoCE v1; an IPv4 address
    /// before an IPv6 one. The choice says what became of every entry.
    ///
    /// # Errors
    /// No entry will do; the error lists each with the reason against it, and the usual cure.
    pub fn best_gid(&self) -> Result<GidChoice, GidError> {
        Ok(choose(self.number, self.slots()?, None)?)
    }

    /// Chooses as [`Port::best_gid`] does, among the entries of the address family of `peer`.
    ///
    /// # Errors
    /// As [`Port::best_gid`].
    pub fn best_gid_for(&self, peer: Gid) -> Result<GidChoice, GidError> {
        Ok(choose(self.number, self.slots()?, Some(peer))?)
    }

    /// The kernel's counters of the port, by file name below `/sys/class/infiniband/<device>/ports/<port>`, such as
    /// `hw_counters/out_of_sequence`. Empty where there are none, as of the software device.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        counters(&self.context.name, self.number)
    }

    /// The partition key at `index`; 0 for an empty slot.
    ///
    /// # Errors
    /// The library refused, as it does for an index outside the table.
    pub fn pkey(&self, index: u16) -> Result<u16, QueryPortError> {
        self.context
            .query_pkey(self.number, index)
            .map_err(self.refused("a P_Key"))
    }
}

fn from_entry(port: u8, entry: &ibv_gid_entry) -> GidEntry {
    let kind = match ibv_gid_type(entry.gid_type) {
        IBV_GID_TYPE_IB => GidKind::Ib,
        IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => GidKind::Unknown,
    };
    GidEntry {
        port,
        index: entry.gid_index,
        gid: Gid::new(entry.gid.raw),
        kind,
        ifindex: entry.ndev_ifindex,
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({}/{})", self.context.name, self.number)
    }
}
