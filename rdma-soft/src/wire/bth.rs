//! Base transport header.

use super::{Opcode, ParseError, Psn, put, take};

/// The base transport header, which every packet begins with.
///
/// Reserved bits are ignored when parsed and zero when emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is; any byte, known or not.
    pub opcode: Opcode,
    /// Solicited event: the receiver's CQ may wake whoever waits for solicited completions.
    pub solicited: bool,
    /// Migration state: set when migrated.
    pub mig_req: bool,
    /// Bytes of padding after the payload, 0..=3.
    pub pad: u8,
    /// Transport header version, 4 bits; 0 is the only one defined.
    pub tver: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// QP number of the destination, 24 bits.
    pub dest_qp: u32,
    /// The sender wants an acknowledgement of this packet.
    pub ack_req: bool,
    /// Sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// Reads the header from the front of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<Bth, ParseError> {
        let b: &[u8; Bth::LEN] = take(bytes, "BTH")?;
        Ok(Bth {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: (b[1] >> 4) & 3,
            tver: b[1] & 0x0f,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qp: u32::from_be_bytes([0, b[5], b[6], b[7]]),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        })
    }

    /// Writes the header to the front of `out`, which must hold [`LEN`](Self::LEN) bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let flags = u32::from(self.solicited) << 7
            | u32::from(self.mig_req) << 6
            | u32::from(self.pad & 3) << 4
            | u32::from(self.tver & 0x0f);
        let ecn = u32::from(self.fecn) << 31 | u32::from(self.becn) << 30;
        let words = [
            u32::from(self.opcode.0) << 24 | flags << 16 | u32::from(self.pkey),
            ecn | self.dest_qp & 0xff_ffff,
            u32::from(self.ack_req) << 31 | self.psn.value(),
        ];
        let mut bytes = [0; Bth::LEN];
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        put(out, bytes);
    }
}
