//! `ibv_modify_qp`: check everything, then commit. A refused call changes nothing.

use std::net::IpAddr;

use rdma_core_sys::rules::{self, Limits, Refusal, Transport, Violation};
use rdma_core_sys::{ibv_ah_attr, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use rustix::io::Errno;

use super::config::{Config, GidKind, gid_to_ip};
use super::qp::{Qp, QpPath, Shared};
use crate::wire::Psn;

/// Why a modify was refused.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// No Queue Pair has that number.
    #[error("no QP {0:#x}")]
    NoQp(u32),
    /// `IBV_QP_CUR_STATE` names a state that the Queue Pair is not in.
    #[error("cur_qp_state is {named}, but the QP is in {real}")]
    CurrentState {
        /// The state in the attributes.
        named: ibv_qp_state,
        /// The state of the Queue Pair.
        real: ibv_qp_state,
    },
    /// The transition table refuses it.
    #[error(transparent)]
    Rule(#[from] Refusal),
    /// Values out of range.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Values(Vec<Violation>),
    /// The GID table entry cannot be used.
    #[error("sgid_index {index} is {what}")]
    Gid {
        /// The index.
        index: u8,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The two GIDs are of different families.
    #[error("sgid_index {index} is an {ours} address, dgid an {theirs} one")]
    Family {
        /// The source GID's index.
        index: u8,
        /// Family of the source GID.
        ours: &'static str,
        /// Family of the destination GID.
        theirs: &'static str,
    },
    /// The destination GID is all zero.
    #[error("dgid is all zero")]
    NoDestination,
    /// A connection to a multicast group.
    #[error("dgid {0} is a multicast address: a connection has one peer")]
    Multicast(IpAddr),
    /// The node has no such port.
    #[error("no port {0}")]
    NoPort(u8),
    /// The partition key table is shorter, or its entry is empty.
    #[error("pkey_index is {index}: no key is there; the table: {}", table_text(.table))]
    Pkey {
        /// The index.
        index: u16,
        /// The port's table.
        table: Vec<u16>,
    },
    /// Leaving SQD while requests are still in flight; only ERR and RESET may.
    #[error("the send queue is still draining")]
    Draining,
}

fn table_text(table: &[u16]) -> String {
    let entries: Vec<_> = table.iter().map(|key| format!("{key:#06x}")).collect();
    entries.join(", ")
}

impl ModifyError {
    /// The error number that verbs give for it.
    pub fn errno(&self) -> Errno {
        match self {
            ModifyError::Values(v)
                if v.iter()
                    .any(|v| matches!(v, Violation::PrivilegedQkey { .. })) =>
            {
                Errno::PERM
            }
            _ => Errno::INVAL,
        }
    }
}

/// What `check_values` may compare with on this node, for a Queue Pair of port `qp_port` (0 for none
/// yet) and a call that is about `port`.
fn limits(qp_port: u8, config: &Config, port: u8) -> Limits {
    let port = usize::from(port)
        .checked_sub(1)
        .and_then(|p| config.ports.get(p));
    let mtu = port.map(|p| mtu_code(p.active_mtu));
    Limits {
        phys_port_cnt: u8::try_from(config.ports.len()).ok(),
        qp_port: (qp_port != 0).then_some(qp_port),
        max_rd_atomic: Some(config.caps.max_qp_init_rd_atom.into()),
        max_dest_rd_atomic: Some(config.caps.max_qp_rd_atom.into()),
        max_mtu: Some(ibv_mtu::IBV_MTU_4096),
        active_mtu: mtu,
        gid_tbl_len: port.map(|p| p.gids.len() as u32),
        // Looked at by `check_pkey`, which knows the table.
        pkey_tbl_len: None,
        ethernet: true,
    }
}

/// The code of the largest MTU that is not above `bytes`.
pub fn mtu_code(bytes: u32) -> ibv_mtu {
    ibv_mtu((bytes.clamp(256, 4096).ilog2() - 7).clamp(1, 5))
}

/// Checks the values of an address vector for datagrams.
pub(super) fn check_ah(config: &Config, av: &ibv_ah_attr) -> Result<(), ModifyError> {
    let attr = ibv_qp_attr {
        ah_attr: *av,
        ..ibv_qp_attr::default()
    };
    let limits = limits(0, config, av.port_num);
    // The address vector of a datagram obeys the rules of one of a connection.
    let mask = ibv_qp_attr_mask::IBV_QP_AV;
    match rules::check_values(Transport::Uc, &attr, mask, &limits) {
        none if none.is_empty() => Ok(()),
        violations => Err(ModifyError::Values(violations)),
    }
}

/// Resolves an address vector.
pub(super) fn resolve(config: &Config, av: &ibv_ah_attr) -> Result<QpPath, ModifyError> {
    let index = av.grh.sgid_index;
    let gid = |what| ModifyError::Gid { index, what };
    let port = usize::from(av.port_num)
        .checked_sub(1)
        .and_then(|p| config.ports.get(p));
    let entry = port.and_then(|p| p.gids.get(usize::from(index)));
    let entry = entry
        .filter(|e| !e.is_empty())
        .ok_or_else(|| gid("an empty slot of the GID table"))?;
    if entry.kind != GidKind::RoceV2 {
        return Err(gid("a RoCE v1 entry; this device sends RoCE v2 only"));
    }
    if av.grh.dgid.raw == [0; 16] {
        return Err(ModifyError::NoDestination);
    }
    let (src, dst) = (gid_to_ip(entry.gid), gid_to_ip(av.grh.dgid.raw));
    if src.is_ipv4() != dst.is_ipv4() {
        let name = |v4| if v4 { "IPv4" } else { "IPv6" };
        let (ours, theirs) = (name(src.is_ipv4()), name(dst.is_ipv4()));
        return Err(ModifyError::Family {
            index,
            ours,
            theirs,
        });
    }
    Ok(QpPath {
        port: av.port_num,
        sgid_index: index,
        src,
        dst,
        traffic_class: match av.grh.traffic_class {
            // A network that trusts DSCPs takes the level from the upper bits.
            0 => av.sl << 5,
            class => class,
        },
        hop_limit: av.grh.hop_limit,
        flow_label: av.grh.flow_label,
    })
}

/// The index names a key: one of 0 (or, with the bit of full members, 0x8000) is an empty entry.
fn check_pkey(config: &Config, port: u8, index: u16) -> Result<(), ModifyError> {
    let port = usize::from(port).checked_sub(1);
    let Some(port) = port.and_then(|at| config.ports.get(at)) else {
        return Ok(());
    };
    match port.pkeys.get(usize::from(index)) {
        Some(key) if key & 0x7fff != 0 => Ok(()),
        _ => Err(ModifyError::Pkey {
            index,
            table: port.pkeys.clone(),
        }),
    }
}

impl Qp {
    /// Checks and applies a modify. Returns the new state.
    pub fn modify(
        &mut self,
        shared: &mut Shared,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<ibv_qp_state, ModifyError> {
        use ibv_qp_attr_mask as M;
        use ibv_qp_state as S;
        let from = self.state;
        if mask.contains(M::IBV_QP_CUR_STATE) && attr.cur_qp_state != from {
            return Err(ModifyError::CurrentState {
                named: attr.cur_qp_state,
                real: from,
            });
        }
        let to = if mask.contains(M::IBV_QP_STATE) {
            attr.qp_state
        } else {
            from
        };
        let verdict = rules::check(self.init.transport, from, to, mask)?;
        let mask = mask - verdict.ignored;
        let port = if mask.contains(M::IBV_QP_PORT) {
            attr.port_num
        } else {
            self.attr.port_num
        };
        let limits = limits(self.attr.port_num, &shared.config, port);
        let violations = rules::check_values(self.init.transport, attr, mask, &limits);
        if !violations.is_empty() {
            return Err(ModifyError::Values(violations));
        }
        if mask.contains(M::IBV_QP_PKEY_INDEX) {
            check_pkey(&shared.config, port, attr.pkey_index)?;
        }
        let path = match mask.contains(M::IBV_QP_AV) {
            true => Some(resolve(&shared.config, &attr.ah_attr)?),
            false => None,
        };
        if let Some(path) = path.filter(|p| p.dst.is_multicast()) {
            return Err(ModifyError::Multicast(path.dst));
        }
        let leaves_sqd = from == S::IBV_QPS_SQD && to == S::IBV_QPS_RTS;
        if leaves_sqd && !self.sq.drained() {
            return Err(ModifyError::Draining);
        }
        self.commit(shared, attr, mask, path, to);
        Ok(to)
    }

    /// Applies what was checked.
    fn commit(
        &mut self,
        shared: &mut Shared,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        path: Option<QpPath>,
        to: ibv_qp_state,
    ) {
        use ibv_qp_attr_mask as M;
        use ibv_qp_state as S;
        if to == S::IBV_QPS_RESET {
            return self.reset(shared);
        }
        let a = &mut self.attr;
        /// Copies fields whose bit is set.
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(if mask.contains(M::$bit) { $(a.$field = attr.$field;)+ })*
            };
        }
        take! {
            IBV_QP_ACCESS_FLAGS: qp_access_flags;
            IBV_QP_PKEY_INDEX: pkey_index;
            IBV_QP_PORT: port_num;
            IBV_QP_QKEY: qkey;
            IBV_QP_AV: ah_attr;
            IBV_QP_PATH_MTU: path_mtu;
            IBV_QP_TIMEOUT: timeout;
            IBV_QP_RETRY_CNT: retry_cnt;
            IBV_QP_RNR_RETRY: rnr_retry;
            IBV_QP_RQ_PSN: rq_psn;
            IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
            IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
            IBV_QP_SQ_PSN: sq_psn;
            IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            IBV_QP_PATH_MIG_STATE: path_mig_state;
            IBV_QP_DEST_QPN: dest_qp_num;
            IBV_QP_EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        }
        if path.is_some() {
            self.path = path;
        }
        if mask.contains(M::IBV_QP_PATH_MTU) {
            self.mtu = attr.path_mtu.bytes().unwrap_or(self.mtu);
        }
        if mask.contains(M::IBV_QP_RQ_PSN) {
            self.rq.set_psn(Psn::new(attr.rq_psn));
        }
        if mask.contains(M::IBV_QP_SQ_PSN) {
            self.sq.set_psn(Psn::new(attr.sq_psn));
        }
        if mask.contains(M::IBV_QP_RETRY_CNT) {
            self.sq.retries = attr.retry_cnt;
        }
        if mask.contains(M::IBV_QP_RNR_RETRY) {
            self.sq.rnr_retries = attr.rnr_retry;
        }
        if to == S::IBV_QPS_ERR {
            return self.enter_error(shared);
        }
        if to == S::IBV_QPS_SQD && self.state == S::IBV_QPS_RTS {
            self.drain_event =
                mask.contains(M::IBV_QP_EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify != 0;
        }
        self.state = to;
    }

    /// The attributes as `ibv_query_qp` gives them.
    pub fn query(&self) -> ibv_qp_attr {
        let mut a = self.attr;
        a.qp_state = self.state;
        a.cur_qp_state = self.state;
        a.rq_psn = self.rq.epsn().value();
        a.sq_psn = self.sq.next_psn().value();
        a.sq_draining = u8::from(self.state == ibv_qp_state::IBV_QPS_SQD && !self.sq.drained());
        a.cap.max_send_wr = self.init.max_send_wr;
        a.cap.max_recv_wr = self.init.max_recv_wr;
        a.cap.max_send_sge = self.init.max_send_sge;
        a.cap.max_recv_sge = self.init.max_recv_sge;
        a.cap.max_inline_data = self.init.max_inline;
        a
    }
}
