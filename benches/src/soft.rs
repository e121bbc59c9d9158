//! Connected Queue Pairs on the software device.

use std::error::Error;

use rdma_core_sys::Verbs;
use rdma_qp::{Access, Cq, Device, Memory, Mr, Peer, Qp, Rc, Timing};

/// Requests that a queue holds.
pub const DEPTH: u32 = 128;

/// One end: a QP, its CQ, which can sleep, and a region of 4 KiB that the other end may write to.
pub struct End {
    /// The QP, in RTS.
    pub qp: Qp<Rc>,
    /// Its CQ.
    pub cq: Cq,
    /// The region.
    pub mr: Mr,
}

impl End {
    fn new(device: &Device) -> Result<(End, Peer), Box<dyn Error>> {
        let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(2 * DEPTH)?);
        let mr = pd.register(Memory::zeroed(4096), Access::REMOTE_WRITE)?;
        let mut qp = pd.rc(&cq).send_depth(DEPTH).recv_depth(1).create()?;
        let endpoint = qp.endpoint(device.port(1)?.best_gid()?)?;
        let peer = Peer {
            endpoint,
            regions: vec![mr.remote()],
        };
        Ok((End { qp, cq, mr }, peer))
    }
}

/// Two connected ends of the devices of these names, and what the first knows of the second.
///
/// # Errors
/// A device is not there, or a step of connecting was refused.
pub fn pair(verbs: &Verbs, names: [&str; 2]) -> Result<(End, End, Peer), Box<dyn Error>> {
    let (mut a, of_a) = End::new(&Device::open(verbs, names[0])?)?;
    let (mut b, of_b) = End::new(&Device::open(verbs, names[1])?)?;
    let timing = Timing::default();
    let agreed = (
        a.qp.connect_begin(&of_b, timing)?,
        b.qp.connect_begin(&of_a, timing)?,
    );
    a.qp.connect_finish(agreed.0, timing)?;
    b.qp.connect_finish(agreed.1, timing)?;
    Ok((a, b, of_b))
}
