//! A peer that dies in the middle and comes back.
//!
//! ```text
//! cargo run --example recovery
//! ```
//!
//! A client sends numbered records to a server, which keeps them in a log. The server dies, and starts again with the log
//! that it has. The client finds out, learns what became of everything that was under way, connects the same Queue Pair
//! again, and goes on where the log ends: every record is in it once.
//!
//! What a Queue Pair knows of its sends is one thing: *done*, *not done*, or *unknown*, where the acknowledgement may have
//! been lost and not the message. What the server did with them is another: a message that was acknowledged was in its
//! memory, and if it died before it looked there, the message is gone. So after a failure it is the log that counts.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::{LIMIT, Options, Result};
use rdma_qp::exchange::{Exchange, tcp};
use rdma_qp::{
    BufferPool, Completion, Cq, Device, Fate, PostFlags, Qp, QueueKind, Recovery, Timing, op,
};

const RECORDS: u64 = 1000;
/// The server dies when it has so many.
const UNTIL_DEATH: usize = 300;
/// Sends under way at a time, and receives.
const WINDOW: u32 = 16;

fn main() -> Result {
    run(std::env::args().skip(1))
}

/// Runs one end, or both.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result {
    Options::parse(arguments, &[])?.play(
        |device, listener| {
            // What is on the disk of a real server.
            let mut log = Vec::new();
            serve(device, listener, &mut log, UNTIL_DEATH)?;
            println!("the server is dead; its log has {} records", log.len());
            serve(device, listener, &mut log, usize::MAX)?;
            if !log.iter().copied().eq(0..RECORDS) {
                return Err(
                    format!("{} records are in the log, and not in order", log.len()).into(),
                );
            }
            println!("the log has all {} records, each once", log.len());
            Ok(())
        },
        client,
    )
}

/// One life of the server. Everything that it made goes away when it ends, as if the process had been killed.
fn serve(device: &Device, listener: &tcp::Listener, log: &mut Vec<u64>, until: usize) -> Result {
    let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(64)?);
    let pool = pd.buffers(2 * WINDOW as usize, 8)?;
    let mut peer = listener.accept(LIMIT)?;
    let mut qp = pd.rc(&cq).recv_depth(2 * WINDOW).create()?;
    // A server does not know whether a client is new or comes back. It says what it has.
    peer.swap_bytes(&(log.len() as u64).to_be_bytes())?;
    let there = peer.swap(&qp.endpoint(device.port(1)?.best_gid()?)?, &[])?;
    qp.init()?;
    while let Some(buffer) = pool.take() {
        qp.recv_buffer(buffer)?;
    }
    qp.connect(&there, &mut peer, Timing::default())?;
    while (log.len() as u64) < RECORDS {
        let done = cq.wait_any(LIMIT)?.ok_or("the client is silent")?;
        let buffer = qp.take_buffer(&done).ok_or("a receive without a buffer")?;
        log.push(u64::from_be_bytes(buffer[..].try_into()?));
        if log.len() >= until {
            return Ok(());
        }
        qp.recv_buffer(buffer)?;
    }
    Ok(peer.barrier()?)
}

/// Connects as soon as somebody listens there.
fn reach(address: SocketAddr) -> Result<tcp::Channel> {
    let until = Instant::now() + LIMIT;
    loop {
        match tcp::connect(address, LIMIT) {
            Ok(peer) => return Ok(peer),
            Err(error) if Instant::now() > until => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// The number of records that the server has.
fn in_the_log(peer: &mut tcp::Channel) -> Result<u64> {
    Ok(u64::from_be_bytes(peer.swap_bytes(&[])?[..].try_into()?))
}

fn client(device: &Device, address: SocketAddr) -> Result {
    let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(64)?);
    let pool = pd.buffers(WINDOW as usize, 8)?;
    let gid = device.port(1)?.best_gid()?;
    let mut qp = pd.rc(&cq).send_depth(WINDOW).create()?;
    let mut peer = reach(address)?;
    let mut next = in_the_log(&mut peer)?;
    let there = peer.swap(&qp.endpoint(gid.clone())?, &[])?;
    // How long an unanswered request is repeated decides how fast a death is noticed: (6 + 1) x 67 ms by default.
    qp.connect(&there, &mut peer, Timing::default())?;

    while let Some(failed) = send(&mut qp, &cq, &pool, &mut next)? {
        // The report names the peer, how often was tried, and what usually causes it.
        if let Some(report) = cq.explain(&failed) {
            println!("{report}");
        }
        // A new channel, to the server's next life.
        peer = reach(address)?;
        next = in_the_log(&mut peer)?;
        // Everything at once: every request gets its outcome, the QP goes through RESET, both swap fresh PSNs, and it is in
        // RTS again. What was posted before is never delivered afterwards. A client with receives would post them in the
        // closure, where the QP is in INIT, so that they are there before the server can send.
        let recovered = qp.recover(
            &[&cq],
            &mut peer,
            &Recovery::new(gid.clone()),
            LIMIT,
            |_| Ok(()),
        )?;
        let drained = &recovered.drained;
        let count = |fate| drained.sends(fate).count();
        println!(
            "of the sends behind it {} were done, {} were not, and of {} nobody knows; the log ends at {next}",
            count(Fate::Done),
            count(Fate::NotDone),
            count(Fate::Unknown)
        );
        for done in &drained.completions {
            drop(qp.take_buffer(done));
        }
        // Nothing is lost in the books either.
        let books = qp.send_account();
        assert_eq!(
            books.accepted,
            books.succeeded + books.failed + books.flushed
        );
        assert_eq!(pool.free(), pool.count());
    }
    Ok(peer.barrier()?)
}

/// Sends records until all are acknowledged, or until one fails: then its completion comes back.
fn send(qp: &mut Qp, cq: &Cq, pool: &BufferPool, next: &mut u64) -> Result<Option<Completion>> {
    while *next < RECORDS || qp.send_account().pending > 0 {
        if *next < RECORDS
            && let Some(mut buffer) = pool.take()
        {
            buffer.copy_from_slice(&next.to_be_bytes());
            qp.post_buffer(op::Send, buffer, PostFlags::empty())?;
            *next += 1;
            continue;
        }
        let done = cq.wait_any(LIMIT)?.ok_or("a send has no outcome")?;
        debug_assert_eq!(done.queue, QueueKind::Send);
        drop(qp.take_buffer(&done));
        if done.outcome.is_err() {
            return Ok(Some(done));
        }
    }
    Ok(None)
}
