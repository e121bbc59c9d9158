//! What goes wrong.

use std::time::Duration;

use rdma_soft::core::time::Instant;

use super::end::Process;
use super::world::{Happening, World, address};
use crate::round::Verdict;

/// Something that goes wrong, or is right again.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// A process is killed.
    Kill(usize),
    /// A host is gone, without a word.
    Crash(usize),
    /// A process is started, if there is none.
    Start(usize),
    /// A process stands still.
    Freeze(usize),
    /// It goes on.
    Thaw(usize),
    /// The links are cut until that time.
    Cut(Instant),
    /// The same, as soon as a host has received a message: its acknowledgement is lost.
    CutBehindMessage(usize, Instant),
    /// A port goes down or up.
    Port(usize, bool),
    /// The address of a host changes.
    Address(usize),
    /// The device of a host is gone, and its process ends because of it.
    Remove(usize),
}

impl World {
    /// Plans the troubles of a round; gives the time when the last is over.
    pub fn plan_troubles(&mut self) -> Instant {
        let mut at = self.now + Duration::from_millis(200);
        let mut over = at;
        for _ in 0..1 + self.rng.below(5) {
            at = at + Duration::from_millis(self.rng.below(6000));
            let host = self.rng.below(2) as usize;
            // A process is started three seconds after it died, or at any other time.
            let lasts = match self.rng.chance(0.5) {
                true => Duration::from_secs(3),
                false => Duration::from_millis(self.rng.below(5000)),
            };
            let end = at + lasts;
            let (begin, end_) = match self.rng.below(11) {
                0..4 => (Trouble::Kill(host), Trouble::Start(host)),
                4 => (Trouble::Crash(host), Trouble::Start(host)),
                5 => (Trouble::Freeze(host), Trouble::Thaw(host)),
                6 => {
                    // It never goes on, but is killed, and started again.
                    self.agenda
                        .add(end, Happening::Trouble(Trouble::Kill(host)));
                    (Trouble::Freeze(host), Trouble::Start(host))
                }
                7 if self.rng.chance(0.5) => (Trouble::Cut(end), Trouble::Cut(end)),
                7 => {
                    let cut = Trouble::CutBehindMessage(host, end);
                    (cut, cut)
                }
                8 => (Trouble::Port(host, false), Trouble::Port(host, true)),
                9 => (Trouble::Address(host), Trouble::Address(host)),
                _ => (Trouble::Remove(host), Trouble::Start(host)),
            };
            self.agenda.add(at, Happening::Trouble(begin));
            let end = end + Duration::from_millis(1);
            self.agenda.add(end, Happening::Trouble(end_));
            over = over.max(end);
        }
        // Whatever has become of them in between, in the end all are there.
        let over = over + Duration::from_millis(1);
        for host in 0..2 {
            for trouble in [
                Trouble::Thaw(host),
                Trouble::Start(host),
                Trouble::Port(host, true),
            ] {
                self.agenda.add(over, Happening::Trouble(trouble));
            }
        }
        over + Duration::from_millis(1)
    }

    /// A time up to so many microseconds from now on.
    pub fn soon(&mut self, micros: u64) -> Instant {
        self.now + Duration::from_micros(self.rng.below(micros + 1))
    }

    /// Something goes wrong, or is right again.
    pub fn trouble(&mut self, trouble: Trouble) -> Verdict {
        self.tell(|| format!("{trouble:?}"));
        let at = self.at();
        match trouble {
            Trouble::Remove(host) => {
                let frozen = self.hosts[host].frozen;
                if let Some(process) = self.hosts[host].process.as_mut().filter(|_| !frozen) {
                    process.removed = true;
                    process.machine.device_removed(at);
                    self.act(host)?;
                    let over = |process: &Process| process.machine.is_over();
                    if !self.hosts[host].process.as_ref().is_some_and(over) {
                        return Err(format!("host {host} goes on without its device"));
                    }
                }
                return self.trouble(Trouble::Kill(host));
            }
            Trouble::Kill(host) | Trouble::Crash(host) => {
                if self.hosts[host].process.is_none() {
                    return Ok(());
                }
                self.tally.troubles += 1;
                // What was received was received, whether or not the application has seen it.
                self.events(host)?;
                match trouble {
                    Trouble::Crash(_) => self.hosts[host].gone = true,
                    _ => self.hang_up(host),
                }
                let h = &mut self.hosts[host];
                h.process = None;
                (h.frozen, h.moved) = (false, false);
                h.socket.clear();
                h.held.clear();
                self.must_notice(1 - host, "the process of its peer is dead");
            }
            Trouble::Start(host) => {
                if self.hosts[host].process.is_none() {
                    self.start(host)?;
                }
            }
            Trouble::Freeze(host) => {
                if self.hosts[host].process.is_some() {
                    self.tally.troubles += 1;
                    self.hosts[host].frozen = true;
                    self.disturb(host);
                }
            }
            Trouble::Thaw(host) => {
                if std::mem::take(&mut self.hosts[host].frozen) {
                    let h = &mut self.hosts[host];
                    if let Some(process) = &mut h.process {
                        process.machine.port(at, h.port_up);
                        if std::mem::take(&mut h.moved) {
                            process.machine.gid_changed(at);
                        }
                    }
                    self.act(host)?;
                    for (id, note) in std::mem::take(&mut self.hosts[host].held) {
                        self.note(host, id, note)?;
                    }
                    self.wake_at(host, self.now);
                }
            }
            Trouble::Cut(until) => {
                if self.now < until {
                    self.tally.troubles += 1;
                    self.cut = self.cut.max(until);
                }
            }
            Trouble::CutBehindMessage(host, until) => {
                self.cut_behind = (self.now < until).then_some((host, until));
            }
            Trouble::Port(host, up) => {
                if self.hosts[host].port_up == up {
                    return Ok(());
                }
                self.tally.troubles += u64::from(!up);
                self.hosts[host].port_up = up;
                self.disturb(host);
                if let Some(process) = &mut self.hosts[host].process
                    && !self.hosts[host].frozen
                {
                    process.machine.port(at, up);
                    self.act(host)?;
                    self.wake_at(host, self.now);
                }
            }
            Trouble::Address(host) => {
                self.tally.troubles += 1;
                let other = self.hosts[host].address == address(host, false);
                self.hosts[host].address = address(host, other);
                let config = self.config(host).ports.remove(0);
                if let Some(process) = &mut self.hosts[host].process {
                    let set = process.engine.set_port(1, config);
                    set.map_err(|error| error.to_string())?;
                    match self.hosts[host].frozen {
                        true => self.hosts[host].moved = true,
                        false => process.machine.gid_changed(at),
                    }
                    self.act(host)?;
                    self.wake_at(host, self.now);
                }
            }
        }
        Ok(())
    }

    /// A host has trouble of its own, which may keep it from noticing others'.
    fn disturb(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        h.disturbed = h.lives.len();
    }
}
