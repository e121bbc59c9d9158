//! What a request of the table must have done.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;
use rdma_qp::{AnyOp, Completion, Success, Ticket};

use super::{
    ADDEND, Arrives, Binds, End, GUARD, LIMIT, LOST, Place, Play, SWAP, UNTOUCHED, WORD, told,
};
use crate::bytes::{pattern, same, word};
use crate::suite::arm::{SOURCE, TARGET};
use crate::suite::check::{Done, Outcome, Trouble, expect};
use crate::suite::matrix::is_atomic;

impl Play<'_> {
    pub(super) fn check_sent<T: rdma_qp::Transport>(
        &self,
        a: &mut End<T>,
        ticket: Ticket,
        second: Option<Ticket>,
    ) -> Result<(), Trouble> {
        expect("the operation", ticket.operation(), self.operation())?;
        let success = a.place.cq.wait(&ticket, LIMIT);
        if self.cell.signaled {
            self.check_success(success.map_err(told)?)?;
            if let Some(second) = second {
                a.place.cq.wait(&second, LIMIT).map_err(told)?;
            }
        } else if let Some(second) = second {
            // It is done when the one behind it is, and has no completion of its own.
            a.place.cq.wait(&second, LIMIT).map_err(told)?;
            success.map_err(told)?;
        }
        expect("completions left", a.place.cq.poll().map_err(told)?, None)
    }

    fn check_success(&self, success: Success) -> Result<(), Trouble> {
        expect("the operation", success.operation, self.operation())?;
        let fetches = self.cell.opcode == IBV_WR_RDMA_READ || is_atomic(self.cell.opcode);
        let wanted = if fetches { self.len } else { 0 };
        expect("byte_len", success.byte_len as usize, wanted)
    }

    pub(super) fn check_received(
        &self,
        b: &impl Arrives,
        receives: &[Ticket],
        from: u32,
        key: u32,
    ) -> Result<(), Trouble> {
        let reliable = matches!(self.cell.transport, Transport::Rc | Transport::XrcIni);
        let cq = &b.place().cq;
        for (at, ticket) in receives.iter().enumerate() {
            let wait = if reliable { LIMIT } else { LOST };
            let Some(done) = cq.wait_any(wait).map_err(told)? else {
                return Err(Trouble::Lost("a message did not come".to_owned()));
            };
            let Completion { queue, qp_num, .. } = done;
            expect("the queue and the QP", (queue, qp_num), b.arrival())?;
            expect("the receive", done.ticket, *ticket)?;
            let success = match done.outcome {
                Ok(success) => success,
                Err(failure) => return Err(format!("a receive failed: {failure:?}").into()),
            };
            let first = at == 0 && self.takes_receive();
            let imm = match (first, self.cell.opcode) {
                (false, _) => Some(!self.imm()),
                (_, IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM) => Some(self.imm()),
                _ => None,
            };
            if success.imm != imm && !reliable && first && success.imm == Some(!self.imm()) {
                return Err(Trouble::Lost("the second message came first".to_owned()));
            }
            expect("the immediate data", success.imm, imm)?;
            if first {
                expect("byte_len", success.byte_len as usize, self.len)?;
                let by_write = self.cell.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
                expect("by_write", success.by_write, by_write)?;
                let ended = (self.cell.opcode == IBV_WR_SEND_WITH_INV).then_some(key);
                expect("the key that ended", success.invalidated, ended)?;
            }
            if self.cell.transport == Transport::Ud {
                let sender = success.sender.ok_or("a datagram without a sender")?;
                expect("the sender", (sender.qp_num, sender.has_grh), (from, true))?;
            }
        }
        expect("completions left", cq.poll().map_err(told)?, None)
    }

    pub(super) fn check_memory(&self, a: &Place, b: &Place) -> Result<(), Trouble> {
        let mut wanted = vec![UNTOUCHED; self.len + 2 * GUARD];
        let middle = GUARD..GUARD + self.len;
        if is_atomic(self.cell.opcode) {
            let after = match self.cell.opcode {
                IBV_WR_ATOMIC_CMP_AND_SWP => SWAP,
                _ => WORD.wrapping_add(ADDEND),
            };
            expect("the word at the peer", word(&b.read(TARGET, 8)?), after)?;
            wanted[middle].copy_from_slice(&WORD.to_ne_bytes());
            return Ok(same(&a.read(SOURCE - GUARD, wanted.len())?, &wanted)?);
        }
        wanted[middle].copy_from_slice(&pattern(self.number, self.len));
        let (place, at) = match self.cell.opcode {
            IBV_WR_RDMA_READ => (a, SOURCE),
            _ => (b, TARGET),
        };
        let found = place.read(at - GUARD, wanted.len())?;
        let gap = |(found, wanted): (&u8, &u8)| found == wanted || *found == UNTOUCHED;
        let unreliable = self.cell.transport == Transport::Uc && self.arm.is_wire();
        if unreliable && found != wanted && found.iter().zip(&wanted).all(gap) {
            return Err(Trouble::Lost("a part of the WRITE did not come".to_owned()));
        }
        Ok(same(&found, &wanted)?)
    }

    /// Every request has its end, and nothing else happened.
    pub(super) fn check_books<T: rdma_qp::Transport>(
        &self,
        a: &End<T>,
        b: &impl Arrives,
        receives: u64,
    ) -> Outcome {
        let [sends, received] = b.accounts();
        for (what, account) in [
            ("a's sends", a.qp.send_account()),
            ("b's sends", sends),
            ("b's receives", received),
        ] {
            let ended = (account.succeeded, account.pending);
            expect(what, ended, (account.accepted, 0))?;
        }
        expect("receives", received.accepted, receives)?;
        let stale = (a.place.cq.stale(), b.place().cq.stale());
        expect("completions that belong to nobody", stale, (0, 0))?;
        expect("the device", a.place.device.name(), a.qp.device())?;
        Ok(Done::Passed)
    }

    /// What cannot succeed is refused by the library, and nothing is changed.
    pub(super) fn illegal<T: Binds>(&self, a: &mut End<T>, op: AnyOp, why: &str) -> Outcome {
        if self.post(a, op, self.len).is_ok() {
            return Err(format!("accepted, although {why}").into());
        }
        self.untouched(a)
    }

    pub(super) fn untouched<T: rdma_qp::Transport>(&self, a: &End<T>) -> Outcome {
        expect("requests accepted", a.qp.send_account().accepted, 0)?;
        let state = a.qp.state().map_err(told)?;
        expect("the state after a refusal", state, IBV_QPS_RTS)?;
        expect("completions", a.place.cq.poll().map_err(told)?, None)?;
        Ok(Done::Refused)
    }
}
