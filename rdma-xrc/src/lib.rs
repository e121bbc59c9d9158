//! XRC: one receive queue per process, one Queue Pair per process and node.

#![forbid(unsafe_code)]

pub mod mesh;
pub mod plan;
