//! Measured round trips.

use std::fmt;
use std::time::Duration;

/// Round trips that were measured.
///
/// [`Exchange::measure_rtt`](crate::exchange::Exchange::measure_rtt) and [`Qp::measure_rtt`](crate::Qp::measure_rtt) give
/// one; a [`Duration`] from elsewhere stands for one without jitter. [`Timing::from_rtt`](crate::Timing::from_rtt) makes
/// timeouts of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rtt {
    /// The shortest.
    pub min: Duration,
    /// Nine of ten took at most this long: the jitter that must not look like loss.
    pub p90: Duration,
    /// The longest.
    pub max: Duration,
}

impl Rtt {
    /// What these samples say; `None` if there are none.
    ///
    /// ```
    /// use rdma_qp::Rtt;
    /// use std::time::Duration;
    /// let samples: Vec<_> = (1..=10).map(Duration::from_micros).collect();
    /// let rtt = Rtt::of(&samples).unwrap();
    /// assert_eq!(rtt.p90, Duration::from_micros(9));
    /// ```
    pub fn of(samples: &[Duration]) -> Option<Rtt> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        // The smallest sample that at least nine tenths of all do not exceed.
        let p90 = sorted[(sorted.len() * 9).div_ceil(10) - 1];
        Some(Rtt { min, p90, max })
    }
}

impl From<Duration> for Rtt {
    fn from(rtt: Duration) -> Rtt {
        Rtt {
            min: rtt,
            p90: rtt,
            max: rtt,
        }
    }
}

impl fmt::Display for Rtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rtt { min, p90, max } = self;
        write!(f, "{min:?} (nine of ten within {p90:?}, at most {max:?})")
    }
}

/// A round trip that is measured again and again, and how much it varies: RFC 6298, section 2.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Smoothed(Option<(Duration, Duration)>);

impl Smoothed {
    /// Nothing is known yet.
    pub(crate) fn new() -> Smoothed {
        Smoothed(None)
    }

    /// One more was measured.
    pub(crate) fn sample(&mut self, rtt: Duration) {
        self.0 = Some(match self.0 {
            None => (rtt, rtt / 2),
            Some((mean, varies)) => ((mean * 7 + rtt) / 8, (varies * 3 + mean.abs_diff(rtt)) / 4),
        });
    }

    /// What it is about; `None`: nothing was measured.
    pub(crate) fn mean(&self) -> Option<Duration> {
        self.0.map(|(mean, _)| mean)
    }

    /// After how long an answer is taken not to come any more.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.0.map(|(mean, varies)| mean + varies * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten() {
        let of = |micros: &[u64]| {
            let samples: Vec<_> = micros.iter().map(|n| Duration::from_micros(*n)).collect();
            Rtt::of(&samples).unwrap().p90.as_micros()
        };
        assert_eq!(of(&[7]), 7);
        assert_eq!(of(&[2, 1]), 2);
        // One hiccup among ten does not count; two do.
        assert_eq!(of(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 900]), 1);
        assert_eq!(of(&[1, 1, 1, 1, 1, 1, 1, 1, 900, 900]), 900);
        assert_eq!(Rtt::of(&[]), None);
    }

    /// The numbers of RFC 6298: the first sample R gives R and R / 2, a further one moves them by 1/8 and 1/4.
    #[test]
    fn a_smoothed_round_trip_follows_the_rfc() {
        let micros = Duration::from_micros;
        let mut smoothed = Smoothed::new();
        assert_eq!((smoothed.mean(), smoothed.timeout()), (None, None));
        smoothed.sample(micros(800));
        assert_eq!(smoothed.timeout(), Some(micros(800 + 4 * 400)));
        smoothed.sample(micros(1600));
        // 7/8 x 800 + 1/8 x 1600, and 3/4 x 400 + 1/4 x 800.
        assert_eq!(smoothed.mean(), Some(micros(900)));
        assert_eq!(smoothed.timeout(), Some(micros(900 + 4 * 500)));
    }
}
