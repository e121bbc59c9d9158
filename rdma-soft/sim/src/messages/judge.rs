//! What may come of a round.

use std::fmt;
use std::time::Duration;

use rdma_qp::Fate;
use rdma_qp::datagram::Counters;
use rdma_soft::core::time::Instant;

use super::world::{Happening, World};
use crate::round::Verdict;

/// What became of a message, as its sender was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing yet.
    Nothing,
    /// It was acknowledged.
    Done,
    /// It was given up.
    Lost(Fate),
    /// Its sender died before it was told anything.
    Nobody,
}

/// A message.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Who sent it, and to whom.
    pub from: usize,
    /// See `from`.
    pub to: usize,
    /// Its length.
    pub len: usize,
    /// When it was sent.
    pub at: Duration,
    /// How often it was received.
    pub got: u32,
    /// What its sender was told.
    pub told: Told,
}

/// A death that must be noticed.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Who must notice.
    pub host: usize,
    /// The life in which it must.
    pub incarnation: u64,
    /// Whose death.
    pub peer: usize,
    /// Sessions with that one that had ended before.
    pub ended: u64,
    /// What had happened.
    pub what: &'static str,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Hosts.
    pub hosts: u64,
    /// Messages that were sent.
    pub sent: u64,
    /// Those that were acknowledged.
    pub done: u64,
    /// Those that were reported as not done, and as of unknown fate.
    pub not_done: u64,
    /// See `not_done`.
    pub unknown: u64,
    /// Those of unknown fate that had been received.
    pub unknown_received: u64,
    /// Bytes of messages that were received.
    pub bytes: u64,
    /// Troubles.
    pub troubles: u64,
    /// Deaths, restarts and connections that were told.
    pub dead: u64,
    /// See `dead`.
    pub restarted: u64,
    /// See `dead`.
    pub connected: u64,
    /// Deaths that had to be noticed, and were.
    pub noticed: u64,
    /// Messages that were lost, and for whose loss there had to be a reason.
    pub lost_judged: u64,
    /// Ends that introduced themselves.
    pub introduced: u64,
    /// Ends that a host which listens was told of.
    pub told: u64,
    /// Packets for which there had been room, and was no more.
    pub lapsed: u64,
    /// Frames that came seconds late, and datagrams of strangers.
    pub replays: u64,
    /// See `replays`.
    pub strange: u64,
    /// Datagrams that found no receive.
    pub no_receive: u64,
    /// The machines' own counters, of lives that are over.
    pub packets: u64,
    /// See `packets`.
    pub repeated: u64,
    /// See `packets`.
    pub duplicates: u64,
    /// See `packets`.
    pub stale: u64,
}

impl Tally {
    /// Adds what a machine has counted.
    pub fn count(&mut self, counters: &Counters) {
        self.packets += counters.sent;
        self.repeated += counters.repeated;
        self.duplicates += counters.duplicates;
        self.stale += counters.stale;
        self.lapsed += counters.lapsed;
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Tally) {
        let Tally {
            hosts,
            sent,
            done,
            not_done,
            unknown,
            unknown_received,
            bytes,
            troubles,
            dead,
            restarted,
            connected,
            noticed,
            lost_judged,
            introduced,
            told,
            lapsed,
            replays,
            strange,
            no_receive,
            packets,
            repeated,
            duplicates,
            stale,
        } = other;
        for (own, other) in [
            (&mut self.hosts, hosts),
            (&mut self.sent, sent),
            (&mut self.done, done),
            (&mut self.not_done, not_done),
            (&mut self.unknown, unknown),
            (&mut self.unknown_received, unknown_received),
            (&mut self.bytes, bytes),
            (&mut self.troubles, troubles),
            (&mut self.dead, dead),
            (&mut self.restarted, restarted),
            (&mut self.connected, connected),
            (&mut self.noticed, noticed),
            (&mut self.lost_judged, lost_judged),
            (&mut self.introduced, introduced),
            (&mut self.told, told),
            (&mut self.lapsed, lapsed),
            (&mut self.replays, replays),
            (&mut self.strange, strange),
            (&mut self.no_receive, no_receive),
            (&mut self.packets, packets),
            (&mut self.repeated, repeated),
            (&mut self.duplicates, duplicates),
            (&mut self.stale, stale),
        ] {
            *own += other;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} hosts, {} troubles, {} deaths noticed in time; {} sessions begun, {} ended by silence, {} by a restart; \
             {} messages sent, {} acknowledged, {} not done, {} of unknown fate, of which {} were received; {} bytes; \
             {} packets sent, {} again, {} came twice, {} of sessions that were over, {} found no receive, {} no room that they \
             had been told of; {} introduced themselves, {} were told of beside; {} losses had to have a reason; {} replays, {} of strangers",
            self.hosts,
            self.troubles,
            self.noticed,
            self.connected,
            self.dead,
            self.restarted,
            self.sent,
            self.done,
            self.not_done,
            self.unknown,
            self.unknown_received,
            self.bytes,
            self.packets,
            self.repeated,
            self.duplicates,
            self.stale,
            self.no_receive,
            self.lapsed,
            self.introduced,
            self.told,
            self.lost_judged,
            self.replays,
            self.strange,
        )
    }
}

/// The longest time between two looks of an application that looks now and then only.
pub const LAZY: Duration = Duration::from_secs(3);

impl World {
    /// From now on everybody who has a session with `peer` must notice within the promised time that it is over.
    pub fn must_notice(&mut self, peer: usize, what: &'static str) {
        for host in 0..self.hosts.len() {
            self.must_notice_at(host, peer, what);
        }
    }

    /// As [`World::must_notice`], for one host.
    pub fn must_notice_at(&mut self, host: usize, peer: usize, what: &'static str) {
        let h = &self.hosts[host];
        let Some(process) = h.process.as_ref().filter(|_| !h.frozen && host != peer) else {
            return;
        };
        let Some(within) = process.options.notices_within() else {
            return;
        };
        let connected = process.peers[peer].is_some_and(|peer| process.machine.is_connected(peer));
        // What comes seconds late may be of the session still, and counts as heard.
        if !connected || self.replays > 0.0 {
            return;
        }
        let watch = Watch {
            host,
            incarnation: h.incarnation,
            peer,
            ended: h.ended[peer],
            what,
        };
        // What is under way may be heard still.
        let at = self.now + within + self.slowest * 2;
        self.agenda.add(at, Happening::Watch(watch));
    }

    /// Whether a death was noticed.
    pub fn watch(&mut self, watch: &Watch) -> Verdict {
        let Watch {
            host,
            incarnation,
            peer,
            ended,
            what,
        } = *watch;
        self.events(host, usize::MAX)?;
        let h = &self.hosts[host];
        // Trouble of its own may have kept it from looking.
        if h.incarnation != incarnation || h.process.is_none() || h.disturbed == incarnation {
            return Ok(());
        }
        if h.ended[peer] == ended {
            return Err(format!(
                "host {host} has not noticed in time that {what} (host {peer})"
            ));
        }
        self.tally.noticed += 1;
        Ok(())
    }

    /// Something happens to a host, now.
    pub fn disturb(&mut self, host: usize) {
        for other in 0..self.hosts.len() {
            self.disturb_pair(host, other, self.now);
        }
    }

    /// Something keeps two hosts from one another, until then.
    pub fn disturb_pair(&mut self, one: usize, other: usize, until: Instant) {
        let hosts = self.hosts.len();
        for pair in [one * hosts + other, other * hosts + one] {
            self.troubled[pair] = self.troubled[pair].max(Some(until));
        }
    }

    /// A message was told as lost, now: that may only be if something happened to its sender or receiver, or came between them,
    /// and not long ago. Each end may find out by silence, one after the other, that a session is over, and that twice.
    pub fn may_be_lost(&mut self, sent: &Sent) -> Verdict {
        if !self.gentle {
            return Ok(());
        }
        let mut within = self.slowest * 8;
        for host in [sent.from, sent.to] {
            let h = &self.hosts[host];
            if h.frozen || h.process.is_none() {
                return Ok(());
            }
            if h.lazy {
                // It may have been told long ago.
                within += LAZY;
            }
            let options = &self.hosts[host].options;
            let notices = options.notices_within();
            let since = self.troubled[sent.from * self.hosts.len() + sent.to];
            // Who asks nobody finds out when it sends something, whenever that is.
            let (Some(notices), true) = (notices, since.is_some()) else {
                if since.is_some() {
                    return Ok(());
                }
                continue;
            };
            within += (notices + options.dead_after) * 2;
        }
        self.tally.lost_judged += 1;
        let since = self.troubled[sent.from * self.hosts.len() + sent.to];
        match since {
            Some(since) if self.now < since + within => Ok(()),
            _ => Err(format!(
                "{sent:?} was told as lost, though both hosts live, can reach each other, and had no trouble for {within:?}: the \
                 last was at {since:?}"
            )),
        }
    }

    /// Whether everybody's messages of after that time have reached everybody.
    pub fn all_reached(&self, since: Duration) -> bool {
        let hosts = self.hosts.len();
        (0..hosts * hosts).all(|pair| {
            let (from, to) = (pair / hosts, pair % hosts);
            from == to || self.hosts[from].reached[to] > since
        })
    }

    /// What to say of a world that does not come to an end.
    pub fn hung(&self) -> String {
        let waits = |sent: &&Sent| sent.told == Told::Nothing;
        let first = self.sent.iter().find(waits);
        let closing = match self.closing {
            true => "though nobody sends any more",
            false => "and not everybody has reached everybody",
        };
        format!(
            "not well in time: {} messages without a fate, the first of them {first:?}, {closing}",
            self.open
        )
    }

    /// Judges a round that is over.
    pub fn judge(&mut self) -> Verdict {
        for (number, sent) in self.sent.iter().enumerate() {
            let Sent {
                from,
                to,
                got,
                told,
                ..
            } = *sent;
            let wrong = match told {
                Told::Nothing => "has no fate",
                Told::Done if got != 1 => "was acknowledged and not received",
                Told::Lost(Fate::NotDone) if got > 0 => "was reported as not done and was received",
                Told::Lost(Fate::Done) => "was reported as lost and done",
                _ => continue,
            };
            return Err(format!(
                "message {number} from {from} to {to} {wrong}: {sent:?}"
            ));
        }
        let of = |told: Told| self.sent.iter().filter(move |sent| sent.told == told);
        let unknown = Told::Lost(Fate::Unknown);
        self.tally.done = of(Told::Done).count() as u64;
        self.tally.not_done = of(Told::Lost(Fate::NotDone)).count() as u64;
        self.tally.unknown = of(unknown).count() as u64;
        self.tally.unknown_received = of(unknown).filter(|sent| sent.got > 0).count() as u64;
        self.tally.bytes = self
            .sent
            .iter()
            .map(|sent| sent.len as u64 * u64::from(sent.got))
            .sum();
        Ok(())
    }
}
