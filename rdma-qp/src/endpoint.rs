//! What two ends tell each other before they connect, and how it is encoded.
//!
//! # Encoding, version 1
//!
//! All integers are in network order. The length in the header is that of the whole record, so that a reader knows
//! at once whether it has all of it.
//!
//! ```text
//! offset  size  field
//!      0     4  magic "RQEP"
//!      4     2  version, 1
//!      6     2  length of the record in bytes, 64 + 24 x regions
//!      8     4  QP number
//!     12     4  PSN that the sender of the record will start from
//!     16    16  GID
//!     32     2  LID (0 on Ethernet)
//!     34     1  link layer: 0 unspecified, 1 InfiniBand, 2 Ethernet (as ibv_port_attr spells it)
//!     35     1  largest path MTU, as a verbs code 1..=5
//!     36     1  READs and atomics that it can have under way (initiator depth)
//!     37     1  READs and atomics that it can serve at a time (responder depth)
//!     38     1  traffic class
//!     39     1  service level
//!     40     4  flow label, 20 bits
//!     44     1  hop limit
//!     45     1  port number, counted from 1
//!     46     2  P_Key
//!     48     1  flags: 1 the Q_Key is there (UD); the others zero
//!     49     3  zero
//!     52     4  Q_Key, high bit zero; zero where it is not there
//!     56     6  zero
//!     62     2  number of regions
//! then per region
//!      0     8  address
//!      8     8  length in bytes
//!     16     4  rkey
//!     20     4  zero
//! ```

use serde::{Deserialize, Serialize};

use crate::gid::Gid;
use crate::qkey::QKey;
use crate::units::{PathMtu, Psn};

const MAGIC: [u8; 4] = *b"RQEP";
const VERSION: u16 = 1;
const HEAD: usize = 64;
const REGION: usize = 24;
/// Flag: the record has a Q_Key.
const HAS_QKEY: u8 = 1;

/// Most regions that one record can carry.
pub const MAX_REGIONS: usize = 1024;

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Not known; old drivers mean InfiniBand.
    #[serde(other)]
    Unspecified,
}

impl LinkLayer {
    pub(crate) fn from_code(code: u8) -> LinkLayer {
        match code {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        }
    }

    fn code(self) -> u8 {
        match self {
            LinkLayer::Unspecified => 0,
            LinkLayer::InfiniBand => 1,
            LinkLayer::Ethernet => 2,
        }
    }
}

/// One end of a connection to be: everything that its peer needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// QP number, 24 bits.
    pub qp_num: u32,
    /// First PSN that this end will send.
    pub psn: Psn,
    /// GID by which it is reached.
    pub gid: Gid,
    /// LID by which it is reached; 0 on Ethernet.
    pub lid: u16,
    /// Link layer of its port.
    pub link_layer: LinkLayer,
    /// Largest path MTU of its port at present.
    pub mtu: PathMtu,
    /// READs and atomics that it can have under way at a time; 0 for an XRC target.
    pub initiator_depth: u8,
    /// READs and atomics that it can serve at a time; 0 for an XRC initiator.
    pub responder_depth: u8,
    /// Traffic class that it will send with.
    pub traffic_class: u8,
    /// Service level that it will send with.
    pub service_level: u8,
    /// Flow label that it will send with, 20 bits.
    pub flow_label: u32,
    /// Hop limit that it will send with.
    pub hop_limit: u8,
    /// Its port number, counted from 1.
    pub port: u8,
    /// The partition key that it sends with.
    pub pkey: u16,
    /// The Q_Key that a datagram to it must carry; only UD QPs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qkey: Option<QKey>,
}

/// A memory region of the peer, as the peer described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    /// Address of its first byte, in the peer's process.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Its remote key.
    pub rkey: u32,
}

impl RemoteRegion {
    /// Length of its serialised form, in bytes.
    pub const LEN: usize = REGION;

    /// Its serialised form, the one that endpoint records carry too: address, length, rkey, four zero bytes, all in network
    /// order. Send this, and neither address nor key can arrive in the wrong byte order.
    ///
    /// ```
    /// use rdma_qp::RemoteRegion;
    /// let region = RemoteRegion { addr: 0x7f00_1234_5000, len: 4096, rkey: 0x0102_0304 };
    /// let bytes = region.to_bytes();
    /// assert_eq!(bytes[16..20], [1, 2, 3, 4]);
    /// assert_eq!(RemoteRegion::from_bytes(bytes), region);
    /// ```
    pub fn to_bytes(self) -> [u8; RemoteRegion::LEN] {
        let mut bytes = [0; RemoteRegion::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// The region of that serialised form. The last four bytes are not looked at: they are kept for later.
    pub fn from_bytes(bytes: [u8; RemoteRegion::LEN]) -> RemoteRegion {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            l0,
            l1,
            l2,
            l3,
            l4,
            l5,
            l6,
            l7,
            k0,
            k1,
            k2,
            k3,
            ..,
        ] = bytes;
        RemoteRegion {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u64::from_be_bytes([l0, l1, l2, l3, l4, l5, l6, l7]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
        }
    }

    /// The place `offset` bytes into the region. Whether an operation fits behind it is checked when it is posted.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr {
            addr: self.addr.wrapping_add(offset),
            rkey: self.rkey,
            room: self.len.saturating_sub(offset),
        }
    }
}

/// A place in a region of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address in the peer's process.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes from here to the end of the region.
    pub room: u64,
}

/// The peer: its endpoint and the regions that it offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its end of the connection.
    pub endpoint: Endpoint,
    /// The regions that it offers, in its own order.
    pub regions: Vec<RemoteRegion>,
}

/// The peer offered fewer regions than asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer offered {offered} region(s); there is no number {index} (they are counted from 0)"
)]
pub struct NoSuchRegion {
    /// The region that was asked for.
    pub index: usize,
    /// Number of regions offered.
    pub offered: usize,
}

impl Peer {
    /// Region `index`, counted from 0.
    ///
    /// # Errors
    /// The peer offered fewer.
    pub fn region(&self, index: usize) -> Result<RemoteRegion, NoSuchRegion> {
        self.regions.get(index).copied().ok_or(NoSuchRegion {
            index,
            offered: self.regions.len(),
        })
    }
}

/// Bytes that are no endpoint record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Shorter than a record, or than the record says.
    #[error("an endpoint record of {needed} bytes was announced, but there are only {got}")]
    TooShort {
        /// Bytes needed.
        needed: usize,
        /// Bytes at hand.
        got: usize,
    },
    /// More bytes than the record says.
    #[error(
        "an endpoint record of {needed} bytes is followed by {extra} bytes that do not belong to it"
    )]
    TooLong {
        /// Length of the record.
        needed: usize,
        /// Bytes after it.
        extra: usize,
    },
    /// The first four bytes are not those of a record: the peer speaks something else.
    #[error("this is no endpoint record: it begins with {0:02x?} instead of the bytes of \"RQEP\"")]
    NotARecord([u8; 4]),
    /// A version that this library does not know.
    #[error(
        "the peer's endpoint record has version {0}; this library reads version 1: use the same release on both ends"
    )]
    Version(u16),
    /// A field has a value that it cannot have.
    #[error("the peer's endpoint record has {field} {value:#x}, which is not possible")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// More regions than a record may carry.
    #[error(
        "a record can carry {MAX_REGIONS} regions, not {0}: exchange the others over the connection itself"
    )]
    TooManyRegions(usize),
}

/// Writes integers in network order.
struct Writer(Vec<u8>);

impl Writer {
    fn put(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.extend_from_slice(bytes.as_ref());
    }
}

/// Takes integers off the front of a slice whose length was checked.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.0.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.0 = rest;
                Ok(*head)
            }
            None => Err(DecodeError::TooShort {
                needed: N,
                got: self.0.len(),
            }),
        }
    }
    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take::<1>().map(|[b]| b)
    }
    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(u16::from_be_bytes)
    }
    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_be_bytes)
    }
}

/// `value`, unless it is above `max`.
fn bounded(field: &'static str, value: u32, max: u32) -> Result<u32, DecodeError> {
    if value <= max {
        Ok(value)
    } else {
        Err(DecodeError::Field {
            field,
            value: value.into(),
        })
    }
}

impl Peer {
    /// Length of a record with that many regions, in bytes: what the other end receives into.
    pub const fn encoded_len(regions: usize) -> usize {
        HEAD + regions * REGION
    }

    /// The record of this end, to be read by [`Peer::decode`] at the other.
    ///
    /// # Errors
    /// More than [`MAX_REGIONS`] regions.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        encode(&self.endpoint, &self.regions)
    }

    /// Reads a record. Never panics, whatever the bytes are.
    ///
    /// # Errors
    /// The bytes are no record of a version that is known here, or a field has an impossible value.
    pub fn decode(bytes: &[u8]) -> Result<Peer, DecodeError> {
        let mut r = Reader(bytes);
        let short = DecodeError::TooShort {
            needed: HEAD,
            got: bytes.len(),
        };
        let magic = r.take::<4>().map_err(|_| short.clone())?;
        if magic != MAGIC {
            return Err(DecodeError::NotARecord(magic));
        }
        let version = r.u16().map_err(|_| short.clone())?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let length = usize::from(r.u16().map_err(|_| short.clone())?);
        if bytes.len() < length.max(HEAD) {
            return Err(DecodeError::TooShort {
                needed: length.max(HEAD),
                got: bytes.len(),
            });
        }
        if bytes.len() > length {
            return Err(DecodeError::TooLong {
                needed: length,
                extra: bytes.len() - length,
            });
        }
        let endpoint = read_endpoint(&mut r)?;
        r.take::<6>()?;
        let count = usize::from(r.u16()?);
        if count > MAX_REGIONS {
            return Err(DecodeError::TooManyRegions(count));
        }
        if length != Peer::encoded_len(count) {
            return Err(DecodeError::Field {
                field: "length",
                value: length as u64,
            });
        }
        let mut regions = Vec::with_capacity(count);
        for _ in 0..count {
            regions.push(RemoteRegion::from_bytes(r.take()?));
        }
        Ok(Peer { endpoint, regions })
    }
}

fn read_endpoint(r: &mut Reader<'_>) -> Result<Endpoint, DecodeError> {
    Ok(Endpoint {
        qp_num: bounded("QP number", r.u32()?, 0x00ff_ffff)?,
        psn: {
            let psn = r.u32()?;
            Psn::new(psn).map_err(|_| DecodeError::Field {
                field: "PSN",
                value: psn.into(),
            })?
        },
        gid: Gid::new(r.take()?),
        lid: r.u16()?,
        link_layer: LinkLayer::from_code(bounded("link layer", r.u8()?.into(), 2)? as u8),
        mtu: {
            let code = r.u8()?;
            PathMtu::from_code(code.into()).ok_or(DecodeError::Field {
                field: "MTU code",
                value: code.into(),
            })?
        },
        initiator_depth: r.u8()?,
        responder_depth: r.u8()?,
        traffic_class: r.u8()?,
        service_level: bounded("service level", r.u8()?.into(), 15)? as u8,
        flow_label: bounded("flow label", r.u32()?, 0xf_ffff)?,
        hop_limit: r.u8()?,
        port: r.u8()?,
        pkey: r.u16()?,
        qkey: read_qkey(r)?,
    })
}

fn read_qkey(r: &mut Reader<'_>) -> Result<Option<QKey>, DecodeError> {
    let [flags, ..] = r.take::<4>()?;
    let value = r.u32()?;
    if flags & HAS_QKEY == 0 {
        return Ok(None);
    }
    let refused = |_| DecodeError::Field {
        field: "Q_Key",
        value: value.into(),
    };
    QKey::new(value).map(Some).map_err(refused)
}

/// The record of `endpoint` with `regions`.
pub(crate) fn encode(
    endpoint: &Endpoint,
    regions: &[RemoteRegion],
) -> Result<Vec<u8>, DecodeError> {
    if regions.len() > MAX_REGIONS {
        return Err(DecodeError::TooManyRegions(regions.len()));
    }
    let length = Peer::encoded_len(regions.len());
    let mut w = Writer(Vec::with_capacity(length));
    w.put(MAGIC);
    w.put(VERSION.to_be_bytes());
    w.put((length as u16).to_be_bytes());
    w.put(endpoint.qp_num.to_be_bytes());
    w.put(endpoint.psn.get().to_be_bytes());
    w.put(endpoint.gid.bytes());
    w.put(endpoint.lid.to_be_bytes());
    w.put([
        endpoint.link_layer.code(),
        endpoint.mtu.code() as u8,
        endpoint.initiator_depth,
        endpoint.responder_depth,
        endpoint.traffic_class,
        endpoint.service_level,
    ]);
    w.put(endpoint.flow_label.to_be_bytes());
    w.put([endpoint.hop_limit, endpoint.port]);
    w.put(endpoint.pkey.to_be_bytes());
    let flags = if endpoint.qkey.is_some() { HAS_QKEY } else { 0 };
    w.put([flags, 0, 0, 0]);
    w.put(endpoint.qkey.map_or(0, QKey::get).to_be_bytes());
    w.put([0; 6]);
    w.put((regions.len() as u16).to_be_bytes());
    for region in regions {
        w.put(region.to_bytes());
    }
    Ok(w.0)
}

#[cfg(test)]
mod tests;
