//! A completion queue as poller and engine share it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use super::event::{AsyncEvent, Subject};
use super::notify::{Acks, EventQueue};
use super::qp::Qp;
use super::srq::Srq;
use super::{Clock, lock};
use crate::core::rng::Rng;
use crate::core::time::Instant;
use crate::core::{CallError, Completion, CqId, Queue};

/// "Look at this CQ": what a completion channel carries.
#[derive(Clone, Debug)]
pub(crate) struct CqEvent(pub(crate) Arc<Cq>);

/// What the next completion has to be for the CQ to raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Armed {
    /// Not armed.
    No,
    /// Solicited, or in error.
    Solicited,
    /// Any.
    Any,
}

/// What became of a completion that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Stored.
    Quiet,
    /// Stored, and the CQ was armed for it: an event is due.
    Event,
    /// There was no room, for the first time.
    Overrun,
    /// There was no room, and there had not been before.
    Lost,
}

/// Polling a CQ that lost completions and has none left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

/// What a completion queue is created with.
#[derive(Debug)]
pub(crate) struct CqInit {
    /// Completions that it holds.
    pub(crate) depth: u32,
    /// Where its completion events go.
    pub(crate) channel: Option<Arc<EventQueue<CqEvent>>>,
    /// Where its asynchronous events go.
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    /// Its completions carry the time at which they were stored.
    pub(crate) timestamps: bool,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    /// Its number in the engine.
    pub(crate) id: CqId,
    /// Address of the `ibv_cq`; opaque here.
    pub(crate) handle: AtomicUsize,
    ring: Mutex<Ring>,
    /// There are completions, or some were lost. Written under the ring's lock; a poll that finds nothing, which most
    /// do, needs no lock.
    filled: AtomicBool,
    /// An [`Armed`]. Written under the ring's lock.
    armed: AtomicU8,
    /// Where its completion events go.
    pub(super) channel: Option<Arc<EventQueue<CqEvent>>>,
    /// Where its asynchronous events go.
    pub(super) events: Arc<EventQueue<AsyncEvent>>,
    /// Completion events that wait for `ibv_ack_cq_events`.
    pub(crate) comp_acks: Acks,
    /// Asynchronous events that wait for `ibv_ack_async_event`.
    pub(crate) async_acks: Acks,
    /// It is being destroyed: no more events.
    pub(super) dead: AtomicBool,
    /// What completions are stamped with, if they are.
    clock: Option<Clock>,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Entry>,
    /// Completions that it holds.
    depth: usize,
    overrun: bool,
    /// Draws the place of a new completion among those of other queues, if the order between queues
    /// is to be none.
    order: Option<Rng>,
}

#[derive(Debug)]
struct Entry {
    wc: Completion,
    /// When it was stored, by the node's clock in nanoseconds; 0 if nobody asked for that.
    stamp: u64,
    owner: Arc<Qp>,
    /// The shared receive queue that the request came from.
    srq: Option<Arc<Srq>>,
}

impl Entry {
    /// The completion is polled: the slots of its request, and of those before it in its queue, are
    /// free.
    fn reclaim(&self) {
        match &self.srq {
            Some(srq) => srq.reclaim(),
            None => self.owner.reclaim(self.wc.queue, self.wc.seq),
        }
    }

    /// A completion of the same queue: of the sends, or of the receives, of one QP.
    fn is_beside(&self, other: &Entry) -> bool {
        let sends = |entry: &Entry| entry.wc.queue == Queue::Send;
        Arc::ptr_eq(&self.owner, &other.owner) && sends(self) == sends(other)
    }
}

impl Ring {
    #[inline]
    fn store(&mut self, entry: Entry) {
        match self.order {
            None => self.entries.push_back(entry),
            Some(_) => self.store_anywhere(entry),
        }
    }

    #[cold]
    fn store_anywhere(&mut self, entry: Entry) {
        let Some(order) = &mut self.order else {
            return;
        };
        let last = self.entries.iter().rposition(|e| e.is_beside(&entry));
        let first = last.map_or(0, |at| at + 1);
        let places = (self.entries.len() - first + 1) as u64;
        let at = first + order.below(places) as usize;
        self.entries.insert(at, entry);
    }
}

impl Cq {
    /// An empty CQ. With `order`, completions of different queues come out in an order drawn from it;
    /// those of one queue stay in theirs.
    pub(super) fn new(id: CqId, init: CqInit, clock: Clock, order: Option<Rng>) -> Cq {
        Cq {
            id,
            handle: AtomicUsize::new(0),
            ring: Mutex::new(Ring {
                entries: VecDeque::new(),
                depth: init.depth as usize,
                overrun: false,
                order,
            }),
            filled: AtomicBool::new(false),
            armed: AtomicU8::new(Armed::No as u8),
            channel: init.channel,
            events: init.events,
            comp_acks: Acks::default(),
            async_acks: Acks::default(),
            dead: AtomicBool::new(false),
            clock: init.timestamps.then_some(clock),
        }
    }

    /// Stores a completion of `owner`; `srq` is where its request came from, if not from the QP.
    #[inline]
    pub(super) fn push(
        &self,
        wc: &Completion,
        owner: &Arc<Qp>,
        srq: Option<&Arc<Srq>>,
        solicited: bool,
    ) -> Pushed {
        let stamp = self.clock.map_or(0, |clock| clock.now().as_nanos());
        let mut ring = lock(&self.ring);
        if ring.overrun {
            return Pushed::Lost;
        }
        if ring.entries.len() >= ring.depth {
            ring.overrun = true;
            self.filled.store(true, Ordering::Release);
            return Pushed::Overrun;
        }
        ring.store(Entry {
            wc: *wc,
            stamp,
            owner: Arc::clone(owner),
            srq: srq.cloned(),
        });
        self.filled.store(true, Ordering::Release);
        let armed = self.armed.load(Ordering::Relaxed);
        if armed == Armed::Any as u8 || (solicited && armed == Armed::Solicited as u8) {
            self.armed.store(Armed::No as u8, Ordering::Relaxed);
            return Pushed::Event;
        }
        Pushed::Quiet
    }

    /// Takes up to `max` completions, oldest first, and frees their requests' slots. `each` gets its
    /// number in this poll, the completion, and when it was stored.
    ///
    /// # Errors
    /// [`Overrun`] when none is left and some were lost.
    #[inline]
    pub(crate) fn poll(
        &self,
        max: usize,
        each: impl FnMut(usize, &Completion, u64),
    ) -> Result<usize, Overrun> {
        // Acquire: what was done before the completion was stored is seen by whoever polls it, or finds it polled.
        match self.filled.load(Ordering::Acquire) {
            true => self.poll_filled(max, each),
            false => Ok(0),
        }
    }

    #[inline(never)]
    fn poll_filled(
        &self,
        max: usize,
        mut each: impl FnMut(usize, &Completion, u64),
    ) -> Result<usize, Overrun> {
        let mut ring = lock(&self.ring);
        let mut n = 0;
        while n < max {
            // Read where it lies: it is large.
            let Some(entry) = ring.entries.front() else {
                break;
            };
            entry.reclaim();
            each(n, &entry.wc, entry.stamp);
            ring.entries.pop_front();
            n += 1;
        }
        if n == 0 && max > 0 && ring.overrun {
            return Err(Overrun);
        }
        if ring.entries.is_empty() && !ring.overrun {
            self.filled.store(false, Ordering::Relaxed);
        }
        Ok(n)
    }

    /// The wall clock's time of a completion that was stored at `stamp`, in nanoseconds since 1970; 0
    /// if the CQ's completions are not stamped.
    pub(crate) fn wall_clock(&self, stamp: u64) -> u64 {
        let Some(clock) = self.clock else { return 0 };
        let ago = clock.now().since(Instant::from_nanos(stamp));
        let then = SystemTime::now().duration_since(UNIX_EPOCH + ago);
        u64::try_from(then.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Changes how many completions the CQ holds.
    ///
    /// # Errors
    /// `EINVAL` if more are there already.
    pub(crate) fn resize(&self, depth: u32) -> Result<(), CallError> {
        let mut ring = lock(&self.ring);
        let waiting = ring.entries.len();
        if waiting > depth as usize {
            return Err(CallError::invalid(format!(
                "cqe is {depth}, but {waiting} completions wait in the CQ: poll them first"
            )));
        }
        ring.depth = depth as usize;
        Ok(())
    }

    /// Arms the CQ for one event. A completion that is already there raises none.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let _ring = lock(&self.ring);
        let armed = match solicited_only {
            true => Armed::Solicited,
            false => Armed::Any,
        };
        // Armed for any completion stays so: the wider request holds.
        self.armed.fetch_max(armed as u8, Ordering::Relaxed);
    }

    /// True if the CQ waits to raise an event.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != Armed::No as u8
    }

    /// Forgets the completions of `owner`; the others keep their order. Slots of shared receive
    /// queues that they held are free again.
    pub(super) fn purge(&self, owner: &Qp) {
        self.forget(|entry| std::ptr::eq(Arc::as_ptr(&entry.owner), owner));
    }

    /// Forgets the completions of requests of `srq`; the others keep their order.
    pub(super) fn purge_srq(&self, srq: &Srq) {
        self.forget(|entry| {
            let of = entry.srq.as_ref();
            of.is_some_and(|of| std::ptr::eq(Arc::as_ptr(of), srq))
        });
    }

    fn forget(&self, which: impl Fn(&Entry) -> bool) {
        lock(&self.ring).entries.retain(|entry| {
            let gone = which(entry);
            if let (true, Some(srq)) = (gone, &entry.srq) {
                srq.reclaim();
            }
            !gone
        });
    }

    /// Ends the CQ's events: none is delivered from now on, and those that were taken have been
    /// acknowledged when this returns.
    pub(crate) fn retire_events(&self) {
        self.dead.store(true, Ordering::Release);
        if let Some(channel) = &self.channel {
            channel.remove(|e| std::ptr::eq(Arc::as_ptr(&e.0), self));
        }
        self.events.remove(
            |e| matches!(&e.subject, Subject::Cq(cq) if std::ptr::eq(Arc::as_ptr(cq), self)),
        );
        self.comp_acks.wait();
        self.async_acks.wait();
    }
}

#[cfg(test)]
pub(super) mod tests;
