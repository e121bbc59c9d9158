//! A region cut into chunks of one size, each of which is either the application's or a queue's.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use super::region::{LocalSlice, OwnedRegion};

/// The region and its free chunks.
///
/// What the proofs here rest on: the region is not an [`Mr`](crate::Mr), so no request of the application's can name it;
/// it is registered without any right for peers; and each chunk number is at one place only: in `free`, or in one
/// [`Chunk`].
pub(crate) struct Chunks {
    region: OwnedRegion,
    size: usize,
    count: usize,
    free: Mutex<Vec<usize>>,
}

impl Chunks {
    /// Cuts a region into chunks of `size` bytes, which is not 0. It is registered for `LOCAL_WRITE` alone.
    pub(crate) fn new(region: OwnedRegion, size: usize) -> Arc<Chunks> {
        let count = region.region().len() / size;
        Arc::new(Chunks {
            region,
            size,
            count,
            free: Mutex::new((0..count).rev().collect()),
        })
    }

    /// Bytes of each chunk.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Chunks that there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Chunks that nobody has.
    pub(crate) fn free(&self) -> usize {
        self.list().len()
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        // A list of numbers is whole after every single operation.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A chunk that nobody has.
    pub(crate) fn take(self: &Arc<Chunks>) -> Option<Chunk> {
        let index = self.list().pop()?;
        Some(Chunk {
            chunks: self.clone(),
            index,
        })
    }
}

/// One chunk, and the right to it: while there is a `Chunk` outside of a queue's hands, nothing else touches its bytes.
/// Whoever lends it to a queue keeps it, unread, until the queue's books have let go of the request.
pub(crate) struct Chunk {
    chunks: Arc<Chunks>,
    index: usize,
}

impl Chunk {
    pub(crate) fn size(&self) -> usize {
        self.chunks.size
    }

    fn offset(&self) -> usize {
        self.index * self.chunks.size
    }

    fn start(&self) -> *mut u8 {
        let start = self.chunks.region.region().start();
        // SAFETY: the whole chunk lies inside the region: there are only as many as fit.
        unsafe { start.as_ptr().add(self.offset()) }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the chunk lies inside the region, whose memory lives as long as `chunks` and is initialised. This is its
        // only `Chunk` (the invariant of `Chunks`), it is not in a queue's hands, because who lends it does not read it,
        // and peers have no right to it: so nobody writes while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.start(), self.chunks.size) }
    }

    /// Its bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; and `&mut self` is the only way to this `Chunk`.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.chunks.size) }
    }

    /// The first `len` bytes for a post call; `None` if there are not so many.
    pub(crate) fn slice(&self, len: usize) -> Option<LocalSlice<'_>> {
        (len <= self.chunks.size)
            .then(|| self.chunks.region.region().slice(self.offset(), len))
            .flatten()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.chunks.list().push(self.index);
    }
}
