//! What acknowledging events costs: one RDMA WRITE, one event, many times, with an acknowledgement for each event, for 16 and
//! for 256; and as the safe layer does it. Each acknowledgement takes a lock of the CQ's.

use std::error::Error;
use std::ffi::c_uint;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_benches::harness::median;
use rdma_benches::soft::{End, pair};
use rdma_core_sys::{Functions, Verbs, ibv_cq, ops};
use rdma_qp::RemoteAddr;

/// Events acknowledged by one call, in the loops that do it themselves.
const BATCHES: [u64; 3] = [1, 16, 256];

/// Events per second by how many are acknowledged at a time, on the software device.
#[derive(Parser)]
struct Arguments {
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Passes; figures are their medians, ratios are taken within each.
    #[arg(long, default_value_t = 7)]
    passes: usize,
    /// Events per pass, a multiple of 256.
    #[arg(long, default_value_t = 1 << 14)]
    events: u64,
}

static CALLS: AtomicU64 = AtomicU64::new(0);
static EVENTS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    CALLS.fetch_add(1, Relaxed);
    EVENTS.fetch_add(u64::from(events), Relaxed);
    // SAFETY: the caller's CQ is one of the software device, whose function this is.
    unsafe { rdma_soft::verbs().ack_cq_events(cq, events) };
}

/// The software device, with its acknowledgements counted.
fn verbs() -> Verbs {
    let functions = Functions {
        ack_cq_events,
        ..**rdma_soft::verbs()
    };
    // SAFETY: all functions are the software device's own; the one that is not passes its arguments on unchanged.
    unsafe { Verbs::new(functions) }
}

/// Posts a WRITE and takes its completion off the CQ after `wake` has come.
fn once(
    end: &mut End,
    to: RemoteAddr,
    wake: impl FnOnce(&mut End) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    end.qp.write(end.mr.slice(0, 8)?, to)?;
    wake(end)?;
    match end.cq.poll()? {
        Some(completion) if completion.outcome.is_ok() => Ok(()),
        _ => Err("no good completion after the event".into()),
    }
}

/// Acknowledges `batch` events at a time. All are acknowledged at the end.
fn by_hand(
    verbs: &Verbs,
    end: &mut End,
    to: RemoteAddr,
    events: u64,
    batch: u64,
) -> Result<(), Box<dyn Error>> {
    // SAFETY: the QP and its CQ are alive.
    let cq = unsafe { (*end.qp.as_ptr()).send_cq };
    for event in 1..=events {
        // SAFETY: the CQ is alive and of a device that has the operation.
        if unsafe { ops::ibv_req_notify_cq(cq, 0) } != 0 {
            return Err("not armed".into());
        }
        once(end, to, |_| {
            let (mut of, mut user) = (null_mut(), null_mut());
            // The channel does not block: the safe layer set it so.
            loop {
                // SAFETY: the CQ has a channel, both live; the two places are of the right types.
                if unsafe { verbs.get_cq_event((*cq).channel, &mut of, &mut user) } == 0 {
                    return Ok(());
                }
                if ops::errno() != libc::EAGAIN {
                    return Err(std::io::Error::last_os_error().into());
                }
            }
        })?;
        if event % batch == 0 {
            // SAFETY: so many events of this CQ were taken and not acknowledged.
            unsafe { verbs.ack_cq_events(cq, batch as c_uint) };
        }
    }
    Ok(())
}

/// As the safe layer does it.
fn safely(end: &mut End, to: RemoteAddr, events: u64) -> Result<(), Box<dyn Error>> {
    for _ in 0..events {
        let _ = end.cq.arm()?;
        once(end, to, |end| {
            let limit = Instant::now() + Duration::from_secs(10);
            while end.cq.take_events()? == 0 {
                if Instant::now() > limit {
                    return Err("no event within 10 s".into());
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    if !arguments.events.is_multiple_of(256) || arguments.events == 0 || arguments.passes == 0 {
        return Err("events must be a multiple of 256, and passes at least 1".into());
    }
    let name = rdma_soft::add_device(rdma_soft::Profile::default())?;
    let verbs = verbs();
    let (mut a, b, of_b) = pair(&verbs, [&name, &name])?;
    let to = of_b.region(0)?.at(0);
    let ways = [Some(BATCHES[0]), Some(BATCHES[1]), Some(BATCHES[2]), None];
    let mut rates = vec![Vec::new(); ways.len()];
    let mut calls = vec![0; ways.len()];
    for pass in 0..=arguments.passes {
        for (index, way) in ways.into_iter().enumerate() {
            let (before, start) = (CALLS.load(Relaxed), Instant::now());
            match way {
                Some(batch) => by_hand(&verbs, &mut a, to, arguments.events, batch)?,
                None => safely(&mut a, to, arguments.events)?,
            }
            if pass > 0 {
                rates[index].push(arguments.events as f64 / start.elapsed().as_secs_f64());
                calls[index] += CALLS.load(Relaxed) - before;
            }
        }
    }
    // What is not acknowledged yet is so when the CQ is destroyed, which would wait for it otherwise.
    drop((a, b));
    let passed = ways.len() as u64 * (arguments.passes as u64 + 1) * arguments.events;
    if EVENTS.load(Relaxed) != passed {
        return Err(format!("{} of {passed} events acknowledged", EVENTS.load(Relaxed)).into());
    }
    if !arguments.json {
        println!(
            "{:>10}{:>12}{:>8}{:>22}",
            "ack every", "events/s", "ratio", "calls per 1000 events"
        );
    }
    let mut rows = Vec::new();
    for (index, way) in ways.into_iter().enumerate() {
        let rate = median(rates[index].clone());
        let ratios = rates[index].iter().zip(&rates[0]).map(|(a, b)| a / b);
        let (ratio, per) = (
            median(ratios.collect()),
            1e3 * calls[index] as f64 / (arguments.events * arguments.passes as u64) as f64,
        );
        let name = way.map_or("safe".to_owned(), |batch| batch.to_string());
        if arguments.json {
            rows.push(serde_json::json!({
                "acknowledge_every": name, "events_per_s": rate, "ratio": ratio, "calls_per_1000_events": per,
            }));
        } else {
            println!("{name:>10}{rate:>12.0}{ratio:>8.2}{per:>22.1}");
        }
    }
    if arguments.json {
        println!("{:#}", serde_json::json!({ "figures": rows }));
    }
    Ok(())
}
