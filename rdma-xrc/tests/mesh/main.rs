//! Meshes, over RC, over XRC and over datagrams.

mod contained;
mod datagrams;
mod example;
mod hundred;
mod job;
mod nodes;
mod resident;
mod small;
mod traffic;
mod ways;
