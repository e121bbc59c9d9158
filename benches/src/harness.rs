//! Runs loops by name, once to be counted by callgrind, or many times to be timed. `cost/count.py` is who calls it.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Parser, Subcommand};

use crate::allocations;

/// A loop: does that many requests, a multiple of 512, and says whether each ended as it should.
pub type Way = Box<dyn FnMut(u64) -> Result<(), Box<dyn Error>>>;

/// Runs loops of posts and polls over a provider that does nothing.
#[derive(Parser)]
pub struct Arguments {
    /// The loops in C, a shared object made of cost/loops.c.
    #[arg(long)]
    pub c: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the names of the loops.
    List,
    /// Runs one loop once.
    Run {
        /// Its name.
        name: String,
        /// Requests, a multiple of 512.
        n: u64,
    },
    /// Runs all loops in turn, several times, and prints for each `name nanoseconds ratio allocations`: medians of the time
    /// of one request and of its ratio to the first loop in the same pass, and the allocations that one request took.
    Time {
        /// Passes.
        #[arg(long, default_value_t = 101)]
        passes: usize,
        /// Requests in each pass of each loop, a multiple of 512.
        #[arg(long, default_value_t = 1 << 16)]
        n: u64,
    },
}

/// Does what the command line asks for. Allocations are counted where [`allocations::Counting`] is the global allocator.
///
/// # Errors
/// A loop failed, or has no such name.
pub fn run(arguments: &Arguments, ways: &mut [(&'static str, Way)]) -> Result<(), Box<dyn Error>> {
    match &arguments.command {
        Command::List => ways.iter().for_each(|(name, _)| println!("{name}")),
        Command::Run { name, n } => {
            let found = ways.iter_mut().find(|(known, _)| known == name);
            let (_, way) = found.ok_or(format!("no loop is called {name}"))?;
            way(*n)?;
        }
        Command::Time { passes, n } => time(ways, *passes, *n)?,
    }
    Ok(())
}

/// The middle one.
///
/// # Panics
/// There is none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn time(ways: &mut [(&'static str, Way)], passes: usize, n: u64) -> Result<(), Box<dyn Error>> {
    let mut spent = vec![Vec::new(); ways.len()];
    let mut allocated = vec![0; ways.len()];
    for pass in 0..=passes {
        for (index, (_, way)) in ways.iter_mut().enumerate() {
            let (count, start) = (allocations::count(), Instant::now());
            way(n)?;
            let (ns, count) = (
                start.elapsed().as_nanos() as f64,
                allocations::count() - count,
            );
            // The first pass warms up.
            if pass > 0 {
                spent[index].push(ns / n as f64);
                allocated[index] += count;
            }
        }
    }
    for (index, (name, _)) in ways.iter().enumerate() {
        let ratios = spent[index].iter().zip(&spent[0]).map(|(a, b)| a / b);
        println!(
            "{name} {:.3} {:.3} {}",
            median(spent[index].clone()),
            median(ratios.collect()),
            allocated[index] as f64 / (n * passes as u64) as f64
        );
    }
    Ok(())
}
