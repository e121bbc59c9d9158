//! Meshes, over RC and over XRC.

mod hundred;
mod job;
mod small;
mod traffic;
