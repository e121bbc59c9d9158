//! A shared receive queue as posters and engine share it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::cq::Cq;
use super::event::{AsyncEvent, Subject};
use super::lock;
use super::notify::{Acks, EventQueue};
use super::queue::{Posting, WorkQueue};
use crate::core::{RecvWqe, SrqId};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    /// Its number.
    pub(crate) id: SrqId,
    /// Address of the `ibv_srq`; opaque here.
    pub(crate) handle: AtomicUsize,
    queue: Mutex<WorkQueue<RecvWqe>>,
    /// Requests whose slots are free again. They complete in any order, so this counts them.
    reclaimed: AtomicU64,
    /// It is on the node's list of queues with new requests; written under that list's lock.
    pub(super) listed: AtomicBool,
    /// Where the receives of an XRC SRQ complete.
    cq: Option<Arc<Cq>>,
    /// Where its asynchronous events go.
    pub(super) events: Arc<EventQueue<AsyncEvent>>,
    /// Asynchronous events that wait for `ibv_ack_async_event`.
    pub(crate) acks: Acks,
    /// It is being destroyed: no more events.
    pub(super) dead: AtomicBool,
}

impl Srq {
    /// A shared receive queue with room for `max_wr` requests.
    pub(super) fn new(
        id: SrqId,
        max_wr: u32,
        cq: Option<Arc<Cq>>,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Srq {
        let mut queue = WorkQueue::new(max_wr);
        // It takes requests from the beginning to the end.
        queue.shut = None;
        Srq {
            id,
            handle: AtomicUsize::new(0),
            queue: Mutex::new(queue),
            reclaimed: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            cq,
            events,
            acks: Acks::default(),
            dead: AtomicBool::new(false),
        }
    }

    /// Locks the queue for posting.
    pub(crate) fn post(&self) -> Posting<'_, RecvWqe> {
        Posting::new(lock(&self.queue), &self.reclaimed, "SRQ")
    }

    /// The slot of one request is free again.
    pub(super) fn reclaim(&self) {
        self.reclaimed.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes how many requests it holds.
    pub(super) fn resize(&self, max_wr: u32) {
        lock(&self.queue).capacity = max_wr;
    }

    /// Requests that hold a slot: they wait, are being filled, or their completion was not polled.
    pub(super) fn in_use(&self) -> u64 {
        lock(&self.queue).posted - self.reclaimed.load(Ordering::Acquire)
    }

    /// Gives the staged requests to the engine. Only whoever holds the engine calls this, so the order
    /// stays that of posting.
    pub(super) fn drain(&self, recv: impl FnMut(RecvWqe)) {
        lock(&self.queue).staged.drain(..).for_each(recv);
    }

    /// The engine destroyed it: no completion and no event comes from now on.
    pub(super) fn bury(&self) {
        self.dead.store(true, Ordering::Release);
        if let Some(cq) = &self.cq {
            cq.purge_srq(self);
        }
    }

    /// The engine does not know it any more.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Ends its events: none is delivered from now on, and those that were taken have been
    /// acknowledged when this returns.
    pub(crate) fn retire_events(&self) {
        self.dead.store(true, Ordering::Release);
        self.events.remove(
            |e| matches!(&e.subject, Subject::Srq(srq) if std::ptr::eq(Arc::as_ptr(srq), self)),
        );
        self.acks.wait();
    }
}
