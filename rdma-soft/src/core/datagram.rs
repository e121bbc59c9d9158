//! Datagrams: the receiving end of UD.

use std::net::IpAddr;

use rdma_core_sys::{ibv_wc_opcode, ibv_wc_status};

use super::counters::{Mishap, Refused};
use super::engine::Path;
use super::event::Sender;
use super::qp::{Qp, RecvEnd, Shared};
use super::transmit::{Payload, scatter};
use crate::wire::{Bth, Deth, Packet, icrc};

/// Bytes in front of a datagram's payload in its receive buffer.
pub const GRH_LEN: usize = 40;

impl Qp {
    /// Takes a datagram. Nobody is told of one that cannot be delivered; each reason has its counter.
    ///
    /// One that is longer than its receive ends that receive with `IBV_WC_LOC_LEN_ERR`, and the Queue
    /// Pair goes on: 40 bytes that were forgotten are found out at once, and do not block the queue.
    pub fn handle_datagram(
        &mut self,
        shared: &mut Shared,
        path: &Path,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<(), Refused> {
        let deth = packet.deth.ok_or(Refused::BadHeader)?;
        if deth.qkey != self.attr.qkey {
            shared.counters.note(Mishap::Qkey {
                qp_num: self.num,
                from: deth.src_qp,
                qkey: deth.qkey,
                own: self.attr.qkey,
            });
            return Err(Refused::BadQkey);
        }
        let Some(pd) = self.init.pd else {
            return Err(Refused::QpState);
        };
        let recv = self.take_receive(shared, self.init.srq);
        let recv = recv.ok_or(Refused::NoReceive)?;
        let sges = recv.wqe.sges.as_slice();
        let grh = grh(path, packet, payload.len());
        let stored = scatter(&shared.keys, pd, sges, 0, &Payload::Bytes(&grh))
            .and_then(|()| scatter(&shared.keys, pd, sges, GRH_LEN as u64, payload));
        if let Err(status) = stored {
            // The completion of a failure has no length; the mishap has.
            let byte_len = (GRH_LEN + payload.len()) as u32;
            let end = RecvEnd {
                byte_len,
                ..RecvEnd::error(status)
            };
            self.end_receive(shared, end);
            if status == ibv_wc_status::IBV_WC_LOC_LEN_ERR {
                return Err(Refused::TooLong);
            }
            self.fail_locally(shared);
            return Err(Refused::LocalError);
        }
        shared.counters.rx_payload_bytes += payload.len() as u64;
        let end = RecvEnd {
            status: ibv_wc_status::IBV_WC_SUCCESS,
            opcode: ibv_wc_opcode::IBV_WC_RECV,
            byte_len: (GRH_LEN + payload.len()) as u32,
            imm: packet.imm,
            invalidated: None,
            sender: Some(Sender {
                qp_num: deth.src_qp,
                sl: path.traffic_class >> 5,
                pkey_index: self.attr.pkey_index,
            }),
            solicited: packet.bth.solicited,
        };
        self.end_receive(shared, end);
        Ok(())
    }
}

/// What stands in for a global route header on RoCE v2: the IPv6 header, or 20 bytes of zeros and the
/// IPv4 header (RoCE v2 annex; rxe: `rxe_resp.c`, `union rdma_network_hdr`).
fn grh(path: &Path, packet: &Packet, payload: usize) -> [u8; GRH_LEN] {
    const UDP: u8 = 17;
    const UDP_HEADER: usize = 8;
    let headers = UDP_HEADER + Bth::LEN + Deth::LEN + packet.imm.map_or(0, |_| 4);
    let body = headers + payload + usize::from(packet.bth.pad) + icrc::LEN;
    let mut out = [0; GRH_LEN];
    match (path.src, path.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            const DONT_FRAGMENT: u8 = 0x40;
            let ip = &mut out[GRH_LEN - 20..];
            let [len_high, len_low] = ((20 + body) as u16).to_be_bytes();
            ip[..2].copy_from_slice(&[0x45, path.traffic_class]);
            ip[2..4].copy_from_slice(&[len_high, len_low]);
            ip[6] = DONT_FRAGMENT;
            ip[8..10].copy_from_slice(&[path.hop_limit, UDP]);
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (src, dst) => {
            let v6 = |addr: IpAddr| match addr {
                IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
                IpAddr::V6(a) => a.octets(),
            };
            let first = 6 << 28 | u32::from(path.traffic_class) << 20 | path.flow_label & 0xf_ffff;
            out[..4].copy_from_slice(&first.to_be_bytes());
            out[4..6].copy_from_slice(&(body as u16).to_be_bytes());
            out[6..8].copy_from_slice(&[UDP, path.hop_limit]);
            out[8..24].copy_from_slice(&v6(src));
            out[24..].copy_from_slice(&v6(dst));
        }
    }
    out
}

/// The Internet checksum of a header whose own field is still zero (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2);
    let mut sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
