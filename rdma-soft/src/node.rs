//! A node: the engine with its links, one lock around it, and a thread that makes progress when
//! nobody polls.
//!
//! # Who drives the engine
//!
//! One lock guards the engine and its links ([`driver`]). A post appends to its queue under a lock
//! of that queue alone, and drives the engine if nobody else does; else it marks the node, and whoever
//! drives looks at the mark after unlocking, so no request is left behind. A poll takes from
//! its CQ's ring, and drives the engine only when the ring is empty. The [`thread`] does the rest,
//! and keeps out of the way while somebody polls. All locks below the engine's are leaves, but that a queue
//! is marked while it is locked; events are written after the engine is unlocked, and nobody waits for an
//! acknowledgement while holding a lock.
//!
//! # Why no request waits unseen
//!
//! Three things can be left to somebody else, and each has its argument where it stands:
//!
//! - *Requests* whose poster found the engine locked: whoever holds it looks once more after letting go
//!   ([`queue::Posts`]).
//! - *Deadlines and half-done work* of whoever drives and goes away: the thread is woken unless it is awake
//!   or wakes in time ([`thread::Sleeper`], *sleeping*).
//! - *Everything* while somebody polls: the thread naps, for [`NAP`] at most, or longer where datagrams and bells end that,
//!   and whoever arms a CQ ends it, too ([`thread::Sleeper`], *napping*).
//!
//! So what is left is taken up at once, or within two such naps of the last sign of life of those who poll.

mod cq;
mod driver;
mod event;
mod notify;
mod objects;
mod ports;
mod qp;
mod queue;
mod resources;
mod srq;
mod thread;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use rdma_core_sys::ibv_event_type;
use rustix::io::Errno;

pub(crate) use cq::{Cq, CqEvent, CqInit, Overrun};
pub use driver::LinkCounters;
use driver::{Budget, Driver};
pub(crate) use event::{AsyncEvent, Subject};
pub(crate) use notify::EventQueue;
pub(crate) use objects::DomainFile;
pub(crate) use ports::PortNow;
pub(crate) use qp::{Qp, QpHandle};
pub(crate) use queue::Posting;
pub(crate) use srq::Srq;

use self::event::Notice;
use self::queue::Posts;
use self::thread::Sleeper;
use crate::core::config::Config;
use crate::core::rng::Rng;
use crate::core::time::Instant;
use crate::core::{Counters, RecvWqe, SendWqe};
use crate::link::shm::ShmLink;
use crate::link::{FaultCounters, Faults, LinkError, Pcap, PcapError, UdpLink};
use crate::profile::{Profile, ProfileError, of_process};

/// Locks a mutex; what a panicking holder left behind is still used, since every step under these
/// locks leaves a state that is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counters of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What the transport did: frames, payload bytes, retransmissions, one counter per reason why
    /// a frame was refused.
    pub engine: Counters,
    /// What the link did.
    pub link: LinkCounters,
    /// What the faults did; `None` as long as there were none.
    pub faults: Option<FaultCounters>,
    /// Frames that the faults hold back at the moment.
    pub held: u64,
}

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The profile is wrong.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// An address cannot be used.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The capture file cannot be made.
    #[error(transparent)]
    Pcap(#[from] PcapError),
    /// The system refused a descriptor, a thread or random bytes.
    #[error("{step}: {source}")]
    System {
        /// What was refused.
        step: &'static str,
        /// The system's error.
        source: Errno,
    },
}

impl StartError {
    /// The error number that `ibv_open_device` leaves in `errno`.
    pub fn errno(&self) -> Errno {
        match self {
            StartError::Profile(_) => Errno::INVAL,
            StartError::Link(LinkError::InUse { .. } | LinkError::NoFreeLoopback { .. }) => {
                Errno::ADDRINUSE
            }
            StartError::Link(LinkError::NotLocal { .. }) => Errno::ADDRNOTAVAIL,
            StartError::Link(LinkError::NotUnicast { .. }) => Errno::INVAL,
            StartError::Link(LinkError::System { source, .. })
            | StartError::Pcap(PcapError { source, .. }) => {
                Errno::from_io_error(source).unwrap_or(Errno::IO)
            }
            StartError::System { source, .. } => *source,
        }
    }
}

/// Nanoseconds of the monotonic clock since the node started, and one: 0 is no time.
#[derive(Clone, Copy, Debug)]
struct Clock(u64);

impl Clock {
    fn start() -> Clock {
        Clock(Clock::read() - 1)
    }

    #[inline]
    fn read() -> u64 {
        // It is a time since the system was started.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    #[inline]
    fn now(&self) -> Instant {
        Instant::from_nanos(Clock::read() - self.0)
    }
}

/// A node.
// Every post counts itself in and out of those who have the node: away from what every poll reads.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Node {
    clock: Clock,
    config: Config,
    /// Where orders that are left open are drawn from.
    seed: u64,
    driver: Mutex<Driver>,
    /// The open contexts: who hears of ports and of the device.
    contexts: Mutex<Vec<Weak<EventQueue<AsyncEvent>>>>,
    /// The device has failed.
    failed: AtomicBool,
    /// Control calls that wait for the engine: whoever drives lets them pass.
    control: AtomicU32,
    /// Where posters leave word.
    posts: Arc<Posts>,
    /// When a poll last found nothing, how long it took lately from one to the next at most, and until when
    /// such polls count as somebody polling.
    last_poll: AtomicU64,
    poll_gap: AtomicU64,
    lease: AtomicU64,
    /// Since when pollers wait for something to come.
    idle_since: AtomicU64,
    /// Polls that found nothing for longer than [`PATIENCE`]; not exact.
    idle_polls: AtomicU32,
    /// Somebody has polled since the thread last asked.
    poller_seen: AtomicBool,
    /// A poll makes progress at the moment, as far as the last one to begin or to end knows.
    progressing: AtomicBool,
    sleeper: Sleeper,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Frames that a post handles: sends only.
const POST: Budget = Budget {
    rx: 0,
    tx: 64,
    everywhere: false,
};
/// Frames that a poll handles.
const POLL: Budget = Budget {
    rx: 32,
    tx: 64,
    everywhere: false,
};
/// Two polls at most this far apart are somebody polling, and count so for as long: pollers that have lost the
/// processor meanwhile are still there.
const LEASE: Duration = Duration::from_millis(50);
/// How long the thread leaves the work to pollers until it asks for a sign of life, at most.
const NAP: Duration = Duration::from_millis(1);
/// Pollers who have waited for so long let others have a turn at the processor with every poll: more of
/// them than processors would keep each other, and the peer, from what they wait for; and so would they
/// the kernel, which hands on datagrams in a thread of its own when it has many.
const PATIENCE: Duration = Duration::from_micros(10);
/// Where packets come through shared memory, nobody has to hand them on, and every eighth poll is enough: a turn at
/// the processor costs more than a poll that finds nothing, and what is waited for comes meanwhile.
const YIELD: u32 = 8;

impl Node {
    /// Starts a node.
    pub(crate) fn start(profile: &Profile) -> Result<Arc<Node>, StartError> {
        profile.check()?;
        let system = |step| move |source| StartError::System { step, source };
        let seed = match profile.seed {
            Some(seed) => seed,
            None => random_seed().map_err(system("reading random bytes"))?,
        };
        let (link, ports) = bind(profile, seed)?;
        let mut waiters = link.waiters();
        // Who captures frames wants to see them all.
        let shm = (profile.shm && profile.pcap.is_none())
            .then(|| ShmLink::new(link.locals().map(|local| local.ip())).ok())
            .flatten();
        waiters.extend(shm.as_ref().map(ShmLink::waiter));
        let addresses: Vec<String> = link.locals().map(|local| local.ip().to_string()).collect();
        let pcap = (profile.pcap.as_deref())
            .map(|path| Pcap::create(&of_process(path), &addresses.join(", ")))
            .transpose()?;
        let driver = Driver::new(profile, link, shm.map(Box::new), &ports, pcap, seed);
        let node = Arc::new(Node {
            clock: Clock::start(),
            config: driver.engine.config().clone(),
            seed,
            posts: Arc::clone(&driver.objects.posts),
            driver: Mutex::new(driver),
            contexts: Mutex::default(),
            failed: AtomicBool::new(false),
            control: AtomicU32::new(0),
            last_poll: AtomicU64::new(0),
            poll_gap: AtomicU64::new(0),
            lease: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            idle_polls: AtomicU32::new(0),
            poller_seen: AtomicBool::new(false),
            progressing: AtomicBool::new(false),
            sleeper: Sleeper::new().map_err(system("making the thread's wake-up descriptor"))?,
            thread: Mutex::new(None),
        });
        let handle =
            thread::spawn(Arc::clone(&node), waiters).map_err(system("starting a thread"))?;
        *lock(&node.thread) = Some(handle);
        Ok(node)
    }

    /// Stops the node; gives its last counters.
    pub(crate) fn stop(&self) -> Snapshot {
        self.sleeper.stop();
        if let Some(thread) = lock(&self.thread).take() {
            // It ends by itself, and a panic of its own changes nothing here.
            let _ = thread.join();
        }
        let counters = self.counters();
        // Objects that the application forgot keep the node, but not its addresses.
        self.control(|driver, _, _| driver.unbind());
        counters
    }

    /// Ports, GIDs and limits.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// All counters.
    pub(crate) fn counters(&self) -> Snapshot {
        self.control(|driver, _, _| driver.snapshot())
    }

    /// Changes the faults of the link.
    pub(crate) fn set_faults(&self, faults: Faults) {
        self.control(|driver, _, _| driver.set_faults(faults));
    }

    /// Cuts off the node from `addr`, or connects it again.
    pub(crate) fn partition(&self, addr: IpAddr, cut_off: bool) {
        self.control(|driver, _, _| driver.partition(addr, cut_off));
    }

    /// Runs a control call with the engine locked, sends what it caused, then delivers its events.
    fn control<R>(&self, call: impl FnOnce(&mut Driver, Instant, &mut Vec<Notice>) -> R) -> R {
        self.control.fetch_add(1, Ordering::Relaxed);
        let mut driver = lock(&self.driver);
        self.control.fetch_sub(1, Ordering::Relaxed);
        let mut notices = Vec::new();
        let now = self.clock.now();
        let result = call(&mut driver, now, &mut notices);
        let turn = driver.step(now, POST, &mut notices);
        self.unlock(driver, now, turn.more.then_some(now), &mut notices);
        if self.posts.missed() {
            self.drive(now, POST, false);
        }
        result
    }

    /// Ends a turn of driving: sees to it that somebody goes on in time, and by `more` at the latest
    /// with what the budget left undone; delivers events.
    #[inline]
    fn unlock(
        &self,
        driver: MutexGuard<'_, Driver>,
        now: Instant,
        more: Option<Instant>,
        notices: &mut Vec<Notice>,
    ) {
        let next = match (driver.next_timeout(now), more) {
            (Some(next), Some(more)) => Some(next.min(more)),
            (next, more) => next.or(more),
        };
        drop(driver);
        if let Some(next) = next {
            self.sleeper.wake_before(next);
        }
        if !notices.is_empty() {
            deliver(notices);
        }
    }

    /// The engine, unless somebody else has it.
    fn try_driver(&self) -> Option<MutexGuard<'_, Driver>> {
        match self.driver.try_lock() {
            Ok(driver) => Some(driver),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        }
    }

    /// Drives the engine unless somebody else does; gives the packets received and sent. `polling`: the caller
    /// comes back at once, so the thread need not be woken for what is left, unless it would sleep on after
    /// the caller has gone.
    fn drive(&self, now: Instant, budget: Budget, polling: bool) -> u32 {
        match self.try_driver() {
            Some(driver) => self.drive_on(driver, now, budget, polling),
            None => 0,
        }
    }

    /// Drives the engine, and again as long as others leave word meanwhile; gives the packets received and sent.
    #[inline]
    fn drive_on<'a>(
        &'a self,
        mut driver: MutexGuard<'a, Driver>,
        mut now: Instant,
        budget: Budget,
        polling: bool,
    ) -> u32 {
        // Others may go on marking the node; after some turns the thread takes over.
        const TURNS: u32 = 8;
        let (mut handled, mut notices) = (0, Vec::new());
        for round in 1.. {
            let turn = driver.step(now, budget, &mut notices);
            handled += turn.received + turn.sent;
            let more = if polling { now + NAP } else { now };
            self.unlock(driver, now, turn.more.then_some(more), &mut notices);
            if !self.posts.missed() {
                break;
            }
            if round == TURNS {
                self.sleeper.wake();
                break;
            }
            driver = match self.try_driver() {
                Some(driver) => driver,
                None => break,
            };
            now = self.clock.now();
        }
        handled
    }

    /// Requests were appended to the queue of `srq`, which is still locked: whoever drives next, takes them first. That is
    /// enough for receives, which wait for packets.
    pub(crate) fn mark_srq(&self, srq: &Arc<Srq>, queue: Posting<'_, RecvWqe>) {
        self.posts.mark_srq(srq, queue);
    }

    /// Requests were appended to the send queue of `qp`, which is still locked: gets them going.
    ///
    /// Once the queue is unlocked they may be done, and then the application may destroy the QP and close the device: so this has
    /// the node for itself.
    pub(crate) fn send(self: Arc<Node>, qp: &Arc<Qp>, mut queue: Posting<'_, SendWqe>) {
        self.polled();
        // Whoever has the engine locks queues, but nobody waits for the engine here.
        let driver = self.try_driver();
        match driver {
            Some(mut driver) => {
                driver.engine.post_sends(qp.num, queue.staged());
                drop(queue);
                self.drive_on(driver, self.clock.now(), POST, false);
            }
            None => {
                self.posts.mark_qp(qp, queue);
                self.drive(self.clock.now(), POST, false);
            }
        }
    }

    /// Receives were appended to the receive queue of `qp`, which is still locked and completes them at once. As with
    /// [`send`](Node::send), the application may close the device before this is over.
    pub(crate) fn flush(self: Arc<Node>, qp: &Arc<Qp>, queue: Posting<'_, RecvWqe>) {
        self.polled();
        self.posts.mark_qp(qp, queue);
        self.drive(self.clock.now(), POST, false);
    }

    /// Somebody who may be polling is there: a poll found something, or requests were posted.
    pub(crate) fn polled(&self) {
        // Mostly it is set: reading alone leaves the others their copy of the cache line.
        if !self.poller_seen.load(Ordering::Relaxed) {
            self.poller_seen.store(true, Ordering::Relaxed);
        }
    }

    /// A poll of `cq` found nothing: makes progress. False if there is certainly nothing to be polled now.
    #[inline]
    pub(crate) fn progress(&self, cq: &Cq) -> bool {
        let now = self.clock.now();
        let last = Instant::from_nanos(self.last_poll.load(Ordering::Relaxed));
        self.last_poll.store(now.as_nanos(), Ordering::Relaxed);
        // Whoever armed the CQ polls once more before sleeping: that is no polling loop.
        let gap = now.since(last);
        let polling = gap <= LEASE && !cq.is_armed();
        if polling {
            self.polled();
            let known = self.poll_gap.load(Ordering::Relaxed);
            let gap = (gap.as_nanos() as u64).max(known - known / 16);
            self.poll_gap.store(gap, Ordering::Relaxed);
            let until = (now + LEASE).as_nanos();
            self.lease.store(until, Ordering::Relaxed);
        }
        let (mut quiet, mut handled) = (false, 0);
        if let Some(mut driver) = self.try_driver() {
            quiet = driver.is_quiet(now);
            if quiet {
                drop(driver);
                quiet = !self.posts.missed();
                if !quiet {
                    self.drive(now, POST, polling);
                }
            } else {
                self.progressing.store(true, Ordering::Relaxed);
                handled = self.drive_on(driver, now, POLL, polling);
                self.progressing.store(false, Ordering::Relaxed);
            }
        }
        if handled > 0 || !polling {
            self.idle_since.store(now.as_nanos(), Ordering::Relaxed);
            return true;
        }
        let idle_since = Instant::from_nanos(self.idle_since.load(Ordering::Relaxed));
        if now.since(idle_since) >= PATIENCE {
            let polls = self.idle_polls.load(Ordering::Relaxed).wrapping_add(1);
            self.idle_polls.store(polls, Ordering::Relaxed);
            if !quiet || polls.is_multiple_of(YIELD) {
                std::thread::yield_now();
            }
        }
        !quiet
    }

    /// Arms `cq`. Whoever does that is about to sleep, so the thread is to be awake.
    ///
    /// It is woken first: once the CQ is armed its event may be there, and another thread, which gets it, may destroy the CQ and
    /// close the device. What completes before that is polled by whoever arms, who looks once more afterwards.
    pub(crate) fn arm(&self, cq: &Cq, solicited_only: bool) {
        self.lease.store(0, Ordering::SeqCst);
        self.sleeper.end_nap();
        cq.arm(solicited_only);
    }

    /// A context is open: it hears of ports and of the device from now on.
    pub(crate) fn add_context(&self, events: &Arc<EventQueue<AsyncEvent>>) {
        let mut contexts = lock(&self.contexts);
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(events));
    }

    /// Tells all open contexts of something that happened to a port or to the device.
    pub(crate) fn announce(&self, kind: ibv_event_type, subject: &Subject) {
        for context in lock(&self.contexts).iter().filter_map(Weak::upgrade) {
            let subject = subject.clone();
            AsyncEvent { kind, subject }.push_to(&context);
        }
    }
}

/// Delivers events, in order.
#[cold]
fn deliver(notices: &mut Vec<Notice>) {
    notices.drain(..).for_each(Notice::deliver);
}

/// Binds the sockets of `profile`: the link, and which port (from 0) each socket belongs to.
fn bind(profile: &Profile, seed: u64) -> Result<(UdpLink, Vec<usize>), StartError> {
    // Not the engine's own sequence: addresses are public.
    let mut rng = Rng::new(seed ^ 0x6164_6472);
    let mut link = UdpLink::bind(&[])?;
    let mut ports = Vec::new();
    for (at, port) in profile.ports.iter().enumerate() {
        let bound = if port.addresses.is_empty() {
            UdpLink::bind_loopback(&mut rng)?
        } else {
            UdpLink::bind(&port.addresses)?
        };
        ports.extend(bound.locals().map(|_| at));
        link.join(bound);
    }
    Ok((link, ports))
}

/// A seed that nobody can guess.
pub(crate) fn random_seed() -> Result<u64, Errno> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(seed))
}
