//! What an end tells others of itself, once, by whatever means.
//!
//! ```text
//! offset  size  field
//!      0     4  "QPDC"
//!      4     1  version, 2: that of the packets
//!      5     3  zero
//!      8     4  longest message that it takes
//!     12     -  the endpoint record of its UD QP
//! ```
//!
//! Integers are in network order, as in the record.

use super::{Address, PeerError};
use crate::endpoint::{DecodeError, Endpoint, Peer};

const MAGIC: [u8; 4] = *b"QPDC";
const VERSION: u8 = 2;
const HEAD: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) max_message: u32,
    pub(super) endpoint: Endpoint,
}

impl Card {
    pub(super) fn address(&self) -> Address {
        Address {
            gid: self.endpoint.gid,
            qp_num: self.endpoint.qp_num,
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut bytes = Vec::from(MAGIC);
        bytes.extend([VERSION, 0, 0, 0]);
        bytes.extend(self.max_message.to_be_bytes());
        let record = Peer {
            endpoint: self.endpoint.clone(),
            regions: Vec::new(),
        };
        bytes.extend(record.encode()?);
        Ok(bytes)
    }

    /// Reads one. Never panics, whatever the bytes are.
    pub(super) fn decode(bytes: &[u8]) -> Result<Card, PeerError> {
        let not_a_card = || PeerError::NotACard {
            len: bytes.len(),
            begin: bytes[..bytes.len().min(4)].to_vec(),
        };
        let (head, record) = bytes.split_first_chunk::<HEAD>().ok_or_else(not_a_card)?;
        let [m0, m1, m2, m3, version, _, _, _, l0, l1, l2, l3] = *head;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(not_a_card());
        }
        if version != VERSION {
            return Err(PeerError::Version { version });
        }
        Ok(Card {
            max_message: u32::from_be_bytes([l0, l1, l2, l3]),
            endpoint: Peer::decode(record)?.endpoint,
        })
    }
}
