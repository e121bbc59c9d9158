//! What came of the pings.

use std::io::{self, Write};
use std::time::Duration;

use rdma_qp::doctor::{Evidence, Finding, diagnose};
use rdma_qp::{Dump, Rtt};
use serde::Serialize;

use super::end::End;
use super::{Args, Transport};
use crate::doctor::print;
use crate::term::{Harmless, Style};

/// What came of the pings, as `--json` prints it.
#[derive(Serialize)]
pub struct Report {
    /// GID of the peer.
    pub peer: String,
    address: String,
    transport: Transport,
    size: u32,
    pub sent: u64,
    pub received: u64,
    /// Answers that came after they were given up.
    pub late: u64,
    rtt_us: Option<Percentiles>,
    /// How the Queue Pair failed.
    pub error: Option<String>,
    /// What is wrong with the two ends.
    findings: Vec<Finding>,
    #[serde(skip)]
    samples: Vec<Duration>,
}

/// Round trips in microseconds.
#[derive(Clone, Copy, Serialize)]
struct Percentiles {
    min: f64,
    avg: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// A time with three digits and its unit.
pub fn short(time: Duration) -> String {
    let us = micros(time);
    match us {
        us if us < 99.95 => format!("{us:.1} µs"),
        us if us < 999.5 => format!("{us:.0} µs"),
        us if us < 99_950.0 => format!("{:.2} ms", us / 1000.0),
        us => format!("{:.0} ms", us / 1000.0),
    }
}

impl Percentiles {
    fn of(samples: &[Duration]) -> Option<Percentiles> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        // The smallest sample that at least so many of a hundred do not exceed.
        let at = |percent: usize| micros(sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]);
        let sum: f64 = sorted.iter().copied().map(micros).sum();
        (!sorted.is_empty()).then(|| Percentiles {
            min: at(0),
            avg: sum / sorted.len() as f64,
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: at(100),
        })
    }
}

impl Report {
    /// Nothing yet.
    pub fn new(args: &Args, end: &End, address: &str) -> Report {
        Report {
            peer: end
                .peer()
                .map_or_else(|| address.to_owned(), |gid| gid.to_string()),
            address: address.to_owned(),
            transport: args.transport,
            size: args.size,
            sent: 0,
            received: 0,
            late: 0,
            rtt_us: None,
            error: None,
            findings: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// An answer came after that time.
    pub fn came(&mut self, rtt: Duration) {
        self.received += 1;
        self.samples.push(rtt);
    }

    /// The other end is gone: no need to look further.
    pub fn lost(&mut self, error: &impl std::fmt::Display) {
        self.rtt_us = Percentiles::of(&self.samples);
        self.error = Some(format!(
            "the other end is gone: its process ended, or its host does not answer ({error})"
        ));
    }

    /// Looks at both ends.
    pub fn diagnose(&mut self, here: Dump, there: Option<Dump>, failed: Option<String>) {
        self.rtt_us = Percentiles::of(&self.samples);
        self.error = failed;
        let mut evidence = Evidence::default();
        evidence.rtt = Rtt::of(&self.samples);
        evidence.ends = std::iter::once(here).chain(there).collect();
        self.findings = diagnose(&evidence);
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write(&self, out: &mut impl Write, style: Style) -> io::Result<()> {
        let lost = self.sent - self.received;
        let rate = 100.0 * lost as f64 / self.sent.max(1) as f64;
        let late = if self.late > 0 {
            format!(", {} came too late", self.late)
        } else {
            String::new()
        };
        writeln!(
            out,
            "{} sent, {} answered, {lost} lost ({rate:.1} %){late}",
            self.sent, self.received
        )?;
        if let Some(p) = self.rtt_us {
            let time = |us: f64| short(Duration::from_nanos((us * 1000.0) as u64));
            let pair = |name: &str, us: f64| format!("{name} {:<10}", time(us));
            let (min, avg, max) = (pair("min", p.min), pair("avg", p.avg), pair("max", p.max));
            writeln!(
                out,
                "{}",
                format!("round trip  {min}  {avg}  {max}").trim_end()
            )?;
            let (p50, p90, p99) = (pair("p50", p.p50), pair("p90", p.p90), pair("p99", p.p99));
            writeln!(
                out,
                "{}",
                style.bold(format!("            {p50}  {p90}  {p99}").trim_end())
            )?;
        }
        if let Some(error) = &self.error {
            print::paragraph(out, "", &Harmless(error).to_string(), |line| {
                style.red(line).to_string()
            })?;
        }
        if !self.findings.is_empty() {
            writeln!(out)?;
            print::text(out, style, &self.findings, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let samples: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        let p = Percentiles::of(&samples).unwrap();
        assert_eq!(
            (p.min, p.avg, p.p50, p.p90, p.p99, p.max),
            (1.0, 100.5, 100.0, 180.0, 198.0, 200.0)
        );
        let one = Percentiles::of(&samples[6..7]).unwrap();
        assert_eq!((one.min, one.p50, one.p99, one.max), (7.0, 7.0, 7.0, 7.0));
        assert!(Percentiles::of(&[]).is_none());
    }

    #[test]
    fn times_are_short() {
        let text = |ns| short(Duration::from_nanos(ns));
        assert_eq!(
            (text(23_460), text(123_400), text(1_234_000)),
            ("23.5 µs".into(), "123 µs".into(), "1.23 ms".into())
        );
        assert_eq!(text(250_000_000), "250 ms");
    }
}
