//! What came of the pings.

use std::io::{self, Write};
use std::time::Duration;

use rdma_qp::Rtt;
use rdma_qp::doctor::Finding;
use serde::Serialize;

use super::Args;
use super::end::End;
use crate::doctor::print;
use crate::perf::Transport;
use crate::perf::control::Verdict;
use crate::perf::times::{Percentiles, Times, short};
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
    times: Times,
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
            times: Times::default(),
        }
    }

    /// An answer came after that time.
    pub fn came(&mut self, rtt: Duration) {
        self.received += 1;
        self.times.add(rtt);
    }

    /// No ping comes any more; `conclude` looks at both ends, which it may judge by the round trips.
    pub fn end(&mut self, conclude: impl FnOnce(Option<Rtt>) -> Verdict) {
        self.rtt_us = self.times.percentiles(1);
        let Verdict {
            error, findings, ..
        } = conclude(self.times.rtt());
        (self.error, self.findings) = (error, findings);
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
            let pair = |name: &str, us: f64| format!("{name} {:<10}", short(us));
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
