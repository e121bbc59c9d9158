//! One node: its resources, its Queue Pairs, and the four verbs that drive them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{
    IBV_ACCESS_OPTIONAL_RANGE, ibv_access_flags, ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_state,
};
use rustix::io::Errno;

use super::config::{Caps, Config, gid_to_ip};
use super::counters::{Counters, Refused};
use super::event::{CqId, Event, PdId};
use super::keys::{Keys, MrKeys};
use super::modify::ModifyError;
use super::qp::{Qp, QpInit, Shared};
use super::rng::Rng;
use super::time::Instant;
use super::transmit::{Payload, Piece, Source, Transmit, gather, pieces};
use super::wqe::{Data, RecvWqe, SendWqe};
use crate::mem::Region;
use crate::wire::{Class, Packet};

/// Packets that a Queue Pair sends before another one has its turn.
const BURST: u32 = 16;

/// Where a packet arrived, and from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The port that it arrived at, from 1.
    pub port: u8,
    /// The sender's address.
    pub src: IpAddr,
    /// The address that it was sent to.
    pub dst: IpAddr,
}

/// One node's Queue Pairs and everything that they need.
///
/// It holds no lock, thread, socket or clock. Whoever drives it makes one call that changes
/// something (a request, a packet, the time), then takes out what is to be sent
/// ([`poll_transmit`](Engine::poll_transmit)) and what is to be reported
/// ([`poll_event`](Engine::poll_event)) until both are empty.
#[derive(Debug)]
pub struct Engine {
    shared: Shared,
    qps: BTreeMap<u32, Qp>,
    next_qpn: u32,
    /// Protection domains and how many regions and Queue Pairs are in each.
    pds: BTreeMap<PdId, usize>,
    /// Completion queues and how many queues report to each.
    cqs: BTreeMap<CqId, usize>,
    next_id: u32,
    /// Queue Pairs that may have something to send.
    ready: VecDeque<u32>,
    timers: BTreeSet<(Instant, u32)>,
    /// Room for the pieces of a payload that stays in the node.
    pieces: Vec<Piece>,
}

impl Engine {
    /// A node without resources. Keys and numbers derive from `seed`, which therefore comes from
    /// the operating system unless a run is to be repeated.
    pub fn new(config: Config, seed: u64) -> Engine {
        let mut rng = Rng::new(seed);
        let shared = Shared {
            config,
            keys: Keys::new(&mut rng),
            events: VecDeque::new(),
            counters: Counters::default(),
        };
        Engine {
            shared,
            qps: BTreeMap::new(),
            next_qpn: rng.next_u32(),
            pds: BTreeMap::new(),
            cqs: BTreeMap::new(),
            next_id: 1,
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            pieces: Vec::new(),
        }
    }

    /// What it was told about its node.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Counts a frame that was refused before it could become a packet.
    pub fn refuse(&mut self, why: Refused) {
        self.shared.counters.received(Err(why));
    }

    fn id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        id
    }

    /// A new protection domain; `ENOMEM` above [`max_pd`](super::config::Caps::max_pd).
    pub fn alloc_pd(&mut self) -> Result<PdId, Errno> {
        within(self.pds.len(), self.shared.config.caps.max_pd)?;
        let pd = PdId(self.id());
        self.pds.insert(pd, 0);
        Ok(pd)
    }

    /// Ends a protection domain; `EBUSY` while memory regions or Queue Pairs belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Errno> {
        unused(&mut self.pds, pd)
    }

    /// Registers memory. Requests address its first byte as `iova`.
    ///
    /// # Errors
    /// `EINVAL` for rights of peers to write without the local right to write (ibv_reg_mr(3)), for
    /// rights that this device does not have, and for a range that wraps; `ENOMEM` above the caps.
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: ibv_access_flags,
    ) -> Result<MrKeys, Errno> {
        use ibv_access_flags as A;
        let caps = &self.shared.config.caps;
        within(self.shared.keys.len(), caps.max_mr)?;
        let local = A::IBV_ACCESS_LOCAL_WRITE;
        let remote = A::IBV_ACCESS_REMOTE_WRITE | A::IBV_ACCESS_REMOTE_ATOMIC;
        // How the range is addressed is settled by `iova`; that its pages are huge is a hint.
        let known = local
            | remote
            | A::IBV_ACCESS_REMOTE_READ
            | A::IBV_ACCESS_ZERO_BASED
            | A::IBV_ACCESS_HUGETLB
            | A::from_bits_retain(IBV_ACCESS_OPTIONAL_RANGE);
        let bad = access.bits() & !known.bits() != 0
            || (access.intersects(remote) && !access.contains(local))
            || iova.checked_add(region.len()).is_none()
            || region.len() > caps.max_mr_size
            || !self.pds.contains_key(&pd);
        if bad {
            return Err(Errno::INVAL);
        }
        count(&mut self.pds, pd, 1);
        Ok(self.shared.keys.insert(pd, region, iova, access))
    }

    /// Ends a registration: after it returns, nothing touches the memory.
    pub fn dereg_mr(&mut self, lkey: u32) -> Result<(), Errno> {
        let pd = self.shared.keys.remove(lkey).ok_or(Errno::INVAL)?;
        count(&mut self.pds, pd, -1);
        Ok(())
    }

    /// A new completion queue, as far as the engine needs one: a name for where completions go.
    pub fn create_cq(&mut self) -> Result<CqId, Errno> {
        within(self.cqs.len(), self.shared.config.caps.max_cq)?;
        let cq = CqId(self.id());
        self.cqs.insert(cq, 0);
        Ok(cq)
    }

    /// Ends a completion queue; `EBUSY` while Queue Pairs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), Errno> {
        unused(&mut self.cqs, cq)
    }

    /// A new Queue Pair, in RESET. Returns its number.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a transport that this device does not have, `EINVAL` for capacities above
    /// the caps or unknown objects, `ENOMEM` above the number of Queue Pairs.
    pub fn create_qp(&mut self, init: QpInit) -> Result<u32, Errno> {
        let caps = &self.shared.config.caps;
        if init.transport != Transport::Rc {
            return Err(Errno::OPNOTSUPP);
        }
        let over = init.max_send_wr > caps.max_qp_wr
            || init.max_recv_wr > caps.max_qp_wr
            || init.max_send_sge > caps.max_sge
            || init.max_recv_sge > caps.max_sge
            || init.max_inline > caps.max_inline_data;
        let known = self.pds.contains_key(&init.pd)
            && self.cqs.contains_key(&init.send_cq)
            && self.cqs.contains_key(&init.recv_cq);
        if over || !known {
            return Err(Errno::INVAL);
        }
        within(self.qps.len(), caps.max_qp)?;
        let num = self.draw_qpn();
        self.qps
            .insert(num, Qp::new(num, init, &self.shared.config));
        self.count_users(&init, 1);
        Ok(num)
    }

    /// The next free number. 0 and 1 are the management Queue Pairs, 0xffffff is multicast.
    fn draw_qpn(&mut self) -> u32 {
        loop {
            let num = self.next_qpn & 0xff_ffff;
            self.next_qpn = self.next_qpn.wrapping_add(1);
            if num > 1 && num != 0xff_ffff && !self.qps.contains_key(&num) {
                return num;
            }
        }
    }

    /// Modifies a Queue Pair and returns its state afterwards.
    ///
    /// # Errors
    /// [`ModifyError`]; nothing was changed then.
    pub fn modify_qp(
        &mut self,
        qp_num: u32,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<ibv_qp_state, ModifyError> {
        let qp = self.qps.get_mut(&qp_num).ok_or(ModifyError::NoQp(qp_num))?;
        let state = qp.modify(&mut self.shared, attr, mask)?;
        self.settle(qp_num);
        Ok(state)
    }

    /// A Queue Pair's attributes as they are now, and what it was created with.
    pub fn query_qp(&self, qp_num: u32) -> Option<(ibv_qp_attr, QpInit)> {
        self.qps.get(&qp_num).map(|qp| (qp.query(), qp.init))
    }

    /// Ends a Queue Pair; what is pending is discarded without completions.
    pub fn destroy_qp(&mut self, qp_num: u32) -> Result<(), Errno> {
        let qp = self.qps.remove(&qp_num).ok_or(Errno::INVAL)?;
        if let Some(at) = qp.armed {
            self.timers.remove(&(at, qp_num));
        }
        self.count_users(&qp.init, -1);
        Ok(())
    }

    fn count_users(&mut self, init: &QpInit, by: isize) {
        count(&mut self.pds, init.pd, by);
        count(&mut self.cqs, init.send_cq, by);
        count(&mut self.cqs, init.recv_cq, by);
    }

    /// Posts a send request. Its shape was checked by whoever posts: opcode, number of entries,
    /// length, the Queue Pair's state.
    pub fn post_send(&mut self, qp_num: u32, wqe: SendWqe) {
        if let Some(qp) = self.qps.get_mut(&qp_num) {
            qp.post_send(&mut self.shared, wqe);
            self.settle(qp_num);
        }
    }

    /// Posts a receive request.
    pub fn post_recv(&mut self, qp_num: u32, wqe: RecvWqe) {
        if let Some(qp) = self.qps.get_mut(&qp_num) {
            qp.post_recv(&mut self.shared, wqe);
            self.settle(qp_num);
        }
    }

    /// A completion found no room in its queue: all Queue Pairs of that queue end in ERR.
    pub fn cq_overrun(&mut self, cq: CqId) {
        for qp in self.qps.values_mut() {
            let uses = qp.init.send_cq == cq || qp.init.recv_cq == cq;
            if uses
                && qp.state != ibv_qp_state::IBV_QPS_ERR
                && qp.state != ibv_qp_state::IBV_QPS_RESET
            {
                qp.enter_error(&mut self.shared);
                qp.event(&mut self.shared, ibv_event_type::IBV_EVENT_QP_FATAL);
            }
        }
    }

    /// Takes a packet from the network: checked for damage, parsed.
    pub fn handle_packet(&mut self, now: Instant, path: &Path, packet: &Packet, payload: &[u8]) {
        self.receive(now, path, packet, &Payload::Bytes(payload));
    }

    /// Takes a packet that this node itself sends to one of its own addresses. The payload is copied
    /// once, from where the sender has it to where the receiver wants it.
    pub fn loopback(&mut self, now: Instant, t: &Transmit) {
        let is_ours = |p: &super::config::PortConfig| {
            p.gids
                .iter()
                .any(|g| !g.is_empty() && gid_to_ip(g.gid) == t.dst)
        };
        let port = self
            .shared
            .config
            .ports
            .iter()
            .position(is_ours)
            .map_or(t.port, |p| p as u8 + 1);
        let path = Path {
            port,
            src: t.src,
            dst: t.dst,
        };
        let mut pieces = std::mem::take(&mut self.pieces);
        let mut inline = [0u8; Caps::INLINE_LIMIT];
        let payload = self.locate(t, &mut pieces, &mut inline);
        match payload {
            Some(payload) => {
                self.shared.counters.tx_frames += 1;
                self.receive(now, &path, &t.packet, &payload);
            }
            None => self.payload_gone(t),
        }
        pieces.clear();
        self.pieces = pieces;
    }

    /// Finds a payload without copying it, unless it is inline data.
    fn locate<'a>(
        &self,
        t: &Transmit,
        out: &'a mut Vec<Piece>,
        inline: &'a mut [u8],
    ) -> Option<Payload<'a>> {
        let len = t.payload_len as usize;
        match t.source {
            Source::None => {}
            Source::Request {
                qp_num,
                order,
                offset,
            } => {
                let qp = self.qps.get(&qp_num)?;
                let (_, e) = qp.sq.by_order(order)?;
                match &e.wqe.data {
                    Data::Inline(_) => {
                        let out = inline.get_mut(..len)?;
                        gather(&self.shared.keys, qp.init.pd, &e.wqe.data, offset, out).ok()?;
                        return Some(Payload::Bytes(out));
                    }
                    Data::Sges(sges) => {
                        pieces(
                            &self.shared.keys,
                            qp.init.pd,
                            sges.as_slice(),
                            offset,
                            len,
                            out,
                        )
                        .ok()?;
                    }
                }
            }
            Source::Read {
                qp_num, rkey, va, ..
            } => {
                let qp = self.qps.get(&qp_num)?;
                let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
                let (region, offset) = self
                    .shared
                    .keys
                    .remote(qp.init.pd, rkey, va, len as u64, read)
                    .ok()?;
                out.push(Piece {
                    region: region.clone(),
                    offset,
                    len,
                });
            }
        }
        Some(Payload::Pieces(out))
    }

    /// Writes a packet, from BTH to padding, to the front of `buf`, which must hold
    /// [`MAX_FRAME`](super::MAX_FRAME) bytes, and returns its length. The ICRC, which needs the
    /// addresses of the IP header, is left to the link.
    ///
    /// `None` if the payload's memory went away since the packet was taken: there is nothing to
    /// send, and the Queue Pair was told.
    pub fn emit(&mut self, t: &Transmit, buf: &mut [u8]) -> Option<usize> {
        let header = t.packet.emit_header(buf);
        let len = t.payload_len as usize;
        if self
            .fetch_payload(t, buf.get_mut(header..header + len)?)
            .is_none()
        {
            self.payload_gone(t);
            return None;
        }
        let end = header + len + usize::from(t.packet.bth.pad);
        buf.get_mut(header + len..end)?.fill(0);
        self.shared.counters.tx_frames += 1;
        Some(end)
    }

    fn fetch_payload(&self, t: &Transmit, out: &mut [u8]) -> Option<()> {
        match t.source {
            Source::None => Some(()),
            Source::Request {
                qp_num,
                order,
                offset,
            } => {
                let qp = self.qps.get(&qp_num)?;
                let (_, e) = qp.sq.by_order(order)?;
                gather(&self.shared.keys, qp.init.pd, &e.wqe.data, offset, out).ok()
            }
            Source::Read {
                qp_num, rkey, va, ..
            } => {
                let qp = self.qps.get(&qp_num)?;
                let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
                let len = out.len() as u64;
                let (region, offset) = self
                    .shared
                    .keys
                    .remote(qp.init.pd, rkey, va, len, read)
                    .ok()?;
                region.read(offset, out).ok()
            }
        }
    }

    /// The memory of a packet's payload is not there any more.
    fn payload_gone(&mut self, t: &Transmit) {
        let (Source::Request { qp_num, .. } | Source::Read { qp_num, .. }) = t.source else {
            return;
        };
        let Some(qp) = self.qps.get_mut(&qp_num) else {
            return;
        };
        match t.source {
            Source::Request { order, .. } => qp.fail_request(&mut self.shared, order),
            Source::Read { again, .. } => {
                qp.fail_read(&mut self.shared, t.packet.bth.psn, again);
            }
            Source::None => {}
        }
        self.settle(qp_num);
    }

    fn receive(&mut self, now: Instant, path: &Path, packet: &Packet, payload: &Payload<'_>) {
        let outcome = self.dispatch(now, path, packet, payload);
        self.shared.counters.received(outcome);
        self.settle(packet.bth.dest_qp);
    }

    /// The checks that all packets pass, in the order of rxe's (rxe_recv.c): the Queue Pair, its
    /// transport, its state, its peer, the partition.
    fn dispatch(
        &mut self,
        now: Instant,
        path: &Path,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<(), Refused> {
        let bth = &packet.bth;
        let info = bth.opcode.info().ok_or(Refused::UnknownOpcode)?;
        if info.class == Class::Cnp {
            return Err(Refused::Congestion);
        }
        if bth.tver != 0 {
            return Err(Refused::BadHeader);
        }
        let qp = self.qps.get_mut(&bth.dest_qp).ok_or(Refused::UnknownQp)?;
        if qp.class() != info.class {
            return Err(Refused::WrongTransport);
        }
        let open = if info.is_request() {
            qp.receives()
        } else {
            qp.sends()
        };
        let Some(peer) = qp.path.filter(|_| open) else {
            return Err(Refused::QpState);
        };
        if peer.dst != path.src || peer.src != path.dst {
            return Err(Refused::WrongPeer);
        }
        if !same_partition(bth.pkey, qp.pkey(&self.shared.config)) {
            return Err(Refused::BadPkey);
        }
        if info.is_request() {
            qp.handle_request(&mut self.shared, info, packet, payload)
        } else {
            qp.handle_response(now, &mut self.shared, info, packet, payload)
        }
    }

    /// Lets time pass: everything that was due by `now` happens.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, qp_num)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            if let Some(qp) = self.qps.get_mut(&qp_num) {
                qp.armed = None;
                qp.expire(now, &mut self.shared);
                self.settle(qp_num);
            }
        }
    }

    /// When [`handle_timeout`](Engine::handle_timeout) is to be called; it may be sooner than needed.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// True if [`poll_transmit`](Engine::poll_transmit) may have a packet.
    pub fn has_transmit(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next packet to send, if one may go out now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        while let Some(&qp_num) = self.ready.front() {
            let Some(qp) = self.qps.get_mut(&qp_num) else {
                self.ready.pop_front();
                continue;
            };
            let t = qp.next_packet(now, &mut self.shared);
            match t {
                None => {
                    (qp.ready, qp.burst) = (false, 0);
                    self.ready.pop_front();
                }
                Some(_) => {
                    qp.burst += 1;
                    if qp.burst >= BURST {
                        qp.burst = 0;
                        self.ready.rotate_left(1);
                    }
                }
            }
            self.arm(qp_num);
            if t.is_some() {
                return t;
            }
        }
        None
    }

    /// The next thing to report.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// After a change to a Queue Pair: it may have something to send, or another deadline.
    fn settle(&mut self, qp_num: u32) {
        let Some(qp) = self.qps.get_mut(&qp_num) else {
            return;
        };
        if qp.drain_event && qp.state == ibv_qp_state::IBV_QPS_SQD && qp.sq.drained() {
            qp.drain_event = false;
            qp.event(&mut self.shared, ibv_event_type::IBV_EVENT_SQ_DRAINED);
        }
        if !qp.ready {
            qp.ready = true;
            self.ready.push_back(qp_num);
        }
        self.arm(qp_num);
    }

    /// Brings the timer set in line with a Queue Pair's deadline. A deadline that moved away is left
    /// to fire early and be looked at then: cheaper than moving it with every packet.
    fn arm(&mut self, qp_num: u32) {
        let Some(qp) = self.qps.get_mut(&qp_num) else {
            return;
        };
        let Some(due) = qp.sq.deadline() else { return };
        if qp.armed.is_some_and(|at| at <= due) {
            return;
        }
        if let Some(at) = qp.armed.replace(due) {
            self.timers.remove(&(at, qp_num));
        }
        self.timers.insert((due, qp_num));
    }
}

/// Changes the number of users of an object.
fn count<Id: Ord>(objects: &mut BTreeMap<Id, usize>, id: Id, by: isize) {
    if let Some(users) = objects.get_mut(&id) {
        *users = users.saturating_add_signed(by);
    }
}

/// Takes an object out; `EBUSY` if it has users, `EINVAL` if there is none.
fn unused<Id: Ord>(objects: &mut BTreeMap<Id, usize>, id: Id) -> Result<(), Errno> {
    match objects.get(&id) {
        None => Err(Errno::INVAL),
        Some(0) => {
            objects.remove(&id);
            Ok(())
        }
        Some(_) => Err(Errno::BUSY),
    }
}

/// `ENOMEM` if one more than `have` is above `max`.
fn within(have: usize, max: u32) -> Result<(), Errno> {
    if (have as u64) < u64::from(max) {
        Ok(())
    } else {
        Err(Errno::NOMEM)
    }
}

/// Two partition keys match if their low 15 bits do and at least one is of a full member
/// (rxe: `pkey_match`).
fn same_partition(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && (a | b) & 0x8000 != 0
}
