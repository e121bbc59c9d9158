//! Every modify is looked at before it is made: the real state is asked of the device, then everything that is wrong is
//! named at once, and a refused modify never reaches the device.
//!
//! All of it works on a [`Control`], so that a QP of this library and one that the program owns are treated alike.

mod problem;
mod report;

use std::sync::Arc;
use std::time::Instant;

use rdma_core_sys::rules::{self, Bits, Limits};
use rdma_core_sys::*;

pub use problem::{GidProblem, Problem};
pub use report::{ModifyError, ModifyReport};

use super::transition::{Transition, TransitionOf};
use super::{PathInfo, Qp, QpInfo, QpSnapshot, QueryQpError, Transport};
use crate::endpoint::LinkLayer;
use crate::errno::Errno;
use crate::gid::{Gid, GidEntry};
use crate::port::{Port, PortInfo};
use crate::raw::context::ContextHandle;
use crate::raw::qp::QpHandle;
pub(crate) use problem::check_gid;

/// A modify that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Modified {
    /// The state that the QP was in.
    pub from: ibv_qp_state,
    /// The state that it was moved to.
    pub to: ibv_qp_state,
    /// Attributes that were set and mean nothing on this transport.
    pub ignored: ibv_qp_attr_mask,
}

/// A QP as far as asking and modifying go.
pub(crate) trait Handle {
    /// The open device that it is of.
    fn context(&self) -> &Arc<ContextHandle>;

    /// `ibv_query_qp` of everything that `mask` names.
    fn query(&self, mask: ibv_qp_attr_mask) -> Result<ibv_qp_attr, Errno>;

    /// `ibv_modify_qp`.
    fn modify(&mut self, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), Errno>;
}

impl Handle for QpHandle {
    fn context(&self) -> &Arc<ContextHandle> {
        &self.pd().context
    }

    fn query(&self, mask: ibv_qp_attr_mask) -> Result<ibv_qp_attr, Errno> {
        QpHandle::query(self, mask).map(|(attr, _)| attr)
    }

    fn modify(&mut self, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), Errno> {
        QpHandle::modify(self, attr, mask)
    }
}

/// What checks, modifies and reports need of a QP, whoever owns it.
pub(crate) struct Control<'a> {
    pub(crate) handle: &'a mut dyn Handle,
    pub(crate) device: &'a ibv_device_attr,
    pub(crate) info: &'a QpInfo,
    pub(crate) transport: rules::Transport,
}

/// What a port says that a check needs.
struct PortFacts {
    info: PortInfo,
    gids: Option<Vec<GidEntry>>,
}

/// A modify in which nothing wrong was found.
struct Checked {
    report: ModifyReport,
    from: ibv_qp_state,
    ignored: ibv_qp_attr_mask,
    facts: Option<PortFacts>,
}

/// The state of a QP, asked of the device.
pub(crate) fn state(handle: &dyn Handle, info: &QpInfo) -> Result<ibv_qp_state, QueryQpError> {
    ask(handle, info, IBV_QP_STATE).map(|attr| attr.qp_state)
}

/// All attributes of a QP, asked of the device.
pub(crate) fn snapshot(
    handle: &dyn Handle,
    info: &QpInfo,
    transport: rules::Transport,
) -> Result<QpSnapshot, QueryQpError> {
    // rdma-core asks the kernel for the bits up to IBV_QP_DEST_QPN and refuses others (cmd.c, ibv_cmd_query_qp).
    let attr = ask(handle, info, ibv_qp_attr_mask::all() - IBV_QP_RATE_LIMIT)?;
    Ok(QpSnapshot {
        name: info.name(),
        transport,
        attr,
    })
}

/// The attributes that `mask` names, asked of the device.
pub(super) fn ask(
    handle: &dyn Handle,
    info: &QpInfo,
    mask: ibv_qp_attr_mask,
) -> Result<ibv_qp_attr, QueryQpError> {
    handle.query(mask).map_err(|source| QueryQpError {
        qp: info.name(),
        source,
    })
}

/// A QP that is moved from state to state: one of this library, or one that the program owns.
pub(crate) trait Moves {
    /// What checks, modifies and reports need of it.
    fn control(&mut self) -> Control<'_>;

    /// See [`Qp::modify`].
    fn modify(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<Modified, ModifyError>;

    /// See [`Qp::to`].
    fn make(&mut self, transition: &dyn Transition) -> Result<Modified, ModifyError> {
        let (attr, mask) = transition.lower(self.control().transport);
        self.modify(&attr, mask)
    }
}

impl<T: Transport> Moves for Qp<T> {
    fn control(&mut self) -> Control<'_> {
        Control {
            handle: &mut self.handle,
            device: &self.device,
            info: &self.info,
            transport: T::RULES,
        }
    }

    fn modify(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<Modified, ModifyError> {
        let (modified, max_msg_sz) = self.control().modify(attr, mask)?;
        // What the checks of posts look at.
        if let Some(bytes) = max_msg_sz {
            self.handle.set_max_msg_sz(bytes);
        }
        if modified.to == IBV_QPS_RESET {
            self.marker = None;
        }
        Ok(modified)
    }
}

impl<T: Transport> Qp<T> {
    /// Makes a typed transition.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    ///
    /// ```
    /// use rdma_qp::{Access, Device, ToInit, ToReset};
    /// let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// let mut qp = pd.rc(&cq).create()?;
    /// qp.to(ToInit { port: 1, pkey_index: 0, access: Access::REMOTE_READ })?;
    /// qp.to(ToReset)?;
    /// let refused = qp.to(ToInit { port: 77, pkey_index: 0, access: Access::empty() }).unwrap_err();
    /// assert!(refused.to_string().contains("port_num is 77"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to(&mut self, transition: impl TransitionOf<T>) -> Result<Modified, ModifyError> {
        self.make(&transition)
    }

    /// Modifies the QP, as `ibv_modify_qp` does, after looking at the call: the real state is asked for, then the mask is
    /// checked against the transition rules, and the values against their ranges and the limits of device and port.
    /// A call that cannot succeed is not made. Attributes whose bit is not in `mask` are not looked at by anybody.
    ///
    /// # Errors
    /// Everything that is wrong with the call, all at once; or the errno of the provider. Either way the QP is unchanged.
    pub fn modify(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<Modified, ModifyError> {
        Moves::modify(self, attr, mask)
    }

    /// Looks at a modify as [`Qp::modify`] does, and does not make it. Returns the attributes that would be ignored.
    ///
    /// # Errors
    /// Everything that is wrong with the call, all at once.
    pub fn check(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<ibv_qp_attr_mask, ModifyError> {
        self.control().check(attr, mask)
    }
}

impl Control<'_> {
    /// See [`Qp::check`].
    pub(crate) fn check(
        &self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<ibv_qp_attr_mask, ModifyError> {
        self.look(attr, mask).map(|checked| checked.ignored)
    }

    /// See [`Qp::modify`]. With it comes the longest message of the port, if the modify set the port.
    pub(crate) fn modify(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(Modified, Option<u32>), ModifyError> {
        let Checked {
            mut report,
            from,
            ignored,
            facts,
        } = self.look(attr, mask)?;
        if let Err(errno) = self.handle.modify(attr, mask) {
            report.hint = hint(&report, errno);
            report.provider = Some(errno);
            return Err(self.refuse(report));
        }
        let to = report.to;
        self.remember(&report);
        tracing::info!(
            qp = %self.info.name(), from = %from, to = %to, mask = %Bits(mask), errno = 0, "QP modified"
        );
        let facts = facts.filter(|_| mask.contains(IBV_QP_PORT));
        if let Some(facts) = facts.as_ref().filter(|facts| !facts.info.is_active()) {
            tracing::warn!(qp = %self.info.name(), state = ?facts.info.state, "the port is not active");
        }
        let modified = Modified { from, to, ignored };
        Ok((
            modified,
            facts.map(|facts| longest(&facts.info, self.transport)),
        ))
    }

    /// Says what is wrong with a modify of the QP in the state and on the port of `now`.
    pub(super) fn check_from(
        &self,
        now: &ibv_qp_attr,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), ModifyError> {
        self.look_from(now, attr, mask).map(|_| ())
    }

    /// Looks at a modify of the QP as it is now.
    fn look(&self, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<Checked, ModifyError> {
        match self.handle.query(IBV_QP_STATE | IBV_QP_PORT) {
            Ok(now) => self.look_from(&now, attr, mask),
            Err(errno) => {
                let mut report = self.report(None, None, attr, mask);
                report.provider = Some(errno);
                report.hint = Some("the state of the QP could not be queried".into());
                Err(self.refuse(report))
            }
        }
    }

    /// Looks at a modify of the QP as if it were in the state and on the port of `now`.
    fn look_from(
        &self,
        now: &ibv_qp_attr,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<Checked, ModifyError> {
        let from = now.qp_state;
        let port = (from != IBV_QPS_RESET && now.port_num != 0).then_some(now.port_num);
        let mut report = self.report(Some(from), port, attr, mask);
        let ignored = match rules::check(self.transport, from, report.to, mask) {
            Ok(verdict) => verdict.ignored,
            Err(refusal) => {
                report.problems.push(Problem::Mask(refusal));
                ibv_qp_attr_mask::empty()
            }
        };
        if mask.contains(IBV_QP_CUR_STATE) && attr.cur_qp_state != from {
            report.problems.push(Problem::CurState {
                believed: attr.cur_qp_state,
                real: from,
            });
        }
        let leaves = from == IBV_QPS_SQD && report.to == IBV_QPS_RTS;
        if leaves && now.sq_draining != 0 {
            report.problems.push(Problem::Draining);
        }
        let facts = self.port_facts(attr, mask, port);
        self.check_values(&mut report, facts.as_ref());
        if !report.problems.is_empty() {
            return Err(self.refuse(report));
        }
        Ok(Checked {
            report,
            from,
            ignored,
            facts,
        })
    }

    fn report(
        &self,
        from: Option<ibv_qp_state>,
        port: Option<u8>,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> ModifyReport {
        let to = if mask.contains(IBV_QP_STATE) {
            attr.qp_state
        } else {
            from.unwrap_or(IBV_QPS_UNKNOWN)
        };
        ModifyReport {
            device: self.info.device.clone(),
            port,
            qp_num: self.info.qp_num,
            transport: self.transport,
            from,
            to,
            mask,
            attr: *attr,
            source: None,
            active_mtu: None,
            problems: Vec::new(),
            provider: None,
            hint: None,
        }
    }
    #[cold]
    fn refuse(&self, report: ModifyReport) -> ModifyError {
        let error = ModifyError(Box::new(report));
        self.info.failed((&error).into());
        tracing::warn!(
            qp = %self.info.name(), from = ?error.from, to = %error.to, mask = %Bits(error.mask),
            errno = error.errno().raw_os_error(), called = !error.refused_before_call(), "{error}"
        );
        error
    }

    /// Asks the port that the attributes concern, if a check needs to know something of it.
    fn port_facts(
        &self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        qp_port: Option<u8>,
    ) -> Option<PortFacts> {
        let needed =
            IBV_QP_PORT | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_PKEY_INDEX | IBV_QP_ALT_PATH;
        if !mask.intersects(needed) {
            return None;
        }
        let number = if mask.contains(IBV_QP_PORT) {
            attr.port_num
        } else {
            qp_port?
        };
        let context = self.handle.context().clone();
        let port = Port::new(context, number, self.device.phys_port_cnt).ok()?;
        let info = port.query().ok()?;
        let gids = if mask.contains(IBV_QP_AV) && attr.ah_attr.is_global != 0 {
            port.gids().ok()
        } else {
            None
        };
        Some(PortFacts { info, gids })
    }

    /// Looks at the values.
    fn check_values(&self, report: &mut ModifyReport, facts: Option<&PortFacts>) {
        let (attr, mask) = (report.attr, report.mask);
        let mut limits = match facts {
            Some(facts) => Limits::new(self.device, &facts.info.raw),
            // Without a port the limits of the device remain.
            None => Limits {
                phys_port_cnt: Some(self.device.phys_port_cnt),
                max_rd_atomic: u32::try_from(self.device.max_qp_init_rd_atom).ok(),
                max_dest_rd_atomic: u32::try_from(self.device.max_qp_rd_atom).ok(),
                ..Limits::default()
            },
        };
        limits.qp_port = report.port;
        if let Some(facts) = facts {
            limits.ethernet |= facts.info.grh_required;
            report.active_mtu = facts.info.active_mtu.map(|mtu| mtu.bytes());
        }
        let violations = rules::check_values(self.transport, &attr, mask, &limits);
        report
            .problems
            .extend(violations.into_iter().map(Problem::Value));
        let Some(facts) = facts else { return };
        if mask.contains(IBV_QP_PKEY_INDEX)
            && attr.pkey_index < facts.info.pkey_tbl_len
            && self
                .handle
                .context()
                .query_pkey(self.port_of(report), attr.pkey_index)
                == Ok(0)
        {
            report.problems.push(Problem::EmptyPkey {
                index: attr.pkey_index,
            });
        }
        if let Some(gids) = &facts.gids {
            report.source = gids
                .iter()
                .find(|e| e.index == u32::from(attr.ah_attr.grh.sgid_index))
                .copied();
            let in_table = u32::from(attr.ah_attr.grh.sgid_index) < facts.info.gid_tbl_len;
            let ethernet = facts.info.link_layer == LinkLayer::Ethernet;
            let found = check_gid(&attr.ah_attr.grh, report.source, gids, in_table, ethernet);
            report.problems.extend(found.into_iter().map(Problem::Gid));
        }
    }

    /// The port that the attributes concern.
    fn port_of(&self, report: &ModifyReport) -> u8 {
        if report.mask.contains(IBV_QP_PORT) {
            report.attr.port_num
        } else {
            report.port.unwrap_or(0)
        }
    }

    /// Notes what a successful modify set up, for reports.
    fn remember(&self, made: &ModifyReport) {
        let (attr, mask, to) = (&made.attr, made.mask, made.to);
        let mut path = self.info.path();
        if to == IBV_QPS_RESET {
            *path = PathInfo::default();
            return;
        }
        let set = |bit, slot: &mut Option<u32>, value| {
            if mask.contains(bit) {
                *slot = Some(value);
            }
        };
        set(IBV_QP_DEST_QPN, &mut path.dest_qp_num, attr.dest_qp_num);
        set(IBV_QP_RQ_PSN, &mut path.rq_psn, attr.rq_psn);
        set(IBV_QP_SQ_PSN, &mut path.sq_psn, attr.sq_psn);
        set(IBV_QP_QKEY, &mut path.qkey, attr.qkey);
        let set = |bit, slot: &mut Option<u8>, value| {
            if mask.contains(bit) {
                *slot = Some(value);
            }
        };
        set(IBV_QP_PORT, &mut path.port, attr.port_num);
        set(IBV_QP_TIMEOUT, &mut path.timeout, attr.timeout);
        set(IBV_QP_RETRY_CNT, &mut path.retry_cnt, attr.retry_cnt);
        set(IBV_QP_RNR_RETRY, &mut path.rnr_retry, attr.rnr_retry);
        if mask.contains(IBV_QP_AV) && attr.ah_attr.is_global != 0 {
            path.sgid_index = Some(attr.ah_attr.grh.sgid_index);
            path.dgid = Some(Gid::new(attr.ah_attr.grh.dgid.raw));
            path.source = made.source;
        }
        if to == IBV_QPS_RTS && path.ready_since.is_none() {
            path.ready_since = Some(Instant::now());
        }
    }
}

/// The longest message of a port. A datagram is one packet.
fn longest(port: &PortInfo, transport: rules::Transport) -> u32 {
    match port.active_mtu {
        Some(mtu) if transport == rules::Transport::Ud => mtu.bytes().min(port.max_msg_sz),
        _ => port.max_msg_sz,
    }
}

/// What the errno of a provider may mean, after everything that could be checked was found right.
fn hint(report: &ModifyReport, errno: Errno) -> Option<String> {
    let to_sqd = report.from == Some(IBV_QPS_RTS) && report.to == IBV_QPS_SQD;
    let in_sqd = report.from == Some(IBV_QPS_SQD);
    let dgid = report.attr.ah_attr.grh.dgid;
    Some(match errno.name() {
        Some("EINVAL" | "EOPNOTSUPP") if to_sqd => {
            "some drivers (mlx5) have no SQD: wait until every request is done, reset the QP and connect again".into()
        }
        // uverbs_cmd.c, modify_qp: it adds the bit to every call with an address vector that does not go to RTR.
        Some("EINVAL") if in_sqd && report.mask.contains(IBV_QP_AV) && report.transport == rules::Transport::Uc => {
            "the kernel adds IBV_QP_PORT to every new address vector, which UC does not allow in SQD: reset the QP and \
             connect again"
                .into()
        }
        Some("ETIMEDOUT" | "ENETUNREACH") => match &report.source {
            Some(source) => format!("no route to, or no neighbour {dgid} from {source}"),
            None => format!("no route to, or no neighbour {dgid}"),
        },
        Some("EINVAL") => "the rules allow the move and every value is in range, so this provider has a reason of its own; \
                           the kernel log may have it"
            .into(),
        Some("ENOMEM") => "the device or the kernel is out of memory".into(),
        Some("EPERM" | "EACCES") => "this user may not do that".into(),
        Some("EIO" | "ENODEV") => "the device is gone or broken".into(),
        _ => return None,
    })
}
