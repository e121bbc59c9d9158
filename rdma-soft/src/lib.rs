//! A software RoCEv2 device in user space, with the verbs ABI.
#![deny(unsafe_code)]

pub mod core;
pub mod mem;
pub mod link;
pub mod profile;
pub mod wire;
