//! What the engine reports: completions, asynchronous events, state changes.

use rdma_core_sys::{ibv_event_type, ibv_qp_state, ibv_wc_opcode, ibv_wc_status};

/// A completion queue of the node, by number. Its ring belongs to the shell around the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CqId(pub u32);

/// A protection domain of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PdId(pub u32);

/// A shared receive queue of the node, by its number: what `ibv_get_srq_num` gives, and what XRC
/// requests name. 24 bits, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SrqId(pub u32);

/// An XRC domain of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XrcdId(pub u32);

/// Which queue a completed request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
    /// A shared receive queue.
    Srq(SrqId),
}

/// What a datagram's completion says of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Its Queue Pair.
    pub qp_num: u32,
    /// The service level: the upper three bits of the traffic class, which is how a RoCE v2 network
    /// that trusts DSCPs sorts packets.
    pub sl: u8,
    /// Index of the partition key.
    pub pkey_index: u16,
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's mark.
    pub wr_id: u64,
    /// The request's queue.
    pub queue: Queue,
    /// The request's position in its queue.
    pub seq: u64,
    /// How it ended.
    pub status: ibv_wc_status,
    /// What it was; meaningful on success only.
    pub opcode: ibv_wc_opcode,
    /// Bytes received, read, or swapped; 0 for other sends.
    pub byte_len: u32,
    /// Immediate data, host order of the big-endian field.
    pub imm: Option<u32>,
    /// The key that the message invalidated.
    pub invalidated: Option<u32>,
    /// The Queue Pair; for a receive of an XRC SRQ, the target.
    pub qp_num: u32,
    /// Who sent a datagram. The first 40 bytes of the buffer hold a GRH then.
    pub sender: Option<Sender>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request completed.
    Completion {
        /// The queue that it goes to.
        cq: CqId,
        /// The completion.
        wc: Completion,
        /// Whether it counts for a CQ armed for solicited completions only
        /// (a solicited receive, or any error).
        solicited: bool,
    },
    /// An asynchronous event of a Queue Pair.
    Qp {
        /// Its number.
        qp_num: u32,
        /// The event.
        kind: ibv_event_type,
    },
    /// An asynchronous event of a shared receive queue.
    Srq {
        /// Its number.
        srq: SrqId,
        /// The event.
        kind: ibv_event_type,
    },
    /// A Queue Pair changed its state by itself.
    State {
        /// Its number.
        qp_num: u32,
        /// The state that it has now.
        state: ibv_qp_state,
    },
}
