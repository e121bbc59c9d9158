//! Multicast groups of a QP.

use rdma_core_sys::*;

use super::qp::QpHandle;
use super::status;
use crate::errno::Errno;

impl QpHandle {
    /// Whether it is attached to the group.
    pub(crate) fn is_attached(&self, group: ibv_gid) -> bool {
        self.groups.iter().any(|(gid, _)| gid.raw == group.raw)
    }

    /// `ibv_attach_mcast`.
    pub(crate) fn attach(&mut self, group: ibv_gid, lid: u16) -> Result<(), Errno> {
        // SAFETY: the QP is live (invariant 1); the GID is read during the call.
        status(unsafe {
            self.pd()
                .context
                .verbs
                .attach_mcast(self.as_ptr(), &group, lid)
        })?;
        self.groups.push((group, lid));
        Ok(())
    }

    /// `ibv_detach_mcast`, from a group that it is attached to; from others nothing happens.
    pub(crate) fn detach(&mut self, group: ibv_gid) -> Result<(), Errno> {
        let place = self.groups.iter().position(|(gid, _)| gid.raw == group.raw);
        let Some(place) = place else { return Ok(()) };
        let (group, lid) = self.groups[place];
        // SAFETY: the QP is live (invariant 1); the GID is read during the call.
        status(unsafe {
            self.pd()
                .context
                .verbs
                .detach_mcast(self.as_ptr(), &group, lid)
        })?;
        self.groups.swap_remove(place);
        Ok(())
    }

    /// The groups that it is attached to.
    pub(crate) fn groups(&self) -> impl Iterator<Item = ibv_gid> {
        self.groups.iter().map(|(gid, _)| *gid)
    }

    /// Leaves all groups, before the QP is destroyed. A group that it cannot leave is told by the destruction, which the
    /// library refuses then.
    pub(super) fn detach_all(&mut self) {
        for group in self.groups().collect::<Vec<_>>() {
            if let Err(errno) = self.detach(group) {
                tracing::warn!(
                    device = %self.pd().context.name, qp = self.number(), %errno,
                    "a QP could not leave a multicast group"
                );
            }
        }
    }
}
