//! Whole packets: the headers that an opcode says, and the payload.

use std::fmt;

use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Headers, Ieth, ImmDt, ParseError, Reth, XrcEth,
};

/// All headers of one packet; payload, padding and ICRC are beside it.
///
/// The extension headers that are `Some` are those of the opcode's row in the table
/// ([`OpcodeInfo::headers`](super::OpcodeInfo::headers)). [`parse`](Packet::parse) guarantees that;
/// who builds a packet keeps to it.
///
/// ```
/// use rdma_soft::wire::{Bth, Opcode, Packet, Psn, Reth, pad_for};
///
/// let payload = b"hello";
/// let mut packet = Packet::new(Bth {
///     opcode: Opcode::RC_RDMA_WRITE_ONLY,
///     pad: pad_for(payload.len()),
///     dest_qp: 0x11,
///     psn: Psn::new(7),
///     ..Bth::default()
/// });
/// packet.reth = Some(Reth { va: 0x1000, rkey: 5, len: 5 });
///
/// let mut bytes = [0; 64];
/// let header = packet.emit_header(&mut bytes);
/// bytes[header..][..payload.len()].copy_from_slice(payload);
/// let end = header + payload.len() + usize::from(packet.bth.pad);
///
/// let (parsed, data) = Packet::parse(&bytes[..end]).unwrap();
/// assert_eq!((parsed, data), (packet, &payload[..]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Base transport header.
    pub bth: Bth,
    /// Number of the XRC SRQ, on XRC requests.
    pub xrceth: Option<u32>,
    /// Datagram header, on UD.
    pub deth: Option<Deth>,
    /// Remote memory, on the first packet of a WRITE and on READ requests.
    pub reth: Option<Reth>,
    /// Atomic request.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgement.
    pub aeth: Option<Aeth>,
    /// The word's value before an atomic operation.
    pub atomic_ack: Option<u64>,
    /// Immediate data, as the host value of the big-endian field.
    pub imm: Option<u32>,
    /// Remote key to invalidate.
    pub ieth: Option<u32>,
}

/// Bytes of padding after `len` bytes of payload: to the next multiple of 4.
pub const fn pad_for(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}

impl Packet {
    /// The longest headers that any opcode has, in bytes.
    pub const MAX_HEADER_LEN: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

    /// A packet of nothing but `bth`, to add extension headers to.
    pub const fn new(bth: Bth) -> Packet {
        Packet {
            bth,
            xrceth: None,
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }

    /// Reads a packet from BTH..padding (a UDP payload without the 4 bytes of the ICRC) and
    /// gives its headers and its payload without padding.
    ///
    /// # Errors
    /// [`ParseError`], for bytes that are not a packet. What the fields *mean* (version, keys,
    /// QP numbers, lengths against the path MTU) is for the receiver to judge.
    pub fn parse(bytes: &[u8]) -> Result<(Packet, &[u8]), ParseError> {
        let (packet, header, payload) = Packet::parse_header(bytes, bytes.len())?;
        Ok((packet, &bytes[header..header + payload]))
    }

    /// Like [`parse`](Packet::parse), for a packet of `len` bytes of which only the first ones are at hand: all,
    /// or at least [`MAX_HEADER_LEN`](Packet::MAX_HEADER_LEN). Gives the headers, their length and that of the
    /// payload behind them, without padding.
    ///
    /// # Errors
    /// As [`parse`](Packet::parse).
    pub fn parse_header(bytes: &[u8], len: usize) -> Result<(Packet, usize, usize), ParseError> {
        let mut packet = Packet::new(Bth::default());
        let (header, payload) = packet.read_header(bytes, len)?;
        Ok((packet, header, payload))
    }

    /// As [`parse_header`](Packet::parse_header), in place, for a packet is large: all headers become those in `bytes`, or, in
    /// case of an error, any.
    ///
    /// # Errors
    /// As [`parse`](Packet::parse).
    #[inline(always)]
    pub fn read_header(&mut self, bytes: &[u8], len: usize) -> Result<(usize, usize), ParseError> {
        let bth = Bth::parse(bytes)?;
        let Some(info) = bth.opcode.info() else {
            return Err(ParseError::UnknownOpcode(bth.opcode.0));
        };
        *self = Packet::new(bth);
        let mut rest = &bytes[Bth::LEN..];
        if info.headers != Headers::BTH {
            rest = self.read_extensions(info.headers, rest)?;
        }
        let header = bytes.len() - rest.len();
        let have = len.saturating_sub(header);
        if !info.payload && have != 0 {
            let opcode = bth.opcode;
            return Err(ParseError::UnexpectedPayload { opcode, have });
        }
        if !have.is_multiple_of(4) {
            return Err(ParseError::Unaligned(have));
        }
        let pad = bth.pad;
        match have.checked_sub(usize::from(pad)) {
            Some(payload) => Ok((header, payload)),
            None => Err(ParseError::BadPad { pad, have }),
        }
    }

    /// Reads those of the extension headers that are in `headers` from the front of `rest`; gives what is behind them.
    fn read_extensions<'a>(
        &mut self,
        headers: Headers,
        mut rest: &'a [u8],
    ) -> Result<&'a [u8], ParseError> {
        // In the order of the wire.
        if headers.contains(Headers::XRCETH) {
            self.xrceth = Some(XrcEth::parse(rest)?.0);
            rest = &rest[XrcEth::LEN..];
        }
        if headers.contains(Headers::DETH) {
            self.deth = Some(Deth::parse(rest)?);
            rest = &rest[Deth::LEN..];
        }
        if headers.contains(Headers::RETH) {
            self.reth = Some(Reth::parse(rest)?);
            rest = &rest[Reth::LEN..];
        }
        if headers.contains(Headers::ATOMIC_ETH) {
            self.atomic = Some(AtomicEth::parse(rest)?);
            rest = &rest[AtomicEth::LEN..];
        }
        if headers.contains(Headers::AETH) {
            self.aeth = Some(Aeth::parse(rest)?);
            rest = &rest[Aeth::LEN..];
        }
        if headers.contains(Headers::ATOMIC_ACK_ETH) {
            self.atomic_ack = Some(AtomicAckEth::parse(rest)?.0);
            rest = &rest[AtomicAckEth::LEN..];
        }
        if headers.contains(Headers::IMM) {
            self.imm = Some(ImmDt::parse(rest)?.0);
            rest = &rest[ImmDt::LEN..];
        }
        if headers.contains(Headers::IETH) {
            self.ieth = Some(Ieth::parse(rest)?.0);
            rest = &rest[Ieth::LEN..];
        }
        Ok(rest)
    }

    /// The extension headers that are there, and the BTH.
    fn headers(&self) -> Headers {
        let mut headers = Headers::BTH;
        headers.set(Headers::XRCETH, self.xrceth.is_some());
        headers.set(Headers::DETH, self.deth.is_some());
        headers.set(Headers::RETH, self.reth.is_some());
        headers.set(Headers::ATOMIC_ETH, self.atomic.is_some());
        headers.set(Headers::AETH, self.aeth.is_some());
        headers.set(Headers::ATOMIC_ACK_ETH, self.atomic_ack.is_some());
        headers.set(Headers::IMM, self.imm.is_some());
        headers.set(Headers::IETH, self.ieth.is_some());
        headers
    }

    /// Bytes that [`emit_header`](Packet::emit_header) writes.
    #[inline]
    pub fn header_len(&self) -> usize {
        match self.bth.opcode.info() {
            Some(info) => info.header_len,
            None => self.headers().len(),
        }
    }

    /// Writes the headers to the front of `out` and gives their length.
    ///
    /// `out` must hold [`header_len`](Packet::header_len) bytes. Padding bytes are zero and are
    /// written by whoever writes the payload.
    #[inline]
    pub fn emit_header(&self, out: &mut [u8]) -> usize {
        debug_assert!(
            (self.bth.opcode.info()).is_none_or(|info| info.headers == self.headers()),
            "{} does not have the headers {:?}",
            self.bth.opcode,
            self.headers()
        );
        self.bth.emit(out);
        let mut at = Bth::LEN;
        if let Some(srqn) = self.xrceth {
            XrcEth(srqn).emit(&mut out[at..]);
            at += XrcEth::LEN;
        }
        if let Some(deth) = &self.deth {
            deth.emit(&mut out[at..]);
            at += Deth::LEN;
        }
        if let Some(reth) = &self.reth {
            reth.emit(&mut out[at..]);
            at += Reth::LEN;
        }
        if let Some(atomic) = &self.atomic {
            atomic.emit(&mut out[at..]);
            at += AtomicEth::LEN;
        }
        if let Some(aeth) = &self.aeth {
            aeth.emit(&mut out[at..]);
            at += Aeth::LEN;
        }
        if let Some(value) = self.atomic_ack {
            AtomicAckEth(value).emit(&mut out[at..]);
            at += AtomicAckEth::LEN;
        }
        if let Some(imm) = self.imm {
            ImmDt(imm).emit(&mut out[at..]);
            at += ImmDt::LEN;
        }
        if let Some(rkey) = self.ieth {
            Ieth(rkey).emit(&mut out[at..]);
            at += Ieth::LEN;
        }
        at
    }
}

impl fmt::Display for Packet {
    /// One line: opcode, destination, PSN, then what else is there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = &self.bth;
        write!(f, "{} QP {:#x} PSN {}", bth.opcode, bth.dest_qp, bth.psn)?;
        if bth.ack_req {
            write!(f, " ack_req")?;
        }
        if bth.solicited {
            write!(f, " solicited")?;
        }
        if let Some(srqn) = self.xrceth {
            write!(f, " SRQ {srqn:#x}")?;
        }
        if let Some(deth) = &self.deth {
            write!(f, " from QP {:#x} qkey {:#x}", deth.src_qp, deth.qkey)?;
        }
        if let Some(reth) = &self.reth {
            write!(
                f,
                " va {:#x} rkey {:#x} len {}",
                reth.va, reth.rkey, reth.len
            )?;
        }
        if let Some(atomic) = &self.atomic {
            write!(
                f,
                " va {:#x} rkey {:#x} swap_or_add {:#x} compare {:#x}",
                atomic.va, atomic.rkey, atomic.swap_or_add, atomic.compare
            )?;
        }
        if let Some(aeth) = &self.aeth {
            write!(f, " {} MSN {:#x}", aeth.syndrome, aeth.msn)?;
        }
        if let Some(value) = self.atomic_ack {
            write!(f, " was {value:#x}")?;
        }
        if let Some(imm) = self.imm {
            write!(f, " imm {imm:#x}")?;
        }
        if let Some(rkey) = self.ieth {
            write!(f, " invalidate rkey {rkey:#x}")?;
        }
        Ok(())
    }
}
