//! The command `sim`: runs seeds, tells which one broke a promise, repeats it, and makes it smaller.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use rdma_sim::{Histogram, Plan, messages, run, shrink, supervise};

/// Random verbs programs on clusters of the software device, on a virtual clock, checked against a model.
///
/// Prints each seed with its knobs before it runs. The last line is `trace HASH`: the same seeds give the
/// same one.
#[derive(Debug, Parser)]
#[command(name = "sim", version)]
struct Cli {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// How many seeds, one after another.
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Tell everything that happens.
    #[arg(long)]
    verbose: bool,
    /// Print nothing of seeds that keep every promise.
    #[arg(long)]
    quiet: bool,
    /// Leave out of a failure what it does not need.
    #[arg(long)]
    shrink: bool,
    /// Print how requests ended: operation, transport, fault and status.
    #[arg(long)]
    histogram: bool,
    /// Set knobs: `nodes=2,loss=0`.
    #[arg(long, value_delimiter = ',', value_name = "NAME=VALUE")]
    knobs: Vec<String>,
    /// Leave out actions of the program: `3,17-20`.
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    without: Vec<String>,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Play rounds of supervised connections, whose processes die and come back, rather than random programs.
    #[arg(long, conflicts_with_all = ["knobs", "without", "shrink", "histogram"])]
    supervise: bool,
    /// Play rounds of reliable datagrams, between 2 to 16 hosts, rather than random programs.
    #[arg(long, conflicts_with_all = ["knobs", "without", "shrink", "histogram", "supervise"])]
    datagrams: bool,
}

fn main() -> ExitCode {
    match go(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            // Where not even this can be written, the status still tells.
            let _ = writeln!(io::stderr(), "sim: {error}");
            ExitCode::from(2)
        }
    }
}

/// The plan of a seed, with what the command line sets.
fn plan(cli: &Cli, seed: u64) -> Result<Plan, String> {
    let mut plan = Plan::of(seed);
    for entry in &cli.knobs {
        let (name, value) = entry
            .split_once('=')
            .ok_or_else(|| format!("{entry:?}: write NAME=VALUE"))?;
        plan.set(name, value)?;
    }
    for entry in &cli.without {
        let (from, to) = entry.split_once('-').unwrap_or((entry, entry));
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| format!("{entry:?}: not the number of an action"))
        };
        plan.without.extend(number(from)?..=number(to)?);
    }
    Ok(plan)
}

/// Plays rounds of another world, which `option` asks for: each gives its trace, its tally, and what was wrong.
fn rounds<T: Default + Display>(
    cli: &Cli,
    option: &str,
    play: impl Fn(u64, bool) -> (u64, T, Option<String>),
    add: impl Fn(&mut T, &T),
) -> io::Result<ExitCode> {
    let mut out = io::BufWriter::new(io::stdout());
    let mut tally = T::default();
    let (mut trace, mut failed) = (0u64, 0u64);
    for seed in cli.first..cli.first.saturating_add(cli.count) {
        let (its_trace, its_tally, violation) = play(seed, cli.verbose);
        trace = trace.rotate_left(1) ^ its_trace;
        add(&mut tally, &its_tally);
        if !cli.quiet {
            writeln!(out, "seed {seed}: {its_tally}")?;
        }
        if let Some(violation) = violation {
            failed += 1;
            writeln!(
                out,
                "VIOLATION seed {seed} {violation}\nagain: sim {option} --first {seed} --verbose"
            )?;
            if !cli.keep_going {
                break;
            }
        }
    }
    writeln!(out, "{} rounds: {tally}", cli.count)?;
    if failed > 0 {
        writeln!(out, "{failed} seeds broke a promise")?;
    }
    writeln!(out, "trace {trace:016x}")?;
    out.flush()?;
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn go(cli: &Cli) -> Result<ExitCode, String> {
    let rounds = if cli.supervise {
        let play = |seed, verbose| {
            let round = supervise::round(seed, verbose);
            (round.trace, round.tally, round.violation)
        };
        Some(rounds(cli, "--supervise", play, supervise::Tally::add))
    } else if cli.datagrams {
        let play = |seed, verbose| {
            let round = messages::round(seed, verbose);
            (round.trace, round.tally, round.violation)
        };
        Some(rounds(cli, "--datagrams", play, messages::Tally::add))
    } else {
        None
    };
    if let Some(code) = rounds {
        return code.map_err(|error| error.to_string());
    }
    let mut out = io::BufWriter::new(io::stdout());
    let io = |e: io::Error| e.to_string();
    let mut histogram = Histogram::default();
    let (mut trace, mut failed) = (0u64, 0u64);
    for seed in cli.first..cli.first.saturating_add(cli.count) {
        let plan = plan(cli, seed)?;
        if !cli.quiet {
            writeln!(out, "seed {seed}: {}", plan.knobs).map_err(io)?;
            // Before it runs: whatever happens then, the seed is known.
            out.flush().map_err(io)?;
        }
        let outcome = run(&plan, cli.verbose);
        trace = trace.rotate_left(1) ^ outcome.trace;
        histogram.add(&outcome.tally);
        let Some(violation) = outcome.violation else {
            continue;
        };
        failed += 1;
        if cli.quiet {
            writeln!(out, "seed {seed}: {}", plan.knobs).map_err(io)?;
        }
        writeln!(
            out,
            "VIOLATION seed {seed} {violation}\nagain: {} --verbose",
            plan.command()
        )
        .map_err(io)?;
        if cli.shrink {
            let least = shrink(&plan, |_, _| {});
            let again = run(&least, false).violation.unwrap_or_default();
            let left = outcome.actions - least.without.len();
            writeln!(
                out,
                "least, with {left} of {} actions: {again}\nagain: {} --verbose",
                outcome.actions,
                least.command()
            )
            .map_err(io)?;
        }
        out.flush().map_err(io)?;
        if !cli.keep_going {
            break;
        }
    }
    if cli.histogram {
        writeln!(out, "{histogram}").map_err(io)?;
    }
    if failed > 0 {
        writeln!(out, "{failed} seeds broke a promise").map_err(io)?;
    }
    writeln!(out, "trace {trace:016x}").map_err(io)?;
    out.flush().map_err(io)?;
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
