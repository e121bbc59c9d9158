//! Atomic extended transport header.

use super::{ParseError, put, take};

/// What an atomic request does, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address of the 8-byte word in the responder's address space.
    pub va: u64,
    /// Remote key of the region.
    pub rkey: u32,
    /// The value to swap in, or the one to add.
    pub swap_or_add: u64,
    /// The value to compare with; unused by fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    /// Length in bytes.
    pub const LEN: usize = 28;

    /// Reads the header from the front of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<AtomicEth, ParseError> {
        let b: &[u8; AtomicEth::LEN] = take(bytes, "AtomicETH")?;
        let u64_at = |i: usize| {
            u64::from_be_bytes([
                b[i],
                b[i + 1],
                b[i + 2],
                b[i + 3],
                b[i + 4],
                b[i + 5],
                b[i + 6],
                b[i + 7],
            ])
        };
        Ok(AtomicEth {
            va: u64_at(0),
            rkey: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            swap_or_add: u64_at(12),
            compare: u64_at(20),
        })
    }

    /// Writes the header to the front of `out`, which must hold [`LEN`](Self::LEN) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(&mut out[..8], self.va.to_be_bytes());
        put(&mut out[8..12], self.rkey.to_be_bytes());
        put(&mut out[12..20], self.swap_or_add.to_be_bytes());
        put(&mut out[20..28], self.compare.to_be_bytes());
    }
}
