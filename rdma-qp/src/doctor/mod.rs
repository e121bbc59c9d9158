//! Why a connection does not work: cause, evidence, cure.
//!
//! [`diagnose`] is a pure function. It looks at what is known ([`Evidence`]: dumps of one end or of both, a measured round
//! trip, refused calls, a line of a log, the machine) and says what is wrong, the surest first. It has no rules of its own
//! where others have them: what is legal and harmful comes from [`lint`](crate::lint), what is wrong with a modify from the
//! [`Problem`](crate::Problem)s in the dump, which GID to take from the choice that [`Port::best_gid`](crate::Port::best_gid)
//! makes. The command `qp doctor` gathers evidence and prints findings.
//!
//! ```
//! use rdma_qp::doctor::{Evidence, Weight, diagnose};
//! # use rdma_qp::{AckTimeout, Device, Peer, Timing};
//! # use std::time::Duration;
//! # let device = Device::open_index(rdma_soft::verbs(), 0)?;
//! # let gid = device.port(1)?.best_gid()?;
//! # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
//! # let (mut qp, mut peer) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
//! # let here = Peer { endpoint: qp.endpoint(&gid)?, regions: vec![] };
//! # let there = Peer { endpoint: peer.endpoint(&gid)?, regions: vec![] };
//! # let timing = Timing { timeout: AckTimeout::from_code(8)?, ..Timing::default() };
//! # let agreed = (qp.connect_begin(&there, timing)?, peer.connect_begin(&here, timing)?);
//! # (qp.connect_finish(agreed.0, timing)?, peer.connect_finish(agreed.1, timing)?);
//! // Two ends whose timeout code is 8, on a path of half a millisecond.
//! let mut evidence = Evidence::default();
//! evidence.ends = vec![qp.dump(), peer.dump()];
//! evidence.rtt = Some(Duration::from_micros(500).into());
//! let found = diagnose(&evidence);
//! assert_eq!(found[0].code, "timeout-short");
//! assert_eq!(found[0].weight, Weight::Risk); // nothing has failed by it yet
//! assert!(found[0].cure.contains("set timeout to 12"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Ends
//!
//! Of two dumps each is compared with the other. Of more, those that name each other are: A's `dest_qp_num` and `dgid` are
//! B's number and one of its GIDs, and the other way round; and those that lack a partner and could only have meant each
//! other, so that a wrong number is found there, too.

mod both;
mod machine;
mod one;
mod record;
mod requests;
mod status;
mod told;
mod way;

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::dump::{Dump, Failed, Mishap};
use crate::errno::Errno;
use crate::gid::Gid;
use crate::rtt::Rtt;

pub use machine::{Library, Machine, Memlock};
pub use record::{ReadRecordError, Record, Refusal};
pub(crate) use status::causes;
pub use told::Told;

/// What is known. Everything may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evidence {
    /// Dumps: of one end, of both, or of all Queue Pairs of a job.
    pub ends: Vec<Dump>,
    /// The round trip between the ends, where it was measured.
    pub rtt: Option<Rtt>,
    /// Calls that were refused.
    pub refusals: Vec<Refusal>,
    /// What a program or a log says.
    pub told: Option<Told>,
    /// The machine.
    pub machine: Option<Machine>,
    /// Numbers of processes that are no more, and did not end by themselves: they were killed, or crashed.
    pub killed: Vec<u32>,
    /// Numbers of processes that had remote keys of more than the regions of their dumps.
    pub regions_left_out: Vec<u32>,
}

impl Evidence {
    /// What a recorder wrote adds to it.
    pub fn add(&mut self, record: Record) {
        if record.regions_left_out {
            self.regions_left_out.push(record.pid);
        }
        self.ends.extend(record.dumps);
        let rtt = record
            .link_rtt_us
            .map(|us| Duration::from_micros(us).into());
        self.rtt = self.rtt.or(rtt);
        self.refusals.extend(record.refusals);
    }
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// The evidence shows it.
    Certain,
    /// It explains what failed, and nothing else that was looked at does.
    Likely,
    /// It would explain what failed.
    Possible,
    /// It is legal and does harm; nothing is known to have failed by it.
    Risk,
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Weight::Certain => "certain",
            Weight::Likely => "likely",
            Weight::Possible => "possible",
            Weight::Risk => "risk",
        })
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// A name that never changes, for programs.
    pub code: String,
    /// How sure it is.
    pub weight: Weight,
    /// The end that has it: device, port and QP, as in `soft0/1 QP 0x4f`, and the host or the process where there are several.
    pub end: Option<String>,
    /// What is wrong, in one sentence.
    pub cause: String,
    /// What shows it: values with their units.
    pub evidence: Vec<String>,
    /// What to do.
    pub cure: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(end) = &self.end {
            write!(f, "{end}: ")?;
        }
        write!(f, "{}", self.cause)?;
        for (place, evidence) in self.evidence.iter().enumerate() {
            let before = if place == 0 { " (" } else { "; " };
            write!(f, "{before}{evidence}")?;
        }
        if !self.evidence.is_empty() {
            f.write_str(")")?;
        }
        write!(f, ": {}", self.cure)
    }
}

/// What is wrong, the surest first; empty if nothing was found.
pub fn diagnose(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    let ends = ends(&evidence.ends, &evidence.regions_left_out);
    let pairs = pairs(&ends);
    for &(a, b) in &pairs {
        both::compare(&ends[a], &ends[b], &mut found);
        both::compare(&ends[b], &ends[a], &mut found);
        both::killed(&ends[a], &ends[b], &evidence.killed, &mut found);
        both::killed(&ends[b], &ends[a], &evidence.killed, &mut found);
    }
    for (place, end) in ends.iter().enumerate() {
        let peer = partner(&pairs, place).map(|other| &ends[other]);
        one::look(end, peer, evidence.rtt, &mut found);
        requests::look(end, peer, &ends, &mut found);
    }
    let told = evidence.told.as_ref();
    if let Some(told) = told {
        told::explain(told, &ends, &mut found);
    }
    for (place, end) in ends.iter().enumerate() {
        let compared = partner(&pairs, place).is_some();
        status::explain(end, compared, &mut found);
    }
    // A call that was refused explains what failed only where nothing nearer does.
    if !found.iter().any(|finding| finding.weight <= Weight::Likely) {
        let nothing_else = ends.iter().all(|end| end.failed().is_none());
        found.extend(record::explain(&evidence.refusals, nothing_else));
    }
    if let Some(machine) = &evidence.machine {
        machine.look(&evidence.refusals, &mut found);
    }
    // Stable: among equals, the order in which they were looked for.
    found.sort_by_key(|finding| finding.weight);
    let mut unique: Vec<Finding> = Vec::new();
    for finding in found {
        let same = |f: &Finding| {
            f.code == finding.code && f.cause == finding.cause && f.end == finding.end
        };
        if !unique.iter().any(same) {
            unique.push(finding);
        }
    }
    unique
}

/// The other of the pair that this one is in.
fn partner(pairs: &[(usize, usize)], place: usize) -> Option<usize> {
    pairs.iter().find_map(|&(a, b)| match place {
        p if p == a => Some(b),
        p if p == b => Some(a),
        _ => None,
    })
}

/// Which dumps are the two ends of one connection, see the [module](self).
fn pairs(ends: &[End<'_>]) -> Vec<(usize, usize)> {
    if ends.len() == 2 {
        return vec![(0, 1)];
    }
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut free: Vec<bool> = vec![true; ends.len()];
    let mut pair = |free: &mut Vec<bool>, a: usize, b: usize| {
        (free[a], free[b]) = (false, false);
        found.push((a, b));
    };
    for a in 0..ends.len() {
        let names = |b: &usize| ends[a].names(&ends[*b]) && ends[*b].names(&ends[a]);
        if free[a]
            && let Some(b) = (a + 1..ends.len()).filter(|b| free[*b]).find(names)
        {
            pair(&mut free, a, b);
        }
    }
    for a in 0..ends.len() {
        if !free[a] || ends[a].dgid().is_none() {
            continue;
        }
        let could = |b: &usize| *b != a && free[*b] && ends[a].could_mean(&ends[*b]);
        let mut candidates = (0..ends.len()).filter(could);
        if let (Some(b), None) = (candidates.next(), candidates.next()) {
            pair(&mut free, a, b);
        }
    }
    found
}

/// The ends of the dumps, with what tells them apart in names: the host where there are several, or the process.
fn ends<'a>(dumps: &'a [Dump], regions_left_out: &[u32]) -> Vec<End<'a>> {
    let differ = |of: fn(&Dump) -> String| dumps.windows(2).any(|two| of(&two[0]) != of(&two[1]));
    let hosts = differ(|dump| format!("{:?}", dump.taken.host));
    let processes = differ(|dump| dump.taken.pid.to_string());
    let place = |dump: &Dump| match &dump.taken.host {
        Some(host) if hosts => format!(" on {host}"),
        _ if processes => format!(" of process {}", dump.taken.pid),
        _ => String::new(),
    };
    let end = |dump: &'a Dump| End {
        dump,
        place: place(dump),
        regions_left_out: regions_left_out.contains(&dump.taken.pid),
    };
    dumps.iter().map(end).collect()
}

/// One end, and what is often asked about it.
pub(crate) struct End<'a> {
    dump: &'a Dump,
    /// Where it is, if that needs to be said.
    place: String,
    /// Its process had remote keys of more than its regions.
    regions_left_out: bool,
}

impl std::ops::Deref for End<'_> {
    type Target = Dump;

    fn deref(&self) -> &Dump {
        self.dump
    }
}

impl End<'_> {
    /// Device, port and QP, as in `soft0/1 QP 0x4f`; and where it is, if ends are of several hosts or processes.
    fn name(&self) -> String {
        let (device, qp, place) = (&self.device.name, self.qp.number, &self.place);
        match self
            .qp
            .attributes
            .port_num
            .or(self.port.as_ref().map(|port| port.number))
        {
            Some(port) => format!("{device}/{port} QP {qp:#x}{place}"),
            None => format!("{device} QP {qp:#x}{place}"),
        }
    }

    /// Whether its device is the kernel's soft-RoCE, by its vendor number (`RXE_VENDOR_ID` of the kernel's rxe_param.h).
    fn is_rxe(&self) -> bool {
        self.device.vendor_id == 0xff_ffff
    }

    fn is(&self, transport: &str) -> bool {
        self.qp.transport == transport
    }

    /// Whether it has one peer.
    fn connects(&self) -> bool {
        !self.is("UD")
    }

    /// Whether it takes what the peer sends.
    fn receives(&self) -> bool {
        matches!(&self.qp.state[..], "RTR" | "RTS" | "SQD" | "SQE")
    }

    /// GID of the peer, as it was set.
    fn dgid(&self) -> Option<Gid> {
        let path = self.qp.attributes.path.as_ref()?;
        Some(path.global.as_ref()?.dgid)
    }

    /// The GID that it sends from.
    fn sgid(&self) -> Option<Gid> {
        self.source().map(|entry| entry.gid)
    }

    fn has_gid(&self, gid: Gid) -> bool {
        self.gids.iter().any(|entry| entry.gid == gid)
    }

    /// Whether it is connected to that one.
    fn names(&self, other: &End<'_>) -> bool {
        self.qp.attributes.dest_qp_num == Some(other.qp.number)
            && self.dgid().is_some_and(|gid| other.has_gid(gid))
    }

    /// Whether it may have meant that one, and has a number or a GID wrong.
    fn could_mean(&self, other: &End<'_>) -> bool {
        self.qp.transport == other.qp.transport
            && self.dgid().is_some_and(|gid| other.has_gid(gid))
            && other.dgid().is_none_or(|gid| self.has_gid(gid))
    }

    /// Whether what went wrong with requests is history: with the first failure a connected Queue Pair leaves RTS for ERR or SQE,
    /// so one that is there has been connected anew since.
    fn is_mended(&self) -> bool {
        self.connects() && matches!(&self.qp.state[..], "RTR" | "RTS" | "SQD")
    }

    /// What went wrong with single requests, as far as it is of this life.
    fn mishaps(&self) -> &[Mishap] {
        if self.is_mended() { &[] } else { &self.mishaps }
    }

    /// The last request that failed, as the library reports it: its status, and what it was.
    fn reported(&self) -> Option<(u32, &str)> {
        match &self.last_error.as_ref()?.what {
            Failed::Request {
                status, operation, ..
            } if !self.is_mended() => Some((*status, operation)),
            _ => None,
        }
    }

    /// The status of the first request that failed, and what it was, as its opcode or its name.
    fn failure(&self) -> Option<(u32, &str)> {
        let noted = self.mishaps().iter().find_map(|mishap| match mishap {
            Mishap::Request { status, opcode, .. } => Some((*status, &opcode[..])),
            _ => None,
        });
        noted.or_else(|| self.reported())
    }

    /// The status of the first request that failed.
    fn failed(&self) -> Option<u32> {
        self.failure().map(|(status, _)| status)
    }

    /// The largest of these counters, with its name: the same thing has several names. Where the QP has one of its own
    /// (`qp/`), those of the whole port or device do not count.
    fn counted(&self, names: &[&str]) -> Option<(String, u64)> {
        let known = names
            .iter()
            .filter_map(|name| Some((*name, *self.counters.get(*name)?)));
        let (own, shared): (Vec<_>, Vec<_>) = known.partition(|(name, _)| name.starts_with("qp/"));
        let known = if own.is_empty() { shared } else { own };
        let largest = known.into_iter().max_by_key(|(_, value)| *value)?;
        (largest.1 > 0).then(|| (largest.0.to_owned(), largest.1))
    }

    /// A finding about this end.
    fn finds(&self, code: impl Into<String>, weight: Weight, cause: impl Into<String>) -> Finding {
        Finding {
            code: code.into(),
            weight,
            end: Some(self.name()),
            cause: cause.into(),
            evidence: Vec::new(),
            cure: String::new(),
        }
    }
}

impl Finding {
    fn shown_by(mut self, evidence: impl Into<String>) -> Finding {
        self.evidence.push(evidence.into());
        self
    }

    /// Adds what shows it, where there is something.
    fn also(mut self, evidence: Option<String>) -> Finding {
        self.evidence.extend(evidence);
        self
    }

    fn cured_by(mut self, cure: impl Into<String>) -> Finding {
        self.cure = cure.into();
        self
    }
}

/// An errno as evidence; one that has no name says by itself what it is.
fn told_errno(number: i32) -> String {
    let errno = Errno::from_raw(number);
    match errno.name() {
        Some(_) => format!("errno {errno}"),
        None => errno.to_string(),
    }
}

/// A counter as evidence.
fn told_counter((name, value): (String, u64)) -> String {
    format!("{name} is {value}")
}

#[cfg(test)]
mod tests;
