//! Packets on their way out, payload by reference, and payload on its way in.

use std::net::IpAddr;

use rdma_core_sys::ibv_wc_status;

use super::event::PdId;
use super::keys::{Asker, Denied, Keys};
use super::wqe::{Data, Sge};
use crate::mem::{OutOfRange, Region};
use crate::wire::Packet;

/// Bytes of payload of the largest packet.
pub const MAX_PAYLOAD: usize = 4096;

/// Room that [`Engine::emit`](super::Engine::emit) needs at most.
pub const MAX_FRAME: usize = Packet::MAX_HEADER_LEN + MAX_PAYLOAD + 4;

/// A packet to be sent. Its payload is still where the application has it.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// The port that it leaves by, from 1.
    pub port: u8,
    /// The GID table entry that it is sent from.
    pub sgid_index: u8,
    /// Own address.
    pub src: IpAddr,
    /// The peer's address.
    pub dst: IpAddr,
    /// Traffic class for the IP header.
    pub traffic_class: u8,
    /// Hop limit for the IP header.
    pub hop_limit: u8,
    /// Flow label for an IPv6 header.
    pub flow_label: u32,
    /// The Queue Pair that sends it.
    pub qp_num: u32,
    /// All headers.
    pub packet: Packet,
    /// Bytes of payload, without padding.
    pub payload_len: u32,
    /// Where the payload is.
    pub(super) source: Source,
    /// A request that nobody acknowledges and that is done when this packet is out: its Queue Pair
    /// and its number there.
    pub(super) completes: Option<(u32, u64)>,
    /// Somebody waits for the acknowledgement: an application for the completion, or packets for the window. One that is not
    /// awaited may be looked for later.
    pub awaited: bool,
}

impl Transmit {
    /// Bytes that [`Engine::emit`](super::Engine::emit) writes for it: headers, payload and padding.
    pub fn frame_len(&self) -> usize {
        let padded = self.payload_len as usize + usize::from(self.packet.bth.pad);
        self.packet.header_len() + padded
    }

    /// True if it goes to a multicast group.
    pub fn is_multicast(&self) -> bool {
        self.dst.is_multicast()
    }
}

/// Where a packet's payload is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// There is none.
    None,
    /// Bytes `offset..` of the send request with this number in that Queue Pair.
    Request {
        qp_num: u32,
        order: u64,
        offset: u64,
    },
    /// Remote-readable memory, for a READ response of that Queue Pair to that domain.
    /// `again`: the response was given, or begun, before.
    Read {
        by: Asker,
        rkey: u32,
        va: u64,
        again: bool,
    },
}

/// A piece of registered memory.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub region: Region,
    pub offset: u64,
    pub len: usize,
}

/// Payload that came in: bytes of a frame, memory of a Queue Pair of the same node, or a part of memory that
/// is shared with the sender.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    Bytes(&'a [u8]),
    Pieces(&'a [Piece]),
    Part {
        of: &'a Region,
        offset: u64,
        len: usize,
    },
}

impl Payload<'_> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Bytes(b) => b.len(),
            Payload::Pieces(p) => p.iter().map(|p| p.len).sum(),
            Payload::Part { len, .. } => *len,
        }
    }

    /// Copies `len` bytes from `from` on to `at` in `to`.
    #[inline]
    pub fn copy_to(
        &self,
        mut from: usize,
        to: &Region,
        mut at: u64,
        mut len: usize,
    ) -> Result<(), OutOfRange> {
        match self {
            Payload::Bytes(b) => to.write(
                at,
                b.get(from..).and_then(|b| b.get(..len)).ok_or(OutOfRange)?,
            ),
            Payload::Part { len: all, .. } if len > all.saturating_sub(from) => Err(OutOfRange),
            Payload::Part { of, offset, .. } => of.copy_to(offset + from as u64, to, at, len),
            Payload::Pieces(pieces) => {
                for p in *pieces {
                    if from >= p.len {
                        from -= p.len;
                        continue;
                    }
                    let n = len.min(p.len - from);
                    p.region.copy_to(p.offset + from as u64, to, at, n)?;
                    (from, at, len) = (0, at + n as u64, len - n);
                    if len == 0 {
                        break;
                    }
                }
                if len == 0 { Ok(()) } else { Err(OutOfRange) }
            }
        }
    }
}

/// Visits the parts of `sges` that hold bytes `offset..offset + len`: `f(entry, start in entry,
/// bytes)`. Stops at the end of the list; gives the bytes visited.
fn for_each_part<E>(
    sges: &[Sge],
    mut offset: u64,
    mut len: usize,
    mut f: impl FnMut(&Sge, u64, usize) -> Result<(), E>,
) -> Result<usize, E> {
    let mut visited = 0;
    for sge in sges {
        if len == 0 {
            break;
        }
        let size = u64::from(sge.len);
        if offset >= size {
            offset -= size;
            continue;
        }
        let n = usize::try_from(size - offset)
            .unwrap_or(usize::MAX)
            .min(len);
        f(sge, offset, n)?;
        (offset, len, visited) = (0, len - n, visited + n);
    }
    Ok(visited)
}

impl From<OutOfRange> for Denied {
    fn from(_: OutOfRange) -> Denied {
        Denied
    }
}

/// Checks the keys of every non-empty entry.
#[inline]
pub(super) fn check_local(keys: &Keys, pd: PdId, sges: &[Sge], write: bool) -> Result<(), Denied> {
    sges.iter()
        .filter(|s| s.len > 0)
        .try_for_each(|s| keys.local(pd, s, write).map(|_| ()))
}

/// Fills `out` from byte `offset` of a request's data.
pub(super) fn gather(
    keys: &Keys,
    pd: PdId,
    data: &Data,
    offset: u64,
    out: &mut [u8],
) -> Result<(), Denied> {
    match data {
        Data::Inline(d) => {
            let start = usize::try_from(offset).map_err(|_| Denied)?;
            let from = d
                .as_slice()
                .get(start..)
                .and_then(|d| d.get(..out.len()))
                .ok_or(Denied)?;
            out.copy_from_slice(from);
            Ok(())
        }
        Data::Sges(sges) => {
            let mut at = 0;
            let len = out.len();
            let n = for_each_part(sges.as_slice(), offset, len, |sge, start, n| {
                let (region, base) = keys.local(pd, sge, false)?;
                region.read(base + start, &mut out[at..at + n])?;
                at += n;
                Ok::<(), Denied>(())
            })?;
            if n == len { Ok(()) } else { Err(Denied) }
        }
    }
}

/// The memory behind bytes `offset..offset + len` of a list.
pub(super) fn pieces(
    keys: &Keys,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    len: usize,
    out: &mut Vec<Piece>,
) -> Result<(), Denied> {
    let n = for_each_part(sges, offset, len, |sge, start, n| {
        let (region, base) = keys.local(pd, sge, false)?;
        out.push(Piece {
            region: region.clone(),
            offset: base + start,
            len: n,
        });
        Ok::<(), Denied>(())
    })?;
    if n == len { Ok(()) } else { Err(Denied) }
}

/// Stores `payload` at byte `offset` of a list; `IBV_WC_LOC_LEN_ERR` if it does not fit,
/// `IBV_WC_LOC_PROT_ERR` if a key does not open its memory.
#[inline]
pub(super) fn scatter(
    keys: &Keys,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    payload: &Payload<'_>,
) -> Result<(), ibv_wc_status> {
    let len = payload.len();
    let mut at = 0;
    let n = for_each_part(sges, offset, len, |sge, start, n| {
        let (region, base) = keys.local(pd, sge, true)?;
        payload.copy_to(at, region, base + start, n)?;
        at += n;
        Ok::<(), Denied>(())
    })
    .map_err(|Denied| ibv_wc_status::IBV_WC_LOC_PROT_ERR)?;
    if n == len {
        Ok(())
    } else {
        Err(ibv_wc_status::IBV_WC_LOC_LEN_ERR)
    }
}
