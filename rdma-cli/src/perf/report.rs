//! What was measured, for people and for machines.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use rdma_qp::doctor::Finding;
use rdma_qp::{Rtt, Timing};
use serde::Serialize;

use super::args::{Common, World};
use super::control::{Peer, Verdict};
use super::meeting::{self, Wish};
use super::plan::{Figure, Plan};
use super::plot::{self, Plot};
use super::progress::Progress;
use super::runner::{Measured, Runner};
use super::{Op, Transport};
use crate::device::{self, DeviceChoice, Opened};
use crate::doctor::print;
use crate::failure::Failure;
use crate::term::{Harmless, Style};

/// What one of the two commands makes of what was measured.
pub trait Row: Serialize {
    /// The head of its table.
    fn head(plan: &Plan) -> String;
    /// One size.
    fn of(measured: &Measured, plan: &Plan) -> Self;
    /// A line of the table.
    fn line(&self, plan: &Plan) -> String;
    /// Whether anything came at all.
    fn is_something(&self) -> bool;
    /// The axes and lines of the plot.
    fn plot(rows: &[Self], plan: &Plan) -> Plot
    where
        Self: Sized;
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a, R> {
    /// Goes up when something changes its meaning or is gone.
    version: u32,
    command: Figure,
    transport: Transport,
    op: Op,
    /// For latency: whether times are half of a round trip, or all of it.
    trip: Option<&'static str>,
    queue_pairs: u32,
    bidirectional: bool,
    checked: bool,
    peer: Option<String>,
    device: Option<String>,
    gid: Option<String>,
    path_mtu: Option<u32>,
    results: &'a [R],
    /// Whether the user ended it: sizes are missing then.
    interrupted: bool,
    error: Option<&'a str>,
    findings: &'a [Finding],
}

const VERSION: u32 = 1;

impl Plan {
    /// What is measured, in a few words.
    pub fn title(&self) -> String {
        let mut title = format!("{} over {}", self.op, self.transport);
        if self.qps > 1 {
            title.push_str(&format!(", {} Queue Pairs", self.qps));
        }
        if self.bidirectional {
            title.push_str(", both ways");
        }
        title.push_str(match (self.figure, self.trip()) {
            (Figure::Bw, _) => ": bandwidth",
            (Figure::Lat, "half") => ": latency in µs, half of the round trip",
            (Figure::Lat, _) => ": latency in µs, the whole round trip",
        });
        title
    }

    /// Which part of a round trip a latency is.
    pub fn trip(&self) -> &'static str {
        if self.op.returns() { "full" } else { "half" }
    }
}

/// Runs one of the two commands; `plan` makes its plan for a device.
///
/// # Errors
/// Nothing was measured; the ends did not meet; the device cannot be used.
pub fn run<R: Row>(
    common: &Common,
    world: &World,
    plan: impl FnOnce(&Opened, &DeviceChoice) -> Result<Plan, Failure>,
) -> Result<(), Failure> {
    if let Some(address) = &common.listen {
        let choice = world.device.choice(&world.faults)?;
        return meeting::serve(address, &choice, common.once);
    }
    let ended = asking::<R>(common, world, plan);
    if let (Err(failure), true) = (&ended, common.json)
        && !matches!(
            failure,
            Failure::OutputClosed | Failure::Found | Failure::InterruptedEarly
        )
    {
        // People read it on standard error, whether or not this can be written.
        let error = serde_json::json!({ "version": VERSION, "error": failure.to_string() });
        let _ = writeln!(io::stdout(), "{error}");
    }
    ended
}

/// Opens the device, and asks.
fn asking<R: Row>(
    common: &Common,
    world: &World,
    plan: impl FnOnce(&Opened, &DeviceChoice) -> Result<Plan, Failure>,
) -> Result<(), Failure> {
    let timing = world.timing.check()?;
    let choice = world.device.choice(&world.faults)?;
    common.check()?;
    if let Some(path) = &common.plot {
        // Not after an hour of measuring.
        writable(path)?;
    }
    let opened = device::open(&choice)?;
    let plan = plan(&opened, &choice)?;
    let mut runner = Runner::new(&opened, plan, &choice, true)?;
    runner.progress = Progress::shown()?;
    meeting::with_peer(common.address.as_deref(), &choice, |address| {
        measure::<R>(common, address, &opened, runner, timing)
    })
}

fn writable(path: &Path) -> Result<(), Failure> {
    let there = path.exists();
    let opened = File::options().create(true).append(true).open(path);
    opened.map_err(|error| unwritable(path, &error))?;
    if !there {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let path = Harmless(path.display());
    Failure::told(format!("cannot write the plot {path}: {error}"))
}

fn measure<R: Row>(
    common: &Common,
    address: &str,
    opened: &Opened,
    mut runner: Runner,
    timing: Timing,
) -> Result<(), Failure> {
    let plan = runner.plan.clone();
    let wish = Wish::Measure(plan.clone());
    let mut peer = meeting::greet(address, wish, timing)?;
    runner.meet(&mut peer, timing)?;
    let mut peer = Peer::that_answers(peer);
    let style = Style::of(&io::stdout());
    let mut out = io::stdout().lock();
    let by = format!(
        "{}/{}, GID {}",
        opened.device.name(),
        opened.gid.port,
        opened.gid
    );
    let talks = !common.json;
    if talks {
        writeln!(out, "{}", style.bold(plan.title()))?;
        let to = runner.end.peer().map(|gid| gid.to_string());
        for line in [by.clone(), format!("to {}", to.unwrap_or_default())] {
            writeln!(out, "{}", style.dim(format!("  {line}")))?;
        }
        if let Some(faults) = &opened.faults {
            for line in device::shown(faults) {
                writeln!(out, "{}", style.dim(line))?;
            }
        }
        writeln!(out, "{}", style.cyan(R::head(&plan)))?;
        out.flush()?;
    }
    let mut rows: Vec<R> = Vec::new();
    let mut rtt: Option<Rtt> = None;
    let ended = runner.ask(&mut peer, |measured| {
        // Of messages of many packets it is no measure of one.
        if rtt.is_none() && measured.size <= 4096 {
            rtt = measured.times.as_ref().and_then(|times| times.rtt());
        }
        let row = R::of(&measured, &plan);
        if talks {
            writeln!(out, "{}", row.line(&plan))?;
            out.flush()?;
        }
        rows.push(row);
        Ok(())
    });
    let mut verdict = runner.conclude(&mut peer, ended, rtt);
    if let (Some(path), false) = (&common.plot, rows.is_empty()) {
        let picture = plot::svg(R::plot(&rows, &plan));
        if let Err(error) = std::fs::write(path, picture) {
            (verdict.error).get_or_insert_with(|| unwritable(path, &error).to_string());
        }
    }
    if talks {
        if verdict.interrupted && !rows.is_empty() {
            writeln!(
                out,
                "interrupted: the size that was under way does not count"
            )?;
        }
        self::verdict(&mut out, style, &verdict)?;
    } else {
        let document = Document {
            version: VERSION,
            command: plan.figure,
            transport: plan.transport,
            op: plan.op,
            trip: (plan.figure == Figure::Lat).then(|| plan.trip()),
            queue_pairs: plan.qps,
            bidirectional: plan.bidirectional,
            checked: plan.check,
            peer: runner.end.peer().map(|gid| gid.to_string()),
            device: Some(opened.device.name().to_owned()),
            gid: Some(opened.gid.gid.to_string()),
            path_mtu: runner.end.path_mtu(),
            results: &rows,
            interrupted: verdict.interrupted,
            error: verdict.error.as_deref(),
            findings: &verdict.findings,
        };
        serde_json::to_writer_pretty(&mut out, &document).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    out.flush()?;
    if verdict.interrupted && rows.is_empty() {
        return Err(Failure::InterruptedEarly);
    }
    match verdict.error.is_none() && rows.iter().any(Row::is_something) {
        true => Ok(()),
        false => Err(Failure::Found),
    }
}

/// Prints what failed, and what is wrong with the two ends; nothing where all is well.
///
/// # Errors
/// The output cannot be written.
pub fn verdict(out: &mut impl Write, style: Style, verdict: &Verdict) -> io::Result<()> {
    if let Some(error) = &verdict.error {
        print::paragraph(out, "", error, |line| style.red(line).to_string())?;
    }
    if !verdict.findings.is_empty() {
        writeln!(out)?;
        print::text(out, style, &verdict.findings, None)?;
    }
    Ok(())
}

/// A number of four or five digits.
pub fn digits(number: f64) -> String {
    match number {
        number if number < 9.9995 => format!("{number:.3}"),
        number if number < 99.995 => format!("{number:.2}"),
        number if number < 999.95 => format!("{number:.1}"),
        number => format!("{number:.0}"),
    }
}

/// A large number of four digits, with k, M or G.
pub fn short(number: f64) -> String {
    match number {
        number if number < 999.95 => format!("{number:.1}"),
        number if number < 999_950.0 => format!("{} k", three(number / 1e3)),
        number if number < 999_950_000.0 => format!("{} M", three(number / 1e6)),
        number => format!("{} G", three(number / 1e9)),
    }
}

fn three(number: f64) -> String {
    let text = digits(number);
    text[..text.len().min(5)].trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            (
                digits(1.23456),
                digits(12.3456),
                digits(123.456),
                digits(12345.6)
            ),
            (
                "1.235".into(),
                "12.35".into(),
                "123.5".into(),
                "12346".into()
            )
        );
        assert_eq!(
            (
                short(12.34),
                short(1234.0),
                short(234_567.0),
                short(12_345_678.0)
            ),
            (
                "12.3".into(),
                "1.234 k".into(),
                "234.6 k".into(),
                "12.35 M".into()
            )
        );
    }
}
