//! Datagram extended transport header.

use super::{ParseError, put, take};

/// Follows the BTH of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key, which must equal the receiving QP's.
    pub qkey: u32,
    /// QP number of the sender, 24 bits.
    pub src_qp: u32,
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads the header from the front of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<Deth, ParseError> {
        let b: &[u8; Deth::LEN] = take(bytes, "DETH")?;
        Ok(Deth {
            qkey: u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            src_qp: u32::from_be_bytes([0, b[5], b[6], b[7]]),
        })
    }

    /// Writes the header to the front of `out`, which must hold [`LEN`](Self::LEN) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        let [k3, k2, k1, k0] = self.qkey.to_be_bytes();
        let [_, q2, q1, q0] = self.src_qp.to_be_bytes();
        put(out, [k3, k2, k1, k0, 0, q2, q1, q0]);
    }
}
