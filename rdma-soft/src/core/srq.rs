//! Shared receive queues.

use std::collections::VecDeque;

use rdma_core_sys::ibv_event_type;

use super::event::{CqId, Event, PdId, SrqId, XrcdId};
use super::wqe::RecvWqe;

/// What a shared receive queue is created with.
#[derive(Clone, Copy, Debug)]
pub struct SrqInit {
    /// The protection domain of its buffers; for an XRC SRQ, also of the memory that requests which
    /// name it reach.
    pub pd: PdId,
    /// Requests that it holds.
    pub max_wr: u32,
    /// Scatter/gather entries of a request.
    pub max_sge: u32,
    /// Requests below which its event is raised once; 0 for never.
    pub limit: u32,
    /// An XRC SRQ: its domain, and where its completions go.
    pub xrc: Option<(XrcdId, CqId)>,
}

/// What a shared receive queue can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Requests that it holds.
    pub max_wr: u32,
    /// Scatter/gather entries of a request.
    pub max_sge: u32,
    /// Requests below which its event is raised; 0 once it was.
    pub limit: u32,
}

#[derive(Debug)]
pub(super) struct Srq {
    pub id: SrqId,
    pub init: SrqInit,
    /// Receives that wait for a message, oldest first.
    pub queue: VecDeque<RecvWqe>,
    /// Queue Pairs that take their receives from it; not the XRC targets of its domain.
    pub users: usize,
    /// Its CQ lost a completion: it takes no more messages.
    pub failed: bool,
}

impl Srq {
    pub fn new(id: SrqId, init: SrqInit) -> Srq {
        Srq {
            id,
            init,
            queue: VecDeque::new(),
            users: 0,
            failed: false,
        }
    }

    pub fn attr(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.init.max_wr,
            max_sge: self.init.max_sge,
            limit: self.init.limit,
        }
    }

    /// Takes the oldest receive.
    pub fn take(&mut self, events: &mut VecDeque<Event>) -> Option<RecvWqe> {
        let wqe = self.queue.pop_front()?;
        self.check_limit(events);
        Some(wqe)
    }

    /// Raises the limit event if fewer requests are left than the limit says. That disarms it
    /// (ibv_modify_srq(3)).
    pub fn check_limit(&mut self, events: &mut VecDeque<Event>) {
        if (self.queue.len() as u64) < u64::from(self.init.limit) {
            self.init.limit = 0;
            events.push_back(Event::Srq {
                srq: self.id,
                kind: ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED,
            });
        }
    }
}
