//! What goes into the headers of sent frames, read back by sockets and by a capture's bytes.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};

use super::udp::{local, localhost, node, receive};
use crate::link::{Direction, IpFields, Pcap, Sent, SourcePort, UdpLink};
use crate::wire::icrc::{Flow, icrc};

const FIELDS: [IpFields; 4] = [
    IpFields {
        traffic_class: 0x68,
        hop_limit: 1,
        flow_label: 0x1_2345,
    },
    IpFields {
        traffic_class: 0xff,
        hop_limit: 255,
        flow_label: 0xf_ffff,
    },
    IpFields {
        traffic_class: 0,
        hop_limit: 255,
        flow_label: 0,
    },
    IpFields {
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    },
];

/// Every field arrives as it was asked for, whatever the frame before had.
fn arrive_as_sent(link: &mut UdpLink) {
    link.show_headers();
    let to = local(link);
    let mut buffer = [0; 64];
    for &ip in FIELDS.iter().chain(FIELDS.iter().rev()) {
        assert_eq!(link.send(0, 4791, to, ip, b"a frame"), Sent::Done);
        let received = receive(link, &mut buffer);
        let label = if to.is_ipv4() { 0 } else { ip.flow_label };
        assert_eq!(
            received.ip,
            IpFields {
                flow_label: label,
                ..ip
            }
        );
        assert_eq!(
            (received.src, &buffer[..received.len]),
            (to, &b"a frame"[..])
        );
    }
}

#[test]
fn traffic_class_and_hop_limit_arrive_over_ipv4() {
    arrive_as_sent(&mut node());
}

#[test]
fn traffic_class_hop_limit_and_flow_label_arrive_over_ipv6() {
    if let Some(mut link) = localhost("traffic_class_hop_limit_and_flow_label_arrive_over_ipv6") {
        arrive_as_sent(&mut link);
    }
}

#[test]
fn a_socket_that_shows_no_headers_says_the_usual() {
    let mut link = node();
    let to = local(&link);
    assert_eq!(link.send(0, 4791, to, FIELDS[0], b"a frame"), Sent::Done);
    assert_eq!(receive(&link, &mut [0; 64]).ip, IpFields::default());
}

/// Ports computed by hand after the formula of `include/rdma/ib_verbs.h`.
#[test]
fn source_ports_follow_the_flow_label_or_the_numbers() {
    assert_eq!(SourcePort::Fixed.of(0x1_2345, 1, 2), 4791);
    for (label, port) in [
        (1, 0xc001),
        (0x3fff, 0xffff),
        // Bits 14 to 19 fold on to bits 0 to 5.
        (0x4000, 0xc001),
        (0xf_ffff, 0xffc0),
        (0x1_2345, 0xe341),
        // Bits above the twentieth are none of the label.
        (0x10_0001, 0xc001),
    ] {
        assert_eq!(SourcePort::ByFlow.of(label, 5, 7), port, "{label:#x}");
    }
    // The product of the numbers, folded by 20 and by 40 bits, is the label then.
    for (src, dst, port) in [
        (0x11, 0x12, 0xc132),
        (0, 9, 0xc000),
        (0xff_ffff, 0xff_ffff, 0xff21),
    ] {
        assert_eq!(
            SourcePort::ByFlow.of(0, src, dst),
            port,
            "{src:#x} {dst:#x}"
        );
        assert_eq!(SourcePort::ByFlow.of(0, dst, src), port);
    }
}

#[test]
fn frames_come_from_the_port_of_their_flow() {
    let (mut a, b) = (node(), node());
    let own = local(&a);
    assert_eq!(a.source(0, 4791), own);
    for port in [0xc000, 0xffff, 0xc000] {
        let source = a.source(0, port);
        assert_eq!(source, SocketAddr::new(own.ip(), port));
        assert_eq!(a.send(0, port, local(&b), FIELDS[0], b"flow"), Sent::Done);
        assert_eq!(receive(&b, &mut [0; 64]).src, source);
    }
    // A port of somebody else.
    let _taken = UdpSocket::bind((own.ip(), 0xd000)).unwrap();
    assert_eq!(a.source(0, 0xd000), own);
    assert_eq!(a.send(0, 4791, local(&b), FIELDS[0], b"flow"), Sent::Done);
    assert_eq!(receive(&b, &mut [0; 64]).src, own);
    // Too many.
    let ports = (0xc000..0xc000 + UdpLink::MAX_SOURCES as u16 + 8).map(|port| a.source(0, port));
    let differ = ports.filter(|source| source.port() != 4791).count();
    assert_eq!(
        differ,
        UdpLink::MAX_SOURCES - 2,
        "0xffff and the one that is taken count"
    );
    assert_eq!(a.source(0, 0xffff).port(), 0xffff, "what is there stays");
}

/// The blocks of a capture: kind and body.
fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let word = |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().unwrap());
    let mut all = Vec::new();
    while !file.is_empty() {
        let (kind, len) = (word(file), word(&file[4..]) as usize);
        assert_eq!(len % 4, 0);
        assert_eq!(word(&file[len - 4..]) as usize, len);
        all.push((kind, file[8..len - 4].to_vec()));
        file = &file[len..];
    }
    all
}

/// Compared byte by byte with what the draft of pcapng lays down; other programs read whole files in
/// `tests/tshark.rs`.
#[test]
fn a_capture_has_the_blocks_of_pcapng() -> io::Result<()> {
    let mut file = Vec::new();
    let mut pcap = Pcap::new(&mut file, "127.0.0.2")?;
    let [src, dst] = ["127.0.0.2:49160", "239.1.2.3:4791"].map(|a| a.parse().unwrap());
    let now = crate::core::time::Instant::from_nanos(0x0102_0304_0506_0708);
    pcap.record(now, Direction::Outbound, src, dst, FIELDS[0], &[0xaa; 17])?;
    pcap.record(now, Direction::Inbound, dst, src, FIELDS[1], &[0xbb; 16])?;
    let blocks = blocks(&file);
    let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0x0a0d_0d0a, 1, 6, 6]);
    let section = &blocks[0].1;
    let head = [
        0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
    ];
    assert_eq!(section[..16], head);
    let interface = &blocks[1].1;
    assert_eq!(interface[..8], [101, 0, 0, 0, 255, 255, 0, 0]);
    let name = [
        2, 0, 9, 0, b'1', b'2', b'7', b'.', b'0', b'.', b'0', b'.', b'2', 0, 0, 0,
    ];
    assert_eq!(interface[8..24], name);
    assert_eq!(interface[24..], [9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    let packet = &blocks[2].1;
    let len = 20 + 8 + 17;
    let head = [
        0, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5, len, 0, 0, 0, len, 0, 0, 0,
    ];
    assert_eq!(packet[..20], head);
    assert_eq!(packet[20..22], [0x45, 0x68]);
    assert_eq!(packet[28], 1, "time to live");
    assert_eq!(packet[48..65], [0xaa; 17]);
    // Padding, then the flags: outbound, multicast.
    assert_eq!(
        packet[65..],
        [0, 0, 0, 2, 0, 4, 0, 2 | 2 << 2, 0, 0, 0, 0, 0, 0, 0]
    );
    // Inbound, unicast.
    assert_eq!(blocks[3].1[64..72], [2, 0, 4, 0, 1 | 1 << 2, 0, 0, 0]);
    Ok(())
}

#[test]
fn an_ipv6_header_has_class_and_label() -> io::Result<()> {
    let mut file = Vec::new();
    let mut pcap = Pcap::new(&mut file, "::1")?;
    let to = SocketAddr::from((Ipv6Addr::LOCALHOST, 4791));
    let now = crate::core::time::Instant::ZERO;
    pcap.record(now, Direction::Outbound, to, to, FIELDS[0], &[0; 16])?;
    let packet = blocks(&file).pop().unwrap().1;
    assert_eq!(packet[20..24], [0x66, 0x81, 0x23, 0x45]);
    assert_eq!(packet[27], 1, "hop limit");
    Ok(())
}

#[test]
fn a_capture_has_the_identification_that_a_frame_was_made_with() -> io::Result<()> {
    let (src, dst) = ("127.0.0.2:4791", "127.0.0.3:4791");
    let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut file = Vec::new();
    let mut pcap = Pcap::new(&mut file, "there")?;
    for ip_id in [0, 1, 63, 0xbeef] {
        let flow = Flow {
            ip_id,
            ..Flow::new(src, dst)
        };
        let mut datagram = [7; 24];
        let icrc = icrc(&flow, &datagram[..20]);
        datagram[20..].copy_from_slice(&icrc.to_le_bytes());
        let usual = IpFields::default();
        pcap.record(
            crate::core::time::Instant::ZERO,
            Direction::Inbound,
            src,
            dst,
            usual,
            &datagram,
        )?;
    }
    pcap.flush()?;
    // A packet's block has 28 bytes of head, then the IP header.
    let ids: Vec<u16> = blocks(&file)[2..]
        .iter()
        .map(|(_, body)| u16::from_be_bytes([body[20 + 4], body[20 + 5]]))
        .collect();
    assert_eq!(ids, [0, 1, 63, 0xbeef]);
    Ok(())
}
