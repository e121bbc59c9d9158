//! A meeting over whatever carries messages.
//!
//! ```text
//! offset  size  field
//!      0     1  1 call, 2 answer, 3 word, 4 end
//!      1     1  version, 1
//!      2     8  number of the sender
//!     10     8  number of the receiver; 0 in a call
//!     18     -  of a word: what is said
//! ```
//!
//! Integers are in network order. A number is an end's for as long as it does not leave: a channel is a pair of them, and what
//! names another pair is of a channel that is over.
//!
//! A call, and an answer to this end's last call, name the number that the peer has now, whatever number it had before: they come
//! in the order in which they were sent, so the last one is of the peer's latest life. A call that the peer gave up may still
//! come; it is answered, which nobody hears, and what the peer sends next takes its place.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::{Meeting, Sign};
use crate::draw::Draws;
use crate::exchange::ExchangeError;

#[cfg(test)]
mod tests;

const CALL: u8 = 1;
const ANSWER: u8 = 2;
const WORD: u8 = 3;
const END: u8 = 4;
const VERSION: u8 = 1;
const HEAD: usize = 18;

/// Messages without a meaning that are read at a time: a service that never runs dry keeps nobody for ever.
const AT_A_TIME: usize = 64;

/// What carries messages to one peer and back, whole and in the order in which they were sent: a launcher, MPI, a message
/// service. [`carried`] makes a [`Meeting`] of it.
pub trait Courier: Send {
    /// Sends a message, of up to some ten thousand bytes if many regions are offered. Does not wait for the peer.
    ///
    /// # Errors
    /// It cannot be sent.
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError>;

    /// The next message of the peer's. `None`: there is none at present. Does not wait.
    ///
    /// # Errors
    /// The peer cannot be heard any more.
    fn recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError>;

    /// How often to look for messages while a connection sleeps; 10 ms if not said.
    fn poll_every(&self) -> Duration {
        Duration::from_millis(10)
    }
}

/// Meets the peer over what carries messages. Both ends do the same: whoever looks first calls the other.
///
/// What the peer sent before it was restarted is told from what it sends now. Where the service does not say that a process has
/// ended, its end is noticed as its silence is, see [the module](super#how-a-death-is-noticed).
///
/// ```
/// use rdma_qp::exchange::ExchangeError;
/// use rdma_qp::supervise::{Courier, Meeting, Sign, carried};
/// use std::sync::mpsc::{Receiver, Sender, channel};
///
/// struct Pipe(Sender<Vec<u8>>, Receiver<Vec<u8>>);
///
/// impl Courier for Pipe {
///     fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
///         self.0.send(message.to_vec()).map_err(|gone| ExchangeError::Other(gone.into()))
///     }
///     fn recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
///         Ok(self.1.try_recv().ok())
///     }
/// }
///
/// let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
/// let (mut a, mut b) = (carried(Pipe(to_b, from_b)), carried(Pipe(to_a, from_a)));
/// a.seek();
/// assert_eq!(b.poll(), Some(Sign::Met));
/// assert_eq!(a.poll(), Some(Sign::Met));
/// a.send(b"hello")?;
/// assert_eq!(b.poll(), Some(Sign::Message(b"hello".to_vec())));
/// drop(a);
/// assert!(matches!(b.poll(), Some(Sign::Lost(_))));
/// # Ok::<(), ExchangeError>(())
/// ```
pub fn carried<C: Courier>(courier: C) -> Carried<C> {
    // Each of these has keys of its own, drawn at random.
    let seed = RandomState::new().hash_one(std::process::id());
    let mut draws = Draws::new(seed);
    Carried {
        courier,
        mine: draws.next(),
        draws,
        theirs: None,
        seeking: false,
        broken: None,
        more: false,
    }
}

/// A [`Meeting`] over what carries messages, see [`carried`].
pub struct Carried<C: Courier> {
    courier: C,
    draws: Draws,
    /// This end's number.
    mine: u64,
    /// The peer's, while there is a channel.
    theirs: Option<u64>,
    /// This end has called, and nobody has answered.
    seeking: bool,
    /// Why this end could not call.
    broken: Option<String>,
    /// There may be messages that were not read for now.
    more: bool,
}

impl<C: Courier> Carried<C> {
    fn tell(&mut self, kind: u8, to: u64, body: &[u8]) -> Result<(), ExchangeError> {
        let mut message = Vec::with_capacity(HEAD + body.len());
        message.extend([kind, VERSION]);
        message.extend(self.mine.to_be_bytes());
        message.extend(to.to_be_bytes());
        message.extend(body);
        self.courier.send(&message)
    }

    /// What a message means.
    fn take(&mut self, message: &[u8]) -> Option<Sign> {
        let (head, body) = message.split_first_chunk::<HEAD>()?;
        let [kind, VERSION, numbers @ ..] = head else {
            return None;
        };
        let (from, to) = numbers.split_at(8);
        let from = u64::from_be_bytes(from.try_into().ok()?);
        let to = u64::from_be_bytes(to.try_into().ok()?);
        let of_channel = self.theirs == Some(from) && to == self.mine;
        match *kind {
            // Calls that cross need no second channel, and no second answer.
            CALL if self.theirs != Some(from) => {
                (self.theirs, self.seeking) = (Some(from), false);
                match self.tell(ANSWER, from, &[]) {
                    Ok(()) => Some(Sign::Met),
                    Err(error) => Some(self.lost(error)),
                }
            }
            // A call that the peer gave up may have come before.
            ANSWER if self.theirs != Some(from) && to == self.mine => {
                (self.theirs, self.seeking) = (Some(from), false);
                Some(Sign::Met)
            }
            WORD if of_channel => Some(Sign::Message(body.to_vec())),
            END if of_channel => Some(self.lost("the peer has left")),
            _ => None,
        }
    }

    /// There is no channel any more, and this end looks for none.
    fn lost(&mut self, why: impl fmt::Display) -> Sign {
        self.close();
        Sign::Lost(why.to_string())
    }

    fn close(&mut self) {
        (self.theirs, self.seeking) = (None, false);
        self.mine = self.draws.next();
    }
}

impl<C: Courier> Meeting for Carried<C> {
    fn seek(&mut self) {
        self.leave();
        match self.tell(CALL, 0, &[]) {
            Ok(()) => self.seeking = true,
            Err(error) => self.broken = Some(error.to_string()),
        }
    }

    fn poll(&mut self) -> Option<Sign> {
        if let Some(why) = self.broken.take() {
            return Some(Sign::Lost(why));
        }
        self.more = false;
        for _ in 0..AT_A_TIME {
            match self.courier.recv() {
                Ok(None) => return None,
                Ok(Some(message)) => {
                    if let Some(sign) = self.take(&message) {
                        return Some(sign);
                    }
                }
                // Told once: without a channel nobody waits for it.
                Err(error) if self.theirs.is_some() || self.seeking => {
                    return Some(self.lost(error));
                }
                Err(_) => return None,
            }
        }
        self.more = true;
        None
    }

    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        let theirs = self.theirs.ok_or_else(|| ExchangeError::PeerLost {
            peer: "that is met by messages".to_owned(),
            reason: "there is no channel".to_owned(),
        })?;
        self.tell(WORD, theirs, message)
    }

    fn leave(&mut self) {
        if let Some(theirs) = self.theirs {
            // A peer that cannot be told finds out by itself.
            let _ = self.tell(END, theirs, &[]);
        }
        self.broken = None;
        self.close();
    }

    fn poll_every(&self) -> Option<Duration> {
        // Told, or read on, at once.
        let at_once = self.broken.is_some() || self.more;
        Some(match at_once {
            true => Duration::ZERO,
            false => self.courier.poll_every(),
        })
    }
}

impl<C: Courier> Drop for Carried<C> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<C: Courier> fmt::Debug for Carried<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carried")
            .field("mine", &self.mine)
            .field("theirs", &self.theirs)
            .finish_non_exhaustive()
    }
}
