//! A server and its clients, each with one shared receive queue, answer one another over XRC: what `ibv_xsrq_pingpong` of
//! rdma-core does.
//!
//! ```text
//! cargo run -p rdma-xrc --example xrc_pingpong -- --clients 3
//! cargo run -p rdma-xrc --example xrc_pingpong -- --listen 0.0.0.0:7472 --clients 2 --device mlx5_0   # the server,
//! cargo run -p rdma-xrc --example xrc_pingpong -- --connect 192.0.2.1:7472 --clients 1 --device mlx5_0   # on other hosts
//! ```
//!
//! Whatever comes in goes to the one SRQ of its process: the server needs buffers for the messages that are under way, and not
//! for each client. A completion names the target that the message came by, so the server knows whom to answer, and each
//! answer names the SRQ of that client.

#[path = "../../rdma-qp/examples/common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::time::Instant;

use common::{LIMIT, Options, Result};
use rdma_qp::exchange::{Exchange, tcp};
use rdma_qp::{Connections, Cq, Device, Pd, PostFlags, QueueKind, Refill, Timing, op};
use rdma_xrc::{SrqNum, XrcDomain, XrcInitiator, XrcSrq, XrcTarget};

const ROUNDS: u32 = 1000;
const MESSAGE: usize = 32;
/// Receives of a process.
const DEPTH: u32 = 64;

fn main() -> Result {
    run(std::env::args().skip(1))
}

/// Runs the server, clients, or both.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result {
    let options = Options::parse(arguments, &["--clients"])?;
    let clients: usize = options.get("--clients").unwrap_or("3").parse()?;
    options.play(
        |device, listener| serve(device, listener, clients),
        |device, address| {
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..clients)
                    .map(|number| scope.spawn(move || ask(device, address, number)))
                    .collect();
                // Each is joined, and the first that failed says why.
                let ended = all.into_iter().map(|client| client.join());
                let ended: Vec<_> = ended.collect();
                ended
                    .into_iter()
                    .try_for_each(|end| end.map_err(|_| "a client panicked")?)
            })
        },
    )
}

/// What a process has, however many others it talks with.
struct Process {
    domain: XrcDomain,
    pd: Pd,
    cq: Cq,
    receives: Refill<XrcSrq>,
}

impl Process {
    fn new(device: &Device, peers: u32) -> Result<Process> {
        let pd = device.alloc_pd()?;
        // Room for the receives, and for the sends of each initiator.
        let cq = device.create_cq(DEPTH + 16 * peers)?;
        // Processes of one node that want to share targets name the domain by a file: XrcDomain::of_file.
        let domain = XrcDomain::anonymous(device)?;
        let srq = pd.xrc_srq(&domain, &cq).depth(DEPTH).create()?;
        let pool = pd.buffers(DEPTH as usize + 16 * peers as usize, MESSAGE)?;
        let mut receives = Refill::new(srq, pool, DEPTH / 2);
        receives.top_up()?;
        Ok(Process {
            domain,
            pd,
            cq,
            receives,
        })
    }

    /// Meets a peer: an initiator of each side is connected to a target of the other, and both learn the other's SRQ.
    fn meet(&self, device: &Device, exchange: &mut tcp::Channel) -> Result<Peer> {
        let mut initiator = self.pd.xrc(&self.cq).send_depth(16).create()?;
        let mut target = self.domain.create_target()?;
        let gid = device.port(1)?.best_gid()?;
        let their_initiator = exchange.swap(&initiator.endpoint(&gid)?, &[])?;
        let their_target = exchange.swap(&target.endpoint(&gid)?, &[])?;
        let own = self.receives.queue().srq_num().get();
        let theirs = exchange.swap_bytes(&own.to_be_bytes())?;
        let timing = Timing::default();
        let at_target = target.connect_begin(&their_initiator, timing)?;
        let at_initiator = initiator.connect_begin(&their_target, timing)?;
        // Nobody sends before the other end can receive.
        exchange.barrier()?;
        target.connect_finish(at_target, timing)?;
        initiator.connect_finish(at_initiator, timing)?;
        let theirs = theirs.try_into().map_err(|_| "a number has 4 bytes")?;
        Ok(Peer {
            initiator,
            target,
            srq: SrqNum::new(u32::from_be_bytes(theirs))?,
        })
    }
}

/// What a process has for another one.
struct Peer {
    /// What it sends by ...
    initiator: XrcInitiator,
    /// ... to that SRQ.
    srq: SrqNum,
    /// Where the other's messages arrive.
    target: XrcTarget,
}

fn serve(device: &Device, listener: &tcp::Listener, clients: usize) -> Result {
    let mut process = Process::new(device, u32::try_from(clients)?)?;
    let (mut peers, mut exchanges) = (Vec::new(), Vec::new());
    let mut known = Connections::new();
    for number in 0..clients {
        let mut exchange = listener.accept(LIMIT)?;
        let peer = process.meet(device, &mut exchange)?;
        // Completions name the target for what came, and the initiator for what was sent.
        known.insert_target(&peer.target, number);
        known.insert(&peer.initiator, number);
        peers.push(peer);
        exchanges.push(exchange);
    }
    // From here on clients may send.
    for exchange in &mut exchanges {
        exchange.barrier()?;
    }
    let mut left = clients * ROUNDS as usize;
    while left > 0 {
        let done = process.cq.wait_any(LIMIT)?.ok_or("nobody sends")?;
        if let Some(report) = process.cq.explain(&done) {
            return Err(report.into());
        }
        let number = *known.of(&done).ok_or("a completion of nobody")?;
        let Peer { initiator, srq, .. } = &mut peers[number];
        if done.queue == QueueKind::Send {
            // The answer has arrived; its buffer goes back to the pool.
            drop(initiator.take_buffer(&done));
            left -= 1;
        } else {
            let message = process.receives.take(&done);
            let message = message.ok_or("a message without a buffer")?;
            // The buffer itself is what is sent back.
            let answer = op::ToSrq {
                srq: *srq,
                op: op::Send,
            };
            initiator.post_buffer(answer, message.into_buffer(), PostFlags::empty())?;
        }
        process.receives.top_up()?;
    }
    // A QP that goes away takes with it what is on the way. So nobody leaves before all are done.
    for exchange in &mut exchanges {
        exchange.barrier()?;
    }
    let srq = process.receives.queue();
    println!(
        "served {clients} clients from {srq:?} by {} initiators and {} targets",
        peers.len(),
        peers.len()
    );
    Ok(())
}

fn ask(device: &Device, server: SocketAddr, number: usize) -> Result {
    let mut exchange = tcp::connect(server, LIMIT)?;
    let mut process = Process::new(device, 1)?;
    let mut peer = process.meet(device, &mut exchange)?;
    exchange.barrier()?;
    let start = Instant::now();
    for round in 0..ROUNDS {
        let text = message(number, round);
        let mut question = process.receives.pool().take().ok_or("no buffer is left")?;
        question[..MESSAGE].copy_from_slice(&text);
        question.set_len(MESSAGE);
        let send = op::ToSrq {
            srq: peer.srq,
            op: op::Send,
        };
        peer.initiator
            .post_buffer(send, question, PostFlags::empty())?;
        // What was sent, and the answer, in whatever order.
        for _ in 0..2 {
            let done = process.cq.wait_any(LIMIT)?.ok_or("the server is silent")?;
            if let Some(report) = process.cq.explain(&done) {
                return Err(report.into());
            }
            if done.queue == QueueKind::Send {
                drop(peer.initiator.take_buffer(&done));
                continue;
            }
            let answer = process.receives.take(&done);
            let answer = answer.ok_or("a message without a buffer")?;
            if answer.qp_num != peer.target.qp_num() || answer[..] != text {
                return Err(format!("client {number}, round {round}: {answer:?} came").into());
            }
        }
        process.receives.top_up()?;
    }
    let each = start.elapsed() / ROUNDS;
    println!(
        "client {number}: {ROUNDS} round trips of {MESSAGE} bytes, {each:?} each, to SRQ {} by QP {:#x}",
        peer.srq,
        peer.initiator.qp_num()
    );
    Ok(exchange.barrier()?)
}

fn message(client: usize, round: u32) -> [u8; MESSAGE] {
    let mut message = [client as u8; MESSAGE];
    message[..4].copy_from_slice(&round.to_le_bytes());
    message
}
