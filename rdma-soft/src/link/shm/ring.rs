//! One direction between two nodes: packets one behind the other in shared memory.
//!
//! A packet is a record of whole cache lines: 16 bytes about it, its headers, and its payload behind them if all
//! that fits into the first line, else from the second line on. The ring is mapped twice, so no record is cut.
//! Positions count bytes since the ring was made; they never wrap. The sender alone writes `TAIL`, the receiver
//! alone `HEAD`, each keeps its own, and what it reads of the other's is checked: a position that cannot be means
//! that the other is none of ours, and ends the ring.
//!
//! # Acknowledging
//!
//! A request that came through a ring and was executed needs no packet to say so: the receiver sets a byte of its record
//! before it moves `HEAD` beyond that. The sender keeps in mind who asked, and looks at the bytes as `HEAD` passes them.
//! That needs no room, and what was said so is known even when the receiver ends right afterwards.
//!
//! # Waking the other one up
//!
//! Who is about to sleep says so in a word of its own and then looks once more at the other's position; who has
//! moved its position looks at that word afterwards. Both do so with a sequentially consistent fence in
//! between, so at least one of them sees what the other did. A word is taken back by whoever sees it, who then
//! rings the bell, or by the sleeper itself.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::core::MAX_PAYLOAD;
use crate::core::time::Instant;
use crate::link::ingress::headers;
use crate::link::{IngressError, IpFields};
use crate::mem::Region;
use crate::mem::shared::Shared;
use crate::wire::{Bth, Packet, ParseError, Psn};

/// Bytes of a ring: as many packets as a Queue Pair keeps in flight, and little enough to stay in a cache.
pub(super) const LEN: usize = 512 << 10;

/// A record begins at a multiple of this.
const LINE: usize = 64;
/// Where the headers are in a record.
const HEADERS: usize = 16;
/// The longest record.
const LONGEST: u64 = (LINE + MAX_PAYLOAD) as u64;
const _: () = assert!(HEADERS + Packet::MAX_HEADER_LEN <= LINE && MAX_PAYLOAD.is_multiple_of(LINE));

/// Which byte of a record says that the request in it was executed.
const EXECUTED: u64 = 3;

/// A receiver that has taken nothing for so long is told that something is there.
const PATIENCE: Duration = Duration::from_millis(1);

/// The words of the shared memory.
const TAIL: usize = 0;
const HEAD: usize = 1;
/// Not 0: the receiver sleeps, and wants to know when there is a record.
const RECEIVER_SLEEPS: usize = 2;
/// Not 0: the sender sleeps, and wants to know when there is room.
const SENDER_SLEEPS: usize = 3;

/// The other one has written what it never would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// A packet whose sender asks for an acknowledgement: the Queue Pair that it is of, and its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) qp_num: u32,
    pub(crate) psn: Psn,
    /// Somebody waits for it; else it may be looked at later.
    pub(crate) awaited: bool,
}

/// Where a packet is to be written, by offset in the sender's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    at: u64,
    /// Where its headers go.
    pub(crate) headers: u64,
    /// Where its payload goes.
    pub(crate) payload: u64,
    len: u64,
    /// Bytes of headers, and of payload with its padding.
    of: (usize, usize),
}

/// Where the payload of a record begins in it, and how long the record is.
fn layout(headers: usize, payload: usize) -> (usize, usize) {
    match HEADERS + headers + payload {
        all if all <= LINE => (HEADERS + headers, LINE),
        _ => (LINE, LINE + payload.next_multiple_of(LINE)),
    }
}

/// The sender's end.
#[derive(Debug)]
pub(super) struct Sender {
    shared: Shared,
    tail: u64,
    /// What the receiver knows of `tail`.
    published: u64,
    /// How far the receiver was, when it was last looked at.
    head: u64,
    /// Where records of those who ask begin, oldest first.
    asked: VecDeque<(u64, Asked)>,
    /// Where the latest of them that is awaited ends.
    awaited: u64,
    /// Since when the receiver has not moved, although there was something; `None` if it was told so.
    idle_since: Option<Instant>,
    /// How far it was then.
    idle_at: u64,
}

impl Sender {
    /// A new ring, and the file that the receiver needs.
    pub(super) fn create() -> Result<(Sender, OwnedFd), Errno> {
        let (shared, file) = Shared::create(LEN)?;
        let sender = Sender {
            shared,
            tail: 0,
            published: 0,
            head: 0,
            asked: VecDeque::new(),
            awaited: 0,
            idle_since: None,
            idle_at: 0,
        };
        Ok((sender, file))
    }

    /// There is room for any packet. `executed` as [`look`](Sender::look).
    #[inline]
    pub(super) fn has_room(&mut self, executed: impl FnMut(Asked)) -> Result<bool, Broken> {
        if self.fits() {
            return Ok(true);
        }
        self.look(executed)?;
        Ok(self.fits())
    }

    /// The receiver has moved on since it was last looked at.
    #[inline]
    fn has_moved(&self) -> bool {
        self.shared.word(HEAD).load(Ordering::Relaxed) != self.head
    }

    /// The receiver has taken nothing for [`PATIENCE`], although something is there: its application may have gone away
    /// from polling without a word. True once until it moves again.
    pub(super) fn is_forgotten(&mut self, now: Instant) -> bool {
        let head = self.shared.word(HEAD).load(Ordering::Relaxed);
        if head >= self.published {
            return false;
        }
        if head != self.idle_at {
            (self.idle_since, self.idle_at) = (Some(now), head);
        }
        let forgotten = (self.idle_since).is_some_and(|since| now.since(since) >= PATIENCE);
        if forgotten {
            self.idle_since = None;
        }
        forgotten
    }

    /// An acknowledgement may be there that somebody waits for; with `all`, that somebody asked for.
    #[inline]
    pub(super) fn has_news(&self, all: bool) -> bool {
        let asked = self.awaited > self.head || (all && !self.asked.is_empty());
        asked && self.has_moved()
    }

    /// What that Queue Pair asked for is not looked at.
    pub(super) fn forget_asked(&mut self, qp_num: u32) {
        self.asked.retain(|(_, asked)| asked.qp_num != qp_num);
    }

    /// Looks how far the receiver is; `executed` gets those who asked and whose requests it has executed.
    pub(super) fn look(&mut self, mut executed: impl FnMut(Asked)) -> Result<(), Broken> {
        // Acquire: the receiver has read what it makes room of, and said what it executed.
        let head = self.shared.word(HEAD).load(Ordering::Acquire);
        if head < self.head || head > self.published {
            return Err(Broken);
        }
        self.head = head;
        while let Some(&(at, asked)) = self.asked.front()
            && at < head
        {
            self.asked.pop_front();
            let mut said = [0];
            let record = at % LEN as u64;
            (self.memory().read(record + EXECUTED, &mut said)).map_err(|_| Broken)?;
            if said != [0] {
                executed(asked);
            }
        }
        Ok(())
    }

    fn fits(&self) -> bool {
        self.tail - self.head + LONGEST <= LEN as u64
    }

    /// The place of the next packet, which has so many bytes of headers and of payload with its padding. There
    /// [is room](Sender::has_room).
    #[inline]
    pub(super) fn slot(&self, headers: usize, payload: usize) -> Slot {
        let at = self.tail % LEN as u64;
        let (begin, len) = layout(headers, payload);
        Slot {
            at,
            headers: at + HEADERS as u64,
            payload: at + begin as u64,
            len: len as u64,
            of: (headers, payload),
        }
    }

    /// The memory that slots are in.
    pub(super) fn memory(&self) -> &Region {
        self.shared.ring()
    }

    /// The packet is written.
    #[inline]
    pub(super) fn push(&mut self, now: Instant, slot: &Slot, ip: IpFields) {
        let mut about = [0; HEADERS];
        about[0] = slot.of.0 as u8;
        about[1] = ip.traffic_class;
        about[2] = ip.hop_limit;
        about[4..8].copy_from_slice(&ip.flow_label.to_le_bytes());
        about[8..12].copy_from_slice(&(slot.of.1 as u32).to_le_bytes());
        // It lies inside: the slot was made for this ring.
        let written = self.shared.ring().write(slot.at, &about);
        debug_assert!(written.is_ok());
        if self.tail == self.head {
            (self.idle_since, self.idle_at) = (Some(now), self.head);
        }
        self.tail += slot.len;
    }

    /// The sender of the packet that was [written](Sender::push) last asks for an acknowledgement. It may have been published:
    /// what the receiver does is only looked at afterwards.
    #[inline]
    pub(super) fn ask(&mut self, slot: &Slot, asked: Asked) {
        self.asked.push_back((self.tail - slot.len, asked));
        if asked.awaited {
            self.awaited = self.tail;
        }
    }

    /// Somebody waits for all that was asked for until now.
    pub(super) fn await_all(&mut self) {
        self.awaited = self.tail;
    }

    /// Bytes that the receiver does not know of.
    pub(super) fn unpublished(&self) -> u64 {
        self.tail - self.published
    }

    /// Shows the receiver all that was written; true if it sleeps, and the bell must be rung.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.published = self.tail;
        self.shared.word(TAIL).store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        takes_back(&self.shared, RECEIVER_SLEEPS)
    }

    /// Asks for the bell when the receiver moves on, if somebody asked it for something or, with `waits`, waits for
    /// room. False if it has moved already.
    pub(super) fn sleep(&mut self, waits: bool) -> bool {
        if !waits && self.asked.is_empty() {
            return true;
        }
        self.shared.word(SENDER_SLEEPS).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Who is broken is found out by a look.
        !(self.has_moved() || waits && self.fits())
    }

    /// What a receiver that is none of ours may say.
    #[cfg(test)]
    pub(super) fn pretend(&self, head: u64) {
        self.shared.word(HEAD).store(head, Ordering::Release);
    }

    /// Wants no bell any more.
    pub(super) fn awake(&self) {
        self.shared.word(SENDER_SLEEPS).store(0, Ordering::Relaxed);
    }
}

/// If that word is set, takes it back.
fn takes_back(shared: &Shared, word: usize) -> bool {
    let word = shared.word(word);
    word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0
}

/// A packet as it lies in the ring.
#[derive(Debug)]
pub(crate) struct Record {
    line: [u8; LINE],
    headers: usize,
    /// Bytes of payload with its padding.
    body: usize,
    /// Where they are in the receiver's memory.
    pub(crate) at: u64,
}

impl Record {
    /// Reads the headers of the packet, as they were when the record was taken, whatever the sender does; gives the length of
    /// the payload, without padding.
    ///
    /// # Errors
    /// [`IngressError`].
    #[inline(always)]
    pub(crate) fn parse(&self, packet: &mut Packet) -> Result<usize, IngressError> {
        let len = self.headers + self.body;
        if self.headers < Bth::LEN {
            return Err(IngressError::TooShort(len));
        }
        let bytes = &self.line[HEADERS..HEADERS + self.headers];
        let (read, payload) = headers(packet, bytes, len)?;
        if read != self.headers {
            let (opcode, have) = (packet.bth.opcode, self.headers - read);
            let more = ParseError::UnexpectedPayload { opcode, have };
            return Err(IngressError::BadHeader(more));
        }
        Ok(payload)
    }

    /// As [`parse`](Record::parse), with the packet.
    #[cfg(test)]
    pub(super) fn parsed(&self) -> Result<(Packet, usize), IngressError> {
        let mut packet = Packet::new(Bth::default());
        let len = self.parse(&mut packet)?;
        Ok((packet, len))
    }

    /// What else is to be known.
    pub(crate) fn ip(&self) -> IpFields {
        let label = self.line[4..8].first_chunk().copied();
        IpFields {
            traffic_class: self.line[1],
            hop_limit: self.line[2],
            flow_label: u32::from_le_bytes(label.unwrap_or_default()) & 0xf_ffff,
        }
    }
}

/// The receiver's end.
#[derive(Debug)]
pub(super) struct Receiver {
    shared: Shared,
    head: u64,
    /// How far the sender was, when it was last looked at.
    tail: u64,
    /// What the sender knows of `head`.
    released: u64,
    /// The record that was taken last.
    record: Record,
    /// The sender is gone: what comes behind `tail` is not of it.
    ended: bool,
}

impl Receiver {
    /// The other end of the ring in `file`.
    pub(super) fn adopt(file: BorrowedFd<'_>) -> Result<Receiver, Errno> {
        Ok(Receiver {
            shared: Shared::adopt(file, LEN)?,
            head: 0,
            tail: 0,
            released: 0,
            record: Record {
                line: [0; LINE],
                headers: 0,
                body: 0,
                at: 0,
            },
            ended: false,
        })
    }

    /// There may be a record: the sender has moved on, or not all is taken.
    #[inline]
    pub(super) fn may_have_record(&self) -> bool {
        let moved = || self.shared.word(TAIL).load(Ordering::Relaxed) != self.tail;
        self.head != self.tail || (!self.ended && moved())
    }

    /// There is a record.
    #[inline]
    pub(super) fn has_record(&mut self) -> Result<bool, Broken> {
        if self.head == self.tail && !self.ended {
            self.look()?;
        }
        Ok(self.head != self.tail)
    }

    /// Looks how far the sender is.
    fn look(&mut self) -> Result<(), Broken> {
        // Acquire: the records before it are written.
        let tail = self.shared.word(TAIL).load(Ordering::Acquire);
        let ahead = tail.wrapping_sub(self.head);
        let back = ahead < self.tail - self.head;
        if back || ahead > LEN as u64 || !ahead.is_multiple_of(LINE as u64) {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(())
    }

    /// The next record, if there is one, and the memory that it is in. It stays until [`done`](Receiver::done).
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(&Record, &Region)>, Broken> {
        if !self.has_record()? {
            return Ok(None);
        }
        let (at, record) = (self.head % LEN as u64, &mut self.record);
        let ring = self.shared.ring();
        ring.read(at, &mut record.line).map_err(|_| Broken)?;
        record.headers = usize::from(record.line[0]);
        let body = record.line[8..12].first_chunk().copied();
        record.body = u32::from_le_bytes(body.unwrap_or_default()) as usize;
        if record.headers > Packet::MAX_HEADER_LEN || record.body > MAX_PAYLOAD {
            return Err(Broken);
        }
        let (begin, len) = layout(record.headers, record.body);
        // Not beyond what is there, and so not beyond the ring.
        if len as u64 > self.tail - self.head {
            return Err(Broken);
        }
        record.at = at + begin as u64;
        Ok(Some((record, ring)))
    }

    /// The record that was taken is not needed any more; `executed` if the request in it is executed, and the sender is to
    /// know so.
    #[inline]
    pub(super) fn done(&mut self, executed: bool) {
        if executed {
            let said = (self.shared.ring()).write(self.head % LEN as u64 + EXECUTED, &[1]);
            // It lies inside: so did the record.
            debug_assert!(said.is_ok());
        }
        let (_, len) = layout(self.record.headers, self.record.body);
        self.head += len as u64;
    }

    /// Gives the sender the room of all that is done with, and shows it what of that was executed; true if it sleeps and the
    /// bell must be rung.
    pub(super) fn release(&mut self) -> bool {
        if self.released == self.head {
            return false;
        }
        self.released = self.head;
        self.shared.word(HEAD).store(self.head, Ordering::Release);
        fence(Ordering::SeqCst);
        takes_back(&self.shared, SENDER_SLEEPS)
    }

    /// Asks for the bell when there is a record; false if there is one already.
    pub(super) fn sleep(&mut self) -> bool {
        let sleeps = self.shared.word(RECEIVER_SLEEPS);
        sleeps.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Who is broken is found out when the record is taken.
        !self.has_record().unwrap_or(true)
    }

    /// Wants no bell any more.
    pub(super) fn awake(&self) {
        let sleeps = self.shared.word(RECEIVER_SLEEPS);
        sleeps.store(0, Ordering::Relaxed);
    }

    /// The sender is gone: what it has shown is all that comes.
    pub(super) fn end(&mut self) -> Result<(), Broken> {
        self.ended = true;
        self.look()
    }
}

#[cfg(test)]
mod tests;
