//! Memory regions.
//!
//! A registered region is never lent as a Rust slice: a device, or a peer with the rkey, may write to it at any time.
//! It is read and written by copying ([`Mr::read_at`], [`Mr::write_at`]) and through atomics ([`Mr::atomic`]). Posting
//! borrows a range ([`Mr::slice`]) for the call only.
//!
//! Dropping a region never waits and never fails: if requests may still use it, its memory stays registered and
//! allocated until they are done. [`Mr::close`] gives the memory back, or says which queues hold it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rdma_core_sys::{IBV_ACCESS_LOCAL_WRITE, ibv_access_flags, ibv_mr};

use crate::endpoint::RemoteRegion;
use crate::errno::Errno;
use crate::pd::Access;
use crate::raw::memory::Memory;
use crate::raw::pd::{Holder, PdHandle, Reclaim};
use crate::raw::region::{LocalSlice, OwnedRegion, Region};

/// A range is not inside its region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..{offset}+{len} are not inside a region of {region} bytes")]
pub struct OutOfRegion {
    /// First byte of the range, counted from the start of the region.
    pub offset: usize,
    /// Length of the range.
    pub len: usize,
    /// Bytes that the region has for what was asked: of a dma-buf the process itself can reach none.
    pub region: usize,
}

/// 8 bytes cannot be used as an atomic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an atomic of 8 bytes cannot be at offset {offset} of a region of {region} bytes: it must be inside and at a multiple of 8"
)]
pub struct BadAtomic {
    /// The offset asked for.
    pub offset: usize,
    /// Bytes of the region that the process can reach: of a dma-buf none.
    pub region: usize,
}

/// The memory of a region cannot be had back now. The region is inside the error, unharmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseMrError {
    /// Queues may still use it.
    #[error("the region is still held by {}: poll their CQs until the requests are done, or reset or destroy the QPs", join(.holders))]
    Held {
        /// The region.
        mr: Mr,
        /// The queues.
        holders: Vec<Holder>,
    },
    /// The library refused to deregister it.
    #[error("the region could not be deregistered: {source}")]
    Refused {
        /// The region.
        mr: Mr,
        /// What the library said.
        source: Errno,
    },
}

impl CloseMrError {
    /// The region, to try again or to drop.
    pub fn into_mr(self) -> Mr {
        match self {
            CloseMrError::Held { mr, .. } | CloseMrError::Refused { mr, .. } => mr,
        }
    }
}

fn join(holders: &[Holder]) -> String {
    holders
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A registered memory region.
///
/// ```
/// use rdma_qp::{Access, Device, Memory};
/// let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// let mr = device.alloc_pd()?.register(Memory::zeroed(4096), Access::REMOTE_WRITE)?;
/// mr.write_at(0, b"hello")?;
/// let mut bytes = [0; 5];
/// mr.read_at(0, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// assert_eq!(&mr.close()?[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mr {
    owned: OwnedRegion,
}

impl Mr {
    pub(crate) fn new(region: Region, pd: Arc<PdHandle>) -> Mr {
        Mr {
            owned: OwnedRegion::new(region, pd),
        }
    }

    pub(crate) fn of(owned: OwnedRegion) -> Mr {
        Mr { owned }
    }

    pub(crate) fn into_owned(self) -> OwnedRegion {
        self.owned
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        self.owned.region()
    }

    /// Its length in bytes; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.region().len()
    }

    /// Address of its first byte. Of a dma-buf ([`DmabufMr::into_mr`](crate::DmabufMr::into_mr)) it is what requests call that
    /// byte, and no address of the process.
    pub fn addr(&self) -> u64 {
        self.region().addr()
    }

    /// The verbs object, for calls that this library does not have. It is deregistered when the region ends.
    ///
    /// Requests on it that are posted by other means are not in the books: the region must be kept until they are done.
    pub fn as_ptr(&self) -> *mut ibv_mr {
        self.region().as_ptr()
    }

    /// Key for requests of this side.
    pub fn lkey(&self) -> u32 {
        self.region().lkey
    }

    /// Key for requests of peers.
    pub fn rkey(&self) -> u32 {
        self.region().rkey
    }

    /// What it was registered for.
    pub fn access(&self) -> Access {
        Access::from_bits_retain(self.region().access.bits())
    }

    /// How a peer names it: tell the peer this.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            addr: self.addr(),
            len: self.len() as u64,
            rkey: self.rkey(),
        }
    }

    /// The `len` bytes from `offset`, for a post call.
    ///
    /// # Errors
    /// They are not all inside the region.
    #[inline(always)]
    pub fn slice(&self, offset: usize, len: usize) -> Result<MrSlice<'_>, OutOfRegion> {
        match self.region().slice(offset, len) {
            Some(local) => Ok(MrSlice(local)),
            None => Err(self.outside(offset, len)),
        }
    }

    /// The same as [`Mr::slice`]; `None` if there are none, or they are not all inside the region.
    #[inline(always)]
    pub fn get(&self, offset: usize, len: usize) -> Option<MrSlice<'_>> {
        self.region().some(offset, len).map(MrSlice)
    }

    /// All of it, for a post call.
    pub fn all(&self) -> MrSlice<'_> {
        match self.region().slice(0, self.len()) {
            Some(local) => MrSlice(local),
            None => unreachable!("a region holds all of itself"),
        }
    }

    #[cold]
    #[inline(never)]
    fn outside(&self, offset: usize, len: usize) -> OutOfRegion {
        OutOfRegion {
            offset,
            len,
            region: self.len(),
        }
    }

    /// Looks whether the process can read and write these bytes.
    fn reach(&self, offset: usize, len: usize) -> Result<(), OutOfRegion> {
        let region = self.region().bytes_len();
        match offset.saturating_add(len) <= region {
            true => Ok(()),
            false => Err(OutOfRegion {
                offset,
                len,
                region,
            }),
        }
    }

    /// Copies bytes from `offset` on out of the region. If a device writes there at the same time, the result is some
    /// mix of old and new bytes; after a completion it is what the completed request left.
    ///
    /// # Errors
    /// The range is not inside the region, or the region is of a dma-buf, none of whose bytes the process can reach.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfRegion> {
        self.reach(offset, into.len())?;
        self.region().read(offset, into);
        Ok(())
    }

    /// Copies `from` into the region, from `offset` on. If a device reads there at the same time, it gets some mix of
    /// old and new bytes: write before the post, or after the completion.
    ///
    /// # Errors
    /// As [`Mr::read_at`].
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        self.reach(offset, from.len())?;
        self.region().write(offset, from);
        Ok(())
    }

    /// The 8 bytes at `offset`, in host byte order, as an atomic: for flags and counters that a peer writes.
    ///
    /// # Errors
    /// They are not inside the region, or not at a multiple of 8, or the region is of a dma-buf.
    pub fn atomic(&self, offset: usize) -> Result<&AtomicU64, BadAtomic> {
        self.region().atomic(offset).ok_or(BadAtomic {
            offset,
            region: self.region().bytes_len(),
        })
    }

    /// The queues that may still use the region: those whose memory it has to be.
    pub fn holders(&self) -> Vec<Holder> {
        self.owned.pd().holders(self.region())
    }

    /// Deregisters the region and gives its memory back. For a dma-buf that is memory of no bytes.
    ///
    /// # Errors
    /// Requests that are under way may use it (the error says which queues hold it), or the library refused. The region
    /// is in the error.
    pub fn close(self) -> Result<Memory, CloseMrError> {
        self.owned.reclaim().map_err(|(reason, owned)| {
            let mr = Mr { owned };
            match reason {
                Reclaim::Held(holders) => CloseMrError::Held { mr, holders },
                Reclaim::Refused(source) => CloseMrError::Refused { mr, source },
            }
        })
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Mr({} bytes at {:#x}, rkey {:#x}, {:?})",
            self.len(),
            self.addr(),
            self.rkey(),
            self.access()
        )
    }
}

/// A range of a region, borrowed for a post call. It gives no access to the bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct MrSlice<'a>(LocalSlice<'a>);

impl<'a> MrSlice<'a> {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Address of its first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.0.addr()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn from_local(local: LocalSlice<'a>) -> MrSlice<'a> {
        MrSlice(local)
    }

    #[inline]
    pub(crate) fn local(&self) -> LocalSlice<'a> {
        self.0
    }

    /// Whether the device may write to it.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.access().contains(IBV_ACCESS_LOCAL_WRITE)
    }

    /// Whether they are the process's, and not behind a dma-buf.
    pub(crate) fn has_bytes(&self) -> bool {
        self.0.region().bytes_len() != 0 || self.is_empty()
    }

    fn access(&self) -> ibv_access_flags {
        self.0.region().access
    }
}

impl<'a> AsRef<[MrSlice<'a>]> for MrSlice<'a> {
    fn as_ref(&self) -> &[MrSlice<'a>] {
        std::slice::from_ref(self)
    }
}

impl fmt::Debug for MrSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MrSlice({} bytes)", self.len())
    }
}
