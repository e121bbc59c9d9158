//! The 40 bytes in front of a datagram.

use std::net::Ipv4Addr;

use crate::gid::{Gid, GidKind};
use crate::mr::{Mr, OutOfRegion};

/// What the device wrote in front of a received datagram: who sent it, and to which address.
///
/// It is the global route header of the packet. On RoCE v2 that is its IP header: an IPv6 header fills the 40 bytes, an
/// IPv4 header the last 20 of them, and what is in front of that means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Grh {
    /// GID of the sender.
    pub source: Gid,
    /// GID that the datagram was sent to: one of the receiving port's, or that of a group.
    pub destination: Gid,
    /// Traffic class that it arrived with; on RoCE v2 the DSCP, and the ECN bits as the network left them.
    pub traffic_class: u8,
    /// Flow label that it arrived with, 20 bits; IPv4 has none, which is 0.
    pub flow_label: u32,
    /// Hop limit that was left of it.
    pub hop_limit: u8,
    /// What follows the header: 17 (UDP) on RoCE v2, 0x1b on RoCE v1 and InfiniBand.
    pub next_header: u8,
}

/// The bytes in front of a datagram are no header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrhError {
    /// Neither an IPv6 nor an IPv4 header.
    #[error(
        "the 40 bytes hold no IP header (they begin with {first:#04x}, byte 20 is {middle:#04x}): do they belong to a datagram that was received?"
    )]
    NoHeader {
        /// The first byte.
        first: u8,
        /// The byte at 20, where an IPv4 header would begin.
        middle: u8,
    },
    /// An IPv6 header in front of something that is no RDMA.
    #[error("next header {0} is neither UDP (17) nor InfiniBand's (27)")]
    NextHeader(u8),
    /// The datagram came with a header, which was not given.
    #[error("the datagram came with a header of 40 bytes, which the way back needs")]
    NotGiven,
    /// There are no 40 bytes at that place.
    #[error(transparent)]
    Outside(#[from] OutOfRegion),
}

/// Next header of UDP: RoCE v2.
const UDP: u8 = 17;
/// Next header of a base transport header: RoCE v1 and InfiniBand.
const IBA: u8 = 0x1b;

/// The bytes from `at` on.
fn take<const N: usize>(bytes: &[u8; Grh::LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

impl Grh {
    /// Its length in bytes: the message of a datagram begins so far behind the start of the receive.
    pub const LEN: usize = 40;

    /// Reads a header. IPv4 and IPv6 are told apart as rdma-core does (verbs.c, `get_grh_header_version`): an IPv4 header
    /// whose checksum is right is believed, whatever the bytes in front of it look like.
    ///
    /// # Errors
    /// There is no header in the bytes.
    pub fn parse(bytes: &[u8; Grh::LEN]) -> Result<Grh, GrhError> {
        let ipv4: [u8; 20] = take(bytes, 20);
        let is_v6 = bytes[0] >> 4 == 6;
        let is_v4 = if is_v6 {
            ipv4[0] & 0xf == 5 && sums_up(&ipv4)
        } else {
            ipv4[0] >> 4 == 4
        };
        if is_v4 {
            return Ok(Grh {
                source: Ipv4Addr::from(take(bytes, 32)).into(),
                destination: Ipv4Addr::from(take(bytes, 36)).into(),
                traffic_class: ipv4[1],
                flow_label: 0,
                hop_limit: ipv4[8],
                next_header: ipv4[9],
            });
        }
        if !is_v6 {
            return Err(GrhError::NoHeader {
                first: bytes[0],
                middle: ipv4[0],
            });
        }
        let head = u32::from_be_bytes(take(bytes, 0));
        let next_header = bytes[6];
        if !matches!(next_header, UDP | IBA) {
            return Err(GrhError::NextHeader(next_header));
        }
        Ok(Grh {
            source: Gid::new(take(bytes, 8)),
            destination: Gid::new(take(bytes, 24)),
            traffic_class: (head >> 20) as u8,
            flow_label: head & 0xf_ffff,
            hop_limit: bytes[7],
            next_header,
        })
    }

    /// Reads the header of a datagram whose receive began at `offset` of a region.
    ///
    /// # Errors
    /// As [`Grh::parse`]; also when the region has no 40 bytes there.
    pub fn read(mr: &Mr, offset: usize) -> Result<Grh, GrhError> {
        let mut bytes = [0; Grh::LEN];
        mr.read_at(offset, &mut bytes)?;
        Grh::parse(&bytes)
    }

    /// Whether it can have come to a GID table entry of that kind.
    pub(super) fn came_to(&self, kind: GidKind) -> bool {
        match kind {
            GidKind::RoceV2 => self.next_header == UDP,
            GidKind::RoceV1 | GidKind::Ib => self.next_header == IBA,
            GidKind::Unknown => true,
        }
    }
}

/// Whether the one's complement sum of a header, its checksum included, is right (RFC 791).
fn sums_up(header: &[u8; 20]) -> bool {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    /// The IPv4 header that Wikipedia's article on the header checksum computes by hand: 192.168.0.1 to 192.168.0.199,
    /// UDP, TTL 64, checksum 0xb861.
    const IPV4: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];

    fn v4(front: u8) -> [u8; Grh::LEN] {
        let mut bytes = [front; Grh::LEN];
        bytes[20..].copy_from_slice(&IPV4);
        bytes
    }

    fn v6(next_header: u8) -> [u8; Grh::LEN] {
        let mut bytes = [0; Grh::LEN];
        // Version 6, traffic class 0x68, flow label 0xabcde.
        bytes[..4].copy_from_slice(&[0x66, 0x8a, 0xbc, 0xde]);
        (bytes[6], bytes[7]) = (next_header, 63);
        bytes[8..24].copy_from_slice(&"fd00::1".parse::<Ipv6Addr>().unwrap().octets());
        bytes[24..].copy_from_slice(&"ff15::2".parse::<Ipv6Addr>().unwrap().octets());
        bytes
    }

    #[test]
    fn an_ipv4_header_is_in_the_last_twenty_bytes_whatever_is_in_front() {
        for front in [0, 0x60, 0xff] {
            let grh = Grh::parse(&v4(front)).unwrap();
            assert_eq!(grh.source.to_string(), "::ffff:192.168.0.1");
            assert_eq!(grh.destination.to_string(), "::ffff:192.168.0.199");
            assert_eq!(
                (
                    grh.traffic_class,
                    grh.flow_label,
                    grh.hop_limit,
                    grh.next_header
                ),
                (0, 0, 64, 17)
            );
        }
        // What looks like IPv6 and has no right checksum behind is IPv6.
        let mut bytes = v4(0x60);
        bytes[31] ^= 1;
        assert_eq!(Grh::parse(&bytes), Err(GrhError::NextHeader(0x60)));
    }

    #[test]
    fn an_ipv6_header_fills_the_forty_bytes() {
        for next_header in [17, 27] {
            let grh = Grh::parse(&v6(next_header)).unwrap();
            assert_eq!(grh.source.to_string(), "fd00::1");
            assert_eq!(grh.destination.to_string(), "ff15::2");
            assert_eq!(
                (grh.traffic_class, grh.flow_label, grh.hop_limit),
                (0x68, 0xabcde, 63)
            );
            assert_eq!(grh.came_to(GidKind::RoceV2), next_header == 17);
            assert_eq!(grh.came_to(GidKind::RoceV1), next_header == 27);
        }
        assert_eq!(Grh::parse(&v6(6)), Err(GrhError::NextHeader(6)));
    }

    #[test]
    fn bytes_that_nobody_wrote_are_no_header() {
        let error = Grh::parse(&[0; Grh::LEN]).unwrap_err();
        assert!(error.to_string().contains("no IP header"), "{error}");
    }
}
