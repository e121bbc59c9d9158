//! Asynchronous events, and what is told to the application once the engine is unlocked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core_sys::ibv_event_type;

use super::cq::{Cq, CqEvent};
use super::notify::{Acks, EventQueue};
use super::qp::QpHandle;
use super::srq::Srq;

/// What an asynchronous event is about.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// A completion queue.
    Cq(Arc<Cq>),
    /// A Queue Pair, as one of those who opened it knows it.
    Qp(Arc<QpHandle>),
    /// A shared receive queue.
    Srq(Arc<Srq>),
    /// A port, from 1. All open contexts of the node are told.
    Port(u8),
    /// The device. All open contexts of the node are told.
    Device,
}

/// An asynchronous event.
#[derive(Clone, Debug)]
pub(crate) struct AsyncEvent {
    /// What happened.
    pub(crate) kind: ibv_event_type,
    /// To which object.
    pub(crate) subject: Subject,
}

impl AsyncEvent {
    /// The count of acknowledgements that the event belongs to; `None` for ports and devices, which
    /// nobody destroys.
    pub(crate) fn acks(&self) -> Option<&Acks> {
        match &self.subject {
            Subject::Cq(cq) => Some(&cq.async_acks),
            Subject::Qp(qp) => Some(&qp.acks),
            Subject::Srq(srq) => Some(&srq.acks),
            Subject::Port(_) | Subject::Device => None,
        }
    }

    /// False once the subject is being destroyed.
    fn alive(&self) -> bool {
        let dead = match &self.subject {
            Subject::Cq(cq) => &cq.dead,
            Subject::Qp(qp) => &qp.dead,
            Subject::Srq(srq) => &srq.dead,
            Subject::Port(_) | Subject::Device => return true,
        };
        !dead.load(Ordering::Acquire)
    }

    /// Appends the event to a context's queue. Not to be called with the engine locked.
    pub(super) fn push_to(self, queue: &EventQueue<AsyncEvent>) {
        let alive = self.clone();
        queue.push_if(self, || alive.alive());
    }
}

/// Something to tell the application once the engine is unlocked.
#[derive(Debug)]
pub(crate) enum Notice {
    /// An armed CQ got a completion.
    Completion(Arc<Cq>),
    /// An asynchronous event, for a context's queue.
    Async(AsyncEvent, Arc<EventQueue<AsyncEvent>>),
}

impl Notice {
    /// An asynchronous event of a CQ, for the queue of its context.
    pub(super) fn of_cq(cq: &Arc<Cq>, kind: ibv_event_type) -> Notice {
        let subject = Subject::Cq(Arc::clone(cq));
        Notice::Async(AsyncEvent { kind, subject }, Arc::clone(&cq.events))
    }

    /// An asynchronous event of a Queue Pair, for the queue of its handle's context.
    pub(super) fn of_qp(qp: &Arc<QpHandle>, kind: ibv_event_type) -> Notice {
        let subject = Subject::Qp(Arc::clone(qp));
        Notice::Async(AsyncEvent { kind, subject }, Arc::clone(&qp.events))
    }

    /// An asynchronous event of a shared receive queue, for the queue of its context.
    pub(super) fn of_srq(srq: &Arc<Srq>, kind: ibv_event_type) -> Notice {
        let subject = Subject::Srq(Arc::clone(srq));
        Notice::Async(AsyncEvent { kind, subject }, Arc::clone(&srq.events))
    }

    /// Writes the event to its descriptor.
    pub(crate) fn deliver(self) {
        match self {
            Notice::Completion(cq) => {
                if let Some(channel) = &cq.channel {
                    channel.push_if(CqEvent(Arc::clone(&cq)), || {
                        !cq.dead.load(Ordering::Acquire)
                    });
                }
            }
            Notice::Async(event, queue) => event.push_to(&queue),
        }
    }
}
