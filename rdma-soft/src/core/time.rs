//! Time as an argument: a point on a clock that the caller owns.

use std::ops::Add;
use std::time::Duration;

/// A point in time: nanoseconds since an origin that the caller chose.
///
/// The engine never reads a clock. The running device passes nanoseconds of the
/// monotonic clock; a simulation passes its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Instant = Instant(0);

    /// The point `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time that passed from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the end of the clock (584 years).
    #[inline]
    fn add(self, d: Duration) -> Instant {
        let seconds = d.as_secs().saturating_mul(1_000_000_000);
        Instant((self.0.saturating_add(seconds)).saturating_add(u64::from(d.subsec_nanos())))
    }
}
