//! What the worlds of the simulator have in common: stretches that frames go, and the trace.

use rdma_soft::core::time::Instant;
use rdma_soft::link::{FaultLayer, Frame};

/// A stretch between two hosts, one way.
#[derive(Debug)]
pub struct Wire {
    /// Its faults, and the frames on it.
    pub layer: FaultLayer,
    /// The next arrival that is on the agenda.
    wake: Option<Instant>,
}

impl Wire {
    /// One that does this to frames.
    pub fn new(layer: FaultLayer) -> Wire {
        Wire { layer, wake: None }
    }

    /// When the next frame arrives, if that is to be put on the agenda now.
    pub fn expect(&mut self) -> Option<Instant> {
        let due = self.layer.next_timeout()?;
        if self.wake.is_some_and(|wake| wake <= due) {
            return None;
        }
        self.wake = Some(due);
        Some(due)
    }

    /// The next frame that has arrived, when the agenda says so.
    pub fn arrived(&mut self, now: Instant) -> Option<Frame> {
        self.wake = None;
        self.layer.poll(now)
    }
}

/// A hash of all that happened, with its time.
#[derive(Clone, Copy, Debug)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Trace {
        Trace(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// Adds what happens now.
    pub fn mark(&mut self, now: Instant, bytes: &[u8]) {
        let mark = now.as_nanos() ^ u64::from(crc32fast::hash(bytes)) << 32;
        self.0 = (self.0 ^ mark).wrapping_mul(0x100_0000_01b3);
    }

    /// The hash so far.
    pub fn hash(self) -> u64 {
        self.0
    }
}
