//! A process: the machine over the engine, and the application that uses it.

use std::fmt;
use std::time::Duration;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::{
    IBV_WC_SUCCESS, ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
};
use rdma_qp::datagram::{Address, Event, Machine, Options, PeerError, PeerId, SendError};
use rdma_qp::{Gid, Grh};
use rdma_soft::core::config::{Caps, Config, GidEntry, PortConfig, Strict};
use rdma_soft::core::{
    Ah, Completion, Data, Engine, Event as Engines, MrKeys, PdId, QpInit, Queue, RecvWqe, Refused,
    SendOp, SendWqe, Sge, SgeList,
};
use rdma_soft::mem::Region;

use super::judge::{LAZY, Sent, Told};
use super::world::{Happening, World};
use crate::host::ah_attr;
use crate::memory::{mix, text};
use crate::round::Verdict;

/// Bytes that the device writes in front of a datagram.
const GRH: u64 = Grh::LEN as u64;

/// Messages of one process to another begin with their number.
const LEAST: usize = 8;

/// Where a process is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Card {
    pub qp: u32,
    /// The longest message that it takes.
    pub max_message: u32,
}

/// Ends that may wait to be known, at a host that listens.
const STRANGERS: u32 = 2;

impl Card {
    fn encode(self) -> Vec<u8> {
        [self.qp.to_be_bytes(), self.max_message.to_be_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Card> {
        let (qp, max_message) = bytes.split_first_chunk()?;
        Some(Card {
            qp: u32::from_be_bytes(*qp),
            max_message: u32::from_be_bytes(max_message.try_into().ok()?),
        })
    }
}

/// A process that lives.
pub struct Process {
    pub engine: Engine,
    pub machine: Machine<Vec<u8>>,
    pub options: Options,
    /// By host.
    pub peers: Vec<Option<PeerId>>,
    /// Those that were taken in before one of the same host, or were removed.
    former: Vec<(PeerId, usize)>,
    /// It takes in who introduces itself.
    listens: bool,
    /// By host: where it is, as far as this process knows.
    pub known: Vec<Card>,
    ways: Vec<(Gid, Ah)>,
    /// The names that the machine gave to messages that wait for their fate, with their numbers.
    names: Vec<(u64, usize)>,
    pd: PdId,
    qp: u32,
    qkey: u32,
    mtu: u32,
    region: Region,
    keys: MrKeys,
    posted: [u64; 2],
    /// Places for datagrams that leave.
    free: Vec<u64>,
    buf: Vec<u8>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({:#x}, {:?})", self.qp, self.machine.counters())
    }
}

fn refused(what: impl ToString) -> String {
    format!("it was refused: {}", what.to_string())
}

/// The bytes of a message.
fn message(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = text(mix(number as u64, 0xda7a), len);
    bytes[..LEAST].copy_from_slice(&(number as u64).to_be_bytes());
    bytes
}

impl World {
    /// Starts a process.
    pub fn start(&mut self, host: usize) -> Verdict {
        let (mtu, qkey) = (self.mtu, self.qkey);
        let h = &mut self.hosts[host];
        h.incarnation += 1;
        h.frozen = false;
        let own = mix(self.seed ^ (host as u64) << 40, h.incarnation);
        let options = h.options.clone();
        let config = Config {
            ports: vec![PortConfig {
                gids: vec![GidEntry::v2(h.address)],
                pkeys: vec![0xffff],
                active_mtu: mtu,
                max_msg_sz: 1 << 31,
            }],
            caps: Caps::default(),
            window: 32,
            strict: Strict::default(),
        };
        let mut engine = Engine::new(config, own);
        let pd = engine.alloc_pd().map_err(refused)?;
        let cq = engine.create_cq().map_err(refused)?;
        let slot = GRH + u64::from(mtu);
        let slots = u64::from(options.receives + options.send_depth);
        let region = Region::owned((slots * slot) as usize);
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let keys = engine.reg_mr(pd, region.clone(), 0, access);
        let qp = engine.create_qp(QpInit {
            transport: Transport::Ud,
            pd: Some(pd),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            xrcd: None,
            block_self_multicast: false,
            sq_sig_all: false,
            max_send_wr: options.send_depth,
            max_recv_wr: options.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        });
        let qp = qp.map_err(refused)?;
        for (from, to) in [
            (ibv_qp_state::IBV_QPS_RESET, ibv_qp_state::IBV_QPS_INIT),
            (ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR),
            (ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS),
        ] {
            let attr = ibv_qp_attr {
                qp_state: to,
                port_num: 1,
                qkey,
                ..Default::default()
            };
            let required = rules::required(Transport::Ud, from, to).unwrap_or_default();
            let mask = required | ibv_qp_attr_mask::IBV_QP_STATE;
            engine.modify_qp(qp, &attr, mask).map_err(refused)?;
        }
        let receives = u64::from(options.receives);
        let mut process = Process {
            machine: Machine::new(&options, mtu, own).map_err(refused)?,
            engine,
            peers: Vec::new(),
            former: Vec::new(),
            listens: h.listens,
            known: Vec::new(),
            ways: Vec::new(),
            names: Vec::new(),
            pd,
            qp,
            qkey,
            mtu,
            region,
            keys: keys.map_err(refused)?,
            posted: [0; 2],
            free: (receives..slots).rev().collect(),
            buf: vec![0; mtu as usize],
            options,
        };
        (0..receives).for_each(|slot| process.receive(slot));
        h.card = Card {
            qp,
            max_message: process.options.max_message,
        };
        (process.machine.set_greeting(h.card.encode())).map_err(refused)?;
        h.process = Some(process);
        self.tell(|| format!("host {host}: a process starts, QP {qp:#x}"));
        self.wake_at(host, self.now);
        let at = self.soon(2000);
        self.agenda.add(at, Happening::Traffic(host));
        Ok(())
    }

    /// A process that has just been started is told where the others are, and they are told where it is.
    pub fn introduce(&mut self, host: usize) -> Verdict {
        let all: Vec<(Address, Card)> = (0..self.hosts.len())
            .map(|of| (self.address(of), self.hosts[of].card))
            .collect();
        let mtu = self.mtu;
        if let Some(process) = &mut self.hosts[host].process {
            for (of, (address, card)) in all.iter().enumerate() {
                let way = ah_attr(address.gid.ip());
                let way = process.engine.create_ah(process.pd, &way);
                process.ways.push((address.gid, way.map_err(refused)?));
                process.known.push(*card);
                let peer = match of == host || process.listens {
                    true => None,
                    false => {
                        let peer = process.machine.add_peer(*address, mtu, card.max_message);
                        Some(peer.map_err(refused)?)
                    }
                };
                process.peers.push(peer);
            }
        }
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            let at = self.soon(300_000);
            self.agenda.add(at, Happening::Told(other, host));
        }
        Ok(())
    }

    fn address(&self, host: usize) -> Address {
        let h = &self.hosts[host];
        Address {
            gid: h.address.into(),
            qp_num: h.card.qp,
        }
    }

    /// A host is told where the process of another is now.
    pub fn told(&mut self, host: usize, of: usize) -> Verdict {
        if self.hosts[host].frozen {
            let at = self.now + Duration::from_millis(50);
            self.agenda.add(at, Happening::Told(host, of));
            return Ok(());
        }
        let (address, card, mtu) = (self.address(of), self.hosts[of].card, self.mtu);
        if self.hosts[host].listens {
            return self.told_beside(host, of);
        }
        if let Some(process) = &mut self.hosts[host].process
            && process.known[of] != card
            && let Some(peer) = process.peers[of]
        {
            let moved = (process.machine).move_peer(peer, address, mtu, card.max_message);
            moved.map_err(refused)?;
            process.known[of] = card;
            self.disturb_pair(host, of, self.now);
            self.tell(|| format!("host {host}: host {of} is at QP {:#x} now", card.qp));
            self.wake_at(host, self.now);
        }
        Ok(())
    }

    /// Now and then who listens is told of one, which may have introduced itself before, or is just about to.
    fn told_beside(&mut self, host: usize, of: usize) -> Verdict {
        let (address, card, mtu) = (self.address(of), self.hosts[of].card, self.mtu);
        if self.hosts[host].process.is_none() || !self.rng.chance(0.5) {
            return Ok(());
        }
        // What was told before of one that came by itself is older.
        self.events(host, usize::MAX)?;
        let Some(process) = &mut self.hosts[host].process else {
            return Ok(());
        };
        let added = (process.machine).add_peer(address, mtu, card.max_message);
        let peer = match added {
            Ok(peer) => peer,
            Err(PeerError::Taken(_) | PeerError::Full { .. }) => return Ok(()),
            Err(error) => return Err(refused(error)),
        };
        self.tally.told += 1;
        self.replace(host, of, peer, card)?;
        self.tell(|| {
            format!(
                "host {host}, which listens: host {of} is at QP {:#x}",
                card.qp
            )
        });
        self.wake_at(host, self.now);
        Ok(())
    }

    /// That is who is at a host from now on, as far as another knows that listens. The former life of it is over, which is told
    /// so.
    fn replace(&mut self, host: usize, of: usize, peer: PeerId, card: Card) -> Verdict {
        let process = self.hosts[host].process.as_ref();
        if let Some(before) = process.and_then(|process| process.peers[of]) {
            self.hosts[host].ended[of] += 1;
            self.dismiss(host, before)?;
        }
        if let Some(process) = &mut self.hosts[host].process {
            process.peers[of] = Some(peer);
            process.known[of] = card;
        }
        Ok(())
    }

    /// The application takes events.
    pub fn events(&mut self, host: usize, most: usize) -> Verdict {
        for _ in 0..most {
            let Some(process) = &mut self.hosts[host].process else {
                break;
            };
            let Some(event) = process.machine.poll_event() else {
                break;
            };
            let of = |peer: PeerId| {
                let now = process.peers.iter().position(|known| *known == Some(peer));
                let before = process.former.iter().find(|(former, _)| *former == peer);
                now.or(before.map(|(_, host)| *host))
            };
            let mut number = |name: u64| {
                let at = process.names.binary_search_by_key(&name, |(name, _)| *name);
                at.map(|at| process.names.remove(at).1)
            };
            match event {
                Event::Received { peer, message } => {
                    let from = of(peer).ok_or("a message of nobody")?;
                    self.received(host, from, &message)?;
                }
                Event::Acknowledged { message, .. } => {
                    let number =
                        number(message.number()).map_err(|_| "a fate of what was not sent")?;
                    self.fate(host, number, Told::Done)?;
                }
                Event::Lost { message, fate, .. } => {
                    let number =
                        number(message.number()).map_err(|_| "a fate of what was not sent")?;
                    self.fate(host, number, Told::Lost(fate))?;
                }
                Event::Introduced { peer } => self.introduced(host, peer)?,
                Event::Connected { peer } => {
                    let peer = of(peer).ok_or("a session with nobody")?;
                    self.tally.connected += 1;
                    self.tell(|| format!("host {host}: connected with {peer}"));
                }
                Event::Dead { peer } => {
                    let (id, peer) = (peer, of(peer).ok_or("the death of nobody")?);
                    self.tally.dead += 1;
                    self.hosts[host].ended[peer] += 1;
                    self.dismiss(host, id)?;
                    self.tell(|| format!("host {host}: {peer} is dead"));
                }
                Event::Restarted { peer } => {
                    let peer = of(peer).ok_or("a restart of nobody")?;
                    self.tally.restarted += 1;
                    self.hosts[host].ended[peer] += 1;
                    self.tell(|| format!("host {host}: {peer} was restarted"));
                }
                other => return Err(format!("an event that is not known: {other:?}")),
            }
        }
        Ok(())
    }

    /// Somebody has introduced itself to a host: that is who is at its address from now on.
    fn introduced(&mut self, host: usize, peer: PeerId) -> Verdict {
        self.tally.introduced += 1;
        let process = self.hosts[host].process.as_ref();
        if process.is_some_and(|process| !process.listens) {
            return Err(format!(
                "host {host} took somebody in without having been told to"
            ));
        }
        let address = process.and_then(|process| process.machine.address(peer));
        // It may be dead again already.
        let Some(address) = address else {
            return Ok(());
        };
        let of = self.host_at(address.gid).ok_or("somebody from nowhere")?;
        let max_message = self.hosts[of].options.max_message;
        let card = Card {
            qp: address.qp_num,
            max_message,
        };
        self.replace(host, of, peer, card)?;
        self.tell(|| format!("host {host}: {of} has introduced itself"));
        Ok(())
    }

    /// Who listens removes those that are dead: they introduce themselves again.
    fn dismiss(&mut self, host: usize, id: PeerId) -> Verdict {
        let Some(process) = self.hosts[host].process.as_mut().filter(|p| p.listens) else {
            return Ok(());
        };
        let Some(of) = process.peers.iter().position(|peer| *peer == Some(id)) else {
            return Ok(());
        };
        process.peers[of] = None;
        process.former.push((id, of));
        process.machine.remove_peer(id).map_err(refused)?;
        self.disturb_pair(host, of, self.now);
        Ok(())
    }

    fn received(&mut self, host: usize, from: usize, bytes: &[u8]) -> Verdict {
        self.mark(bytes);
        let number = bytes
            .first_chunk()
            .map(|head| u64::from_be_bytes(*head) as usize);
        let sent = number.and_then(|number| self.sent.get_mut(number));
        let (Some(number), Some(sent)) = (number, sent) else {
            return Err(format!("host {host} received something that nobody sent"));
        };
        if (sent.from, sent.to) != (from, host) || bytes != message(number, sent.len) {
            return Err(format!(
                "host {host} received from {from} what {sent:?} is not"
            ));
        }
        sent.got += 1;
        let last = self.hosts[host].last[from].replace(number);
        if last.is_some_and(|last| last >= number) {
            return Err(format!(
                "host {host} received {number} from {from} after {last:?}"
            ));
        }
        Ok(())
    }

    fn fate(&mut self, host: usize, number: usize, told: Told) -> Verdict {
        let sent = &mut self.sent[number];
        if sent.from != host || sent.told != Told::Nothing {
            return Err(format!("host {host} is told {told:?} of {sent:?}"));
        }
        sent.told = told;
        let sent = sent.clone();
        self.open -= 1;
        if let Told::Lost(_) = told {
            self.may_be_lost(&sent)?;
        }
        if told == Told::Done {
            let (to, at) = (sent.to, sent.at);
            let reached = &mut self.hosts[host].reached[to];
            *reached = at.max(*reached);
        }
        Ok(())
    }

    /// The application sends what it may, and will again.
    pub fn traffic(&mut self, host: usize) -> Verdict {
        let hosts = self.hosts.len() as u64;
        let most = match self.rng.below(40) {
            0 => LAZY.as_micros() as u64,
            1..4 => 200_000,
            _ => 15_000 * hosts,
        };
        let later = self.soon(most);
        let (burst, at) = (self.rng.below(8), self.at());
        if self.hosts[host].process.is_none() {
            return Ok(());
        }
        self.agenda.add(later, Happening::Traffic(host));
        if self.hosts[host].frozen {
            return Ok(());
        }
        self.events(host, usize::MAX)?;
        self.wake_at(host, self.now);
        if self.closing {
            return Ok(());
        }
        let to = self.rng.below(hosts) as usize;
        for _ in 0..burst {
            let to = match self.rng.chance(0.5) {
                true => to,
                false => self.rng.below(hosts) as usize,
            };
            let number = self.sent.len();
            let draw = self.rng.next_u64() as usize;
            let short = self.rng.chance(0.6);
            let Some(process) = &mut self.hosts[host].process else {
                break;
            };
            let Some(peer) = process.peers[to] else {
                continue;
            };
            let part = process.mtu as usize - 56;
            let longest = (process.known[to].max_message as usize)
                .min(process.options.send_packets as usize / 2 * part);
            let len = match short {
                true => LEAST + draw % part.min(longest - LEAST + 1),
                false => LEAST + draw % (longest - LEAST + 1),
            };
            match process.machine.send(at, peer, &message(number, len)) {
                Ok(name) => process.names.push((name.number(), number)),
                Err(SendError::WouldBlock) => continue,
                Err(error) => return Err(format!("host {host} cannot send to {to}: {error}")),
            }
            self.sent.push(Sent {
                from: host,
                to,
                len,
                at,
                got: 0,
                told: Told::Nothing,
            });
            self.open += 1;
            self.tally.sent += 1;
        }
        self.wake_at(host, self.now);
        Ok(())
    }

    /// The end of a process, and of what it may still be told. Before, the application takes what was received: that it was
    /// acknowledged means no more than that it could be taken.
    pub fn end(&mut self, host: usize) -> Verdict {
        self.events(host, usize::MAX)?;
        let Some(process) = self.hosts[host].process.take() else {
            return Ok(());
        };
        self.tally.count(&process.machine.counters());
        self.tally.no_receive += process.no_receive();
        let counters = process.machine.counters();
        if counters.beyond > 0 || counters.broken > 0 {
            return Err(format!(
                "host {host} saw a peer break the protocol: {counters:?}"
            ));
        }
        for (_, number) in process.names {
            self.sent[number].told = Told::Nobody;
            self.open -= 1;
        }
        self.hosts[host].socket.clear();
        Ok(())
    }

    /// The process of a host forgets everything, and has its Queue Pair still: as one that was restarted and got the same
    /// number.
    pub fn rebirth(&mut self, host: usize) -> Verdict {
        self.events(host, usize::MAX)?;
        let all: Vec<(Address, Card)> = (0..self.hosts.len())
            .map(|of| (self.address(of), self.hosts[of].card))
            .collect();
        let mtu = self.mtu;
        let h = &mut self.hosts[host];
        h.incarnation += 1;
        let own = mix(self.seed ^ (host as u64) << 40, h.incarnation);
        let Some(process) = &mut h.process else {
            return Ok(());
        };
        let mut machine = Machine::new(&process.options, mtu, own).map_err(refused)?;
        machine.set_greeting(h.card.encode()).map_err(refused)?;
        let former = std::mem::replace(&mut process.machine, machine);
        let names = std::mem::take(&mut process.names);
        process.former.clear();
        process.peers.fill(None);
        for (of, (address, card)) in all.iter().enumerate() {
            if of != host && !process.listens {
                let peer = process.machine.add_peer(*address, mtu, card.max_message);
                process.peers[of] = Some(peer.map_err(refused)?);
                process.known[of] = *card;
            }
        }
        self.tally.count(&former.counters());
        for (_, number) in names {
            self.sent[number].told = Told::Nobody;
            self.open -= 1;
        }
        self.wake_at(host, self.now);
        Ok(())
    }

    /// Somebody at another host, or at this one, who knows the Q_Key says something to it.
    pub fn stranger(&mut self, host: usize) -> Verdict {
        let at = self.at();
        let (any, draw) = (self.rng.below(self.hosts.len() as u64), self.rng.next_u64());
        let gid = self.address(any as usize).gid;
        let mut bytes = text(draw, self.rng.below(120) as usize);
        if self.rng.chance(0.7) && bytes.len() >= 8 {
            bytes[..5].copy_from_slice(b"RQDG\x02");
            (bytes[5], bytes[6], bytes[7]) = (bytes[5] % 5, bytes[6] % 16, 0);
        }
        // With luck it is at an address of a peer, as if that were forged.
        let qp_num = match self.rng.chance(0.5) {
            true => {
                self.hosts[self.rng.below(self.hosts.len() as u64) as usize]
                    .card
                    .qp
            }
            false => draw as u32 & 0xff_ffff,
        };
        let from = Address { gid, qp_num };
        if self.rng.chance(0.3) && bytes.len() >= 64 {
            // It introduces itself as the one at that address.
            bytes.truncate(64);
            (bytes[5], bytes[6]) = (1, 0);
            bytes[16..40].fill(0);
            let max_message = 100;
            let card = Card {
                qp: qp_num,
                max_message,
            };
            bytes[56..].copy_from_slice(&card.encode());
        }
        let h = &mut self.hosts[host];
        if let Some(process) = h.process.as_mut().filter(|_| !h.frozen) {
            self.tally.strange += 1;
            process.hear(at, from, bytes);
            self.wake_at(host, self.now);
        }
        Ok(())
    }
}

impl Process {
    fn sges(&self, slot: u64, len: u64) -> SgeList {
        let mut sges = SgeList::new();
        let _ = sges.push(Sge {
            addr: slot * (GRH + u64::from(self.mtu)),
            len: len as u32,
            lkey: self.keys.lkey,
        });
        sges
    }

    /// Posts a receive into a slot.
    fn receive(&mut self, slot: u64) {
        let wqe = RecvWqe {
            wr_id: slot,
            seq: self.posted[1],
            sges: self.sges(slot, GRH + u64::from(self.mtu)),
        };
        self.posted[1] += 1;
        self.engine.post_recvs(self.qp, &mut [wqe].into());
    }

    /// Gives the device what the machine has to send, as far as there are places.
    pub fn post(&mut self, at: Duration) -> Verdict {
        while let Some(slot) = self.free.pop() {
            let Some(transmit) = self.machine.poll_transmit(at, &mut self.buf) else {
                self.free.push(slot);
                return Ok(());
            };
            let slot_len = GRH + u64::from(self.mtu);
            let written = self
                .region
                .write(slot * slot_len, &self.buf[..transmit.len]);
            written.map_err(|error| format!("the simulator's own memory: {error:?}"))?;
            let to = self.machine.address(transmit.peer);
            let to = to.ok_or("a datagram to nobody")?;
            let way = self.ways.iter().find(|way| way.0 == to.gid);
            let (_, ah) = *way.ok_or("a datagram to nowhere")?;
            let wqe = SendWqe {
                wr_id: slot,
                seq: self.posted[0],
                op: SendOp::Datagram {
                    ah,
                    qp_num: to.qp_num,
                    qkey: self.qkey,
                    imm: None,
                },
                data: Data::Sges(self.sges(slot, transmit.len as u64)),
                signaled: true,
                solicited: false,
                fence: false,
                xrc_srq: 0,
            };
            self.posted[0] += 1;
            self.engine.post_send(self.qp, wqe);
        }
        Ok(())
    }

    /// Takes what the engine reports.
    pub fn completions(&mut self, at: Duration) -> Verdict {
        while let Some(event) = self.engine.poll_event() {
            if let Engines::Completion { wc, .. } = event {
                if wc.status != IBV_WC_SUCCESS {
                    return Err(format!("a request failed: {wc:?}"));
                }
                match wc.queue {
                    Queue::Send => self.free.push(wc.wr_id),
                    _ => self.arrived(at, &wc)?,
                }
            }
        }
        Ok(())
    }

    fn arrived(&mut self, at: Duration, wc: &Completion) -> Verdict {
        let mut bytes = vec![0; wc.byte_len as usize];
        let slot_len = GRH + u64::from(self.mtu);
        let read = self.region.read(wc.wr_id * slot_len, &mut bytes);
        read.map_err(|error| format!("a receive outside its slot: {error:?}"))?;
        let grh = bytes.first_chunk().ok_or("a datagram without a header")?;
        let grh = Grh::parse(grh).map_err(refused)?;
        let sender = wc.sender.ok_or("a datagram of nobody")?;
        let from = Address {
            gid: grh.source,
            qp_num: sender.qp_num,
        };
        self.hear(at, from, bytes.split_off(Grh::LEN));
        self.receive(wc.wr_id);
        Ok(())
    }

    /// A datagram came.
    fn hear(&mut self, at: Duration, from: Address, bytes: Vec<u8>) {
        if self.listens
            && let Some(says) = self.machine.introduction(from, &bytes)
            && let Some(card) = Card::decode(says)
            && card.qp == from.qp_num
        {
            // Without room for it, it is a stranger.
            let who = (from, &bytes[..]);
            let _ = (self.machine).admit(at, who, self.mtu, card.max_message, STRANGERS);
        }
        self.machine.handle_datagram(at, from, bytes);
    }

    /// Datagrams that found no receive.
    pub fn no_receive(&self) -> u64 {
        self.engine.counters().refused(Refused::NoReceive)
    }
}
