//! Queue Pairs.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use rdma_core_sys::*;

use super::{Bind, Cq, Failed, Pd, Send, Srq, Xrcd, failed, outcome, report};

/// What a QP is made of.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The protection domain; also the owner of an XRC target's device.
    pub pd: Rc<Pd>,
    /// The CQ of sends.
    pub send_cq: Option<Rc<Cq>>,
    /// The CQ of receives.
    pub recv_cq: Option<Rc<Cq>>,
    /// The SRQ.
    pub srq: Option<Rc<Srq>>,
    /// The XRC domain of a target, which then has no protection domain.
    pub xrcd: Option<Rc<Xrcd>>,
    /// The transport.
    pub qp_type: ibv_qp_type,
    /// What is asked for.
    pub cap: ibv_qp_cap,
    /// Every send makes a completion.
    pub sq_sig_all: bool,
    /// The `ibv_wr_*` calls that it shall have.
    pub send_ops: ibv_qp_create_send_ops_flags,
}

impl QpInit {
    /// A QP with these CQs, for sends and receives.
    #[must_use]
    pub fn new(pd: &Rc<Pd>, cqs: [&Rc<Cq>; 2], qp_type: ibv_qp_type, cap: ibv_qp_cap) -> QpInit {
        QpInit {
            pd: Rc::clone(pd),
            send_cq: Some(Rc::clone(cqs[0])),
            recv_cq: Some(Rc::clone(cqs[1])),
            srq: None,
            xrcd: None,
            qp_type,
            cap,
            sq_sig_all: false,
            send_ops: ibv_qp_create_send_ops_flags::empty(),
        }
    }
}

/// A Queue Pair.
#[derive(Debug)]
pub struct Qp {
    pub(super) qp: NonNull<ibv_qp>,
    init: QpInit,
    cap: ibv_qp_cap,
}

impl Qp {
    /// Creates one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(init: &QpInit) -> Result<Qp, Failed> {
        let mut attr = ibv_qp_init_attr_ex::zeroed();
        let cq = |cq: &Option<Rc<Cq>>| cq.as_ref().map_or(null_mut(), |cq| cq.cq());
        (attr.send_cq, attr.recv_cq) = (cq(&init.send_cq), cq(&init.recv_cq));
        attr.srq = init.srq.as_ref().map_or(null_mut(), |srq| srq.srq());
        attr.cap = init.cap;
        attr.qp_type = init.qp_type;
        attr.sq_sig_all = init.sq_sig_all.into();
        let mut mask = IBV_QP_INIT_ATTR_PD;
        attr.pd = init.pd.pd.as_ptr();
        if let Some(xrcd) = &init.xrcd {
            (attr.pd, attr.xrcd) = (null_mut(), xrcd.xrcd());
            mask = IBV_QP_INIT_ATTR_XRCD;
        }
        if !init.send_ops.is_empty() {
            attr.send_ops_flags = init.send_ops.bits();
            mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        }
        attr.comp_mask = mask.bits();
        let device = &init.pd.device;
        // SAFETY: the context is open and of this table; what `attr` names is alive, because the QP owns it.
        let qp =
            unsafe { ops::ibv_create_qp_ex(&device.verbs, device.context.as_ptr(), &mut attr) };
        Ok(Qp {
            qp: NonNull::new(qp).ok_or_else(|| {
                let calls = match init.send_ops.is_empty() {
                    true => "",
                    false => " with calls of its own",
                };
                failed(format!("ibv_create_qp of {:?}{calls}", init.qp_type))
            })?,
            init: init.clone(),
            cap: attr.cap,
        })
    }

    /// Opens the XRC target of this number once more (`ibv_open_qp`).
    ///
    /// # Errors
    /// The call's errno.
    pub fn open(pd: &Rc<Pd>, xrcd: &Rc<Xrcd>, number: u32) -> Result<Qp, Failed> {
        let mut attr = ibv_qp_open_attr::zeroed();
        attr.comp_mask =
            (IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE).bits();
        attr.qp_num = number;
        attr.xrcd = xrcd.xrcd();
        attr.qp_type = IBV_QPT_XRC_RECV;
        // SAFETY: the context is open; the XRC domain is alive, because the QP owns it.
        let qp = unsafe { ops::ibv_open_qp(pd.device.context.as_ptr(), &mut attr) };
        let cap = ibv_qp_cap::zeroed();
        Ok(Qp {
            qp: NonNull::new(qp).ok_or_else(|| failed("ibv_open_qp"))?,
            init: QpInit {
                pd: Rc::clone(pd),
                send_cq: None,
                recv_cq: None,
                srq: None,
                xrcd: Some(Rc::clone(xrcd)),
                qp_type: IBV_QPT_XRC_RECV,
                cap,
                sq_sig_all: false,
                send_ops: ibv_qp_create_send_ops_flags::empty(),
            },
            cap,
        })
    }

    fn verbs(&self) -> &Verbs {
        &self.init.pd.device.verbs
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the QP is alive until the drop, and the number never changes.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// What it was made of.
    #[must_use]
    pub fn init(&self) -> &QpInit {
        &self.init
    }

    /// The capacity that the device gave.
    #[must_use]
    pub fn cap(&self) -> ibv_qp_cap {
        self.cap
    }

    /// The CQ of sends.
    ///
    /// # Panics
    /// Where it was made without.
    #[must_use]
    pub fn send_cq(&self) -> &Cq {
        self.init.send_cq.as_ref().expect("a CQ of sends")
    }

    /// The CQ of receives.
    ///
    /// # Panics
    /// Where it was made without.
    #[must_use]
    pub fn recv_cq(&self) -> &Cq {
        self.init.recv_cq.as_ref().expect("a CQ of receives")
    }

    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// The call's errno.
    pub fn modify(&self, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), Failed> {
        let mut attr = *attr;
        let mask = mask.bits().cast_signed();
        // SAFETY: the QP is alive until the drop; `attr` is a whole struct of our own.
        let errno = unsafe { (self.verbs()).modify_qp(self.qp.as_ptr(), &mut attr, mask) };
        outcome("ibv_modify_qp", errno)
    }

    /// `ibv_query_qp`, for all attributes.
    ///
    /// # Errors
    /// The call's errno.
    pub fn query(&self) -> Result<ibv_qp_attr, Failed> {
        let mask = (ibv_qp_attr_mask::all() - IBV_QP_RATE_LIMIT)
            .bits()
            .cast_signed();
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        // SAFETY: the QP is alive until the drop; both structs are writable.
        let errno = unsafe {
            self.verbs()
                .query_qp(self.qp.as_ptr(), &mut attr, mask, &mut init)
        };
        outcome("ibv_query_qp", errno).map(|()| attr)
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// The call's errno.
    pub fn post_recv(&self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Failed> {
        let mut sges = sges.to_vec();
        let mut wr = ibv_recv_wr::zeroed();
        wr.wr_id = wr_id;
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as c_int;
        let mut bad = null_mut();
        // SAFETY: the QP is alive and its device has `post_recv` (checked by `Device::open`); one request whose list
        // lives during the call. The device reaches memory by keys alone (see the module).
        outcome("ibv_post_recv", unsafe {
            ops::ibv_post_recv(self.qp.as_ptr(), &mut wr, &mut bad)
        })
    }

    /// Posts one send.
    ///
    /// # Errors
    /// The call's errno.
    ///
    /// # Panics
    /// A datagram without a peer, or a bind without a binding.
    pub fn post_send(&self, send: &Send) -> Result<(), Failed> {
        self.post_sends(std::slice::from_ref(send))
            .map_err(|(failed, _)| failed)
    }

    /// Posts a list of sends with one call.
    ///
    /// # Errors
    /// The call's errno, and how many of the list were posted.
    ///
    /// # Panics
    /// A datagram without a peer, or a bind without a binding: providers read what those name unasked.
    pub fn post_sends(&self, sends: &[Send]) -> Result<(), (Failed, usize)> {
        for send in sends {
            self.check(send);
        }
        let mut raws: Vec<_> = sends.iter().map(Send::raw).collect();
        for at in 1..raws.len() {
            raws[at - 1].wr.next = &raw mut raws[at].wr;
        }
        let first = raws.first_mut().map_or(null_mut(), |raw| &raw mut raw.wr);
        let mut bad = null_mut();
        // SAFETY: the QP is alive and its device has `post_send` (checked by `Device::open`). A list whose requests,
        // entries and inline data live during the call (`raws`); handle, window and region that it names are alive by
        // their `Rc` and are there where a provider looks for them by the check above. The device reaches other memory by
        // keys alone (see the module).
        let errno = unsafe { ops::ibv_post_send(self.qp.as_ptr(), first, &mut bad) };
        outcome("ibv_post_send", errno).map_err(|failed| {
            let posted = raws.iter().position(|raw| std::ptr::eq(&raw.wr, bad));
            (failed, posted.unwrap_or(usize::MAX))
        })
    }

    /// Checks what providers read through pointers unasked.
    pub(super) fn check(&self, send: &Send) {
        let sends = matches!(
            send.opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV
        );
        let datagram = self.init.qp_type == IBV_QPT_UD && sends;
        assert!(!datagram || send.to.is_some(), "a datagram without a peer");
        let binds = send.opcode == IBV_WR_BIND_MW;
        assert!(!binds || send.bind.is_some(), "a bind without a binding");
    }

    /// Binds a window of type 1 (`ibv_bind_mw`).
    ///
    /// # Errors
    /// The call's errno.
    pub fn bind(&self, wr_id: u64, flags: ibv_send_flags, bind: &Bind) -> Result<(), Failed> {
        let mut mw_bind = ibv_mw_bind::zeroed();
        mw_bind.wr_id = wr_id;
        mw_bind.send_flags = flags.bits();
        mw_bind.bind_info = bind.info();
        // SAFETY: QP and window are alive; the region is null or alive, by the `Rc` of the binding.
        outcome("ibv_bind_mw", unsafe {
            ops::ibv_bind_mw(self.qp.as_ptr(), bind.window.mw(), &mut mw_bind)
        })
    }

    /// Attaches it to a multicast group.
    ///
    /// # Errors
    /// The call's errno.
    pub fn attach(&self, group: &ibv_gid) -> Result<(), Failed> {
        // SAFETY: the QP is alive until the drop; the GID is readable.
        outcome("ibv_attach_mcast", unsafe {
            self.verbs().attach_mcast(self.qp.as_ptr(), group, 0)
        })
    }

    /// Detaches it from a multicast group.
    ///
    /// # Errors
    /// The call's errno.
    pub fn detach(&self, group: &ibv_gid) -> Result<(), Failed> {
        // SAFETY: the QP is alive until the drop; the GID is readable.
        outcome("ibv_detach_mcast", unsafe {
            self.verbs().detach_mcast(self.qp.as_ptr(), group, 0)
        })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed here only, before the fields that it stands on.
        let errno = unsafe { self.verbs().destroy_qp(self.qp.as_ptr()) };
        report(outcome("ibv_destroy_qp", errno));
    }
}
