//! Whole packets: any packet comes back, any bytes are an answer.

use proptest::prelude::*;

use crate::wire::*;

fn some<T>(headers: Headers, which: Headers, value: T) -> Option<T> {
    headers.contains(which).then_some(value)
}

prop_compose! {
    /// A packet of any known opcode with any values, and a payload if it may have one.
    fn packets()(
        row in 0..Opcode::all().count(),
        flags in any::<[bool; 5]>(),
        tver in 0..16u8,
        pkey in any::<u16>(),
        n24 in any::<[u32; 5]>(),
        n32 in any::<[u32; 5]>(),
        n64 in any::<[u64; 4]>(),
        syndrome in any::<u8>(),
        payload in prop::collection::vec(any::<u8>(), 0..80),
    ) -> (Packet, Vec<u8>) {
        let info = Opcode::all().nth(row).unwrap();
        let payload = if info.payload { payload } else { Vec::new() };
        let n24 = n24.map(|n| n & 0xff_ffff);
        let [va, swap_or_add, compare, before] = n64;
        let [rkey, len, qkey, imm, invalidate] = n32;
        let bth = Bth {
            opcode: info.opcode,
            solicited: flags[0],
            mig_req: flags[1],
            pad: pad_for(payload.len()),
            tver,
            pkey,
            fecn: flags[2],
            becn: flags[3],
            dest_qp: n24[0],
            ack_req: flags[4],
            psn: Psn::new(n24[1]),
        };
        let aeth = Aeth { syndrome: Syndrome::from_byte(syndrome), msn: n24[2] };
        let h = info.headers;
        let packet = Packet {
            bth,
            xrceth: some(h, Headers::XRCETH, n24[3]),
            deth: some(h, Headers::DETH, Deth { qkey, src_qp: n24[4] }),
            reth: some(h, Headers::RETH, Reth { va, rkey, len }),
            atomic: some(h, Headers::ATOMIC_ETH, AtomicEth { va, rkey, swap_or_add, compare }),
            aeth: some(h, Headers::AETH, aeth),
            atomic_ack: some(h, Headers::ATOMIC_ACK_ETH, before),
            imm: some(h, Headers::IMM, imm),
            ieth: some(h, Headers::IETH, invalidate),
        };
        (packet, payload)
    }
}

fn emit(packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0xee; packet.header_len()];
    assert_eq!(packet.emit_header(&mut out), out.len());
    out.extend_from_slice(payload);
    out.resize(out.len() + usize::from(packet.bth.pad), 0);
    out
}

proptest! {
    #[test]
    fn what_is_emitted_parses_to_the_same((packet, payload) in packets()) {
        let bytes = emit(&packet, &payload);
        prop_assert!(packet.header_len() <= Packet::MAX_HEADER_LEN);
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(Packet::parse(&bytes), Ok((packet, &payload[..])));
        // Cut short, it is refused or is a shorter packet, never a panic.
        for len in 0..bytes.len() {
            if let Ok((cut, less)) = Packet::parse(&bytes[..len]) {
                prop_assert_eq!(cut, packet);
                prop_assert!(less.len() < bytes.len() && payload.starts_with(less));
            }
        }
        prop_assert!(!packet.to_string().contains('\n'));
    }

    #[test]
    fn any_bytes_are_an_answer(mut bytes in prop::collection::vec(any::<u8>(), 0..100), row in 0..61usize) {
        for known in [false, true] {
            if let (true, Some(first)) = (known, bytes.first_mut()) {
                *first = Opcode::all().nth(row).unwrap().opcode.0;
            }
            if let Ok((packet, payload)) = Packet::parse(&bytes) {
                let again = emit(&packet, payload);
                prop_assert_eq!(again.len(), bytes.len());
                prop_assert_eq!(Packet::parse(&again), Ok((packet, payload)));
            }
        }
    }
}

/// The order of the headers, for those opcodes that no captured frame has.
#[test]
fn headers_follow_each_other_in_the_order_of_the_wire() {
    let bth = |opcode| Bth {
        opcode,
        pkey: 0xffff,
        dest_qp: 0x0a_0b0c,
        psn: Psn::new(0x0d_0e0f),
        ..Bth::default()
    };
    let xrc = Packet {
        xrceth: Some(0x12_3456),
        reth: Some(Reth {
            va: 0x0102_0304_0506_0708,
            rkey: 0x1112_1314,
            len: 0x2122_2324,
        }),
        imm: Some(0x3132_3334),
        ..Packet::new(bth(Opcode(0xab)))
    };
    #[rustfmt::skip]
    let xrc_bytes = [
        0xab, 0, 0xff, 0xff, 0, 0x0a, 0x0b, 0x0c, 0, 0x0d, 0x0e, 0x0f, // BTH
        0, 0x12, 0x34, 0x56, // XRCETH
        1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, // RETH
        0x31, 0x32, 0x33, 0x34, // ImmDt
    ];
    let atomic_ack = Packet {
        aeth: Some(Aeth {
            syndrome: Syndrome::ACK_NO_CREDITS,
            msn: 0x44_5566,
        }),
        atomic_ack: Some(0x7172_7374_7576_7778),
        ..Packet::new(bth(Opcode(0x12)))
    };
    #[rustfmt::skip]
    let atomic_ack_bytes = [
        0x12, 0, 0xff, 0xff, 0, 0x0a, 0x0b, 0x0c, 0, 0x0d, 0x0e, 0x0f, // BTH
        0x1f, 0x44, 0x55, 0x66, // AETH
        0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, // AtomicAckETH
    ];
    let invalidate = Packet {
        xrceth: Some(7),
        ieth: Some(0x8182_8384),
        ..Packet::new(bth(Opcode(0xb7)))
    };
    #[rustfmt::skip]
    let invalidate_bytes = [
        0xb7, 0, 0xff, 0xff, 0, 0x0a, 0x0b, 0x0c, 0, 0x0d, 0x0e, 0x0f, // BTH
        0, 0, 0, 7, // XRCETH
        0x81, 0x82, 0x83, 0x84, // IETH
    ];
    let xrc_atomic = Packet {
        xrceth: Some(0xff_ffff),
        atomic: Some(AtomicEth {
            va: 0x0102_0304_0506_0708,
            rkey: 0x1112_1314,
            swap_or_add: 0x2122_2324_2526_2728,
            compare: 0x3132_3334_3536_3738,
        }),
        ..Packet::new(bth(Opcode(0xb3)))
    };
    #[rustfmt::skip]
    let xrc_atomic_bytes = [
        0xb3, 0, 0xff, 0xff, 0, 0x0a, 0x0b, 0x0c, 0, 0x0d, 0x0e, 0x0f, // BTH
        0, 0xff, 0xff, 0xff, // XRCETH
        1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, // AtomicETH
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
    ];
    let datagram = Packet {
        deth: Some(Deth {
            qkey: 0x8182_8384,
            src_qp: 0x91_9293,
        }),
        imm: Some(0x3132_3334),
        ..Packet::new(bth(Opcode(0x65)))
    };
    #[rustfmt::skip]
    let datagram_bytes = [
        0x65, 0, 0xff, 0xff, 0, 0x0a, 0x0b, 0x0c, 0, 0x0d, 0x0e, 0x0f, // BTH
        0x81, 0x82, 0x83, 0x84, 0, 0x91, 0x92, 0x93, // DETH
        0x31, 0x32, 0x33, 0x34, // ImmDt
    ];
    for (packet, bytes) in [
        (xrc, &xrc_bytes[..]),
        (xrc_atomic, &xrc_atomic_bytes),
        (datagram, &datagram_bytes),
        (atomic_ack, &atomic_ack_bytes),
        (invalidate, &invalidate_bytes),
    ] {
        assert_eq!(emit(&packet, &[]), bytes);
        assert_eq!(Packet::parse(bytes), Ok((packet, &[][..])));
    }
}

#[test]
fn what_is_wrong_is_named() {
    let bth = |opcode: u8, pad: u8| {
        let mut bytes = vec![opcode, pad << 4, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 1];
        bytes.resize(12, 0);
        bytes
    };
    let with = |mut bytes: Vec<u8>, more: usize| {
        bytes.resize(bytes.len() + more, 0);
        bytes
    };
    for (bytes, error, text) in [
        (
            vec![0; 11],
            ParseError::Truncated {
                header: "BTH",
                needed: 12,
                have: 11,
            },
            "BTH needs 12 bytes, 11 are left",
        ),
        (
            with(bth(0x0a, 0), 15),
            ParseError::Truncated {
                header: "RETH",
                needed: 16,
                have: 15,
            },
            "RETH needs 16 bytes, 15 are left",
        ),
        (
            with(bth(0x0b, 0), 18),
            ParseError::Truncated {
                header: "ImmDt",
                needed: 4,
                have: 2,
            },
            "ImmDt needs 4 bytes, 2 are left",
        ),
        (
            bth(0x15, 0),
            ParseError::UnknownOpcode(0x15),
            "unknown opcode 0x15",
        ),
        (
            with(bth(0x04, 0), 6),
            ParseError::Unaligned(6),
            "6 bytes follow the headers, not a multiple of 4",
        ),
        (
            bth(0x04, 3),
            ParseError::BadPad { pad: 3, have: 0 },
            "pad count 3, but 0 bytes follow the headers",
        ),
        (
            bth(0x11, 0)
                .into_iter()
                .chain([0x1f, 0, 0, 1, 0, 0, 0, 0])
                .collect(),
            ParseError::UnexpectedPayload {
                opcode: Opcode::RC_ACKNOWLEDGE,
                have: 4,
            },
            "RC_ACKNOWLEDGE carries no payload, but 4 bytes follow its headers",
        ),
    ] {
        let outcome = Packet::parse(&bytes);
        assert_eq!(outcome, Err(error));
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn padding() {
    for (len, pad) in [(0, 0), (1, 3), (2, 2), (3, 1), (4, 0), (4095, 1), (4096, 0)] {
        assert_eq!(pad_for(len), pad, "{len}");
    }
}

#[test]
fn one_line_that_people_can_read() {
    let mut write = Packet::new(Bth {
        opcode: Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        dest_qp: 0x1a2b,
        ack_req: true,
        psn: Psn::new(0xff_ffff),
        ..Bth::default()
    });
    write.reth = Some(Reth {
        va: 0x1000,
        rkey: 0x77,
        len: 5,
    });
    write.imm = Some(9);
    assert_eq!(
        write.to_string(),
        "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE QP 0x1a2b PSN 0xffffff ack_req va 0x1000 rkey 0x77 len 5 imm 0x9"
    );
    let mut nak = Packet::new(Bth {
        opcode: Opcode::RC_ACKNOWLEDGE,
        dest_qp: 2,
        psn: Psn::new(7),
        ..Bth::default()
    });
    nak.aeth = Some(Aeth {
        syndrome: Syndrome::Nak(NakCode::RemoteAccessError),
        msn: 3,
    });
    assert_eq!(
        nak.to_string(),
        "RC_ACKNOWLEDGE QP 0x2 PSN 0x7 NAK remote access error MSN 0x3"
    );
}

#[test]
#[should_panic(expected = "RC_ACKNOWLEDGE does not have the headers")]
#[cfg(debug_assertions)]
fn a_packet_whose_headers_are_not_its_opcodes_is_our_bug() {
    let packet = Packet::new(Bth {
        opcode: Opcode::RC_ACKNOWLEDGE,
        ..Bth::default()
    });
    packet.emit_header(&mut [0; 64]);
}
