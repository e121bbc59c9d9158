//! Address handles and multicast groups.

use std::collections::BTreeSet;

use rdma_core_sys::ibv_ah_attr;
use rdma_core_sys::rules::Transport;
use rustix::io::Errno;

use super::{count, within};
use crate::core::config::gid_to_ip;
use crate::core::modify::{check_ah, resolve};
use crate::core::wqe::Ah;
use crate::core::{CallError, Engine, PdId};

impl Engine {
    /// A new address handle.
    ///
    /// # Errors
    /// `EINVAL` for a port, GID index or destination that cannot work.
    pub fn create_ah(&mut self, pd: PdId, attr: &ibv_ah_attr) -> Result<Ah, CallError> {
        self.known_pd(Some(pd))?;
        let have = usize::try_from(self.ahs).unwrap_or(usize::MAX);
        within("max_ah", have, self.shared.config.caps.max_ah)?;
        check_ah(&self.shared.config, attr)?;
        let path = resolve(&self.shared.config, attr)?;
        self.ahs += 1;
        count(&mut self.pds, pd, 1);
        Ok(Ah { pd, path })
    }

    /// Ends an address handle. Requests that were posted with it go on.
    pub fn destroy_ah(&mut self, ah: &Ah) {
        self.ahs = self.ahs.saturating_sub(1);
        count(&mut self.pds, ah.pd, -1);
    }

    /// Attaches a UD Queue Pair to a multicast group. True if it is the node's first: then the node
    /// has to listen to the group from now on.
    ///
    /// # Errors
    /// `EINVAL` for another transport, for a GID that is no multicast address, and for a Queue Pair
    /// that is attached already; `ENOMEM` above the caps.
    pub fn attach_mcast(&mut self, qp_num: u32, gid: [u8; 16]) -> Result<bool, CallError> {
        let qp = self.qps.get(&qp_num).ok_or(Errno::INVAL)?;
        let group = gid_to_ip(gid);
        if qp.init.transport != Transport::Ud {
            let name = qp.init.transport.name();
            return Err(CallError::invalid(format!(
                "QP {qp_num:#x} is {name}: only UD takes part in multicast"
            )));
        }
        if !group.is_multicast() {
            return Err(CallError::invalid(format!(
                "{group} is no multicast address: a group's GID is ff00::/8, or ::ffff:224.0.0.0 to ::ffff:239.255.255.255"
            )));
        }
        let members = self.groups.get(&group);
        if members.is_some_and(|m| m.contains(&qp_num)) {
            return Err(CallError::invalid(format!(
                "QP {qp_num:#x} is attached to {group} already"
            )));
        }
        let caps = &self.shared.config.caps;
        if members.is_none() {
            within("max_mcast_grp", self.groups.len(), caps.max_mcast_grp)?;
        }
        let members = members.map_or(0, BTreeSet::len);
        within("max_mcast_qp_attach", members, caps.max_mcast_qp_attach)?;
        self.groups.entry(group).or_default().insert(qp_num);
        Ok(members == 0)
    }

    /// Detaches a Queue Pair from a multicast group. True if it was the node's last.
    ///
    /// # Errors
    /// `EINVAL` if it is not attached.
    pub fn detach_mcast(&mut self, qp_num: u32, gid: [u8; 16]) -> Result<bool, CallError> {
        let group = gid_to_ip(gid);
        let members = self.groups.get_mut(&group);
        let Some(members) = members.filter(|m| m.contains(&qp_num)) else {
            return Err(CallError::invalid(format!(
                "QP {qp_num:#x} is not attached to {group}"
            )));
        };
        members.remove(&qp_num);
        let last = members.is_empty();
        if last {
            self.groups.remove(&group);
        }
        Ok(last)
    }
}
