//! A header that names the connection, in front of messages that go to a shared receive queue.

use std::fmt;

/// The number of a connection, as both its ends agreed on: the receiver gives it, the sender puts it in front of each
/// message.
///
/// A completion of an SRQ names the QP that the message came by. Where that is not enough, because many connections share
/// a QP, or because the server does not want a table of QP numbers, the sender writes 8 bytes in front of its message and
/// the receiver takes them off again:
///
/// ```text
///  byte 0..3   "QPC"
///  byte 3      version: 1
///  byte 4..8   the number, most significant byte first
/// ```
///
/// Both ends have to want it; it is off unless [`Refill::with_header`](crate::Refill::with_header) asks for it.
///
/// ```
/// use rdma_qp::ConnectionId;
/// let mut message = [0; 64];
/// let room = ConnectionId(7).put(&mut message).expect("8 bytes and more");
/// room[..5].copy_from_slice(b"hello");
/// let (id, payload) = ConnectionId::split(&message)?;
/// assert_eq!((id, &payload[..5]), (ConnectionId(7), &b"hello"[..]));
/// # Ok::<(), rdma_qp::BadHeader>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(
    /// The number.
    pub u32,
);

/// What the header begins with; the last byte is its version.
const MAGIC: [u8; 4] = *b"QPC\x01";

/// A message does not begin with the header of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadHeader {
    /// It is too short.
    #[error(
        "a message of {len} bytes has no connection header, which is {} bytes",
        ConnectionId::LEN
    )]
    TooShort {
        /// Its length.
        len: usize,
    },
    /// It begins with something else.
    #[error(
        "a message begins with {found:02x?}, a connection header with {MAGIC:02x?}: does the sender write one?"
    )]
    Other {
        /// Its first bytes.
        found: [u8; 4],
    },
}

impl ConnectionId {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// The header.
    pub fn header(self) -> [u8; ConnectionId::LEN] {
        let mut bytes = [0; ConnectionId::LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..].copy_from_slice(&self.0.to_be_bytes());
        bytes
    }

    /// Writes the header to the beginning of `message`, and gives what is left for the payload. `None`: it is shorter than the
    /// header; nothing was written.
    pub fn put(self, message: &mut [u8]) -> Option<&mut [u8]> {
        let (header, payload) = message.split_at_mut_checked(ConnectionId::LEN)?;
        header.copy_from_slice(&self.header());
        Some(payload)
    }

    /// The number in the header of `message`, and what follows it.
    ///
    /// # Errors
    /// The message does not begin with a header of this version.
    pub fn split(message: &[u8]) -> Result<(ConnectionId, &[u8]), BadHeader> {
        let Some(([m0, m1, m2, version, number @ ..], payload)) = message.split_first_chunk::<8>()
        else {
            return Err(BadHeader::TooShort { len: message.len() });
        };
        let found = [*m0, *m1, *m2, *version];
        if found != MAGIC {
            return Err(BadHeader::Other { found });
        }
        Ok((ConnectionId(u32::from_be_bytes(*number)), payload))
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_description() {
        let bytes = [b'Q', b'P', b'C', 1, 0x12, 0x34, 0x56, 0x78];
        assert_eq!(ConnectionId(0x1234_5678).header(), bytes);
        let split = ConnectionId::split(&bytes);
        assert_eq!(split, Ok((ConnectionId(0x1234_5678), &[][..])));
    }

    #[test]
    fn anything_else_is_told() {
        for len in 0..8 {
            let bytes = &ConnectionId(1).header()[..len];
            assert_eq!(ConnectionId::split(bytes), Err(BadHeader::TooShort { len }));
        }
        let mut bytes = ConnectionId(1).header();
        bytes[3] = 2;
        let found = *b"QPC\x02";
        assert_eq!(ConnectionId::split(&bytes), Err(BadHeader::Other { found }));
        assert!(ConnectionId(1).put(&mut [0; 7]).is_none());
    }
}
