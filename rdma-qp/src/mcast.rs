//! Multicast: a UD QP becomes a member of a group.

use rdma_core_sys::ibv_gid;

use crate::ah::{NotAGroup, group};
use crate::errno::Errno;
use crate::gid::Gid;
use crate::qp::{Qp, Ud};

/// A QP could not be attached to a group, or detached from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum McastError {
    /// The GID is none of a group. The library was not called.
    #[error(transparent)]
    NotAGroup(#[from] NotAGroup),
    /// The QP is attached to it already. The library was not called.
    #[error("QP {qp_num:#x} is attached to {group} already")]
    Attached {
        /// The QP.
        qp_num: u32,
        /// The group.
        group: Gid,
    },
    /// The QP is not attached to it. The library was not called.
    #[error("QP {qp_num:#x} is not attached to {group}")]
    NotAttached {
        /// The QP.
        qp_num: u32,
        /// The group.
        group: Gid,
    },
    /// The library refused.
    #[error("QP {qp_num:#x} could not be {} {group}: {source}{}", done(*.attach), hint(*.source))]
    Refused {
        /// The QP.
        qp_num: u32,
        /// The group.
        group: Gid,
        /// Attaching was refused, rather than detaching.
        attach: bool,
        /// What the library said.
        source: Errno,
    },
}

fn done(attach: bool) -> &'static str {
    if attach {
        "attached to"
    } else {
        "detached from"
    }
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM => "; has the device room for another group, and the group for another QP?",
        _ => "",
    }
}

impl Qp<Ud> {
    /// Attaches the QP to a multicast group: it receives what is sent to it, each message once, also those of other QPs of
    /// this device, and its own unless
    /// [`QpBuilder::block_self_mcast_loopback`](crate::QpBuilder::block_self_mcast_loopback) was asked for. `lid` is the group's on InfiniBand; on Ethernet it means nothing and is 0.
    ///
    /// Before it is destroyed the QP is detached from all groups.
    ///
    /// On RoCE an adapter or the kernel's device only lets the group's link address pass then. That routers and switches
    /// send it here, the host itself must be a member, which `rdma_join_multicast`, a UDP socket that joins the group, or
    /// the administrator does. The software device does it by itself.
    ///
    /// # Errors
    /// The GID is no multicast address, the QP is a member already, or the library refused.
    pub fn attach(&mut self, group: Gid, lid: u16) -> Result<(), McastError> {
        let gid = self::group(group)?;
        let (qp_num, raw) = (self.qp_num(), ibv_gid::from_raw(gid.bytes()));
        if self.handle_mut().is_attached(raw) {
            return Err(McastError::Attached { qp_num, group });
        }
        let attached = self.handle_mut().attach(raw, lid);
        attached.map_err(|source| McastError::Refused {
            qp_num,
            group,
            attach: true,
            source,
        })
    }

    /// Detaches the QP from a group.
    ///
    /// # Errors
    /// The QP is no member, or the library refused.
    pub fn detach(&mut self, group: Gid) -> Result<(), McastError> {
        let (qp_num, raw) = (self.qp_num(), ibv_gid::from_raw(group.bytes()));
        if !self.handle_mut().is_attached(raw) {
            return Err(McastError::NotAttached { qp_num, group });
        }
        let detached = self.handle_mut().detach(raw);
        detached.map_err(|source| McastError::Refused {
            qp_num,
            group,
            attach: false,
            source,
        })
    }

    /// The groups that the QP is attached to.
    pub fn groups(&self) -> Vec<Gid> {
        let groups = self.handle().groups();
        groups.map(|group| Gid::new(group.raw)).collect()
    }
}
