//! The control calls of a node: making, changing and ending its objects.

use std::sync::Arc;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_mw_type, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
};

use super::Node;
use super::cq::{Cq, CqInit};
use super::event::AsyncEvent;
use super::notify::EventQueue;
use super::objects::DomainFile;
use super::qp::{Qp, QpHandle};
use super::srq::Srq;
use crate::core::config::gid_to_ip;
use crate::core::rng::Rng;
use crate::core::{Ah, CallError, MrKeys, PdId, QpInit, QpStats, SrqAttr, SrqInit, XrcdId};
use crate::mem::Region;

impl Node {
    /// Allocates a protection domain.
    pub(crate) fn alloc_pd(&self) -> Result<PdId, CallError> {
        self.change(|driver, _, _| driver.engine.alloc_pd())
    }

    /// Frees a protection domain.
    pub(crate) fn dealloc_pd(&self, pd: PdId) -> Result<(), CallError> {
        self.control(|driver, _, _| driver.engine.dealloc_pd(pd))
    }

    /// Registers memory.
    pub(crate) fn reg_mr(
        &self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: ibv_access_flags,
    ) -> Result<MrKeys, CallError> {
        self.change(|driver, _, _| driver.engine.reg_mr(pd, region, iova, access))
    }

    /// Changes a registration; its keys stay. Nothing touches memory that it had and has no more.
    pub(crate) fn rereg_mr(
        &self,
        lkey: u32,
        memory: Option<(Region, u64)>,
        pd: Option<PdId>,
        access: Option<ibv_access_flags>,
    ) -> Result<(), CallError> {
        self.change(|driver, _, _| {
            driver.settle_windows(lkey);
            driver.engine.rereg_mr(lkey, memory, pd, access)
        })
    }

    /// Deregisters memory: nothing touches it afterwards.
    pub(crate) fn dereg_mr(&self, lkey: u32) -> Result<(), CallError> {
        self.control(|driver, _, _| {
            driver.settle_windows(lkey);
            driver.engine.dereg_mr(lkey)
        })
    }

    /// Allocates a memory window; gives its key.
    pub(crate) fn alloc_mw(&self, pd: PdId, kind: ibv_mw_type) -> Result<u32, CallError> {
        self.change(|driver, _, _| driver.engine.alloc_mw(pd, kind))
    }

    /// The key that the next bind of a window of type 1 gives it.
    pub(crate) fn next_window_key(&self, rkey: u32) -> Result<u32, CallError> {
        self.control(|driver, _, _| driver.engine.next_window_key(rkey))
    }

    /// Frees a memory window.
    pub(crate) fn dealloc_mw(&self, rkey: u32) -> Result<(), CallError> {
        self.control(|driver, _, _| driver.engine.dealloc_mw(rkey))
    }

    /// Creates a completion queue.
    pub(crate) fn create_cq(&self, init: CqInit) -> Result<Arc<Cq>, CallError> {
        self.change(|driver, _, _| {
            let id = driver.engine.create_cq()?;
            let reorders = self.config.strict.reorder_completions;
            let order = reorders.then(|| Rng::new(self.seed ^ u64::from(id.0)));
            let cq = Arc::new(Cq::new(id, init, self.clock, order));
            driver.objects.cqs.insert(id, Arc::clone(&cq));
            Ok(cq)
        })
    }

    /// Destroys a completion queue; its events must be retired afterwards.
    pub(crate) fn destroy_cq(&self, cq: &Cq) -> Result<(), CallError> {
        self.control(|driver, _, _| {
            driver.engine.destroy_cq(cq.id)?;
            driver.objects.cqs.remove(&cq.id);
            Ok(())
        })
    }

    /// Creates a shared receive queue; `cq` is where the receives of an XRC SRQ complete.
    pub(crate) fn create_srq(
        &self,
        init: SrqInit,
        cq: Option<Arc<Cq>>,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Result<Arc<Srq>, CallError> {
        self.change(|driver, _, _| {
            let id = driver.engine.create_srq(init)?;
            let srq = Arc::new(Srq::new(id, init.max_wr, cq, events));
            driver.objects.srqs.insert(id, Arc::clone(&srq));
            Ok(srq)
        })
    }

    /// Changes the room and the limit of a shared receive queue, whichever is given.
    ///
    /// # Errors
    /// `EINVAL` for less room than requests that hold a slot, and what the engine refuses.
    pub(crate) fn modify_srq(
        &self,
        srq: &Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), CallError> {
        self.change(|driver, now, notices| {
            // What was posted before counts.
            driver.take_posts();
            let used = srq.in_use();
            if let Some(room) = max_wr.filter(|&room| u64::from(room) < used) {
                return Err(CallError::invalid(format!(
                    "max_wr is {room}, but {used} requests hold a slot: poll their completions first"
                )));
            }
            driver.engine.modify_srq(srq.id, max_wr, limit)?;
            driver.report(now, notices);
            if let Some(room) = max_wr {
                srq.resize(room);
            }
            Ok(())
        })
    }

    /// Attributes of a shared receive queue.
    pub(crate) fn query_srq(&self, srq: &Srq) -> Option<SrqAttr> {
        self.control(|driver, _, _| driver.engine.query_srq(srq.id))
    }

    /// Destroys a shared receive queue; its events must be retired afterwards.
    pub(crate) fn destroy_srq(&self, srq: &Srq) -> Result<(), CallError> {
        self.control(|driver, now, notices| {
            driver.engine.destroy_srq(srq.id)?;
            driver.report(now, notices);
            srq.bury();
            driver.objects.srqs.remove(&srq.id);
            Ok(())
        })
    }

    /// Opens the XRC domain that `file` names, or one of its own.
    ///
    /// # Errors
    /// `EAGAIN` if there is none and `create` is off, `EINVAL` if there is one and `exclusive` is on.
    pub(crate) fn open_xrcd(
        &self,
        file: Option<DomainFile>,
        create: bool,
        exclusive: bool,
    ) -> Result<XrcdId, CallError> {
        self.change(|driver, _, _| {
            let engine = &mut driver.engine;
            driver.objects.open_xrcd(engine, file, create, exclusive)
        })
    }

    /// Closes an XRC domain once.
    ///
    /// # Errors
    /// `EBUSY` if that ended a domain in which there are SRQs or Queue Pairs.
    pub(crate) fn close_xrcd(&self, xrcd: XrcdId) -> Result<(), CallError> {
        self.control(|driver, _, _| driver.objects.close_xrcd(&mut driver.engine, xrcd))
    }

    /// Creates a Queue Pair.
    pub(crate) fn create_qp(
        &self,
        init: QpInit,
        send_cq: Option<Arc<Cq>>,
        recv_cq: Option<Arc<Cq>>,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Result<Arc<QpHandle>, CallError> {
        self.change(|driver, _, _| {
            let num = driver.engine.create_qp(init)?;
            if init.transport == Transport::Ud {
                driver.show_headers();
            }
            let qp = Arc::new(Qp::new(num, &init, send_cq, recv_cq));
            let handle = QpHandle::new(&qp, events);
            driver.objects.qps.insert(num, qp);
            Ok(handle)
        })
    }

    /// Opens the XRC target `qp_num` of a domain once more; gives also what it was created with.
    ///
    /// # Errors
    /// `EINVAL` if there is no such target.
    pub(crate) fn open_qp(
        &self,
        qp_num: u32,
        xrcd: XrcdId,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Result<(Arc<QpHandle>, QpInit), CallError> {
        self.change(|driver, _, _| {
            let init = driver.engine.open_qp(qp_num, xrcd)?;
            match driver.objects.qps.get(&qp_num) {
                Some(qp) => Ok((QpHandle::new(qp, events), init)),
                None => Err(CallError::invalid(format!("no QP {qp_num:#x}"))),
            }
        })
    }

    /// Changes attributes of a Queue Pair. `told` gets its new state before anybody else can change or ask for it.
    pub(crate) fn modify_qp(
        &self,
        qp: &Qp,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        told: impl FnOnce(ibv_qp_state),
    ) -> Result<(), CallError> {
        self.change(|driver, now, notices| {
            // What was posted before belongs to the state before.
            driver.take_posts_of(qp);
            // And so does what was executed before: it is not flushed, and need not be drained.
            driver.hear_executed(now);
            let state = driver.engine.modify_qp(qp.num, attr, mask)?;
            driver.report(now, notices);
            if state == ibv_qp_state::IBV_QPS_RTR {
                driver.prepare(now, qp.num);
            }
            if state == ibv_qp_state::IBV_QPS_RESET {
                qp.purge();
                driver.forget_asked(qp.num);
            }
            // What was reported may have been too much for a CQ, and that ends the QP.
            let now = driver.engine.query_qp(qp.num);
            let state = now.map_or(state, |(attr, _)| attr.qp_state);
            qp.set_state(state);
            // What was posted before the queues knew.
            driver.take_posts_of(qp);
            told(state);
            Ok(())
        })
    }

    /// Attributes of a Queue Pair, and what it was created with. `told` gets its state before anybody can change it.
    pub(crate) fn query_qp(
        &self,
        qp: &Qp,
        told: impl FnOnce(ibv_qp_state),
    ) -> Option<(ibv_qp_attr, QpInit)> {
        self.control(|driver, _, _| {
            let found = driver.engine.query_qp(qp.num)?;
            told(found.0.qp_state);
            Some(found)
        })
    }

    /// What a Queue Pair went through.
    pub(crate) fn qp_stats(&self, qp_num: u32) -> Option<QpStats> {
        self.control(|driver, _, _| driver.engine.qp_stats(qp_num))
    }

    /// Numbers and transports of all Queue Pairs.
    pub(crate) fn queue_pairs(&self) -> Vec<(u32, Transport)> {
        self.control(|driver, _, _| {
            let qps = driver.objects.qps.values();
            qps.map(|qp| (qp.num, qp.transport())).collect()
        })
    }

    /// Gives up a handle of a Queue Pair, which ends with its last; the handle's events must be
    /// retired afterwards.
    pub(crate) fn destroy_qp(&self, handle: &Arc<QpHandle>) -> Result<(), CallError> {
        self.control(|driver, now, notices| {
            let qp = &handle.qp;
            let last = qp.handles().iter().all(|h| Arc::ptr_eq(h, handle));
            if last {
                driver.engine.destroy_qp(qp.num)?;
                driver.forget_asked(qp.num);
                driver.report(now, notices);
                qp.bury();
                driver.objects.qps.remove(&qp.num);
            }
            qp.handles().retain(|h| !Arc::ptr_eq(h, handle));
            Ok(())
        })
    }

    /// Creates an address handle.
    pub(crate) fn create_ah(&self, pd: PdId, attr: &ibv_ah_attr) -> Result<Ah, CallError> {
        self.change(|driver, _, _| driver.engine.create_ah(pd, attr))
    }

    /// Destroys an address handle.
    pub(crate) fn destroy_ah(&self, ah: &Ah) {
        self.control(|driver, _, _| driver.engine.destroy_ah(ah));
    }

    /// Attaches a UD Queue Pair to a multicast group.
    pub(crate) fn attach_mcast(&self, qp: &Qp, gid: [u8; 16]) -> Result<(), CallError> {
        self.change(|driver, _, _| {
            if !driver.engine.attach_mcast(qp.num, gid)? {
                return Ok(());
            }
            let joined = driver.join_group(gid_to_ip(gid));
            if joined.is_err() {
                // It was attached just now, so it can be detached.
                let _ = driver.engine.detach_mcast(qp.num, gid);
            }
            joined
        })
    }

    /// Detaches a UD Queue Pair from a multicast group.
    pub(crate) fn detach_mcast(&self, qp: &Qp, gid: [u8; 16]) -> Result<(), CallError> {
        self.control(|driver, _, _| {
            if driver.engine.detach_mcast(qp.num, gid)? {
                driver.leave_group(gid_to_ip(gid));
            }
            Ok(())
        })
    }
}
