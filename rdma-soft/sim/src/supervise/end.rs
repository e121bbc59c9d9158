//! A process: what the state machine wants done, over the engine.

use std::net::{IpAddr, Ipv4Addr};

use rdma_core_sys::{IBV_WC_SUCCESS, ibv_access_flags, ibv_qp_state, ibv_wc_status};
use rdma_qp::supervise::{
    Action, Event as Step, HEARTBEAT, HEARTBEAT_ANSWER, Ledger, Probed, Proof, Supervisor, Why,
};
use rdma_qp::{Fate, Operation};
use rdma_soft::core::config::{Caps, Config, GidEntry, PortConfig, Strict};
use rdma_soft::core::{
    Completion, CqId, Data, Engine, Event, MrKeys, PdId, Queue, RecvWqe, SendOp, SendWqe, Sge,
    SgeList,
};
use rdma_soft::mem::Region;

use super::judge::{Arrived, Life};
use super::wiring::{GRH, There, Wiring};
use super::world::{Happening, World};
use crate::memory::{mix, text};
use crate::round::Verdict;

/// Receives that wait, and places for messages to be sent.
const SLOTS: u64 = 32;
/// Bytes of the longest message.
const LONGEST: u64 = 96;
/// Bytes of a slot.
const SLOT: u64 = GRH + LONGEST;
/// Messages under way at a time.
const WINDOW: usize = 12;
/// Marks of probes begin here, those of receives after it; those of messages are their numbers.
const PROBES: u64 = 1 << 62;
const RECEIVES: u64 = 1 << 63;

/// A process that lives.
#[derive(Debug)]
pub struct Process {
    pub engine: Engine,
    pub machine: Supervisor,
    pub ledger: Ledger<u64, u64>,
    /// Its end of a channel.
    pub channel: Option<u64>,
    /// The channel that it wants to have.
    pub seeking: Option<u64>,
    wiring: Wiring,
    region: Region,
    keys: MrKeys,
    /// Requests posted so far to the two queues.
    posted: [u64; 2],
    probes: u64,
    why: Option<Why>,
    /// Its device is gone.
    pub removed: bool,
    /// The status of the first send that failed in this life.
    first: Option<ibv_wc_status>,
}

/// The message of a number, from a host.
fn message(host: usize, number: u64) -> Vec<u8> {
    let mark = mix(number, host as u64);
    let mut bytes = text(mark, 8 + (mark % (LONGEST - 8)) as usize);
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn refused(what: impl ToString) -> String {
    format!("the engine refused: {}", what.to_string())
}

impl World {
    /// The configuration of a host.
    pub fn config(&self, host: usize) -> Config {
        let port = PortConfig {
            gids: vec![GidEntry::v2(self.hosts[host].address)],
            pkeys: vec![0xffff],
            active_mtu: 1024,
            max_msg_sz: 1 << 31,
        };
        Config {
            ports: vec![port],
            caps: Caps::default(),
            window: 32,
            strict: Strict::default(),
        }
    }

    /// Starts a process.
    pub fn start(&mut self, host: usize) -> Verdict {
        let h = &mut self.hosts[host];
        h.incarnation += 1;
        (h.frozen, h.gone) = (false, false);
        let own = mix(self.seed ^ (host as u64) << 40, h.incarnation);
        let mut engine = Engine::new(self.config(host), own);
        let pd: PdId = engine.alloc_pd().map_err(refused)?;
        let cq: CqId = engine.create_cq().map_err(refused)?;
        let region = Region::owned(((2 * SLOTS + 1) * SLOT) as usize);
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let keys = engine.reg_mr(pd, region.clone(), 0, access);
        let wiring = Wiring::new(&mut engine, self.transport, (pd, cq))?;
        let shared = wiring.shares_receives();
        let mut machine = Supervisor::new(&self.options, self.proof(), own, self.at());
        machine.port(self.at(), self.hosts[host].port_up);
        self.hosts[host].process = Some(Process {
            engine,
            machine,
            ledger: Ledger::new(),
            channel: None,
            seeking: None,
            wiring,
            region,
            keys: keys.map_err(refused)?,
            posted: [0; 2],
            probes: 0,
            why: None,
            removed: false,
            first: None,
        });
        if shared {
            self.receives(host)?;
        }
        self.tell(|| format!("host {host}: a process starts"));
        self.act(host)?;
        self.wake_at(host, self.now);
        self.agenda.add(self.now, Happening::Traffic(host));
        Ok(())
    }

    fn process(&mut self, host: usize) -> Result<&mut Process, String> {
        (self.hosts[host].process.as_mut()).ok_or_else(|| "a dead process does things".to_owned())
    }

    /// Does what the state machine wants done.
    pub fn act(&mut self, host: usize) -> Verdict {
        let at = self.at();
        while let Some(action) =
            (self.hosts[host].process.as_mut()).and_then(|process| process.machine.next_action())
        {
            self.mark(&[host as u8]);
            match action {
                Action::Seek => self.seek(host),
                Action::Leave => self.leave(host),
                Action::Send(message) => self.say(host, message),
                Action::End => self.end(host)?,
                Action::Describe => {
                    self.to(host, ibv_qp_state::IBV_QPS_RESET)?;
                    let drawn = (self.rng.below(1 << 24) as u32, self.rng.next_u32() >> 1);
                    let address = match self.hosts[host].address {
                        IpAddr::V4(address) => address,
                        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
                    };
                    let process = self.process(host)?;
                    let record = process.wiring.describe(drawn, address).encode();
                    process.machine.described(at, &record);
                }
                Action::Join(record) => {
                    let there = There::decode(&record).ok_or("a record that is none")?;
                    let process = self.process(host)?;
                    process.wiring.meet(&mut process.engine, there)?;
                    let shared = process.wiring.shares_receives();
                    self.to(host, ibv_qp_state::IBV_QPS_INIT)?;
                    if !shared {
                        self.receives(host)?;
                    }
                    self.to(host, ibv_qp_state::IBV_QPS_RTR)?;
                    self.process(host)?.machine.joined(at);
                }
                Action::Finish => {
                    // What the peer sent by then may have ended it, as a message that is too long does.
                    if let Err(why) = self.to(host, ibv_qp_state::IBV_QPS_RTS) {
                        self.process(host)?.machine.failed(at, why);
                        continue;
                    }
                    let process = self.process(host)?;
                    let peer = process.wiring.there.map_or(0, |there| there.key);
                    let life = Life {
                        peer,
                        ..Life::default()
                    };
                    self.hosts[host].lives.push(life);
                    let process = self.process(host)?;
                    process.first = None;
                    process.machine.finished(at);
                }
                Action::Probe => {
                    let proof = self.proof();
                    let process = self.process(host)?;
                    let first = process.ledger.is_empty();
                    let busy = proof != Proof::Echo && process.ledger.will_tell();
                    let probed = match (busy, first) {
                        (true, _) => Probed::Busy,
                        (false, true) => Probed::Posted,
                        (false, false) => Probed::Behind,
                    };
                    if !busy && process.heartbeat(proof, false)? {
                        self.tally.probes += 1;
                    }
                    self.process(host)?.machine.probed(at, probed);
                }
                Action::Answer => {
                    let proof = self.proof();
                    self.process(host)?.heartbeat(proof, true)?;
                }
                Action::Tell(step) => self.told(host, &step)?,
                other => return Err(format!("an action that is not known: {other:?}")),
            }
        }
        Ok(())
    }

    fn told(&mut self, host: usize, step: &Step) -> Verdict {
        self.tell(|| format!("host {host}: {step}"));
        match step {
            Step::Dead { why } => {
                self.tally.deaths += 1;
                self.process(host)?.why = Some(why.clone());
            }
            Step::Recovered { after, .. } => {
                self.tally.recoveries += 1;
                self.tally.longest = self.tally.longest.max(*after);
            }
            Step::GaveUp { .. } => return Err("it gave up, and should not".to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// Moves the Queue Pairs.
    fn to(&mut self, host: usize, state: ibv_qp_state) -> Verdict {
        let timing = self.options.timing;
        let process = self.process(host)?;
        process.wiring.to(&mut process.engine, state, &timing)
    }

    /// Ends the life of the Queue Pair.
    fn end(&mut self, host: usize) -> Verdict {
        // A device that is gone flushes nothing, and tells nothing.
        let complete = !self.process(host)?.removed;
        if complete {
            self.to(host, ibv_qp_state::IBV_QPS_ERR)?;
            self.events(host)?;
        }
        let at = self.at();
        let silent = Fate::of_success(self.transport, Operation::Send);
        let process = self.process(host)?;
        if let Some(why) = process.why.take() {
            let mut done = Vec::new();
            let report = process
                .ledger
                .end(why, complete, silent, |message| done.push(message.context));
            let life = self.hosts[host]
                .lives
                .last_mut()
                .ok_or("a life that was none")?;
            life.done.extend(done);
            life.not_done = report
                .not_done
                .iter()
                .map(|message| message.context)
                .collect();
            life.unknown = report
                .unknown
                .iter()
                .map(|message| message.context)
                .collect();
            life.over = true;
            self.tally.unknown += life.unknown.len() as u64;
            self.tally.not_done += life.not_done.len() as u64;
        }
        self.process(host)?.machine.ended(at);
        Ok(())
    }

    /// Takes what the engine reports.
    pub fn events(&mut self, host: usize) -> Verdict {
        while let Some(event) =
            (self.hosts[host].process.as_mut()).and_then(|process| process.engine.poll_event())
        {
            if let Event::Completion { wc, .. } = event {
                self.mark(&[wc.wr_id.to_be_bytes(), u64::from(wc.status.0).to_be_bytes()].concat());
                self.completed(host, &wc)?;
            }
        }
        Ok(())
    }

    fn completed(&mut self, host: usize, wc: &Completion) -> Verdict {
        let (at, transport) = (self.at(), self.transport);
        let success = wc.status == IBV_WC_SUCCESS;
        let proof = self.proof();
        let Some(process) = &mut self.hosts[host].process else {
            return Ok(());
        };
        match wc.queue {
            Queue::Send => {
                let of_probe = wc.wr_id & PROBES != 0;
                self.tally.answered += u64::from(success && of_probe && proof != Proof::Echo);
                // All that is posted is one kind of SEND, and WRITEs of no bytes.
                let fate = match success {
                    true => Fate::of_success(transport, Operation::Send),
                    // A flush is the consequence of the first failure.
                    false => {
                        let first = *process.first.get_or_insert(wc.status);
                        Fate::of_failure(first, Operation::Send)
                    }
                };
                let before = Fate::of_success(transport, Operation::Send);
                let mut done = Vec::new();
                process.ledger.completed(
                    &wc.wr_id,
                    (fate, before),
                    (wc.status, success),
                    |message| done.push(message.context),
                );
                let now = self.now;
                if let Some(life) = self.hosts[host].lives.last_mut() {
                    if !done.is_empty() {
                        life.last = now;
                    }
                    life.done.extend(done);
                }
            }
            _ if success => return self.received(host, wc),
            // Whoever shares receives gets those that were begun back with the end of a life.
            _ if process.wiring.shares_receives() => {
                return self.receive(host, wc.wr_id & !RECEIVES);
            }
            _ => {}
        }
        let Some(process) = &mut self.hosts[host].process else {
            return Ok(());
        };
        match success {
            true if proof != Proof::Echo => process.machine.heard(at),
            true => {}
            false => process.machine.down(at, Why::Failed(wc.status)),
        }
        Ok(())
    }

    fn received(&mut self, host: usize, wc: &Completion) -> Verdict {
        let at = self.at();
        let slot = wc.wr_id & !RECEIVES;
        let process = self.process(host)?;
        let front = process.wiring.front();
        let key = process.wiring.here.map_or(0, |here| here.key);
        // Whoever shares receives is told of them elsewhere.
        if !process.wiring.shares_receives() {
            match wc.imm {
                Some(HEARTBEAT) => process.machine.asked(at),
                _ => process.machine.heard(at),
            }
        }
        if let Some(HEARTBEAT | HEARTBEAT_ANSWER) = wc.imm {
            self.tally.answered += u64::from(wc.imm == Some(HEARTBEAT_ANSWER));
            return self.receive(host, slot);
        }
        let len = u64::from(wc.byte_len).saturating_sub(front);
        let mut bytes = vec![0; len as usize];
        let read = process.region.read(slot * SLOT + front, &mut bytes);
        read.map_err(|error| format!("a receive outside its slot: {error:?}"))?;
        let number = bytes
            .first_chunk()
            .map_or(0, |head| u64::from_be_bytes(*head));
        if bytes != message(1 - host, number) {
            return Err(format!("host {host} received something that nobody sent"));
        }
        self.tell(|| format!("host {host}: message {number} arrives in life {key:#x}"));
        self.hosts[host].log.push(Arrived { number, key });
        if let Some((_, until)) = self.cut_behind.take_if(|(at, _)| *at == host) {
            self.tally.troubles += 1;
            self.cut = self.cut.max(until);
        }
        self.tally.received += 1;
        self.receive(host, slot)
    }

    /// Posts all receives.
    fn receives(&mut self, host: usize) -> Verdict {
        (0..SLOTS).try_for_each(|slot| self.receive(host, slot))
    }

    /// Posts a receive into a slot.
    fn receive(&mut self, host: usize, slot: u64) -> Verdict {
        let process = self.process(host)?;
        let sges = process.sges(slot, process.wiring.front() + LONGEST);
        let wqe = RecvWqe {
            wr_id: RECEIVES | slot,
            seq: process.posted[1],
            sges,
        };
        process.posted[1] += 1;
        process.wiring.receive(&mut process.engine, wqe);
        Ok(())
    }

    /// The application posts what it may, and will again.
    pub fn traffic(&mut self, host: usize) -> Verdict {
        let most = match self.rng.below(40) {
            0 => 4_000_000,
            1..4 => 300_000,
            _ => 25_000,
        };
        let later = self.soon(most);
        let (burst, proof) = (self.rng.below(6), self.proof());
        for _ in 0..burst {
            let h = &mut self.hosts[host];
            let Some(process) = h.process.as_mut().filter(|_| !h.frozen) else {
                break;
            };
            if !process.machine.is_up() || process.ledger.len() >= WINDOW {
                break;
            }
            let number = h.next;
            h.next += 1;
            let bytes = message(host, number);
            let slot = SLOTS + number % SLOTS;
            let written = process.region.write(slot * SLOT, &bytes);
            written.map_err(|error| format!("the simulator's own memory: {error:?}"))?;
            // Some are longer than the peer's receives: those it refuses, with all that is behind them, where it can.
            let len = match self.rng.below(3000) {
                0 if proof != Proof::Echo => LONGEST + 8,
                _ => bytes.len() as u64,
            };
            let sges = process.sges(slot, len);
            let op = process.wiring.message(None)?;
            let signaled = self.rng.chance(0.7);
            let signaled = signaled || process.ledger.len() + 1 >= WINDOW;
            process.ledger.posted(number, Some(number), signaled);
            process.post(number, op, sges, signaled);
            let life = h.lives.last_mut().ok_or("a life that was none")?;
            life.posted.push(number);
            let peer = life.peer;
            self.tell(|| format!("host {host}: message {number} is sent to life {peer:#x}"));
            self.tally.sent += 1;
        }
        if self.hosts[host].process.is_some() {
            self.wake_at(host, self.now);
            self.agenda.add(later, Happening::Traffic(host));
        }
        Ok(())
    }
}

impl Process {
    fn sges(&self, slot: u64, len: u64) -> SgeList {
        let mut sges = SgeList::new();
        let _ = sges.push(Sge {
            addr: slot * SLOT,
            len: len as u32,
            lkey: self.keys.lkey,
        });
        sges
    }

    fn post(&mut self, wr_id: u64, op: SendOp, sges: SgeList, signaled: bool) {
        let wqe = SendWqe {
            wr_id,
            seq: self.posted[0],
            op,
            data: Data::Sges(sges),
            signaled,
            solicited: false,
            fence: false,
            xrc_srq: self.wiring.names(),
        };
        self.posted[0] += 1;
        self.engine.post_send(self.wiring.qp(), wqe);
    }

    /// Posts a probe, or the answer to one, if there is room.
    fn heartbeat(&mut self, proof: Proof, answers: bool) -> Result<bool, String> {
        if self.ledger.len() >= 2 * WINDOW {
            return Ok(false);
        }
        self.probes += 1;
        let id = PROBES | self.probes;
        let op = self.wiring.probe(proof, answers)?;
        self.ledger.posted(id, None, true);
        self.post(id, op, SgeList::new(), true);
        Ok(true)
    }
}
