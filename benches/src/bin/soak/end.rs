//! One Queue Pair of a link: what is posted to it, and what is expected of what comes back.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rdma_core_sys::ibv_wc_status;
use rdma_qp::{
    Buffer, BufferPool, Completion, Cq, Drained, Fate, Mr, Pd, PostFlags, Qp, QueueKind, Rc,
    RemoteRegion, Srq, Ticket, op,
};

use crate::random::Random;
use crate::tally::{Tally, wrong, wrong_at_rest};
use crate::worker::Common;

/// Requests of each queue under way at most.
const WINDOW: usize = 16;
/// Receives that are posted.
pub const RECEIVES: usize = 32;
/// Bytes of the longest message.
const LONGEST: u64 = 2048;
/// Bytes in front of a message: its connection and its number.
const HEADER: usize = 16;

/// Where things are in the part of the region that an end has.
const ADDED: u64 = 0;
const SWAPPED: u64 = 8;
const STAMP: u64 = 4096;
const LANDING: u64 = 8192;
const SLOTS: u64 = 12288;
const SLOT: u64 = LONGEST;
/// Bytes of that part.
pub const PART: u64 = SLOTS + 2 * WINDOW as u64 * SLOT;

/// Byte `at` of what a worker has for others to read.
fn stamp(slot: usize, life: u64, at: u64) -> u8 {
    (slot as u64 * 37 + life * 101 + at + at / 251) as u8
}

/// What an end needs of its link.
pub struct Place<'a> {
    pub common: &'a Common,
    pub mr: &'a Mr,
    pub peer: usize,
    pub peer_life: u64,
    /// Number of this connection.
    pub connection: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It takes a receive of the peer's.
    Message,
    Write,
    /// From that place of the stamp.
    Read(u64),
    /// The value that is there before.
    Add(u64),
    Swap(u64),
}

/// A request without an outcome.
struct Posted {
    ticket: Ticket,
    kind: Kind,
    local: u64,
    len: u64,
    at: Instant,
}

pub struct End {
    pub qp: Qp<Rc>,
    index: usize,
    /// Of the messages that are sent, and that are received, unless an SRQ receives.
    sends: BufferPool,
    receives: Option<BufferPool>,
    waiting: VecDeque<Posted>,
    pub send: Tally,
    pub recv: Tally,
    markers: u64,
    requests: u64,
    /// Sends that failed in this connection.
    failures: Vec<(Completion, Kind)>,
    /// The first failure of this connection: its status, and how long the request had been under way.
    pub failed: Option<(ibv_wc_status, Duration)>,
    pub remote: Option<RemoteRegion>,
    /// Messages of this connection: posted, known to be received, unknown; received from the peer.
    messages: u64,
    pub known: u64,
    pub unknown: u64,
    pub got: u64,
    added: u64,
    swapped: u64,
}

fn create(pd: &Pd, cq: &Cq, srq: Option<&Srq>) -> Result<Qp<Rc>, rdma_qp::CreateQpError> {
    let builder = pd.rc(cq).send_depth(2 * WINDOW as u32);
    match srq {
        Some(srq) => builder.srq(srq).create(),
        None => builder.recv_depth(RECEIVES as u32).create(),
    }
}

impl End {
    pub fn new(pd: &Pd, cq: &Cq, srq: Option<&Srq>, index: usize) -> Result<End, Box<dyn Error>> {
        let receives = match srq {
            Some(_) => None,
            None => Some(pd.buffers(RECEIVES, LONGEST as usize)?),
        };
        Ok(End {
            qp: create(pd, cq, srq)?,
            index,
            sends: pd.buffers(2 * WINDOW, LONGEST as usize)?,
            receives,
            waiting: VecDeque::new(),
            send: Tally::default(),
            recv: Tally::default(),
            markers: 0,
            requests: 0,
            failures: Vec::new(),
            failed: None,
            remote: None,
            messages: 0,
            known: 0,
            unknown: 0,
            got: 0,
            added: 0,
            swapped: 0,
        })
    }

    /// Takes a fresh QP instead of one that is drained.
    pub fn replace(&mut self, pd: &Pd, cq: &Cq, srq: Option<&Srq>) -> Result<(), Box<dyn Error>> {
        self.qp = create(pd, cq, srq)?;
        (self.send, self.recv, self.markers) = (Tally::default(), Tally::default(), 0);
        Ok(())
    }

    /// Offset of something of this end in the region of either side.
    fn at(&self, offset: u64) -> usize {
        (self.index as u64 * PART + offset) as usize
    }

    /// Writes what the peer may read as long as this process lives.
    pub fn write_stamp(&self, common: &Common, mr: &Mr) -> Result<(), Box<dyn Error>> {
        let bytes: Vec<u8> = (0..LONGEST)
            .map(|at| stamp(common.who.slot, common.who.life, at))
            .collect();
        Ok(mr.write_at(self.at(STAMP), &bytes)?)
    }

    /// Forgets the last connection. Nothing is under way, on either side.
    pub fn begin(&mut self, mr: &Mr) -> Result<(), Box<dyn Error>> {
        mr.write_at(self.at(ADDED), &[0; 16])?;
        self.failed = None;
        (self.messages, self.known, self.unknown, self.got) = (0, 0, 0, 0);
        (self.added, self.swapped) = (0, 0);
        Ok(())
    }

    /// Posts receives, as many as there are buffers.
    pub fn post_receives(
        qp: &mut Qp<Rc>,
        pool: Option<&BufferPool>,
        tally: &mut Tally,
    ) -> Result<(), rdma_qp::PostError> {
        while let Some(buffer) = pool.and_then(BufferPool::take) {
            qp.recv_buffer(buffer).map_err(|refused| refused.error)?;
            tally.posted += 1;
        }
        Ok(())
    }

    /// What `recover` needs at once: the QP, and what posts receives.
    pub fn parts(&mut self) -> (&mut Qp<Rc>, Option<&BufferPool>, &mut Tally) {
        (&mut self.qp, self.receives.as_ref(), &mut self.recv)
    }

    /// Whether another request may be posted.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < WINDOW && self.failed.is_none()
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A message for the peer.
    fn message(&self, place: &Place<'_>, len: u64) -> Option<Buffer> {
        let mut buffer = self.sends.take()?;
        buffer.set_len(len as usize);
        buffer[..8].copy_from_slice(&place.connection.to_le_bytes());
        buffer[8..HEADER].copy_from_slice(&self.messages.to_le_bytes());
        buffer[HEADER..].fill(self.messages as u8);
        Some(buffer)
    }

    /// Posts one request of a random kind.
    pub fn post(&mut self, place: &Place<'_>, random: &mut Random) -> Result<(), Box<dyn Error>> {
        let Some(remote) = self.remote else {
            return Ok(());
        };
        let kind = match random.below(7) {
            0..=2 => Kind::Message,
            3 => Kind::Write,
            4 => Kind::Read(8 * random.below(64)),
            5 => Kind::Add(self.added),
            _ => Kind::Swap(self.swapped),
        };
        // Every second one has a completion.
        let silent = matches!(kind, Kind::Message | Kind::Write)
            && self
                .waiting
                .back()
                .is_none_or(|last| last.ticket.is_signaled())
            && random.once_in(3);
        let flags = if silent {
            PostFlags::UNSIGNALED
        } else {
            PostFlags::empty()
        };
        let len = HEADER as u64 + random.below(1024);
        let local = SLOTS + self.requests % (2 * WINDOW as u64) * SLOT;
        let there = |offset| remote.at(self.at(offset) as u64);
        let slice = |len| place.mr.slice(self.at(local), len as usize);
        let ticket = match kind {
            Kind::Message if random.once_in(4) => {
                let write = op::WriteImm {
                    remote: there(LANDING),
                    imm: self.messages as u32,
                };
                self.qp.post(write, slice(len)?, flags)?
            }
            Kind::Message => {
                let Some(buffer) = self.message(place, len) else {
                    return Ok(());
                };
                self.qp.post_buffer(op::Send, buffer, flags)?
            }
            Kind::Write => {
                let write = op::Write {
                    remote: there(LANDING),
                };
                self.qp.post(write, slice(len)?, flags)?
            }
            Kind::Read(from) => {
                let read = op::Read {
                    remote: there(STAMP + from),
                };
                self.qp.post(read, slice(len)?, flags)?
            }
            Kind::Add(_) => {
                let add = op::FetchAdd {
                    remote: there(ADDED),
                    add: 1,
                };
                self.qp.post(add, slice(8)?, flags)?
            }
            Kind::Swap(compare) => {
                let remote = there(SWAPPED);
                let swap = op::CompareSwap {
                    remote,
                    compare,
                    swap: compare + 1,
                };
                self.qp.post(swap, slice(8)?, flags)?
            }
        };
        match kind {
            Kind::Message => self.messages += 1,
            Kind::Add(_) => self.added += 1,
            Kind::Swap(_) => self.swapped += 1,
            _ => {}
        }
        self.note(ticket, kind, local, len);
        Ok(())
    }

    fn note(&mut self, ticket: Ticket, kind: Kind, local: u64, len: u64) {
        self.requests += 1;
        self.send.posted += 1;
        let at = Instant::now();
        self.waiting.push_back(Posted {
            ticket,
            kind,
            local,
            len,
            at,
        });
    }

    /// Posts a WRITE with a completion; to a place that the peer has not offered, if it is to fail.
    pub fn probe(&mut self, place: &Place<'_>, wrong_key: bool) -> Result<(), Box<dyn Error>> {
        let Some(mut remote) = self.remote else {
            return Ok(());
        };
        if wrong_key {
            remote.rkey = !remote.rkey;
        }
        let local = SLOTS + self.requests % (2 * WINDOW as u64) * SLOT;
        let slice = place.mr.slice(self.at(local), 8)?;
        let ticket = self.qp.write(slice, remote.at(self.at(LANDING) as u64))?;
        self.note(ticket, Kind::Write, local, 8);
        Ok(())
    }

    /// Takes note of a completion of this QP.
    pub fn take(&mut self, place: &Place<'_>, done: &Completion) {
        place.common.done.fetch_add(1, Relaxed);
        if done.queue == QueueKind::Send {
            self.sent(place, done);
        } else {
            self.recv.count(done);
            let buffer = self.qp.take_buffer(done);
            if buffer.is_none() {
                place
                    .common
                    .wrong(format_args!("no buffer comes back with {done:?}"));
            }
            self.received(place, done, buffer.as_deref());
        }
    }

    fn sent(&mut self, place: &Place<'_>, done: &Completion) {
        // Those before it that said nothing have succeeded.
        let posted = loop {
            let Some(posted) = self.waiting.pop_front() else {
                return place
                    .common
                    .wrong(format_args!("{done:?} is of no request, or came twice"));
            };
            if posted.ticket == done.ticket {
                break posted;
            }
            if posted.ticket.is_signaled() {
                place.common.wrong(format_args!(
                    "{} has no completion before {done:?}",
                    posted.ticket
                ));
            }
            self.succeeded_silently(posted.kind);
        };
        self.send.count(done);
        drop(self.qp.take_buffer(done));
        while self.qp.take_ended_buffer(QueueKind::Send).is_some() {}
        match &done.outcome {
            Ok(_) => {
                if posted.kind == Kind::Message {
                    self.known += 1;
                }
                if let Some(what) = self.check_result(place, &posted) {
                    place.common.wrong(what);
                }
            }
            Err(failure) => {
                if self.failed.is_none() {
                    let status = failure.root.map_or(failure.status, |root| root.status);
                    self.failed = Some((status, posted.at.elapsed()));
                }
                self.failures.push((*done, posted.kind));
            }
        }
    }

    fn succeeded_silently(&mut self, kind: Kind) {
        self.send.succeeded += 1;
        if kind == Kind::Message {
            self.known += 1;
        }
    }

    /// What is wrong with what a request brought.
    fn check_result(&self, place: &Place<'_>, posted: &Posted) -> Option<String> {
        let expected = match posted.kind {
            Kind::Read(from) => (from..from + posted.len)
                .map(|at| stamp(place.peer, place.peer_life, at))
                .collect(),
            Kind::Add(before) | Kind::Swap(before) => before.to_ne_bytes().to_vec(),
            Kind::Message | Kind::Write => return None,
        };
        let mut bytes = vec![0; expected.len()];
        if let Err(error) = place.mr.read_at(self.at(posted.local), &mut bytes) {
            return Some(error.to_string());
        }
        (bytes != expected).then(|| {
            format!(
                "request {} brought {bytes:?}, not {expected:?}",
                posted.ticket
            )
        })
    }

    /// Checks a message that came in, or not.
    pub fn received(&mut self, place: &Place<'_>, done: &Completion, message: Option<&[u8]>) {
        let Ok(success) = &done.outcome else {
            return;
        };
        let number = self.got;
        self.got += 1;
        let fits = if success.by_write {
            success.imm == Some(number as u32)
        } else {
            message.is_some_and(|bytes| {
                bytes.len() >= HEADER
                    && bytes[..8] == place.connection.to_le_bytes()
                    && bytes[8..HEADER] == number.to_le_bytes()
                    && bytes[HEADER..].iter().all(|byte| *byte == number as u8)
            })
        };
        if !fits {
            let start = message.map(|bytes| &bytes[..bytes.len().min(HEADER)]);
            place.common.wrong(format_args!(
                "message {number} of connection {:#x} is another one: {done:?}, {start:?}",
                place.connection
            ));
        }
    }

    /// What became of the sends, now that the QP was drained. Its completions were taken note of.
    pub fn drained(&mut self, place: &Place<'_>, drained: &Drained) {
        self.markers += 1;
        while let Some(posted) = self.waiting.pop_front() {
            match drained.fate_of(&posted.ticket) {
                Some(Fate::Done) if !posted.ticket.is_signaled() => {
                    self.succeeded_silently(posted.kind);
                }
                fate => place.common.wrong(format_args!(
                    "after a drain {} has the fate {fate:?}",
                    posted.ticket
                )),
            }
        }
        for (done, kind) in self.failures.drain(..) {
            match drained.fate(&done) {
                _ if kind != Kind::Message => {}
                Fate::Done => self.known += 1,
                Fate::Unknown => self.unknown += 1,
                Fate::NotDone => {}
            }
        }
        while self.qp.take_ended_buffer(QueueKind::Send).is_some() {}
    }

    /// Compares the books.
    pub fn check(&self, common: &Common, at_rest: bool) {
        let (send, recv) = (self.qp.send_account(), self.qp.recv_account());
        let found = if at_rest {
            wrong_at_rest(&send, &self.send, 0, self.markers)
                .or_else(|| wrong_at_rest(&recv, &self.recv, 0, 0))
                .or_else(|| {
                    let pools = [Some(&self.sends), self.receives.as_ref()];
                    let lost = pools
                        .into_iter()
                        .flatten()
                        .find(|pool| pool.free() != pool.count());
                    lost.map(|pool| {
                        format!(
                            "buffers are lost: {} of {} are there",
                            pool.free(),
                            pool.count()
                        )
                    })
                })
        } else {
            wrong(&send, &self.send).or_else(|| wrong(&recv, &self.recv))
        };
        if let Some(found) = found {
            common.wrong(format_args!("{}: {found}", self.qp.qp_num()));
        }
    }
}
