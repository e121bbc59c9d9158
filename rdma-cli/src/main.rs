//! The command `qp`: devices, files moved through Queue Pairs, unmodified programs on the software device, why a connection
//! does not work, what a job needs, and the transition table.
#![forbid(unsafe_code)]

mod address;
mod bw;
mod copy;
mod device;
mod devices;
mod doctor;
mod failure;
mod lat;
mod manual;
mod perf;
mod ping;
mod plan;
mod run;
mod states;
mod term;
mod units;
mod watch;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;

use failure::Failure;

/// RDMA Queue Pairs from the command line.
#[derive(Debug, Parser)]
#[command(name = "qp", version, propagate_version = true, max_term_width = 80)]
#[command(after_help = "\
Examples:
  qp ping                     both ends here, on the software device: the first
                              try, which needs no adapter
  qp devices                  what can be used, and by which GID
  qp doctor -- ./program      why a verbs program does not work
  qp help doctor              the options and examples of a command

A Queue Pair (QP) is the two work queues, send and receive, of one end of an
RDMA connection. Commands use the software device, RoCE v2 in user space, unless
--device names an adapter.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List devices with their ports and GID tables
    Devices(devices::Args),
    /// Move a file or a directory between two processes by RDMA WRITE
    Copy(Box<copy::Args>),
    /// Run an unmodified verbs program on the software device
    Run(Box<run::Args>),
    /// Measure round trips over a Queue Pair
    Ping(Box<ping::Args>),
    /// Measure latency: percentiles, by size
    Lat(Box<lat::Args>),
    /// Measure bandwidth and messages a second, by size
    Bw(Box<bw::Args>),
    /// Say why a connection does not work: cause, evidence, cure
    Doctor(Box<doctor::Args>),
    /// Count the Queue Pairs and the memory that a job needs
    Plan(plan::Args),
    /// Say what changes on a device: events, states, counters
    Watch(watch::Args),
    /// Show the Queue Pair transitions, and what each one needs
    States(states::Args),
    /// Print the completion script of a shell
    Completions(manual::Completions),
    /// Print the manual page of a command, or write all of them
    Man(manual::ManualPages),
}

impl Command {
    /// Whether an error is owed to a machine, too. `lat` and `bw` tell theirs in their reports, the others have none.
    fn owes_json(&self) -> bool {
        match self {
            Command::Copy(args) => args.json,
            Command::Ping(args) => args.json,
            Command::Doctor(args) => args.json(),
            Command::Plan(args) => args.json,
            Command::Watch(args) => args.json,
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let owes_json = command.owes_json();
    let ended = match command {
        Command::Copy(args) => copy::run(*args),
        Command::Run(args) => run::run(*args),
        Command::Ping(args) => ping::run(&args),
        Command::Lat(args) => lat::run(&args),
        Command::Bw(args) => bw::run(&args),
        Command::Doctor(args) => doctor::run(*args),
        Command::Devices(args) => devices::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::States(args) => states::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::pages(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::OutputClosed | Failure::Found) {
                let style = term::Style::of(&io::stderr());
                let width = match io::stderr().is_terminal() {
                    true => Some(term::WIDTH),
                    // What programs read is one line.
                    false => None,
                };
                if owes_json {
                    let _ = failure::print_json(&failure);
                }
                // Where not even this can be written, the status still tells.
                let _ = writeln!(io::stderr(), "{}", complaint(&failure, style, width));
            }
            failure.status()
        }
    }
}

/// A failure as people read it, in lines of at most `width` columns, or all in one.
fn complaint(failure: &Failure, style: term::Style, width: Option<usize>) -> String {
    let text = failure.to_string();
    let parts: Vec<_> = (text.lines())
        .map(|part| term::Harmless(part.trim()).to_string())
        .collect();
    let text = match width {
        None => parts.join("; ").replace(":; ", ": "),
        Some(width) => {
            let folded = parts
                .iter()
                .flat_map(|part| term::folded(part, width - "qp: ".len()));
            folded.collect::<Vec<_>>().join("\n    ")
        }
    };
    format!("{} {text}", style.red("qp:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_fits_a_terminal_and_is_one_line_elsewhere() {
        let style = term::Style::of(&std::fs::File::open("/dev/null").unwrap());
        let failure = Failure::told("a word ".repeat(20).trim_end());
        let folded = complaint(&failure, style, Some(80));
        assert!(folded.lines().count() == 2 && folded.lines().all(|line| line.len() <= 80));
        assert!(folded.lines().nth(1).unwrap().starts_with("    a word"));
        assert_eq!(complaint(&failure, style, None).lines().count(), 1);
        // What a library says in several lines.
        let failure = Failure::told("no GID:\n  index 0\n  index 1");
        assert_eq!(
            complaint(&failure, style, Some(80)),
            "qp: no GID:\n    index 0\n    index 1"
        );
        assert_eq!(
            complaint(&failure, style, None),
            "qp: no GID: index 0; index 1"
        );
    }
}
