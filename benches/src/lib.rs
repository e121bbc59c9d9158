//! What the benches share: a provider that does almost nothing, and a count of allocations.
//!
//! README.md in this folder says which benches there are and how they are run.

pub mod allocations;
pub mod provider;
