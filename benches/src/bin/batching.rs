//! What a doorbell for several requests gains and what it costs, on the software device: messages per second, and the time
//! from a post to the completion.

use std::error::Error;
use std::time::Instant;

use clap::Parser;
use rdma_benches::harness::median;
use rdma_benches::soft::{DEPTH, End, pair};
use rdma_qp::{Doorbell, RemoteAddr};

/// Requests per doorbell; the first one is what the others are compared with.
const BATCHES: [u32; 5] = [1, 4, 16, 32, 64];

/// RDMA WRITEs of 64 bytes from one RC Queue Pair to another of this process, over the software device, with one doorbell for
/// each, for 4, 16, 32 and 64.
#[derive(Parser)]
struct Arguments {
    /// Print one JSON document instead of tables.
    #[arg(long)]
    json: bool,
    /// Passes; figures are their medians, ratios are taken within each.
    #[arg(long, default_value_t = 9)]
    passes: usize,
    /// Messages per pass and batch.
    #[arg(long, default_value_t = 1 << 15)]
    messages: u32,
}

/// Messages per second with the queue kept as full as the batch allows.
fn rate(end: &mut End, to: RemoteAddr, messages: u32, batch: u32) -> Result<f64, Box<dyn Error>> {
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    while done < messages {
        while posted < messages && posted - done + batch <= DEPTH {
            for _ in 0..batch {
                end.qp.write(end.mr.slice(0, 64)?, to)?;
            }
            posted += batch;
        }
        while let Some(completion) = end.cq.poll()? {
            if let Err(failure) = completion.outcome {
                return Err(format!("a WRITE failed: {:?}", failure.status).into());
            }
            done += 1;
        }
    }
    Ok(f64::from(messages) / start.elapsed().as_secs_f64())
}

/// Median time from the call that posts a message to its completion, in microseconds, with one batch under way at a time: who
/// waits for others is later.
fn latency(
    end: &mut End,
    to: RemoteAddr,
    messages: u32,
    batch: u32,
) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::with_capacity(messages as usize);
    for _ in 0..messages / batch {
        let mut posted = [None; 64];
        for at in posted.iter_mut().take(batch as usize) {
            *at = Some(Instant::now());
            end.qp.write(end.mr.slice(0, 64)?, to)?;
        }
        for at in posted.iter().flatten() {
            let completion = loop {
                if let Some(completion) = end.cq.poll()? {
                    break completion;
                }
            };
            if let Err(failure) = completion.outcome {
                return Err(format!("a WRITE failed: {:?}", failure.status).into());
            }
            times.push(at.elapsed().as_nanos() as f64 / 1e3);
        }
    }
    Ok(median(times))
}

/// What was measured of one batch: by pass.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    latencies: Vec<f64>,
}

fn measure(names: [&str; 2], arguments: &Arguments) -> Result<Vec<Figures>, Box<dyn Error>> {
    let (mut a, _b, of_b) = pair(rdma_soft::verbs(), names)?;
    let to = of_b.region(0)?.at(0);
    let mut figures: Vec<Figures> = BATCHES.iter().map(|_| Figures::default()).collect();
    for pass in 0..=arguments.passes {
        for (batch, figures) in BATCHES.into_iter().zip(&mut figures) {
            a.qp.set_doorbell(Doorbell::Every(batch), Doorbell::Each)?;
            let rate = rate(&mut a, to, arguments.messages, batch)?;
            let latency = latency(&mut a, to, arguments.messages / 8, batch)?;
            // The first pass warms up.
            if pass > 0 {
                figures.rates.push(rate);
                figures.latencies.push(latency);
            }
        }
    }
    Ok(figures)
}

/// The median of the ratios to the first batch, pass by pass.
fn ratio(values: &[f64], first: &[f64]) -> f64 {
    median(values.iter().zip(first).map(|(a, b)| a / b).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    if !arguments.messages.is_multiple_of(512) || arguments.messages == 0 || arguments.passes == 0 {
        return Err("messages must be a multiple of 512, and passes at least 1".into());
    }
    let one = rdma_soft::add_device(rdma_soft::Profile::default())?;
    let other = rdma_soft::add_device(rdma_soft::Profile::default())?;
    let mut links = Vec::new();
    for (link, names) in [("self", [&*one, &*one]), ("udp", [&*one, &*other])] {
        let figures = measure(names, &arguments)?;
        let first = &figures[0];
        if !arguments.json {
            println!(
                "{link}\n{:>6}{:>14}{:>8}{:>14}{:>8}",
                "batch", "messages/s", "ratio", "latency us", "ratio"
            );
        }
        for (batch, figure) in BATCHES.iter().zip(&figures) {
            let (rate, latency) = (
                median(figure.rates.clone()),
                median(figure.latencies.clone()),
            );
            let ratios = (
                ratio(&figure.rates, &first.rates),
                ratio(&figure.latencies, &first.latencies),
            );
            if arguments.json {
                links.push(serde_json::json!({
                    "link": link, "batch": batch, "messages_per_s": rate, "rate_ratio": ratios.0,
                    "latency_us": latency, "latency_ratio": ratios.1,
                }));
            } else {
                println!(
                    "{batch:>6}{rate:>14.0}{:>8.2}{latency:>14.2}{:>8.2}",
                    ratios.0, ratios.1
                );
            }
        }
    }
    if arguments.json {
        println!("{:#}", serde_json::json!({ "bytes": 64, "figures": links }));
    }
    Ok(())
}
