//! The end that answers.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use rdma_qp::exchange::tcp;
use rdma_qp::{AckTimeout, RetryCount, Timing};

use super::end::{End, Happened};
use super::{Answer, Hello, MEETING, VERSION, read};
use crate::device::{self, DeviceChoice};
use crate::failure::{Failure, told};
use crate::term::Style;

/// How often it looks whether the peer has said on the control channel that it is done.
const LOOK: Duration = Duration::from_millis(20);
/// How long it waits for a peer at a time.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Answers whoever comes, one after another.
///
/// # Errors
/// Nobody can come there; with `once` also what went wrong with the one that came.
pub fn serve(address: &str, choice: &DeviceChoice, once: bool) -> Result<(), Failure> {
    let listener = tcp::listen(address).map_err(told)?;
    let style = Style::of(&io::stdout());
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "listening on {}",
        style.bold(listener.local_addr().map_err(told)?)
    )?;
    out.flush()?;
    loop {
        let Ok(mut peer) = listener.accept(PATIENCE) else {
            continue;
        };
        // A peer that is silent keeps others waiting no longer than the meeting may take.
        peer.set_limit(MEETING);
        let from = peer.peer_addr();
        let answered = answer(&mut peer, choice);
        match &answered {
            Ok(pings) => writeln!(out, "{from}: answered {pings} pings")?,
            Err(failure) => writeln!(out, "{from}: {}", crate::term::Harmless(failure))?,
        }
        out.flush()?;
        if once {
            return answered.map(|_| ());
        }
    }
}

/// Answers one peer until it is done; gives the number of its pings.
///
/// # Errors
/// It is gone, or asks for what this end cannot do; the device cannot be used.
pub fn answer(peer: &mut tcp::Channel, choice: &DeviceChoice) -> Result<u64, Failure> {
    let hello: Hello = read(&peer.recv().map_err(told)?)?;
    let made = prepare(&hello, choice);
    let refused = made.as_ref().err().map(ToString::to_string);
    peer.send(&serde_json::to_vec(&Answer { refused }).map_err(told)?)
        .map_err(told)?;
    let (mut end, timing) = made?;
    end.meet(peer, timing)?;
    let mut pings = 0;
    let mut failed = false;
    loop {
        // A Queue Pair that failed flushes, and then stays silent: only the control channel counts.
        match end.next(Instant::now() + LOOK)? {
            Happened::Came(number) if !failed => {
                pings += 1;
                end.send(number)?;
            }
            Happened::Failed(_) => failed = true,
            _ => {}
        }
        // The peer says that it is done by its own dump, and wants the one of this end.
        if peer.try_recv().map_err(told)?.is_some() {
            peer.send(end.taking().to_json().as_bytes()).map_err(told)?;
            return Ok(pings);
        }
    }
}

/// The end that the peer asks for.
fn prepare(hello: &Hello, choice: &DeviceChoice) -> Result<(End, Timing), Failure> {
    if hello.qp != "ping" || hello.version != VERSION {
        return Err(Failure::told(format!(
            "this is `qp ping` of version {VERSION}, the other end's is {}: use the same release",
            hello.version
        )));
    }
    if !(8..=1 << 20).contains(&hello.size) {
        return Err(Failure::told(format!(
            "a ping of {} bytes is not within 8 to 1048576",
            hello.size
        )));
    }
    let timing = Timing {
        timeout: AckTimeout::from_code(hello.timeout).map_err(told)?,
        retry_cnt: RetryCount::new(hello.retry_cnt).map_err(told)?,
        ..Timing::default()
    };
    let opened = device::open(choice)?;
    Ok((
        End::new(&opened, hello.transport, hello.size, choice.mtu)?,
        timing,
    ))
}
