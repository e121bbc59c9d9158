//! XRC between two nodes: two SRQs through one target, two targets into one SRQ, and what has no receive.
//!
//! The connecting end has two initiators, each connected to a target of the listening end. That end has two SRQs, each with
//! a protection domain, memory and a CQ of its own. Every message names its SRQ; both ends know what it holds.

mod initiators;
mod steps;
mod targets;

use std::rc::Rc;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::*;

use super::end::Route;
use super::{Control, PORT};
use crate::Tally;
use crate::device::{Device, Qp};
use initiators::Initiators;
use targets::Targets;

/// Runs one end: with MTUs in bytes the one of the initiators, which says what is tried, whether the wire loses packets, and
/// prints the table.
///
/// # Errors
/// Where the two ends lost each other: a text. A step that fails is counted.
pub fn run(
    mut control: Control,
    plan: Option<(&[u32], bool)>,
    device: &Rc<Device>,
    gid_index: u8,
) -> Result<Tally, String> {
    let mine = device.gid(PORT, gid_index)?;
    let theirs = control.swap(&mine.to_string())?;
    let theirs: std::net::Ipv6Addr = theirs.parse().map_err(|e| format!("peer: {e}"))?;
    let route = Route {
        gid_index,
        mine,
        theirs: ibv_gid::from(theirs),
    };
    match plan {
        Some((mtus, lossy)) => {
            Initiators::meet(&mut control, device, lossy)?.lead(&mut control, mtus, &route)
        }
        None => {
            Targets::meet(&mut control, device)?.follow(&mut control, &route)?;
            Ok(Tally::default())
        }
    }
}

fn numbers<T: std::str::FromStr>(line: &str) -> Result<Vec<T>, String> {
    let parsed: Result<Vec<T>, _> = line.split(' ').map(str::parse).collect();
    parsed.map_err(|_| format!("peer: {line}"))
}

/// The numbers of the QPs of an end, in a line.
fn hello(qps: &[Qp; 2]) -> String {
    format!("{} {}", qps[0].number(), qps[1].number())
}

/// First PSNs, by end: they wrap round in the first longer message.
const PSN: [u32; 2] = [0xff_fff8, 0x7f_fff8];

/// Moves a QP along these states.
fn step_to(
    qp: &Qp,
    transport: Transport,
    states: &[ibv_qp_state],
    (peer, mtu, rnr_retry): (u32, ibv_mtu, u8),
    route: &Route,
) -> Result<(), String> {
    let initiates = transport == Transport::XrcIni;
    let mut attr = ibv_qp_attr::zeroed();
    attr.port_num = PORT;
    let access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    attr.qp_access_flags = if initiates { 0 } else { access.bits() };
    attr.path_mtu = mtu;
    attr.dest_qp_num = peer;
    [attr.sq_psn, attr.rq_psn] = if initiates { PSN } else { [PSN[1], PSN[0]] };
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (4, 4);
    // 0.64 ms; 67 ms.
    (attr.min_rnr_timer, attr.timeout) = (12, 14);
    (attr.retry_cnt, attr.rnr_retry) = (7, rnr_retry);
    attr.ah_attr = route.vector(route.theirs);
    let mut from = IBV_QPS_RESET;
    for &to in states {
        attr.qp_state = to;
        let mask = rules::required(transport, from, to).unwrap_or_default();
        (qp.modify(&attr, mask | IBV_QP_STATE))
            .map_err(|e| format!("{transport} {from}->{to}: {e}"))?;
        from = to;
    }
    Ok(())
}
