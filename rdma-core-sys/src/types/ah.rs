//! Address vectors, address handles, the global route header.

use super::*;

c_struct! {
    /// The global part of an address vector. RoCE always needs it.
    pub struct ibv_global_route [24, 8] {
        /// The destination GID.
        pub dgid: ibv_gid = 0,
        /// The flow label, 20 bits.
        pub flow_label: u32 = 16,
        /// The index of the source GID in the port's table.
        pub sgid_index: u8 = 20,
        /// The hop limit (IPv4: time to live).
        pub hop_limit: u8 = 21,
        /// The traffic class.
        pub traffic_class: u8 = 22,
    }

    /// A global route header, as a UD receive deposits it in front of the payload.
    pub struct ibv_grh [40, 8] {
        /// Version, traffic class and flow label, in network byte order.
        pub version_tclass_flow: u32 = 0,
        /// Payload length, in network byte order.
        pub paylen: u16 = 4,
        /// The next header.
        pub next_hdr: u8 = 6,
        /// The hop limit.
        pub hop_limit: u8 = 7,
        /// The source GID.
        pub sgid: ibv_gid = 8,
        /// The destination GID.
        pub dgid: ibv_gid = 24,
    }

    /// An address vector.
    pub struct ibv_ah_attr [32, 8] {
        /// The global part; valid with `is_global`.
        pub grh: ibv_global_route = 0,
        /// The destination LID, host byte order (0 on RoCE).
        pub dlid: u16 = 24,
        /// The service level, 0 to 15.
        pub sl: u8 = 26,
        /// The low bits of the source LID.
        pub src_path_bits: u8 = 27,
        /// The greatest rate, an [`ibv_rate`].
        pub static_rate: u8 = 28,
        /// Non-zero: `grh` is valid. RoCE needs 1.
        pub is_global: u8 = 29,
        /// The local port, counted from 1.
        pub port_num: u8 = 30,
    }

    /// An address handle: an address vector that UD requests name.
    pub struct ibv_ah [24, 8] {
        /// The device context that it belongs to.
        pub context: *mut ibv_context = 0,
        /// Its protection domain.
        pub pd: *mut ibv_pd = 8,
        /// The kernel's handle.
        pub handle: u32 = 16,
    }
}

macro_rules! rates {
    ($($name:ident = $val:literal : $text:literal),* $(,)?) => {
        c_enum! {
            /// A limit of the packet rate of an address vector (IBA static rate encoding).
            pub enum ibv_rate: u32 { $( #[doc = $text] $name = $val ),* }
        }
    };
}

rates! {
    IBV_RATE_MAX = 0: "No limit.",
    IBV_RATE_2_5_GBPS = 2: "2.5 Gbit/s.",
    IBV_RATE_10_GBPS = 3: "10 Gbit/s.",
    IBV_RATE_30_GBPS = 4: "30 Gbit/s.",
    IBV_RATE_5_GBPS = 5: "5 Gbit/s.",
    IBV_RATE_20_GBPS = 6: "20 Gbit/s.",
    IBV_RATE_40_GBPS = 7: "40 Gbit/s.",
    IBV_RATE_60_GBPS = 8: "60 Gbit/s.",
    IBV_RATE_80_GBPS = 9: "80 Gbit/s.",
    IBV_RATE_120_GBPS = 10: "120 Gbit/s.",
    IBV_RATE_14_GBPS = 11: "14 Gbit/s.",
    IBV_RATE_56_GBPS = 12: "56 Gbit/s.",
    IBV_RATE_112_GBPS = 13: "112 Gbit/s.",
    IBV_RATE_168_GBPS = 14: "168 Gbit/s.",
    IBV_RATE_25_GBPS = 15: "25 Gbit/s.",
    IBV_RATE_100_GBPS = 16: "100 Gbit/s.",
    IBV_RATE_200_GBPS = 17: "200 Gbit/s.",
    IBV_RATE_300_GBPS = 18: "300 Gbit/s.",
    IBV_RATE_28_GBPS = 19: "28 Gbit/s.",
    IBV_RATE_50_GBPS = 20: "50 Gbit/s.",
    IBV_RATE_400_GBPS = 21: "400 Gbit/s.",
    IBV_RATE_600_GBPS = 22: "600 Gbit/s.",
    IBV_RATE_800_GBPS = 23: "800 Gbit/s.",
    IBV_RATE_1200_GBPS = 24: "1200 Gbit/s.",
}
