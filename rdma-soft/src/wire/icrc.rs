//! The invariant CRC of RoCEv2.
//!
//! It is the CRC-32 of Ethernet and zlib over eight bytes of ones, then the IP header, the UDP
//! header, BTH..padding, where everything that a network may change on the way counts as ones:
//! type of service, time to live and checksum (IPv4), traffic class, flow label and hop limit
//! (IPv6), the UDP checksum, and byte 4 of the BTH (congestion bits). The packet ends with it,
//! least significant byte first.
//!
//! IPv4's identification field is covered, and a UDP socket does not show it to the receiver:
//! [`explained_ip_id`] finds out which identification a packet was made with.

use std::net::{IpAddr, SocketAddr};

use super::Bth;

/// Length of the ICRC in bytes.
pub const LEN: usize = 4;

/// What the ICRC covers below the transport headers.
///
/// Addresses that are IPv4-mapped IPv6 travel as IPv4, so they count as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Address and UDP port of the sender.
    pub src: SocketAddr,
    /// Address and UDP port of the receiver.
    pub dst: SocketAddr,
    /// Identification field of the IPv4 header; IPv6 has none.
    pub ip_id: u16,
    /// "Don't fragment" of the IPv4 header; IPv6 has none.
    pub dont_fragment: bool,
}

impl Flow {
    /// Datagrams as an unconnected Linux socket sends them that does not fragment: identification 0.
    pub const fn new(src: SocketAddr, dst: SocketAddr) -> Flow {
        Flow {
            src,
            dst,
            ip_id: 0,
            dont_fragment: true,
        }
    }

    /// It travels over IPv4.
    fn is_v4(&self) -> bool {
        self.src.ip().to_canonical().is_ipv4() && self.dst.ip().to_canonical().is_ipv4()
    }
}

/// The ICRC of `transport`, which is BTH..padding of one packet of `flow`.
///
/// ```
/// use rdma_soft::wire::icrc::{Flow, icrc};
///
/// let flow = Flow::new("127.0.0.2:49152".parse().unwrap(), "127.0.0.3:4791".parse().unwrap());
/// let ack = [0x11, 0, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 7, 0x1f, 0, 0, 1];
/// let mut congested = ack;
/// congested[4] = 0x80;
/// assert_eq!(icrc(&flow, &ack), icrc(&flow, &congested));
/// ```
pub fn icrc(flow: &Flow, transport: &[u8]) -> u32 {
    let mut icrc = Icrc::new(flow, transport.len());
    icrc.update(transport);
    icrc.finish()
}

/// An ICRC in the making, for packets whose bytes lie in several places.
///
/// ```
/// use rdma_soft::wire::icrc::{Flow, Icrc, icrc};
///
/// let flow = Flow::new("127.0.0.2:49152".parse().unwrap(), "127.0.0.3:4791".parse().unwrap());
/// let packet = [7; 40];
/// let mut pieces = Icrc::new(&flow, packet.len());
/// pieces.update(&packet[..12]);
/// pieces.update(&packet[12..]);
/// assert_eq!(pieces.finish(), icrc(&flow, &packet));
/// ```
#[derive(Clone, Debug)]
pub struct Icrc {
    crc: crc32fast::Hasher,
    /// Transport bytes so far, up to a BTH's worth.
    seen: usize,
}

/// Byte of the BTH that does not count: the congestion bits.
const UNCOVERED: usize = 4;

impl Icrc {
    /// Begins the ICRC of a packet of `flow` that has `transport_len` bytes of BTH..padding.
    pub fn new(flow: &Flow, transport_len: usize) -> Icrc {
        let mut crc = crc32fast::Hasher::new();
        // Lengths beyond 16 bits are no UDP datagram's: they are cut, as no field holds them.
        let udp_len = (transport_len as u16).wrapping_add(8 + LEN as u16);
        let src_port = flow.src.port().to_be_bytes();
        let dst_port = flow.dst.port().to_be_bytes();
        match (flow.src.ip().to_canonical(), flow.dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut head = [0xff; 8 + 20 + 8];
                let ip = &mut head[8..];
                ip[0] = 0x45;
                ip[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
                ip[4..6].copy_from_slice(&flow.ip_id.to_be_bytes());
                ip[6] = u8::from(flow.dont_fragment) << 6;
                ip[7] = 0;
                ip[9] = 17;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                ip[20..22].copy_from_slice(&src_port);
                ip[22..24].copy_from_slice(&dst_port);
                ip[24..26].copy_from_slice(&udp_len.to_be_bytes());
                crc.update(&head);
            }
            (src, dst) => {
                let mut head = [0xff; 8 + 40 + 8];
                let ip = &mut head[8..];
                ip[0] = 0x6f;
                ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
                ip[6] = 17;
                ip[8..24].copy_from_slice(&v6_octets(src));
                ip[24..40].copy_from_slice(&v6_octets(dst));
                ip[40..42].copy_from_slice(&src_port);
                ip[42..44].copy_from_slice(&dst_port);
                ip[44..46].copy_from_slice(&udp_len.to_be_bytes());
                crc.update(&head);
            }
        }
        Icrc { crc, seen: 0 }
    }

    /// Adds the bytes that follow those added before.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.seen < Bth::LEN {
            let (bth, after) = bytes.split_at(bytes.len().min(Bth::LEN - self.seen));
            let mut masked = [0; Bth::LEN];
            masked[..bth.len()].copy_from_slice(bth);
            if let Some(byte) = UNCOVERED
                .checked_sub(self.seen)
                .and_then(|at| masked.get_mut(at))
            {
                *byte = 0xff;
            }
            self.crc.update(&masked[..bth.len()]);
            self.seen += bth.len();
            rest = after;
        }
        self.crc.update(rest);
    }

    /// The ICRC; on the wire its least significant byte comes first (`to_le_bytes`).
    pub fn finish(self) -> u32 {
        self.crc.finalize()
    }
}

fn v6_octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// The IPv4 identification with which `wire_icrc` is right for `transport`, if there is one.
///
/// If the ICRC is right with `flow.ip_id`, that is the answer. There is at most one: two
/// identifications never give the same ICRC. Over IPv6, which has no such field, the answer is
/// `flow.ip_id` or `None`.
///
/// A damaged packet has a chance of 2^-16 to find an identification that explains it, where the
/// plain comparison has 2^-32: use this where the identification cannot be known.
pub fn explained_ip_id(flow: &Flow, transport: &[u8], wire_icrc: u32) -> Option<u16> {
    let difference = icrc(flow, transport) ^ wire_icrc;
    if difference == 0 {
        return Some(flow.ip_id);
    }
    if !flow.is_v4() {
        return None;
    }
    // The CRC is linear: the difference of two ICRCs is what the difference of the two
    // identifications leaves in the register after all bytes that follow. Turning the register
    // back over those bytes and the identification's own two must leave just these two.
    let following = (20 - 6) + 8 + transport.len();
    let register = rewind(difference, 2 + following);
    let identification = u16::try_from(register).ok()?.swap_bytes();
    Some(flow.ip_id ^ identification)
}

/// The polynomial of CRC-32; bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// `REWINDS[i]` turns a register back over 2^i bytes: it is x^(-8 * 2^i) modulo the polynomial.
static REWINDS: [u32; usize::BITS as usize] = {
    let mut powers = [0; usize::BITS as usize];
    let mut power = 1 << 31;
    let mut bit = 0;
    while bit < 8 {
        power = divide_by_x(power);
        bit += 1;
    }
    let mut i = 0;
    while i < powers.len() {
        powers[i] = power;
        power = multiply(power, power);
        i += 1;
    }
    powers
};

/// The register as it was `bytes` bytes of zero earlier.
fn rewind(register: u32, bytes: usize) -> u32 {
    let steps = (REWINDS.iter().enumerate()).filter(|(i, _)| bytes >> i & 1 == 1);
    steps.fold(register, |r, (_, &power)| multiply(r, power))
}

/// Division by x modulo the polynomial.
const fn divide_by_x(a: u32) -> u32 {
    if a >> 31 == 1 {
        (a ^ POLYNOMIAL) << 1 | 1
    } else {
        a << 1
    }
}

/// Product modulo the polynomial.
const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while b != 0 {
        // b's highest bit is its lowest power of x: add a, then go on with a * x and b / x.
        if b >> 31 == 1 {
            product ^= a;
        }
        b <<= 1;
        a = if a & 1 == 1 {
            a >> 1 ^ POLYNOMIAL
        } else {
            a >> 1
        };
    }
    product
}
