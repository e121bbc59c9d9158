//! Loops of posts and polls in Rust over a provider that does nothing, beside those in C, for `cost/run.sh`.

mod loops;

use std::error::Error;

use clap::Parser;
use rdma_benches::allocations;
use rdma_benches::harness::{Arguments, run};
use rdma_benches::objects::{Objects, c_loops, checked, raw};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let objects = Objects::new()?;
    let mut ways = match &arguments.c {
        Some(path) => c_loops(&objects, path)?,
        None => Vec::new(),
    };
    ways.push(("unsafe", raw(&objects, loops::loop_raw)));
    ways.push((
        "safe",
        checked(&objects, |o, n| {
            loops::loop_safe(&mut o.qps, &o.cq, &o.mr, n)
        }),
    ));
    run(&arguments, &mut ways)
}
