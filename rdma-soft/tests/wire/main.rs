//! What nodes put on the wire, and what becomes of it there: multicast groups, the fields of the IP
//! header, the UDP source port.

#[path = "../abi/capture.rs"]
#[allow(dead_code, reason = "the ABI tests use the rest")]
mod capture;
#[path = "../abi/common.rs"]
#[allow(dead_code, reason = "the ABI tests use the rest")]
mod common;
mod groups;
mod headers;
#[path = "../abi/kinds.rs"]
#[allow(dead_code, reason = "the ABI tests use the rest")]
mod kinds;
#[path = "../namespace/mod.rs"]
mod namespace;
