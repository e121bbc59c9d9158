//! The books of the queues: every accepted request ends in exactly one outcome.

mod queue;
mod room;
mod shared;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

pub(crate) use queue::{Ending, Outcomes, Queue, Retired};
pub(crate) use room::Room;
pub(crate) use shared::{Seen, Share, Shared};

use crate::wr_id::{self, QueueKind};

/// The books of any queue, as far as memory is concerned that its requests may use.
#[derive(Clone)]
pub(crate) enum Books {
    /// Of a queue of a QP.
    Queue(Arc<Queue>),
    /// Of a shared receive queue.
    Shared(Arc<Shared>),
}

impl Books {
    pub(crate) fn kind(&self) -> QueueKind {
        match self {
            Books::Queue(queue) => queue.kind(),
            Books::Shared(_) => QueueKind::SharedRecv,
        }
    }

    /// A mark above every request that was posted so far.
    pub(crate) fn posted(&self) -> u64 {
        match self {
            Books::Queue(queue) => queue.posted(),
            Books::Shared(srq) => srq.posted(),
        }
    }

    /// Whether the device has let go of every request below `mark`, a value of [`Books::posted`] of earlier.
    pub(crate) fn passed(&self, mark: u64) -> bool {
        match self {
            Books::Queue(queue) => queue.passed(mark),
            Books::Shared(srq) => srq.passed(mark),
        }
    }

    /// Whether the device touches nothing of it any more.
    pub(crate) fn is_ended(&self) -> bool {
        match self {
            Books::Queue(queue) => queue.is_ended(),
            Books::Shared(srq) => srq.is_ended(),
        }
    }

    pub(crate) fn account(&self) -> Account {
        match self {
            Books::Queue(queue) => queue.account(),
            Books::Shared(srq) => srq.account(),
        }
    }

    /// Has the regions that wait for it looked at by whoever polls where it reports.
    pub(crate) fn call_attention(&self) {
        match self {
            Books::Queue(queue) => queue.attention.store(true, Relaxed),
            Books::Shared(srq) => srq.call_attention(),
        }
    }
}

/// What a request asks for. Of a failed request only the library knows it: the completion does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Operation {
    /// SEND, with or without immediate.
    Send,
    /// SEND that invalidates a key of the peer.
    SendInv,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ.
    Read,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// Binding of a memory window.
    BindWindow,
    /// Invalidation of a key of this side.
    LocalInv,
    /// A posted receive.
    Recv,
}

const _: () = assert!((Operation::Recv as u64) < wr_id::MARKER);

impl Operation {
    /// The operation of that code, which is its number.
    #[inline]
    pub(crate) fn from_code(code: u8) -> Operation {
        // Spelled out: so the compiler sees that.
        match code {
            0 => Operation::Send,
            1 => Operation::SendInv,
            2 => Operation::Write,
            3 => Operation::Read,
            4 => Operation::CompareSwap,
            5 => Operation::FetchAdd,
            6 => Operation::BindWindow,
            7 => Operation::LocalInv,
            _ => Operation::Recv,
        }
    }

    /// Whether a success says how many bytes came.
    #[inline]
    pub(crate) fn has_length(self) -> bool {
        matches!(
            self,
            Operation::Recv | Operation::Read | Operation::CompareSwap | Operation::FetchAdd
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Send => "SEND",
            Operation::SendInv => "SEND with invalidate",
            Operation::Write => "RDMA WRITE",
            Operation::Read => "RDMA READ",
            Operation::CompareSwap => "compare and swap",
            Operation::FetchAdd => "fetch and add",
            Operation::BindWindow => "memory window bind",
            Operation::LocalInv => "local invalidate",
            Operation::Recv => "RECV",
        })
    }
}

/// The books of one queue at one moment.
///
/// `accepted` is always the sum of the other counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Account {
    /// Requests that a post call accepted, signaled or not.
    pub accepted: u64,
    /// Ended well, whether by a completion of their own or, unsignaled, by that of a later request.
    pub succeeded: u64,
    /// Ended with an error of their own.
    pub failed: u64,
    /// Flushed: not executed because the QP was in the error state.
    pub flushed: u64,
    /// Thrown away by a move to RESET or by the destruction of the QP: no outcome was reported and none will be.
    pub discarded: u64,
    /// Without an outcome so far.
    pub pending: u64,
}
