//! Registered regions, and ranges of them for post calls.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use rdma_core_sys::*;

use super::memory::{Bytes, Memory};
use super::pd::{PdHandle, Reclaim, Resource};
use super::ring::{FORMS, Form};
use crate::wr_id::QueueKind;

/// A registered region: its memory, and what kind of queue ever got a request on it.
pub(crate) struct Region {
    /// Its memory; empty if that is not this process's, but behind a dma-buf.
    bytes: Bytes,
    /// What requests call its first byte.
    addr: u64,
    len: usize,
    mr: NonNull<ibv_mr>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) access: ibv_access_flags,
    /// Names it among all regions that the process ever had, for [`Form`]s.
    form: Form,
    /// [`PdHandle::id`] of its PD.
    pd: u64,
    /// Apart from the rest, which thus never changes, as the compiler knows.
    uses: Box<Uses>,
}

/// Which kinds of queues ever got a request on a region.
#[derive(Default)]
struct Uses {
    sent: AtomicBool,
    received: AtomicBool,
}

// SAFETY: the region's bytes are reached by race-tolerant copies and atomics only, the other fields are plain values, and
// ibv_dereg_mr may be called from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// The region that the library just made, of PD `pd`.
    pub(super) fn new(
        bytes: Bytes,
        addr: u64,
        len: usize,
        mr: NonNull<ibv_mr>,
        access: ibv_access_flags,
        pd: u64,
    ) -> Region {
        // SAFETY: the library just made it; it is valid until it is deregistered.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        static NEXT: AtomicU64 = AtomicU64::new(FORMS);
        Region {
            bytes,
            addr,
            len,
            mr,
            lkey,
            rkey,
            access,
            form: NEXT.fetch_add(FORMS, Relaxed),
            pd,
            uses: Box::default(),
        }
    }

    /// Its memory, after the library has let go of it.
    pub(super) fn into_memory(self) -> Memory {
        self.bytes.into_memory()
    }

    /// The verbs object, for requests that name it, and for callers that know what they do with it.
    pub(crate) fn as_ptr(&self) -> *mut ibv_mr {
        self.mr.as_ptr()
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.bytes.start()
    }

    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What the forms of requests on it begin with: [`FORMS`] times a number of its own, never 0.
    #[inline(always)]
    pub(super) fn form(&self) -> Form {
        self.form
    }

    #[inline(always)]
    pub(crate) fn holds(&self, offset: usize, len: usize) -> bool {
        // No region is as long as what a sum that is too large is taken for.
        offset.saturating_add(len) <= self.len
    }

    /// How many bytes the process can read and write: all of them, or none behind a dma-buf.
    pub(crate) fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Copies out of the region; the range was checked with [`Region::bytes_len`].
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.bytes.read(offset, into);
    }

    /// Copies into the region; the range was checked with [`Region::bytes_len`].
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        self.bytes.write(offset, from);
    }

    pub(crate) fn atomic(&self, offset: usize) -> Option<&AtomicU64> {
        self.bytes.atomic(offset)
    }

    /// The bytes `offset..offset + len`; `None` if they do not all lie inside.
    #[inline(always)]
    pub(crate) fn slice(&self, offset: usize, len: usize) -> Option<LocalSlice<'_>> {
        let fits = self.holds(offset, len);
        fits.then(|| LocalSlice {
            region: self,
            addr: self.addr() + offset as u64,
            len,
        })
    }

    /// The same; `None` also if there are none.
    #[inline(always)]
    pub(crate) fn some(&self, offset: usize, len: usize) -> Option<LocalSlice<'_>> {
        if !holds_some(self.len, offset, len) {
            return None;
        }
        // SAFETY: `holds_some` is false for no bytes.
        unsafe { std::hint::assert_unchecked(len != 0) };
        Some(LocalSlice {
            region: self,
            addr: self.addr() + offset as u64,
            len,
        })
    }

    fn users(&self, kind: QueueKind) -> &AtomicBool {
        if kind == QueueKind::Send {
            &self.uses.sent
        } else {
            &self.uses.received
        }
    }

    /// Notes that a queue of this kind of PD `pd` gets a request on the region. `false`: the region is of another PD,
    /// whose books would not hold it. Called before the post, while the region is borrowed, so a later drop of the
    /// region sees it.
    fn note_use(&self, kind: QueueKind, pd: u64) -> bool {
        if self.pd != pd {
            return false;
        }
        self.users(kind).store(true, Relaxed);
        true
    }

    pub(super) fn used_by(&self, kind: QueueKind) -> bool {
        self.users(kind).load(Relaxed)
    }
}

/// Whether the bytes `offset..offset + len` are some, and all among the first `size`.
#[inline(always)]
pub(super) fn holds_some(size: usize, offset: usize, len: usize) -> bool {
    // Where the last one is. No length at all wraps, or comes out as the highest number, where no region has a byte.
    let (last, wraps) = offset.overflowing_add(len.wrapping_sub(1));
    !wraps && last < size
}

/// A region with its owner. Dropping it retires the region.
pub(crate) struct OwnedRegion {
    /// Taken out by `drop` and `reclaim` alone, each of which is the end of this value.
    region: ManuallyDrop<Region>,
    pd: Arc<PdHandle>,
}

impl OwnedRegion {
    pub(crate) fn new(region: Region, pd: Arc<PdHandle>) -> OwnedRegion {
        OwnedRegion {
            region: ManuallyDrop::new(region),
            pd,
        }
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn pd(&self) -> &Arc<PdHandle> {
        &self.pd
    }

    /// Gives the memory of the region back, or says who holds it.
    pub(crate) fn reclaim(self) -> Result<Memory, (Reclaim, OwnedRegion)> {
        let pd = self.pd.clone();
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used for the region again, and its `drop` never runs.
        let region = unsafe { ManuallyDrop::take(&mut this.region) };
        // SAFETY: nor is it used for the Arc, which would else be leaked.
        drop(unsafe { std::ptr::read(&this.pd) });
        pd.reclaim(region)
            .map_err(|(reason, region)| (reason, OwnedRegion::new(region, pd)))
    }
}

impl Drop for OwnedRegion {
    fn drop(&mut self) {
        // SAFETY: this is the end of the value, and `reclaim` keeps its own from ending here: the region is taken once.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        self.pd.retire(Resource::Region(region));
    }
}

/// A range of a registered region, borrowed for a post call.
#[derive(Clone, Copy)]
pub(crate) struct LocalSlice<'a> {
    region: &'a Region,
    addr: u64,
    len: usize,
}

impl<'a> LocalSlice<'a> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn region(&self) -> &'a Region {
        self.region
    }

    /// Address of its first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// The entry for a queue of this kind of PD `pd`, after noting the use. `None`: the region is of another PD, whose
    /// books would not hold it. The caller sees to it that the length is below 2^32.
    #[inline]
    pub(super) fn lend(&self, kind: QueueKind, pd: u64) -> Option<ibv_sge> {
        self.region.note_use(kind, pd).then_some(ibv_sge {
            addr: self.addr,
            length: self.len as u32,
            lkey: self.region.lkey,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::holds_some;

    #[test]
    fn what_holds_some_bytes_holds_their_last_one() {
        let most = usize::MAX;
        for (size, offset, len) in [(8, 0, 8), (8, 7, 1), (1, 0, 1), (most, most - 1, 1)] {
            assert!(holds_some(size, offset, len), "{size} {offset} {len}");
        }
        for (size, offset, len) in [
            (8, 0, 0),
            (8, 3, 0),
            (8, 8, 0),
            (8, 0, 9),
            (8, 8, 1),
            (8, 7, 2),
            (8, 1, most),
            (8, most, 1),
            (8, most, most),
            (8, 2, most - 1),
            (most, 0, 0),
        ] {
            assert!(!holds_some(size, offset, len), "{size} {offset} {len}");
        }
    }
}
