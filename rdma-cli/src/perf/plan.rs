//! What is to be measured: the end that asks tells it to the one that answers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Op, Transport};

/// What both ends do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub figure: Figure,
    pub transport: Transport,
    pub op: Op,
    /// Bytes of the messages, one measurement each.
    pub sizes: Vec<u32>,
    /// Requests of each Queue Pair and size; `None`: as [`Plan::count`] says.
    pub iterations: Option<u64>,
    /// Instead: how long each size goes on.
    pub duration: Option<Duration>,
    /// Requests before those that count; `None`: a tenth of them.
    pub warmup: Option<u64>,
    /// Sends that each Queue Pair has under way, at most.
    pub tx_depth: u32,
    /// Receives that each Queue Pair has posted.
    pub rx_depth: u32,
    /// Sends that one doorbell is for.
    pub post_list: u32,
    /// One send of so many has a completion; `None`: as [`Plan::cq_mod`] says.
    pub cq_mod: Option<u32>,
    pub qps: u32,
    pub bidirectional: bool,
    /// Bytes that go inline.
    pub inline: u32,
    /// Whether ends sleep until there are completions.
    pub events: bool,
    pub check: bool,
    /// How long a message without an acknowledgement is waited for.
    pub wait: Duration,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Figure {
    /// How long a message takes.
    Lat,
    /// How many go through.
    Bw,
}

/// The longest message, in bytes.
pub const LONGEST: u32 = 256 << 20;
/// Sends of an end that measures latency.
pub const PING_PONG_DEPTH: u32 = 64;
/// Receives of an end that measures latency.
pub const PING_PONG_RECEIVES: u32 = 16;
/// Where contents are checked, so much memory is used at most, for each direction, unless a message is longer.
const CHECKED: usize = 64 << 20;
/// So much memory an end registers at most.
const MOST: u64 = 4 << 30;
/// What goes over the wire for one size where nobody says otherwise.
const USUAL: u64 = 1 << 30;

impl Plan {
    /// The largest size.
    pub fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }

    /// Requests of each Queue Pair for messages of that size.
    pub fn count(&self, size: u32) -> u64 {
        self.iterations.unwrap_or_else(|| {
            let usual = match (self.figure, self.op) {
                (Figure::Bw, Op::Send | Op::Write) => 5000,
                _ => 1000,
            };
            usual.min((USUAL / u64::from(size.max(1))).max(100))
        })
    }

    /// Requests before those that count.
    pub fn warmup(&self, size: u32) -> u64 {
        self.warmup.unwrap_or_else(|| match self.duration {
            Some(_) => 100,
            None => self.count(size).div_ceil(10),
        })
    }

    /// One send of so many has a completion: each large one, and of small ones those that make room for a quarter of the queue.
    pub fn cq_mod(&self, size: u32) -> u32 {
        let usual = if size > 8192 { 1 } else { self.tx_depth / 4 };
        self.cq_mod.unwrap_or(usual).max(1)
    }

    /// Places for messages that each Queue Pair has at each end.
    pub fn places(&self) -> usize {
        let place = self.largest() as usize + 64;
        if !self.check {
            // Small messages do not all fall into the same cache line, and large ones stay in the cache.
            return (4096 / place).clamp(1, 16);
        }
        let depth = match self.figure {
            Figure::Bw => self.tx_depth.min(self.rx_depth),
            Figure::Lat => PING_PONG_RECEIVES,
        };
        (CHECKED / (place * self.qps as usize)).clamp(1, depth as usize)
    }

    /// Whether the end that gets a message has a completion for it.
    pub fn tells(&self) -> bool {
        match self.op {
            Op::Send => true,
            // By a number that comes with it, so that what is lost can be counted.
            Op::Write => !self.transport.is_reliable(),
            _ => false,
        }
    }

    /// Whether messages have numbers, because some may be lost.
    pub fn numbers(&self) -> bool {
        !self.transport.is_reliable()
    }

    /// Looks whether it can be done, on any device.
    ///
    /// # Errors
    /// The sentence says what to change.
    pub fn check(&self) -> Result<(), String> {
        if let Some(lacking) = self.transport.lacks(self.op) {
            return Err(lacking);
        }
        if self.sizes.is_empty() || self.sizes.len() > 64 {
            return Err("give 1 to 64 sizes".to_owned());
        }
        if self.op.is_atomic() && self.sizes != [8] {
            let op = self.op;
            return Err(format!("{op} is on 8 bytes: leave --size and --all out"));
        }
        for size in &self.sizes {
            if !(1..=LONGEST).contains(size) {
                return Err(format!(
                    "a size of {size} bytes is not within 1 to {LONGEST}"
                ));
            }
        }
        for (option, value, most) in [
            ("--tx-depth", self.tx_depth, 1 << 15),
            ("--rx-depth", self.rx_depth, 1 << 15),
            ("--post-list", self.post_list, self.tx_depth),
            ("--cq-mod", self.cq_mod.unwrap_or(1), self.tx_depth),
            ("--qp", self.qps, 1024),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("{option} {value} is not within 1 to {most}"));
            }
        }
        if self.op.returns() && self.inline > 0 {
            let op = self.op;
            return Err(format!(
                "{op} sends nothing that could go inline: leave --inline out"
            ));
        }
        if self.figure == Figure::Lat && self.events && !self.tells() && !self.op.returns() {
            let (op, transport) = (self.op, self.transport);
            return Err(format!(
                "nobody is told of a {op} over {transport}, so an end cannot sleep until it comes: leave --events out, or give --op send"
            ));
        }
        let memory =
            2 * (u64::from(self.largest()) + 64) * self.places() as u64 * u64::from(self.qps);
        if memory > MOST {
            return Err(format!(
                "{} Queue Pairs with messages of {} bytes need {} MiB at each end, and {} are the most: give fewer --qp or a smaller --size",
                self.qps,
                self.largest(),
                memory >> 20,
                MOST >> 20
            ));
        }
        if self.iterations == Some(0) || self.duration.is_some_and(|time| time.is_zero()) {
            return Err("0 messages measure nothing: give --iterations or --duration".to_owned());
        }
        Ok(())
    }
}
