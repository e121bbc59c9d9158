//! What a recorder writes about a process: its Queue Pairs, and the calls that were refused.

use serde::{Deserialize, Serialize};

use super::{Finding, Weight};
use crate::dump::{Dump, ReadDumpError};
use crate::errno::Errno;

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

/// A refused call as a finding of its own.
pub(super) fn explain(refusal: &Refusal) -> Finding {
    let call = refusal.call.as_deref().unwrap_or("a call");
    let errno = Errno::from_raw(refusal.errno);
    let why = refusal.why.as_ref();
    Finding {
        code: "refused".to_owned(),
        weight: Weight::Possible,
        end: None,
        cause: match why {
            Some(why) => format!("{call} was refused: {why}"),
            None => format!("{call} was refused"),
        },
        evidence: vec![format!("errno {errno}")],
        cure: match why {
            Some(_) => {
                "change what the sentence names, if the program did not mean to try".to_owned()
            }
            None => "look at the arguments of that call".to_owned(),
        },
    }
}
