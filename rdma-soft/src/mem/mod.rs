//! User memory: the one module of the engine that touches it.
//!
//! A [`Region`] is a range of memory that somebody promised to keep mapped until the region is
//! dropped. The application, and other threads of it, may read and write that memory at the same
//! time: that is what RDMA is. So no reference to it is ever made; bytes are copied by code whose
//! races are defined (machine instructions, or relaxed atomics), and every access is checked
//! against the bounds at the access itself.
//!
//! `shared` is memory that this process shares with another one; it is reached in the same way.
#![allow(unsafe_code)]

pub(crate) mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An access outside a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// A range of user memory, reached by offset.
#[derive(Clone, Debug)]
pub struct Region {
    base: *mut u8,
    len: u64,
    /// Keeps memory that the library itself owns; `None` for memory of the application.
    _owner: Option<Owner>,
}

/// What keeps the memory of a region of the library itself; nothing but dropped.
#[derive(Clone, Debug)]
enum Owner {
    Words(#[allow(dead_code)] Arc<[AtomicU64]>),
    Mapping(#[allow(dead_code)] Arc<shared::Mapping>),
}

// SAFETY: `base` is only dereferenced through the copying functions of this file, which make no
// references and tolerate concurrent access by anyone; the memory's validity is the promise of
// `Region::from_raw` (or of `_owner`), which names no thread.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; no method has state of its own beside the memory.
unsafe impl Sync for Region {}

impl Region {
    /// A region over memory of the application.
    ///
    /// # Safety
    /// `base..base + len` must stay mapped, readable, and writable unless the region is only ever
    /// read, until the region and all its clones are dropped. Nobody may hold a Rust reference to
    /// it that excludes other access.
    pub unsafe fn from_raw(base: *mut u8, len: u64) -> Region {
        Region {
            base,
            len,
            _owner: None,
        }
    }

    /// A zeroed region that owns its memory, aligned to 8 bytes.
    pub fn owned(len: usize) -> Region {
        Region::owned_at(len, 8)
    }

    /// A zeroed region that owns its memory, aligned to `align` bytes, a power of two, and at least to 8.
    pub fn owned_at(len: usize, align: usize) -> Region {
        let before = align.saturating_sub(8);
        let words = (len + before).div_ceil(8);
        let words: Arc<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let first = words.as_ptr().cast::<u8>().cast_mut();
        let skipped = (first as usize).next_multiple_of(align.max(8)) - first as usize;
        Region {
            base: first.wrapping_add(skipped),
            len: len as u64,
            _owner: Some(Owner::Words(words)),
        }
    }

    /// The `len` bytes from `offset` on.
    pub fn part(&self, offset: u64, len: usize) -> Result<Region, OutOfRange> {
        Ok(Region {
            base: self.at(offset, len)?,
            len: len as u64,
            _owner: self._owner.clone(),
        })
    }

    /// Bytes in the region.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if the region holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pointer to `offset..offset + len`, if that lies inside.
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8, OutOfRange> {
        let end = offset.checked_add(len as u64).ok_or(OutOfRange)?;
        if end > self.len {
            return Err(OutOfRange);
        }
        let offset = usize::try_from(offset).map_err(|_| OutOfRange)?;
        // `wrapping_add` needs no promise; the result lies inside the region as just checked.
        Ok(self.base.wrapping_add(offset))
    }

    /// Copies `out.len()` bytes from `offset` into `out`.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.at(offset, out.len())?;
        // SAFETY: `from` is valid for `out.len()` bytes by the check of `at` and the promise of the
        // constructor; `out` is exclusively ours, and cannot lie in the region, since nobody holds
        // an excluding reference to that.
        unsafe { copy(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `data` to `offset`.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), OutOfRange> {
        let to = self.at(offset, data.len())?;
        // SAFETY: `to` is valid for `data.len()` bytes by the check of `at` and the promise of the
        // constructor; `data` is a live slice, and disjoint because it is a shared reference to
        // memory that nobody writes, unlike the region.
        unsafe { copy_in(data, to) };
        Ok(())
    }

    /// Copies `len` bytes from `from` in this region to `at` in `to`; the ranges may overlap.
    #[inline]
    pub fn copy_to(&self, from: u64, to: &Region, at: u64, len: usize) -> Result<(), OutOfRange> {
        let src = self.at(from, len)?;
        let dst = to.at(at, len)?;
        let forward = (dst as usize) <= (src as usize) || (dst as usize) >= (src as usize) + len;
        if forward {
            // SAFETY: both ranges are valid for `len` bytes by the checks just made; a forward copy
            // is right for disjoint ranges and for a destination that starts no later than the source.
            unsafe { copy(src, dst, len) };
            return Ok(());
        }
        self.copy_from_end(from, to, at, len)
    }

    /// Copies ranges that overlap upwards: by blocks from the end, through a buffer of our own.
    #[cold]
    fn copy_from_end(&self, from: u64, to: &Region, at: u64, len: usize) -> Result<(), OutOfRange> {
        let mut block = [0u8; 4096];
        let mut left = len;
        while left > 0 {
            let n = left.min(block.len());
            left -= n;
            self.read(from + left as u64, &mut block[..n])?;
            to.write(at + left as u64, &block[..n])?;
        }
        Ok(())
    }

    /// The aligned 64-bit word at `offset`.
    fn word(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        let p = self.at(offset, 8)?;
        if !(p as usize).is_multiple_of(8) {
            return Err(OutOfRange);
        }
        // SAFETY: `p` is aligned to 8 and valid for 8 bytes by the checks above and the promise of
        // the constructor; every other access through this module is atomic or of machine instructions, and an
        // atomic reference excludes nobody.
        Ok(unsafe { AtomicU64::from_ptr(p.cast()) })
    }

    /// Adds `add` to the word at `offset` (host byte order, aligned to 8); gives the old value.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OutOfRange> {
        Ok(self.word(offset)?.fetch_add(add, Ordering::AcqRel))
    }

    /// Stores `swap` in the word at `offset` if it holds `compare`; gives the old value.
    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, OutOfRange> {
        let word = self.word(offset)?;
        Ok(
            match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) | Err(old) => old,
            },
        )
    }
}

/// Copies `len` bytes upwards. Of less than 8 KiB the last byte is written once, in the last store: who waits for it finds the
/// others there, and may change them.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes. They are disjoint, or `dst` is not inside
/// `src..src + len`. Others may access either range meanwhile.
#[cfg(all(target_arch = "x86_64", not(visible_copies)))]
#[inline(always)]
unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    /// Moves the first and the last bytes, two parts of one width that may overlap, but not as a whole.
    macro_rules! two {
        ($instruction:literal, $class:ident, $part:literal, $width:literal) => {
            std::arch::asm!(
                concat!($instruction, " {a", $part, "}, [{src}]"),
                concat!($instruction, " {b", $part, "}, [{src} + {len} - ", $width, "]"),
                concat!($instruction, " [{dst}], {a", $part, "}"),
                concat!($instruction, " [{dst} + {len} - ", $width, "], {b", $part, "}"),
                src = in(reg) src,
                dst = in(reg) dst,
                len = in(reg) len,
                a = out($class) _,
                b = out($class) _,
                options(nostack, preserves_flags)
            )
        };
    }
    macro_rules! one {
        ($class:ident, $part:literal) => {
            std::arch::asm!(
                concat!("mov {a", $part, "}, [{src}]"),
                concat!("mov [{dst}], {a", $part, "}"),
                src = in(reg) src,
                dst = in(reg) dst,
                a = out($class) _,
                options(nostack, preserves_flags)
            )
        };
    }
    // Flags, headers and small messages; where the length is known, no branch is left.
    // SAFETY: the caller vouches for both ranges. Each branch accesses the first and the last bytes of a range, which is as long
    // as the branch says, and reads all before it writes any, so that ranges which overlap are copied right, too.
    // What a racing access sees is defined by the machine, since no Rust access is made.
    unsafe {
        // Compared one after the other: a table of jumps would cost more where the length is known to nobody.
        if len > 32 {
            copy_blocks(src, dst, len);
        } else if len > 16 {
            two!("movups", xmm_reg, "", "16");
        } else if len > 8 {
            two!("mov", reg, "", "8");
        } else if len == 8 {
            one!(reg, "");
        } else if len > 4 {
            two!("mov", reg, ":e", "4");
        } else if len == 4 {
            one!(reg, ":e");
        } else if len == 3 {
            two!("mov", reg, ":x", "2");
        } else if len == 2 {
            one!(reg, ":x");
        } else if len == 1 {
            one!(reg_byte, "");
        }
    }
}

/// As [`copy`], of any length: by blocks.
///
/// # Safety
/// As [`copy`].
#[cfg(all(target_arch = "x86_64", not(visible_copies)))]
unsafe fn copy_blocks(src: *const u8, dst: *mut u8, len: usize) {
    /// Copies at least so long are of many packets at once, or of none: for them this one instruction is as fast as there is,
    /// above all where the memory is not in the caches.
    const LONG: usize = 8192;
    if len >= LONG {
        // SAFETY: the caller vouches for both ranges, and for a `dst` that an upwards copy is right for; the direction flag is
        // clear, as the ABI has it. What a racing access sees is defined by the machine, since no Rust access is made.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rsi") src => _,
                inout("rdi") dst => _,
                inout("rcx") len => _,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    // Blocks, then what is left by halves. Most copies are of a packet at most: there this is no slower than
    // `rep movsb`, for short ones several times faster, and in an emulated machine ten times.
    // SAFETY: the caller vouches for both ranges: each step moves both pointers and `len` by the bytes that
    // it copied, and is taken only if as many are left. A block is read before it is written, so that a
    // `dst` below `src` overwrites only what was read. What a racing access sees is defined by the machine,
    // since no Rust access is made.
    unsafe {
        std::arch::asm!(
            "cmp {len}, 64",
            "jb 3f",
            "2:",
            "movups {a}, [{src}]",
            "movups {b}, [{src} + 16]",
            "movups {c}, [{src} + 32]",
            "movups {d}, [{src} + 48]",
            "movups [{dst}], {a}",
            "movups [{dst} + 16], {b}",
            "movups [{dst} + 32], {c}",
            "movups [{dst} + 48], {d}",
            "add {src}, 64",
            "add {dst}, 64",
            "sub {len}, 64",
            "cmp {len}, 64",
            "jae 2b",
            "3:",
            "test {len:l}, 32",
            "jz 4f",
            "movups {a}, [{src}]",
            "movups {b}, [{src} + 16]",
            "movups [{dst}], {a}",
            "movups [{dst} + 16], {b}",
            "add {src}, 32",
            "add {dst}, 32",
            "4:",
            "test {len:l}, 16",
            "jz 5f",
            "movups {a}, [{src}]",
            "movups [{dst}], {a}",
            "add {src}, 16",
            "add {dst}, 16",
            "5:",
            "test {len:l}, 8",
            "jz 6f",
            "mov {word}, [{src}]",
            "mov [{dst}], {word}",
            "add {src}, 8",
            "add {dst}, 8",
            "6:",
            "test {len:l}, 4",
            "jz 7f",
            "mov {word:e}, [{src}]",
            "mov [{dst}], {word:e}",
            "add {src}, 4",
            "add {dst}, 4",
            "7:",
            "test {len:l}, 2",
            "jz 8f",
            "mov {word:x}, [{src}]",
            "mov [{dst}], {word:x}",
            "add {src}, 2",
            "add {dst}, 2",
            "8:",
            "test {len:l}, 1",
            "jz 9f",
            "mov {word:l}, [{src}]",
            "mov [{dst}], {word:l}",
            "9:",
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            len = inout(reg) len => _,
            word = out(reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// Copies `len` bytes upwards.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes. They are disjoint, or `dst` is not inside
/// `src..src + len`. Others may access either range meanwhile.
#[cfg(any(not(target_arch = "x86_64"), visible_copies))]
unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    use std::sync::atomic::AtomicU8;
    for i in 0..len {
        // SAFETY: `i < len`, so both bytes are inside ranges that the caller vouches for; a byte is
        // always aligned.
        let (s, d) = unsafe {
            (
                AtomicU8::from_ptr(src.add(i).cast_mut()),
                AtomicU8::from_ptr(dst.add(i)),
            )
        };
        d.store(s.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Copies all of `data`.
///
/// # Safety
/// `dst` is writable for as many bytes, and disjoint from `data`. Others may access it meanwhile.
#[cfg(all(target_arch = "x86_64", not(visible_copies)))]
#[inline]
unsafe fn copy_in(data: &[u8], dst: *mut u8) {
    // SAFETY: a slice is readable for its length; the caller vouches for `dst`.
    unsafe { copy(data.as_ptr(), dst, data.len()) };
}

/// Copies all of `data`.
///
/// # Safety
/// `dst` is writable for as many bytes, and disjoint from `data`. Others may access it meanwhile.
#[cfg(any(not(target_arch = "x86_64"), visible_copies))]
unsafe fn copy_in(data: &[u8], dst: *mut u8) {
    use std::sync::atomic::AtomicU8;
    // Read as what it is: a slice gives no right to atomics, which could write.
    for (i, &byte) in data.iter().enumerate() {
        // SAFETY: `i` is below the length, so the byte is one that the caller vouches for; a byte is
        // always aligned.
        unsafe { AtomicU8::from_ptr(dst.add(i)) }.store(byte, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_checked_at_the_access() {
        let r = Region::owned(16);
        let mut b = [0u8; 8];
        assert_eq!(r.read(8, &mut b), Ok(()));
        assert_eq!(r.read(9, &mut b), Err(OutOfRange));
        assert_eq!(r.read(u64::MAX, &mut b), Err(OutOfRange));
        assert_eq!(r.write(16, &[]), Ok(()));
        assert_eq!(r.write(17, &[]), Err(OutOfRange));
        assert_eq!(r.fetch_add(4, 1), Err(OutOfRange), "not aligned to 8");
        assert_eq!(r.fetch_add(16, 1), Err(OutOfRange));
    }

    #[test]
    fn a_part_is_the_same_memory_and_keeps_it() {
        let whole = Region::owned_at(256, 128);
        assert_eq!(whole.base as usize % 128, 0);
        assert_eq!(whole.part(200, 57).err(), Some(OutOfRange));
        let part = whole.part(200, 56).unwrap();
        part.write(1, b"here").unwrap();
        let mut b = [0u8; 6];
        whole.read(200, &mut b).unwrap();
        assert_eq!(&b, b"\0here\0");
        drop(whole);
        assert_eq!(part.read(51, &mut b), Err(OutOfRange));
        part.read(0, &mut b).unwrap();
        assert_eq!(&b, b"\0here\0");
    }

    /// Every length of every step, at every alignment, and not a byte beside it.
    #[test]
    fn copies_of_any_length_change_nothing_else() {
        let source: Vec<u8> = (0..300u32).map(|i| (i * 7 % 251) as u8 | 1).collect();
        let from = Region::owned(300);
        from.write(0, &source).unwrap();
        for len in (0..=130).chain([191, 192, 255, 256]) {
            for (start, at) in [(0, 0), (1, 0), (0, 3), (5, 9)] {
                let mut out = vec![0; len];
                from.read(start, &mut out).unwrap();
                assert_eq!(out, source[start as usize..][..len]);
                let to = Region::owned(300);
                from.copy_to(start, &to, at, len).unwrap();
                let mut all = vec![0; 300];
                to.read(0, &mut all).unwrap();
                let (before, rest) = all.split_at(at as usize);
                assert_eq!(rest[..len], out[..], "{len}");
                assert!(before.iter().chain(&rest[len..]).all(|&b| b == 0), "{len}");
            }
        }
    }

    #[test]
    fn overlapping_copies_move_like_memmove() {
        for (from, to, len) in [
            (0u64, 3u64, 9000usize),
            (3, 0, 9000),
            (5, 5, 100),
            (1, 0, 127),
            (17, 0, 190),
            (8, 0, 32),
            (3, 0, 20),
            (3, 0, 12),
            (1, 0, 7),
            (1, 0, 3),
            (0, 1, 127),
            (0, 9000, 9000),
        ] {
            let r = Region::owned(20_000);
            let mut want: Vec<u8> = (0..20_000u32).map(|i| (i * 7 % 251) as u8).collect();
            r.write(0, &want).unwrap();
            r.copy_to(from, &r, to, len).unwrap();
            want.copy_within(from as usize..from as usize + len, to as usize);
            let mut got = vec![0; 20_000];
            r.read(0, &mut got).unwrap();
            assert!(got == want, "{from} {to} {len}");
        }
    }

    #[test]
    fn atomics_give_the_old_value() {
        let r = Region::owned(8);
        assert_eq!(r.fetch_add(0, 41), Ok(0));
        assert_eq!(r.compare_swap(0, 40, 7), Ok(41));
        assert_eq!(r.compare_swap(0, 41, 7), Ok(41));
        assert_eq!(r.fetch_add(0, 0), Ok(7));
    }
}
