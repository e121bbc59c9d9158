//! Faults on purpose: loss, duplication, reordering, corruption, delay, partition.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use super::{AmountError, Frame, Probability, display_duration, parse_duration};
use crate::core::rng::Rng;
use crate::core::time::Instant;

/// Which faults a link has, each drawn for each frame by itself.
///
/// Written as a list: `loss=1%,duplicate=1%,reorder=1%,corrupt=0.1%,delay=200us,jitter=50us,seed=7`;
/// what is not named is absent.
///
/// ```
/// use rdma_soft::link::Faults;
///
/// let faults: Faults = "loss=1%,delay=200us".parse().unwrap();
/// assert_eq!(faults.loss.get(), 0.01);
/// assert_eq!(faults.to_string(), "loss=1%,delay=200us");
/// assert!(Faults::default().is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame is lost.
    pub loss: Probability,
    /// The frame arrives twice.
    pub duplicate: Probability,
    /// The frame is held back until some later ones have passed it.
    pub reorder: Probability,
    /// One bit of the frame is flipped.
    pub corrupt: Probability,
    /// Every frame takes this long.
    pub delay: Duration,
    /// Every frame takes up to this much longer, but stays in order.
    pub jitter: Duration,
    /// Seed of the draws; `None` lets the device choose one.
    pub seed: Option<u64>,
}

impl Faults {
    /// Nothing would happen to any frame.
    pub fn is_none(&self) -> bool {
        let no_seed = Faults {
            seed: None,
            ..self.clone()
        };
        no_seed == Faults::default()
    }
}

/// Why a text is not a list of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultsError {
    /// An entry that is not `name=value` with a known name.
    #[error(
        "{0:?} is no fault: write loss, duplicate, reorder, corrupt, delay, jitter or seed, then = and the amount"
    )]
    UnknownFault(String),
    /// The amount of an entry is wrong.
    #[error("{name}: {source}")]
    Amount {
        /// The entry's name.
        name: &'static str,
        /// What is wrong with its amount.
        source: AmountError,
    },
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Faults, FaultsError> {
        let mut faults = Faults::default();
        for entry in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let unknown = || FaultsError::UnknownFault(entry.to_owned());
            let (name, amount) = entry.split_once('=').ok_or_else(unknown)?;
            let (name, outcome) = match name {
                "loss" => ("loss", amount.parse().map(|p| faults.loss = p)),
                "duplicate" => ("duplicate", amount.parse().map(|p| faults.duplicate = p)),
                "reorder" => ("reorder", amount.parse().map(|p| faults.reorder = p)),
                "corrupt" => ("corrupt", amount.parse().map(|p| faults.corrupt = p)),
                "delay" => ("delay", parse_duration(amount).map(|d| faults.delay = d)),
                "jitter" => ("jitter", parse_duration(amount).map(|d| faults.jitter = d)),
                "seed" => ("seed", parse_seed(amount).map(|s| faults.seed = Some(s))),
                _ => return Err(unknown()),
            };
            outcome.map_err(|source| FaultsError::Amount { name, source })?;
        }
        Ok(faults)
    }
}

fn parse_seed(text: &str) -> Result<u64, AmountError> {
    text.parse().map_err(|_| AmountError {
        text: text.to_owned(),
        accepted: "a whole number from 0 to 18446744073709551615",
    })
}

impl fmt::Display for Faults {
    /// The list that parses to the same faults; empty if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        let mut entry = |name: &str, amount: &dyn fmt::Display| {
            write!(f, "{comma}{name}={amount}")?;
            comma = ",";
            Ok(())
        };
        for (name, p) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ] {
            if p != Probability::NEVER {
                entry(name, &p)?;
            }
        }
        for (name, time) in [("delay", self.delay), ("jitter", self.jitter)] {
            if !time.is_zero() {
                entry(name, &display_duration(time))?;
            }
        }
        if let Some(seed) = self.seed {
            entry("seed", &seed)?;
        }
        Ok(())
    }
}

/// What a [`FaultLayer`] did so far, in frames.
///
/// At any time `offered - dropped + duplicated = delivered + held`, where *held* is
/// [`FaultLayer::held`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Handed to the layer.
    pub offered: u64,
    /// Lost, or cut off by a partition.
    pub dropped: u64,
    /// Extra copies made.
    pub duplicated: u64,
    /// Delivered after a frame that was behind them.
    pub reordered: u64,
    /// Copies with a flipped bit.
    pub corrupted: u64,
    /// Copies that had to wait for their time.
    pub delayed: u64,
    /// Given out again.
    pub delivered: u64,
}

impl FaultCounters {
    /// All counters, by name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("offered", self.offered),
            ("dropped", self.dropped),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("corrupted", self.corrupted),
            ("delayed", self.delayed),
            ("delivered", self.delivered),
        ]
        .into_iter()
    }
}

/// A faulty stretch of a link, between whoever makes frames and whoever carries them.
///
/// [`offer`](FaultLayer::offer) a frame, then [`poll`](FaultLayer::poll) until there is none;
/// call `poll` again when [`next_timeout`](FaultLayer::next_timeout) has come. What happens to a
/// frame depends on the seed and on the frames offered before it alone.
///
/// ```
/// use rdma_soft::core::time::Instant;
/// use rdma_soft::link::{FaultLayer, Frame, IpFields};
///
/// let mut layer = FaultLayer::new("duplicate=100%".parse().unwrap(), 7);
/// let src = "127.0.0.2:4791".parse().unwrap();
/// let dst = "127.0.0.3:4791".parse().unwrap();
/// let (ip, bytes) = (IpFields::default(), vec![0; 16]);
/// layer.offer(Instant::ZERO, Frame { src, dst, ip, bytes });
/// let mut copies = 0;
/// while layer.poll(Instant::ZERO).is_some() {
///     copies += 1;
/// }
/// assert_eq!(copies, 2);
/// ```
#[derive(Debug)]
pub struct FaultLayer {
    faults: Faults,
    rng: Rng,
    cut_off: Vec<IpAddr>,
    /// In order of `seq` and of `due`.
    queue: VecDeque<Queued>,
    /// Held back, to be passed by later ones.
    held_back: Vec<HeldBack>,
    next_seq: u64,
    last_due: Instant,
    counters: FaultCounters,
}

#[derive(Debug)]
struct Queued {
    seq: u64,
    due: Instant,
    frame: Frame,
}

#[derive(Debug)]
struct HeldBack {
    seq: u64,
    /// Later frames that have passed, and how many shall.
    passed_by: u64,
    wanted: u64,
    /// It goes at this time at the latest.
    until: Instant,
    frame: Frame,
}

impl FaultLayer {
    /// Most frames that pass one that is held back.
    pub const REORDER_SPAN: u64 = 4;

    /// How long a frame is held back if no later one comes to pass it.
    pub const REORDER_PATIENCE: Duration = Duration::from_millis(1);

    /// A layer with these faults. `seed` is that of the draws; [`Faults::seed`] goes before it.
    pub fn new(faults: Faults, seed: u64) -> FaultLayer {
        FaultLayer {
            rng: Rng::new(faults.seed.unwrap_or(seed)),
            faults,
            cut_off: Vec::new(),
            queue: VecDeque::new(),
            held_back: Vec::new(),
            next_seq: 0,
            last_due: Instant::ZERO,
            counters: FaultCounters::default(),
        }
    }

    /// Changes the faults of frames that are offered from now on; the draws go on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Cuts off `addr` (every frame from or to it is dropped), or connects it again.
    pub fn partition(&mut self, addr: IpAddr, cut_off: bool) {
        self.cut_off.retain(|&a| a != addr);
        if cut_off {
            self.cut_off.push(addr);
        }
    }

    /// Takes `frame` at the time `now`.
    pub fn offer(&mut self, now: Instant, frame: Frame) {
        self.counters.offered += 1;
        let cut_off = (self.cut_off.iter()).any(|&a| a == frame.src.ip() || a == frame.dst.ip());
        if cut_off || self.rng.chance(self.faults.loss.get()) {
            self.counters.dropped += 1;
            return;
        }
        if self.rng.chance(self.faults.duplicate.get()) {
            self.counters.duplicated += 1;
            self.place(now, frame.clone());
        }
        self.place(now, frame);
    }

    /// Puts one copy of a frame on its way.
    fn place(&mut self, now: Instant, mut frame: Frame) {
        if self.rng.chance(self.faults.corrupt.get()) && flip_a_bit(&mut self.rng, &mut frame.bytes)
        {
            self.counters.corrupted += 1;
        }
        let jitter = u64::try_from(self.faults.jitter.as_nanos()).unwrap_or(u64::MAX);
        let jitter = Duration::from_nanos(self.rng.below(jitter.saturating_add(1)));
        let due = (now + self.faults.delay + jitter).max(self.last_due);
        self.last_due = due;
        if due > now {
            self.counters.delayed += 1;
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        if self.rng.chance(self.faults.reorder.get()) {
            self.held_back.push(HeldBack {
                seq,
                passed_by: 0,
                wanted: 1 + self.rng.below(FaultLayer::REORDER_SPAN),
                until: due + FaultLayer::REORDER_PATIENCE,
                frame,
            });
        } else {
            self.queue.push_back(Queued { seq, due, frame });
        }
    }

    /// The next frame that is to be delivered at the time `now`, if there is one.
    ///
    /// Frames come in the order of their times, however late this is called.
    pub fn poll(&mut self, now: Instant) -> Option<Frame> {
        let time = self.next_timeout().filter(|&time| time <= now)?;
        let (seq, frame) = match self.held_back.iter().position(|held| held.until == time) {
            Some(at) => {
                let held = self.held_back.remove(at);
                if held.passed_by > 0 {
                    self.counters.reordered += 1;
                }
                (held.seq, held.frame)
            }
            None => {
                let queued = self.queue.pop_front()?;
                (queued.seq, queued.frame)
            }
        };
        for held in self.held_back.iter_mut().filter(|held| held.seq < seq) {
            held.passed_by += 1;
            if held.passed_by == held.wanted {
                held.until = time;
            }
        }
        self.counters.delivered += 1;
        Some(frame)
    }

    /// When [`poll`](FaultLayer::poll) will have a frame; `None` if it holds none.
    pub fn next_timeout(&self) -> Option<Instant> {
        let queued = self.queue.front().map(|queued| queued.due);
        let held = self.held_back.iter().map(|held| held.until);
        held.chain(queued).min()
    }

    /// Frames that are on their way.
    pub fn held(&self) -> u64 {
        (self.queue.len() + self.held_back.len()) as u64
    }

    /// What the layer did so far.
    pub fn counters(&self) -> FaultCounters {
        self.counters
    }
}

/// Flips one bit of `bytes` that the ICRC covers; false if there is none.
fn flip_a_bit(rng: &mut Rng, bytes: &mut [u8]) -> bool {
    /// The congestion bits of the BTH, which may change on the way.
    const UNCOVERED: usize = 4;
    let covered = bytes.len() - usize::from(bytes.len() > UNCOVERED);
    let bit = rng.below(8 * covered as u64) as usize;
    let mut at = bit / 8;
    if at >= UNCOVERED {
        at += 1;
    }
    match bytes.get_mut(at) {
        Some(byte) => *byte ^= 1 << (bit % 8),
        None => return false,
    }
    true
}
