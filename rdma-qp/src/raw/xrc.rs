//! XRC domains, and targets: the ends of XRC that have no queue.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_core_sys::*;

use super::context::ContextHandle;
use super::{pointer, status};
use crate::account::Queue;
use crate::errno::Errno;
use crate::qp::Handle;
use crate::wr_id::QueueKind;

/// What is in a domain of this process's: numbers of targets, each as often as it is open, and of SRQs, as the device and as
/// this library counts them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    pub(crate) targets: Vec<u32>,
    pub(crate) srqs: Vec<(u32, u32)>,
}

/// An open XRC domain.
pub(crate) struct XrcdHandle {
    pub(crate) context: Arc<ContextHandle>,
    ptr: NonNull<ibv_xrcd>,
    contents: Mutex<Contents>,
    closed: bool,
}

// SAFETY: an ibv_xrcd and all calls on it may be used from any thread; the rest is behind a mutex.
unsafe impl Send for XrcdHandle {}
// SAFETY: as above.
unsafe impl Sync for XrcdHandle {}

impl XrcdHandle {
    /// Opens the domain that the file behind `fd` names, or a new one without name.
    pub(crate) fn open(
        context: &Arc<ContextHandle>,
        fd: Option<BorrowedFd<'_>>,
        oflags: i32,
    ) -> Result<XrcdHandle, Errno> {
        let mut attr = ibv_xrcd_init_attr::zeroed();
        attr.comp_mask = (IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS).bits();
        (attr.fd, attr.oflags) = (fd.map_or(-1, |fd| fd.as_raw_fd()), oflags);
        // SAFETY: the context is live (invariant 1); `attr` is whole, and its descriptor is open for the call.
        let ptr = pointer(unsafe { ops::ibv_open_xrcd(context.as_ptr(), &mut attr) })?;
        Ok(XrcdHandle {
            context: context.clone(),
            ptr,
            contents: Mutex::default(),
            closed: false,
        })
    }

    /// The verbs object, for callers that know what they do with it.
    pub(crate) fn as_ptr(&self) -> *mut ibv_xrcd {
        self.ptr.as_ptr()
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        // Lists of numbers are whole after every single operation.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in it, as far as it was made through this.
    pub(crate) fn contents(&self) -> Contents {
        self.lock().clone()
    }

    /// Enters an SRQ.
    pub(super) fn enter_srq(&self, number: (u32, u32)) {
        self.lock().srqs.push(number);
    }

    /// Forgets an SRQ: it is destroyed.
    pub(super) fn leave_srq(&self, own: u32) {
        self.lock().srqs.retain(|(_, number)| *number != own);
    }

    /// Closes it and says whether that worked. Nothing is left in it: the caller has the only `Arc`.
    pub(crate) fn close(&mut self) -> Result<(), Errno> {
        if self.closed {
            return Ok(());
        }
        // SAFETY: the domain is live (`closed`), and its SRQs and targets held an Arc to it and are gone (invariant 2).
        status(unsafe { ops::ibv_close_xrcd(self.as_ptr()) })?;
        self.closed = true;
        Ok(())
    }
}

impl Drop for XrcdHandle {
    fn drop(&mut self) {
        if let Err(errno) = self.close() {
            tracing::error!(device = %self.context.name, %errno, "an XRC domain could not be closed and stays");
            std::mem::forget(self.context.clone());
        }
    }
}

/// A handle of an XRC target. The target itself lives until its last handle, of whatever process, is destroyed.
pub(crate) struct TargetHandle {
    ptr: NonNull<ibv_qp>,
    number: u32,
    xrcd: Arc<XrcdHandle>,
    /// A queue to which nothing is ever posted: it tells the lives of the target apart.
    pub(crate) lives: Arc<Queue>,
    destroyed: bool,
}

// SAFETY: an ibv_qp and all calls on it may be used from any thread.
unsafe impl Send for TargetHandle {}
// SAFETY: through `&TargetHandle` only queries are possible, which the library serialises.
unsafe impl Sync for TargetHandle {}

impl TargetHandle {
    /// Makes a target in a domain.
    pub(crate) fn create(xrcd: &Arc<XrcdHandle>) -> Result<TargetHandle, Errno> {
        let context = &xrcd.context;
        let mut init = ibv_qp_init_attr_ex::zeroed();
        init.qp_type = IBV_QPT_XRC_RECV;
        (init.comp_mask, init.xrcd) = (IBV_QP_INIT_ATTR_XRCD.bits(), xrcd.as_ptr());
        // SAFETY: the context and the domain, which is of it, are live (invariant 1); `init` is whole.
        let made = unsafe { ops::ibv_create_qp_ex(&context.verbs, context.as_ptr(), &mut init) };
        Ok(TargetHandle::of(xrcd, pointer(made)?))
    }

    /// Opens the target of that number, which stands in the domain.
    pub(crate) fn open(xrcd: &Arc<XrcdHandle>, number: u32) -> Result<TargetHandle, Errno> {
        let mut attr = ibv_qp_open_attr::zeroed();
        attr.comp_mask =
            (IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE).bits();
        (attr.qp_num, attr.xrcd, attr.qp_type) = (number, xrcd.as_ptr(), IBV_QPT_XRC_RECV);
        // SAFETY: the context and the domain, which is of it, are live (invariant 1); `attr` is whole.
        let opened = unsafe { ops::ibv_open_qp(xrcd.context.as_ptr(), &mut attr) };
        Ok(TargetHandle::of(xrcd, pointer(opened)?))
    }

    fn of(xrcd: &Arc<XrcdHandle>, ptr: NonNull<ibv_qp>) -> TargetHandle {
        // SAFETY: the library just made it; it is valid until it is destroyed.
        let number = unsafe { ptr.as_ref().qp_num };
        xrcd.lock().targets.push(number);
        let lives = Queue::new(QueueKind::Recv, 0, 0, 0, 0, Arc::default()).of_qp(number);
        TargetHandle {
            ptr,
            number,
            xrcd: xrcd.clone(),
            lives: Arc::new(lives),
            destroyed: false,
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The verbs object, for callers that know what they do with it.
    pub(crate) fn as_ptr(&self) -> *mut ibv_qp {
        self.ptr.as_ptr()
    }

    /// Destroys the handle.
    pub(crate) fn destroy(&mut self) -> Result<(), Errno> {
        if self.destroyed {
            return Ok(());
        }
        // SAFETY: the handle is live (`destroyed`), and keeps this from happening twice.
        status(unsafe { self.xrcd.context.verbs.destroy_qp(self.as_ptr()) })?;
        self.destroyed = true;
        self.lives.end();
        let mut contents = self.xrcd.lock();
        if let Some(at) = contents.targets.iter().position(|n| *n == self.number) {
            contents.targets.swap_remove(at);
        }
        Ok(())
    }
}

impl Handle for TargetHandle {
    fn context(&self) -> &Arc<ContextHandle> {
        &self.xrcd.context
    }

    fn query(&self, mask: ibv_qp_attr_mask) -> Result<ibv_qp_attr, Errno> {
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        let verbs = &self.xrcd.context.verbs;
        // SAFETY: the QP is live (invariant 1); `attr` and `init` are whole.
        status(unsafe { verbs.query_qp(self.as_ptr(), &mut attr, mask.bits() as _, &mut init) })?;
        Ok(attr)
    }

    fn modify(&mut self, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), Errno> {
        let mut attr = *attr;
        let verbs = &self.xrcd.context.verbs;
        // SAFETY: the QP is live (invariant 1); `attr` is whole.
        status(unsafe { verbs.modify_qp(self.as_ptr(), &mut attr, mask.bits() as _) })?;
        if mask.contains(IBV_QP_STATE) && attr.qp_state == IBV_QPS_RESET {
            self.lives.begin_new_life();
        }
        Ok(())
    }
}

impl Drop for TargetHandle {
    fn drop(&mut self) {
        if let Err(errno) = self.destroy() {
            tracing::error!(
                device = %self.xrcd.context.name, qp = self.number, %errno,
                "an XRC target could not be destroyed; it stays, with its domain"
            );
            std::mem::forget(self.xrcd.clone());
        }
    }
}
