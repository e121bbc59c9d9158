//! What happened how often: so that nobody believes in a simulation that does nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rdma_core_sys::ibv_wc_status;
use rdma_core_sys::rules::Transport;

use crate::books::Op;
use crate::knobs::Profile;

/// Operation, transport, profile and status.
type Key = (&'static str, &'static str, &'static str, u32);

/// The counts of one run.
#[derive(Clone, Debug)]
pub struct Tally {
    profile: Profile,
    /// Work requests that were posted, receives among them.
    pub wrs: u64,
    /// Packets that were sent.
    pub packets: u64,
    /// Messages that came.
    pub delivered: u64,
    /// Lives of connections that were not their first.
    pub recoveries: u64,
    /// Queue Pairs that went to ERR or SQE.
    pub errors: u64,
    /// Those of UC and UD that went back to RTS.
    pub mended: u64,
    /// Send queues that were drained, regions that were deregistered in use, hosts that died.
    pub drained: u64,
    /// See `drained`.
    pub deregistered: u64,
    /// See `drained`.
    pub deaths: u64,
    /// Atomics whose answer was given more than once.
    pub atomic_replays: u64,
    /// Request packets that were sent again, and RNR NAKs.
    pub retransmitted: u64,
    /// See `retransmitted`.
    pub rnr: u64,
    /// Answers to atomics that went out: host, Queue Pair, life and PSN.
    pub atomics: BTreeSet<(usize, u32, u32, u32)>,
    ends: BTreeMap<Key, u64>,
}

impl Tally {
    /// Nothing yet.
    pub fn new(profile: Profile) -> Tally {
        Tally {
            profile,
            wrs: 0,
            packets: 0,
            delivered: 0,
            recoveries: 0,
            errors: 0,
            mended: 0,
            drained: 0,
            deregistered: 0,
            deaths: 0,
            atomic_replays: 0,
            retransmitted: 0,
            rnr: 0,
            atomics: BTreeSet::new(),
            ends: BTreeMap::new(),
        }
    }

    /// A request ended.
    pub fn count(&mut self, op: Op, transport: Transport, status: ibv_wc_status) {
        let transport = match transport {
            Transport::XrcIni | Transport::XrcTgt => "XRC",
            other => other.name(),
        };
        *self
            .ends
            .entry((op.name(), transport, self.profile.name(), status.0))
            .or_default() += 1;
    }
}

/// The counts of many runs.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    seeds: u64,
    wrs: Vec<u64>,
    packets: Vec<u64>,
    /// Seeds with retransmissions, RNR NAKs, repeated answers to atomics, recoveries, errors, drained
    /// queues, regions that went, deaths.
    with: [u64; 8],
    delivered: u64,
    ends: BTreeMap<Key, u64>,
}

impl Histogram {
    /// Adds a run.
    pub fn add(&mut self, tally: &Tally) {
        self.seeds += 1;
        self.wrs.push(tally.wrs);
        self.packets.push(tally.packets);
        self.delivered += tally.delivered;
        let seen = [
            tally.retransmitted > 0,
            tally.rnr > 0,
            tally.atomic_replays > 0,
            tally.recoveries + tally.mended > 0,
            tally.errors > 0,
            tally.drained > 0,
            tally.deregistered > 0,
            tally.deaths > 0,
        ];
        for (count, seen) in self.with.iter_mut().zip(seen) {
            *count += u64::from(seen);
        }
        for (key, n) in &tally.ends {
            *self.ends.entry(*key).or_default() += n;
        }
    }
}

impl Histogram {
    /// Median of work requests and of packets per seed.
    pub fn medians(&self) -> (u64, u64) {
        (median(&self.wrs), median(&self.packets))
    }
}

fn median(of: &[u64]) -> u64 {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14} {:<4} {:<10} {:<24} count",
            "operation", "on", "fault", "status"
        )?;
        for ((op, transport, profile, status), n) in &self.ends {
            let status = format!("{:?}", ibv_wc_status(*status));
            let status = status.trim_start_matches("IBV_WC_");
            writeln!(f, "{op:<14} {transport:<4} {profile:<10} {status:<24} {n}")?;
        }
        let percent = |n: u64| n as f64 * 100.0 / self.seeds.max(1) as f64;
        let names = [
            "retransmission",
            "RNR NAK",
            "atomic answered again",
            "recovery",
            "error",
            "drained queue",
            "deregistration in use",
            "death",
        ];
        for (name, n) in names.iter().zip(self.with) {
            writeln!(f, "seeds with {name}: {:.1} %", percent(n))?;
        }
        let (wrs, packets) = self.medians();
        writeln!(
            f,
            "median WRs {}, packets {} per seed; {} messages delivered",
            wrs, packets, self.delivered
        )
    }
}
