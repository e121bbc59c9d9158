//! Atomic acknowledge extended transport header.

use super::{ParseError, put, take};

/// The value that the word had before the atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth(pub u64);

impl AtomicAckEth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads the header from the front of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<AtomicAckEth, ParseError> {
        let b = take(bytes, "AtomicAckETH")?;
        Ok(AtomicAckEth(u64::from_be_bytes(*b)))
    }

    /// Writes the header to the front of `out`, which must hold [`LEN`](Self::LEN) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, self.0.to_be_bytes());
    }
}
