//! What comes from one peer: packets put in order, messages put together, and room told.

use std::collections::VecDeque;
use std::ops::Deref;
use std::time::Duration;

use super::Options;
use super::message::Message;
use super::pool::{KEEP, Pool};
use super::wire::{ASK, FIRST, HEADER, Header, LAPSED, LAST, SACKS};

/// Bytes for which there is memory when the first part of a longer message has come.
const AT_ONCE: usize = 1 << 20;

/// The way from a peer. `B` is a packet as it came.
#[derive(Debug)]
pub(super) struct Incoming<B> {
    max_message: u32,
    /// The first packet that is missing.
    next: u64,
    /// Packets from `next` on that came early; the first is none of them.
    early: VecDeque<Option<B>>,
    /// The message whose parts are coming, and its length.
    whole: Option<(Vec<u8>, u32)>,
    /// Messages that the application has not taken.
    waiting: u32,
    /// Packets of which nothing is kept any more.
    consumed: u64,
    /// The first packet that there is no room for. One packet behind `consumed` may always come; for those behind it the pool
    /// has promised room.
    room: u64,
    /// What `room` was when it was told last, and the most that was ever told.
    told: u64,
    most_told: u64,
    /// Something came lately.
    active: bool,
    /// When that was.
    came: Duration,
    /// A packet was dropped that the peer had been told there was room for: it is to be told what there is.
    lapsed: bool,
    /// Packets since the last acknowledgement.
    untold: u32,
    /// When it is to be sent at the latest; at once.
    due: Option<Duration>,
    now: bool,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is new.
    New,
    /// It was there already.
    Duplicate,
    /// Nobody had told the peer that there was room for it.
    Beyond,
    /// The peer had been told so, and was silent for so long that others have the room now.
    Lapsed,
}

/// The peer does not keep to the protocol.
#[derive(Debug)]
pub(super) struct Broken;

impl<B: Deref<Target = [u8]>> Incoming<B> {
    pub(super) fn new(max_message: u32) -> Incoming<B> {
        Incoming {
            max_message,
            next: 0,
            early: VecDeque::new(),
            whole: None,
            waiting: 0,
            consumed: 0,
            room: 1,
            told: 1,
            most_told: 1,
            active: false,
            came: Duration::ZERO,
            lapsed: false,
            untold: 0,
            due: None,
            now: false,
        }
    }

    /// The session is over: what was not put together is thrown away, and numbers begin anew.
    pub(super) fn end_session(&mut self, pool: &mut Pool) {
        pool.back(self.promised());
        if self.active {
            pool.count(false);
        }
        let early = std::mem::take(&mut self.early);
        *self = Incoming::new(self.max_message);
        self.early = early;
        self.early.clear();
    }

    /// What the pool has promised for it.
    fn promised(&self) -> u64 {
        self.room - (self.consumed + 1)
    }

    /// Nothing is kept of the packets before that one any more.
    fn consume(&mut self, to: u64, pool: &mut Pool) {
        let before = self.promised();
        self.consumed = to;
        self.room = self.room.max(to + 1);
        pool.back(before - self.promised());
    }

    /// Makes as much room as others leave.
    fn widen(&mut self, pool: &mut Pool) {
        let window = u64::from(pool.share());
        if self.active {
            self.room += pool.promise((self.consumed + window).saturating_sub(self.room));
        }
        // Before the peer has used up half of what it knows of, it is told of more.
        let left = self.told.saturating_sub(self.next);
        self.now |= left <= window / 2 && self.room > self.told;
    }

    /// Takes back what was promised, if nothing came for long.
    pub(super) fn look(&mut self, now: Duration, pool: &mut Pool) {
        if !self.active || now.saturating_sub(self.came) < KEEP {
            return;
        }
        self.active = false;
        pool.count(false);
        // What is there, has room.
        let there = self.next + self.early.len() as u64;
        let room = there.max(self.consumed + 1);
        pool.back(self.room - room);
        self.room = room;
    }

    /// Takes a packet in. Messages that are whole go to `deliver`, each with the number behind its last packet.
    pub(super) fn take(
        &mut self,
        now: Duration,
        header: &Header,
        packet: B,
        (options, pool): (&Options, &mut Pool),
        mut deliver: impl FnMut(Message<B>, u64),
    ) -> Result<Taken, Broken> {
        self.now |= header.flags & ASK != 0;
        if header.seq < self.next {
            self.now = true;
            return Ok(Taken::Duplicate);
        }
        if header.seq >= self.most_told.max(self.room) {
            self.now = true;
            return Ok(Taken::Beyond);
        }
        if header.seq >= self.room {
            if !pool.promise_all(header.seq + 1 - self.room) {
                (self.now, self.lapsed) = (true, true);
                return Ok(Taken::Lapsed);
            }
            self.room = header.seq + 1;
        }
        // Less than was ever told, which is not much, so it fits.
        let ahead = (header.seq - self.next) as usize;
        if ahead > 0 {
            self.now = true;
            if self.early.len() <= ahead {
                self.early.resize_with(ahead + 1, || None);
            }
            let place = &mut self.early[ahead];
            if place.is_some() {
                return Ok(Taken::Duplicate);
            }
            *place = Some(packet);
            self.comes(now, pool);
            return Ok(Taken::New);
        }
        self.now |= !self.early.is_empty();
        self.untold += 1;
        self.in_order(header, packet, &mut deliver)?;
        self.early.pop_front();
        while let Some(packet) = self.early.front_mut().and_then(Option::take) {
            let header = Header::parse(&packet).ok_or(Broken)?;
            self.in_order(&header, packet, &mut deliver)?;
            self.early.pop_front();
        }
        if self.waiting == 0 {
            self.consume(self.next, pool);
        }
        self.comes(now, pool);
        if self.untold >= (pool.share() / 4).max(1) {
            self.now = true;
        } else if self.due.is_none() {
            self.due = Some(now.saturating_add(options.ack_delay));
        }
        Ok(Taken::New)
    }

    /// A packet has come that is new.
    fn comes(&mut self, now: Duration, pool: &mut Pool) {
        self.came = now;
        if !self.active {
            self.active = true;
            pool.count(true);
        }
        self.widen(pool);
    }

    /// The next packet.
    fn in_order(
        &mut self,
        header: &Header,
        packet: B,
        deliver: &mut impl FnMut(Message<B>, u64),
    ) -> Result<(), Broken> {
        let part = packet.get(HEADER..).ok_or(Broken)?;
        let last = header.flags & LAST != 0;
        let (mut bytes, total) = match (header.flags & FIRST != 0, self.whole.take()) {
            (true, None) if header.total > self.max_message => return Err(Broken),
            (true, None) if last => {
                if part.len() != header.total as usize {
                    return Err(Broken);
                }
                self.next += 1;
                self.waiting += 1;
                deliver(Message::packet(packet), self.next);
                return Ok(());
            }
            (true, None) => (Vec::new(), header.total),
            (false, Some(whole)) => whole,
            _ => return Err(Broken),
        };
        if bytes.capacity() - bytes.len() < part.len() {
            // As much again as came, so that nobody has memory for what it only announces.
            let rest = (total as usize).saturating_sub(bytes.len());
            bytes.reserve_exact(rest.min(bytes.len().max(AT_ONCE)).max(part.len()));
        }
        bytes.extend_from_slice(part);
        let is_whole = bytes.len() == total as usize;
        if bytes.len() > total as usize || is_whole != last {
            return Err(Broken);
        }
        self.next += 1;
        if last {
            self.waiting += 1;
            deliver(Message::whole(bytes), self.next);
        } else {
            self.whole = Some((bytes, total));
        }
        Ok(())
    }

    /// The application has taken the message behind whose last packet is `end`.
    pub(super) fn taken(&mut self, end: u64, pool: &mut Pool) {
        self.waiting = self.waiting.saturating_sub(1);
        // While messages wait, nothing more is put together: so much memory a peer takes at most.
        self.consume(if self.waiting == 0 { self.next } else { end }, pool);
        self.widen(pool);
    }

    /// The peer wants to hear something.
    pub(super) fn asked(&mut self) {
        self.now = true;
    }

    /// When an acknowledgement is due, if it is not due at once.
    pub(super) fn timer(&self) -> Option<Duration> {
        self.due.filter(|_| !self.now)
    }

    /// The timer has run out.
    pub(super) fn timed_out(&mut self) {
        self.now = true;
    }

    /// Whether an acknowledgement is to be sent at once.
    pub(super) fn is_due(&self) -> bool {
        self.now
    }

    /// Enters into a header what is there and what there is room for, and counts that as told.
    pub(super) fn tell(&mut self, header: &mut Header) {
        self.told = self.room;
        self.most_told = self.most_told.max(self.room);
        header.ack = self.next;
        header.credit = (self.room - self.next) as u32;
        if std::mem::take(&mut self.lapsed) {
            header.flags |= LAPSED;
        }
        let early = self.early.iter().skip(1).take(SACKS as usize);
        let bits = early.enumerate().filter(|(_, packet)| packet.is_some());
        header.sack = bits.fold(0, |bits, (at, _)| bits | 1 << at);
        (self.untold, self.due, self.now) = (0, None, false);
    }
}
