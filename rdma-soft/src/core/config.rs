//! What the engine is told about its node: ports, GIDs and limits.

use std::net::IpAddr;

/// Limits of the device, enforced exactly and reported by `ibv_query_device`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Protection domains.
    pub max_pd: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of one memory region.
    pub max_mr_size: u64,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Queue Pairs.
    pub max_qp: u32,
    /// Work requests of one send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of one work request; at most [`Caps::SGE_LIMIT`].
    pub max_sge: u32,
    /// Bytes of inline data of one send request; at most [`Caps::INLINE_LIMIT`].
    pub max_inline_data: u32,
    /// Outstanding READs and atomics that a Queue Pair takes as responder.
    pub max_qp_rd_atom: u8,
    /// Outstanding READs and atomics that a Queue Pair starts as requester.
    pub max_qp_init_rd_atom: u8,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather entries of a request of a shared receive queue; at most [`Caps::SGE_LIMIT`].
    pub max_srq_sge: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Bytes of device memory, of all buffers together.
    pub max_dm_size: u64,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue Pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
}

impl Caps {
    /// The most scatter/gather entries that a work request has room for.
    pub const SGE_LIMIT: usize = 16;
    /// The most bytes of inline data that a work request has room for.
    pub const INLINE_LIMIT: usize = 256;
}

impl Default for Caps {
    fn default() -> Caps {
        Caps {
            max_pd: 1 << 16,
            max_mr: 1 << 20,
            max_mr_size: 1 << 40,
            max_cq: 1 << 16,
            max_cqe: 1 << 20,
            max_qp: 1 << 16,
            max_qp_wr: 1 << 15,
            max_sge: Caps::SGE_LIMIT as u32,
            max_inline_data: Caps::INLINE_LIMIT as u32,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_ah: 1 << 16,
            max_srq: 1 << 16,
            max_srq_wr: 1 << 15,
            max_srq_sge: Caps::SGE_LIMIT as u32,
            max_mw: 1 << 16,
            max_dm_size: 1 << 18,
            max_mcast_grp: 1 << 12,
            max_mcast_qp_attach: 1 << 10,
        }
    }
}

/// How frames of a GID table entry look on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// RoCE v1: an Ethernet type of its own. Listed, but this device sends no such frames.
    RoceV1,
    /// RoCE v2: UDP port 4791.
    RoceV2,
}

/// One entry of a port's GID table. An all-zero GID is an empty slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The 16 bytes of the GID, as on the wire.
    pub gid: [u8; 16],
    /// Its RoCE version.
    pub kind: GidKind,
}

impl GidEntry {
    /// An empty slot.
    pub const EMPTY: GidEntry = GidEntry {
        gid: [0; 16],
        kind: GidKind::RoceV2,
    };

    /// The entry of a RoCE v2 address: an IPv4 address is mapped into ::ffff:0:0/96.
    pub fn v2(addr: IpAddr) -> GidEntry {
        let gid = match addr {
            IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
            IpAddr::V6(a) => a.octets(),
        };
        GidEntry {
            gid,
            kind: GidKind::RoceV2,
        }
    }

    /// True for a slot that holds nothing.
    pub fn is_empty(&self) -> bool {
        self.gid == Self::EMPTY.gid
    }
}

/// The IP address that a GID stands for on the wire: IPv4 for a mapped one, else IPv6.
pub fn gid_to_ip(gid: [u8; 16]) -> IpAddr {
    let v6 = std::net::Ipv6Addr::from(gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// One port of the node.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The GID table.
    pub gids: Vec<GidEntry>,
    /// The partition key table; the default is one entry, 0xffff.
    pub pkeys: Vec<u16>,
    /// Largest packet payload in bytes that the port can carry: 256, 512, 1024, 2048 or 4096.
    pub active_mtu: u32,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
}

/// What the engine is told about its node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ports, in order; verbs count them from 1.
    pub ports: Vec<PortConfig>,
    /// Limits of the device.
    pub caps: Caps,
    /// Most packets that one Queue Pair keeps unacknowledged.
    pub window: u32,
    /// Be stricter where that finds bugs.
    pub strict: Strict,
}

/// Where the device is stricter than it need be, because that finds bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strict {
    /// Fields of a failed completion that verbs leave undefined hold [`POISON`](crate::POISON).
    pub poison: bool,
    /// Completions of different queues in one CQ are handed out in any order that verbs allow, drawn
    /// from the node's seed: each queue's own order stays.
    pub reorder_completions: bool,
    /// Local and remote key of a region always differ.
    pub distinct_keys: bool,
    /// Requests that an earlier READ may see, or that reuse its buffer, without a fence or a
    /// completion in between are counted (`tx_unfenced_hazards`).
    pub hazards: bool,
}

impl Default for Strict {
    fn default() -> Strict {
        Strict {
            poison: true,
            reorder_completions: false,
            distinct_keys: true,
            hazards: true,
        }
    }
}

impl Config {
    /// The largest [`window`](Config::window): PSNs are compared by their distance, which has 23
    /// bits and a sign.
    pub const WINDOW_LIMIT: u32 = 1 << 22;

    /// The most Queue Pairs: their numbers have 24 bits, of which 0, 1 and 0xffffff are taken, and
    /// half are left free so that a number is not used again soon.
    pub const QP_LIMIT: u32 = 1 << 23;

    /// The longest message in bytes (2^31, as the kernel's core has it); at the smallest path MTU
    /// that is 2^23 packets.
    pub const MESSAGE_LIMIT: u32 = 1 << 31;
}
