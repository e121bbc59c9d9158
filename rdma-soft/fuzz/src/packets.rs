//! Bytes to the parser: what parses is emitted again, and is the same.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rdma_soft::link::{IngressError, IpIds, check};
use rdma_soft::wire::icrc::{Flow, icrc};
use rdma_soft::wire::{Bth, Headers, Packet, ROCE_PORT, pad_for};

use crate::{Input, Tally};

static TALLY: Tally = Tally::new();

/// Reserved bits of the base transport header, which a receiver ignores: bits 5..0 of byte 4, and 6..0 of byte 8.
const RESERVED: [(usize, u8); 2] = [(4, 0x3f), (8, 0x7f)];

/// One input: a flow, how long the packet is, and how it begins; what is behind that is payload, of which no byte matters.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let len = usize::from(input.u16() % 600);
    let mut bytes = input.bytes(usize::MAX).to_vec();
    bytes.resize(bytes.len().max(len), 0x5a);
    let bytes = &bytes[..];
    let parsed = Packet::parse(bytes);
    let mut outcome = "parsed";
    match &parsed {
        Ok((packet, payload)) => round_trip(packet, payload, bytes),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            outcome = "refused";
        }
    }
    // The parser of shared memory sees the headers alone, and takes the length on trust.
    let seen = &bytes[..bytes.len().min(Packet::MAX_HEADER_LEN)];
    let of_headers = Packet::parse_header(seen, bytes.len());
    match (&parsed, of_headers) {
        (Ok((packet, payload)), Ok((again, header, len))) => {
            assert_eq!((packet, payload.len()), (&again, len));
            assert_eq!(header, packet.header_len());
        }
        (Err(error), Err(again)) => assert_eq!(*error, again),
        (whole, part) => panic!("of all bytes {whole:?}, of the headers {part:?}"),
    }
    way_in(bytes, how, parsed);
    TALLY.add([(outcome, 1)]);
}

/// What was parsed is emitted as it came, but for the bits and the padding that nobody reads.
fn round_trip(packet: &Packet, payload: &[u8], bytes: &[u8]) {
    let info = packet.bth.opcode.info().expect("it parsed");
    let mut out = [0; Packet::MAX_HEADER_LEN];
    let header = packet.emit_header(&mut out);
    assert_eq!(header, packet.header_len());
    assert_eq!(
        header + payload.len() + usize::from(packet.bth.pad),
        bytes.len()
    );
    assert!(bytes[header..].starts_with(payload));
    let mut want = bytes[..header].to_vec();
    for (at, bits) in RESERVED {
        want[at] &= !bits;
    }
    // Reserved bytes in front of numbers of 24 bits.
    let mut at = Bth::LEN;
    for (headers, reserved, len) in [(Headers::XRCETH, 0, 4), (Headers::DETH, 4, 8)] {
        if info.headers.contains(headers) {
            want[at + reserved] = 0;
            at += len;
        }
    }
    assert_eq!(out[..header], want, "{packet}");
    if payload.is_empty() == (packet.bth.pad == 0) {
        assert_eq!(pad_for(payload.len()) % 4, packet.bth.pad % 4, "{packet}");
    }
    assert!(!packet.to_string().is_empty());
}

/// With its checksum the packet gets in; with another one it does not.
fn way_in(bytes: &[u8], how: u8, parsed: Result<(Packet, &[u8]), rdma_soft::wire::ParseError>) {
    let at = |last: u8| match how & 1 {
        0 => SocketAddr::new(Ipv4Addr::new(10, 0, 0, last).into(), ROCE_PORT),
        _ => SocketAddr::new(
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into(),
            ROCE_PORT,
        ),
    };
    let (src, dst) = (at(1), at(2));
    let ids = if how & 2 == 0 { IpIds::Own } else { IpIds::Any };
    let crc = icrc(&Flow::new(src, dst), bytes);
    let mut frame = bytes.to_vec();
    frame.extend(crc.to_le_bytes());
    let got = check(src, dst, &frame, 0, ids);
    match (parsed, got) {
        _ if bytes.len() < Bth::LEN => assert_eq!(got, Err(IngressError::TooShort(frame.len()))),
        (Ok((packet, _)), _) if packet.bth.tver != 0 => {
            assert_eq!(got, Err(IngressError::BadVersion(packet.bth.tver)));
        }
        (Ok(parsed), _) => assert_eq!(got, Ok(parsed)),
        (Err(_), Err(IngressError::BadHeader(_) | IngressError::UnknownOpcode(_))) => {}
        (Err(error), _) => panic!("no packet ({error}), but {got:?}"),
    }
    let bit = usize::from(how >> 2) % (8 * frame.len());
    frame[bit / 8] ^= 1 << (bit % 8);
    let got = check(src, dst, &frame, 0, IpIds::Own);
    // Bytes that routers change are not covered; the base transport header's fourth is one.
    if bit / 8 != 4 && bytes.len() >= Bth::LEN {
        assert_eq!(got, Err(IngressError::BadIcrc), "bit {bit}");
    }
}
