//! Packets of the middle of a message, many at once.

use rdma_core_sys::ibv_access_flags;

use crate::core::qp::{Qp, Shared};
use crate::core::requester::Middle;
use crate::core::transmit::{Payload, scatter};
use crate::wire::{Operation, Packet};

impl Qp {
    /// Executes packets that follow `before` in its message, if they are due and nothing stands in their way; else nothing
    /// has changed, but for memory that they may write to.
    pub fn take_middle(
        &mut self,
        shared: &mut Shared,
        before: &Packet,
        middle: &Middle,
        payload: &Payload<'_>,
    ) -> Option<()> {
        let m = self.rq.message?;
        let same = m.op == before.bth.opcode.info()?.op && m.xrc_srq == before.xrceth;
        let whole = Some(middle.len) == self.mtu.checked_mul(middle.packets);
        if !same || !whole || !self.receives() || self.rq.epsn != middle.psn {
            return None;
        }
        let (_, by) = self.receiver(shared, before).ok()?;
        let keys = &shared.keys;
        match m.op {
            // A last packet holds at least a byte.
            Operation::Write if middle.len < m.total - m.done => {
                let at = m.remote.addr.wrapping_add(u64::from(m.done));
                let write = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
                let found = keys.remote(by, m.remote.rkey, at, u64::from(middle.len), write);
                let (region, offset) = found.ok()?;
                payload
                    .copy_to(0, region, offset, middle.len as usize)
                    .ok()?;
            }
            Operation::Send => {
                let sges = &self.rq.taken.as_ref()?.wqe.sges;
                scatter(keys, by.pd, sges.as_slice(), m.done.into(), payload).ok()?;
            }
            _ => return None,
        }
        if let Some(m) = &mut self.rq.message {
            m.done = m.done.saturating_add(middle.len);
        }
        self.rq.advance(middle.packets, false);
        let counters = &mut shared.counters;
        counters.rx_payload_bytes += u64::from(middle.len);
        counters.rx_frames += u64::from(middle.packets);
        counters.rx_accepted += u64::from(middle.packets);
        Some(())
    }
}
