//! Room for what comes, promised to peers as they use it.

use std::time::Duration;

use super::wire::SACKS;

/// A peer from which nothing came for so long is idle: what it was promised goes back to the others.
pub(super) const KEEP: Duration = Duration::from_millis(200);

/// How long a promise is relied on by who sends nothing: long before it has lapsed.
pub(super) const RELY: Duration = Duration::from_millis(50);

/// Packets that each of so many peers may have under way, out of so many receives for messages.
pub(super) fn part(receives: u32, peers: u32) -> u32 {
    (receives / peers.max(1)).clamp(1, SACKS + 1)
}

/// The receives that are for messages, beyond the one packet that each peer may always send.
#[derive(Debug)]
pub(super) struct Pool {
    total: u32,
    promised: u32,
    /// Peers of which something came lately.
    active: u32,
    /// When it is looked next who is idle.
    pub(super) look: Duration,
}

impl Pool {
    pub(super) fn new(total: u32) -> Pool {
        Pool {
            total,
            promised: 0,
            active: 0,
            look: Duration::ZERO,
        }
    }

    /// Packets that each of those who send may have under way, as long as no more of them do.
    pub(super) fn share(&self) -> u32 {
        part(self.total, self.active)
    }

    /// Promises up to so many, if so many are left; tells how many.
    pub(super) fn promise(&mut self, most: u64) -> u64 {
        let left = u64::from(self.total - self.promised);
        let some = most.min(left);
        self.promised += some as u32;
        some
    }

    /// Promises all of them, or none.
    pub(super) fn promise_all(&mut self, all: u64) -> bool {
        let enough = all <= u64::from(self.total - self.promised);
        enough && self.promise(all) == all
    }

    /// So many promises are kept, or have lapsed.
    pub(super) fn back(&mut self, some: u64) {
        self.promised -= some as u32;
    }

    /// One more peer is active, or one less.
    pub(super) fn count(&mut self, active: bool) {
        if active {
            self.active += 1;
        } else {
            self.active -= 1;
        }
    }
}
