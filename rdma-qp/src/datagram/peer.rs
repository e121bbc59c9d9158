//! One peer: the session with it, and how one begins.

use std::ops::Deref;
use std::time::Duration;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::wire::{Header, Kind};
use super::{Address, Options};

/// Two lives that know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) own: u64,
    pub(super) theirs: u64,
}

/// A session that may come to be. Who names `own` lives now, because it was drawn just before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub(super) own: u64,
    /// This end wants it: when it asks again, and how often it did.
    asks: Option<(Duration, u32)>,
}

/// What is to be sent to a peer next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Some former life of this end, or of nobody, is over.
    Reset(Session),
    /// To that life of the peer; 0: to whoever is there.
    Hello(u64),
    /// A packet of a message.
    Data(u64),
    /// Nothing but numbers.
    Ack,
}

#[derive(Debug)]
pub(super) struct Peer<B> {
    pub(super) address: Address,
    /// How much of a message one packet takes to it.
    pub(super) payload: usize,
    pub(super) max_message: u32,
    pub(super) session: Option<Session>,
    /// How many there were.
    pub(super) serial: u64,
    pub(super) opening: Option<Opening>,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming<B>,
    pub(super) hello: Option<u64>,
    pub(super) reset: Option<Session>,
    /// An answer is wanted.
    pub(super) ask: bool,
    /// It is in the list of those to whom something is to be sent.
    pub(super) ready: bool,
    /// Sessions that began or ended without having been told to the application yet.
    pub(super) untold: u32,
    heard: Duration,
    /// Since when an answer is missing.
    asked: Option<Duration>,
    /// When it was asked last whether it is there.
    beat: Duration,
    /// It came by itself, and has not proven that it is where it says: when it is given up, and which life of it is to prove it.
    pub(super) unproven: Option<(Duration, u64)>,
    /// When the machine looks after it, at the latest.
    pub(super) armed: Option<Duration>,
}

impl<B: Deref<Target = [u8]>> Peer<B> {
    pub(super) fn new(
        address: Address,
        payload: usize,
        max_message: u32,
        options: &Options,
    ) -> Peer<B> {
        Peer {
            address,
            payload,
            max_message,
            session: None,
            serial: 0,
            opening: None,
            outgoing: Outgoing::new(),
            incoming: Incoming::new(options.max_message),
            hello: None,
            reset: None,
            ask: false,
            ready: false,
            untold: 0,
            heard: Duration::ZERO,
            asked: None,
            beat: Duration::ZERO,
            unproven: None,
            armed: None,
        }
    }

    /// Begins to look for the peer, unless that is under way or there is a session. `draw` gives a new number.
    pub(super) fn seek(&mut self, now: Duration, options: &Options, draw: impl FnOnce() -> u64) {
        if self.session.is_some() {
            return;
        }
        let opening = self.opening.get_or_insert_with(|| Opening {
            own: draw(),
            asks: None,
        });
        if opening.asks.is_none() {
            opening.asks = Some((now.saturating_add(options.first_timeout), 0));
            (self.hello, self.asked) = (Some(0), Some(now));
        }
    }

    /// Answers who begins a session: once it names the number that this end draws, there is one.
    pub(super) fn answer_hello(&mut self, to: u64, draw: impl FnOnce() -> u64) {
        self.opening.get_or_insert_with(|| Opening {
            own: draw(),
            asks: None,
        });
        self.hello = Some(to);
    }

    /// A new session begins with what the peer knows of this end.
    pub(super) fn establish(&mut self, now: Duration, session: Session) {
        self.session = Some(session);
        self.serial += 1;
        (self.opening, self.hello) = (None, None);
        self.heard(now);
    }

    /// Forgets the session, or, if there is none, the search for one. What the peer was answered for its next session stays:
    /// it may have that answer already.
    pub(super) fn forget(&mut self) {
        if self.session.take().is_none() {
            (self.opening, self.hello) = (None, None);
        }
        (self.ask, self.asked) = (false, None);
    }

    /// Something of the present session came.
    pub(super) fn heard(&mut self, now: Duration) {
        self.heard = now;
        self.asked = self.outgoing.is_flying().then_some(now);
    }

    /// When the peer counts as dead if nothing is heard.
    fn dead_at(&self, options: &Options) -> Option<Duration> {
        Some(self.asked?.saturating_add(options.dead_after))
    }

    /// When it is asked whether it is there: if nothing was heard for long, and again until there is an answer, for question and
    /// answer may get lost.
    fn beat_at(&self, options: &Options) -> Option<Duration> {
        self.session?;
        match self.asked {
            None => Some(self.heard.saturating_add(options.heartbeat?)),
            // What is repeated asks by itself.
            Some(_) if self.outgoing.timer().is_some() => None,
            Some(_) => Some(self.beat.saturating_add(options.most_timeout())),
        }
    }

    /// When there is something to do although nothing comes.
    pub(super) fn next_timeout(&self, options: &Options) -> Option<Duration> {
        let hello = self.opening.and_then(|opening| opening.asks);
        let timers = [
            self.outgoing.timer().filter(|_| self.session.is_some()),
            self.incoming.timer().filter(|_| self.session.is_some()),
            hello.map(|(at, _)| at),
            self.dead_at(options),
            self.beat_at(options),
            self.unproven.map(|(until, _)| until),
        ];
        timers.into_iter().flatten().min()
    }

    /// Does what is due. `true`: the peer is dead.
    pub(super) fn timed_out(&mut self, now: Duration, options: &Options) -> bool {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        if is_due(self.dead_at(options)) {
            return true;
        }
        if let Some(Opening { asks, .. }) = &mut self.opening
            && let Some((at, tries)) = asks
            && *at <= now
        {
            *tries = (*tries + 1).min(16);
            let wait = options.first_timeout.saturating_mul(1 << *tries);
            let (least, most) = (options.least_timeout, options.most_timeout());
            *at = now.saturating_add(wait.clamp(least, most.max(least)));
            self.hello = Some(0);
        }
        if self.session.is_none() {
            return false;
        }
        if is_due(self.outgoing.timer()) {
            self.ask |= self.outgoing.timed_out(now, options);
        }
        if is_due(self.incoming.timer()) {
            self.incoming.timed_out();
        }
        if is_due(self.beat_at(options)) {
            (self.ask, self.beat) = (true, now);
        }
        if self.ask && self.asked.is_none() {
            self.asked = Some(now);
        }
        false
    }

    /// What is to be sent next.
    pub(super) fn step(&self) -> Option<Step> {
        if let Some(session) = self.reset {
            return Some(Step::Reset(session));
        }
        if let Some(to) = self.hello {
            return Some(Step::Hello(to));
        }
        self.session?;
        if let Some(seq) = self.outgoing.pick() {
            return Some(Step::Data(seq));
        }
        (self.ask || self.incoming.is_due()).then_some(Step::Ack)
    }

    /// The header of a packet of that kind, which leaves now. What it tells and asks is told and asked.
    pub(super) fn header(&mut self, kind: Kind, flags: u8) -> Header {
        let Session { own, theirs } = self.session.unwrap_or(Session { own: 0, theirs: 0 });
        let mut header = Header {
            kind,
            flags,
            ..Header::hello(own, theirs, 0)
        };
        self.incoming.tell(&mut header);
        self.ask = false;
        header
    }

    /// A packet leaves that wants an answer.
    pub(super) fn asks(&mut self, now: Duration) {
        if self.asked.is_none() {
            self.asked = Some(now);
        }
    }
}
