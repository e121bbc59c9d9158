//! Protection domains and the regions in them.
//!
//! A region that is dropped while queues may still hold requests on it goes to its PD's list of what is retired, with
//! the `posted` mark of each such queue. When a queue has let go of everything below its mark the mark falls away, and
//! the region without marks is deregistered and freed. Nothing on the posting path takes part in this. Address handles
//! end in the same way.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_core_sys::*;

use super::ah::{AddressHandle, Cache};
use super::context::ContextHandle;
use super::memory::{Bytes, Memory};
use super::mw::WindowHandle;
use super::region::Region;
use super::{pointer, status};
use crate::account::Books;
use crate::errno::Errno;
use crate::wr_id::QueueKind;

/// A queue that may still use a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Number of its QP; 0 for a shared receive queue.
    pub qp_num: u32,
    /// Number of the SRQ, see [`Srq::number`](crate::Srq::number); `None` for the queue of a QP.
    pub srq: Option<u32>,
    /// Which kind of queue.
    pub queue: QueueKind,
    /// Requests that were outstanding on the queue when it was looked at, any of which may use the region.
    pub outstanding: u64,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.srq {
            Some(srq) => write!(f, "SRQ {srq}")?,
            None => write!(f, "{} of QP {:#x}", self.queue, self.qp_num)?,
        }
        write!(f, " ({} outstanding)", self.outstanding)
    }
}

/// What requests name, so that it must outlive them.
pub(super) enum Resource {
    Region(Region),
    Ah(AddressHandle),
    Window(WindowHandle),
}

impl Resource {
    fn used_by(&self, kind: QueueKind) -> bool {
        match self {
            Resource::Region(region) => region.used_by(kind),
            Resource::Ah(ah) => kind == QueueKind::Send && ah.is_used(),
            Resource::Window(window) => kind == QueueKind::Send && window.is_used(),
        }
    }
}

/// Something that was dropped, waiting for queues to let go of it.
struct Retired {
    what: Resource,
    marks: Vec<(Books, u64)>,
}

#[derive(Default)]
struct State {
    queues: Vec<Books>,
    retired: Vec<Retired>,
}

/// A protection domain.
pub(crate) struct PdHandle {
    pub(crate) context: Arc<ContextHandle>,
    /// Unique among all PDs of the process, for ever; never 0.
    pub(crate) id: u64,
    ptr: NonNull<ibv_pd>,
    /// Live regions.
    regions: AtomicUsize,
    /// Memory windows that were made.
    pub(super) windows_made: AtomicUsize,
    /// Those of them that were freed; counted when they are.
    pub(super) windows_freed: AtomicUsize,
    /// Sweeps under way.
    sweeps: AtomicUsize,
    freed: bool,
    state: Mutex<State>,
    ahs: Mutex<Cache>,
    /// Address handles that somebody has, each as often as it is had.
    pub(super) held_ahs: AtomicUsize,
}

// SAFETY: an ibv_pd and all calls on it may be used from any thread; the rest is behind a mutex.
unsafe impl Send for PdHandle {}
// SAFETY: as above.
unsafe impl Sync for PdHandle {}

impl PdHandle {
    pub(crate) fn alloc(context: &Arc<ContextHandle>) -> Result<PdHandle, Errno> {
        // SAFETY: the context is live (invariant 1).
        let ptr = pointer(unsafe { context.verbs.alloc_pd(context.as_ptr()) })?;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Relaxed);
        Ok(PdHandle {
            context: context.clone(),
            id,
            ptr,
            regions: AtomicUsize::new(0),
            windows_made: AtomicUsize::new(0),
            windows_freed: AtomicUsize::new(0),
            sweeps: AtomicUsize::new(0),
            freed: false,
            state: Mutex::default(),
            ahs: Mutex::default(),
            held_ahs: AtomicUsize::new(0),
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.ptr.as_ptr()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The lists are valid after every single operation on them, whoever panicked in between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cache of address handles.
    pub(super) fn cached_ahs(&self) -> MutexGuard<'_, Cache> {
        // As for the state.
        self.ahs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers `memory`; a refusal gives it back.
    pub(crate) fn register(
        &self,
        memory: Memory,
        access: ibv_access_flags,
    ) -> Result<Region, (Errno, Memory)> {
        let bytes = Bytes::new(memory);
        let (start, len) = (bytes.start(), bytes.len());
        // SAFETY: the PD is live (invariant 1) and the range is one allocation, which the Region keeps until the device has
        // let go of it (invariant 3).
        let mr = unsafe {
            ops::ibv_reg_mr(
                &self.context.verbs,
                self.as_ptr(),
                start.as_ptr().cast(),
                len,
                access.bits(),
            )
        };
        match pointer(mr) {
            Ok(mr) => Ok(self.region(bytes, start.as_ptr() as u64, len, mr, access)),
            Err(errno) => Err((errno, bytes.into_memory())),
        }
    }

    /// Registers `len` bytes from `offset` of a dma-buf. Requests call the first of them `iova`.
    pub(crate) fn register_dmabuf(
        &self,
        buffer: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: ibv_access_flags,
    ) -> Result<Region, Errno> {
        let (fd, access_bits) = (buffer.as_raw_fd(), access.bits() as c_int);
        // SAFETY: the PD is live (invariant 1), and the descriptor is open for the call; the kernel keeps the dma-buf alive
        // until the region is deregistered.
        let mr = pointer(unsafe {
            self.context
                .verbs
                .reg_dmabuf_mr(self.as_ptr(), offset, len, iova, fd, access_bits)
        })?;
        let nothing = Bytes::new(Memory::zeroed(0));
        Ok(self.region(nothing, iova, len, mr, access))
    }

    /// The region that the library just made of the PD's.
    fn region(
        &self,
        bytes: Bytes,
        addr: u64,
        len: usize,
        mr: NonNull<ibv_mr>,
        access: ibv_access_flags,
    ) -> Region {
        self.regions.fetch_add(1, Relaxed);
        Region::new(bytes, addr, len, mr, access, self.id)
    }

    /// Enters the queue of a new QP of this PD, or a new SRQ.
    pub(super) fn enter_queue(&self, queue: Books) {
        self.state().queues.push(queue);
    }

    /// Forgets queues that are destroyed.
    pub(super) fn leave_queues(&self) {
        self.state().queues.retain(|queue| !queue.is_ended());
    }

    /// The queues that may hold requests on something that queues of these kinds used.
    fn marks(state: &State, used_by: impl Fn(QueueKind) -> bool) -> Vec<(Books, u64)> {
        let users = state.queues.iter().filter(|queue| used_by(queue.kind()));
        let marks = users.map(|queue| (queue.clone(), queue.posted()));
        marks.filter(|(queue, mark)| !queue.passed(*mark)).collect()
    }

    /// The queues that may still use the region.
    pub(crate) fn holders(&self, region: &Region) -> Vec<Holder> {
        let describe = |(books, _): &(Books, u64)| {
            let (qp_num, srq) = match books {
                Books::Queue(queue) => (queue.qp_num(), None),
                Books::Shared(srq) => (0, Some(srq.number)),
            };
            Holder {
                qp_num,
                srq,
                queue: books.kind(),
                outstanding: books.account().pending,
            }
        };
        Self::marks(&self.state(), |kind| region.used_by(kind))
            .iter()
            .map(describe)
            .collect()
    }

    /// Ends something that its owner has no more use for: now if no queue holds it, later otherwise.
    pub(super) fn retire(&self, what: Resource) {
        let mut state = self.state();
        let marks = Self::marks(&state, |kind| what.used_by(kind));
        for (queue, _) in &marks {
            queue.call_attention();
        }
        state.retired.push(Retired { what, marks });
        drop(state);
        self.sweep();
    }

    /// Frees everything retired that no queue holds any more. Returns how many regions are left.
    pub(crate) fn sweep(&self) -> usize {
        self.sweeps.fetch_add(1, Relaxed);
        let left = loop {
            let freed = self.windows_freed.load(Acquire);
            let left = self.sweep_once();
            // A region that was refused because of a window is in the list again. Who freed the window, here or in another
            // thread, counts it before it looks at the list once more: so it finds the region there, or the count has changed
            // by now.
            if self.windows_freed.load(Acquire) == freed {
                break left;
            }
        };
        self.sweeps.fetch_sub(1, Release);
        left
    }

    fn sweep_once(&self) -> usize {
        let mut free = Vec::new();
        let mut state = self.state();
        for retired in &mut state.retired {
            retired.marks.retain(|(queue, mark)| !queue.passed(*mark));
            for (queue, _) in &retired.marks {
                queue.call_attention();
            }
        }
        let mut index = 0;
        while let Some(retired) = state.retired.get(index) {
            if retired.marks.is_empty() {
                free.push(state.retired.swap_remove(index).what);
            } else {
                index += 1;
            }
        }
        let is_region = |retired: &&Retired| matches!(retired.what, Resource::Region(_));
        let left = state.retired.iter().filter(is_region).count();
        drop(state);
        let mut regions = Vec::new();
        for what in free {
            match what {
                Resource::Region(region) => regions.push(region),
                Resource::Ah(ah) => self.destroy_ah(ah),
                Resource::Window(window) => self.free_window(window),
            }
        }
        // After the windows that may be bound to them.
        left + regions
            .into_iter()
            .filter_map(|region| self.deregister(region).err())
            .map(|(errno, region)| self.keep_or_leak(errno, region))
            .sum::<usize>()
    }

    /// Live memory windows.
    fn windows(&self) -> usize {
        // In this order: one that is seen freed is seen made.
        let freed = self.windows_freed.load(Acquire);
        self.windows_made.load(Relaxed) - freed
    }

    /// Does with a region what is left when it cannot be deregistered. Returns how many wait on.
    fn keep_or_leak(&self, mut errno: Errno, mut region: Region) -> usize {
        if region.access.contains(IBV_ACCESS_MW_BIND) {
            if self.windows() > 0 {
                // A window may be bound to it, which devices tell by different numbers (the kernel's rxe by EINVAL:
                // `rxe_mr.c`, `rxe_dereg_mr`). When a window goes, there is a sweep, see `sweep`.
                let (what, marks) = (Resource::Region(region), Vec::new());
                self.state().retired.push(Retired { what, marks });
                return 1;
            }
            // The last window may have gone after the refusal.
            (errno, region) = match self.deregister(region) {
                Ok(_) => return 0,
                Err(refused) => refused,
            };
        }
        tracing::error!(
            device = %self.context.name, rkey = region.rkey, bytes = region.len(), %errno,
            "a region could not be deregistered; its memory is leaked"
        );
        std::mem::forget(region);
        0
    }

    /// Gives the memory of a region back. The region comes back when queues hold it, or when the library refuses.
    pub(crate) fn reclaim(&self, region: Region) -> Result<Memory, (Reclaim, Region)> {
        let holders = self.holders(&region);
        if !holders.is_empty() {
            return Err((Reclaim::Held(holders), region));
        }
        self.deregister(region)
            .map_err(|(errno, region)| (Reclaim::Refused(errno), region))
    }

    /// Deregisters a region that no queue holds.
    fn deregister(&self, region: Region) -> Result<Memory, (Errno, Region)> {
        // SAFETY: the MR is live: a Region is consumed by the only successful call of this, and it is of this PD. No queue
        // has requests on it (both callers checked the marks), so this only ends access by remote peers.
        match status(unsafe { self.context.verbs.dereg_mr(region.as_ptr()) }) {
            Ok(()) => {
                self.regions.fetch_sub(1, Relaxed);
                Ok(region.into_memory())
            }
            Err(errno) => Err((errno, region)),
        }
    }
}

/// Why the memory of a region cannot be had back.
pub(crate) enum Reclaim {
    Held(Vec<Holder>),
    Refused(Errno),
}

/// What is left in a PD.
#[derive(Default)]
pub(crate) struct Contents {
    /// Numbers of its QPs.
    pub(crate) qps: Vec<u32>,
    /// Numbers of its SRQs.
    pub(crate) srqs: Vec<u32>,
    pub(crate) regions: usize,
    pub(crate) windows: usize,
    /// Address handles that somebody has.
    pub(crate) ahs: usize,
    /// There is nothing, or another thread is about to free what there is.
    pub(crate) passes: bool,
}

impl PdHandle {
    /// What is left in it.
    pub(crate) fn contents(&self) -> Contents {
        // First: what a sweep that has ended by now has freed is not counted below.
        let swept = self.sweeps.load(Acquire) > 0;
        let (mut qps, mut srqs) = (Vec::new(), Vec::new());
        for books in &self.state().queues {
            match books {
                Books::Queue(queue) => qps.push(queue.qp_num()),
                Books::Shared(srq) => srqs.push(srq.number),
            }
        }
        qps.dedup();
        let (regions, windows) = (self.regions.load(Relaxed), self.windows());
        let ahs = self.held_ahs.load(Relaxed);
        let is_used = !qps.is_empty() || !srqs.is_empty() || ahs > 0;
        Contents {
            qps,
            srqs,
            regions,
            windows,
            ahs,
            passes: !is_used && (swept || regions + windows == 0),
        }
    }

    /// Frees the PD and says whether that worked. Nothing is left in it: the caller has the only `Arc`.
    pub(crate) fn free(&mut self) -> Result<(), Errno> {
        if self.freed {
            return Ok(());
        }
        // Every QP of this PD held an Arc to it, so all queues are ended and every mark has passed.
        self.forget_ahs();
        self.sweep();
        // SAFETY: the PD is live (`freed`), and its QPs, regions and address handles are gone or leaked together with an
        // Arc to it (invariant 2). An address handle that could not be destroyed makes this call fail.
        status(unsafe { self.context.verbs.dealloc_pd(self.as_ptr()) })?;
        self.freed = true;
        Ok(())
    }
}

impl Drop for PdHandle {
    fn drop(&mut self) {
        if let Err(errno) = self.free() {
            tracing::error!(device = %self.context.name, %errno, "a protection domain could not be freed and stays");
            std::mem::forget(self.context.clone());
        }
    }
}
