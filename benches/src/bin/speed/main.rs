//! How fast the software device is, in one process and between two, beside what else could move the same bytes.
//!
//! Nothing here asserts a figure. It fails if a request fails, if a byte that arrives is not the one that was sent, or if
//! something hangs.

mod between;
mod ends;
mod growth;
mod inside;
mod many;
mod measures;
mod others;
mod page;
mod plain;
mod run;
mod samples;
mod svg;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::{Parser, Subcommand};

use crate::ends::Result;
use crate::run::Run;
use crate::samples::Samples;

/// Measures the software device, round by round, and writes what it found as JSON, as tables, and as plots.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Order,
}

#[derive(Subcommand)]
enum Order {
    /// Measures.
    Run(Measuring),
    /// Makes the page of a file of results.
    Page {
        /// The results.
        results: PathBuf,
        /// Where the page and its plots go.
        folder: PathBuf,
        /// A text of what was found out, to be put into the page.
        #[arg(long)]
        findings: Option<PathBuf>,
    },
    /// One part of one round; started by the program itself.
    #[command(hide = true)]
    Part {
        part: String,
        round: u32,
        file: PathBuf,
        #[arg(long)]
        quick: bool,
        #[arg(long)]
        mpi: Option<String>,
    },
    /// The other one of two processes; started by the program itself.
    #[command(hide = true)]
    Other {
        address: String,
        #[arg(long)]
        shm: bool,
    },
}

/// What is measured.
#[derive(clap::Args)]
struct Measuring {
    /// Parts: inside, udp, shm, others, many, growth. All of them, if none is named.
    parts: Vec<String>,
    /// Where the results go, a file.
    #[arg(long)]
    out: PathBuf,
    /// One round of little: whether everything runs, and what arrives is what was sent.
    #[arg(long)]
    quick: bool,
    /// Rounds, in each of which all parts take their turns.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// The program that was built of speed/mpi.c.
    #[arg(long)]
    mpi: Option<String>,
    /// How it was called, to be told in the results.
    #[arg(long, default_value = "")]
    command: String,
}

/// Parts, in the order in which they run.
const PARTS: [&str; 6] = ["inside", "udp", "shm", "others", "many", "growth"];

fn measure(part: &str, run: &mut Run, mpi: Option<&str>) -> Result<()> {
    match part {
        "inside" => {
            inside::bandwidth(run)?;
            inside::rate(run)
        }
        "udp" => between::link(run, false),
        "shm" => between::link(run, true),
        "others" => others::all(run, mpi),
        "many" => {
            many::connections(run)?;
            many::all(run)
        }
        _ => {
            growth::sizes(run)?;
            growth::entries(run)?;
            growth::nodes(run)
        }
    }
}

/// The first line that a command prints, or nothing.
fn line_of(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    text.unwrap_or_default()
        .lines()
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// What stands behind `name` in a file of the kernel's, up to the end of its line.
fn field(file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_once([':', '=']));
    value.map_or_else(String::new, |(_, value)| {
        value.trim().trim_matches('"').to_owned()
    })
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}

fn all(arguments: &Measuring) -> Result<()> {
    let mut parts: Vec<&str> = PARTS.to_vec();
    if !arguments.parts.is_empty() {
        if let Some(unknown) = arguments
            .parts
            .iter()
            .find(|part| !PARTS.contains(&&***part))
        {
            return Err(format!(
                "no part is called {unknown}: there are {}",
                PARTS.join(", ")
            )
            .into());
        }
        parts.retain(|part| arguments.parts.iter().any(|named| named == part));
    }
    let start = Instant::now();
    let before = load();
    let rounds = if arguments.quick {
        1
    } else {
        arguments.rounds.max(1)
    };
    let mut run = Run {
        quick: arguments.quick,
        round: 0,
        samples: Samples::default(),
    };
    let program = std::env::current_exe()?.display().to_string();
    for round in 0..rounds {
        for part in &parts {
            let began = Instant::now();
            // Each in a process of its own: none finds the memory and the devices of another one.
            let file = arguments.out.with_extension("part");
            let number = round.to_string();
            let mut child = Command::new(&program);
            child.args(["part", part, &number]).arg(&file);
            if arguments.quick {
                child.arg("--quick");
            }
            if let Some(mpi) = &arguments.mpi {
                child.args(["--mpi", mpi]);
            }
            let status = child.status()?;
            if !status.success() {
                return Err(format!("part {part} ended with {status}").into());
            }
            run.samples.take_in(Samples::read(&file)?.0);
            std::fs::remove_file(&file)?;
            println!(
                "round {} of {rounds}: {part}, {:.1} s",
                round + 1,
                began.elapsed().as_secs_f64()
            );
        }
    }
    let cores = std::thread::available_parallelism()?;
    let memory = field("/proc/meminfo", "MemTotal");
    let kernel = line_of(&["uname", "-sr"]);
    let mut document = run.samples.to_json();
    document["machine"] = format!(
        "{}, {cores} processors, {memory} of memory",
        field("/proc/cpuinfo", "model name")
    )
    .into();
    document["system"] = format!("{}, {kernel}", field("/etc/os-release", "PRETTY_NAME")).into();
    document["compiler"] = line_of(&["rustc", "--version"]).into();
    document["version"] = env!("CARGO_PKG_VERSION").into();
    document["date"] = line_of(&["date", "-u", "+%Y-%m-%d %H:%M UTC"]).into();
    document["rounds"] = rounds.into();
    document["seconds"] = format!("{:.0}", start.elapsed().as_secs_f64()).into();
    document["command"] = format!("`{}`", arguments.command).into();
    document["load"] = format!("{before} before, {} after (1 minute)", load()).into();
    std::fs::write(&arguments.out, format!("{document:#}\n"))?;
    Ok(())
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Order::Run(arguments) => all(&arguments),
        Order::Page {
            results,
            folder,
            findings,
        } => page::write(&results, &folder, findings.as_deref()),
        Order::Other { address, shm } => between::serve(&address, shm),
        Order::Part {
            part,
            round,
            file,
            quick,
            mpi,
        } => one(&part, round, &file, quick, mpi.as_deref()),
    }
}

/// One part of one round.
fn one(part: &str, round: u32, file: &Path, quick: bool, mpi: Option<&str>) -> Result<()> {
    let mut run = Run {
        quick,
        round,
        samples: Samples::default(),
    };
    measure(part, &mut run, mpi)?;
    std::fs::write(file, run.samples.to_json().to_string())?;
    Ok(())
}
