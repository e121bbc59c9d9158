//! What a node holds: protection domains, memory, queues, Queue Pairs, and who uses what.

use std::collections::BTreeMap;
use std::fmt::Display;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{
    IBV_ACCESS_OPTIONAL_RANGE, ibv_access_flags, ibv_ah_attr, ibv_event_type, ibv_mw_type,
    ibv_qp_state,
};
use rustix::io::Errno;

use super::config::{PortConfig, gid_to_ip};
use super::error::CallError;
use super::event::{CqId, PdId, SrqId, XrcdId};
use super::keys::MrKeys;
use super::modify::{check_ah, resolve};
use super::qp::{Qp, QpInit};
use super::srq::{Srq, SrqAttr, SrqInit};
use super::wqe::{Ah, RecvWqe};
use super::{Engine, ModifyError};
use crate::mem::Region;

/// Rights that a region may be registered with.
fn check_access(access: ibv_access_flags) -> Result<(), CallError> {
    use ibv_access_flags as A;
    let local = A::IBV_ACCESS_LOCAL_WRITE;
    let remote = A::IBV_ACCESS_REMOTE_WRITE | A::IBV_ACCESS_REMOTE_ATOMIC;
    // How the range is addressed is settled by `iova`; that its pages are huge is a hint.
    let known = local
        | remote
        | A::IBV_ACCESS_REMOTE_READ
        | A::IBV_ACCESS_MW_BIND
        | A::IBV_ACCESS_ZERO_BASED
        | A::IBV_ACCESS_HUGETLB
        | A::from_bits_retain(IBV_ACCESS_OPTIONAL_RANGE);
    let unknown = access.bits() & !known.bits();
    if unknown != 0 {
        return Err(CallError::invalid(format!(
            "access has bits that this device does not know: {unknown:#x}"
        )));
    }
    if access.intersects(remote) && !access.contains(local) {
        return Err(CallError::invalid(
            "IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE",
        ));
    }
    Ok(())
}

impl Engine {
    fn id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        id
    }

    /// A new protection domain; `ENOMEM` above [`max_pd`](super::config::Caps::max_pd).
    pub fn alloc_pd(&mut self) -> Result<PdId, CallError> {
        within("max_pd", self.pds.len(), self.shared.config.caps.max_pd)?;
        let pd = PdId(self.id());
        self.pds.insert(pd, 0);
        Ok(pd)
    }

    /// Ends a protection domain; `EBUSY` while memory regions, memory windows, address handles,
    /// shared receive queues or Queue Pairs belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), CallError> {
        unused(&mut self.pds, pd, "PD", pd.0).map_err(|users| {
            let qps = self.qps_where(|init| init.pd == Some(pd));
            let srqs = list(
                "SRQ",
                self.shared.srqs.values().filter(|s| s.init.pd == pd),
                |s| format!("{:#x}", s.id.0),
            );
            let regions = list("MR", self.shared.keys.regions_of(pd), |k| format!("{k:#x}"));
            let windows = list("MW", self.shared.keys.windows_of(pd), |k| format!("{k:#x}"));
            users.named([qps, srqs, regions, windows])
        })
    }

    /// Registers memory. Requests address its first byte as `iova`.
    ///
    /// # Errors
    /// `EINVAL` for rights of peers to write without the local right to write (ibv_reg_mr(3)), for
    /// rights that this device does not have, and for a range that wraps; `ENOMEM` above the caps.
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: ibv_access_flags,
    ) -> Result<MrKeys, CallError> {
        within(
            "max_mr",
            self.shared.keys.len(),
            self.shared.config.caps.max_mr,
        )?;
        self.check_region(pd, &region, iova)?;
        check_access(access)?;
        count(&mut self.pds, pd, 1);
        Ok(self.shared.keys.insert(pd, region, iova, access))
    }

    fn check_region(&self, pd: PdId, region: &Region, iova: u64) -> Result<(), CallError> {
        let max = self.shared.config.caps.max_mr_size;
        if region.len() > max {
            let why = format!("{} bytes: max_mr_size is {max}", region.len());
            return Err(CallError::invalid(why));
        }
        if iova.checked_add(region.len()).is_none() {
            return Err(CallError::invalid("the range wraps around"));
        }
        self.known_pd(Some(pd))
    }

    /// Changes a registration: its memory (with the address that requests use for its first byte),
    /// its domain, its rights, whichever is given. Its keys stay.
    ///
    /// # Errors
    /// As [`reg_mr`](Engine::reg_mr); `EBUSY` while a memory window is bound to it. Nothing was
    /// changed then.
    pub fn rereg_mr(
        &mut self,
        lkey: u32,
        memory: Option<(Region, u64)>,
        pd: Option<PdId>,
        access: Option<ibv_access_flags>,
    ) -> Result<(), CallError> {
        let mr = self.shared.keys.region(lkey).ok_or(Errno::INVAL)?;
        let (old, new) = (mr.pd, pd.unwrap_or(mr.pd));
        let access = access.unwrap_or(mr.access);
        let (region, iova) = memory.unwrap_or_else(|| (mr.region.clone(), mr.iova));
        self.check_region(new, &region, iova)?;
        check_access(access)?;
        self.free_of_windows(lkey)?;
        self.shared.keys.replace(lkey, new, region, iova, access);
        count(&mut self.pds, old, -1);
        count(&mut self.pds, new, 1);
        Ok(())
    }

    fn free_of_windows(&self, lkey: u32) -> Result<(), CallError> {
        let bound: Vec<_> = (self.shared.keys.windows_on(lkey))
            .map(|k| format!("{k:#x}"))
            .collect();
        if bound.is_empty() {
            return Ok(());
        }
        Err(CallError::busy(format!(
            "memory windows are bound to the region: rkey {}; invalidate them and poll the completion first",
            bound.join(", ")
        )))
    }

    /// Ends a registration: after it returns, nothing touches the memory.
    ///
    /// # Errors
    /// `EBUSY` while a memory window is bound to it: it is until the completion of the request that
    /// invalidates it was reported.
    pub fn dereg_mr(&mut self, lkey: u32) -> Result<(), CallError> {
        self.free_of_windows(lkey)?;
        let pd = self.shared.keys.remove(lkey).ok_or(Errno::INVAL)?;
        count(&mut self.pds, pd, -1);
        Ok(())
    }

    /// A new memory window, bound to nothing. Gives its key.
    ///
    /// # Errors
    /// `EINVAL` for an unknown type, `ENOMEM` above [`max_mw`](super::config::Caps::max_mw).
    pub fn alloc_mw(&mut self, pd: PdId, kind: ibv_mw_type) -> Result<u32, CallError> {
        self.known_pd(Some(pd))?;
        if !matches!(
            kind,
            ibv_mw_type::IBV_MW_TYPE_1 | ibv_mw_type::IBV_MW_TYPE_2
        ) {
            return Err(CallError::invalid(format!(
                "type {}: a window is of type 1 or 2",
                kind.0
            )));
        }
        let (have, max) = (self.shared.keys.windows(), self.shared.config.caps.max_mw);
        within("max_mw", have, max)?;
        count(&mut self.pds, pd, 1);
        Ok(self.shared.keys.insert_window(pd, kind))
    }

    /// The key that a bind of this window of type 1 gives it, to be passed with the bind request
    /// (ibv_bind_mw(3)). `EINVAL` for a window of type 2, whose keys the application chooses, and for
    /// one that there is not.
    pub fn next_window_key(&mut self, rkey: u32) -> Result<u32, CallError> {
        self.shared.keys.next_window_key(rkey)
    }

    /// A window's key as it is now, by any key that it had.
    pub fn window_key(&self, rkey: u32) -> Option<u32> {
        self.shared.keys.window_key(rkey)
    }

    /// Frees a memory window, bound or not, by any key that it had.
    pub fn dealloc_mw(&mut self, rkey: u32) -> Result<(), CallError> {
        let pd = self.shared.keys.remove_window(rkey).ok_or(Errno::INVAL)?;
        count(&mut self.pds, pd, -1);
        Ok(())
    }

    /// A new completion queue, as far as the engine needs one: a name for where completions go.
    pub fn create_cq(&mut self) -> Result<CqId, CallError> {
        within("max_cq", self.cqs.len(), self.shared.config.caps.max_cq)?;
        let cq = CqId(self.id());
        self.cqs.insert(cq, 0);
        Ok(cq)
    }

    /// Ends a completion queue; `EBUSY` while Queue Pairs or XRC SRQs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), CallError> {
        unused(&mut self.cqs, cq, "CQ", cq.0).map_err(|users| {
            let qps = self.qps_where(|init| init.send_cq == Some(cq) || init.recv_cq == Some(cq));
            let of = |s: &&Srq| s.init.xrc.is_some_and(|(_, at)| at == cq);
            let srqs = list("SRQ", self.shared.srqs.values().filter(of), |s| {
                format!("{:#x}", s.id.0)
            });
            users.named([qps, srqs])
        })
    }

    /// A new XRC domain.
    pub fn open_xrcd(&mut self) -> XrcdId {
        let xrcd = XrcdId(self.id());
        self.xrcds.insert(xrcd, 0);
        xrcd
    }

    /// Ends an XRC domain; `EBUSY` while SRQs or Queue Pairs belong to it.
    pub fn close_xrcd(&mut self, xrcd: XrcdId) -> Result<(), CallError> {
        unused(&mut self.xrcds, xrcd, "XRC domain", xrcd.0).map_err(|users| {
            let qps = self.qps_where(|init| init.xrcd == Some(xrcd));
            let of = |s: &&Srq| s.init.xrc.is_some_and(|(at, _)| at == xrcd);
            let srqs = list("SRQ", self.shared.srqs.values().filter(of), |s| {
                format!("{:#x}", s.id.0)
            });
            users.named([qps, srqs])
        })
    }

    /// A new shared receive queue.
    ///
    /// # Errors
    /// `EINVAL` for no room, for capacities above the caps, a limit above the capacity, or unknown
    /// objects; `ENOMEM` above [`max_srq`](super::config::Caps::max_srq).
    pub fn create_srq(&mut self, init: SrqInit) -> Result<SrqId, CallError> {
        let caps = &self.shared.config.caps;
        above("max_wr", init.max_wr, "max_srq_wr", caps.max_srq_wr)?;
        above("max_sge", init.max_sge, "max_srq_sge", caps.max_srq_sge)?;
        above("srq_limit", init.limit, "max_wr", init.max_wr)?;
        if init.max_wr == 0 {
            return Err(CallError::invalid(
                "max_wr is 0: an SRQ holds at least one request",
            ));
        }
        within("max_srq", self.shared.srqs.len(), caps.max_srq)?;
        self.known_pd(Some(init.pd))?;
        if let Some((xrcd, cq)) = init.xrc {
            self.known_xrcd(xrcd)?;
            self.known_cq(Some(cq))?;
        }
        let id = SrqId(draw_number(&mut self.next_srqn, |n| {
            n != 0 && !self.shared.srqs.contains_key(&SrqId(n))
        }));
        self.shared.srqs.insert(id, Srq::new(id, init));
        self.count_srq(&init, 1);
        Ok(id)
    }

    fn count_srq(&mut self, init: &SrqInit, by: isize) {
        count(&mut self.pds, init.pd, by);
        if let Some((xrcd, cq)) = init.xrc {
            count(&mut self.xrcds, xrcd, by);
            count(&mut self.cqs, cq, by);
        }
    }

    /// Changes a shared receive queue: the requests that it holds, and the limit below which its event
    /// is raised. A limit that is above what it holds already raises the event at once.
    ///
    /// # Errors
    /// `EINVAL` for a capacity above the caps or below what waits in it, and for a limit above the
    /// capacity. Nothing was changed then.
    pub fn modify_srq(
        &mut self,
        srq: SrqId,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), CallError> {
        let most = self.shared.config.caps.max_srq_wr;
        let srq = self.shared.srqs.get_mut(&srq).ok_or(Errno::INVAL)?;
        let room = max_wr.unwrap_or(srq.init.max_wr);
        above("max_wr", room, "max_srq_wr", most)?;
        if (room as usize) < srq.queue.len().max(1) {
            return Err(CallError::invalid(format!(
                "max_wr is {room}: {} requests wait in the SRQ",
                srq.queue.len()
            )));
        }
        above("srq_limit", limit.unwrap_or(0), "max_wr", room)?;
        srq.init.max_wr = room;
        if let Some(limit) = limit {
            srq.init.limit = limit;
            srq.check_limit(&mut self.shared.events);
        }
        Ok(())
    }

    /// A shared receive queue's attributes.
    pub fn query_srq(&self, srq: SrqId) -> Option<SrqAttr> {
        self.shared.srqs.get(&srq).map(Srq::attr)
    }

    /// Ends a shared receive queue; `EBUSY` while Queue Pairs take their receives from it. What waits
    /// in it is discarded without completions.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), CallError> {
        let gone = self.shared.srqs.get(&srq).ok_or(Errno::INVAL)?;
        if self.qps.values().any(|qp| qp.init.srq == Some(srq)) {
            let qps = self.qps_where(|init| init.srq == Some(srq));
            return Err(CallError::busy(format!(
                "SRQ {:#x} is used by {qps}",
                srq.0
            )));
        }
        let init = gone.init;
        // An XRC target in the middle of a message to this SRQ holds a receive of it.
        for qp in self.qps.values_mut() {
            qp.forget_srq(srq);
        }
        self.shared.srqs.remove(&srq);
        self.count_srq(&init, -1);
        Ok(())
    }

    /// Posts a receive request to a shared receive queue.
    pub fn post_srq_recv(&mut self, srq: SrqId, wqe: RecvWqe) {
        if let Some(srq) = self.shared.srqs.get_mut(&srq) {
            srq.queue.push_back(wqe);
        }
    }

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
        let caps = &self.shared.config.caps;
        let members = match self.groups.get(&group) {
            Some(members) => members.len(),
            None => {
                within("max_mcast_grp", self.groups.len(), caps.max_mcast_grp)?;
                0
            }
        };
        within("max_mcast_qp_attach", members, caps.max_mcast_qp_attach)?;
        if !self.groups.entry(group).or_default().insert(qp_num) {
            return Err(CallError::invalid(format!(
                "QP {qp_num:#x} is attached to {group} already"
            )));
        }
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

    /// A new Queue Pair, in RESET. Returns its number.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a transport that this device does not have; `EINVAL` for capacities above the
    /// caps, for queues that the transport has not, and for unknown objects; `ENOMEM` above the number
    /// of Queue Pairs.
    pub fn create_qp(&mut self, init: QpInit) -> Result<u32, CallError> {
        self.check_parts(&init)?;
        let caps = &self.shared.config.caps;
        for (name, value, cap, max) in [
            ("max_send_wr", init.max_send_wr, "max_qp_wr", caps.max_qp_wr),
            ("max_recv_wr", init.max_recv_wr, "max_qp_wr", caps.max_qp_wr),
            ("max_send_sge", init.max_send_sge, "max_sge", caps.max_sge),
            ("max_recv_sge", init.max_recv_sge, "max_sge", caps.max_sge),
            (
                "max_inline_data",
                init.max_inline,
                "max_inline_data",
                caps.max_inline_data,
            ),
        ] {
            above(name, value, cap, max)?;
        }
        within("max_qp", self.qps.len(), caps.max_qp)?;
        // 0 and 1 are the management Queue Pairs, 0xffffff is multicast.
        let num = draw_number(&mut self.next_qpn, |n| {
            n > 1 && n != 0xff_ffff && !self.qps.contains_key(&n)
        });
        self.qps
            .insert(num, Qp::new(num, init, &self.shared.config));
        self.count_users(&init, 1);
        Ok(num)
    }

    /// Which objects and queues a transport has.
    fn check_parts(&self, init: &QpInit) -> Result<(), CallError> {
        let name = init.transport.name();
        let (sends, receives) = match init.transport {
            Transport::Rc | Transport::Uc | Transport::Ud => (true, true),
            Transport::XrcIni => (true, false),
            Transport::XrcTgt => (false, true),
            Transport::Smi | Transport::Gsi | Transport::RawPacket => {
                let why = format!("this device has no {name} Queue Pairs");
                return Err(CallError::new(Errno::OPNOTSUPP, why));
            }
        };
        let refuse = |why: &str| Err(CallError::invalid(format!("{name}: {why}")));
        let target = init.transport == Transport::XrcTgt;
        if sends {
            self.known_pd(init.pd)?;
            self.known_cq(init.send_cq)?;
        } else if init.max_send_wr > 0 || init.max_send_sge > 0 {
            return refuse("max_send_wr and max_send_sge must be 0: a target has no send queue");
        }
        if receives && !target {
            self.known_cq(init.recv_cq)?;
        } else if init.max_recv_wr > 0 || init.max_recv_sge > 0 {
            return refuse(if target {
                "max_recv_wr and max_recv_sge must be 0: a target takes its receives from the SRQs of its domain"
            } else {
                "max_recv_wr and max_recv_sge must be 0: initiator QPs have no receive queue"
            });
        }
        match (init.srq, init.transport) {
            (None, _) => {}
            (Some(_), Transport::XrcIni) => {
                return refuse(
                    "srq must be null: the SRQ belongs to the target side; put its number in each request",
                );
            }
            (Some(_), Transport::XrcTgt) => {
                return refuse("srq must be null: each request names an SRQ of the domain");
            }
            (Some(srq), _) => match self.shared.srqs.get(&srq) {
                None => return refuse("unknown SRQ"),
                Some(srq) if srq.init.xrc.is_some() => {
                    return refuse("an XRC SRQ serves XRC targets only");
                }
                Some(_) => {}
            },
        }
        match (init.xrcd, target) {
            (Some(xrcd), true) => self.known_xrcd(xrcd),
            (None, true) => refuse("a target needs an XRC domain (IBV_QP_INIT_ATTR_XRCD)"),
            (Some(_), false) => refuse("only a target takes an XRC domain"),
            (None, false) => Ok(()),
        }
    }

    fn known_pd(&self, pd: Option<PdId>) -> Result<(), CallError> {
        match pd {
            Some(pd) if self.pds.contains_key(&pd) => Ok(()),
            _ => Err(CallError::invalid("no protection domain")),
        }
    }

    fn known_cq(&self, cq: Option<CqId>) -> Result<(), CallError> {
        match cq {
            Some(cq) if self.cqs.contains_key(&cq) => Ok(()),
            _ => Err(CallError::invalid("no completion queue")),
        }
    }

    fn known_xrcd(&self, xrcd: XrcdId) -> Result<(), CallError> {
        match self.xrcds.contains_key(&xrcd) {
            true => Ok(()),
            false => Err(CallError::invalid("no XRC domain")),
        }
    }

    /// What the XRC target `qp_num` of the domain `xrcd` was created with: for `ibv_open_qp`.
    ///
    /// # Errors
    /// `EINVAL` if there is no such target in that domain.
    pub fn open_qp(&self, qp_num: u32, xrcd: XrcdId) -> Result<QpInit, CallError> {
        match self.qps.get(&qp_num) {
            Some(qp) if qp.init.xrcd == Some(xrcd) => Ok(qp.init),
            _ => Err(CallError::invalid(format!(
                "no XRC target {qp_num:#x} in that XRC domain"
            ))),
        }
    }

    /// Ends a Queue Pair; what is pending is discarded without completions, and receives that it took
    /// from a shared receive queue and did not use go back there.
    pub fn destroy_qp(&mut self, qp_num: u32) -> Result<(), CallError> {
        let attached: Vec<_> = (self.groups.iter())
            .filter(|(_, members)| members.contains(&qp_num))
            .map(|(group, _)| group.to_string())
            .collect();
        if !attached.is_empty() {
            return Err(CallError::busy(format!(
                "QP {qp_num:#x} is attached to {}: detach it first",
                attached.join(", ")
            )));
        }
        let mut qp = self.qps.remove(&qp_num).ok_or(Errno::INVAL)?;
        qp.give_back(&mut self.shared);
        if let Some(at) = qp.armed {
            self.timers.remove(&(at, qp_num));
        }
        self.shared.keys.qp_gone(qp_num);
        self.count_users(&qp.init, -1);
        Ok(())
    }

    fn count_users(&mut self, init: &QpInit, by: isize) {
        if let Some(pd) = init.pd {
            count(&mut self.pds, pd, by);
        }
        for cq in [init.send_cq, init.recv_cq].into_iter().flatten() {
            count(&mut self.cqs, cq, by);
        }
        if let Some(xrcd) = init.xrcd {
            count(&mut self.xrcds, xrcd, by);
        }
    }

    /// The Queue Pairs that `which` picks, by their numbers.
    fn qps_where(&self, which: impl Fn(&QpInit) -> bool) -> String {
        list("QP", self.qps.values().filter(|qp| which(&qp.init)), |qp| {
            format!("{:#x}", qp.num)
        })
    }

    /// A completion found no room in its queue: all Queue Pairs of that queue end in ERR; XRC SRQs of
    /// that queue report an error, and requests that name one of them are refused.
    pub fn cq_overrun(&mut self, cq: CqId) {
        for srq in self.shared.srqs.values_mut() {
            if srq.init.xrc.is_some_and(|(_, at)| at == cq) && !srq.failed {
                srq.failed = true;
                let kind = ibv_event_type::IBV_EVENT_SRQ_ERR;
                let event = super::Event::Srq { srq: srq.id, kind };
                self.shared.events.push_back(event);
            }
        }
        for qp in self.qps.values_mut() {
            let uses = qp.init.send_cq == Some(cq) || qp.init.recv_cq == Some(cq);
            let alive =
                qp.state != ibv_qp_state::IBV_QPS_ERR && qp.state != ibv_qp_state::IBV_QPS_RESET;
            if uses && alive {
                qp.enter_error(&mut self.shared);
                qp.event(&mut self.shared, ibv_event_type::IBV_EVENT_QP_FATAL);
            }
        }
    }

    /// Changes what a port is: its GIDs, its partition keys, its MTU, its longest message. Paths that
    /// were resolved before stay as they are.
    ///
    /// # Errors
    /// `EINVAL` if there is no such port (they count from 1).
    pub fn set_port(&mut self, port: u8, config: PortConfig) -> Result<(), CallError> {
        let slot = usize::from(port).checked_sub(1);
        let slot = slot.and_then(|at| self.shared.config.ports.get_mut(at));
        *slot.ok_or_else(|| ModifyError::NoPort(port))? = config;
        Ok(())
    }
}

/// The next number of 24 bits that `free` takes.
fn draw_number(next: &mut u32, free: impl Fn(u32) -> bool) -> u32 {
    loop {
        let num = *next & 0xff_ffff;
        *next = next.wrapping_add(1);
        if free(num) {
            return num;
        }
    }
}

/// Changes the number of users of an object.
fn count<Id: Ord>(objects: &mut BTreeMap<Id, usize>, id: Id, by: isize) {
    if let Some(users) = objects.get_mut(&id) {
        *users = users.saturating_add_signed(by);
    }
}

/// Why an object cannot go: it is not there, or somebody uses it.
struct Users(Option<String>);

impl Users {
    /// The error, with the users' names.
    fn named<const N: usize>(self, users: [String; N]) -> CallError {
        match self.0 {
            None => Errno::INVAL.into(),
            Some(object) => {
                let named: Vec<_> = users.into_iter().filter(|u| !u.is_empty()).collect();
                let by = if named.is_empty() {
                    "address handles".to_owned()
                } else {
                    named.join("; ")
                };
                CallError::busy(format!("{object} is used by {by}"))
            }
        }
    }
}

/// "QP 0x1, 0x2", or nothing; a long list is cut.
fn list<T>(kind: &str, items: impl Iterator<Item = T>, name: impl Fn(T) -> String) -> String {
    const MOST: usize = 8;
    let mut names: Vec<_> = items.take(MOST + 1).map(name).collect();
    if names.is_empty() {
        return String::new();
    }
    if names.len() > MOST {
        names.truncate(MOST);
        names.push("...".to_owned());
    }
    format!("{kind} {}", names.join(", "))
}

/// Takes an object out, unless somebody uses it or there is none.
fn unused<Id: Ord>(
    objects: &mut BTreeMap<Id, usize>,
    id: Id,
    kind: &str,
    number: impl Display,
) -> Result<(), Users> {
    match objects.get(&id) {
        None => Err(Users(None)),
        Some(0) => {
            objects.remove(&id);
            Ok(())
        }
        Some(_) => Err(Users(Some(format!("{kind} {number}")))),
    }
}

/// `EINVAL` if a value is above its limit.
fn above(name: &str, value: u32, cap: &str, max: u32) -> Result<(), CallError> {
    if value <= max {
        return Ok(());
    }
    Err(CallError::invalid(format!(
        "{name} is {value}: {cap} is {max}"
    )))
}

/// `ENOMEM` if one more than `have` is above `max`.
fn within(cap: &str, have: usize, max: u32) -> Result<(), CallError> {
    if (have as u64) < u64::from(max) {
        return Ok(());
    }
    let why = format!("{cap} is {max}, and so many are there");
    Err(CallError::new(Errno::NOMEM, why))
}
