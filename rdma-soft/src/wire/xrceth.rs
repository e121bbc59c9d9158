//! XRC extended transport header.

use super::{ParseError, put, take};

/// The shared receive queue that an XRC request is for: its number, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth(pub u32);

impl XrcEth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header from the front of `bytes`; the reserved first byte is ignored.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<XrcEth, ParseError> {
        let b: &[u8; XrcEth::LEN] = take(bytes, "XRCETH")?;
        Ok(XrcEth(u32::from_be_bytes([0, b[1], b[2], b[3]])))
    }

    /// Writes the header to the front of `out`, which must hold [`LEN`](Self::LEN) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        let [_, s2, s1, s0] = self.0.to_be_bytes();
        put(out, [0, s2, s1, s0]);
    }
}
