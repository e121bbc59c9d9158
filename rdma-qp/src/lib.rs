//! Safe RDMA Queue Pairs over the verbs ABI.
#![deny(unsafe_code)]

#[allow(dead_code)]
mod account;
mod deadline;
mod endpoint;
pub mod exchange;
#[allow(dead_code)]
mod gid;
mod units;
#[allow(dead_code)]
mod wr_id;

pub use account::{Account, Operation};
pub use deadline::Deadline;
pub use endpoint::{
    DecodeError, Endpoint, LinkLayer, MAX_REGIONS, NoSuchRegion, Peer, RemoteAddr, RemoteRegion,
};
pub use gid::{Family, Gid, GidChoice, GidEntry, GidKind, NoUsableGid, Verdict};
pub use units::{AckTimeout, OutOfRange, PathMtu, Psn, RetryCount, RnrRetry, RnrTimer, Timing};
pub use wr_id::QueueKind;
