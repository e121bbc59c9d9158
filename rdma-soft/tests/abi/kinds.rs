//! Beyond pairs of RC: Queue Pairs of every transport, shared receive queues, XRC domains, address
//! handles, memory windows. Each value owns its object and destroys it.

use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::*;
use rdma_soft::verbs;

use crate::common::*;

pub const EPERM: c_int = 1;

/// What the device says of the last call of this thread that it refused.
pub fn why() -> String {
    rdma_soft::last_refusal().unwrap_or_default()
}

/// Asserts that the device's words on its last refusal name all of `parts`.
#[track_caller]
pub fn says(parts: &[&str]) {
    let why = why();
    for part in parts {
        assert!(why.contains(part), "{why:?} does not name {part:?}");
    }
}

/// The IP address of the device's first GID.
pub fn address(device: &Device) -> std::net::IpAddr {
    std::net::Ipv6Addr::from(device.gid().raw).to_canonical()
}

/// The same request, without a completion of its own.
pub fn unsignaled(mut wr: ibv_send_wr) -> ibv_send_wr {
    wr.send_flags &= !IBV_SEND_SIGNALED.bits();
    wr
}

/// The same request with one flag more.
pub fn flagged(mut wr: ibv_send_wr, flag: ibv_send_flags) -> ibv_send_wr {
    wr.send_flags |= flag.bits();
    wr
}

/// The same request with immediate data.
pub fn with_imm(mut wr: ibv_send_wr, imm: u32) -> ibv_send_wr {
    wr.set_imm_data(imm);
    wr
}

impl End {
    /// PD and CQs without a Queue Pair; others are made on them.
    pub fn bare(device: &Device, opt: Options) -> End {
        let mut end = End::new(device, opt);
        // SAFETY: the QP is live and ours; the end forgets it.
        assert_eq!(unsafe { verbs().destroy_qp(end.qp) }, 0);
        end.qp = null_mut();
        end
    }

    /// What a Queue Pair of `kind` is created with: all that the kind has, and nothing else. For an
    /// XRC target `xrcd` is still to be set.
    pub fn init_attr_ex(&self, kind: ibv_qp_type) -> ibv_qp_init_attr_ex {
        let plain = self.init_attr();
        let mut attr = ibv_qp_init_attr_ex::zeroed();
        attr.qp_type = kind;
        if kind == IBV_QPT_XRC_RECV {
            attr.comp_mask = IBV_QP_INIT_ATTR_XRCD.bits();
            return attr;
        }
        attr.comp_mask = IBV_QP_INIT_ATTR_PD.bits();
        attr.pd = self.pd;
        attr.send_cq = plain.send_cq;
        attr.recv_cq = plain.recv_cq;
        attr.cap = plain.cap;
        attr.sq_sig_all = plain.sq_sig_all;
        if kind == IBV_QPT_XRC_SEND {
            attr.recv_cq = null_mut();
            (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
        }
        attr
    }
}

/// A Queue Pair of any kind.
pub struct Qp {
    pub qp: *mut ibv_qp,
    pub opt: Options,
}

impl Qp {
    /// Creates a Queue Pair, or gives errno.
    pub fn create(
        device: &Device,
        attr: &mut ibv_qp_init_attr_ex,
        opt: Options,
    ) -> Result<Qp, c_int> {
        // SAFETY: the context is open, what the attributes name is live.
        let qp = unsafe { ops::ibv_create_qp_ex(verbs(), device.ctx, attr) };
        if qp.is_null() {
            Err(errno())
        } else {
            Ok(Qp { qp, opt })
        }
    }

    /// A Queue Pair of a kind that needs no XRC domain, on the PD and the CQs of `end`.
    pub fn new(device: &Device, end: &End, kind: ibv_qp_type) -> Qp {
        let made = Qp::create(device, &mut end.init_attr_ex(kind), end.opt);
        made.unwrap_or_else(|errno| panic!("{kind:?}: errno {errno}: {}", why()))
    }

    /// Like [`new`](Qp::new), with its receives from `srq`.
    pub fn on_srq(device: &Device, end: &End, kind: ibv_qp_type, srq: &Srq) -> Qp {
        let mut attr = end.init_attr_ex(kind);
        attr.srq = srq.srq;
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
        let made = Qp::create(device, &mut attr, end.opt);
        made.unwrap_or_else(|errno| panic!("{kind:?} on an SRQ: errno {errno}: {}", why()))
    }

    /// An XRC target of `xrcd`.
    pub fn target(device: &Device, end: &End, xrcd: &Xrcd) -> Qp {
        let mut attr = end.init_attr_ex(IBV_QPT_XRC_RECV);
        attr.xrcd = xrcd.xrcd;
        let made = Qp::create(device, &mut attr, end.opt);
        made.unwrap_or_else(|errno| panic!("an XRC target: errno {errno}: {}", why()))
    }

    pub fn num(&self) -> u32 {
        qpn(self.qp)
    }

    pub fn kind(&self) -> ibv_qp_type {
        // SAFETY: the QP is live until the drop.
        unsafe { (*self.qp).qp_type }
    }

    pub fn state(&self) -> ibv_qp_state {
        query(self.qp).0.qp_state
    }

    pub fn send(&self, wr: &mut ibv_send_wr) -> c_int {
        post_send(self.qp, wr)
    }

    pub fn recv(&self, wr_id: u64, sges: &mut [ibv_sge]) -> c_int {
        post_recv(self.qp, wr_id, sges)
    }

    /// Moves to a state with a mask of the state alone.
    pub fn to(&self, state: ibv_qp_state) -> c_int {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = state;
        modify(self.qp, &mut attr, IBV_QP_STATE)
    }

    /// Moves to a state with exactly the attributes that the move needs, changed by `change`; gives what
    /// modify gives. A move that is not in the table is EINVAL.
    pub fn step_with(
        &self,
        state: ibv_qp_state,
        peer: Peer,
        change: impl FnOnce(&mut ibv_qp_attr, &mut ibv_qp_attr_mask),
    ) -> c_int {
        let transport = Transport::from_qp_type(self.kind()).expect("a kind of QP");
        let Some(needs) = rules::required(transport, self.state(), state) else {
            return EINVAL;
        };
        let (mut attr, mut mask) = (self.attributes(state, peer), IBV_QP_STATE | needs);
        change(&mut attr, &mut mask);
        modify(self.qp, &mut attr, mask)
    }

    /// Moves to a state with exactly the attributes that the move needs.
    #[track_caller]
    pub fn step(&self, state: ibv_qp_state, peer: Peer) {
        let result = self.step_with(state, peer, |_, _| {});
        assert_eq!(result, 0, "{:?} to {state}: {}", self.kind(), why());
    }

    /// From RESET to RTS.
    #[track_caller]
    pub fn up(&self, peer: Peer) {
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            self.step(state, peer);
        }
    }

    fn attributes(&self, state: ibv_qp_state, peer: Peer) -> ibv_qp_attr {
        let opt = &self.opt;
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = state;
        attr.port_num = opt.port;
        attr.qkey = QKEY;
        attr.qp_access_flags = opt.access;
        attr.path_mtu = ibv_mtu::from_bytes(opt.mtu).expect("an MTU");
        attr.dest_qp_num = peer.qpn;
        attr.rq_psn = peer.psn;
        attr.max_dest_rd_atomic = opt.dest_rd_atomic;
        attr.min_rnr_timer = opt.min_rnr_timer;
        attr.ah_attr = av(opt.port, peer.gid);
        attr.timeout = opt.timeout;
        attr.retry_cnt = opt.retry_cnt;
        attr.rnr_retry = opt.rnr_retry;
        attr.sq_psn = opt.psn;
        attr.max_rd_atomic = opt.rd_atomic;
        attr
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: created in `create` or opened in `Xrcd::open_qp`, destroyed here only.
        let result = unsafe { verbs().destroy_qp(self.qp) };
        assert!(
            result == 0 || std::thread::panicking(),
            "{result}: {}",
            why()
        );
    }
}

/// The Q_Key of datagram Queue Pairs, unless a test says otherwise.
pub const QKEY: u32 = 0x1111_1111;

/// Whom a Queue Pair talks to.
#[derive(Clone, Copy)]
pub struct Peer {
    pub qpn: u32,
    pub gid: ibv_gid,
    pub psn: u32,
}

impl Peer {
    /// A Queue Pair of `device`, on its first port.
    pub fn of(device: &Device, qp: &Qp) -> Peer {
        Peer {
            qpn: qp.num(),
            gid: device.gid_of(qp.opt.port),
            psn: qp.opt.psn,
        }
    }

    /// For moves that name no peer.
    pub fn nobody(device: &Device) -> Peer {
        Peer {
            qpn: 0,
            gid: device.gid(),
            psn: 0,
        }
    }
}

/// Brings two Queue Pairs from RESET to RTS, connected to each other.
#[track_caller]
pub fn join(a: &Device, x: &Qp, b: &Device, y: &Qp) {
    let (here, there) = (Peer::of(a, x), Peer::of(b, y));
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        x.step(state, there);
        y.step(state, here);
    }
}

/// An address vector.
pub fn av(port: u8, dgid: ibv_gid) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr::zeroed();
    attr.is_global = 1;
    attr.port_num = port;
    attr.grh.dgid = dgid;
    attr.grh.hop_limit = 64;
    attr
}

/// An address handle.
pub struct Ah {
    pub ah: *mut ibv_ah,
}

impl Ah {
    pub fn new(end: &End, dgid: ibv_gid) -> Ah {
        // SAFETY: the PD is live, the attributes are a whole struct.
        let ah = unsafe { verbs().create_ah(end.pd, &mut av(end.opt.port, dgid)) };
        assert!(!ah.is_null(), "create_ah: errno {}: {}", errno(), why());
        Ah { ah }
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here only.
        let result = unsafe { verbs().destroy_ah(self.ah) };
        assert!(
            result == 0 || std::thread::panicking(),
            "{result}: {}",
            why()
        );
    }
}

/// A datagram over `sges`, signaled.
pub fn datagram(wr_id: u64, sges: &mut [ibv_sge], ah: &Ah, qpn: u32, qkey: u32) -> ibv_send_wr {
    let mut wr = wr(IBV_WR_SEND, wr_id, sges);
    wr.wr.ud = ibv_send_wr_ud {
        ah: ah.ah,
        remote_qpn: qpn,
        remote_qkey: qkey,
    };
    wr
}

/// A shared receive queue.
pub struct Srq {
    pub srq: *mut ibv_srq,
}

impl Srq {
    pub fn new(end: &End, max_wr: u32) -> Srq {
        let mut attr = ibv_srq_init_attr::zeroed();
        (attr.attr.max_wr, attr.attr.max_sge) = (max_wr, end.opt.sge);
        // SAFETY: the PD is live, the attributes are a whole struct.
        let srq = unsafe { verbs().create_srq(end.pd, &mut attr) };
        assert!(!srq.is_null(), "create_srq: errno {}: {}", errno(), why());
        Srq { srq }
    }

    /// An XRC SRQ, whose completions go to the receive CQ of `end`.
    pub fn xrc(device: &Device, end: &End, xrcd: &Xrcd, max_wr: u32) -> Srq {
        let mut attr = ibv_srq_init_attr_ex::zeroed();
        (attr.attr.max_wr, attr.attr.max_sge) = (max_wr, end.opt.sge);
        let mask = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ;
        attr.comp_mask = mask.bits();
        attr.srq_type = IBV_SRQT_XRC;
        (attr.pd, attr.xrcd, attr.cq) = (end.pd, xrcd.xrcd, end.rcq);
        // SAFETY: the context is open, what the attributes name is live.
        let srq = unsafe { ops::ibv_create_srq_ex(verbs(), device.ctx, &mut attr) };
        assert!(!srq.is_null(), "an XRC SRQ: errno {}: {}", errno(), why());
        Srq { srq }
    }

    /// The number that XRC requests name.
    pub fn num(&self) -> u32 {
        let mut num = 0;
        // SAFETY: the SRQ is live, the place is writable.
        assert_eq!(unsafe { ops::ibv_get_srq_num(self.srq, &mut num) }, 0);
        num
    }

    pub fn recv(&self, wr_id: u64, sges: &mut [ibv_sge]) -> c_int {
        let mut wr = ibv_recv_wr::zeroed();
        wr.wr_id = wr_id;
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as c_int;
        let mut bad = null_mut();
        // SAFETY: the SRQ is live; the request and its list live until the call returns.
        unsafe { ops::ibv_post_srq_recv(self.srq, &mut wr, &mut bad) }
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: created here, destroyed here only.
        let result = unsafe { verbs().destroy_srq(self.srq) };
        assert!(
            result == 0 || std::thread::panicking(),
            "{result}: {}",
            why()
        );
    }
}

/// An XRC domain.
pub struct Xrcd {
    pub xrcd: *mut ibv_xrcd,
}

impl Xrcd {
    /// A domain that nobody else can open.
    pub fn private(device: &Device) -> Xrcd {
        Xrcd::open(device, -1, libc::O_CREAT).expect("a domain")
    }

    /// The domain of an open file; gives errno where that is refused.
    pub fn open(device: &Device, fd: c_int, oflags: c_int) -> Result<Xrcd, c_int> {
        let mut attr = ibv_xrcd_init_attr::zeroed();
        attr.comp_mask = (IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS).bits();
        (attr.fd, attr.oflags) = (fd, oflags);
        // SAFETY: the context is open, the attributes are a whole struct.
        let xrcd = unsafe { ops::ibv_open_xrcd(device.ctx, &mut attr) };
        if xrcd.is_null() {
            Err(errno())
        } else {
            Ok(Xrcd { xrcd })
        }
    }

    /// Opens a target of this domain by its number, on `device`.
    pub fn open_qp(&self, device: &Device, num: u32, opt: Options) -> Result<Qp, c_int> {
        let mut attr = ibv_qp_open_attr::zeroed();
        let mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        attr.comp_mask = mask.bits();
        (attr.qp_num, attr.xrcd, attr.qp_type) = (num, self.xrcd, IBV_QPT_XRC_RECV);
        // SAFETY: the context is open, what the attributes name is live.
        let qp = unsafe { ops::ibv_open_qp(device.ctx, &mut attr) };
        if qp.is_null() {
            Err(errno())
        } else {
            Ok(Qp { qp, opt })
        }
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        // SAFETY: opened here, closed here only.
        let result = unsafe { ops::ibv_close_xrcd(self.xrcd) };
        assert!(
            result == 0 || std::thread::panicking(),
            "{result}: {}",
            why()
        );
    }
}

/// The same request, to an SRQ of an XRC target's domain.
pub fn to_srq(mut wr: ibv_send_wr, srqn: u32) -> ibv_send_wr {
    wr.qp_type.xrc.remote_srqn = srqn;
    wr
}

/// A memory window.
pub struct Mw {
    pub mw: *mut ibv_mw,
}

impl Mw {
    pub fn new(end: &End, kind: ibv_mw_type) -> Mw {
        // SAFETY: the PD is live.
        let mw = unsafe { ops::ibv_alloc_mw(end.pd, kind) };
        assert!(!mw.is_null(), "alloc_mw: errno {}: {}", errno(), why());
        Mw { mw }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: the window is live.
        unsafe { (*self.mw).rkey }
    }

    /// What a bind to a part of `buf` says.
    pub fn info(
        buf: &Buf,
        offset: usize,
        len: usize,
        access: ibv_access_flags,
    ) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: buf.mr,
            addr: buf.at(offset),
            length: len as u64,
            mw_access_flags: access.bits(),
        }
    }

    /// A bind request for a window of type 2.
    pub fn bind(&self, wr_id: u64, rkey: u32, info: ibv_mw_bind_info) -> ibv_send_wr {
        let mut wr = wr(IBV_WR_BIND_MW, wr_id, &mut []);
        wr.ext.bind_mw = ibv_send_wr_bind_mw {
            mw: self.mw,
            rkey,
            bind_info: info,
        };
        wr
    }

    /// Binds a window of type 1; gives what the call gives.
    pub fn bind_type_1(&self, qp: *mut ibv_qp, wr_id: u64, info: ibv_mw_bind_info) -> c_int {
        let mut bind = ibv_mw_bind::zeroed();
        bind.wr_id = wr_id;
        bind.send_flags = IBV_SEND_SIGNALED.bits();
        bind.bind_info = info;
        // SAFETY: QP, window and region are live.
        unsafe { ops::ibv_bind_mw(qp, self.mw, &mut bind) }
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed here only.
        let result = unsafe { ops::ibv_dealloc_mw(self.mw) };
        assert!(
            result == 0 || std::thread::panicking(),
            "{result}: {}",
            why()
        );
    }
}

/// A request that ends a window of type 2 on the node that posts it.
pub fn invalidate(wr_id: u64, rkey: u32) -> ibv_send_wr {
    let mut wr = wr(IBV_WR_LOCAL_INV, wr_id, &mut []);
    wr.imm.invalidate_rkey = rkey;
    wr
}

/// The key of a window's next bind: the upper 24 bits are the window's, the low byte belongs to the
/// application.
pub fn next_key(rkey: u32) -> u32 {
    rdma_core_sys::ops::ibv_inc_rkey(rkey)
}
