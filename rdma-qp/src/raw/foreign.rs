//! Queue Pairs that the program owns.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys::*;

use super::context::ContextHandle;
use super::status;
use crate::errno::Errno;
use crate::qp::{Handle, QpRef};

/// A Queue Pair that the program owns: its pointer, and the context that it is of.
pub(crate) struct ForeignQp {
    /// Not closed when it is dropped: it is the program's too.
    context: Arc<ContextHandle>,
    ptr: NonNull<ibv_qp>,
}

// SAFETY: an ibv_qp and all calls on it may be used from any thread.
unsafe impl Send for ForeignQp {}
// SAFETY: through `&ForeignQp` only queries are possible, which the library serialises.
unsafe impl Sync for ForeignQp {}

impl ForeignQp {
    /// The verbs object.
    pub(crate) fn as_ptr(&self) -> *mut ibv_qp {
        self.ptr.as_ptr()
    }
}

impl Handle for ForeignQp {
    fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }

    fn query(&self, mask: ibv_qp_attr_mask) -> Result<ibv_qp_attr, Errno> {
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        let verbs = &self.context.verbs;
        // SAFETY: the QP is live, as the caller of `QpRef::from_raw` promised; `attr` and `init` are whole.
        status(unsafe { verbs.query_qp(self.as_ptr(), &mut attr, mask.bits() as _, &mut init) })?;
        Ok(attr)
    }

    fn modify(&mut self, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), Errno> {
        let mut attr = *attr;
        let verbs = &self.context.verbs;
        // SAFETY: the QP is live, as the caller of `QpRef::from_raw` promised; `attr` is whole.
        status(unsafe { verbs.modify_qp(self.as_ptr(), &mut attr, mask.bits() as _) })
    }
}

impl<'a> QpRef<'a> {
    /// Takes a Queue Pair that the program owns, and goes on owning.
    ///
    /// `verbs` is the library that made it. A QP of the software device is known by itself, and its own functions are used,
    /// whatever `verbs` is.
    ///
    /// # Errors
    /// EINVAL: the pointer is null. EOPNOTSUPP: the QP is of a type that the transition rules do not know (a vendor's own).
    /// Any other: the device does not tell its attributes.
    ///
    /// # Safety
    /// For all of `'a`:
    /// - `qp` is null, or a live QP of that library (or of a software device), and is not destroyed; nor are its PD, its CQs,
    ///   and its context;
    /// - it is no QP of this library's own (`Qp::as_ptr`): their books would not know of what happens here;
    /// - nobody else modifies it during a call on the `QpRef`;
    /// - the memory that its posted requests use stays valid, as verbs asks of the program anyway: this type posts no
    ///   request that uses any.
    ///
    /// ```
    /// use rdma_core_sys::*;
    /// use rdma_qp::{Access, QpRef, ToInit, ToReset};
    ///
    /// let verbs = rdma_soft::verbs();
    /// // A program with verbs objects of its own.
    /// // SAFETY: each object is live until it is destroyed at the end, children first.
    /// unsafe {
    ///     let list = verbs.get_device_list(std::ptr::null_mut());
    ///     let context = verbs.open_device(*list);
    ///     let pd = verbs.alloc_pd(context);
    ///     let cq = verbs.create_cq(context, 16, std::ptr::null_mut(), std::ptr::null_mut(), 0);
    ///     let mut init = ibv_qp_init_attr::zeroed();
    ///     (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
    ///     (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
    ///     let raw = verbs.create_qp(pd, &mut init);
    ///
    ///     let mut qp = QpRef::from_raw(verbs, raw)?;
    ///     qp.to(ToInit { port: 1, pkey_index: 0, access: Access::REMOTE_READ })?;
    ///     let refused = qp.to(ToInit { port: 77, pkey_index: 0, access: Access::empty() }).unwrap_err();
    ///     assert!(refused.to_string().contains("port_num is 77"));
    ///     qp.to(ToReset)?;
    ///
    ///     assert_eq!(verbs.destroy_qp(raw), 0);
    ///     assert_eq!(verbs.destroy_cq(cq), 0);
    ///     assert_eq!(verbs.dealloc_pd(pd), 0);
    ///     assert_eq!(verbs.close_device(context), 0);
    ///     verbs.free_device_list(list);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn from_raw(verbs: &Verbs, qp: *mut ibv_qp) -> Result<QpRef<'a>, Errno> {
        let ptr = NonNull::new(qp).ok_or(Errno::EINVAL)?;
        // SAFETY: the caller promises a live QP.
        let verbs = unsafe { dispatch::table_of(qp) }.unwrap_or(verbs);
        // SAFETY: the caller promises a live QP, so its fields can be read.
        let (context, number, qp_type) = unsafe {
            let qp = ptr.as_ref();
            (qp.context, qp.qp_num, qp.qp_type)
        };
        let transport = rules::Transport::from_qp_type(qp_type).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the context of a live QP is live, and the caller promises that it stays so for 'a. The handle does not
        // leave the `QpRef`, which does not outlive 'a.
        let context = Arc::new(unsafe { ContextHandle::borrow(verbs, context) }?);
        let device = context.query_device()?;
        Ok(QpRef::new(
            ForeignQp { context, ptr },
            number,
            transport,
            device,
            PhantomData,
        ))
    }
}
