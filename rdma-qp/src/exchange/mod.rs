//! How two ends that want to connect tell each other who they are.
//!
//! An [`Exchange`] swaps opaque bytes with one peer and knows a barrier. There are several, and none is needed:
//!
//! | what both ends have | what to take |
//! |---|---|
//! | a network | [`tcp`]: one listens, one connects; stays on as a control channel that notices a peer's death |
//! | one host | [`shm`]: both name the same file in shared memory, or inherit two descriptors |
//! | MPI, PMIx, a launcher, a queue | [`from_fn`]: two functions, one that swaps and one that waits |
//! | a way to move bytes, and a barrier of their own | no exchange: [`Peer::encode`], [`Peer::decode`], and connecting in two steps |
//!
//! # Connecting in two steps
//!
//! What connecting needs of the other end is one record, of [`Peer::encoded_len`] bytes; how it gets there is the program's
//! affair. Then [`connect_begin`](crate::Qp::connect_begin) takes the QP to RTR, where it receives, and after a barrier
//! [`connect_finish`](crate::Qp::connect_finish) takes it to RTS, where it sends. The barrier is what matters: what is sent
//! to a QP that is not in RTR yet is dropped without a word. With MPI:
//!
//! ```text
//! let mine = Peer { endpoint: qp.endpoint(gid)?, regions: vec![mr.remote()] }.encode()?;
//! MPI_Sendrecv(mine, theirs)                 // both of Peer::encoded_len(1) bytes
//! let agreed = qp.connect_begin(&Peer::decode(&theirs)?, timing)?;
//! MPI_Barrier()                              // of everybody: one barrier for any number of QPs
//! qp.connect_finish(agreed, timing)?;
//! ```
//!
//! ```
//! # use rdma_qp::{Access, Device, Memory, Peer, Timing};
//! # let device = Device::open_index(rdma_soft::verbs(), 0)?;
//! # let gid = device.port(1)?.best_gid()?;
//! # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
//! # let mr = pd.register(Memory::zeroed(64), Access::REMOTE_WRITE)?;
//! # let (mut left, mut right) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
//! let timing = Timing::default();
//! let of_left = Peer { endpoint: left.endpoint(&gid)?, regions: vec![mr.remote()] }.encode()?;
//! let of_right = Peer { endpoint: right.endpoint(&gid)?, regions: vec![] }.encode()?;
//! assert_eq!(of_left.len(), Peer::encoded_len(1));
//! // Each record goes to the other end, in whatever way. Then, on each end:
//! let agreed_left = left.connect_begin(&Peer::decode(&of_right)?, timing)?;
//! let agreed_right = right.connect_begin(&Peer::decode(&of_left)?, timing)?;
//! // Here both ends wait for each other.
//! left.connect_finish(agreed_left, timing)?;
//! right.connect_finish(agreed_right, timing)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod frames;
mod from_fn;
pub mod shm;
pub mod tcp;

use std::time::Instant;

use crate::endpoint::{DecodeError, Endpoint, Peer, RemoteRegion, encode};
use crate::rtt::Rtt;

pub use from_fn::{FromFn, from_fn};

/// Longest message of the exchanges of this module, in bytes. A record of the most regions fits.
pub const MAX_MESSAGE: usize = 64 * 1024;

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

    /// Measures the round trip to the peer, which measures at the same time: `rounds` of two empty swaps each, because the
    /// second answer is sent after the first question arrived. At least 1 round; 32 take a moment and show the jitter.
    ///
    /// What is measured is this channel, software at both ends included. That is never shorter than the QP's own round
    /// trip where both take the same way; where they do not (a network for management), measure over the QP once it is
    /// connected, see [`Qp::measure_rtt`](crate::Qp::measure_rtt).
    ///
    /// # Errors
    /// As [`Exchange::swap_bytes`].
    fn measure_rtt(&mut self, rounds: u32) -> Result<Rtt, ExchangeError> {
        // Both ends begin together, however long one had to wait for the other.
        self.swap_bytes(&[])?;
        let mut samples = Vec::new();
        for _ in 0..rounds.max(1) {
            let start = Instant::now();
            self.swap_bytes(&[])?;
            self.swap_bytes(&[])?;
            samples.push(start.elapsed());
        }
        Ok(Rtt::of(&samples).unwrap_or_default())
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
    #[error("the exchange failed: {0}")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
}
