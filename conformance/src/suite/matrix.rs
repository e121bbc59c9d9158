//! Every transport x every operation x {signaled, not} x {inline, not} x lengths.
//!
//! [`cells`] is the table; what is legal in it follows from [`Transport::supports`] and the limits of a request. A legal
//! cell is played with its data checked on both sides, an illegal one is posted and must be refused.

mod play;

use std::fmt;

use rdma_core_sys::rules::{Kind, Transport};
use rdma_core_sys::*;

use super::Check;

/// The transports, by their asking end.
pub const TRANSPORTS: [Transport; 4] = [
    Transport::Rc,
    Transport::Uc,
    Transport::Ud,
    Transport::XrcIni,
];

/// Every operation that `infiniband/verbs.h` names, and one that it does not.
pub const OPERATIONS: [ibv_wr_opcode; 15] = [
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_LOCAL_INV,
    IBV_WR_BIND_MW,
    IBV_WR_TSO,
    IBV_WR_DRIVER1,
    IBV_WR_FLUSH,
    IBV_WR_ATOMIC_WRITE,
    ibv_wr_opcode(0x63),
];

/// A length by what it is to the MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// No byte.
    Zero,
    /// One byte.
    One,
    /// The only length of atomics.
    Word,
    /// One byte less than a packet holds.
    BelowMtu,
    /// What a packet holds.
    Mtu,
    /// One byte more than a packet holds.
    AboveMtu,
    /// Three packets and a bit.
    Several,
    /// 1 MiB.
    Long,
}

impl Length {
    /// All of them; [`Length::Word`] is for atomics.
    pub const ALL: [Length; 8] = [
        Length::Zero,
        Length::One,
        Length::Word,
        Length::BelowMtu,
        Length::Mtu,
        Length::AboveMtu,
        Length::Several,
        Length::Long,
    ];

    /// The bytes, at this MTU.
    #[must_use]
    pub const fn bytes(self, mtu: usize) -> usize {
        match self {
            Length::Zero => 0,
            Length::One => 1,
            Length::Word => 8,
            Length::BelowMtu => mtu - 1,
            Length::Mtu => mtu,
            Length::AboveMtu => mtu + 1,
            Length::Several => 3 * mtu + 5,
            Length::Long => 1 << 20,
        }
    }
}

/// One request of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The transport.
    pub transport: Transport,
    /// The operation.
    pub opcode: ibv_wr_opcode,
    /// It asks for a completion.
    pub signaled: bool,
    /// Its bytes travel in the request.
    pub inline: bool,
    /// Its length.
    pub length: Length,
}

/// Whether a request of the table may be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Legality {
    /// It may, and must succeed.
    Legal,
    /// It must be refused; who says so, and why.
    Illegal(Kind, &'static str),
}

/// True for operations that touch no peer.
#[must_use]
pub fn is_local(opcode: ibv_wr_opcode) -> bool {
    matches!(opcode, IBV_WR_LOCAL_INV | IBV_WR_BIND_MW)
}

/// True for atomics.
#[must_use]
pub fn is_atomic(opcode: ibv_wr_opcode) -> bool {
    matches!(
        opcode,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
    )
}

impl Cell {
    /// Whether it may be posted on a QP that takes `max_inline` bytes inline.
    #[must_use]
    pub fn legality(&self, mtu: usize, max_inline: usize) -> Legality {
        use Kind::{StricterByUs, VerbsRule};
        let len = self.length.bytes(mtu);
        if !self.transport.supports(self.opcode) {
            return Legality::Illegal(VerbsRule, "the transport has no such operation");
        }
        if is_local(self.opcode) {
            return Legality::Legal;
        }
        let fetches = self.opcode == IBV_WR_RDMA_READ || is_atomic(self.opcode);
        if self.inline && fetches {
            return Legality::Illegal(VerbsRule, "what brings data back cannot be inline");
        }
        if is_atomic(self.opcode) && len < 8 {
            return Legality::Illegal(VerbsRule, "an atomic returns 8 bytes");
        }
        if is_atomic(self.opcode) && len > 8 {
            return Legality::Illegal(StricterByUs, "an atomic returns no more than 8 bytes");
        }
        if self.inline && len > max_inline {
            return Legality::Illegal(VerbsRule, "longer than max_inline_data");
        }
        if self.transport == Transport::Ud && len > mtu {
            // IBA says that nothing is sent and no error is told (as rxe's `rxe_requester` notes): nobody could know.
            return Legality::Illegal(StricterByUs, "a datagram is one packet");
        }
        Legality::Legal
    }
}

impl fmt::Display for Cell {
    /// As in the names of checks: `RC/RDMA_WRITE/AboveMtu/unsignaled/inline`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = transport_name(self.transport);
        match self.opcode.name() {
            Some(name) => write!(f, "{transport}/{}", name.trim_start_matches("IBV_WR_"))?,
            None => write!(f, "{transport}/opcode-{:#x}", self.opcode.0)?,
        }
        write!(f, "/{:?}", self.length)?;
        if !self.signaled {
            f.write_str("/unsignaled")?;
        }
        if self.inline {
            f.write_str("/inline")?;
        }
        Ok(())
    }
}

/// `RC`, `UC`, `UD` or `XRC`.
#[must_use]
pub fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::XrcIni | Transport::XrcTgt => "XRC",
        other => other.name(),
    }
}

/// The whole table. What touches no peer carries no bytes, and a word is a length of atomics only.
#[must_use]
pub fn cells(quick: bool) -> Vec<Cell> {
    let mut all = Vec::new();
    for transport in TRANSPORTS {
        for opcode in OPERATIONS {
            for length in Length::ALL {
                let slow = matches!(length, Length::BelowMtu | Length::Several | Length::Long);
                let wanted = match length {
                    Length::Word => is_atomic(opcode),
                    Length::Zero => true,
                    _ if is_local(opcode) => false,
                    _ => !(quick && slow),
                };
                if !wanted {
                    continue;
                }
                for (signaled, inline) in
                    [(true, false), (false, false), (true, true), (false, true)]
                {
                    if !(inline && is_local(opcode)) {
                        all.push(Cell {
                            transport,
                            opcode,
                            signaled,
                            inline,
                            length,
                        });
                    }
                }
            }
        }
    }
    all
}

/// A check for each cell.
#[must_use]
pub fn checks(quick: bool) -> Vec<Check> {
    let check = |(number, cell): (u32, Cell)| {
        // What only the limits of a device decide is a rule wherever it is decided at all.
        let kind = match cell.legality(256, 64) {
            Legality::Illegal(kind, _) => kind,
            Legality::Legal => Kind::VerbsRule,
        };
        Check::of(kind, format!("matrix/{cell}"), move |arm| {
            play::play(arm, cell, number)
        })
    };
    (1..).zip(cells(quick)).map(check).collect()
}
