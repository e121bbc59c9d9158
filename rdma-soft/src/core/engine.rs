//! One node: its resources, its Queue Pairs, and the four verbs that drive them.

mod middle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use rdma_core_sys::{ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use super::agenda::Agenda;
use super::config::{Caps, Config, gid_to_ip};
use super::counters::{Counters, Refused};
use super::event::{CqId, Event, PdId, XrcdId};
use super::keys::Keys;
use super::modify::ModifyError;
use super::qp::{Qp, QpInit, QpStats, Shared};
use super::rng::Rng;
use super::time::Instant;
use super::transmit::{Payload, Piece, Source, Transmit, gather, pieces};
use super::wqe::{Data, RecvWqe, SendWqe};
use crate::mem::Region;
use crate::wire::{Class, Packet, Psn};

/// The Queue Pair number of datagrams to a multicast group.
pub const MULTICAST_QP: u32 = 0xff_ffff;

/// Where a packet arrived, and from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The port that it arrived at, from 1.
    pub port: u8,
    /// The sender's address.
    pub src: IpAddr,
    /// The address that it was sent to: of this node, or of a multicast group.
    pub dst: IpAddr,
    /// Traffic class of the IP header, as far as it is known.
    pub traffic_class: u8,
    /// Hop limit of the IP header, as far as it is known.
    pub hop_limit: u8,
    /// Flow label of an IPv6 header, as far as it is known.
    pub flow_label: u32,
}

impl Path {
    /// A path of which the addresses are known.
    pub fn new(port: u8, src: IpAddr, dst: IpAddr) -> Path {
        Path {
            port,
            src,
            dst,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }
}

/// One node's Queue Pairs and everything that they need.
///
/// It holds no lock, thread, socket or clock. Whoever drives it makes one call that changes
/// something (a request, a packet, the time), then takes out what is to be sent
/// ([`poll_transmit`](Engine::poll_transmit)) and what is to be reported
/// ([`poll_event`](Engine::poll_event)) until both are empty.
#[derive(Debug)]
pub struct Engine {
    pub(super) shared: Shared,
    pub(super) qps: BTreeMap<u32, Qp>,
    pub(super) next_qpn: u32,
    pub(super) next_srqn: u32,
    /// Protection domains and how many objects are in each.
    pub(super) pds: BTreeMap<PdId, usize>,
    /// Completion queues and how many queues report to each.
    pub(super) cqs: BTreeMap<CqId, usize>,
    /// XRC domains and how many SRQs and Queue Pairs are in each.
    pub(super) xrcds: BTreeMap<XrcdId, usize>,
    /// Address handles.
    pub(super) ahs: u64,
    /// Multicast groups and the Queue Pairs attached to each.
    pub(super) groups: BTreeMap<IpAddr, BTreeSet<u32>>,
    pub(super) next_id: u32,
    pub(super) agenda: Agenda,
    /// Room for the pieces of a payload that stays in the node.
    pieces: Vec<Piece>,
}

impl Engine {
    /// A node without resources. Keys and numbers derive from `seed`, which therefore comes from
    /// the operating system unless a run is to be repeated.
    pub fn new(config: Config, seed: u64) -> Engine {
        let mut rng = Rng::new(seed);
        let keys = Keys::new(&mut rng, config.strict.distinct_keys);
        let shared = Shared {
            config,
            keys,
            srqs: BTreeMap::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            awaits: false,
            ending: Vec::new(),
        };
        Engine {
            shared,
            qps: BTreeMap::new(),
            next_qpn: rng.next_u32(),
            next_srqn: rng.next_u32(),
            pds: BTreeMap::new(),
            cqs: BTreeMap::new(),
            xrcds: BTreeMap::new(),
            ahs: 0,
            groups: BTreeMap::new(),
            next_id: 1,
            agenda: Agenda::default(),
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
        self.end();
        let qp = self.qps.get_mut(&qp_num).ok_or(ModifyError::NoQp(qp_num))?;
        let state = qp.modify(&mut self.shared, attr, mask)?;
        self.agenda.settle(qp, &mut self.shared);
        Ok(state)
    }

    /// A Queue Pair's attributes as they are now, and what it was created with.
    pub fn query_qp(&self, qp_num: u32) -> Option<(ibv_qp_attr, QpInit)> {
        self.qps.get(&qp_num).map(|qp| (qp.query(), qp.init))
    }

    /// From which address to which one the packets of a connected Queue Pair go.
    pub fn way(&self, qp_num: u32) -> Option<(IpAddr, IpAddr)> {
        let path = self.qps.get(&qp_num)?.path?;
        Some((path.src, path.dst))
    }

    /// What a Queue Pair went through.
    pub fn qp_stats(&self, qp_num: u32) -> Option<QpStats> {
        self.qps.get(&qp_num).map(|qp| qp.stats)
    }

    /// Lets go of a region's windows that were invalidated by requests of this node whose completions
    /// the application has seen: `polled` gives, for a Queue Pair, how many requests of its send queue
    /// are over and known to be. To be called before a region is changed or deregistered.
    pub fn settle_windows(&mut self, lkey: u32, polled: impl Fn(u32) -> Option<u64>) {
        self.shared.keys.settle_windows(lkey, polled);
    }

    /// Posts a send request. Its shape was checked by whoever posts: opcode, number of entries,
    /// length, the Queue Pair's state.
    pub fn post_send(&mut self, qp_num: u32, wqe: SendWqe) {
        self.post_sends(qp_num, &mut VecDeque::from([wqe]));
    }

    /// Posts all requests in `wqes`, oldest first, as [`post_send`](Engine::post_send), and leaves it empty.
    #[inline]
    pub fn post_sends(&mut self, qp_num: u32, wqes: &mut VecDeque<SendWqe>) {
        match self.qps.get_mut(&qp_num) {
            Some(qp) => {
                qp.post_sends(&mut self.shared, wqes);
                self.agenda.settle(qp, &mut self.shared);
            }
            None => wqes.clear(),
        }
    }

    /// Posts all receive requests in `wqes`, oldest first, and leaves it empty. Where none wait yet, the
    /// Queue Pair takes the whole queue, and `wqes` is its former one: nothing is copied, and no room is
    /// held twice.
    pub fn post_recvs(&mut self, qp_num: u32, wqes: &mut VecDeque<RecvWqe>) {
        match self.qps.get_mut(&qp_num) {
            Some(qp) => {
                qp.post_recvs(&mut self.shared, wqes);
                self.agenda.settle(qp, &mut self.shared);
            }
            None => wqes.clear(),
        }
    }

    /// True if a message to that Queue Pair would find no receive of its own: whoever holds back some has to post them
    /// before the packet is taken.
    #[inline]
    pub fn lacks_receives(&self, qp_num: u32) -> bool {
        let lacks = |qp: &Qp| qp.rq.is_empty() && qp.init.srq.is_none();
        self.qps.get(&qp_num).is_some_and(lacks)
    }

    /// Takes a packet from the network: checked for damage, parsed.
    pub fn handle_packet(&mut self, now: Instant, path: &Path, packet: &Packet, payload: &[u8]) {
        self.receive(now, path, packet, &Payload::Bytes(payload), false);
    }

    /// Takes a packet whose payload is the `len` bytes from `offset` on in `memory`, from where they are copied
    /// to where the receiver wants them. Others may change them meanwhile.
    ///
    /// True if it is a request that was executed, and the link is to tell its sender so, who has asked: that takes the
    /// place of an acknowledgement ([`handle_executed`](Engine::handle_executed)).
    #[inline]
    pub fn handle_packet_in(
        &mut self,
        now: Instant,
        path: &Path,
        packet: &Packet,
        memory: &Region,
        offset: u64,
        len: usize,
    ) -> bool {
        let of = memory;
        self.receive(now, path, packet, &Payload::Part { of, offset, len }, true)
    }

    /// The link was told that a request of this node was executed, by whoever it was sent to: the packet of that Queue
    /// Pair from `src` to `dst` with that number, and so all before it.
    pub fn handle_executed(
        &mut self,
        now: Instant,
        src: IpAddr,
        dst: IpAddr,
        qp_num: u32,
        psn: Psn,
    ) {
        let hears = |qp: &&mut Qp| qp.sends() || qp.ending;
        let Some(qp) = self.qps.get_mut(&qp_num).filter(hears) else {
            return;
        };
        if qp
            .path
            .is_some_and(|path| path.src == src && path.dst == dst)
        {
            qp.handle_executed(now, &mut self.shared, psn);
            self.agenda.settle(qp, &mut self.shared);
        }
    }

    /// Takes a packet that this node itself sends to one of its own addresses. The payload is copied
    /// once, from where the sender has it to where the receiver wants it.
    ///
    /// A datagram to a multicast group goes to the members on this node so, and is to be
    /// [emitted](Engine::emit) afterwards, for the others.
    pub fn loopback(&mut self, now: Instant, t: &Transmit) {
        let is_ours = |p: &super::config::PortConfig| {
            p.gids
                .iter()
                .any(|g| !g.is_empty() && gid_to_ip(g.gid) == t.dst)
        };
        let ports = &self.shared.config.ports;
        let port = ports.iter().position(is_ours);
        let path = Path {
            port: port.map_or(t.port, |p| p as u8 + 1),
            src: t.src,
            dst: t.dst,
            traffic_class: t.traffic_class,
            hop_limit: t.hop_limit,
            flow_label: t.flow_label,
        };
        let mut pieces = std::mem::take(&mut self.pieces);
        let mut inline = [0u8; Caps::INLINE_LIMIT];
        let payload = match self.locate(t, &mut pieces) {
            // It lies in the engine, which is about to change.
            Some(Payload::Bytes(bytes)) => inline.get_mut(..bytes.len()).map(|copy| {
                copy.copy_from_slice(bytes);
                Payload::Bytes(copy)
            }),
            Some(Payload::Pieces(_)) => Some(Payload::Pieces(&pieces)),
            _ => None,
        };
        match payload {
            Some(payload) if t.is_multicast() => {
                if self.groups.contains_key(&t.dst) {
                    self.receive(now, &path, &t.packet, &payload, false);
                }
            }
            Some(payload) => {
                self.shared.counters.tx_frames += 1;
                self.receive(now, &path, &t.packet, &payload, false);
                self.is_out(t);
            }
            None => self.payload_gone(t),
        }
        pieces.clear();
        self.pieces = pieces;
    }

    /// A packet has left: a request that nobody acknowledges may be done with it.
    #[inline]
    fn is_out(&mut self, t: &Transmit) {
        if let Some((qp_num, order)) = t.completes
            && let Some(qp) = self.qps.get_mut(&qp_num)
        {
            qp.request_out(&mut self.shared, order);
            self.agenda.settle(qp, &mut self.shared);
        }
    }

    /// Finds a payload without copying it.
    #[inline]
    fn locate<'a>(&'a self, t: &Transmit, out: &'a mut Vec<Piece>) -> Option<Payload<'a>> {
        let len = t.payload_len as usize;
        match t.source {
            Source::None => return Some(Payload::Bytes(&[])),
            Source::Request {
                qp_num,
                order,
                offset,
            } => {
                let qp = self.qps.get(&qp_num)?;
                let (_, e) = qp.sq.by_order(order)?;
                match &e.wqe.data {
                    Data::Inline(data) => {
                        let all = data.as_slice().get(usize::try_from(offset).ok()?..)?;
                        return Some(Payload::Bytes(all.get(..len)?));
                    }
                    Data::Sges(sges) => {
                        let pd = qp.init.pd?;
                        pieces(&self.shared.keys, pd, sges.as_slice(), offset, len, out).ok()?;
                    }
                }
            }
            Source::Read { by, rkey, va, .. } => {
                let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
                let keys = &self.shared.keys;
                let (region, offset) = keys.remote(by, rkey, va, len as u64, read).ok()?;
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
        self.is_out(t);
        Some(end)
    }

    /// Writes a packet into `memory`: its headers to `head`, its payload, without padding, to `body`. Payload
    /// of regions is copied once, from where the application has it.
    ///
    /// `None` as [`emit`](Engine::emit), or if there is no such place in `memory`.
    #[inline]
    pub fn emit_in(&mut self, t: &Transmit, memory: &Region, head: u64, body: u64) -> Option<()> {
        let mut bytes = [0; Packet::MAX_HEADER_LEN];
        let len = t.packet.emit_header(&mut bytes);
        memory.write(head, bytes.get(..len)?).ok()?;
        let len = t.payload_len as usize;
        let copied = match self.in_one_piece(t) {
            Some(payload) => payload.copy_to(0, memory, body, len).ok(),
            None => {
                let mut pieces = std::mem::take(&mut self.pieces);
                let payload = self.locate(t, &mut pieces);
                let copied = payload.and_then(|p| p.copy_to(0, memory, body, len).ok());
                pieces.clear();
                self.pieces = pieces;
                copied
            }
        };
        if copied.is_none() {
            self.payload_gone(t);
            return None;
        }
        self.shared.counters.tx_frames += 1;
        self.is_out(t);
        Some(())
    }

    /// The payload of a request that has one entry, which is what most have.
    #[inline]
    fn in_one_piece(&self, t: &Transmit) -> Option<Payload<'_>> {
        let Source::Request {
            qp_num,
            order,
            offset,
        } = t.source
        else {
            return None;
        };
        let qp = self.qps.get(&qp_num)?;
        let (_, e) = qp.sq.by_order(order)?;
        let Data::Sges(sges) = &e.wqe.data else {
            return None;
        };
        let [sge] = sges.as_slice() else { return None };
        let inside = offset + u64::from(t.payload_len) <= u64::from(sge.len);
        let found = self.shared.keys.local(qp.init.pd?, sge, false);
        let (of, base) = found.ok().filter(|_| inside)?;
        Some(Payload::Part {
            of,
            offset: base + offset,
            len: t.payload_len as usize,
        })
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
                gather(&self.shared.keys, qp.init.pd?, &e.wqe.data, offset, out).ok()
            }
            Source::Read { by, rkey, va, .. } => {
                let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
                let len = out.len() as u64;
                let keys = &self.shared.keys;
                let (region, offset) = keys.remote(by, rkey, va, len, read).ok()?;
                region.read(offset, out).ok()
            }
        }
    }

    /// The memory of a packet's payload is not there any more.
    fn payload_gone(&mut self, t: &Transmit) {
        let Some(qp) = self.qps.get_mut(&t.qp_num) else {
            return;
        };
        match t.source {
            Source::Request { order, .. } => qp.fail_request(&mut self.shared, order),
            Source::Read { again, .. } => {
                qp.fail_read(&mut self.shared, t.packet.bth.psn, again);
            }
            Source::None => {}
        }
        self.agenda.settle(qp, &mut self.shared);
    }

    /// Takes a packet. True if, with `quietly`, an acknowledgement is left to the caller.
    fn receive(
        &mut self,
        now: Instant,
        path: &Path,
        packet: &Packet,
        payload: &Payload<'_>,
        quietly: bool,
    ) -> bool {
        let dest_qp = packet.bth.dest_qp;
        let outcome = match (path.dst.is_multicast(), dest_qp == MULTICAST_QP) {
            (true, true) => self.dispatch_group(now, path, packet, payload),
            (false, false) => self.dispatch(now, path, packet, payload, dest_qp, quietly),
            // For one Queue Pair, but sent to all; or the other way round.
            _ => Err(Refused::BadHeader),
        };
        self.shared.counters.received(outcome.map(|_| ()));
        outcome == Ok(true)
    }

    /// A datagram to a group goes to every member once. It is accepted if any took it.
    fn dispatch_group(
        &mut self,
        now: Instant,
        path: &Path,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<bool, Refused> {
        let members = self.groups.get_mut(&path.dst);
        let members = std::mem::take(members.ok_or(Refused::UnknownGroup)?);
        let sender = packet.deth.map(|d| d.src_qp).filter(|_| {
            let gids = self.shared.config.ports.iter().flat_map(|p| &p.gids);
            let mut gids = gids.filter(|g| !g.is_empty());
            gids.any(|g| gid_to_ip(g.gid) == path.src)
        });
        let mut outcome = Err(Refused::UnknownGroup);
        for &qp_num in &members {
            let itself = sender == Some(qp_num);
            let blocks = |qp: &Qp| qp.init.block_self_multicast;
            let taken = if itself && self.qps.get(&qp_num).is_some_and(blocks) {
                // It is a member, and does without this one: that is no refusal.
                Ok(false)
            } else {
                self.dispatch(now, path, packet, payload, qp_num, false)
            };
            if outcome.is_err() {
                outcome = taken;
            }
        }
        self.groups.insert(path.dst, members);
        outcome
    }

    /// The checks that all packets pass, in the order of rxe's (rxe_recv.c): the Queue Pair, its
    /// transport, its state, its peer, the partition.
    fn dispatch(
        &mut self,
        now: Instant,
        path: &Path,
        packet: &Packet,
        payload: &Payload<'_>,
        qp_num: u32,
        quietly: bool,
    ) -> Result<bool, Refused> {
        let bth = &packet.bth;
        let info = bth.opcode.info().ok_or(Refused::UnknownOpcode)?;
        if info.class == Class::Cnp {
            return Err(Refused::Congestion);
        }
        if bth.tver != 0 {
            return Err(Refused::BadHeader);
        }
        let qp = self.qps.get_mut(&qp_num).ok_or(Refused::UnknownQp)?;
        if !qp.takes(info) {
            return Err(Refused::WrongTransport);
        }
        let open = if info.is_request() {
            qp.receives()
        } else {
            qp.sends()
        };
        if !open {
            return Err(Refused::QpState);
        }
        let from_peer = match qp.path {
            Some(peer) => peer.dst == path.src && peer.src == path.dst,
            None => info.class == Class::Ud && qp.attr.port_num == path.port,
        };
        if !from_peer {
            return Err(Refused::WrongPeer);
        }
        if !same_partition(bth.pkey, qp.pkey(&self.shared.config)) {
            return Err(Refused::BadPkey);
        }
        let shared = &mut self.shared;
        let outcome = match (info.is_request(), info.class) {
            (true, Class::Ud) => qp.handle_datagram(shared, path, packet, payload),
            (true, Class::Uc) => qp.handle_unacknowledged(shared, info, packet, payload),
            (true, _) => qp.handle_request(shared, info, packet, payload),
            (false, _) => qp.handle_response(now, shared, info, packet, payload),
        };
        let told = outcome.is_ok() && quietly && qp.rq.acknowledge_quietly(bth.psn);
        shared.counters.tx_acks += u64::from(told);
        self.agenda.settle(qp, shared);
        outcome.map(|()| told)
    }

    /// Lets time pass: everything that was due by `now` happens.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(qp_num) = self.agenda.take_due(now) {
            if let Some(qp) = self.qps.get_mut(&qp_num) {
                qp.armed = None;
                qp.expire(now, &mut self.shared);
                self.agenda.settle(qp, &mut self.shared);
            }
        }
    }

    /// When [`handle_timeout`](Engine::handle_timeout) is to be called; it may be sooner than needed.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.agenda.next_timeout()
    }

    /// True if there is nothing to send, nothing to report, and no timer has run out by `now`.
    #[inline]
    pub fn is_quiet(&self, now: Instant) -> bool {
        let due = self.next_timeout().is_some_and(|at| at <= now);
        !due && !self.has_transmit() && !self.has_event()
    }

    /// True if [`poll_transmit`](Engine::poll_transmit) may have a packet.
    #[inline]
    pub fn has_transmit(&self) -> bool {
        self.agenda.first_ready().is_some()
    }

    /// The next packet to send, if one may go out now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.poll_transmit_where(now, |_, _, _| true)
    }

    /// The next packet to send for which there is room. `room` is told from which address to which one it
    /// would go, and whether the Queue Pair is connected; the way of the packet is what it was asked for last. A Queue
    /// Pair that has to wait is not looked at again before [`release`](Engine::release), but for its acknowledgements.
    ///
    /// These do not wait: whoever has received may go away at once, and the sender would never know. Without room
    /// they are given out all the same, to go another way; one that comes late, or behind a later one, does no harm.
    #[inline]
    pub fn poll_transmit_where(
        &mut self,
        now: Instant,
        mut room: impl FnMut(IpAddr, IpAddr, bool) -> bool,
    ) -> Option<Transmit> {
        while let Some(qp_num) = self.agenda.first_ready() {
            let Some(qp) = self.qps.get_mut(&qp_num) else {
                self.agenda.drop_first();
                continue;
            };
            if !qp.may_send() {
                self.agenda.pass(qp);
                self.agenda.arm(qp);
                continue;
            }
            if let Some(path) = qp.next_path()
                && !room(path.src, path.dst, qp.path.is_some())
            {
                let acknowledgement = qp.next_acknowledgement(&mut self.shared);
                if acknowledgement.is_some() {
                    return acknowledgement;
                }
                qp.begin(&mut self.shared);
                self.agenda.hold(qp);
                continue;
            }
            let t = qp.next_packet(now, &mut self.shared);
            if t.is_none() || !qp.may_send() {
                self.agenda.pass(qp);
            } else {
                self.agenda.count(qp);
            }
            self.agenda.arm(qp);
            if t.is_some() {
                return t;
            }
        }
        None
    }

    /// Tells once if acknowledgements of packets that were not [awaited](Transmit::awaited) are from now on: a request behind
    /// them is done in the node, and completes with an entry when they are there.
    pub fn take_awaits(&mut self) -> bool {
        std::mem::take(&mut self.shared.awaits)
    }

    /// There may be room for those that had to wait.
    pub fn release(&mut self) {
        self.agenda.release(|qp_num| {
            if let Some(qp) = self.qps.get_mut(&qp_num) {
                qp.held = false;
            }
        });
    }

    /// True if [`poll_event`](Engine::poll_event) has something.
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.shared.events.is_empty()
    }

    /// True if a Queue Pair has moved to ERR and the events were not taken since. What was executed of its requests, and
    /// [heard of](Engine::handle_executed) until they are, is not flushed.
    #[inline]
    pub fn is_ending(&self) -> bool {
        !self.shared.ending.is_empty()
    }

    /// Flushes the requests of those: nothing more is heard.
    #[inline]
    fn end(&mut self) {
        if self.is_ending() {
            self.flush_ending();
        }
    }

    #[cold]
    fn flush_ending(&mut self) {
        for qp_num in std::mem::take(&mut self.shared.ending) {
            if let Some(qp) = self.qps.get_mut(&qp_num).filter(|qp| qp.ending) {
                qp.flush_sends(&mut self.shared);
            }
        }
    }

    /// Takes all that is to be reported, oldest first, into `out`, which is empty.
    #[inline]
    pub fn take_events(&mut self, out: &mut VecDeque<Event>) {
        self.end();
        std::mem::swap(&mut self.shared.events, out);
    }

    /// The next thing to report.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.end();
        self.shared.events.pop_front()
    }
}

/// Two partition keys match if their low 15 bits do and at least one is of a full member
/// (rxe: `pkey_match`).
fn same_partition(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && (a | b) & 0x8000 != 0
}
