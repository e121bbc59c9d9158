//! Loops of posts and polls in Rust over a provider that does nothing, beside those in C, for `cost/run.sh`.

mod loops;

use std::error::Error;

use clap::Parser;
use rdma_benches::allocations;
use rdma_benches::harness::{Arguments, run};
use rdma_benches::objects::{LIST, Objects, c_loops, checked, raw};
use rdma_qp::Doorbell;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let objects = Objects::new(Doorbell::Each)?;
    let mut ways = match &arguments.c {
        Some(path) => c_loops(&objects, path)?,
        None => Vec::new(),
    };
    ways.push(("unsafe", raw(&objects, loops::loop_raw)));
    ways.push((
        "safe",
        checked(&objects, |o, n| {
            loops::loop_safe(&mut o.qps.each_mut(), &o.cq, &o.mr, n)
        }),
    ));
    let lists = Objects::new(Doorbell::Every(LIST as u32))?;
    ways.push((
        "safe-lists",
        checked(&lists, |o, n| {
            loops::loop_safe_lists(&mut o.qps.each_mut(), &mut o.cq, &o.mr, n)
        }),
    ));
    run(&arguments, &mut ways)
}
