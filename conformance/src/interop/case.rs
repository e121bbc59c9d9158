//! What is tried.

use std::fmt;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::Plan;
use super::end::{MAX_INLINE, Setting};

/// What carries a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    /// The transport of the QPs: RC, UC or UD.
    pub transport: Transport,
    /// Their receives are in an SRQ.
    pub shared: bool,
}

impl Service {
    /// Whatever is sent arrives, or the sender is told.
    pub(super) fn reliable(self) -> bool {
        self.transport == Transport::Rc
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = if self.shared { "+SRQ" } else { "" };
        f.pad(&format!("{}{shared}", self.transport))
    }
}

/// What is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// What carries it.
    pub service: Service,
    /// The operation, or the trouble.
    pub kind: Kind,
    /// Bytes of each message.
    pub len: usize,
    /// How the bytes are named.
    pub shape: Shape,
    /// Messages that are posted before the first completion is waited for.
    pub burst: usize,
}

/// An operation, or a trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One of the operations that move bytes or do an atomic.
    Op(ibv_wr_opcode),
    /// Compare and swap where the comparison fails.
    CompareMisses,
    /// SEND, and the receive is posted late: RNR NAKs until then, for ever if need be (`rnr_retry` 7).
    ReceiveLate,
    /// SEND without a receive; on RC also without RNR retries.
    NoReceive,
    /// SEND to a QP that does not answer.
    NoAnswer,
    /// WRITE with a key that the peer does not know.
    BadKey,
    /// SEND of more than the receive has room for.
    TooLong,
    /// SEND with another Q_Key than the peer's.
    BadQkey,
    /// SEND with the high bit in the request's Q_Key: that of the QP is used.
    OwnQkey,
    /// SEND, and the answering end sends the bytes back through an address handle that it makes from its completion.
    Answer,
    /// SEND to a multicast group with two members at the answering end.
    Group,
    /// SEND to a multicast group that one of the two members has left.
    GroupLeft,
}

/// How the bytes of a message are named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One entry (none for an empty message).
    Plain,
    /// Several entries on the asking end, and others on the answering one.
    Pieces,
    /// Inline data.
    Inline,
}

impl Case {
    /// The opcode of its requests.
    pub(super) fn opcode(&self) -> ibv_wr_opcode {
        match self.kind {
            Kind::Op(opcode) => opcode,
            Kind::CompareMisses => IBV_WR_ATOMIC_CMP_AND_SWP,
            Kind::BadKey => IBV_WR_RDMA_WRITE,
            _ => IBV_WR_SEND,
        }
    }

    /// Its messages go into receives of the peer, where there are some.
    fn sends(&self) -> bool {
        matches!(
            self.opcode(),
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
        )
    }

    /// The answering end posts receives, late or not.
    pub(super) fn posts_receives(&self) -> bool {
        self.sends() && !matches!(self.kind, Kind::NoReceive | Kind::NoAnswer)
    }

    /// Its requests consume receives of the peer.
    pub(super) fn receives(&self) -> bool {
        self.posts_receives() && self.kind != Kind::BadQkey
    }

    /// Its messages change the peer's memory.
    pub(super) fn arrives(&self) -> bool {
        let refused = matches!(
            self.kind,
            Kind::NoReceive | Kind::NoAnswer | Kind::BadKey | Kind::TooLong | Kind::BadQkey
        );
        !refused
    }

    /// It is an atomic.
    pub(super) fn atomic(&self) -> bool {
        matches!(
            self.opcode(),
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
        )
    }

    /// It goes to a multicast group.
    pub(super) fn for_group(&self) -> bool {
        matches!(self.kind, Kind::Group | Kind::GroupLeft)
    }

    /// The status that the asking end must see: on UC and UD nobody tells it what became of a message.
    pub(super) fn status(&self) -> ibv_wc_status {
        match self.kind {
            _ if !self.service.reliable() => IBV_WC_SUCCESS,
            Kind::NoReceive => IBV_WC_RNR_RETRY_EXC_ERR,
            Kind::NoAnswer => IBV_WC_RETRY_EXC_ERR,
            Kind::BadKey => IBV_WC_REM_ACCESS_ERR,
            Kind::TooLong => IBV_WC_REM_INV_REQ_ERR,
            _ => IBV_WC_SUCCESS,
        }
    }

    /// The pair of QPs is of no use after it: in ERR, or with receives that a next case would not expect.
    pub(super) fn spoils(&self) -> bool {
        !self.arrives() || self.kind == Kind::GroupLeft
    }

    /// What the pair of QPs must be like.
    pub(super) fn setting(&self, usual: Setting) -> Setting {
        let usual = Setting {
            service: self.service,
            ..usual
        };
        match self.kind {
            Kind::NoReceive => Setting {
                rnr_retry: 0,
                ..usual
            },
            // About 17 ms, three times: the shortest that is safe from a slow machine on the way to RTS.
            Kind::NoAnswer => Setting {
                timeout: 12,
                retry_cnt: 2,
                answers: false,
                ..usual
            },
            // Where its NAK is lost, there must be an end.
            Kind::BadKey | Kind::TooLong => Setting {
                retry_cnt: 6,
                ..usual
            },
            _ => usual,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opcode = self.opcode();
        let name = opcode.name().unwrap_or("?").trim_start_matches("IBV_WR_");
        write!(f, "{}  {name}", self.service)?;
        if !self.atomic() {
            write!(f, " of {}", self.len)?;
        }
        if self.burst > 1 {
            write!(f, ", {} at once", self.burst)?;
        }
        match self.shape {
            Shape::Plain => {}
            Shape::Pieces => f.write_str(", in pieces")?,
            Shape::Inline => f.write_str(", inline")?,
        }
        f.write_str(match self.kind {
            Kind::Op(_) => "",
            Kind::CompareMisses => ", the comparison fails",
            Kind::ReceiveLate => ", the receive comes late",
            Kind::NoReceive if self.service.reliable() => ", no receive and no RNR retry",
            Kind::NoReceive => ", no receive",
            Kind::NoAnswer => ", nobody answers",
            Kind::BadKey => ", an unknown rkey",
            Kind::TooLong => ", the receive is too short",
            Kind::BadQkey => ", a wrong Q_Key",
            Kind::OwnQkey => ", the high bit in the Q_Key",
            Kind::Answer => ", answered by the completion's address",
            Kind::Group => " to a group of two members",
            Kind::GroupLeft => " to a group that one of two members has left",
        })
    }
}

/// The operations that move bytes.
const MOVES: [ibv_wr_opcode; 5] = [
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_RDMA_READ,
];

/// Bytes of the longest message that nobody asks for again where the receiver's socket overflows.
const LONGEST_UNRELIABLE: usize = 1 << 16;

/// Everything that is tried at one path MTU, in one direction: RC and UC, each with receives of its own and with an SRQ.
#[must_use]
pub fn connected(mtu: usize, plan: &Plan) -> Vec<Case> {
    let mut all = Vec::new();
    for transport in [Transport::Rc, Transport::Uc] {
        for shared in [false, true] {
            let service = Service { transport, shared };
            let longest = match service.reliable() {
                true => plan.longest,
                false => plan.longest.min(LONGEST_UNRELIABLE),
            };
            let mut lengths = vec![0, mtu + 1, longest];
            if !plan.quick && !shared {
                lengths.extend([1, mtu - 1, mtu, 3 * mtu + 5]);
            }
            all.extend(moves(service, mtu, &lengths));
            all.extend(troubles(service, mtu, plan.lossy));
        }
    }
    all
}

/// The messages of a connected QP.
fn moves(service: Service, mtu: usize, lengths: &[usize]) -> Vec<Case> {
    let several = 3 * mtu + 5;
    let op = |opcode, len, shape| case(service, Kind::Op(opcode), len, shape);
    let burst = |opcode, len| Case {
        burst: 16,
        ..op(opcode, len, Shape::Plain)
    };
    let consumes = |opcode: &ibv_wr_opcode| {
        matches!(
            *opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
        )
    };
    let reliable = service.reliable();
    let tried = MOVES
        .into_iter()
        .filter(|opcode| reliable || *opcode != IBV_WR_RDMA_READ)
        // Where receives are makes a difference to what consumes some.
        .filter(|opcode| !service.shared || consumes(opcode));
    let mut all = Vec::new();
    for opcode in tried {
        all.extend(lengths.iter().map(|&len| op(opcode, len, Shape::Plain)));
        all.push(op(opcode, several, Shape::Pieces));
        if opcode != IBV_WR_RDMA_READ && !service.shared {
            all.extend([0, 1, MAX_INLINE as usize].map(|len| op(opcode, len, Shape::Inline)));
        }
    }
    all.push(burst(IBV_WR_SEND, several));
    if reliable && !service.shared {
        let atomics = [
            Kind::Op(IBV_WR_ATOMIC_CMP_AND_SWP),
            Kind::CompareMisses,
            Kind::Op(IBV_WR_ATOMIC_FETCH_AND_ADD),
        ];
        all.extend(atomics.map(|kind| case(service, kind, 8, Shape::Plain)));
        // More than the responder keeps at a time.
        all.push(burst(IBV_WR_RDMA_READ, several));
        all.push(burst(IBV_WR_ATOMIC_FETCH_AND_ADD, 8));
    }
    all
}

/// What goes wrong on a connected QP. On UC the message is dropped, which a wire with losses does as well.
fn troubles(service: Service, mtu: usize, lossy: bool) -> Vec<Case> {
    let kinds: &[Kind] = match (service.reliable(), service.shared) {
        (true, false) => &[
            Kind::ReceiveLate,
            Kind::NoReceive,
            Kind::NoAnswer,
            Kind::BadKey,
            Kind::TooLong,
        ],
        (true, true) => &[Kind::ReceiveLate, Kind::NoReceive, Kind::TooLong],
        (false, false) if !lossy => &[Kind::NoReceive, Kind::BadKey, Kind::TooLong],
        (false, _) => &[],
    };
    let several = |&kind| case(service, kind, 3 * mtu + 5, Shape::Plain);
    kinds.iter().map(several).collect()
}

/// Everything that is tried with datagrams in one direction; `mtu` is that of both ports, the longest datagram.
#[must_use]
pub fn datagrams(mtu: usize, plan: &Plan) -> Vec<Case> {
    let mut all = Vec::new();
    for shared in [false, true] {
        let service = Service {
            transport: Transport::Ud,
            shared,
        };
        let lengths = match plan.quick {
            true => vec![0, mtu],
            false => vec![0, 1, 2, 3, 255, 256, 257, mtu - 1, mtu],
        };
        for opcode in [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM] {
            let op = |len, shape| case(service, Kind::Op(opcode), len, shape);
            all.extend(lengths.iter().map(|&len| op(len, Shape::Plain)));
            all.push(op(mtu - 3, Shape::Pieces));
            all.extend([0, 1, MAX_INLINE as usize].map(|len| op(len, Shape::Inline)));
            all.push(Case {
                burst: 16,
                ..op(mtu / 2 + 1, Shape::Plain)
            });
        }
        let kind = |kind| case(service, kind, mtu / 2 + 3, Shape::Plain);
        if !plan.lossy {
            all.extend([Kind::OwnQkey, Kind::Answer].map(kind));
            all.extend([Kind::BadQkey, Kind::TooLong].map(kind));
        }
        if !plan.lossy && !shared {
            all.push(kind(Kind::NoReceive));
            let group = |len| case(service, Kind::Group, len, Shape::Plain);
            all.extend(lengths.iter().copied().map(group));
            all.push(kind(Kind::GroupLeft));
        }
    }
    all
}

fn case(service: Service, kind: Kind, len: usize, shape: Shape) -> Case {
    Case {
        service,
        kind,
        len,
        shape,
        burst: 1,
    }
}
