//! The requester: cuts requests into packets, paces them, and sends them again when it must.

mod hazard;
mod local;
mod middle;

use std::collections::VecDeque;

use rdma_core_sys::{ibv_qp_state, ibv_wc_status};

use super::pace::{RoundTrip, Window};
use super::qp::{Qp, Shared};
use super::time::Instant;
use super::transmit::{Source, Transmit, check_local};
use super::wqe::{Data, SendOp, SendWqe};
use crate::wire::{AtomicEth, Class, Deth, Opcode, Operation, Packet, Place, Psn, Reth};

pub(super) use middle::Middle;

/// The sending half of a Queue Pair.
#[derive(Debug)]
pub(super) struct Requester {
    /// Requests that are not completed, oldest first.
    pub queue: VecDeque<Entry>,
    /// Requests completed before the front one: names requests for as long as they live.
    base: u64,
    /// How many, from the front, have their PSNs and may be in flight.
    pub started: usize,
    /// How many of those fetch (READ, atomics).
    open_fetches: usize,
    /// The packet that goes out next: request and packet in it.
    cursor: (usize, u32),
    /// First PSN of the next request to start.
    next_psn: Psn,
    /// The oldest PSN that is not acknowledged.
    pub una: Psn,
    /// One past the latest PSN that ever went out.
    pub sent_end: Psn,
    /// Ends of the READ and atomic requests in flight.
    fetches: VecDeque<Psn>,
    window: Window,
    round_trip: RoundTrip,
    /// Packets since the last one that asked for an acknowledgement.
    unasked: u32,
    pub retries: u8,
    pub rnr_retries: u8,
    /// Went back since the last progress: further news of the same loss says nothing new.
    pub recovering: bool,
    /// The oldest packet went out again to ask what came; the others wait for the answer.
    pub probing: bool,
    ack_deadline: Option<Instant>,
    probe_deadline: Option<Instant>,
    /// The peer had no receive: nothing goes out before this.
    pub rnr_until: Option<Instant>,
}

/// A send request and how far it is.
#[derive(Debug)]
pub(super) struct Entry {
    pub wqe: SendWqe,
    pub len: u32,
    /// First PSN, once started.
    pub psn: Psn,
    /// PSNs that it takes: its packets, or those of the response to a READ; none if it is done in the
    /// node.
    pub packets: u32,
    /// Packets of the response that came.
    pub received: u32,
    /// It is done in the node, and was.
    pub executed: bool,
    /// It cannot be executed; it fails when all before it are completed.
    failed: Option<ibv_wc_status>,
}

impl Entry {
    pub fn end(&self) -> Psn {
        self.psn.plus(self.packets)
    }
}

impl Requester {
    pub fn new(window: u32) -> Requester {
        Requester {
            queue: VecDeque::new(),
            base: 0,
            started: 0,
            open_fetches: 0,
            cursor: (0, 0),
            next_psn: Psn::default(),
            una: Psn::default(),
            sent_end: Psn::default(),
            fetches: VecDeque::new(),
            window: Window::new(window),
            round_trip: RoundTrip::default(),
            unasked: 0,
            retries: 0,
            rnr_retries: 0,
            recovering: false,
            probing: false,
            ack_deadline: None,
            probe_deadline: None,
            rnr_until: None,
        }
    }

    /// The first PSN to be sent (RTR->RTS).
    pub fn set_psn(&mut self, psn: Psn) {
        (self.next_psn, self.una, self.sent_end) = (psn, psn, psn);
    }

    /// The next PSN that was never used.
    pub fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// The earliest moment at which something must happen without a packet.
    pub fn deadline(&self) -> Option<Instant> {
        // The end of the clock. Where `None` is compared, the compiler may look at what lies beside its tag first, which memory
        // checkers take for an error.
        const NEVER: Instant = Instant::from_nanos(u64::MAX);
        let all = [self.ack_deadline, self.probe_deadline, self.rnr_until];
        let [ack, probe, rnr] = all.map(|at| at.unwrap_or(NEVER));
        let due = ack.min(probe).min(rnr);
        (due != NEVER).then_some(due)
    }

    /// Nothing is in flight.
    pub fn drained(&self) -> bool {
        self.started == 0
    }

    /// Takes out all requests, oldest first, and stops all timers.
    pub fn flush(&mut self) -> VecDeque<SendWqe> {
        self.started = 0;
        self.open_fetches = 0;
        self.cursor = (0, 0);
        self.fetches.clear();
        self.stop_timers();
        self.base += self.queue.len() as u64;
        self.queue.drain(..).map(|e| e.wqe).collect()
    }

    /// Nothing happens by time from now on.
    pub fn stop_timers(&mut self) {
        (self.ack_deadline, self.probe_deadline, self.rnr_until) = (None, None, None);
    }

    /// The request that was given this number when its packets were made.
    #[inline]
    pub fn by_order(&self, order: u64) -> Option<(usize, &Entry)> {
        let index = usize::try_from(order.checked_sub(self.base)?).ok()?;
        self.queue.get(index).map(|e| (index, e))
    }

    /// The request that the next packet is of, if there is one.
    #[inline]
    pub fn next(&self) -> Option<&Entry> {
        self.queue.get(self.cursor.0)
    }

    fn cursor_psn(&self) -> Psn {
        match self.queue.get(self.cursor.0) {
            Some(e) if self.cursor.0 < self.started => e.psn.plus(self.cursor.1),
            _ => self.next_psn,
        }
    }

    /// PSNs that a READ request asks for at most. Fixed for the life of a connection, so that a
    /// request sent again never crosses the bounds of the ones sent before: a responder may
    /// refuse that (rxe: `duplicate_request`).
    fn read_span(&self) -> u32 {
        (self.window.max() / 4).max(1)
    }

    /// Takes the oldest request out.
    #[inline]
    pub fn pop(&mut self) -> Option<Entry> {
        let e = self.queue.pop_front()?;
        self.base += 1;
        if self.started > 0 {
            self.started -= 1;
            self.open_fetches -= usize::from(e.wqe.op.is_fetch());
        }
        self.cursor = if self.cursor.0 == 0 {
            (0, 0)
        } else {
            (self.cursor.0 - 1, self.cursor.1)
        };
        Some(e)
    }

    /// The next packet is the oldest one not acknowledged.
    fn rewind(&mut self) {
        let packet = match self.queue.front() {
            Some(e) if self.started > 0 => Psn::distance(e.psn, self.una).max(0) as u32,
            _ => 0,
        };
        self.cursor = (0, packet);
        self.fetches.clear();
        (self.recovering, self.probing) = (true, false);
        self.unasked = 0;
        self.round_trip.forget_sample();
    }
}

impl Qp {
    /// Takes requests.
    #[inline]
    pub fn post_sends(&mut self, shared: &mut Shared, wqes: &mut VecDeque<SendWqe>) {
        if matches!(
            self.state,
            ibv_qp_state::IBV_QPS_ERR | ibv_qp_state::IBV_QPS_SQE
        ) && !self.ending
        {
            for wqe in wqes.drain(..) {
                self.complete_send(shared, &wqe, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0);
            }
        }
        // Looked at where it lies, and moved once: it is large.
        while let Some(wqe) = wqes.front() {
            let len = u32::try_from(wqe.data.total()).unwrap_or(u32::MAX);
            let packets = match wqe.op {
                SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::Datagram { .. } => 1,
                SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) => 0,
                _ if len <= self.mtu => 1,
                _ => len.div_ceil(self.mtu),
            };
            let psn = Psn::default();
            let Some(wqe) = wqes.pop_front() else { break };
            self.sq.queue.push_back(Entry {
                wqe,
                len,
                psn,
                packets,
                received: 0,
                executed: false,
                failed: None,
            });
        }
    }

    /// The next request begins if its turn has come, although there is no room for its packets: it counts as
    /// under way, whatever happens to the Queue Pair meanwhile.
    pub fn begin(&mut self, shared: &mut Shared) {
        if self.sends() && self.sq.rnr_until.is_none() && self.sq.cursor.0 == self.sq.started {
            self.start_next(shared);
        }
    }

    /// The next request packet, if one may go out.
    #[inline]
    pub fn next_request(&mut self, now: Instant, shared: &mut Shared) -> Option<Transmit> {
        loop {
            if !self.sends() || self.sq.rnr_until.is_some() {
                return None;
            }
            if self.sq.cursor.0 == self.sq.started && !self.start_next(shared) {
                return None;
            }
            if !self.sq.queue.get(self.sq.cursor.0)?.wqe.op.is_local() {
                break;
            }
            self.execute_local(shared);
        }
        let (index, at) = self.sq.cursor;
        let e = self.sq.queue.get(index)?;
        let psn = e.psn.plus(at);
        let fetch = e.wqe.op.is_fetch();
        let span = match e.wqe.op {
            SendOp::Read { .. } => {
                let most = self.sq.read_span();
                (most - at % most).min(e.packets - at)
            }
            _ => 1,
        };
        let ends = at + span == e.packets;
        let next = if ends {
            (index + 1, 0)
        } else {
            (index, at + span)
        };
        if !self.is_reliable() {
            let mut transmit = self.request_packet(shared, e, at, span, false)?;
            let order = self.sq.base + index as u64;
            transmit.completes = ends.then_some((self.num, order));
            shared.counters.tx_payload_bytes += u64::from(transmit.payload_len);
            self.sq.cursor = next;
            return Some(transmit);
        }
        let in_flight = Psn::distance(self.sq.una, psn).max(0) as u32;
        let window = match self.sq.probing {
            true => 1,
            false => self.sq.window.size(),
        };
        // One request may always be in flight, however small the window.
        if in_flight > 0 && in_flight + span > window {
            return None;
        }
        if fetch && self.sq.fetches.len() >= usize::from(self.attr.max_rd_atomic) {
            return None;
        }
        let ask = !fetch
            && (ends || in_flight + span >= window || self.sq.unasked + 1 >= window.div_ceil(4));
        let awaited =
            !ends || e.wqe.signaled || self.init.sq_sig_all || in_flight + span >= window / 2;
        // Given out as it was made: it is large.
        let mut transmit = self.request_packet(shared, e, at, span, ask);
        let made = transmit.as_mut()?;
        made.awaited = awaited;
        let bytes = made.payload_len;
        self.sent(now, shared, psn, span, fetch, ask, bytes);
        self.sq.cursor = next;
        transmit
    }

    /// The last packet of a request that nobody acknowledges has left: it is done.
    pub fn request_out(&mut self, shared: &mut Shared, order: u64) {
        // Requests leave in order, so that it is the oldest one, unless the queue was flushed.
        if self.sq.by_order(order).is_none_or(|(index, _)| index != 0) {
            return;
        }
        if let Some(e) = self.sq.pop() {
            self.sq.una = e.end();
            self.sq.sent_end = e.end();
            self.complete_send(shared, &e.wqe, ibv_wc_status::IBV_WC_SUCCESS, 0);
        }
        self.retire_local(shared);
        self.fail_if_due(shared);
    }

    /// Gives the next request its PSNs, if its turn has come.
    #[inline]
    fn start_next(&mut self, shared: &mut Shared) -> bool {
        if self.state != ibv_qp_state::IBV_QPS_RTS {
            return false;
        }
        let fenced = self.sq.open_fetches > 0;
        let Some(e) = self.sq.queue.get(self.sq.started) else {
            return false;
        };
        if e.failed.is_some() || (e.wqe.fence && fenced) {
            return false;
        }
        let failed = self.cannot_start(shared, e);
        let hazard = fenced && shared.config.strict.hazards && self.overtakes(e);
        let fetch = e.wqe.op.is_fetch();
        let next_psn = self.sq.next_psn;
        let Some(e) = self.sq.queue.get_mut(self.sq.started) else {
            return false;
        };
        if failed.is_some() {
            e.failed = failed;
            self.fail_if_due(shared);
            return false;
        }
        shared.counters.tx_unfenced_hazards += u64::from(hazard);
        e.psn = next_psn;
        self.sq.next_psn = e.end();
        self.sq.started += 1;
        self.sq.open_fetches += usize::from(fetch);
        true
    }

    /// Why a request cannot be executed, if so.
    #[inline]
    fn cannot_start(&self, shared: &Shared, e: &Entry) -> Option<ibv_wc_status> {
        let fetch = e.wqe.op.is_fetch();
        if fetch && self.attr.max_rd_atomic == 0 {
            return Some(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
        }
        if let SendOp::Datagram { ah, .. } = &e.wqe.op {
            // Checked when it was posted; the port may have changed since.
            let port = shared.config.ports.get(usize::from(ah.path.port) - 1);
            if port.is_none_or(|p| e.len > p.active_mtu) {
                return Some(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
            }
        }
        match &e.wqe.data {
            Data::Sges(sges)
                if self.init.pd.is_none_or(|pd| {
                    check_local(&shared.keys, pd, sges.as_slice(), fetch).is_err()
                }) =>
            {
                Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR)
            }
            _ => None,
        }
    }

    /// Headers for packet `at` of a request; for a READ, the question for `span` packets from there.
    #[inline]
    fn request_packet(
        &self,
        shared: &Shared,
        e: &Entry,
        at: u32,
        span: u32,
        ask: bool,
    ) -> Option<Transmit> {
        let (starts, ends) = (at == 0, at + span == e.packets);
        let place = Place::new(starts, ends);
        let offset = u64::from(at) * u64::from(self.mtu);
        let left = u64::from(e.len) - offset.min(u64::from(e.len));
        let reth = |addr: u64, rkey, len| Reth {
            va: addr.wrapping_add(offset),
            rkey,
            len,
        };
        let opcode = |op, place, imm| Opcode::new(self.class(), op, place, imm, false);
        let part = left.min(u64::from(self.mtu)) as u32;
        let mut payload_len = 0;
        let mut packet = Packet::new(self.bth(
            Opcode::default(),
            e.psn.plus(at),
            0,
            self.pkey(&shared.config),
        ));
        let mut path = self.path.as_ref();
        packet.xrceth = (self.class() == Class::Xrc).then_some(e.wqe.xrc_srq);
        packet.bth.opcode = match e.wqe.op {
            SendOp::Send { imm, invalidate } => {
                payload_len = part;
                packet.imm = imm.filter(|_| ends);
                packet.ieth = invalidate.filter(|_| ends);
                packet.bth.solicited = ends && e.wqe.solicited;
                let (imm, inv) = (packet.imm.is_some(), packet.ieth.is_some());
                Opcode::new(self.class(), Operation::Send, place, imm, inv)?
            }
            SendOp::Datagram {
                ref ah,
                qp_num,
                qkey,
                imm,
            } => {
                payload_len = e.len;
                path = Some(&ah.path);
                packet.imm = imm;
                packet.bth.dest_qp = qp_num;
                packet.bth.solicited = e.wqe.solicited;
                packet.deth = Some(Deth {
                    qkey: self.sent_qkey(qkey),
                    src_qp: self.num,
                });
                opcode(Operation::Send, place, imm.is_some())?
            }
            // Done in the node: never a packet.
            SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) => return None,
            SendOp::Write { remote, imm } => {
                payload_len = part;
                packet.imm = imm.filter(|_| ends);
                packet.bth.solicited = packet.imm.is_some() && e.wqe.solicited;
                packet.reth = starts.then(|| reth(remote.addr, remote.rkey, e.len));
                opcode(Operation::Write, place, packet.imm.is_some())?
            }
            SendOp::Read { remote } => {
                let len = left.min(u64::from(span) * u64::from(self.mtu)) as u32;
                packet.reth = Some(reth(remote.addr, remote.rkey, len));
                opcode(Operation::ReadRequest, Place::Only, false)?
            }
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                let (va, rkey) = (remote.addr, remote.rkey);
                packet.atomic = Some(AtomicEth {
                    va,
                    rkey,
                    swap_or_add: swap,
                    compare,
                });
                opcode(Operation::CompareSwap, Place::Only, false)?
            }
            SendOp::FetchAdd { remote, add } => {
                let (va, rkey) = (remote.addr, remote.rkey);
                packet.atomic = Some(AtomicEth {
                    va,
                    rkey,
                    swap_or_add: add,
                    compare: 0,
                });
                opcode(Operation::FetchAdd, Place::Only, false)?
            }
        };
        packet.bth.ack_req = ask;
        packet.bth.pad = crate::wire::pad_for(payload_len as usize);
        let source = if payload_len == 0 {
            Source::None
        } else {
            let order = self.sq.base + self.sq.cursor.0 as u64;
            Source::Request {
                qp_num: self.num,
                order,
                offset,
            }
        };
        Some(path?.transmit(self.num, packet, payload_len, source))
    }

    /// The Q_Key of a datagram: with the high bit set in the request, the Queue Pair's own. Adapters do
    /// so; ibv_post_send(3) says nothing of it, and rxe sends what the request has.
    fn sent_qkey(&self, asked: u32) -> u32 {
        if asked >> 31 == 1 {
            self.attr.qkey
        } else {
            asked
        }
    }

    /// Keeps the books of a packet that goes out.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    fn sent(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        psn: Psn,
        span: u32,
        fetch: bool,
        ask: bool,
        bytes: u32,
    ) {
        let ack_timeout = self.ack_timeout();
        let sq = &mut self.sq;
        let end = psn.plus(span);
        let again = Psn::distance(psn, sq.sent_end) > 0;
        if Psn::distance(sq.sent_end, end) > 0 {
            sq.sent_end = end;
        }
        if fetch {
            sq.fetches.push_back(end);
        }
        sq.unasked = if ask || fetch { 0 } else { sq.unasked + 1 };
        if (ask || fetch) && !again {
            sq.round_trip.asked(psn, now);
        }
        if sq.ack_deadline.is_none() {
            sq.ack_deadline = ack_timeout.map(|t| now + t);
        }
        sq.probe_deadline = sq.round_trip.probe_after().map(|t| now + t);
        self.stats.retransmitted += u64::from(again);
        shared.counters.tx_retransmitted += u64::from(again);
        shared.counters.tx_payload_bytes += u64::from(bytes);
    }

    /// The peer acknowledged everything before `una`, which just moved by `packets`.
    #[inline]
    pub fn progress(&mut self, now: Instant, packets: u32) {
        let ack_timeout = self.ack_timeout();
        let sq = &mut self.sq;
        sq.retries = self.attr.retry_cnt;
        sq.rnr_retries = self.attr.rnr_retry;
        (sq.recovering, sq.probing) = (false, false);
        sq.window.acknowledged(packets);
        sq.round_trip.answered(sq.una, now);
        let una = sq.una;
        while sq
            .fetches
            .front()
            .is_some_and(|&end| Psn::distance(end, una) >= 0)
        {
            sq.fetches.pop_front();
        }
        // An acknowledgement of packets that were about to be sent again.
        if let Some(e) = sq.queue.front().filter(|_| sq.started > 0) {
            let done = Psn::distance(e.psn, una).max(0) as u32;
            if sq.cursor.0 == 0 && sq.cursor.1 < done {
                sq.cursor.1 = done;
            }
        }
        let waiting = Psn::distance(una, sq.cursor_psn()) > 0;
        sq.ack_deadline = ack_timeout.filter(|_| waiting).map(|t| now + t);
        sq.probe_deadline = sq
            .round_trip
            .probe_after()
            .filter(|_| waiting)
            .map(|t| now + t);
    }

    /// Something was lost: go back to the oldest packet not acknowledged, if there are retries left
    /// (`retry_cnt`, ibv_modify_qp(3): after that many the request fails with RETRY_EXC).
    pub fn retry(&mut self, shared: &mut Shared) {
        if self.sq.retries == 0 {
            self.fail_front(shared, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
            return;
        }
        self.sq.retries -= 1;
        self.sq.window.lost();
        (self.sq.ack_deadline, self.sq.probe_deadline) = (None, None);
        self.sq.rewind();
    }

    /// The peer had no receive: go back, and wait as long as it said. Then one packet asks whether it has one now; the
    /// others wait for the answer, for without a receive it takes none of them.
    pub fn retry_after(&mut self, until: Instant) {
        (self.sq.ack_deadline, self.sq.probe_deadline) = (None, None);
        self.sq.rewind();
        self.sq.probing = true;
        self.sq.rnr_until = Some(until);
    }

    /// Timers that expired.
    pub fn expire(&mut self, now: Instant, shared: &mut Shared) {
        if self.ending {
            return self.sq.stop_timers();
        }
        if self.sq.rnr_until.is_some_and(|t| t <= now) {
            self.sq.rnr_until = None;
        }
        if self.sq.ack_deadline.is_some_and(|t| t <= now) {
            shared.counters.timeouts += 1;
            self.stats.timeouts += 1;
            self.retry(shared);
        } else if self.sq.probe_deadline.is_some_and(|t| t <= now) {
            // Ask again early, with one packet: mostly the peer is only slow. That is no retry: the timer of
            // the retries runs on. The last probe is followed by the others, for none will be.
            self.sq.probe_deadline = None;
            self.sq.round_trip.probed();
            self.sq.rewind();
            self.sq.probing = self.sq.round_trip.probe_after().is_some();
        }
    }

    /// The oldest request fails; everything behind it is flushed.
    pub fn fail_front(&mut self, shared: &mut Shared, status: ibv_wc_status) {
        if let Some(e) = self.sq.pop() {
            self.complete_send(shared, &e.wqe, status, 0);
        }
        self.enter_send_error(shared);
        // All before it are completed: what is heard from now on would be a success behind a failure.
        if self.ending {
            self.flush_sends(shared);
        }
    }

    /// Fails the oldest request if it was found impossible and nothing before it is open.
    pub fn fail_if_due(&mut self, shared: &mut Shared) {
        if let Some(status) = self.sq.queue.front().and_then(|e| e.failed)
            && self.sq.started == 0
        {
            self.fail_front(shared, status);
        }
    }

    /// The memory of a request went away while its packets were being made: the request fails once
    /// all before it are completed.
    pub fn fail_request(&mut self, shared: &mut Shared, order: u64) {
        self.fail_later(shared, order, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
    }

    /// A request that was started cannot go on: it fails once all before it are completed.
    fn fail_later(&mut self, shared: &mut Shared, order: u64, status: ibv_wc_status) {
        let Some((index, _)) = self.sq.by_order(order) else {
            return;
        };
        // It, and what follows it, is not in flight any more.
        let cut = self.sq.started.min(index);
        let gone = self.sq.queue.iter().take(self.sq.started).skip(cut);
        let fetches = gone.filter(|e| e.wqe.op.is_fetch()).count();
        self.sq.open_fetches -= fetches;
        self.sq.started = cut;
        if let Some(e) = self.sq.queue.get_mut(index) {
            e.failed = Some(status);
        }
        if self.sq.cursor.0 > index {
            self.sq.cursor = (index, 0);
        }
        self.fail_if_due(shared);
    }
}
