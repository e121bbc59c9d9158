//! Files at both ends: the source in chunks, the destination under a temporary name until it is whole.

mod destination;
mod holes;
mod source;

pub use destination::{Opened, Partial, Target};
pub use source::{Piece, Progress, Source};

use sha2::{Digest as _, Sha256};
use std::fmt;

/// Bytes of one chunk: the unit in which a file is read, sent, written, and in which its holes are kept.
pub const CHUNK: usize = 256 << 10;

/// A chunk of zeros.
static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// Number of chunks of a file of `size` bytes; the last one may be shorter.
pub fn chunks(size: u64) -> u64 {
    size.div_ceil(CHUNK as u64)
}

/// Length of chunk `index` of a file of `size` bytes; 0 behind its end.
pub fn chunk_len(size: u64, index: u64) -> usize {
    let start = index.saturating_mul(CHUNK as u64);
    size.saturating_sub(start).min(CHUNK as u64) as usize
}

/// A SHA-256, shown as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Adds up a file, holes included.
#[derive(Debug, Default)]
struct Summing(Sha256);

impl Summing {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn zeros(&mut self, mut count: u64) {
        while count > 0 {
            let some = count.min(CHUNK as u64);
            self.0.update(&ZEROS[..some as usize]);
            count -= some;
        }
    }

    fn done(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests;
