//! How a supervised connection is kept alive, and within which time it notices what.

use std::time::Duration;

use crate::endpoint::RemoteRegion;
use crate::qp::PathOptions;
use crate::units::Timing;

/// A device may take four times as long as it is told until it gives up (`ibv_modify_qp(3)`, `timeout`).
const DEVICE_SLACK: u32 = 4;

/// Heartbeats that may be missed where nothing is acknowledged.
const MISSED: u32 = 3;

/// How long is waited before the next attempt to meet the peer: `first`, then twice as long each time, at most `most`; and of
/// that a part that is drawn, so that many ends that lost one peer do not come back all at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Before the first attempt.
    pub first: Duration,
    /// The longest.
    pub most: Duration,
    /// How much of it is drawn: 0 is nothing, 1 is all of it. Half if not set.
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
        whole.mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * drawn)
    }
}

/// What a probe of an idle connection proves, by transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// RC: a zero-length RDMA WRITE is acknowledged by the peer's Queue Pair, which dies with its process. It takes no receive.
    Process,
    /// XRC: it is acknowledged by the target, which lives as long as any process of the node holds it.
    Node,
    /// UC: nothing is acknowledged, so both ends send heartbeats, and each listens for those of the other.
    Heartbeat,
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
            give_up: None,
        }
    }
}

impl Options {
    /// How long an answer may be missing until the peer counts as dead, though the device has not said so.
    pub fn answer_within(&self, proof: Proof) -> Duration {
        if proof == Proof::Heartbeat {
            return self.probe.saturating_mul(MISSED);
        }
        // Repetitions for ever are no reason to wait for ever: a probe stands behind nothing that needs a receive.
        let budget = self.timing.budget().or(Timing::default().budget());
        budget.unwrap_or_default().saturating_mul(DEVICE_SLACK)
    }

    /// Within which time the death of an idle peer is noticed: one probe interval, and what its answer may take.
    ///
    /// It holds while the application polls and the port is up. A peer whose process ends is noticed earlier, because its
    /// channel closes. With requests under way it is the device that tells, within the second part, unless
    /// [`Timing::budget`] is for ever.
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
