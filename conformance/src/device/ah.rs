//! Address handles.

use std::ptr::NonNull;
use std::rc::Rc;

use rdma_core_sys::*;

use super::{Failed, Pd, failed, outcome, report};

/// An address handle: where datagrams go.
#[derive(Debug)]
pub struct Ah {
    pd: Rc<Pd>,
    ah: NonNull<ibv_ah>,
}

impl Ah {
    /// Creates one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(pd: &Rc<Pd>, attr: &ibv_ah_attr) -> Result<Rc<Ah>, Failed> {
        let mut attr = *attr;
        // SAFETY: the PD is alive until `pd` is dropped; `attr` is a whole struct of our own.
        let ah = unsafe { pd.device.verbs.create_ah(pd.pd.as_ptr(), &mut attr) };
        Ah::made("ibv_create_ah", pd, ah)
    }

    /// Creates one for an answer to a datagram, from its completion and the 40 bytes in front of it.
    ///
    /// # Errors
    /// The call's errno.
    pub fn for_answer(
        pd: &Rc<Pd>,
        wc: &ibv_wc,
        grh: &[u8; 40],
        port: u8,
    ) -> Result<Rc<Ah>, Failed> {
        let mut wc = *wc;
        // SAFETY: 40 bytes, which is the size of the struct; it is plain integers, so any bytes are valid.
        let mut grh: ibv_grh = unsafe { grh.as_ptr().cast::<ibv_grh>().read_unaligned() };
        // SAFETY: the PD is alive until `pd` is dropped; both structs are whole and our own.
        let ah =
            unsafe { (pd.device.verbs).create_ah_from_wc(pd.pd.as_ptr(), &mut wc, &mut grh, port) };
        Ah::made("ibv_create_ah_from_wc", pd, ah)
    }

    fn made(call: &str, pd: &Rc<Pd>, ah: *mut ibv_ah) -> Result<Rc<Ah>, Failed> {
        let ah = NonNull::new(ah).ok_or_else(|| failed(call))?;
        let pd = Rc::clone(pd);
        Ok(Rc::new(Ah { pd, ah }))
    }

    pub(super) fn ah(&self) -> *mut ibv_ah {
        self.ah.as_ptr()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed here only; requests that name it are posted and done, or dropped by the device
        // (ibv_post_send(3): it must live until then; the suite waits for them).
        let errno = unsafe { self.pd.device.verbs.destroy_ah(self.ah()) };
        report(outcome("ibv_destroy_ah", errno));
    }
}
