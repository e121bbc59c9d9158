//! A software RoCEv2 device in user space, with the verbs ABI.
//!
//! [`verbs`] gives the function table that libibverbs would be; whatever works on an
//! `rdma_core_sys::Verbs` works on it. It lists the device of the environment
//! ([`profile::variables`] names the variables) and those of [`add_device`]. A device that is open is
//! a node of its own: it takes a free 127.x.y.z, which is its GID, and speaks RoCE v2 over UDP port
//! 4791 with other nodes, of this process, of others, of other hosts.
//!
//! What verbs have no call for is asked by the device's name: [`counters`], [`open_error`],
//! [`port_queries`], [`queue_pairs`]; and so is what happens to devices: [`set_faults`], [`partition`], [`set_port_up`],
//! [`set_gid`], [`set_pkey`], [`fail_device`]. [`last_refusal`] tells why a call was refused, [`refusals`] why all were,
//! and [`refusal_place`] which of these was told to a thread last.
//!
//! - [`core`]: the engine, without IO: time, randomness and packets come in as arguments.
//! - [`wire`]: headers and the invariant CRC.
//! - [`link`]: sockets, faults, captures.
//! - [`mem`]: the one place that touches the memory of applications.
#![deny(unsafe_code)]

pub mod core;
pub mod link;
pub mod mem;
mod node;
pub mod profile;
mod verbs;
pub mod wire;

pub use node::{LinkCounters, Snapshot, StartError};
pub use profile::{Profile, ProfileError};
pub use verbs::{
    POISON, add_device, counters, fail_device, has_other_keys, last_refusal, open_error, partition,
    port_queries, qp_stats, queue_pairs, refusal_place, refusals, say, set_faults, set_gid,
    set_pkey, set_port_up, verbs,
};
