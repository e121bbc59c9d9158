//! The end that answers.

use std::time::{Duration, Instant};

use super::end::{End, Happened};
use crate::perf::control::{Over, Peer, Trouble, Word, attend, say};

/// How often it looks whether the peer has said on the control channel that it is done.
const LOOK: Duration = Duration::from_millis(20);

/// Answers one peer until it is done; gives the number of its pings.
///
/// # Errors
/// It is gone; the device cannot be used any more.
pub fn answer(end: &mut End, peer: &mut Peer) -> Result<u64, Trouble> {
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
        match attend(peer) {
            Ok(()) => {}
            // The peer is done, and wants to know how this end is.
            Err(Trouble::Over(_)) => {
                let dump = end.taking().to_json();
                say(peer, &Word::Over(Over { dump, failed: None }))?;
                return Ok(pings);
            }
            Err(trouble) => return Err(trouble),
        }
    }
}
