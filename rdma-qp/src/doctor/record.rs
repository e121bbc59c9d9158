//! What a recorder writes about a process: its Queue Pairs, and the calls that were refused.

use serde::{Deserialize, Serialize};

use super::{Finding, Weight, told_errno};
use crate::dump::{Dump, ReadDumpError};

/// What `format` says.
pub(crate) const FORMAT: &str = "rdma-qp-record";
/// The version that this library writes and reads.
pub(crate) const VERSION: u32 = 1;

/// What a recorder knows of a process: a JSON document.
///
/// `librdma_soft_preload.so` writes one where `RDMA_SOFT_RECORD` names a directory, as `qp doctor -- PROGRAM` does. As with
/// dumps, later releases add fields under the same version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Always `rdma-qp-record`.
    pub format: String,
    /// Always 1.
    pub version: u32,
    /// Name of the program.
    pub program: String,
    /// Number of the process.
    pub pid: u32,
    /// The round trip that delay and jitter of the software device's link alone make, in microseconds; none where there are
    /// none.
    #[serde(default)]
    pub link_rtt_us: Option<u64>,
    /// Calls that were refused, oldest first.
    #[serde(default)]
    pub refusals: Vec<Refusal>,
    /// Its Queue Pairs, those that were destroyed as they were then.
    #[serde(default)]
    pub dumps: Vec<Dump>,
    /// Whether the process had more Queue Pairs than are there; those that were destroyed without an error are left out first.
    #[serde(default)]
    pub queue_pairs_left_out: bool,
    /// Whether the process had remote keys of more than the regions of the dumps: of regions that did not fit in, of memory
    /// windows, of device memory.
    #[serde(default)]
    pub regions_left_out: bool,
    /// Whether it was written when the process ended by itself. A process that is no more, and whose record does not say so,
    /// was killed or crashed.
    #[serde(default)]
    pub ended: bool,
}

/// A call that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The function, where it is known.
    #[serde(default)]
    pub call: Option<String>,
    /// The errno.
    pub errno: i32,
    /// Why, where the device says so.
    #[serde(default)]
    pub why: Option<String>,
    /// Whether the software device refused it.
    #[serde(default)]
    pub software: bool,
    /// Bytes or entries that were asked for, where the call asks for some.
    #[serde(default)]
    pub size: Option<u64>,
}

/// A document that is no record, or none that this library reads.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadRecordError {
    /// It is no JSON, or a field lacks or is impossible.
    #[error("this record is damaged: {0}")]
    Field(#[from] serde_json::Error),
    /// It is JSON of another kind, or of another version.
    #[error(
        "this is no record of a process: it has format {format:?} and version {version}, not {FORMAT:?} and {VERSION}"
    )]
    Other {
        /// What `format` says.
        format: String,
        /// What `version` says.
        version: u64,
    },
    /// A dump in it cannot be read.
    #[error(transparent)]
    Dump(#[from] ReadDumpError),
}

impl Record {
    /// A record of this process, empty.
    pub fn new(program: impl Into<String>) -> Record {
        Record {
            format: FORMAT.to_owned(),
            version: VERSION,
            program: program.into(),
            pid: std::process::id(),
            link_rtt_us: None,
            refusals: Vec::new(),
            dumps: Vec::new(),
            queue_pairs_left_out: false,
            regions_left_out: false,
            ended: false,
        }
    }

    /// The document.
    pub fn to_json(&self) -> String {
        // No map of it has a key that is not a string, and nothing in it fails to serialise.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads a record; or a [`Dump`], which is a record of nothing else.
    ///
    /// # Errors
    /// It is neither, or one of another version, or damaged.
    pub fn from_json(text: &str) -> Result<Record, ReadRecordError> {
        let document: serde_json::Value = serde_json::from_str(text)?;
        let format = document.get("format").and_then(|format| format.as_str());
        if format == Some(crate::dump::FORMAT) {
            return Ok(Record {
                pid: 0,
                dumps: vec![Dump::from_json(text)?],
                ..Record::new("")
            });
        }
        let version = document.get("version").and_then(serde_json::Value::as_u64);
        if (format, version) != (Some(FORMAT), Some(VERSION.into())) {
            return Err(ReadRecordError::Other {
                format: format.unwrap_or_default().to_owned(),
                version: version.unwrap_or_default(),
            });
        }
        Ok(serde_json::from_value(document)?)
    }
}

/// Refused calls as findings of their own, the last one first: what a program gave up at. `nothing_else`: no request failed.
pub(super) fn explain(refusals: &[Refusal], nothing_else: bool) -> impl Iterator<Item = Finding> {
    refusals
        .iter()
        .rev()
        .enumerate()
        .map(move |(place, refusal)| {
            let weight = match place {
                0 if nothing_else => Weight::Likely,
                _ => Weight::Possible,
            };
            let call = refusal.call.as_deref().unwrap_or("a call");
                let (cause, cure) = match &refusal.why {
                Some(why) => (
                    format!("{call} was refused: {why}"),
                    "do what the sentence asks for; where the program only tries what the device can do, and goes on, it is not the cause",
                ),
                None => (
                    format!("{call} was refused"),
                    "look at the arguments of that call",
                ),
            };
            Finding {
                code: "refused".to_owned(),
                weight,
                end: None,
                cause,
                evidence: vec![told_errno(refusal.errno)],
                cure: cure.to_owned(),
            }
        })
}
