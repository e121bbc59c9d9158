//! What can go wrong with a shared receive queue.

use super::{Basic, Srq, SrqKind};
use crate::cq::PollError;
use crate::errno::Errno;
use crate::xrc::BadSrqNum;

/// An SRQ could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateSrqError {
    /// The device has none.
    #[error("{device} has no shared receive queues")]
    None {
        /// The device.
        device: String,
    },
    /// Nothing, or more than the device can do, was asked for.
    #[error("{field} is {value}, but {device} allows 1 to {max}")]
    OverLimit {
        /// The field, as verbs spells it.
        field: &'static str,
        /// What was asked for.
        value: u32,
        /// What the device allows.
        max: u32,
        /// The device.
        device: String,
    },
    /// The CQ or the XRC domain is of another device than the PD, or of one device opened twice.
    #[error("the {part} is of {other}, but the PD is of {pd}{}: make all from the same Device", twice(.other, .pd))]
    OtherDevice {
        /// `CQ` or `XRC domain`.
        part: &'static str,
        /// Its device.
        other: String,
        /// Device of the PD.
        pd: String,
    },
    /// The CQ could overrun.
    #[error(
        "the SRQ may have {depth} receives outstanding, but its CQ of {capacity} entries has room for {unreserved} more (the \
         rest is promised to other queues): make the CQ larger or the SRQ shorter"
    )]
    NoRoomInCq {
        /// Its depth.
        depth: u32,
        /// Entries of the CQ.
        capacity: u32,
        /// Entries not promised to any queue.
        unreserved: u32,
    },
    /// The CQ does not work.
    #[error(transparent)]
    Cq(#[from] PollError),
    /// The device does not tell the number by which XRC requests name it.
    #[error("{device} does not tell the number of an XRC SRQ: {source}")]
    NoNumber {
        /// The device.
        device: String,
        /// What the library said.
        source: Errno,
    },
    /// The number is none that a request can name.
    #[error("{device} gave an XRC SRQ a number that no request can name: {source}")]
    Number {
        /// The device.
        device: String,
        /// What is wrong with it.
        source: BadSrqNum,
    },
    /// The process has as many SRQs as this library can tell apart, which are 2^19.
    #[error("this process has too many shared receive queues")]
    TooMany,
    /// The library refused.
    #[error(
        "{device} did not create an SRQ of {depth} receives of {sge} entries each: {source}; is its number of SRQs ({max}) used up?"
    )]
    Refused {
        /// The device.
        device: String,
        /// Receives asked for.
        depth: u32,
        /// Entries asked for.
        sge: u32,
        /// SRQs that the device can have.
        max: i32,
        /// What the library said.
        source: Errno,
    },
}

/// An SRQ was not destroyed. It is inside the error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseSrqError<K: SrqKind = Basic> {
    /// QPs still take their receives from it. If none is named, another thread is destroying one, and was for a second.
    #[error("SRQ {} is used by {}", .srq.number(), names(.qps))]
    Busy {
        /// The SRQ.
        srq: Box<Srq<K>>,
        /// Numbers of the QPs.
        qps: Vec<u32>,
    },
    /// The library refused.
    #[error("SRQ {} could not be destroyed: {source}", .srq.number())]
    Refused {
        /// The SRQ.
        srq: Box<Srq<K>>,
        /// What the library said.
        source: Errno,
    },
}

fn twice(other: &str, pd: &str) -> &'static str {
    if other == pd {
        " opened another time"
    } else {
        ""
    }
}

fn names(qps: &[u32]) -> String {
    let names: Vec<String> = qps.iter().map(|n| format!("QP {n:#x}")).collect();
    names.join(", ")
}

/// An SRQ could not be queried or modified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("SRQ {srq}: {what} failed: {source}")]
pub struct SrqError {
    /// Number of the SRQ.
    pub srq: u32,
    /// What was tried.
    pub what: &'static str,
    /// What the library said.
    pub source: Errno,
}
