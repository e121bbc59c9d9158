//! A guide: how Queue Pairs are used, and what to do when they fail. Every example runs on the software device. In it `a` and `b`
//! are two ends that are connected, each with what an end has: `device`, `pd`, `cq`, `mr`, `qp`, and `peer`, what the other one
//! told of itself.

#[doc = include_str!("states.md")]
pub mod states {}

#[doc = include_str!("memory.md")]
pub mod memory {}

#[doc = include_str!("transports.md")]
pub mod transports {}

#[doc = include_str!("posting.md")]
pub mod posting {}

#[doc = include_str!("errors.md")]
pub mod errors {}

#[doc = include_str!("troubleshooting.md")]
pub mod troubleshooting {}

#[doc = include_str!("recipes.md")]
pub mod recipes {}

#[doc = include_str!("kept_alive.md")]
pub mod kept_alive {}
