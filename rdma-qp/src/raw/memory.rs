//! Memory for regions: owned, page-aligned, and reached by copying while a device may touch it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Alignment of a [`Memory`]: a page, so that no other data shares the pages that a device pins.
const PAGE: usize = 4096;

/// Bytes that can become a region: owned by the library, page-aligned.
///
/// Before registration (and after [`Mr::close`](crate::Mr::close) gave it back) it is an ordinary slice of bytes.
/// While registered it is inside the [`Mr`](crate::Mr), which lends no reference to it.
///
/// ```
/// let mut memory = rdma_qp::Memory::zeroed(4096);
/// memory[..5].copy_from_slice(b"hello");
/// assert_eq!(&memory[..6], b"hello\0");
/// ```
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    /// It was allocated here, rather than lent by whoever called [`Memory::foreign`].
    owned: bool,
}

// SAFETY: a Memory owns its allocation alone, like a Box<[u8]>; bytes may be used from any thread.
unsafe impl Send for Memory {}
// SAFETY: through `&Memory` the bytes can only be read.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` zeroed bytes. Like `Vec`, it ends the process when the system has no memory left;
    /// [`Memory::try_zeroed`] does not.
    ///
    /// # Panics
    /// `len` is more than half the address space.
    pub fn zeroed(len: usize) -> Memory {
        let layout = Memory::layout(len).expect("a length below half the address space");
        Memory::try_zeroed(len).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// `len` zeroed bytes; `None` when the system has not so much memory.
    pub fn try_zeroed(len: usize) -> Option<Memory> {
        let layout = Memory::layout(len)?;
        // SAFETY: the layout has a non-zero size: `Memory::layout` rounds up to at least one byte.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let owned = true;
        Some(Memory { start, len, owned })
    }

    /// The `len` bytes from `start` on, which are the caller's: they are not freed here. For memory that comes from elsewhere,
    /// such as huge pages, a device's own memory, or another language.
    ///
    /// # Safety
    /// The bytes are there, initialised, and readable and writable, until the value is dropped, or, once it is registered,
    /// until [`Mr::close`](crate::Mr::close) has given it back and that is dropped: dropping the region is not enough, as
    /// requests may use it then. Nobody has a Rust reference to the bytes meanwhile.
    ///
    /// ```
    /// use rdma_qp::{Access, Device, Memory};
    /// use std::ptr::NonNull;
    /// let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// let mut bytes = vec![0u8; 4096];
    /// let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    /// // SAFETY: `bytes` is left alone until the region is closed.
    /// let memory = unsafe { Memory::foreign(start, bytes.len()) };
    /// let mr = device.alloc_pd()?.register(memory, Access::LOCAL_WRITE)?;
    /// mr.write_at(0, b"hello")?;
    /// drop(mr.close()?);
    /// assert_eq!(&bytes[..5], b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn foreign(start: NonNull<u8>, len: usize) -> Memory {
        let owned = false;
        Memory { start, len, owned }
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Memory {
        let mut memory = Memory::zeroed(bytes.len());
        memory.copy_from_slice(bytes);
        memory
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.max(1), PAGE).ok()
    }

    /// The first byte, for the verbs library.
    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: there are `len` initialised bytes (zeroed at the start, or promised to `foreign`), as long as self lives. No
        // device touches them: a registered Memory is inside a Region, which never dereferences it to a slice (invariant 3).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let layout = Layout::from_size_align(self.len.max(1), PAGE);
        if let (true, Ok(layout)) = (self.owned, layout) {
            // SAFETY: `start` was allocated by `try_zeroed` with the same length, hence the same layout, and is freed
            // once: nothing else drops it.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes)", self.len)
    }
}

/// The bytes of a registered region. A device, a remote peer and other threads may change them at any time, so they
/// are copied in and out by code whose races are defined, and never lent.
pub(super) struct Bytes(Memory);

impl Bytes {
    pub(super) fn new(memory: Memory) -> Bytes {
        Bytes(memory)
    }

    /// The memory as an ordinary value again. The caller has deregistered it.
    pub(super) fn into_memory(self) -> Memory {
        self.0
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.0.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    /// Whether `offset..offset + len` lies inside.
    pub(super) fn holds(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.0.len)
    }

    /// Copies out. The range was checked with [`Bytes::holds`] by the caller; checked again here.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(self.holds(offset, into.len()));
        // SAFETY: the range lies inside the allocation, which lives as long as self; `into` is a separate, exclusively
        // borrowed slice. `copy` tolerates concurrent changes of the region.
        unsafe {
            copy(
                into.as_mut_ptr(),
                self.0.start.as_ptr().add(offset),
                into.len(),
            )
        };
    }

    /// Copies in. The range was checked with [`Bytes::holds`] by the caller; checked again here.
    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        assert!(self.holds(offset, from.len()));
        // SAFETY: the range lies inside the allocation, which lives as long as self and to whose bytes no reference
        // exists (invariant 3); `from` is a separate slice. `copy` tolerates concurrent access to the region.
        unsafe { copy_in(self.0.start.as_ptr().add(offset), from) };
    }

    /// The 8 bytes at `offset` as an atomic; `None` if they are not inside or not aligned to 8.
    pub(super) fn atomic(&self, offset: usize) -> Option<&AtomicU64> {
        let address = self.0.start.addr().get().wrapping_add(offset);
        if !address.is_multiple_of(8) || !self.holds(offset, 8) {
            return None;
        }
        // SAFETY: in bounds and aligned, which was just looked at; the memory is there as long as the borrow of self;
        // an atomic may be changed by others at any time.
        Some(unsafe { AtomicU64::from_ptr(self.0.start.as_ptr().add(offset).cast()) })
    }
}

/// Copies `len` bytes, of which one side may be accessed by a device or another thread at the same time.
///
/// The compiler sees an opaque block of assembly: it can assume nothing about the bytes, which is what makes the race
/// harmless to it. What is read under a race is some mix of old and new bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and the two ranges do not overlap.
#[cfg(all(target_arch = "x86_64", not(any(miri, visible_copies))))]
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: by the contract of this function the instruction reads and writes only the two ranges; the direction flag
    // is clear, as the ABI demands at function boundaries.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `len` bytes, of which one side may be accessed by a device or another thread at the same time: with relaxed
/// atomic accesses, words where both sides are aligned alike.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and the two ranges do not overlap.
#[cfg(any(not(target_arch = "x86_64"), miri, visible_copies))]
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    let mut done = 0;
    while done < len {
        let aligned = |start: usize| (start + done).is_multiple_of(8);
        let words = aligned(to as usize) && aligned(from as usize) && len - done >= 8;
        // SAFETY: `done < len`, or 8 bytes are left and both sides are aligned to 8: each access lies in its range.
        unsafe {
            if words {
                let word = AtomicU64::from_ptr(from.add(done).cast_mut().cast()).load(Relaxed);
                AtomicU64::from_ptr(to.add(done).cast()).store(word, Relaxed);
            } else {
                let byte = AtomicU8::from_ptr(from.add(done).cast_mut()).load(Relaxed);
                AtomicU8::from_ptr(to.add(done)).store(byte, Relaxed);
            }
        }
        done += if words { 8 } else { 1 };
    }
}

/// Copies all of `from`; the other side may be accessed by a device or another thread at the same time.
///
/// # Safety
/// `to` is writable for as many bytes, which do not overlap `from`.
#[cfg(all(target_arch = "x86_64", not(any(miri, visible_copies))))]
unsafe fn copy_in(to: *mut u8, from: &[u8]) {
    // SAFETY: a slice is readable for its length; the caller vouches for `to`.
    unsafe { copy(to, from.as_ptr(), from.len()) };
}

/// Copies all of `from`; the other side may be accessed by a device or another thread at the same time: with relaxed
/// atomic stores. The slice is read as what it is: it gives no right to atomics, which could write.
///
/// # Safety
/// `to` is writable for as many bytes, which do not overlap `from`.
#[cfg(any(not(target_arch = "x86_64"), miri, visible_copies))]
unsafe fn copy_in(to: *mut u8, from: &[u8]) {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    for (at, &byte) in from.iter().enumerate() {
        // SAFETY: `at` is below the length, so the byte is one that the caller vouches for.
        unsafe { AtomicU8::from_ptr(to.add(at)).store(byte, Relaxed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_page_aligned_and_writable() {
        let mut memory = Memory::zeroed(5000);
        assert_eq!(memory.as_ptr().as_ptr() as usize % 4096, 0);
        assert!(memory.iter().all(|b| *b == 0));
        memory[4999] = 9;
        assert_eq!(memory[4999], 9);
        assert!(Memory::zeroed(0).is_empty());
        assert!(Memory::try_zeroed(usize::MAX).is_none());
    }

    #[test]
    fn copies_land_where_they_should_at_every_alignment() {
        let pattern: Vec<u8> = (0..64u8).collect();
        for offset in 0..16 {
            for len in 0..48 {
                let bytes = Bytes::new(Memory::zeroed(64));
                bytes.write(offset, &pattern[..len]);
                let mut all = [0xaa; 64];
                bytes.read(0, &mut all);
                let mut expected = [0u8; 64];
                expected[offset..offset + len].copy_from_slice(&pattern[..len]);
                assert_eq!(all, expected, "offset {offset} len {len}");
            }
        }
    }

    #[test]
    fn bounds_hold_against_overflow() {
        let bytes = Bytes::new(Memory::zeroed(64));
        assert!(bytes.holds(64, 0) && bytes.holds(0, 64));
        assert!(!bytes.holds(65, 0) && !bytes.holds(1, 64) && !bytes.holds(usize::MAX, 2));
    }

    #[test]
    fn atomics_need_alignment_and_room() {
        let bytes = Bytes::new(Memory::zeroed(20));
        assert!(bytes.atomic(8).is_some());
        assert!(bytes.atomic(4).is_none() && bytes.atomic(16).is_none());
        bytes
            .atomic(0)
            .unwrap()
            .store(0x0102, std::sync::atomic::Ordering::Relaxed);
        let mut two = [0; 2];
        bytes.read(0, &mut two);
        assert_eq!(two, 0x0102u16.to_ne_bytes());
    }
}
