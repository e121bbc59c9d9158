//! The ways of frames: in from the link, out to it, and to groups.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::{Capture, Driver, Local, capture};
use crate::core::time::Instant;
use crate::core::{CallError, MAX_FRAME, Path, Refused, Transmit};
use crate::link::shm::{Asked, Executed, Record, Route, ShmLink};
use crate::link::{
    Bound, Direction, Frame, IngressError, IpFields, LinkError, Received, Run, Sent, Way, check,
};
use crate::mem::Region;
use crate::wire::{Bth, Packet, ROCE_PORT};

/// Who sends so many packets takes as many from the sockets before the next ones: acknowledgements open
/// the window in time, and where both ends send as fast as they can, neither overruns the other's buffer.
const FAIR: u32 = 16;

/// Where packets come through shared memory, the sockets are looked at every so many turns; and so often it is seen to
/// who comes and goes.
const SOCKETS: u32 = 64;
const CONNECTIONS: Duration = Duration::from_micros(200);

/// After so many turns, and so long after it was seen to who comes and goes, something else than rings is to be
/// looked at.
pub(super) fn is_due(glances: u32, tended: Duration) -> bool {
    (glances.wrapping_add(1)).is_multiple_of(SOCKETS) || tended >= CONNECTIONS
}

impl Driver {
    /// Sees to who comes and goes, now and then or, if `everywhere`, at once; and decides whether this turn looks
    /// at the sockets. Gives the number of datagrams that had to be taken first.
    ///
    /// Where packets come through shared memory, a look at the sockets, which is a system call, costs more than
    /// a packet.
    pub(super) fn look_around(&mut self, now: Instant, everywhere: bool) -> u32 {
        (self.sockets, self.around) = (true, true);
        let Some(shm) = &mut self.shm else { return 0 };
        self.glances = self.glances.wrapping_add(1);
        if everywhere {
            shm.awake();
        } else {
            self.sockets = !shm.is_live() || self.glances.is_multiple_of(SOCKETS);
        }
        let tend = everywhere || shm.is_opening() || now.since(self.tended) >= CONNECTIONS;
        self.around = self.sockets || tend;
        if !tend {
            return 0;
        }
        self.tended = now;
        if shm.tend(now) {
            // What lies in the sockets is older than what lies in a new ring.
            let all = self.link.holds();
            return self.receive_datagrams(now, all);
        }
        0
    }

    /// Takes `most` packets from shared memory and from the sockets, or some more that came with them, if there
    /// are as many; gives their number.
    pub(super) fn receive(&mut self, now: Instant, most: u32) -> u32 {
        let mut count = self.receive_shared(now, most);
        if self.sockets && count < most {
            count += self.receive_datagrams(now, most - count);
        }
        count
    }

    /// Takes up to `most` packets from shared memory.
    fn receive_shared(&mut self, now: Instant, most: u32) -> u32 {
        let Some(mut shm) = self.shm.take() else {
            return 0;
        };
        // Before timers are looked at, too: what has run out may have been acknowledged.
        let due = self.engine.next_timeout().is_some_and(|at| at <= now);
        let mut count = self.take_executed(now, &mut shm, self.around || due);
        count += shm.receive(most, |local, src, record, memory| {
            self.take_record(now, local, src, record, memory)
        });
        self.shm = Some(shm);
        count
    }

    /// Hears which requests have been executed, whether or not somebody waits for it. Before a control call that tells apart
    /// what was executed and what was not: the program may know it already, by an answer.
    pub(in crate::node) fn hear_executed(&mut self, now: Instant) {
        if let Some(mut shm) = self.shm.take() {
            self.take_executed(now, &mut shm, true);
            self.shm = Some(shm);
        }
    }

    /// Tells the engine what receivers have executed: where somebody waits for it, or with `all` everywhere. Gives the number
    /// of acknowledgements.
    fn take_executed(&mut self, now: Instant, shm: &mut ShmLink, all: bool) -> u32 {
        shm.look(now, all);
        let mut count = 0;
        while let Some(Executed { src, dst, asked }) = shm.next_executed() {
            (self.engine).handle_executed(now, src, dst, asked.qp_num, asked.psn);
            self.counters.rx_shm_executed += 1;
            count += 1;
        }
        count
    }

    /// Takes a packet from shared memory; true if it is a request that is executed, and the sender need not be told
    /// by a packet.
    fn take_record(
        &mut self,
        now: Instant,
        local: usize,
        src: IpAddr,
        record: &Record,
        memory: &Region,
    ) -> bool {
        self.take_posts();
        self.counters.rx_shm_packets += 1;
        let Some(local) = self.locals.get(local).filter(|l| l.up) else {
            self.counters.rx_port_down += 1;
            return false;
        };
        let mut packet = Packet::new(Bth::default());
        match record.parse(&mut packet) {
            Ok(len) => {
                let ip = record.ip();
                let path = Path {
                    traffic_class: ip.traffic_class,
                    hop_limit: ip.hop_limit,
                    flow_label: ip.flow_label,
                    ..Path::new(local.port, src, local.addr.ip())
                };
                (self.objects).take_receives(&mut self.engine, &packet);
                (self.engine).handle_packet_in(now, &path, &packet, memory, record.at, len)
            }
            Err(why) => {
                self.engine.refuse(refusal(why));
                false
            }
        }
    }

    /// Takes `most` datagrams from the sockets, or some more that came with them, if there are as many; gives
    /// their number.
    fn receive_datagrams(&mut self, now: Instant, most: u32) -> u32 {
        let mut count = 0;
        let sockets = self.link.receivers();
        // Each time another socket is first: a flood of one address leaves room for the others.
        self.first_socket = (self.first_socket + 1) % sockets.max(1);
        for at in (self.first_socket..sockets).chain(0..self.first_socket) {
            while count < most {
                let Some(received) = self.link.recv(at, &mut self.rx) else {
                    break;
                };
                count += self.take_in(now, at, &received);
            }
        }
        count
    }

    /// Takes in what receiving socket number `at` gave; tells how many datagrams it was.
    fn take_in(&mut self, now: Instant, at: usize, received: &Received) -> u32 {
        let rx = std::mem::take(&mut self.rx);
        let bound = self.link.bound(at);
        if let Some(mut shm) = self.shm.take_if(|shm| shm.is_live()) {
            // What the sender put into its ring before comes first.
            shm.receive_from(bound.at, received.src.ip(), |local, src, record, memory| {
                self.take_record(now, local, src, record, memory)
            });
            self.shm = Some(shm);
        }
        let mut count = 0;
        for datagram in received.datagrams(&rx) {
            self.take_posts();
            self.take_datagram(now, &bound, received, count, datagram);
            count += 1;
        }
        self.rx = rx;
        count.into()
    }

    /// Takes in a datagram, number `place` of those that came together.
    fn take_datagram(
        &mut self,
        now: Instant,
        bound: &Bound,
        received: &Received,
        place: u16,
        datagram: &[u8],
    ) {
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
        match check(src, dst, datagram, place, self.ids) {
            Ok((packet, payload)) => {
                let path = Path {
                    traffic_class: received.ip.traffic_class,
                    hop_limit: received.ip.hop_limit,
                    flow_label: received.ip.flow_label,
                    ..Path::new(local.port, src.ip(), dst.ip())
                };
                (self.objects).take_receives(&mut self.engine, &packet);
                self.engine.handle_packet(now, &path, &packet, payload);
            }
            Err(why) => self.engine.refuse(refusal(why)),
        }
    }

    /// Sends up to `most` packets; gives their number.
    #[inline]
    pub(super) fn transmit(&mut self, now: Instant, most: u32) -> u32 {
        let nothing = self.faults.is_none()
            && self.waiting.is_empty()
            && !self.engine.has_transmit()
            && self.shm.as_ref().is_none_or(|shm| !shm.waits());
        match nothing {
            true => 0,
            false => self.transmit_some(now, most),
        }
    }

    fn transmit_some(&mut self, now: Instant, most: u32) -> u32 {
        while let Some(mut run) = self.waiting.pop_front() {
            if !self.send_run(&mut run) {
                self.waiting.push_front(run);
                return 0;
            }
        }
        let by_bytes = self.faults.is_some() || self.pcap.is_some();
        if let Some(shm) = &mut self.shm
            && shm.relieved(now)
        {
            self.engine.release();
        }
        let mut count = 0;
        if !by_bytes && !self.engine.has_transmit() {
            return 0;
        }
        while count < most && self.waiting.is_empty() && (by_bytes || self.engine.has_transmit()) {
            if count > 0 && count.is_multiple_of(FAIR) {
                self.receive(now, FAIR);
            }
            // Frames whose delay is over go before new ones.
            if let Some(frame) = self.faults.as_mut().and_then(|f| f.poll(now)) {
                count += 1;
                self.send_frame(frame);
                continue;
            }
            let mut route = Route::Udp;
            let shm = self.shm.as_mut().filter(|_| !by_bytes);
            let mut packet = match shm {
                Some(shm) => {
                    let locals = &self.locals;
                    self.engine.poll_transmit_where(now, |src, dst, connected| {
                        let ours = |addr| locals.iter().any(|l| l.up && l.addr.ip() == addr);
                        // Datagrams go by UDP: one receiver that is slow must not hold up the others.
                        route = match connected && ours(src) && !ours(dst) {
                            true => shm.route(now, src, dst),
                            false => Route::Udp,
                        };
                        route != Route::Wait
                    })
                }
                None => self.engine.poll_transmit(now),
            };
            let Some(packet) = &mut packet else { break };
            count += 1;
            self.fill_in(packet);
            if let Route::Ring(ring) = route {
                self.send_shared(now, ring, packet);
            } else if !by_bytes && self.is_ours(packet.src) && self.is_ours(packet.dst) {
                count += self.send_to_self(now, packet, most - count);
            } else {
                self.send_packet(now, packet);
            }
        }
        self.flush();
        let awaits = self.engine.take_awaits();
        if let Some(shm) = &mut self.shm {
            if awaits {
                shm.await_all();
            }
            shm.flush();
        }
        count
    }

    /// A Queue Pair is connected: offers a ring to its peer, if that is a process of this host, so that the first message need
    /// not wait for it.
    pub(in crate::node) fn prepare(&mut self, now: Instant, qp_num: u32) {
        let by_bytes = self.faults.is_some() || self.pcap.is_some();
        if let Some((src, dst)) = self.engine.way(qp_num)
            && !by_bytes
            && self.is_ours(src)
            && !self.is_ours(dst)
            && let Some(shm) = &mut self.shm
        {
            shm.prepare(now, src, dst);
        }
    }

    /// Hands a packet to a Queue Pair of this node, with up to `most` that follow it in its message; gives their number.
    #[inline(never)]
    fn send_to_self(&mut self, now: Instant, packet: &Transmit, most: u32) -> u32 {
        self.counters.self_packets += 1;
        self.take_posts();
        (self.objects).take_receives(&mut self.engine, &packet.packet);
        self.engine.loopback(now, packet);
        let more = self.engine.loopback_middle(now, packet, most);
        self.counters.self_packets += u64::from(more);
        more
    }

    /// Puts a packet into a ring that has room.
    fn send_shared(&mut self, now: Instant, ring: usize, packet: &Transmit) {
        let Some(shm) = &mut self.shm else { return };
        let headers = packet.packet.header_len();
        let body = packet.payload_len as usize + usize::from(packet.packet.bth.pad);
        let Some((slot, memory)) = shm.slot(ring, headers, body) else {
            return;
        };
        let written = (self.engine).emit_in(packet, memory, slot.headers, slot.payload);
        if written.is_some() {
            let ip = IpFields {
                traffic_class: packet.traffic_class,
                hop_limit: packet.hop_limit,
                flow_label: packet.flow_label,
            };
            let asked = packet.packet.bth.ack_req.then_some(Asked {
                qp_num: packet.qp_num,
                psn: packet.packet.bth.psn,
                awaited: packet.awaited,
            });
            shm.push(now, ring, &slot, ip, asked);
            self.counters.tx_shm_packets += 1;
        }
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

    /// Makes a packet a datagram, and sends it with those that follow it, or hands it to the faults.
    #[inline(never)]
    fn send_packet(&mut self, now: Instant, packet: &Transmit) {
        if packet.is_multicast() && self.is_ours(packet.src) {
            // Members that are of this node get it first: once it is emitted, its request may be done
            // and its memory gone. The kernel loops it back to them, too, but what comes from an own
            // address is ignored then.
            self.take_posts();
            (self.objects).take_receives(&mut self.engine, &packet.packet);
            self.engine.loopback(now, packet);
        }
        let way = self.way(packet);
        if !way.is_some_and(|way| self.run.takes(&way, packet.frame_len())) {
            self.flush();
        }
        let Some(len) = self.engine.emit(packet, self.run.room()) else {
            return;
        };
        let Some(way) = way else {
            self.counters.tx_no_way += 1;
            return;
        };
        self.run.push(way, len);
        if let Some(layer) = &mut self.faults {
            if let Some((_, datagram, _)) = self.run.next() {
                let mut bytes = self.pool.take();
                bytes.extend_from_slice(datagram);
                let Way { src, dst, ip, .. } = way;
                let frame = Frame {
                    src,
                    dst,
                    ip,
                    bytes,
                };
                layer.offer(now, frame);
            }
            self.run.clear();
        } else if self.pcap.is_some() || packet.is_multicast() {
            // Who watches sees single datagrams; and those of a group are for sockets that do not merge.
            self.flush();
        }
    }

    /// The way that a packet goes; `None` if it goes nowhere.
    fn way(&mut self, packet: &Transmit) -> Option<Way> {
        let from = (self.socket_of(packet.src)).filter(|&at| self.locals[at].up)?;
        let bth = &packet.packet.bth;
        let port = (self.source_port).of(packet.flow_label, packet.qp_num, bth.dest_qp);
        Some(Way {
            from,
            src: self.link.source(from, port),
            dst: SocketAddr::new(packet.dst, ROCE_PORT),
            ip: IpFields {
                traffic_class: packet.traffic_class,
                hop_limit: packet.hop_limit,
                flow_label: packet.flow_label,
            },
        })
    }

    /// Sends a frame that comes out of the faults.
    fn send_frame(&mut self, frame: Frame) {
        let Frame {
            src,
            dst,
            ip,
            bytes,
        } = frame;
        let Some(from) = self.socket_of(src.ip()) else {
            return;
        };
        let way = Way { from, src, dst, ip };
        let mut run = Run::of_one(way, bytes);
        if self.send_run(&mut run) {
            self.pool.give(run.into_bytes());
        } else {
            self.waiting.push_back(run);
        }
    }

    /// Sends the datagrams that are made, or keeps them until the socket has room.
    fn flush(&mut self) {
        if self.run.is_empty() {
            return;
        }
        let mut run = std::mem::take(&mut self.run);
        // None overtakes those that wait.
        if self.waiting.is_empty() && self.send_run(&mut run) {
            run.clear();
            self.run = run;
        } else {
            self.waiting.push_back(run);
            self.run = Run::new(MAX_FRAME);
        }
    }

    /// Hands a run to the system; false if the socket has no room for the rest at the moment.
    fn send_run(&mut self, run: &mut Run) -> bool {
        while let Some((way, datagrams, count)) = run.next() {
            let Way { from, src, dst, ip } = way;
            let sent = match count {
                1 => Some(self.link.send(from, src.port(), dst, ip, datagrams)),
                _ => (self.link).send_run(from, src.port(), dst, ip, datagrams, run.segment()),
            };
            match sent {
                Some(Sent::Later) => return false,
                Some(Sent::Done) => {
                    self.counters.tx_datagrams += count as u64;
                    record(&mut self.pcap, Direction::Outbound, src, dst, ip, datagrams);
                }
                Some(Sent::Dropped(_)) => self.counters.tx_refused += count as u64,
                None => {
                    run.split();
                    continue;
                }
            }
            run.sent();
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

/// Records a frame, if frames are captured.
fn record(
    pcap: &mut Option<Capture>,
    direction: Direction,
    src: SocketAddr,
    dst: SocketAddr,
    ip: IpFields,
    datagram: &[u8],
) {
    capture(pcap, |file| {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = Instant::ZERO + since_epoch.unwrap_or_default();
        file.record(now, direction, src, dst, ip, datagram)
    });
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
