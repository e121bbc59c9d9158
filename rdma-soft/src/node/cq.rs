//! A completion queue as poller and engine share it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rdma_core_sys::ibv_event_type;
use rustix::io::Errno;

use super::lock;
use super::notify::{Acks, EventQueue};
use super::qp::Qp;
use crate::core::{Completion, CqId};

/// "Look at this CQ": what a completion channel carries.
#[derive(Clone, Debug)]
pub(crate) struct CqEvent(pub(crate) Arc<Cq>);

/// What an asynchronous event is about.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// A completion queue.
    Cq(Arc<Cq>),
    /// A Queue Pair.
    Qp(Arc<Qp>),
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
    /// The count of acknowledgements that the event belongs to.
    pub(crate) fn acks(&self) -> &Acks {
        match &self.subject {
            Subject::Cq(cq) => &cq.async_acks,
            Subject::Qp(qp) => &qp.acks,
        }
    }

    /// False once the subject is being destroyed.
    fn alive(&self) -> bool {
        match &self.subject {
            Subject::Cq(cq) => !cq.dead.load(Ordering::Acquire),
            Subject::Qp(qp) => !qp.dead.load(Ordering::Acquire),
        }
    }
}

/// Something to tell the application once the engine is unlocked.
#[derive(Debug)]
pub(crate) enum Notice {
    /// An armed CQ got a completion.
    Completion(Arc<Cq>),
    /// An asynchronous event, for the queue of its subject's context.
    Async(AsyncEvent),
}

impl Notice {
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
            Notice::Async(event) => {
                let queue = match &event.subject {
                    Subject::Cq(cq) => Arc::clone(&cq.events),
                    Subject::Qp(qp) => Arc::clone(&qp.events),
                };
                let alive = event.clone();
                queue.push_if(event, || alive.alive());
            }
        }
    }
}

/// What the next completion has to be for the CQ to raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    /// Its number in the engine.
    pub(crate) id: CqId,
    /// Address of the `ibv_cq`; opaque here.
    pub(crate) handle: AtomicUsize,
    ring: Mutex<Ring>,
    /// Where its completion events go.
    pub(crate) channel: Option<Arc<EventQueue<CqEvent>>>,
    /// Where its asynchronous events go.
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    /// Completion events that wait for `ibv_ack_cq_events`.
    pub(crate) comp_acks: Acks,
    /// Asynchronous events that wait for `ibv_ack_async_event`.
    pub(crate) async_acks: Acks,
    /// It is being destroyed: no more events.
    dead: AtomicBool,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Entry>,
    /// Completions that it holds.
    depth: usize,
    armed: Armed,
    overrun: bool,
}

#[derive(Debug)]
struct Entry {
    wc: Completion,
    owner: Arc<Qp>,
}

impl Cq {
    /// An empty CQ with room for `depth` completions.
    pub(crate) fn new(
        id: CqId,
        depth: u32,
        channel: Option<Arc<EventQueue<CqEvent>>>,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Cq {
        Cq {
            id,
            handle: AtomicUsize::new(0),
            ring: Mutex::new(Ring {
                entries: VecDeque::new(),
                depth: depth as usize,
                armed: Armed::No,
                overrun: false,
            }),
            channel,
            events,
            comp_acks: Acks::default(),
            async_acks: Acks::default(),
            dead: AtomicBool::new(false),
        }
    }

    /// Stores a completion of `owner`.
    pub(crate) fn push(&self, wc: Completion, owner: Arc<Qp>, solicited: bool) -> Pushed {
        let mut ring = lock(&self.ring);
        if ring.overrun {
            return Pushed::Lost;
        }
        if ring.entries.len() >= ring.depth {
            ring.overrun = true;
            return Pushed::Overrun;
        }
        ring.entries.push_back(Entry { wc, owner });
        match ring.armed {
            Armed::Any => {}
            Armed::Solicited if solicited => {}
            _ => return Pushed::Quiet,
        }
        ring.armed = Armed::No;
        Pushed::Event
    }

    /// Takes up to `max` completions, oldest first, and frees their requests' slots.
    ///
    /// # Errors
    /// [`Overrun`] when none is left and some were lost.
    pub(crate) fn poll(
        &self,
        max: usize,
        mut each: impl FnMut(usize, &Completion),
    ) -> Result<usize, Overrun> {
        let mut ring = lock(&self.ring);
        let mut n = 0;
        while n < max {
            let Some(entry) = ring.entries.pop_front() else {
                break;
            };
            entry.owner.reclaim(entry.wc.queue, entry.wc.seq);
            each(n, &entry.wc);
            n += 1;
        }
        if n == 0 && max > 0 && ring.overrun {
            return Err(Overrun);
        }
        Ok(n)
    }

    /// Changes how many completions the CQ holds.
    ///
    /// # Errors
    /// `EINVAL` if more are there already.
    pub(crate) fn resize(&self, depth: u32) -> Result<(), Errno> {
        let mut ring = lock(&self.ring);
        if ring.entries.len() > depth as usize {
            return Err(Errno::INVAL);
        }
        ring.depth = depth as usize;
        Ok(())
    }

    /// Arms the CQ for one event. A completion that is already there raises none.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let mut ring = lock(&self.ring);
        // Armed for any completion stays so: the wider request holds.
        if !solicited_only {
            ring.armed = Armed::Any;
        } else if ring.armed == Armed::No {
            ring.armed = Armed::Solicited;
        }
    }

    /// True if the CQ waits to raise an event.
    pub(crate) fn is_armed(&self) -> bool {
        lock(&self.ring).armed != Armed::No
    }

    /// Forgets the completions of `owner`; the others keep their order.
    pub(crate) fn purge(&self, owner: &Qp) {
        lock(&self.ring)
            .entries
            .retain(|e| !std::ptr::eq(Arc::as_ptr(&e.owner), owner));
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
