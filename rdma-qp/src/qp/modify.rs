//! Every modify is looked at before it is made: the real state is asked of the device, then everything that is wrong is
//! named at once, and a refused modify never reaches the device.

use std::fmt;
use std::ops::Deref;
use std::time::Instant;

use rdma_core_sys::rules::{self, Bits, Limits, Refusal, Violation};
use rdma_core_sys::*;

use super::{PathInfo, Qp, QpInfo, Transition, Transport};
use crate::endpoint::LinkLayer;
use crate::errno::Errno;
use crate::gid::{Gid, GidEntry, GidKind, choose};
use crate::port::{Port, PortInfo};

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

/// Something is wrong with a modify.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The move is not allowed, or not with this mask.
    Mask(Refusal),
    /// An attribute has a value that cannot work.
    Value(Violation),
    /// The local GID does not fit.
    Gid(GidProblem),
    /// The P_Key table has nothing at that index.
    EmptyPkey {
        /// The index.
        index: u16,
    },
}

/// The local GID does not fit, or does not fit the peer's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidProblem {
    /// There is nothing at that index.
    EmptySlot {
        /// The index.
        index: u8,
        /// What there is.
        filled: Vec<GidEntry>,
    },
    /// The entry speaks RoCE v1, which this library does not use.
    RoceV1 {
        /// The entry.
        entry: GidEntry,
        /// A better one, if there is one.
        better: Option<GidEntry>,
    },
    /// The peer's GID is all zero.
    ZeroDestination,
    /// The two GIDs are of different address families.
    FamilyMismatch {
        /// The local entry.
        entry: GidEntry,
        /// The peer's GID.
        dgid: Gid,
        /// A better local one, if there is one.
        better: Option<GidEntry>,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Mask(refusal) => {
                // The head of the message says from where to where and on which QP: leave only what is wrong.
                let text = refusal.to_string();
                f.write_str(
                    text.split_once(": ")
                        .map_or(text.as_str(), |(_, rest)| rest),
                )
            }
            Problem::Value(violation @ Violation::GrhMissing { .. }) => {
                write!(
                    f,
                    "{violation}: fill in grh.dgid (the peer's GID) and grh.sgid_index"
                )
            }
            Problem::Value(violation) => violation.fmt(f),
            Problem::Gid(problem) => problem.fmt(f),
            Problem::EmptyPkey { index } => {
                write!(f, "pkey_index {index} is an empty slot of the P_Key table")
            }
        }
    }
}

impl fmt::Display for GidProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advise = |f: &mut fmt::Formatter<'_>, better: &Option<GidEntry>| match better {
            Some(better) => write!(f, ": choose {better}"),
            None => f.write_str(
                ", and the port has no better one: give its interface a fitting address",
            ),
        };
        match self {
            GidProblem::EmptySlot { index, filled } => {
                write!(f, "sgid_index {index} is an empty slot of the GID table")?;
                let mut before = "; filled are ";
                for entry in filled {
                    write!(f, "{before}{entry}")?;
                    before = ", ";
                }
                Ok(())
            }
            GidProblem::RoceV1 { entry, better } => {
                write!(
                    f,
                    "sgid_index {} is {} of type RoCE v1, which is not supported here",
                    entry.index, entry.gid
                )?;
                advise(f, better)
            }
            GidProblem::ZeroDestination => {
                f.write_str("dgid is all zero: fill in the GID that the peer sent")
            }
            GidProblem::FamilyMismatch {
                entry,
                dgid,
                better,
            } => {
                let (index, gid) = (entry.index, entry.gid);
                write!(
                    f,
                    "sgid_index {index} is {gid} ({}, {})",
                    gid.family(),
                    entry.kind
                )?;
                write!(f, " but dgid is {dgid} ({})", dgid.family())?;
                advise(f, better)
            }
        }
    }
}

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
pub struct ModifyError(Box<ModifyReport>);

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

/// What a port says that a check needs.
struct PortFacts {
    info: PortInfo,
    gids: Option<Vec<GidEntry>>,
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
    pub fn to(&mut self, transition: impl Transition<T>) -> Result<Modified, ModifyError> {
        let (attr, mask) = transition.lower();
        self.modify(&attr, mask)
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
        let now = self.handle.query(IBV_QP_STATE | IBV_QP_PORT);
        let from = now.as_ref().ok().map(|(now, _)| now.qp_state);
        let to = if mask.contains(IBV_QP_STATE) {
            attr.qp_state
        } else {
            from.unwrap_or(IBV_QPS_UNKNOWN)
        };
        let port = match &now {
            Ok((now, _)) if now.qp_state != IBV_QPS_RESET && now.port_num != 0 => {
                Some(now.port_num)
            }
            _ => None,
        };
        let mut report = ModifyReport {
            device: self.info.device.clone(),
            port,
            qp_num: self.info.qp_num,
            transport: T::RULES,
            from,
            to,
            mask,
            attr: *attr,
            source: None,
            active_mtu: None,
            problems: Vec::new(),
            provider: None,
            hint: None,
        };
        let Some(from) = from else {
            report.provider = now.err();
            report.hint = Some("the state of the QP could not be queried".into());
            return Err(self.refuse(report));
        };
        let ignored = match rules::check(T::RULES, from, to, mask) {
            Ok(verdict) => verdict.ignored,
            Err(refusal) => {
                report.problems.push(Problem::Mask(refusal));
                ibv_qp_attr_mask::empty()
            }
        };
        let facts = self.port_facts(attr, mask, port);
        self.check_values(&mut report, facts.as_ref());
        if !report.problems.is_empty() {
            return Err(self.refuse(report));
        }
        if let Err(errno) = self.handle.modify(attr, mask) {
            report.provider = Some(errno);
            report.hint = hint(&report, errno);
            return Err(self.refuse(report));
        }
        self.remember(attr, mask, to, report.source, facts.as_ref());
        tracing::info!(
            qp = %self.info.name(), from = %from, to = %to, mask = %Bits(mask), errno = 0, "QP modified"
        );
        Ok(Modified { from, to, ignored })
    }

    #[cold]
    fn refuse(&self, report: ModifyReport) -> ModifyError {
        let error = ModifyError(Box::new(report));
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
        let context = self.handle.pd().context.clone();
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
            Some(facts) => Limits::new(&self.device, &facts.info.raw),
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
        let violations = rules::check_values(T::RULES, &attr, mask, &limits);
        report
            .problems
            .extend(violations.into_iter().map(Problem::Value));
        let Some(facts) = facts else { return };
        if mask.contains(IBV_QP_PKEY_INDEX)
            && attr.pkey_index < facts.info.pkey_tbl_len
            && self
                .handle
                .pd()
                .context
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

    /// Notes what a successful modify set up, for reports and for the checks of posts.
    fn remember(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        to: ibv_qp_state,
        source: Option<GidEntry>,
        facts: Option<&PortFacts>,
    ) {
        if let (true, Some(facts)) = (mask.contains(IBV_QP_PORT), facts) {
            self.max_msg_sz = facts.info.max_msg_sz;
            if !facts.info.is_active() {
                tracing::warn!(qp = %self.info.name(), state = ?facts.info.state, "the port is not active");
            }
        }
        let info: &QpInfo = &self.info;
        let mut path = info.path();
        if to == IBV_QPS_RESET {
            *path = PathInfo::default();
            self.last_signaled = None;
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
            path.source = source;
        }
        if to == IBV_QPS_RTS && path.ready_since.is_none() {
            path.ready_since = Some(Instant::now());
        }
    }
}

/// Looks at the two GIDs of an address vector with GRH.
fn check_gid(
    grh: &ibv_global_route,
    source: Option<GidEntry>,
    table: &[GidEntry],
    in_table: bool,
    ethernet: bool,
) -> Vec<GidProblem> {
    let mut found = Vec::new();
    let dgid = Gid::new(grh.dgid.raw);
    if dgid.is_zero() {
        found.push(GidProblem::ZeroDestination);
    }
    let Some(entry) = source else {
        // An index beyond the table is named by the rules already.
        if in_table {
            found.push(GidProblem::EmptySlot {
                index: grh.sgid_index,
                filled: table.to_vec(),
            });
        }
        return found;
    };
    if !ethernet {
        return found;
    }
    let peer = (!dgid.is_zero()).then_some(dgid);
    let better = || {
        choose(entry.port, table.iter().copied(), peer)
            .ok()
            .map(|choice| choice.entry())
    };
    if entry.kind == GidKind::RoceV1 {
        found.push(GidProblem::RoceV1 {
            entry,
            better: better(),
        });
    } else if peer.is_some_and(|peer| peer.family() != entry.gid.family()) {
        found.push(GidProblem::FamilyMismatch {
            entry,
            dgid,
            better: better(),
        });
    }
    found
}

/// What the errno of a provider may mean, after everything that could be checked was found right.
fn hint(report: &ModifyReport, errno: Errno) -> Option<String> {
    let to_sqd = report.from == Some(IBV_QPS_RTS) && report.to == IBV_QPS_SQD;
    let dgid = report.attr.ah_attr.grh.dgid;
    Some(match errno.name() {
        Some("EINVAL" | "EOPNOTSUPP") if to_sqd => {
            "some drivers (mlx5) have no SQD: wait until every request is done, reset the QP and connect again".into()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn entry(index: u32, gid: &str, kind: GidKind) -> GidEntry {
        GidEntry {
            port: 1,
            index,
            gid: gid.parse::<Ipv6Addr>().unwrap().into(),
            kind,
            ifindex: 1,
        }
    }

    fn grh(dgid: &str, sgid_index: u8) -> ibv_global_route {
        let mut grh = ibv_global_route::zeroed();
        grh.dgid = dgid.parse::<Ipv6Addr>().unwrap().into();
        grh.sgid_index = sgid_index;
        grh
    }

    #[test]
    fn a_family_mismatch_names_both_gids_and_the_right_index() {
        let table = [
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(2, "::ffff:10.0.0.5", GidKind::RoceV1),
            entry(3, "::ffff:10.0.0.5", GidKind::RoceV2),
        ];
        let found = check_gid(
            &grh("::ffff:10.0.0.7", 1),
            Some(table[0]),
            &table,
            true,
            true,
        );
        assert_eq!(
            found[0].to_string(),
            "sgid_index 1 is fe80::1 (link-local, RoCE v2) but dgid is ::ffff:10.0.0.7 (IPv4): \
             choose index 3 (::ffff:10.0.0.5, RoCE v2)"
        );
        assert_eq!(found.len(), 1);
        let found = check_gid(
            &grh("::ffff:10.0.0.7", 2),
            Some(table[1]),
            &table,
            true,
            true,
        );
        assert_eq!(
            found,
            [GidProblem::RoceV1 {
                entry: table[1],
                better: Some(table[2])
            }]
        );
        assert_eq!(
            check_gid(
                &grh("::ffff:10.0.0.7", 3),
                Some(table[2]),
                &table,
                true,
                true
            ),
            []
        );
        assert_eq!(
            check_gid(&grh("fe80::2", 1), Some(table[0]), &table, true, true),
            []
        );
    }

    #[test]
    fn empty_slots_and_zero_destinations_are_two_problems() {
        let table = [entry(4, "::ffff:10.0.0.5", GidKind::RoceV2)];
        let found = check_gid(&grh("::", 0), None, &table, true, true);
        assert_eq!(
            found,
            [
                GidProblem::ZeroDestination,
                GidProblem::EmptySlot {
                    index: 0,
                    filled: table.to_vec()
                }
            ]
        );
        assert!(
            found[1]
                .to_string()
                .contains("filled are index 4 (::ffff:10.0.0.5, RoCE v2)")
        );
    }

    #[test]
    fn infiniband_gids_have_no_families() {
        let table = [entry(0, "fe80::1", GidKind::Ib)];
        assert_eq!(
            check_gid(&grh("2001:db8::1", 0), Some(table[0]), &table, true, false),
            []
        );
    }
}
