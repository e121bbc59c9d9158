//! `qp doctor`: why a connection does not work. It gathers what is known and prints what [`rdma_qp::doctor`] makes of it.

mod machine;
mod path;
pub mod print;
pub mod program;

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdma_qp::Dump;
use rdma_qp::doctor::{Evidence, Finding, Record, Told, diagnose};
use rdma_soft::link::parse_duration;

use crate::failure::Failure;
use crate::run::SoftDevice;

/// Options of `qp doctor`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_help_heading = "Commands",
    override_usage = "\
qp doctor [OPTIONS] FILE...
       qp doctor [OPTIONS] -- PROGRAM ARGS
       qp doctor explain TEXT | env | abi | path --remote GID",
    after_help = "\
Examples:
  qp doctor here.json there.json         the dumps of both ends, or of one: what
                                         Qp::dump().to_json() gives
  qp doctor --rtt 500us here.json        and the round trip, where it is known
  qp doctor run.log                      a log: the status or errno in it
  qp doctor -- ibv_rc_pingpong -g 0      a program that has no dumps: it runs on
                                         the software device as with `qp run`,
                                         and what the device saw and refused is
                                         looked at
  qp doctor --records dir -- ./server    two programs that talk: give both the
  qp doctor --records dir -- ./client    same directory; the one that ends last
                                         (or `qp doctor dir`) looks at both

Status: 0 nothing was found, 1 something was found, 2 there was nothing to look at."
)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,

    /// Dumps, records, logs, or directories of records; - is standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The round trip between the ends, such as 500us
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    rtt: Option<Duration>,
    /// Print one JSON object, for machines; what the program prints goes to standard error then
    #[arg(long)]
    json: bool,
    /// Where the record of each process is kept, and others are looked for
    #[arg(long, value_name = "DIR", requires = "command")]
    records: Option<PathBuf>,
    /// End the program after this time, such as 10s, and look at what it was at
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "command")]
    limit: Option<Duration>,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", last = true)]
    command: Vec<OsString>,
    #[command(flatten)]
    device: SoftDevice,
}

/// What else to look at.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// What may lie behind a line of a log, such as a status or an errno
    Explain {
        /// The line; standard input if there is none
        text: Vec<String>,
        /// Print one JSON object, for machines
        #[arg(long)]
        json: bool,
    },
    /// This machine: limits, access to adapters, kernel modules
    Env(machine::Args),
    /// The verbs library: version, sizes of structs, functions that it lacks
    Abi(machine::AbiArgs),
    /// Which local GID reaches a peer
    Path(path::Args),
}

impl Args {
    /// Whether the answer is for machines.
    pub fn json(&self) -> bool {
        match &self.what {
            Some(What::Explain { json, .. }) => *json,
            Some(What::Env(args)) => args.json,
            Some(What::Abi(args)) => args.json,
            Some(What::Path(args)) => args.json,
            None => self.json,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// [`Failure::Found`] if something was found; [`Failure::CouldNotLook`] if what was to be looked at cannot be.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.what {
        Some(What::Explain { text, json }) => {
            let text = if text.is_empty() {
                read(Path::new("-"))?
            } else {
                text.join(" ")
            };
            let Some(told) = Told::parse(&text) else {
                return Err(nothing_known("that text"));
            };
            let mut evidence = Evidence::default();
            evidence.told = Some(told);
            print::findings(&diagnose(&evidence), None, json)
        }
        Some(What::Env(args)) => machine::env(&args),
        Some(What::Abi(args)) => machine::abi(&args),
        Some(What::Path(args)) => path::run(&args),
        None => look(args),
    }
}

fn nothing_known(place: &str) -> Failure {
    Failure::CouldNotLook(format!(
        "{place} names no status (IBV_WC_..., or `status 12`) and no errno (EINVAL, or `errno 22`): give the line in which the \
         program says what failed, or a dump"
    ))
}

fn look(args: Args) -> Result<(), Failure> {
    let mut evidence = Evidence::default();
    evidence.rtt = args.rtt.map(Into::into);
    let mut logs = Vec::new();
    for file in &args.files {
        add(&mut evidence, &mut logs, file)?;
    }
    if args.command.is_empty() {
        if args.files.is_empty() {
            return Err(Failure::CouldNotLook(
                "give dumps or logs to look at, or `-- PROGRAM`; `qp doctor env` looks at this machine, `qp devices` at its devices".into(),
            ));
        }
        return print::findings(&diagnose_all(evidence, logs), None, args.json);
    }
    let ended = program::run(
        &args.device,
        &args.command,
        args.records.as_deref(),
        args.limit,
        args.json,
    )?;
    let more = (ended.records.iter()).any(|record| record.queue_pairs_left_out);
    for record in ended.records {
        evidence.add(record);
    }
    evidence.killed = ended.killed;
    // A program that tries what a device may refuse, and goes on, is fine.
    if ended.well {
        evidence.refusals.clear();
    }
    evidence.machine = Some(machine::look(None));
    let found = diagnose_all(evidence, logs);
    let answer = print::findings(&found, Some(&ended.status), args.json);
    if ended.left_out > 0 && !args.json {
        print::hint(&format!(
            "Records of former runs were left out: {}. `qp doctor DIR` looks at all that are there.",
            ended.left_out
        ))?;
    }
    if more && !args.json {
        print::hint(
            "There were more Queue Pairs than a record holds: those that were destroyed without an error were left out first.",
        )?;
    }
    if found.is_empty() && !ended.well && !args.json {
        let next = match args.limit {
            Some(_) => "If the program waits for another one",
            None => {
                "If the program waits for something, end it with --limit 10s while it does; if it waits for another one"
            }
        };
        print::hint(&format!(
            "The device refused no call, and no request of its Queue Pairs failed. {next}, run both with the same --records DIR."
        ))?;
    }
    answer
}

/// Findings of the evidence with the first log, and of each other log by itself: each tells of a failure of its own.
fn diagnose_all(mut evidence: Evidence, logs: Vec<Told>) -> Vec<Finding> {
    let mut logs = logs.into_iter();
    evidence.told = logs.next();
    let mut found = diagnose(&evidence);
    for log in logs {
        let mut alone = Evidence::default();
        alone.told = Some(log);
        for finding in diagnose(&alone) {
            if !found.contains(&finding) {
                found.push(finding);
            }
        }
    }
    found.sort_by_key(|finding| finding.weight);
    found
}

/// The text of a file; - is standard input.
fn read(file: &Path) -> Result<String, Failure> {
    let read = if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    let bytes = read.map_err(|error| {
        Failure::CouldNotLook(format!("cannot read {}: {error}", file.display()))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Adds what is in a file.
fn add(evidence: &mut Evidence, logs: &mut Vec<Told>, file: &Path) -> Result<(), Failure> {
    if file.is_dir() {
        let records = program::records(file)?;
        if records.is_empty() {
            return Err(Failure::CouldNotLook(format!(
                "there is no record in {}: `qp doctor --records DIR -- PROGRAM` writes some",
                file.display()
            )));
        }
        evidence.killed.extend(program::killed(&records));
        for record in records {
            evidence.add(record);
        }
        return Ok(());
    }
    let text = read(file)?;
    if text.trim_start().starts_with('{') {
        let record = Record::from_json(&text)
            .map_err(|error| Failure::CouldNotLook(format!("{}: {error}", file.display())))?;
        let is_dump = record.pid == 0;
        if is_dump && record.dumps.iter().any(|dump| has(evidence, dump)) {
            return Err(Failure::CouldNotLook(format!(
                "{} is of the same Queue Pair as the file before it: give one dump of each end",
                file.display()
            )));
        }
        evidence.add(record);
        return Ok(());
    }
    logs.push(Told::parse(&text).ok_or_else(|| nothing_known(&file.display().to_string()))?);
    Ok(())
}

/// Whether a dump of that Queue Pair is there already.
fn has(evidence: &Evidence, dump: &Dump) -> bool {
    evidence.ends.iter().any(|end| {
        (
            &end.taken.host,
            end.taken.pid,
            &end.device.name,
            end.qp.number,
        ) == (
            &dump.taken.host,
            dump.taken.pid,
            &dump.device.name,
            dump.qp.number,
        )
    })
}
