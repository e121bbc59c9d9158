//! Acknowledge extended transport header.

use std::fmt;

use super::{ParseError, put, take};

/// What a responder says about the requests up to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Acknowledgement or refusal.
    pub syndrome: Syndrome,
    /// Message sequence number: messages that the responder completed, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header from the front of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<Aeth, ParseError> {
        let b: &[u8; Aeth::LEN] = take(bytes, "AETH")?;
        Ok(Aeth {
            syndrome: Syndrome::from_byte(b[0]),
            msn: u32::from_be_bytes([0, b[1], b[2], b[3]]),
        })
    }

    /// Writes the header to the front of `out`, which must hold [`LEN`](Self::LEN) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        let [_, m2, m1, m0] = self.msn.to_be_bytes();
        put(out, [self.syndrome.to_byte(), m2, m1, m0]);
    }
}

/// The syndrome byte of an [`Aeth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Acknowledged.
    Ack {
        /// Encoded credit count, 5 bits; 31 says that credits are not counted.
        credits: u8,
    },
    /// Receiver not ready: try again later.
    Rnr {
        /// Encoded delay, 5 bits (`min_rnr_timer` of `ibv_modify_qp(3)`).
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A byte without a meaning.
    Reserved(u8),
}

impl Syndrome {
    const ACK: u8 = 0x00;
    const RNR: u8 = 0x20;
    const NAK: u8 = 0x60;
    const VALUE: u8 = 0x1f;

    /// An acknowledgement whose sender does not count credits (`0x1f`).
    pub const ACK_NO_CREDITS: Syndrome = Syndrome::Ack { credits: 31 };

    /// What `byte` says; every byte says something.
    pub const fn from_byte(byte: u8) -> Syndrome {
        let value = byte & Syndrome::VALUE;
        match byte & !Syndrome::VALUE {
            Syndrome::ACK => Syndrome::Ack { credits: value },
            Syndrome::RNR => Syndrome::Rnr { timer: value },
            Syndrome::NAK => Syndrome::Nak(NakCode::from_value(value)),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// The byte; [`from_byte`](Syndrome::from_byte) is its inverse. Values are cut to 5 bits.
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => Syndrome::ACK | credits & Syndrome::VALUE,
            Syndrome::Rnr { timer } => Syndrome::RNR | timer & Syndrome::VALUE,
            Syndrome::Nak(code) => Syndrome::NAK | code.value() & Syndrome::VALUE,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Syndrome::Ack { .. } => write!(f, "ACK"),
            Syndrome::Rnr { timer } => write!(f, "RNR NAK timer {timer}"),
            Syndrome::Nak(code) => write!(f, "NAK {code}"),
            Syndrome::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

/// Why a responder refuses (names as in the kernel's `ib_pack.h`, `IB_NAK_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// A packet is missing: send again from the packet that the acknowledgement names.
    PsnSequenceError,
    /// The request is not one that this QP may get.
    InvalidRequest,
    /// Key, bounds or permission of the remote memory do not allow it.
    RemoteAccessError,
    /// The responder failed by itself.
    RemoteOperationalError,
    /// Reliable datagram only.
    InvalidRdRequest,
    /// A code without a name, 5..=31.
    Other(u8),
}

impl NakCode {
    /// The code with this number.
    pub const fn from_value(value: u8) -> NakCode {
        match value {
            0 => NakCode::PsnSequenceError,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccessError,
            3 => NakCode::RemoteOperationalError,
            4 => NakCode::InvalidRdRequest,
            other => NakCode::Other(other),
        }
    }

    /// The number of this code.
    pub const fn value(self) -> u8 {
        match self {
            NakCode::PsnSequenceError => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccessError => 2,
            NakCode::RemoteOperationalError => 3,
            NakCode::InvalidRdRequest => 4,
            NakCode::Other(value) => value,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NakCode::PsnSequenceError => f.write_str("PSN sequence error"),
            NakCode::InvalidRequest => f.write_str("invalid request"),
            NakCode::RemoteAccessError => f.write_str("remote access error"),
            NakCode::RemoteOperationalError => f.write_str("remote operational error"),
            NakCode::InvalidRdRequest => f.write_str("invalid RD request"),
            NakCode::Other(value) => write!(f, "code {value}"),
        }
    }
}
