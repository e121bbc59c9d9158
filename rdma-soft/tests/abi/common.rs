//! A C program's view of the device: devices, registered buffers, connected Queue Pairs.
//!
//! Everything goes through the verbs table and the header's inline operations. The wrappers here
//! are safe to call because each object is owned by one value of this file, which destroys it, and
//! because a test waits for its completions before it drops a buffer.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_int};
use std::net::{IpAddr, Ipv6Addr};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use rdma_core_sys::*;
use rdma_soft::{Profile, Snapshot, verbs};

/// How long a test waits for anything before it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const EINVAL: c_int = 22;
pub const EBUSY: c_int = 16;
pub const ENOMEM: c_int = 12;
pub const EOPNOTSUPP: c_int = 95;

/// `errno` of this thread.
pub fn errno() -> c_int {
    ops::errno()
}

/// An open device of this process.
pub struct Device {
    pub name: String,
    pub ctx: *mut ibv_context,
}

impl Device {
    /// Adds a device and opens it.
    pub fn new(profile: Profile) -> Device {
        let name = rdma_soft::add_device(profile).expect("a valid profile");
        Device::open(&name)
    }

    /// A device with the default profile, at the given MTU.
    pub fn plain() -> Device {
        Device::new(Profile::default())
    }

    /// A device that exchanges packets by UDP alone.
    pub fn without_shm() -> Device {
        Device::new(Profile {
            shm: false,
            ..Profile::default()
        })
    }

    pub fn with_faults(faults: &str) -> Device {
        Device::new(Profile {
            faults: faults.parse().expect("faults"),
            ..Profile::default()
        })
    }

    /// Opens a device of the list by its name.
    pub fn open(name: &str) -> Device {
        Device::try_open(name).unwrap_or_else(|errno| panic!("open {name}: errno {errno}"))
    }

    /// Opens a device of the list by its name, or gives errno.
    pub fn try_open(name: &str) -> Result<Device, c_int> {
        let mut count = 0;
        // SAFETY: the list is read up to its count and freed after its last use; names live as long
        // as devices, which live as long as the process.
        let ctx = unsafe {
            let list = verbs().get_device_list(&mut count);
            let found = (0..count as usize).map(|i| *list.add(i)).find(|&device| {
                CStr::from_ptr(verbs().get_device_name(device)).to_str() == Ok(name)
            });
            let ctx = verbs().open_device(found.expect("the device is in the list"));
            verbs().free_device_list(list);
            ctx
        };
        if ctx.is_null() {
            return Err(errno());
        }
        let name = name.to_owned();
        Ok(Device { name, ctx })
    }

    /// A device at ::1, of which a host has one: as soon as no other test has it. Where there is no
    /// IPv6 it says that `test` is skipped, and gives `None`.
    pub fn at_ipv6_loopback(test: &str, mut profile: Profile) -> Option<Device> {
        profile.ports[0].addresses = vec![IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let name = rdma_soft::add_device(profile).expect("a valid profile");
        let mut opened = Err(libc::EADDRINUSE);
        until("::1", || {
            opened = Device::try_open(&name);
            !matches!(opened, Err(libc::EADDRINUSE))
        });
        if opened.is_err() {
            let why = rdma_soft::open_error(&name).expect("a reason");
            println!("SKIP {test}: {why}");
        }
        opened.ok()
    }

    pub fn gid(&self) -> ibv_gid {
        self.gid_of(1)
    }

    pub fn gid_of(&self, port: u8) -> ibv_gid {
        let mut gid = ibv_gid::zeroed();
        // SAFETY: the context is open, `gid` is writable.
        assert_eq!(unsafe { verbs().query_gid(self.ctx, port, 0, &mut gid) }, 0);
        gid
    }

    pub fn counters(&self) -> Snapshot {
        rdma_soft::counters(&self.name).expect("the device is open")
    }

    /// One of the counters, by name.
    pub fn counter(&self, name: &str) -> u64 {
        let all = self.counters();
        let found = all.engine.all().find(|c| c.0 == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// Waits until a counter is `n` above `before`, and asserts that it does not go beyond. What
    /// a node has received it may still have to look at.
    pub fn counts(&self, name: &str, before: u64, n: u64) {
        until(name, || self.counter(name) >= before + n);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(self.counter(name), before + n, "{name}");
    }

    /// The next asynchronous event; acknowledges it.
    pub fn async_event(&self) -> ibv_async_event {
        let mut event = ibv_async_event::zeroed();
        // SAFETY: the context is open, `event` is writable, and what was got is acknowledged.
        unsafe {
            assert_eq!(
                verbs().get_async_event(self.ctx, &mut event),
                0,
                "errno {}",
                errno()
            );
            verbs().ack_async_event(&mut event);
        }
        event
    }

    /// True if an asynchronous event is there within `timeout`.
    pub fn has_async_event(&self, timeout: Duration) -> bool {
        // SAFETY: the context is open.
        readable(unsafe { (*self.ctx).async_fd }, timeout)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed here only; objects in it were dropped before, or end now.
        let result = unsafe { verbs().close_device(self.ctx) };
        assert_eq!(result, 0);
    }
}

/// Waits until `fd` is readable; false after `timeout`.
pub fn readable(fd: c_int, timeout: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, writable.
    unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as c_int) == 1 }
}

/// Makes a descriptor non-blocking.
pub fn set_nonblocking(fd: c_int) {
    // SAFETY: an open descriptor.
    let result = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(result, 0);
}

/// Registered memory.
pub struct Buf {
    pub addr: *mut u8,
    pub len: usize,
    pub mr: *mut ibv_mr,
}

pub const ALL_ACCESS: u32 = 0xf;

impl Buf {
    pub fn new(end: &End, len: usize) -> Buf {
        Buf::with_access(end, len, ALL_ACCESS)
    }

    pub fn with_access(end: &End, len: usize, access: u32) -> Buf {
        let len = len.max(8);
        // SAFETY: the layout is not empty.
        let addr = unsafe { alloc_zeroed(layout(len)) };
        // SAFETY: the PD is live, the memory stays until the drop deregisters it.
        let mr = unsafe { verbs().reg_mr(end.pd, addr.cast(), len, access as c_int) };
        assert!(!mr.is_null(), "reg_mr: errno {}", errno());
        Buf { addr, len, mr }
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: the MR is live until the drop.
        unsafe { (*self.mr).lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: the MR is live until the drop.
        unsafe { (*self.mr).rkey }
    }

    pub fn at(&self, offset: usize) -> u64 {
        self.addr as u64 + offset as u64
    }

    pub fn sge(&self, offset: usize, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.at(offset),
            length: len as u32,
            lkey: self.lkey(),
        }
    }

    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.len);
        // SAFETY: inside the allocation, which only the device shares, by raw pointers.
        unsafe { self.addr.add(offset).copy_from(data.as_ptr(), data.len()) };
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let mut out = vec![0; len];
        // SAFETY: inside the allocation, which only the device shares, by raw pointers.
        unsafe { self.addr.add(offset).copy_to(out.as_mut_ptr(), len) };
        out
    }

    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().expect("8 bytes"))
    }

    pub fn set_word(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }

    /// Fills the buffer with a pattern of `seed`, and gives it.
    pub fn fill(&self, seed: u8) -> Vec<u8> {
        let data = pattern(seed, self.len);
        self.write(0, &data);
        data
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: registered and allocated in `with_access`, ended here only.
        unsafe {
            let result = verbs().dereg_mr(self.mr);
            if result == 0 {
                dealloc(self.addr, layout(self.len));
            } else {
                // The device may still use it.
                assert!(std::thread::panicking(), "dereg_mr: {result}");
            }
        }
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, 4096).expect("a layout")
}

/// Bytes that no shift of themselves equals.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31) >> 3) as u8 ^ i as u8 ^ seed)
        .collect()
}

/// How Queue Pairs are made and connected.
#[derive(Clone, Copy)]
pub struct Options {
    pub mtu: u32,
    pub send_wr: u32,
    pub recv_wr: u32,
    pub sge: u32,
    pub inline: u32,
    pub cqe: c_int,
    pub sig_all: bool,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub rd_atomic: u8,
    pub dest_rd_atomic: u8,
    pub access: u32,
    pub psn: u32,
    pub port: u8,
    pub events: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mtu: 1024,
            send_wr: 64,
            recv_wr: 64,
            sge: 4,
            inline: 64,
            cqe: 256,
            sig_all: false,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 4,
            dest_rd_atomic: 4,
            access: ALL_ACCESS,
            psn: 0x10,
            port: 1,
            events: false,
        }
    }
}

/// One end: a PD, a CQ for sends, one for receives, a QP.
pub struct End {
    pub pd: *mut ibv_pd,
    pub channel: *mut ibv_comp_channel,
    pub scq: *mut ibv_cq,
    pub rcq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub opt: Options,
}

impl End {
    /// Makes everything up to a QP in RESET.
    pub fn new(device: &Device, opt: Options) -> End {
        let ctx = device.ctx;
        // SAFETY: the context is open; each object is live when it is used.
        unsafe {
            let pd = verbs().alloc_pd(ctx);
            assert!(!pd.is_null());
            let channel = if opt.events {
                verbs().create_comp_channel(ctx)
            } else {
                null_mut()
            };
            let scq = verbs().create_cq(ctx, opt.cqe, 0x5e as *mut _, channel, 0);
            let rcq = verbs().create_cq(ctx, opt.cqe, 0x7e as *mut _, channel, 0);
            assert!(!scq.is_null() && !rcq.is_null());
            let mut end = End {
                pd,
                channel,
                scq,
                rcq,
                qp: null_mut(),
                opt,
            };
            end.qp = end.create_qp().expect("a QP");
            end
        }
    }

    /// One more QP on the same PD and CQs.
    pub fn create_qp(&self) -> Result<*mut ibv_qp, c_int> {
        let mut attr = self.init_attr();
        // SAFETY: PD and CQs are live, `attr` is a whole struct.
        let qp = unsafe { verbs().create_qp(self.pd, &mut attr) };
        if qp.is_null() { Err(errno()) } else { Ok(qp) }
    }

    pub fn init_attr(&self) -> ibv_qp_init_attr {
        let mut attr = ibv_qp_init_attr::zeroed();
        attr.send_cq = self.scq;
        attr.recv_cq = self.rcq;
        attr.qp_type = IBV_QPT_RC;
        attr.sq_sig_all = c_int::from(self.opt.sig_all);
        attr.cap.max_send_wr = self.opt.send_wr;
        attr.cap.max_recv_wr = self.opt.recv_wr;
        attr.cap.max_send_sge = self.opt.sge;
        attr.cap.max_recv_sge = self.opt.sge;
        attr.cap.max_inline_data = self.opt.inline;
        attr
    }

    pub fn qpn(&self) -> u32 {
        qpn(self.qp)
    }

    pub fn state(&self) -> ibv_qp_state {
        query(self.qp).0.qp_state
    }

    pub fn to_init(&self) {
        to_init(self.qp, &self.opt);
    }

    pub fn to_rtr(&self, peer_qpn: u32, peer_gid: ibv_gid, peer_psn: u32) {
        to_rtr(self.qp, &self.opt, peer_qpn, peer_gid, peer_psn);
    }

    pub fn to_rts(&self) {
        to_rts(self.qp, &self.opt);
    }

    pub fn to(&self, state: ibv_qp_state) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = state;
        assert_eq!(modify(self.qp, &mut attr, IBV_QP_STATE), 0, "to {state:?}");
    }

    /// Posts one send request.
    pub fn send(&self, wr: &mut ibv_send_wr) -> c_int {
        post_send(self.qp, wr)
    }

    /// Posts a receive into `sges`.
    pub fn recv(&self, wr_id: u64, sges: &mut [ibv_sge]) -> c_int {
        post_recv(self.qp, wr_id, sges)
    }

    /// Waits for the next send completion.
    pub fn sent(&self) -> ibv_wc {
        wait(self.scq)
    }

    /// Waits for the next receive completion.
    pub fn received(&self) -> ibv_wc {
        wait(self.rcq)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed here only, users before what they use.
        unsafe {
            if !self.qp.is_null() {
                assert_eq!(verbs().destroy_qp(self.qp), 0);
            }
            assert_eq!(verbs().destroy_cq(self.scq), 0);
            assert_eq!(verbs().destroy_cq(self.rcq), 0);
            if !self.channel.is_null() {
                assert_eq!(verbs().destroy_comp_channel(self.channel), 0);
            }
            let result = verbs().dealloc_pd(self.pd);
            assert!(
                result == 0 || std::thread::panicking(),
                "dealloc_pd: {result}"
            );
        }
    }
}

pub fn qpn(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the callers' QPs are live.
    unsafe { (*qp).qp_num }
}

pub fn query(qp: *mut ibv_qp) -> (ibv_qp_attr, ibv_qp_init_attr) {
    let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
    let mask = (ibv_qp_attr_mask::all() - IBV_QP_RATE_LIMIT).bits() as c_int;
    // SAFETY: the callers' QPs are live, both places are writable.
    let result = unsafe { verbs().query_qp(qp, &mut attr, mask, &mut init) };
    assert_eq!(result, 0);
    (attr, init)
}

pub fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> c_int {
    // SAFETY: the callers' QPs are live, `attr` is a whole struct.
    unsafe { verbs().modify_qp(qp, attr, mask.bits() as c_int) }
}

pub fn to_init(qp: *mut ibv_qp, opt: &Options) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = opt.port;
    attr.qp_access_flags = opt.access;
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    assert_eq!(modify(qp, &mut attr, mask), 0, "to INIT");
}

pub fn to_rtr(qp: *mut ibv_qp, opt: &Options, dest_qpn: u32, gid: ibv_gid, rq_psn: u32) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = ibv_mtu::from_bytes(opt.mtu).expect("an MTU");
    attr.dest_qp_num = dest_qpn;
    attr.rq_psn = rq_psn;
    attr.max_dest_rd_atomic = opt.dest_rd_atomic;
    attr.min_rnr_timer = opt.min_rnr_timer;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = opt.port;
    attr.ah_attr.grh.dgid = gid;
    attr.ah_attr.grh.hop_limit = 64;
    let mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    assert_eq!(modify(qp, &mut attr, mask), 0, "to RTR");
}

pub fn to_rts(qp: *mut ibv_qp, opt: &Options) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = opt.timeout;
    attr.retry_cnt = opt.retry_cnt;
    attr.rnr_retry = opt.rnr_retry;
    attr.sq_psn = opt.psn;
    attr.max_rd_atomic = opt.rd_atomic;
    let mask = IBV_QP_STATE
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC;
    assert_eq!(modify(qp, &mut attr, mask), 0, "to RTS");
}

/// Two connected ends.
pub fn pair(a: &Device, b: &Device, opt: Options) -> (End, End) {
    let (x, y) = (End::new(a, opt), End::new(b, opt));
    connect(a, &x, b, &y);
    (x, y)
}

/// Brings two ends in RESET to RTS.
pub fn connect(a: &Device, x: &End, b: &Device, y: &End) {
    x.to_init();
    y.to_init();
    x.to_rtr(y.qpn(), b.gid(), y.opt.psn);
    y.to_rtr(x.qpn(), a.gid(), x.opt.psn);
    x.to_rts();
    y.to_rts();
}

/// A send request over `sges`, signaled.
pub fn wr(opcode: ibv_wr_opcode, wr_id: u64, sges: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr = ibv_send_wr::zeroed();
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.sg_list = sges.as_mut_ptr();
    wr.num_sge = sges.len() as c_int;
    wr.send_flags = IBV_SEND_SIGNALED.bits();
    wr
}

/// An RDMA request to `offset` of `remote`.
pub fn rdma(
    opcode: ibv_wr_opcode,
    wr_id: u64,
    sges: &mut [ibv_sge],
    remote: &Buf,
    offset: usize,
) -> ibv_send_wr {
    let mut wr = wr(opcode, wr_id, sges);
    wr.wr.rdma = ibv_send_wr_rdma {
        remote_addr: remote.at(offset),
        rkey: remote.rkey(),
    };
    wr
}

/// An atomic request on the word at `offset` of `remote`.
pub fn atomic(
    opcode: ibv_wr_opcode,
    wr_id: u64,
    sges: &mut [ibv_sge],
    remote: &Buf,
    offset: usize,
    compare_add: u64,
    swap: u64,
) -> ibv_send_wr {
    let mut wr = wr(opcode, wr_id, sges);
    let (remote_addr, rkey) = (remote.at(offset), remote.rkey());
    wr.wr.atomic = ibv_send_wr_atomic {
        remote_addr,
        compare_add,
        swap,
        rkey,
    };
    wr
}

pub fn post_send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> c_int {
    let mut bad = null_mut();
    let first: *mut ibv_send_wr = wr;
    // SAFETY: the callers' QPs are live; the request and its list live until the call returns.
    let result = unsafe { ops::ibv_post_send(qp, first, &mut bad) };
    if result != 0 && wr.next.is_null() {
        assert!(std::ptr::eq(bad, first), "bad_wr names the only request");
    }
    result
}

/// Posts a list; gives the result and the position of the refused request.
pub fn post_list(qp: *mut ibv_qp, wrs: &mut [ibv_send_wr]) -> (c_int, Option<usize>) {
    let base = wrs.as_mut_ptr();
    let mut bad = null_mut();
    // SAFETY: the callers' QPs are live; the requests are linked to each other inside the slice.
    unsafe {
        for i in 0..wrs.len() {
            let next = if i + 1 < wrs.len() {
                base.add(i + 1)
            } else {
                null_mut()
            };
            (*base.add(i)).next = next;
        }
        let result = ops::ibv_post_send(qp, base, &mut bad);
        let at = (result != 0).then(|| bad.offset_from(base) as usize);
        (result, at)
    }
}

pub fn post_recv(qp: *mut ibv_qp, wr_id: u64, sges: &mut [ibv_sge]) -> c_int {
    let mut wr = ibv_recv_wr::zeroed();
    wr.wr_id = wr_id;
    wr.sg_list = sges.as_mut_ptr();
    wr.num_sge = sges.len() as c_int;
    let mut bad = null_mut();
    // SAFETY: the callers' QPs are live; the request and its list live until the call returns.
    unsafe { ops::ibv_post_recv(qp, &mut wr, &mut bad) }
}

/// One poll for one completion.
pub fn poll_once(cq: *mut ibv_cq) -> Result<Option<ibv_wc>, c_int> {
    let mut wc = ibv_wc::zeroed();
    // SAFETY: the callers' CQs are live, there is room for one completion.
    match unsafe { ops::ibv_poll_cq(cq, 1, &mut wc) } {
        0 => Ok(None),
        1 => Ok(Some(wc)),
        error => Err(error),
    }
}

/// Waits for the next completion.
pub fn wait(cq: *mut ibv_cq) -> ibv_wc {
    let end = Instant::now() + PATIENCE;
    loop {
        match poll_once(cq) {
            Ok(Some(wc)) => return wc,
            Ok(None) => assert!(Instant::now() < end, "no completion within {PATIENCE:?}"),
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// Asserts that nothing completes for `time`.
pub fn nothing(cq: *mut ibv_cq, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let got = poll_once(cq).expect("a poll");
        assert!(got.is_none(), "{got:?}");
    }
}

/// Waits until `done` holds, without calling the device.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Asserts a success and gives the completion.
#[track_caller]
pub fn ok(wc: ibv_wc) -> ibv_wc {
    assert_eq!(wc.status, IBV_WC_SUCCESS, "{wc:?}");
    wc
}
