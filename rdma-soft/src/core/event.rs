//! What the engine reports: completions, asynchronous events, state changes.

use rdma_core_sys::{ibv_event_type, ibv_qp_state, ibv_wc_opcode, ibv_wc_status};

/// A completion queue of the node, by number. Its ring belongs to the shell around the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CqId(pub u32);

/// A protection domain of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PdId(pub u32);

/// Which queue a completed request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
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
    /// The Queue Pair.
    pub qp_num: u32,
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
    /// A Queue Pair changed its state by itself.
    State {
        /// Its number.
        qp_num: u32,
        /// The state that it has now.
        state: ibv_qp_state,
    },
}
