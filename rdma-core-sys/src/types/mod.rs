//! The types of `infiniband/verbs.h`, one file per region of the header, under the header's own names.
//!
//! Sizes are those of rdma-core v65; where an older header is shorter (`ibv_port_attr`, `ibv_qp_ex`, `verbs_context`) the
//! common part has the same offsets. Masks that C passes as plain integers are integers here too: convert with
//! `bits()` and `from_bits_retain()` of the bit-mask types.
#![allow(non_camel_case_types)]

mod ah;
mod context;
mod cq;
mod device;
mod event;
mod gid;
mod mr;
mod mw;
mod opaque;
mod pd;
mod port;
mod qp;
mod srq;
mod wc;
mod wq;
mod wr;
mod xrcd;

pub use ah::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use event::*;
pub use gid::*;
pub use mr::*;
pub use mw::*;
pub use opaque::*;
pub use pd::*;
pub use port::*;
pub use qp::*;
pub use srq::*;
pub use wc::*;
pub use wq::*;
pub use wr::*;
pub use xrcd::*;
