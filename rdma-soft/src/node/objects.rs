//! The node's objects by their numbers: where new requests come from, and where what the engine
//! reports goes.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rdma_core_sys::ibv_event_type;
use rustix::io::Errno;

use super::cq::{Cq, Pushed};
use super::event::Notice;
use super::qp::Qp;
use super::queue::{Poster, Posts};
use super::srq::Srq;
use crate::core::{CallError, Completion, CqId, Engine, Event, MULTICAST_QP, Queue, SrqId, XrcdId};
use crate::wire::Packet;

/// The node's objects, by number.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) cqs: BTreeMap<CqId, Arc<Cq>>,
    pub(super) qps: BTreeMap<u32, Arc<Qp>>,
    pub(super) srqs: BTreeMap<SrqId, Arc<Srq>>,
    domains: BTreeMap<XrcdId, Domain>,
    /// Where posters leave word.
    pub(super) posts: Arc<Posts>,
    /// Room for the list of queues whose requests are being taken.
    taken: Vec<Poster>,
    /// Room for what is being reported.
    events: VecDeque<Event>,
}

/// An XRC domain that is open.
#[derive(Debug)]
struct Domain {
    /// The file that names it; open, so that no other file gets its inode number.
    file: Option<DomainFile>,
    /// How often it was opened and not closed.
    opens: usize,
}

/// What names an XRC domain: a file, by its device and inode.
#[derive(Debug)]
pub(crate) struct DomainFile {
    /// The file.
    pub(crate) _fd: OwnedFd,
    /// Its device and its inode.
    pub(crate) inode: (u64, u64),
}

impl Objects {
    /// Gives all new requests to the engine.
    ///
    /// Before every packet that comes in, too: who posted a receive to an SRQ and then let the peer know must
    /// not be told that there was none.
    #[inline]
    pub(super) fn take_posts(&mut self, engine: &mut Engine) {
        if self.posts.pending() {
            self.take_pending(engine);
        }
    }

    /// Before every packet that comes in: gives the engine the receives that the packet may need. Until then they wait where
    /// they were posted, and cost nothing.
    #[inline]
    pub(super) fn take_receives(&self, engine: &mut Engine, packet: &Packet) {
        let to = packet.bth.dest_qp;
        if engine.lacks_receives(to) {
            if let Some(qp) = self.qps.get(&to) {
                qp.give_receives(engine);
            }
        } else if to == MULTICAST_QP {
            self.qps.values().for_each(|qp| qp.give_receives(engine));
        }
    }

    fn take_pending(&mut self, engine: &mut Engine) {
        let mut taken = std::mem::take(&mut self.taken);
        self.posts.take(&mut taken);
        for poster in taken.drain(..) {
            match poster {
                Poster::Qp(qp) if !qp.is_dead() => qp.give(engine),
                Poster::Srq(srq) if !srq.is_dead() => {
                    srq.drain(|wqe| engine.post_srq_recv(srq.id, wqe));
                }
                _ => {}
            }
        }
        self.taken = taken;
    }

    /// Hands the engine's events to their objects. New ones may come of it.
    pub(super) fn report(&mut self, engine: &mut Engine, notices: &mut Vec<Notice>) {
        let mut events = std::mem::take(&mut self.events);
        engine.take_events(&mut events);
        for event in &events {
            match event {
                Event::Completion { cq, wc, solicited } => {
                    self.complete(engine, notices, *cq, wc, *solicited);
                }
                other => self.report_rest(engine, notices, other),
            }
        }
        events.clear();
        self.events = events;
    }

    /// Hands a completion to its CQ.
    #[inline]
    fn complete(
        &self,
        engine: &mut Engine,
        notices: &mut Vec<Notice>,
        cq: CqId,
        wc: &Completion,
        solicited: bool,
    ) {
        let (Some(cq), Some(qp)) = (self.cqs.get(&cq), self.qps.get(&wc.qp_num)) else {
            return;
        };
        let srq = match wc.queue {
            Queue::Srq(id) => self.srqs.get(&id),
            Queue::Send | Queue::Recv => None,
        };
        match cq.push(wc, qp, srq, solicited) {
            Pushed::Quiet => {}
            Pushed::Event => notices.push(Notice::Completion(Arc::clone(cq))),
            lost @ (Pushed::Lost | Pushed::Overrun) => {
                if let Some(srq) = srq {
                    // Nobody will poll it: its slot is free all the same.
                    srq.reclaim();
                }
                if lost == Pushed::Overrun {
                    notices.push(Notice::of_cq(cq, ibv_event_type::IBV_EVENT_CQ_ERR));
                    engine.cq_overrun(cq.id);
                }
            }
        }
    }

    /// Hands another event than a completion to its object.
    #[cold]
    fn report_rest(&self, engine: &mut Engine, notices: &mut Vec<Notice>, event: &Event) {
        match *event {
            Event::Completion { .. } => {}
            Event::Qp { qp_num, kind } => {
                if let Some(qp) = self.qps.get(&qp_num) {
                    notices.extend(qp.handles().iter().map(|h| Notice::of_qp(h, kind)));
                }
            }
            Event::Srq { srq, kind } => {
                if let Some(srq) = self.srqs.get(&srq) {
                    notices.push(Notice::of_srq(srq, kind));
                }
            }
            Event::State { qp_num, state } => {
                if let Some(qp) = self.qps.get(&qp_num) {
                    qp.set_state(state);
                    // What was posted before the queues knew.
                    qp.give(engine);
                }
            }
        }
    }

    /// Opens the XRC domain of `file`, or a new one that no file names.
    ///
    /// # Errors
    /// As ib_uverbs_open_xrcd of the kernel: `EAGAIN` if the file names none and `create` is off,
    /// `EINVAL` if it names one and `exclusive` is on.
    pub(super) fn open_xrcd(
        &mut self,
        engine: &mut Engine,
        file: Option<DomainFile>,
        create: bool,
        exclusive: bool,
    ) -> Result<XrcdId, CallError> {
        if let Some(file) = &file {
            let same = |d: &Domain| d.file.as_ref().is_some_and(|f| f.inode == file.inode);
            match self.domains.iter_mut().find(|(_, d)| same(d)) {
                Some(_) if exclusive => {
                    return Err(CallError::invalid(
                        "O_EXCL, but the file names an XRC domain that is open already",
                    ));
                }
                Some((&id, domain)) => {
                    domain.opens += 1;
                    return Ok(id);
                }
                None if !create => {
                    return Err(CallError::new(
                        Errno::AGAIN,
                        "the file names no XRC domain that is open: make one with O_CREAT",
                    ));
                }
                None => {}
            }
        }
        let id = engine.open_xrcd();
        self.domains.insert(id, Domain { file, opens: 1 });
        Ok(id)
    }

    /// Closes an XRC domain once; it ends with the last time.
    ///
    /// # Errors
    /// `EBUSY` if that ended a domain in which there are SRQs or Queue Pairs.
    pub(super) fn close_xrcd(&mut self, engine: &mut Engine, id: XrcdId) -> Result<(), CallError> {
        let domain = self.domains.get_mut(&id).ok_or(Errno::INVAL)?;
        if domain.opens == 1 {
            engine.close_xrcd(id)?;
            self.domains.remove(&id);
        } else {
            domain.opens -= 1;
        }
        Ok(())
    }
}
