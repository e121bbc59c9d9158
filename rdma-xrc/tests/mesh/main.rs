//! Meshes, over RC and over XRC.

mod contained;
mod example;
mod hundred;
mod job;
mod nodes;
mod resident;
mod small;
mod traffic;
