//! Immediate data.

use super::{ParseError, put, take};

/// Immediate data, as the host value of the big-endian field.
///
/// Verbs programs hold it big-endian (`imm_data` is a `__be32`): convert at that border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header from the front of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<ImmDt, ParseError> {
        let b = take(bytes, "ImmDt")?;
        Ok(ImmDt(u32::from_be_bytes(*b)))
    }

    /// Writes the header to the front of `out`, which must hold [`LEN`](Self::LEN) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, self.0.to_be_bytes());
    }
}
