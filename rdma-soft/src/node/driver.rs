//! The engine with its links: everything that the engine lock guards.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdma_core_sys::ibv_event_type;

use super::Snapshot;
use super::cq::{AsyncEvent, Cq, Notice, Pushed, Subject};
use super::qp::{Posts, Qp};
use crate::core::config::{Config, PortConfig};
use crate::core::time::Instant;
use crate::core::{CqId, Engine, Event, MAX_FRAME, Path, Refused, Transmit};
use crate::link::{
    FaultLayer, Faults, Frame, IngressError, IpIds, Pcap, Pool, Sent, UdpLink, check,
};
use crate::profile::Profile;
use crate::verbs::sys::socket_drops;
use crate::wire::ROCE_PORT;
use crate::wire::icrc::{self, Flow};

macro_rules! link_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a node's link.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LinkCounters { $($(#[$doc])* pub $name: u64,)* }

        impl LinkCounters {
            /// All counters, by name.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

link_counters! {
    /// Datagrams handed to the system.
    tx_datagrams,
    /// Datagrams that the system refused to send; lost, like any other.
    tx_refused,
    /// Frames of a port that is down, or from a GID table entry that is no address of this node;
    /// lost.
    tx_no_way,
    /// Datagrams received.
    rx_datagrams,
    /// Datagrams that the system dropped because the socket's buffer was full.
    rx_overflow,
    /// Datagrams that came to a port that is down; ignored.
    rx_port_down,
    /// Packets between Queue Pairs of this node, which travel by reference.
    self_packets,
}

/// How many frames one step handles at most, each way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) rx: u32,
    pub(super) tx: u32,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Datagrams received.
    pub(super) received: u32,
    /// Packets sent, or tried to.
    pub(super) sent: u32,
    /// The budget ended before the work did.
    pub(super) more: bool,
}

/// An address that the node is bound to.
#[derive(Clone, Copy, Debug)]
struct Local {
    addr: SocketAddr,
    /// The port that it belongs to, from 1.
    port: u8,
    /// The port's link is up.
    up: bool,
}

/// A datagram that the socket has no room for at the moment.
#[derive(Debug)]
struct Waiting {
    from: usize,
    frame: Frame,
}

/// The engine with its links.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    link: Arc<UdpLink>,
    locals: Vec<Local>,
    /// The socket that was looked at first in the last turn.
    first_socket: usize,
    /// There while the link has faults.
    faults: Option<FaultLayer>,
    fault_seed: u64,
    pcap: Option<Pcap<BufWriter<File>>>,
    ids: IpIds,
    pool: Pool,
    rx: Vec<u8>,
    tx: Vec<u8>,
    waiting: Option<Waiting>,
    counters: LinkCounters,
    cqs: HashMap<CqId, Arc<Cq>>,
    qps: HashMap<u32, Arc<Qp>>,
    posts: Arc<Posts>,
    /// Room for the list of Queue Pairs whose requests are being taken.
    taken: Vec<Arc<Qp>>,
}

/// Bytes of the longest datagram that this device sends.
const MAX_DATAGRAM: usize = MAX_FRAME + icrc::LEN;

/// How long to wait before a full socket is tried again.
const FULL_SOCKET: Duration = Duration::from_micros(100);

impl Driver {
    /// A node with `profile`; `link` has one socket per address, `ports[i]` is the port (from 0)
    /// of socket `i`.
    pub(super) fn new(
        profile: &Profile,
        link: Arc<UdpLink>,
        ports: &[usize],
        pcap: Option<Pcap<BufWriter<File>>>,
        seed: u64,
    ) -> Driver {
        let locals: Vec<Local> = (link.locals().zip(ports))
            .filter_map(|(addr, &at)| {
                let port = profile.ports.get(at)?;
                Some(Local {
                    addr,
                    port: u8::try_from(at + 1).ok()?,
                    up: port.up,
                })
            })
            .collect();
        let port_configs = (1..).zip(&profile.ports).map(|(number, port)| {
            let bound: Vec<IpAddr> = (locals.iter())
                .filter(|l| u32::from(l.port) == number)
                .map(|l| l.addr.ip())
                .collect();
            PortConfig {
                gids: port.gid_table(&bound),
                pkeys: port.pkeys.clone(),
                active_mtu: port.active_mtu,
                max_msg_sz: port.max_msg_sz,
            }
        });
        let config = Config {
            ports: port_configs.collect(),
            caps: profile.caps.clone(),
            window: profile.window,
        };
        let mut rng = crate::core::rng::Rng::new(seed);
        let fault_seed = rng.next_u64();
        let mut driver = Driver {
            engine: Engine::new(config, rng.next_u64()),
            link,
            locals,
            first_socket: 0,
            faults: None,
            fault_seed,
            pcap,
            ids: profile.ip_ids,
            pool: Pool::default(),
            rx: vec![0; 2 * MAX_DATAGRAM],
            tx: vec![0; MAX_DATAGRAM],
            waiting: None,
            counters: LinkCounters::default(),
            cqs: HashMap::new(),
            qps: HashMap::new(),
            posts: Arc::default(),
            taken: Vec::new(),
        };
        driver.set_faults(profile.faults.clone());
        driver
    }

    /// Changes the faults of frames that are sent from now on. What is on its way stays so.
    pub(super) fn set_faults(&mut self, faults: Faults) {
        match &mut self.faults {
            Some(layer) => layer.set_faults(faults),
            None if faults.is_none() => {}
            None => self.faults = Some(FaultLayer::new(faults, self.fault_seed)),
        }
    }

    /// Cuts off the node from `addr`, or connects it again.
    pub(super) fn partition(&mut self, addr: IpAddr, cut_off: bool) {
        let seed = self.fault_seed;
        self.faults
            .get_or_insert_with(|| FaultLayer::new(Faults::default(), seed))
            .partition(addr, cut_off);
    }

    /// Gives the addresses back: nothing is sent or received from now on.
    pub(super) fn unbind(&mut self) {
        if let Ok(none) = UdpLink::bind(&[]) {
            self.link = Arc::new(none);
        }
        self.locals.clear();
        (self.faults, self.waiting, self.pcap) = (None, None, None);
    }

    /// All counters.
    pub(super) fn snapshot(&self) -> Snapshot {
        let link = LinkCounters {
            rx_overflow: self.link.fds().map(socket_drops).sum(),
            ..self.counters
        };
        Snapshot {
            engine: self.engine.counters().clone(),
            link,
            faults: self.faults.as_ref().map(FaultLayer::counters),
            held: self.faults.as_ref().map_or(0, FaultLayer::held),
        }
    }

    /// Makes a CQ known under its number.
    pub(super) fn add_cq(&mut self, cq: Arc<Cq>) {
        self.cqs.insert(cq.id, cq);
    }

    /// Forgets a CQ.
    pub(super) fn remove_cq(&mut self, id: CqId) {
        self.cqs.remove(&id);
    }

    /// Makes a Queue Pair known under its number.
    pub(super) fn add_qp(&mut self, qp: Arc<Qp>) {
        self.qps.insert(qp.num, qp);
    }

    /// Forgets a Queue Pair.
    pub(super) fn remove_qp(&mut self, qp: &Qp) {
        self.qps.remove(&qp.num);
    }

    /// When [`step`](Driver::step) has something to do without anything arriving.
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let faults = self.faults.as_ref().and_then(FaultLayer::next_timeout);
        let full = self.waiting.as_ref().map(|_| now + FULL_SOCKET);
        [self.engine.next_timeout(), faults, full]
            .into_iter()
            .flatten()
            .min()
    }

    /// Where posters leave word.
    pub(super) fn posts(&self) -> &Arc<Posts> {
        &self.posts
    }

    /// Gives all new requests to the engine.
    ///
    /// Before every packet that comes in, too: who posted a receive and then let the peer know must
    /// not be told that there was none.
    fn take_posts(&mut self) {
        if !self.posts.pending() {
            return;
        }
        let mut taken = std::mem::take(&mut self.taken);
        self.posts.take(&mut taken);
        for qp in taken.drain(..).filter(|qp| !qp.is_dead()) {
            self.take_posts_of(&qp);
        }
        self.taken = taken;
    }

    /// Gives new requests of `qp` to the engine.
    pub(super) fn take_posts_of(&mut self, qp: &Qp) {
        let engine = std::cell::RefCell::new(&mut self.engine);
        qp.drain(
            |wqe| engine.borrow_mut().post_recv(qp.num, wqe),
            |wqe| engine.borrow_mut().post_send(qp.num, wqe),
        );
    }

    /// Takes new requests, receives, runs timers, sends, and reports what happened.
    pub(super) fn step(&mut self, now: Instant, budget: Budget, notices: &mut Vec<Notice>) -> Turn {
        self.take_posts();
        let received = self.receive(now, budget.rx);
        if self.engine.next_timeout().is_some_and(|at| at <= now) {
            self.engine.handle_timeout(now);
        }
        let sent = self.transmit(now, budget.tx);
        self.report(notices);
        // A process may end without closing the device: what it captured is worth more than speed.
        self.flush_capture();
        let more_rx = budget.rx > 0 && received == budget.rx;
        let more_tx = sent == budget.tx && self.waiting.is_none();
        Turn {
            received,
            sent,
            more: more_rx || more_tx,
        }
    }

    /// Takes up to `most` datagrams from the sockets; gives their number.
    fn receive(&mut self, now: Instant, most: u32) -> u32 {
        let mut count = 0;
        let sockets = self.locals.len();
        // Each time another socket is first: a flood of one address leaves room for the others.
        self.first_socket = (self.first_socket + 1) % sockets.max(1);
        for at in (self.first_socket..sockets).chain(0..self.first_socket) {
            while count < most {
                let Some(received) = self.link.recv(at, &mut self.rx) else {
                    break;
                };
                count += 1;
                self.take_posts();
                let Some(datagram) = self.rx.get(..received.len) else {
                    continue;
                };
                let local = self.locals[at];
                self.counters.rx_datagrams += 1;
                if !local.up {
                    self.counters.rx_port_down += 1;
                    continue;
                }
                record(&mut self.pcap, received.src, local.addr, datagram);
                if received.truncated {
                    self.engine.refuse(Refused::BadHeader);
                    continue;
                }
                match check(received.src, local.addr, datagram, self.ids) {
                    Ok((packet, payload)) => {
                        let path = Path {
                            port: local.port,
                            src: received.src.ip(),
                            dst: local.addr.ip(),
                        };
                        self.engine.handle_packet(now, &path, &packet, payload);
                    }
                    Err(why) => self.engine.refuse(refusal(why)),
                }
            }
        }
        count
    }

    /// Sends up to `most` packets; gives their number.
    fn transmit(&mut self, now: Instant, most: u32) -> u32 {
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
            let Some(packet) = self.engine.poll_transmit(now) else {
                break;
            };
            count += 1;
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

    /// Makes a packet a datagram, and sends it or hands it to the faults.
    fn send_packet(&mut self, now: Instant, packet: &Transmit) {
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
        let src = self.locals[from].addr;
        let dst = SocketAddr::new(packet.dst, ROCE_PORT);
        let icrc = icrc::icrc(&Flow::new(src, dst), &tx[..len]);
        tx[len..len + icrc::LEN].copy_from_slice(&icrc.to_le_bytes());
        let datagram = &tx[..len + icrc::LEN];
        if self.faults.is_none() && self.send(from, dst, datagram) {
            return;
        }
        let mut bytes = self.pool.take();
        bytes.extend_from_slice(datagram);
        let frame = Frame { src, dst, bytes };
        match &mut self.faults {
            Some(layer) => layer.offer(now, frame),
            None => self.waiting = Some(Waiting { from, frame }),
        }
    }

    /// Sends a frame, or keeps it until the socket has room.
    fn send_frame(&mut self, from: usize, frame: Frame) {
        if self.send(from, frame.dst, &frame.bytes) {
            self.pool.give(frame.bytes);
        } else {
            self.waiting = Some(Waiting { from, frame });
        }
    }

    /// Hands a datagram to the system; false if the socket has no room for it at the moment.
    fn send(&mut self, from: usize, dst: SocketAddr, datagram: &[u8]) -> bool {
        match self.link.send(from, dst, datagram) {
            Sent::Later => return false,
            Sent::Done => {
                self.counters.tx_datagrams += 1;
                record(&mut self.pcap, self.locals[from].addr, dst, datagram);
            }
            Sent::Dropped(_) => self.counters.tx_refused += 1,
        }
        true
    }

    /// Hands the engine's events to their objects.
    pub(super) fn report(&mut self, notices: &mut Vec<Notice>) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Completion { cq, wc, solicited } => {
                    let (Some(cq), Some(qp)) = (self.cqs.get(&cq), self.qps.get(&wc.qp_num)) else {
                        continue;
                    };
                    match cq.push(wc, Arc::clone(qp), solicited) {
                        Pushed::Quiet | Pushed::Lost => {}
                        Pushed::Event => notices.push(Notice::Completion(Arc::clone(cq))),
                        Pushed::Overrun => {
                            let (id, subject) = (cq.id, Subject::Cq(Arc::clone(cq)));
                            let kind = ibv_event_type::IBV_EVENT_CQ_ERR;
                            notices.push(Notice::Async(AsyncEvent { kind, subject }));
                            self.engine.cq_overrun(id);
                        }
                    }
                }
                Event::Qp { qp_num, kind } => {
                    if let Some(qp) = self.qps.get(&qp_num) {
                        let subject = Subject::Qp(Arc::clone(qp));
                        notices.push(Notice::Async(AsyncEvent { kind, subject }));
                    }
                }
                Event::State { qp_num, state } => {
                    if let Some(qp) = self.qps.get(&qp_num) {
                        qp.set_state(state);
                    }
                }
            }
        }
    }

    /// Writes out what the capture file still buffers.
    fn flush_capture(&mut self) {
        if let Some(pcap) = &mut self.pcap
            && pcap.flush().is_err()
        {
            self.pcap = None;
        }
    }
}

/// Records a frame, if frames are recorded; a file that cannot be written is given up.
fn record(
    pcap: &mut Option<Pcap<BufWriter<File>>>,
    src: SocketAddr,
    dst: SocketAddr,
    datagram: &[u8],
) {
    let Some(file) = pcap else { return };
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = Instant::ZERO + since_epoch.unwrap_or_default();
    if let Err(error) = file.record(now, src, dst, datagram) {
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
