//! A message to and fro, by each transport that a Queue Pair can have.
//!
//! ```text
//! cargo run --example pingpong -- --transport rc          # or uc, or ud
//! cargo run --example pingpong -- --listen 0.0.0.0:7471 --device mlx5_0      # one end, and on another host:
//! cargo run --example pingpong -- --connect 192.0.2.1:7471 --device mlx5_0
//! ```
//!
//! * **RC** is connected and reliable: a SEND that succeeded has arrived, and one that could not arrive is an error.
//! * **UC** is connected and not reliable: a message that is lost is lost, and its SEND succeeds all the same.
//! * **UD** has no connection: one Queue Pair talks to any number of others, in datagrams of at most one MTU.

mod common;

use std::time::Instant;

use common::{LIMIT, Options, Result};
use rdma_qp::exchange::{Exchange, tcp};
use rdma_qp::{
    Access, Connects, Cq, Device, Grh, Memory, Mr, Op, PathOptions, Pd, Peer, QKey, Qp, RecvQueue,
    Timing, Ud, op,
};

const ROUNDS: u32 = 1000;
const MESSAGE: usize = 32;
/// Messages leave from the beginning of the region and arrive here. A datagram has 40 bytes in front, the GRH, in
/// which the device says where it came from; the receive must have room for them.
const INBOX: usize = 64;

fn main() -> Result {
    run(std::env::args().skip(1))
}

/// Runs one end, or both.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result {
    let options = Options::parse(arguments, &["--transport"])?;
    let transport = options.get("--transport").unwrap_or("rc");
    options.play(
        |device, listener| end(device, &mut listener.accept(LIMIT)?, transport, false),
        |device, address| end(device, &mut tcp::connect(address, LIMIT)?, transport, true),
    )
}

/// One end. `first` is the one that begins.
fn end(device: &Device, peer: &mut tcp::Channel, transport: &str, first: bool) -> Result {
    let pd = device.alloc_pd()?;
    // The completions of both queues come here. There is room for all that can be under way, or creating the QP fails.
    let cq = device.create_cq(64)?;
    // The device writes what arrives into this memory, so it has to be registered, and may be written locally. Peers get
    // no access: SEND needs none.
    let mr = pd.register(Memory::zeroed(4096), Access::LOCAL_WRITE)?;
    match transport {
        "rc" => connected(pd.rc(&cq).create()?, device, peer, &cq, &mr, first),
        "uc" => connected(pd.uc(&cq).create()?, device, peer, &cq, &mr, first),
        "ud" => datagrams(&pd, device, peer, &cq, &mr, first),
        other => Err(format!("{other} is none of rc, uc and ud").into()),
    }
}

/// RC and UC differ in their type only. What a transport does not have does not compile: READ on UC, say.
fn connected<T: Connects + RecvQueue>(
    mut qp: Qp<T>,
    device: &Device,
    peer: &mut tcp::Channel,
    cq: &Cq,
    mr: &Mr,
    first: bool,
) -> Result
where
    op::Send: Op<T>,
{
    let here = qp.endpoint(device.port(1)?.best_gid()?)?;
    let there = peer.swap(&here, &[])?;
    // Receives can be posted from INIT on. The first one is posted before the peer can send: on RC a message without a
    // receive is repeated for a while, on UC it is gone.
    qp.init()?;
    let mut receive = qp.recv(mr.slice(INBOX, MESSAGE)?)?;
    qp.connect(&there, peer, Timing::default())?;

    let start = Instant::now();
    for round in 0..ROUNDS {
        if first {
            mr.write_at(0, &message(round))?;
            let ticket = qp.send(mr.slice(0, MESSAGE)?)?;
            cq.wait(&ticket, LIMIT)?;
        }
        cq.wait(&receive, LIMIT)?;
        let mut got = [0; MESSAGE];
        mr.read_at(INBOX, &mut got)?;
        check(round, &got)?;
        // The next receive is there before the answer leaves, because the answer is what the peer sends the next one on.
        receive = qp.recv(mr.slice(INBOX, MESSAGE)?)?;
        if !first {
            mr.write_at(0, &got)?;
            let ticket = qp.send(mr.slice(0, MESSAGE)?)?;
            cq.wait(&ticket, LIMIT)?;
        }
    }
    report(&format!("{qp}"), start, first);
    // A QP that goes away takes with it what is on the way. So nobody leaves before both are done.
    Ok(peer.barrier()?)
}

fn datagrams(
    pd: &Pd,
    device: &Device,
    peer: &mut tcp::Channel,
    cq: &Cq,
    mr: &Mr,
    first: bool,
) -> Result {
    let mut qp: Qp<Ud> = pd.ud(cq).create()?;
    // RESET to RTS in one call: there is no peer to wait for. Only datagrams with our Q_Key get in.
    let gid = device.port(1)?.best_gid()?;
    let here = qp.activate(gid, QKey::random()?, PathOptions::default())?;
    let mut receive = qp.recv(mr.slice(INBOX, Grh::LEN + MESSAGE)?)?;
    // What others need to know of it goes to the peer, and by now its first datagram finds a receive.
    let Peer { endpoint, .. } = peer.swap(&here, &[])?;
    // The way there: an address handle, which the PD keeps for the next one who wants it, a QP number and a Q_Key.
    let to = qp.destination(&endpoint)?;

    let start = Instant::now();
    for round in 0..ROUNDS {
        if first {
            mr.write_at(0, &message(round))?;
            let ticket = qp.send_to(mr.slice(0, MESSAGE)?, &to)?;
            cq.wait(&ticket, LIMIT)?;
        }
        // Nobody repeats a datagram that is lost. Here it is an error after a while; a program would send it again.
        let success = cq.wait(&receive, LIMIT)?;
        let mut got = [0; MESSAGE];
        mr.read_at(INBOX + Grh::LEN, &mut got)?;
        check(round, &got)?;
        // An answer needs no record of the peer's: the completion and the GRH say who sent it. But its Q_Key they do not
        // say, and ours is another, so here it goes by the record.
        let sender = success.sender.ok_or("a datagram has a sender")?;
        if sender.qp_num != endpoint.qp_num {
            return Err("a datagram of somebody else".into());
        }
        receive = qp.recv(mr.slice(INBOX, Grh::LEN + MESSAGE)?)?;
        if !first {
            mr.write_at(0, &got)?;
            let ticket = qp.send_to(mr.slice(0, MESSAGE)?, &to)?;
            cq.wait(&ticket, LIMIT)?;
        }
    }
    report(&format!("{qp}"), start, first);
    Ok(peer.barrier()?)
}

fn message(round: u32) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..4].copy_from_slice(&round.to_le_bytes());
    message
}

fn check(round: u32, got: &[u8; MESSAGE]) -> Result {
    if *got != message(round) {
        return Err(format!("round {round}: {got:?} came").into());
    }
    Ok(())
}

fn report(qp: &str, start: Instant, first: bool) {
    if first {
        println!(
            "{ROUNDS} round trips of {MESSAGE} bytes, {:?} each, by {qp}",
            start.elapsed() / ROUNDS
        );
    }
}
