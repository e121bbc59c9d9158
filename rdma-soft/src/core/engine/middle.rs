//! The middle of a message that stays in the node: its packets are all alike, so many are taken together.

use super::{Engine, Payload, Transmit};
use crate::core::time::Instant;
use crate::core::transmit::pieces;
use crate::core::wqe::Data;

impl Engine {
    /// Takes packets that follow `t`, which this node has just [sent to itself](Engine::loopback), as far as they are of the
    /// middle of the same message, may go out now, and are `most` at most. Gives how many.
    ///
    /// What comes of it is what would come of them one by one, but the payload is copied at once. What is not as it should be
    /// is left to the packet that it concerns, which then goes its own way.
    pub fn loopback_middle(&mut self, now: Instant, t: &Transmit, most: u32) -> u32 {
        self.take_middle(now, t, most).unwrap_or(0)
    }

    fn take_middle(&mut self, now: Instant, t: &Transmit, most: u32) -> Option<u32> {
        let sender = self.qps.get(&t.qp_num)?;
        let (middle, data) = sender.middle(&t.packet, most)?;
        let Data::Sges(sges) = data else { return None };
        let (keys, pd, sges) = (&self.shared.keys, sender.init.pd?, sges.as_slice());
        let mut found = std::mem::take(&mut self.pieces);
        let len = middle.len as usize;
        let there = pieces(keys, pd, sges, middle.offset, len, &mut found).is_ok();
        let taken = match self.qps.get_mut(&t.packet.bth.dest_qp) {
            Some(receiver) if there => {
                let payload = Payload::Pieces(&found);
                receiver.take_middle(&mut self.shared, &t.packet, &middle, &payload)
            }
            _ => None,
        };
        found.clear();
        self.pieces = found;
        taken?;
        let sender = self.qps.get_mut(&t.qp_num)?;
        sender.middle_sent(now, &mut self.shared, &middle);
        Some(middle.packets)
    }
}
