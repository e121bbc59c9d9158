//! RoCEv2 on the wire: one file per header, the opcode table, whole packets, the invariant CRC.
//!
//! # What can panic, and on whose input
//!
//! Nothing here panics on a received byte: `parse` takes any bytes and answers with a value or a
//! [`ParseError`], and [`icrc`] takes any bytes at all. `emit` and
//! [`Packet::emit_header`] write what *this* process made: they panic if the caller's buffer is
//! shorter than the header (`LEN`, [`Packet::header_len`]), and in debug builds if a [`Packet`]
//! carries other headers than its opcode says. Values that are too wide for their field are cut
//! to its width. No other call panics.

mod aeth;
mod atomic_ack_eth;
mod atomic_eth;
mod bth;
mod deth;
pub mod icrc;
mod ieth;
mod imm;
mod opcode;
mod packet;
mod psn;
mod reth;
mod xrceth;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use ieth::Ieth;
pub use imm::ImmDt;
pub use opcode::{Class, Headers, Opcode, OpcodeInfo, Operation, Place};
pub use packet::{Packet, pad_for};
pub use psn::Psn;
pub use reth::Reth;
pub use xrceth::XrcEth;

/// UDP destination port of RoCEv2, as registered with IANA.
pub const ROCE_PORT: u16 = 4791;

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The bytes end before the header does.
    #[error("{header} needs {needed} bytes, {have} are left")]
    Truncated {
        /// The header, as the specification abbreviates it.
        header: &'static str,
        /// Its length in bytes.
        needed: usize,
        /// Bytes that were there.
        have: usize,
    },
    /// The opcode is in no row of the table.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// Payload and padding together are not a whole number of 4-byte words.
    #[error("{0} bytes follow the headers, not a multiple of 4")]
    Unaligned(usize),
    /// The pad count exceeds what follows the headers.
    #[error("pad count {pad}, but {have} bytes follow the headers")]
    BadPad {
        /// Pad count of the BTH.
        pad: u8,
        /// Bytes after the headers.
        have: usize,
    },
    /// Bytes follow the headers of an opcode that carries no payload.
    #[error("{} carries no payload, but {have} bytes follow its headers", .opcode)]
    UnexpectedPayload {
        /// The opcode.
        opcode: Opcode,
        /// Bytes after the headers.
        have: usize,
    },
}

/// The first `N` bytes as an array, or which header is cut short.
fn take<'a, const N: usize>(
    bytes: &'a [u8],
    header: &'static str,
) -> Result<&'a [u8; N], ParseError> {
    bytes.first_chunk().ok_or(ParseError::Truncated {
        header,
        needed: N,
        have: bytes.len(),
    })
}

/// Writes `header` to the front of `out`; panics if `out` is shorter.
fn put<const N: usize>(out: &mut [u8], header: [u8; N]) {
    out[..N].copy_from_slice(&header);
}

#[cfg(test)]
mod tests;
