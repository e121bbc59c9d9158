//! The responder: executes the peer's requests and answers them.
//!
//! A request passes a chain of checks, each with its own answer: the sequence, the place in its
//! message, its length, the rights, the receive. Nothing is changed before all of them passed.

use std::collections::VecDeque;

use rdma_core_sys::{ibv_access_flags, ibv_event_type, ibv_qp_state, ibv_wc_opcode, ibv_wc_status};

use super::counters::Refused;
use super::qp::{Qp, RecvEnd, Shared};
use super::transmit::{Payload, Source, Transmit, scatter};
use super::wqe::{RecvWqe, Remote};
use crate::wire::{
    Aeth, AtomicEth, NakCode, Opcode, OpcodeInfo, Operation, Packet, Place, Psn, Reth, Syndrome,
};

/// The receiving half of a Queue Pair.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// Receives that wait for a message, oldest first.
    queue: VecDeque<RecvWqe>,
    /// The PSN that is due.
    epsn: Psn,
    /// Messages completed, 24 bits.
    msn: u32,
    /// The message that has begun and not ended.
    message: Option<Message>,
    /// The peer was told that `epsn` is missing, or has no receive: silence until it comes.
    nak_sent: bool,
    /// Answers that are to go out, in the order of their PSNs.
    responses: VecDeque<Response>,
    /// The latest READs (`None`) and atomics (their results), as many as may be open at the peer.
    fetched: VecDeque<(Psn, Option<u64>)>,
    /// A message came while in RTR, and that was reported.
    established: bool,
}

/// A message of several packets under way.
#[derive(Clone, Copy, Debug)]
struct Message {
    op: Operation,
    /// The receive that a SEND goes to.
    recv: Option<RecvWqe>,
    /// Where a WRITE goes.
    remote: Remote,
    /// Bytes that a WRITE announced.
    total: u32,
    /// Bytes that came.
    done: u32,
}

/// An answer on its way out.
#[derive(Clone, Copy, Debug)]
enum Response {
    Ack {
        psn: Psn,
        syndrome: Syndrome,
        msn: u32,
    },
    Atomic {
        psn: Psn,
        old: u64,
        msn: u32,
        /// It was given before.
        again: bool,
    },
    Read {
        psn: Psn,
        remote: Remote,
        len: u32,
        packets: u32,
        sent: u32,
        msn: u32,
        /// It was given, or begun, before.
        again: bool,
    },
}

/// Why a request is not executed.
enum Fault {
    /// There is no receive for it.
    NoReceive,
    /// A NAK that ends the connection.
    Fatal(NakCode),
}

impl Responder {
    /// The first PSN that is due (INIT->RTR).
    pub fn set_psn(&mut self, psn: Psn) {
        self.epsn = psn;
    }

    /// The PSN that is due.
    pub fn epsn(&self) -> Psn {
        self.epsn
    }

    /// Takes out all receives, oldest first, and drops all answers but a NAK that says why.
    pub fn flush(&mut self) -> VecDeque<RecvWqe> {
        self.responses.retain(|r| {
            matches!(
                r,
                Response::Ack {
                    syndrome: Syndrome::Nak(_),
                    ..
                }
            )
        });
        let begun = self.message.take().and_then(|m| m.recv);
        let mut all = std::mem::take(&mut self.queue);
        if let Some(recv) = begun {
            all.push_front(recv);
        }
        all
    }

    /// READ and atomic requests whose answers wait; those `again` were asked more than once.
    fn open_fetches(&self, again: bool) -> usize {
        let counts = |r: &&Response| match **r {
            Response::Ack { .. } => false,
            Response::Atomic { again: a, .. } | Response::Read { again: a, .. } => a == again,
        };
        self.responses.iter().filter(counts).count()
    }

    /// Acknowledges up to `psn`.
    fn ack(&mut self, psn: Psn) {
        self.answer(psn, Syndrome::ACK_NO_CREDITS);
    }

    /// Answers with an acknowledgement of either kind. One speaks for all before it (a negative one
    /// says that everything before its PSN came), so at most one waits behind the last READ or
    /// atomic, however much a peer repeats itself.
    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        let (msn, answer) = (self.msn, |msn| Response::Ack { psn, syndrome, msn });
        match self.responses.back_mut() {
            Some(Response::Ack {
                psn: said,
                syndrome: before,
                ..
            }) if matches!(syndrome, Syndrome::Ack { .. })
                && !matches!(before, Syndrome::Ack { .. })
                && Psn::distance(*said, psn) < 0 => {}
            Some(last @ Response::Ack { .. }) => *last = answer(msn),
            _ => self.responses.push_back(answer(msn)),
        }
    }

    /// If the end of a READ that is being answered is asked for again, the answer goes back to there:
    /// the peer has lost a part, and what is left of the first answer would be in vain.
    fn go_back(&mut self, from: Psn, reth: &Reth, left: u32) -> bool {
        let running = self.responses.iter_mut().find_map(|r| match r {
            Response::Read {
                psn,
                remote,
                len,
                packets,
                sent,
                ..
            } if Psn::distance(*psn, from) >= 0 && psn.plus(*packets) == from.plus(left) => {
                Some((psn, remote, len, packets, sent))
            }
            _ => None,
        });
        let Some((psn, remote, len, packets, sent)) = running else {
            return false;
        };
        (*psn, *len, *packets, *sent) = (from, reth.len, left, 0);
        (remote.addr, remote.rkey) = (reth.va, reth.rkey);
        true
    }

    fn advance(&mut self, packets: u32, message_ends: bool) {
        self.epsn = self.epsn.plus(packets);
        if message_ends {
            self.msn = (self.msn + 1) & 0xff_ffff;
        }
    }
}

impl Qp {
    /// Takes a receive.
    pub fn post_recv(&mut self, shared: &mut Shared, wqe: RecvWqe) {
        if self.state == ibv_qp_state::IBV_QPS_ERR {
            self.complete_recv(
                shared,
                &wqe,
                RecvEnd::error(ibv_wc_status::IBV_WC_WR_FLUSH_ERR),
            );
        } else {
            self.rq.queue.push_back(wqe);
        }
    }

    /// Takes a request.
    pub fn handle_request(
        &mut self,
        shared: &mut Shared,
        info: &OpcodeInfo,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<(), Refused> {
        let psn = packet.bth.psn;
        let ahead = Psn::distance(self.rq.epsn, psn);
        if ahead < 0 {
            self.repeat(shared, info, packet);
            return Err(Refused::DuplicateRequest);
        }
        if ahead > 0 {
            if !self.rq.nak_sent {
                self.rq.nak_sent = true;
                self.rq
                    .answer(self.rq.epsn, Syndrome::Nak(NakCode::PsnSequenceError));
            }
            return Err(Refused::OutOfSequence);
        }
        match self.execute(shared, info, packet, payload) {
            Ok(()) => {
                self.rq.nak_sent = false;
                shared.counters.rx_payload_bytes += payload.len() as u64;
                if self.state == ibv_qp_state::IBV_QPS_RTR && !self.rq.established {
                    self.rq.established = true;
                    self.event(shared, ibv_event_type::IBV_EVENT_COMM_EST);
                }
                Ok(())
            }
            Err(Fault::NoReceive) => {
                self.rq.nak_sent = true;
                let timer = self.attr.min_rnr_timer;
                self.rq.answer(psn, Syndrome::Rnr { timer });
                Err(Refused::NoReceive)
            }
            Err(Fault::Fatal(code)) => {
                self.refuse_for_good(shared, psn, code);
                Err(Refused::Nak)
            }
        }
    }

    /// Answers with a NAK that ends the connection, and goes to ERR.
    fn refuse_for_good(&mut self, shared: &mut Shared, psn: Psn, code: NakCode) {
        self.rq.answer(psn, Syndrome::Nak(code));
        self.enter_error(shared);
        let kind = match code {
            NakCode::RemoteAccessError => ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
            NakCode::InvalidRequest => ibv_event_type::IBV_EVENT_QP_REQ_ERR,
            _ => ibv_event_type::IBV_EVENT_QP_FATAL,
        };
        self.event(shared, kind);
    }

    /// Executes the request that is due.
    fn execute(
        &mut self,
        shared: &mut Shared,
        info: &OpcodeInfo,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<(), Fault> {
        if packet.ieth.is_some() {
            // This device has no remote invalidation: to take the message without it would leave a
            // key open that the peer believes to be dead.
            return Err(Fault::Fatal(NakCode::InvalidRequest));
        }
        self.check_place(info)?;
        self.check_length(info.place, payload.len())?;
        match (info.op, packet.reth, packet.atomic) {
            (Operation::Send, ..) => self.execute_send(shared, info.place, packet, payload),
            (Operation::Write, reth, _) => {
                self.execute_write(shared, info.place, packet, reth, payload)
            }
            (Operation::ReadRequest, Some(reth), _) => self.execute_read(shared, packet, reth),
            (op @ (Operation::CompareSwap | Operation::FetchAdd), _, Some(atomic)) => {
                self.execute_atomic(shared, packet, op, atomic)
            }
            _ => Err(Fault::Fatal(NakCode::InvalidRequest)),
        }
    }

    /// First and middle packets leave a message open, and only its own kind continues it.
    fn check_place(&self, info: &OpcodeInfo) -> Result<(), Fault> {
        let fits = match &self.rq.message {
            None => info.place.starts(),
            Some(m) => !info.place.starts() && m.op == info.op,
        };
        if fits {
            Ok(())
        } else {
            Err(Fault::Fatal(NakCode::InvalidRequest))
        }
    }

    /// All packets of a message but the last are full; a last one holds at least a byte.
    fn check_length(&self, place: Place, len: usize) -> Result<(), Fault> {
        let mtu = self.mtu as usize;
        let fits = match place {
            Place::First | Place::Middle => len == mtu,
            Place::Last => (1..=mtu).contains(&len),
            Place::Only => len <= mtu,
        };
        if fits {
            Ok(())
        } else {
            Err(Fault::Fatal(NakCode::InvalidRequest))
        }
    }

    fn allows(&self, access: ibv_access_flags) -> Result<(), Fault> {
        let have = ibv_access_flags::from_bits_retain(self.attr.qp_access_flags);
        if have.contains(access) {
            Ok(())
        } else {
            Err(Fault::Fatal(NakCode::InvalidRequest))
        }
    }

    fn execute_send(
        &mut self,
        shared: &mut Shared,
        place: Place,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<(), Fault> {
        let (recv, done) = match &self.rq.message {
            Some(Message {
                recv: Some(recv),
                done,
                ..
            }) => (*recv, *done),
            _ => (*self.rq.queue.front().ok_or(Fault::NoReceive)?, 0),
        };
        let stored = scatter(
            &shared.keys,
            self.init.pd,
            recv.sges.as_slice(),
            u64::from(done),
            payload,
        );
        if place.starts() {
            self.rq.queue.pop_front();
        }
        if let Err(status) = stored {
            let code = match status {
                ibv_wc_status::IBV_WC_LOC_LEN_ERR => NakCode::InvalidRequest,
                _ => NakCode::RemoteOperationalError,
            };
            self.rq.message = None;
            self.complete_recv(shared, &recv, RecvEnd::error(status));
            return Err(Fault::Fatal(code));
        }
        // Fits: the sum of a receive's lengths is below 2^36, and what was stored fitted in.
        let done = done.saturating_add(payload.len() as u32);
        if place.ends() {
            self.rq.message = None;
            let end = RecvEnd {
                status: ibv_wc_status::IBV_WC_SUCCESS,
                opcode: ibv_wc_opcode::IBV_WC_RECV,
                byte_len: done,
                imm: packet.imm,
                solicited: packet.bth.solicited,
            };
            self.complete_recv(shared, &recv, end);
        } else {
            let (op, remote) = (Operation::Send, Remote::default());
            self.rq.message = Some(Message {
                op,
                recv: Some(recv),
                remote,
                total: 0,
                done,
            });
        }
        self.executed(packet, place);
        Ok(())
    }

    fn execute_write(
        &mut self,
        shared: &mut Shared,
        place: Place,
        packet: &Packet,
        reth: Option<Reth>,
        payload: &Payload<'_>,
    ) -> Result<(), Fault> {
        let write = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let mut m = match (self.rq.message, reth) {
            (Some(m), _) => m,
            (None, Some(reth)) => {
                self.allows(write)?;
                self.check_total(shared, reth.len)?;
                self.check_remote(shared, &reth, write)?;
                let remote = Remote {
                    addr: reth.va,
                    rkey: reth.rkey,
                };
                Message {
                    op: Operation::Write,
                    recv: None,
                    remote,
                    total: reth.len,
                    done: 0,
                }
            }
            (None, None) => return Err(Fault::Fatal(NakCode::InvalidRequest)),
        };
        let len = payload.len() as u32;
        let left = m.total - m.done;
        if len > left || (place.ends() && len != left) {
            return Err(Fault::Fatal(NakCode::InvalidRequest));
        }
        if packet.imm.is_some() && self.rq.queue.is_empty() {
            return Err(Fault::NoReceive);
        }
        if len > 0 {
            let at = m.remote.addr.wrapping_add(u64::from(m.done));
            let found = shared
                .keys
                .remote(self.init.pd, m.remote.rkey, at, u64::from(len), write);
            let stored = found.and_then(|(region, offset)| {
                payload
                    .copy_to(0, region, offset, len as usize)
                    .map_err(Into::into)
            });
            stored.map_err(|_| Fault::Fatal(NakCode::RemoteAccessError))?;
        }
        m.done += len;
        if packet.imm.is_some()
            && let Some(recv) = self.rq.queue.pop_front()
        {
            let end = RecvEnd {
                status: ibv_wc_status::IBV_WC_SUCCESS,
                opcode: ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
                byte_len: m.done,
                imm: packet.imm,
                solicited: packet.bth.solicited,
            };
            self.complete_recv(shared, &recv, end);
        }
        self.rq.message = (!place.ends()).then_some(m);
        self.executed(packet, place);
        Ok(())
    }

    fn execute_read(
        &mut self,
        shared: &mut Shared,
        packet: &Packet,
        reth: Reth,
    ) -> Result<(), Fault> {
        let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        self.allows(read)?;
        self.check_depth()?;
        self.check_total(shared, reth.len)?;
        self.check_remote(shared, &reth, read)?;
        let packets = reth.len.div_ceil(self.mtu).max(1);
        self.rq.advance(packets, true);
        self.fetch_executed(packet.bth.psn, None);
        self.push_read(packet.bth.psn, &reth, packets, false);
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        shared: &mut Shared,
        packet: &Packet,
        op: Operation,
        atomic: AtomicEth,
    ) -> Result<(), Fault> {
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        self.allows(access)?;
        if !atomic.va.is_multiple_of(8) {
            return Err(Fault::Fatal(NakCode::InvalidRequest));
        }
        self.check_depth()?;
        let old = shared
            .keys
            .remote(self.init.pd, atomic.rkey, atomic.va, 8, access)
            .and_then(|(region, offset)| {
                let result = match op {
                    Operation::CompareSwap => {
                        region.compare_swap(offset, atomic.compare, atomic.swap_or_add)
                    }
                    _ => region.fetch_add(offset, atomic.swap_or_add),
                };
                result.map_err(Into::into)
            })
            .map_err(|_| Fault::Fatal(NakCode::RemoteAccessError))?;
        self.rq.advance(1, true);
        self.fetch_executed(packet.bth.psn, Some(old));
        self.rq.responses.push_back(Response::Atomic {
            psn: packet.bth.psn,
            old,
            msn: self.rq.msn,
            again: false,
        });
        Ok(())
    }

    /// Remembers a READ or atomic for when it is repeated.
    fn fetch_executed(&mut self, psn: Psn, result: Option<u64>) {
        if self.rq.fetched.len() >= usize::from(self.attr.max_dest_rd_atomic) {
            self.rq.fetched.pop_front();
        }
        self.rq.fetched.push_back((psn, result));
    }

    /// At most `max_dest_rd_atomic` READs and atomics may wait for their answers.
    fn check_depth(&self) -> Result<(), Fault> {
        let room = self.rq.open_fetches(false) < usize::from(self.attr.max_dest_rd_atomic);
        if room {
            Ok(())
        } else {
            Err(Fault::Fatal(NakCode::InvalidRequest))
        }
    }

    fn check_total(&self, shared: &Shared, len: u32) -> Result<(), Fault> {
        let port = self
            .path
            .and_then(|p| shared.config.ports.get(usize::from(p.port) - 1));
        let fits = port.is_some_and(|p| len <= p.max_msg_sz);
        if fits {
            Ok(())
        } else {
            Err(Fault::Fatal(NakCode::InvalidRequest))
        }
    }

    /// A request for no bytes accesses nothing, so its key is not looked at.
    fn check_remote(
        &self,
        shared: &Shared,
        reth: &Reth,
        access: ibv_access_flags,
    ) -> Result<(), Fault> {
        if reth.len == 0 {
            return Ok(());
        }
        let found = shared.keys.remote(
            self.init.pd,
            reth.rkey,
            reth.va,
            u64::from(reth.len),
            access,
        );
        found
            .map(|_| ())
            .map_err(|_| Fault::Fatal(NakCode::RemoteAccessError))
    }

    /// The packet is done with: move on, and say so if asked.
    fn executed(&mut self, packet: &Packet, place: Place) {
        self.rq.advance(1, place.ends());
        if packet.bth.ack_req {
            self.rq.ack(packet.bth.psn);
        }
    }

    fn push_read(&mut self, psn: Psn, reth: &Reth, packets: u32, again: bool) {
        let remote = Remote {
            addr: reth.va,
            rkey: reth.rkey,
        };
        let msn = self.rq.msn;
        self.rq.responses.push_back(Response::Read {
            psn,
            remote,
            len: reth.len,
            packets,
            sent: 0,
            msn,
            again,
        });
    }

    /// Answers a request that was executed before: SEND and WRITE are acknowledged again, a READ
    /// reads again, an atomic gives the result that it gave.
    fn repeat(&mut self, shared: &Shared, info: &OpcodeInfo, packet: &Packet) {
        let psn = packet.bth.psn;
        // Answers that wait already are not doubled; this also bounds the queue.
        let waits = self.rq.responses.iter().any(|r| match *r {
            Response::Ack { .. } => false,
            Response::Atomic { psn: p, .. } => p == psn,
            Response::Read {
                psn: p,
                packets,
                sent,
                ..
            } => {
                let at = Psn::distance(p, psn);
                at >= sent as i32 && at < packets as i32
            }
        });
        let room = self.rq.open_fetches(true) < usize::from(self.attr.max_dest_rd_atomic);
        match (info.op, packet.reth) {
            (Operation::Send | Operation::Write, _) => {
                // All that was executed since, but no READ or atomic: those are acknowledged by
                // their answers alone, and the peer may still wait for one.
                let later = |&&(fetch, _): &&(Psn, _)| Psn::distance(psn, fetch) > 0;
                let fetch = self.rq.fetched.iter().find(later).map(|&(fetch, _)| fetch);
                self.rq.ack(fetch.unwrap_or(self.rq.epsn).minus(1));
            }
            (Operation::ReadRequest, Some(reth)) if !waits => {
                let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
                let packets = reth.len.div_ceil(self.mtu).max(1);
                let within = Psn::distance(psn.plus(packets), self.rq.epsn) >= 0;
                let fits = self.check_total(shared, reth.len).is_ok()
                    && self.check_remote(shared, &reth, read).is_ok();
                if within
                    && fits
                    && self.allows(read).is_ok()
                    && !self.rq.go_back(psn, &reth, packets)
                    && room
                {
                    self.push_read(psn, &reth, packets, true);
                }
            }
            (Operation::CompareSwap | Operation::FetchAdd, _) if !waits && room => {
                let done = self.rq.fetched.iter().find(|(p, _)| *p == psn);
                if let Some(&(psn, Some(old))) = done {
                    self.rq.responses.push_back(Response::Atomic {
                        psn,
                        old,
                        msn: self.rq.msn,
                        again: true,
                    });
                }
            }
            _ => {}
        }
    }

    /// The next answer, if one waits.
    pub fn next_response(&mut self, shared: &mut Shared) -> Option<Transmit> {
        let pkey = self.pkey(&shared.config);
        let class = self.class();
        let response = self.rq.responses.front_mut()?;
        let mut last = true;
        let mut payload_len = 0;
        let mut source = Source::None;
        let (psn, op, place, aeth, atomic) = match response {
            Response::Ack { psn, syndrome, msn } => {
                let counters = &mut shared.counters;
                match *syndrome {
                    Syndrome::Ack { .. } => counters.tx_acks += 1,
                    Syndrome::Rnr { .. } => counters.tx_rnr_naks += 1,
                    Syndrome::Nak(NakCode::PsnSequenceError) => counters.tx_sequence_naks += 1,
                    _ => {}
                }
                let aeth = Aeth {
                    syndrome: *syndrome,
                    msn: *msn,
                };
                (*psn, Operation::Ack, Place::Only, aeth, None)
            }
            Response::Atomic { psn, old, msn, .. } => {
                let aeth = Aeth {
                    syndrome: Syndrome::ACK_NO_CREDITS,
                    msn: *msn,
                };
                (*psn, Operation::AtomicAck, Place::Only, aeth, Some(*old))
            }
            Response::Read {
                psn,
                remote,
                len,
                packets,
                sent,
                msn,
                again,
            } => {
                let place = Place::new(*sent == 0, *sent + 1 == *packets);
                let offset = u64::from(*sent) * u64::from(self.mtu);
                payload_len = (u64::from(*len) - offset).min(u64::from(self.mtu)) as u32;
                if payload_len > 0 {
                    let va = remote.addr.wrapping_add(offset);
                    source = Source::Read {
                        qp_num: self.num,
                        rkey: remote.rkey,
                        va,
                        again: *again,
                    };
                }
                let at = psn.plus(*sent);
                *sent += 1;
                last = *sent == *packets;
                let aeth = Aeth {
                    syndrome: Syndrome::ACK_NO_CREDITS,
                    msn: *msn,
                };
                (at, Operation::ReadResponse, place, aeth, None)
            }
        };
        if last {
            self.rq.responses.pop_front();
        }
        let opcode = Opcode::new(class, op, place, false, false)?;
        let mut packet = Packet::new(self.bth(opcode, psn, payload_len, pkey));
        packet.aeth = (place != Place::Middle).then_some(aeth);
        packet.atomic_ack = atomic;
        shared.counters.tx_payload_bytes += u64::from(payload_len);
        self.transmit(packet, payload_len, source)
    }

    /// The memory of a READ went away while its answer was being made. One that was answered before
    /// is answered no further: the peer may be done with it.
    pub fn fail_read(&mut self, shared: &mut Shared, psn: Psn, again: bool) {
        if again {
            self.rq.responses.retain(|r| match *r {
                Response::Read {
                    psn: first,
                    packets,
                    again: true,
                    ..
                } => {
                    let at = Psn::distance(first, psn);
                    !(0..packets as i32).contains(&at)
                }
                _ => true,
            });
        } else if self.receives() {
            self.refuse_for_good(shared, psn, NakCode::RemoteAccessError);
        }
    }
}
