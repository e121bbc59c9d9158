//! Frames from hardware and from other software, decoded.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::icrc::{Flow, icrc};
use crate::wire::*;

const VECTORS: &str = include_str!("../../../tests/fixtures/roce_icrc_vectors.tsv");

/// A frame of the fixture.
pub struct Vector {
    pub name: &'static str,
    pub kind: &'static str,
    /// From the Ethernet header on.
    pub frame: Vec<u8>,
}

pub fn vectors() -> Vec<Vector> {
    let lines = VECTORS.lines().filter(|line| !line.starts_with('#'));
    lines
        .skip(1)
        .map(|line| {
            let columns: Vec<_> = line.split('\t').collect();
            let frame = unhex(columns[4]);
            assert_eq!(
                frame[frame.len() - 4..],
                unhex(columns[2]),
                "{}",
                columns[0]
            );
            Vector {
                name: columns[0],
                kind: columns[1],
                frame,
            }
        })
        .collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

impl Vector {
    fn ip_len(&self) -> usize {
        if self.kind == "v4" { 20 } else { 40 }
    }

    fn udp_len(&self) -> usize {
        if self.kind == "v1" { 0 } else { 8 }
    }

    /// BTH..padding.
    pub fn transport(&self) -> &[u8] {
        &self.frame[14 + self.ip_len() + self.udp_len()..self.frame.len() - 4]
    }

    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(self.frame[self.frame.len() - 4..].try_into().unwrap())
    }

    /// Addresses and ports from the frame's IP and UDP headers; `None` for RoCE v1.
    pub fn flow(&self) -> Option<Flow> {
        let ip = &self.frame[14..];
        let udp = &ip[self.ip_len()..];
        let port = |at| u16::from_be_bytes([udp[at], udp[at + 1]]);
        let v4 = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
        let v6 = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
        match self.kind {
            "v4" => Some(Flow {
                src: SocketAddr::from((v4(12), port(0))),
                dst: SocketAddr::from((v4(16), port(2))),
                ip_id: u16::from_be_bytes([ip[4], ip[5]]),
                dont_fragment: ip[6] & 0x40 != 0,
            }),
            "v6" => Some(Flow::new(
                SocketAddr::from((v6(8), port(0))),
                SocketAddr::from((v6(24), port(2))),
            )),
            _ => None,
        }
    }
}

fn bth(
    opcode: u8,
    flags: (bool, bool, u8),
    pkey: u16,
    dest_qp: u32,
    ack_req: bool,
    psn: u32,
) -> Bth {
    let (solicited, mig_req, pad) = flags;
    Bth {
        opcode: Opcode(opcode),
        solicited,
        mig_req,
        pad,
        pkey,
        dest_qp,
        ack_req,
        psn: Psn::new(psn),
        ..Bth::default()
    }
}

/// Headers and payload length of each frame, read by hand from its bytes and its description.
fn expected() -> Vec<(&'static str, Packet, usize)> {
    let none = (false, false, 0);
    let with = |bth, change: fn(&mut Packet)| {
        let mut packet = Packet::new(bth);
        change(&mut packet);
        packet
    };
    let ack = |syndrome, msn| Some(Aeth { syndrome, msn });
    let cnp = Bth {
        becn: true,
        ..bth(0x81, none, 0xffff, 0x118, false, 0)
    };
    let v1_ack = Packet {
        aeth: ack(Syndrome::Ack { credits: 0 }, 5),
        ..Packet::new(bth(0x11, (false, true, 0), 0xffff, 0x109, false, 0xa7_88c0))
    };
    let ack = Packet {
        aeth: ack(Syndrome::Ack { credits: 31 }, 0),
        ..Packet::new(bth(0x11, none, 0xffff, 2, false, 0x5678))
    };
    let uc_send = Packet::new(bth(0x24, (false, true, 2), 0xffff, 0xd3, false, 0xcf_1710));
    vec![
        ("cnp_cx4lx_v4", Packet::new(cnp), 16),
        (
            "v1_rc_write_only",
            with(
                bth(0x0a, (false, true, 3), 0xffff, 0x10a, true, 0xa7_88bc),
                |p| {
                    p.reth = Some(Reth {
                        va: 0x55d4_c072_6000,
                        rkey: 0x47b3,
                        len: 5,
                    });
                },
            ),
            5,
        ),
        ("v1_rc_ack", v1_ack, 0),
        (
            "rc_write_only_v4_sw",
            with(bth(0x0a, (true, false, 0), 0, 2, true, 0), |p| {
                p.reth = Some(Reth {
                    va: 0x7f7e_9100_0000,
                    rkey: 0x0170_9a33,
                    len: 128,
                });
            }),
            128,
        ),
        ("uc_send_only_v4_scapy", uc_send, 18),
        ("uc_send_only_v6_scapy", uc_send, 18),
        (
            "libroce_rc_send_only_imm",
            with(bth(0x05, (false, false, 3), 0xffff, 2, true, 0x5678), |p| {
                p.imm = Some(0x1234_5678);
            }),
            21,
        ),
        ("libroce_rc_ack", ack, 0),
        (
            "libroce_rc_write_only_imm",
            with(bth(0x0b, none, 0xffff, 2, true, 0x5678), |p| {
                p.reth = Some(Reth {
                    va: 0x22d5_b000,
                    rkey: 0x4c9,
                    len: 16,
                });
                p.imm = Some(0x1234_5678);
            }),
            16,
        ),
        (
            "libroce_ud_send_only_imm",
            with(bth(0x65, (false, false, 1), 0xffff, 2, true, 0x5678), |p| {
                p.deth = Some(Deth {
                    qkey: 0x1234_5678,
                    src_qp: 2,
                });
                p.imm = Some(0x1234_5678);
            }),
            35,
        ),
        (
            "libroce_rc_send_first",
            Packet::new(bth(0x00, none, 0xffff, 2, true, 0x5678)),
            1024,
        ),
        (
            "libroce_rc_send_last_imm",
            with(bth(0x03, (false, false, 1), 0xffff, 2, true, 0x5679), |p| {
                p.imm = Some(0x1234_5678);
            }),
            7,
        ),
        (
            "libroce_rc_write_first",
            with(bth(0x06, none, 0xffff, 2, true, 0x5678), |p| {
                p.reth = Some(Reth {
                    va: 0x1c69_3000,
                    rkey: 0x44b,
                    len: 0x404,
                });
            }),
            1024,
        ),
        (
            "libroce_rc_write_last_imm",
            with(bth(0x09, none, 0xffff, 2, true, 0x5679), |p| {
                p.imm = Some(0x1234_5678);
            }),
            4,
        ),
    ]
}

#[test]
fn every_frame_decodes_to_what_it_is() {
    let (vectors, expected) = (vectors(), expected());
    assert_eq!(vectors.len(), expected.len());
    for (vector, (name, packet, len)) in vectors.iter().zip(expected) {
        assert_eq!(vector.name, name);
        let (parsed, payload) = Packet::parse(vector.transport()).unwrap();
        assert_eq!(parsed, packet, "{name}");
        assert_eq!(payload.len(), len, "{name}");
    }
}

#[test]
fn every_frame_comes_back_byte_for_byte() {
    for vector in vectors() {
        let transport = vector.transport();
        let (packet, payload) = Packet::parse(transport).unwrap();
        let mut out = vec![0; packet.header_len()];
        assert_eq!(packet.emit_header(&mut out), out.len());
        out.extend_from_slice(payload);
        out.resize(out.len() + usize::from(packet.bth.pad), 0);
        assert_eq!(out, transport, "{}", vector.name);
    }
}

#[test]
fn the_icrc_of_every_v2_frame_is_right() {
    let mut checked = 0;
    for vector in vectors() {
        if let Some(flow) = vector.flow() {
            let icrc = icrc(&flow, vector.transport());
            assert_eq!(icrc, vector.icrc(), "{}", vector.name);
            checked += 1;
        }
    }
    assert_eq!(checked, 12);
}
