//! Clusters of the software device's engines on a virtual clock, out of one seed, against a model.
//!
//! A run draws its knobs, its cluster and its program from the seed ([`Knobs`]), and drives one
//! `rdma_soft::core::Engine` per node as the running device does. The model is small: what was posted, in
//! which order, and which bytes it is made of. From that follows what may be reported:
//!
//! - On RC and XRC a success means delivered exactly once, in order and intact; a failure at most once.
//! - Each request that was posted has one outcome, in the order of its queue.
//! - No receive is lost, or used twice.
//! - UC and UD never deliver a message that is not whole.
//! - Nothing is touched but what a request may touch.
//! - No Queue Pair hangs past its retry budget.
//!
//! The same seed gives the same trace.
//!
//! [`supervise`] does the same for supervised connections: two ends, their processes and their channel, and what may come of
//! them when one dies.
//!
//! [`messages`] does it for the layer of reliable datagrams: many hosts, one UD Queue Pair each.
//!
//! What would make a simulator lie, and what is done about it: frames are made, checksummed and parsed, and
//! packets of a host to itself go by reference or as frames, as a knob says; what is due at the same time
//! comes in an order that is drawn; turns take time and come late; a buffer is written over as soon as it is
//! the application's again; memory is named by addresses that the run chose, and nothing of real addresses or
//! of hash order is in the trace; knobs reach the edges (PSNs before the wrap, queues of one request, one
//! packet in flight, no retries). The shell around the engine, with its locks and its thread, is not in it.
#![forbid(unsafe_code)]

mod agenda;
mod books;
mod build;
mod datagrams;
mod drive;
mod feed;
mod finish;
mod frames;
mod host;
mod inbox;
mod judge;
mod knobs;
mod life;
mod memory;
pub mod messages;
mod program;
mod receives;
mod round;
mod shrink;
pub mod supervise;
mod tally;
mod traffic;
mod trouble;
mod window;
mod wire;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use knobs::{Knobs, Profile};
pub use round::Round;
pub use shrink::{Plan, shrink};
pub use tally::{Histogram, Tally};

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Hash of every packet and every event, with its time.
    pub trace: u64,
    /// What happened how often.
    pub tally: Tally,
    /// What was wrong, if anything was.
    pub violation: Option<String>,
    /// Actions of the program.
    pub actions: usize,
}

/// Runs a plan.
pub fn run(plan: &Plan, verbose: bool) -> Outcome {
    let mut tally = Tally::new(plan.knobs.profile);
    let mut trace = 0;
    let mut actions = 0;
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut world = world::World::new(plan.seed, plan.knobs.clone(), verbose)?;
        actions = world.actions.len();
        for &at in &plan.without {
            if let Some(skip) = world.skip.get_mut(at) {
                *skip = true;
            }
        }
        let verdict = world
            .run()
            .map_err(|e| format!("at {} ns: {e}", world.now.as_nanos()));
        trace = world.trace.hash();
        tally = world.tally.clone();
        verdict
    }));
    let violation = match done {
        Ok(verdict) => verdict.err(),
        Err(panic) => Some(round::panicked(&*panic)),
    };
    Outcome {
        trace,
        tally,
        violation,
        actions,
    }
}
