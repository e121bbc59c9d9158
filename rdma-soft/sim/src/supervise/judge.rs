//! What may come of a round.

use std::fmt;
use std::time::Duration;

use rdma_core_sys::rules::Transport;
use rdma_qp::supervise::Proof;
use rdma_soft::core::time::Instant;

use super::world::World;
use crate::round::Verdict;

/// One life of a connection, as its sender knows it.
#[derive(Debug, Default)]
pub struct Life {
    /// What tells the peer's life from its others.
    pub peer: u32,
    /// The numbers of the messages that were posted.
    pub posted: Vec<u64>,
    /// What became of them.
    pub done: Vec<u64>,
    /// See `done`.
    pub not_done: Vec<u64>,
    /// See `done`.
    pub unknown: Vec<u64>,
    /// When one was done last.
    pub last: Instant,
    /// There was a report.
    pub over: bool,
}

/// A message that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Its number.
    pub number: u64,
    /// What tells the life that it arrived in.
    pub key: u32,
}

/// A death that must be noticed.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Who must notice.
    pub host: usize,
    /// Its incarnation, and the life that must have ended.
    pub incarnation: u64,
    /// See `incarnation`.
    pub lives: usize,
    /// What had happened.
    pub what: &'static str,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Rounds on RC, UC, UD and XRC.
    pub rounds: [u64; 4],
    /// Messages that were posted.
    pub sent: u64,
    /// Messages that arrived.
    pub received: u64,
    /// Probes, and those that were answered.
    pub probes: u64,
    /// See `probes`.
    pub answered: u64,
    /// Troubles.
    pub troubles: u64,
    /// Connections that were found dead.
    pub deaths: u64,
    /// Connections that were made, the first ones included.
    pub recoveries: u64,
    /// Messages of unknown fate.
    pub unknown: u64,
    /// Messages that were not done.
    pub not_done: u64,
    /// Those of unknown fate that had been received.
    pub unknown_received: u64,
    /// The longest time without connection.
    pub longest: Duration,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: &Tally) {
        for (sum, more) in self.rounds.iter_mut().zip(other.rounds) {
            *sum += more;
        }
        self.sent += other.sent;
        self.received += other.received;
        self.probes += other.probes;
        self.answered += other.answered;
        self.troubles += other.troubles;
        self.deaths += other.deaths;
        self.recoveries += other.recoveries;
        self.unknown += other.unknown;
        self.not_done += other.not_done;
        self.unknown_received += other.unknown_received;
        self.longest = self.longest.max(other.longest);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["RC", "UC", "UD", "XRC"].iter().zip(self.rounds);
        for (name, count) in names.filter(|(_, count)| *count > 0) {
            write!(f, "{count} {name}, ")?;
        }
        write!(
            f,
            "{} troubles, {} deaths noticed, {} connections made, without one for at most {:.1?}; {} messages sent, {} received, \
             {} probes, {} answered; {} not done, {} of unknown fate, of which {} were received",
            self.troubles,
            self.deaths,
            self.recoveries,
            self.longest,
            self.sent,
            self.received,
            self.probes,
            self.answered,
            self.not_done,
            self.unknown,
            self.unknown_received
        )
    }
}

impl World {
    /// From now on the process of a host must notice within the promised time that the connection is dead, if there is one.
    pub fn must_notice(&mut self, host: usize, what: &'static str) {
        let h = &self.hosts[host];
        let Some(process) = &h.process else { return };
        if !process.machine.is_up() || h.frozen || !h.port_up {
            return;
        }
        let watch = Watch {
            host,
            incarnation: h.incarnation,
            lives: h.lives.len(),
            what,
        };
        // What is under way may be heard still.
        let within = self.options.notices_within(self.proof()) + self.link_delay * 2;
        let at = self.now + within;
        self.agenda.add(at, super::world::Happening::Watch(watch));
    }

    /// Whether a death was noticed.
    pub fn watch(&mut self, watch: &Watch) -> Verdict {
        let h = &self.hosts[watch.host];
        let same = h.incarnation == watch.incarnation && h.lives.len() == watch.lives;
        let over = h.lives.last().is_none_or(|life| life.over);
        // A trouble of its own may have kept it from looking.
        if same
            && !over
            && h.process.is_some()
            && h.port_up
            && !h.frozen
            && !h.gone
            && h.disturbed < watch.lives
        {
            let Watch { host, what, .. } = watch;
            return Err(format!("host {host} has not noticed in time that {what}"));
        }
        Ok(())
    }

    /// Whether both ends are connected and messages of after that time have gone both ways.
    pub fn is_well(&mut self, since: Instant) -> bool {
        let up = self.hosts.iter().all(|h| {
            let process = h.process.as_ref().filter(|_| !h.frozen);
            process.is_some_and(|process| process.machine.is_up())
        });
        up && [0, 1].iter().all(|&host| {
            let life = self.hosts[host].lives.last();
            life.is_some_and(|life| life.last > since)
        })
    }

    /// What to say of a world that does not come to an end.
    pub fn hung(&self) -> String {
        let of = |host: usize| match &self.hosts[host].process {
            Some(process) => format!("host {host}: {:?}", process.machine),
            None => format!("host {host} is dead"),
        };
        format!("not well in time; {}; {}", of(0), of(1))
    }

    /// Judges a round that is over.
    pub fn judge(&mut self) -> Verdict {
        for host in 0..2 {
            let numbers = self.hosts[1 - host]
                .log
                .iter()
                .map(|arrived| arrived.number);
            let mut log: Vec<u64> = numbers.collect();
            // Datagrams may overtake one another, and come twice.
            if self.transport == Transport::Ud {
                log.sort_unstable();
                log.dedup();
            }
            if !log.is_sorted_by(|a, b| a < b) {
                return Err(format!("host {} received twice or out of order", 1 - host));
            }
            self.of_their_lives(host)?;
            let mut unknown_received = 0;
            for life in &self.hosts[host].lives {
                let has = |number: &&u64| log.binary_search(number).is_ok();
                let received: Vec<u64> = life.posted.iter().filter(has).copied().collect();
                // What is not acknowledged may be lost anywhere.
                let acknowledged = self.proof() != Proof::Echo;
                if acknowledged && !life.posted.starts_with(&received) {
                    return Err(format!(
                        "of host {host} something in the middle was not received"
                    ));
                }
                if acknowledged && !received.starts_with(&life.done) {
                    return Err(format!(
                        "of host {host} something is done that was not received"
                    ));
                }
                if !life.over {
                    continue;
                }
                let all = [&life.done[..], &life.not_done, &life.unknown].concat();
                if all != life.posted {
                    return Err(format!(
                        "of host {host} {:?} were posted, {:?} are done, {:?} not, {:?} unknown",
                        life.posted, life.done, life.not_done, life.unknown
                    ));
                }
                if let Some(number) = life.not_done.iter().find(has) {
                    return Err(format!(
                        "{number} of host {host} is not done and was received"
                    ));
                }
                unknown_received += life.unknown.iter().filter(has).count() as u64;
            }
            self.tally.unknown_received += unknown_received;
        }
        Ok(())
    }

    /// Whatever arrived did so in the life of the receiver's that its sender sent it to.
    fn of_their_lives(&self, host: usize) -> Verdict {
        for Arrived { number, key } in &self.hosts[1 - host].log {
            let lives = &self.hosts[host].lives;
            let life = lives.iter().find(|life| life.posted.contains(number));
            match life {
                Some(life) if life.peer == *key => {}
                Some(life) => {
                    return Err(format!(
                        "{number} of host {host} came in another life: it was for {:#x}, and that was {key:#x}",
                        life.peer
                    ));
                }
                None => return Err(format!("{number} of host {host} was never sent")),
            }
        }
        Ok(())
    }
}
