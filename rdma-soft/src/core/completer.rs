//! The completer: what the peer's responses do to the send queue.

use rdma_core_sys::ibv_wc_status;
use rdma_core_sys::rules::rnr_timer;

use super::counters::Refused;
use super::qp::{Qp, Shared};
use super::time::Instant;
use super::transmit::{Payload, scatter};
use super::wqe::{Data, SendOp};
use crate::wire::{NakCode, OpcodeInfo, Operation, Packet, Psn, Syndrome};

impl Qp {
    /// Takes a response.
    pub fn handle_response(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        info: &OpcodeInfo,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<(), Refused> {
        let psn = packet.bth.psn;
        if Psn::distance(self.sq.una, psn) < 0 {
            return Err(Refused::DuplicateResponse);
        }
        if Psn::distance(psn, self.sq.sent_end) <= 0 {
            return Err(Refused::GhostResponse);
        }
        match (info.op, packet.aeth, packet.atomic_ack) {
            (Operation::Ack, Some(aeth), _) => self.handle_ack(now, shared, psn, aeth.syndrome),
            (Operation::ReadResponse, ..) => self.handle_read_response(now, shared, psn, payload),
            (Operation::AtomicAck, _, Some(old)) => self.handle_atomic_ack(now, shared, psn, old),
            _ => Err(Refused::BadResponse),
        }
    }

    /// The peer has executed the request packet with that number, and all before it.
    pub fn handle_executed(&mut self, now: Instant, shared: &mut Shared, psn: Psn) {
        let in_flight =
            Psn::distance(self.sq.una, psn) >= 0 && Psn::distance(psn, self.sq.sent_end) > 0;
        if in_flight {
            // What may come of it besides, is of a response that was lost: none is.
            let _ = self.acknowledge(now, shared, psn.next());
        }
    }

    fn handle_ack(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Result<(), Refused> {
        match syndrome {
            Syndrome::Ack { .. } => self.acknowledge(now, shared, psn.next()),
            Syndrome::Rnr { timer } => self.handle_rnr(now, shared, psn, timer),
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                shared.counters.rx_sequence_naks += 1;
                self.acknowledge(now, shared, psn)?;
                // Went back there already, and the peer says it once per gap.
                if !self.sq.recovering {
                    self.retry(shared);
                }
                self.sq.probing = false;
                Ok(())
            }
            Syndrome::Nak(code) => {
                self.acknowledge(now, shared, psn)?;
                let status = match code {
                    NakCode::InvalidRequest => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
                    NakCode::RemoteAccessError => ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
                    NakCode::RemoteOperationalError => ibv_wc_status::IBV_WC_REM_OP_ERR,
                    _ => ibv_wc_status::IBV_WC_REM_OP_ERR,
                };
                self.fail_front(shared, status);
                Ok(())
            }
            Syndrome::Reserved(_) => Err(Refused::BadResponse),
        }
    }

    /// RNR NAK: `rnr_retry` times, 7 without limit (ibv_modify_qp(3)).
    fn handle_rnr(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        psn: Psn,
        timer: u8,
    ) -> Result<(), Refused> {
        if self.sq.rnr_until.is_some() {
            return Err(Refused::DuplicateResponse);
        }
        shared.counters.rx_rnr_naks += 1;
        self.stats.rnr_naks_received += 1;
        self.acknowledge(now, shared, psn)?;
        // The peer answers: `retry_cnt` counts anew, however often it is not ready. Lost answers of a long
        // wait would add up to a dead peer otherwise.
        self.sq.retries = self.attr.retry_cnt;
        if self.attr.rnr_retry < 7 {
            if self.sq.rnr_retries == 0 {
                self.fail_front(shared, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
                return Ok(());
            }
            self.sq.rnr_retries -= 1;
        }
        self.stats.rnr_wait += rnr_timer(timer);
        self.retry_after(now + rnr_timer(timer));
        Ok(())
    }

    /// Everything before `end` is acknowledged. If that includes a READ or atomic whose response did
    /// not come, the response was lost: the request is made again.
    fn acknowledge(&mut self, now: Instant, shared: &mut Shared, end: Psn) -> Result<(), Refused> {
        let (before, recovering) = (self.sq.una, self.sq.recovering);
        let mut lost = false;
        while self.sq.started > 0 {
            let Some(e) = self.sq.queue.front() else {
                break;
            };
            if e.wqe.op.is_fetch() {
                lost = Psn::distance(e.psn.plus(e.received), end) > 0;
                break;
            }
            if Psn::distance(e.end(), end) < 0 {
                if Psn::distance(self.sq.una, end) > 0 {
                    self.sq.una = end;
                }
                break;
            }
            // It has begun, but there was no room yet: it is done when its turn to send comes.
            if e.wqe.op.is_local() && !e.executed {
                break;
            }
            self.sq.una = e.end();
            if let Some(e) = self.sq.pop() {
                self.complete_send(shared, &e.wqe, ibv_wc_status::IBV_WC_SUCCESS, 0);
            }
        }
        let moved = Psn::distance(before, self.sq.una);
        if moved > 0 {
            self.progress(now, moved as u32);
        }
        self.fail_if_due(shared);
        if lost {
            // If we went back before this came, the request is on its way again already.
            self.sq.recovering = recovering;
            if !recovering {
                self.retry(shared);
            }
            return Err(Refused::EarlyResponse);
        }
        Ok(())
    }

    fn handle_read_response(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        psn: Psn,
        payload: &Payload<'_>,
    ) -> Result<(), Refused> {
        self.acknowledge(now, shared, psn)?;
        let mtu = self.mtu;
        let Some(e) = self.sq.queue.front().filter(|_| self.sq.started > 0) else {
            return Err(Refused::BadResponse);
        };
        if !matches!(e.wqe.op, SendOp::Read { .. }) || e.psn.plus(e.received) != psn {
            return Err(Refused::BadResponse);
        }
        let offset = u64::from(e.received) * u64::from(mtu);
        let due = (u64::from(e.len) - offset).min(u64::from(mtu));
        if payload.len() as u64 != due {
            self.fail_front(shared, ibv_wc_status::IBV_WC_BAD_RESP_ERR);
            return Err(Refused::BadResponse);
        }
        self.fetched(now, shared, offset, payload);
        Ok(())
    }

    fn handle_atomic_ack(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        psn: Psn,
        old: u64,
    ) -> Result<(), Refused> {
        self.acknowledge(now, shared, psn)?;
        let Some(e) = self.sq.queue.front().filter(|_| self.sq.started > 0) else {
            return Err(Refused::BadResponse);
        };
        let atomic = matches!(
            e.wqe.op,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        );
        if !atomic || e.psn != psn {
            return Err(Refused::BadResponse);
        }
        // The word arrives as a number and is stored as the host stores numbers.
        self.fetched(now, shared, 0, &Payload::Bytes(&old.to_ne_bytes()));
        Ok(())
    }

    /// Stores a part of what the oldest request fetches, and completes it with the last part.
    fn fetched(&mut self, now: Instant, shared: &mut Shared, offset: u64, payload: &Payload<'_>) {
        let (Some(pd), Some(e)) = (self.init.pd, self.sq.queue.front_mut()) else {
            return;
        };
        let Data::Sges(sges) = &e.wqe.data else {
            return self.fail_front(shared, ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
        };
        if let Err(status) = scatter(&shared.keys, pd, sges.as_slice(), offset, payload) {
            return self.fail_front(shared, status);
        }
        shared.counters.rx_payload_bytes += payload.len() as u64;
        e.received += 1;
        let done = e.received == e.packets;
        self.sq.una = self.sq.una.next();
        if done && let Some(e) = self.sq.pop() {
            self.complete_send(shared, &e.wqe, ibv_wc_status::IBV_WC_SUCCESS, e.len);
        }
        self.retire_local(shared);
        self.progress(now, 1);
        self.fail_if_due(shared);
    }
}
