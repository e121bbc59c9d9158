//! What a hub with 64 peers has and does over RC, over RC with a shared receive queue, and over reliable datagrams: Queue Pairs,
//! memory, messages per second, side by side.

mod connected;
mod grams;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_benches::allocations::Counting;
use rdma_benches::harness::median;
use rdma_qp::Device;
use rdma_soft::Profile;
use serde_json::json;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Any error, also of another thread.
type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Longest message, and size of each buffer of RC.
const LONGEST: usize = 4096;

/// Nothing here takes so long.
const LIMIT: Duration = Duration::from_secs(120);

/// A hub and its peers, each over its own device, in two threads of this process. The hub sends to all of them in turn, and
/// then all send to the hub; each way is timed until the last message is acknowledged.
#[derive(Parser)]
struct Arguments {
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Peers of the hub.
    #[arg(long, default_value_t = 64)]
    peers: usize,
    /// Passes; figures are their medians, ratios are taken within each.
    #[arg(long, default_value_t = 7)]
    passes: usize,
    /// Messages to each peer, and from each, per pass.
    #[arg(long, default_value_t = 500)]
    messages: usize,
    /// Bytes of each message, at most 4096.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 4000])]
    sizes: Vec<usize>,
    /// Let connected Queue Pairs go through shared memory, as they usually do; datagrams go by UDP, so that compares two links.
    #[arg(long)]
    shm: bool,
    /// Receives of the hub where all peers share a pool of them.
    #[arg(long, default_value_t = 256)]
    receives: u32,
    /// Datagrams only, from that pool: for more peers than one process has room for otherwise.
    #[arg(long)]
    pool: bool,
    /// Faults of both devices, such as loss=5%,reorder=5%.
    #[arg(long, default_value = "")]
    faults: String,
}

/// The hub, or all its peers in one: it sends to whom it is told, and moves on by turns.
trait End: Send {
    /// Queue Pairs.
    fn qps(&self) -> usize;
    /// Packets that were sent so far, and those of them that were sent again; `None`: only the device knows.
    fn packets(&self) -> Option<(u64, u64)>;
    /// Sends a message to a peer, or as that peer to the hub. `false`: there is no room at present.
    fn send(&mut self, peer: usize, bytes: &[u8]) -> Result<bool>;
    /// Moves on; messages of its own that are done, and messages that came.
    fn turn(&mut self) -> Result<(usize, usize)>;
}

/// Two ends that talk, and the memory of the first.
type Pair = (Box<dyn End>, Box<dyn End>, i64);

/// A way to talk.
struct Way {
    name: &'static str,
    pair: Pair,
    /// Before the next pass nothing of a former one is under way.
    rates: Vec<[Vec<f64>; 2]>,
    _devices: [Device; 2],
}

/// Sends to everybody in turn until all is done; messages per second.
fn drive(end: &mut dyn End, peers: usize, messages: usize, bytes: &[u8]) -> Result<f64> {
    let (mut sent, mut done, all) = (vec![0; peers], 0, peers * messages);
    let begin = Instant::now();
    while done < all {
        for (peer, sent) in sent.iter_mut().enumerate() {
            if *sent < messages && end.send(peer, bytes)? {
                *sent += 1;
            }
        }
        done += end.turn()?.0;
        if begin.elapsed() > LIMIT {
            return Err(format!("{done} of {all} messages were done in time").into());
        }
    }
    Ok(all as f64 / begin.elapsed().as_secs_f64())
}

/// One direction: `from` sends, `to` takes what comes until all is there and acknowledged.
fn one_way(
    from: &mut dyn End,
    to: &mut dyn End,
    (peers, messages): (usize, usize),
    bytes: &[u8],
) -> Result<f64> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| -> Result<usize> {
            let mut came = 0;
            // All is acknowledged then, so all is there; the last may wait to be taken.
            loop {
                let last = over.load(Ordering::Relaxed);
                let some = to.turn()?.1;
                came += some;
                if last && some == 0 {
                    return Ok(came);
                }
            }
        });
        let rate = drive(from, peers, messages, bytes);
        over.store(true, Ordering::Relaxed);
        let came = receiver.join().map_err(|_| "the receiver panicked")??;
        match rate {
            Ok(_) if came != peers * messages => Err(format!("{came} messages came").into()),
            rate => rate,
        }
    })
}

fn way(
    name: &'static str,
    arguments: &Arguments,
    make: impl Fn(&[Device; 2], usize) -> Result<Pair>,
) -> Result<Way> {
    let device = || -> Result<Device> {
        let profile = Profile {
            faults: arguments.faults.parse()?,
            shm: arguments.shm,
            ..Profile::default()
        };
        let name = rdma_soft::add_device(profile)?;
        Ok(Device::open(rdma_soft::verbs(), &name)?)
    };
    let devices = [device()?, device()?];
    Ok(Way {
        name,
        pair: make(&devices, arguments.peers)?,
        rates: arguments.sizes.iter().map(|_| Default::default()).collect(),
        _devices: devices,
    })
}

fn main() -> Result {
    let arguments = Arguments::parse();
    if arguments.sizes.iter().any(|size| *size > LONGEST) {
        return Err(format!("a message is at most {LONGEST} bytes long").into());
    }
    let shape = (arguments.peers, arguments.messages);
    let mut ways = Vec::new();
    if !arguments.pool {
        ways.push(way("RC", &arguments, |devices, peers| {
            connected::make(devices, peers, false)
        })?);
        ways.push(way("RC, SRQ", &arguments, |devices, peers| {
            connected::make(devices, peers, true)
        })?);
        for (name, window) in [("datagrams, window 16", 16), ("datagrams, window 4", 4)] {
            ways.push(way(name, &arguments, |devices, peers| {
                grams::make(devices, peers, 2 * window * peers as u32, 2 * window)
            })?);
        }
    }
    ways.push(way("datagrams, a pool", &arguments, |devices, peers| {
        grams::make(devices, peers, arguments.receives, 8)
    })?);
    for pass in 0..=arguments.passes {
        for way in &mut ways {
            let (hub, peers, _) = &mut way.pair;
            for (size, rates) in arguments.sizes.iter().zip(&mut way.rates) {
                let bytes = vec![0x5a; *size];
                let out = one_way(&mut **hub, &mut **peers, shape, &bytes)?;
                let back = one_way(&mut **peers, &mut **hub, shape, &bytes)?;
                // The first pass warms up.
                if pass > 0 {
                    rates[0].push(out);
                    rates[1].push(back);
                }
            }
        }
    }
    print(&arguments, &ways);
    Ok(())
}

/// The median of the ratios of each pass.
fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of / to).collect())
}

/// Of a hundred packets of both ends, how many were sent again; `None`: only the device knows.
fn again(way: &Way) -> Option<f64> {
    let (hub, peers) = (way.pair.0.packets()?, way.pair.1.packets()?);
    Some(100.0 * (hub.1 + peers.1) as f64 / (hub.0 + peers.0).max(1) as f64)
}

fn print(arguments: &Arguments, ways: &[Way]) {
    let figures = |way: &Way, at: usize, direction: usize| {
        let of = |way: &Way| way.rates[at][direction].clone();
        (median(of(way)), ratio(&of(way), &of(&ways[0])))
    };
    if arguments.json {
        let rows = ways.iter().map(|way| {
            let rates = arguments.sizes.iter().enumerate().map(|(at, size)| {
                let (out, back) = (figures(way, at, 0), figures(way, at, 1));
                json!({ "bytes": size, "from_hub": out.0, "from_hub_ratio": out.1, "to_hub": back.0, "to_hub_ratio": back.1 })
            });
            json!({ "name": way.name, "qps": way.pair.0.qps(), "memory_bytes": way.pair.2, "sent_again_percent": again(way), "rates": rates.collect::<Vec<_>>() })
        });
        let rows: Vec<_> = rows.collect();
        println!(
            "{}",
            json!({ "peers": arguments.peers, "faults": arguments.faults, "ways": rows })
        );
        return;
    }
    println!(
        "| {} peers | QPs | memory | bytes | from the hub, messages/s | ratio | to the hub | ratio | sent again |",
        arguments.peers
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for way in ways {
        for (at, size) in arguments.sizes.iter().enumerate() {
            let (out, back) = (figures(way, at, 0), figures(way, at, 1));
            println!(
                "| {} | {} | {:.1} MB | {size} | {:.0} | {:.2} | {:.0} | {:.2} | {} |",
                way.name,
                way.pair.0.qps(),
                way.pair.2 as f64 / 1e6,
                out.0,
                out.1,
                back.0,
                back.1,
                again(way).map_or(String::new(), |percent| format!("{percent:.1} %")),
            );
        }
    }
}
