//! The harness of the engine's tests: nodes, regions, connections.
#![allow(dead_code)]

#[path = "../../tests/engine/net.rs"]
pub mod net;
#[path = "../../tests/engine/node.rs"]
pub mod node;
