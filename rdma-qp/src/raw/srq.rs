//! Shared receive queues: creation, the limit, and the post call.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_core_sys::*;

use super::cq::CqHandle;
use super::last;
use super::pd::PdHandle;
use super::post::{NotPosted, Refusal, lend};
use super::region::LocalSlice;
use super::ring::Ring;
use super::xrc::XrcdHandle;
use super::{errno_of, pointer, status};
use crate::account::{Books, Operation, Seen, Share, Shared};
use crate::errno::Errno;
use crate::wr_id::{QueueKind, SHARED};

/// What the `srq_context` of our SRQs holds beside the number.
const TAG: usize = SHARED as usize;

/// The number of the SRQ that an event is about. `None`: it is none of this library's.
///
/// # Safety
/// `srq` is live.
pub(super) unsafe fn number_of(srq: *const ibv_srq) -> Option<u32> {
    // SAFETY: the SRQ is live, as the caller promises.
    let context = unsafe { (*srq).srq_context } as usize;
    let number = context.checked_sub(TAG)?;
    (number < TAG).then_some(number as u32)
}

/// Why an SRQ was not made.
pub(crate) enum NoSrq {
    /// The process has as many as it can tell apart.
    TooMany,
    /// The library refused.
    Refused(Errno),
}

/// What an XRC SRQ has beside its PD: the domain that it stands in, and the CQ of its receives.
pub(crate) type XrcParts = (Arc<XrcdHandle>, Arc<CqHandle>);

/// A shared receive queue with its books.
pub(crate) struct SrqHandle {
    ptr: NonNull<ibv_srq>,
    pd: Arc<PdHandle>,
    xrc: Option<XrcParts>,
    pub(crate) shared: Arc<Shared>,
    /// What creation granted.
    pub(crate) cap: ibv_srq_attr,
    /// Numbers of the QPs that take their receives from it.
    users: Mutex<Vec<u32>>,
    /// What receives may use, and whose owner is gone: it lives until the SRQ is destroyed.
    kept: Mutex<Option<Box<dyn Any + Send>>>,
    destroyed: bool,
}

// SAFETY: an ibv_srq and all calls on it may be used from any thread.
unsafe impl Send for SrqHandle {}
// SAFETY: through `&SrqHandle` only queries and modifies are possible, which the library serialises; posting takes the
// only `SrqPoster`.
unsafe impl Sync for SrqHandle {}

impl SrqHandle {
    pub(crate) fn pd(&self) -> &Arc<PdHandle> {
        &self.pd
    }

    /// The verbs object, for callers that know what they do with it.
    pub(crate) fn as_ptr(&self) -> *mut ibv_srq {
        self.ptr.as_ptr()
    }

    fn users(&self) -> MutexGuard<'_, Vec<u32>> {
        // A list of numbers is whole after every single operation.
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers of the QPs that take their receives from it.
    pub(crate) fn qps(&self) -> Vec<u32> {
        self.users().clone()
    }

    /// Enters a QP that takes its receives from it.
    pub(super) fn join(&self, qp: u32) {
        self.users().push(qp);
    }

    /// Forgets such a QP: it is destroyed.
    pub(super) fn leave(&self, qp: u32) {
        // One of them: another QP may have got the number already.
        let mut users = self.users();
        if let Some(at) = users.iter().position(|user| *user == qp) {
            users.remove(at);
        }
    }

    /// Keeps what receives may use until the SRQ is destroyed.
    pub(crate) fn keep(&self, kept: Box<dyn Any + Send>) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
    }

    /// Lets receives complete on `cq`, see [`Shared::attach`].
    pub(crate) fn attach(&self, cq: &CqHandle) -> Option<(Share, bool)> {
        self.shared.attach(&cq.room, &cq.attention)
    }

    /// `ibv_get_srq_num`: the number by which XRC requests name it.
    pub(crate) fn xrc_number(&self) -> Result<u32, Errno> {
        let mut number = 0;
        // SAFETY: the SRQ is live (invariant 1); `number` is a 32-bit integer.
        status(unsafe { ops::ibv_get_srq_num(self.as_ptr(), &mut number) })?;
        if let Some((xrcd, _)) = &self.xrc {
            xrcd.enter_srq((number, self.shared.number));
        }
        Ok(number)
    }

    /// `ibv_query_srq`.
    pub(crate) fn query(&self) -> Result<ibv_srq_attr, Errno> {
        let mut attr = ibv_srq_attr::zeroed();
        // SAFETY: the SRQ is live (invariant 1); `attr` is whole.
        status(unsafe { self.pd.context.verbs.query_srq(self.as_ptr(), &mut attr) })?;
        Ok(attr)
    }

    /// `ibv_modify_srq` of the limit.
    pub(crate) fn set_limit(&self, limit: u32) -> Result<(), Errno> {
        let mut attr = ibv_srq_attr::zeroed();
        attr.srq_limit = limit;
        let mask = IBV_SRQ_LIMIT.bits() as i32;
        // SAFETY: the SRQ is live (invariant 1); `attr` is whole.
        status(unsafe {
            self.pd
                .context
                .verbs
                .modify_srq(self.as_ptr(), &mut attr, mask)
        })
    }

    /// Destroys the SRQ and says whether that worked. No QP uses it: the caller has the only `Arc`. After success the
    /// device touches nothing of it, which the books are told.
    pub(crate) fn destroy(&mut self) -> Result<(), Errno> {
        if self.destroyed {
            return Ok(());
        }
        // SAFETY: the SRQ is live (`destroyed`), and its QPs held an Arc to it and are gone (invariant 2).
        status(unsafe { self.pd.context.verbs.destroy_srq(self.as_ptr()) })?;
        self.destroyed = true;
        self.shared.end();
        if let Some((xrcd, _)) = &self.xrc {
            xrcd.leave_srq(self.shared.number);
        }
        self.pd.leave_queues();
        self.pd.sweep();
        Ok(())
    }
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        if let Err(errno) = self.destroy() {
            tracing::error!(
                device = %self.pd.context.name, srq = self.shared.number, %errno,
                "an SRQ could not be destroyed; it stays, with its PD and every region that it may use"
            );
            // The device may go on using them: they must outlive the process's interest in them.
            let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget((self.pd.clone(), self.xrc.clone(), kept.take()));
        }
    }
}

/// The poster of an SRQ that was not destroyed, and the QPs that use it, or what the library said.
pub(crate) type NotDestroyed = (Box<SrqPoster>, Result<Vec<u32>, Errno>);

/// The right to post to an SRQ; there is one of it. It has the requests that are being built.
pub(crate) struct SrqPoster {
    pub(crate) handle: Arc<SrqHandle>,
    ring: Ring<ibv_recv_wr>,
    /// Receives that can be posted for sure.
    free: u64,
    seen: Seen,
}

impl SrqPoster {
    /// Makes an SRQ of `depth` receives of up to `sge` entries each; with `xrc`, one for XRC.
    pub(crate) fn create(
        pd: &Arc<PdHandle>,
        depth: u32,
        sge: u32,
        xrc: Option<XrcParts>,
    ) -> Result<SrqPoster, NoSrq> {
        let shared = Arc::new(Shared::new(depth).ok_or(NoSrq::TooMany)?);
        let mut init = ibv_srq_init_attr_ex::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (depth, sge);
        init.srq_context = ptr::without_provenance_mut::<c_void>(TAG + shared.number as usize);
        let mut mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        (init.srq_type, init.pd) = (IBV_SRQT_BASIC, pd.as_ptr());
        if let Some((xrcd, cq)) = &xrc {
            mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
            init.srq_type = IBV_SRQT_XRC;
            (init.xrcd, init.cq) = (xrcd.as_ptr(), cq.as_ptr());
        }
        init.comp_mask = mask.bits();
        let context = &pd.context;
        // SAFETY: the context, the PD, and the XRC domain and the CQ, if any, are live (invariant 1) and of one context (the
        // builder checked); `init` is whole.
        let made =
            pointer(unsafe { ops::ibv_create_srq_ex(&context.verbs, context.as_ptr(), &mut init) });
        let ptr = made.map_err(|errno| {
            shared.end();
            NoSrq::Refused(errno)
        })?;
        pd.enter_queue(Books::Shared(shared.clone()));
        Ok(SrqPoster {
            ring: Ring::new(1, init.attr.max_sge),
            free: 0,
            seen: Seen::default(),
            handle: Arc::new(SrqHandle {
                ptr,
                pd: pd.clone(),
                xrc,
                shared,
                cap: init.attr,
                users: Mutex::default(),
                kept: Mutex::default(),
                destroyed: false,
            }),
        })
    }

    /// How many receives can be posted now.
    pub(crate) fn room(&mut self) -> u64 {
        self.free = self.handle.shared.free(&mut self.seen);
        self.free
    }

    /// Destroys the SRQ. The poster comes back when QPs still use it, or when the library refuses.
    pub(crate) fn destroy(self) -> Result<(), NotDestroyed> {
        let SrqPoster {
            handle,
            ring,
            free,
            seen,
        } = self;
        let mut qps = Vec::new();
        let alone = last::owner(handle, |handle| {
            qps = handle.qps();
            qps.is_empty()
        });
        let (handle, reason) = match alone {
            Ok(mut handle) => match handle.destroy() {
                Ok(()) => return Ok(()),
                Err(errno) => (Arc::new(handle), Err(errno)),
            },
            Err(handle) => (handle, Ok(qps)),
        };
        let poster = SrqPoster {
            handle,
            ring,
            free,
            seen,
        };
        Err((Box::new(poster), reason))
    }

    /// How many requests a doorbell is for. What was built and not handed over must be handed over before.
    pub(crate) fn set_doorbell(&mut self, requests: u32) {
        debug_assert!(self.waiting() == 0);
        self.ring = Ring::new(requests, self.handle.cap.max_sge);
    }

    /// Requests that are built and not handed over.
    pub(crate) fn waiting(&self) -> u32 {
        self.ring.waiting()
    }

    /// Builds one receive into ranges of regions of this PD, and hands it over with those before it if the doorbell is
    /// due. Returns its `wr_id`. Each length is below 2^32, and there are no more ranges than the SRQ takes.
    #[inline]
    pub(crate) fn post<'a>(
        &mut self,
        local: impl ExactSizeIterator<Item = LocalSlice<'a>>,
        context: Option<u64>,
    ) -> Result<u64, NotPosted> {
        if self.free == 0 && self.room() == 0 {
            return Err(NotPosted::Full);
        }
        let (request, mut entries) = self.ring.next(local.len());
        let pd = self.handle.pd.id;
        request.num_sge = lend(&mut entries, QueueKind::SharedRecv, pd, u32::MAX, local)?.0 as i32;
        let shared = &self.handle.shared;
        let sequence = shared.next();
        let id = shared.mark(sequence) | Operation::Recv as u64;
        request.wr_id = id;
        if let Some(context) = context {
            shared.keep(sequence, context);
        }
        shared.enter(sequence);
        self.free -= 1;
        if !self.ring.filled() {
            return Ok(id);
        }
        let srq = self.handle.as_ptr();
        // SAFETY: as for `ring`.
        let posted = self
            .ring
            .hand_over(|first, bad| unsafe { ops::ibv_post_srq_recv(srq, first, bad) });
        if posted == 0 {
            return Ok(id);
        }
        let refused = self.ring.refused(posted);
        Err(self.take_back(refused))
    }

    /// Hands over the receives that are built.
    pub(crate) fn ring(&mut self) -> Result<(), NotPosted> {
        let srq = self.handle.as_ptr();
        // SAFETY: the SRQ is live (invariant 1). The ring links whole requests, each with so many initialised entries behind
        // `sg_list`; each entry is a range of a region of this PD, whose use by receive queues is noted and whose memory
        // stays registered and allocated until the books let go of the request, which was entered (invariant 3).
        let posted = self
            .ring
            .hand_over_some(|first, bad| unsafe { ops::ibv_post_srq_recv(srq, first, bad) });
        posted.map_err(|(count, status)| {
            let refused = self.ring.refused_of(count, status);
            self.take_back(refused)
        })
    }

    /// What was handed over and refused goes out of the books again.
    #[cold]
    fn take_back(&mut self, refused: super::ring::Refused) -> NotPosted {
        let shared = &self.handle.shared;
        let first = shared.withdraw(refused.refused);
        self.free += u64::from(refused.refused);
        NotPosted::Refused(Box::new(Refusal {
            accepted: refused.accepted,
            refused: refused.refused,
            first: shared.mark(first) | Operation::Recv as u64,
            errno: errno_of(refused.status),
        }))
    }
}
