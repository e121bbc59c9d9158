//! Why a request is not posted.

use rdma_core_sys::ibv_qp_state;

use crate::account::Operation;
use crate::cq::Ticket;
use crate::errno::Errno;
use crate::wr_id::QueueKind;

/// A request was not posted. Nothing was changed, but by [`PostError::List`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue has no room; or its last place is kept for a request that can make room.
    #[error("{}", full(*.queue, *.depth, *.outstanding, *.last_signaled, *.place_is_kept))]
    QueueFull {
        /// The queue.
        queue: QueueKind,
        /// Its depth.
        depth: u32,
        /// Requests that hold room.
        outstanding: u64,
        /// The last signaled request among them, whose completion makes room, by its number ([`Ticket::sequence`]). `None`:
        /// there is none.
        last_signaled: Option<u64>,
        /// The request was unsignaled like all that are outstanding, and there was one place left: a queue full of such
        /// requests could never make room again.
        place_is_kept: bool,
    },
    /// The QP has no receive queue of its own.
    #[error("the QP takes its receives from SRQ {srq}: post them there")]
    OnSrq {
        /// Number of the SRQ.
        srq: u32,
    },
    /// More ranges than the queue takes.
    #[error("{given} ranges are more than the {queue} takes, which was created for {limit}")]
    TooManyEntries {
        /// The queue.
        queue: QueueKind,
        /// Ranges given.
        given: usize,
        /// Ranges allowed.
        limit: u32,
    },
    /// More bytes inline than the QP takes.
    #[error(
        "{given} bytes inline are more than the QP takes, which is {limit} ({asked} asked for when it was created)"
    )]
    InlineTooLong {
        /// Bytes given.
        given: u64,
        /// Bytes allowed.
        limit: u32,
        /// Bytes asked for at creation.
        asked: u32,
    },
    /// A receive without room for what the device writes before the message.
    #[error(
        "a receive of {len} bytes has no room for the {header} bytes that precede every datagram: make it at least {header} bytes longer than the message"
    )]
    NoRoomForHeader {
        /// Bytes given.
        len: u64,
        /// Bytes that the device writes.
        header: u32,
    },
    /// Longer than a message can be.
    #[error("a message of {len} bytes is over the port's limit of {max}")]
    MessageTooLong {
        /// Bytes of all ranges together.
        len: u64,
        /// Longest message of the port.
        max: u32,
    },
    /// A range of a region of another protection domain.
    #[error(
        "range {entry} is of a region of another protection domain than the queue: register it with the queue's PD"
    )]
    OtherPd {
        /// Which range, counted from 0.
        entry: usize,
    },
    /// An address handle of another protection domain.
    #[error(
        "the address handle is of another protection domain than the QP: create it with the QP's PD"
    )]
    OtherPdAh,
    /// An address handle of another port of the device.
    #[error(
        "the address handle is of port {ah} and the QP is on port {qp}: make the handle for a path from port {qp}"
    )]
    OtherPortAh {
        /// Port of the handle.
        ah: u8,
        /// Port of the QP.
        qp: u8,
    },
    /// A memory window of another protection domain, or a region.
    #[error(
        "the memory window, or the region that it is bound to, is of another protection domain than the QP: make all three of one PD"
    )]
    OtherPdWindow,
    /// The device would write to a region that was not registered for that.
    #[error(
        "range {entry} is of a region without LOCAL_WRITE, which {operation} needs: register it with Access::LOCAL_WRITE"
    )]
    NotWritable {
        /// Which range, counted from 0.
        entry: usize,
        /// What was asked for.
        operation: Operation,
    },
    /// What goes along in the request is copied out of the process, and this is a device's memory, behind a dma-buf.
    #[error(
        "range {entry} is of a dma-buf, whose bytes cannot be copied into a request: leave PostFlags::INLINE out"
    )]
    InlineOfDevice {
        /// Which range, counted from 0.
        entry: usize,
    },
    /// The remote side is outside the peer's region.
    #[error("{len} bytes do not fit: the peer's region has {room} bytes from that place on")]
    OutOfRemoteRegion {
        /// Bytes of the request.
        len: u64,
        /// Bytes that there are.
        room: u64,
    },
    /// The local side of an atomic is not 8 bytes.
    #[error("the local side of an atomic is {len} bytes long; it must be 8")]
    AtomicLength {
        /// Bytes given.
        len: u64,
    },
    /// The remote side of an atomic is not at a multiple of 8.
    #[error("an atomic at remote address {addr:#x}: it must be at a multiple of 8")]
    AtomicAlignment {
        /// The address.
        addr: u64,
    },
    /// READ, atomics and receives cannot be inline.
    #[error("{operation} cannot be inline: there is nothing to copy")]
    InlineReturns {
        /// What was asked for.
        operation: Operation,
    },
    /// The QP is in a state in which the queue takes nothing.
    #[error("the QP is in {state}, where nothing can be posted to the {queue}: {}", state_cure(*.queue))]
    WrongState {
        /// The queue.
        queue: QueueKind,
        /// The state, as the device said after it had refused.
        state: ibv_qp_state,
        /// What the provider said.
        #[source]
        errno: Errno,
    },
    /// The provider refused, for a reason of its own.
    #[error("the provider refused to post to the {queue}: {errno}")]
    Refused {
        /// The queue.
        queue: QueueKind,
        /// What it said.
        #[source]
        errno: Errno,
    },
    /// Of requests that were handed over together some were refused.
    #[error(
        "of {} requests handed over together the {queue} accepted {accepted}; the {refused} from {first} on are not posted: {reason}",
        .accepted + .refused
    )]
    List {
        /// The queue.
        queue: QueueKind,
        /// Requests that were accepted, from the first on.
        accepted: u32,
        /// The others, which are not posted and out of the books.
        refused: u32,
        /// The first of those. Its ticket, and those of the requests after it, name nothing any more.
        first: Ticket,
        /// Why.
        reason: Box<PostError>,
    },
}

fn full(queue: QueueKind, depth: u32, outstanding: u64, last: Option<u64>, kept: bool) -> String {
    let full = if kept { "as good as full" } else { "full" };
    let begin = format!(
        "the {queue} is {full}: {outstanding} of {depth} requests are outstanding or not polled"
    );
    match (queue, last) {
        (QueueKind::Send, None) => format!(
            "{begin}; no signaled request is outstanding, so no completion can make room: signal {} in each queue length",
            if kept {
                "this one, and at least one"
            } else {
                "at least one request"
            }
        ),
        (QueueKind::Send, Some(last)) => {
            format!("{begin}; poll the CQ: the last signaled request is number {last}")
        }
        _ => format!("{begin}; poll the CQ"),
    }
}

fn state_cure(queue: QueueKind) -> &'static str {
    if queue == QueueKind::Send {
        "sends need RTS"
    } else {
        "receives need INIT or a later state"
    }
}
