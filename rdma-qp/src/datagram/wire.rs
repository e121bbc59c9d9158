//! What a datagram looks like: a header of 56 bytes, and then a part of a message.
//!
//! ```text
//! offset  size  field
//!      0     4  "RQDG"
//!      4     1  version, 2
//!      5     1  kind: 1 HELLO, 2 DATA, 3 ACK, 4 RESET
//!      6     1  flags: 1 first part of its message, 2 last part, 4 an answer is wanted, 8 what was told of room before has lapsed
//!      7     1  zero
//!      8     8  number of the sender's life, never 0
//!     16     8  number of the receiver's life, as the sender knows it; 0 in a HELLO to one of whom it knows none
//!     24     8  number of a DATA packet, from 0 in each session
//!     32     8  number of the first packet that the sender of this one lacks
//!     40     8  bit i: it has packet (that number + 1 + i)
//!     48     4  packets from that number on that it has room for
//!     52     4  bytes of the whole message, in a first part
//! ```
//!
//! Behind the header of a HELLO to nobody in particular is what its sender says of itself, for those who do not know it.
//!
//! Integers are in network order. Nothing in here panics, whatever the bytes are.

const MAGIC: [u8; 4] = *b"RQDG";
const VERSION: u8 = 2;

/// Bytes of the header.
pub(super) const HEADER: usize = 56;

/// Packets behind the first one missing that a header can speak of.
pub(super) const SACKS: u32 = u64::BITS;

/// The first part of its message.
pub(super) const FIRST: u8 = 1;
/// The last part of its message.
pub(super) const LAST: u8 = 2;
/// An answer is wanted.
pub(super) const ASK: u8 = 4;
/// What was told of room before has lapsed: there is no more than this says.
pub(super) const LAPSED: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Who begins a session, or answers one who does.
    Hello = 1,
    /// A part of a message.
    Data = 2,
    /// Nothing but the numbers that every packet has.
    Ack = 3,
    /// The life of the sender that this names is over, or was none.
    Reset = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) seq: u64,
    pub(super) ack: u64,
    pub(super) sack: u64,
    pub(super) credit: u32,
    pub(super) total: u32,
}

/// The bytes from `at` on; zeros where there are none.
fn take<const N: usize>(bytes: &[u8; HEADER], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

impl Header {
    /// Reads the header of a datagram; `None`: it has none that can be right.
    pub(super) fn parse(datagram: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER] = datagram.first_chunk()?;
        let [version, kind, flags, zero] = take(bytes, 4);
        if bytes[..4] != MAGIC
            || version != VERSION
            || zero != 0
            || flags > FIRST | LAST | ASK | LAPSED
        {
            return None;
        }
        let kind = match kind {
            1 => Kind::Hello,
            2 => Kind::Data,
            3 => Kind::Ack,
            4 => Kind::Reset,
            _ => return None,
        };
        let long = |at| u64::from_be_bytes(take(bytes, at));
        let header = Header {
            kind,
            flags,
            from: long(8),
            to: long(16),
            seq: long(24),
            ack: long(32),
            sack: long(40),
            credit: u32::from_be_bytes(take(bytes, 48)),
            total: u32::from_be_bytes(take(bytes, 52)),
        };
        let named = header.from != 0 && (header.to != 0 || kind == Kind::Hello);
        // No session lives long enough for numbers that could overflow.
        let numbers = header.seq.max(header.ack) < 1 << 62;
        let only = match kind {
            Kind::Data => true,
            Kind::Hello if header.to == 0 => true,
            _ => datagram.len() == HEADER,
        };
        (named && numbers && only).then_some(header)
    }

    /// Says to the life `to` that `from`, to which it sent something, is over.
    pub(super) fn reset(from: u64, to: u64) -> Header {
        Header {
            kind: Kind::Reset,
            ..Header::hello(from, to, 0)
        }
    }

    /// Begins a session, with room for `credit` packets.
    pub(super) fn hello(from: u64, to: u64, credit: u32) -> Header {
        Header {
            kind: Kind::Hello,
            flags: 0,
            from,
            to,
            seq: 0,
            ack: 0,
            sack: 0,
            credit,
            total: 0,
        }
    }

    /// Writes it to the beginning of `datagram`, which is at least as long.
    pub(super) fn emit(&self, datagram: &mut [u8]) {
        let Some(bytes) = datagram.first_chunk_mut::<HEADER>() else {
            return;
        };
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&[VERSION, self.kind as u8, self.flags, 0]);
        let longs = [self.from, self.to, self.seq, self.ack, self.sack];
        for (place, long) in bytes[8..48].chunks_exact_mut(8).zip(longs) {
            place.copy_from_slice(&long.to_be_bytes());
        }
        bytes[48..52].copy_from_slice(&self.credit.to_be_bytes());
        bytes[52..].copy_from_slice(&self.total.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Written by hand, from the table above.
    #[rustfmt::skip]
    const DATA: [u8; HEADER + 2] = [
        b'R', b'Q', b'D', b'G', 2, 2, 3, 0,
        0, 0, 0, 0, 0, 0, 0, 7,
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        0, 0, 0, 0, 0, 0, 1, 0,
        0, 0, 0, 0, 0, 0, 0, 9,
        0x80, 0, 0, 0, 0, 0, 0, 1,
        0, 0, 0, 16,
        0, 0, 0, 2,
        b'h', b'i',
    ];

    #[test]
    fn a_header_is_laid_out_as_the_table_says() {
        let header = Header::parse(&DATA).unwrap();
        let expected = Header {
            kind: Kind::Data,
            flags: FIRST | LAST,
            from: 7,
            to: 0x1122_3344_5566_7788,
            seq: 256,
            ack: 9,
            sack: 1 << 63 | 1,
            credit: 16,
            total: 2,
        };
        assert_eq!(header, expected);
        let mut bytes = DATA;
        bytes[..HEADER].fill(0xff);
        expected.emit(&mut bytes);
        assert_eq!(bytes, DATA);
    }

    #[test]
    fn what_cannot_be_right_is_no_header() {
        let with = |at: usize, value: u8| {
            let mut bytes = DATA;
            bytes[at] = value;
            Header::parse(&bytes)
        };
        assert!(with(15, 8).is_some());
        for (at, value) in [
            (0, b'r'),
            (4, 1),
            (5, 0),
            (5, 5),
            (6, 16),
            (7, 1),
            (24, 0x40),
        ] {
            assert_eq!(with(at, value), None, "byte {at} is {value}");
        }
        assert_eq!(with(15, 0), None, "no life of the sender");
        assert_eq!(Header::parse(&DATA[..HEADER - 1]), None);
        let mut ack = DATA;
        ack[5] = 3;
        assert_eq!(Header::parse(&ack), None, "it brings bytes");
        assert!(Header::parse(&ack[..HEADER]).is_some());
        // Only a HELLO may be to nobody in particular.
        let mut nobody = ack;
        nobody[16..24].fill(0);
        assert_eq!(Header::parse(&nobody[..HEADER]), None);
        nobody[5] = 1;
        assert!(Header::parse(&nobody[..HEADER]).is_some());
        assert!(
            Header::parse(&nobody).is_some(),
            "it says something of itself"
        );
        nobody[23] = 7;
        assert_eq!(Header::parse(&nobody), None, "who answers is known");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_and_what_is_read_is_written_back(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..80),
            right in any::<bool>(),
        ) {
            if right && bytes.len() >= 8 {
                bytes[..5].copy_from_slice(b"RQDG\x02");
                (bytes[5], bytes[6], bytes[7]) = (bytes[5] % 5, bytes[6] % 16, 0);
            }
            if let Some(header) = Header::parse(&bytes) {
                let mut again = bytes.clone();
                again[..HEADER].fill(0);
                header.emit(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
