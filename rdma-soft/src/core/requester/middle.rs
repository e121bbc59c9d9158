//! Packets of the middle of a message, many at once.

use crate::core::qp::{Qp, Shared};
use crate::core::time::Instant;
use crate::core::wqe::{Data, SendOp};
use crate::wire::{Packet, Psn};

/// Packets of the middle of a message: full, and none asks for an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Middle {
    /// The number of the first.
    pub psn: Psn,
    /// How many.
    pub packets: u32,
    /// Where their payload begins in the message.
    pub offset: u64,
    /// Bytes of it.
    pub len: u32,
}

impl Qp {
    /// Those that follow `before`, the last packet that went out, and may go out now, `most` at most; and the data of
    /// their request. `None` if there are none.
    pub fn middle(&self, before: &Packet, most: u32) -> Option<(Middle, &Data)> {
        let sq = &self.sq;
        let (index, at) = sq.cursor;
        let e = sq.queue.get(index).filter(|_| index < sq.started)?;
        let psn = e.psn.plus(at);
        let plain = matches!(e.wqe.op, SendOp::Send { .. } | SendOp::Write { .. });
        let follows = before.bth.opcode.info()?.is_request() && before.bth.psn.next() == psn;
        if at == 0 || !plain || !follows || !self.sends() {
            return None;
        }
        // The last packet is another one.
        let mut packets = most.min(e.packets.saturating_sub(at + 1));
        if self.is_reliable() {
            let again = sq.sent_end != psn || sq.recovering || sq.probing;
            if again || sq.rnr_until.is_some() {
                return None;
            }
            // One place of the window is left for a packet that asks for an acknowledgement.
            let in_flight = Psn::distance(sq.una, psn).max(0) as u32;
            packets = packets.min(sq.window.size().saturating_sub(in_flight + 1));
        }
        if packets == 0 {
            return None;
        }
        let middle = Middle {
            psn,
            packets,
            offset: u64::from(at) * u64::from(self.mtu),
            len: packets * self.mtu,
        };
        Some((middle, &e.wqe.data))
    }

    /// They have gone out.
    pub fn middle_sent(&mut self, now: Instant, shared: &mut Shared, middle: &Middle) {
        let Middle {
            psn, packets, len, ..
        } = *middle;
        if self.is_reliable() {
            self.sent(now, shared, psn, packets, false, false, len);
            self.sq.unasked += packets - 1;
        } else {
            shared.counters.tx_payload_bytes += u64::from(len);
        }
        shared.counters.tx_frames += u64::from(packets);
        self.sq.cursor.1 += packets;
    }
}
