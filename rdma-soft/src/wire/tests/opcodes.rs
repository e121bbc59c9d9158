//! The opcode table against the numbers that the kernel's `ib_pack.h` composes: a transport's
//! base plus an operation's number.

use crate::wire::{Class, Headers, Opcode, Operation, Place};

/// Number and name after the kernel; bytes of headers after the BTH, by hand from their lengths.
const OPERATIONS: [(u8, &str, usize); 23] = [
    (0x00, "SEND_FIRST", 0),
    (0x01, "SEND_MIDDLE", 0),
    (0x02, "SEND_LAST", 0),
    (0x03, "SEND_LAST_WITH_IMMEDIATE", 4),
    (0x04, "SEND_ONLY", 0),
    (0x05, "SEND_ONLY_WITH_IMMEDIATE", 4),
    (0x06, "RDMA_WRITE_FIRST", 16),
    (0x07, "RDMA_WRITE_MIDDLE", 0),
    (0x08, "RDMA_WRITE_LAST", 0),
    (0x09, "RDMA_WRITE_LAST_WITH_IMMEDIATE", 4),
    (0x0a, "RDMA_WRITE_ONLY", 16),
    (0x0b, "RDMA_WRITE_ONLY_WITH_IMMEDIATE", 20),
    (0x0c, "RDMA_READ_REQUEST", 16),
    (0x0d, "RDMA_READ_RESPONSE_FIRST", 4),
    (0x0e, "RDMA_READ_RESPONSE_MIDDLE", 0),
    (0x0f, "RDMA_READ_RESPONSE_LAST", 4),
    (0x10, "RDMA_READ_RESPONSE_ONLY", 4),
    (0x11, "ACKNOWLEDGE", 4),
    (0x12, "ATOMIC_ACKNOWLEDGE", 12),
    (0x13, "COMPARE_SWAP", 28),
    (0x14, "FETCH_ADD", 28),
    (0x16, "SEND_LAST_WITH_INVALIDATE", 4),
    (0x17, "SEND_ONLY_WITH_INVALIDATE", 4),
];

/// Prefix, base, and the operations that the transport has.
const TRANSPORTS: [(Class, &str, u8, &[u8]); 4] = [
    (
        Class::Rc,
        "RC_",
        0x00,
        &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23,
        ],
    ),
    (
        Class::Uc,
        "UC_",
        0x20,
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    ),
    (Class::Ud, "UD_", 0x60, &[4, 5]),
    (
        Class::Xrc,
        "XRC_",
        0xa0,
        &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23,
        ],
    ),
];

#[test]
fn numbers_names_and_header_lengths() {
    let mut known = [false; 256];
    for (class, prefix, base, operations) in TRANSPORTS {
        for (number, name, ext) in OPERATIONS {
            if !operations.contains(&number) {
                continue;
            }
            let opcode = Opcode(base + number);
            known[usize::from(opcode.0)] = true;
            let info = opcode.info().unwrap_or_else(|| panic!("no {opcode}"));
            assert_eq!(info.opcode, opcode);
            assert_eq!(info.class, class);
            assert_eq!(info.name, format!("{prefix}{name}"));
            assert_eq!(opcode.to_string(), info.name);
            let response = matches!(number, 0x0d..=0x12);
            assert_eq!(info.is_request(), !response, "{opcode}");
            assert_eq!(info.is_response(), response, "{opcode}");
            let transport_ext = match class {
                Class::Ud => 8,
                Class::Xrc if !response => 4,
                _ => 0,
            };
            assert_eq!(info.headers.len(), 12 + transport_ext + ext, "{opcode}");
            // READ requests, acknowledgements and atomics carry nothing; all others may.
            assert_eq!(
                info.payload,
                !matches!(number, 0x0c | 0x11..=0x14),
                "{opcode}"
            );
            let imm = name.ends_with("IMMEDIATE");
            assert_eq!(info.headers.contains(Headers::IMM), imm, "{opcode}");
            let inv = name.ends_with("INVALIDATE");
            assert_eq!(info.headers.contains(Headers::IETH), inv, "{opcode}");
            let word = |word| name.split('_').any(|w| w == word);
            assert_eq!(info.place == Place::First, word("FIRST"), "{opcode}");
            assert_eq!(info.place == Place::Middle, word("MIDDLE"), "{opcode}");
            assert_eq!(info.place == Place::Last, word("LAST"), "{opcode}");
        }
    }
    known[0x81] = true;
    for number in 0..=u8::MAX {
        let info = Opcode(number).info();
        assert_eq!(info.is_some(), known[usize::from(number)], "{number:#04x}");
    }
    assert_eq!(Opcode::all().count(), 23 + 12 + 2 + 23 + 1);
    assert_eq!(Opcode(0x15).to_string(), "opcode 0x15");
}

#[test]
fn constants_have_the_numbers_that_their_names_say() {
    assert_eq!(Opcode::RC_SEND_FIRST, Opcode(0x00));
    assert_eq!(Opcode::RC_ACKNOWLEDGE, Opcode(0x11));
    assert_eq!(Opcode::UC_RDMA_WRITE_ONLY, Opcode(0x2a));
    assert_eq!(Opcode::UD_SEND_ONLY, Opcode(0x64));
    assert_eq!(Opcode::CNP, Opcode(0x81));
    assert_eq!(Opcode::XRC_SEND_ONLY_WITH_INVALIDATE, Opcode(0xb7));
}

#[test]
fn an_opcode_is_found_by_its_meaning() {
    for info in Opcode::all() {
        let imm = info.headers.contains(Headers::IMM);
        let inv = info.headers.contains(Headers::IETH);
        let found = Opcode::new(info.class, info.op, info.place, imm, inv);
        assert_eq!(found, Some(info.opcode));
    }
    use {Class::*, Operation::*, Place::*};
    for (class, op, place, imm, inv, number) in [
        (Rc, Send, Only, false, true, Some(0x17)),
        (Rc, Write, Only, true, false, Some(0x0b)),
        (Uc, Write, Last, true, false, Some(0x29)),
        (Xrc, FetchAdd, Only, false, false, Some(0xb4)),
        (Ud, Send, First, false, false, None),
        (Ud, Write, Only, false, false, None),
        (Uc, ReadRequest, Only, false, false, None),
        (Rc, Send, Middle, true, false, None),
        (Rc, Send, Only, true, true, None),
        (Rc, Write, Only, false, true, None),
        (Uc, Send, Only, false, true, None),
    ] {
        let found = Opcode::new(class, op, place, imm, inv);
        assert_eq!(found.map(|o| o.0), number, "{class:?} {op:?} {place:?}");
    }
}

#[test]
fn places() {
    for (starts, ends, place) in [
        (true, true, Place::Only),
        (true, false, Place::First),
        (false, false, Place::Middle),
        (false, true, Place::Last),
    ] {
        assert_eq!(Place::new(starts, ends), place);
        assert_eq!((place.starts(), place.ends()), (starts, ends));
    }
}
