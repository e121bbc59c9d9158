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

    /// False once the subject is being destroyed, and until an XRC target that is being opened once more
    /// has an `ibv_qp`: its peer may be sending already, and an event must name something.
    fn alive(&self) -> bool {
        let dead = match &self.subject {
            Subject::Cq(cq) => &cq.dead,
            Subject::Qp(qp) if qp.handle.load(Ordering::Acquire) == 0 => return false,
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

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::io::Errno;

    use super::*;
    use crate::node::cq::tests::queue_pair;

    /// An event of a handle that the application does not know yet would name nothing, and could never be
    /// acknowledged.
    #[test]
    fn a_handle_hears_nothing_before_it_is_known() {
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        fcntl_setfl(events.fd(), OFlags::NONBLOCK).expect("a descriptor's flags");
        let handle = QpHandle::new(&queue_pair(0x11), Arc::clone(&events));
        let hear = |kind| {
            Notice::of_qp(&handle, kind).deliver();
            events.take(|_| ()).map(|event| event.kind)
        };
        assert_eq!(hear(ibv_event_type::IBV_EVENT_COMM_EST), Err(Errno::AGAIN));
        handle.handle.store(0x1000, Ordering::Release);
        let kind = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR;
        assert_eq!(hear(kind), Ok(kind));
        handle.retire_events();
        assert_eq!(hear(kind), Err(Errno::AGAIN));
    }
}
