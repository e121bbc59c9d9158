//! What a target has seen, over all its runs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Executions, and whatever a target counts, kept in the file that `QP_FUZZ_TALLY` names: a line each, `name number`. A
/// run adds to what the file has; it is written every few hundred executions, so a run that is ended loses little.
#[derive(Debug)]
pub struct Tally(Mutex<Option<Open>>);

#[derive(Debug)]
struct Open {
    file: Option<PathBuf>,
    counts: BTreeMap<String, u64>,
    unwritten: u64,
}

/// The counter of executions.
const RUNS: &str = "executions";

/// Executions from one writing to the next.
const EVERY: u64 = 250;

impl Tally {
    /// Nothing was counted yet.
    pub const fn new() -> Tally {
        Tally(Mutex::new(None))
    }

    /// One more execution, and what it counted. Counts of 0 show that there is such a counter.
    pub fn add<'a>(&self, counted: impl IntoIterator<Item = (&'a str, u64)>) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_with(Open::read);
        for (name, n) in counted.into_iter().chain([(RUNS, 1)]) {
            match open.counts.get_mut(name) {
                Some(count) => *count += n,
                None => {
                    open.counts.insert(name.to_owned(), n);
                }
            }
        }
        open.unwritten += 1;
        if open.unwritten == EVERY {
            open.write();
        }
    }
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::new()
    }
}

impl Open {
    fn read() -> Open {
        let file = std::env::var_os("QP_FUZZ_TALLY").map(PathBuf::from);
        let text = file
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok());
        let count = |line: &str| {
            let (name, n) = line.rsplit_once(' ')?;
            Some((name.to_owned(), n.parse().ok()?))
        };
        let counts = text
            .iter()
            .flat_map(|text| text.lines())
            .filter_map(count)
            .collect();
        Open {
            file,
            counts,
            unwritten: 0,
        }
    }

    fn write(&mut self) {
        self.unwritten = 0;
        let Some(file) = &self.file else { return };
        let mut text = String::new();
        for (name, n) in &self.counts {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name} {n}");
        }
        // Whole or not at all, for the run may be ended at any time. What cannot be written is missed by whoever reads it.
        let fresh = file.with_extension("new");
        if std::fs::write(&fresh, text).is_ok() {
            let _ = std::fs::rename(&fresh, file);
        }
    }
}
