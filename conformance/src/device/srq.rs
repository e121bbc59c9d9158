//! Shared receive queues and XRC domains.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use libc::O_CREAT;
use rdma_core_sys::*;

use super::{Cq, Device, Failed, Pd, failed, outcome, report};

/// An XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    _device: Rc<Device>,
    xrcd: NonNull<ibv_xrcd>,
}

impl Xrcd {
    /// Opens a private one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(device: &Rc<Device>) -> Result<Rc<Xrcd>, Failed> {
        let mut attr = ibv_xrcd_init_attr::zeroed();
        attr.comp_mask = (IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS).bits();
        attr.fd = -1;
        attr.oflags = O_CREAT;
        // SAFETY: the context is open until `device` is dropped; `attr` is a whole struct of our own.
        let xrcd = unsafe { ops::ibv_open_xrcd(device.context.as_ptr(), &mut attr) };
        let xrcd = NonNull::new(xrcd).ok_or_else(|| failed("ibv_open_xrcd"))?;
        let _device = Rc::clone(device);
        Ok(Rc::new(Xrcd { _device, xrcd }))
    }

    pub(super) fn xrcd(&self) -> *mut ibv_xrcd {
        self.xrcd.as_ptr()
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        // SAFETY: opened once, closed here only; all objects on it own it, so they are gone.
        let errno = unsafe { ops::ibv_close_xrcd(self.xrcd()) };
        report(outcome("ibv_close_xrcd", errno));
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    pd: Rc<Pd>,
    _xrc: Option<(Rc<Xrcd>, Rc<Cq>)>,
    srq: NonNull<ibv_srq>,
    attr: ibv_srq_attr,
}

impl Srq {
    /// Creates a basic one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(pd: &Rc<Pd>, max_wr: u32, max_sge: u32) -> Result<Rc<Srq>, Failed> {
        let mut init = ibv_srq_init_attr::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
        // SAFETY: the PD is alive until `pd` is dropped; `init` is writable.
        let srq = unsafe { pd.device.verbs.create_srq(pd.pd.as_ptr(), &mut init) };
        let srq = NonNull::new(srq).ok_or_else(|| failed("ibv_create_srq"))?;
        Ok(Rc::new(Srq {
            pd: Rc::clone(pd),
            _xrc: None,
            srq,
            attr: init.attr,
        }))
    }

    /// Creates one for XRC, whose completions go to `cq`.
    ///
    /// # Errors
    /// The call's errno.
    pub fn xrc(
        pd: &Rc<Pd>,
        xrcd: &Rc<Xrcd>,
        cq: &Rc<Cq>,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Rc<Srq>, Failed> {
        let mut init = ibv_srq_init_attr_ex::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
        init.comp_mask = (IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ)
            .bits();
        init.srq_type = IBV_SRQT_XRC;
        (init.pd, init.xrcd, init.cq) = (pd.pd.as_ptr(), xrcd.xrcd(), cq.cq());
        let device = &pd.device;
        // SAFETY: the context is open and of this table; domain, XRC domain and CQ are alive until they are dropped, and
        // the SRQ owns them.
        let srq =
            unsafe { ops::ibv_create_srq_ex(&device.verbs, device.context.as_ptr(), &mut init) };
        let srq = NonNull::new(srq).ok_or_else(|| failed("ibv_create_srq_ex"))?;
        Ok(Rc::new(Srq {
            pd: Rc::clone(pd),
            _xrc: Some((Rc::clone(xrcd), Rc::clone(cq))),
            srq,
            attr: init.attr,
        }))
    }

    pub(super) fn srq(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    /// Tells it from other SRQs, in events.
    #[must_use]
    pub fn id(&self) -> usize {
        self.srq().addr()
    }

    /// What the device gave at creation.
    #[must_use]
    pub fn given(&self) -> ibv_srq_attr {
        self.attr
    }

    /// The number by which XRC senders name it.
    ///
    /// # Errors
    /// The call's errno.
    pub fn number(&self) -> Result<u32, Failed> {
        let mut number = 0;
        // SAFETY: the SRQ is alive until the drop; `number` is writable.
        let errno = unsafe { ops::ibv_get_srq_num(self.srq(), &mut number) };
        outcome("ibv_get_srq_num", errno).map(|()| number)
    }

    /// Its attributes.
    ///
    /// # Errors
    /// The call's errno.
    pub fn query(&self) -> Result<ibv_srq_attr, Failed> {
        let mut attr = ibv_srq_attr::zeroed();
        // SAFETY: the SRQ is alive until the drop; `attr` is writable.
        let errno = unsafe { self.pd.device.verbs.query_srq(self.srq(), &mut attr) };
        outcome("ibv_query_srq", errno).map(|()| attr)
    }

    /// `ibv_modify_srq`.
    ///
    /// # Errors
    /// The call's errno.
    pub fn modify(&self, attr: &ibv_srq_attr, mask: ibv_srq_attr_mask) -> Result<(), Failed> {
        let mut attr = *attr;
        let mask = mask.bits().cast_signed();
        // SAFETY: the SRQ is alive until the drop; `attr` is a whole struct of our own.
        let errno = unsafe { self.pd.device.verbs.modify_srq(self.srq(), &mut attr, mask) };
        outcome("ibv_modify_srq", errno)
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// The call's errno.
    pub fn post(&self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Failed> {
        let mut sges = sges.to_vec();
        let mut wr = ibv_recv_wr::zeroed();
        wr.wr_id = wr_id;
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as c_int;
        let mut bad = null_mut();
        // SAFETY: the SRQ is alive and its device has `post_srq_recv` (checked by `Device::open`); one request whose list
        // lives during the call. The device reaches memory by keys alone (see the module).
        outcome("ibv_post_srq_recv", unsafe {
            ops::ibv_post_srq_recv(self.srq(), &mut wr, &mut bad)
        })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed here only; all QPs on it own it, so they are gone.
        let errno = unsafe { self.pd.device.verbs.destroy_srq(self.srq()) };
        report(outcome("ibv_destroy_srq", errno));
    }
}
