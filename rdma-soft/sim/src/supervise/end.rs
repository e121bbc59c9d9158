//! A process: what the state machine wants done, over the engine.

use std::net::{IpAddr, Ipv4Addr};

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::{
    IBV_WC_SUCCESS, ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_wc_status,
};
use rdma_qp::supervise::{Action, Event as Step, Ledger, Probed, Proof, Supervisor, Why};
use rdma_qp::{Fate, Operation};
use rdma_soft::core::config::{Caps, Config, GidEntry, PortConfig, Strict};
use rdma_soft::core::{
    Completion, CqId, Data, Engine, Event, MrKeys, PdId, QpInit, Queue, RecvWqe, Remote, SendOp,
    SendWqe, Sge, SgeList, mtu_code,
};
use rdma_soft::mem::Region;

use super::judge::Life;
use super::world::{Happening, Verdict, World};
use crate::host::ah_attr;
use crate::memory::{mix, text};

/// Receives that wait, and places for messages to be sent.
const SLOTS: u64 = 32;
/// Bytes of the longest message.
const LONGEST: u64 = 96;
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
    qp: u32,
    region: Region,
    keys: MrKeys,
    /// Requests posted so far to the two queues.
    posted: [u64; 2],
    probes: u64,
    /// Its Queue Pair's first PSN, as it told the peer.
    psn: u32,
    why: Option<Why>,
    /// The status of the first send that failed in this life.
    first: Option<ibv_wc_status>,
}

/// What an end tells the other.
#[derive(Clone, Copy, Debug)]
struct There {
    qp: u32,
    psn: u32,
    address: Ipv4Addr,
}

impl There {
    fn encode(self) -> Vec<u8> {
        let words = [self.qp.to_be_bytes(), self.psn.to_be_bytes()];
        [&words.concat()[..], &self.address.octets()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<There> {
        let (words, _) = bytes.as_chunks::<4>();
        let [qp, psn, address] = *words else {
            return None;
        };
        Some(There {
            qp: u32::from_be_bytes(qp),
            psn: u32::from_be_bytes(psn),
            address: address.into(),
        })
    }
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
        let region = Region::owned(((2 * SLOTS + 1) * LONGEST) as usize);
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let keys = engine.reg_mr(pd, region.clone(), 0, access);
        let qp = engine.create_qp(QpInit {
            transport: Transport::Rc,
            pd: Some(pd),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            xrcd: None,
            block_self_multicast: false,
            sq_sig_all: false,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        });
        let mut machine = Supervisor::new(&self.options, Proof::Process, own, self.at());
        machine.port(self.at(), self.hosts[host].port_up);
        self.hosts[host].process = Some(Process {
            engine,
            machine,
            ledger: Ledger::new(),
            channel: None,
            seeking: None,
            qp: qp.map_err(refused)?,
            region,
            keys: keys.map_err(refused)?,
            posted: [0; 2],
            probes: 0,
            psn: 0,
            why: None,
            first: None,
        });
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
                    self.to(host, ibv_qp_state::IBV_QPS_RESET, None)?;
                    let psn = self.rng.below(1 << 24) as u32;
                    let address = match self.hosts[host].address {
                        IpAddr::V4(address) => address,
                        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
                    };
                    let process = self.process(host)?;
                    process.psn = psn;
                    let qp = process.qp;
                    let record = There { qp, psn, address }.encode();
                    process.machine.described(at, &record);
                }
                Action::Join(record) => {
                    let there = There::decode(&record).ok_or("a record that is none")?;
                    self.to(host, ibv_qp_state::IBV_QPS_INIT, None)?;
                    for slot in 0..SLOTS {
                        self.receive(host, slot)?;
                    }
                    self.to(host, ibv_qp_state::IBV_QPS_RTR, Some(there))?;
                    self.process(host)?.machine.joined(at);
                }
                Action::Finish => {
                    self.to(host, ibv_qp_state::IBV_QPS_RTS, None)?;
                    self.hosts[host].lives.push(Life::default());
                    let process = self.process(host)?;
                    process.first = None;
                    process.machine.finished(at);
                }
                Action::Probe => {
                    let process = self.process(host)?;
                    let first = process.ledger.is_empty();
                    let probed = match process.ledger.will_tell() {
                        false => {
                            process.probes += 1;
                            let id = PROBES | process.probes;
                            process.ledger.posted(id, None, true);
                            let remote = Remote { addr: 0, rkey: 0 };
                            let op = SendOp::Write { remote, imm: None };
                            process.post(id, op, SgeList::new(), true);
                            self.tally.probes += 1;
                            if first {
                                Probed::Posted
                            } else {
                                Probed::Behind
                            }
                        }
                        true => Probed::Busy,
                    };
                    self.process(host)?.machine.probed(at, probed);
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

    /// Moves the Queue Pair.
    fn to(&mut self, host: usize, state: ibv_qp_state, there: Option<There>) -> Verdict {
        let timing = self.options.timing;
        let process = self.process(host)?;
        let (now, _) = (process.engine.query_qp(process.qp)).ok_or("no Queue Pair")?;
        let attr = ibv_qp_attr {
            qp_state: state,
            port_num: 1,
            // What lets probes in.
            qp_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.bits(),
            path_mtu: mtu_code(1024),
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: timing.min_rnr_timer.code(),
            timeout: timing.timeout.code(),
            retry_cnt: timing.retry_cnt.get(),
            rnr_retry: timing.rnr_retry.code(),
            dest_qp_num: there.map_or(0, |there| there.qp),
            rq_psn: there.map_or(0, |there| there.psn),
            sq_psn: process.psn,
            ah_attr: there.map_or_else(Default::default, |there| ah_attr(there.address.into())),
            ..Default::default()
        };
        let required = rules::required(Transport::Rc, now.qp_state, state).unwrap_or_default();
        let mask = required | ibv_qp_attr_mask::IBV_QP_STATE;
        let moved = process.engine.modify_qp(process.qp, &attr, mask);
        moved
            .map(|_| ())
            .map_err(|error| format!("to {state}: {error}"))
    }

    /// Ends the life of the Queue Pair.
    fn end(&mut self, host: usize) -> Verdict {
        let process = self.process(host)?;
        let (now, _) = (process.engine.query_qp(process.qp)).ok_or("no Queue Pair")?;
        // From there is no way to ERR, and nothing to be flushed.
        if now.qp_state != ibv_qp_state::IBV_QPS_RESET {
            self.to(host, ibv_qp_state::IBV_QPS_ERR, None)?;
        }
        self.events(host)?;
        let at = self.at();
        let process = self.process(host)?;
        if let Some(why) = process.why.take() {
            let mut done = Vec::new();
            let report = process
                .ledger
                .end(why, true, Fate::Done, |message| done.push(message.context));
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
        let at = self.at();
        let success = wc.status == IBV_WC_SUCCESS;
        let Some(process) = &mut self.hosts[host].process else {
            return Ok(());
        };
        match wc.queue {
            Queue::Send => {
                self.tally.answered += u64::from(success && wc.wr_id & PROBES != 0);
                // All that is posted is one kind of SEND, and WRITEs of no bytes.
                let fate = match success {
                    true => Fate::of_success(Transport::Rc, Operation::Send),
                    // A flush is the consequence of the first failure.
                    false => {
                        let first = *process.first.get_or_insert(wc.status);
                        Fate::of_failure(first, Operation::Send)
                    }
                };
                let mut done = Vec::new();
                process.ledger.completed(
                    &wc.wr_id,
                    (fate, Fate::Done),
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
            _ if success => self.received(host, wc)?,
            _ => {}
        }
        let Some(process) = &mut self.hosts[host].process else {
            return Ok(());
        };
        match success {
            true => process.machine.heard(at),
            false => process.machine.down(at, Why::Failed(wc.status)),
        }
        Ok(())
    }

    fn received(&mut self, host: usize, wc: &Completion) -> Verdict {
        let slot = wc.wr_id & !RECEIVES;
        let process = self.process(host)?;
        let mut bytes = vec![0; wc.byte_len as usize];
        let read = process.region.read(slot * LONGEST, &mut bytes);
        read.map_err(|error| format!("a receive outside its slot: {error:?}"))?;
        let number = bytes
            .first_chunk()
            .map_or(0, |head| u64::from_be_bytes(*head));
        if bytes != message(1 - host, number) {
            return Err(format!("host {host} received something that nobody sent"));
        }
        self.hosts[host].log.push(number);
        self.tally.received += 1;
        self.receive(host, slot)
    }

    /// Posts a receive into a slot.
    fn receive(&mut self, host: usize, slot: u64) -> Verdict {
        let process = self.process(host)?;
        let sges = process.sges(slot, LONGEST);
        let wqe = RecvWqe {
            wr_id: RECEIVES | slot,
            seq: process.posted[1],
            sges,
        };
        process.posted[1] += 1;
        let mut list = [wqe].into();
        process.engine.post_recvs(process.qp, &mut list);
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
        let burst = self.rng.below(6);
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
            let written = process.region.write(slot * LONGEST, &bytes);
            written.map_err(|error| format!("the simulator's own memory: {error:?}"))?;
            // Some are longer than the peer's receives: those it refuses, with all that is behind them.
            let len = match self.rng.below(3000) {
                0 => LONGEST + 8,
                _ => bytes.len() as u64,
            };
            let sges = process.sges(slot, len);
            let op = SendOp::Send {
                imm: None,
                invalidate: None,
            };
            let signaled = self.rng.chance(0.7);
            let signaled = signaled || process.ledger.len() + 1 >= WINDOW;
            process.ledger.posted(number, Some(number), signaled);
            process.post(number, op, sges, signaled);
            let life = h.lives.last_mut().ok_or("a life that was none")?;
            life.posted.push(number);
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
            addr: slot * LONGEST,
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
            xrc_srq: 0,
        };
        self.posted[0] += 1;
        self.engine.post_send(self.qp, wqe);
    }
}
