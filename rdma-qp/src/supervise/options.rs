//! How a supervised connection is kept alive, and within which time it notices what.

use std::fmt;
use std::time::Duration;

use crate::endpoint::RemoteRegion;
use crate::qp::PathOptions;
use crate::units::Timing;

/// A device may take four times as long as it is told until it gives up (`ibv_modify_qp(3)`, `timeout`).
const DEVICE_SLACK: u32 = 4;

/// Probes within one interval, where nothing is acknowledged and each of them may be lost.
pub(super) const TRIES: u32 = 5;

/// How long is waited before the next attempt to meet the peer: `first`, then twice as long each time, at most `most`; and of
/// that a part that is drawn, so that many ends that lost one peer do not come back all at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Before the first attempt.
    pub first: Duration,
    /// The longest.
    pub most: Duration,
    /// How much of it is drawn: 0 is nothing, and so is what is no number; 1 is all of it. Half if not set.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            first: Duration::from_millis(20),
            most: Duration::from_secs(2),
            jitter: 0.5,
        }
    }
}

impl Backoff {
    /// The wait before an attempt, counted from 1; `draw` is a random number.
    ///
    /// ```
    /// use rdma_qp::supervise::Backoff;
    /// use std::time::Duration;
    /// let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
    /// assert_eq!(backoff.wait(1, 7), Duration::from_millis(20));
    /// assert_eq!(backoff.wait(4, 7), Duration::from_millis(160));
    /// assert_eq!(backoff.wait(400, 7), Duration::from_secs(2));
    /// ```
    pub fn wait(&self, attempt: u32, draw: u64) -> Duration {
        let doubled = 1u32.checked_shl(attempt.saturating_sub(1));
        let whole = self.first.saturating_mul(doubled.unwrap_or(u32::MAX));
        let whole = whole.min(self.most.max(self.first));
        // 53 bits are what a double holds.
        let drawn = (draw >> 11) as f64 / (1u64 << 53) as f64;
        let part = 1.0 - self.jitter.clamp(0.0, 1.0) * drawn;
        // A double may be no number, and the longest wait is rounded to a longer one.
        Duration::try_from_secs_f64(whole.as_secs_f64() * part).unwrap_or(whole)
    }
}

/// What a probe of an idle connection proves, by transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// RC: a zero-length RDMA WRITE is acknowledged by the peer's Queue Pair, which dies with its process. It takes no receive.
    Process,
    /// XRC: it is acknowledged by the target, which lives as long as any process of the node holds it. So it proves the peer's
    /// node; that its process is there, the channel says, and messages of its own.
    Node,
    /// UC and UD: nothing is acknowledged, so a probe is a message, which takes a receive, and the peer's supervisor answers
    /// with another. It proves that the peer's program is there and polls, which is more than the others prove.
    Echo,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proof::Process => "a probe proves the peer's process",
            Proof::Node => "a probe proves the peer's node, not its process",
            Proof::Echo => "a probe proves that the peer's process polls",
        })
    }
}

/// How a connection is supervised.
#[derive(Clone, Debug)]
pub struct Options {
    /// The port, counted from 1. Its best GID is chosen anew for each life of the connection.
    pub port: u8,
    /// Options of the path.
    pub path: PathOptions,
    /// Timing of the connection: with [`Options::probe`] it decides how soon a death is noticed.
    pub timing: Timing,
    /// Regions that the peer is told, in each life.
    pub offered: Vec<RemoteRegion>,
    /// An idle connection is probed when nothing was heard for so long. 1 s if not set.
    pub probe: Duration,
    /// Waits between attempts to meet the peer.
    pub backoff: Backoff,
    /// How long one attempt may take, from the beginning of a step to its end. 5 s if not set.
    pub step: Duration,
    /// How long an end on UC or UD takes no messages before a new life: longer than packets are on the way. A Queue Pair of UC
    /// takes whatever comes to its number, so one of a former life would get into the new one; on UD the Q_Key keeps it out as
    /// well. 10 ms if not set.
    pub settle: Duration,
    /// After so long without a connection no further attempt is made. `None`, which is usual: never.
    pub give_up: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            port: 1,
            path: PathOptions::default(),
            timing: Timing::default(),
            offered: Vec::new(),
            probe: Duration::from_secs(1),
            backoff: Backoff::default(),
            step: Duration::from_secs(5),
            settle: Duration::from_millis(10),
            give_up: None,
        }
    }
}

impl Options {
    /// How long an answer may be missing until the peer counts as dead, though the device has not said so.
    pub fn answer_within(&self, proof: Proof) -> Duration {
        if proof == Proof::Echo {
            return self.probe;
        }
        // Repetitions for ever are no reason to wait for ever: a probe stands behind nothing that needs a receive.
        let budget = self.timing.budget().or(Timing::default().budget());
        budget.unwrap_or_default().saturating_mul(DEVICE_SLACK)
    }

    /// When a probe of which nothing has come is posted again. Where each may be lost, several are, until the peer counts as dead.
    pub(super) fn probe_again(&self, proof: Proof) -> Duration {
        match proof {
            // Never without a pause.
            Proof::Echo => (self.probe / TRIES).max(Duration::from_micros(1)),
            _ => self.probe,
        }
    }

    /// Within which time the death of an idle peer is noticed: one probe interval, and what its answer may take.
    ///
    /// It holds while the application polls and the port is up. A peer whose process ends is noticed earlier where its channel
    /// closes with it, as over TCP. With requests under way it is the device that tells, within the second part, unless
    /// [`Timing::budget`] is for ever. On UC and UD it is two probe intervals, during the second of which five probes are sent;
    /// choose it well above the round trip, and above the time for which the peer's program may not poll.
    ///
    /// ```
    /// use rdma_qp::supervise::{Options, Proof};
    /// use std::time::Duration;
    /// let options = Options::default();
    /// // 1 s, and 4 times the 7 x 67 ms of the usual timing.
    /// assert!(options.notices_within(Proof::Process) < Duration::from_millis(2900));
    /// ```
    pub fn notices_within(&self, proof: Proof) -> Duration {
        self.probe.saturating_add(self.answer_within(proof))
    }
}
