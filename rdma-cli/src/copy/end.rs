//! One end: its device, its Queue Pair, and the memory that the Queue Pair uses.

use std::sync::Arc;

use rdma_qp::{Access, Cq, GidEntry, Memory, Mr, Qp, Rc, Timing};
use rdma_soft::link::Faults;

use super::file::CHUNK;
use super::protocol::SLOTS;
use crate::device::{self, DeviceChoice, Opened};
use crate::failure::{Failure, told};

/// Sends that an end may have under way: one for each slot, and a sign of life.
const SENDS: u32 = SLOTS + 1;
/// Receives that an end keeps posted: one for each slot.
pub const RECEIVES: u32 = SLOTS;

/// One end, not connected yet.
#[derive(Debug)]
pub struct LocalEnd {
    /// The Queue Pair.
    pub qp: Qp<Rc>,
    /// Where its requests complete.
    pub cq: Cq,
    /// [`SLOTS`] slots of [`CHUNK`] bytes.
    pub slots: Arc<Mr>,
    /// The GID that it is reached by.
    pub gid: GidEntry,
    /// Name of its device.
    pub device: String,
    /// Whether that is the software device.
    pub is_soft: bool,
    /// Faults of its link, if there are any.
    pub faults: Option<Faults>,
    /// When to give up.
    pub timing: Timing,
    /// What was asked for.
    pub choice: DeviceChoice,
}

impl LocalEnd {
    /// Opens the device and makes everything that a copy needs. `access`: what the peer may do
    /// with the slots.
    ///
    /// # Errors
    /// The device is not there or cannot be used, or it has no GID that peers can reach.
    pub fn open(
        choice: &DeviceChoice,
        timing: Timing,
        access: Access,
    ) -> Result<LocalEnd, Failure> {
        let Opened {
            device,
            gid,
            faults,
        } = device::open(choice)?;
        let pd = device.alloc_pd().map_err(told)?;
        let cq = device.create_event_cq(SENDS + RECEIVES).map_err(told)?;
        let slots = pd
            .register(Memory::zeroed(SLOTS as usize * CHUNK), access)
            .map_err(told)?;
        // Either end writes to the other, if only no bytes for a sign of life.
        let qp = pd
            .rc(&cq)
            .send_depth(SENDS)
            .recv_depth(RECEIVES)
            .access(Access::REMOTE_WRITE)
            .create()
            .map_err(told)?;
        Ok(LocalEnd {
            qp,
            cq,
            slots: Arc::new(slots),
            gid,
            device: device.name().to_owned(),
            is_soft: choice.name.is_none(),
            faults,
            timing,
            choice: choice.clone(),
        })
    }
}
