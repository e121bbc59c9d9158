//! What goes to one peer: numbered packets, from the first to the last acknowledgement.

use std::collections::VecDeque;
use std::time::Duration;

use super::pool::RELY;
use super::slots::Slots;
use super::wire::{ASK, FIRST, Header, LAPSED, LAST};
use super::{MessageId, Options};
use crate::qp::Fate;
use crate::rtt::Smoothed;

/// So many packets that were sent later have arrived: then one is lost, and not only late.
const LATE: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not sent yet.
    Fresh,
    /// Sent, and nothing is known of it.
    Flying,
    /// To be sent again.
    Lost,
    /// The peer has it, and lacks one before it.
    There,
}

/// A packet that the peer does not have, or not all before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) slot: u32,
    pub(super) len: u32,
    pub(super) flags: u8,
    pub(super) total: u32,
    state: State,
    /// When it was sent last, and as which of all that were sent.
    sent: Duration,
    order: u64,
    again: bool,
}

/// The way to a peer.
#[derive(Debug)]
pub(super) struct Outgoing {
    packets: VecDeque<Packet>,
    /// Number of the first of them.
    base: u64,
    /// The first that was never sent.
    next: u64,
    /// The first that the peer has no room for, as far as it said.
    limit: u64,
    /// When a packet was sent last.
    sent: Duration,
    /// The next packet asks how much room there is.
    asks: bool,
    /// Messages, each with the number behind its last packet.
    messages: VecDeque<(MessageId, u64)>,
    flying: u32,
    lost: u32,
    there: u32,
    /// The latest that was sent, and the latest of those that arrived, as numbers of transmissions from 1.
    order: u64,
    newest: u64,
    /// After a time-out: once the repetition arrives, everything that was sent before it is lost.
    suspects: Option<u64>,
    rtt: Smoothed,
    /// Time-outs since something was acknowledged.
    tries: u32,
    timer: Option<Duration>,
}

/// The peer acknowledged what was never sent.
#[derive(Debug)]
pub(super) struct Impossible;

impl Outgoing {
    pub(super) fn new() -> Outgoing {
        Outgoing {
            packets: VecDeque::new(),
            base: 0,
            next: 0,
            limit: 0,
            sent: Duration::ZERO,
            asks: false,
            messages: VecDeque::new(),
            flying: 0,
            lost: 0,
            there: 0,
            order: 0,
            newest: 0,
            suspects: None,
            rtt: Smoothed::new(),
            tries: 0,
            timer: None,
        }
    }

    fn end(&self) -> u64 {
        self.base + self.packets.len() as u64
    }

    fn at(&mut self, seq: u64) -> Option<&mut Packet> {
        let index = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        self.packets.get_mut(index)
    }

    /// Slots that it has.
    pub(super) fn slots(&self) -> usize {
        self.packets.len() - self.there as usize
    }

    /// The time that a round trip takes, as far as is known.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt.mean()
    }

    /// Takes a message in, in parts of at most `payload` bytes. There are slots enough.
    pub(super) fn put(
        &mut self,
        now: Duration,
        id: MessageId,
        bytes: &[u8],
        payload: usize,
        slots: &mut Slots,
    ) {
        if self.packets.is_empty() && now.saturating_sub(self.sent) >= RELY {
            // The peer may give its room to others meanwhile: one packet asks for it.
            self.asks |= self.limit > self.next + 1;
            self.limit = self.limit.min(self.next + 1);
        }
        let total = bytes.len() as u32;
        let mut rest = bytes;
        let mut flags = FIRST;
        loop {
            let (part, left) = rest.split_at(rest.len().min(payload));
            rest = left;
            if rest.is_empty() {
                flags |= LAST;
            }
            self.packets.push_back(Packet {
                slot: slots.fill(part),
                len: part.len() as u32,
                flags,
                total,
                state: State::Fresh,
                sent: Duration::ZERO,
                order: 0,
                again: false,
            });
            flags = 0;
            if rest.is_empty() {
                break;
            }
        }
        self.messages.push_back((id, self.end()));
    }

    /// The packet that is to be sent next.
    pub(super) fn pick(&self) -> Option<u64> {
        if self.lost > 0 {
            let lost = self.packets.iter().position(|p| p.state == State::Lost)?;
            let seq = self.base + lost as u64;
            // The first that is missing may always come.
            return (lost == 0 || seq < self.limit).then_some(seq);
        }
        // After a time-out one packet asks for all, so that what holds the others up is not made worse.
        let open = self.tries == 0 || self.flying == 0;
        (open && self.next < self.end() && self.next < self.limit).then_some(self.next)
    }

    /// The packet of that number leaves. Whether it did so before.
    pub(super) fn leaves(
        &mut self,
        seq: u64,
        now: Duration,
        options: &Options,
    ) -> Option<(Packet, bool)> {
        self.order += 1;
        let order = self.order;
        let packet = self.at(seq)?;
        let again = packet.state != State::Fresh;
        let was_lost = packet.state == State::Lost;
        (packet.again, packet.state) = (again, State::Flying);
        (packet.sent, packet.order) = (now, order);
        let mut packet = *packet;
        self.sent = now;
        if std::mem::take(&mut self.asks) {
            packet.flags |= ASK;
        }
        self.flying += 1;
        if was_lost {
            self.lost -= 1;
        }
        if !again {
            self.next = seq + 1;
        }
        self.watch(now, options);
        Some((packet, again))
    }

    /// Whether the peer has to say something before anything moves.
    fn waits(&self) -> bool {
        self.flying > 0 || (self.lost == 0 && self.next < self.end() && self.next >= self.limit)
    }

    /// Winds the timer, if it does not run and somebody is waited for.
    pub(super) fn watch(&mut self, now: Duration, options: &Options) {
        if !self.waits() {
            self.timer = None;
        } else if self.timer.is_none() {
            self.timer = Some(now.saturating_add(self.patience(options)));
        }
    }

    /// How long it waits until the next repetition.
    fn patience(&self, options: &Options) -> Duration {
        let (least, most) = (options.least_timeout, options.most_timeout());
        let first = self.rtt.timeout().unwrap_or(options.first_timeout);
        let doubled = first.max(least).saturating_mul(1 << self.tries.min(16));
        doubled.min(most.max(least))
    }

    pub(super) fn timer(&self) -> Option<Duration> {
        self.timer
    }

    /// Whether packets are under way of which nothing is known.
    pub(super) fn is_flying(&self) -> bool {
        self.flying > 0
    }

    /// The timer has run out. `true`: there is nothing to repeat, and the peer is to be asked for room.
    pub(super) fn timed_out(&mut self, now: Duration, options: &Options) -> bool {
        self.timer = None;
        self.tries = self.tries.saturating_add(1);
        let first = self.packets.iter_mut().find(|p| p.state == State::Flying);
        if let Some(packet) = first {
            packet.state = State::Lost;
            self.flying -= 1;
            self.lost += 1;
            self.suspects = Some(self.order + 1);
            return false;
        }
        self.watch(now, options);
        self.timer.is_some()
    }

    /// The peer told what it has and what it has room for. Messages that it has are told to `done`.
    pub(super) fn heard(
        &mut self,
        now: Duration,
        header: &Header,
        slots: &mut Slots,
        options: &Options,
        mut done: impl FnMut(MessageId),
    ) -> Result<(), Impossible> {
        if header.ack > self.next {
            return Err(Impossible);
        }
        let mut latest: Option<Packet> = None;
        while self.base < header.ack
            && let Some(packet) = self.packets.pop_front()
        {
            self.base += 1;
            self.arrived(&packet, slots, &mut latest);
            self.there -= u32::from(packet.state == State::There);
        }
        let mut bits = header.sack;
        while bits != 0 {
            let seq = header.ack + 1 + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            if seq >= self.next {
                return Err(Impossible);
            }
            // One below the base was told by a packet that has been overtaken.
            let Some(packet) = self.at(seq) else { continue };
            let before = *packet;
            packet.state = State::There;
            if before.state != State::There {
                self.arrived(&before, slots, &mut latest);
                self.there += 1;
            }
        }
        let limit = header.ack + u64::from(header.credit);
        let wider = limit > self.limit;
        // What is told with a number that was overtaken is no news.
        let lapsed = header.flags & LAPSED != 0 && header.ack == self.base;
        self.limit = if lapsed { limit } else { self.limit.max(limit) };
        if let Some(packet) = latest {
            if !packet.again {
                self.rtt.sample(now.saturating_sub(packet.sent));
            }
            self.find_lost();
        }
        if latest.is_some() || wider {
            (self.tries, self.timer) = (0, None);
        }
        self.watch(now, options);
        while let Some(&(id, end)) = self.messages.front()
            && end <= self.base
        {
            self.messages.pop_front();
            done(id);
        }
        Ok(())
    }

    /// A packet has arrived: the latest of those that were sent is kept in `latest`.
    fn arrived(&mut self, packet: &Packet, slots: &mut Slots, latest: &mut Option<Packet>) {
        match packet.state {
            State::Flying => self.flying -= 1,
            State::Lost => self.lost -= 1,
            State::There | State::Fresh => return,
        }
        slots.free(packet.slot);
        self.newest = self.newest.max(packet.order);
        if latest.is_none_or(|latest| latest.order < packet.order) {
            *latest = Some(*packet);
        }
    }

    /// Finds packets that must be lost, because later ones have arrived.
    fn find_lost(&mut self) {
        let suspects = self.suspects.filter(|order| *order <= self.newest);
        if suspects.is_some() {
            self.suspects = None;
        } else if self.there == 0 {
            // Nothing has overtaken anything.
            return;
        }
        let sent = (self.next - self.base) as usize;
        for packet in self.packets.iter_mut().take(sent) {
            let late = packet.order + LATE <= self.newest;
            let suspect = suspects.is_some_and(|order| packet.order < order);
            if packet.state == State::Flying && (late || suspect) {
                packet.state = State::Lost;
                self.flying -= 1;
                self.lost += 1;
            }
        }
    }

    /// The session is over: all that was not acknowledged is told to `lost`, and numbers begin anew.
    pub(super) fn end_session(&mut self, slots: &mut Slots, mut lost: impl FnMut(MessageId, Fate)) {
        for (id, end) in self.messages.drain(..) {
            // A message of which a part never left cannot be there.
            let left = end <= self.next;
            lost(id, if left { Fate::Unknown } else { Fate::NotDone });
        }
        for packet in self.packets.drain(..) {
            if packet.state != State::There {
                slots.free(packet.slot);
            }
        }
        let (packets, messages) = (
            std::mem::take(&mut self.packets),
            std::mem::take(&mut self.messages),
        );
        *self = Outgoing {
            packets,
            messages,
            ..Outgoing::new()
        };
    }
}
