//! What was made in a context and not destroyed yet: closing the device, and all contexts that were imported from it, ends it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustix::io::Errno;

use super::dm::DeviceMemory;
use super::mr::Registration;
use crate::core::{Ah, CallError, PdId, SrqId, XrcdId};
use crate::node::{Cq, Node, Qp, QpHandle, Srq};

/// What was made in a context and not destroyed yet.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) pds: BTreeSet<PdId>,
    /// By local key.
    pub(super) mrs: BTreeMap<u32, Arc<Registration>>,
    /// By handle.
    pub(super) dms: BTreeMap<u32, Arc<DeviceMemory>>,
    /// By the remote key that they had first.
    pub(super) mws: BTreeSet<u32>,
    pub(super) cqs: BTreeMap<u32, Arc<Cq>>,
    /// By the address of the `ibv_ah`.
    pub(super) ahs: BTreeMap<usize, Ah>,
    srqs: BTreeMap<SrqId, Arc<Srq>>,
    /// By the address of the handle.
    qps: BTreeMap<usize, Arc<QpHandle>>,
    /// Multicast groups and who of `qps` is attached to them.
    groups: BTreeMap<(u32, [u8; 16]), Arc<Qp>>,
    /// Open XRC domains, by a number of the context.
    xrcds: BTreeMap<u32, OpenXrcd>,
    next_xrcd: u32,
}

/// An open XRC domain, and what was made in it here.
struct OpenXrcd {
    id: XrcdId,
    users: BTreeSet<User>,
}

/// Something that was made in an open XRC domain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum User {
    /// A handle of a target: its address, and the number of the target.
    Qp(usize, u32),
    Srq(SrqId),
}

/// Where a handle is, which no other is as long as it is known.
fn address(handle: &Arc<QpHandle>) -> usize {
    Arc::as_ptr(handle) as usize
}

impl Objects {
    fn users(&mut self, xrcd: Option<u32>) -> Option<&mut BTreeSet<User>> {
        Some(&mut self.xrcds.get_mut(&xrcd?)?.users)
    }

    /// A Queue Pair was made, in that open XRC domain if there is one.
    pub(super) fn add_qp(&mut self, handle: &Arc<QpHandle>, xrcd: Option<u32>) {
        let at = address(handle);
        self.qps.insert(at, Arc::clone(handle));
        if let Some(users) = self.users(xrcd) {
            users.insert(User::Qp(at, handle.qp.num));
        }
    }

    /// A Queue Pair was destroyed.
    pub(super) fn remove_qp(&mut self, handle: &Arc<QpHandle>, xrcd: Option<u32>) {
        let at = address(handle);
        self.qps.remove(&at);
        if let Some(users) = self.users(xrcd) {
            users.remove(&User::Qp(at, handle.qp.num));
        }
    }

    /// A shared receive queue was made, in that open XRC domain if there is one.
    pub(super) fn add_srq(&mut self, srq: &Arc<Srq>, xrcd: Option<u32>) {
        self.srqs.insert(srq.id, Arc::clone(srq));
        if let Some(users) = self.users(xrcd) {
            users.insert(User::Srq(srq.id));
        }
    }

    /// A shared receive queue was destroyed.
    pub(super) fn remove_srq(&mut self, srq: &Srq, xrcd: Option<u32>) {
        self.srqs.remove(&srq.id);
        if let Some(users) = self.users(xrcd) {
            users.remove(&User::Srq(srq.id));
        }
    }

    /// A Queue Pair was attached to a multicast group.
    pub(super) fn add_member(&mut self, qp: &Arc<Qp>, group: [u8; 16]) {
        self.groups.insert((qp.num, group), Arc::clone(qp));
    }

    /// A Queue Pair was detached from a multicast group.
    pub(super) fn remove_member(&mut self, qp: &Qp, group: [u8; 16]) {
        self.groups.remove(&(qp.num, group));
    }

    /// An XRC domain was opened; gives its number here.
    pub(super) fn add_xrcd(&mut self, id: XrcdId) -> u32 {
        let number = self.next_xrcd;
        self.next_xrcd += 1;
        let users = BTreeSet::new();
        self.xrcds.insert(number, OpenXrcd { id, users });
        number
    }

    /// `EBUSY` if something that was made in this open XRC domain is still there.
    pub(super) fn unused_xrcd(&self, number: u32) -> Result<(), CallError> {
        let users = &self.xrcds.get(&number).ok_or(Errno::INVAL)?.users;
        if users.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = (users.iter())
            .map(|user| match user {
                User::Qp(_, num) => format!("QP {num:#x}"),
                User::Srq(srq) => format!("SRQ {:#x}", srq.0),
            })
            .collect();
        let by = names.join(", ");
        Err(CallError::busy(format!("the XRC domain is used by {by}")))
    }

    /// An XRC domain was closed.
    pub(super) fn remove_xrcd(&mut self, number: u32) {
        self.xrcds.remove(&number);
    }

    /// Ends everything. Users go before what they use, so no call is refused; what other contexts
    /// share goes on with them.
    pub(super) fn end(self, node: &Node) {
        for ((_, group), qp) in &self.groups {
            let _ = node.detach_mcast(qp, *group);
        }
        for handle in self.qps.values() {
            let _ = node.destroy_qp(handle);
        }
        for rkey in self.mws {
            let _ = node.dealloc_mw(rkey);
        }
        for (lkey, _) in self.mrs {
            let _ = node.dereg_mr(lkey);
        }
        for srq in self.srqs.values() {
            let _ = node.destroy_srq(srq);
        }
        for xrcd in self.xrcds.values() {
            let _ = node.close_xrcd(xrcd.id);
        }
        for cq in self.cqs.values() {
            let _ = node.destroy_cq(cq);
        }
        for ah in self.ahs.values() {
            node.destroy_ah(ah);
        }
        for pd in self.pds {
            let _ = node.dealloc_pd(pd);
        }
    }
}
