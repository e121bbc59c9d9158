//! The sans-IO engine: one node's Queue Pairs, driven by packets, time and requests.

pub mod config;
pub mod rng;
pub mod time;
