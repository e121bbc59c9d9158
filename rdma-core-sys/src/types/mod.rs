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

use crate::layout::{Layout, Value};

/// The layout of every type that this crate declares.
pub(crate) const ALL_LAYOUTS: &[&[Layout]] = &[
    &[gid::GID_LAYOUT],
    ah::LAYOUTS,
    context::LAYOUTS,
    cq::LAYOUTS,
    device::LAYOUTS,
    event::LAYOUTS,
    gid::LAYOUTS,
    mr::LAYOUTS,
    mw::LAYOUTS,
    pd::LAYOUTS,
    port::LAYOUTS,
    qp::LAYOUTS,
    srq::LAYOUTS,
    wc::LAYOUTS,
    wq::LAYOUTS,
    wr::LAYOUTS,
    xrcd::LAYOUTS,
];

/// The value of every constant of an enum or a mask that this crate declares.
pub(crate) const ALL_VALUES: &[&[Value]] = &[
    ah::ENUM_VALUES,
    context::FLAG_VALUES,
    cq::FLAG_VALUES,
    device::ENUM_VALUES,
    device::FLAG_VALUES,
    event::ENUM_VALUES,
    gid::ENUM_VALUES,
    mr::ENUM_VALUES,
    mr::FLAG_VALUES,
    mw::ENUM_VALUES,
    pd::FLAG_VALUES,
    port::ENUM_VALUES,
    port::FLAG_VALUES,
    qp::ENUM_VALUES,
    qp::FLAG_VALUES,
    srq::ENUM_VALUES,
    srq::FLAG_VALUES,
    wc::ENUM_VALUES,
    wc::FLAG_VALUES,
    wq::ENUM_VALUES,
    wr::ENUM_VALUES,
    wr::FLAG_VALUES,
    xrcd::FLAG_VALUES,
];
