//! The list of devices, and their attributes.

use std::ffi::{CStr, c_char, c_int};
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rdma_core_sys::*;
use rustix::io::Errno;

use super::context::{self, Context};
use super::{copy_out, fail, refuse, sys, why};
use crate::core::config::{Caps, GidEntry};
use crate::core::rng::Rng;
use crate::core::{CallError, QpStats};
use crate::link::Faults;
use crate::node::{Node, Snapshot, StartError, lock, random_seed};
use crate::profile::{Profile, ProfileError};

/// Vendor and part number that `ibv_query_device` reports. The vendor number is in the space of
/// locally administered Ethernet addresses, so it is nobody's.
const VENDOR: (u32, u32) = (0x02_52_51, 1);

/// A device. It lives until the process ends.
#[repr(C)]
pub(super) struct Device {
    abi: ibv_device,
    /// Providers that mistake the device for one of theirs read behind the ABI's struct.
    _room: [u8; 1024 - size_of::<ibv_device>()],
    name: String,
    guid: u64,
    index: c_int,
    pub(super) profile: Profile,
    running: Mutex<Running>,
    /// Queries of each port.
    queries: Box<[AtomicU64]>,
}

/// The node of a device.
#[derive(Default)]
struct Running {
    node: Option<Arc<Node>>,
    opens: usize,
    last: Option<Snapshot>,
    /// Why it could not be opened, the last time that it was tried.
    error: Option<Arc<StartError>>,
    /// [`sys::forks`] when the node started.
    forks: u32,
}

/// All devices of the process, in the order in which they were added.
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// Adds a device with `profile` to the process and gives its name; the first is "soft0", with the
/// profile of the environment.
///
/// It is in the list that `ibv_get_device_list` gives from then on. Its node starts when it is
/// first opened, and stops when it is last closed; it can be opened again.
///
/// ```
/// use rdma_soft::{Profile, add_device};
///
/// let mut profile = Profile::default();
/// profile.faults = "loss=1%,seed=7".parse().unwrap();
/// let name = add_device(profile)?;
/// assert!(name.starts_with("soft"));
/// # Ok::<(), rdma_soft::ProfileError>(())
/// ```
///
/// # Errors
/// [`ProfileError`] if the profile, or that of the environment, is wrong.
pub fn add_device(profile: Profile) -> Result<String, ProfileError> {
    profile.check()?;
    let mut devices = lock(&DEVICES);
    with_first(&mut devices)?;
    Ok(push(&mut devices, profile).name.clone())
}

/// Makes sure that the device of the environment is there.
fn with_first(devices: &mut Vec<&'static Device>) -> Result<(), ProfileError> {
    if devices.is_empty() {
        push(devices, Profile::from_env()?);
    }
    Ok(())
}

fn push(devices: &mut Vec<&'static Device>, profile: Profile) -> &'static Device {
    let number = devices.len();
    let name = format!("soft{number}");
    let mut abi = ibv_device::zeroed();
    abi._ops = context::MARK.device_ops();
    abi.node_type = ibv_node_type::IBV_NODE_CA;
    abi.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
    set_text(&mut abi.name, &name);
    set_text(&mut abi.dev_name, &format!("uverbs-{name}"));
    set_text(
        &mut abi.dev_path,
        &format!("/sys/class/infiniband_verbs/uverbs-{name}"),
    );
    set_text(
        &mut abi.ibdev_path,
        &format!("/sys/class/infiniband/{name}"),
    );
    // Without random bytes the process number still tells the processes of this host apart.
    let seed = random_seed().unwrap_or_else(|_| u64::from(std::process::id()));
    let queries = profile.ports.iter().map(|_| AtomicU64::new(0)).collect();
    let device: &'static Device = Box::leak(Box::new(Device {
        abi,
        _room: [0; 1024 - size_of::<ibv_device>()],
        guid: guid(seed, number),
        index: c_int::try_from(number + 1).unwrap_or(c_int::MAX),
        name,
        profile,
        running: Mutex::default(),
        queries,
    }));
    devices.push(device);
    device
}

/// A locally administered EUI-64 that ends in the device's number.
fn guid(seed: u64, number: usize) -> u64 {
    let random = Rng::new(seed).next_u64();
    let local = (random & !0x0300_0000_0000_ffff) | 0x0200_0000_0000_0000;
    local | (number as u64 & 0xffff)
}

/// Writes a text into a zeroed field, cut to fit with its terminator.
fn set_text(field: &mut [c_char], text: &str) {
    let room = field.len().saturating_sub(1);
    for (to, from) in field.iter_mut().take(room).zip(text.bytes()) {
        *to = from as c_char;
    }
}

impl Device {
    /// The pointer that C knows the device by.
    pub(super) fn as_abi(&'static self) -> *mut ibv_device {
        // C declares the struct mutable, and nobody writes it.
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Starts the node if it does not run, and counts one user more.
    fn acquire(&self) -> Result<Arc<Node>, Arc<StartError>> {
        sys::count_forks();
        let mut running = lock(&self.running);
        if running.forks != sys::forks() {
            // The parent's node. It is not for this process to end it.
            std::mem::forget(running.node.take());
            (running.opens, running.forks) = (0, sys::forks());
        }
        let node = match running.node.take() {
            Some(node) => node,
            None => match Node::start(&self.profile) {
                Ok(node) => node,
                Err(error) => {
                    let error = Arc::new(error);
                    running.error = Some(Arc::clone(&error));
                    return Err(error);
                }
            },
        };
        if self.profile.explain {
            why::explain();
        }
        running.node = Some(Arc::clone(&node));
        running.opens += 1;
        running.error = None;
        Ok(node)
    }

    /// Counts one user less, and stops the node after the last.
    pub(super) fn release(&self) {
        let mut running = lock(&self.running);
        running.opens = running.opens.saturating_sub(1);
        if running.opens == 0
            && let Some(node) = running.node.take()
        {
            running.last = Some(node.stop());
        }
    }

    /// Counts a query of a port that there is.
    pub(super) fn count_query(&self, port: u8) {
        if let Some(queries) = self.queries.get(usize::from(port).wrapping_sub(1)) {
            queries.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn with_node<R>(&self, call: impl FnOnce(&Node) -> R) -> Option<R> {
        let node = lock(&self.running).node.clone();
        node.map(|node| call(&node))
    }
}

/// The device of that name.
fn named(name: &str) -> Option<&'static Device> {
    lock(&DEVICES).iter().copied().find(|d| d.name == name)
}

/// Counters of the device of that name: those of its running node, or what they were when it
/// stopped. `None` if there is no such device or it was never opened.
pub fn counters(device: &str) -> Option<Snapshot> {
    let device = named(device)?;
    let running = device.with_node(Node::counters);
    running.or_else(|| lock(&device.running).last.clone())
}

/// What one Queue Pair of a running device went through since it was created. `None` if no device of
/// that name is open, or it has no such Queue Pair.
pub fn qp_stats(device: &str, qp_num: u32) -> Option<QpStats> {
    named(device)?.with_node(|node| node.qp_stats(qp_num))?
}

/// Why the device of that name could not be opened the last time that it was tried: names what is wrong
/// and what to change, where `ibv_open_device` has but an errno. `None` if it could.
pub fn open_error(device: &str) -> Option<Arc<StartError>> {
    lock(&named(device)?.running).error.clone()
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
/// before keep what it was.
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
    let at = usize::from(port).checked_sub(1)?;
    let queries = named(device)?.queries.get(at)?;
    Some(queries.load(Ordering::Relaxed))
}

/// The device behind a pointer that an application passed.
fn find(device: *mut ibv_device) -> Option<&'static Device> {
    lock(&DEVICES)
        .iter()
        .copied()
        .find(|d| ptr::eq(d.as_abi(), device))
}

pub(super) unsafe extern "C" fn get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let mut devices = lock(&DEVICES);
    if let Err(error) = with_first(&mut devices) {
        tracing::error!(%error, "the software device has no valid profile");
        return fail(CallError::invalid(error.to_string()));
    }
    let list: Box<[*mut ibv_device]> = (devices.iter().map(|d| d.as_abi()))
        .chain([ptr::null_mut()])
        .collect();
    if !num_devices.is_null() {
        // SAFETY: not null, so by the rules of ibv_get_device_list(3) it points to an int.
        unsafe { *num_devices = c_int::try_from(devices.len()).unwrap_or(c_int::MAX) };
    }
    Box::into_raw(list).cast()
}

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    let mut len = 0;
    // SAFETY: the caller passes a list of `get_device_list`, whose last entry is null: every entry
    // up to that one is inside.
    while !unsafe { *list.add(len) }.is_null() {
        len += 1;
    }
    let list = ptr::slice_from_raw_parts_mut(list, len + 1);
    // SAFETY: `get_device_list` made it by `Box::into_raw` from a slice of this length, and the
    // caller gives it back.
    drop(unsafe { Box::from_raw(list) });
}

pub(super) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    match find(device) {
        Some(device) => device.abi.name.as_ptr(),
        None => fail::<c_char>(unknown(Errno::INVAL)).cast_const(),
    }
}

pub(super) unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    find(device).map_or(0, |device| device.guid.to_be())
}

pub(super) unsafe extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    find(device).map_or(-1, |device| device.index)
}

fn unknown(errno: Errno) -> CallError {
    CallError::new(errno, "the device is none of this process's list")
}

pub(super) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Some(device) = find(device) else {
        return fail(unknown(Errno::NODEV));
    };
    match device.acquire() {
        Ok(node) => match context::create(device, node) {
            Ok(context) => context,
            Err(errno) => {
                device.release();
                fail(errno)
            }
        },
        Err(error) => {
            tracing::error!(device = device.name, %error, "the software device cannot start");
            fail(CallError::new(error.errno(), error.to_string()))
        }
    }
}

/// What the device can do.
///
/// It keeps sums of what the ports count ([`ibv_port_attr`]'s counters are the node's), chooses its own
/// keys for windows of type 2B (a window belongs to the Queue Pair that bound it), and has the sends
/// that invalidate keys, but no fast registration, which user space never sees.
const CAPABILITIES: ibv_device_cap_flags = IBV_DEVICE_BAD_PKEY_CNTR
    .union(IBV_DEVICE_BAD_QKEY_CNTR)
    .union(IBV_DEVICE_UD_AV_PORT_ENFORCE)
    .union(IBV_DEVICE_CURR_QP_STATE_MOD)
    .union(IBV_DEVICE_PORT_ACTIVE_EVENT)
    .union(IBV_DEVICE_SYS_IMAGE_GUID)
    .union(IBV_DEVICE_RC_RNR_NAK_GEN)
    .union(IBV_DEVICE_SRQ_RESIZE)
    .union(IBV_DEVICE_MEM_WINDOW)
    .union(IBV_DEVICE_XRC)
    .union(IBV_DEVICE_MEM_MGT_EXTENSIONS)
    .union(IBV_DEVICE_MEM_WINDOW_TYPE_2B);

/// A limit as verbs report it.
fn limit(value: u64) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// The attributes of a device.
fn attributes(context: &Context) -> ibv_device_attr {
    let config = context.node.config();
    let caps: &Caps = &config.caps;
    let guid = context.device.guid.to_be();
    let pkeys = config.ports.iter().map(|p| p.pkeys.len()).max();
    let mut attr = ibv_device_attr::zeroed();
    set_text(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = guid;
    attr.sys_image_guid = guid;
    attr.max_mr_size = caps.max_mr_size;
    attr.page_size_cap = !(rustix::param::page_size() as u64 - 1);
    (attr.vendor_id, attr.vendor_part_id) = VENDOR;
    attr.hw_ver = 1;
    attr.max_qp = limit(caps.max_qp.into());
    attr.max_qp_wr = limit(caps.max_qp_wr.into());
    attr.device_cap_flags = CAPABILITIES.bits() as u32;
    attr.max_sge = limit(caps.max_sge.into());
    attr.max_sge_rd = attr.max_sge;
    attr.max_cq = limit(caps.max_cq.into());
    attr.max_cqe = limit(caps.max_cqe.into());
    attr.max_mr = limit(caps.max_mr.into());
    attr.max_pd = limit(caps.max_pd.into());
    attr.max_qp_rd_atom = caps.max_qp_rd_atom.into();
    attr.max_res_rd_atom = limit(u64::from(caps.max_qp_rd_atom) * u64::from(caps.max_qp));
    attr.max_qp_init_rd_atom = caps.max_qp_init_rd_atom.into();
    // Atomics are those of the processor, so they are atomic to everybody.
    attr.atomic_cap = ibv_atomic_cap::IBV_ATOMIC_GLOB;
    attr.max_mw = limit(caps.max_mw.into());
    attr.max_mcast_grp = limit(caps.max_mcast_grp.into());
    attr.max_mcast_qp_attach = limit(caps.max_mcast_qp_attach.into());
    attr.max_total_mcast_qp_attach =
        limit(u64::from(caps.max_mcast_grp) * u64::from(caps.max_mcast_qp_attach));
    attr.max_ah = limit(caps.max_ah.into());
    attr.max_srq = limit(caps.max_srq.into());
    attr.max_srq_wr = limit(caps.max_srq_wr.into());
    attr.max_srq_sge = limit(caps.max_srq_sge.into());
    attr.max_pkeys = u16::try_from(pkeys.unwrap_or(0)).unwrap_or(u16::MAX);
    // 4.096 us x 2^8 is about 1 ms: what the thread may take to notice that polling ended.
    attr.local_ca_ack_delay = 8;
    attr.phys_port_cnt = u8::try_from(config.ports.len()).unwrap_or(u8::MAX);
    attr
}

pub(super) unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    match unsafe { context::soft(context) } {
        Ok(_) if attr.is_null() => refuse(CallError::invalid("no place for the attributes")),
        Ok(context) => {
            // SAFETY: not null, so it has room for the struct by the rules of ibv_query_device(3).
            unsafe { attr.write(attributes(context)) };
            0
        }
        Err(errno) => refuse(errno),
    }
}

pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = match unsafe { context::soft(context) } {
        Ok(context) => context,
        Err(errno) => return refuse(errno),
    };
    // SAFETY: null or, by the rules of ibv_query_device_ex(3), a struct.
    let no_extension = input.is_null() || unsafe { (*input).comp_mask } == 0;
    if attr.is_null() || attr_size < size_of::<ibv_device_attr>() || !no_extension {
        return refuse(CallError::invalid(
            "no place for the attributes, too little of it, or a comp_mask that is not 0",
        ));
    }
    let mut all = ibv_device_attr_ex::zeroed();
    all.orig_attr = attributes(context);
    // Completions are stamped in nanoseconds, of which there are 10^6 in a millisecond.
    all.completion_timestamp_mask = u64::MAX;
    all.hca_core_clock = 1_000_000;
    all.device_cap_flags_ex = CAPABILITIES.bits();
    all.phys_port_cnt_ex = all.orig_attr.phys_port_cnt.into();
    // SAFETY: the caller says that `attr` has room for `attr_size` bytes.
    unsafe { copy_out(&all, attr, attr_size) };
    0
}

/// The clock that completions are stamped with: all of its nanoseconds are in `tv_nsec`, as drivers
/// give the ticks of theirs.
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    const RAW_CLOCK: u32 = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.bits();
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = match unsafe { context::soft(context) } {
        Ok(context) => context,
        Err(errno) => return refuse(errno),
    };
    // SAFETY: null, or the struct that ibv_query_rt_values_ex(3) asks for.
    if values.is_null() || unsafe { (*values).comp_mask } & !RAW_CLOCK != 0 {
        return refuse(CallError::invalid(
            "no place for the values, or values that are not known",
        ));
    }
    // SAFETY: not null, as above.
    unsafe {
        if (*values).comp_mask & RAW_CLOCK != 0 {
            (*values).raw_clock.tv_sec = 0;
            (*values).raw_clock.tv_nsec = context.node.raw_clock() as i64;
        }
    }
    0
}

// Nothing here is copied on fork and nothing marks pages: a fork needs no protection.
pub(super) unsafe extern "C" fn fork_init() -> c_int {
    0
}

pub(super) unsafe extern "C" fn is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status::IBV_FORK_UNNEEDED
}

/// The name of a running or known device, for messages.
pub(super) fn name_of(device: &'static Device) -> &'static str {
    // SAFETY: the field holds a terminated text, written once by `set_text`.
    let text = unsafe { CStr::from_ptr(device.abi.name.as_ptr()) };
    text.to_str().unwrap_or_default()
}
