//! The machine over a UD Queue Pair, with a CQ of the program's.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, Instant};

use rdma_core_sys::IBV_WC_LOC_LEN_ERR;

use super::card::Card;
use super::{
    Address, Counters, DatagramError, Event, Machine, Message, MessageId, Options, PeerError,
    PeerId, SendError,
};
use crate::ah::{Destination, Grh};
use crate::buffer::{Buffer, BufferPool};
use crate::cq::{Completion, Cq};
use crate::device::Device;
use crate::endpoint::DecodeError;
use crate::errno::Errno;
use crate::gid::GidEntry;
use crate::pd::Pd;
use crate::qkey::QKey;
use crate::qp::{Doorbell, PostFlags, Qp, Ud, op};
use crate::srq::Refill;
use crate::wr_id::QueueKind;

/// Sends that one doorbell is for, at most.
const DOORBELL: u32 = 16;

/// Of so many sends one is signaled.
const SIGNAL: u32 = 8;

/// A datagram as it lies in the receive that it came into.
pub struct Packet(Buffer);

impl Deref for Packet {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.get(Grh::LEN..).unwrap_or_default()
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes)", self.len())
    }
}

/// An end that introduces itself, though nobody told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stranger {
    /// Where it is: from there its datagram came.
    pub address: Address,
    /// The longest message that it takes.
    pub max_message: u32,
}

/// Decides about those who introduce themselves.
type Accept = Box<dyn FnMut(&Stranger) -> bool + Send + Sync>;

/// An end for datagrams whose completions come to a CQ of the program's. [`Datagrams`](super::Datagrams) is one with a CQ of its
/// own; this one is for programs that have everything on one CQ: they hand each completion that [is its](Layer::is_its) to
/// [`Layer::book`], and call [`Layer::progress`] when they have polled, and when [`Layer::next_timeout`] has come.
pub struct Layer {
    /// Before the pools, which it uses.
    inbox: Refill<Qp<Ud>>,
    outgoing: BufferPool,
    machine: Machine<Packet>,
    /// By the index of a peer.
    ways: Vec<Option<Destination>>,
    card: Card,
    origin: Instant,
    /// How many that introduced themselves may be waiting for an answer, and who is answered.
    strangers: u32,
    accept: Accept,
    /// Sends since the last that was signaled.
    silent: u32,
    /// Why what was to leave with a message that was taken did not.
    failed: Option<DatagramError>,
}

impl Layer {
    /// How many entries of a CQ it takes at most.
    pub fn cq_entries(options: &Options) -> u32 {
        options.receives.saturating_add(options.send_depth)
    }

    /// Makes one: a UD QP on the port of `gid`, with its receives posted.
    ///
    /// # Errors
    /// An option is out of its range, or something could not be made.
    pub fn new(
        device: &Device,
        pd: &Pd,
        cq: &Cq,
        gid: impl Into<GidEntry>,
        options: &Options,
    ) -> Result<Layer, DatagramError> {
        let qp = pd.ud(cq).send_depth(options.send_depth);
        let mut qp = qp.recv_depth(options.receives).create()?;
        let gid = gid.into();
        device.port(gid.port)?;
        let qkey = options.qkey.map_or_else(QKey::random, Ok)?;
        let mut endpoint = qp.activate(gid, qkey, options.path)?;
        // So peers send no longer ones either.
        endpoint.mtu = options.mtu.unwrap_or(endpoint.mtu).min(endpoint.mtu);
        let mtu = endpoint.mtu.bytes();
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(Errno::from)?;
        let card = Card {
            max_message: options.max_message,
            endpoint,
        };
        let seed = u64::from_ne_bytes(seed);
        let mut machine = Machine::new(options, mtu, seed)?;
        machine.draw_from_system(seed);
        machine.set_greeting(card.encode()?)?;
        let outgoing = pd.buffers(options.send_depth as usize, mtu as usize)?;
        // Some more than are posted, for messages that the application keeps.
        let buffers = options.receives as usize + options.receives as usize / 8 + 1;
        let pool = pd.buffers(buffers, mtu as usize + Grh::LEN)?;
        qp.set_doorbell(Doorbell::Every(DOORBELL), Doorbell::Every(DOORBELL))?;
        let low = options.receives - options.receives / 16;
        let mut layer = Layer {
            inbox: Refill::new(qp, pool, low),
            outgoing,
            machine,
            ways: Vec::new(),
            card,
            origin: Instant::now(),
            strangers: 0,
            accept: Box::new(|_| false),
            silent: 0,
            failed: None,
        };
        layer.top_up()?;
        Ok(layer)
    }

    /// What others need to know of this end, to give it to [`Layer::add_peer`]: 76 bytes, to be handed around by any means.
    ///
    /// # Errors
    /// None that is known: a record without regions can be encoded.
    pub fn card(&self) -> Result<Vec<u8>, DecodeError> {
        self.card.encode()
    }

    /// Adds a peer, by its card. Nothing is sent to it yet. One that was about to be [taken in](Layer::listen) is a peer by that, and
    /// [`Event::Introduced`] does not tell of it any more.
    ///
    /// # Errors
    /// It is no card, there is no room or no way to it, or it is a peer already.
    pub fn add_peer(&mut self, card: &[u8]) -> Result<PeerId, PeerError> {
        let card = Card::decode(card)?;
        let way = self.inbox.queue().destination(&card.endpoint)?;
        let mtu = card.endpoint.mtu.bytes();
        let added = (self.machine).add_peer(card.address(), mtu, card.max_message)?;
        self.lead(added, way);
        Ok(added)
    }

    /// From now on that is the way to a peer.
    fn lead(&mut self, peer: PeerId, way: Destination) {
        if self.ways.len() <= peer.index() {
            self.ways.resize(peer.index() + 1, None);
        }
        self.ways[peer.index()] = Some(way);
    }

    /// Takes in ends that nobody told of, from now on: whoever has this end's [card](Layer::card), sends to it, and is accepted by
    /// `accept`, becomes a peer, and [`Event::Introduced`] tells so. Until then, and without this, such an end is a stranger, whose
    /// datagrams are counted and change nothing.
    ///
    /// The Q_Key is in the card, so who does not have the card does not get so far. Those who do are given no more than a place
    /// among the [peers](Options::peers), of which at most `strangers` are for those who have not yet answered, and so not yet proven
    /// that they are where they say. Such a place is free again after [`Options::dead_after`], and after half of it for one more. With
    /// `strangers` 0 nobody is taken in any more.
    ///
    /// Who was taken in stays a peer until it is [removed](Layer::remove_peer), also when it is dead. One that is restarted
    /// with another Queue Pair introduces itself again, as another peer. Where that has the number of the former one by chance, and a
    /// Q_Key of its own, it is taken for the former one, and answered through the former Q_Key, which does not reach it: remove it
    /// when it is dead, or give [`Options::qkey`] to those who are restarted. One that is not accepted asks again until it gives up,
    /// and `accept` is asked each time.
    pub fn listen(
        &mut self,
        strangers: u32,
        accept: impl FnMut(&Stranger) -> bool + Send + Sync + 'static,
    ) {
        (self.strangers, self.accept) = (strangers, Box::new(accept));
    }

    /// Takes in the sender of a datagram, if that is an introduction, and the sender is welcome.
    fn admit(&mut self, now: Duration, from: Address, datagram: &[u8]) {
        let says = self.machine.introduction(from, datagram);
        // What cannot be read, or speaks of somebody else, is a stranger's.
        let Some(Ok(card)) = says.map(Card::decode) else {
            return;
        };
        let stranger = Stranger {
            address: from,
            max_message: card.max_message,
        };
        if card.address() != from || !(self.accept)(&stranger) {
            return;
        }
        let mtu = card.endpoint.mtu.bytes();
        let most = self.strangers;
        let admitted = (self.machine).admit(now, (from, datagram), mtu, card.max_message, most);
        let Ok(peer) = admitted else { return };
        // Only those for whom there is a place cost an address handle.
        match self.inbox.queue().destination(&card.endpoint) {
            Ok(way) => self.lead(peer, way),
            // It is there, because it was admitted.
            Err(_) => drop(self.machine.remove_peer(peer)),
        }
    }

    /// The peer was restarted, and has this card now: what is not acknowledged is lost, as [`Event::Lost`] tells, and what is
    /// sent from now on goes to its new life.
    ///
    /// # Errors
    /// As [`Layer::add_peer`], or there is no such peer.
    pub fn move_peer(&mut self, peer: PeerId, card: &[u8]) -> Result<(), PeerError> {
        let card = Card::decode(card)?;
        let way = self.inbox.queue().destination(&card.endpoint)?;
        let mtu = card.endpoint.mtu.bytes();
        (self.machine).move_peer(peer, card.address(), mtu, card.max_message)?;
        self.ways[peer.index()] = Some(way);
        Ok(())
    }

    /// Removes a peer: what is not acknowledged is lost, as [`Event::Lost`] tells.
    ///
    /// # Errors
    /// There is no such peer.
    pub fn remove_peer(&mut self, peer: PeerId) -> Result<(), PeerError> {
        self.machine.remove_peer(peer)?;
        self.ways[peer.index()] = None;
        Ok(())
    }

    /// Sends `bytes`, which are copied, to a peer. [`Event::Acknowledged`] tells when the peer has them, [`Event::Lost`] that it
    /// has not, as far as is known: one of both comes.
    ///
    /// # Errors
    /// There is no such peer, the message is too long, there is no room at present, or the end does not work any more. If the device
    /// refuses what is to leave with a message that was taken, that is told by what is called next, [`Layer::progress`] or this.
    pub fn send(&mut self, to: PeerId, bytes: &[u8]) -> Result<MessageId, SendError> {
        self.failure()?;
        let id = self.machine.send(self.origin.elapsed(), to, bytes)?;
        self.failed = self.transmit().err();
        Ok(id)
    }

    /// What is to be told of an earlier call.
    fn failure(&mut self) -> Result<(), DatagramError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Begins a session with a peer, though there is nothing to be sent: so its death is noticed, if there is a heartbeat.
    ///
    /// # Errors
    /// There is no such peer. What is to be sent leaves with the next [`Layer::progress`].
    pub fn connect(&mut self, to: PeerId) -> Result<(), PeerError> {
        self.machine.connect(self.origin.elapsed(), to)
    }

    /// Whether a completion is of this end.
    pub fn is_its(&self, done: &Completion) -> bool {
        done.queue != QueueKind::SharedRecv && done.qp_num == self.inbox.queue().qp_num()
    }

    /// Takes in a completion of this end.
    ///
    /// # Errors
    /// The device could not do what it was asked for.
    pub fn book(&mut self, done: &Completion) -> Result<(), DatagramError> {
        let now = self.origin.elapsed();
        self.book_at(now, done)
    }

    fn book_at(&mut self, now: Duration, done: &Completion) -> Result<(), DatagramError> {
        let qp = self.inbox.queue_mut();
        let buffer = match done.queue {
            QueueKind::Send => {
                // With it, those that were not signaled before it.
                while qp.take_ended_buffer(QueueKind::Send).is_some() {}
                None
            }
            _ => qp.take_buffer(done),
        };
        match done.outcome {
            Ok(success) => {
                if let (Some(buffer), Some(sender)) = (buffer, success.sender) {
                    let grh = buffer.first_chunk().map(Grh::parse);
                    // Without the header nobody knows whose it is: that of nobody.
                    let gid = grh.and_then(Result::ok).map(|grh| grh.source);
                    let from = Address {
                        gid: gid.unwrap_or_default(),
                        qp_num: sender.qp_num,
                    };
                    let packet = Packet(buffer);
                    if self.strangers > 0 {
                        self.admit(now, from, &packet);
                    }
                    self.machine.handle_datagram(now, from, packet);
                }
                Ok(())
            }
            // It may be anybody's who has the Q_Key. The QP goes on; where it does not, the others are flushed.
            Err(failure)
                if failure.status == IBV_WC_LOC_LEN_ERR && done.queue != QueueKind::Send =>
            {
                self.machine.too_long();
                Ok(())
            }
            Err(failure) => Err(DatagramError::Failed {
                qp_num: done.qp_num,
                status: failure.status,
            }),
        }
    }

    /// Takes in some completions that are all of this end, from a CQ of its own. Whether there were any.
    pub(super) fn take_in(&mut self, cq: &Cq, most: usize) -> Result<bool, DatagramError> {
        let mut now = None;
        for _ in 0..most {
            let Some(done) = cq.poll_inside()? else { break };
            let now = *now.get_or_insert_with(|| self.origin.elapsed());
            self.book_at(now, &done)?;
        }
        Ok(now.is_some())
    }

    /// Does what is due, sends what is to be sent, and posts receives.
    ///
    /// # Errors
    /// The device does not work any more.
    pub fn progress(&mut self) -> Result<(), DatagramError> {
        self.failure()?;
        self.top_up()?;
        self.machine.handle_timeout(self.origin.elapsed());
        self.transmit()
    }

    fn top_up(&mut self) -> Result<(), DatagramError> {
        match self.inbox.top_up() {
            Ok(_) => Ok(()),
            Err(crate::srq::RefillError::Post(error)) => Err(error.into()),
            // A QP has no limit that could be armed.
            Err(crate::srq::RefillError::Arm(_)) => Ok(()),
        }
    }

    fn transmit(&mut self) -> Result<(), DatagramError> {
        if !self.machine.has_transmit() {
            return Ok(());
        }
        let now = self.origin.elapsed();
        // A send whose completion the CQ keeps has its buffer back before its place in the queue.
        let mut room = self.inbox.queue().send_room();
        while room > 0
            && let Some(mut buffer) = self.outgoing.take()
        {
            let Some(transmit) = self.machine.poll_transmit(now, &mut buffer) else {
                break;
            };
            let Some(Some(to)) = self.ways.get(transmit.peer.index()) else {
                continue;
            };
            buffer.set_len(transmit.len);
            self.silent += 1;
            let flags = match self.silent >= SIGNAL {
                true => PostFlags::empty(),
                false => PostFlags::UNSIGNALED,
            };
            if self.silent >= SIGNAL {
                self.silent = 0;
            }
            let qp = self.inbox.queue_mut();
            let posted = qp.post_buffer(op::SendTo { to }, buffer, flags);
            posted.map_err(|refused| refused.error)?;
            room -= 1;
        }
        Ok(self.inbox.queue_mut().ring()?)
    }

    /// Now, and when something is due, by the clock of this end: at once if something can leave.
    pub(super) fn due(&self) -> (Duration, Option<Duration>) {
        let now = self.origin.elapsed();
        // Without a free buffer, or a place in the queue, it can leave when a send has ended and the program has its completion.
        let leaves = self.machine.has_transmit()
            && self.outgoing.free() > 0
            && self.inbox.queue().send_room() > 0;
        let leaves = leaves || self.failed.is_some();
        let due = self.machine.next_timeout();
        (now, if leaves { Some(now) } else { due })
    }

    /// What happened next.
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.machine.poll_event()?;
        // Where the application keeps so many that not all receives can be posted, they are copied.
        if let Event::Received { peer, message } = event {
            let qp = self.inbox.queue();
            let could = self.inbox.pool().free() as u64 + qp.recv_occupied();
            let short = could < u64::from(qp.recv_depth());
            let message = if short {
                Message::whole(message.into_vec())
            } else {
                message
            };
            return Some(Event::Received { peer, message });
        }
        Some(event)
    }

    /// Whether there is an event to be taken.
    pub fn has_event(&self) -> bool {
        self.machine.has_event()
    }

    /// How long it is until [`Layer::progress`] has something to do although nothing comes in: zero if something is ready to
    /// leave; `None`: for ever.
    pub fn next_timeout(&self) -> Option<Duration> {
        let (now, due) = self.due();
        Some(due?.saturating_sub(now))
    }

    /// Messages whose fate is not known yet.
    pub fn under_way(&self) -> usize {
        self.machine.under_way()
    }

    /// Where a peer is; `None`: there is no such peer.
    pub fn address(&self, peer: PeerId) -> Option<Address> {
        self.machine.address(peer)
    }

    /// Whether there is a session with a peer.
    pub fn is_connected(&self, peer: PeerId) -> bool {
        self.machine.is_connected(peer)
    }

    /// The time of a round trip to a peer, smoothed; `None`: not known yet.
    pub fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        self.machine.round_trip(peer)
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.machine.counters()
    }

    /// The Queue Pair.
    pub fn qp(&self) -> &Qp<Ud> {
        self.inbox.queue()
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers = self.ways.iter().flatten().count();
        write!(
            f,
            "Layer({peers} peers, {} messages under way, over {:?})",
            self.under_way(),
            self.qp()
        )
    }
}
