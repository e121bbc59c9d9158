//! A soak: four processes, each connected to each other, working all the time, of which one is killed again and again.
//!
//! The program starts four workers, each with a software device of its own. A worker has two RC Queue Pairs towards each
//! other worker, one with a receive queue of its own and one with an SRQ, and posts SENDs, WRITEs, READs and atomics at
//! random. At random moments the program kills one with SIGKILL and starts it again. Worker 0 is never killed: it sees every
//! death, and what it leaks would show.
//!
//! Each worker keeps books of its own, from what it posted and what was reported to it, and compares them with those of the
//! library: while it works, and exactly, when a Queue Pair is drained. It also checks what arrives: the order and content of
//! messages, what READs bring, that each atomic was executed once, and that the peer, where it lives, received the messages
//! that the library calls done, and none that it calls not done.
//!
//! A death is to be seen by every worker that was connected, twice: by the control channel within [`PASSIVE`], and by each
//! Queue Pair that has requests under way within three times its retry budget. Times are taken by the program that kills,
//! from the kill to the line that the worker prints, so they are upper bounds.

mod control;
mod end;
mod link;
mod parent;
mod random;
mod report;
mod tally;
#[cfg(test)]
mod tests;
mod worker;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rdma_qp::Timing;

/// Workers.
const WORKERS: usize = 4;

/// Within this the control channel tells that the peer's process is gone.
const PASSIVE: Duration = Duration::from_secs(1);

/// Timing of all connections: the default, which finds a dead peer in about half a second.
fn timing() -> Timing {
    Timing::default()
}

/// Within this a Queue Pair with requests under way finds that its peer is gone: three times (retry_cnt + 1) x timeout.
fn active() -> Duration {
    3 * timing().budget().unwrap_or(Duration::MAX / 3)
}

/// Four processes connected to one another on the software device, one of which is killed at random moments and started
/// again; the status is not 0 if anything was wrong.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    soak: Soak,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What to do.
#[derive(clap::Args)]
struct Soak {
    /// How long, in seconds; up to three times as long where kills are left over.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// How many kills.
    #[arg(long, default_value_t = 110)]
    kills: u64,
    /// Seed of what is random, as far as it is ours; the system's scheduling is not.
    #[arg(long, default_value_t = std::process::id().into())]
    seed: u64,
    /// Milliseconds more for a death to be seen, where the machine has more to do than this.
    #[arg(long, default_value_t = 0)]
    slack: u64,
    /// Print one JSON document instead of text.
    #[arg(long)]
    json: bool,
}

impl Soak {
    fn slack(&self) -> Duration {
        Duration::from_millis(self.slack)
    }
}

#[derive(Subcommand)]
enum Role {
    /// One of the four; started by the program itself.
    #[command(hide = true)]
    Worker(Worker),
}

/// Who a worker is.
#[derive(clap::Args, Clone)]
struct Worker {
    /// Its place, from 0.
    slot: usize,
    /// How often this place was started before.
    life: u64,
    /// Seed of its random choices.
    seed: u64,
    /// Where workers meet through shared memory.
    folder: std::path::PathBuf,
    /// The first three numbers of the workers' addresses, such as `127.70.3`.
    network: String,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    match arguments.role {
        Some(Role::Worker(who)) => worker::run(&who),
        None => parent::run(&arguments.soak),
    }
}
