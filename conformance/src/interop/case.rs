//! What is tried.

use std::fmt;

use rdma_core_sys::*;

use super::Plan;
use super::end::{MAX_INLINE, Setting};

/// What is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
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
    /// SEND without a receive and without RNR retries.
    NoReceive,
    /// SEND to a QP that does not answer.
    NoAnswer,
    /// WRITE with a key that the peer does not know.
    BadKey,
    /// SEND of more than the receive has room for.
    TooLong,
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
            Kind::ReceiveLate | Kind::NoReceive | Kind::NoAnswer | Kind::TooLong => IBV_WR_SEND,
        }
    }

    /// Its requests consume receives of the peer.
    pub(super) fn receives(&self) -> bool {
        matches!(
            self.opcode(),
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
        ) && !matches!(self.kind, Kind::NoReceive | Kind::NoAnswer)
    }

    /// It is an atomic.
    pub(super) fn atomic(&self) -> bool {
        matches!(
            self.opcode(),
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
        )
    }

    /// The status that the asking end must see.
    pub(super) fn status(&self) -> ibv_wc_status {
        match self.kind {
            Kind::NoReceive => IBV_WC_RNR_RETRY_EXC_ERR,
            Kind::NoAnswer => IBV_WC_RETRY_EXC_ERR,
            Kind::BadKey => IBV_WC_REM_ACCESS_ERR,
            Kind::TooLong => IBV_WC_REM_INV_REQ_ERR,
            _ => IBV_WC_SUCCESS,
        }
    }

    /// The pair of QPs is of no use after it.
    pub(super) fn breaks(&self) -> bool {
        self.status() != IBV_WC_SUCCESS
    }

    /// What the pair of QPs must be like.
    pub(super) fn setting(&self, usual: Setting) -> Setting {
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

/// A known difference from what the asking end must see, and its cause.
#[derive(Debug)]
pub struct Difference {
    /// A short name for the table of results.
    pub name: &'static str,
    /// The driver of the answering end, by how its device names begin.
    pub driver: &'static str,
    /// It belongs to wires that lose packets, whatever the driver.
    pub lossy: bool,
    /// The cases.
    pub kinds: &'static [Kind],
    /// What the asking end sees instead.
    pub status: ibv_wc_status,
    /// File and functions of the kernel.
    pub source: &'static str,
    /// What happens.
    pub reason: &'static str,
}

/// All of them. One that explains nothing any more is to be taken out.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "too-long-is-an-operational-error",
        driver: "rxe",
        lossy: false,
        kinds: &[Kind::TooLong],
        status: IBV_WC_REM_OP_ERR,
        source: "drivers/infiniband/sw/rxe/rxe_mr.c:copy_data, rxe_resp.c:send_data_in",
        reason: "a packet beyond the receive gives EINVAL there, where only ENOSPC is taken for a wrong length, so the \
                 NAK says remote operational error instead of invalid request",
    },
    Difference {
        name: "the-last-nak-was-lost",
        driver: "",
        lossy: true,
        kinds: &[Kind::BadKey, Kind::TooLong],
        status: IBV_WC_RETRY_EXC_ERR,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:do_class_ac_error",
        reason: "a NAK that ends the connection is sent once, and its sender is in ERR and silent afterwards",
    },
];

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opcode = self.opcode();
        let name = opcode.name().unwrap_or("?").trim_start_matches("IBV_WR_");
        f.write_str(name)?;
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
            Kind::NoReceive => ", no receive and no RNR retry",
            Kind::NoAnswer => ", nobody answers",
            Kind::BadKey => ", an unknown rkey",
            Kind::TooLong => ", the receive is too short",
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

/// Everything that is tried at one MTU, in one direction.
#[must_use]
pub fn cases(mtu: usize, plan: &Plan) -> Vec<Case> {
    let lengths = match plan.quick {
        true => vec![0, mtu + 1, plan.longest],
        false => vec![0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, plan.longest],
    };
    let case = |kind, len, shape| Case {
        kind,
        len,
        shape,
        burst: 1,
    };
    let op = |opcode, len, shape| case(Kind::Op(opcode), len, shape);
    let mut all = Vec::new();
    for opcode in MOVES {
        all.extend(lengths.iter().map(|&len| op(opcode, len, Shape::Plain)));
        all.push(op(opcode, 3 * mtu + 5, Shape::Pieces));
        if opcode != IBV_WR_RDMA_READ {
            all.extend([0, 1, MAX_INLINE as usize].map(|len| op(opcode, len, Shape::Inline)));
        }
    }
    for kind in [
        Kind::Op(IBV_WR_ATOMIC_CMP_AND_SWP),
        Kind::CompareMisses,
        Kind::Op(IBV_WR_ATOMIC_FETCH_AND_ADD),
    ] {
        all.push(case(kind, 8, Shape::Plain));
    }
    // More than the responder keeps at a time, for READs and atomics.
    for opcode in [IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD] {
        let len = if opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
            8
        } else {
            3 * mtu + 5
        };
        all.push(Case {
            burst: 16,
            ..op(opcode, len, Shape::Plain)
        });
    }
    for kind in [
        Kind::ReceiveLate,
        Kind::NoReceive,
        Kind::NoAnswer,
        Kind::BadKey,
        Kind::TooLong,
    ] {
        all.push(case(kind, 3 * mtu + 5, Shape::Plain));
    }
    all
}
