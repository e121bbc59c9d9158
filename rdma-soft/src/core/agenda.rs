//! Which Queue Pairs are to be looked at: those that may have something to send, and those whose time has come.

use std::collections::{BTreeSet, VecDeque};

use rdma_core_sys::{ibv_event_type, ibv_qp_state};

use super::qp::{Qp, Shared};
use super::time::Instant;

/// Packets that a Queue Pair sends before another one has its turn.
const BURST: u32 = 16;

/// The Queue Pairs of a node by when they are due, by number: one may be gone.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// Those that may have something to send.
    ready: VecDeque<u32>,
    /// Those among them that wait until there is room on their way.
    held: Vec<u32>,
    timers: BTreeSet<(Instant, u32)>,
    /// The first of the timers.
    earliest: Option<Instant>,
}

impl Agenda {
    /// After a change to a Queue Pair: it may have something to send, or another deadline.
    #[inline]
    pub fn settle(&mut self, qp: &mut Qp, shared: &mut Shared) {
        if qp.drain_event || qp.held {
            self.settle_rest(qp, shared);
        } else if !qp.ready && qp.may_send() {
            qp.ready = true;
            self.ready.push_back(qp.num);
        }
        self.arm(qp);
    }

    #[cold]
    fn settle_rest(&mut self, qp: &mut Qp, shared: &mut Shared) {
        if qp.drain_event && qp.state == ibv_qp_state::IBV_QPS_SQD && qp.sq.drained() {
            qp.drain_event = false;
            qp.event(shared, ibv_event_type::IBV_EVENT_SQ_DRAINED);
        }
        if qp.held && qp.rq.acknowledges() {
            qp.held = false;
            self.held.retain(|&held| held != qp.num);
            self.ready.push_back(qp.num);
        } else if qp.held {
            qp.begin(shared);
        } else if !qp.ready {
            qp.ready = true;
            self.ready.push_back(qp.num);
        }
    }

    /// Brings the timers in line with a Queue Pair's deadline. A deadline that moved away is left
    /// to fire early and be looked at then: cheaper than moving it with every packet.
    #[inline]
    pub fn arm(&mut self, qp: &mut Qp) {
        if let Some(due) = qp.sq.deadline()
            && qp.armed.is_none_or(|at| at > due)
        {
            self.move_timer(qp, due);
        }
    }

    #[cold]
    fn move_timer(&mut self, qp: &mut Qp, due: Instant) {
        if let Some(at) = qp.armed.replace(due) {
            self.timers.remove(&(at, qp.num));
        }
        self.timers.insert((due, qp.num));
        self.look();
    }

    /// A Queue Pair is gone: it has no deadline any more.
    pub fn forget(&mut self, qp: &Qp) {
        if let Some(at) = qp.armed {
            self.timers.remove(&(at, qp.num));
            self.look();
        }
    }

    fn look(&mut self) {
        self.earliest = self.timers.first().map(|&(at, _)| at);
    }

    /// When the first deadline is.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.earliest
    }

    /// Takes out the first deadline that has come by `now`, and gives its Queue Pair.
    pub fn take_due(&mut self, now: Instant) -> Option<u32> {
        self.earliest.filter(|&at| at <= now)?;
        let (_, qp_num) = self.timers.pop_first()?;
        self.look();
        Some(qp_num)
    }

    /// The Queue Pair whose turn it is to send.
    #[inline]
    pub fn first_ready(&self) -> Option<u32> {
        self.ready.front().copied()
    }

    /// The first one is gone.
    pub fn drop_first(&mut self) {
        self.ready.pop_front();
    }

    /// The first one, `qp`, has nothing to send.
    #[inline]
    pub fn pass(&mut self, qp: &mut Qp) {
        (qp.ready, qp.burst) = (false, 0);
        self.ready.pop_front();
    }

    /// The first one, `qp`, has to wait until there is room.
    pub fn hold(&mut self, qp: &mut Qp) {
        (qp.held, qp.burst) = (true, 0);
        self.ready.pop_front();
        self.held.push(qp.num);
    }

    /// The first one, `qp`, has sent a packet and may have more: after some it is another one's turn.
    #[inline]
    pub fn count(&mut self, qp: &mut Qp) {
        qp.burst += 1;
        if qp.burst >= BURST {
            qp.burst = 0;
            self.ready.rotate_left(1);
        }
    }

    /// Those that waited have their turn again; `each` gets their numbers.
    pub fn release(&mut self, mut each: impl FnMut(u32)) {
        for qp_num in self.held.drain(..) {
            each(qp_num);
            self.ready.push_back(qp_num);
        }
    }
}
