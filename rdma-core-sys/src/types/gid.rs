//! GIDs and GID table entries.

use core::fmt;
use core::net::Ipv6Addr;

/// A GID: 16 bytes in network order, for RoCE an IPv6 address or an IPv4-mapped one.
///
/// C has a union here, whose other member gives the alignment of 8; the halves are [`subnet_prefix`](Self::subnet_prefix)
/// and [`interface_id`](Self::interface_id).
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ibv_gid {
    /// The bytes, as they travel.
    pub raw: [u8; 16],
}

impl ibv_gid {
    /// All zero: what an empty slot of a GID table holds.
    #[must_use]
    pub const fn zeroed() -> Self {
        Self { raw: [0; 16] }
    }

    /// The GID with these bytes.
    #[must_use]
    pub const fn from_raw(raw: [u8; 16]) -> Self {
        Self { raw }
    }

    /// The upper 64 bits as a number (C: `be64toh(gid.global.subnet_prefix)`).
    #[must_use]
    pub const fn subnet_prefix(&self) -> u64 {
        (u128::from_be_bytes(self.raw) >> 64) as u64
    }

    /// The lower 64 bits as a number (C: `be64toh(gid.global.interface_id)`).
    #[must_use]
    pub const fn interface_id(&self) -> u64 {
        u128::from_be_bytes(self.raw) as u64
    }

    /// True for an empty slot of a GID table.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        u128::from_be_bytes(self.raw) == 0
    }
}

impl From<Ipv6Addr> for ibv_gid {
    fn from(addr: Ipv6Addr) -> Self {
        Self { raw: addr.octets() }
    }
}

impl From<ibv_gid> for Ipv6Addr {
    fn from(gid: ibv_gid) -> Self {
        Self::from(gid.raw)
    }
}

impl fmt::Display for ibv_gid {
    /// As an IPv6 address, `::ffff:10.0.0.7` for an IPv4-mapped one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(*self), f)
    }
}

impl fmt::Debug for ibv_gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ibv_gid({self})")
    }
}

// SAFETY: sixteen bytes; all-zero bytes are valid.
unsafe impl crate::macros::Zeroable for ibv_gid {}

const _: () = assert!(size_of::<ibv_gid>() == 16 && align_of::<ibv_gid>() == 8);

/// The layout of [`ibv_gid`], which the macro does not declare.
pub(super) const GID_LAYOUT: crate::layout::Layout = crate::layout::Layout {
    name: "ibv_gid",
    kind: "union",
    within: None,
    size: size_of::<ibv_gid>(),
    align: align_of::<ibv_gid>(),
    fields: &[
        ("raw", 0),
        ("global.subnet_prefix", 0),
        ("global.interface_id", 8),
    ],
};

c_enum! {
    /// What a GID table entry means on the wire.
    pub enum ibv_gid_type: u32 {
        /// InfiniBand.
        IBV_GID_TYPE_IB = 0,
        /// RoCE v1: Ethernet type 0x8915, not routable.
        IBV_GID_TYPE_ROCE_V1 = 1,
        /// RoCE v2: UDP port 4791.
        IBV_GID_TYPE_ROCE_V2 = 2,
    }
}

c_struct! {
    /// An entry of a GID table, as `ibv_query_gid_ex` and `ibv_query_gid_table` give it.
    pub struct ibv_gid_entry [32, 8] {
        /// The GID.
        pub gid: ibv_gid = 0,
        /// Its index in the port's table.
        pub gid_index: u32 = 16,
        /// The port, counted from 1.
        pub port_num: u32 = 20,
        /// The type, an [`ibv_gid_type`].
        pub gid_type: u32 = 24,
        /// The interface index of the network device behind it, 0 when there is none.
        pub ndev_ifindex: u32 = 28,
    }
}
