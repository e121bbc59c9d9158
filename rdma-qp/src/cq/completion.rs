//! What completions say, and the tickets that name them.

use std::fmt;
use std::hash::{Hash, Hasher};

use rdma_core_sys::{IBV_WC_WR_FLUSH_ERR, ibv_wc_status};

use crate::account::{Operation, Queue};
use crate::wr_id::{Prefix, QueueKind, SHORT_BITS};

/// The name of one accepted request, to wait for it or to find its completion.
///
/// Two tickets are equal if they name the same request. A ticket may be dropped or forgotten; it holds nothing.
#[derive(Clone, Copy)]
pub struct Ticket {
    /// Id of the CQ.
    pub(super) cq: u32,
    /// Kind of queue and slot, as in the `wr_id`; above them the code of the operation.
    queue: u32,
    /// The sequence; the top bit says that the request is not signaled.
    sequence: u64,
}

const SILENT: u64 = 1 << 63;

impl Ticket {
    #[inline]
    pub(crate) fn new(
        cq: u32,
        queue: &Queue,
        sequence: u64,
        operation: Operation,
        signaled: bool,
    ) -> Ticket {
        let silent = if signaled { 0 } else { SILENT };
        Ticket {
            cq,
            queue: queue.prefix.short() | (operation as u32) << SHORT_BITS,
            sequence: sequence | silent,
        }
    }

    /// The `wr_id` that the request went to the device with.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        Prefix::from_short(self.short()).wr_id(self.sequence)
    }

    /// What the request asks for.
    pub fn operation(&self) -> Operation {
        Operation::from_code(self.queue >> SHORT_BITS)
    }

    fn short(&self) -> u32 {
        self.queue & ((1 << SHORT_BITS) - 1)
    }

    #[inline]
    pub(super) fn sequence(&self) -> u64 {
        self.sequence & !SILENT
    }

    /// Whether a success gives no completion of its own.
    pub(super) fn is_silent(&self) -> bool {
        self.sequence & SILENT != 0
    }

    fn key(&self) -> (u32, u32, u64) {
        (self.cq, self.short(), self.sequence())
    }
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Ticket) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ticket {}

impl Hash for Ticket {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({self})")
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (wr_id {:#x})", self.sequence(), self.wr_id())
    }
}

/// One request is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which request.
    pub ticket: Ticket,
    /// Number of its QP.
    pub qp_num: u32,
    /// Its queue.
    pub queue: QueueKind,
    /// How it ended.
    pub outcome: Result<Success, Failure>,
}

/// A request that ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Success {
    /// What it asked for.
    pub operation: Operation,
    /// Bytes received (receives), or read (READ, atomics). 0 for other requests.
    pub byte_len: u32,
    /// Immediate data that came with it (receives), in host byte order.
    pub imm: Option<u32>,
    /// A receive was consumed by an RDMA WRITE with immediate: the data is in the region that the peer wrote to, not
    /// in the buffer of the receive.
    pub by_write: bool,
}

/// A request that failed or was flushed.
///
/// Of such a completion a device promises `wr_id`, status, QP and vendor error only, so that is all that there is here;
/// queue and operation are known because the library keeps its own record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Why.
    pub status: ibv_wc_status,
    /// The vendor's own code.
    pub vendor_err: u32,
    /// What it asked for, from the library's record.
    pub operation: Operation,
    /// For a flushed request: the first request of that queue that failed by itself, if one did. A QP that the
    /// application, or the peer's fault on the other queue, moved to the error state has none.
    pub root: Option<Root>,
}

impl Failure {
    /// Whether it was flushed, rather than failed by itself.
    pub fn is_flush(&self) -> bool {
        self.status == IBV_WC_WR_FLUSH_ERR
    }
}

/// The failure that the flushes after it come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The request that failed.
    pub ticket: Ticket,
    /// Why.
    pub status: ibv_wc_status,
    /// The vendor's own code.
    pub vendor_err: u32,
    /// What it asked for.
    pub operation: Operation,
}
