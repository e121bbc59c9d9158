//! XRC targets: those that this process made for initiators, and those that other processes of its node made.
//!
//! A completion names the target that a message came by. So whoever makes a target tells the other processes of the node who
//! is behind it: each process keeps a list of what it made, of which the others know a part and acknowledge it. They open each
//! target, too, so that it lives as long as one of them, and not as long as the process that happened to make it.
//! Its initiator is told when all have, and sends nothing before, unless one of them does not poll.
//!
//! A target that is replaced goes to ERR, stands in the list as nobody's, and is closed when all have read that: as
//! long as it is there no other one gets its number, so a number never means two processes at a time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use rdma_qp::xrc::{XrcDomain, XrcTarget};
use rdma_qp::{Completion, ConnectError, Cq, Endpoint, GidEntry, Timing};

use super::Rank;
use super::error::{MeshError, step};
use super::handshake::{Handshake, Heard};
use super::note::{Behind, Body, MOST_TARGETS, Role};

/// Time until a part of the list that is not acknowledged is sent again.
const PAUSE: Duration = Duration::from_millis(100);

/// An initiator gets no answer for so long, if others of the node have not opened its target.
const UNOPENED: Duration = Duration::from_secs(1);

/// A process of the own node.
struct Reader {
    rank: Rank,
    /// It is not known to be gone.
    is_there: bool,
    /// Entries of the own list that it knows.
    knows: usize,
    /// When to send it the next part again.
    next: Instant,
    /// Entries of its list that are known here.
    known: usize,
}

impl Reader {
    /// Whether it is still to be told of a list of that length.
    fn lacks(&self, length: usize) -> bool {
        self.is_there && self.knows < length
    }
}

/// A target that this process made.
struct Made {
    target: XrcTarget,
    handshake: Handshake,
    /// Its place in the list.
    at: usize,
    since: Instant,
}

impl Made {
    fn hello(&self, is_shared: bool) -> Body {
        self.handshake.hello_as(match is_shared {
            true => Role::SharedTarget,
            false => Role::Target,
        })
    }
}

pub(super) struct Targets {
    domain: XrcDomain,
    /// By initiator.
    made: HashMap<Rank, Made>,
    list: Vec<Behind>,
    /// Entries of it that all know, as far as initiators were told.
    shared: usize,
    readers: Vec<Reader>,
    /// What others of the node made, by number: open, to keep it alive. With who made it for whom.
    opened: HashMap<u32, (XrcTarget, Rank, Rank)>,
    /// Replaced ones, each until all know its entry in the list.
    closing: Vec<(usize, XrcTarget)>,
}

impl Targets {
    pub(super) fn new(
        domain: XrcDomain,
        others: impl Iterator<Item = Rank>,
        now: Instant,
    ) -> Targets {
        let readers = others.map(|rank| Reader {
            rank,
            is_there: true,
            knows: 0,
            next: now,
            known: 0,
        });
        Targets {
            domain,
            made: HashMap::new(),
            list: Vec::new(),
            shared: 0,
            readers: readers.collect(),
            opened: HashMap::new(),
            closing: Vec::new(),
        }
    }

    /// Targets that this process made and that are in use.
    pub(super) fn made(&self) -> usize {
        self.made.len()
    }

    /// Targets of other processes of the node that this one keeps open.
    pub(super) fn opened(&self) -> usize {
        self.opened.len()
    }

    /// An initiator says who it is.
    pub(super) fn hear(
        &mut self,
        from: Rank,
        hello: (u32, u32, Endpoint),
        new: NewTarget<'_>,
    ) -> Result<HeardInitiator, MeshError> {
        let mut heard = HeardInitiator::default();
        // Once, or a second time with a new target where the initiator is a new one.
        for _ in 0..2 {
            let made = match self.made.entry(from) {
                Entry::Occupied(made) => made.into_mut(),
                Entry::Vacant(place) => {
                    let made = new.make(&self.domain, self.list.len())?;
                    let entry = (made.target.qp_num(), Some(from));
                    self.list.push(entry);
                    heard.changes.push(entry);
                    place.insert(made)
                }
            };
            let Made {
                target, handshake, ..
            } = &mut *made;
            match handshake.hear(target, hello.clone(), new.timing) {
                Ok(Heard::Fine) => {
                    let is_shared = made.at < self.shared;
                    let waited = new.now.duration_since(made.since);
                    // Whoever wants to connect does not wait for ever, see `Options::connect_within`.
                    let is_late = waited >= UNOPENED.min(new.connect_within / 4);
                    heard.reply = (is_shared || is_late).then(|| made.hello(is_shared));
                    break;
                }
                Ok(Heard::Late) => break,
                Err(refused) => {
                    heard.refused = Some(refused);
                    break;
                }
                Ok(Heard::Reborn) => {
                    if let Some((entry, completions)) = self.withdraw(from, new.cq) {
                        heard.completions.extend(completions);
                        heard.changes.push(entry);
                    }
                }
            }
        }
        Ok(heard)
    }

    /// Ends the target of an initiator that is gone. Gives its entry in the list, and what had come by it and was not
    /// polled.
    pub(super) fn withdraw(&mut self, from: Rank, cq: &Cq) -> Option<(Behind, Vec<Completion>)> {
        let Made { mut target, .. } = self.made.remove(&from)?;
        let drained = match target.drain(&[cq]) {
            Ok(drained) => drained,
            // If it cannot be moved, it ends when it is closed.
            Err(error) => *error.drained,
        };
        let entry = (target.qp_num(), None);
        self.closing.push((self.list.len(), target));
        self.list.push(entry);
        self.close_known();
        Some((entry, drained.completions))
    }

    /// A part of another process's list. Gives what to answer, and the targets that begin or end with it.
    pub(super) fn read(
        &mut self,
        from: Rank,
        first: u32,
        part: &[Behind],
    ) -> (Option<Body>, Vec<Behind>) {
        let Some(reader) = self.readers.iter_mut().find(|reader| reader.rank == from) else {
            return (None, Vec::new());
        };
        // What lies between is sent again when it is known what is known here.
        let skip = reader.known.checked_sub(first as usize);
        let news = skip.and_then(|skip| part.get(skip..)).unwrap_or(&[]);
        for &(qp_num, behind) in news {
            match behind {
                None => drop(self.opened.remove(&qp_num)),
                Some(initiator) => {
                    // It may be gone by now, and what came by it is still to be taken from the CQ.
                    if let Ok(target) = self.domain.open_target(qp_num) {
                        self.opened.insert(qp_num, (target, from, initiator));
                    }
                }
            }
        }
        reader.known += news.len();
        let known = reader.known as u32;
        (Some(Body::Seen { known }), news.to_vec())
    }

    /// Lets go of what these made for an initiator. Gives the entries that say so.
    pub(super) fn let_go(&mut self, initiator: Rank, makers: &[Rank]) -> Vec<Behind> {
        let opened = self.opened.extract_if(|_, (_, maker, of)| {
            let is_its = *of == initiator;
            is_its && makers.contains(maker)
        });
        opened.map(|(qp_num, _)| (qp_num, None)).collect()
    }

    /// Another process knows so much of the own list.
    pub(super) fn seen(&mut self, from: Rank, known: u32, now: Instant) {
        let length = self.list.len();
        if let Some(reader) = self.readers.iter_mut().find(|reader| reader.rank == from) {
            reader.knows = reader.knows.max((known as usize).min(length));
            reader.next = now;
        }
        self.close_known();
    }

    /// A process of the node is gone: it need know nothing. What it has made yet is taken in all the same.
    pub(super) fn forget_reader(&mut self, gone: Rank) {
        let mut readers = self.readers.iter_mut();
        if let Some(reader) = readers.find(|reader| reader.rank == gone) {
            reader.is_there = false;
        }
        self.close_known();
    }

    /// Entries of the own list that all others know.
    fn all_know(&self) -> usize {
        let readers = self.readers.iter().filter(|reader| reader.is_there);
        let all_know = readers.map(|reader| reader.knows).min();
        all_know.unwrap_or(self.list.len())
    }

    fn close_known(&mut self) {
        let all_know = self.all_know();
        self.closing.retain(|(at, _)| *at >= all_know);
    }

    /// Initiators whose targets all processes of the node have opened since this was asked last, and what to tell them.
    pub(super) fn newly_shared(&mut self) -> Vec<(Rank, Body)> {
        let all_know = self.all_know();
        let news = std::mem::replace(&mut self.shared, all_know)..all_know;
        let made = self.made.iter().filter(|(_, made)| news.contains(&made.at));
        made.map(|(rank, made)| (*rank, made.hello(true))).collect()
    }

    /// The parts of the list that it is time to send.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Rank, Body)> {
        let mut due = Vec::new();
        for reader in &mut self.readers {
            if !reader.lacks(self.list.len()) || now < reader.next {
                continue;
            }
            reader.next = now + PAUSE;
            let part = &self.list[reader.knows..];
            let body = Body::Targets {
                first: reader.knows as u32,
                targets: part[..part.len().min(MOST_TARGETS)].to_vec(),
            };
            due.push((reader.rank, body));
        }
        due
    }

    /// When a part of the list is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let behind = self.readers.iter().filter(|r| r.lacks(self.list.len()));
        behind.map(|reader| reader.next).min()
    }

    /// Whether all processes of the node know the whole list.
    pub(super) fn is_read(&self) -> bool {
        self.all_know() == self.list.len()
    }

    /// Initiators that have a target here.
    pub(super) fn initiators(&self) -> impl Iterator<Item = Rank> {
        self.made.keys().copied()
    }
}

/// What an initiator's hello led to.
#[derive(Default)]
pub(super) struct HeardInitiator {
    /// What to answer.
    pub(super) reply: Option<Body>,
    /// Why its target cannot be connected to it.
    pub(super) refused: Option<ConnectError>,
    /// Targets that began or ended with it.
    pub(super) changes: Vec<Behind>,
    /// What had come by a target that ended, and was not polled: it is still that initiator's.
    pub(super) completions: Vec<Completion>,
}

/// What a new target needs.
#[derive(Clone, Copy)]
pub(super) struct NewTarget<'a> {
    pub(super) cq: &'a Cq,
    pub(super) gid: GidEntry,
    pub(super) life: u32,
    pub(super) timing: Timing,
    pub(super) connect_within: Duration,
    pub(super) now: Instant,
}

impl NewTarget<'_> {
    fn make(self, domain: &XrcDomain, at: usize) -> Result<Made, MeshError> {
        let target = domain.create_target();
        let mut target = target.map_err(step("making a target"))?;
        let entered = target.report_on(self.cq);
        entered.map_err(step("entering a target"))?;
        let handshake = Handshake::new(&mut target, self.gid, self.life, self.now);
        let handshake = handshake.map_err(step("describing a target"))?;
        Ok(Made {
            target,
            handshake,
            at,
            since: self.now,
        })
    }
}
