//! Ports.

use core::ffi::c_int;

c_enum! {
    /// A path MTU code.
    pub enum ibv_mtu: u32 {
        /// 256 bytes.
        IBV_MTU_256 = 1,
        /// 512 bytes.
        IBV_MTU_512 = 2,
        /// 1024 bytes.
        IBV_MTU_1024 = 3,
        /// 2048 bytes.
        IBV_MTU_2048 = 4,
        /// 4096 bytes.
        IBV_MTU_4096 = 5,
    }

    /// The logical state of a port.
    pub enum ibv_port_state: u32 {
        /// Not known.
        IBV_PORT_NOP = 0,
        /// Down.
        IBV_PORT_DOWN = 1,
        /// Up, not yet configured.
        IBV_PORT_INIT = 2,
        /// Configured, not yet active.
        IBV_PORT_ARMED = 3,
        /// Working.
        IBV_PORT_ACTIVE = 4,
        /// Active, with a link error not yet counted.
        IBV_PORT_ACTIVE_DEFER = 5,
    }
}

impl ibv_mtu {
    /// The payload bytes of a packet, `None` for an unknown code.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            code @ 1..=5 => Some(128 << code),
            _ => None,
        }
    }

    /// The code for exactly so many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(IBV_MTU_256),
            512 => Some(IBV_MTU_512),
            1024 => Some(IBV_MTU_1024),
            2048 => Some(IBV_MTU_2048),
            4096 => Some(IBV_MTU_4096),
            _ => None,
        }
    }
}

/// `link_layer`: not told; take it for InfiniBand.
pub const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
/// `link_layer`: InfiniBand.
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// `link_layer`: Ethernet (RoCE, iWARP).
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
/// `flags`: every address vector needs a GRH.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;

c_flags! {
    /// What a port can do.
    pub flags ibv_port_cap_flags: u32 {
        /// It is a subnet manager.
        IBV_PORT_SM = 1 << 1,
        /// Notices.
        IBV_PORT_NOTICE_SUP = 1 << 2,
        /// Traps.
        IBV_PORT_TRAP_SUP = 1 << 3,
        /// Optional inter-packet delay.
        IBV_PORT_OPT_IPD_SUP = 1 << 4,
        /// Automatic path migration.
        IBV_PORT_AUTO_MIGR_SUP = 1 << 5,
        /// Service level mapping.
        IBV_PORT_SL_MAP_SUP = 1 << 6,
        /// M_Key in non-volatile memory.
        IBV_PORT_MKEY_NVRAM = 1 << 7,
        /// P_Keys in non-volatile memory.
        IBV_PORT_PKEY_NVRAM = 1 << 8,
        /// LED information.
        IBV_PORT_LED_INFO_SUP = 1 << 9,
        /// System image GUID.
        IBV_PORT_SYS_IMAGE_GUID_SUP = 1 << 11,
        /// P_Key trap of a switch's external port.
        IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12,
        /// Extended link speeds.
        IBV_PORT_EXTENDED_SPEEDS_SUP = 1 << 14,
        /// `port_cap_flags2` is valid.
        IBV_PORT_CAP_MASK2_SUP = 1 << 15,
        /// Communication manager.
        IBV_PORT_CM_SUP = 1 << 16,
        /// SNMP tunnelling.
        IBV_PORT_SNMP_TUNNEL_SUP = 1 << 17,
        /// Reinitialisation.
        IBV_PORT_REINIT_SUP = 1 << 18,
        /// Device management.
        IBV_PORT_DEVICE_MGMT_SUP = 1 << 19,
        /// Vendor class.
        IBV_PORT_VENDOR_CLASS_SUP = 1 << 20,
        /// Directed route notices.
        IBV_PORT_DR_NOTICE_SUP = 1 << 21,
        /// Notices of capability changes.
        IBV_PORT_CAP_MASK_NOTICE_SUP = 1 << 22,
        /// Boot management.
        IBV_PORT_BOOT_MGMT_SUP = 1 << 23,
        /// Link latency measurement.
        IBV_PORT_LINK_LATENCY_SUP = 1 << 24,
        /// Client registration again on request.
        IBV_PORT_CLIENT_REG_SUP = 1 << 25,
        /// GIDs come from IP addresses (RoCE).
        IBV_PORT_IP_BASED_GIDS = 1 << 26,
    }

    /// What else a port can do (`port_cap_flags2`).
    pub flags ibv_port_cap_flags2: u16 {
        /// The node description can be set.
        IBV_PORT_SET_NODE_DESC_SUP = 1 << 0,
        /// Extended port information.
        IBV_PORT_INFO_EXT_SUP = 1 << 1,
        /// Virtualisation.
        IBV_PORT_VIRT_SUP = 1 << 2,
        /// Switch port state table.
        IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 1 << 3,
        /// Link width 2x.
        IBV_PORT_LINK_WIDTH_2X_SUP = 1 << 4,
        /// HDR speed.
        IBV_PORT_LINK_SPEED_HDR_SUP = 1 << 5,
        /// NDR speed.
        IBV_PORT_LINK_SPEED_NDR_SUP = 1 << 10,
        /// XDR speed.
        IBV_PORT_LINK_SPEED_XDR_SUP = 1 << 12,
    }
}

c_struct! {
    /// The attributes of a port.
    ///
    /// `ibv_query_port` of the library's symbol table writes the first 48 bytes only; [`ops::ibv_query_port`](crate::ops::ibv_query_port)
    /// fills all of it, as the C header's macro does.
    pub struct ibv_port_attr [56, 4] {
        /// Its logical state.
        pub state: ibv_port_state = 0,
        /// The greatest MTU that the port can do.
        pub max_mtu: ibv_mtu = 4,
        /// The MTU in force: the greatest that a path may use.
        pub active_mtu: ibv_mtu = 8,
        /// Entries in the GID table, empty ones included.
        pub gid_tbl_len: c_int = 12,
        /// Bits of [`ibv_port_cap_flags`].
        pub port_cap_flags: u32 = 16,
        /// The greatest message, in bytes.
        pub max_msg_sz: u32 = 20,
        /// Packets with a bad P_Key.
        pub bad_pkey_cntr: u32 = 24,
        /// Packets with a bad Q_Key.
        pub qkey_viol_cntr: u32 = 28,
        /// Entries in the P_Key table.
        pub pkey_tbl_len: u16 = 32,
        /// The LID (0 on RoCE).
        pub lid: u16 = 34,
        /// The subnet manager's LID.
        pub sm_lid: u16 = 36,
        /// LID mask control.
        pub lmc: u8 = 38,
        /// Virtual lanes, encoded.
        pub max_vl_num: u8 = 39,
        /// The subnet manager's service level.
        pub sm_sl: u8 = 40,
        /// Subnet timeout, 4.096 us x 2^n.
        pub subnet_timeout: u8 = 41,
        /// Initialisation type reply.
        pub init_type_reply: u8 = 42,
        /// Link width: 1 = 1x, 2 = 4x, 4 = 8x, 8 = 12x, 16 = 2x.
        pub active_width: u8 = 43,
        /// Link speed, encoded: 1 = 2.5, 2 = 5, 4 or 8 = 10, 16 = 14, 32 = 25, 64 = 50, 128 = 100 Gbit/s per lane.
        pub active_speed: u8 = 44,
        /// The physical state: 2 = polling, 3 = disabled, 5 = link up.
        pub phys_state: u8 = 45,
        /// One of `IBV_LINK_LAYER_*`.
        pub link_layer: u8 = 46,
        /// [`IBV_QPF_GRH_REQUIRED`].
        pub flags: u8 = 47,
        /// Bits of [`ibv_port_cap_flags2`], valid with [`IBV_PORT_CAP_MASK2_SUP`].
        pub port_cap_flags2: u16 = 48,
        /// Link speed in the wider encoding of newer devices, 0 where it is not told.
        pub active_speed_ex: u32 = 52,
    }
}
