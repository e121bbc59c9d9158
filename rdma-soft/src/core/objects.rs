//! What a node holds: protection domains, memory, queues, Queue Pairs, and who uses what.

mod datagram;
mod memory;
mod qp;
mod srq;

use std::collections::BTreeMap;
use std::fmt::Display;

use rdma_core_sys::{ibv_event_type, ibv_qp_state};
use rustix::io::Errno;

use super::config::PortConfig;
use super::error::CallError;
use super::event::{CqId, PdId, XrcdId};
use super::qp::QpInit;
use super::srq::Srq;
use super::{Engine, ModifyError};

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

    pub(super) fn known_pd(&self, pd: Option<PdId>) -> Result<(), CallError> {
        match pd {
            Some(pd) if self.pds.contains_key(&pd) => Ok(()),
            _ => Err(CallError::invalid("no protection domain")),
        }
    }

    pub(super) fn known_cq(&self, cq: Option<CqId>) -> Result<(), CallError> {
        match cq {
            Some(cq) if self.cqs.contains_key(&cq) => Ok(()),
            _ => Err(CallError::invalid("no completion queue")),
        }
    }

    pub(super) fn known_xrcd(&self, xrcd: XrcdId) -> Result<(), CallError> {
        match self.xrcds.contains_key(&xrcd) {
            true => Ok(()),
            false => Err(CallError::invalid("no XRC domain")),
        }
    }

    /// The Queue Pairs that `which` picks, by their numbers.
    pub(super) fn qps_where(&self, which: impl Fn(&QpInit) -> bool) -> String {
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
        *slot.ok_or(ModifyError::NoPort(port))? = config;
        Ok(())
    }
}

/// The next number of 24 bits that `free` takes.
pub(super) fn draw_number(next: &mut u32, free: impl Fn(u32) -> bool) -> u32 {
    loop {
        let num = *next & 0xff_ffff;
        *next = next.wrapping_add(1);
        if free(num) {
            return num;
        }
    }
}

/// Changes the number of users of an object.
pub(super) fn count<Id: Ord>(objects: &mut BTreeMap<Id, usize>, id: Id, by: isize) {
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
pub(super) fn list<T>(
    kind: &str,
    items: impl Iterator<Item = T>,
    name: impl Fn(T) -> String,
) -> String {
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
pub(super) fn above(name: &str, value: u32, cap: &str, max: u32) -> Result<(), CallError> {
    if value <= max {
        return Ok(());
    }
    Err(CallError::invalid(format!(
        "{name} is {value}: {cap} is {max}"
    )))
}

/// `ENOMEM` if one more than `have` is above `max`.
pub(super) fn within(cap: &str, have: usize, max: u32) -> Result<(), CallError> {
    if (have as u64) < u64::from(max) {
        return Ok(());
    }
    let why = format!("{cap} is {max}, and so many are there");
    Err(CallError::new(Errno::NOMEM, why))
}
