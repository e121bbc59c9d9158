//! Less that still fails.

use crate::knobs::Knobs;
use crate::run;

/// A run that can be repeated: a seed, knobs, and the actions that are left out.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The knobs; those of the seed, but for what was set by hand.
    pub knobs: Knobs,
    /// Knobs that were set by hand, as they are written.
    pub set: Vec<(String, String)>,
    /// Numbers of actions that are left out.
    pub without: Vec<usize>,
}

impl Plan {
    /// What a seed says.
    pub fn of(seed: u64) -> Plan {
        Plan {
            seed,
            knobs: Knobs::draw(seed),
            set: vec![],
            without: vec![],
        }
    }

    /// Sets a knob.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        self.knobs.set(name, value)?;
        self.set.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// The command that repeats it.
    pub fn command(&self) -> String {
        let mut text = format!(
            "cargo run --release --bin sim -- --first {} --count 1",
            self.seed
        );
        let set: Vec<_> = self
            .set
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !set.is_empty() {
            text += &format!(" --knobs {}", set.join(","));
        }
        if !self.without.is_empty() {
            text += &format!(" --without {}", ranges(&self.without));
        }
        text
    }
}

/// Numbers in order, written as ranges.
fn ranges(of: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = vec![];
    for &n in of {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == n => *end = n,
            _ => parts.push((n, n)),
        }
    }
    let part = |&(a, b): &(usize, usize)| {
        if a == b {
            a.to_string()
        } else {
            format!("{a}-{b}")
        }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Simpler knobs to try, the simplest first.
const SIMPLER: &[(&str, &[&str])] = &[
    ("nodes", &["2", "3", "4"]),
    ("loss", &["0"]),
    ("duplicate", &["0"]),
    ("reorder", &["0"]),
    ("corrupt", &["0"]),
    ("jitter", &["0"]),
    ("delay", &["0", "1000"]),
    ("late", &["0"]),
    ("cost", &["0"]),
    ("poison", &["0"]),
    ("datagrams", &["0"]),
    ("conns", &["1", "2", "3", "4"]),
    ("sges", &["1"]),
    ("depth", &["1", "2"]),
    ("self_frames", &["true"]),
    ("socket", &["4096"]),
];

/// Leaves out what is not needed for a violation; `tell` is given each step that still fails.
pub fn shrink(plan: &Plan, mut tell: impl FnMut(&Plan, &str)) -> Plan {
    let mut best = plan.clone();
    let mut fails = |candidate: &Plan| -> bool {
        let Some(violation) = run(candidate, false).violation else {
            return false;
        };
        tell(candidate, &violation);
        true
    };
    less_program(&mut best, &mut fails);
    for (name, values) in SIMPLER {
        for value in *values {
            let mut candidate = best.clone();
            if candidate.set(name, value).is_ok() && fails(&candidate) {
                best = candidate;
                break;
            }
        }
    }
    less_program(&mut best, &mut fails);
    best
}

/// Leaves out actions: large parts first, then ever smaller ones.
fn less_program(best: &mut Plan, fails: &mut impl FnMut(&Plan) -> bool) {
    let count = best.knobs.actions;
    let mut part = count.div_ceil(2);
    while part > 0 {
        for start in (0..count).step_by(part) {
            let mut candidate = best.clone();
            candidate.without.extend(start..(start + part).min(count));
            candidate.without.sort_unstable();
            candidate.without.dedup();
            if candidate.without.len() > best.without.len() && fails(&candidate) {
                *best = candidate;
            }
        }
        part /= 2;
    }
}
