//! Tests of the links.

use std::net::SocketAddr;

use crate::link::{Frame, IpFields};
use crate::wire::icrc::{Flow, icrc};
use crate::wire::{Bth, Opcode, Packet, Psn, pad_for};

mod amount;
mod fault;
mod headers;
mod ingress;
mod multicast;
mod run;
mod udp;

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A SEND with the number `psn` and `len` bytes of payload, as a socket of ours sends it.
fn frame(psn: u32, len: usize) -> Frame {
    let (src, dst) = (addr("127.0.0.2:4791"), addr("127.0.0.3:4791"));
    let packet = Packet::new(Bth {
        opcode: Opcode::RC_SEND_ONLY,
        pad: pad_for(len),
        pkey: 0xffff,
        dest_qp: 0x11,
        psn: Psn::new(psn),
        ..Bth::default()
    });
    let mut bytes = vec![0; packet.header_len()];
    packet.emit_header(&mut bytes);
    bytes.extend((0..len).map(|i| i as u8));
    bytes.resize(bytes.len() + usize::from(packet.bth.pad), 0);
    let icrc = icrc(&Flow::new(src, dst), &bytes);
    bytes.extend_from_slice(&icrc.to_le_bytes());
    let ip = IpFields::default();
    Frame {
        src,
        dst,
        ip,
        bytes,
    }
}
