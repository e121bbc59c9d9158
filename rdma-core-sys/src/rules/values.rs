//! The ranges of attributes.

use super::{Transport, ignored};
use crate::types::*;
use core::fmt;

/// Who else refuses such a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The kernel's core, uverbs or every device refuses it: a rule of verbs.
    VerbsRule,
    /// Devices may take it and mask it, ignore it or fail later: we refuse it before the call.
    StricterByUs,
}

/// What the device and the port allow. `None` switches off the checks that need the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Physical ports of the device.
    pub phys_port_cnt: Option<u8>,
    /// The port that the QP was given on its way to INIT.
    pub qp_port: Option<u8>,
    /// RDMA READs and atomics that a QP can have outstanding as initiator (`max_qp_init_rd_atom`).
    pub max_rd_atomic: Option<u32>,
    /// RDMA READs and atomics that a QP can serve at a time (`max_qp_rd_atom`).
    pub max_dest_rd_atomic: Option<u32>,
    /// The greatest MTU of the port.
    pub max_mtu: Option<ibv_mtu>,
    /// The MTU in force at the port.
    pub active_mtu: Option<ibv_mtu>,
    /// Entries in the port's GID table.
    pub gid_tbl_len: Option<u32>,
    /// Entries in the port's P_Key table.
    pub pkey_tbl_len: Option<u32>,
    /// The port is Ethernet (RoCE): a GRH is needed, an alternate path is not possible.
    pub ethernet: bool,
}

impl Limits {
    /// The limits that queries of the device and of the QP's port tell. `qp_port` stays open.
    #[must_use]
    pub fn new(device: &ibv_device_attr, port: &ibv_port_attr) -> Self {
        let count = |n: core::ffi::c_int| u32::try_from(n).ok();
        Self {
            phys_port_cnt: Some(device.phys_port_cnt),
            qp_port: None,
            max_rd_atomic: count(device.max_qp_init_rd_atom),
            max_dest_rd_atomic: count(device.max_qp_rd_atom),
            max_mtu: Some(port.max_mtu),
            active_mtu: Some(port.active_mtu),
            gid_tbl_len: count(port.gid_tbl_len),
            pkey_tbl_len: Some(port.pkey_tbl_len.into()),
            ethernet: port.link_layer == IBV_LINK_LAYER_ETHERNET,
        }
    }
}

/// An attribute whose value cannot work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Violation {
    /// A number outside its range.
    OutOfRange {
        /// The field of `ibv_qp_attr`, as C spells it.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The least value that works.
        min: u64,
        /// The greatest value that works.
        max: u64,
        /// Who else refuses it.
        kind: Kind,
    },
    /// A path MTU code that is none.
    UnknownMtu {
        /// The code.
        value: ibv_mtu,
    },
    /// A path MTU above what the port can do.
    PathMtuAboveMax {
        /// The path MTU.
        value: ibv_mtu,
        /// The port's `max_mtu`.
        max: ibv_mtu,
    },
    /// A path MTU above the one in force at the port: packets that are too long get dropped silently.
    PathMtuAboveActive {
        /// The path MTU.
        value: ibv_mtu,
        /// The port's `active_mtu`.
        active: ibv_mtu,
    },
    /// On the way to RTR the address vector must name the port of the QP.
    AvPortDiffers {
        /// `ah_attr.port_num`.
        value: u8,
        /// The QP's port.
        qp_port: u8,
    },
    /// RoCE needs `is_global = 1` and a filled GRH.
    GrhMissing {
        /// The field: `ah_attr.is_global` or `alt_ah_attr.is_global`.
        field: &'static str,
    },
    /// A Q_Key with the high bit set is for privileged programs (EPERM).
    PrivilegedQkey {
        /// The Q_Key.
        value: u32,
    },
    /// There is no alternate path on RoCE.
    AltPathOnRoce,
}

impl Violation {
    /// Who else refuses it.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::OutOfRange { kind, .. } => *kind,
            Self::PathMtuAboveActive { .. } => Kind::StricterByUs,
            Self::UnknownMtu { .. }
            | Self::PathMtuAboveMax { .. }
            | Self::AvPortDiffers { .. }
            | Self::GrhMissing { .. }
            | Self::PrivilegedQkey { .. }
            | Self::AltPathOnRoce => Kind::VerbsRule,
        }
    }

    /// The field of `ibv_qp_attr` that has to change, as C spells it.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::OutOfRange { field, .. } | Self::GrhMissing { field } => field,
            Self::UnknownMtu { .. }
            | Self::PathMtuAboveMax { .. }
            | Self::PathMtuAboveActive { .. } => "path_mtu",
            Self::AvPortDiffers { .. } => "ah_attr.port_num",
            Self::PrivilegedQkey { .. } => "qkey",
            Self::AltPathOnRoce => "alt_ah_attr",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |mtu: &ibv_mtu| mtu.bytes().unwrap_or(0);
        match self {
            Self::OutOfRange {
                field,
                value,
                min,
                max,
                ..
            } if *max >= 0xff_ffff => {
                write!(f, "{field} is {value:#x}: must be {min} to {max:#x}")
            }
            Self::OutOfRange {
                field,
                value,
                min,
                max,
                ..
            } if min <= max => {
                write!(f, "{field} is {value}: must be {min} to {max}")
            }
            Self::OutOfRange { field, value, .. } => {
                write!(f, "{field} is {value}: no value works here")
            }
            Self::UnknownMtu { value } => write!(
                f,
                "path_mtu is {}: must be 1 (256 bytes) to 5 (4096 bytes)",
                value.0
            ),
            Self::PathMtuAboveMax { value, max } => {
                write!(
                    f,
                    "path_mtu is {} bytes: the port can do {}",
                    bytes(value),
                    bytes(max)
                )
            }
            Self::PathMtuAboveActive { value, active } => {
                write!(
                    f,
                    "path_mtu is {} bytes: the port's active MTU is {}",
                    bytes(value),
                    bytes(active)
                )
            }
            Self::AvPortDiffers { value, qp_port } => {
                write!(
                    f,
                    "ah_attr.port_num is {value}: the QP is on port {qp_port}"
                )
            }
            Self::GrhMissing { field } => write!(f, "{field} is 0: RoCE needs 1 and a GRH"),
            Self::PrivilegedQkey { value } => {
                write!(
                    f,
                    "qkey is {value:#x}: the high bit is for privileged programs"
                )
            }
            Self::AltPathOnRoce => f.write_str("alt_ah_attr is set: RoCE has no alternate path"),
        }
    }
}

/// Looks at every attribute that `mask` names and that means something on this transport.
///
/// Returns everything that is wrong at once; empty when all is well.
#[must_use]
pub fn check_values(
    transport: Transport,
    attr: &ibv_qp_attr,
    mask: ibv_qp_attr_mask,
    limits: &Limits,
) -> Vec<Violation> {
    use Kind::{StricterByUs, VerbsRule};
    let mask = mask - ignored(transport);
    let path = &attr.ah_attr;
    let last_state = IBV_QPS_ERR.0.into();
    // An open limit lets every value pass.
    let open = |limit: Option<u32>| limit.map_or(u64::MAX, u64::from);
    let ports = limits.phys_port_cnt.unwrap_or(u8::MAX).into();
    // A table of n entries has the indices 0 to n - 1; of an empty one the range is empty, told as 1 to 0.
    let first = |len: Option<u32>| u64::from(len == Some(0));
    let last = |len: Option<u32>| open(len).saturating_sub(1);
    let pkeys = limits.pkey_tbl_len;
    let (gids, flow_label) = match path.is_global {
        0 => (None, 0),
        _ => (limits.gid_tbl_len, path.grh.flow_label),
    };
    let (initiator, responder) = (open(limits.max_rd_atomic), open(limits.max_dest_rd_atomic));
    const PSN_MAX: u64 = 0xff_ffff;
    const QPN_MAX: u64 = 0xff_ffff;

    #[rustfmt::skip]
    let ranges: [(ibv_qp_attr_mask, &'static str, u64, u64, u64, Kind); 19] = [
        (IBV_QP_STATE, "qp_state", attr.qp_state.0.into(), 0, last_state, VerbsRule),
        (IBV_QP_CUR_STATE, "cur_qp_state", attr.cur_qp_state.0.into(), 0, last_state, VerbsRule),
        (IBV_QP_PKEY_INDEX, "pkey_index", attr.pkey_index.into(), first(pkeys), last(pkeys), StricterByUs),
        (IBV_QP_PORT, "port_num", attr.port_num.into(), 1, ports, VerbsRule),
        (IBV_QP_AV, "ah_attr.port_num", path.port_num.into(), 1, ports, VerbsRule),
        (IBV_QP_AV, "ah_attr.grh.sgid_index", path.grh.sgid_index.into(), first(gids), last(gids), VerbsRule),
        (IBV_QP_AV, "ah_attr.grh.flow_label", flow_label.into(), 0, 0xf_ffff, StricterByUs),
        (IBV_QP_AV, "ah_attr.sl", path.sl.into(), 0, 15, StricterByUs),
        (IBV_QP_TIMEOUT, "timeout", attr.timeout.into(), 0, 31, VerbsRule),
        (IBV_QP_RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 0, 7, StricterByUs),
        (IBV_QP_RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 0, 7, StricterByUs),
        (IBV_QP_RQ_PSN, "rq_psn", attr.rq_psn.into(), 0, PSN_MAX, StricterByUs),
        (IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic.into(), 0, initiator, VerbsRule),
        (IBV_QP_ALT_PATH, "alt_timeout", attr.alt_timeout.into(), 0, 31, VerbsRule),
        (IBV_QP_ALT_PATH, "alt_port_num", attr.alt_port_num.into(), 1, ports, VerbsRule),
        (IBV_QP_MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into(), 0, 31, StricterByUs),
        (IBV_QP_SQ_PSN, "sq_psn", attr.sq_psn.into(), 0, PSN_MAX, StricterByUs),
        (IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic.into(), 0, responder, StricterByUs),
        (IBV_QP_DEST_QPN, "dest_qp_num", attr.dest_qp_num.into(), 0, QPN_MAX, StricterByUs),
    ];
    let mut found: Vec<_> = ranges
        .into_iter()
        .filter(|&(bit, _, value, min, max, _)| mask.contains(bit) && !(min..=max).contains(&value))
        .map(|(_, field, value, min, max, kind)| Violation::OutOfRange {
            field,
            value,
            min,
            max,
            kind,
        })
        .collect();

    if mask.contains(IBV_QP_QKEY) && attr.qkey >> 31 != 0 {
        found.push(Violation::PrivilegedQkey { value: attr.qkey });
    }
    if mask.contains(IBV_QP_AV) {
        let value = attr.ah_attr.port_num;
        if let Some(qp_port) = limits.qp_port
            && mask.contains(IBV_QP_STATE)
            && attr.qp_state == IBV_QPS_RTR
            && value != qp_port
        {
            found.push(Violation::AvPortDiffers { value, qp_port });
        }
        if limits.ethernet && attr.ah_attr.is_global == 0 {
            found.push(Violation::GrhMissing {
                field: "ah_attr.is_global",
            });
        }
    }
    if mask.contains(IBV_QP_PATH_MTU) {
        found.extend(path_mtu(attr.path_mtu, limits));
    }
    if mask.contains(IBV_QP_ALT_PATH) && limits.ethernet {
        found.push(Violation::AltPathOnRoce);
    }
    found
}

/// The one thing that is most wrong with a path MTU. Codes grow with the MTU.
fn path_mtu(value: ibv_mtu, limits: &Limits) -> Option<Violation> {
    if value.bytes().is_none() {
        return Some(Violation::UnknownMtu { value });
    }
    if let Some(max) = limits.max_mtu.filter(|&max| value > max) {
        return Some(Violation::PathMtuAboveMax { value, max });
    }
    let active = limits.active_mtu.filter(|&active| value > active)?;
    Some(Violation::PathMtuAboveActive { value, active })
}
