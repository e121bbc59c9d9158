//! The responder: executes the peer's requests and answers them.
//!
//! A request passes a chain of checks, each with its own answer: the sequence, the place in its
//! message, its length, the rights, the receive. Nothing is changed before all of them passed.

mod execute;
mod middle;

use std::collections::VecDeque;

use rdma_core_sys::{ibv_access_flags, ibv_event_type, ibv_qp_state, ibv_wc_status};

use self::execute::check_remote;
use super::counters::Refused;
use super::event::{PdId, SrqId};
use super::keys::Asker;
use super::qp::{Qp, RecvEnd, Shared, Taken};
use super::transmit::{Payload, Source, Transmit};
use super::wqe::{RecvWqe, Remote};
use crate::wire::{
    Aeth, NakCode, Opcode, OpcodeInfo, Operation, Packet, Place, Psn, Reth, Syndrome,
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
    /// The receive that was taken and has not ended: that of the SEND under way, or of one that was dropped
    /// half-way; then the next message goes to it.
    taken: Option<Taken>,
    /// The peer was told that `epsn` is missing, or has no receive: silence until it comes.
    nak_sent: bool,
    /// Answers that are to go out, in the order of their PSNs.
    responses: VecDeque<Response>,
    /// The latest READs and atomics, as many as may be open at the peer.
    fetched: VecDeque<Fetched>,
    /// A message came while in RTR, and that was reported.
    established: bool,
}

/// A message of several packets under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    op: Operation,
    /// The XRC SRQ that it named.
    xrc_srq: Option<u32>,
    /// Where a WRITE goes.
    remote: Remote,
    /// Bytes that a WRITE announced.
    total: u32,
    /// Bytes that came.
    done: u32,
}

/// A READ or an atomic that was executed, and may be asked for again.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    psn: Psn,
    packets: u32,
    /// What an atomic gave; `None` for a READ.
    result: Option<u64>,
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
        pd: PdId,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// There is no receive for it.
    NoReceive,
    /// It is longer than its receive, which was completed so.
    TooLong,
    /// Its receive's key does not open its memory; the receive was completed so.
    Local,
    /// It breaks the rules of its operation.
    Invalid,
    /// It may not reach the memory that it names.
    Access,
}

impl Fault {
    /// What the peer of a reliable connection is told; `None` for "not yet".
    fn nak(self) -> Option<NakCode> {
        match self {
            Fault::NoReceive => None,
            Fault::TooLong | Fault::Invalid => Some(NakCode::InvalidRequest),
            Fault::Local => Some(NakCode::RemoteOperationalError),
            Fault::Access => Some(NakCode::RemoteAccessError),
        }
    }
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

    /// Lets go of the receive that was taken: what has begun will not end.
    pub fn abandon(&mut self) -> Option<Taken> {
        self.message = None;
        self.taken.take()
    }

    /// Takes out all receives of the own queue, oldest first, and drops all answers; unless the last one is
    /// the refusal that ends the connection: the requests before that were executed, and the peer is to
    /// learn which one was not.
    pub fn flush(&mut self) -> VecDeque<RecvWqe> {
        let refused = match self.responses.back() {
            Some(Response::Ack {
                syndrome: Syndrome::Nak(code),
                ..
            }) => *code != NakCode::PsnSequenceError,
            _ => false,
        };
        if !refused {
            self.responses.clear();
        }
        std::mem::take(&mut self.queue)
    }

    /// No receive of the own queue waits for a message.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Answers wait.
    #[inline]
    pub fn answers(&self) -> bool {
        !self.responses.is_empty()
    }

    /// The next answer is an acknowledgement, positive or negative, without data.
    pub fn acknowledges(&self) -> bool {
        matches!(self.responses.front(), Some(Response::Ack { .. }))
    }

    /// The request with that number was executed, and the link can tell the peer: an acknowledgement of it that waits
    /// need not go out. False if there is none, or if there are READs or atomics, whose answers must not be overtaken.
    #[inline]
    pub fn acknowledge_quietly(&mut self, executed: Psn) -> bool {
        let waits = match self.responses.front() {
            Some(Response::Ack { psn, syndrome, .. }) => {
                *psn == executed && *syndrome == Syndrome::ACK_NO_CREDITS
            }
            _ => false,
        };
        let quietly = waits && self.responses.len() == 1 && self.fetched.is_empty();
        if quietly {
            self.responses.clear();
        }
        quietly
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
            Some(Response::Ack { psn: said, .. })
                if matches!(syndrome, Syndrome::Ack { .. }) && Psn::distance(*said, psn) < 0 => {}
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
    /// Takes receives.
    pub fn post_recvs(&mut self, shared: &mut Shared, wqes: &mut VecDeque<RecvWqe>) {
        if self.state == ibv_qp_state::IBV_QPS_ERR {
            let flushed = RecvEnd::error(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            for wqe in wqes.drain(..) {
                self.complete_recv(shared, &Taken { wqe, srq: None }, flushed);
            }
        } else if self.rq.queue.is_empty() {
            std::mem::swap(&mut self.rq.queue, wqes);
        } else {
            self.rq.queue.append(wqes);
        }
    }

    /// Where the receives of a request come from: an SRQ, or `None` for the own queue; and who asks,
    /// for the memory that it names.
    fn receiver(&self, shared: &Shared, packet: &Packet) -> Result<(Option<SrqId>, Asker), Fault> {
        let qp_num = self.num;
        let Some(xrcd) = self.init.xrcd else {
            let pd = self.init.pd.ok_or(Fault::Invalid)?;
            return Ok((self.init.srq, Asker { pd, qp_num }));
        };
        // The SRQ that an XRC request names stands for the process that it is meant for: its domain
        // decides about memory too.
        let srq = packet.xrceth.and_then(|n| shared.srqs.get(&SrqId(n)));
        let srq = srq.filter(|s| s.init.xrc.is_some_and(|(of, _)| of == xrcd));
        let srq = srq.ok_or(Fault::Invalid)?;
        if srq.failed {
            return Err(Fault::Local);
        }
        let pd = srq.init.pd;
        Ok((Some(srq.id), Asker { pd, qp_num }))
    }

    /// True if a receive is there.
    fn has_receive(&self, shared: &Shared, from: Option<SrqId>) -> bool {
        match from {
            _ if self.rq.taken.is_some() => true,
            Some(srq) => shared.srqs.get(&srq).is_some_and(|s| !s.queue.is_empty()),
            None => !self.rq.queue.is_empty(),
        }
    }

    /// Takes the receive that the next message goes to, if there is one.
    pub fn take_receive(&mut self, shared: &mut Shared, from: Option<SrqId>) -> Option<&Taken> {
        if self.rq.taken.is_none() {
            let wqe = match from {
                Some(srq) => shared.srqs.get_mut(&srq)?.take(&mut shared.events)?,
                None => self.rq.queue.pop_front()?,
            };
            self.rq.taken = Some(Taken { wqe, srq: from });
        }
        self.rq.taken.as_ref()
    }

    /// Ends the receive that was taken.
    pub fn end_receive(&mut self, shared: &mut Shared, end: RecvEnd) {
        if let Some(recv) = &self.rq.taken {
            self.complete_recv(shared, recv, end);
        }
        self.rq.taken = None;
    }

    /// A shared receive queue goes away: so does a receive that was taken from it.
    pub fn forget_srq(&mut self, srq: SrqId) {
        self.rq.taken.take_if(|t| t.srq == Some(srq));
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
                self.accepted(shared, payload);
                Ok(())
            }
            Err(fault) => match fault.nak() {
                None => {
                    self.rq.nak_sent = true;
                    let timer = self.attr.min_rnr_timer;
                    self.rq.answer(psn, Syndrome::Rnr { timer });
                    Err(Refused::NoReceive)
                }
                Some(code) => {
                    self.refuse_for_good(shared, psn, code);
                    Err(Refused::Nak)
                }
            },
        }
    }

    /// Takes a request that nobody acknowledges (UC). What is not due is dropped, and with it the
    /// message that has begun, until the next one begins: each message arrives once, whole and in
    /// order, or not at all.
    pub fn handle_unacknowledged(
        &mut self,
        shared: &mut Shared,
        info: &OpcodeInfo,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<(), Refused> {
        /// How far behind a packet is a repeat. One that is farther behind is of a sender who went on while
        /// more than half of all PSNs were lost: refusing it would refuse the other half, too.
        const REPEATS: i32 = 1 << 16;
        let psn = packet.bth.psn;
        let ahead = Psn::distance(self.rq.epsn, psn);
        if (-REPEATS..0).contains(&ahead) {
            return Err(Refused::DuplicateRequest);
        }
        let begins = info.place.starts();
        if ahead != 0 || begins {
            self.drop_message(shared);
        }
        if !begins && (ahead != 0 || self.rq.message.is_none()) {
            return Err(Refused::OutOfSequence);
        }
        self.rq.epsn = psn;
        match self.execute(shared, info, packet, payload) {
            Ok(()) => {
                self.accepted(shared, payload);
                Ok(())
            }
            Err(fault) => {
                // The rest of the message finds none that has begun.
                self.rq.epsn = psn.next();
                self.drop_message(shared);
                Err(match fault {
                    Fault::NoReceive => Refused::NoReceive,
                    Fault::TooLong => Refused::TooLong,
                    Fault::Invalid => Refused::InvalidRequest,
                    Fault::Access => Refused::AccessDenied,
                    Fault::Local => {
                        self.fail_locally(shared);
                        Refused::LocalError
                    }
                })
            }
        }
    }

    /// Drops the message that has begun, if one has; its receive waits for the next one.
    fn drop_message(&mut self, shared: &mut Shared) {
        if self.rq.message.take().is_some() {
            shared.counters.rx_messages_dropped += 1;
        }
    }

    /// The receive queue is broken: the application named memory that is not there.
    pub fn fail_locally(&mut self, shared: &mut Shared) {
        self.enter_error(shared);
        self.event(shared, ibv_event_type::IBV_EVENT_QP_FATAL);
    }

    /// A packet was taken: tells of the first one in RTR (`IBV_EVENT_COMM_EST`).
    fn accepted(&mut self, shared: &mut Shared, payload: &Payload<'_>) {
        shared.counters.rx_payload_bytes += payload.len() as u64;
        if self.state == ibv_qp_state::IBV_QPS_RTR && !self.rq.established {
            self.rq.established = true;
            self.event(shared, ibv_event_type::IBV_EVENT_COMM_EST);
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
                let later = |f: &&Fetched| Psn::distance(psn, f.psn) > 0;
                let fetch = self.rq.fetched.iter().find(later).map(|f| f.psn);
                self.rq.ack(fetch.unwrap_or(self.rq.epsn).minus(1));
            }
            (Operation::ReadRequest, Some(reth)) if !waits => {
                let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
                let packets = reth.len.div_ceil(self.mtu).max(1);
                // It, or the end of it, was asked for in this connection and may still be open (rxe:
                // `duplicate_request`). Another one is of a peer that numbers its packets anew, which would take
                // the answer for one to its own.
                let within = self.rq.fetched.iter().any(|f| {
                    f.result.is_none()
                        && Psn::distance(f.psn, psn) >= 0
                        && Psn::distance(psn.plus(packets), f.psn.plus(f.packets)) >= 0
                });
                let Ok((_, by)) = self.receiver(shared, packet) else {
                    return;
                };
                let fits = self.check_total(shared, reth.len).is_ok()
                    && check_remote(shared, by, &reth, read).is_ok();
                if within
                    && fits
                    && self.allows(read).is_ok()
                    && !self.rq.go_back(psn, &reth, packets)
                    && room
                {
                    self.push_read(psn, by.pd, &reth, packets, true);
                }
            }
            (Operation::CompareSwap | Operation::FetchAdd, _) if !waits && room => {
                let done = self.rq.fetched.iter().find(|f| f.psn == psn);
                if let Some(old) = done.and_then(|f| f.result) {
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

    /// The next answer, if one waits and is an acknowledgement (positive or negative) without data.
    pub fn next_acknowledgement(&mut self, shared: &mut Shared) -> Option<Transmit> {
        match self.rq.acknowledges() {
            true => self.next_response(shared),
            false => None,
        }
    }

    /// The next answer, if one waits.
    pub fn next_response(&mut self, shared: &mut Shared) -> Option<Transmit> {
        if self.rq.responses.is_empty() {
            return None;
        }
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
                    Syndrome::Rnr { .. } => {
                        counters.tx_rnr_naks += 1;
                        self.stats.rnr_naks_sent += 1;
                    }
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
                pd,
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
                        by: Asker {
                            pd: *pd,
                            qp_num: self.num,
                        },
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
        } else {
            // What was to follow is not due any more: not even the refusal of a later request.
            self.rq.responses.clear();
            let code = NakCode::RemoteAccessError;
            if self.receives() {
                self.refuse_for_good(shared, psn, code);
            } else if self.state == ibv_qp_state::IBV_QPS_ERR {
                self.rq.answer(psn, Syndrome::Nak(code));
            }
        }
    }
}
