//! What the processes of a mesh tell each other in datagrams while they connect: small, repeated until answered, and harmless
//! when they come twice.
//!
//! ```text
//! offset  size  field
//!      0     4  "QPMN"
//!      4     1  version, 1
//!      5     1  kind: 1 hello, 2 targets, 3 seen, 4 leave
//!      6     1  the end that a hello is from: 1 RC, 2 XRC initiator, 3 XRC target, 4 XRC target that all processes of its
//!               node have open; else 0
//!      7     1  1: answer me; else 0
//!      8     4  rank of the sender
//!     12     4  hello: life of this end.         targets: place of the first in the list.  seen: targets known
//!     16     4  hello: life of the other end     targets: how many follow
//!                that this end is ready for, or 0
//!     20     -  hello: endpoint record.          targets: QP number and rank, 4 bytes each, of each target
//! ```

use rdma_qp::{Endpoint, Peer};

use super::Rank;

const MAGIC: [u8; 4] = *b"QPMN";
const VERSION: u8 = 1;
const HEAD: usize = 20;

/// Targets that one note carries at most. A note then has 212 bytes, which every path MTU takes.
pub(super) const MOST_TARGETS: usize = 24;
/// Bytes of the longest note.
pub(super) const LONGEST: usize = HEAD + 8 * MOST_TARGETS;

/// What kind of end a hello is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// An RC QP.
    Rc,
    /// An XRC initiator.
    Initiator,
    /// An XRC target.
    Target,
    /// An XRC target that all processes of its node have open.
    SharedTarget,
}

/// A target, and who is behind it: `None` is nobody any more.
pub(super) type Behind = (u32, Option<Rank>);

/// What stands in the list for nobody.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// One end of a connection to be, or that is.
    Hello {
        role: Role,
        /// Which life of the sender's end this is.
        life: u32,
        /// The life of the receiver's end that the sender's is ready to receive from, or 0.
        ready_for: u32,
        endpoint: Endpoint,
    },
    /// A part of the list of targets that the sender made, from `first` on.
    Targets { first: u32, targets: Vec<Behind> },
    /// So many targets of the receiver's list are known.
    Seen { known: u32 },
    /// The sender leaves the job, or has understood that the receiver does.
    Leave,
}

/// A datagram between two processes of a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) from: Rank,
    /// The sender waits for an answer.
    pub(super) answer: bool,
    pub(super) body: Body,
}

impl Note {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, role, words): (u8, u8, [u32; 2]) = match &self.body {
            Body::Hello {
                role,
                life,
                ready_for,
                ..
            } => {
                let role = match role {
                    Role::Rc => 1,
                    Role::Initiator => 2,
                    Role::Target => 3,
                    Role::SharedTarget => 4,
                };
                (1, role, [*life, *ready_for])
            }
            Body::Targets { first, targets } => (2, 0, [*first, targets.len() as u32]),
            Body::Seen { known } => (3, 0, [*known, 0]),
            Body::Leave => (4, 0, [0; 2]),
        };
        let mut bytes = Vec::with_capacity(LONGEST);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, kind, role, self.answer.into()]);
        bytes.extend(self.from.0.to_be_bytes());
        bytes.extend(words.into_iter().flat_map(u32::to_be_bytes));
        match &self.body {
            Body::Hello { endpoint, .. } => {
                let (endpoint, regions) = (endpoint.clone(), Vec::new());
                // Only too many regions cannot be encoded.
                bytes.extend(Peer { endpoint, regions }.encode().unwrap_or_default());
            }
            Body::Targets { targets, .. } => {
                for (qp_num, rank) in targets {
                    bytes.extend(qp_num.to_be_bytes());
                    bytes.extend(rank.map_or(NOBODY, |rank| rank.0).to_be_bytes());
                }
            }
            Body::Seen { .. } | Body::Leave => {}
        }
        bytes
    }

    /// Reads a note. Never panics; `None`: the bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Note> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        if head[..4] != MAGIC || head[4] != VERSION {
            return None;
        }
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let body = match head[5] {
            1 => Body::Hello {
                role: match head[6] {
                    1 => Role::Rc,
                    2 => Role::Initiator,
                    3 => Role::Target,
                    4 => Role::SharedTarget,
                    _ => return None,
                },
                life: word(12),
                ready_for: word(16),
                endpoint: Peer::decode(rest).ok()?.endpoint,
            },
            2 => {
                let (targets, more) = rest.as_chunks::<8>();
                if !more.is_empty() || targets.len() != word(16) as usize {
                    return None;
                }
                let target = |t: &[u8; 8]| {
                    let rank = u32::from_be_bytes([t[4], t[5], t[6], t[7]]);
                    let qp_num = u32::from_be_bytes([t[0], t[1], t[2], t[3]]);
                    (qp_num, (rank != NOBODY).then_some(Rank(rank)))
                };
                Body::Targets {
                    first: word(12),
                    targets: targets.iter().map(target).collect(),
                }
            }
            3 => Body::Seen { known: word(12) },
            4 => Body::Leave,
            _ => return None,
        };
        Some(Note {
            from: Rank(word(8)),
            answer: head[7] != 0,
            body,
        })
    }
}
