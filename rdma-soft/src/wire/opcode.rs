//! The opcodes, as one table from which parser, builder and printer derive.

use std::fmt;

use super::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, Reth, XrcEth};

/// The opcode byte of a BTH: the transport in the top 3 bits, the operation in the rest.
///
/// Any byte is a value; those of the table have an [`info`](Opcode::info).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// One row of the opcode table.
#[derive(Debug)]
pub struct OpcodeInfo {
    /// The opcode.
    pub opcode: Opcode,
    /// Its name, as the kernel's `ib_pack.h` spells it after `IB_OPCODE_`, and those that are not
    /// there (XRC, CNP) in its manner.
    pub name: &'static str,
    /// Transport.
    pub class: Class,
    /// What it does.
    pub op: Operation,
    /// Where in its message it stands.
    pub place: Place,
    /// The headers that it carries, all of them.
    pub headers: Headers,
    /// Bytes that these take together.
    pub header_len: usize,
    /// It may carry payload.
    pub payload: bool,
}

/// Transport of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification (RoCEv2), which belongs to no transport.
    Cnp,
}

/// What a packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ, the question.
    ReadRequest,
    /// RDMA READ, the answer.
    ReadResponse,
    /// Acknowledge, positive or negative.
    Ack,
    /// Acknowledge of an atomic operation.
    AtomicAck,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Congestion notification.
    Cnp,
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Place {
    /// It begins a message.
    pub const fn starts(self) -> bool {
        matches!(self, Place::First | Place::Only)
    }

    /// It ends a message.
    pub const fn ends(self) -> bool {
        matches!(self, Place::Last | Place::Only)
    }

    /// The place of a packet that begins a message or not, and ends it or not.
    pub const fn new(starts: bool, ends: bool) -> Place {
        match (starts, ends) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, true) => Place::Last,
            (false, false) => Place::Middle,
        }
    }
}

bitflags::bitflags! {
    /// A set of headers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Headers: u16 {
        /// Base transport header.
        const BTH = 1 << 0;
        /// XRC extended transport header.
        const XRCETH = 1 << 1;
        /// Datagram extended transport header.
        const DETH = 1 << 2;
        /// RDMA extended transport header.
        const RETH = 1 << 3;
        /// Atomic extended transport header.
        const ATOMIC_ETH = 1 << 4;
        /// Acknowledge extended transport header.
        const AETH = 1 << 5;
        /// Atomic acknowledge extended transport header.
        const ATOMIC_ACK_ETH = 1 << 6;
        /// Immediate data.
        const IMM = 1 << 7;
        /// Invalidate extended transport header.
        const IETH = 1 << 8;
    }
}

impl Headers {
    /// Bytes that these headers take together.
    // A set of headers always has the BTH: "is_empty" would ask nothing.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(self) -> usize {
        const LENS: [(Headers, usize); 9] = [
            (Headers::BTH, Bth::LEN),
            (Headers::XRCETH, XrcEth::LEN),
            (Headers::DETH, Deth::LEN),
            (Headers::RETH, Reth::LEN),
            (Headers::ATOMIC_ETH, AtomicEth::LEN),
            (Headers::AETH, Aeth::LEN),
            (Headers::ATOMIC_ACK_ETH, AtomicAckEth::LEN),
            (Headers::IMM, ImmDt::LEN),
            (Headers::IETH, Ieth::LEN),
        ];
        let mut sum = 0;
        let mut i = 0;
        while i < LENS.len() {
            if self.contains(LENS[i].0) {
                sum += LENS[i].1;
            }
            i += 1;
        }
        sum
    }
}

impl OpcodeInfo {
    /// It asks the responder for something (rather than answering, or notifying).
    pub const fn is_request(&self) -> bool {
        matches!(
            self.op,
            Operation::Send
                | Operation::Write
                | Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
        )
    }

    /// It answers a request.
    pub const fn is_response(&self) -> bool {
        matches!(
            self.op,
            Operation::ReadResponse | Operation::Ack | Operation::AtomicAck
        )
    }
}

/// Makes [`TABLE`] and a constant of [`Opcode`] per row: number, name, transport, operation,
/// place, extension headers, whether there may be payload.
macro_rules! opcodes {
    ($($number:literal $name:ident $class:ident $op:ident $place:ident [$($header:ident)*] $payload:literal;)*) => {
        impl Opcode {
            $(
                #[doc = concat!("`", stringify!($name), "`, ", stringify!($number), ".")]
                pub const $name: Opcode = Opcode($number);
            )*
        }

        const TABLE: &[OpcodeInfo] = &[$(OpcodeInfo {
            opcode: Opcode($number),
            name: stringify!($name),
            class: Class::$class,
            op: Operation::$op,
            place: Place::$place,
            headers: Headers::BTH$(.union(Headers::$header))*,
            header_len: Headers::BTH$(.union(Headers::$header))*.len(),
            payload: $payload,
        }),*];
    };
}

#[rustfmt::skip]
opcodes! {
    0x00 RC_SEND_FIRST                       Rc  Send         First  []                    true;
    0x01 RC_SEND_MIDDLE                      Rc  Send         Middle []                    true;
    0x02 RC_SEND_LAST                        Rc  Send         Last   []                    true;
    0x03 RC_SEND_LAST_WITH_IMMEDIATE         Rc  Send         Last   [IMM]                 true;
    0x04 RC_SEND_ONLY                        Rc  Send         Only   []                    true;
    0x05 RC_SEND_ONLY_WITH_IMMEDIATE         Rc  Send         Only   [IMM]                 true;
    0x06 RC_RDMA_WRITE_FIRST                 Rc  Write        First  [RETH]                true;
    0x07 RC_RDMA_WRITE_MIDDLE                Rc  Write        Middle []                    true;
    0x08 RC_RDMA_WRITE_LAST                  Rc  Write        Last   []                    true;
    0x09 RC_RDMA_WRITE_LAST_WITH_IMMEDIATE   Rc  Write        Last   [IMM]                 true;
    0x0a RC_RDMA_WRITE_ONLY                  Rc  Write        Only   [RETH]                true;
    0x0b RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE   Rc  Write        Only   [RETH IMM]            true;
    0x0c RC_RDMA_READ_REQUEST                Rc  ReadRequest  Only   [RETH]                false;
    0x0d RC_RDMA_READ_RESPONSE_FIRST         Rc  ReadResponse First  [AETH]                true;
    0x0e RC_RDMA_READ_RESPONSE_MIDDLE        Rc  ReadResponse Middle []                    true;
    0x0f RC_RDMA_READ_RESPONSE_LAST          Rc  ReadResponse Last   [AETH]                true;
    0x10 RC_RDMA_READ_RESPONSE_ONLY          Rc  ReadResponse Only   [AETH]                true;
    0x11 RC_ACKNOWLEDGE                      Rc  Ack          Only   [AETH]                false;
    0x12 RC_ATOMIC_ACKNOWLEDGE               Rc  AtomicAck    Only   [AETH ATOMIC_ACK_ETH] false;
    0x13 RC_COMPARE_SWAP                     Rc  CompareSwap  Only   [ATOMIC_ETH]          false;
    0x14 RC_FETCH_ADD                        Rc  FetchAdd     Only   [ATOMIC_ETH]          false;
    0x16 RC_SEND_LAST_WITH_INVALIDATE        Rc  Send         Last   [IETH]                true;
    0x17 RC_SEND_ONLY_WITH_INVALIDATE        Rc  Send         Only   [IETH]                true;

    0x20 UC_SEND_FIRST                       Uc  Send         First  []                    true;
    0x21 UC_SEND_MIDDLE                      Uc  Send         Middle []                    true;
    0x22 UC_SEND_LAST                        Uc  Send         Last   []                    true;
    0x23 UC_SEND_LAST_WITH_IMMEDIATE         Uc  Send         Last   [IMM]                 true;
    0x24 UC_SEND_ONLY                        Uc  Send         Only   []                    true;
    0x25 UC_SEND_ONLY_WITH_IMMEDIATE         Uc  Send         Only   [IMM]                 true;
    0x26 UC_RDMA_WRITE_FIRST                 Uc  Write        First  [RETH]                true;
    0x27 UC_RDMA_WRITE_MIDDLE                Uc  Write        Middle []                    true;
    0x28 UC_RDMA_WRITE_LAST                  Uc  Write        Last   []                    true;
    0x29 UC_RDMA_WRITE_LAST_WITH_IMMEDIATE   Uc  Write        Last   [IMM]                 true;
    0x2a UC_RDMA_WRITE_ONLY                  Uc  Write        Only   [RETH]                true;
    0x2b UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE   Uc  Write        Only   [RETH IMM]            true;

    0x64 UD_SEND_ONLY                        Ud  Send         Only   [DETH]                true;
    0x65 UD_SEND_ONLY_WITH_IMMEDIATE         Ud  Send         Only   [DETH IMM]            true;

    // 16 reserved bytes follow the BTH.
    0x81 CNP                                 Cnp Cnp          Only   []                    true;

    0xa0 XRC_SEND_FIRST                      Xrc Send         First  [XRCETH]              true;
    0xa1 XRC_SEND_MIDDLE                     Xrc Send         Middle [XRCETH]              true;
    0xa2 XRC_SEND_LAST                       Xrc Send         Last   [XRCETH]              true;
    0xa3 XRC_SEND_LAST_WITH_IMMEDIATE        Xrc Send         Last   [XRCETH IMM]          true;
    0xa4 XRC_SEND_ONLY                       Xrc Send         Only   [XRCETH]              true;
    0xa5 XRC_SEND_ONLY_WITH_IMMEDIATE        Xrc Send         Only   [XRCETH IMM]          true;
    0xa6 XRC_RDMA_WRITE_FIRST                Xrc Write        First  [XRCETH RETH]         true;
    0xa7 XRC_RDMA_WRITE_MIDDLE               Xrc Write        Middle [XRCETH]              true;
    0xa8 XRC_RDMA_WRITE_LAST                 Xrc Write        Last   [XRCETH]              true;
    0xa9 XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE  Xrc Write        Last   [XRCETH IMM]          true;
    0xaa XRC_RDMA_WRITE_ONLY                 Xrc Write        Only   [XRCETH RETH]         true;
    0xab XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE  Xrc Write        Only   [XRCETH RETH IMM]     true;
    0xac XRC_RDMA_READ_REQUEST               Xrc ReadRequest  Only   [XRCETH RETH]         false;
    0xad XRC_RDMA_READ_RESPONSE_FIRST        Xrc ReadResponse First  [AETH]                true;
    0xae XRC_RDMA_READ_RESPONSE_MIDDLE       Xrc ReadResponse Middle []                    true;
    0xaf XRC_RDMA_READ_RESPONSE_LAST         Xrc ReadResponse Last   [AETH]                true;
    0xb0 XRC_RDMA_READ_RESPONSE_ONLY         Xrc ReadResponse Only   [AETH]                true;
    0xb1 XRC_ACKNOWLEDGE                     Xrc Ack          Only   [AETH]                false;
    0xb2 XRC_ATOMIC_ACKNOWLEDGE              Xrc AtomicAck    Only   [AETH ATOMIC_ACK_ETH] false;
    0xb3 XRC_COMPARE_SWAP                    Xrc CompareSwap  Only   [XRCETH ATOMIC_ETH]   false;
    0xb4 XRC_FETCH_ADD                       Xrc FetchAdd     Only   [XRCETH ATOMIC_ETH]   false;
    0xb6 XRC_SEND_LAST_WITH_INVALIDATE       Xrc Send         Last   [XRCETH IETH]         true;
    0xb7 XRC_SEND_ONLY_WITH_INVALIDATE       Xrc Send         Only   [XRCETH IETH]         true;
}

/// Row of an opcode that is in no row.
const NO_ROW: u8 = u8::MAX;

/// Row by opcode.
static BY_NUMBER: [u8; 256] = {
    let mut rows = [NO_ROW; 256];
    let mut i = 0;
    while i < TABLE.len() {
        rows[TABLE[i].opcode.0 as usize] = i as u8;
        i += 1;
    }
    rows
};

const CLASSES: usize = Class::Cnp as usize + 1;
const OPERATIONS: usize = Operation::Cnp as usize + 1;
const PLACES: usize = Place::Only as usize + 1;

const fn meaning(class: Class, op: Operation, place: Place, imm: bool, inv: bool) -> usize {
    let at = (class as usize * OPERATIONS + op as usize) * PLACES + place as usize;
    at * 4 + inv as usize * 2 + imm as usize
}

/// Row by what the opcode means.
static BY_MEANING: [u8; CLASSES * OPERATIONS * PLACES * 4] = {
    let mut rows = [NO_ROW; CLASSES * OPERATIONS * PLACES * 4];
    let mut i = 0;
    while i < TABLE.len() {
        let row = &TABLE[i];
        let imm = row.headers.contains(Headers::IMM);
        let inv = row.headers.contains(Headers::IETH);
        rows[meaning(row.class, row.op, row.place, imm, inv)] = i as u8;
        i += 1;
    }
    rows
};

impl Opcode {
    /// All opcodes that have a row, in rising order.
    pub fn all() -> impl Iterator<Item = &'static OpcodeInfo> {
        TABLE.iter()
    }

    /// The row of this opcode, or `None` if there is no such opcode.
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        TABLE.get(usize::from(BY_NUMBER[usize::from(self.0)]))
    }

    /// The opcode that means this (`imm`: with immediate data, `inv`: with invalidate), or `None`
    /// if there is none (for instance a UD READ, or a middle packet with immediate data).
    pub fn new(class: Class, op: Operation, place: Place, imm: bool, inv: bool) -> Option<Opcode> {
        let row = BY_MEANING[meaning(class, op, place, imm, inv)];
        TABLE.get(usize::from(row)).map(|info| info.opcode)
    }
}

impl fmt::Display for Opcode {
    /// The name, or the number of an opcode that has none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}
