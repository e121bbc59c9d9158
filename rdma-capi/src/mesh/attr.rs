//! What a mesh shall be like.

use std::time::Duration;

use rdma_xrc::mesh::Options;

use crate::export::In;
use crate::fault::Fault;
use crate::pair::or;
use crate::values::{qp_timing, timing};

/// What a mesh shall be like: the same for all its processes. Where a function takes one, NULL means all zero, and 0 the usual.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_mesh_options {
    /// Longest message in bytes: the size of each receive; 0: 4096.
    pub max_message: u32,
    /// Requests that one way may have outstanding; 0: 64.
    pub send_depth: u32,
    /// Receives that wait for messages; 0: 512.
    pub srq_depth: u32,
    /// Messages that may be under way at a time, to all together; 0: 256.
    pub send_buffers: u32,
    /// A peer that nothing was heard of for so many milliseconds is probed; 0: 1000; UINT32_MAX: never.
    pub heartbeat_ms: u32,
    /// A process that does not answer for so many milliseconds when another one connects has failed; 0: 30000.
    pub connect_ms: u32,
}

pub(super) fn options(
    given: Option<In<'_, qp_mesh_options>>,
    timing: Option<In<'_, qp_timing>>,
) -> Result<Options, Fault> {
    let mut options = Options::default();
    if timing.is_some() {
        options.timing = self::timing(timing)?;
    }
    let Some(In(given)) = given else {
        return Ok(options);
    };
    options.max_message = or(given.max_message, options.max_message);
    options.send_depth = or(given.send_depth, options.send_depth);
    options.srq_depth = or(given.srq_depth, options.srq_depth);
    options.low_water = (options.srq_depth / 2).max(1);
    options.send_buffers = or(given.send_buffers, options.send_buffers);
    options.heartbeat = match given.heartbeat_ms {
        0 => options.heartbeat,
        u32::MAX => None,
        ms => Some(Duration::from_millis(ms.into())),
    };
    if given.connect_ms != 0 {
        options.connect_within = Duration::from_millis(given.connect_ms.into());
    }
    Ok(options)
}
