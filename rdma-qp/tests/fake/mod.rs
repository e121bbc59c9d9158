//! A provider that does nothing by itself: it records what it is asked, answers with the errno that a test wants, and
//! completes what a test tells it to. It does what a real one cannot be made to do: refuse to destroy, report a stale
//! state, deliver leftovers, complete in the gap between poll and arm.
#![allow(dead_code)]

mod xrc;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Barrier, Mutex, MutexGuard};

use rdma_core_sys::*;
use rustix::event::{EventfdFlags, eventfd};

/// What the tests see of the provider.
#[derive(Default)]
pub struct State {
    /// Names of the calls, in order.
    pub calls: Vec<&'static str>,
    /// Errnos to answer calls with, in order; 0 lets one through.
    pub answers: HashMap<&'static str, VecDeque<c_int>>,
    /// Live objects by kind.
    pub live: HashMap<&'static str, i64>,
    /// Ports, the first is number 1.
    pub ports: Vec<ibv_port_attr>,
    /// All ports' GID tables.
    pub gids: Vec<ibv_gid_entry>,
    pub pkeys: Vec<u16>,
    pub device: ibv_device_attr,
    /// QPs by number.
    pub qps: HashMap<u32, FakeQp>,
    /// wr_ids of receives posted to SRQs, in order.
    pub shared: Vec<u64>,
    /// Completions waiting, by CQ in order of creation.
    pub waiting: Vec<VecDeque<ibv_wc>>,
    /// What to put into CQ 0 at the next arming, before it takes effect.
    pub in_the_gap: Vec<ibv_wc>,
    /// Events acknowledged, and calls that did it.
    pub acknowledged: (u32, u32),
    /// Offset, length, address and access of each registration behind a dma-buf.
    pub dmabufs: Vec<(u64, usize, u64, i32)>,
    /// What the next XRC SRQ is told that its number is.
    pub srq_num: u32,
    /// Descriptor and flags of each XRC domain that was opened.
    pub domains: Vec<(c_int, c_int)>,
    /// The request of a list, counted from 0, that the next post of sends refuses with ENOMEM.
    pub refuse_at: Option<usize>,
    /// Calls that stop, see [`Fake::stop`].
    stops: HashMap<&'static str, Arc<Barrier>>,
    next: u32,
}

/// A QP as the provider knows it.
#[derive(Clone)]
pub struct FakeQp {
    /// Its real attributes.
    pub attr: ibv_qp_attr,
    /// Posted sends, in order: wr_id and flags.
    pub sends: Vec<FakeSend>,
    /// wr_ids of posted receives, in order.
    pub recvs: Vec<u64>,
}

/// What the provider keeps of a posted send.
#[derive(Clone)]
pub struct FakeSend {
    pub wr_id: u64,
    pub send_flags: u32,
    pub num_sge: i32,
    /// The SRQ that it names, on XRC.
    pub remote_srqn: u32,
    /// Address and length of each entry.
    pub entries: Vec<(u64, u32)>,
}

thread_local! {
    static CURRENT: RefCell<Arc<Mutex<State>>> = RefCell::default();
}

/// Handle on the provider of this thread's test.
pub struct Fake(Arc<Mutex<State>>);

impl Fake {
    /// A fresh provider with one device `fake0` of two ports, used by what this thread opens from now on.
    pub fn new() -> Fake {
        let mut port = ibv_port_attr::zeroed();
        (port.state, port.max_mtu, port.active_mtu) = (IBV_PORT_ACTIVE, IBV_MTU_4096, IBV_MTU_1024);
        (port.gid_tbl_len, port.pkey_tbl_len, port.max_msg_sz) = (8, 2, 1 << 20);
        port.link_layer = IBV_LINK_LAYER_ETHERNET;
        let mut device = ibv_device_attr::zeroed();
        (device.phys_port_cnt, device.max_mr_size) = (2, 1 << 30);
        (
            device.max_qp_wr,
            device.max_sge,
            device.max_cqe,
            device.max_pd,
        ) = (64, 4, 128, 4);
        (device.max_srq, device.max_srq_wr, device.max_srq_sge) = (4, 64, 4);
        (device.max_qp_rd_atom, device.max_qp_init_rd_atom) = (4, 16);
        device.device_cap_flags = (IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW_TYPE_2B).bits() as u32;
        let state = State {
            ports: vec![port, port],
            device,
            pkeys: vec![0xffff, 0],
            gids: vec![
                gid_entry(1, 0, "fe80::1", IBV_GID_TYPE_ROCE_V2),
                gid_entry(1, 2, "::ffff:10.0.0.5", IBV_GID_TYPE_ROCE_V1),
                gid_entry(1, 3, "::ffff:10.0.0.5", IBV_GID_TYPE_ROCE_V2),
                gid_entry(2, 1, "::ffff:10.0.1.5", IBV_GID_TYPE_ROCE_V2),
            ],
            next: 0x40,
            srq_num: 0x30,
            ..State::default()
        };
        let state = Arc::new(Mutex::new(state));
        CURRENT.with(|current| current.replace(state.clone()));
        Fake(state)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Makes the next call of that name answer with `errno`.
    pub fn fail(&self, call: &'static str, errno: c_int) {
        self.state()
            .answers
            .entry(call)
            .or_default()
            .push_back(errno);
    }

    /// Makes the next call of that name, `dereg_mr` or `dealloc_mw`, stop when it has done what it does. It meets who waits at
    /// the barrier twice: there, and to go on.
    pub fn stop(&self, call: &'static str) -> Arc<Barrier> {
        let stop = Arc::new(Barrier::new(2));
        self.state().stops.insert(call, stop.clone());
        stop
    }

    /// How often it was called.
    pub fn count(&self, call: &str) -> usize {
        self.state().calls.iter().filter(|c| **c == call).count()
    }

    /// Live objects of all kinds.
    pub fn live(&self) -> i64 {
        self.state().live.values().sum()
    }

    /// Moves a QP to another state behind everybody's back.
    pub fn set_state(&self, qp: u32, state: ibv_qp_state) {
        self.state().qps.get_mut(&qp).unwrap().attr.qp_state = state;
    }

    /// The next QP gets this number.
    pub fn reuse_number(&self, number: u32) {
        self.state().next = number - 1;
    }

    /// Puts a completion into CQ number `cq` (in order of creation).
    pub fn complete(&self, cq: usize, wc: ibv_wc) {
        self.state().waiting[cq].push_back(wc);
    }

    /// `wr_id` of the send number `index` of a QP.
    pub fn send_id(&self, qp: u32, index: usize) -> u64 {
        self.state().qps[&qp].sends[index].wr_id
    }

    /// `wr_id` of the receive number `index` of a QP.
    pub fn recv_id(&self, qp: u32, index: usize) -> u64 {
        self.state().qps[&qp].recvs[index]
    }
}

pub fn gid_entry(port: u32, index: u32, gid: &str, kind: ibv_gid_type) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: gid.parse::<Ipv6Addr>().unwrap().into(),
        gid_index: index,
        port_num: port,
        gid_type: kind.0,
        ndev_ifindex: 7,
    }
}

/// A completion.
pub fn wc(wr_id: u64, status: ibv_wc_status) -> ibv_wc {
    let mut wc = ibv_wc::zeroed();
    (wc.wr_id, wc.status) = (wr_id, status);
    wc
}

// ---- the objects: the verbs struct first, then what the provider keeps

#[repr(C)]
struct Context {
    /// What is handed out is the `ibv_context` at its end.
    front: verbs_context,
    state: Arc<Mutex<State>>,
}

/// The whole behind what was handed out.
fn whole(context: *mut ibv_context) -> *mut Context {
    context
        .cast::<u8>()
        .wrapping_sub(std::mem::offset_of!(verbs_context, context))
        .cast()
}

#[repr(C)]
struct Cq {
    ibv: ibv_cq,
    index: usize,
    event: Option<Arc<OwnedFd>>,
}

#[repr(C)]
struct Channel {
    ibv: ibv_comp_channel,
    fd: Arc<OwnedFd>,
    cq: *mut ibv_cq,
}

/// The state behind an object's context.
fn state(context: *mut ibv_context) -> Arc<Mutex<State>> {
    // SAFETY: every context that this provider hands out is part of a live `Context`.
    unsafe { (*whole(context)).state.clone() }
}

/// Records a call and gives the errno that the test wants.
fn called(context: *mut ibv_context, call: &'static str) -> c_int {
    let state = state(context);
    let mut state = state.lock().unwrap();
    state.calls.push(call);
    state
        .answers
        .get_mut(call)
        .and_then(VecDeque::pop_front)
        .unwrap_or(0)
}

/// The end of a call, which may stop there.
fn done(context: *mut ibv_context, call: &'static str) {
    let stop = state(context).lock().unwrap().stops.remove(call);
    if let Some(stop) = stop {
        stop.wait();
        stop.wait();
    }
}

fn born(context: *mut ibv_context, kind: &'static str) {
    *state(context).lock().unwrap().live.entry(kind).or_default() += 1;
}

fn died(context: *mut ibv_context, kind: &'static str) {
    *state(context).lock().unwrap().live.entry(kind).or_default() -= 1;
}

/// Null with errno set.
fn null<T>(errno: c_int) -> *mut T {
    ops::set_errno(errno);
    std::ptr::null_mut()
}

static DEVICE: DeviceCell = DeviceCell(std::sync::OnceLock::new());
struct DeviceCell(std::sync::OnceLock<usize>);

fn the_device() -> *mut ibv_device {
    *DEVICE.0.get_or_init(|| {
        let mut device = Box::new(ibv_device::zeroed());
        for (to, from) in device.name.iter_mut().zip(b"fake0\0") {
            *to = *from as c_char;
        }
        Box::into_raw(device) as usize
    }) as *mut ibv_device
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: the caller passes a place for the count.
    unsafe { *count = 1 };
    Box::into_raw(Box::new([the_device(), std::ptr::null_mut()])).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the list was made by `get_device_list`, which boxed an array of two.
    drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller passes a device of the list, which lives for ever.
    unsafe { (*device).name.as_ptr() }
}

unsafe extern "C" fn get_device_guid(_: *mut ibv_device) -> u64 {
    0x1122_3344_5566_7788u64.to_be()
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let state = CURRENT.with(|current| current.borrow().clone());
    let mut front = verbs_context::zeroed();
    xrc::set_operations(&mut front);
    let ibv = &mut front.context;
    ibv.device = device;
    ibv.ops.poll_cq = Some(poll_cq);
    ibv.ops.req_notify_cq = Some(req_notify_cq);
    ibv.ops.post_send = Some(post_send);
    ibv.ops.post_recv = Some(post_recv);
    ibv.ops.post_srq_recv = Some(post_srq_recv);
    ibv.ops.alloc_mw = Some(alloc_mw);
    ibv.ops.dealloc_mw = Some(dealloc_mw);
    ibv.async_fd = -1;
    *state.lock().unwrap().live.entry("context").or_default() += 1;
    let made = Box::into_raw(Box::new(Context { front, state }));
    // SAFETY: it was just made.
    unsafe { &raw mut (*made).front.context }
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    let errno = called(context, "close_device");
    if errno == 0 {
        died(context, "context");
        // SAFETY: made by `open_device`, closed once.
        drop(unsafe { Box::from_raw(whole(context)) });
    }
    errno
}

unsafe extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller passes a place for the attributes.
    unsafe { *attr = state(context).lock().unwrap().device };
    called(context, "query_device")
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    let errno = called(
        context,
        if port == 1 {
            "query_port 1"
        } else {
            "query_port 2"
        },
    );
    let all = state(context).lock().unwrap().ports.clone();
    let Some(port) = all.get(usize::from(port).wrapping_sub(1)) else {
        return libc_einval();
    };
    // The exported function knows the first 48 bytes only.
    // SAFETY: the caller passes a place of at least that size.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(port).cast::<u8>(), attr.cast::<u8>(), 48)
    };
    errno
}

fn libc_einval() -> c_int {
    22
}

unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let found = state(context).lock().unwrap().gids.clone();
    let entry = found
        .iter()
        .find(|e| e.port_num == u32::from(port) && e.gid_index == index as u32);
    // SAFETY: the caller passes a place for the GID.
    unsafe { *gid = entry.map_or(ibv_gid::zeroed(), |e| e.gid) };
    called(context, "query_gid")
}

unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    _: u32,
    _: usize,
) -> isize {
    let found = state(context).lock().unwrap().gids.clone();
    let errno = called(context, "query_gid_table");
    if errno != 0 {
        return -(errno as isize);
    }
    for (at, entry) in found.iter().take(max).enumerate() {
        // SAFETY: the caller passes room for `max` entries.
        unsafe { *entries.add(at) = *entry };
    }
    found.len().min(max) as isize
}

unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    _: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let pkeys = state(context).lock().unwrap().pkeys.clone();
    let Some(found) = pkeys.get(index as usize) else {
        return -1;
    };
    // SAFETY: the caller passes a place for the key.
    unsafe { *pkey = found.to_be() };
    called(context, "query_pkey")
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let errno = called(context, "alloc_pd");
    if errno != 0 {
        return null(errno);
    }
    born(context, "pd");
    Box::into_raw(Box::new(ibv_pd {
        context,
        ..ibv_pd::zeroed()
    }))
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller passes a live PD of this provider.
    let context = unsafe { (*pd).context };
    let errno = called(context, "dealloc_pd");
    if errno == 0 {
        died(context, "pd");
        // SAFETY: made by `alloc_pd`, freed once.
        drop(unsafe { Box::from_raw(pd) });
    }
    errno
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a live PD of this provider.
    let context = unsafe { (*pd).context };
    let errno = called(context, "reg_mr");
    if errno != 0 {
        return null(errno);
    }
    born(context, "mr");
    Box::into_raw(Box::new(ibv_mr {
        context,
        pd,
        addr,
        length,
        handle: 0,
        lkey: 0x10,
        rkey: 0x20,
    }))
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    _: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a live PD of this provider.
    let context = unsafe { (*pd).context };
    let asked = (offset, length, iova, access);

    state(context).lock().unwrap().dmabufs.push(asked);
    // SAFETY: as for this call.
    unsafe { reg_mr(pd, std::ptr::null_mut(), length, access) }
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller passes a live MR of this provider.
    let context = unsafe { (*mr).context };
    let errno = called(context, "dereg_mr");
    if errno == 0 {
        died(context, "mr");
        // SAFETY: made by `reg_mr`, freed once.
        drop(unsafe { Box::from_raw(mr) });
    }
    done(context, "dereg_mr");
    errno
}

unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller passes a live PD of this provider.
    let context = unsafe { (*pd).context };
    let errno = called(context, "alloc_mw");
    if errno != 0 {
        return null(errno);
    }
    born(context, "mw");
    Box::into_raw(Box::new(ibv_mw {
        context,
        pd,
        rkey: 0x30,
        handle: 0,
        type_,
    }))
}

unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller passes a live window of this provider.
    let context = unsafe { (*mw).context };
    let errno = called(context, "dealloc_mw");
    if errno == 0 {
        died(context, "mw");
        // SAFETY: made by `alloc_mw`, freed once.
        drop(unsafe { Box::from_raw(mw) });
    }
    done(context, "dealloc_mw");
    errno
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let fd = Arc::new(eventfd(0, EventfdFlags::SEMAPHORE).unwrap());
    born(context, "channel");
    let ibv = ibv_comp_channel {
        context,
        fd: fd.as_raw_fd(),
        refcnt: 0,
    };
    Box::into_raw(Box::new(Channel {
        ibv,
        fd,
        cq: std::ptr::null_mut(),
    }))
    .cast()
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: made by `create_comp_channel`, destroyed once.
    let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
    died(channel.ibv.context, "channel");
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a live channel of this provider and two places.
    unsafe {
        let channel = &*channel.cast::<Channel>();
        if let Err(errno) = rustix::io::read(&channel.fd, &mut [0u8; 8]) {
            ops::set_errno(errno.raw_os_error());
            return -1;
        }
        *cq = channel.cq;
        *user = std::ptr::null_mut();
    }
    0
}

unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: the caller passes a live CQ of this provider.
    let state = state(unsafe { (*cq).context });
    let mut state = state.lock().unwrap();
    state.acknowledged.0 += events;
    state.acknowledged.1 += 1;
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    _: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    let errno = called(context, "create_cq");
    if errno != 0 {
        return null(errno);
    }
    born(context, "cq");
    let index = {
        let state = state(context);
        let mut state = state.lock().unwrap();
        state.waiting.push(VecDeque::new());
        state.waiting.len() - 1
    };
    let ibv = ibv_cq {
        context,
        channel,
        cqe,
        ..ibv_cq::zeroed()
    };
    // SAFETY: a channel that is not null is a live one of this provider.
    let event = (!channel.is_null()).then(|| unsafe { (*channel.cast::<Channel>()).fd.clone() });
    let cq: *mut ibv_cq = Box::into_raw(Box::new(Cq { ibv, index, event })).cast();
    if !channel.is_null() {
        // SAFETY: as above.
        unsafe { (*channel.cast::<Channel>()).cq = cq };
    }
    cq
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller passes a live CQ of this provider.
    let context = unsafe { (*cq).context };
    let errno = called(context, "destroy_cq");
    if errno == 0 {
        died(context, "cq");
        // SAFETY: made by `create_cq`, destroyed once.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
    }
    errno
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a live CQ of this provider.
    let (context, index) = unsafe { ((*cq).context, (*cq.cast::<Cq>()).index) };
    let errno = called(context, "poll_cq");
    if errno != 0 {
        return -errno;
    }
    let state = state(context);
    let mut state = state.lock().unwrap();
    let mut given = 0;
    while given < n {
        let Some(wc) = state.waiting[index].pop_front() else {
            break;
        };
        // SAFETY: the caller passes room for `n` completions.
        unsafe { *into.add(given as usize) = wc };
        given += 1;
    }
    given
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    // SAFETY: the caller passes a live CQ of this provider.
    let context = unsafe { (*cq).context };
    let gap = std::mem::take(&mut state(context).lock().unwrap().in_the_gap);
    // What is there before the arming gives no event.
    state(context).lock().unwrap().waiting[0].extend(gap);
    called(context, "req_notify_cq")
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller passes a live PD of this provider.
    let context = unsafe { (*pd).context };
    let errno = called(context, "create_qp");
    if errno != 0 {
        return null(errno);
    }
    // SAFETY: the caller passes a whole structure.
    let init = unsafe { *init };
    new_qp(context, pd, &init)
}

/// A QP with the next number.
fn new_qp(context: *mut ibv_context, pd: *mut ibv_pd, init: &ibv_qp_init_attr) -> *mut ibv_qp {
    born(context, "qp");
    let state = state(context);
    let mut state = state.lock().unwrap();
    state.next += 1;
    let qp_num = state.next;
    let mut attr = ibv_qp_attr::zeroed();
    attr.cap = init.cap;
    state.qps.insert(
        qp_num,
        FakeQp {
            attr,
            sends: Vec::new(),
            recvs: Vec::new(),
        },
    );
    Box::into_raw(Box::new(ibv_qp {
        context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        qp_num,
        qp_type: init.qp_type,
        ..ibv_qp::zeroed()
    }))
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller passes a live QP of this provider and a whole structure.
    let (context, number, attr) = unsafe { ((*qp).context, (*qp).qp_num, *attr) };
    let errno = called(context, "modify_qp");
    if errno != 0 {
        return errno;
    }
    let mask = ibv_qp_attr_mask::from_bits_retain(mask as u32);
    let state = state(context);
    let mut state = state.lock().unwrap();
    let real = &mut state.qps.get_mut(&number).unwrap().attr;
    if mask.contains(IBV_QP_STATE) {
        real.qp_state = attr.qp_state;
    }
    if mask.contains(IBV_QP_PORT) {
        real.port_num = attr.port_num;
    }
    if mask.contains(IBV_QP_AV) {
        real.ah_attr = attr.ah_attr;
    }
    0
}

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes a live QP of this provider and two whole structures.
    unsafe {
        let (context, number) = ((*qp).context, (*qp).qp_num);
        let errno = called(context, "query_qp");
        if errno == 0 {
            *attr = state(context).lock().unwrap().qps[&number].attr;
            *init = ibv_qp_init_attr::zeroed();
        }
        errno
    }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller passes a live QP of this provider.
    let context = unsafe { (*qp).context };
    let errno = called(context, "destroy_qp");
    if errno == 0 {
        died(context, "qp");
        // SAFETY: made by `create_qp`, destroyed once.
        drop(unsafe { Box::from_raw(qp) });
    }
    errno
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a live QP of this provider, a request and a place.
    unsafe {
        let errno = called((*qp).context, "post_send");
        if errno != 0 {
            *bad = wr;
            return errno;
        }
        let state = state((*qp).context);
        let mut state = state.lock().unwrap();
        let refuse_at = state.refuse_at.take();
        let sends = &mut state.qps.get_mut(&(*qp).qp_num).unwrap().sends;
        let (mut next, mut index) = (wr, 0);
        while let Some(request) = next.as_ref() {
            if refuse_at == Some(index) {
                *bad = next;
                return 12;
            }
            let count = request.num_sge as usize;
            let entries = (0..count).map(|at| *request.sg_list.add(at));
            sends.push(FakeSend {
                wr_id: request.wr_id,
                send_flags: request.send_flags,
                num_sge: request.num_sge,
                remote_srqn: request.qp_type.xrc.remote_srqn,
                entries: entries.map(|entry| (entry.addr, entry.length)).collect(),
            });
            (next, index) = (request.next, index + 1);
        }
    }
    0
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live QP of this provider, a request and a place.
    unsafe {
        let errno = called((*qp).context, "post_recv");
        if errno != 0 {
            *bad = wr;
            return errno;
        }
        state((*qp).context)
            .lock()
            .unwrap()
            .qps
            .get_mut(&(*qp).qp_num)
            .unwrap()
            .recvs
            .push((*wr).wr_id);
    }
    0
}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller passes a live PD of this provider, and a whole structure.
    let (context, srq_context) = unsafe { ((*pd).context, (*init).srq_context) };
    let errno = called(context, "create_srq");
    if errno != 0 {
        return null(errno);
    }
    born(context, "srq");
    Box::into_raw(Box::new(ibv_srq {
        context,
        pd,
        srq_context,
        ..ibv_srq::zeroed()
    }))
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller passes a live SRQ of this provider.
    let context = unsafe { (*srq).context };
    let errno = called(context, "destroy_srq");
    if errno == 0 {
        died(context, "srq");
        // SAFETY: made by `create_srq`, destroyed once.
        drop(unsafe { Box::from_raw(srq) });
    }
    errno
}

/// Takes a list up to the request at which a test wants an errno.
unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    while !wr.is_null() {
        // SAFETY: the caller passes a live SRQ of this provider, a list of requests, and a place.
        unsafe {
            let errno = called((*srq).context, "post_srq_recv");
            if errno != 0 {
                *bad = wr;
                return errno;
            }
            let wr_id = (*wr).wr_id;
            state((*srq).context).lock().unwrap().shared.push(wr_id);
            wr = (*wr).next;
        }
    }
    0
}

unsafe extern "C" fn create_ah(pd: *mut ibv_pd, _: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller passes a live PD of this provider.
    let context = unsafe { (*pd).context };
    let errno = called(context, "create_ah");
    if errno != 0 {
        return null(errno);
    }
    born(context, "ah");
    Box::into_raw(Box::new(ibv_ah {
        context,
        pd,
        ..ibv_ah::zeroed()
    }))
}

unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller passes a live address handle of this provider.
    let context = unsafe { (*ah).context };
    let errno = called(context, "destroy_ah");
    if errno == 0 {
        died(context, "ah");
        // SAFETY: made by `create_ah`, destroyed once.
        drop(unsafe { Box::from_raw(ah) });
    }
    errno
}

unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, _: *const ibv_gid, _: u16) -> c_int {
    // SAFETY: the caller passes a live QP of this provider.
    called(unsafe { (*qp).context }, "attach_mcast")
}

unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, _: *const ibv_gid, _: u16) -> c_int {
    // SAFETY: the caller passes a live QP of this provider.
    called(unsafe { (*qp).context }, "detach_mcast")
}

/// Its table.
pub fn verbs() -> Verbs {
    // SAFETY: what is in there keeps the contract of libibverbs, as far as a test does not make it break it.
    unsafe { Verbs::new(functions()) }
}

/// Its functions. What it does not have comes from the software device's, and is never called.
pub fn functions() -> Functions {
    Functions {
        source: "a provider for tests",
        get_device_list,
        free_device_list,
        get_device_name,
        get_device_guid,
        open_device,
        close_device,
        query_device,
        query_port_compat: query_port,
        query_gid,
        query_gid_table: Some(query_gid_table),
        query_pkey,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        reg_dmabuf_mr: Some(reg_dmabuf_mr),
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        get_cq_event,
        ack_cq_events,
        create_cq,
        destroy_cq,
        create_srq,
        destroy_srq,
        create_qp,
        modify_qp,
        query_qp,
        destroy_qp,
        create_ah,
        destroy_ah,
        attach_mcast,
        detach_mcast,
        ..**rdma_soft::verbs()
    }
}
