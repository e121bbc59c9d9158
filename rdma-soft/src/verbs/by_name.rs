//! What is asked of devices, and done to them, by their names: what verbs have no call for.

use std::net::IpAddr;
use std::sync::Arc;

use rdma_core_sys::rules::Transport;
use rustix::io::Errno;

use super::device::named;
use crate::core::config::GidEntry;
use crate::core::{CallError, QpStats};
use crate::link::Faults;
use crate::node::{Node, Snapshot, StartError};

/// Counters of the device of that name: those of its running node, or what they were when it
/// stopped. `None` if there is no such device or it was never opened.
pub fn counters(device: &str) -> Option<Snapshot> {
    let device = named(device)?;
    let running = device.with_node(Node::counters);
    running.or_else(|| device.last_counters())
}

/// What one Queue Pair of a running device went through since it was created. `None` if no device of
/// that name is open, or it has no such Queue Pair.
pub fn qp_stats(device: &str, qp_num: u32) -> Option<QpStats> {
    named(device)?.with_node(|node| node.qp_stats(qp_num))?
}

/// Numbers and transports of the Queue Pairs that a running device has, whoever made them; an XRC target counts once,
/// however often it is open. `None` if no device of that name is open.
///
/// ```
/// let device = rdma_soft::add_device(rdma_soft::Profile::default())?;
/// // It is not open.
/// assert_eq!(rdma_soft::queue_pairs(&device), None);
/// # Ok::<(), rdma_soft::ProfileError>(())
/// ```
pub fn queue_pairs(device: &str) -> Option<Vec<(u32, Transport)>> {
    named(device)?.with_node(Node::queue_pairs)
}

/// Why the device of that name could not be opened the last time that it was tried: names what is wrong
/// and what to change, where `ibv_open_device` has but an errno. `None` if it could.
pub fn open_error(device: &str) -> Option<Arc<StartError>> {
    named(device)?.last_error()
}

/// Changes the faults on the link of a running device, for frames that it sends from now on; what
/// is on its way stays so. False if no device of that name is open.
pub fn set_faults(device: &str, faults: Faults) -> bool {
    named(device).is_some_and(|d| d.with_node(|node| node.set_faults(faults)).is_some())
}

/// Cuts a running device off from `peer` (what it sends there is lost), or connects it again.
/// False if no device of that name is open.
pub fn partition(device: &str, peer: IpAddr, cut_off: bool) -> bool {
    named(device).is_some_and(|d| d.with_node(|node| node.partition(peer, cut_off)).is_some())
}

/// Does something to the node of an open device.
fn on_node(
    device: &str,
    call: impl FnOnce(&Node) -> Result<(), CallError>,
) -> Result<(), CallError> {
    let done = named(device).and_then(|d| d.with_node(call));
    done.unwrap_or_else(|| {
        let why = format!("no device {device:?} is open");
        Err(CallError::new(Errno::NODEV, why))
    })
}

/// Takes the link of a port (from 1) of an open device up or down. A port that is down carries nothing,
/// either way. All open contexts get `IBV_EVENT_PORT_ACTIVE` or `IBV_EVENT_PORT_ERR`, unless it was so
/// before.
///
/// # Errors
/// `ENODEV` if no device of that name is open, `EINVAL` if it has no such port.
pub fn set_port_up(device: &str, port: u8, up: bool) -> Result<(), CallError> {
    on_node(device, |node| node.set_port_up(port, up))
}

/// Changes an entry of the GID table of a port (from 1) of an open device; `None` makes it empty. All
/// open contexts get `IBV_EVENT_GID_CHANGE`. Queue Pairs and address handles that were given the entry
/// before keep what it was. The node's addresses stay: what goes out by an entry that is none of them is
/// lost, and counted ([`LinkCounters::tx_no_way`](crate::LinkCounters::tx_no_way)).
///
/// # Errors
/// `ENODEV` if no device of that name is open, `EINVAL` if it has no such port or entry.
pub fn set_gid(
    device: &str,
    port: u8,
    index: usize,
    entry: Option<GidEntry>,
) -> Result<(), CallError> {
    on_node(device, |node| node.set_gid(port, index, entry))
}

/// Changes an entry of the partition key table of a port (from 1) of an open device, for all that use
/// it. All open contexts get `IBV_EVENT_PKEY_CHANGE`.
///
/// # Errors
/// `ENODEV` if no device of that name is open, `EINVAL` if it has no such port or entry.
pub fn set_pkey(device: &str, port: u8, index: usize, pkey: u16) -> Result<(), CallError> {
    on_node(device, |node| node.set_pkey(port, index, pkey))
}

/// Has an open device fail, as hardware does: all open contexts get `IBV_EVENT_DEVICE_FATAL`, all Queue
/// Pairs end in ERR, where requests are flushed (those in RESET have no way there, and stay), and calls that
/// make or change objects give `EIO`. What is there can be destroyed; once it was closed by all, the
/// device can be opened again.
///
/// # Errors
/// `ENODEV` if no device of that name is open.
pub fn fail_device(device: &str) -> Result<(), CallError> {
    on_node(device, |node| {
        node.fail();
        Ok(())
    })
}

/// How often the attributes, the GIDs or the partition keys of a port (from 1) were asked for, by its
/// number, since the process began: shows who assumes a port. `None` if there is no such port.
pub fn port_queries(device: &str, port: u8) -> Option<u64> {
    named(device)?.query_count(port)
}
