//! What the engine reports, against the books.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_event_type, ibv_qp_state, ibv_wc_status};
use rdma_soft::core::{Completion, Event, Queue};

use crate::books::{Op, Opening, Poison, Req};
use crate::memory::{Piece, Shape, SlotId, text};
use crate::world::{Happening, Owner, Verdict, World};

const OK: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const FLUSHED: ibv_wc_status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;

impl World {
    /// Takes everything that a host's engine has to report, and judges it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn report(&mut self, host: usize) -> Verdict {
        loop {
            let stopped = self.events(host)?;
            if stopped.is_empty() {
                return Ok(());
            }
            // What was posted and not taken yet is flushed: that, too, is an end.
            self.hosts[host].take_posts();
            let more = self.events(host)?;
            for (qp, state) in stopped.into_iter().chain(more) {
                self.stopped(host, qp, state)?;
            }
        }
    }

    /// Takes the events that there are; gives the Queue Pairs that stopped.
    fn events(&mut self, host: usize) -> Result<Vec<(u32, ibv_qp_state)>, String> {
        let mut stopped = vec![];
        while let Some(event) = self.engine(host).and_then(|e| e.poll_event()) {
            self.mark_event(host, &event);
            self.tell(|| format!("host {host}: {event:?}"));
            match event {
                Event::Completion { wc, solicited, .. } => {
                    self.completed(host, &wc)?;
                    if wc.status != OK && !solicited {
                        return Err(format!("an error that wakes nobody: {wc:?}"));
                    }
                }
                Event::State { qp_num, state } => stopped.push((qp_num, state)),
                Event::Qp { qp_num, kind } => self.qp_event(host, qp_num, kind)?,
                Event::Srq { srq, kind } => self.srq_event(host, srq.0, kind)?,
            }
        }
        Ok(stopped)
    }

    fn mark_event(&mut self, host: usize, event: &Event) {
        let words = match event {
            Event::Completion { cq, wc, solicited } => [
                u64::from(cq.0) << 1 | u64::from(*solicited),
                wc.wr_id,
                wc.seq,
                u64::from(wc.status.0) << 32 | u64::from(wc.opcode.0),
                u64::from(wc.byte_len) << 32 | u64::from(wc.qp_num),
                u64::from(wc.imm.unwrap_or(0)) << 32 | u64::from(wc.invalidated.unwrap_or(0)),
            ],
            Event::Qp { qp_num, kind } => [1, u64::from(*qp_num), u64::from(kind.0), 0, 0, 0],
            Event::Srq { srq, kind } => [2, u64::from(srq.0), u64::from(kind.0), 0, 0, 0],
            Event::State { qp_num, state } => [3, u64::from(*qp_num), u64::from(state.0), 0, 0, 0],
        };
        let mut bytes = words.map(u64::to_le_bytes).concat();
        bytes.push(host as u8);
        self.mark(&bytes);
    }

    /// A Queue Pair changed its state by itself, or by a modify: everything that it had is over.
    fn stopped(&mut self, host: usize, qp: u32, state: ibv_qp_state) -> Verdict {
        self.tally.errors += 1;
        match self.owners.get(&(host, qp)).copied() {
            Some(Owner::End(conn, end)) => {
                let life = self.conns[conn].ends[end].life;
                if let Some(stream) = self.conns[conn].ways[end].streams.get_mut(&life) {
                    let known = stream.sends.stopped()?;
                    for at in known {
                        self.resolved(conn, end, life, at)?;
                    }
                }
                let e = &self.conns[conn].ends[end];
                if state == ibv_qp_state::IBV_QPS_ERR && !e.queue.is_empty() {
                    return Err(format!(
                        "ERR leaves {} receives of QP {qp:#x} without an end",
                        e.queue.len()
                    ));
                }
                if state == ibv_qp_state::IBV_QPS_SQE && self.rng.chance(0.6) {
                    let at = self.soon(std::time::Duration::from_micros(100));
                    self.agenda.add(at, Happening::Undrain { conn, end, life });
                } else if self.rng.chance(0.9) {
                    self.recover_soon(conn);
                }
                Ok(())
            }
            Some(Owner::Gram(g)) => self.gram_stopped(g, state),
            Some(Owner::Probe(..)) | None => Ok(()),
        }
    }

    fn qp_event(&mut self, host: usize, qp: u32, kind: ibv_event_type) -> Verdict {
        let Some(&Owner::End(conn, end)) = self.owners.get(&(host, qp)) else {
            return Ok(());
        };
        let transport = self.conns[conn].transport(end);
        let shared = self.conns[conn].ends[end].srq.is_some();
        match kind {
            ibv_event_type::IBV_EVENT_SQ_DRAINED => {
                let e = &mut self.conns[conn].ends[end];
                if e.draining.replace(true) != Some(false) {
                    return Err(format!(
                        "QP {qp:#x}: IBV_EVENT_SQ_DRAINED that nobody waits for"
                    ));
                }
                let engine = self.hosts[host].engine.as_ref();
                let attr = engine.and_then(|e| e.query_qp(qp)).map(|(attr, _)| attr);
                if attr.is_some_and(|a| a.sq_draining != 0) {
                    return Err(format!("QP {qp:#x}: drained, and draining"));
                }
                Ok(())
            }
            ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED if !shared => Err(format!(
                "{transport} QP {qp:#x}: the last receive of an SRQ that it has not"
            )),
            _ => Ok(()),
        }
    }

    fn srq_event(&mut self, host: usize, id: u32, kind: ibv_event_type) -> Verdict {
        let found = self
            .srqs
            .iter_mut()
            .find(|s| s.host == host && s.id.0 == id && !s.dead);
        let srq = found.ok_or_else(|| format!("an event of no SRQ: {id:#x}"))?;
        match kind {
            ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED if std::mem::take(&mut srq.armed) => Ok(()),
            ibv_event_type::IBV_EVENT_SRQ_ERR if srq.failed => Ok(()),
            _ => Err(format!("SRQ {id:#x}: event {kind:?} for no reason")),
        }
    }

    fn completed(&mut self, host: usize, wc: &Completion) -> Verdict {
        let owner = self.owners.get(&(host, wc.qp_num)).copied();
        let owner = owner.ok_or_else(|| format!("host {host}: a completion of no QP: {wc:?}"))?;
        match (owner, wc.queue) {
            (Owner::End(conn, end), Queue::Send) => self.sent_one(conn, end, wc),
            (Owner::End(conn, end), _) => {
                self.tally
                    .count(Op::Receive, self.conns[conn].transport(end), wc.status);
                self.received(conn, end, wc)
            }
            (Owner::Gram(g), Queue::Send) => self.gram_sent(g, wc),
            (Owner::Gram(g), _) => {
                self.tally.count(Op::Receive, Transport::Ud, wc.status);
                self.gram_received(g, wc)
            }
            (Owner::Probe(srq, sends), _) => self.probed(srq, sends, wc),
        }
    }

    /// A send request's completion.
    fn sent_one(&mut self, conn: usize, end: usize, wc: &Completion) -> Verdict {
        let now = self.now;
        let c = &mut self.conns[conn];
        let life = c.ends[end].life;
        c.ends[end].sign = now;
        let stream = c.ways[end].streams.get_mut(&life).ok_or("no such life")?;
        let known = stream.sends.complete(wc)?;
        for at in known.clone() {
            if at + 1 == known.end {
                self.plausible(conn, end, life, at, wc)?;
            }
            self.resolved(conn, end, life, at)?;
        }
        Ok(())
    }

    /// Whether a request may have ended so.
    fn plausible(&self, conn: usize, end: usize, life: u32, at: usize, wc: &Completion) -> Verdict {
        use ibv_wc_status as S;
        let c = &self.conns[conn];
        let req = &c.ways[end].streams[&life].sends.reqs[at];
        let gone = |slot: &Option<(SlotId, Piece)>| slot.is_some_and(|(s, _)| self.areas[s.0].gone);
        let local_gone = req
            .local
            .as_ref()
            .is_some_and(|(s, _)| self.areas[s.0].gone);
        let remote_gone = gone(&req.remote);
        let reliable = c.reliable();
        let state = self.end_state(conn, end);
        let stands =
            state == Some(ibv_qp_state::IBV_QPS_ERR) || state == Some(ibv_qp_state::IBV_QPS_SQE);
        let broken = req.poison.map(Poison::status);
        let fits = match wc.status {
            S::IBV_WC_SUCCESS => {
                broken.is_none() || !reliable && broken != Some(S::IBV_WC_LOC_PROT_ERR)
            }
            S::IBV_WC_WR_FLUSH_ERR => stands,
            S::IBV_WC_LOC_PROT_ERR => broken == Some(wc.status) || local_gone,
            S::IBV_WC_RETRY_EXC_ERR => {
                reliable && (self.knobs.unsafe_wire() || !self.peer_was_there(conn, end, life, req))
            }
            S::IBV_WC_RNR_RETRY_EXC_ERR => {
                reliable && self.knobs.rnr_retry < 7 && req.op.is_message()
            }
            S::IBV_WC_REM_ACCESS_ERR => reliable && (broken == Some(wc.status) || remote_gone),
            S::IBV_WC_REM_INV_REQ_ERR => reliable && broken == Some(wc.status),
            S::IBV_WC_REM_OP_ERR => reliable && self.receiver_broken(conn, end, req),
            S::IBV_WC_MW_BIND_ERR => req.op == Op::Bind && self.areas[c.ways[1 - end].target].gone,
            S::IBV_WC_LOC_QP_OP_ERR => {
                req.op == Op::LocalInv && self.areas[c.ways[1 - end].target].gone
            }
            _ => false,
        };
        if fits {
            Ok(())
        } else {
            Err(format!(
                "{:?} is no end for {req:?} (state {state:?})",
                wc.status
            ))
        }
    }

    /// The peer has been there since the request was posted, and answers.
    fn peer_was_there(&self, conn: usize, end: usize, life: u32, req: &Req) -> bool {
        use ibv_qp_state as S;
        let peer = &self.conns[conn].ends[1 - end];
        let state = self.end_state(conn, 1 - end);
        let open = matches!(
            state,
            Some(S::IBV_QPS_RTR | S::IBV_QPS_RTS | S::IBV_QPS_SQD | S::IBV_QPS_SQE)
        );
        peer.life == life && open && peer.joined < req.posted && self.knobs.timeout >= 16
    }

    fn receiver_broken(&self, conn: usize, end: usize, req: &Req) -> bool {
        let peer = &self.conns[conn].ends[1 - end];
        // It may have begun another life since.
        let own = peer.robbed == Some(self.conns[conn].ends[end].life);
        let of_peer = |s: usize| self.srqs[s].failed || self.areas[self.srqs[s].inbox].gone;
        let shared = peer.srq.is_some_and(of_peer);
        let named = req.srq.is_some_and(|id| {
            (0..self.srqs.len())
                .any(|s| self.srqs[s].host == peer.host && self.srqs[s].id == id && of_peer(s))
        });
        own || shared || named
    }

    /// The outcome of a request is known: its memory is the application's again, and what it promised must
    /// have happened.
    fn resolved(&mut self, conn: usize, end: usize, life: u32, at: usize) -> Verdict {
        let c = &self.conns[conn];
        let (reliable, kind) = (c.reliable(), c.kind);
        let stream = &c.ways[end].streams[&life];
        let req = stream.sends.reqs[at].clone();
        let outcome = req.outcome.unwrap_or(FLUSHED);
        self.tally.count(req.op, kind.transport, outcome);
        if outcome != OK {
            return self.give_up(conn, end, life, at);
        }
        if reliable && req.op.is_message() && stream.next <= at {
            return Err(format!("SUCCESS before it was delivered: {req:?}"));
        }
        if let Some((slot, pieces)) = &req.local {
            self.check_fetched(conn, end, &req, *slot, pieces)?;
        }
        if let (Some(atomic), Some((words, _))) = (req.atomic, req.remote)
            && !self.areas[words.0].gone
        {
            let value = &mut self.conns[conn].ways[end].values[atomic.word];
            *value = atomic.apply(*value);
        }
        if let Some((slot, _)) = req.local {
            self.areas[slot.0].release(slot.1);
        }
        match req.op {
            Op::Write | Op::WriteImm if reliable => {
                self.check_write(&req, Shape::Whole)?;
                self.free_remote(conn, end, life, at);
            }
            Op::Read if req.fetched.is_some() => self.free_remote(conn, end, life, at),
            Op::Bind | Op::LocalInv => {
                // It is about what the peer writes.
                if let Some(w) = &mut self.conns[conn].ways[1 - end].window
                    && Some(w.rkey) == req.key
                {
                    w.opening = if req.op == Op::Bind {
                        Opening::Open
                    } else {
                        Opening::Closed
                    };
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What a READ or an atomic brought.
    fn check_fetched(
        &self,
        conn: usize,
        end: usize,
        req: &Req,
        slot: SlotId,
        pieces: &[Piece],
    ) -> Verdict {
        let want = match (req.op, req.atomic) {
            (Op::Read, _) => self.readable(req),
            (_, Some(atomic)) => self.conns[conn].ways[end].values[atomic.word]
                .to_ne_bytes()
                .to_vec(),
            _ => return Ok(()),
        };
        // What was read may be gone by now.
        let source_gone = req.remote.is_some_and(|(s, _)| self.areas[s.0].gone);
        if self.areas[slot.0].gone || source_gone {
            return Ok(());
        }
        let done = self.areas[slot.0].check(slot.1, pieces, &want, Shape::Whole);
        done.map_err(|e| format!("SUCCESS, but not what should be fetched: {e}: {req:?}"))
    }

    /// What a READ should bring.
    fn readable(&self, req: &Req) -> Vec<u8> {
        match (req.fetched, req.remote) {
            (Some((id, len, skip)), _) => {
                text(id, len as usize)[skip as usize..][..req.len as usize].to_vec()
            }
            (None, Some((slot, (at, len)))) => self.areas[slot.0].pieces(slot.1, &[(at, len)]),
            (None, None) => vec![],
        }
    }

    /// What a WRITE wrote, and nothing beside it.
    pub fn check_write(&self, req: &Req, shape: Shape) -> Verdict {
        let Some((slot, piece)) = req.remote else {
            return Ok(());
        };
        if self.areas[slot.0].gone {
            return Ok(());
        }
        // A request that breaks a rule changes nothing.
        let len = if req.poison.is_some() {
            0
        } else {
            req.len as usize
        };
        let done = self.areas[slot.0].check(slot.1, &[piece], &text(req.id, len), shape);
        done.map_err(|e| format!("{e}: {req:?}"))
    }

    /// A request lets go of the peer's memory.
    pub fn free_remote(&mut self, conn: usize, end: usize, life: u32, at: usize) {
        let stream = self.conns[conn].ways[end].streams.get_mut(&life);
        let slot = stream.and_then(|s| s.sends.reqs[at].remote.take());
        if let Some((slot, _)) = slot {
            self.areas[slot.0].release(slot.1);
        }
    }

    /// A request did not succeed, or nobody will know: its own memory is the application's again, the
    /// peer's when no packet of it can come any more.
    pub fn give_up(&mut self, conn: usize, end: usize, life: u32, at: usize) -> Verdict {
        let mtu = self.knobs.mtu;
        let req = self.conns[conn].ways[end].streams[&life].sends.reqs[at].clone();
        if let Some((slot, pieces)) = &req.local {
            let fetched = match req.op {
                Op::Read => self.readable(&req),
                _ => vec![],
            };
            let area = &self.areas[slot.0];
            // The peer's memory may have changed since: only that nothing else was touched can be said.
            let known =
                req.fetched.is_some() || req.remote.is_some_and(|(s, _)| !self.areas[s.0].gone);
            if req.op == Op::Read && !area.gone && known && req.poison.is_none() {
                area.check(slot.1, pieces, &fetched, Shape::Part(mtu))
                    .map_err(|e| format!("a READ that failed: {e}: {req:?}"))?;
            }
            // Without an outcome it may have been answered in silence.
            if req.atomic.is_some() && !area.gone && req.outcome.is_some() {
                area.check(slot.1, pieces, &[], Shape::Whole)
                    .map_err(|e| format!("an atomic that failed: {e}: {req:?}"))?;
            }
            self.areas[slot.0].release(slot.1);
        }
        if req.op == Op::Read && req.fetched.is_some() {
            self.free_remote(conn, end, life, at);
        }
        Ok(())
    }
}
