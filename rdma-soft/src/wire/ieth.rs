//! Invalidate extended transport header.

use super::{ParseError, put, take};

/// The remote key that a SEND with invalidate takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth(pub u32);

impl Ieth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header from the front of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<Ieth, ParseError> {
        let b = take(bytes, "IETH")?;
        Ok(Ieth(u32::from_be_bytes(*b)))
    }

    /// Writes the header to the front of `out`, which must hold [`LEN`](Self::LEN) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, self.0.to_be_bytes());
    }
}
