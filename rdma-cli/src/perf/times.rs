//! Many times: counted in little memory, and what they amount to.

use std::time::Duration;

use rdma_qp::Rtt;
use serde::Serialize;

/// Counts times, exactly to the nanosecond below 2 µs, and within a thousandth above. Counting allocates nothing.
pub struct Times {
    counts: Box<[u64]>,
    len: u64,
    sum: u128,
    min: u64,
    max: u64,
}

/// Each power of two is cut into so many parts.
const PARTS: u64 = 1 << 10;

impl Default for Times {
    fn default() -> Times {
        Times {
            counts: vec![0; place(u64::MAX) + 1].into(),
            len: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

/// Where a time is counted.
fn place(ns: u64) -> usize {
    let shift = (u64::BITS - (ns / (2 * PARTS)).leading_zeros()).min(63);
    (u64::from(shift) * PARTS + (ns >> shift)) as usize
}

/// The shortest time that is counted there.
fn shortest(place: usize) -> u64 {
    let place = place as u64;
    let shift = (place / PARTS).saturating_sub(1);
    (place - shift * PARTS) << shift
}

impl Times {
    /// Counts a time.
    #[inline]
    pub fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[place(ns)] += 1;
        self.len += 1;
        self.sum += u128::from(ns);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The smallest time that at least so many of a thousand do not exceed, in nanoseconds.
    fn at(&self, per_mille: u64) -> u64 {
        let wanted = (u128::from(self.len) * u128::from(per_mille))
            .div_ceil(1000)
            .max(1);
        let mut seen = 0u128;
        for (place, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted {
                return shortest(place).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// What they amount to, each divided by `parts`; `None` if there are none.
    pub fn percentiles(&self, parts: u32) -> Option<Percentiles> {
        let us = |ns: u64| ns as f64 / 1000.0 / f64::from(parts);
        (self.len > 0).then(|| Percentiles {
            min: us(self.min),
            avg: self.sum as f64 / self.len as f64 / 1000.0 / f64::from(parts),
            p50: us(self.at(500)),
            p90: us(self.at(900)),
            p99: us(self.at(990)),
            p99_9: us(self.at(999)),
            max: us(self.max),
        })
    }

    /// The same for those who judge timeouts.
    pub fn rtt(&self) -> Option<Rtt> {
        (self.len > 0).then(|| Rtt {
            min: Duration::from_nanos(self.min),
            p90: Duration::from_nanos(self.at(900)),
            max: Duration::from_nanos(self.max),
        })
    }
}

/// How often an end that waits looks at what the other end says.
pub const TICK: Duration = Duration::from_millis(1);

/// An end that polls in vain.
#[derive(Default)]
pub struct Idle {
    polls: u32,
}

impl Idle {
    /// One more poll was in vain. `true`: it is time for a look at the clock.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        if self.polls > 4096 {
            // The other end may need this core.
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        self.polls.is_multiple_of(64)
    }
}

/// Times in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Percentiles {
    pub min: f64,
    pub avg: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
}

/// A number of microseconds with its unit, in three digits or four.
pub fn short(us: f64) -> String {
    match us {
        us if us < 99.95 => format!("{us:.1} µs"),
        us if us < 999.5 => format!("{us:.0} µs"),
        us if us < 99_950.0 => format!("{:.2} ms", us / 1000.0),
        us => format!("{:.0} ms", us / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(of: impl IntoIterator<Item = u64>) -> Times {
        let mut times = Times::default();
        of.into_iter()
            .for_each(|ns| times.add(Duration::from_nanos(ns)));
        times
    }

    #[test]
    fn percentiles() {
        let p = times(1..=1000).percentiles(1).unwrap();
        assert_eq!(
            (p.min, p.avg, p.p50, p.p90, p.p99, p.p99_9, p.max),
            (0.001, 0.5005, 0.5, 0.9, 0.99, 0.999, 1.0)
        );
        let half = times([3000, 5000]).percentiles(2).unwrap();
        assert_eq!((half.min, half.avg, half.max), (1.5, 2.0, 2.5));
        let one = times([7_654_321]).percentiles(1).unwrap();
        assert_eq!(
            (one.min, one.p50, one.p99, one.max),
            (7654.321, 7654.321, 7654.321, 7654.321)
        );
        assert!(times([]).percentiles(1).is_none());
    }

    /// A time is told too short by a thousandth at most, whatever it is.
    #[test]
    fn each_time_has_its_place() {
        let ends = (0..64).flat_map(|bits| {
            [
                1u64 << bits,
                (1 << bits) - 1,
                (1 << bits) + (1 << bits >> 1),
            ]
        });
        for ns in ends.chain([u64::MAX]) {
            let told = shortest(place(ns));
            assert!(told <= ns && ns - told <= ns / 1000, "{ns} {told}");
            assert!(ns >= 2048 || told == ns, "{ns} {told}");
        }
    }

    #[test]
    fn times_are_short() {
        assert_eq!(
            (short(23.46), short(123.4), short(1234.0)),
            ("23.5 µs".into(), "123 µs".into(), "1.23 ms".into())
        );
        assert_eq!(short(250_000.0), "250 ms");
    }
}
