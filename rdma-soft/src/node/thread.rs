//! The thread that makes progress when nobody polls.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::{Budget, NAP, Node, POST};
use crate::core::time::Instant;
use crate::verbs::sys::with_signals_blocked;

/// How the thread sleeps, and how others wake it.
///
/// # Sleeping
///
/// `until` is not 0 only from the end of a step of the thread, while it still has the engine, until it has
/// slept. Whoever drives the engine afterwards and leaves something to do at `next` calls
/// [`wake_before`](Sleeper::wake_before) after unlocking. It reads
///
/// - a time: the thread has looked at the engine as it was at that time or later and means to sleep. If it
///   sleeps beyond `next`, which it then has not seen, it is woken. The descriptor counts, so that a
///   wake-up which comes before the thread sleeps keeps it from sleeping.
/// - 0: the thread will look at the engine again before it sleeps (it may nap first), and after this
///   driver: had it looked before, its new `until` would have been set before this driver had the engine.
///   Or another driver has set 0 and is about to wake it: 0 is set first and the descriptor written next,
///   never the other way round, or the thread might be asleep again, with a time of its own, when 0 is
///   set, and nobody would wake it for an earlier `next`.
///
/// Before it sleeps or naps, the thread asks [`Posts::missed`](super::queue::Posts::missed) as every driver does.
///
/// # Napping
///
/// Somebody polls in a loop as long as `Node::lease` lies ahead and the pollers have given a sign of life
/// since the thread last asked, or one is in the middle of a poll. Then the thread looks at nothing but its
/// descriptor. Everything waits for the pollers meanwhile, who drive the engine with each poll that
/// finds nothing: that is the price of not taking the processor and the packets from them. A poller that
/// goes away without a word, for instance to look at memory that its peer writes, is noticed at the end of
/// the nap: naps begin with [`FIRST_NAP`], or a few times what the pollers take from poll to poll, and double as
/// long as the polling goes on, up to [`NAP`]. If datagrams lie there then, such is the program's way, and the
/// thread [takes part](EAGER) for a while. Where packets come through shared memory, and one nap after the other [finds
/// them polling](STEADY) at its end, naps grow longer, up to [`LONG_NAP`]: from `NAP` on a datagram ends them, and the
/// bell, which a sender rings whose packets nobody has taken for so long. One that arms its CQ clears the lease and then looks at `napping`; the thread sets `napping` and then looks at the lease again. All four are
/// sequentially consistent, so at least one of them sees the other: the thread does not nap, or is woken.
/// A lease that another poller takes at the same moment is that poller's promise.
#[derive(Debug)]
pub(super) struct Sleeper {
    wake: OwnedFd,
    /// The thread sleeps until this time at most, or until a packet arrives; 0 if it does not.
    until: AtomicU64,
    /// The thread leaves the work to pollers for the moment.
    napping: AtomicBool,
    stop: AtomicBool,
}

impl Sleeper {
    pub(super) fn new() -> Result<Sleeper, Errno> {
        Ok(Sleeper {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            until: AtomicU64::new(0),
            napping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        // Fails only if the counter is full: then the thread is woken anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Wakes the thread if it means to sleep beyond `next`.
    pub(super) fn wake_before(&self, next: Instant) {
        if next.as_nanos() < self.until.load(Ordering::SeqCst) {
            self.until.store(0, Ordering::SeqCst);
            self.wake();
        }
    }

    /// Wakes the thread if it leaves the work to pollers.
    pub(super) fn end_nap(&self) {
        if self.napping.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Sleeps until woken, until one of `fds` (the first is `wake`) is readable, or for `timeout`; false if it was that
    /// long.
    fn sleep(&self, fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        // A failure is an interruption: the loop looks at everything again.
        let ended = poll(fds, timeout.as_ref()) != Ok(0);
        if fds.first().is_some_and(|wake| !wake.revents().is_empty()) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
        }
        ended
    }
}

/// The longest nap where packets come through shared memory, whose senders ring the bell when nobody takes them.
const LONG_NAP: Duration = Duration::from_millis(8);

/// So many naps in a row ended while somebody was polling, with a poll that found nothing not longer ago than [`RECENT`]:
/// those who look at memory and poll now and then are not like that.
const STEADY: u32 = 8;
const RECENT: Duration = Duration::from_micros(200);

/// The first nap.
const FIRST_NAP: Duration = Duration::from_micros(20);

/// Where pollers have left datagrams lying, the thread takes so many turns before it naps again, unless it
/// finds nothing twice in a row.
const EAGER: u32 = 32;

/// Frames that the thread handles before it lets others at the engine.
const TURN: Budget = Budget {
    rx: 64,
    tx: 64,
    everywhere: true,
};

/// In the middle of a message, how long to let datagrams gather. Waking up for each would cost more
/// than handling it, and take the processor from a sender that shares it.
const STREAM: Duration = Duration::from_micros(20);

/// Starts the thread, with all signals blocked: they are for the application's threads. `waiters` are
/// readable when a datagram is there, or somebody rings the bell.
pub(super) fn spawn(node: Arc<Node>, waiters: Vec<Arc<OwnedFd>>) -> Result<JoinHandle<()>, Errno> {
    let thread = std::thread::Builder::new().name("rdma-soft".to_owned());
    with_signals_blocked(|| thread.spawn(move || run(&node, &waiters)))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
}

/// A device whose thread died of a fault of its own would look alive and answer nobody: end the
/// process instead, as a panic under a call from C does.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn run(node: &Node, waiters: &[Arc<OwnedFd>]) {
    let _guard = AbortOnPanic;
    let sleeper = &node.sleeper;
    // Short waits are meant; where the kernel does not know finer timers they are longer.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
    let mut fds = vec![PollFd::new(&sleeper.wake, PollFlags::IN)];
    fds.extend((waiters.iter()).map(|fd| PollFd::new(&**fd, PollFlags::IN)));
    // Datagrams that nobody waits for an answer to were handled since the thread last slept.
    let mut stream = false;
    let (mut nap, mut napped, mut eager, mut idle) = (FIRST_NAP, false, 0u32, 0u32);
    // Others were asked to ring the bell, and still do.
    let mut asked = false;
    let mut steady = 0u32;
    let mut longest = NAP;
    while !sleeper.stop.load(Ordering::SeqCst) {
        if eager == 0 && has_lease(node) && has_pollers(node) {
            if let Some(mut driver) = node.try_driver() {
                if std::mem::take(&mut asked) {
                    driver.awake();
                }
                longest = match driver.has_rings() && steady >= STEADY {
                    true => LONG_NAP,
                    false => NAP,
                };
                drop(driver);
                if node.posts.missed() {
                    node.drive(node.clock.now(), POST, false);
                }
            }
            sleeper.napping.store(true, Ordering::SeqCst);
            let mut ended = false;
            // Who ends the polling clears the lease first and then looks whether this naps.
            if has_lease(node) {
                let gap = Duration::from_nanos(node.poll_gap.load(Ordering::Relaxed));
                let nap = nap.max((4 * gap).min(NAP)).min(longest);
                let ends = if nap > NAP { fds.len() } else { 1 };
                ended = sleeper.sleep(&mut fds[..ends], Some(nap));
            }
            sleeper.napping.store(false, Ordering::SeqCst);
            let last_poll = Instant::from_nanos(node.last_poll.load(Ordering::Relaxed));
            let polling = node.clock.now().since(last_poll) <= RECENT;
            steady = if polling { steady.saturating_add(1) } else { 0 };
            nap = match ended || (nap > NAP && !polling) {
                true => FIRST_NAP,
                false => (2 * nap).min(longest),
            };
            napped = true;
            continue;
        }
        nap = FIRST_NAP;
        let Some(mut driver) = node.try_driver() else {
            // Whoever has the engine is at work; to wait at the lock would cost them a wake-up.
            sleeper.sleep(&mut fds[..1], Some(FIRST_NAP));
            eager = eager.saturating_sub(1);
            continue;
        };
        let now = node.clock.now();
        let mut notices = Vec::new();
        let turn = driver.step(now, TURN, &mut notices);
        if turn.received > 0 {
            stream = turn.sent == 0 && notices.is_empty();
        }
        let missed = std::mem::take(&mut napped) && turn.received > 0;
        let came = turn.received > 0 || turn.heard;
        idle = if came { 0 } else { idle + 1 };
        eager = match missed {
            true => EAGER,
            false if idle > 1 => 0,
            false => eager.saturating_sub(1),
        };
        let next = driver.next_timeout(now);
        // Whoever sends through shared memory is asked to ring the bell, unless something is there already.
        let more = turn.more || (!stream && !driver.sleep());
        asked = !stream;
        if !more {
            // Set under the lock, so that whoever drives next sees it.
            let until = next.map_or(u64::MAX, Instant::as_nanos);
            sleeper.until.store(until, Ordering::SeqCst);
        }
        drop(driver);
        for notice in notices {
            notice.deliver();
        }
        if more {
            if node.control.load(Ordering::Relaxed) > 0 {
                // A control call waits for the engine; the lock alone would not let it in.
                std::thread::yield_now();
            }
            continue;
        }
        if !node.posts.missed() {
            let timeout = next.map(|at| at.since(node.clock.now()));
            if std::mem::take(&mut stream) {
                let wait = timeout.map_or(STREAM, |t| t.min(STREAM));
                sleeper.sleep(&mut fds[..1], Some(wait));
            } else {
                sleeper.sleep(&mut fds, timeout);
            }
        }
        sleeper.until.store(0, Ordering::SeqCst);
    }
}

/// There were polls that still count as somebody polling.
fn has_lease(node: &Node) -> bool {
    node.clock.now().as_nanos() < node.lease.load(Ordering::SeqCst)
}

/// Pollers have given a sign of life since this was last asked, or one is in the middle of a poll: it may have
/// lost the processor there.
fn has_pollers(node: &Node) -> bool {
    node.poller_seen.swap(false, Ordering::Relaxed) || node.progressing.load(Ordering::Relaxed)
}
