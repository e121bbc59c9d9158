//! The way in: from a datagram to a packet.

use std::net::SocketAddr;

use crate::wire::icrc::{self, Flow, explained_ip_id};
use crate::wire::{Bth, Packet, ParseError};

/// Which IPv4 identifications a received packet may have been made with.
///
/// The ICRC covers the identification, and a UDP socket does not show it to the receiver. A socket
/// of ours sends 0, or counts from 0 within one segmented send. Other stacks (the kernel's rxe,
/// hardware) set others: for them any must do, which costs 16 of the ICRC's 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpIds {
    /// 0..=63: peers are nodes of this kind.
    #[default]
    Own,
    /// Any.
    Any,
}

/// Why a datagram is not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IngressError {
    /// Too short for a BTH and an ICRC.
    #[error("{0} bytes, fewer than a BTH and an ICRC")]
    TooShort(usize),
    /// The ICRC is wrong: the packet was damaged on the way, or made with an identification that
    /// [`IpIds`] does not accept.
    #[error("the ICRC is wrong")]
    BadIcrc,
    /// A version of the transport that is not 0.
    #[error("transport version {0}, not 0")]
    BadVersion(u8),
    /// The opcode is in no row of the table.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// The headers do not make a packet.
    #[error("{0}")]
    BadHeader(ParseError),
}

/// The packet in `datagram`, which came from `src` to `dst`, and its payload. `ip_id` is the IPv4
/// identification that it was most likely made with: 0, or its place among those that came together. That
/// decides nothing, but if it is right, checking is fastest.
///
/// The ICRC is checked before anything is interpreted.
///
/// # Errors
/// [`IngressError`].
pub fn check(
    src: SocketAddr,
    dst: SocketAddr,
    datagram: &[u8],
    ip_id: u16,
    ids: IpIds,
) -> Result<(Packet, &[u8]), IngressError> {
    const OWN_IDS: u16 = 64;
    let too_short = IngressError::TooShort(datagram.len());
    let (transport, icrc) = datagram.split_last_chunk().ok_or(too_short)?;
    const { assert!(icrc::LEN == 4) };
    if transport.len() < Bth::LEN {
        return Err(too_short);
    }
    let icrc = u32::from_le_bytes(*icrc);
    let flow = Flow {
        ip_id,
        ..Flow::new(src, dst)
    };
    let explained = explained_ip_id(&flow, transport, icrc);
    let fits = match ids {
        IpIds::Own => explained.is_some_and(|id| id < OWN_IDS),
        // Not everybody forbids fragments.
        IpIds::Any => {
            let may_fragment = Flow {
                dont_fragment: false,
                ..flow
            };
            explained.is_some() || explained_ip_id(&may_fragment, transport, icrc).is_some()
        }
    };
    if !fits {
        return Err(IngressError::BadIcrc);
    }
    let mut packet = Packet::new(Bth::default());
    let (header, len) = headers(&mut packet, transport, transport.len())?;
    Ok((packet, &transport[header..header + len]))
}

/// Reads the headers of the packet of `len` bytes, without an ICRC, of which `bytes` are the first, as many as
/// [`Packet::read_header`] asks for; gives the lengths of its headers and of its payload.
#[inline(always)]
pub(super) fn headers(
    packet: &mut Packet,
    bytes: &[u8],
    len: usize,
) -> Result<(usize, usize), IngressError> {
    let read = packet
        .read_header(bytes, len)
        .map_err(|error| match error {
            ParseError::UnknownOpcode(opcode) => IngressError::UnknownOpcode(opcode),
            other => IngressError::BadHeader(other),
        })?;
    match packet.bth.tver {
        0 => Ok(read),
        other => Err(IngressError::BadVersion(other)),
    }
}
