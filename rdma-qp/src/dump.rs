//! One end of a connection as a JSON document: what a person who was not there needs, in a form that tools read.
//!
//! [`Qp::dump`](crate::Qp::dump) takes one, at any time and in any state; it never fails, it says what it could not find out.
//! Two of them, one of each end, say most of what there is to say about a connection that does not work:
//! [`doctor::diagnose`](crate::doctor::diagnose) reads them. Keys and contents of memory are not in it, unless a recorder
//! of the software device adds `regions`.
//!
//! ```
//! use rdma_qp::{Device, Dump};
//! let device = Device::open_index(rdma_soft::verbs(), 0)?;
//! let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
//! let qp = pd.rc(&cq).create()?;
//! let text = qp.dump().to_json();
//! let dump = Dump::from_json(&text)?;
//! assert_eq!(dump.qp.state, "RESET");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Format, version 1
//!
//! A JSON object. Readers ignore fields that they do not know: later releases add some under the same version, and each
//! that is added may be absent. The version changes when a field is removed or means something else. Numbers are decimal;
//! addresses are text as IPv6 writes them (`::ffff:10.0.0.5`); names of C constants are C's. `null`, or absence, is "not
//! known" or "there is none".
//!
//! | field | what it is |
//! |---|---|
//! | `format` | always `"rdma-qp-dump"` |
//! | `version` | always 1 |
//! | `library` | who wrote it: name and release |
//! | `taken` | when and where, see [`Taken`] |
//! | `device` | the device and its limits, see [`DeviceDump`] |
//! | `port` | the port of the QP, see [`PortDump`]; `null` before INIT |
//! | `gids` | the filled entries of that port's GID table, see [`GidDump`] |
//! | `qp` | the QP, its state and its attributes, see [`QpDump`] |
//! | `accounts` | what became of the requests of each queue, see [`Accounts`]; `null` where the program posts by itself |
//! | `counters` | the kernel's counters of the port, by file name below `/sys/class/infiniband/<device>/ports/<port>`, such as `hw_counters/out_of_sequence`; empty where there are none |
//! | `endpoint` | what this end told the peer and the peer told this end, see [`Ends`]; `null` before that |
//! | `last_error` | the last modify that was refused or request that failed, see [`LastError`] |
//! | `missing` | sentences: what could not be found out, and why |
//! | `ports` | the other ports of the device, see [`OtherPort`]; absent where there are none |
//! | `mishaps` | what went wrong with single requests, see [`Mishap`]; absent where the device does not tell |
//! | `regions` | the memory regions of the process, see [`RegionDump`]; absent where nobody recorded them |
//!
//! A recorder of the software device adds the device's counters to `counters`: those of the whole device as `soft/<name>`,
//! such as `soft/rx_bad_qkey`, and those of the QP as `qp/<name>`, such as `qp/rnr_naks_sent`.

use std::collections::BTreeMap;

use rdma_core_sys::ibv_port_state;
use serde::{Deserialize, Serialize};

use crate::account::Account;
use crate::endpoint::{Endpoint, LinkLayer};
use crate::gid::{Family, Gid, GidKind};
use crate::lint::Settings;
use crate::qp::ModifyError;
use crate::report::FailureReport;
use crate::rtt::Rtt;
use crate::units::{AckTimeout, PathMtu, Psn, RetryCount, RnrRetry, RnrTimer};

/// What `format` says.
pub const FORMAT: &str = "rdma-qp-dump";
/// The version that this library writes and reads.
pub const VERSION: u32 = 1;

/// A dump of one end. See the [module](self) for the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Who wrote it, such as `rdma-qp 0.1.0`.
    #[serde(default)]
    pub library: String,
    /// When and where it was taken.
    pub taken: Taken,
    /// The device.
    pub device: DeviceDump,
    /// The port of the QP; none before INIT.
    #[serde(default)]
    pub port: Option<PortDump>,
    /// The filled entries of the port's GID table, in table order.
    #[serde(default)]
    pub gids: Vec<GidDump>,
    /// The QP.
    pub qp: QpDump,
    /// The books of its queues.
    #[serde(default)]
    pub accounts: Option<Accounts>,
    /// The kernel's counters of the port.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// What the two ends told each other.
    #[serde(default)]
    pub endpoint: Option<Ends>,
    /// The last error.
    #[serde(default)]
    pub last_error: Option<LastError>,
    /// What could not be found out.
    #[serde(default)]
    pub missing: Vec<String>,
    /// The other ports of the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<OtherPort>,
    /// What went wrong with single requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mishaps: Vec<Mishap>,
    /// The memory regions of the process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<RegionDump>,
}

/// A port that the QP is not on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherPort {
    /// Its number, counted from 1.
    pub number: u8,
    /// Its state, as C names it: `IBV_PORT_ACTIVE`.
    pub state: String,
    /// The filled entries of its GID table.
    #[serde(default)]
    pub gids: Vec<GidDump>,
}

/// What went wrong with one request: the field `of` says which kind, and the others stand beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mishap {
    /// `"request"`: a request of the send queue failed.
    Request {
        /// What it was, as C names its completion's opcode: `IBV_WC_RDMA_WRITE`.
        opcode: String,
        /// The status, as a number of `ibv_wc_status`.
        status: u32,
        /// Address in the peer's process, where it named one.
        #[serde(default)]
        addr: Option<u64>,
        /// The peer's key, where it named one.
        #[serde(default)]
        rkey: Option<u32>,
        /// Its length in bytes.
        len: u64,
    },
    /// `"receive"`: a receive failed.
    Receive {
        /// The status, as a number of `ibv_wc_status`.
        status: u32,
        /// Bytes that it had room for.
        room: u64,
        /// Bytes that were to go there, with a datagram's 40 in front; none if the message had not come whole.
        #[serde(default)]
        len: Option<u64>,
    },
    /// `"qkey"`: a datagram was dropped for its Q_Key.
    Qkey {
        /// The QP that sent it.
        from: u32,
        /// The Q_Key that it carried.
        qkey: u32,
        /// The Q_Key of this QP.
        own: u32,
    },
    /// `of` names what this release does not know.
    #[serde(other)]
    Unknown,
}

/// A memory region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionDump {
    /// Address of its first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its local key.
    pub lkey: u32,
    /// Its remote key.
    pub rkey: u32,
    /// What is allowed: bits of `ibv_access_flags`.
    pub access: u32,
    /// Whether it was deregistered since.
    #[serde(default)]
    pub gone: bool,
}

/// When and where a dump was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// Name of the host.
    #[serde(default)]
    pub host: Option<String>,
    /// Number of the process.
    pub pid: u32,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceDump {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its node GUID, 16 hexadecimal digits.
    #[serde(default)]
    pub guid: String,
    /// Version of its firmware.
    #[serde(default)]
    pub firmware: String,
    /// Its vendor, by IEEE OUI.
    #[serde(default)]
    pub vendor_id: u32,
    /// The vendor's number of the part.
    #[serde(default)]
    pub vendor_part_id: u32,
    /// Number of its ports.
    pub ports: u8,
    /// READs and atomics that a QP may have under way (`max_qp_init_rd_atom`).
    pub max_qp_init_rd_atom: i32,
    /// READs and atomics that a QP may serve at a time (`max_qp_rd_atom`).
    pub max_qp_rd_atom: i32,
    /// Most requests outstanding in a queue.
    pub max_qp_wr: i32,
    /// Most ranges of a request.
    pub max_sge: i32,
    /// Most completions in a CQ.
    pub max_cqe: i32,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDump {
    /// Its number, counted from 1.
    pub number: u8,
    /// Its state, as C names it: `IBV_PORT_ACTIVE`.
    pub state: String,
    /// `Ethernet`, `InfiniBand` or `Unspecified`.
    pub link_layer: Option<LinkLayer>,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// Largest MTU that it can have, in bytes.
    pub max_mtu: Option<PathMtu>,
    /// Largest path MTU at present, in bytes.
    pub active_mtu: Option<PathMtu>,
    /// Longest message, in bytes.
    pub max_msg_sz: u32,
    /// Slots of its GID table, filled or not.
    pub gid_tbl_len: u32,
    /// Slots of its P_Key table, filled or not.
    pub pkey_tbl_len: u16,
    /// Whether address vectors need a GRH here.
    pub grh_required: bool,
}

/// A filled entry of a GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidDump {
    /// Place in the table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// `IB`, `RoCE v1`, `RoCE v2` or `unknown`.
    #[serde(rename = "type")]
    pub kind: GidKind,
    /// Interface index of its network device; 0 where there is none or the library does not say.
    pub ifindex: u32,
    /// Name of its network device.
    #[serde(default)]
    pub netdev: Option<String>,
    /// MTU of its network device, in bytes.
    #[serde(default)]
    pub netdev_mtu: Option<u32>,
}

/// A QP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpDump {
    /// Its number.
    pub number: u32,
    /// `RC`, `UC`, `UD`, ...
    pub transport: String,
    /// Its state: `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE`, `ERR`; empty if the device did not say.
    pub state: String,
    /// What its queues hold; none where the program made the QP.
    #[serde(default)]
    pub cap: Option<CapDump>,
    /// The attributes that are set.
    pub attributes: Attributes,
}

/// What the queues of a QP hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapDump {
    /// Outstanding sends.
    pub max_send_wr: u32,
    /// Outstanding receives.
    pub max_recv_wr: u32,
    /// Ranges of a send.
    pub max_send_sge: u32,
    /// Ranges of a receive.
    pub max_recv_sge: u32,
    /// Bytes that a send carries inline.
    pub max_inline_data: u32,
}

/// Attributes of a QP, named as verbs names them. Those that are not set yet, or that the transport does not have, are
/// `null`. Times are the codes of verbs, not microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attributes {
    /// Its port.
    pub port_num: Option<u8>,
    /// Place of its partition key.
    pub pkey_index: Option<u16>,
    /// The partition key there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pkey: Option<u16>,
    /// What the peer may do: bits of `ibv_access_flags`.
    pub qp_access_flags: Option<u32>,
    /// Its Q_Key (UD).
    pub qkey: Option<u32>,
    /// Path MTU, in bytes.
    pub path_mtu: Option<PathMtu>,
    /// QP number of the peer.
    pub dest_qp_num: Option<u32>,
    /// PSN that it expects next, or was to expect first, as the device says.
    pub rq_psn: Option<Psn>,
    /// PSN that it was told to expect first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_rq_psn: Option<Psn>,
    /// READs and atomics that it serves at a time.
    pub max_dest_rd_atomic: Option<u8>,
    /// Code of the time that the peer is asked to wait; 0 is 655.36 ms.
    pub min_rnr_timer: Option<u8>,
    /// The way to the peer.
    pub path: Option<PathDump>,
    /// PSN that it sends next, or was to send first, as the device says.
    pub sq_psn: Option<Psn>,
    /// PSN that it was told to send first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_sq_psn: Option<Psn>,
    /// Code of the wait for an acknowledgement: 4.096 us x 2^code; 0 is for ever.
    pub timeout: Option<u8>,
    /// Repetitions after a missing acknowledgement.
    pub retry_cnt: Option<u8>,
    /// Repetitions after the peer had no receive; 7 is for ever.
    pub rnr_retry: Option<u8>,
    /// READs and atomics that it has under way.
    pub max_rd_atomic: Option<u8>,
    /// Whether the send queue is draining (SQD).
    pub sq_draining: Option<bool>,
}

/// The way to the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathDump {
    /// LID of the peer; 0 on Ethernet.
    pub dlid: u16,
    /// Service level.
    pub service_level: u8,
    /// The part that routers look at; RoCE needs it.
    #[serde(default)]
    pub global: Option<GlobalDump>,
}

/// The part of a path that routers look at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalDump {
    /// GID of the peer.
    pub dgid: Gid,
    /// Place of the own GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
}

/// The books of the queues of a QP: `accepted` is the sum of the other counts, see [`Account`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounts {
    /// Of the send queue.
    pub send: Account,
    /// Of the receive queue; all zero on a QP that receives from an SRQ.
    pub recv: Account,
}

/// What two ends told each other: their endpoint records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// What this end told.
    pub here: Endpoint,
    /// What the peer told; none while this end waits for it.
    #[serde(default)]
    pub there: Option<Endpoint>,
}

/// The last error that this library saw on a QP. It stays when the QP is reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The whole message, for people.
    pub text: String,
    /// What failed.
    #[serde(flatten)]
    pub what: Failed,
}

/// What failed: the field `of` says which, and the others stand beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Failed {
    /// `"modify"`: a modify was not made.
    Modify {
        /// State before it.
        from: Option<String>,
        /// State that was asked for.
        to: String,
        /// The errno.
        errno: i32,
        /// Whether the device was asked at all, or the call was refused before that.
        called: bool,
        /// What was found wrong with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        problems: Vec<Wrong>,
    },
    /// `"request"`: a request failed. Flushes that follow from a failure are not errors of their own.
    Request {
        /// What it asked for, such as `RDMA WRITE`.
        operation: String,
        /// The status, as a number of `ibv_wc_status`.
        status: u32,
        /// The status, as C names it; none if this library does not know it.
        status_name: Option<String>,
        /// The vendor's own code.
        vendor_err: u32,
    },
    /// `of` names what this release does not know.
    #[serde(other)]
    Unknown,
}

/// Something that is wrong with a modify.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrong {
    /// A name that never changes, see [`Problem::code`](crate::Problem::code).
    pub code: String,
    /// What is wrong, with the values.
    pub text: String,
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl From<&ModifyError> for LastError {
    fn from(error: &ModifyError) -> LastError {
        LastError {
            unix_ms: unix_ms(),
            text: error.to_string(),
            what: Failed::Modify {
                from: error.from.map(|state| state.to_string()),
                to: error.to.to_string(),
                errno: error.errno().raw_os_error(),
                called: !error.refused_before_call(),
                problems: (error.problems.iter())
                    .map(|problem| Wrong {
                        code: problem.code().to_owned(),
                        text: problem.to_string(),
                    })
                    .collect(),
            },
        }
    }
}

impl From<&FailureReport> for LastError {
    fn from(report: &FailureReport) -> LastError {
        LastError {
            unix_ms: unix_ms(),
            text: report.to_string(),
            what: Failed::Request {
                operation: report.operation.to_string(),
                status: report.status.0,
                status_name: report.status.name().map(str::to_owned),
                vendor_err: report.vendor_err,
            },
        }
    }
}

/// A document that is no dump, or none that this library reads.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadDumpError {
    /// It is no JSON.
    #[error("this is no JSON document: {0}")]
    NotJson(#[source] serde_json::Error),
    /// It is JSON of another kind.
    #[error("this is no dump of a QP: its \"format\" is {}, not \"{FORMAT}\"", .0.as_deref().map_or("missing".into(), |f| format!("{f:?}")))]
    OtherFormat(Option<String>),
    /// It is of another version.
    #[error(
        "this dump has version {0}; this release reads version {VERSION}: use the release that wrote it, or a later one"
    )]
    OtherVersion(u64),
    /// A field is missing, or has a value that it cannot have.
    #[error("this dump is damaged: {0}")]
    Field(#[source] serde_json::Error),
}

impl Dump {
    /// The document, indented, without a line end behind it.
    pub fn to_json(&self) -> String {
        // No map of it has a key that is not a string, and nothing in it fails to serialise.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads a document. Fields that are not known are ignored.
    ///
    /// # Errors
    /// It is no JSON, no dump, one of another version, or a field lacks or is impossible.
    pub fn from_json(text: &str) -> Result<Dump, ReadDumpError> {
        let document: serde_json::Value =
            serde_json::from_str(text).map_err(ReadDumpError::NotJson)?;
        let format = document.get("format").and_then(|format| format.as_str());
        if format != Some(FORMAT) {
            return Err(ReadDumpError::OtherFormat(format.map(str::to_owned)));
        }
        match document.get("version").and_then(|version| version.as_u64()) {
            Some(version) if version != u64::from(VERSION) => {
                Err(ReadDumpError::OtherVersion(version))
            }
            _ => serde_json::from_value(document).map_err(ReadDumpError::Field),
        }
    }

    /// The entry of the GID table that the QP sends from, if there is one at that index.
    pub fn source(&self) -> Option<&GidDump> {
        let global = self.qp.attributes.path.as_ref()?.global.as_ref()?;
        let index = u32::from(global.sgid_index);
        self.gids.iter().find(|entry| entry.index == index)
    }

    /// What [`lint::check`](crate::lint::check) looks at.
    pub fn settings(&self, rtt: Option<Rtt>) -> Settings {
        let attributes = &self.qp.attributes;
        let global = attributes
            .path
            .as_ref()
            .and_then(|path| path.global.as_ref());
        let port = self.port.as_ref();
        let ethernet = port.is_some_and(|port| port.link_layer == Some(LinkLayer::Ethernet));
        let known = |port: &PortDump| {
            let named = |state: &&ibv_port_state| state.name() == Some(&port.state);
            let state = ibv_port_state::ALL.iter().find(named)?;
            Some((port.number, *state))
        };
        let interface = |source: &GidDump| {
            let mtu = source.netdev_mtu?;
            Some((mtu, source.gid.family() == Family::Ipv4))
        };
        let ends = |ends: &Ends| Some((ends.here.clone(), ends.there.clone()?));
        let cap = self.qp.cap.as_ref();
        Settings {
            timeout: attributes
                .timeout
                .and_then(|code| AckTimeout::from_code(code).ok()),
            retry_cnt: attributes
                .retry_cnt
                .and_then(|count| RetryCount::new(count).ok()),
            rnr_retry: attributes
                .rnr_retry
                .and_then(|code| RnrRetry::from_code(code).ok()),
            min_rnr_timer: attributes
                .min_rnr_timer
                .and_then(|code| RnrTimer::from_code(code).ok()),
            path_mtu: attributes.path_mtu,
            // A subnet of InfiniBand is crossed without one.
            hop_limit: global.filter(|_| ethernet).map(|global| global.hop_limit),
            send_depth: cap.map(|cap| cap.max_send_wr),
            recv_depth: cap.map(|cap| cap.max_recv_wr),
            port: port.and_then(known),
            interface: self.source().and_then(interface),
            ends: self.endpoint.as_ref().and_then(ends),
            rtt,
        }
    }
}

#[cfg(test)]
mod tests;
