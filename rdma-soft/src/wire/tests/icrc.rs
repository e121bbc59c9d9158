//! The ICRC beyond the vectors: pieces, what it covers, and which identification explains it.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::vectors::vectors;
use crate::wire::icrc::{Flow, Icrc, explained_ip_id, icrc};

fn flow(src: &str, dst: &str) -> Flow {
    Flow::new(src.parse().unwrap(), dst.parse().unwrap())
}

fn v4() -> Flow {
    flow("127.0.0.2:49152", "127.3.2.1:4791")
}

fn v6() -> Flow {
    flow("[::1]:49152", "[2001:db8::7]:4791")
}

/// A packet that looks like none in particular.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 151 + 7) as u8).collect()
}

#[test]
fn mapped_addresses_travel_as_ipv4() {
    let mapped = flow("[::ffff:127.0.0.2]:49152", "[::ffff:127.3.2.1]:4791");
    let packet = bytes(40);
    assert_eq!(icrc(&mapped, &packet), icrc(&v4(), &packet));
}

#[test]
fn every_identification_explains_itself() {
    let packet = bytes(28);
    for ip_id in 0..=u16::MAX {
        let wire = icrc(&Flow { ip_id, ..v4() }, &packet);
        assert_eq!(explained_ip_id(&v4(), &packet, wire), Some(ip_id));
    }
    for len in [0, 1, 12, 16, 44, 60, 1052, 4140, 9000] {
        let packet = bytes(len);
        for ip_id in (0..=u16::MAX).step_by(4093) {
            let wire = icrc(&Flow { ip_id, ..v4() }, &packet);
            let asked = Flow { ip_id: 77, ..v4() };
            assert_eq!(explained_ip_id(&asked, &packet, wire), Some(ip_id), "{len}");
        }
    }
}

#[test]
fn what_no_identification_explains_is_refused() {
    let packet = bytes(16);
    let all: Vec<u32> = (0..=u16::MAX)
        .map(|ip_id| icrc(&Flow { ip_id, ..v4() }, &packet))
        .collect();
    let mut damaged = 0;
    for bit in 0..32 {
        for ip_id in [0u16, 1, 0x8000, 0xffff] {
            let wire = all[usize::from(ip_id)] ^ 1 << bit;
            let explained = all.iter().position(|&icrc| icrc == wire);
            let explained = explained.map(|at| at as u16);
            assert_eq!(explained_ip_id(&v4(), &packet, wire), explained);
            damaged += usize::from(explained.is_none());
        }
    }
    assert!(damaged > 100, "{damaged}");
}

#[test]
fn captured_identifications_are_found() {
    for vector in vectors() {
        let Some(flow) = vector.flow() else { continue };
        let blind = Flow { ip_id: 0, ..flow };
        let explained = explained_ip_id(&blind, vector.transport(), vector.icrc());
        assert_eq!(explained, Some(flow.ip_id), "{}", vector.name);
    }
}

#[test]
fn ipv6_has_no_identification() {
    let packet = bytes(40);
    let wire = icrc(&v6(), &packet);
    assert_eq!(icrc(&Flow { ip_id: 9, ..v6() }, &packet), wire);
    assert_eq!(explained_ip_id(&v6(), &packet, wire), Some(0));
    for bit in 0..32 {
        assert_eq!(explained_ip_id(&v6(), &packet, wire ^ 1 << bit), None);
    }
}

/// The nodes of this crate accept the identifications 0..=63. A flipped bit must never look like
/// one of them, wherever it lies: shown for all packets up to 9000 bytes at once, because the CRC
/// is linear and only the distance between the two places matters.
#[test]
fn no_flipped_bit_looks_like_an_identification_of_ours() {
    // The register after one more byte of zero, one bit at a time.
    let zero_byte = |register: u32| {
        (0..8).fold(register, |r, _| {
            r >> 1 ^ if r & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    };
    let flipped: Vec<u32> = (0..8).map(|bit| zero_byte(1 << bit)).collect();
    for id in 1..64u32 {
        let mut register = zero_byte(zero_byte(id << 8));
        // 14 bytes of the IP header and the UDP header lie between the two.
        for distance in 0..14 + 8 + 9000 {
            if distance > 14 + 8 {
                // In the packet, in the byte that ends at this distance.
                assert!(!flipped.contains(&register), "id {id}, distance {distance}");
                // In the ICRC, of a packet that ends at this distance.
                assert!(!register.is_power_of_two(), "id {id}, distance {distance}");
            }
            register = zero_byte(register);
        }
    }
}

proptest! {
    #[test]
    fn pieces_make_the_whole(
        packet in prop::collection::vec(any::<u8>(), 0..300),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        over_v6 in any::<bool>(),
    ) {
        let flow = if over_v6 { v6() } else { v4() };
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(packet.len() + 1)).collect();
        cuts.sort_unstable();
        let mut pieces = Icrc::new(&flow, packet.len());
        let mut from = 0;
        for cut in cuts {
            pieces.update(&packet[from..cut]);
            from = cut;
        }
        pieces.update(&packet[from..]);
        prop_assert_eq!(pieces.finish(), icrc(&flow, &packet));
    }

    #[test]
    fn byte_4_does_not_count_and_every_other_bit_does(
        packet in prop::collection::vec(any::<u8>(), 12..300),
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let at = at.index(packet.len());
        let mut flipped = packet.clone();
        flipped[at] ^= 1u8 << bit;
        let same = icrc(&v4(), &packet) == icrc(&v4(), &flipped);
        prop_assert_eq!(same, at == 4);
    }

    #[test]
    fn addresses_ports_and_length_count(a in any::<[u8; 4]>(), b in any::<[u8; 4]>(), p in any::<u16>()) {
        let to = |ip: [u8; 4], port: u16| Flow::new(SocketAddr::from((ip, port)), v4().dst);
        let packet = bytes(16);
        prop_assert_eq!(icrc(&to(a, p), &packet) == icrc(&to(b, p), &packet), a == b);
        prop_assert_ne!(icrc(&to(a, p), &packet), icrc(&to(a, !p), &packet));
        prop_assert_ne!(icrc(&v4(), &packet[..12]), icrc(&v4(), &packet));
    }
}
