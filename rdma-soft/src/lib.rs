//! A software RoCEv2 device in user space, with the verbs ABI.
#![deny(unsafe_code)]

pub mod core;
pub mod mem;
pub mod link;
mod node;
pub mod profile;
mod verbs;
pub mod wire;

pub use node::{LinkCounters, Snapshot, StartError};
pub use profile::{Profile, ProfileError};
pub use verbs::{POISON, add_device, counters, open_error, partition, set_faults, verbs};
