//! What can go wrong.

use rdma_core_sys::ibv_wc_status;

use super::PeerId;
use crate::ah::DestinationError;
use crate::cq::{CreateCqError, PollError};
use crate::endpoint::DecodeError;
use crate::errno::Errno;
use crate::pd::RegisterError;
use crate::port::{BadPort, QueryPortError};
use crate::qp::{ActivateError, CreateQpError, PostError};

/// An end could not be made, or does not work any more. What concerns single peers is an [`Event`](super::Event).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// An option cannot be what it is.
    #[error("{option} is {value}: {cure}")]
    Option {
        /// The option.
        option: &'static str,
        /// What it is.
        value: u64,
        /// What to do about it.
        cure: String,
    },
    /// The port does not exist.
    #[error(transparent)]
    Port(#[from] BadPort),
    /// The port cannot be asked.
    #[error(transparent)]
    Query(#[from] QueryPortError),
    /// There is no CQ for it.
    #[error(transparent)]
    Cq(#[from] CreateCqError),
    /// There is no UD QP for it.
    #[error(transparent)]
    Create(#[from] CreateQpError),
    /// The QP could not be made ready.
    #[error(transparent)]
    Activate(#[from] ActivateError),
    /// The memory for its packets could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The device took a request no more.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The CQ does not work any more.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// The device could not send or receive a packet. Nothing that somebody else sends makes this happen as long as the adapter goes
    /// on after a datagram that is longer than its receive: that one is [counted](super::Counters::malformed). Where an adapter moves
    /// the QP to ERR for it, the other receives are flushed, and that is told here.
    #[error(
        "the device ended a request of QP {qp_num:#x} with {status:?}: the end does not work any more, make a new one"
    )]
    Failed {
        /// The QP.
        qp_num: u32,
        /// What the completion says.
        status: ibv_wc_status,
    },
    /// Its card cannot be written.
    #[error(transparent)]
    Card(#[from] DecodeError),
    /// The system refused.
    #[error("the system refuses what the end needs: {0}")]
    System(#[from] Errno),
    /// The system has no random bytes for a Q_Key.
    #[error("the system has no random bytes: {0}")]
    Random(#[from] std::io::Error),
}

/// A peer was not added or moved. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// There is no more room.
    #[error("there are {peers} peers already: set Options::peers to more")]
    Full {
        /// Peers that there are.
        peers: u32,
    },
    /// There is no such peer, or it was removed.
    #[error("{0} is none of this end's, or was removed")]
    NoSuchPeer(PeerId),
    /// Another peer is at that address.
    #[error("{0} is at that address already")]
    Taken(PeerId),
    /// It is no card.
    #[error("these {len} bytes are no card of an end for datagrams: they begin with {begin:02x?}")]
    NotACard {
        /// How many there are.
        len: usize,
        /// What they begin with.
        begin: Vec<u8>,
    },
    /// A version that this library does not know.
    #[error(
        "the card has version {version}, this library reads 2: use the same release at both ends"
    )]
    Version {
        /// Its version.
        version: u8,
    },
    /// The endpoint record in the card cannot be read.
    #[error("the card has no endpoint record that can be read: {0}")]
    Record(#[from] DecodeError),
    /// There is no way to it.
    #[error(transparent)]
    Destination(#[from] DestinationError),
}

/// A message was not taken. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no such peer, or it was removed.
    #[error("{0} is none of this end's, or was removed")]
    NoSuchPeer(PeerId),
    /// Longer than what the peer takes, or than half of what this end keeps for repetitions.
    #[error(
        "a message of {len} bytes is over the limit of {max}: {}", if *.own { "set Options::send_packets to more" } else { "set the peer's Options::max_message to more" }
    )]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
        /// Whether it is this end's limit.
        own: bool,
    },
    /// There is no room at present: poll, and try again.
    #[error("there is no room for another message at present: poll, take events, and try again")]
    WouldBlock,
    /// The end does not work any more.
    #[error(transparent)]
    End(#[from] DatagramError),
}
