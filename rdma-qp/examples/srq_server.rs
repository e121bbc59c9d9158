//! A server that has one queue of receives for all its clients: an SRQ.
//!
//! ```text
//! cargo run --example srq_server -- --clients 16
//! cargo run --example srq_server -- --listen 0.0.0.0:7471 --clients 16
//! ```
//!
//! Receives of its own for every client, enough for the busiest, cost memory for all the others. From an SRQ, a message of
//! any client takes the next receive. So a completion has to tell whose message it is: by the number of the QP that it came
//! by. And the queue must not run dry: [`Refill`] fills it up again from a pool of buffers.

mod common;

use std::net::SocketAddr;
use std::time::Instant;

use common::{LIMIT, Options, Result};
use rdma_qp::exchange::{Exchange, tcp};
use rdma_qp::{Connections, Device, PostFlags, Qp, Refill, Timing, op};

const QUESTIONS: u32 = 50;
const LONGEST: usize = 256;
/// Receives of all clients together.
const RECEIVES: u32 = 64;

fn main() -> Result {
    run(std::env::args().skip(1))
}

/// Runs the server, its clients, or all.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result {
    let options = Options::parse(arguments, &["--clients"])?;
    let clients: u32 = options.get("--clients").unwrap_or("8").parse()?;
    options.play(
        |device, listener| server(device, listener, clients),
        |device, address| {
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..clients)
                    .map(|number| scope.spawn(move || client(device, address, number)))
                    .collect();
                all.into_iter()
                    .try_for_each(|client| client.join().map_err(|_| "a client panicked")?)
            })
        },
    )
}

/// A client as the server knows it.
struct Client {
    qp: Qp,
    peer: tcp::Channel,
    asked: u32,
}

fn server(device: &Device, listener: &tcp::Listener, clients: u32) -> Result {
    let pd = device.alloc_pd()?;
    // One CQ, too, that can wake us: between two messages this thread sleeps. Its room is what may be outstanding: the sends
    // of every client, and the receives.
    let cq = device.create_event_cq(RECEIVES + clients * 32)?;
    let srq = pd.srq().depth(RECEIVES).create()?;
    // While a message is looked at, its buffer is not in the queue: so there are some more than receives. When fewer than 16
    // receives are left, the queue is filled up.
    let mut receives = Refill::new(srq, pd.buffers(RECEIVES as usize + 16, LONGEST)?, 16);
    receives.top_up()?;
    // Each client has one question at a time; its last answer may not be reported as sent when the next question comes.
    let answers = pd.buffers(2 * clients as usize, LONGEST)?;

    let (mut all, mut connections) = (Vec::new(), Connections::new());
    for _ in 0..clients {
        let mut peer = listener.accept(LIMIT)?;
        // No receive queue of its own.
        let mut qp = pd.rc(&cq).send_depth(32).srq(receives.queue()).create()?;
        let there = peer.swap(&qp.endpoint(device.port(1)?.best_gid()?)?, &[])?;
        qp.connect(&there, &mut peer, Timing::default())?;
        // The way from a completion to its client.
        connections.insert(&qp, all.len());
        all.push(Client { qp, peer, asked: 0 });
    }

    let (mut open, mut answered) = (clients, 0u64);
    while open > 0 {
        let done = cq
            .wait_any(LIMIT)?
            .ok_or("no client says anything any more")?;
        if let Err(failure) = &done.outcome {
            return Err(format!("QP {:#x}: {:?}", done.qp_num, failure.status).into());
        }
        let client = connections
            .of(&done)
            .and_then(|number| all.get_mut(*number));
        let client = client.ok_or("a completion of nobody")?;
        // A send of ours is done: its buffer goes back to the pool.
        drop(client.qp.take_buffer(&done));
        if let Some(message) = receives.take(&done) {
            client.asked += 1;
            // The message is a buffer that we own; dropping it gives it back.
            let mut answer = answers.take().ok_or("too many answers are under way")?;
            answer.set_len(message.len());
            answer.copy_from_slice(&message);
            answer.make_ascii_uppercase();
            client
                .qp
                .post_buffer(op::Send, answer, PostFlags::empty())?;
            answered += 1;
            open -= u32::from(client.asked == QUESTIONS);
        }
        receives.top_up()?;
    }
    println!("{answered} questions of {clients} clients, by {RECEIVES} receives");
    // Answers may still be on the way: a client says when it has them all.
    all.iter_mut()
        .try_for_each(|client| Ok(client.peer.barrier()?))
}

/// Asks one question after the other. Several may be under way at a time, as long as all clients together stay below what
/// the server has receives for; if they do not, the server's device makes them wait and repeat (RNR), which is slow.
fn client(device: &Device, address: SocketAddr, number: u32) -> Result {
    let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(16)?);
    let pool = pd.buffers(2, LONGEST)?;
    let mut peer = tcp::connect(address, LIMIT)?;
    let mut qp = pd.rc(&cq).send_depth(4).recv_depth(4).create()?;
    let there = peer.swap(&qp.endpoint(device.port(1)?.best_gid()?)?, &[])?;
    qp.connect(&there, &mut peer, Timing::default())?;
    let start = Instant::now();
    for round in 0..QUESTIONS {
        // The receive for the answer first.
        let receive = qp.recv_buffer(pool.take().ok_or("a buffer is missing")?)?;
        let text = format!("client {number} asks {round}");
        let mut question = pool.take().ok_or("a buffer is missing")?;
        question.set_len(text.len());
        question.copy_from_slice(text.as_bytes());
        let sent = qp.post_buffer(op::Send, question, PostFlags::empty())?;
        cq.wait(&sent, LIMIT)?;
        let length = cq.wait(&receive, LIMIT)?.byte_len as usize;
        // Both requests have ended: their buffers can be had back.
        while qp.take_ended_buffer(rdma_qp::QueueKind::Send).is_some() {}
        let answer = qp
            .take_ended_buffer(rdma_qp::QueueKind::Recv)
            .ok_or("no answer")?;
        if answer[..length] != *text.to_ascii_uppercase().as_bytes() {
            return Err(format!(
                "{text}: {:?} came",
                String::from_utf8_lossy(&answer[..length])
            )
            .into());
        }
    }
    if number == 0 {
        println!("{:?} for each question", start.elapsed() / QUESTIONS);
    }
    Ok(peer.barrier()?)
}
