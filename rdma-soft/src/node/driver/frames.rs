//! The ways of frames: in from the link, out to it, and to groups.

use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::{Driver, Local, Waiting};
use crate::core::time::Instant;
use crate::core::{CallError, Path, Refused, Transmit};
use crate::link::{
    Direction, Frame, IngressError, IpFields, LinkError, Pcap, Received, Sent, check,
};
use crate::wire::ROCE_PORT;
use crate::wire::icrc::{self, Flow};

impl Driver {
    /// Takes up to `most` datagrams from the sockets; gives their number.
    pub(super) fn receive(&mut self, now: Instant, most: u32) -> u32 {
        let mut count = 0;
        let sockets = self.link.receivers();
        // Each time another socket is first: a flood of one address leaves room for the others.
        self.first_socket = (self.first_socket + 1) % sockets.max(1);
        for at in (self.first_socket..sockets).chain(0..self.first_socket) {
            while count < most {
                let Some(received) = self.link.recv(at, &mut self.rx) else {
                    break;
                };
                count += 1;
                self.take_posts();
                self.take_in(now, at, &received);
            }
        }
        count
    }

    /// Takes in what receiving socket number `at` gave.
    fn take_in(&mut self, now: Instant, at: usize, received: &Received) {
        let Some(datagram) = self.rx.get(..received.len) else {
            return;
        };
        let bound = self.link.bound(at);
        let local = self.locals[bound.at];
        self.counters.rx_datagrams += 1;
        if !local.up {
            self.counters.rx_port_down += 1;
            return;
        }
        let (src, dst) = (received.src, bound.addr);
        let of_port = |l: &Local| l.port == local.port && l.addr.ip() == src.ip();
        if dst.ip().is_multicast() && self.locals.iter().any(of_port) {
            self.counters.rx_own_multicast += 1;
            return;
        }
        record(
            &mut self.pcap,
            Direction::Inbound,
            src,
            dst,
            received.ip,
            datagram,
        );
        if received.truncated {
            self.engine.refuse(Refused::BadHeader);
            return;
        }
        match check(src, dst, datagram, self.ids) {
            Ok((packet, payload)) => {
                let path = Path {
                    traffic_class: received.ip.traffic_class,
                    hop_limit: received.ip.hop_limit,
                    flow_label: received.ip.flow_label,
                    ..Path::new(local.port, src.ip(), dst.ip())
                };
                self.engine.handle_packet(now, &path, &packet, payload);
            }
            Err(why) => self.engine.refuse(refusal(why)),
        }
    }

    /// Sends up to `most` packets; gives their number.
    pub(super) fn transmit(&mut self, now: Instant, most: u32) -> u32 {
        if let Some(Waiting { from, frame }) = self.waiting.take() {
            self.send_frame(from, frame);
        }
        let mut count = 0;
        while count < most && self.waiting.is_none() {
            // Frames whose delay is over go before new ones.
            if let Some(frame) = self.faults.as_mut().and_then(|f| f.poll(now)) {
                count += 1;
                if let Some(from) = self.socket_of(frame.src.ip()) {
                    self.send_frame(from, frame);
                }
                continue;
            }
            let Some(mut packet) = self.engine.poll_transmit(now) else {
                break;
            };
            count += 1;
            self.fill_in(&mut packet);
            let by_bytes = self.faults.is_some() || self.pcap.is_some();
            if !by_bytes && self.is_ours(packet.src) && self.is_ours(packet.dst) {
                self.counters.self_packets += 1;
                self.take_posts();
                self.engine.loopback(now, &packet);
            } else {
                self.send_packet(now, &packet);
            }
        }
        count
    }

    /// An address of this node, of a port that is up.
    fn is_ours(&self, addr: IpAddr) -> bool {
        self.locals.iter().any(|l| l.up && l.addr.ip() == addr)
    }

    /// Which socket sends from `addr`.
    fn socket_of(&self, addr: IpAddr) -> Option<usize> {
        self.locals.iter().position(|l| l.addr.ip() == addr)
    }

    /// What an address vector leaves open.
    fn fill_in(&self, packet: &mut Transmit) {
        if packet.traffic_class == 0 {
            packet.traffic_class = self.traffic_class;
        }
        // A socket sends nothing with a hop limit of 0, which would go nowhere.
        packet.hop_limit = packet.hop_limit.max(1);
    }

    /// Makes a packet a datagram, and sends it or hands it to the faults.
    fn send_packet(&mut self, now: Instant, packet: &Transmit) {
        if packet.is_multicast() && self.is_ours(packet.src) {
            // Members that are of this node get it first: once it is emitted, its request may be done
            // and its memory gone. The kernel loops it back to them, too, but what comes from an own
            // address is ignored then.
            self.take_posts();
            self.engine.loopback(now, packet);
        }
        let mut tx = std::mem::take(&mut self.tx);
        if let Some(len) = self.engine.emit(packet, &mut tx) {
            self.send_emitted(now, packet, &mut tx, len);
        }
        self.tx = tx;
    }

    /// Sends what the engine wrote to the first `len` bytes of `tx`, which has room for the ICRC.
    fn send_emitted(&mut self, now: Instant, packet: &Transmit, tx: &mut [u8], len: usize) {
        let from = (self.socket_of(packet.src)).filter(|&at| self.locals[at].up);
        let Some(from) = from else {
            self.counters.tx_no_way += 1;
            return;
        };
        let ip = IpFields {
            traffic_class: packet.traffic_class,
            hop_limit: packet.hop_limit,
            flow_label: packet.flow_label,
        };
        let bth = &packet.packet.bth;
        let port = (self.source_port).of(packet.flow_label, packet.qp_num, bth.dest_qp);
        let src = self.link.source(from, port);
        let dst = SocketAddr::new(packet.dst, ROCE_PORT);
        let icrc = icrc::icrc(&Flow::new(src, dst), &tx[..len]);
        tx[len..len + icrc::LEN].copy_from_slice(&icrc.to_le_bytes());
        let datagram = &tx[..len + icrc::LEN];
        if self.faults.is_none() && self.send(from, src, dst, ip, datagram) {
            return;
        }
        let mut bytes = self.pool.take();
        bytes.extend_from_slice(datagram);
        let frame = Frame {
            src,
            dst,
            ip,
            bytes,
        };
        match &mut self.faults {
            Some(layer) => layer.offer(now, frame),
            None => self.waiting = Some(Waiting { from, frame }),
        }
    }

    /// Sends a frame, or keeps it until the socket has room.
    fn send_frame(&mut self, from: usize, frame: Frame) {
        if self.send(from, frame.src, frame.dst, frame.ip, &frame.bytes) {
            self.pool.give(frame.bytes);
        } else {
            self.waiting = Some(Waiting { from, frame });
        }
    }

    /// Hands a datagram to the system; false if the socket has no room for it at the moment.
    fn send(
        &mut self,
        from: usize,
        src: SocketAddr,
        dst: SocketAddr,
        ip: IpFields,
        datagram: &[u8],
    ) -> bool {
        match self.link.send(from, src.port(), dst, ip, datagram) {
            Sent::Later => return false,
            Sent::Done => {
                self.counters.tx_datagrams += 1;
                record(&mut self.pcap, Direction::Outbound, src, dst, ip, datagram);
            }
            Sent::Dropped(_) => self.counters.tx_refused += 1,
        }
        true
    }

    /// Listens to a multicast group from now on, at every port.
    pub(in crate::node) fn join_group(&mut self, group: IpAddr) -> Result<(), CallError> {
        let ports: std::collections::BTreeSet<u8> = self.locals.iter().map(|l| l.port).collect();
        for port in ports {
            let of_port = |&at: &usize| self.locals[at].port == port;
            let at: Vec<usize> = (0..self.locals.len()).filter(of_port).collect();
            if let Err(error) = self.link.join_group(group, &at) {
                self.link.leave_group(group);
                return Err(refused_join(&error));
            }
        }
        Ok(())
    }

    /// Listens no more to a multicast group.
    pub(in crate::node) fn leave_group(&mut self, group: IpAddr) {
        self.link.leave_group(group);
    }
}

fn refused_join(error: &LinkError) -> CallError {
    let errno = match error {
        LinkError::System { source, .. } => Errno::from_io_error(source),
        _ => None,
    };
    CallError::new(errno.unwrap_or(Errno::ADDRNOTAVAIL), error.to_string())
}

/// Records a frame, if frames are recorded; a file that cannot be written is given up.
fn record(
    pcap: &mut Option<Pcap<BufWriter<File>>>,
    direction: Direction,
    src: SocketAddr,
    dst: SocketAddr,
    ip: IpFields,
    datagram: &[u8],
) {
    let Some(file) = pcap else { return };
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = Instant::ZERO + since_epoch.unwrap_or_default();
    if let Err(error) = file.record(now, direction, src, dst, ip, datagram) {
        tracing::error!(%error, "the capture file cannot be written; capturing ends");
        *pcap = None;
    }
}

/// The engine's counter for a frame that the way in refused.
fn refusal(why: IngressError) -> Refused {
    match why {
        IngressError::TooShort(_) => Refused::TooShort,
        IngressError::BadIcrc => Refused::BadIcrc,
        IngressError::UnknownOpcode(_) => Refused::UnknownOpcode,
        IngressError::BadVersion(_) | IngressError::BadHeader(_) => Refused::BadHeader,
    }
}
