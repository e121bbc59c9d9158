//! Shared receive queues.

use rustix::io::Errno;

use super::{above, count, draw_number, within};
use crate::core::srq::{Srq, SrqAttr, SrqInit};
use crate::core::wqe::RecvWqe;
use crate::core::{CallError, Engine, SrqId};

impl Engine {
    /// A new shared receive queue.
    ///
    /// # Errors
    /// `EINVAL` for no room, for capacities above the caps, a limit above the capacity, or unknown
    /// objects; `ENOMEM` above [`max_srq`](crate::core::config::Caps::max_srq).
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
        if gone.users > 0 {
            let qps = self.qps_where(|init| init.srq == Some(srq));
            return Err(CallError::busy(format!(
                "SRQ {:#x} is used by {qps}",
                srq.0
            )));
        }
        let init = gone.init;
        if init.xrc.is_some() {
            // A target in the middle of a message to this SRQ holds a receive of it.
            for qp in self.qps.values_mut() {
                qp.forget_srq(srq);
            }
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
}
