//! Work queues: where posters leave requests, and how the node learns of them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rdma_core_sys::ibv_qp_state;
use rustix::io::Errno;

use super::lock;
use super::qp::Qp;
use super::srq::Srq;
use crate::core::{CallError, RecvWqe};

/// One work queue: requests that the engine has not taken yet, and the count of all.
#[derive(Debug)]
pub(crate) struct WorkQueue<W> {
    /// Posted, and not yet taken by the engine.
    pub(super) staged: VecDeque<W>,
    /// Requests posted since the queue was created: the position of the next one.
    pub(super) posted: u64,
    /// The position after the last request that completes with an entry in the CQ even on success.
    signaled: u64,
    /// The QP's state, if no requests may be posted in it.
    pub(super) shut: Option<ibv_qp_state>,
    /// What is posted completes at once, with a flush.
    pub(super) flushes: bool,
    /// Requests that the queue holds.
    pub(super) capacity: u32,
}

impl<W> WorkQueue<W> {
    /// A queue of a QP in RESET, which takes nothing yet.
    pub(super) fn new(capacity: u32) -> WorkQueue<W> {
        WorkQueue {
            staged: VecDeque::new(),
            posted: 0,
            signaled: 0,
            shut: Some(ibv_qp_state::IBV_QPS_RESET),
            flushes: false,
            capacity,
        }
    }
}

/// A work queue, locked for posting.
pub(crate) struct Posting<'a, W> {
    queue: MutexGuard<'a, WorkQueue<W>>,
    reclaimed: &'a AtomicU64,
    name: &'static str,
}

impl<'a, W> Posting<'a, W> {
    pub(super) fn new(
        queue: MutexGuard<'a, WorkQueue<W>>,
        reclaimed: &'a AtomicU64,
        name: &'static str,
    ) -> Posting<'a, W> {
        Posting {
            queue,
            reclaimed,
            name,
        }
    }

    /// The position of the next request.
    ///
    /// # Errors
    /// As [`slots`](Posting::slots).
    pub(crate) fn slot(&self) -> Result<u64, CallError> {
        self.slots(1)
    }

    /// The position of the first of `count` more requests.
    ///
    /// # Errors
    /// `EINVAL` if the QP's state takes no such request, `ENOMEM` if the queue has no room for all: a
    /// slot is free again when a completion of it or of a later request of the queue was polled.
    pub(crate) fn slots(&self, count: usize) -> Result<u64, CallError> {
        if let Some(state) = self.queue.shut {
            return Err(self.shut(state));
        }
        let used = self.queue.posted - self.reclaimed.load(Ordering::Acquire);
        if used + count as u64 > u64::from(self.queue.capacity) {
            return Err(self.full(used));
        }
        Ok(self.queue.posted)
    }

    #[cold]
    fn shut(&self, state: ibv_qp_state) -> CallError {
        let name = self.name;
        CallError::invalid(format!(
            "the {name} takes no requests while the QP is in {state}"
        ))
    }

    #[cold]
    fn full(&self, used: u64) -> CallError {
        let (name, capacity) = (self.name, self.queue.capacity);
        let next = if self.queue.signaled > self.reclaimed.load(Ordering::Acquire) {
            let last = self.queue.signaled - 1;
            format!("poll completions: request {last} (counted from 0) was the last signaled one")
        } else {
            "no signaled request is outstanding, so no completion will ever free a slot: signal at least one request per queue".to_owned()
        };
        let why = format!("the {name} is full: capacity {capacity}, in flight {used}; {next}");
        CallError::new(Errno::NOMEM, why)
    }

    /// True if what is posted now completes at once, with a flush.
    pub(crate) fn flushes(&self) -> bool {
        self.queue.flushes
    }

    /// The requests that the engine has not taken yet, in order. For whoever has the engine.
    pub(super) fn staged(&mut self) -> &mut VecDeque<W> {
        &mut self.queue.staged
    }

    /// Appends a request that carries the position which [`slot`](Posting::slot) gave. `signaled`: it
    /// completes with an entry in the CQ even on success.
    pub(crate) fn push(&mut self, wqe: W, signaled: bool) {
        let Ok(()) = self.push_with(wqe, |_| Ok::<_, Infallible>(signaled));
    }

    /// As [`push`](Posting::push), of a request that `fill` completes where it lies, for it is large; it tells whether the
    /// request is signaled.
    ///
    /// # Errors
    /// What `fill` refuses: then nothing was appended.
    #[inline]
    pub(crate) fn push_with<E>(
        &mut self,
        wqe: W,
        fill: impl FnOnce(&mut W) -> Result<bool, E>,
    ) -> Result<(), E> {
        self.queue.staged.push_back(wqe);
        let Some(wqe) = self.queue.staged.back_mut() else {
            return Ok(());
        };
        match fill(wqe) {
            Ok(signaled) => {
                self.queue.posted += 1;
                if signaled {
                    self.queue.signaled = self.queue.posted;
                }
                Ok(())
            }
            Err(error) => {
                self.queue.staged.pop_back();
                Err(error)
            }
        }
    }
}

/// Something with requests that the engine has not taken yet.
#[derive(Clone, Debug)]
pub(crate) enum Poster {
    /// A Queue Pair.
    Qp(Arc<Qp>),
    /// A shared receive queue.
    Srq(Arc<Srq>),
}

impl Poster {
    fn listed(&self) -> &AtomicBool {
        match self {
            Poster::Qp(qp) => &qp.listed,
            Poster::Srq(srq) => &srq.listed,
        }
    }
}

/// The queues with requests that the engine has not taken yet.
///
/// A poster appends its request to its queue and tries the engine's lock: with it, it hands the request over
/// itself. Without, it [marks](Posts::mark) the queue, unlocks it, and tries once more. If the engine's lock is still
/// taken it goes away: whoever has the engine asks [`missed`](Posts::missed) after letting go, and drives again if so.
/// No request is left between the two:
///
/// 1. *A mark is cleared only by whoever takes the request.* `mark` leaves the list's lock before it sets
///    `pending`; `take` clears `pending` before it enters that lock. If a `take` clears what this `mark`
///    set, it enters the list's lock after this `mark` did: had it been first, its clearing would happen
///    before the setting. So it finds the queue on the list, and the request in the queue, which it locks
///    only then. A queue that was `listed` already is on the list until a later `take`, for which the same holds.
/// 2. *Whoever made the lock fail sees the mark, or it was cleared.* Every access after the first check of
///    `pending` is a read-modify-write, so all of them are in one order, and each happens before the next
///    one. Take the poster's setting, and the question of that holder of the lock whom the poster's
///    second `try_lock` ran into. Question first: then that holder's unlocking, which is before its question,
///    happens before that `try_lock`, which could not run into it. So the setting is first, and
///    the question is answered with true, unless a `take` in between has cleared it (see 1). Plain stores
///    and loads, sequentially consistent ones too, would not do: the standard library's lock is neither,
///    and nothing would order the load after the unlocking.
///
/// The check before a packet is handled ([`pending`](Posts::pending)) may miss a mark that is being made:
/// then the request was posted while the packet arrived, and `missed` finds it.
///
/// The queue stays locked until it is marked. It may be on the list already, so that its requests are taken as soon as it is
/// unlocked; and when they are done, the application may destroy what they were posted to. Nobody waits in a circle: who has a
/// queue waits for the list alone, and who has the list for nothing.
#[derive(Debug, Default)]
pub(super) struct Posts {
    list: Mutex<Vec<Poster>>,
    /// The list may hold something.
    pending: AtomicBool,
}

impl Posts {
    /// `qp` has new requests, in a queue that is unlocked then.
    pub(super) fn mark_qp<W>(&self, qp: &Arc<Qp>, queue: Posting<'_, W>) {
        self.mark(&qp.listed, || Poster::Qp(Arc::clone(qp)), queue);
    }

    /// `srq` has new requests, in its queue, which is unlocked then.
    pub(super) fn mark_srq(&self, srq: &Arc<Srq>, queue: Posting<'_, RecvWqe>) {
        self.mark(&srq.listed, || Poster::Srq(Arc::clone(srq)), queue);
    }

    fn mark<W>(&self, listed: &AtomicBool, poster: impl FnOnce() -> Poster, queue: Posting<'_, W>) {
        let mut list = lock(&self.list);
        if !listed.swap(true, Ordering::Relaxed) {
            list.push(poster());
        }
        drop(list);
        self.pending.swap(true, Ordering::AcqRel);
        // The last that is touched.
        drop(queue);
    }

    /// There may be new requests. For whoever has the engine.
    pub(super) fn pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// There are requests whose posters may have found the engine locked. For whoever has just let go of
    /// it.
    pub(super) fn missed(&self) -> bool {
        self.pending.fetch_or(false, Ordering::AcqRel)
    }

    /// Takes the list into `out`, which is empty. For whoever has the engine.
    pub(super) fn take(&self, out: &mut Vec<Poster>) {
        self.pending.swap(false, Ordering::AcqRel);
        let mut list = lock(&self.list);
        for poster in list.iter() {
            poster.listed().store(false, Ordering::Relaxed);
        }
        std::mem::swap(&mut *list, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::SrqId;
    use crate::node::EventQueue;

    /// Whoever gets a queue after its poster finds it listed: the poster has nothing left to do with it, and it may be destroyed.
    #[test]
    fn a_queue_is_listed_before_it_is_unlocked() {
        let posts = Posts::default();
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        let srq = Arc::new(Srq::new(SrqId(1), 4, None, events));
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            let list = lock(&posts.list);
            s.spawn(|| {
                let queue = srq.post();
                tell.send(()).expect("somebody waits");
                posts.mark_srq(&srq, queue);
            });
            told.recv().expect("a poster");
            let next = s.spawn(|| {
                let _queue = srq.post();
                srq.listed.load(Ordering::Relaxed)
            });
            // Time for whoever comes too early.
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(list);
            assert!(next.join().expect("an answer"));
        });
        assert!(posts.pending());
    }
}
