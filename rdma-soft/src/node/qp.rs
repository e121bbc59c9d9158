//! A Queue Pair's work queues as posters and engine share them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rdma_core_sys::ibv_qp_state;
use rustix::io::Errno;

use super::cq::{AsyncEvent, Cq, Subject};
use super::lock;
use super::notify::{Acks, EventQueue};
use crate::core::Queue;
use crate::core::{RecvWqe, SendWqe};

/// A Queue Pair.
#[derive(Debug)]
pub(crate) struct Qp {
    /// Its number.
    pub(crate) num: u32,
    /// Address of the `ibv_qp`; opaque here.
    pub(crate) handle: AtomicUsize,
    /// The send queue.
    send: Mutex<WorkQueue<SendWqe>>,
    /// The receive queue.
    recv: Mutex<WorkQueue<RecvWqe>>,
    /// Requests of the send queue whose slots are free again.
    send_reclaimed: AtomicU64,
    /// Requests of the receive queue whose slots are free again.
    recv_reclaimed: AtomicU64,
    /// It is on the node's list of Queue Pairs with new requests; written under that list's lock.
    listed: AtomicBool,
    /// Where its sends complete.
    pub(crate) send_cq: Arc<Cq>,
    /// Where its receives complete.
    pub(crate) recv_cq: Arc<Cq>,
    /// Where its asynchronous events go.
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    /// Asynchronous events that wait for `ibv_ack_async_event`.
    pub(crate) acks: Acks,
    /// It is being destroyed: no more events.
    pub(super) dead: AtomicBool,
}

/// One work queue: requests that the engine has not taken yet, and the count of all.
#[derive(Debug)]
pub(crate) struct WorkQueue<W> {
    /// Posted, and not yet taken by the engine.
    pub(super) staged: VecDeque<W>,
    /// Requests posted since the QP was created: the position of the next one.
    posted: u64,
    /// The QP's state.
    state: ibv_qp_state,
    /// Requests that the queue holds.
    capacity: u32,
}

impl<W> WorkQueue<W> {
    fn new(capacity: u32) -> WorkQueue<W> {
        WorkQueue {
            staged: VecDeque::new(),
            posted: 0,
            state: ibv_qp_state::IBV_QPS_RESET,
            capacity,
        }
    }
}

/// A work queue, locked for posting.
pub(crate) struct Posting<'a, W> {
    queue: MutexGuard<'a, WorkQueue<W>>,
    reclaimed: &'a AtomicU64,
    sends: bool,
}

impl<W> Posting<'_, W> {
    /// The position of the next request.
    ///
    /// # Errors
    /// `EINVAL` if the QP's state takes no such request, `ENOMEM` if the queue is full: a slot is
    /// free again when a completion of it or of a later request of the queue was polled.
    pub(crate) fn slot(&self) -> Result<u64, Errno> {
        let takes = match self.queue.state {
            ibv_qp_state::IBV_QPS_RESET => false,
            ibv_qp_state::IBV_QPS_INIT | ibv_qp_state::IBV_QPS_RTR => !self.sends,
            _ => true,
        };
        if !takes {
            return Err(Errno::INVAL);
        }
        let used = self.queue.posted - self.reclaimed.load(Ordering::Acquire);
        if used >= u64::from(self.queue.capacity) {
            return Err(Errno::NOMEM);
        }
        Ok(self.queue.posted)
    }

    /// True if what is posted now completes at once, with a flush.
    pub(crate) fn flushes(&self) -> bool {
        self.queue.state == ibv_qp_state::IBV_QPS_ERR
    }

    /// Appends a request that carries the position which [`slot`](Posting::slot) gave.
    pub(crate) fn push(&mut self, wqe: W) {
        self.queue.posted += 1;
        self.queue.staged.push_back(wqe);
    }
}

/// The Queue Pairs with requests that the engine has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Posts {
    list: Mutex<Vec<Arc<Qp>>>,
    /// The list may hold something.
    pending: AtomicBool,
}

impl Posts {
    /// `qp` has new requests.
    pub(super) fn mark(&self, qp: &Arc<Qp>) {
        let mut list = lock(&self.list);
        if !qp.listed.swap(true, Ordering::Relaxed) {
            list.push(Arc::clone(qp));
        }
        drop(list);
        self.pending.store(true, Ordering::SeqCst);
    }

    /// There may be new requests.
    pub(super) fn pending(&self) -> bool {
        self.pending.load(Ordering::SeqCst)
    }

    /// Takes the list into `out`, which is empty.
    pub(super) fn take(&self, out: &mut Vec<Arc<Qp>>) {
        self.pending.store(false, Ordering::SeqCst);
        let mut list = lock(&self.list);
        for qp in list.iter() {
            qp.listed.store(false, Ordering::Relaxed);
        }
        std::mem::swap(&mut *list, out);
    }
}

impl Qp {
    /// A Queue Pair in RESET.
    pub(crate) fn new(
        num: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        send_cq: Arc<Cq>,
        recv_cq: Arc<Cq>,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Qp {
        Qp {
            num,
            handle: AtomicUsize::new(0),
            send: Mutex::new(WorkQueue::new(max_send_wr)),
            recv: Mutex::new(WorkQueue::new(max_recv_wr)),
            send_reclaimed: AtomicU64::new(0),
            recv_reclaimed: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            send_cq,
            recv_cq,
            events,
            acks: Acks::default(),
            dead: AtomicBool::new(false),
        }
    }

    /// Locks the send queue for posting.
    pub(crate) fn post_send(&self) -> Posting<'_, SendWqe> {
        Posting {
            queue: lock(&self.send),
            reclaimed: &self.send_reclaimed,
            sends: true,
        }
    }

    /// Locks the receive queue for posting.
    pub(crate) fn post_recv(&self) -> Posting<'_, RecvWqe> {
        Posting {
            queue: lock(&self.recv),
            reclaimed: &self.recv_reclaimed,
            sends: false,
        }
    }

    /// The completion of request `seq` was polled: its slot and all before are free.
    pub(super) fn reclaim(&self, queue: Queue, seq: u64) {
        let reclaimed = match queue {
            Queue::Send => &self.send_reclaimed,
            Queue::Recv => &self.recv_reclaimed,
        };
        reclaimed.store(seq + 1, Ordering::Release);
    }

    /// Gives the staged requests to the engine, receives first. Only whoever holds the engine
    /// calls this, so the order stays that of posting.
    pub(super) fn drain(&self, mut recv: impl FnMut(RecvWqe), mut send: impl FnMut(SendWqe)) {
        for wqe in lock(&self.recv).staged.drain(..) {
            recv(wqe);
        }
        for wqe in lock(&self.send).staged.drain(..) {
            send(wqe);
        }
    }

    /// Follows a change of state. Going to RESET forgets all requests and frees their slots.
    pub(super) fn set_state(&self, state: ibv_qp_state) {
        fn follow<W>(queue: &Mutex<WorkQueue<W>>, reclaimed: &AtomicU64, state: ibv_qp_state) {
            let mut queue = lock(queue);
            queue.state = state;
            if state == ibv_qp_state::IBV_QPS_RESET {
                queue.staged.clear();
                reclaimed.store(queue.posted, Ordering::Release);
            }
        }
        follow(&self.send, &self.send_reclaimed, state);
        follow(&self.recv, &self.recv_reclaimed, state);
    }

    /// Forgets the completions that are still in the CQs. To be called with the engine locked,
    /// when it has reported everything, and before the state follows: a poll may free a slot late.
    pub(super) fn purge(&self) {
        self.send_cq.purge(self);
        self.recv_cq.purge(self);
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

    /// Ends the QP's events: none is delivered from now on, and those that were taken have been
    /// acknowledged when this returns.
    pub(crate) fn retire_events(&self) {
        self.dead.store(true, Ordering::Release);
        self.events.remove(
            |e| matches!(&e.subject, Subject::Qp(qp) if std::ptr::eq(Arc::as_ptr(qp), self)),
        );
        self.acks.wait();
    }
}
