//! Meshes, over RC and over XRC.

mod hundred;
mod job;
mod nodes;
mod resident;
mod small;
mod traffic;
