//! Reads the capture files that nodes write: pcapng with frames as raw IPv4 (the IETF's draft "PCAP Now
//! Generic (pcapng) Capture File Format", sections 3.1 and 4.3).

use std::net::Ipv4Addr;

/// A captured frame.
pub struct Frame {
    pub src: Ipv4Addr,
    pub src_port: u16,
    /// What follows the UDP header.
    pub datagram: Vec<u8>,
}

/// All frames of a capture, in their order.
pub fn frames(file: &[u8]) -> Vec<Frame> {
    packets(file).into_iter().map(frame).collect()
}

/// All frames of a capture as they are, from the IPv4 header on, in their order.
pub fn packets(file: &[u8]) -> Vec<&[u8]> {
    const PACKET_BLOCK: u32 = 6;
    const DATA: usize = 28;
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
    let mut packets = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let (kind, len) = (word(at), word(at + 4) as usize);
        assert!(
            len >= 12 && word(at + len - 4) as usize == len,
            "a block at {at}"
        );
        if kind == PACKET_BLOCK {
            let captured = word(at + 20) as usize;
            packets.push(&file[at + DATA..at + DATA + captured]);
        }
        at += len;
    }
    packets
}

fn frame(packet: &[u8]) -> Frame {
    const IP: usize = 20;
    const UDP: usize = 8;
    assert_eq!(packet[0], 0x45, "IPv4 without options");
    let src: [u8; 4] = packet[12..16].try_into().expect("4 bytes");
    Frame {
        src: src.into(),
        src_port: u16::from_be_bytes([packet[IP], packet[IP + 1]]),
        datagram: packet[IP + UDP..].to_vec(),
    }
}
