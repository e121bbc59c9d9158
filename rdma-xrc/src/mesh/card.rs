//! What the processes of a job tell each other before anything else: one card each, which the launcher hands around.
//!
//! ```text
//! offset  size  field
//!      0     4  "QPMC"
//!      4     1  version, 1
//!      5     1  transport: 1 RC, 2 XRC, 3 datagrams
//!      6     2  bytes of the card of its end for datagrams; 0 on RC and XRC
//!      8     4  rank
//!     12     4  number of the SRQ; 0 but on XRC
//!     16     4  longest message that it receives
//!     20     -  the card of its end for datagrams, and then the endpoint record of its UD QP, with the regions that it offers
//! ```
//!
//! Integers are in network order, as in the record.

use rdma_qp::xrc::SrqNum;
use rdma_qp::{DecodeError, Peer};

use super::{Over, Rank};

const MAGIC: [u8; 4] = *b"QPMC";
const VERSION: u8 = 1;
const HEAD: usize = 20;

/// A card cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// The exchange gave more or fewer cards than there are processes.
    #[error("the exchange gave {given} cards, but the job has {processes} processes")]
    Count {
        /// Cards given.
        given: usize,
        /// Processes of the job.
        processes: usize,
    },
    /// It is no card.
    #[error("the card of {of} is none: it has {len} bytes and begins with {begin:02x?}")]
    NotACard {
        /// Whose it should be.
        of: Rank,
        /// Its length.
        len: usize,
        /// What it begins with.
        begin: Vec<u8>,
    },
    /// A version that this library does not know.
    #[error(
        "the card of {of} has version {version}, this library reads {VERSION}: use the same release everywhere"
    )]
    Version {
        /// Whose it is.
        of: Rank,
        /// Its version.
        version: u8,
    },
    /// The cards are not in the order of the ranks.
    #[error(
        "the card at the place of {of} is that of {found}: give the cards in the order of the ranks"
    )]
    Order {
        /// Whose it should be.
        of: Rank,
        /// Whose it is.
        found: Rank,
    },
    /// The process has another transport than this one.
    #[error("{of} has {theirs} and this process {ours}: choose the same in the whole job")]
    Transport {
        /// Which process.
        of: Rank,
        /// Its transport.
        theirs: &'static str,
        /// That of this process.
        ours: &'static str,
    },
    /// The own card did not come back as it was given.
    #[error("the exchange did not give back this process's own card")]
    NotOurs,
    /// Its endpoint record cannot be read.
    #[error("the card of {of}: {source}")]
    Record {
        /// Whose it is.
        of: Rank,
        /// Why.
        source: DecodeError,
    },
    /// Its SRQ has no number that a request can name.
    #[error("the card of {of}: {source}")]
    Srq {
        /// Whose it is.
        of: Rank,
        /// Why.
        source: rdma_qp::xrc::BadSrqNum,
    },
}

/// What one process tells all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) rank: Rank,
    /// Its SRQ; only XRC has any.
    pub(super) srq: Option<SrqNum>,
    /// The card of its end for datagrams, where they are what the mesh is over.
    pub(super) datagrams: Option<Vec<u8>>,
    /// Longest message that it receives.
    pub(super) max_message: u32,
    /// Its UD QP, and the regions that it offers.
    pub(super) mail: Peer,
}

/// What a mesh is over, as a card says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rc = 1,
    Xrc = 2,
    Datagrams = 3,
}

impl Kind {
    pub(super) fn of(over: &Over) -> Kind {
        match over {
            Over::Rc => Kind::Rc,
            Over::Xrc(_) => Kind::Xrc,
            Over::Datagrams => Kind::Datagrams,
        }
    }
}

/// The name of the transport of that number.
fn transport(kind: u8) -> &'static str {
    match kind {
        1 => "RC",
        2 => "XRC",
        3 => "datagrams",
        _ => "a transport that this library does not know",
    }
}

impl Card {
    pub(super) fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut bytes = Vec::from(MAGIC);
        let kind = match (&self.srq, &self.datagrams) {
            (Some(_), _) => Kind::Xrc,
            (None, Some(_)) => Kind::Datagrams,
            (None, None) => Kind::Rc,
        };
        let datagrams = self.datagrams.as_deref().unwrap_or_default();
        let [high, low] = (datagrams.len() as u16).to_be_bytes();
        bytes.extend([VERSION, kind as u8, high, low]);
        bytes.extend(self.rank.0.to_be_bytes());
        bytes.extend(self.srq.map_or(0, SrqNum::get).to_be_bytes());
        bytes.extend(self.max_message.to_be_bytes());
        bytes.extend(datagrams);
        bytes.extend(self.mail.encode()?);
        Ok(bytes)
    }

    /// Reads the card of `of`, for a mesh over that. Never panics, whatever the bytes are.
    pub(super) fn decode(bytes: &[u8], of: Rank, kind: Kind) -> Result<Card, CardError> {
        let not_a_card = || CardError::NotACard {
            of,
            len: bytes.len(),
            begin: bytes[..bytes.len().min(4)].to_vec(),
        };
        let (head, record) = bytes.split_first_chunk::<HEAD>().ok_or_else(not_a_card)?;
        if head[..4] != MAGIC {
            return Err(not_a_card());
        }
        if head[4] != VERSION {
            let version = head[4];
            return Err(CardError::Version { of, version });
        }
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let found = Rank(word(8));
        if found != of {
            return Err(CardError::Order { of, found });
        }
        if head[5] != kind as u8 {
            return Err(CardError::Transport {
                of,
                theirs: transport(head[5]),
                ours: transport(kind as u8),
            });
        }
        let len = u16::from_be_bytes([head[6], head[7]]).into();
        let (datagrams, record) = record.split_at_checked(len).ok_or_else(not_a_card)?;
        let srq = (kind == Kind::Xrc).then(|| SrqNum::new(word(12)));
        Ok(Card {
            rank: of,
            srq: (srq.transpose()).map_err(|source| CardError::Srq { of, source })?,
            datagrams: (kind == Kind::Datagrams).then(|| datagrams.to_vec()),
            max_message: word(16),
            mail: Peer::decode(record).map_err(|source| CardError::Record { of, source })?,
        })
    }
}
