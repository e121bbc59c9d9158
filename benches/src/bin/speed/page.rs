//! The page of results: tables, plots, and what of the wanted is there.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use crate::ends::Result;
use crate::measures::{ALL, Axis, GOALS, Goal, Measure};
use crate::samples::{Samples, Spread};
use crate::svg::{Line, Plot, digits};

/// A number of bytes, as people write it.
fn bytes(count: f64) -> String {
    let units = [
        (1024.0 * 1024.0 * 1024.0, "GiB"),
        (1024.0 * 1024.0, "MiB"),
        (1024.0, "KiB"),
    ];
    match units.iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) => format!("{} {name}", count / unit),
        None => format!("{count} B"),
    }
}

/// A number, with a comma for thousands.
fn number(count: f64) -> String {
    match count {
        c if c >= 1000.0 => format!("{},{:03}", (c / 1000.0).floor(), c % 1000.0),
        c => format!("{c}"),
    }
}

impl Axis {
    fn write(self, place: u64) -> String {
        match self {
            Axis::Bytes => bytes(place as f64),
            Axis::Count(_) => number(place as f64),
            Axis::None => String::new(),
        }
    }
}

fn cell(spread: Option<Spread>) -> String {
    match spread {
        Some(s) if s.min == s.max => digits(s.median),
        Some(s) => format!(
            "{} [{} - {}]",
            digits(s.median),
            digits(s.min),
            digits(s.max)
        ),
        None => "-".to_owned(),
    }
}

/// How a plot of this measure is called.
fn file(measure: &Measure) -> String {
    format!("{}.svg", measure.name.replace(' ', "-").to_lowercase())
}

/// The ways of a measure, those first that are compared with others.
fn ways<'a>(samples: &'a Samples, measure: &Measure) -> Vec<&'a str> {
    let mut ways = samples.ways(measure.name);
    let rank = |way: &&str| {
        let ours = measure.ratios.iter().position(|(ours, _)| ours == way);
        let theirs = measure.ratios.iter().position(|(_, theirs)| theirs == way);
        match (ours, theirs) {
            (Some(at), _) => at,
            (None, Some(at)) => 100 + at,
            (None, None) => 50,
        }
    };
    ways.sort_by_key(rank);
    ways
}

fn table(samples: &Samples, measure: &Measure) -> String {
    let mut out = String::new();
    let ways = ways(samples, measure);
    let ratios: Vec<_> = measure
        .ratios
        .iter()
        .filter(|(a, b)| ways.contains(a) && ways.contains(b))
        .collect();
    if measure.axis == Axis::None {
        let unit = if measure.unit.is_empty() {
            String::new()
        } else {
            format!(" {}", measure.unit)
        };
        out += "| | |\n|---|---:|\n";
        for way in ways {
            for place in samples.places(measure.name) {
                if let Some(spread) = samples.spread(measure.name, way, place) {
                    let _ = writeln!(out, "| {way} | {}{unit} |", cell(Some(spread)));
                }
            }
        }
        for (a, b) in ratios {
            for place in samples.places(measure.name) {
                let _ = writeln!(
                    out,
                    "| {a} / {b} | {} |",
                    cell(samples.ratio(measure.name, a, b, place))
                );
            }
        }
        return out;
    }
    let head = match measure.axis {
        Axis::Count(what) => what,
        _ => "",
    };
    let _ = write!(out, "| {head} |");
    for way in &ways {
        let _ = write!(out, " {way}, {} |", measure.unit);
    }
    for (a, b) in &ratios {
        let _ = write!(out, " {a} / {b} |");
    }
    let _ = writeln!(out, "\n|---:|{}", "---:|".repeat(ways.len() + ratios.len()));
    for place in samples.places(measure.name) {
        let _ = write!(out, "| {} |", measure.axis.write(place));
        for way in &ways {
            let _ = write!(out, " {} |", cell(samples.spread(measure.name, way, place)));
        }
        for (a, b) in &ratios {
            let _ = write!(out, " {} |", cell(samples.ratio(measure.name, a, b, place)));
        }
        out.push('\n');
    }
    out
}

/// The plot of a measure, if there is something to draw a line through.
fn plot(samples: &Samples, measure: &Measure) -> Option<String> {
    let ways = ways(samples, measure);
    let lines: Vec<Line<'_>> = ways
        .iter()
        .map(|way| Line {
            name: way,
            points: (samples
                .places(measure.name)
                .into_iter()
                .filter(|place| *place > 0))
            .filter_map(|place| {
                let s = samples.spread(measure.name, way, place)?;
                Some((place as f64, s.median, s.min, s.max))
            })
            .collect(),
        })
        .collect();
    let longest = lines.iter().map(|line| line.points.len()).max()?;
    if longest < 2 {
        return None;
    }
    let x = match measure.axis {
        Axis::Bytes => "bytes of a message",
        Axis::Count(what) => what,
        Axis::None => return None,
    };
    let place = match measure.axis {
        Axis::Bytes => bytes,
        _ => number,
    };
    let (title, y) = (measure.title, measure.unit);
    Some(
        Plot {
            title,
            x,
            y,
            lines,
            place,
        }
        .draw(),
    )
}

/// The worst of the medians that a goal is about.
fn judge(samples: &Samples, goal: &Goal) -> Option<(f64, u64)> {
    let (a, b) = goal.ways;
    let places = match goal.places {
        [] => samples.places(goal.measure),
        some => some.to_vec(),
    };
    let found = places.into_iter().filter_map(|place| {
        let ratio = samples.ratio(goal.measure, a, b, place)?;
        Some((ratio.median, place))
    });
    match goal.at_least {
        true => found.min_by(|x, y| x.0.total_cmp(&y.0)),
        false => found.max_by(|x, y| x.0.total_cmp(&y.0)),
    }
}

fn goals(samples: &Samples) -> String {
    let mut out =
        "| wanted | ratio | found, where it is worst | |\n|---|---:|---:|---|\n".to_owned();
    for goal in GOALS {
        let sign = if goal.at_least { "≥" } else { "≤" };
        let (found, verdict) = match judge(samples, goal) {
            Some((ratio, place)) => {
                let met = if goal.at_least {
                    ratio >= goal.bound
                } else {
                    ratio <= goal.bound
                };
                let found = format!("{} at {}", digits(ratio), bytes(place as f64));
                (found, if met { "met" } else { "**missed**" })
            }
            None => ("-".to_owned(), "not measured"),
        };
        let _ = writeln!(
            out,
            "| {} | {sign} {} | {found} | {verdict} |",
            goal.text, goal.bound
        );
    }
    let all = samples.spread("many", "seconds until all are in RTS", 10_000);
    let (found, verdict) = match all {
        Some(s) => (format!("{} s", digits(s.median)), "met"),
        None => ("-".to_owned(), "not measured"),
    };
    let _ = writeln!(
        out,
        "| 10,000 Queue Pairs in RTS, and a message from each | | {found} | {verdict} |"
    );
    out
}

/// What there is to say of a part before its tables.
fn introduction(part: &str) -> &'static str {
    match part {
        "inside" => {
            "## In one process\n\nTwo RC Queue Pairs of one device. Every request is signaled and 16 are under way; every byte that arrived is compared with what was sent, after the clock has stopped. `memcpy` copies the same bytes between the same two regions. For the rates, 128 are under way; `batch 1` is a call for each post and each completion, `batch 32` lists of 32, and polls for up to 32.\n"
        }
        "udp" => {
            "## Between two processes, over UDP\n\nAs between two hosts, on the loopback device: the ICRC is computed and checked. Latency is half of a round trip of SENDs that both ends poll for. For the bandwidth 16 requests are under way; who is written to does nothing. `plain UDP` is a pair of sockets of the same processes with datagrams as large as ours: headers and ICRC of 16 bytes, and payload of 4 KiB at most; of a stream never more than 1 MiB is under way, so nothing is lost. libfabric has no test of streams in this distribution: its bandwidth is that of one message at a time.\n"
        }
        "shm" => {
            "## Between two processes, through shared memory\n\nWhat programs on one host get by default. UCX is its transport `posix`, Open MPI its `vader` without single-copy calls; both match tags.\n"
        }
        "many" => {
            "## Many Queue Pairs\n\nAll of one device and one process, in pairs connected with each other: created, told, INIT, RTR, RTS, by the calls that an application makes. A TCP connection is two sockets. Across many Queue Pairs 128 messages are under way, 8 of each at most.\n"
        }
        _ => "## How cost grows\n\n",
    }
}

/// Writes the page and its plots into a folder.
///
/// # Errors
/// The results cannot be read, or the folder cannot be written to.
pub fn write(results: &Path, folder: &Path, findings: Option<&Path>) -> Result<()> {
    let (samples, document) = Samples::read(results)?;
    let text = |name: &str| match &document[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut page = "# How fast the software device is\n\n".to_owned();
    page += "Made by `benches/speed/run.sh`; what is measured and how is in [benches/README.md](../README.md#speed).\n\n";
    let _ = writeln!(page, "| | |\n|---|---|");
    for name in [
        "machine", "system", "compiler", "version", "date", "rounds", "seconds", "command", "load",
    ] {
        let _ = writeln!(page, "| {name} | {} |", text(name));
    }
    page += "\nEvery figure is a median, with the smallest and the largest value beside it; a ratio is the median of the ratios within one pass, in which what is compared ran right after one another. GB are 10^9 bytes.\n\n";
    let _ = writeln!(page, "## What is wanted\n\n{}", goals(&samples));
    if let Some(findings) = findings {
        page += &std::fs::read_to_string(findings)?;
        page.push('\n');
    }
    let mut part = "";
    for measure in ALL
        .iter()
        .filter(|measure| !samples.ways(measure.name).is_empty())
    {
        if measure.part != part {
            part = measure.part;
            let _ = writeln!(page, "{}", introduction(part));
        }
        let _ = writeln!(
            page,
            "### {}\n\n{}",
            measure.title,
            table(&samples, measure)
        );
        if let Some(drawing) = plot(&samples, measure) {
            std::fs::write(folder.join(file(measure)), drawing)?;
            let _ = writeln!(page, "![{}]({})\n", measure.title, file(measure));
        }
    }
    if !samples.skips.is_empty() {
        page += "## What could not be measured\n\n";
        for (name, reason) in &samples.skips {
            let _ = writeln!(page, "- SKIP {name}: {reason}");
        }
    }
    std::fs::write(folder.join("RESULTS.md"), page.trim_end().to_owned() + "\n")?;
    Ok(())
}
