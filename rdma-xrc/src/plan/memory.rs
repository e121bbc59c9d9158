//! The formulas of one process: what it has, and what that takes.

use serde::Serialize;

use super::{Amounts, Depths};
use crate::mesh::LEAST_RECEIVES;

/// Bytes that things take. The defaults are those of the `mlx5` provider of rdma-core, with one entry per request, so
/// that plans have one yardstick; another adapter has other sizes of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// An entry of the send ring of an RC QP or an XRC initiator. 256: control segment, room for the bind of a memory window
    /// (which is longer than any other request), one data segment, in multiples of 64 (`providers/mlx5/verbs.c`,
    /// `sq_overhead`).
    pub send: u32,
    /// An entry of the send ring of a UD QP. 128: control, datagram and data segment, in multiples of 64 (the same
    /// function).
    pub ud_send: u32,
    /// An entry of a receive ring. 16: one data segment.
    pub recv: u32,
    /// An entry of a shared receive queue. 32: a data segment, and the link to the next entry.
    pub srq_recv: u32,
    /// A completion. 64.
    pub cqe: u32,
    /// A QP, SRQ or CQ besides its ring: in the library, the kernel and the adapter. 1024, which is an assumption: it depends on
    /// the versions of all three.
    pub object: u32,
    /// An address handle. 64, an assumption too.
    pub ah: u32,
    /// Rings are whole pages. 4096.
    pub page: u32,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            send: 256,
            ud_send: 128,
            recv: 16,
            srq_recv: 32,
            cqe: 64,
            object: 1024,
            ah: 64,
            page: 4096,
        }
    }
}

/// Sends of the one UD QP of reliable datagrams.
const GRAM_SENDS: u64 = 128;

/// Bytes that the device writes before a datagram (the global routing header).
const GRH: u64 = 40;

impl Sizes {
    /// Bytes of the pages of something that has these rings, each of a depth and a size of its entries; with the object itself.
    fn object(&self, rings: &[(u64, u32)]) -> Option<u64> {
        let mut bytes: u64 = 0;
        for &(depth, entry) in rings {
            bytes = bytes.checked_add(depth.checked_mul(entry.into())?)?;
        }
        let pages = bytes.div_ceil(self.page.into());
        pages
            .checked_mul(self.page.into())?
            .checked_add(self.object.into())
    }
}

/// Both of it.
fn sum(parts: &[u64]) -> Option<u64> {
    parts
        .iter()
        .try_fold(0u64, |sum, part| sum.checked_add(*part))
}

/// RC: a QP for each peer, with receives of its own.
pub(super) fn rc(peers: u64, depths: Depths, sizes: &Sizes) -> Option<Amounts> {
    let (send, recv) = (u64::from(depths.send), u64::from(depths.recv));
    let receives = peers.checked_mul(recv)?;
    let receive_bytes = receives.checked_mul(depths.buffer.into())?;
    let qp = sizes.object(&[(send, sizes.send), (recv, sizes.recv)])?;
    let cq = sizes.object(&[(peers.checked_mul(send + recv)?, sizes.cqe)])?;
    Some(Amounts {
        qps: peers,
        receives,
        receive_bytes,
        memory_bytes: sum(&[peers.checked_mul(qp)?, cq, receive_bytes])?,
        ..Amounts::default()
    })
}

/// Any number of QPs that send, and one SRQ.
fn with_srq(senders: u64, depths: Depths, sizes: &Sizes) -> Option<Amounts> {
    let (send, srq) = (u64::from(depths.send), u64::from(depths.srq));
    let receive_bytes = srq.checked_mul(depths.buffer.into())?;
    let qp = sizes.object(&[(send, sizes.send)])?;
    let queue = sizes.object(&[(srq, sizes.srq_recv)])?;
    let entries = senders.checked_mul(send)?.checked_add(srq)?;
    let cq = sizes.object(&[(entries, sizes.cqe)])?;
    Some(Amounts {
        qps: senders,
        srqs: 1,
        receives: srq,
        receive_bytes,
        memory_bytes: sum(&[senders.checked_mul(qp)?, queue, cq, receive_bytes])?,
        ..Amounts::default()
    })
}

/// RC with an SRQ: a QP for each peer, without receives.
pub(super) fn rc_srq(peers: u64, depths: Depths, sizes: &Sizes) -> Option<Amounts> {
    with_srq(peers, depths, sizes)
}

/// XRC: an initiator for each node, and as many targets, which are objects without any ring.
pub(super) fn xrc(nodes: u64, depths: Depths, sizes: &Sizes) -> Option<Amounts> {
    let initiators = with_srq(nodes, depths, sizes)?;
    let targets = nodes.checked_mul(sizes.object.into())?;
    Some(Amounts {
        qps: nodes.checked_mul(2)?,
        initiators: Some(nodes),
        targets: Some(nodes),
        memory_bytes: initiators.memory_bytes.checked_add(targets)?,
        ..initiators
    })
}

/// UD: one QP, and an address handle for each peer.
pub(super) fn ud(peers: u64, depths: Depths, sizes: &Sizes) -> Option<Amounts> {
    let depth = u64::from(depths.srq);
    let receive_bytes = depth.checked_mul(u64::from(depths.buffer) + GRH)?;
    let qp = sizes.object(&[(depth, sizes.ud_send), (depth, sizes.recv)])?;
    let cq = sizes.object(&[(2 * depth, sizes.cqe)])?;
    let handles = peers.checked_mul(sizes.ah.into())?;
    Some(Amounts {
        qps: 1,
        receives: depth,
        receive_bytes,
        memory_bytes: sum(&[qp, cq, handles, receive_bytes])?,
        ..Amounts::default()
    })
}

/// Reliable datagrams: one UD QP with receives for everybody, an eighth more buffers for messages that are kept, and a copy of each packet that
/// may have to be sent again.
pub(super) fn datagrams(peers: u64, depths: Depths, sizes: &Sizes) -> Option<Amounts> {
    let packet = u64::from(depths.buffer);
    let receives = u64::from(depths.srq.max(LEAST_RECEIVES));
    let buffers = receives.checked_add(receives / 8 + 1)?;
    let receive_bytes = buffers.checked_mul(packet + GRH)?;
    let sends = (GRAM_SENDS + u64::from(depths.srq)).checked_mul(packet)?;
    let qp = sizes.object(&[(GRAM_SENDS, sizes.ud_send), (receives, sizes.recv)])?;
    let cq = sizes.object(&[(receives.checked_add(GRAM_SENDS)?, sizes.cqe)])?;
    let handles = peers.checked_mul(sizes.ah.into())?;
    Some(Amounts {
        qps: 1,
        receives,
        receive_bytes,
        memory_bytes: sum(&[qp, cq, handles, receive_bytes, sends])?,
        ..Amounts::default()
    })
}
