//! The end that answers.

use std::time::{Duration, Instant};

use rdma_qp::exchange::tcp;

use super::end::{End, Happened};
use crate::failure::{Failure, told};

/// How often it looks whether the peer has said on the control channel that it is done.
const LOOK: Duration = Duration::from_millis(20);

/// Answers one peer until it is done; gives the number of its pings.
///
/// # Errors
/// It is gone; the device cannot be used any more.
pub fn answer(end: &mut End, peer: &mut tcp::Channel) -> Result<u64, Failure> {
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
