//! How many Queue Pairs and how much memory a job needs, by transport: pure arithmetic.
//!
//! A job has `M` nodes of `P` processes each, `N = M x P` in all, and every process talks to every other one. The pairs on
//! one node go over the fabric too ([`IntraNode::Fabric`]), or are left to shared memory ([`IntraNode::Shm`]).
//!
//! # Queue Pairs
//!
//! |  | of a process, fabric | shm | in all, fabric | shm |
//! |---|---|---|---|---|
//! | RC, with or without SRQ | N - 1 | N - P | N (N - 1) | N (N - P) |
//! | XRC initiators | M | M - 1 | N M | N (M - 1) |
//! | XRC targets | M | M - 1 | N M | N (M - 1) |
//! | UD, with reliable datagrams or without | 1 | 1 | N | N |
//!
//! An RC QP is an end of one pair, so both ends count. An XRC initiator leads from a process to a *node*, and has its target
//! there, which delivers to all processes of that node: N initiators lead to a node, so it has N targets, which is M for each
//! of its P processes. The process's own node is one of the M if it has other processes; with one process per node there
//! is no pair inside a node, and it is M - 1 over the fabric, too.
//!
//! # Receives and memory
//!
//! |  | receives of a process | rings of a process |
//! |---|---|---|
//! | RC | `recv` for each QP | send and receive ring of each QP, CQ |
//! | RC + SRQ | `srq` | send ring of each QP, SRQ, CQ |
//! | XRC | `srq` | send ring of each initiator, SRQ, CQ; targets have no ring |
//! | UD | `srq` | one send ring of `srq` requests, one receive ring, CQ, an address handle for each peer |
//! | reliable datagrams | `srq`, at least 16 | one send ring of 128 requests, one receive ring, CQ, an address handle for each peer |
//!
//! The names are those of [`Depths`]. A ring is its depth times the size of an entry ([`Sizes`]), in whole pages; the CQ has an
//! entry for every request that may be outstanding. Each receive has a buffer of `buffer` bytes; on UD it is 40 bytes
//! longer. Send buffers are left out: the transport does not change them; but reliable datagrams
//! ([`rdma_qp::datagram`]) keep what they may have to send again, which is counted: `srq` packets, beside the buffers of their 128
//! sends, and an eighth more buffers than receives, for messages that the application has. Each packet is as long as a buffer. Nor are the processes' means to find each other
//! counted, such as the one UD QP that each process of a [`mesh`](crate::mesh) has for that, whatever its transport.
//!
//! # The article's example
//!
//! "100 processes, all connected: 100 x 99 RC QPs; with XRC only 100 initiators and a few SRQs." Half of that is so:
//!
//! ```
//! use rdma_xrc::plan::{Depths, IntraNode, plan};
//! let ten_by_ten = plan(10, 10, Depths::default(), IntraNode::Fabric)?;
//! assert_eq!(ten_by_ten.rc.job.qps, 9_900);
//! assert_eq!(ten_by_ten.xrc.job.initiators, Some(1_000));
//! assert_eq!(ten_by_ten.xrc.job.targets, Some(1_000)); // they are QPs, too
//!
//! // One initiator leads to one node, so 100 are enough for two nodes, with shared memory inside each.
//! let two_nodes = plan(2, 50, Depths::default(), IntraNode::Shm)?;
//! assert_eq!((two_nodes.rc.job.qps, two_nodes.xrc.job.initiators), (5_000, Some(100)));
//!
//! // And where each process has a node of its own, XRC has twice as many QPs as RC.
//! let alone = plan(100, 1, Depths::default(), IntraNode::Fabric)?;
//! assert_eq!((alone.rc.job.qps, alone.xrc.job.qps), (9_900, 19_800));
//! # Ok::<(), rdma_xrc::plan::PlanError>(())
//! ```
//!
//! # Break-even
//!
//! Compare what one process has: N - 1 = M P - 1 against 2 M, or M P - P against 2 (M - 1). So with shared memory both are equal at
//! two processes per node, and XRC has fewer from three on, by the factor P / 2; over the fabric it is about the same.
//! [`Plan::break_even`] says it exactly, for memory too.

mod memory;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

pub use memory::Sizes;

/// What becomes of the pairs whose processes are on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IntraNode {
    /// They go over the fabric, like all others.
    #[default]
    Fabric,
    /// They are left to shared memory, and need no QP.
    Shm,
}

impl fmt::Display for IntraNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IntraNode::Fabric => "over the fabric",
            IntraNode::Shm => "left to shared memory",
        })
    }
}

/// How deep the queues are, and how large the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Depths {
    /// Sends that a QP may have outstanding.
    pub send: u32,
    /// Receives of a QP that has a receive queue of its own.
    pub recv: u32,
    /// Receives of a shared receive queue; of UD too, where one QP does for all peers, and its sends.
    pub srq: u32,
    /// Bytes of the buffer of each receive.
    pub buffer: u32,
}

impl Default for Depths {
    /// 64 sends, 64 receives, 1024 shared ones, of 4096 bytes.
    fn default() -> Depths {
        Depths {
            send: 64,
            recv: 64,
            srq: 1024,
            buffer: 4096,
        }
    }
}

/// A job cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// There are none of something that there must be.
    #[error("{field} is 0: give at least 1")]
    Zero {
        /// What it is.
        field: &'static str,
    },
    /// More than 64 bits can count.
    #[error(
        "{nodes} nodes of {per_node} processes with these depths need more than 2^64 of something: no machine is that large"
    )]
    TooLarge {
        /// Nodes asked for.
        nodes: u32,
        /// Processes per node asked for.
        per_node: u32,
    },
}

/// What is needed somewhere: by one process, on one node, or by the whole job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Amounts {
    /// Queue Pairs of all roles.
    pub qps: u64,
    /// XRC initiators among them; only XRC has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiators: Option<u64>,
    /// XRC targets among them; only XRC has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<u64>,
    /// Shared receive queues.
    pub srqs: u64,
    /// Receives that are posted.
    pub receives: u64,
    /// Bytes of their buffers.
    pub receive_bytes: u64,
    /// Bytes of memory in all: buffers of receives, rings, and the objects themselves.
    pub memory_bytes: u64,
}

impl Amounts {
    fn times(self, n: u64) -> Option<Amounts> {
        let times = |amount: Option<u64>| match amount {
            Some(amount) => amount.checked_mul(n).map(Some),
            None => Some(None),
        };
        Some(Amounts {
            qps: self.qps.checked_mul(n)?,
            initiators: times(self.initiators)?,
            targets: times(self.targets)?,
            srqs: self.srqs.checked_mul(n)?,
            receives: self.receives.checked_mul(n)?,
            receive_bytes: self.receive_bytes.checked_mul(n)?,
            memory_bytes: self.memory_bytes.checked_mul(n)?,
        })
    }
}

/// What one transport needs. Processes are all alike, and so are nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Needs {
    /// The whole job.
    #[serde(flatten)]
    pub job: Amounts,
    /// One node.
    pub per_node: Amounts,
    /// One process. Of the targets on a node each of its processes has an equal part.
    pub per_process: Amounts,
}

/// What a job needs, by transport. Made by [`plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Nodes.
    pub nodes: u32,
    /// Processes on each node.
    pub per_node: u32,
    /// Processes in all.
    pub processes: u64,
    /// What becomes of the pairs on one node.
    pub intra_node: IntraNode,
    /// The depths that it is for.
    pub depths: Depths,
    /// The sizes that it reckons with.
    pub sizes: Sizes,
    /// RC, each QP with receives of its own.
    pub rc: Needs,
    /// RC, with one shared receive queue per process.
    pub rc_srq: Needs,
    /// XRC, with one shared receive queue per process.
    pub xrc: Needs,
    /// UD, with one QP per process.
    pub ud: Needs,
    /// Reliable datagrams over one UD QP per process, as [`Over::Datagrams`](crate::mesh::Over) has them.
    pub datagrams: Needs,
}

/// From how many processes per node on something pays, all else being as in the plan. `None`: never, as far as was looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BreakEven {
    /// XRC has exactly as many QPs as RC at so many.
    pub xrc_as_many_qps_at: Option<u32>,
    /// XRC has fewer QPs than RC from so many on.
    pub xrc_fewer_qps_from: Option<u32>,
    /// XRC takes less memory than RC with an SRQ from so many on.
    pub xrc_less_memory_from: Option<u32>,
    /// RC with an SRQ takes less memory than RC without from so many on.
    pub srq_less_memory_from: Option<u32>,
}

/// Most processes per node that are looked at for a break-even.
const FURTHEST: u32 = 4096;

/// Most QPs that one port can tell apart: their numbers have 24 bits. Adapters have fewer, see `max_qp` of
/// `ibv_query_device(3)`.
pub const QP_NUMBERS: u64 = 1 << 24;

/// Plans a job of `nodes` nodes of `per_node` processes each, with the [`Sizes`] of a usual adapter.
///
/// ```
/// use rdma_xrc::plan::{Depths, IntraNode, plan};
/// let plan = plan(4, 4, Depths::default(), IntraNode::Fabric)?;
/// assert_eq!(plan.rc.per_process.qps, 15);
/// let xrc = plan.xrc.per_process;
/// assert_eq!((xrc.initiators, xrc.targets), (Some(4), Some(4)));
/// # Ok::<(), rdma_xrc::plan::PlanError>(())
/// ```
///
/// # Errors
/// Something is 0 that must not be, or a number has more than 64 bits.
pub fn plan(
    nodes: u32,
    per_node: u32,
    depths: Depths,
    intra_node: IntraNode,
) -> Result<Plan, PlanError> {
    plan_with(nodes, per_node, depths, intra_node, &Sizes::default())
}

/// Plans as [`plan`] does, for an adapter with other sizes.
///
/// # Errors
/// As [`plan`].
pub fn plan_with(
    nodes: u32,
    per_node: u32,
    depths: Depths,
    intra_node: IntraNode,
    sizes: &Sizes,
) -> Result<Plan, PlanError> {
    let Depths {
        send,
        recv,
        srq,
        buffer,
    } = depths;
    for (field, value) in [
        ("nodes", nodes),
        ("processes per node", per_node),
        ("the send depth", send),
        ("the receive depth", recv),
        ("the depth of the SRQ", srq),
        ("the size of a buffer", buffer),
        ("the size of a page", sizes.page),
    ] {
        if value == 0 {
            return Err(PlanError::Zero { field });
        }
    }
    checked(nodes, per_node, depths, intra_node, sizes)
        .ok_or(PlanError::TooLarge { nodes, per_node })
}

/// `None`: a number has more than 64 bits.
fn checked(
    nodes: u32,
    per_node: u32,
    depths: Depths,
    intra_node: IntraNode,
    sizes: &Sizes,
) -> Option<Plan> {
    let (m, p) = (u64::from(nodes), u64::from(per_node));
    let n = m.checked_mul(p)?;
    // Peers that a process reaches over the fabric, and nodes that they live on.
    let (peers, peer_nodes) = match intra_node {
        IntraNode::Fabric if per_node > 1 => (n - 1, m),
        IntraNode::Fabric | IntraNode::Shm => (n - p, m - 1),
    };
    let needs = |one: Amounts| {
        Some(Needs {
            job: one.times(n)?,
            per_node: one.times(p)?,
            per_process: one,
        })
    };
    Some(Plan {
        nodes,
        per_node,
        processes: n,
        intra_node,
        depths,
        sizes: *sizes,
        rc: needs(memory::rc(peers, depths, sizes)?)?,
        rc_srq: needs(memory::rc_srq(peers, depths, sizes)?)?,
        xrc: needs(memory::xrc(peer_nodes, depths, sizes)?)?,
        ud: needs(memory::ud(peers, depths, sizes)?)?,
        datagrams: needs(memory::datagrams(peers, depths, sizes)?)?,
    })
}

impl Plan {
    /// From how many processes per node on one transport needs less than another, with the same nodes and depths.
    ///
    /// ```
    /// use rdma_xrc::plan::{Depths, IntraNode, plan};
    /// let shm = plan(10, 10, Depths::default(), IntraNode::Shm)?.break_even();
    /// assert_eq!((shm.xrc_as_many_qps_at, shm.xrc_fewer_qps_from), (Some(2), Some(3)));
    /// # Ok::<(), rdma_xrc::plan::PlanError>(())
    /// ```
    pub fn break_even(&self) -> BreakEven {
        let first = |is_so: fn(&Plan) -> bool| {
            (1..=FURTHEST).find(|&per_node| {
                // What overflows is beyond every break-even.
                let (nodes, depths, intra_node) = (self.nodes, self.depths, self.intra_node);
                checked(nodes, per_node, depths, intra_node, &self.sizes).is_some_and(|p| is_so(&p))
            })
        };
        // With nobody to talk to both have none: that is no break-even.
        BreakEven {
            xrc_as_many_qps_at: first(|p| p.rc.job.qps > 0 && p.xrc.job.qps == p.rc.job.qps),
            xrc_fewer_qps_from: first(|p| p.xrc.job.qps < p.rc.job.qps),
            xrc_less_memory_from: first(|p| p.xrc.job.memory_bytes < p.rc_srq.job.memory_bytes),
            srq_less_memory_from: first(|p| p.rc_srq.job.memory_bytes < p.rc.job.memory_bytes),
        }
    }
}
