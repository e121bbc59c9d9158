//! The figures of a soak.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::time::Duration;

use rdma_core_sys::ibv_wc_status;
use serde_json::json;

use crate::{PASSIVE, Soak, WORKERS, active};

/// What one worker used at one moment.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Since the start.
    pub at: Duration,
    /// KiB of memory that are resident.
    pub resident: u64,
    /// Descriptors that are open.
    pub open: u64,
}

/// More than this above the first third of the time is growth: KiB, and descriptors. Links that come up at different moments
/// differ by a descriptor; and a worker has 7,000 KiB with one link up and 9,500 with all of them, which in a short run need not
/// happen before its last third. A connection whose memory is not given back costs 64 KiB or more.
const MARGIN: (u64, u64) = (2_560, 1);

/// How long it took to see deaths, one way.
#[derive(Default)]
struct Detections(Vec<Duration>);

impl Detections {
    fn count(&self) -> usize {
        self.0.len()
    }

    /// So long, or less, it took in `percent` of the cases.
    fn within(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }

    fn worst(&self) -> Duration {
        self.0.iter().copied().max().unwrap_or_default()
    }
}

#[derive(Default)]
pub struct Figures {
    pub seconds: u64,
    pub kills: u64,
    /// Kills of a worker to which nobody was connected at that moment.
    pub unwatched: u64,
    /// Lives whose death somebody saw too late, or not.
    pub missed: BTreeSet<(usize, u64)>,
    pub violations: u64,
    pub connections: u64,
    /// Times that a QP gave up on a peer that was only slow.
    pub spurious: u64,
    /// The longest that this program was kept from running: none of the times is more exact.
    pub stall: Duration,
    /// Requests that ended, of each life.
    done: BTreeMap<(usize, u64), u64>,
    channel: Detections,
    queue: Detections,
    /// By status of the first failure.
    statuses: BTreeMap<u64, u64>,
    samples: Vec<(usize, Sample)>,
    /// Of the worker that lives from the beginning to the end: the most in each third of the time.
    thirds: [(u64, u64); 3],
    grew: bool,
}

impl Figures {
    /// Everything is connected: memory and descriptors are watched from here on.
    pub fn begin(&mut self) {
        self.samples.clear();
    }

    pub fn used(&mut self, slot: usize, life: u64, sample: Sample, done: u64) {
        self.samples.push((slot, sample));
        self.done.insert((slot, life), done);
    }

    /// A death was seen by the control channel, or by a QP that failed with that status.
    pub fn detected(&mut self, status: Option<u64>, took: Duration) {
        match status {
            None => self.channel.0.push(took),
            Some(status) => {
                self.queue.0.push(took);
                *self.statuses.entry(status).or_default() += 1;
            }
        }
    }

    fn requests(&self) -> u64 {
        self.done.values().sum()
    }

    pub fn progress(&self, passed: Duration) {
        let last = self.samples.iter().rev().find(|(slot, _)| *slot == 0);
        let (resident, open) = last.map_or((0, 0), |(_, sample)| (sample.resident, sample.open));
        println!(
            "{:6.1} s: {} kills, seen {} times by the channel and {} by a QP; {} connections, {} requests; worker 0: {resident} KiB, {open} descriptors; {} violations",
            passed.as_secs_f64(),
            self.kills,
            self.channel.count(),
            self.queue.count(),
            self.connections,
            self.requests(),
            self.violations,
        );
    }

    /// The most of a worker's samples between two parts of the time.
    fn most(&self, slot: usize, from: Duration, to: Duration) -> (u64, u64) {
        let among = self
            .samples
            .iter()
            .filter(|(of, sample)| *of == slot && sample.at >= from && sample.at < to);
        among.fold((0, 0), |(resident, open), (_, sample)| {
            (resident.max(sample.resident), open.max(sample.open))
        })
    }

    /// Whether memory and descriptors stayed flat: in the last third of the time no more than in the first, and the margin.
    pub fn judge_use(&mut self) {
        let end = self
            .samples
            .iter()
            .map(|(_, sample)| sample.at)
            .max()
            .unwrap_or_default();
        for third in 0..3 {
            self.thirds[third as usize] = self.most(0, end * third / 3, end * (third + 1) / 3);
        }
        let [first, _, last] = self.thirds;
        self.grew = last.0 > first.0 + MARGIN.0 || last.1 > first.1 + MARGIN.1;
    }

    pub fn is_good(&self, how: &Soak) -> bool {
        self.violations == 0
            && !self.grew
            && self.kills >= how.kills
            && self.channel.count() > 0
            && self.queue.count() > 0
    }

    /// Kills that everybody who was connected saw in time, by channel and QPs; at least one was.
    fn deaths_detected(&self) -> u64 {
        self.kills - self.unwatched - self.missed.len() as u64
    }

    pub fn print(&self, how: &Soak) -> Result<(), Box<dyn Error>> {
        let milliseconds = |time: Duration| (time.as_secs_f64() * 10_000.0).round() / 10.0;
        if how.json {
            let seen = |seen: &Detections, bound| {
                json!({ "count": seen.count(), "p50_ms": milliseconds(seen.within(50)), "p99_ms": milliseconds(seen.within(99)),
                    "worst_ms": milliseconds(seen.worst()), "bound_ms": milliseconds(bound) })
            };
            let thirds: Vec<_> = self
                .thirds
                .iter()
                .map(|(resident, open)| json!({ "rss_kib": resident, "fds": open }))
                .collect();
            let document = json!({
                "workers": WORKERS, "seconds": self.seconds, "seed": how.seed, "kills": self.kills, "detected": self.deaths_detected(), "unwatched": self.unwatched,
                "requests": self.requests(), "connections": self.connections, "spurious": self.spurious, "stall_ms": milliseconds(self.stall),
                "channel": seen(&self.channel, PASSIVE), "queue": seen(&self.queue, active()),
                "thirds": thirds, "grew": self.grew, "violations": self.violations, "good": self.is_good(how),
            });
            println!("{}", serde_json::to_string_pretty(&document)?);
            return Ok(());
        }
        println!(
            "\n{:<34} {:>8} {:>10} {:>10} {:>10} {:>10}",
            "deaths seen", "times", "p50 ms", "p99 ms", "worst ms", "bound ms"
        );
        for (name, seen, bound) in [
            ("by the control channel", &self.channel, PASSIVE),
            ("by a QP with requests under way", &self.queue, active()),
        ] {
            println!(
                "{name:<34} {:>8} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
                seen.count(),
                milliseconds(seen.within(50)),
                milliseconds(seen.within(99)),
                milliseconds(seen.worst()),
                milliseconds(bound)
            );
        }
        for (status, count) in &self.statuses {
            let name = u32::try_from(*status).map_or_else(
                |_| String::new(),
                |code| format!("{:?}", ibv_wc_status(code)),
            );
            println!("  {name:<32} {count:>8}");
        }
        println!(
            "\n{:<34} {:>8} {:>12}",
            "worker 0, most of each third", "KiB", "descriptors"
        );
        for (name, (resident, open)) in ["first", "second", "last"].iter().zip(self.thirds) {
            println!("{name:<34} {resident:>8} {open:>12}");
        }
        println!(
            "\n{} requests, {} connections, {} kills unseen because nobody was connected, {} QPs gave up on a peer that was slow; this \
             program, which sleeps 5 ms at a time, once slept {:.0} ms too long",
            self.requests(),
            self.connections,
            self.unwatched,
            self.spurious,
            milliseconds(self.stall),
        );
        println!(
            "soak: {} s, kills {}, deaths detected {}, by the channel (worst {:.0} ms of {:.0} ms) and by QPs (worst {:.0} ms of {:.0} ms), violations {}, RSS {} -> {} KiB, descriptors {} -> {}: {}",
            self.seconds,
            self.kills,
            self.deaths_detected(),
            milliseconds(self.channel.worst()),
            milliseconds(PASSIVE),
            milliseconds(self.queue.worst()),
            milliseconds(active()),
            self.violations,
            self.thirds[0].0,
            self.thirds[2].0,
            self.thirds[0].1,
            self.thirds[2].1,
            if self.is_good(how) { "good" } else { "BAD" },
        );
        Ok(())
    }
}
