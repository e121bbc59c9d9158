//! Queue Pairs that the program owns.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys::*;

use super::context::ContextHandle;
use super::{errno_of, pointer, status};
use crate::errno::Errno;
use crate::qp::{Handle, QpRef};
use crate::wr_id::QueueKind;

/// A Queue Pair that the program owns: its pointer, and the context that it is of.
pub(crate) struct ForeignQp {
    /// Not closed when it is dropped: it is the program's too.
    context: Arc<ContextHandle>,
    ptr: NonNull<ibv_qp>,
    /// The address handle of a datagram that this library posted; verbs wants it to live as long as the request.
    address: Option<NonNull<ibv_ah>>,
}

// SAFETY: an ibv_qp and all calls on it may be used from any thread.
unsafe impl Send for ForeignQp {}
// SAFETY: through `&ForeignQp` only queries and polls are possible, which the library serialises.
unsafe impl Sync for ForeignQp {}

impl ForeignQp {
    /// The verbs object.
    pub(crate) fn as_ptr(&self) -> *mut ibv_qp {
        self.ptr.as_ptr()
    }

    /// Whether it receives from an SRQ.
    pub(crate) fn has_srq(&self) -> bool {
        // SAFETY: the QP is live, as the caller of `QpRef::from_raw` promised.
        !unsafe { self.ptr.as_ref() }.srq.is_null()
    }

    /// Takes completions off the CQ of that queue: up to `into.len()`. There are none where the QP has no such CQ, as an XRC
    /// target has none.
    pub(crate) fn poll(&self, queue: QueueKind, into: &mut [ibv_wc]) -> Result<usize, Errno> {
        // SAFETY: the QP is live, as the caller of `QpRef::from_raw` promised.
        let qp = unsafe { self.ptr.as_ref() };
        let cq = if queue == QueueKind::Send {
            qp.send_cq
        } else {
            qp.recv_cq
        };
        if cq.is_null() {
            return Ok(0);
        }
        // SAFETY: the CQ is live, as the caller of `QpRef::from_raw` promised; `into` has room for as many completions as are
        // asked for.
        let found = unsafe { ops::ibv_poll_cq(cq, into.len() as c_int, into.as_mut_ptr()) };
        usize::try_from(found).map_err(|_| errno_of(found))
    }

    /// Posts a signaled SEND without data.
    pub(crate) fn mark_sends(&mut self, wr_id: u64) -> Result<(), Errno> {
        let mut request = ibv_send_wr::zeroed();
        request.wr_id = wr_id;
        request.opcode = IBV_WR_SEND;
        request.send_flags = IBV_SEND_SIGNALED.bits();
        self.post(&mut request)
    }

    /// As [`ForeignQp::mark_sends`], on UD: the datagram names an address.
    pub(crate) fn mark_datagrams(
        &mut self,
        wr_id: u64,
        mut address: ibv_ah_attr,
    ) -> Result<(), Errno> {
        let ah = match self.address {
            Some(ah) => ah,
            None => {
                let verbs = self.context.verbs;
                // SAFETY: the QP and its PD are live, as the caller of `QpRef::from_raw` promised; `address` is whole.
                let made = unsafe { verbs.create_ah(self.ptr.as_ref().pd, &mut address) };
                let ah = pointer(made)?;
                *self.address.insert(ah)
            }
        };
        let mut request = ibv_send_wr::zeroed();
        request.wr_id = wr_id;
        request.opcode = IBV_WR_SEND;
        request.send_flags = IBV_SEND_SIGNALED.bits();
        request.wr.ud.ah = ah.as_ptr();
        // SAFETY: the QP is live, as the caller of `QpRef::from_raw` promised.
        request.wr.ud.remote_qpn = unsafe { self.ptr.as_ref() }.qp_num;
        self.post(&mut request)
    }

    /// Posts one send request without data.
    fn post(&mut self, request: &mut ibv_send_wr) -> Result<(), Errno> {
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is live, as the caller of `QpRef::from_raw` promised. The request is one, without entries; an address
        // handle that it names lives until `forget_address`.
        status(unsafe { ops::ibv_post_send(self.as_ptr(), request, &mut bad) })
    }

    /// Posts a receive without room.
    pub(crate) fn mark_receives(&mut self, wr_id: u64) -> Result<(), Errno> {
        let mut request = ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is live, as the caller of `QpRef::from_raw` promised. The request is one, without entries.
        status(unsafe { ops::ibv_post_recv(self.as_ptr(), &mut request, &mut bad) })
    }

    /// Destroys the address handle of a datagram that is done.
    pub(crate) fn forget_address(&mut self) {
        if let Some(ah) = self.address.take() {
            // SAFETY: the handle was made by `mark_datagrams`, on a PD that is live, and is destroyed once.
            let _ = unsafe { self.context.verbs.destroy_ah(ah.as_ptr()) };
        }
    }
}

impl Drop for ForeignQp {
    /// A datagram of this library that is still under way is flushed: the QP is in ERR, where no device looks at an address.
    fn drop(&mut self) {
        self.forget_address();
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
    /// - nobody else polls its CQs during a call of [`QpRef::drain`], and none of them is a CQ of this library's own;
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
            ForeignQp {
                context,
                ptr,
                address: None,
            },
            number,
            transport,
            device,
            PhantomData,
        ))
    }
}
