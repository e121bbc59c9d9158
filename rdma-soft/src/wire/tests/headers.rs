//! Each header, byte for byte. Bytes marked with a vector's name are from that frame; for the
//! headers that no frame has, the layout is that of the specification's figures.

use crate::wire::*;

macro_rules! both_ways {
    ($type:ty, $bytes:expr, $value:expr) => {{
        let (bytes, value): (_, $type) = ($bytes, $value);
        assert_eq!(bytes.len(), <$type>::LEN);
        assert_eq!(<$type>::parse(&bytes), Ok(value));
        // What follows does not matter, and is not touched.
        let mut longer = bytes.to_vec();
        longer.push(0xa5);
        assert_eq!(<$type>::parse(&longer), Ok(value));
        longer[..bytes.len()].fill(0xee);
        value.emit(&mut longer);
        assert_eq!(longer[..bytes.len()], bytes);
        assert_eq!(longer[bytes.len()], 0xa5);
        for short in 0..bytes.len() {
            assert!(matches!(
                <$type>::parse(&bytes[..short]),
                Err(ParseError::Truncated { needed, have, .. })
                    if needed == bytes.len() && have == short
            ));
        }
    }};
}

#[test]
fn bth() {
    // v1_rc_write_only: migrated, pad 3, acknowledgement requested.
    both_ways!(
        Bth,
        [
            0x0a, 0x70, 0xff, 0xff, 0, 0, 0x01, 0x0a, 0x80, 0xa7, 0x88, 0xbc
        ],
        Bth {
            opcode: Opcode(0x0a),
            solicited: false,
            mig_req: true,
            pad: 3,
            tver: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest_qp: 0x10a,
            ack_req: true,
            psn: Psn::new(0xa7_88bc),
        }
    );
    // cnp_cx4lx_v4: the backward congestion bit is 0x40 of byte 4.
    both_ways!(
        Bth,
        [0x81, 0, 0xff, 0xff, 0x40, 0, 0x01, 0x18, 0, 0, 0, 0],
        Bth {
            opcode: Opcode(0x81),
            pkey: 0xffff,
            becn: true,
            dest_qp: 0x118,
            ..Bth::default()
        }
    );
    // rc_write_only_v4_sw: solicited.
    both_ways!(
        Bth,
        [0x0a, 0x80, 0, 0, 0, 0, 0, 2, 0x80, 0, 0, 0],
        Bth {
            opcode: Opcode(0x0a),
            solicited: true,
            dest_qp: 2,
            ack_req: true,
            ..Bth::default()
        }
    );
    both_ways!(
        Bth,
        [
            0xff, 0x1b, 0x12, 0x34, 0x80, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff
        ],
        Bth {
            opcode: Opcode(0xff),
            pad: 1,
            tver: 11,
            pkey: 0x1234,
            fecn: true,
            dest_qp: 0xff_ffff,
            psn: Psn::new(0xff_ffff),
            ..Bth::default()
        }
    );
}

#[test]
fn bth_ignores_reserved_bits_and_cuts_wide_values() {
    let quiet = [0x04, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1];
    let mut noisy = quiet;
    noisy[4] |= 0x3f;
    noisy[8] |= 0x7f;
    assert_eq!(Bth::parse(&noisy), Bth::parse(&quiet));
    let wide = Bth {
        pad: 0xfd,
        tver: 0x90,
        dest_qp: 0xff00_0009,
        ..Bth::parse(&quiet).unwrap()
    };
    let mut out = [0; 12];
    wide.emit(&mut out);
    assert_eq!(out, [0x04, 0x10, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1]);
}

#[test]
fn deth() {
    // libroce_ud_send_only_imm.
    both_ways!(
        Deth,
        [0x12, 0x34, 0x56, 0x78, 0, 0, 0, 2],
        Deth {
            qkey: 0x1234_5678,
            src_qp: 2,
        }
    );
    assert_eq!(
        Deth::parse(&[0, 0, 0, 1, 0xff, 1, 2, 3]).unwrap().src_qp,
        0x01_0203
    );
}

#[test]
fn reth() {
    // v1_rc_write_only.
    both_ways!(
        Reth,
        [
            0, 0, 0x55, 0xd4, 0xc0, 0x72, 0x60, 0, 0, 0, 0x47, 0xb3, 0, 0, 0, 5
        ],
        Reth {
            va: 0x55d4_c072_6000,
            rkey: 0x47b3,
            len: 5,
        }
    );
}

#[test]
fn atomic_eth() {
    both_ways!(
        AtomicEth,
        [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
            25, 26, 27, 28
        ],
        AtomicEth {
            va: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
            swap_or_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        }
    );
}

#[test]
fn aeth() {
    // libroce_rc_ack: credits not counted, MSN 0; v1_rc_ack: no credits, MSN 5.
    both_ways!(
        Aeth,
        [0x1f, 0, 0, 0],
        Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            msn: 0,
        }
    );
    both_ways!(
        Aeth,
        [0, 0, 0, 5],
        Aeth {
            syndrome: Syndrome::Ack { credits: 0 },
            msn: 5,
        }
    );
    both_ways!(
        Aeth,
        [0x60, 0xab, 0xcd, 0xef],
        Aeth {
            syndrome: Syndrome::Nak(NakCode::PsnSequenceError),
            msn: 0xab_cdef,
        }
    );
}

#[test]
fn every_syndrome_byte_says_something_and_comes_back() {
    for byte in 0..=u8::MAX {
        assert_eq!(Syndrome::from_byte(byte).to_byte(), byte, "{byte:#04x}");
    }
    // Numbers of the kernel's rxe (`enum aeth_syndrome`, `AETH_*`).
    for (byte, syndrome) in [
        (0x00, Syndrome::Ack { credits: 0 }),
        (0x1f, Syndrome::ACK_NO_CREDITS),
        (0x20, Syndrome::Rnr { timer: 0 }),
        (0x3f, Syndrome::Rnr { timer: 31 }),
        (0x40, Syndrome::Reserved(0x40)),
        (0x60, Syndrome::Nak(NakCode::PsnSequenceError)),
        (0x61, Syndrome::Nak(NakCode::InvalidRequest)),
        (0x62, Syndrome::Nak(NakCode::RemoteAccessError)),
        (0x63, Syndrome::Nak(NakCode::RemoteOperationalError)),
        (0x64, Syndrome::Nak(NakCode::InvalidRdRequest)),
        (0x65, Syndrome::Nak(NakCode::Other(5))),
        (0x7f, Syndrome::Nak(NakCode::Other(31))),
        (0x80, Syndrome::Reserved(0x80)),
        (0xe0, Syndrome::Reserved(0xe0)),
    ] {
        assert_eq!(Syndrome::from_byte(byte), syndrome, "{byte:#04x}");
    }
}

#[test]
fn the_small_ones() {
    both_ways!(
        AtomicAckEth,
        [1, 2, 3, 4, 5, 6, 7, 8],
        AtomicAckEth(0x0102_0304_0506_0708)
    );
    // libroce_rc_send_only_imm.
    both_ways!(ImmDt, [0x12, 0x34, 0x56, 0x78], ImmDt(0x1234_5678));
    both_ways!(Ieth, [0x12, 0x34, 0x56, 0x78], Ieth(0x1234_5678));
    both_ways!(XrcEth, [0, 0x34, 0x56, 0x78], XrcEth(0x34_5678));
    assert_eq!(XrcEth::parse(&[0xff, 0, 0, 1]), Ok(XrcEth(1)));
}
