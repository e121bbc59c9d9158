//! One end of a connection to be, as bytes that C hands on.

use rdma_qp::{Endpoint, Peer};

use crate::fault::*;

/// Length of the record of an end without regions.
const RECORD: usize = Peer::encoded_len(0);

/// One end of a connection to be: give all its bytes to the peer, by whatever you have. They mean the same on every machine.
///
/// It is made by qp_endpoint_of() or qp_pair_endpoint(), with a PSN of its own, and good for one connection.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_endpoint {
    /// What the peer reads.
    pub record: [u8; 64],
    /// What only this end reads.
    pub local: [u8; 16],
}

const _: () = assert!(RECORD == 64);

/// The first byte of `local` where it is filled.
const LOCAL: u8 = 1;

impl qp_endpoint {
    /// This end, with the place of its GID and of its partition key.
    pub(crate) fn of_this(
        here: &Endpoint,
        gid_index: u32,
        pkey_index: u16,
    ) -> Result<qp_endpoint, Fault> {
        let mut made = qp_endpoint::of_peer(here)?;
        made.local[0] = LOCAL;
        made.local[1..5].copy_from_slice(&gid_index.to_be_bytes());
        made.local[5..7].copy_from_slice(&pkey_index.to_be_bytes());
        Ok(made)
    }

    /// The other end.
    pub(crate) fn of_peer(there: &Endpoint) -> Result<qp_endpoint, Fault> {
        let peer = Peer {
            endpoint: there.clone(),
            regions: Vec::new(),
        };
        let mut made = qp_endpoint {
            record: [0; 64],
            local: [0; 16],
        };
        made.record.copy_from_slice(&peer.encode()?);
        Ok(made)
    }

    /// What the record says.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, Fault> {
        Ok(self.peer()?.endpoint)
    }

    /// The record, as the safe layer takes it.
    pub(crate) fn peer(&self) -> Result<Peer, Fault> {
        Ok(Peer::decode(&self.record)?)
    }

    /// Of this end: the place of its GID, and of its partition key.
    pub(crate) fn places(&self) -> Result<(u32, u16), Fault> {
        let [mark, g0, g1, g2, g3, p0, p1, ..] = self.local;
        if mark != LOCAL {
            let text = "this is not an endpoint of this end, but one that a peer told: `here` is what qp_endpoint_of() made";
            return Err(Fault::new(QP_CODE_RECORD, libc::EINVAL, text));
        }
        Ok((
            u32::from_be_bytes([g0, g1, g2, g3]),
            u16::from_be_bytes([p0, p1]),
        ))
    }
}
