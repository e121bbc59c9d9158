use proptest::prelude::*;

use super::{addr, frame};
use crate::link::{IngressError, IpIds, check};
use crate::wire::icrc::{Flow, icrc};
use crate::wire::{Opcode, ParseError};

/// A datagram of `transport` with the right ICRC for `flow`.
fn datagram(flow: &Flow, transport: &[u8]) -> Vec<u8> {
    let mut bytes = transport.to_vec();
    bytes.extend_from_slice(&icrc(flow, transport).to_le_bytes());
    bytes
}

fn flow() -> Flow {
    Flow::new(addr("127.0.0.2:4791"), addr("127.0.0.3:4791"))
}

fn outcome(transport: &[u8]) -> Result<Opcode, IngressError> {
    let flow = flow();
    let bytes = datagram(&flow, transport);
    check(flow.src, flow.dst, &bytes, 0, IpIds::Own).map(|(packet, _)| packet.bth.opcode)
}

#[test]
fn a_frame_of_ours_comes_in() {
    for len in [0, 1, 2, 3, 4, 4096] {
        let frame = frame(7, len);
        let (packet, payload) = check(frame.src, frame.dst, &frame.bytes, 0, IpIds::Own).unwrap();
        assert_eq!(packet.bth.psn.value(), 7);
        assert!(payload.iter().copied().eq((0..len).map(|i| i as u8)));
        // The addresses are covered too.
        let elsewhere = check(
            frame.src,
            addr("127.0.0.4:4791"),
            &frame.bytes,
            0,
            IpIds::Own,
        );
        assert_eq!(elsewhere, Err(IngressError::BadIcrc));
    }
}

#[test]
fn each_refusal_has_its_name() {
    let bth = |opcode: u8, byte_1: u8| [opcode, byte_1, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 1];
    for len in 0..16 {
        let flow = flow();
        let short = check(flow.src, flow.dst, &[0; 16][..len], 0, IpIds::Any);
        assert_eq!(short, Err(IngressError::TooShort(len)));
    }
    assert_eq!(outcome(&bth(0x04, 0)), Ok(Opcode::RC_SEND_ONLY));
    assert_eq!(
        outcome(&bth(0x15, 0)),
        Err(IngressError::UnknownOpcode(0x15))
    );
    assert_eq!(outcome(&bth(0x04, 0x01)), Err(IngressError::BadVersion(1)));
    assert_eq!(
        outcome(&bth(0x04, 0x30)),
        Err(IngressError::BadHeader(ParseError::BadPad {
            pad: 3,
            have: 0
        }))
    );
}

#[test]
fn the_icrc_comes_before_everything_else() {
    let flow = flow();
    let mut bytes = datagram(&flow, &[0x15, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes[9] ^= 1;
    let outcome = check(flow.src, flow.dst, &bytes, 0, IpIds::Any);
    assert_eq!(outcome, Err(IngressError::BadIcrc));
}

#[test]
fn identifications() {
    let transport = [0x04, 0, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 1];
    for ip_id in [0, 1, 63, 64, 0x718c, 0xffff] {
        let flow = Flow { ip_id, ..flow() };
        let bytes = datagram(&flow, &transport);
        let own = check(flow.src, flow.dst, &bytes, 0, IpIds::Own);
        assert_eq!(own.is_ok(), ip_id < 64, "{ip_id}");
        assert!(check(flow.src, flow.dst, &bytes, 0, IpIds::Any).is_ok());
    }
}

proptest! {
    #[test]
    fn any_bytes_with_a_right_icrc_are_an_answer(
        mut transport in prop::collection::vec(any::<u8>(), 0..100),
        known in any::<Option<prop::sample::Index>>(),
    ) {
        if let (Some(row), Some(first)) = (known, transport.first_mut()) {
            let row = row.index(Opcode::all().count());
            *first = Opcode::all().nth(row).unwrap().opcode.0;
        }
        match outcome(&transport) {
            Ok(opcode) => prop_assert_eq!(opcode.0, transport[0]),
            Err(IngressError::TooShort(len)) => prop_assert_eq!(len, transport.len() + 4),
            Err(error) => prop_assert_ne!(error, IngressError::BadIcrc),
        }
    }
}
