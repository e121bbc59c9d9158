//! Devices and their attributes.

use core::ffi::{c_char, c_int, c_uint};

c_enum! {
    /// The kind of node.
    pub enum ibv_node_type: i32 {
        /// Not known.
        IBV_NODE_UNKNOWN = -1,
        /// A channel adapter.
        IBV_NODE_CA = 1,
        /// A switch.
        IBV_NODE_SWITCH = 2,
        /// A router.
        IBV_NODE_ROUTER = 3,
        /// An iWARP NIC.
        IBV_NODE_RNIC = 4,
        /// usNIC over Ethernet.
        IBV_NODE_USNIC = 5,
        /// usNIC over UDP.
        IBV_NODE_USNIC_UDP = 6,
        /// Not specified.
        IBV_NODE_UNSPECIFIED = 7,
    }

    /// The transport of a device.
    pub enum ibv_transport_type: i32 {
        /// Not known.
        IBV_TRANSPORT_UNKNOWN = -1,
        /// InfiniBand, RoCE included.
        IBV_TRANSPORT_IB = 0,
        /// iWARP.
        IBV_TRANSPORT_IWARP = 1,
        /// usNIC over Ethernet.
        IBV_TRANSPORT_USNIC = 2,
        /// usNIC over UDP.
        IBV_TRANSPORT_USNIC_UDP = 3,
        /// Not specified.
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }

    /// How far atomics are atomic.
    pub enum ibv_atomic_cap: u32 {
        /// No atomics.
        IBV_ATOMIC_NONE = 0,
        /// Among the QPs of this device.
        IBV_ATOMIC_HCA = 1,
        /// With the processor and other devices too.
        IBV_ATOMIC_GLOB = 2,
    }

    /// The answer of `ibv_is_fork_initialized`.
    pub enum ibv_fork_status: u32 {
        /// fork(2) is not protected against.
        IBV_FORK_DISABLED = 0,
        /// `ibv_fork_init` took effect.
        IBV_FORK_ENABLED = 1,
        /// The kernel copies pinned pages on fork(2): nothing to do.
        IBV_FORK_UNNEEDED = 2,
    }
}

c_flags! {
    /// What a device can do. The first 32 bits are `device_cap_flags`, all are `device_cap_flags_ex`.
    pub flags ibv_device_cap_flags: u64 {
        /// QPs can be resized.
        IBV_DEVICE_RESIZE_MAX_WR = 1 << 0,
        /// Counts bad P_Keys.
        IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
        /// Counts bad Q_Keys.
        IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
        /// Raw packet multicast.
        IBV_DEVICE_RAW_MULTI = 1 << 3,
        /// Automatic path migration.
        IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
        /// A QP's port can be changed in SQD.
        IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
        /// Checks the port of UD address vectors.
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
        /// Honours `IBV_QP_CUR_STATE`.
        IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
        /// Ports can be shut down.
        IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
        /// Initialisation type.
        IBV_DEVICE_INIT_TYPE = 1 << 9,
        /// Raises port active events.
        IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
        /// System image GUID.
        IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
        /// Generates RNR NAKs.
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        /// SRQs can be resized.
        IBV_DEVICE_SRQ_RESIZE = 1 << 13,
        /// Notification after N completions.
        IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
        /// Memory windows.
        IBV_DEVICE_MEM_WINDOW = 1 << 17,
        /// IP checksums on UD.
        IBV_DEVICE_UD_IP_CSUM = 1 << 18,
        /// XRC.
        IBV_DEVICE_XRC = 1 << 20,
        /// Send with invalidate, local invalidate, fast registration.
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        /// Memory windows of type 2A.
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        /// Memory windows of type 2B.
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
        /// IP checksums on RC.
        IBV_DEVICE_RC_IP_CSUM = 1 << 25,
        /// IP checksums on raw packets.
        IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
        /// Flow steering.
        IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
        /// Scatters the frame check sequence (`device_cap_flags_ex`).
        IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34,
        /// Pads writes on the bus (`device_cap_flags_ex`).
        IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36,
    }

    /// Which operations work on pages brought in on demand.
    pub flags ibv_odp_transport_cap_bits: u32 {
        /// SEND.
        IBV_ODP_SUPPORT_SEND = 1 << 0,
        /// Receive.
        IBV_ODP_SUPPORT_RECV = 1 << 1,
        /// RDMA WRITE.
        IBV_ODP_SUPPORT_WRITE = 1 << 2,
        /// RDMA READ.
        IBV_ODP_SUPPORT_READ = 1 << 3,
        /// Atomics.
        IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
        /// Receive through an SRQ.
        IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5,
    }

    /// What a device can do with paging on demand in general.
    pub flags ibv_odp_general_caps: u64 {
        /// At all.
        IBV_ODP_SUPPORT = 1 << 0,
        /// For the whole address space.
        IBV_ODP_SUPPORT_IMPLICIT = 1 << 1,
    }
}

/// The bytes of the names in [`ibv_device`], the closing zero included.
pub const IBV_SYSFS_NAME_MAX: usize = 64;
/// The bytes of the paths in [`ibv_device`], the closing zero included.
pub const IBV_SYSFS_PATH_MAX: usize = 256;

c_struct! {
    /// Obsolete and never used, says the header. Null in libibverbs' devices; others put a [`Mark`](crate::dispatch::Mark) there.
    pub struct _ibv_device_ops [16, 8] {
        /// Never called. In a device with a mark, what finds its functions.
        pub _dummy1: Option<crate::dispatch::Find> = 0,
        /// Never called.
        pub _dummy2: usize = 8,
    }

    /// A device. The library's real object is longer: never copy it.
    pub struct ibv_device [664, 8] {
        /// The library's own.
        pub _ops: _ibv_device_ops = 0,
        /// The kind of node.
        pub node_type: ibv_node_type = 16,
        /// The transport.
        pub transport_type: ibv_transport_type = 20,
        /// The kernel's name, such as `mlx5_0`.
        pub name: [c_char; IBV_SYSFS_NAME_MAX] = 24,
        /// The name of the uverbs device, such as `uverbs0`.
        pub dev_name: [c_char; IBV_SYSFS_NAME_MAX] = 88,
        /// The path of the uverbs device in sysfs.
        pub dev_path: [c_char; IBV_SYSFS_PATH_MAX] = 152,
        /// The path of the RDMA device in sysfs.
        pub ibdev_path: [c_char; IBV_SYSFS_PATH_MAX] = 408,
    }

    /// The attributes of a device.
    pub struct ibv_device_attr [232, 8] {
        /// Firmware version.
        pub fw_ver: [c_char; 64] = 0,
        /// Node GUID, in network byte order.
        pub node_guid: u64 = 64,
        /// System image GUID, in network byte order.
        pub sys_image_guid: u64 = 72,
        /// The greatest memory region, in bytes.
        pub max_mr_size: u64 = 80,
        /// Page sizes, one bit each.
        pub page_size_cap: u64 = 88,
        /// The vendor's IEEE OUI.
        pub vendor_id: u32 = 96,
        /// The vendor's part.
        pub vendor_part_id: u32 = 100,
        /// Hardware version.
        pub hw_ver: u32 = 104,
        /// QPs.
        pub max_qp: c_int = 108,
        /// Outstanding work requests per queue.
        pub max_qp_wr: c_int = 112,
        /// The low 32 bits of [`ibv_device_cap_flags`].
        pub device_cap_flags: c_uint = 116,
        /// Scatter/gather entries per request.
        pub max_sge: c_int = 120,
        /// Scatter/gather entries per RDMA READ (iWARP).
        pub max_sge_rd: c_int = 124,
        /// CQs.
        pub max_cq: c_int = 128,
        /// Entries per CQ.
        pub max_cqe: c_int = 132,
        /// Memory regions.
        pub max_mr: c_int = 136,
        /// Protection domains.
        pub max_pd: c_int = 140,
        /// RDMA READs and atomics that a QP can serve at a time (limit of `max_dest_rd_atomic`).
        pub max_qp_rd_atom: c_int = 144,
        /// Per EE context (RD, obsolete).
        pub max_ee_rd_atom: c_int = 148,
        /// RDMA READs and atomics that the device can serve at a time.
        pub max_res_rd_atom: c_int = 152,
        /// RDMA READs and atomics that a QP can have outstanding (limit of `max_rd_atomic`).
        pub max_qp_init_rd_atom: c_int = 156,
        /// Per EE context (RD, obsolete).
        pub max_ee_init_rd_atom: c_int = 160,
        /// How far atomics are atomic.
        pub atomic_cap: ibv_atomic_cap = 164,
        /// EE contexts (RD, obsolete).
        pub max_ee: c_int = 168,
        /// RD domains (RD, obsolete).
        pub max_rdd: c_int = 172,
        /// Memory windows.
        pub max_mw: c_int = 176,
        /// Raw IPv6 QPs.
        pub max_raw_ipv6_qp: c_int = 180,
        /// Raw Ethernet type QPs.
        pub max_raw_ethy_qp: c_int = 184,
        /// Multicast groups.
        pub max_mcast_grp: c_int = 188,
        /// QPs per multicast group.
        pub max_mcast_qp_attach: c_int = 192,
        /// Attachments in all.
        pub max_total_mcast_qp_attach: c_int = 196,
        /// Address handles.
        pub max_ah: c_int = 200,
        /// Fast memory regions (obsolete).
        pub max_fmr: c_int = 204,
        /// Remaps of a fast memory region (obsolete).
        pub max_map_per_fmr: c_int = 208,
        /// SRQs.
        pub max_srq: c_int = 212,
        /// Receives per SRQ.
        pub max_srq_wr: c_int = 216,
        /// Scatter entries per receive of an SRQ.
        pub max_srq_sge: c_int = 220,
        /// Entries in a P_Key table.
        pub max_pkeys: u16 = 224,
        /// The delay of the device's acknowledgements, 4.096 us x 2^n.
        pub local_ca_ack_delay: u8 = 226,
        /// Physical ports.
        pub phys_port_cnt: u8 = 227,
    }

    /// The input of `ibv_query_device_ex`.
    pub struct ibv_query_device_ex_input [4, 4] {
        /// Must be 0.
        pub comp_mask: u32 = 0,
    }

    /// Paging on demand, per transport.
    pub struct ibv_odp_caps_per_transport (c "ibv_odp_caps" "per_transport_caps") [12, 4] {
        /// RC, bits of [`ibv_odp_transport_cap_bits`].
        pub rc_odp_caps: u32 = 0,
        /// UC.
        pub uc_odp_caps: u32 = 4,
        /// UD.
        pub ud_odp_caps: u32 = 8,
    }

    /// Paging on demand.
    pub struct ibv_odp_caps [24, 8] {
        /// Bits of [`ibv_odp_general_caps`].
        pub general_caps: u64 = 0,
        /// Per transport.
        pub per_transport_caps: ibv_odp_caps_per_transport = 8,
    }

    /// Segmentation offload.
    pub struct ibv_tso_caps [8, 4] {
        /// The greatest message.
        pub max_tso: u32 = 0,
        /// QP types, one bit each.
        pub supported_qpts: u32 = 4,
    }

    /// Receive side scaling.
    pub struct ibv_rss_caps [32, 8] {
        /// QP types, one bit each.
        pub supported_qpts: u32 = 0,
        /// Indirection tables.
        pub max_rwq_indirection_tables: u32 = 4,
        /// Entries of an indirection table.
        pub max_rwq_indirection_table_size: u32 = 8,
        /// Hashed fields.
        pub rx_hash_fields_mask: u64 = 16,
        /// Hash functions.
        pub rx_hash_function: u8 = 24,
    }

    /// Packet pacing.
    pub struct ibv_packet_pacing_caps [12, 4] {
        /// The least rate, kbit/s.
        pub qp_rate_limit_min: u32 = 0,
        /// The greatest rate, kbit/s.
        pub qp_rate_limit_max: u32 = 4,
        /// QP types, one bit each.
        pub supported_qpts: u32 = 8,
    }

    /// Tag matching.
    pub struct ibv_tm_caps [20, 4] {
        /// The greatest rendezvous header.
        pub max_rndv_hdr_size: u32 = 0,
        /// Tags in a matching list.
        pub max_num_tags: u32 = 4,
        /// Capability flags.
        pub flags: u32 = 8,
        /// Outstanding list operations.
        pub max_ops: u32 = 12,
        /// Scatter entries of a tagged buffer.
        pub max_sge: u32 = 16,
    }

    /// CQ moderation.
    pub struct ibv_cq_moderation_caps [4, 2] {
        /// The greatest count.
        pub max_cq_count: u16 = 0,
        /// The greatest period, in microseconds.
        pub max_cq_period: u16 = 2,
    }

    /// Atomics on the PCI bus, sizes as bits.
    pub struct ibv_pci_atomic_caps [6, 2] {
        /// Fetch and add.
        pub fetch_add: u16 = 0,
        /// Swap.
        pub swap: u16 = 2,
        /// Compare and swap.
        pub compare_swap: u16 = 4,
    }

    /// The extended attributes of a device.
    pub struct ibv_device_attr_ex [400, 8] {
        /// The classic attributes.
        pub orig_attr: ibv_device_attr = 0,
        /// Always 0.
        pub comp_mask: u32 = 232,
        /// Paging on demand.
        pub odp_caps: ibv_odp_caps = 240,
        /// Valid bits of a completion timestamp.
        pub completion_timestamp_mask: u64 = 264,
        /// The clock's frequency, kHz.
        pub hca_core_clock: u64 = 272,
        /// Bits of [`ibv_device_cap_flags`].
        pub device_cap_flags_ex: u64 = 280,
        /// Segmentation offload.
        pub tso_caps: ibv_tso_caps = 288,
        /// Receive side scaling.
        pub rss_caps: ibv_rss_caps = 296,
        /// Receive work queues.
        pub max_wq_type_rq: u32 = 328,
        /// Packet pacing.
        pub packet_pacing_caps: ibv_packet_pacing_caps = 332,
        /// Raw packet capabilities.
        pub raw_packet_caps: u32 = 344,
        /// Tag matching.
        pub tm_caps: ibv_tm_caps = 348,
        /// CQ moderation.
        pub cq_mod_caps: ibv_cq_moderation_caps = 368,
        /// Device memory, in bytes.
        pub max_dm_size: u64 = 376,
        /// Atomics on the PCI bus.
        pub pci_atomic_caps: ibv_pci_atomic_caps = 384,
        /// Paging on demand for XRC.
        pub xrc_odp_caps: u32 = 392,
        /// Physical ports, where there are more than 255.
        pub phys_port_cnt_ex: u32 = 396,
    }
}
