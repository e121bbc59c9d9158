//! Which UDP port a frame comes from.

use crate::wire::ROCE_PORT;

/// Which UDP port the frames of a node come from. They all go to port 4791; any source port is
/// accepted from peers.
///
/// ```
/// use rdma_soft::link::SourcePort;
///
/// assert_eq!(SourcePort::Fixed.of(0, 0x11, 0x12), 4791);
/// assert_eq!(SourcePort::ByFlow.of(0x5, 0x11, 0x12), 0xc005);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePort {
    /// 4791 for all.
    #[default]
    Fixed,
    /// One of 0xc000..=0xffff, by the flow label; where that is 0, by the numbers of the two Queue
    /// Pairs. Routers that spread traffic over several ways by the UDP ports keep each flow on one
    /// way, and different flows apart.
    ///
    /// Each port needs a socket of its own: see [`UdpLink::source`](super::UdpLink::source) for
    /// what happens when there are too many.
    ByFlow,
}

impl SourcePort {
    /// The source port of a frame with this flow label from Queue Pair `src_qp` to `dst_qp`.
    ///
    /// [`ByFlow`](SourcePort::ByFlow) is the rule of Linux's drivers (`include/rdma/ib_verbs.h`:
    /// `rdma_get_udp_sport`, with `rdma_calc_flow_label` and `rdma_flow_label_to_udp_sport`).
    pub fn of(self, flow_label: u32, src_qp: u32, dst_qp: u32) -> u16 {
        const LABEL: u64 = 0xf_ffff;
        const LOW: u64 = 0x3fff;
        match self {
            SourcePort::Fixed => ROCE_PORT,
            SourcePort::ByFlow => {
                let label = match u64::from(flow_label) & LABEL {
                    0 => {
                        let mut product = u64::from(src_qp) * u64::from(dst_qp);
                        product ^= product >> 20;
                        product ^= product >> 40;
                        product & LABEL
                    }
                    label => label,
                };
                0xc000 | ((label & LOW) ^ (label >> 14)) as u16
            }
        }
    }
}
