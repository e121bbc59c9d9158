//! A modify that was not made, and how it is told.

use std::fmt;
use std::ops::Deref;

use rdma_core_sys::rules::{self, Bits, Violation};
use rdma_core_sys::*;

use super::Problem;
use crate::errno::Errno;
use crate::gid::GidEntry;

/// Everything about a modify that was not made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModifyReport {
    /// The device.
    pub device: String,
    /// Port of the QP; `None` before INIT.
    pub port: Option<u8>,
    /// Number of the QP.
    pub qp_num: u32,
    /// Its transport.
    pub transport: rules::Transport,
    /// The state that it was in, as the device said right before; `None` if the device did not say.
    pub from: Option<ibv_qp_state>,
    /// The state that was asked for.
    pub to: ibv_qp_state,
    /// The mask that was given.
    pub mask: ibv_qp_attr_mask,
    /// The attributes that were given.
    pub attr: ibv_qp_attr,
    /// The local GID table entry that the attributes name.
    pub source: Option<GidEntry>,
    /// Active MTU of the port, in bytes.
    pub active_mtu: Option<u32>,
    /// What was found wrong before the call; then the device was not called.
    pub problems: Vec<Problem>,
    /// What the provider said; only when nothing was found wrong before the call.
    pub provider: Option<Errno>,
    /// What it may mean.
    pub hint: Option<String>,
}

/// A modify was not made: refused before the call, or by the provider.
///
/// `Display` is one line; the alternate form `{:#}` adds mask, attributes, GIDs and MTUs, and so does `Debug`.
#[derive(Clone)]
pub struct ModifyError(pub(super) Box<ModifyReport>);

impl ModifyError {
    /// The errno: the provider's own, or for what was refused before the call the one that verbs gives (EPERM for a
    /// privileged Q_Key, EINVAL for anything else).
    pub fn errno(&self) -> Errno {
        let privileged =
            |p: &Problem| matches!(p, Problem::Value(Violation::PrivilegedQkey { .. }));
        match self.0.provider {
            Some(errno) => errno,
            None if !self.0.problems.is_empty() && self.0.problems.iter().all(privileged) => {
                Errno::from_raw(1)
            }
            None => Errno::EINVAL,
        }
    }

    /// Whether the call was refused here and never reached the provider.
    pub fn refused_before_call(&self) -> bool {
        self.0.provider.is_none()
    }
}

impl Deref for ModifyError {
    type Target = ModifyReport;

    fn deref(&self) -> &ModifyReport {
        &self.0
    }
}

impl std::error::Error for ModifyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.provider.as_ref().map(|errno| errno as _)
    }
}

impl fmt::Debug for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = &*self.0;
        match r.from {
            Some(from) => write!(f, "{from} -> {}", r.to)?,
            None => write!(f, "modify to {}", r.to)?,
        }
        let refused = if r.provider.is_some() {
            "refused by the provider"
        } else {
            "refused"
        };
        write!(f, " {refused} on {}", r.device)?;
        if let Some(port) = r.port {
            write!(f, "/{port}")?;
        }
        write!(f, " QP {:#x}", r.qp_num)?;
        let mut before = ": ";
        for problem in &r.problems {
            write!(f, "{before}{problem}")?;
            before = "; ";
        }
        if let Some(errno) = r.provider {
            write!(f, "{before}{errno}")?;
            before = "; ";
        }
        if let Some(hint) = &r.hint {
            write!(f, "{before}{hint}")?;
        }
        f.write_str(". Nothing was changed.")?;
        if f.alternate() {
            details(f, r)?;
        }
        Ok(())
    }
}

/// The attributes that the mask names, one a line.
fn details(f: &mut fmt::Formatter<'_>, r: &ModifyReport) -> fmt::Result {
    write!(f, "\n  transport {}, mask {}", r.transport, Bits(r.mask))?;
    let attr = &r.attr;
    if r.mask.contains(IBV_QP_AV) {
        let (av, grh) = (&attr.ah_attr, &attr.ah_attr.grh);
        write!(
            f,
            "\n  ah_attr: port_num {}, is_global {}, dlid {}, sl {}",
            av.port_num, av.is_global, av.dlid, av.sl
        )?;
        write!(
            f,
            ", dgid {}, sgid_index {}, hop_limit {}",
            grh.dgid, grh.sgid_index, grh.hop_limit
        )?;
    }
    match &r.source {
        Some(source) => write!(f, "\n  local GID: {source}, netdev {}", source.ifindex)?,
        None if r.mask.contains(IBV_QP_AV) => f.write_str("\n  local GID: not known")?,
        None => {}
    }
    let bytes = |mtu: ibv_mtu| {
        mtu.bytes()
            .map_or_else(|| format!("code {}", mtu.0), |n| n.to_string())
    };
    if r.mask.contains(IBV_QP_PATH_MTU) {
        write!(f, "\n  path_mtu {}", bytes(attr.path_mtu))?;
        if let Some(active) = r.active_mtu {
            write!(f, ", active MTU of the port {active}")?;
        }
    }
    let numbers: [(ibv_qp_attr_mask, &str, u64); 14] = [
        (IBV_QP_PORT, "port_num", attr.port_num.into()),
        (IBV_QP_PKEY_INDEX, "pkey_index", attr.pkey_index.into()),
        (
            IBV_QP_ACCESS_FLAGS,
            "qp_access_flags",
            attr.qp_access_flags.into(),
        ),
        (IBV_QP_QKEY, "qkey", attr.qkey.into()),
        (IBV_QP_DEST_QPN, "dest_qp_num", attr.dest_qp_num.into()),
        (IBV_QP_RQ_PSN, "rq_psn", attr.rq_psn.into()),
        (IBV_QP_SQ_PSN, "sq_psn", attr.sq_psn.into()),
        (IBV_QP_TIMEOUT, "timeout", attr.timeout.into()),
        (IBV_QP_RETRY_CNT, "retry_cnt", attr.retry_cnt.into()),
        (IBV_QP_RNR_RETRY, "rnr_retry", attr.rnr_retry.into()),
        (
            IBV_QP_MIN_RNR_TIMER,
            "min_rnr_timer",
            attr.min_rnr_timer.into(),
        ),
        (
            IBV_QP_MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            attr.max_rd_atomic.into(),
        ),
        (
            IBV_QP_MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic.into(),
        ),
        (IBV_QP_CUR_STATE, "cur_qp_state", attr.cur_qp_state.0.into()),
    ];
    let mut before = "\n  ";
    for (bit, name, value) in numbers {
        if r.mask.contains(bit) {
            write!(f, "{before}{name} {value:#x}")?;
            before = ", ";
        }
    }
    match r.provider {
        Some(errno) => write!(f, "\n  errno of the provider: {errno}"),
        None => f.write_str("\n  the provider was not called"),
    }
}
