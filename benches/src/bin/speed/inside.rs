//! In one process: the software device hands messages over by reference, and copies them once. What else copies is memcpy.

use std::hint::black_box;

use rdma_qp::Mr;

use crate::ends::{
    DEPTH, End, Operation, Patience, Receiving, Result, Sending, Shape, check, fill, pair, wipe,
};
use crate::run::{Moment, Run};

/// What messages walk over.
const SPAN: usize = 64 << 20;

/// Message sizes and messages per pass.
const SIZES: [(usize, u32); 4] = [(64, 8192), (4096, 4096), (65536, 1024), (1 << 20, 64)];

/// Sends a stream from one end to the other, both polled by this thread; gives the seconds that it took.
///
/// # Errors
/// A request failed, or what arrived is not what was sent.
pub fn stream(from: &mut End, to: &mut End, sends: bool, shape: Shape, seed: u64) -> Result<f64> {
    fill(&from.mr, shape.span, seed)?;
    wipe(&to.mr, shape.span)?;
    let mut patience = Patience::new();
    let seconds = if sends {
        let mut receiving = Receiving::new(to, shape)?;
        let mut sending = Sending::new(from, Operation::Send, shape)?;
        let start = Moment::now();
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            sent = sending.step()?;
            received = received || receiving.step()?;
            patience.turn()?;
        }
        start.seconds()
    } else {
        let mut sending = Sending::new(from, Operation::Write(to.mr.remote()), shape)?;
        let start = Moment::now();
        while !sending.step()? {
            patience.turn()?;
        }
        start.seconds()
    };
    check(&to.mr, &shape, seed)?;
    Ok(seconds)
}

/// Copies what a stream of this shape copies, between the same regions; gives the seconds that it took.
pub fn copy(from: &Mr, to: &Mr, shape: Shape) -> f64 {
    assert!(shape.span <= from.len().min(to.len()) && shape.size <= shape.span);
    let (from, to) = (from.addr() as *const u8, to.addr() as *mut u8);
    let mut places = shape.places();
    let start = Moment::now();
    for _ in 0..shape.count {
        let (at, len) = (places.next(), black_box(shape.size));
        // SAFETY: every place of a shape ends within its span, and both regions are at least so long, as was asserted. They
        // are two, so they do not overlap; no request is under way that reaches them, and nobody has a reference to them.
        unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(at), to.wrapping_add(at), len) };
    }
    start.seconds()
}

/// Bandwidth by message size, with memcpy beside it: of one place, and of places all over 64 MiB.
pub fn bandwidth(run: &mut Run) -> Result<()> {
    let device = rdma_soft::add_device(rdma_soft::Profile::default())?;
    let (mut a, mut b) = pair([&device, &device], SPAN)?;
    for pass in run.passes(6) {
        run.samples.pass = pass;
        for (size, count) in SIZES {
            let count = run.less(count, 16);
            for (place, shape) in [
                ("hot", Shape::hot(size, count)),
                ("walking", Shape::walking(size, count, SPAN)),
            ] {
                let measure = format!("inside {place}");
                // What runs first finds the pages warmed by the fill, so they take turns in that as well.
                let memcpy = |run: &mut Run, a: &End, b: &End| {
                    if !run.wants(&measure, "memcpy", size) {
                        return;
                    }
                    let seconds = copy(&a.mr, &b.mr, shape);
                    let rate = shape.bytes() / seconds / 1e9;
                    run.samples.note(&measure, "memcpy", size as u64, rate);
                };
                if pass % 2 == 0 {
                    memcpy(run, &a, &b);
                }
                for (way, sends) in [("WRITE", false), ("SEND", true)] {
                    if !run.wants(&measure, way, size) {
                        continue;
                    }
                    let seconds = stream(&mut a, &mut b, sends, shape, pass.into())?;
                    let rate = shape.bytes() / seconds / 1e9;
                    run.samples.note(&measure, way, size as u64, rate);
                }
                if pass % 2 == 1 {
                    memcpy(run, &a, &b);
                }
            }
        }
    }
    Ok(())
}

/// Messages per second: each posted and polled by itself, and in lists of 32.
pub fn rate(run: &mut Run) -> Result<()> {
    let device = rdma_soft::add_device(rdma_soft::Profile::default())?;
    let (mut a, mut b) = pair([&device, &device], 1 << 16)?;
    for pass in run.passes(8) {
        run.samples.pass = pass;
        for size in [8, 64, 1024] {
            for (way, sends) in [("WRITE", false), ("SEND", true)] {
                for batch in [1, 32] {
                    let way = format!("{way}, batch {batch}");
                    if !run.wants("inside rate", &way, size) {
                        continue;
                    }
                    let shape = Shape {
                        window: DEPTH,
                        batch,
                        ..Shape::hot(size, run.less(8192, 8))
                    };
                    let seconds = stream(&mut a, &mut b, sends, shape, pass.into())?;
                    let rate = f64::from(shape.count) / seconds / 1e6;
                    run.samples.note("inside rate", &way, size as u64, rate);
                }
            }
        }
    }
    Ok(())
}
