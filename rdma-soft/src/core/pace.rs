//! How much a requester keeps in flight, and how long it waits before it asks again.
//!
//! None of this is on the wire or in the verbs: a requester may send less than it could, and may
//! repeat itself early. It keeps a burst from overrunning the receiver's socket buffer, and spares
//! a lost last packet the wait for the (long) acknowledgement timeout.

use std::time::Duration;

use super::config::Config;
use super::time::Instant;
use crate::wire::Psn;

/// Packets that may be unacknowledged: doubles per round trip up to a threshold, then grows by one;
/// halves on a loss.
#[derive(Debug)]
pub(super) struct Window {
    max: u32,
    size: u32,
    threshold: u32,
    credit: u32,
}

impl Window {
    const MIN: u32 = 4;

    pub fn new(max: u32) -> Window {
        let max = max.clamp(Window::MIN, Config::WINDOW_LIMIT);
        Window {
            max,
            size: max.min(32),
            threshold: max,
            credit: 0,
        }
    }

    /// Packets that may be in flight.
    pub fn size(&self) -> u32 {
        self.size
    }

    pub fn max(&self) -> u32 {
        self.max
    }

    pub fn acknowledged(&mut self, packets: u32) {
        if self.size < self.threshold {
            self.size = (self.size + packets).min(self.threshold);
            return;
        }
        self.credit += packets;
        if self.credit >= self.size {
            self.credit -= self.size;
            self.size = (self.size + 1).min(self.max);
        }
    }

    pub fn lost(&mut self) {
        self.threshold = (self.size / 2).max(Window::MIN);
        self.size = self.threshold;
        self.credit = 0;
    }
}

/// The measured round trip, smoothed (RFC 6298, section 2), and the probe that derives from it.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    /// Nanoseconds.
    smoothed: Option<u64>,
    /// Nanoseconds.
    variation: u64,
    sample: Option<(Psn, Instant)>,
    probes: u32,
}

impl RoundTrip {
    /// Shortest wait before a probe: a peer may be off the processor for a while.
    const SHORTEST: Duration = Duration::from_millis(4);
    /// Probes between two signs of progress.
    const MOST_PROBES: u32 = 8;

    /// A packet with this PSN, sent for the first time, asks for an acknowledgement.
    pub fn asked(&mut self, psn: Psn, now: Instant) {
        self.sample.get_or_insert((psn, now));
    }

    /// Everything before `una` is acknowledged.
    #[inline]
    pub fn answered(&mut self, una: Psn, now: Instant) {
        self.probes = 0;
        let Some((psn, at)) = self.sample else { return };
        if Psn::distance(psn, una) <= 0 {
            return;
        }
        self.sample = None;
        let rtt = now.as_nanos().saturating_sub(at.as_nanos());
        match &mut self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(rtt)) / 4;
                *smoothed = (*smoothed * 7 + rtt) / 8;
            }
        }
    }

    /// Packets are sent again: an answer may be to either copy, so it measures nothing.
    pub fn forget_sample(&mut self) {
        self.sample = None;
    }

    pub fn probed(&mut self) {
        self.probes += 1;
    }

    /// How long to wait for an answer before asking again; `None` if nothing was measured yet (so a
    /// peer that never answered sees exactly the retries that the attributes say) or if asking
    /// again was of no use.
    #[inline]
    pub fn probe_after(&self) -> Option<Duration> {
        let smoothed = self
            .smoothed
            .filter(|_| self.probes < RoundTrip::MOST_PROBES)?;
        let wait = (smoothed + self.variation * 4).max(RoundTrip::SHORTEST.as_nanos() as u64);
        Some(Duration::from_nanos(wait << self.probes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_halves_on_loss_and_comes_back() {
        let mut w = Window::new(64);
        for _ in 0..10 {
            w.acknowledged(32);
        }
        assert_eq!(w.size(), 64);
        w.lost();
        assert_eq!(w.size(), 32);
        for _ in 0..64 {
            w.acknowledged(32);
        }
        assert!(w.size() > 40 && w.size() <= 64);
        for _ in 0..20 {
            w.lost();
        }
        assert_eq!(w.size(), Window::MIN);
    }

    #[test]
    fn no_probe_before_a_round_trip_was_measured() {
        let mut r = RoundTrip::default();
        assert_eq!(r.probe_after(), None);
        r.asked(Psn::new(5), Instant::from_nanos(0));
        r.answered(Psn::new(5), Instant::from_nanos(10));
        assert_eq!(
            r.probe_after(),
            None,
            "PSN 5 itself is not acknowledged yet"
        );
        r.answered(Psn::new(6), Instant::from_nanos(4_000_000));
        assert_eq!(r.probe_after(), Some(Duration::from_millis(12)));
        r.probed();
        assert_eq!(r.probe_after(), Some(Duration::from_millis(24)));
    }
}
