//! What completions say, and the tickets that name them.

use std::fmt;
use std::hash::{Hash, Hasher};

use rdma_core_sys::{IBV_WC_WR_FLUSH_ERR, ibv_wc_status};

use crate::account::Operation;
use crate::wr_id::{self, QueueKind};

/// The name of one accepted request, to wait for it or to find its completion.
///
/// Two tickets are equal if they name the same request. A ticket may be dropped or forgotten; it holds nothing.
#[derive(Clone, Copy)]
pub struct Ticket {
    /// The `wr_id` that the request went to the device with.
    id: u64,
    signaled: bool,
}

impl Ticket {
    #[inline]
    pub(crate) fn new(id: u64, signaled: bool) -> Ticket {
        Ticket { id, signaled }
    }

    /// The `wr_id` that the request went to the device with.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.id
    }

    /// What the request asks for.
    pub fn operation(&self) -> Operation {
        Operation::from_code(wr_id::operation(self.id))
    }

    /// Whether a success gives a completion of its own.
    pub fn is_signaled(&self) -> bool {
        self.signaled
    }

    /// Number of the SRQ, see [`Srq::number`](crate::Srq::number), if it is of a receive of one.
    pub fn srq(&self) -> Option<u32> {
        let slot = wr_id::slot(self.id);
        self.is_shared().then_some(slot & !wr_id::SHARED)
    }

    /// The request's number in its queue, modulo 2^40. Of an SRQ some numbers are left out.
    pub fn sequence(&self) -> u64 {
        wr_id::sequence(self.id)
    }

    /// Whether it is of a receive of an SRQ.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        wr_id::slot(self.id) & wr_id::SHARED != 0
    }
}

impl PartialEq for Ticket {
    #[inline]
    fn eq(&self, other: &Ticket) -> bool {
        self.id == other.id
    }
}

impl Eq for Ticket {}

impl Hash for Ticket {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
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
    /// Number of its QP: of a receive of an SRQ, the one that the message came by. 0 where that QP was destroyed before
    /// its completion was polled, and another QP on the same CQ has its number by now.
    pub qp_num: u32,
    /// Its queue.
    pub queue: QueueKind,
    /// How it ended.
    pub outcome: Result<Success, Failure>,
    /// Id of the CQ that handed it out.
    pub(crate) cq: u32,
}

/// A request that ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Success {
    /// What it asked for.
    pub operation: Operation,
    /// Bytes of the message (receives), or read (READ, atomics). 0 for other requests. The 40 bytes before a datagram are
    /// not counted.
    pub byte_len: u32,
    /// Immediate data that came with it (receives), in host byte order.
    pub imm: Option<u32>,
    /// A receive was consumed by an RDMA WRITE with immediate: the data is in the region that the peer wrote to, not
    /// in the buffer of the receive.
    pub by_write: bool,
    /// The key that the peer invalidated with its SEND (receives).
    pub invalidated: Option<u32>,
    /// Who sent a datagram (receives of UD).
    pub sender: Option<Sender>,
}

impl Success {
    /// The success of an unsignaled request.
    pub(super) fn silent(operation: Operation) -> Success {
        Success {
            operation,
            byte_len: 0,
            imm: None,
            by_write: false,
            invalidated: None,
            sender: None,
        }
    }
}

/// What a completion says of the sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sender {
    /// Number of its QP.
    pub qp_num: u32,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// The service level that the datagram came with.
    pub service_level: u8,
    /// Whether the 40 bytes before the datagram say more: always on Ethernet.
    pub has_grh: bool,
}

impl Sender {
    /// A sender that was told by other means than a [`Success`].
    pub fn new(qp_num: u32, lid: u16, service_level: u8, has_grh: bool) -> Sender {
        Sender {
            qp_num,
            lid,
            service_level,
            has_grh,
        }
    }
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
    /// For a flushed request: the first request of that queue that failed by itself, if one did; of an SRQ, the first
    /// receive that its QP had taken. A QP that the
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
