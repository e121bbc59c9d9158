//! A Queue Pair's work queues as posters and engine share them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rdma_core_sys::ibv_qp_state;
use rdma_core_sys::rules::{self, Transport, Work};

use super::cq::Cq;
use super::event::{AsyncEvent, Subject};
use super::lock;
use super::notify::{Acks, EventQueue};
use super::queue::{Posting, WorkQueue};
use crate::core::{Engine, QpInit, Queue, RecvWqe, SendWqe};

/// A Queue Pair.
#[derive(Debug)]
pub(crate) struct Qp {
    /// Its number.
    pub(crate) num: u32,
    transport: Transport,
    /// The `ibv_qp`s: one, and for an XRC target one more with each `ibv_open_qp`.
    handles: Mutex<Vec<Arc<QpHandle>>>,
    /// The send queue.
    send: Mutex<WorkQueue<SendWqe>>,
    /// The receive queue.
    recv: Mutex<WorkQueue<RecvWqe>>,
    /// Requests of the send queue whose slots are free again.
    ///
    /// It only grows, and never beyond what was posted: all completions of a queue are in one CQ, in the
    /// order of the queue, and are polled under that CQ's lock; RESET takes them out of the CQ under the same
    /// lock before it frees all slots. A poster reads it under the queue's lock, under which every request
    /// that it counts was posted; if it reads too little, the queue looks fuller than it is.
    send_reclaimed: AtomicU64,
    /// Requests of the receive queue whose slots are free again.
    recv_reclaimed: AtomicU64,
    /// It is on the node's list of queues with new requests; written under that list's lock.
    pub(super) listed: AtomicBool,
    /// Where its sends complete; an XRC target has none.
    send_cq: Option<Arc<Cq>>,
    /// Where its receives complete; XRC Queue Pairs have none.
    recv_cq: Option<Arc<Cq>>,
    /// The engine does not know it any more.
    dead: AtomicBool,
}

impl Qp {
    /// Its transport.
    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// A Queue Pair in RESET.
    pub(super) fn new(
        num: u32,
        init: &QpInit,
        send_cq: Option<Arc<Cq>>,
        recv_cq: Option<Arc<Cq>>,
    ) -> Qp {
        Qp {
            num,
            transport: init.transport,
            handles: Mutex::default(),
            send: Mutex::new(WorkQueue::new(init.max_send_wr)),
            recv: Mutex::new(WorkQueue::new(init.max_recv_wr)),
            send_reclaimed: AtomicU64::new(0),
            recv_reclaimed: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            send_cq,
            recv_cq,
            dead: AtomicBool::new(false),
        }
    }

    /// Locks the send queue for posting.
    pub(crate) fn post_send(&self) -> Posting<'_, SendWqe> {
        Posting::new(lock(&self.send), &self.send_reclaimed, "send queue")
    }

    /// Locks the receive queue for posting.
    pub(crate) fn post_recv(&self) -> Posting<'_, RecvWqe> {
        Posting::new(lock(&self.recv), &self.recv_reclaimed, "receive queue")
    }

    /// The number of send requests whose slots are free again.
    pub(super) fn sends_reclaimed(&self) -> u64 {
        self.send_reclaimed.load(Ordering::Acquire)
    }

    /// The completion of request `seq` was polled: its slot and all before are free.
    pub(super) fn reclaim(&self, queue: Queue, seq: u64) {
        let reclaimed = match queue {
            Queue::Send => &self.send_reclaimed,
            Queue::Recv => &self.recv_reclaimed,
            // Not from a queue of this QP.
            Queue::Srq(_) => return,
        };
        reclaimed.store(seq + 1, Ordering::Release);
    }

    /// Gives the staged receives to the engine. Only whoever holds the engine calls this, so the order stays that of
    /// posting.
    pub(super) fn give_receives(&self, engine: &mut Engine) {
        let mut recvs = lock(&self.recv);
        if !recvs.staged.is_empty() {
            engine.post_recvs(self.num, &mut recvs.staged);
        }
    }

    /// Gives the staged requests to the engine, receives first. Only whoever holds the engine
    /// calls this, so the order stays that of posting.
    pub(super) fn give(&self, engine: &mut Engine) {
        self.give_receives(engine);
        let mut sends = lock(&self.send);
        if !sends.staged.is_empty() {
            engine.post_sends(self.num, &mut sends.staged);
        }
    }

    /// Follows a change of state. Going to RESET forgets all requests and frees their slots.
    pub(super) fn set_state(&self, state: ibv_qp_state) {
        fn follow<W>(
            queue: &Mutex<WorkQueue<W>>,
            reclaimed: &AtomicU64,
            state: ibv_qp_state,
            (open, work): (bool, Work),
        ) {
            let mut queue = lock(queue);
            queue.shut = (!open).then_some(state);
            queue.flushes = work == Work::Flushed;
            if state == ibv_qp_state::IBV_QPS_RESET {
                queue.staged.clear();
                reclaimed.store(queue.posted, Ordering::Release);
            }
        }
        // The engine has no other states.
        let Some(posts) = rules::allowed_posts(self.transport, state) else {
            return;
        };
        let (sends, recvs) = ((posts.post_send, posts.send), (posts.post_recv, posts.recv));
        follow(&self.send, &self.send_reclaimed, state, sends);
        follow(&self.recv, &self.recv_reclaimed, state, recvs);
    }

    /// Forgets the completions that are still in the CQs. To be called with the engine locked,
    /// when it has reported everything, and before the state follows: a poll may free a slot late.
    ///
    /// What an XRC target received belongs to whoever has the SRQ, and stays.
    pub(super) fn purge(&self) {
        for cq in [&self.send_cq, &self.recv_cq].into_iter().flatten() {
            cq.purge(self);
        }
    }

    /// The engine destroyed the QP: no completion and no event comes from now on.
    pub(super) fn bury(&self) {
        self.dead.store(true, Ordering::Release);
        self.purge();
    }

    /// The engine does not know the QP any more.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Who hears of its events, and keeps it.
    pub(super) fn handles(&self) -> MutexGuard<'_, Vec<Arc<QpHandle>>> {
        lock(&self.handles)
    }
}

/// An `ibv_qp`: a Queue Pair as one who created or opened it knows it.
#[derive(Debug)]
pub(crate) struct QpHandle {
    /// The Queue Pair.
    pub(crate) qp: Arc<Qp>,
    /// Address of the `ibv_qp`; opaque here.
    pub(crate) handle: AtomicUsize,
    /// Where its asynchronous events go.
    pub(super) events: Arc<EventQueue<AsyncEvent>>,
    /// Asynchronous events that wait for `ibv_ack_async_event`.
    pub(crate) acks: Acks,
    /// It is being destroyed: no more events.
    pub(super) dead: AtomicBool,
}

impl QpHandle {
    /// One more handle of `qp`.
    pub(super) fn new(qp: &Arc<Qp>, events: Arc<EventQueue<AsyncEvent>>) -> Arc<QpHandle> {
        let handle = Arc::new(QpHandle {
            qp: Arc::clone(qp),
            handle: AtomicUsize::new(0),
            events,
            acks: Acks::default(),
            dead: AtomicBool::new(false),
        });
        qp.handles().push(Arc::clone(&handle));
        handle
    }

    /// Ends its events: none is delivered from now on, and those that were taken have been
    /// acknowledged when this returns.
    pub(crate) fn retire_events(&self) {
        self.dead.store(true, Ordering::Release);
        self.events.remove(
            |e| matches!(&e.subject, Subject::Qp(qp) if std::ptr::eq(Arc::as_ptr(qp), self)),
        );
        self.acks.wait();
    }
}
