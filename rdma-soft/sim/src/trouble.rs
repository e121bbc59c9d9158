//! Actions of the program, and what goes wrong in it on purpose.

use std::time::Duration;

use rdma_core_sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use rdma_soft::core::rng::Rng;
use rdma_soft::link::{Faults, Probability};

use crate::books::{Opening, Place};
use crate::build::Use;
use crate::host::addr;
use crate::knobs::magnitude;
use crate::program::Act;
use crate::world::{Happening, Verdict, World};

impl World {
    /// Does an action of the program.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn act(&mut self, number: usize) -> Verdict {
        let action = self.actions[number];
        let rng = &mut Rng::new(action.seed);
        let conn = rng.below(self.conns.len() as u64) as usize;
        let host = rng.below(self.knobs.nodes as u64) as usize;
        let end = rng.below(2) as usize;
        self.tell(|| format!("action {number}: {:?}", action.act));
        match action.act {
            Act::Send => self.send_some(rng),
            Act::Datagram => self.datagrams(rng),
            Act::Window => self.window(rng),
            Act::Group => self.change_group(rng),
            Act::Receive => self.receives_somewhere(rng),
            Act::Fail => self.fail(rng, conn, end),
            Act::Recover => {
                self.recover_soon(conn);
                Ok(())
            }
            Act::Drain => self.drain(rng, conn, end),
            Act::Deregister => self.deregister(rng, conn, end),
            Act::Overrun => self.overrun(rng, host),
            Act::Limit => self.limit(rng, host),
            Act::Pause => {
                self.pause(rng, host);
                Ok(())
            }
            Act::Partition => {
                self.partition(rng, host);
                Ok(())
            }
            Act::Burst => {
                self.burst(rng);
                Ok(())
            }
            Act::Die => self.die(rng, host),
        }
    }

    fn receives_somewhere(&mut self, rng: &mut Rng) -> Verdict {
        let (conns, grams, srqs) = (self.conns.len(), self.grams.len(), self.srqs.len());
        let drawn = rng.below((2 * conns + grams + srqs) as u64) as usize;
        let place = match drawn {
            d if d < 2 * conns => Place::End(d / 2, d % 2),
            d if d < 2 * conns + grams => Place::Gram(d - 2 * conns),
            d => Place::Srq(d - 2 * conns - grams),
        };
        self.feed(place, 1 + rng.below(4) as usize)
    }

    /// An application moves a Queue Pair to ERR; sometimes it posts something afterwards, which is flushed.
    fn fail(&mut self, rng: &mut Rng, conn: usize, end: usize) -> Verdict {
        if rng.chance(0.2) && !self.grams.is_empty() {
            let g = rng.below(self.grams.len() as u64) as usize;
            let (host, qp) = (self.grams[g].host, self.grams[g].qp);
            if let (Some(qp), Some(ibv_qp_state::IBV_QPS_RTS)) = (qp, self.state(host, qp)) {
                self.move_to(host, qp, ibv_qp_state::IBV_QPS_ERR)?;
            }
            return Ok(());
        }
        let state = self.end_state(conn, end);
        let (host, qp) = (
            self.conns[conn].ends[end].host,
            self.conns[conn].ends[end].qp,
        );
        let open = state
            .is_some_and(|s| s != ibv_qp_state::IBV_QPS_RESET && s != ibv_qp_state::IBV_QPS_ERR);
        match qp {
            Some(qp) if open => self.move_to(host, qp, ibv_qp_state::IBV_QPS_ERR),
            _ => Ok(()),
        }
    }

    fn drain(&mut self, rng: &mut Rng, conn: usize, end: usize) -> Verdict {
        let (host, qp) = (
            self.conns[conn].ends[end].host,
            self.conns[conn].ends[end].qp,
        );
        let sends = end < self.conns[conn].directions();
        let (Some(qp), true, Some(ibv_qp_state::IBV_QPS_RTS)) =
            (qp, sends, self.end_state(conn, end))
        else {
            return Ok(());
        };
        let life = self.conns[conn].ends[end].life;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_SQD,
            en_sqd_async_notify: 1,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
        // What is posted first is taken first, and may end the life of the Queue Pair.
        self.hosts[host].take_posts();
        self.report(host)?;
        if self.end_state(conn, end) != Some(ibv_qp_state::IBV_QPS_RTS) {
            return Ok(());
        }
        self.conns[conn].ends[end].draining = Some(false);
        self.modify(host, qp, &attr, mask)?
            .map_err(|e| e.to_string())?;
        self.tally.drained += 1;
        let at = self.now + Duration::from_nanos(rng.below(2_000_000));
        self.agenda.add(at, Happening::Undrain { conn, end, life });
        Ok(())
    }

    fn deregister(&mut self, rng: &mut Rng, conn: usize, way: usize) -> Verdict {
        let all = [
            Use::Source,
            Use::Landing,
            Use::Target,
            Use::Fixed,
            Use::Words,
            Use::Inbox,
        ];
        let of = all[rng.below(6) as usize];
        let area = match (of, self.conns[conn].ends[way].inbox) {
            (Use::Inbox, None) => return Ok(()),
            (Use::Inbox, Some(inbox)) => inbox,
            _ => *self.conns[conn].ways[way].place(of),
        };
        let host = self.areas[area].host;
        if self.areas[area].gone || self.hosts[host].engine.is_none() {
            return Ok(());
        }
        let lkey = self.areas[area].keys.lkey;
        let window = self.conns[conn].ways[way]
            .window
            .filter(|_| of == Use::Target);
        let engine = self.hosts[host].engine.as_mut().ok_or("a dead host")?;
        if let Some(window) = window {
            if window.opening == Opening::Changing {
                // A message that is under way may end it.
                return Ok(());
            }
            if window.opening == Opening::Open
                && window.life == self.conns[conn].life
                && engine.dereg_mr(lkey).is_ok()
            {
                return Err(format!(
                    "a region went although a window is bound to it: {window:?}"
                ));
            }
            engine.dealloc_mw(window.rkey).map_err(|e| e.to_string())?;
            self.conns[conn].ways[way].window = None;
        }
        engine
            .dereg_mr(lkey)
            .map_err(|e| format!("dereg_mr: {e}"))?;
        self.areas[area].bury();
        if of == Use::Inbox {
            let end = &mut self.conns[conn].ends[way];
            end.robbed = Some(end.life);
        }
        self.tally.deregistered += 1;
        self.recover_soon(conn);
        Ok(())
    }

    fn overrun(&mut self, rng: &mut Rng, host: usize) -> Verdict {
        let cq = self.hosts[host].cq(rng.next_u64());
        // The SRQs of XRC whose completions go there take no more messages.
        for s in self.hosts[host].srqs.clone() {
            let of = self.srqs[s].xrc && self.hosts[host].cq(s as u64) == cq;
            self.srqs[s].failed |= of && self.hosts[host].engine.is_some();
        }
        if let Some(engine) = self.engine(host) {
            engine.cq_overrun(cq);
        }
        self.report(host)
    }

    fn limit(&mut self, rng: &mut Rng, host: usize) -> Verdict {
        let srqs = &self.hosts[host].srqs;
        let s = srqs[rng.below(srqs.len() as u64) as usize];
        let limit = 1 + rng.below(self.knobs.receives as u64) as u32;
        self.hosts[host].take_posts();
        self.report(host)?;
        let id = self.srqs[s].id;
        if let Some(engine) = self.hosts[host].engine.as_mut() {
            self.srqs[s].armed = true;
            engine
                .modify_srq(id, None, Some(limit))
                .map_err(|e| e.to_string())?;
        }
        self.report(host)
    }

    fn pause(&mut self, rng: &mut Rng, host: usize) {
        let until = self.now + Duration::from_micros(64 * magnitude(rng, 10));
        let h = &mut self.hosts[host];
        if h.engine.is_some() {
            h.paused = Some(h.paused.unwrap_or(until).max(until));
            self.wake(host);
        }
    }

    fn partition(&mut self, rng: &mut Rng, host: usize) {
        let until = self.now + Duration::from_micros(64 * magnitude(rng, 12));
        for other in (0..self.knobs.nodes).filter(|&o| o != host) {
            for at in [self.link(host, other), self.link(other, host)] {
                for v6 in [false, true] {
                    self.links[at].wire.layer.partition(addr(host, v6), true);
                }
                self.bad_until(at, until);
            }
        }
    }

    fn burst(&mut self, rng: &mut Rng) {
        let nodes = self.knobs.nodes as u64;
        let (from, to) = (rng.below(nodes) as usize, rng.below(nodes) as usize);
        if from != to {
            let at = self.link(from, to);
            let loss =
                Probability::new(0.5 + rng.below(6) as f64 / 10.0).unwrap_or(Probability::ALWAYS);
            let faults = Faults {
                loss,
                ..self.knobs.faults.clone()
            };
            self.links[at].wire.layer.set_faults(faults);
            let until = self.now + Duration::from_micros(16 * magnitude(rng, 10));
            self.bad_until(at, until);
        }
    }

    fn bad_until(&mut self, at: usize, until: rdma_soft::core::time::Instant) {
        let link = &mut self.links[at];
        link.bad = link.bad.max(until);
        self.agenda.add(link.bad, Happening::Heal(at));
    }

    /// A link is as it was, if it is not bad for longer.
    pub fn heal(&mut self, at: usize) {
        let (from, to) = (at / self.knobs.nodes, at % self.knobs.nodes);
        let link = &mut self.links[at];
        if link.bad > self.now && !self.healing {
            return;
        }
        for host in [from, to] {
            for v6 in [false, true] {
                link.wire.layer.partition(addr(host, v6), false);
            }
        }
        let faults = match (from == to, self.healing) {
            (true, _) => Faults::default(),
            (_, false) => self.knobs.faults.clone(),
            (_, true) => Faults {
                delay: self.knobs.faults.delay,
                ..Faults::default()
            },
        };
        link.wire.layer.set_faults(faults);
    }

    /// A host dies, with all its memory; what it had is nobody's business any more.
    fn die(&mut self, rng: &mut Rng, host: usize) -> Verdict {
        if self.hosts[host].engine.is_none() {
            return Ok(());
        }
        self.tally.deaths += 1;
        let h = &mut self.hosts[host];
        h.engine = None;
        h.socket.clear();
        h.posts.clear();
        (h.paused, h.groups) = (None, vec![]);
        self.owners.retain(|&(of, _), _| of != host);
        for area in self.areas.iter_mut().filter(|a| a.host == host) {
            if !area.gone {
                area.bury();
            }
        }
        for srq in self.srqs.iter_mut().filter(|s| s.host == host) {
            (srq.dead, srq.waiting) = (true, 0);
        }
        let dead: Vec<usize> = (0..self.srqs.len())
            .filter(|&s| self.srqs[s].dead)
            .collect();
        self.receives
            .retain(|_, r| !matches!(r.place, Place::Srq(s) if dead.contains(&s)));
        for conn in 0..self.conns.len() {
            for end in 0..2 {
                if self.conns[conn].ends[end].host == host {
                    self.conns[conn].ends[end].qp = None;
                    self.left(conn, end)?;
                    if self.conns[conn].ways[1 - end].window.is_some() {
                        self.conns[conn].ways[1 - end].window = None;
                    }
                }
            }
        }
        for g in 0..self.grams.len() {
            if self.grams[g].host == host {
                let gram = &mut self.grams[g];
                gram.qp = None;
                gram.groups[0].clear();
                gram.sends = Default::default();
                for id in std::mem::take(&mut gram.queue) {
                    self.receives.remove(&id);
                }
            }
        }
        let at = self.now + Duration::from_micros(64 * magnitude(rng, 9));
        self.agenda.add(at, Happening::Rebirth(host));
        Ok(())
    }

    /// Another node has the address of one that died.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn reborn(&mut self, host: usize) -> Verdict {
        if self.hosts[host].engine.is_some() || self.healing {
            return Ok(());
        }
        let incarnation = self.hosts[host].incarnation + 1;
        let busy = self.hosts[host].wake;
        self.born(host, incarnation)?;
        self.hosts[host].wake = busy;
        for conn in 0..self.conns.len() {
            if self.conns[conn].ends.iter().any(|e| e.host == host) {
                self.recover_soon(conn);
            }
        }
        for g in 0..self.grams.len() {
            if self.grams[g].host == host {
                if self.grams[g].inbox.is_some() {
                    self.grams[g].inbox = Some(self.area(host, Use::Inbox)?);
                }
                self.grams[g].source = self.area(host, Use::Source)?;
                self.raise_gram(g)?;
            }
        }
        Ok(())
    }
}
