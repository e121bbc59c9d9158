//! A hub that talks with many members over one Queue Pair: reliable datagrams.
//!
//! ```text
//! cargo run --release --example datagram -- --members 64 --messages 1000
//! RDMA_SOFT_FAULTS=loss=5%,reorder=5% cargo run --release --example datagram
//! ```
//!
//! Each member has an end of its own, in a thread, and they meet the hub over TCP, once, to swap cards. Then the hub sends
//! messages of all lengths to all of them, and each sends back what it got. With `--listen ADDRESS` only the hub runs, and with
//! `--connect ADDRESS` only the members.

#[allow(dead_code)]
mod common;

use std::collections::VecDeque;
use std::net::SocketAddr;

use common::{LIMIT, Options, Result};
use rdma_qp::Device;
use rdma_qp::datagram::{self, Datagrams, Event, PeerId, SendError};
use rdma_qp::exchange::{Exchange, tcp};

/// Messages that the hub has under way to each member.
const WINDOW: u32 = 8;

#[allow(dead_code)]
fn main() -> Result {
    run(std::env::args().skip(1))
}

/// Runs both ends, or the one that the arguments ask for.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result {
    let options = Options::parse(arguments, &["--members", "--messages"])?;
    let members = options.get("--members").unwrap_or("8").parse()?;
    let messages = options.get("--messages").unwrap_or("200").parse()?;
    options.play(
        |device, listener| hub(device, listener, members, messages),
        |device, address| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..members)
                    .map(|_| scope.spawn(move || member(device, address)))
                    .collect();
                let mut joined = threads.into_iter().map(|thread| thread.join());
                joined.try_for_each(|ended| ended.map_err(|_| "a member panicked")?)
            })
        },
    )
}

fn end(device: &Device, peers: u32) -> Result<Datagrams> {
    let pd = device.alloc_pd()?;
    let gid = device.port(1)?.best_gid()?;
    let options = datagram::Options {
        peers,
        receives: 32 * peers.max(8),
        ..datagram::Options::default()
    };
    Ok(Datagrams::new(device, &pd, &gid, &options)?)
}

/// Message number `number` for a member: its length and its bytes follow from both.
fn message(member: usize, number: u32) -> Vec<u8> {
    let len = (number as usize * 977 + member * 31) % 20_000;
    (0..len)
        .map(|at| (at + member + number as usize) as u8)
        .collect()
}

fn hub(device: &Device, listener: &tcp::Listener, members: u32, messages: u32) -> Result {
    let mut end = end(device, members)?;
    let mut peers: Vec<PeerId> = Vec::new();
    for _ in 0..members {
        let mut channel = listener.accept(LIMIT)?;
        let card = channel.swap_bytes(&end.card()?)?;
        peers.push(end.add_peer(&card)?);
    }
    // Of each member: what was sent, and what came back.
    let mut sent = vec![0; peers.len()];
    let mut back = vec![0; peers.len()];
    while back.iter().any(|back| *back < messages) {
        for (member, peer) in peers.iter().enumerate() {
            while sent[member] < messages && sent[member] - back[member] < WINDOW {
                match end.send(*peer, &message(member, sent[member])) {
                    Ok(_) => sent[member] += 1,
                    Err(SendError::WouldBlock) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        match end.wait(LIMIT)?.ok_or("nothing came")? {
            Event::Received { peer, message: got } => {
                // Peers were numbered in the order in which they were added.
                let member = peer.index();
                if got[..] != message(member, back[member]) {
                    return Err(format!("member {member} sent back something else").into());
                }
                back[member] += 1;
            }
            Event::Lost { .. } | Event::Dead { .. } => return Err("a member is gone".into()),
            _ => {}
        }
    }
    // That was all.
    for peer in &peers {
        end.send(*peer, b"")?;
    }
    end.flush(LIMIT, drop)?;
    let counters = end.counters();
    println!(
        "1 Queue Pair, {members} members, {} messages there and back; {} packets sent, {} of them again",
        members * messages,
        counters.sent + counters.repeated,
        counters.repeated
    );
    Ok(())
}

fn member(device: &Device, address: SocketAddr) -> Result {
    let mut end = end(device, 1)?;
    let mut channel = tcp::connect(address, LIMIT)?;
    let card = channel.swap_bytes(&end.card()?)?;
    let hub = end.add_peer(&card)?;
    let (mut got, mut is_over) = (0, false);
    let mut answers: VecDeque<Vec<u8>> = VecDeque::new();
    while !is_over || !answers.is_empty() {
        while let Some(answer) = answers.front() {
            match end.send(hub, answer) {
                Ok(_) => drop(answers.pop_front()),
                Err(SendError::WouldBlock) => break,
                Err(error) => return Err(error.into()),
            }
        }
        match end.wait(LIMIT)?.ok_or("nothing came")? {
            // One of the messages is empty as well, the first.
            Event::Received { message, .. } if message.is_empty() && got > 0 => is_over = true,
            Event::Received { message, .. } => {
                got += 1;
                answers.push_back(message.to_vec());
            }
            Event::Lost { .. } | Event::Dead { .. } => return Err("the hub is gone".into()),
            _ => {}
        }
    }
    // The hub may ask again for an acknowledgement that got lost, until it is gone.
    end.flush(LIMIT, drop)?;
    while let Some(event) = end.wait(std::time::Duration::from_millis(100))? {
        drop(event);
    }
    Ok(())
}
