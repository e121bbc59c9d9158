//! What the benches share: a provider that does almost nothing and objects of it, connected Queue Pairs of the software
//! device, and what runs and times loops.
//!
//! README.md in this folder says which benches there are and how they are run.

pub mod allocations;
pub mod harness;
pub mod objects;
pub mod provider;
pub mod soft;
