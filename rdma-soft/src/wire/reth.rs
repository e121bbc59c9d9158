//! RDMA extended transport header.

use super::{ParseError, put, take};

/// The remote memory that a WRITE or READ is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// First address in the responder's address space.
    pub va: u64,
    /// Remote key of the region.
    pub rkey: u32,
    /// Bytes of the whole message, over all its packets.
    pub len: u32,
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Reads the header from the front of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<Reth, ParseError> {
        let b: &[u8; Reth::LEN] = take(bytes, "RETH")?;
        Ok(Reth {
            va: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            len: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        })
    }

    /// Writes the header to the front of `out`, which must hold [`LEN`](Self::LEN) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(&mut out[..8], self.va.to_be_bytes());
        put(&mut out[8..12], self.rkey.to_be_bytes());
        put(&mut out[12..16], self.len.to_be_bytes());
    }
}
