//! Bells: who is about to sleep asks for them.

use super::ShmLink;
use super::outgoing::Outgoing;

impl ShmLink {
    /// A bell was heard since this was last asked: something has come, whoever has taken it.
    pub(crate) fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Asks for the bell for whatever comes, or gets room. False if something has come already: then nobody
    /// must sleep.
    pub(crate) fn sleep(&mut self) -> bool {
        (self.asleep, self.unasked) = (true, false);
        let mut quiet = true;
        for (_, ring) in self.incoming.iter_mut().filter_map(|i| i.ring.as_mut()) {
            quiet &= ring.sleep();
        }
        for outgoing in &mut self.outgoing {
            let waits = outgoing.waits;
            if let Some((sender, _)) = outgoing.ring() {
                quiet &= sender.sleep(waits);
            }
        }
        quiet
    }

    /// For whoever drives the node while its thread may be asleep, and goes away: what the thread asked for
    /// holds for all that has happened since. False if it must be woken.
    #[inline]
    pub(crate) fn stay_asleep(&mut self) -> bool {
        !(self.asleep && self.unasked) || self.sleep()
    }

    /// Nobody sleeps any more.
    #[inline]
    pub(crate) fn awake(&mut self) {
        if !std::mem::take(&mut self.asleep) {
            return;
        }
        for (_, ring) in self.incoming.iter().filter_map(|i| i.ring.as_ref()) {
            ring.awake();
        }
        for (sender, _) in self.outgoing.iter_mut().filter_map(Outgoing::ring) {
            sender.awake();
        }
    }
}
