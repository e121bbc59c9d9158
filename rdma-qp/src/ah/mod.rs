//! Address handles, and where a datagram goes.

mod grh;

use std::fmt;
use std::sync::Arc;

use rdma_core_sys::rules::{self, Limits};
use rdma_core_sys::{IBV_QP_AV, ibv_device_attr, ibv_qp_attr};

pub use grh::{Grh, GrhError};

use crate::cq::Sender;
use crate::endpoint::LinkLayer;
use crate::errno::Errno;
use crate::gid::{Gid, GidEntry};
use crate::pd::Pd;
use crate::port::{BadPort, GidError, Port, QueryPortError};
use crate::qkey::{self, QKey};
use crate::qp::{Global, Path, Problem, check_gid};
use crate::raw::ah::{Datagram, OwnedAh};
use crate::raw::pd::PdHandle;
use crate::units::{OutOfRange, in_range};

/// An address handle could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AhError {
    /// The path is from a port that the device does not have.
    #[error(transparent)]
    Port(#[from] BadPort),
    /// The port could not be queried.
    #[error(transparent)]
    Query(#[from] QueryPortError),
    /// The path cannot work. The library was not called.
    #[error("no address handle on {device}/{port}: {}", join(.problems))]
    Path {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Everything that is wrong with it.
        problems: Vec<Problem>,
    },
    /// The library refused.
    #[error("{device}/{port} made no address handle for {}: {source}{}", to(.path), hint(*.source))]
    Refused {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The path.
        path: Box<Path>,
        /// What the library said.
        source: Errno,
    },
}

fn join(problems: &[Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

fn to(path: &Path) -> String {
    match path.global {
        Some(global) => global.dgid.to_string(),
        None => format!("LID {}", path.lid),
    }
}

fn hint(errno: Errno) -> &'static str {
    match errno.name() {
        Some("ENOMEM") => "; are its address handles used up?",
        Some("ETIMEDOUT" | "ENETUNREACH" | "EHOSTUNREACH") => "; there is no route or no neighbour",
        _ => "",
    }
}

/// An address handle: the way to a port or a group, ready to be named by requests.
///
/// Cloning it is cheap. It may be dropped at any time, while requests that name it are under way too: the handle is
/// destroyed when they are done.
#[derive(Clone)]
pub struct Ah {
    owned: OwnedAh,
    path: Path,
}

impl Ah {
    /// The path that it leads.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl PartialEq for Ah {
    /// Whether both are the same handle.
    fn eq(&self, other: &Ah) -> bool {
        self.owned.is(&other.owned)
    }
}

impl Eq for Ah {}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.owned.pd().context.name;
        write!(f, "Ah({device}/{} to {})", self.path.port, to(&self.path))
    }
}

impl Pd {
    /// The address handle for a path. The path is looked at first, with the same rules as that of a connection.
    ///
    /// Making one is a call into the kernel, so the PD keeps those that were asked for last, at least 1024 and at most
    /// 2048, and a path that is asked for again gets the same handle. [`Pd::forget_ahs`] is for paths that have changed
    /// meanwhile: on RoCE a handle has the link address of its next hop, as it was when the handle was made.
    ///
    /// ```
    /// use rdma_qp::{Device, Gid, Path};
    /// use std::net::Ipv4Addr;
    /// let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// let pd = device.alloc_pd()?;
    /// let own = device.port(1)?.best_gid()?.entry();
    /// let path = Path::new(own, Gid::from(Ipv4Addr::new(127, 0, 0, 9)));
    /// let ah = pd.ah(&path)?;
    /// assert_eq!(pd.ah(&path)?, ah, "one handle for all who ask");
    ///
    /// let without_gid = Path { global: None, lid: 7, ..path };
    /// assert!(pd.ah(&without_gid).unwrap_err().to_string().contains("grh.dgid"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The path cannot work (the error says everything that is wrong with it), or the library refused.
    pub fn ah(&self, path: &Path) -> Result<Ah, AhError> {
        find(self.handle(), self.device_attr(), path)
    }

    /// Lets go of all address handles that the PD keeps; returns how many there were. Those that others have, too, or that
    /// requests still name, stay until that is over.
    pub fn forget_ahs(&self) -> usize {
        self.handle().forget_ahs()
    }

    /// Address handles that the PD keeps.
    pub fn cached_ahs(&self) -> usize {
        self.handle().cached_ah_count()
    }
}

/// See [`Pd::ah`].
pub(crate) fn find(
    pd: &Arc<PdHandle>,
    device: &ibv_device_attr,
    path: &Path,
) -> Result<Ah, AhError> {
    let ah = |owned| Ah { owned, path: *path };
    if let Some(owned) = pd.cached_ah(path) {
        return Ok(ah(owned));
    }
    check(pd, device, path)?;
    pd.new_ah(path, &path.lower())
        .map(ah)
        .map_err(|source| AhError::Refused {
            device: pd.context.name.clone(),
            port: path.port,
            path: Box::new(*path),
            source,
        })
}

/// Looks at a path with the rules for the address vector of a QP.
fn check(pd: &Arc<PdHandle>, device: &ibv_device_attr, path: &Path) -> Result<(), AhError> {
    let port = Port::new(pd.context.clone(), path.port, device.phys_port_cnt)?;
    let info = port.query()?;
    let mut attr = ibv_qp_attr::zeroed();
    attr.ah_attr = path.lower();
    let mut limits = Limits::new(device, &info.raw);
    limits.ethernet |= info.grh_required;
    let values = rules::check_values(rules::Transport::Ud, &attr, IBV_QP_AV, &limits);
    let mut problems: Vec<Problem> = values.into_iter().map(Problem::Value).collect();
    if let Some(Global { sgid_index, .. }) = path.global {
        let index = u32::from(sgid_index);
        let gids = port.gids()?;
        let source = gids.iter().find(|entry| entry.index == index).copied();
        let in_table = index < info.gid_tbl_len;
        let ethernet = info.link_layer == LinkLayer::Ethernet;
        let found = check_gid(&attr.ah_attr.grh, source, &gids, in_table, ethernet);
        problems.extend(found.into_iter().map(Problem::Gid));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(AhError::Path {
        device: pd.context.name.clone(),
        port: path.port,
        problems,
    })
}

/// Where a datagram goes: an address handle, a QP there, and the Q_Key that it gets in with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    ah: Ah,
    qp_num: u32,
    qkey: Option<QKey>,
}

impl Destination {
    /// The QP number that stands for all members of a group.
    pub const GROUP: u32 = 0xff_ffff;

    /// A QP at the end of an address handle. Without a Q_Key the datagram carries that of the QP that sends it.
    ///
    /// # Errors
    /// The QP number has more than 24 bits.
    pub fn new(
        ah: Ah,
        qp_num: u32,
        qkey: impl Into<Option<QKey>>,
    ) -> Result<Destination, OutOfRange> {
        in_range("remote_qpn", qp_num.into(), 0xff_ffff, " (24 bits)")?;
        let qkey = qkey.into();
        Ok(Destination { ah, qp_num, qkey })
    }

    /// The address handle.
    pub fn ah(&self) -> &Ah {
        &self.ah
    }

    /// Number of the QP; [`Destination::GROUP`] for a group.
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// The Q_Key; `None` for that of the QP that sends.
    pub fn qkey(&self) -> Option<QKey> {
        self.qkey
    }

    /// For a post call.
    #[inline]
    pub(crate) fn datagram(&self) -> Datagram<'_> {
        let qkey = self.qkey.map_or(qkey::OWN, QKey::get);
        Datagram::new(&self.ah.owned, self.qp_num, qkey)
    }
}

/// There is no way to where a datagram shall go.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestinationError {
    /// The QP has no address of its own yet.
    #[error("the QP has no address to send from yet: activate it first")]
    NotActive,
    /// The peer's record has no Q_Key.
    #[error(
        "the record of QP {qp_num:#x} at {gid} has no Q_Key: it is not that of an active UD QP"
    )]
    NoQkey {
        /// The peer's QP number.
        qp_num: u32,
        /// Its GID.
        gid: Gid,
    },
    /// A group was asked for, and the GID is none.
    #[error(transparent)]
    NotAGroup(#[from] NotAGroup),
    /// A completion that is not that of a received datagram.
    #[error("the completion is not that of a received datagram: it names no sender")]
    NoSender,
    /// The bytes in front of the datagram are no header.
    #[error(transparent)]
    Grh(#[from] GrhError),
    /// The datagram was sent to an address that the port does not have.
    #[error("the datagram went to {destination}, which is not in the GID table of port {port}")]
    NotOurs {
        /// Where it went.
        destination: Gid,
        /// The port.
        port: u8,
    },
    /// The port has no GID to answer from.
    #[error(transparent)]
    Gid(#[from] GidError),
    /// There is no address handle.
    #[error(transparent)]
    Ah(#[from] AhError),
    /// A number is out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

/// A GID that is no multicast address was given as a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is no multicast address: the GID of a group is ff00::/8, or ::ffff:224.0.0.0 to ::ffff:239.255.255.255"
)]
pub struct NotAGroup(
    /// The GID.
    pub Gid,
);

/// The GID, if it is that of a group.
pub(crate) fn group(gid: Gid) -> Result<Gid, NotAGroup> {
    if gid.ip().is_multicast() {
        Ok(gid)
    } else {
        Err(NotAGroup(gid))
    }
}

/// The entry of the port's GID table to answer a datagram from: the one that it was sent to. One that went to a group is
/// answered from `usual`, if that is of the sender's address family, or else from the best one that is.
pub(crate) fn answer_from(
    port: &Port,
    usual: GidEntry,
    grh: &Grh,
) -> Result<GidEntry, DestinationError> {
    let is_it = |entry: &GidEntry| entry.gid == grh.destination && grh.came_to(entry.kind);
    if grh.destination.ip().is_multicast() {
        if usual.gid.family() == grh.source.family() {
            return Ok(usual);
        }
        return Ok(port.best_gid_for(grh.source)?.entry());
    }
    if is_it(&usual) {
        return Ok(usual);
    }
    let gids = port.gids().map_err(AhError::Query)?;
    gids.into_iter()
        .find(is_it)
        .ok_or_else(|| DestinationError::NotOurs {
            destination: grh.destination,
            port: port.number(),
        })
}

/// The way back to who sent a datagram, from a GID table entry of the own port. It has the traffic class and the flow label
/// that the datagram came with, but for the ECN bits, which are the network's; and the usual hop limit, because what was
/// left of the sender's may not be enough for the way back.
pub(crate) fn way_back(from: GidEntry, sender: &Sender, grh: Option<&Grh>) -> Path {
    let mut path = Path::new(from, grh.map_or(Gid::default(), |grh| grh.source));
    (path.lid, path.service_level) = (sender.lid, sender.service_level);
    path.global = path.global.zip(grh).map(|(global, grh)| Global {
        traffic_class: grh.traffic_class & !0b11,
        flow_label: grh.flow_label,
        ..global
    });
    path
}
