//! UD: datagrams between any Queue Pairs, and to groups.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rdma_core_sys::rules::{Transport, allowed_posts};
use rdma_core_sys::{ibv_qp_state, ibv_wc_status};
use rdma_soft::core::config::GidEntry;
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Completion, Data, InlineData, MULTICAST_QP, SendOp, SendWqe};

use crate::books::{Op, Place, Poison, Req, Sends};
use crate::build::Use;
use crate::host::{Post, addr, ah_attr, group};
use crate::memory::{cut, mix, text};
use crate::traffic::list;
use crate::world::{Happening, Owner, Verdict, World};

/// A Queue Pair for datagrams.
#[derive(Debug)]
pub struct Gram {
    /// Where it is.
    pub host: usize,
    /// Its number, while its host lives.
    pub qp: Option<u32>,
    /// Its Q_Key.
    pub qkey: u32,
    /// Its requests, in this life.
    pub sends: Sends,
    /// How often it began anew.
    pub life: u64,
    /// Requests posted to its queues.
    pub posted: [u64; 2],
    /// Receives of its own, oldest first.
    pub queue: VecDeque<u64>,
    /// The area of those; `None` with an SRQ.
    pub inbox: Option<usize>,
    /// The SRQ.
    pub srq: Option<usize>,
    /// The area that it sends from.
    pub source: usize,
    /// The groups that it is attached to, and those that it ever was.
    pub groups: [BTreeSet<usize>; 2],
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To one Queue Pair.
    One(usize, u32),
    /// To the members of a group.
    Group(usize),
}

/// A datagram that was sent.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Its bytes.
    pub len: u32,
    /// Its immediate data.
    pub imm: Option<u32>,
    /// The sender's Queue Pair.
    pub from: u32,
    /// Where it goes.
    pub to: To,
    /// It breaks a rule.
    pub poison: bool,
    /// How often each Queue Pair got it.
    pub got: BTreeMap<(usize, u32), u32>,
}

/// Multicast groups.
const GROUPS: u64 = 3;

impl World {
    /// Draws the Queue Pairs for datagrams and makes them.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn build_grams(&mut self) -> Verdict {
        let mut rng = Rng::new(mix(self.seed, 6));
        for g in 0..self.knobs.datagrams {
            let host = rng.below(self.knobs.nodes as u64) as usize;
            let shared = rng.chance(0.3);
            let inbox = if shared {
                None
            } else {
                Some(self.area(host, Use::Inbox)?)
            };
            let source = self.area(host, Use::Source)?;
            self.grams.push(Gram {
                host,
                qp: None,
                qkey: 0,
                sends: Sends::default(),
                life: 0,
                posted: [0; 2],
                queue: VecDeque::new(),
                inbox,
                srq: shared.then(|| self.hosts[host].srqs[0]),
                source,
                groups: [BTreeSet::new(), BTreeSet::new()],
            });
            self.raise_gram(g)?;
            if rng.chance(0.7) {
                self.attach(g, rng.below(GROUPS) as usize)?;
            }
        }
        Ok(())
    }

    /// A Queue Pair for datagrams begins a life.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn raise_gram(&mut self, g: usize) -> Verdict {
        let host = self.grams[g].host;
        let qp = match self.grams[g].qp {
            Some(qp) => qp,
            None => {
                let srq = self.grams[g].srq.map(|_| self.hosts[host].srqs[0]);
                self.grams[g].srq = srq;
                let init = self.qp_init(
                    host,
                    Transport::Ud,
                    srq,
                    mix(self.seed, 0xd << 8 | g as u64),
                );
                self.create(host, init, Owner::Gram(g))?
            }
        };
        let qkey = self.rng.next_u32() >> 1;
        let gram = &mut self.grams[g];
        (gram.qp, gram.qkey, gram.sends) = (Some(qp), qkey, Sends::default());
        gram.life += 1;
        let mut attr = self.attr();
        attr.qkey = qkey;
        self.raise(host, qp, &mut attr)?;
        self.feed(self.place_of(g), self.knobs.receives)
    }

    /// Where a Queue Pair's receives wait.
    pub fn place_of(&self, g: usize) -> Place {
        self.grams[g].srq.map_or(Place::Gram(g), Place::Srq)
    }

    fn attach(&mut self, g: usize, k: usize) -> Verdict {
        let (host, qp) = (self.grams[g].host, self.grams[g].qp);
        let (Some(qp), Some(engine)) = (qp, self.hosts[host].engine.as_mut()) else {
            return Ok(());
        };
        let first = engine
            .attach_mcast(qp, GidEntry::v2(group(k)).gid)
            .map_err(|e| e.to_string())?;
        if first == self.hosts[host].groups.contains(&group(k)) {
            return Err(format!(
                "{} listens to {} already: {}",
                host,
                group(k),
                !first
            ));
        }
        if first {
            self.hosts[host].groups.push(group(k));
        }
        self.grams[g]
            .groups
            .iter_mut()
            .for_each(|of| _ = of.insert(k));
        Ok(())
    }

    /// Detaches a Queue Pair from a group.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn detach(&mut self, g: usize, k: usize) -> Verdict {
        let (host, qp) = (self.grams[g].host, self.grams[g].qp);
        let (Some(qp), Some(engine)) = (qp, self.hosts[host].engine.as_mut()) else {
            return Ok(());
        };
        let last = engine
            .detach_mcast(qp, GidEntry::v2(group(k)).gid)
            .map_err(|e| e.to_string())?;
        if last {
            self.hosts[host].groups.retain(|&g| g != group(k));
        }
        self.grams[g].groups[0].remove(&k);
        Ok(())
    }

    /// A Queue Pair joins or leaves a group.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn change_group(&mut self, rng: &mut Rng) -> Verdict {
        let (g, k) = (
            rng.below(self.grams.len() as u64) as usize,
            rng.below(GROUPS) as usize,
        );
        match self.grams[g].groups[0].contains(&k) {
            true => self.detach(g, k),
            false => self.attach(g, k),
        }
    }

    /// Posts some datagrams.
    ///
    /// # Errors
    /// Memory that was touched while it was in no use.
    pub fn datagrams(&mut self, rng: &mut Rng) -> Verdict {
        let g = rng.below(self.grams.len() as u64) as usize;
        for _ in 0..1 + rng.below(4) {
            self.datagram(rng, g)?;
        }
        Ok(())
    }

    fn datagram(&mut self, rng: &mut Rng, g: usize) -> Verdict {
        let gram = &self.grams[g];
        let (host, source) = (gram.host, gram.source);
        let Some((qp, state)) = gram.qp.zip(self.state(host, gram.qp)) else {
            return Ok(());
        };
        let room = gram.sends.open() < self.knobs.depth;
        if !room
            || !allowed_posts(Transport::Ud, state).is_some_and(|p| p.post_send)
            || self.areas[source].gone
        {
            return Ok(());
        }
        let id =
            1 << 62 | (g as u64) << 52 | (gram.life & 0xff) << 20 | gram.sends.reqs.len() as u64;
        let longest = self.knobs.longest.min(self.knobs.active_mtu);
        let mut len = [0, 1, 8, longest, rng.below(u64::from(longest) + 1) as u32]
            [rng.below(5) as usize]
            .min(longest);
        let imm = rng.chance(0.5).then_some(self.sent.len() as u32);
        if imm.is_none() && len < 8 {
            len = 8;
        }
        if len > self.knobs.longest || len > longest {
            return Ok(());
        }
        let v6 = rng.chance(0.3);
        let (to, dst, qpn, mut qkey) = if rng.chance(0.3) {
            let k = rng.below(GROUPS) as usize;
            let member = self.grams.iter().find(|g| g.groups[0].contains(&k));
            (
                To::Group(k),
                group(k),
                MULTICAST_QP,
                member.map_or(1, |g| g.qkey),
            )
        } else {
            let peer = &self.grams[rng.below(self.grams.len() as u64) as usize];
            let Some(qpn) = peer.qp else { return Ok(()) };
            (To::One(peer.host, qpn), addr(peer.host, v6), qpn, peer.qkey)
        };
        let poison = match rng.chance(self.knobs.poison) {
            true if len > 0 && rng.chance(0.5) => Some(Poison::Lkey),
            true => Some(Poison::Qkey),
            false => None,
        };
        if poison == Some(Poison::Qkey) {
            qkey ^= 1;
        }
        let bytes = text(id, len as usize);
        let mut local = None;
        let data = if len <= 256 && poison.is_none() && rng.chance(0.3) {
            let mut data = InlineData::default();
            data.grow(bytes.len())
                .ok_or("inline data")?
                .copy_from_slice(&bytes);
            Data::Inline(data)
        } else {
            let Some(slot) = self.areas[source].take(rng.next_u64())? else {
                return Ok(());
            };
            let pieces = cut(rng, len, self.knobs.sges);
            self.areas[source].put(slot, &pieces, &bytes);
            let mut sges = self.areas[source].sges(slot, &pieces);
            if poison == Some(Poison::Lkey) {
                sges.iter_mut().for_each(|s| s.lkey ^= 0x55);
            }
            local = Some(((source, slot), pieces));
            Data::Sges(list(&sges))
        };
        let pd = self.hosts[host].pd;
        let engine = self.hosts[host].engine.as_mut().ok_or("a dead host")?;
        let ah = engine
            .create_ah(pd, &ah_attr(dst))
            .map_err(|e| e.to_string())?;
        // Requests hold copies.
        engine.destroy_ah(&ah);
        let gram = &mut self.grams[g];
        let signaled = rng.chance(self.knobs.signals) || gram.sends.open() + 1 >= self.knobs.depth;
        gram.posted[0] += 1;
        let wqe = SendWqe {
            wr_id: id,
            seq: gram.posted[0] - 1,
            op: SendOp::Datagram {
                ah,
                qp_num: qpn,
                qkey,
                imm,
            },
            data,
            signaled,
            solicited: rng.chance(0.2),
            fence: rng.chance(0.1),
            xrc_srq: 0,
        };
        gram.sends.reqs.push(Req {
            id,
            op: Op::Datagram,
            len,
            signaled,
            imm,
            key: None,
            local,
            remote: None,
            fetched: None,
            atomic: None,
            srq: None,
            poison,
            posted: self.now,
            outcome: None,
            seen: false,
        });
        self.tell(|| {
            format!("host {host} QP {qp:#x} (UD {g}) posts {id:#x}, {len} bytes to {to:?}")
        });
        let got = BTreeMap::new();
        self.sent.insert(
            id,
            Datagram {
                len,
                imm,
                from: qp,
                to,
                poison: poison.is_some(),
                got,
            },
        );
        self.tally.wrs += 1;
        self.hosts[host]
            .posts
            .push_back(Post::Send(qp, Box::new(wqe)));
        self.wake(host);
        Ok(())
    }

    /// A datagram's completion at its sender: it is out.
    ///
    /// # Errors
    /// What is wrong.
    pub fn gram_sent(&mut self, g: usize, wc: &Completion) -> Verdict {
        use ibv_wc_status as S;
        let known = self.grams[g].sends.complete(wc)?;
        for at in known.clone() {
            self.gram_resolved(g, at);
        }
        let req = &self.grams[g].sends.reqs[known.end - 1];
        let state = self.state(self.grams[g].host, self.grams[g].qp);
        let stands = matches!(
            state,
            Some(ibv_qp_state::IBV_QPS_ERR | ibv_qp_state::IBV_QPS_SQE)
        );
        let gone = self.areas[self.grams[g].source].gone;
        let fits = match wc.status {
            S::IBV_WC_SUCCESS => req.poison != Some(Poison::Lkey),
            S::IBV_WC_WR_FLUSH_ERR => stands,
            S::IBV_WC_LOC_PROT_ERR => req.poison == Some(Poison::Lkey) || gone,
            _ => false,
        };
        if fits {
            Ok(())
        } else {
            Err(format!("{wc:?} is no end for {req:?}"))
        }
    }

    fn gram_resolved(&mut self, g: usize, at: usize) {
        let req = &self.grams[g].sends.reqs[at];
        let (local, outcome) = (req.local.clone(), req.outcome);
        if let Some(outcome) = outcome {
            self.tally.count(Op::Datagram, Transport::Ud, outcome);
        }
        if let Some((slot, _)) = local {
            self.areas[slot.0].release(slot.1);
        }
    }

    /// A Queue Pair for datagrams stopped.
    ///
    /// # Errors
    /// What is wrong.
    pub fn gram_stopped(&mut self, g: usize, state: ibv_qp_state) -> Verdict {
        let known = self.grams[g].sends.stopped()?;
        for at in known {
            self.gram_resolved(g, at);
        }
        if state == ibv_qp_state::IBV_QPS_ERR && !self.grams[g].queue.is_empty() {
            return Err("ERR leaves receives without an end".to_owned());
        }
        if !self.healing {
            let at = self.soon(Duration::from_micros(500));
            self.agenda.add(at, Happening::Mend(g));
        }
        Ok(())
    }

    /// A Queue Pair for datagrams goes on.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn mend(&mut self, g: usize) -> Verdict {
        let (host, qp) = (self.grams[g].host, self.grams[g].qp);
        let (Some(qp), Some(state)) = (qp, self.state(host, qp)) else {
            return Ok(());
        };
        self.tally.mended += 1;
        match state {
            ibv_qp_state::IBV_QPS_SQE => {
                self.move_to(host, qp, ibv_qp_state::IBV_QPS_RTS)?;
                self.grams[g].sends.failed = false;
                Ok(())
            }
            ibv_qp_state::IBV_QPS_ERR => {
                self.move_to(host, qp, ibv_qp_state::IBV_QPS_RESET)?;
                self.raise_gram(g)
            }
            _ => Ok(()),
        }
    }
}
