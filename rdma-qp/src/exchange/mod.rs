//! How two ends that want to connect tell each other who they are.
//!
//! An [`Exchange`] swaps opaque bytes with one peer and knows a barrier. [`tcp`] is one over a TCP connection; a
//! launcher or MPI can be another: implement the two required methods.

pub mod tcp;

use crate::endpoint::{DecodeError, Endpoint, Peer, RemoteRegion, encode};

/// A channel to one peer, over which both ends swap bytes and wait for each other.
///
/// Both ends call the same methods in the same order.
pub trait Exchange {
    /// Gives `mine` to the peer and returns what the peer gave.
    ///
    /// # Errors
    /// The peer is gone, silent beyond the limit of this channel, or does something else than swap.
    fn swap_bytes(&mut self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError>;

    /// Returns when the peer has called it too.
    ///
    /// # Errors
    /// The peer is gone, silent beyond the limit of this channel, or does something else than wait.
    fn barrier(&mut self) -> Result<(), ExchangeError>;

    /// Tells the peer about this end and the regions that it offers, and returns the same of the peer.
    ///
    /// # Errors
    /// As [`Exchange::swap_bytes`]; also when the peer's answer is no endpoint record.
    fn swap(&mut self, mine: &Endpoint, offered: &[RemoteRegion]) -> Result<Peer, ExchangeError> {
        Ok(Peer::decode(&self.swap_bytes(&encode(mine, offered)?)?)?)
    }
}

/// An exchange with the peer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The peer closed the channel, or it broke.
    #[error("the peer {peer} is gone: {reason}")]
    PeerLost {
        /// Who it was.
        peer: String,
        /// How it was noticed.
        reason: String,
    },
    /// The peer was silent for too long.
    #[error("no answer from {peer} in {step} within {limit:?}")]
    TimedOut {
        /// Who it is.
        peer: String,
        /// What was waited for.
        step: &'static str,
        /// For how long.
        limit: std::time::Duration,
    },
    /// The peer did something else than this end: one of them is at another step.
    #[error(
        "{peer} sent a {got} where a {expected} was expected: both ends must make the same calls in the same order"
    )]
    OutOfStep {
        /// Who it is.
        peer: String,
        /// What was expected.
        expected: &'static str,
        /// What came.
        got: String,
    },
    /// A message longer than this channel carries.
    #[error("a message of {len} bytes is over the limit of {max}")]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The address cannot be reached or listened on.
    #[error("cannot {action} {address}: {source}{hint}")]
    Address {
        /// "connect to" or "listen on".
        action: &'static str,
        /// The address.
        address: String,
        /// What to do about it; empty, or beginning with "; ".
        hint: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The peer's endpoint record cannot be read, or this end's not be written.
    #[error(transparent)]
    Record(#[from] DecodeError),
    /// A channel of another kind failed in its own way.
    #[error("the exchange failed")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
}
