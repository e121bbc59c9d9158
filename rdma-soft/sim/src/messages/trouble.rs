//! What goes wrong.

use std::time::Duration;

use rdma_soft::core::time::Instant;

use super::world::{Happening, World};
use crate::round::Verdict;

/// Something that goes wrong, or is right again.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// A process is killed.
    Kill(usize),
    /// A process is started, if there is none.
    Start(usize),
    /// A process forgets everything, and is at the same address still.
    Forget(usize),
    /// A process stands still.
    Freeze(usize),
    /// It goes on.
    Thaw(usize),
    /// Hosts on different sides, one bit for each, are cut off from one another until that time.
    Cut(Instant, u64),
}

impl World {
    /// Plans the troubles of a round; gives the time when the last is over.
    pub fn plan_troubles(&mut self) -> Instant {
        let hosts = self.hosts.len() as u64;
        let mut at = self.now + Duration::from_millis(100);
        let mut over = at;
        for _ in 0..self.rng.below(7) {
            at = at + Duration::from_millis(self.rng.below(2500));
            let host = self.rng.below(hosts) as usize;
            let end = at + Duration::from_millis(1 + self.rng.below(4000));
            let (begin, end_) = match self.rng.below(10) {
                0..4 => (Trouble::Kill(host), Trouble::Start(host)),
                4..6 => (Trouble::Forget(host), Trouble::Start(host)),
                6..8 => (Trouble::Freeze(host), Trouble::Thaw(host)),
                _ => {
                    let side = self.rng.next_u64();
                    (Trouble::Cut(end, side), Trouble::Start(host))
                }
            };
            self.agenda.add(at, Happening::Trouble(begin));
            self.agenda.add(end, Happening::Trouble(end_));
            over = over.max(end);
        }
        for _ in 0..self.rng.below(20) {
            let host = self.rng.below(hosts) as usize;
            let at = self.soon(5_000_000);
            self.agenda.add(at, Happening::Stranger(host));
        }
        // Whatever has become of them in between, in the end all are there.
        let over = over + Duration::from_millis(1);
        for host in 0..self.hosts.len() {
            for trouble in [Trouble::Thaw(host), Trouble::Start(host)] {
                self.agenda.add(over, Happening::Trouble(trouble));
            }
        }
        over + Duration::from_millis(1)
    }

    /// Something goes wrong, or is right again.
    pub fn trouble(&mut self, trouble: Trouble) -> Verdict {
        self.tell(|| format!("{trouble:?}"));
        match trouble {
            Trouble::Kill(host) => {
                if self.hosts[host].process.is_some() {
                    self.tally.troubles += 1;
                    self.disturb(host);
                    self.end(host)?;
                    self.must_notice(host, "the process of its peer is dead");
                }
            }
            Trouble::Start(host) => {
                if self.hosts[host].process.is_none() {
                    self.disturb(host);
                    self.start(host)?;
                    self.introduce(host)?;
                }
            }
            Trouble::Forget(host) => {
                if self.hosts[host].process.is_some() && !self.hosts[host].frozen {
                    self.tally.troubles += 1;
                    self.disturb(host);
                    self.rebirth(host)?;
                    self.must_notice(host, "its peer has forgotten everything");
                }
            }
            Trouble::Freeze(host) => {
                if self.hosts[host].process.is_some() {
                    self.tally.troubles += 1;
                    self.disturb(host);
                    let h = &mut self.hosts[host];
                    (h.frozen, h.disturbed) = (true, h.incarnation);
                }
            }
            Trouble::Thaw(host) => {
                if std::mem::take(&mut self.hosts[host].frozen) {
                    self.disturb(host);
                    self.wake_at(host, self.now);
                }
            }
            Trouble::Cut(..) if self.now < self.cut.0 => {}
            Trouble::Cut(until, side) => {
                self.tally.troubles += 1;
                self.cut = (until, side);
                for (host, peer) in self.pairs() {
                    let within = self.hosts[host].options.notices_within();
                    let far = side >> host & 1 != side >> peer & 1;
                    if far {
                        self.disturb_pair(host, peer, until);
                    }
                    // A shorter one need not be noticed.
                    if far
                        && within.is_some_and(|within| self.now + within + self.slowest * 2 < until)
                    {
                        self.must_notice_at(host, peer, "its peer is cut off");
                    }
                }
            }
        }
        Ok(())
    }

    fn pairs(&self) -> Vec<(usize, usize)> {
        let hosts = self.hosts.len();
        let all = (0..hosts * hosts).map(|pair| (pair / hosts, pair % hosts));
        all.filter(|(host, peer)| host != peer).collect()
    }
}
