//! The way to one address.

use std::net::IpAddr;
use std::time::Duration;

use super::Connection;
use super::ring::{Asked, Broken, Sender};
use crate::core::time::Instant;

/// How long a receiver may take to answer; on a busy machine its thread may have to wait for a processor.
const PATIENCE: Duration = Duration::from_secs(2);

/// For so long nothing went to an address by UDP before shared memory is tried: what was sent has arrived.
const QUIET: Duration = Duration::from_secs(1);

/// A receiver that has made no room for so long does not listen; by UDP the system drops what it does not take.
const STALLED: Duration = Duration::from_secs(1);

/// A request that was executed, and whose sender had asked: the ways that its packet went, and what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Executed {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) asked: Asked,
}

/// The way from an address of this node to another one, which may be a node of this host.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) state: State,
    /// Queue Pairs wait until there is room, or another way.
    pub(super) waits: bool,
}

#[derive(Debug)]
pub(super) enum State {
    /// By UDP, for the last time then; or nothing went there yet.
    Udp(Option<Instant>),
    /// Until the receiver answers, but not longer.
    Opening {
        connection: Connection,
        sender: Sender,
        until: Instant,
    },
    /// Through shared memory.
    Up {
        connection: Connection,
        sender: Sender,
        /// There has been no room since then.
        full_since: Option<Instant>,
    },
}

/// What becomes of the next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It goes by UDP.
    Udp,
    /// Shared memory is to be tried.
    Open,
    /// It goes through shared memory, where there is room.
    Ring,
    /// It waits.
    Wait,
    /// As `Udp`: the receiver has written what it never would.
    Broken,
}

impl Outgoing {
    pub(super) fn new(src: IpAddr, dst: IpAddr) -> Outgoing {
        Outgoing {
            src,
            dst,
            state: State::Udp(None),
            waits: false,
        }
    }

    pub(super) fn opening(connection: Connection, sender: Sender, now: Instant) -> State {
        State::Opening {
            connection,
            sender,
            until: now + PATIENCE,
        }
    }

    /// Decides about a packet that is about to go. `executed` gets what is heard of earlier ones.
    #[inline]
    pub(super) fn next(&mut self, now: Instant, executed: &mut Vec<Executed>) -> Next {
        let hear = hear(self.src, self.dst, executed);
        let next = match &mut self.state {
            State::Udp(last) if is_over(*last, now) => return Next::Open,
            State::Udp(_) => Next::Udp,
            State::Opening { until, .. } if now < *until => Next::Wait,
            State::Opening { .. } => Next::Udp,
            State::Up {
                sender, full_since, ..
            } => match sender.has_room(hear) {
                Ok(true) => {
                    *full_since = None;
                    Next::Ring
                }
                Ok(false) => match now.since(*full_since.get_or_insert(now)) {
                    since if since < STALLED => Next::Wait,
                    _ => Next::Udp,
                },
                Err(_) => Next::Broken,
            },
        };
        match next {
            Next::Udp | Next::Broken => self.state = State::Udp(Some(now)),
            Next::Wait => self.waits = true,
            Next::Ring | Next::Open => {}
        }
        next
    }

    /// There may be another answer for those who wait.
    pub(super) fn relieved(&mut self, now: Instant, executed: &mut Vec<Executed>) -> bool {
        let hear = hear(self.src, self.dst, executed);
        if self.waits {
            self.waits = match &mut self.state {
                State::Udp(_) => false,
                State::Opening { until, .. } => now < *until,
                State::Up {
                    sender, full_since, ..
                } => {
                    let full = sender.has_room(hear) == Ok(false);
                    full && full_since.is_none_or(|since| now.since(since) < STALLED)
                }
            };
            return !self.waits;
        }
        false
    }

    /// The receiver may have executed what was asked for and is awaited, or with `all` whatever was asked for.
    #[inline]
    pub(super) fn has_news(&self, all: bool) -> bool {
        matches!(&self.state, State::Up { sender, .. } if sender.has_news(all))
    }

    /// Looks at what the receiver has executed.
    pub(super) fn look(&mut self, executed: &mut Vec<Executed>) -> Result<(), Broken> {
        let hear = hear(self.src, self.dst, executed);
        match &mut self.state {
            State::Up { sender, .. } => sender.look(hear),
            _ => Ok(()),
        }
    }

    /// When those who wait have an answer at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            _ if !self.waits => None,
            State::Udp(_) => None,
            State::Opening { until, .. } => Some(*until),
            State::Up { full_since, .. } => full_since.map(|since| since + STALLED),
        }
    }

    /// Nothing is to be known of it: it is as if nothing had ever gone there.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        matches!(self.state, State::Udp(last) if is_over(last, now))
    }

    /// The receiver has answered; or it is gone, or broken, or will not.
    pub(super) fn answered(&mut self, yes: bool, now: Instant) {
        let udp = State::Udp(Some(now));
        self.state = match std::mem::replace(&mut self.state, udp) {
            State::Opening {
                connection, sender, ..
            } if yes => State::Up {
                connection,
                sender,
                full_since: None,
            },
            _ => State::Udp(Some(now)),
        };
    }

    pub(super) fn connection(&self) -> Option<&Connection> {
        match &self.state {
            State::Udp(_) => None,
            State::Opening { connection, .. } | State::Up { connection, .. } => Some(connection),
        }
    }

    /// The ring, if packets go through it.
    pub(super) fn ring(&mut self) -> Option<(&mut Sender, &Connection)> {
        match &mut self.state {
            State::Up {
                sender, connection, ..
            } => Some((sender, connection)),
            _ => None,
        }
    }
}

/// Keeps what was executed. One that is acknowledged stands for all before it of its Queue Pair.
fn hear(src: IpAddr, dst: IpAddr, executed: &mut Vec<Executed>) -> impl FnMut(Asked) {
    move |asked| match executed.last_mut() {
        Some(last) if last.asked.qp_num == asked.qp_num => last.asked = asked,
        _ => executed.push(Executed { src, dst, asked }),
    }
}

/// Nothing went by UDP for long enough, if anything did at all.
fn is_over(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.since(last) >= QUIET)
}
