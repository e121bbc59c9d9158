//! The protocol: no clock, no Queue Pair, no randomness but its seed.

mod sessions;
mod strangers;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Deref;
use std::time::Duration;

use super::message::Message;
use super::peer::{Peer, Step};
use super::pool::Pool;
use super::slots::Slots;
use super::wire::{ASK, HEADER, Header, Kind};
use super::{
    Address, Counters, DatagramError, Event, MessageId, Options, PeerError, PeerId, SendError,
};
use crate::draw::Draws;

/// Sessions of a peer that may begin or end before the application takes the events that tell so; then it waits.
const UNTOLD: u32 = 8;

/// A datagram that is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// To whom.
    pub peer: PeerId,
    /// Its length.
    pub len: usize,
}

/// An event, and what is to be done when the application takes it.
enum Queued<B: Deref<Target = [u8]>> {
    /// A message of that session, with the number behind its last packet.
    Message {
        peer: PeerId,
        serial: u64,
        end: u64,
        message: Message<B>,
    },
    /// What became of a message of this end.
    Fate(Event<B>),
    /// Something about a session.
    Session(PeerId, Event<B>),
}

/// The protocol of one end, as a state machine: it is told what came and what time it is, and says what is to be sent.
///
/// It has no clock and no Queue Pair. Time is told by whoever drives it, as the duration since a moment of its choice.
/// `B` is a datagram as it came, without the 40 bytes in front: the machine keeps those that came early, and gives back, as
/// a [`Message`], those that are a message; so they are copied only where a message has several parts. What a peer is not
/// told that there is room for, it does not send; so no more packets are kept than half of [`Options::receives`], and one of each
/// peer.
///
/// The same machine runs in real time under [`Datagrams`](super::Datagrams) and on a virtual clock in the simulator.
///
/// ```
/// use rdma_qp::datagram::{Address, Event, Machine, Options};
/// use rdma_qp::Gid;
/// use std::time::Duration;
/// let gid = Gid::from(std::net::Ipv4Addr::LOCALHOST);
/// let (a, b) = (Address { gid, qp_num: 17 }, Address { gid, qp_num: 18 });
/// let (mut one, mut two): (Machine<Vec<u8>>, Machine<Vec<u8>>) =
///     (Machine::new(&Options::default(), 1024, 1)?, Machine::new(&Options::default(), 1024, 2)?);
/// let (to_two, to_one) = (one.add_peer(b, 1024, 65536)?, two.add_peer(a, 1024, 65536)?);
/// let mut now = Duration::ZERO;
/// let sent = one.send(now, to_two, b"hello")?;
/// let mut datagram = [0; 1024];
/// let (mut got, mut done) = (None, None);
/// while got.is_none() || done.is_none() {
///     while let Some(transmit) = one.poll_transmit(now, &mut datagram) {
///         two.handle_datagram(now, a, datagram[..transmit.len].to_vec());
///     }
///     while let Some(transmit) = two.poll_transmit(now, &mut datagram) {
///         one.handle_datagram(now, b, datagram[..transmit.len].to_vec());
///     }
///     if let Some(Event::Received { message, .. }) = two.poll_event() {
///         got = Some(message.to_vec());
///     }
///     if let Some(Event::Acknowledged { message, .. }) = one.poll_event() {
///         done = Some(message);
///     }
///     now += Duration::from_micros(10);
///     one.handle_timeout(now);
///     two.handle_timeout(now);
/// }
/// assert_eq!((got.unwrap(), done), (b"hello".to_vec(), Some(sent)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Machine<B: Deref<Target = [u8]>> {
    options: Options,
    /// How much of a message one packet holds, at most.
    payload: usize,
    peers: Vec<(u32, Option<Peer<B>>)>,
    /// Places among them that nobody has.
    vacant: Vec<u32>,
    /// Those who came by themselves and have not proven where they are, by when they are given up.
    unproven: BTreeSet<(Duration, u32)>,
    by_address: HashMap<Address, u32>,
    slots: Slots,
    /// Room for what comes.
    pool: Pool,
    /// What this end says of itself to whom it looks for.
    greeting: Vec<u8>,
    events: VecDeque<Queued<B>>,
    /// Messages whose fate the application has not taken, and those among them that have none.
    unreported: u32,
    under_way: usize,
    ready: VecDeque<u32>,
    /// When which peer is to be looked after; it may be too early.
    timers: BTreeSet<(Duration, u32)>,
    draws: Draws,
    last_message: u64,
    counters: Counters,
}

impl<B: Deref<Target = [u8]>> Machine<B> {
    /// An end whose datagrams are at most `mtu` bytes long. `seed` is what the numbers of its lives are drawn from: never give
    /// the same one twice. Who knows one of these numbers can compute the next, so where somebody may want to forge, use
    /// [`Layer`](super::Layer), which draws each of them from the system.
    ///
    /// # Errors
    /// An option is out of its range.
    pub fn new(options: &Options, mtu: u32, seed: u64) -> Result<Machine<B>, DatagramError> {
        let payload = (mtu as usize).saturating_sub(HEADER).max(1);
        options.check(payload)?;
        Ok(Machine {
            options: options.clone(),
            payload,
            peers: Vec::new(),
            vacant: Vec::new(),
            unproven: BTreeSet::new(),
            by_address: HashMap::new(),
            slots: Slots::new(options.send_packets, payload)?,
            pool: Pool::new(options.receives / 2),
            greeting: Vec::new(),
            events: VecDeque::new(),
            unreported: 0,
            under_way: 0,
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            draws: Draws::new(seed),
            last_message: 0,
            counters: Counters::default(),
        })
    }

    /// The numbers of lives come from the system from now on; `seed` as in [`Machine::new`].
    pub(super) fn draw_from_system(&mut self, seed: u64) {
        self.draws = Draws::system(seed);
    }

    /// A datagram came that was longer than its receive: nobody's, whatever it was.
    pub(super) fn too_long(&mut self) {
        self.counters.malformed += 1;
    }

    /// Adds a peer, whose datagrams are at most `mtu` bytes long, and which takes messages of at most `max_message` bytes.
    /// Nothing is sent to it yet. One that has introduced itself, and was [admitted](Machine::admit), and has not answered yet, is a
    /// peer as any other from now on, and is answered.
    ///
    /// # Errors
    /// There is no room, or the address is that of another peer.
    pub fn add_peer(
        &mut self,
        address: Address,
        mtu: u32,
        max_message: u32,
    ) -> Result<PeerId, PeerError> {
        let payload = self.payload_to(mtu);
        if let Some(index) = self.check_free(address, None)? {
            self.prove(index);
            if let Some((_, Some(peer))) = self.peers.get_mut(index as usize) {
                (peer.payload, peer.max_message) = (payload, max_message);
            }
            return Ok(self.id(index));
        }
        let peers = self.options.peers;
        if self.by_address.len() >= peers as usize {
            return Err(PeerError::Full { peers });
        }
        let index = self.vacant.pop().unwrap_or(self.peers.len() as u32);
        if index as usize == self.peers.len() {
            self.peers.push((0, None));
        }
        let peer = Peer::new(address, payload, max_message, &self.options);
        self.peers[index as usize].1 = Some(peer);
        self.by_address.insert(address, index);
        Ok(self.id(index))
    }

    fn payload_to(&self, mtu: u32) -> usize {
        let theirs = (mtu as usize).saturating_sub(HEADER).max(1);
        self.payload.min(theirs)
    }

    /// Whether nobody is at that address, or nobody but `itself`, or one who has not proven that it is there: whoever is told of by
    /// the application goes before that one, which is given back.
    fn check_free(
        &self,
        address: Address,
        itself: Option<PeerId>,
    ) -> Result<Option<u32>, PeerError> {
        let Some(&index) = self.by_address.get(&address) else {
            return Ok(None);
        };
        let there = self.id(index);
        if Some(there) == itself {
            return Ok(None);
        }
        let unproven = self.get(there).is_some_and(|peer| peer.unproven.is_some());
        unproven
            .then_some(Some(index))
            .ok_or(PeerError::Taken(there))
    }

    /// It is no longer asked for a proof. Whether it was.
    fn prove(&mut self, index: u32) -> bool {
        let Some((_, Some(peer))) = self.peers.get_mut(index as usize) else {
            return false;
        };
        let unproven = peer.unproven.take();
        unproven.is_some_and(|(until, _)| self.unproven.remove(&(until, index)))
    }

    /// The peer was restarted, at another address or where it was: what is not acknowledged is lost, as [`Event::Lost`] tells,
    /// and what is sent from now on goes there.
    ///
    /// # Errors
    /// There is no such peer, or the address is that of another one.
    pub fn move_peer(
        &mut self,
        id: PeerId,
        address: Address,
        mtu: u32,
        max_message: u32,
    ) -> Result<(), PeerError> {
        self.get(id).ok_or(PeerError::NoSuchPeer(id))?;
        // What its new life was answered before it was known whose it is, it may name.
        let mut answered = (None, None);
        if let Some(index) = self.check_free(address, Some(id))? {
            if let Some((_, Some(stranger))) = self.peers.get(index as usize) {
                answered = (stranger.opening, stranger.hello);
            }
            self.remove(index);
        }
        self.end_session(id.index, Some(Event::Restarted { peer: id }));
        let payload = self.payload_to(mtu);
        self.prove(id.index);
        if let Some(peer) = self.get_mut(id) {
            let former = peer.address;
            (peer.address, peer.payload, peer.max_message) = (address, payload, max_message);
            if former != address {
                ((peer.opening, peer.hello), peer.reset) = (answered, None);
            }
            self.by_address.remove(&former);
            self.by_address.insert(address, id.index);
        }
        self.touch(id.index);
        Ok(())
    }

    /// Removes a peer: what is not acknowledged is lost, as [`Event::Lost`] tells. What it sends from now on is a stranger's.
    ///
    /// # Errors
    /// There is no such peer.
    pub fn remove_peer(&mut self, id: PeerId) -> Result<(), PeerError> {
        self.get(id).ok_or(PeerError::NoSuchPeer(id))?;
        self.remove(id.index);
        Ok(())
    }

    fn remove(&mut self, index: u32) {
        self.end_session(index, None);
        self.prove(index);
        if let Some((life, place)) = self.peers.get_mut(index as usize)
            && let Some(peer) = place.take()
        {
            *life = life.wrapping_add(1);
            self.vacant.push(index);
            self.by_address.remove(&peer.address);
            if let Some(at) = peer.armed {
                self.timers.remove(&(at, index));
            }
        }
    }

    fn id(&self, index: u32) -> PeerId {
        let life = self.peers.get(index as usize).map_or(0, |(life, _)| *life);
        PeerId { index, life }
    }

    fn get(&self, id: PeerId) -> Option<&Peer<B>> {
        let (life, peer) = self.peers.get(id.index as usize)?;
        peer.as_ref().filter(|_| *life == id.life)
    }

    fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer<B>> {
        let (life, peer) = self.peers.get_mut(id.index as usize)?;
        peer.as_mut().filter(|_| *life == id.life)
    }

    /// Takes a message to be sent to a peer; its bytes are copied. If there is no session with the peer yet, one begins.
    ///
    /// # Errors
    /// There is no such peer, the message is too long, or there is no room at present.
    pub fn send(
        &mut self,
        now: Duration,
        to: PeerId,
        bytes: &[u8],
    ) -> Result<MessageId, SendError> {
        let most_slots = (self.options.send_packets / 2) as usize;
        let peer = self.get(to).ok_or(SendError::NoSuchPeer(to))?;
        let (len, payload, theirs) = (bytes.len(), peer.payload, peer.max_message as usize);
        let own = most_slots.saturating_mul(payload);
        if len > theirs.min(own) {
            let (max, own) = (theirs.min(own), own < theirs);
            return Err(SendError::TooLong { len, max, own });
        }
        let packets = Options::packets(len, payload);
        let has = peer.outgoing.slots();
        let untold = self.unreported >= self.options.send_packets;
        if has + packets > most_slots || packets > self.slots.left() || untold {
            return Err(SendError::WouldBlock);
        }
        self.last_message += 1;
        let id = MessageId(self.last_message);
        self.unreported += 1;
        self.under_way += 1;
        let Some((_, Some(peer))) = self.peers.get_mut(to.index as usize) else {
            return Err(SendError::NoSuchPeer(to));
        };
        (peer.outgoing).put(now, id, bytes, payload, &mut self.slots);
        peer.outgoing.watch(now, &self.options);
        peer.seek(now, &self.options, || draw(&mut self.draws));
        self.touch(to.index);
        Ok(id)
    }

    /// Begins a session with a peer, though there is nothing to be sent: so its death is noticed, if there is a heartbeat.
    ///
    /// # Errors
    /// There is no such peer.
    pub fn connect(&mut self, now: Duration, to: PeerId) -> Result<(), PeerError> {
        self.get(to).ok_or(PeerError::NoSuchPeer(to))?;
        if let Some((_, Some(peer))) = self.peers.get_mut(to.index as usize) {
            peer.seek(now, &self.options, || draw(&mut self.draws));
        }
        self.touch(to.index);
        Ok(())
    }

    /// Sees to it that a peer gets its turn, in which to send and in time.
    fn touch(&mut self, index: u32) {
        let Some((_, Some(peer))) = self.peers.get_mut(index as usize) else {
            return;
        };
        if !peer.ready && peer.step().is_some() {
            peer.ready = true;
            self.ready.push_back(index);
        }
        // One that moved away is left to come too early: cheaper than to move it with every packet.
        let due = peer.next_timeout(&self.options);
        if let (Some(at), Some(due)) = (peer.armed, due)
            && at <= due
        {
            return;
        }
        if let Some(at) = std::mem::replace(&mut peer.armed, due) {
            self.timers.remove(&(at, index));
        }
        self.timers.extend(due.map(|due| (due, index)));
    }

    /// When [`Machine::handle_timeout`] has something to do; it may be asked too early, and does nothing then.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.next_timeout().is_none_or(|due| due > now) {
            return;
        }
        let later = (self.timers).split_off(&(now.saturating_add(Duration::from_nanos(1)), 0));
        for (_, index) in std::mem::replace(&mut self.timers, later) {
            let Some((_, Some(peer))) = self.peers.get_mut(index as usize) else {
                continue;
            };
            peer.armed = None;
            if peer.unproven.is_some_and(|(until, _)| until <= now) {
                self.remove(index);
                continue;
            }
            if peer.timed_out(now, &self.options) {
                let peer = self.id(index);
                self.end_session(index, Some(Event::Dead { peer }));
            }
            self.touch(index);
        }
    }

    /// The next datagram that is to leave, in `buf`, which is as long as the longest one. `None`: nothing is to be sent at
    /// present. Peers have their turns one after the other.
    pub fn poll_transmit(&mut self, now: Duration, buf: &mut [u8]) -> Option<Transmit> {
        while let Some(index) = self.ready.pop_front() {
            let peer = self.id(index);
            let len = self.transmit(now, index, buf);
            self.touch(index);
            if let Some(len) = len {
                return Some(Transmit { peer, len });
            }
        }
        None
    }

    fn transmit(&mut self, now: Duration, index: u32, buf: &mut [u8]) -> Option<usize> {
        let options = &self.options;
        let (_, peer) = self.peers.get_mut(index as usize)?;
        let peer = peer.as_mut()?;
        peer.ready = false;
        let header = match peer.step()? {
            Step::Reset(session) => {
                peer.reset = None;
                Header::reset(session.own, session.theirs)
            }
            Step::Hello(to) => {
                peer.hello = None;
                let own = peer.opening?.own;
                // One packet may come; what is behind it gets room when it has.
                Header::hello(own, to, 1).emit(buf.get_mut(..HEADER)?);
                let says = if to == 0 { &self.greeting[..] } else { &[] };
                let len = HEADER + says.len();
                buf.get_mut(HEADER..len)?.copy_from_slice(says);
                return Some(len);
            }
            Step::Ack => {
                let asks = peer.ask;
                self.counters.acks += 1;
                peer.header(Kind::Ack, if asks { ASK } else { 0 })
            }
            Step::Data(seq) => {
                let (packet, again) = peer.outgoing.leaves(seq, now, options)?;
                match again {
                    true => self.counters.repeated += 1,
                    false => self.counters.sent += 1,
                }
                peer.asks(now);
                let mut header = peer.header(Kind::Data, packet.flags);
                (header.seq, header.total) = (seq, packet.total);
                let part = self.slots.bytes(packet.slot, packet.len);
                let len = HEADER + part.len();
                header.emit(buf.get_mut(..HEADER)?);
                buf.get_mut(HEADER..len)?.copy_from_slice(part);
                return Some(len);
            }
        };
        header.emit(buf.get_mut(..HEADER)?);
        Some(HEADER)
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<Event<B>> {
        Some(match self.events.pop_front()? {
            Queued::Message {
                peer: id,
                serial,
                end,
                message,
            } => {
                if let Some((life, Some(peer))) = self.peers.get_mut(id.index as usize)
                    && (*life, peer.serial) == (id.life, serial)
                    && peer.session.is_some()
                {
                    peer.incoming.taken(end, &mut self.pool);
                    self.touch(id.index);
                }
                Event::Received { peer: id, message }
            }
            Queued::Fate(event) => {
                self.unreported -= 1;
                event
            }
            Queued::Session(id, event) => {
                if let Some(peer) = self.get_mut(id) {
                    peer.untold = peer.untold.saturating_sub(1);
                }
                event
            }
        })
    }

    /// Whether there is an event to be taken.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether something is to be sent now.
    pub fn has_transmit(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Messages that were taken to be sent, and whose fate is not known.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Where a peer is; `None`: there is no such peer.
    pub fn address(&self, peer: PeerId) -> Option<Address> {
        Some(self.get(peer)?.address)
    }

    /// Whether there is a session with a peer.
    pub fn is_connected(&self, peer: PeerId) -> bool {
        self.get(peer).is_some_and(|peer| peer.session.is_some())
    }

    /// The time of a round trip to a peer, smoothed; `None`: not known yet.
    pub fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        self.get(peer)?.outgoing.rtt()
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// A number for a life: never 0.
fn draw(draws: &mut Draws) -> u64 {
    draws.next().max(1)
}
