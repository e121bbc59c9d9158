//! Looking at a QP: its dump, and what is harmful in its settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rdma_core_sys::rules;
use rdma_core_sys::*;

use super::connect::Description;
use super::modify::{self, Handle};
use super::{NOTHING, PathInfo, PostError, Qp, QpInfo, Rc, Transport};
use crate::cq::{Cq, Ticket, WaitError};
use crate::deadline::Deadline;
use crate::dump::{
    self, Accounts, Attributes, CapDump, DeviceDump, Dump, Ends, GidDump, GlobalDump, OtherPort,
    PathDump, PortDump, QpDump, Taken,
};
use crate::endpoint::RemoteAddr;
use crate::gid::{Gid, GidEntry};
use crate::lint::{self, Finding};
use crate::port::Port;
use crate::raw::context::ContextHandle;
use crate::rtt::Rtt;
use crate::units::{PathMtu, Psn};

impl<T: Transport> Qp<T> {
    /// All that is known of this end, as a document for people and tools: device, port, GID table, the QP and its books, what
    /// was exchanged with the peer, and the last error. See [`dump`](crate::dump) for its format.
    ///
    /// It never fails: what the device or the system does not say is left out and named in `missing`. It asks the device, so
    /// it is nothing for a hot path.
    pub fn dump(&self) -> Dump {
        let ibv_qp_cap {
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data,
        } = self.cap();
        let mut dump = take(
            &self.handle,
            &self.device,
            &self.info,
            T::RULES,
            self.told.as_ref(),
        );
        dump.qp.cap = Some(CapDump {
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data,
        });
        dump.accounts = Some(Accounts {
            send: self.send_account(),
            recv: self.recv_account(),
        });
        dump
    }

    /// The settings of this QP that are legal and do harm, the worst first; `rtt` is the round trip to the peer, where it was
    /// measured. See [`lint`](crate::lint). Connecting tells `tracing` what it finds; this also sees what was changed since,
    /// the port as it is now, and the network interface behind the GID.
    pub fn lint(&self, rtt: Option<Rtt>) -> Vec<Finding> {
        lint::check(&self.dump().settings(rtt))
    }
}

/// A round trip could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A request failed, or was not done in time.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

impl Qp<Rc> {
    /// Measures the round trip to the peer over this QP, which is connected: `rounds` RDMA WRITEs of no bytes, each from its
    /// post to its completion in `cq`, the CQ of the send queue. At least 1 round; 32 show the jitter. Nothing reaches the
    /// peer's program, and no memory of it is touched; but its QP must allow RDMA WRITE, as it does unless told otherwise.
    ///
    /// What else is under way counts in, so measure before the work begins. Then set the timeout that
    /// [`Timing::from_rtt`](crate::Timing::from_rtt) gives when the QP connects next, or on the way through SQD.
    ///
    /// ```
    /// # use rdma_qp::{Device, Peer, Timing};
    /// # use std::time::Duration;
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let gid = device.port(1)?.best_gid()?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// # let (mut qp, mut peer) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
    /// # let here = Peer { endpoint: qp.endpoint(&gid)?, regions: vec![] };
    /// # let there = Peer { endpoint: peer.endpoint(&gid)?, regions: vec![] };
    /// # let timing = Timing::default();
    /// # let agreed = (qp.connect_begin(&there, timing)?, peer.connect_begin(&here, timing)?);
    /// # (qp.connect_finish(agreed.0, timing)?, peer.connect_finish(agreed.1, timing)?);
    /// let rtt = qp.measure_rtt(&cq, 32, Duration::from_secs(5))?;
    /// assert!(rtt.min <= rtt.p90);
    /// for finding in qp.lint(Some(rtt)) {
    ///     println!("{finding}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A request was refused or failed, or `deadline` came first.
    pub fn measure_rtt(
        &mut self,
        cq: &Cq,
        rounds: u32,
        deadline: impl Into<Deadline>,
    ) -> Result<Rtt, MeasureError> {
        measure(cq, rounds, deadline.into(), |nowhere| {
            self.write(NOTHING, nowhere)
        })
    }
}

/// Times `rounds` requests without bytes, at least one, each from its post to its completion in `cq`.
pub(super) fn measure(
    cq: &Cq,
    rounds: u32,
    deadline: Deadline,
    mut post: impl FnMut(RemoteAddr) -> Result<Ticket, PostError>,
) -> Result<Rtt, MeasureError> {
    // A request without bytes names no memory (rxe_resp.c, check_rkey: neither address nor rkey is looked at).
    let nowhere = RemoteAddr {
        addr: 0,
        rkey: 0,
        room: 0,
    };
    let mut samples = Vec::new();
    for _ in 0..rounds.max(1) {
        let start = Instant::now();
        let ticket = post(nowhere)?;
        cq.wait(&ticket, deadline)?;
        samples.push(start.elapsed());
    }
    Ok(Rtt::of(&samples).unwrap_or_default())
}

/// The dump of a QP, without what only its owner knows: what its queues hold, and their books.
pub(super) fn take(
    handle: &dyn Handle,
    device: &ibv_device_attr,
    info: &QpInfo,
    transport: rules::Transport,
    told: Option<&Description>,
) -> Dump {
    let mut missing = Vec::new();
    let context = handle.context();
    let known = info.path().clone();
    let (state, mut attributes) = match modify::snapshot(handle, info, transport) {
        Ok(snapshot) => (
            snapshot.attr.qp_state.to_string(),
            attributes(&snapshot.attr, transport, &known),
        ),
        Err(error) => {
            missing.push(error.to_string());
            (String::new(), Attributes::default())
        }
    };
    let number = attributes
        .port_num
        .or(known.port)
        .or(told.map(Description::port));
    let port = number.and_then(|n| Port::new(context.clone(), n, device.phys_port_cnt).ok());
    let mut note = |error: &dyn std::fmt::Display| missing.push(error.to_string());
    let (mut port_dump, mut gids) = (None, Vec::new());
    if let Some(port) = &port {
        port_dump = port
            .query()
            .map_err(|e| note(&e))
            .ok()
            .map(|info| PortDump {
                number: port.number(),
                state: state_name(info.state),
                link_layer: Some(info.link_layer),
                lid: info.lid,
                max_mtu: info.max_mtu,
                active_mtu: info.active_mtu,
                max_msg_sz: info.max_msg_sz,
                gid_tbl_len: info.gid_tbl_len,
                pkey_tbl_len: info.pkey_tbl_len,
                grh_required: info.grh_required,
            });
        let table = port.gids().map_err(|e| note(&e)).unwrap_or_default();
        gids = dump_gids(table, &netdevs());
        attributes.pkey = (attributes.pkey_index).and_then(|index| port.pkey(index).ok());
    }
    let others = number.map_or_else(Vec::new, |number| {
        other_ports(context, number, device.phys_port_cnt)
    });
    let endpoint = match (known.ends, told) {
        (Some(ends), _) => {
            let (here, there) = *ends;
            let there = Some(there);
            Some(Ends { here, there })
        }
        (None, Some(told)) => Some(told.ends()),
        (None, None) => None,
    };
    Dump {
        format: dump::FORMAT.to_owned(),
        version: dump::VERSION,
        library: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
        taken: Taken {
            unix_ms: dump::unix_ms(),
            host: line("/proc/sys/kernel/hostname"),
            pid: std::process::id(),
        },
        device: DeviceDump {
            name: info.device.clone(),
            guid: format!("{:016x}", context.guid),
            firmware: text(&device.fw_ver),
            vendor_id: device.vendor_id,
            vendor_part_id: device.vendor_part_id,
            ports: device.phys_port_cnt,
            max_qp_init_rd_atom: device.max_qp_init_rd_atom,
            max_qp_rd_atom: device.max_qp_rd_atom,
            max_qp_wr: device.max_qp_wr,
            max_sge: device.max_sge,
            max_cqe: device.max_cqe,
        },
        port: port_dump,
        gids,
        qp: QpDump {
            number: info.qp_num,
            transport: transport.name().to_owned(),
            state,
            cap: None,
            attributes,
        },
        accounts: None,
        counters: number
            .map(|port| counters(&info.device, port))
            .unwrap_or_default(),
        endpoint,
        last_error: info.last_error(),
        missing,
        ports: others,
        mishaps: Vec::new(),
        regions: Vec::new(),
    }
}

/// The state of a port, as C names it.
fn state_name(state: ibv_port_state) -> String {
    state
        .name()
        .map_or_else(|| state.0.to_string(), str::to_owned)
}

/// Filled entries of a GID table, with the network devices behind them.
fn dump_gids(table: Vec<GidEntry>, netdevs: &BTreeMap<u32, (String, Option<u32>)>) -> Vec<GidDump> {
    let dump = |entry: GidEntry| {
        let netdev = netdevs.get(&entry.ifindex);
        GidDump {
            index: entry.index,
            gid: entry.gid,
            kind: entry.kind,
            ifindex: entry.ifindex,
            netdev: netdev.map(|(name, _)| name.clone()),
            netdev_mtu: netdev.and_then(|(_, mtu)| *mtu),
        }
    };
    table.into_iter().map(dump).collect()
}

/// The ports of a device but for this one; of a device of many ports, the first 8.
fn other_ports(context: &Arc<ContextHandle>, but: u8, ports: u8) -> Vec<OtherPort> {
    let numbers = (1..=ports.min(8)).filter(|number| *number != but);
    let look = |number| {
        let port = Port::new(context.clone(), number, ports).ok()?;
        let state = port.query().ok()?.state;
        let table = port.gids().unwrap_or_default();
        Some(OtherPort {
            number,
            state: state_name(state),
            gids: dump_gids(table, &netdevs()),
        })
    };
    numbers.filter_map(look).collect()
}

/// The attributes that are set in the state that the QP is in.
fn attributes(attr: &ibv_qp_attr, transport: rules::Transport, known: &PathInfo) -> Attributes {
    // What each step on the way to RTS needs is set after it. The device does not say how far a QP in ERR had come: what is
    // known of its modifies does, or else the attributes.
    let steps = [
        (IBV_QPS_RESET, IBV_QPS_INIT),
        (IBV_QPS_INIT, IBV_QPS_RTR),
        (IBV_QPS_RTR, IBV_QPS_RTS),
    ];
    let came = match attr.qp_state {
        IBV_QPS_INIT => 1,
        IBV_QPS_RTR => 2,
        IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE => 3,
        IBV_QPS_ERR if known.ready_since.is_some() || attr.timeout != 0 => 3,
        IBV_QPS_ERR if known.dest_qp_num.is_some() || attr.dest_qp_num != 0 => 2,
        IBV_QPS_ERR => 1,
        _ => 0,
    };
    let set = steps[..came]
        .iter()
        .filter_map(|(from, to)| rules::required(transport, *from, *to))
        .fold(ibv_qp_attr_mask::empty(), |set, step| set | step);
    let has = |bit| set.contains(bit);
    let psn =
        |bit, value: u32| has(bit).then(|| Psn::new(value & Psn::MAX.get()).unwrap_or_default());
    let (av, grh) = (&attr.ah_attr, &attr.ah_attr.grh);
    Attributes {
        port_num: has(IBV_QP_PORT).then_some(attr.port_num),
        pkey_index: has(IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
        pkey: None,
        qp_access_flags: has(IBV_QP_ACCESS_FLAGS).then_some(attr.qp_access_flags),
        qkey: has(IBV_QP_QKEY).then_some(attr.qkey),
        path_mtu: PathMtu::from_code(attr.path_mtu.0).filter(|_| has(IBV_QP_PATH_MTU)),
        dest_qp_num: has(IBV_QP_DEST_QPN).then_some(attr.dest_qp_num),
        rq_psn: psn(IBV_QP_RQ_PSN, attr.rq_psn),
        first_rq_psn: known.rq_psn.and_then(|psn| Psn::new(psn).ok()),
        max_dest_rd_atomic: has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: has(IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        path: has(IBV_QP_AV).then(|| PathDump {
            dlid: av.dlid,
            service_level: av.sl,
            global: (av.is_global != 0).then(|| GlobalDump {
                dgid: Gid::new(grh.dgid.raw),
                sgid_index: grh.sgid_index,
                hop_limit: grh.hop_limit,
                traffic_class: grh.traffic_class,
                flow_label: grh.flow_label,
            }),
        }),
        sq_psn: psn(IBV_QP_SQ_PSN, attr.sq_psn),
        first_sq_psn: known.sq_psn.and_then(|psn| Psn::new(psn).ok()),
        timeout: has(IBV_QP_TIMEOUT).then_some(attr.timeout),
        retry_cnt: has(IBV_QP_RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(IBV_QP_RNR_RETRY).then_some(attr.rnr_retry),
        max_rd_atomic: has(IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        sq_draining: (attr.qp_state == IBV_QPS_SQD).then_some(attr.sq_draining != 0),
    }
}

/// A C string in an array.
fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars
        .iter()
        .map(|c| *c as u8)
        .take_while(|c| *c != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a file of one line says.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Name and MTU of the network devices of this network namespace, by interface index.
fn netdevs() -> BTreeMap<u32, (String, Option<u32>)> {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else {
        return BTreeMap::new();
    };
    let read = |path: &Path, file| line(path.join(file))?.parse::<u32>().ok();
    let netdev = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        Some((read(&path, "ifindex")?, (name, read(&path, "mtu"))))
    };
    entries.flatten().filter_map(netdev).collect()
}

/// The kernel's counters of a port, by file name.
pub(crate) fn counters(device: &str, port: u8) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    // The name comes from a driver; a path it is not.
    if device.contains('/') {
        return found;
    }
    for kind in ["counters", "hw_counters"] {
        let folder = format!("/sys/class/infiniband/{device}/ports/{port}/{kind}");
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if let Some(value) = line(entry.path()).and_then(|text| text.parse().ok()) {
                found.insert(
                    format!("{kind}/{}", entry.file_name().to_string_lossy()),
                    value,
                );
            }
        }
    }
    found
}
