//! Files and trees at both ends: the source in chunks, the destination under a temporary name until it is whole.
//!
//! A tree is sent as one run of bytes: its listing, and then its files one behind the other. So many small files share a
//! chunk, and nothing waits for a file's end.

mod destination;
mod holes;
mod listing;
mod part;
mod planting;
mod source;
mod tree;

pub use destination::{Coming, Opened, Partial, Target, Whole};
pub use listing::{Counts, LARGEST as LARGEST_LISTING};
pub use part::Remains;
pub use source::{Piece, Progress, Source};

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use sha2::{Digest as _, Sha256};

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
#[derive(Clone, Debug, Default)]
pub(in crate::copy) struct Summing(Sha256);

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

    /// Adds `len` bytes of `file`, from its beginning.
    fn file(&mut self, file: &File, len: u64) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        while at < len {
            let data = holes::next_data(file, at, len);
            self.zeros(data - at);
            at = data;
            let some = (len - at).min(CHUNK as u64) as usize;
            file.read_exact_at(&mut buffer[..some], at)?;
            self.bytes(&buffer[..some]);
            at += some as u64;
        }
        Ok(())
    }

    /// The digest so far.
    fn digest(&self) -> Digest {
        self.clone().done()
    }

    fn done(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests;
