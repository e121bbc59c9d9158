//! The command `qp`: devices, files moved through Queue Pairs, unmodified programs on the software device, why a connection
//! does not work, what a job needs, and the transition table.
#![forbid(unsafe_code)]

mod copy;
mod device;
mod devices;
mod doctor;
mod failure;
mod ping;
mod plan;
mod run;
mod states;
mod term;
mod watch;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use failure::Failure;

/// RDMA Queue Pairs from the command line.
#[derive(Debug, Parser)]
#[command(name = "qp", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List devices, their ports and GID tables, and which GID would be used
    Devices(devices::Args),
    /// Move a file between two processes by RDMA WRITE
    Copy(Box<copy::Args>),
    /// Run an unmodified verbs program on the software device
    Run(Box<run::Args>),
    /// Measure round trips over a Queue Pair
    Ping(Box<ping::Args>),
    /// Say why a connection does not work: cause, evidence, cure
    Doctor(Box<doctor::Args>),
    /// Count the Queue Pairs and the memory that a job needs, by transport
    Plan(plan::Args),
    /// Say what changes on a device: events, states, counters
    Watch(watch::Args),
    /// Show which Queue Pair transitions exist, and which attributes each one needs
    States(states::Args),
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let ended = match command {
        Command::Copy(args) => copy::run(*args),
        Command::Run(args) => run::run(*args),
        Command::Ping(args) => ping::run(&args),
        Command::Doctor(args) => doctor::run(*args),
        Command::Devices(args) => devices::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::States(args) => states::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::OutputClosed | Failure::Found) {
                let style = term::Style::of(&io::stderr());
                // Where not even this can be written, the status still tells.
                let _ = writeln!(
                    io::stderr(),
                    "{} {}",
                    style.red("qp:"),
                    term::Harmless(&failure)
                );
            }
            failure.status()
        }
    }
}
