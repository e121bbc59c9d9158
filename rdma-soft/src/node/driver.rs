//! The engine with its links: everything that the engine lock guards.

mod frames;

use std::collections::VecDeque;
use std::io::{self, BufWriter};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::Snapshot;
use super::event::Notice;
use super::objects::Objects;
use super::qp::Qp;
use crate::core::config::{Config, PortConfig};
use crate::core::time::Instant;
use crate::core::{Engine, MAX_FRAME};
use crate::link::shm::ShmLink;
use crate::link::{
    CaptureFile, FaultLayer, Faults, IpIds, Pcap, Pool, Run, SourcePort, UdpLink, interface_mtu,
};
use crate::profile::{MTUS, Profile};
use crate::wire::{Bth, ImmDt, Reth, XrcEth, icrc};

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
    /// Datagrams, and packets through shared memory, that came to a port that is down; ignored.
    rx_port_down,
    /// Datagrams that this node's port sent to a multicast group and got back; ignored, for the
    /// members among its own Queue Pairs have them already.
    rx_own_multicast,
    /// Packets between Queue Pairs of this node, which travel by reference.
    self_packets,
    /// Packets handed to processes of this host through shared memory.
    tx_shm_packets,
    /// Packets received from processes of this host through shared memory.
    rx_shm_packets,
    /// Requests of which a ring told that they are executed: these acknowledgements are no packets.
    rx_shm_executed,
    /// Rings in shared memory that were made, for one direction each.
    shm_rings,
    /// Rings that were given up, since what is no node wrote into them.
    shm_broken,
}

/// How many frames one step handles at most, each way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) rx: u32,
    pub(super) tx: u32,
    /// Looks everywhere: at the sockets also where packets come through shared memory, and at who comes and
    /// goes there. Who comes back at once may do without mostly.
    pub(super) everywhere: bool,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Packets received.
    pub(super) received: u32,
    /// Packets sent, or tried to.
    pub(super) sent: u32,
    /// Somebody rang the bell, although a poller may have taken what came.
    pub(super) heard: bool,
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

/// The largest MTU whose packets go whole through the interfaces of all these addresses, as rxe has it (`rxe_net.c`,
/// `rxe_set_mtu`); the largest of all where the system does not tell.
fn carried(addresses: &[IpAddr]) -> u32 {
    const IPV6_AND_UDP: usize = 40 + 8;
    /// What is around the payload of a packet that can be full.
    const AROUND: usize =
        IPV6_AND_UDP + Bth::LEN + XrcEth::LEN + Reth::LEN + ImmDt::LEN + icrc::LEN;
    let interfaces = addresses
        .iter()
        .filter_map(|&address| interface_mtu(address));
    let room = interfaces
        .min()
        .map_or(u32::MAX, |mtu| mtu.saturating_sub(AROUND as u32));
    let fitting = MTUS.into_iter().rev().find(|&mtu| mtu <= room);
    fitting.unwrap_or(MTUS[0])
}

/// The engine with its links.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    link: UdpLink,
    locals: Vec<Local>,
    /// The socket that was looked at first in the last turn.
    first_socket: usize,
    /// The rings to other processes of this host, if the node has any.
    shm: Option<Box<ShmLink>>,
    /// Turns that did not look everywhere.
    glances: u32,
    /// When it was last seen to who comes and goes.
    tended: Instant,
    /// This turn looks at the sockets.
    sockets: bool,
    /// This turn looks at all that the other ends of rings have done, awaited or not.
    around: bool,
    /// There while the link has faults.
    faults: Option<FaultLayer>,
    fault_seed: u64,
    pcap: Option<Capture>,
    ids: IpIds,
    source_port: SourcePort,
    /// The traffic class of packets that were given none.
    traffic_class: u8,
    pool: Pool,
    rx: Vec<u8>,
    /// Datagrams that are made, to be sent with one call.
    run: Run,
    /// Runs that the socket has no room for at the moment, oldest first.
    waiting: VecDeque<Run>,
    counters: LinkCounters,
    pub(super) objects: Objects,
}

/// Counters, with what rings count themselves.
fn with_rings(counters: LinkCounters, shm: &ShmLink) -> LinkCounters {
    LinkCounters {
        shm_rings: shm.counters.rings,
        shm_broken: shm.counters.broken,
        ..counters
    }
}

/// A capture file.
type Capture = Pcap<BufWriter<CaptureFile>>;

/// How long to wait before a full socket is tried again.
const FULL_SOCKET: Duration = Duration::from_micros(100);

impl Driver {
    /// A node with `profile`; `link` has one socket per address, `ports[i]` is the port (from 0)
    /// of socket `i`.
    pub(super) fn new(
        profile: &Profile,
        mut link: UdpLink,
        shm: Option<Box<ShmLink>>,
        ports: &[usize],
        pcap: Option<Capture>,
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
                active_mtu: port.active_mtu.min(carried(&bound)),
                max_msg_sz: port.max_msg_sz,
            }
        });
        let config = Config {
            ports: port_configs.collect(),
            caps: profile.caps.clone(),
            window: profile.window.min(link.holds()),
            strict: profile.strict,
        };
        if pcap.is_some() {
            link.show_headers();
        }
        let mut rng = crate::core::rng::Rng::new(seed);
        let fault_seed = rng.next_u64();
        let mut driver = Driver {
            engine: Engine::new(config, rng.next_u64()),
            link,
            locals,
            first_socket: 0,
            shm,
            glances: 0,
            tended: Instant::ZERO,
            sockets: true,
            around: true,
            faults: None,
            fault_seed,
            pcap,
            ids: profile.ip_ids,
            source_port: profile.source_port,
            traffic_class: profile.traffic_class,
            pool: Pool::default(),
            rx: vec![0; UdpLink::RUN_BYTES],
            run: Run::new(MAX_FRAME),
            waiting: VecDeque::new(),
            counters: LinkCounters::default(),
            objects: Objects::default(),
        };
        driver.set_faults(profile.faults.clone());
        driver
    }

    /// Changes the faults of frames that are sent from now on. What is on its way stays so.
    pub(super) fn set_faults(&mut self, faults: Faults) {
        match &mut self.faults {
            Some(layer) => layer.set_faults(faults),
            None if faults.is_none() => {}
            None => {
                self.be_faulty(faults);
            }
        }
    }

    /// Frames pass through faults from now on: they go by UDP then, to everybody.
    fn be_faulty(&mut self, faults: Faults) -> &mut FaultLayer {
        if let Some(shm) = &mut self.shm {
            shm.stop_sending();
            self.engine.release();
        }
        let seed = self.fault_seed;
        self.faults.insert(FaultLayer::new(faults, seed))
    }

    /// Cuts off the node from `addr`, or connects it again.
    pub(super) fn partition(&mut self, addr: IpAddr, cut_off: bool) {
        match &mut self.faults {
            Some(layer) => layer.partition(addr, cut_off),
            None => self.be_faulty(Faults::default()).partition(addr, cut_off),
        }
    }

    /// Gives the addresses back: nothing is sent or received from now on.
    pub(super) fn unbind(&mut self) {
        if let Some(shm) = self.shm.take() {
            // What it did is still told.
            self.counters = with_rings(self.counters, &shm);
        }
        self.link.close();
        self.locals.clear();
        (self.faults, self.pcap) = (None, None);
        self.waiting.clear();
    }

    /// Tells the engine what the IP headers of incoming packets say: datagrams are delivered with them.
    pub(super) fn show_headers(&mut self) {
        self.link.show_headers();
    }

    /// All counters.
    pub(super) fn snapshot(&self) -> Snapshot {
        let link = LinkCounters {
            rx_overflow: self.link.overflows(),
            ..(self.shm.as_deref()).map_or(self.counters, |shm| with_rings(self.counters, shm))
        };
        Snapshot {
            engine: self.engine.counters().clone(),
            link,
            faults: self.faults.as_ref().map(FaultLayer::counters),
            held: self.faults.as_ref().map_or(0, FaultLayer::held),
        }
    }

    /// When [`step`](Driver::step) has something to do without anything arriving.
    #[inline]
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let busy = self.faults.is_some() || !self.waiting.is_empty();
        if !busy && self.shm.as_ref().is_none_or(|shm| !shm.waits()) {
            return self.engine.next_timeout();
        }
        let faults = self.faults.as_ref().and_then(FaultLayer::next_timeout);
        let full = self.waiting.front().map(|_| now + FULL_SOCKET);
        let shm = self.shm.as_ref().and_then(|shm| shm.next_timeout());
        let earlier = |a: Option<Instant>, b: Option<Instant>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, None) | (None, one) => one,
        };
        let link = earlier(earlier(faults, full), shm);
        earlier(self.engine.next_timeout(), link)
    }

    /// Gives all new requests to the engine.
    pub(super) fn take_posts(&mut self) {
        self.objects.take_posts(&mut self.engine);
    }

    /// Gives new requests of `qp` to the engine.
    pub(super) fn take_posts_of(&mut self, qp: &Qp) {
        qp.give(&mut self.engine);
    }

    /// Hands the engine's events to their objects. Before requests are flushed it is heard by rings which of them have been
    /// executed, for the program may know that already, by an answer.
    pub(super) fn report(&mut self, now: Instant, notices: &mut Vec<Notice>) {
        while self.engine.has_event() {
            if self.engine.is_ending() {
                self.hear_executed(now);
            }
            self.objects.report(&mut self.engine, notices);
        }
    }

    /// Sets windows free whose invalidation was polled, so that `lkey` need not wait for them.
    pub(super) fn settle_windows(&mut self, lkey: u32) {
        let qps = &self.objects.qps;
        self.engine.settle_windows(lkey, |qp_num| {
            qps.get(&qp_num).map(|qp| qp.sends_reclaimed())
        });
    }

    /// Takes new requests, receives, runs timers, sends, and reports what happened.
    pub(super) fn step(&mut self, now: Instant, budget: Budget, notices: &mut Vec<Notice>) -> Turn {
        self.take_posts();
        let mut received = 0;
        if budget.rx > 0 {
            received = self.look_around(now, budget.everywhere);
            received += self.receive(now, budget.rx);
        }
        if self.engine.next_timeout().is_some_and(|at| at <= now) {
            if budget.rx == 0 {
                // What has run out may have been acknowledged.
                self.hear_executed(now);
            }
            self.engine.handle_timeout(now);
        }
        // Before anybody hears that a message was taken, its completion is there.
        if received > 0 && self.engine.has_event() {
            self.report(now, notices);
        }
        if let Some(shm) = &mut self.shm {
            shm.release();
        }
        let sent = self.transmit(now, budget.tx);
        if self.engine.has_event() {
            self.report(now, notices);
        }
        // A process may end without closing the device: what it captured is worth more than speed.
        capture(&mut self.pcap, Pcap::flush);
        let more_rx = budget.rx > 0 && received >= budget.rx;
        let more_tx = sent == budget.tx && self.waiting.is_empty();
        let (more_shm, heard) = match &mut self.shm {
            Some(shm) => {
                // What was taken between the packets that were sent: its completions are there by now.
                shm.release();
                (!shm.stay_asleep(), shm.take_heard())
            }
            None => (false, false),
        };
        Turn {
            received,
            sent,
            heard,
            more: more_rx || more_tx || more_shm,
        }
    }

    /// A turn of whoever comes back at once would certainly find nothing to do, and this one need not
    /// [look around](Driver::look_around).
    #[inline]
    pub(super) fn is_quiet(&mut self, now: Instant) -> bool {
        let plain = self.faults.is_none() && self.waiting.is_empty();
        let Some(shm) = self.shm.as_ref().filter(|_| plain) else {
            return false;
        };
        if !shm.is_quiet() || self.objects.posts.pending() || !self.engine.is_quiet(now) {
            return false;
        }
        let quiet = !frames::is_due(self.glances, now.since(self.tended));
        self.glances = self.glances.wrapping_add(quiet.into());
        quiet
    }

    /// The thread is about to sleep: others are to wake it. False if something has come already.
    pub(super) fn sleep(&mut self) -> bool {
        self.shm.as_mut().is_none_or(|shm| shm.sleep())
    }

    /// The thread is awake, or leaves the work to pollers: nobody needs to wake it.
    pub(super) fn awake(&mut self) {
        if let Some(shm) = &mut self.shm {
            shm.awake();
        }
    }

    /// What is acknowledged from now on to packets that a Queue Pair has sent until now concerns nobody: its numbers begin
    /// anew.
    pub(super) fn forget_asked(&mut self, qp_num: u32) {
        if let Some(shm) = &mut self.shm {
            shm.forget_asked(qp_num);
        }
    }

    /// Packets come through shared memory.
    pub(super) fn has_rings(&self) -> bool {
        self.shm.as_ref().is_some_and(|shm| shm.is_live())
    }

    /// The link of a port is up.
    pub(super) fn is_up(&self, port: u8) -> bool {
        self.locals.iter().any(|l| l.port == port && l.up)
    }

    /// Takes the link of a port up or down.
    pub(super) fn set_up(&mut self, port: u8, up: bool) {
        for local in self.locals.iter_mut().filter(|l| l.port == port) {
            local.up = up;
        }
    }
}

/// Writes to the capture file, if frames are captured; one that cannot be written is given up.
fn capture(file: &mut Option<Capture>, write: impl FnOnce(&mut Capture) -> io::Result<()>) {
    if let Some(open) = file
        && let Err(error) = write(open)
    {
        tracing::error!(%error, "the capture file cannot be written; capturing ends");
        *file = None;
    }
}
