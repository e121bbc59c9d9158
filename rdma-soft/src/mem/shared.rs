//! Memory that two processes share: some words, and a ring of bytes.
//!
//! The other process may write anything at any time, and is not trusted: words are read as atomics, bytes
//! by the copying functions of [`Region`], and nobody makes a reference to either. What it cannot do is
//! make an access fail: the memory is an anonymous file of the kernel (memfd_create(2)) that is sealed
//! against shrinking, which [`Shared::adopt`] checks.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::{Owner, Region};

/// Bytes in front of the ring; a multiple of every page size that there is.
const HEAD: usize = 64 << 10;

/// Bytes from one word to the next: each has a cache line of its own, and the one that is fetched beside it.
const STRIDE: usize = 128;

/// A file that cannot become shorter, and of which that cannot be taken back (fcntl(2), F_ADD_SEALS).
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::SEAL);

/// Memory that this process shares with another one.
#[derive(Debug)]
pub(crate) struct Shared {
    map: Arc<Mapping>,
    ring: Region,
}

impl Shared {
    /// How many words there are.
    pub(crate) const WORDS: usize = HEAD / STRIDE;

    /// New memory, zeroed, with a ring of `len` bytes, which is a multiple of 64 KiB; and the file that it is,
    /// for the other process.
    ///
    /// # Errors
    /// What the system refused, such as `ENOMEM` or `EMFILE`.
    pub(crate) fn create(len: usize) -> Result<(Shared, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"rdma-soft", flags)?;
        rustix::fs::ftruncate(&file, (HEAD + len) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS | SealFlags::GROW)?;
        let shared = Shared::map(file.as_fd(), len)?;
        Ok((shared, file))
    }

    /// Memory that another process has [created](Shared::create), with a ring of `len` bytes.
    ///
    /// # Errors
    /// `EINVAL` for a file that is too short or may become so, or is none of this kind; or what the system
    /// refused.
    pub(crate) fn adopt(file: BorrowedFd<'_>, len: usize) -> Result<Shared, Errno> {
        /// The file system of memory of ordinary pages (linux/magic.h). That of huge pages has another; there
        /// an access may fail.
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        let seals = rustix::fs::fcntl_get_seals(file)?;
        let kind = rustix::fs::fstatfs(file)?.f_type as u64;
        // After the seals: it was so long when they were there.
        let size = rustix::fs::fstat(file)?.st_size;
        if !seals.contains(SEALS) || kind != TMPFS_MAGIC || size < (HEAD + len) as i64 {
            return Err(Errno::INVAL);
        }
        Shared::map(file, len)
    }

    fn map(file: BorrowedFd<'_>, len: usize) -> Result<Shared, Errno> {
        if len == 0 || !len.is_multiple_of(HEAD) || !HEAD.is_multiple_of(rustix::param::page_size())
        {
            return Err(Errno::INVAL);
        }
        let map = Arc::new(Mapping::new(file, len)?);
        let ring = Region {
            base: map.base.wrapping_add(HEAD),
            len: 2 * len as u64,
            _owner: Some(Owner::Mapping(Arc::clone(&map))),
        };
        Ok(Shared { map, ring })
    }

    /// Word number `at`, below [`WORDS`](Shared::WORDS); at first 0.
    ///
    /// # Panics
    /// If there is no such word.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < Shared::WORDS);
        // SAFETY: below `WORDS`, the word lies in the first `HEAD` bytes of the mapping, which starts at a page
        // and so is aligned to `STRIDE`; the mapping lives as long as `self`, and stays readable and writable,
        // for nobody can shorten the file. What others do to the word, in whichever process, is atomic or
        // done by machine instructions.
        unsafe { AtomicU64::from_ptr(self.map.base.wrapping_add(at * STRIDE).cast()) }
    }

    /// The ring, twice as long as it is: byte `i` and byte `i` plus its length are the same, so that what begins
    /// inside it may be read and written beyond its end.
    pub(crate) fn ring(&self) -> &Region {
        &self.ring
    }
}

/// The addresses at which the memory is; ends with the last who uses it.
#[derive(Debug)]
pub(super) struct Mapping {
    base: *mut u8,
    /// Bytes of address space.
    len: usize,
}

// SAFETY: the addresses belong to the process, not to a thread; what is there is reached through atomics and
// the copying functions of `Region` alone.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; it has no state beside the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the head and the ring of `len` bytes, and the ring once more behind that. All lengths are multiples
    /// of a page.
    fn new(file: BorrowedFd<'_>, len: usize) -> Result<Mapping, Errno> {
        let total = HEAD + 2 * len;
        // SAFETY: addresses of the kernel's choice, that nobody has.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                total,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(last_error());
        }
        // From here on dropping it gives the addresses back.
        let mapping = Mapping {
            base: base.cast(),
            len: total,
        };
        for (at, from, len) in [(0, 0, HEAD + len), (HEAD + len, HEAD, len)] {
            // SAFETY: `at..at + len` lies inside the addresses that were just got, which nobody else has and to
            // which nobody has a reference; so nothing that is in use is replaced.
            let mapped = unsafe {
                libc::mmap(
                    mapping.base.wrapping_add(at).cast(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    file.as_raw_fd(),
                    from as libc::off_t,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(last_error());
            }
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the addresses were got in `new` and are given back here only; whoever reaches into them keeps
        // an `Arc` of this value: `Shared`, and each `Region` of its ring.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    const LEN: usize = 1 << 16;

    #[test]
    fn both_sides_see_one_memory_and_the_ring_is_endless() {
        let (near, file) = Shared::create(LEN).unwrap();
        let far = Shared::adopt(file.as_fd(), LEN).unwrap();
        drop(file);
        near.word(3).store(7, Ordering::Release);
        assert_eq!(far.word(3).load(Ordering::Acquire), 7);
        // Across the end, and there again from its beginning.
        near.ring().write(LEN as u64 - 2, b"wrap").unwrap();
        let mut bytes = [0; 2];
        far.ring().read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"ap");
        far.ring().read(2 * LEN as u64 - 2, &mut bytes).unwrap();
        assert_eq!(&bytes, b"wr");
        assert!(far.ring().read(2 * LEN as u64 - 1, &mut bytes).is_err());
    }

    #[test]
    fn a_part_of_the_ring_keeps_the_memory() {
        let (near, file) = Shared::create(LEN).unwrap();
        let far = Shared::adopt(file.as_fd(), LEN).unwrap();
        let part = near.ring().part(100, 4).unwrap();
        drop(near);
        far.ring().write(100, b"here").unwrap();
        let mut bytes = [0; 4];
        part.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"here");
    }

    #[test]
    fn files_that_may_fail_at_an_access_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = |size: usize, seals| {
            let file = rustix::fs::memfd_create(c"test", flags).unwrap();
            rustix::fs::ftruncate(&file, size as u64).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            Shared::adopt(file.as_fd(), LEN).err()
        };
        let size = HEAD + LEN;
        assert_eq!(file(size, SEALS), None);
        assert_eq!(file(size - 1, SEALS), Some(Errno::INVAL), "too short");
        assert_eq!(
            file(size, SealFlags::SEAL),
            Some(Errno::INVAL),
            "may shrink"
        );
        // A file on a disk has no seals, nor has a pipe.
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Shared::adopt(program.as_fd(), LEN).is_err());
        let (end, _other) = rustix::pipe::pipe().unwrap();
        assert!(Shared::adopt(end.as_fd(), LEN).is_err());
        // Not a multiple of what it is counted in.
        assert_eq!(Shared::create(LEN + 1).err(), Some(Errno::INVAL));
    }
}
