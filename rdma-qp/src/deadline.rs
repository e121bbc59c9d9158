//! A point in time after which a call gives up.

use std::time::{Duration, Instant};

/// When a blocking call gives up: never, or at an instant. Made from a [`Duration`] (from now on) or an [`Instant`].
///
/// ```
/// use rdma_qp::Deadline;
/// use std::time::Duration;
/// let deadline = Deadline::from(Duration::from_secs(5));
/// assert!(!deadline.passed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Wait without limit.
    pub const NEVER: Deadline = Deadline(None);

    /// Whether it has come.
    pub fn passed(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// This one, or `from_now` if that comes earlier.
    pub(crate) fn at_most(self, from_now: Duration) -> Deadline {
        match (self.0, Instant::now().checked_add(from_now)) {
            (Some(own), Some(other)) => Deadline(Some(own.min(other))),
            (own, other) => Deadline(own.or(other)),
        }
    }

    /// Time left: zero when it has come, `None` when there is no limit.
    pub fn remaining(self) -> Option<Duration> {
        self.0
            .map(|at| at.saturating_duration_since(Instant::now()))
    }
}

impl From<Duration> for Deadline {
    /// A duration too long for the clock counts as no limit.
    fn from(from_now: Duration) -> Deadline {
        Deadline(Instant::now().checked_add(from_now))
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Deadline {
        Deadline(Some(at))
    }
}
