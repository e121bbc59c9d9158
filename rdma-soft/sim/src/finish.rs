//! What hangs; and the end of a run: everything is healed, comes to an end, and is looked at.

use std::time::Duration;

use rdma_core_sys::rules::{Transport, ack_timeout, rnr_timer};
use rdma_core_sys::{ibv_qp_state, ibv_wc_status};
use rdma_soft::core::{Completion, Data, Queue, Refused, SendOp, SendWqe, SgeList};

use crate::books::{Place, Req, WORDS};
use crate::build::word_at;
use crate::host::{addr, ah_attr};
use crate::memory::Shape;
use crate::world::{Happening, Owner, Verdict, World};

/// How long everything may take after the network is healed.
const PATIENCE: Duration = Duration::from_secs(120);

impl World {
    /// How long a request of a reliable connection may be without a sign of the peer: its retries, the
    /// wait that an RNR NAK asked for, and what hosts are late.
    fn budget(&self) -> Option<Duration> {
        let timeout = ack_timeout(self.knobs.timeout)?;
        let late = Duration::from_nanos(self.knobs.late + self.knobs.cost[0] * 64) * 16;
        let tries = u32::from(self.knobs.retry_cnt) + 1;
        Some(
            (timeout + late) * tries
                + rnr_timer(self.knobs.min_rnr_timer)
                + late
                + Duration::from_millis(5),
        )
    }

    /// No Queue Pair hangs past its retry budget.
    ///
    /// # Errors
    /// One does.
    pub fn watch(&mut self) -> Verdict {
        let Some(budget) = self.budget() else {
            return Ok(());
        };
        for conn in 0..self.conns.len() {
            for end in 0..self.conns[conn].directions() {
                let c = &self.conns[conn];
                let e = &c.ends[end];
                let host = &self.hosts[e.host];
                if !c.reliable() || host.engine.is_none() || host.paused.is_some() {
                    continue;
                }
                let Some(stream) = c.ways[end].streams.get(&e.life) else {
                    continue;
                };
                let stands = self.end_state(conn, end) == Some(ibv_qp_state::IBV_QPS_RTS);
                if let Some(owed) = stream.sends.owed().filter(|_| stands) {
                    let since = e.sign.max(owed.posted.min(self.now));
                    if self.now.since(since) > budget {
                        return Err(format!(
                            "hangs: conn {conn}.{end} heard nothing for {:?}, its budget is {budget:?}: {owed:?}",
                            self.now.since(since)
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs the program, heals everything, ends everything, and looks at what is left.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn run(&mut self) -> Verdict {
        for i in 0..self.actions.len() {
            self.agenda.add(
                rdma_soft::core::time::Instant::ZERO + self.actions[i].at,
                Happening::Action(i),
            );
        }
        self.agenda
            .add(self.now + crate::world::WATCH, Happening::Watch);
        let end = self.now + self.knobs.span;
        while self.now <= end && self.step()? {}
        self.heal_all()?;
        let limit = self.now + PATIENCE;
        while self.unsettled() {
            if self.now > limit {
                return Err(format!(
                    "hangs: after {PATIENCE:?} on a good network {} is still open",
                    self.what_is_open()
                ));
            }
            if !self.step()? {
                break;
            }
        }
        self.stop_all()?;
        self.probe_all()?;
        self.look()?;
        self.tear_down()
    }

    fn heal_all(&mut self) -> Verdict {
        self.healing = true;
        for at in 0..self.links.len() {
            self.heal(at);
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].paused.is_some() {
                self.hosts[host].paused = Some(self.now);
                self.wake(host);
            }
        }
        for conn in 0..self.conns.len() {
            for end in 0..2 {
                self.feed(self.receives_of(conn, end), self.knobs.receives)?;
            }
        }
        for s in 0..self.srqs.len() {
            self.feed(Place::Srq(s), self.knobs.receives)?;
        }
        Ok(())
    }

    /// Something is still to come to an end by itself.
    fn unsettled(&mut self) -> bool {
        let wire = self.links.iter().any(|l| l.wire.layer.held() > 0);
        let hosts = self
            .hosts
            .iter()
            .any(|h| h.engine.is_some() && !(h.socket.is_empty() && h.posts.is_empty()));
        wire || hosts || !self.what_is_open().is_empty()
    }

    fn what_is_open(&self) -> String {
        let mut open = vec![];
        for (conn, c) in self.conns.iter().enumerate() {
            for end in 0..c.directions() {
                let e = &c.ends[end];
                let stands = matches!(
                    self.end_state(conn, end),
                    Some(ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD)
                );
                let owed = c.ways[end]
                    .streams
                    .get(&e.life)
                    .and_then(|s| s.sends.owed());
                // Without a timeout a request may wait for ever; in SQD what was not begun does.
                let endless = self.knobs.rnr_retry == 7 && self.starves(conn, end, owed);
                let may_hang = (self.knobs.timeout == 0 || endless) && c.reliable();
                if let Some(owed) = owed.filter(|_| stands && !may_hang) {
                    let drained = self.end_state(conn, end) == Some(ibv_qp_state::IBV_QPS_SQD);
                    if !(drained && e.draining == Some(true)) {
                        open.push(format!("conn {conn}.{end}: {owed:?}"));
                    }
                }
            }
        }
        open.join("; ")
    }

    /// The peer has no receive for a request, and no memory for one: that may last for ever.
    fn starves(&self, conn: usize, end: usize, owed: Option<&Req>) -> bool {
        let peer = &self.conns[conn].ends[1 - end];
        let named = owed.and_then(|r| r.srq);
        let named = (0..self.srqs.len())
            .find(|&s| self.srqs[s].host == peer.host && Some(self.srqs[s].id) == named);
        match named.or(peer.srq) {
            Some(s) => {
                // Each Queue Pair may hold one for a message of which the rest was lost.
                let ends = self.conns.iter().flat_map(|c| &c.ends);
                self.srqs[s].waiting <= ends.filter(|e| e.host == peer.host).count()
            }
            None => peer.queue.is_empty(),
        }
    }

    /// All Queue Pairs are moved to ERR, which ends every request, and then reset.
    fn stop_all(&mut self) -> Verdict {
        for conn in 0..self.conns.len() {
            self.conns[conn].recovering = false;
            for end in 0..2 {
                let (host, qp) = (
                    self.conns[conn].ends[end].host,
                    self.conns[conn].ends[end].qp,
                );
                let state = self.end_state(conn, end);
                if let (Some(qp), Some(state)) = (qp, state)
                    && state != ibv_qp_state::IBV_QPS_RESET
                {
                    self.move_to(host, qp, ibv_qp_state::IBV_QPS_ERR)?;
                    let life = self.conns[conn].ends[end].life;
                    let left = self.conns[conn].ways[end]
                        .streams
                        .get(&life)
                        .map_or(0, |s| s.sends.open());
                    if left > 0 {
                        return Err(format!(
                            "ERR leaves {left} requests of conn {conn}.{end} without an end"
                        ));
                    }
                }
            }
        }
        for conn in 0..self.conns.len() {
            // A life that one end has not entered ends here, too.
            for end in 0..2 {
                self.leave(conn, end, true)?;
                let life = self.conns[conn].life;
                self.conns[conn].ends[end].life = life;
                self.left(conn, end)?;
            }
        }
        for g in 0..self.grams.len() {
            let (host, qp) = (self.grams[g].host, self.grams[g].qp);
            let Some(qp) = qp.filter(|_| self.hosts[host].engine.is_some()) else {
                continue;
            };
            for k in self.grams[g].groups[0].clone() {
                self.detach(g, k)?;
            }
            if self.state(host, Some(qp)) != Some(ibv_qp_state::IBV_QPS_RESET) {
                self.move_to(host, qp, ibv_qp_state::IBV_QPS_ERR)?;
            }
            if self.grams[g].sends.open() > 0 || !self.grams[g].queue.is_empty() {
                return Err(format!("ERR leaves requests of UD {g} without an end"));
            }
            let engine = self.engine(host).ok_or("a dead host")?;
            engine.destroy_qp(qp).map_err(|e| e.to_string())?;
            self.owners.remove(&(host, qp));
            self.report(host)?;
        }
        Ok(())
    }

    /// Every receive that still waits in a shared queue is there, once: empty messages take them out, and
    /// one message more finds none.
    fn probe_all(&mut self) -> Verdict {
        for s in 0..self.srqs.len() {
            if !self.srqs[s].dead && !self.srqs[s].failed {
                self.probe(s)?;
            }
        }
        Ok(())
    }

    fn probe(&mut self, s: usize) -> Verdict {
        let srq = &self.srqs[s];
        let (host, id, waiting) = (srq.host, srq.id, srq.waiting);
        let kinds = match srq.xrc {
            true => [Transport::XrcIni, Transport::XrcTgt],
            false => [Transport::Rc, Transport::Rc],
        };
        let mut qps = [0; 2];
        for (at, transport) in kinds.into_iter().enumerate() {
            let with = (at == 1 && !self.srqs[s].xrc).then_some(s);
            let init = self.qp_init(host, transport, with, 0);
            qps[at] = self.create(host, init, Owner::Probe(s, at == 0))?;
        }
        for at in 0..2 {
            let mut attr = self.attr();
            (attr.rnr_retry, attr.retry_cnt, attr.timeout) = (0, 7, 20);
            attr.dest_qp_num = qps[1 - at];
            attr.ah_attr = ah_attr(addr(host, false));
            self.raise(host, qps[at], &mut attr)?;
        }
        for i in 0..=waiting as u64 {
            let wqe = SendWqe {
                wr_id: i,
                seq: i,
                op: SendOp::Send {
                    imm: None,
                    invalidate: None,
                },
                data: Data::Sges(SgeList::new()),
                signaled: true,
                solicited: false,
                fence: false,
                xrc_srq: id.0,
            };
            self.hosts[host]
                .posts
                .push_back(crate::host::Post::Send(qps[0], Box::new(wqe)));
        }
        self.wake(host);
        let limit = self.now + PATIENCE;
        while self.state(host, Some(qps[0])) != Some(ibv_qp_state::IBV_QPS_ERR) {
            if self.now > limit || !self.step()? {
                return Err(format!("SRQ {:#x} does not run empty", id.0));
            }
        }
        if self.srqs[s].waiting > 0 {
            return Err(format!(
                "SRQ {:#x} lost {} receives",
                id.0, self.srqs[s].waiting
            ));
        }
        for qp in qps {
            let engine = self.engine(host).ok_or("a dead host")?;
            engine.destroy_qp(qp).map_err(|e| e.to_string())?;
            self.owners.remove(&(host, qp));
        }
        self.report(host)
    }

    /// A completion of the Queue Pairs that empty a shared receive queue.
    ///
    /// # Errors
    /// What is wrong.
    pub fn probed(&mut self, s: usize, sends: bool, wc: &Completion) -> Verdict {
        use ibv_wc_status as S;
        let id = self.srqs[s].id;
        if sends && wc.queue == Queue::Send {
            let fits = matches!(wc.status, S::IBV_WC_SUCCESS | S::IBV_WC_RNR_RETRY_EXC_ERR);
            return if fits {
                Ok(())
            } else {
                Err(format!("emptying SRQ {:#x}: {wc:?}", id.0))
            };
        }
        let receive = self.take_receive(Place::Srq(s), wc)?;
        let flushed = wc.status == S::IBV_WC_WR_FLUSH_ERR;
        if wc.status != S::IBV_WC_SUCCESS && !flushed || wc.byte_len != 0 {
            return Err(format!("emptying SRQ {:#x}: {wc:?}", id.0));
        }
        self.areas[receive.slot.0].release(receive.slot.1);
        Ok(())
    }

    /// What must hold in the end, whatever happened.
    fn look(&mut self) -> Verdict {
        for area in &self.areas {
            area.intact()?;
        }
        for way in self.conns.iter().flat_map(|c| &c.ways) {
            let area = &self.areas[way.words];
            if !area.gone {
                let pieces: Vec<_> = (0..WORDS).map(|word| (word_at(word), 8)).collect();
                let values = way.values.map(u64::to_ne_bytes).concat();
                area.check(0, &pieces, &values, Shape::Whole)
                    .map_err(|e| format!("atomics: {e}"))?;
            }
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let Some(engine) = &host.engine else { continue };
            let k = engine.counters();
            let refused: u64 = Refused::ALL.iter().map(|&r| k.refused(r)).sum();
            if k.rx_frames != k.rx_accepted + refused {
                return Err(format!(
                    "host {number}: {} frames came, {} + {refused} are counted",
                    k.rx_frames, k.rx_accepted
                ));
            }
            // Frames are ours, and what is damaged is found out before it is read.
            for never in [
                Refused::TooShort,
                Refused::UnknownOpcode,
                Refused::BadHeader,
                Refused::WrongTransport,
                Refused::BadPkey,
            ] {
                if k.refused(never) > 0 {
                    return Err(format!(
                        "host {number} counts {} in {}",
                        k.refused(never),
                        never.name()
                    ));
                }
            }
            self.tally.retransmitted += k.tx_retransmitted;
            self.tally.rnr += k.rx_rnr_naks;
        }
        if let Some((id, open)) = self
            .receives
            .iter()
            .find(|(_, r)| !matches!(r.place, Place::Srq(_)))
        {
            return Err(format!("receive {id:#x} has no end: {open:?}"));
        }
        Ok(())
    }

    /// Everything can be destroyed, in the order that verbs ask for.
    fn tear_down(&mut self) -> Verdict {
        for conn in 0..self.conns.len() {
            for way in 0..2 {
                let owner = self.conns[conn].ends[1 - way].host;
                if let (Some(w), Some(engine)) = (
                    self.conns[conn].ways[way].window,
                    self.hosts[owner].engine.as_mut(),
                ) {
                    engine.dealloc_mw(w.rkey).map_err(|e| e.to_string())?;
                }
            }
        }
        for s in 0..self.srqs.len() {
            let (host, id) = (self.srqs[s].host, self.srqs[s].id);
            if !self.srqs[s].dead
                && let Some(engine) = self.engine(host)
            {
                engine.destroy_srq(id).map_err(|e| e.to_string())?;
            }
        }
        for at in 0..self.areas.len() {
            let (host, lkey) = (self.areas[at].host, self.areas[at].keys.lkey);
            if !self.areas[at].gone
                && let Some(engine) = self.engine(host)
            {
                engine.dereg_mr(lkey).map_err(|e| e.to_string())?;
            }
        }
        for host in &mut self.hosts {
            let Some(engine) = &mut host.engine else {
                continue;
            };
            let done = (host.cqs.iter().try_for_each(|&cq| engine.destroy_cq(cq)))
                .and_then(|()| engine.close_xrcd(host.xrcd))
                .and_then(|()| engine.dealloc_pd(host.pd));
            done.map_err(|e| format!("in the end: {e}"))?;
        }
        Ok(())
    }
}
