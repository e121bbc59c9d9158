//! Coverage-guided fuzzers of the software device. One module per target; `ci/fuzz.sh` builds and runs them.
//!
//! An input is a program in bytes: each target reads from it what to do next, and what with ([`Input`]). Whatever the
//! bytes are, some program comes out, so no input is wasted on being refused. What must hold is asserted by the target; a
//! panic, wherever it comes from, is a finding.
//!
//! The engine is made anew for each input. Where a device with its threads and sockets is fuzzed, it lives as long as the
//! process, and its Queue Pairs are made anew or reset; [`Recent`] tells what came before a finding.
//!
//! [`Tally`] counts executions and what else a target wants to be seen, in a file, so that a run can be continued.

pub mod ingress;
pub mod modify;
pub mod packets;
pub mod requests;
pub mod rings;

mod input;
mod recent;
mod tally;

// The harnesses of the device's own tests: its engine, and what a C program has.
#[allow(dead_code, missing_docs)]
#[path = "../../tests/abi/common.rs"]
mod common;
mod engine;
#[allow(dead_code, missing_docs)]
#[path = "../../tests/abi/kinds.rs"]
mod kinds;

pub use input::Input;
pub use recent::Recent;
pub use tally::Tally;
