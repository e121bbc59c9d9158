//! What holds a verbs device to the rules, whichever table it comes from.
//!
//! - [`device`]: a device, safe to call.
//! - [`suite`]: every operation of every transport on one device or between two, and what else a device must do
//!   (program `conformance`).
//! - [`states`]: every move of a Queue Pair with every attribute mask one bit away from an allowed one, compared with
//!   [`rdma_core_sys::rules`] (program `state-table`).
//! - [`interop`]: every operation of RC, UC and UD between two devices, each as requester and as responder (program
//!   `interop`), and XRC between two nodes (program `xrc`).
//! - [`Platform`]: which kernel and which rdma-core known differences are of.
//! - [`Tally`]: the counts that end the output of each.
#![deny(unsafe_code)]

pub mod bytes;
#[allow(unsafe_code)]
pub mod device;
pub mod interop;
mod platform;
pub mod states;
pub mod suite;
mod tally;

pub use platform::{Platform, When};
pub use tally::Tally;
