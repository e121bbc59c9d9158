//! One end: its device, its Queue Pair, and the memory that the Queue Pair uses.

use std::fmt::Display;
use std::sync::Arc;

use rdma_core_sys::Verbs;
use rdma_qp::{Access, Cq, Device, GidEntry, Memory, Mr, OpenError, Qp, Rc, Timing};
use rdma_soft::Profile;
use rdma_soft::link::Faults;

use super::args::{DeviceChoice, random_seed};
use super::console::Console;
use super::file::CHUNK;
use super::protocol::SLOTS;
use crate::devices::NO_RDMA;
use crate::failure::Failure;

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

/// A failure that is what the library says.
pub fn told(error: impl Display) -> Failure {
    Failure::told(error.to_string())
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
        console: &Console,
    ) -> Result<LocalEnd, Failure> {
        let (device, faults) = match &choice.name {
            Some(name) => (open_real(name)?, None),
            None => open_soft(choice, console)?,
        };
        let port = device.port(choice.port).map_err(told)?;
        let info = port.query().map_err(told)?;
        if !info.is_active() {
            let (name, state) = (device.name(), info.state);
            return Err(Failure::told(format!(
                "{name}/{} is not active but {state:?}: choose another --port, or bring the link up",
                choice.port
            )));
        }
        let gid = match choice.gid_index {
            Some(index) => port.gid(index).map_err(told)?,
            None => port.best_gid().map_err(told)?.entry(),
        };
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

fn open_real(name: &str) -> Result<Device, Failure> {
    let verbs = Verbs::open().map_err(|error| {
        Failure::told(format!(
            "{error}; without --device the software device is used, which needs no library"
        ))
    })?;
    Device::open(&verbs, name).map_err(|error| match error {
        OpenError::List(errno) | OpenError::Refused { source: errno, .. } if errno.raw_os_error() == NO_RDMA => {
            Failure::told(format!("there is no device {name}: this kernel has no RDMA; load the adapter's driver and ib_uverbs"))
        }
        error => told(error),
    })
}

/// Opens the software device; gives the faults of its link too.
fn open_soft(
    choice: &DeviceChoice,
    console: &Console,
) -> Result<(Device, Option<Faults>), Failure> {
    let mut profile = Profile::from_env().map_err(told)?;
    if let Some(faults) = &choice.faults {
        profile.faults = faults.clone();
    }
    if let Some(path) = &choice.pcap {
        profile.pcap = Some(path.clone());
    }
    let faulty = !profile.faults.is_none();
    if faulty && profile.faults.seed.is_none() {
        profile.faults.seed = Some(random_seed()?);
    }
    let faults = faulty.then(|| profile.faults.clone());
    let name = rdma_soft::add_device(profile).map_err(told)?;
    let opened = Device::open(rdma_soft::verbs(), &name).map_err(|error| {
        match (&error, console.complaint()) {
            // The number alone says little; the device said more.
            (OpenError::Refused { .. }, Some(why)) => {
                Failure::told(format!("the software device cannot start: {why}"))
            }
            _ => told(error),
        }
    });
    Ok((opened?, faults))
}
