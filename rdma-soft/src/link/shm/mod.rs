//! Two processes of one host: rings in shared memory.
//!
//! A node finds out by itself which addresses are nodes of the same host, the same user and the same network
//! namespace: to each address it sends to, it [connects](socket) once. Packets to one that answers go through a
//! [ring](ring) of their own, one for each direction; they are the packets that would go by UDP, without an
//! ICRC, for nothing damages bytes in memory. Everything else goes by UDP, and so do datagrams (UD).
//!
//! # Why nothing is lost or overtaken
//!
//! - *A ring that is full* makes the Queue Pairs that send there wait; nobody else.
//! - *Acknowledgements* do not wait: where the ring has no room, or is not there yet, they go by UDP. Whoever has received a
//!   message may end at once, and the sender would never hear that it has arrived. One that comes late does no harm.
//! - *From nothing to the ring.* Packets to an address of which nothing is known wait until it has answered, for two
//!   seconds at most. Where nobody listens, the system says so at once.
//! - *From the ring to UDP*: when the receiver is gone or takes nothing for a second, or the node gets faults. What
//!   lies in the ring stays there, and a receiver takes all of it before it looks at a datagram of the same
//!   sender ([`ShmLink::receive_from`]).
//! - *From UDP to the ring*: when nothing went by UDP for a second. Whoever is offered a ring takes what lies in its
//!   sockets before it looks at it ([`ShmLink::tend`]).
//!
//! # Trust
//!
//! A sender is of the same user, and still nothing that it writes is believed: positions and lengths are checked, and
//! headers copied before they are read. What cannot be ends the ring.

mod outgoing;
mod ring;
mod socket;

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use self::outgoing::{Next, Outgoing, State};
use self::ring::{Receiver, Sender};
use self::socket::{Heard, Hello};
use super::IpFields;
use crate::core::time::Instant;
use crate::mem::Region;
pub(crate) use outgoing::Executed;
pub(crate) use ring::{Asked, Record, Slot};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// It goes by UDP.
    Udp,
    /// It goes into the ring with this number, which has room.
    Ring(usize),
    /// It waits.
    Wait,
}

/// A connection to another node; ends with it.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// What is heard of it is told under this number.
    id: u64,
    waiter: Arc<OwnedFd>,
}

impl Connection {
    fn new(socket: OwnedFd, id: u64, waiter: &Arc<OwnedFd>) -> Result<Connection, Errno> {
        let data = epoll::EventData::new_u64(id);
        epoll::add(waiter, &socket, data, epoll::EventFlags::IN)?;
        let waiter = Arc::clone(waiter);
        Ok(Connection { socket, id, waiter })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A child that was forked may hold the socket, too: closing alone would not end the waiting for it.
        let _ = epoll::delete(&self.waiter, &self.socket);
    }
}

/// One who sends to this node.
#[derive(Debug)]
struct Incoming {
    connection: Connection,
    /// The number of the address that it sends to.
    local: usize,
    /// Its address and its ring, as soon as it said hello.
    ring: Option<(IpAddr, Receiver)>,
    /// It is gone, or none of ours.
    over: bool,
}

/// The rings of one node. They do not block, and work without a thread or a clock of their own.
#[derive(Debug)]
pub(crate) struct ShmLink {
    /// Readable when [`tend`](ShmLink::tend) has something to do.
    waiter: Arc<OwnedFd>,
    /// One for each address of the node that can be met, with its number.
    listeners: Vec<(Connection, usize)>,
    addresses: Vec<IpAddr>,
    incoming: Vec<Incoming>,
    /// Who is looked at first.
    first: usize,
    outgoing: Vec<Outgoing>,
    /// Where the last packet went.
    last: usize,
    next_id: u64,
    /// Others were asked to ring the bell: the node's thread sleeps.
    asleep: bool,
    /// Not all of them: since then somebody else has heard a bell, or has to wait.
    unasked: bool,
    /// Queue Pairs wait.
    waits: bool,
    /// A receiver has not answered yet.
    opening: bool,
    /// Something was written that is not published.
    written: bool,
    /// A bell was heard since it was last asked.
    heard: bool,
    /// What receivers have executed.
    executed: Vec<Executed>,
    pub(crate) counters: ShmCounters,
}

/// What happened to rings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShmCounters {
    /// Rings that were made, by either end.
    pub(crate) rings: u64,
    /// Rings at whose other end somebody wrote what no node does.
    pub(crate) broken: u64,
}

/// How many messages of one connection are heard before the others have their turn.
const MESSAGES: u32 = 64;

/// What is written is shown to the receiver at the latest when it is so much, or at the end of a turn.
const PUBLISHED: u64 = 16 << 10;

impl ShmLink {
    /// Most nodes to which a node sends so, and most who send so to it; all others use UDP.
    const MOST: usize = 256;

    /// The rings of a node with these addresses, in order. At an address that somebody else is met at, nobody
    /// can meet this node.
    ///
    /// # Errors
    /// What the system refused.
    pub(crate) fn new(addresses: impl Iterator<Item = IpAddr>) -> Result<ShmLink, Errno> {
        let waiter = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let mut link = ShmLink {
            waiter,
            listeners: Vec::new(),
            addresses: addresses.collect(),
            incoming: Vec::new(),
            first: 0,
            outgoing: Vec::new(),
            last: 0,
            next_id: 0,
            asleep: false,
            unasked: false,
            waits: false,
            opening: false,
            written: false,
            heard: false,
            executed: Vec::new(),
            counters: ShmCounters::default(),
        };
        for local in 0..link.addresses.len() {
            if let Ok(socket) = listen(link.addresses[local])
                && let Ok(connection) = link.connection(socket)
            {
                link.listeners.push((connection, local));
            }
        }
        Ok(link)
    }

    /// Readable when [`tend`](ShmLink::tend) has something to do.
    pub(crate) fn waiter(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.waiter)
    }

    fn connection(&mut self, socket: OwnedFd) -> Result<Connection, Errno> {
        self.next_id += 1;
        Connection::new(socket, self.next_id, &self.waiter)
    }

    /// Which way the next packet from an address of this node to another one goes.
    pub(crate) fn route(&mut self, now: Instant, src: IpAddr, dst: IpAddr) -> Route {
        let is = |o: &Outgoing| o.dst == dst && o.src == src;
        let at = match self.outgoing.get(self.last) {
            Some(last) if is(last) => self.last,
            _ => match self.outgoing.iter().position(is) {
                Some(at) => at,
                None => {
                    if self.outgoing.len() >= ShmLink::MOST {
                        self.outgoing.retain(|o| !o.is_forgotten(now));
                    }
                    if self.outgoing.len() >= ShmLink::MOST {
                        return Route::Udp;
                    }
                    self.outgoing.push(Outgoing::new(src, dst));
                    self.outgoing.len() - 1
                }
            },
        };
        self.last = at;
        match self.outgoing[at].next(now, &mut self.executed) {
            Next::Ring => Route::Ring(at),
            Next::Udp => Route::Udp,
            Next::Broken => {
                self.counters.broken += 1;
                Route::Udp
            }
            Next::Wait => {
                (self.waits, self.unasked) = (true, true);
                Route::Wait
            }
            Next::Open => match self.open(src, dst) {
                Ok((connection, sender)) => {
                    self.outgoing[at].state = Outgoing::opening(connection, sender, now);
                    self.outgoing[at].waits = true;
                    (self.waits, self.opening) = (true, true);
                    Route::Wait
                }
                Err(_) => {
                    self.outgoing[at].state = State::Udp(Some(now));
                    Route::Udp
                }
            },
        }
    }

    /// Offers a ring to the node at `dst`, if there is one.
    fn open(&mut self, src: IpAddr, dst: IpAddr) -> Result<(Connection, Sender), Errno> {
        let socket = socket::connect(dst)?;
        let (sender, file) = Sender::create()?;
        socket::say(&socket, &Hello { src, dst }.emit(), file.as_fd())?;
        Ok((self.connection(socket)?, sender))
    }

    /// Where in that ring the next packet is to be written: so many bytes of headers, and of payload with its
    /// padding. `None` if the ring is none that [`route`](ShmLink::route) gave just now.
    pub(crate) fn slot(
        &mut self,
        ring: usize,
        headers: usize,
        payload: usize,
    ) -> Option<(Slot, &Region)> {
        let (sender, _) = self.outgoing.get_mut(ring)?.ring()?;
        Some((sender.slot(headers, payload), sender.memory()))
    }

    /// The packet is written. It is shown to the receiver when others have followed, or by
    /// [`flush`](ShmLink::flush).
    pub(crate) fn push(
        &mut self,
        now: Instant,
        ring: usize,
        slot: &Slot,
        ip: IpFields,
        asked: Option<Asked>,
    ) {
        let Some((sender, connection)) = self.outgoing.get_mut(ring).and_then(Outgoing::ring)
        else {
            return;
        };
        // The first one at once, for the receiver may be waiting for it.
        let first = !self.written;
        self.written = true;
        // Whoever sleeps is to hear of what is executed from now on, too.
        self.unasked |= asked.is_some();
        sender.push(now, slot, ip, asked);
        if (first || sender.unpublished() >= PUBLISHED) && sender.publish() {
            socket::ring_the_bell(&connection.socket);
        }
    }

    /// Shows the receivers what was written.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if !std::mem::take(&mut self.written) {
            return;
        }
        for (sender, connection) in self.outgoing.iter_mut().filter_map(Outgoing::ring) {
            if sender.unpublished() > 0 && sender.publish() {
                socket::ring_the_bell(&connection.socket);
            }
        }
    }

    /// Queue Pairs wait for room, or for an answer.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Packets that were to wait may have a way now.
    #[inline]
    pub(crate) fn relieved(&mut self, now: Instant) -> bool {
        if !self.waits {
            return false;
        }
        let mut relieved = false;
        for outgoing in &mut self.outgoing {
            relieved |= outgoing.relieved(now, &mut self.executed);
        }
        self.waits = self.outgoing.iter().any(|o| o.waits);
        relieved
    }

    /// When [`relieved`](ShmLink::relieved) is to be asked at the latest.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if !self.waits {
            return None;
        }
        self.outgoing.iter().filter_map(Outgoing::deadline).min()
    }

    /// Sends nothing through rings any more; what lies there will be received.
    pub(crate) fn stop_sending(&mut self) {
        for mut outgoing in self.outgoing.drain(..) {
            outgoing.look(&mut self.executed);
        }
        (self.waits, self.opening) = (false, false);
    }

    /// There are nodes that send to this one, and nothing has come from them; nobody waits for anything.
    #[inline]
    pub(crate) fn is_quiet(&mut self) -> bool {
        let came = |i: &mut Incoming| i.over || has_record(i);
        let plain = self.is_live() && !self.waits && !self.opening && self.executed.is_empty();
        plain
            && !self.incoming.iter_mut().any(came)
            && !self.outgoing.iter().any(Outgoing::has_news)
    }

    /// One of this node's requests that was executed, and whose sender had asked.
    #[inline]
    pub(crate) fn next_executed(&mut self) -> Option<Executed> {
        self.executed.pop()
    }

    /// Looks at what receivers have executed.
    #[inline]
    pub(crate) fn look(&mut self) {
        for outgoing in self.outgoing.iter_mut().filter(|o| o.has_news()) {
            outgoing.look(&mut self.executed);
        }
    }

    /// There are nodes that send to this one.
    pub(crate) fn is_live(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// A node has not answered yet whether it takes a ring.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening
    }

    /// Takes up to `most` packets; `take` gets the number of the address that it was sent to, the sender's
    /// address, the packet, and the memory in which its payload lies, and tells whether that was a request that is
    /// executed and acknowledged so. Gives their number.
    pub(crate) fn receive(
        &mut self,
        most: u32,
        mut take: impl FnMut(usize, IpAddr, &Record, &Region) -> bool,
    ) -> u32 {
        let (mut count, mut over) = (0, false);
        // Each time another one is first: a flood of one leaves room for the others.
        self.first = (self.first + 1) % self.incoming.len().max(1);
        for at in (self.first..self.incoming.len()).chain(0..self.first) {
            let incoming = &mut self.incoming[at];
            count += receive(incoming, most - count, &mut self.counters, &mut take);
            over |= incoming.over;
        }
        if over {
            (self.incoming).retain_mut(|i| !i.over || has_record(i));
        }
        count
    }

    /// Takes all packets that were sent to the address with the number `local` by the node at `src` and lie in its
    /// ring: to be called before a datagram of the same way is looked at, which was sent later.
    pub(crate) fn receive_from(
        &mut self,
        local: usize,
        src: IpAddr,
        mut take: impl FnMut(usize, IpAddr, &Record, &Region) -> bool,
    ) {
        /// A ring holds no more.
        const ALL: u32 = (ring::LEN / 64) as u32;
        for incoming in &mut self.incoming {
            let of = incoming.ring.as_ref().map(|(src, _)| *src);
            if incoming.local == local && of == Some(src) {
                receive(incoming, ALL, &mut self.counters, &mut take);
            }
        }
    }

    /// Sees to connections: accepts new ones, hears answers and bells, and who is gone. True if somebody new
    /// sends to this node: then what lies in the sockets is older than what lies in its ring.
    pub(crate) fn tend(&mut self, now: Instant) -> bool {
        const AT_ONCE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        const EVENTS: usize = 16;
        let mut space = [std::mem::MaybeUninit::uninit(); EVENTS];
        let Ok((events, _)) = epoll::wait(&self.waiter, &mut space[..], Some(&AT_ONCE)) else {
            return false;
        };
        let mut fresh = false;
        self.unasked |= !events.is_empty();
        self.heard |= !events.is_empty();
        for event in events.iter() {
            let id = event.data.u64();
            if let Some(at) = self.listeners.iter().position(|l| l.0.id == id) {
                fresh |= self.accept(at);
            } else if let Some(at) = self.incoming.iter().position(|i| i.connection.id == id) {
                fresh |= self.hear_sender(at);
            } else {
                self.hear_receiver(id, now);
            }
        }
        self.opening = (self.outgoing.iter()).any(|o| matches!(o.state, State::Opening { .. }));
        for (sender, connection) in self.outgoing.iter_mut().filter_map(Outgoing::ring) {
            if sender.is_forgotten(now) {
                socket::ring_the_bell(&connection.socket);
            }
        }
        fresh
    }

    /// Accepts who has connected; true if it said hello, too.
    fn accept(&mut self, at: usize) -> bool {
        let (listener, local) = &self.listeners[at];
        let local = *local;
        match socket::accept(&listener.socket) {
            Ok(socket) if self.incoming.len() < ShmLink::MOST => {
                let Ok(connection) = self.connection(socket) else {
                    return false;
                };
                self.incoming.push(Incoming {
                    connection,
                    local,
                    ring: None,
                    over: false,
                });
                return self.hear_sender(self.incoming.len() - 1);
            }
            Ok(_) | Err(Errno::PERM | Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // There are no descriptors, and whoever waits would be told so without end.
            Err(_) => drop(self.listeners.remove(at)),
        }
        false
    }

    /// Hears one who sends to this node; true if that was its hello.
    fn hear_sender(&mut self, at: usize) -> bool {
        let incoming = &mut self.incoming[at];
        let address = self.addresses[incoming.local];
        let mut fresh = false;
        let mut buffer = [0; 64];
        for _ in 0..MESSAGES {
            match socket::hear(&incoming.connection.socket, &mut buffer) {
                Heard::Nothing => break,
                Heard::End => {
                    incoming.over = true;
                    if let Some((_, ring)) = &mut incoming.ring
                        && ring.end().is_err()
                    {
                        self.counters.broken += 1;
                        incoming.ring = None;
                    }
                    break;
                }
                // A bell.
                Heard::Message(..) if incoming.ring.is_some() => {}
                Heard::Message(len, file) => {
                    let hello = Hello::parse(&buffer[..len]).filter(|hello| {
                        hello.dst == address.to_canonical() && !self.addresses.contains(&hello.src)
                    });
                    let ring = file.and_then(|file| Receiver::adopt(file.as_fd()).ok());
                    let socket = &incoming.connection.socket;
                    match (hello, ring) {
                        (Some(hello), Some(ring)) if socket::say_yes(socket).is_ok() => {
                            incoming.ring = Some((hello.src, ring));
                            self.counters.rings += 1;
                            fresh = true;
                        }
                        _ => {
                            incoming.over = true;
                            break;
                        }
                    }
                }
            }
        }
        if incoming.over && incoming.ring.is_none() {
            self.incoming.remove(at);
        }
        fresh
    }

    /// Hears one that this node sends to.
    fn hear_receiver(&mut self, id: u64, now: Instant) {
        let is = |o: &&mut Outgoing| o.connection().is_some_and(|c| c.id == id);
        let Some(outgoing) = self.outgoing.iter_mut().find(is) else {
            return;
        };
        let mut buffer = [0; 64];
        for _ in 0..MESSAGES {
            let Some(connection) = outgoing.connection() else {
                break;
            };
            match (
                socket::hear(&connection.socket, &mut buffer),
                &outgoing.state,
            ) {
                (Heard::Nothing, _) => break,
                (Heard::Message(len, _), State::Opening { .. }) => {
                    let yes = socket::is_yes(&buffer[..len]);
                    self.counters.rings += u64::from(yes);
                    outgoing.answered(yes, now);
                }
                // A bell.
                (Heard::Message(..), _) => {}
                (Heard::End, _) => {
                    // It may have executed something right before that.
                    outgoing.look(&mut self.executed);
                    outgoing.answered(false, now);
                }
            }
        }
    }

    /// A bell was heard since this was last asked: something has come, whoever has taken it.
    pub(crate) fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Asks for the bell for whatever comes, or gets room. False if something has come already: then nobody
    /// must sleep.
    pub(crate) fn sleep(&mut self) -> bool {
        (self.asleep, self.unasked) = (true, false);
        let mut quiet = true;
        for (_, ring) in self.incoming.iter_mut().filter_map(|i| i.ring.as_mut()) {
            quiet &= ring.sleep();
        }
        for outgoing in &mut self.outgoing {
            let waits = outgoing.waits;
            if let Some((sender, _)) = outgoing.ring() {
                quiet &= sender.sleep(waits);
            }
        }
        quiet
    }

    /// For whoever drives the node while its thread may be asleep, and goes away: what the thread asked for
    /// holds for all that has happened since. False if it must be woken.
    #[inline]
    pub(crate) fn stay_asleep(&mut self) -> bool {
        !(self.asleep && self.unasked) || self.sleep()
    }

    /// Nobody sleeps any more.
    #[inline]
    pub(crate) fn awake(&mut self) {
        if !std::mem::take(&mut self.asleep) {
            return;
        }
        for (_, ring) in self.incoming.iter().filter_map(|i| i.ring.as_ref()) {
            ring.awake();
        }
        for (sender, _) in self.outgoing.iter_mut().filter_map(Outgoing::ring) {
            sender.awake();
        }
    }
}

/// Is met at `address` from now on. A process that has just ended may not have given its name up yet.
fn listen(address: IpAddr) -> Result<OwnedFd, Errno> {
    const TRIES: u32 = 10;
    for _ in 1..TRIES {
        match socket::listen(address) {
            Err(Errno::ADDRINUSE) => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
    socket::listen(address)
}

fn has_record(incoming: &mut Incoming) -> bool {
    let ring = incoming.ring.as_mut();
    ring.is_some_and(|(_, ring)| ring.has_record() == Ok(true))
}

/// Takes up to `most` packets of one sender; gives their number.
fn receive(
    incoming: &mut Incoming,
    most: u32,
    counters: &mut ShmCounters,
    take: &mut impl FnMut(usize, IpAddr, &Record, &Region) -> bool,
) -> u32 {
    let Some((src, ring)) = &mut incoming.ring else {
        return 0;
    };
    let mut count = 0;
    let mut bell = false;
    let broken = loop {
        if count == most {
            break false;
        }
        match ring.next() {
            Ok(Some(record)) => {
                if take(incoming.local, *src, &record, ring.memory()) {
                    ring.executed(&record);
                }
                bell |= ring.done();
                count += 1;
            }
            Ok(None) => break false,
            Err(ring::Broken) => break true,
        }
    };
    if count > 0 {
        bell |= ring.release();
    }
    if bell {
        socket::ring_the_bell(&incoming.connection.socket);
    }
    if broken {
        counters.broken += 1;
        (incoming.ring, incoming.over) = (None, true);
    }
    count
}

#[cfg(test)]
mod tests;
