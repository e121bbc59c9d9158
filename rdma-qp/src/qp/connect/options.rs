//! How packets are marked.

use crate::qp::transition::HOP_LIMIT;
use crate::units::{OutOfRange, in_range};

/// How the packets of one end are marked on their way to the other.
///
/// Each end sends with its own options, and tells the other in its endpoint record. They hold for everything that it sends,
/// acknowledgements and READ answers too: an end that only serves READs needs them as much as the one that reads. So give
/// both ends the same service level and traffic class; where they differ, connecting warns, see [`lint`](crate::lint).
///
/// ```
/// use rdma_qp::{Device, PathOptions};
/// let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// let gid = device.port(1)?.best_gid()?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
/// let mut qp = pd.rc(&cq).create()?;
/// // DSCP 26, as many RoCE networks want it; the two low bits are for ECN.
/// let options = PathOptions { traffic_class: 26 << 2, ..PathOptions::default() };
/// let here = qp.endpoint_with(gid, options)?;
/// assert_eq!((here.traffic_class, here.hop_limit), (104, 64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOptions {
    /// Traffic class; on RoCE v2 the DSCP in the upper six bits and ECN in the lower two.
    pub traffic_class: u8,
    /// Service level, 0..=15; on RoCE the priority of the VLAN tag, where there is one.
    pub service_level: u8,
    /// Flow label, 20 bits. Some drivers choose the UDP source port by it, and so the way through the network.
    pub flow_label: u32,
    /// Routers that a packet may pass, plus one; on RoCE the TTL.
    pub hop_limit: u8,
    /// Place of the partition key in the port's table; on RoCE always 0.
    pub pkey_index: u16,
}

impl Default for PathOptions {
    /// Hop limit 64, everything else 0.
    fn default() -> PathOptions {
        PathOptions {
            traffic_class: 0,
            service_level: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            pkey_index: 0,
        }
    }
}

impl PathOptions {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        in_range(
            "service_level",
            self.service_level.into(),
            15,
            " (four bits)",
        )?;
        in_range("flow_label", self.flow_label.into(), 0xf_ffff, " (20 bits)")
    }
}
