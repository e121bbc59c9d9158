//! A Queue Pair: its attributes, and what its three machines share.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::{ibv_event_type, ibv_qp_attr, ibv_qp_state, ibv_wc_opcode, ibv_wc_status};

use super::config::Config;
use super::counters::{Counters, Mishap};
use super::event::{Completion, CqId, Event, PdId, Queue, Sender, SrqId, XrcdId};
use super::keys::Keys;
use super::requester::Requester;
use super::responder::Responder;
use super::srq::Srq;
use super::time::Instant;
use super::transmit::{Source, Transmit};
use super::wqe::{RecvWqe, SendOp, SendWqe};
use crate::wire::{Bth, Class, Opcode, OpcodeInfo, Packet, Psn, pad_for};

/// What a Queue Pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// The transport.
    pub transport: Transport,
    /// The protection domain; an XRC target has none.
    pub pd: Option<PdId>,
    /// Where send completions go; an XRC target has none.
    pub send_cq: Option<CqId>,
    /// Where receive completions go; XRC Queue Pairs have none.
    pub recv_cq: Option<CqId>,
    /// Where receives come from, instead of a queue of its own.
    pub srq: Option<SrqId>,
    /// The XRC domain of an XRC target.
    pub xrcd: Option<XrcdId>,
    /// Datagrams to a multicast group that this Queue Pair is attached to are not delivered to itself
    /// (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    pub block_self_multicast: bool,
    /// Every send request completes with an entry in the CQ, whatever its flags.
    pub sq_sig_all: bool,
    /// Requests in the send queue.
    pub max_send_wr: u32,
    /// Requests in the receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send request.
    pub max_inline: u32,
}

/// What one Queue Pair went through since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpStats {
    /// RNR NAKs that it answered with: a message came and there was no receive.
    pub rnr_naks_sent: u64,
    /// RNR NAKs that its peer answered with.
    pub rnr_naks_received: u64,
    /// How long its send queue was told to wait by those.
    pub rnr_wait: Duration,
    /// Request packets that it sent again.
    pub retransmitted: u64,
    /// Expired acknowledgement timers.
    pub timeouts: u64,
}

/// What all machines of all Queue Pairs share; beside the table of Queue Pairs, so that one of
/// these and the rest can be borrowed together.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: Config,
    pub keys: Keys,
    pub srqs: BTreeMap<SrqId, Srq>,
    pub events: VecDeque<Event>,
    pub counters: Counters,
    /// A request that is done in the node has come to wait for acknowledgements that nobody waited for.
    pub awaits: bool,
    /// Queue Pairs in ERR whose requests are not flushed yet, by number: see [`Qp::ending`].
    pub ending: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub num: u32,
    pub init: QpInit,
    pub state: ibv_qp_state,
    /// The attributes as last modified; what the masks of the past covered is valid.
    pub attr: ibv_qp_attr,
    /// Where packets go, from INIT->RTR on.
    pub path: Option<QpPath>,
    /// Payload bytes of a full packet.
    pub mtu: u32,
    pub sq: Requester,
    pub rq: Responder,
    /// `IBV_EVENT_SQ_DRAINED` is owed.
    pub drain_event: bool,
    /// A place in the engine's queue of Queue Pairs that may have something to send.
    pub ready: bool,
    /// It has lost that place until there is room on its way.
    pub held: bool,
    /// Packets sent since this Queue Pair's turn began.
    pub burst: u32,
    /// The last packet was an answer: if there is a request too, it is next.
    answered: bool,
    /// The entry in the engine's timer set.
    pub armed: Option<Instant>,
    pub stats: QpStats,
    /// In ERR, and requests are under way that may have been executed: they are flushed when the events are taken, and
    /// until then it is heard which of them were.
    pub ending: bool,
}

/// A receive that a message goes to, and where it came from.
#[derive(Debug)]
pub(super) struct Taken {
    pub wqe: RecvWqe,
    /// The shared receive queue; `None` for the Queue Pair's own.
    pub srq: Option<SrqId>,
}

/// The address vector, resolved.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpPath {
    pub port: u8,
    pub sgid_index: u8,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub flow_label: u32,
}

impl Qp {
    pub fn new(num: u32, init: QpInit, config: &Config) -> Qp {
        Qp {
            num,
            init,
            state: ibv_qp_state::IBV_QPS_RESET,
            attr: ibv_qp_attr::default(),
            path: None,
            mtu: 256,
            sq: Requester::new(config.window),
            rq: Responder::default(),
            drain_event: false,
            ready: false,
            held: false,
            burst: 0,
            answered: false,
            armed: None,
            stats: QpStats::default(),
            ending: false,
        }
    }

    /// Forgets everything but what it was created with: RESET.
    pub fn reset(&mut self, shared: &mut Shared) {
        self.give_back(shared);
        let (ready, held, armed, stats) = (self.ready, self.held, self.armed, self.stats);
        *self = Qp::new(self.num, self.init, &shared.config);
        (self.ready, self.held, self.armed, self.stats) = (ready, held, armed, stats);
    }

    /// A receive that was taken from a shared receive queue for a message which did not end goes back
    /// to its front: none is lost with a Queue Pair.
    pub fn give_back(&mut self, shared: &mut Shared) {
        if let Some(Taken {
            wqe,
            srq: Some(srq),
        }) = self.rq.abandon()
            && let Some(srq) = shared.srqs.get_mut(&srq)
        {
            srq.queue.push_front(wqe);
        }
    }

    /// True if requests of the peer are executed.
    pub fn receives(&self) -> bool {
        use ibv_qp_state as S;
        matches!(
            self.state,
            S::IBV_QPS_RTR | S::IBV_QPS_RTS | S::IBV_QPS_SQD | S::IBV_QPS_SQE
        )
    }

    /// True if its requests are acknowledged, and repeated if they are not.
    pub fn is_reliable(&self) -> bool {
        !matches!(self.init.transport, Transport::Uc | Transport::Ud)
    }

    /// True if responses of the peer are for something.
    pub fn sends(&self) -> bool {
        matches!(
            self.state,
            ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD
        )
    }

    /// The class of its opcodes.
    #[inline]
    pub fn class(&self) -> Class {
        match self.init.transport {
            Transport::Uc => Class::Uc,
            Transport::Ud | Transport::Smi | Transport::Gsi | Transport::RawPacket => Class::Ud,
            Transport::XrcIni | Transport::XrcTgt => Class::Xrc,
            Transport::Rc => Class::Rc,
        }
    }

    /// True for packets of its transport that go its way: an XRC initiator only asks, a target only
    /// answers.
    #[inline]
    pub fn takes(&self, info: &OpcodeInfo) -> bool {
        let way = match self.init.transport {
            Transport::XrcIni => !info.is_request(),
            Transport::XrcTgt => info.is_request(),
            _ => true,
        };
        way && self.class() == info.class
    }

    /// Time without an acknowledgement after which requests are sent again; `None` is for ever.
    #[inline]
    pub fn ack_timeout(&self) -> Option<Duration> {
        rules::ack_timeout(self.attr.timeout)
    }

    /// A header to the peer.
    #[inline]
    pub fn bth(&self, opcode: Opcode, psn: Psn, payload_len: u32, pkey: u16) -> Bth {
        Bth {
            opcode,
            pad: pad_for(payload_len as usize),
            pkey,
            dest_qp: self.attr.dest_qp_num,
            psn,
            mig_req: true,
            ..Bth::default()
        }
    }

    /// The partition key that it sends; 0, which matches none, if its entry of the table is gone.
    #[inline]
    pub fn pkey(&self, config: &Config) -> u16 {
        let port = usize::from(self.attr.port_num).checked_sub(1);
        port.and_then(|p| config.ports.get(p))
            .and_then(|p| p.pkeys.get(usize::from(self.attr.pkey_index)))
            .copied()
            .unwrap_or(0)
    }

    /// A packet to the peer; `None` before it has a path.
    #[inline]
    pub fn transmit(&self, packet: Packet, payload_len: u32, source: Source) -> Option<Transmit> {
        Some(self.path?.transmit(self.num, packet, payload_len, source))
    }
}

impl QpPath {
    /// A packet along this path.
    #[inline]
    pub fn transmit(
        &self,
        qp_num: u32,
        packet: Packet,
        payload_len: u32,
        source: Source,
    ) -> Transmit {
        Transmit {
            qp_num,
            port: self.port,
            sgid_index: self.sgid_index,
            src: self.src,
            dst: self.dst,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            packet,
            payload_len,
            source,
            completes: None,
            awaited: true,
        }
    }
}

impl Qp {
    /// False if there is certainly nothing to send, nor to be done in the node.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.rq.answers() || self.sq.next().is_some()
    }

    /// Which way the next packet goes, if there is one.
    #[inline]
    pub fn next_path(&self) -> Option<&QpPath> {
        match (&self.path, self.sq.next().map(|e| &e.wqe.op)) {
            (None, Some(SendOp::Datagram { ah, .. })) => Some(&ah.path),
            (path, _) => path.as_ref(),
        }
    }

    /// The next packet to send: answers and requests in turn, so that neither starves behind the
    /// other.
    #[inline]
    pub fn next_packet(&mut self, now: Instant, shared: &mut Shared) -> Option<Transmit> {
        for _ in 0..2 {
            self.answered = !self.answered;
            let packet = match self.answered {
                true if !self.rq.answers() => None,
                true => self.next_response(shared),
                false => self.next_request(now, shared),
            };
            if packet.is_some() {
                return packet;
            }
        }
        None
    }

    /// Reports the end of a send request, if it ends in a completion.
    pub fn complete_send(
        &self,
        shared: &mut Shared,
        wqe: &SendWqe,
        status: ibv_wc_status,
        byte_len: u32,
    ) {
        let failed = status != ibv_wc_status::IBV_WC_SUCCESS;
        if !failed && !wqe.signaled && !self.init.sq_sig_all {
            return;
        }
        let opcode = match wqe.op {
            SendOp::Send { .. } | SendOp::Datagram { .. } => ibv_wc_opcode::IBV_WC_SEND,
            SendOp::LocalInvalidate { .. } => ibv_wc_opcode::IBV_WC_LOCAL_INV,
            SendOp::BindWindow(_) => ibv_wc_opcode::IBV_WC_BIND_MW,
            SendOp::Write { .. } => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
            SendOp::Read { .. } => ibv_wc_opcode::IBV_WC_RDMA_READ,
            SendOp::CompareSwap { .. } => ibv_wc_opcode::IBV_WC_COMP_SWAP,
            SendOp::FetchAdd { .. } => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        };
        if failed && status != ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
            shared.counters.note(Mishap::Request {
                qp_num: self.num,
                opcode,
                status,
                remote: wqe.op.remote(),
                len: wqe.data.total(),
            });
        }
        let wc = Completion {
            wr_id: wqe.wr_id,
            queue: Queue::Send,
            seq: wqe.seq,
            status,
            opcode,
            byte_len,
            imm: None,
            invalidated: None,
            qp_num: self.num,
            sender: None,
        };
        if let Some(cq) = self.init.send_cq {
            shared.events.push_back(Event::Completion {
                cq,
                wc,
                solicited: failed,
            });
        }
    }

    /// Reports the end of a receive request.
    pub fn complete_recv(&self, shared: &mut Shared, recv: &Taken, end: RecvEnd) {
        let of_srq = (recv.srq).and_then(|id| shared.srqs.get(&id)?.init.xrc);
        let cq = of_srq.map(|(_, cq)| cq).or(self.init.recv_cq);
        let failed = end.status != ibv_wc_status::IBV_WC_SUCCESS;
        let wc = Completion {
            wr_id: recv.wqe.wr_id,
            queue: recv.srq.map_or(Queue::Recv, Queue::Srq),
            seq: recv.wqe.seq,
            status: end.status,
            opcode: end.opcode,
            byte_len: if failed { 0 } else { end.byte_len },
            imm: end.imm,
            invalidated: end.invalidated,
            qp_num: self.num,
            sender: end.sender,
        };
        if failed && end.status != ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
            shared.counters.note(Mishap::Receive {
                qp_num: self.num,
                status: end.status,
                room: recv.wqe.sges.total(),
                len: (end.byte_len > 0).then_some(end.byte_len.into()),
            });
        }
        if let Some(cq) = cq {
            shared.events.push_back(Event::Completion {
                cq,
                wc,
                solicited: failed || end.solicited,
            });
        }
    }

    fn moves_to(&mut self, shared: &mut Shared, state: ibv_qp_state) {
        self.state = state;
        self.drain_event = false;
        let qp_num = self.num;
        shared.events.push_back(Event::State { qp_num, state });
        if self.is_reliable() && !self.sq.drained() {
            self.ending = true;
            self.sq.stop_timers();
            shared.ending.push(qp_num);
        } else {
            self.flush_sends(shared);
        }
    }

    /// Flushes the send queue.
    pub fn flush_sends(&mut self, shared: &mut Shared) {
        self.ending = false;
        for wqe in self.sq.flush() {
            self.complete_send(shared, &wqe, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0);
        }
    }

    /// Moves to ERR and flushes both queues; of a reliable Queue Pair, requests under way are flushed when the events are
    /// taken. A refusal that is still to be sent stays, and the answers before it. Of a shared receive queue only what this
    /// Queue Pair had taken is flushed; then it says that no more will come (`IBV_EVENT_QP_LAST_WQE_REACHED`,
    /// ibv_get_async_event(3)).
    pub fn enter_error(&mut self, shared: &mut Shared) {
        if self.state == ibv_qp_state::IBV_QPS_ERR {
            return;
        }
        self.moves_to(shared, ibv_qp_state::IBV_QPS_ERR);
        let flushed = RecvEnd::error(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        if let Some(recv) = self.rq.abandon() {
            self.complete_recv(shared, &recv, flushed);
        }
        for wqe in self.rq.flush() {
            self.complete_recv(shared, &Taken { wqe, srq: None }, flushed);
        }
        if self.init.srq.is_some() {
            self.event(shared, ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }

    /// The send queue failed. Where the peer knows nothing of it, receiving goes on: UC and UD move to
    /// SQE, and back to RTS by the application.
    pub fn enter_send_error(&mut self, shared: &mut Shared) {
        let sends = self.sends();
        if self.is_reliable() || !sends {
            self.enter_error(shared);
        } else {
            self.moves_to(shared, ibv_qp_state::IBV_QPS_SQE);
        }
    }

    /// Reports an asynchronous event.
    pub fn event(&self, shared: &mut Shared, kind: ibv_event_type) {
        shared.events.push_back(Event::Qp {
            qp_num: self.num,
            kind,
        });
    }
}

/// How a receive request ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvEnd {
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub byte_len: u32,
    pub imm: Option<u32>,
    pub invalidated: Option<u32>,
    pub sender: Option<Sender>,
    pub solicited: bool,
}

impl RecvEnd {
    pub fn error(status: ibv_wc_status) -> RecvEnd {
        RecvEnd {
            status,
            opcode: ibv_wc_opcode::IBV_WC_RECV,
            byte_len: 0,
            imm: None,
            invalidated: None,
            sender: None,
            solicited: false,
        }
    }
}
