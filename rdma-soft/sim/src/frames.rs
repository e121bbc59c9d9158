//! Packets become frames, and frames packets, as between the running device and its sockets.

use std::net::SocketAddr;

use rdma_soft::core::time::Instant;
use rdma_soft::core::{Engine, Path, Refused, Transmit};
use rdma_soft::link::{Frame, IngressError, IpFields, IpIds, check};
use rdma_soft::wire::ROCE_PORT;
use rdma_soft::wire::icrc::{Flow, icrc};

/// Makes a packet a frame, as `ip_id` of its sender; `None` if there is nothing to send. `buf` has room for one.
pub fn make(engine: &mut Engine, t: &Transmit, ip_id: u16, buf: &mut [u8]) -> Option<Frame> {
    let len = engine.emit(t, buf)?;
    let src = SocketAddr::new(t.src, 0xc000 | (t.qp_num as u16 & 0x3fff));
    let dst = SocketAddr::new(t.dst, ROCE_PORT);
    let flow = Flow {
        ip_id,
        ..Flow::new(src, dst)
    };
    let crc = icrc(&flow, &buf[..len]);
    buf[len..len + 4].copy_from_slice(&crc.to_le_bytes());
    let ip = IpFields {
        traffic_class: t.traffic_class,
        hop_limit: t.hop_limit,
        flow_label: t.flow_label,
    };
    Some(Frame {
        src,
        dst,
        ip,
        bytes: buf[..len + 4].to_vec(),
    })
}

/// Gives a frame to an engine; `place` is its place among those that came together. Gives the Queue Pair that it was for, if it
/// was whole.
pub fn give(engine: &mut Engine, now: Instant, frame: &Frame, place: u16) -> Option<u32> {
    match check(frame.src, frame.dst, &frame.bytes, place, IpIds::Own) {
        Ok((packet, payload)) => {
            let path = Path {
                traffic_class: frame.ip.traffic_class,
                hop_limit: frame.ip.hop_limit,
                flow_label: frame.ip.flow_label,
                ..Path::new(1, frame.src.ip(), frame.dst.ip())
            };
            engine.handle_packet(now, &path, &packet, payload);
            Some(packet.bth.dest_qp)
        }
        Err(why) => {
            engine.refuse(match why {
                IngressError::TooShort(_) => Refused::TooShort,
                IngressError::BadIcrc => Refused::BadIcrc,
                IngressError::UnknownOpcode(_) => Refused::UnknownOpcode,
                IngressError::BadVersion(_) | IngressError::BadHeader(_) => Refused::BadHeader,
            });
            None
        }
    }
}
