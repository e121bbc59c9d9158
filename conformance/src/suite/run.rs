//! Runs checks on arms, and counts.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use rdma_core_sys::rules::Kind;
use serde_json::{Value, json};

use super::{Arm, Check, Difference, Done, Shows, Trouble};
use crate::device;
use crate::{Platform, Tally};

/// How often a message that was lost is sent again, on transports that may lose it.
const AGAIN: u32 = 5;

/// How a check came out on an arm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// What is legal works.
    Passed,
    /// What is illegal was refused.
    Refused,
    /// The device does something else than it must: what.
    Failed(String),
    /// It could not run: why.
    Skipped(String),
    /// The device does something else, and the cause has a name: what it does, and the name.
    Expected(String, &'static str),
}

/// One check on one arm.
#[derive(Clone, Debug)]
pub struct Result {
    /// The arm.
    pub arm: String,
    /// The check.
    pub check: String,
    /// What it is counted with.
    pub group: String,
    /// Who else is expected to pass it.
    pub kind: Kind,
    /// How it came out.
    pub verdict: Verdict,
    /// Messages that were lost and sent again.
    pub lost: u32,
    /// How long it took.
    pub spent: Duration,
}

/// All results.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order in which they ran.
    pub results: Vec<Result>,
}

/// The name of a difference that needs no cause: the check is about what we promise beyond verbs.
const STRICTER: &str = "stricter-by-us";

/// Runs the checks on an arm.
pub fn run(arm: &Arm, checks: &[Check], differences: &'static [Difference], report: &mut Report) {
    let name = arm.sides[0].device.name();
    let on = Platform::here();
    let mut group = String::new();
    // Patterns of differences that name a check which ran, and whether one of those differed.
    let mut covered = BTreeMap::<(&str, &str), bool>::new();
    for check in checks {
        if check.group() != group {
            check.group().clone_into(&mut group);
            eprintln!("{}: {group}", arm.name);
        }
        let known: Vec<_> = (differences.iter())
            .filter_map(|d| Some((d, d.checks[d.covers(name, on, &check.name)?])))
            .collect();
        super::pair::set_patience(!known.is_empty());
        let (began, left) = (Instant::now(), device::left());
        let stops = known.iter().find(|(d, _)| d.shows == Shows::Hangs);
        let (mut outcome, lost) = match stops {
            Some(_) => (Err("not run: it would stop the machine".into()), 0),
            None => insist(arm, check),
        };
        if outcome.is_ok() && device::left() != left {
            outcome = Err("an object could not be destroyed".into());
        }
        if !matches!(outcome, Err(Trouble::Skip(_))) {
            for (d, pattern) in known.iter().filter(|(d, _)| d.shows == Shows::Always) {
                covered.entry((d.name, pattern)).or_default();
            }
        }
        let verdict = match outcome {
            Ok(Done::Passed) => Verdict::Passed,
            Ok(Done::Refused) => Verdict::Refused,
            Err(Trouble::Skip(why)) => Verdict::Skipped(why),
            Err(Trouble::Wrong(text) | Trouble::Lost(text)) => {
                match stops.or_else(|| known.iter().find(|(d, _)| text.contains(d.says))) {
                    Some((d, pattern)) => {
                        covered.insert((d.name, pattern), true);
                        Verdict::Expected(text, d.name)
                    }
                    None if check.kind == Kind::StricterByUs && !arm.strict => {
                        Verdict::Expected(text, STRICTER)
                    }
                    None => Verdict::Failed(text),
                }
            }
        };
        if let Verdict::Failed(text) = &verdict {
            eprintln!("{}: {}: {text}", arm.name, check.name);
        }
        report.results.push(Result {
            arm: arm.name.clone(),
            check: check.name.clone(),
            group: group.clone(),
            kind: check.kind,
            verdict,
            lost,
            spent: began.elapsed(),
        });
    }
    arm.forget();
    for ((name, pattern), differs) in covered {
        if !differs {
            let why = format!("no check named {pattern} differs any more: take it out");
            report.results.push(Result {
                arm: arm.name.clone(),
                check: format!("difference/{name}"),
                group: "difference".to_owned(),
                kind: Kind::VerbsRule,
                verdict: Verdict::Failed(why),
                lost: 0,
                spent: Duration::ZERO,
            });
        }
    }
}

/// Runs a check again where a message was lost, on an arm that may lose some.
fn insist(arm: &Arm, check: &Check) -> (super::Outcome, u32) {
    let mut lost = 0;
    loop {
        match check.run(arm) {
            Err(Trouble::Lost(_)) if arm.is_wire() && lost < AGAIN => {
                lost += 1;
                arm.forget();
            }
            outcome => {
                if matches!(outcome, Err(Trouble::Wrong(_) | Trouble::Lost(_))) {
                    arm.forget();
                }
                return (outcome, lost);
            }
        }
    }
}

/// Counts of one line of the table.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Counts {
    passed: u64,
    refused: u64,
    failed: u64,
    skipped: u64,
    expected: u64,
    lost: u64,
}

impl Report {
    /// Notes what became of an arm that could not run.
    pub fn arm(&mut self, arm: &str, verdict: Verdict) {
        self.results.push(Result {
            arm: arm.to_owned(),
            check: "all".to_owned(),
            group: "all".to_owned(),
            kind: Kind::VerbsRule,
            verdict,
            lost: 0,
            spent: Duration::ZERO,
        });
    }

    fn counts<'a>(results: impl Iterator<Item = &'a Result>) -> Counts {
        let mut counts = Counts::default();
        for result in results {
            counts.lost += u64::from(result.lost);
            *match result.verdict {
                Verdict::Passed => &mut counts.passed,
                Verdict::Refused => &mut counts.refused,
                Verdict::Failed(_) => &mut counts.failed,
                Verdict::Skipped(_) => &mut counts.skipped,
                Verdict::Expected(..) => &mut counts.expected,
            } += 1;
        }
        counts
    }

    /// The counts in the form of the other programs of this crate; what was refused has passed.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let counts = Report::counts(self.results.iter());
        Tally {
            passed: counts.passed + counts.refused,
            failed: counts.failed,
            skipped: counts.skipped,
            expected: counts.expected,
        }
    }

    /// The line that ends the output: `N passed, N failed, N refused, N skipped`.
    #[must_use]
    pub fn last_line(&self) -> String {
        let Counts {
            passed,
            failed,
            refused,
            skipped,
            ..
        } = Report::counts(self.results.iter());
        format!("{passed} passed, {failed} failed, {refused} refused, {skipped} skipped")
    }

    /// Everything, for machines.
    #[must_use]
    pub fn json(&self) -> Value {
        let counts = Report::counts(self.results.iter());
        let checks: Vec<_> = self.results.iter().map(Result::json).collect();
        json!({
            "passed": counts.passed,
            "failed": counts.failed,
            "refused": counts.refused,
            "skipped": counts.skipped,
            "expected_differences": counts.expected,
            "lost_and_sent_again": counts.lost,
            "checks": checks,
        })
    }
}

impl Result {
    fn json(&self) -> Value {
        let (verdict, text, difference) = match &self.verdict {
            Verdict::Passed => ("passed", None, None),
            Verdict::Refused => ("refused", None, None),
            Verdict::Failed(text) => ("failed", Some(text), None),
            Verdict::Skipped(text) => ("skipped", Some(text), None),
            Verdict::Expected(text, name) => ("expected difference", Some(text), Some(name)),
        };
        json!({
            "arm": self.arm,
            "check": self.check,
            "kind": match self.kind {
                Kind::VerbsRule => "verbs rule",
                Kind::StricterByUs => "stricter by us",
            },
            "verdict": verdict,
            "text": text,
            "difference": difference,
            "lost_and_sent_again": self.lost,
            "microseconds": self.spent.as_micros() as u64,
        })
    }
}

impl fmt::Display for Report {
    /// The table, what failed, what was skipped, and the differences; without the last line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<(&str, &str)> = Vec::new();
        for result in &self.results {
            let row = (&result.arm[..], &result.group[..]);
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
        writeln!(
            f,
            "{:<10}  {:<14} {:>7} {:>8} {:>7} {:>8} {:>9} {:>6}",
            "arm", "group", "passed", "refused", "failed", "skipped", "expected", "lost"
        )?;
        for (arm, group) in rows {
            let of_row = |r: &&Result| r.arm == arm && r.group == group;
            let c = Report::counts(self.results.iter().filter(of_row));
            writeln!(
                f,
                "{arm:<10}  {group:<14} {:>7} {:>8} {:>7} {:>8} {:>9} {:>6}",
                c.passed, c.refused, c.failed, c.skipped, c.expected, c.lost
            )?;
        }
        // What several checks of an arm say alike is said once.
        let mut said = BTreeMap::<_, Vec<&str>>::new();
        for result in &self.results {
            let (word, text) = match &result.verdict {
                Verdict::Failed(text) => ("FAILED", text),
                Verdict::Skipped(why) => ("SKIP", why),
                _ => continue,
            };
            let key = (word, &result.arm, text);
            said.entry(key).or_default().push(&result.check);
        }
        for ((word, arm, text), checks) in said {
            write!(f, "{word} {}/{}: {text}", arm.replace(' ', "-"), checks[0])?;
            match checks.len() - 1 {
                0 => writeln!(f)?,
                more => writeln!(f, " (and {more} more, the last {})", checks[more])?,
            }
        }
        let mut names = BTreeMap::<_, u64>::new();
        for result in &self.results {
            if let Verdict::Expected(_, name) = result.verdict {
                *names.entry(name).or_default() += 1;
            }
        }
        for (name, count) in names {
            match super::DIFFERENCES.iter().find(|d| d.name == name) {
                Some(d) => writeln!(
                    f,
                    "difference {name} ({count} times): {} ({})",
                    d.reason, d.source
                )?,
                None => writeln!(
                    f,
                    "{name} ({count} times): the device does not promise what only ours does"
                )?,
            }
        }
        Ok(())
    }
}
