//! Runs loops of posts and polls over a provider that does nothing, for `cost/run.sh` to count and to time.

mod loops;

use std::error::Error;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Parser, Subcommand};
use rdma_benches::{allocations, provider};
use rdma_core_sys::{ibv_cq, ibv_qp};
use rdma_qp::{Access, Cq, Device, Memory, Mr, Qp, Rc};

use loops::{Loop, QPS};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Runs loops of posts and polls over a provider that does nothing.
#[derive(Parser)]
struct Arguments {
    /// The loops in C, a shared object.
    #[arg(long)]
    c: Option<PathBuf>,
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
    /// Runs all loops in turn, several times, and prints `name ns ratio allocations`: medians of the nanoseconds per request
    /// and of their ratio to the first loop of the same pass, and allocations per request.
    Time {
        /// Passes.
        #[arg(long, default_value_t = 15)]
        passes: usize,
        /// Requests in each pass of each loop, a multiple of 512.
        #[arg(long, default_value_t = 1 << 20)]
        n: u64,
    },
}

/// The objects that all loops use.
struct Objects {
    qps: [Qp<Rc>; QPS],
    mr: Mr,
    cq: Cq,
}

impl Objects {
    fn new() -> Result<Objects, Box<dyn Error>> {
        let device = Device::open(&provider::verbs(), "fake0")?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(2048)?);
        let mr = pd.register(Memory::zeroed(8192), Access::LOCAL_WRITE)?;
        let qps: Vec<_> = (0..QPS)
            .map(|_| pd.rc(&cq).send_depth(64).recv_depth(1).create())
            .collect::<Result<_, _>>()?;
        let qps = qps.try_into().map_err(|_| "not all QPs")?;
        Ok(Objects { qps, mr, cq })
    }
}

/// A loop by name.
enum Way {
    /// On the verbs objects, in C or unsafe Rust.
    Raw(Loop),
    /// On the safe layer.
    Safe(fn(&mut [Qp<Rc>; QPS], &Cq, &Mr, u64) -> Result<(), Box<dyn Error>>),
}

/// All loops; the first one is what others are compared with.
fn ways(c: Option<&PathBuf>) -> Result<Vec<(String, Way)>, Box<dyn Error>> {
    let mut ways = Vec::new();
    if let Some(path) = c {
        // SAFETY: the object is cost/loops.c, which has no initialisers.
        let library = unsafe { libloading::Library::new(path)? };
        for name in ["fields", "one", "reuse", "list", "tight"] {
            // SAFETY: cost/loops.c defines these functions with the signature of `Loop`; the library is never unloaded.
            let function = unsafe { *library.get::<Loop>(format!("loop_{name}").as_bytes())? };
            ways.push((format!("c-{name}"), Way::Raw(function)));
        }
        std::mem::forget(library);
    }
    ways.push(("rust-raw".into(), Way::Raw(loops::loop_raw)));
    ways.push(("rust-safe".into(), Way::Safe(loops::loop_safe)));
    Ok(ways)
}

impl Way {
    fn run(&self, objects: &mut Objects, n: u64) -> Result<(), Box<dyn Error>> {
        let raw: [*mut ibv_qp; QPS] = objects.qps.each_ref().map(Qp::as_ptr);
        // SAFETY: the QPs live, and nobody else uses them or their CQ.
        let cq: *mut ibv_cq = unsafe { (*raw[0]).send_cq };
        // SAFETY: a CQ of the provider, not in use at the moment.
        let before = unsafe { provider::seen(cq) };
        match self {
            Way::Raw(function) => {
                let (addr, lkey) = (objects.mr.addr(), objects.mr.lkey());
                // SAFETY: 16 live QPs, their live CQ and the 8 KiB of a region, all held by `objects`, which is borrowed
                // mutably; every loop polls what it posts.
                if unsafe { function(raw.as_ptr(), cq, addr, lkey, n as i64) } != 0 {
                    return Err("a loop failed".into());
                }
            }
            Way::Safe(function) => {
                function(&mut objects.qps, &objects.cq, &objects.mr, black_box(n))?
            }
        }
        // SAFETY: as above.
        let after = unsafe { provider::seen(cq) };
        if (after.0 - before.0, after.1 - before.1) != (n, n) {
            return Err(format!("{before:?} before and {after:?} after {n} requests").into());
        }
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn time(
    ways: &[(String, Way)],
    objects: &mut Objects,
    passes: usize,
    n: u64,
) -> Result<(), Box<dyn Error>> {
    let mut spent = vec![Vec::new(); ways.len()];
    let mut allocated = vec![0; ways.len()];
    for pass in 0..=passes {
        for (index, (_, way)) in ways.iter().enumerate() {
            let (count, start) = (allocations::count(), Instant::now());
            way.run(objects, n)?;
            let (ns, count) = (start.elapsed().as_nanos() as f64, allocations::count() - count);
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

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let ways = ways(arguments.c.as_ref())?;
    let mut objects = Objects::new()?;
    match arguments.command {
        Command::List => ways.iter().for_each(|(name, _)| println!("{name}")),
        Command::Run { name, n } => {
            let found = ways.iter().find(|(known, _)| *known == name);
            let (_, way) = found.ok_or(format!("no loop is called {name}"))?;
            way.run(&mut objects, n)?;
        }
        Command::Time { passes, n } => time(&ways, &mut objects, passes, n)?,
    }
    Ok(())
}
