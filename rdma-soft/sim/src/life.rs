//! Lives of connections: Queue Pairs are connected, broken, drained, reset, destroyed and made anew.

use std::time::Duration;

use rdma_core_sys::rules;
use rdma_core_sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use rdma_soft::core::{ModifyError, mtu_code};

use crate::books::{Place, Stream};
use crate::build::ALL;
use crate::host::{addr, ah_attr};
use crate::memory::{Shape, mix};
use crate::world::{Happening, Owner, Verdict, World};

/// How far the PSNs of one life are from those of the last, unless nothing of that is on its way any more.
const FAR: u64 = 1 << 21;

impl World {
    /// The state of a Queue Pair; `None` if it is not there.
    pub fn state(&self, host: usize, qp: Option<u32>) -> Option<ibv_qp_state> {
        let engine = self.hosts[host].engine.as_ref()?;
        engine.query_qp(qp?).map(|(attr, _)| attr.qp_state)
    }

    /// The state of an end.
    pub fn end_state(&self, conn: usize, end: usize) -> Option<ibv_qp_state> {
        let e = &self.conns[conn].ends[end];
        self.state(e.host, e.qp)
    }

    /// What `ibv_modify_qp` does: what was posted before goes first, and what happens is reported.
    ///
    /// # Errors
    /// What the model found to be wrong; the engine's refusal is the value.
    pub fn modify(
        &mut self,
        host: usize,
        qp: u32,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<Result<(), ModifyError>, String> {
        self.hosts[host].take_posts();
        self.report(host)?;
        let Some(engine) = self.engine(host) else {
            return Ok(Ok(()));
        };
        let done = engine.modify_qp(qp, attr, mask).map(|_| ());
        self.report(host)?;
        self.wake(host);
        Ok(done)
    }

    /// Moves a Queue Pair to a state for which nothing else is needed.
    ///
    /// # Errors
    /// What the model found to be wrong, or that the engine refused.
    pub fn move_to(&mut self, host: usize, qp: u32, state: ibv_qp_state) -> Verdict {
        let attr = ibv_qp_attr {
            qp_state: state,
            ..Default::default()
        };
        let done = self.modify(host, qp, &attr, ibv_qp_attr_mask::IBV_QP_STATE)?;
        done.map_err(|e| format!("QP {qp:#x} to {state}: {e}"))
    }

    /// From RESET to RTS.
    ///
    /// # Errors
    /// As [`move_to`](World::move_to).
    pub fn raise(&mut self, host: usize, qp: u32, attr: &mut ibv_qp_attr) -> Verdict {
        use ibv_qp_state as S;
        for to in [S::IBV_QPS_INIT, S::IBV_QPS_RTR, S::IBV_QPS_RTS] {
            let engine = self.engine(host).ok_or("a dead host")?;
            let (now, init) = engine.query_qp(qp).ok_or("no such QP")?;
            attr.qp_state = to;
            let required =
                rules::required(init.transport, now.qp_state, to).ok_or("no such move")?;
            let mask = required | ibv_qp_attr_mask::IBV_QP_STATE;
            let done = self.modify(host, qp, attr, mask)?;
            done.map_err(|e| format!("QP {qp:#x} to {to}: {e}"))?;
        }
        Ok(())
    }

    /// The attributes that the knobs say.
    pub fn attr(&self) -> ibv_qp_attr {
        let k = &self.knobs;
        ibv_qp_attr {
            port_num: 1,
            qp_access_flags: ALL.bits(),
            path_mtu: mtu_code(k.mtu),
            max_dest_rd_atomic: k.rd_atomic,
            max_rd_atomic: k.rd_atomic,
            min_rnr_timer: k.min_rnr_timer,
            timeout: k.timeout,
            retry_cnt: k.retry_cnt,
            rnr_retry: k.rnr_retry,
            ..Default::default()
        }
    }

    /// Makes a connection anew: a new life. Both Queue Pairs are reset or replaced; the two ends are not
    /// ready at the same time.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn recover(&mut self, conn: usize) -> Verdict {
        if !self.conns[conn].recovering {
            return Ok(());
        }
        let hosts = [0, 1].map(|end| self.conns[conn].ends[end].host);
        let there = |h: usize| self.hosts[h].engine.is_some() && self.hosts[h].paused.is_none();
        if !hosts.iter().all(|&h| there(h)) {
            let later = self.now + Duration::from_millis(1);
            if !self.healing {
                self.agenda.add(later, Happening::Recover(conn));
            }
            return Ok(());
        }
        self.conns[conn].recovering = false;
        self.tally.recoveries += u64::from(self.conns[conn].life > 0);
        let quiet = self.quiet(hosts[0], hosts[1]) && self.quiet(hosts[1], hosts[0]);
        // A late packet of UC would begin a message: whoever cannot wait takes new Queue Pairs.
        let renew = !(quiet || self.conns[conn].reliable()) || self.rng.chance(0.3);
        // On UC the one who is late would take messages of a life that it is not in.
        let at_once = !renew && !self.conns[conn].reliable();
        let wait = match at_once || self.rng.chance(0.5) {
            true => 0,
            false => self.rng.below(1_000_000),
        };
        // Nor must an end that is late take what it gets for packets of its own life.
        self.draw_psns(conn, quiet && (renew || wait == 0));
        self.conns[conn].life += 1;
        let life = self.conns[conn].life;
        for at in 0..self.conns[conn].directions() {
            self.conns[conn].ways[at]
                .streams
                .insert(life, Stream::default());
        }
        if renew {
            for end in 0..2 {
                self.leave(conn, end, true)?;
            }
        }
        let first = self.rng.below(2) as usize;
        for end in [first, 1 - first] {
            if self.conns[conn].ends[end].qp.is_none() {
                self.create_end(conn, end)?;
            }
        }
        self.refurnish(conn)?;
        self.tell(|| format!("conn {conn} between {hosts:?} begins life {life}, renewed: {renew}"));
        self.join(conn, first, life)?;
        let (at, end) = (self.now + Duration::from_nanos(wait), 1 - first);
        if wait == 0 {
            return self.join(conn, end, life);
        }
        self.agenda.add(at, Happening::Join { conn, end, life });
        Ok(())
    }

    fn draw_psns(&mut self, conn: usize, quiet: bool) {
        for at in 0..2 {
            let old = u64::from(self.conns[conn].psn[at]);
            let drawn = self.rng.below(1 << 24);
            let near = 0xff_ffff - self.rng.below(60);
            let psn = match self.rng.chance(self.knobs.wrap) {
                _ if !quiet && self.conns[conn].life > 0 => old + FAR + drawn % FAR,
                true => near,
                false => drawn,
            };
            self.conns[conn].psn[at] = (psn & 0xff_ffff) as u32;
        }
    }

    fn create_end(&mut self, conn: usize, end: usize) -> Verdict {
        let c = &self.conns[conn];
        let (host, transport) = (c.ends[end].host, c.transport(end));
        let srq = c.ends[end].srq.map(|_| self.hosts[host].srqs[0]);
        let init = self.qp_init(host, transport, srq, mix(self.seed, conn as u64));
        let qp = self.create(host, init, Owner::End(conn, end))?;
        let e = &mut self.conns[conn].ends[end];
        (e.qp, e.srq, e.posted) = (Some(qp), srq, [0; 2]);
        Ok(())
    }

    /// An end enters a life.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn join(&mut self, conn: usize, end: usize, life: u32) -> Verdict {
        let c = &self.conns[conn];
        if c.life != life || c.ends[end].life == life {
            return Ok(());
        }
        let host = c.ends[end].host;
        if self.hosts[host].paused.is_some() {
            let later = self.now + Duration::from_millis(1);
            self.agenda.add(later, Happening::Join { conn, end, life });
            return Ok(());
        }
        let (Some(qp), Some(peer)) = (c.ends[end].qp, c.ends[1 - end].qp) else {
            return Ok(());
        };
        let dst = addr(c.ends[1 - end].host, c.v6);
        let psn = c.psn;
        self.leave(conn, end, false)?;
        let mut attr = self.attr();
        attr.dest_qp_num = peer;
        (attr.sq_psn, attr.rq_psn) = (psn[end], psn[1 - end]);
        attr.ah_attr = ah_attr(dst);
        self.conns[conn].ends[end].life = life;
        if self.conns[conn].ends[end].inbox.is_some() && self.rng.chance(0.5) {
            // Receives may wait before the connection does.
            let attr = ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_INIT,
                ..attr
            };
            let mask = rules::required(
                self.conns[conn].transport(end),
                ibv_qp_state::IBV_QPS_RESET,
                attr.qp_state,
            );
            let mask = mask.ok_or("no such move")? | ibv_qp_attr_mask::IBV_QP_STATE;
            self.modify(host, qp, &attr, mask)?
                .map_err(|e| e.to_string())?;
            self.feed(Place::End(conn, end), self.knobs.receives)?;
            self.raise_from_init(host, qp, attr)?;
        } else {
            self.raise(host, qp, &mut attr)?;
        }
        let now = self.now;
        let e = &mut self.conns[conn].ends[end];
        (e.sign, e.joined, e.draining) = (now, now, None);
        self.feed(self.receives_of(conn, end), self.knobs.receives)
    }

    fn raise_from_init(&mut self, host: usize, qp: u32, mut attr: ibv_qp_attr) -> Verdict {
        use ibv_qp_state as S;
        let engine = self.engine(host).ok_or("a dead host")?;
        let (_, init) = engine.query_qp(qp).ok_or("no such QP")?;
        for (from, to) in [
            (S::IBV_QPS_INIT, S::IBV_QPS_RTR),
            (S::IBV_QPS_RTR, S::IBV_QPS_RTS),
        ] {
            attr.qp_state = to;
            let required = rules::required(init.transport, from, to).ok_or("no such move")?;
            let mask = required | ibv_qp_attr_mask::IBV_QP_STATE;
            self.modify(host, qp, &attr, mask)?
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Where the receives of an end wait.
    pub fn receives_of(&self, conn: usize, end: usize) -> Place {
        let e = &self.conns[conn].ends[end];
        e.srq.map_or(Place::End(conn, end), Place::Srq)
    }

    /// An end leaves the life that it is in: its Queue Pair is reset, or destroyed.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn leave(&mut self, conn: usize, end: usize, destroy: bool) -> Verdict {
        let e = &self.conns[conn].ends[end];
        let (host, Some(qp)) = (e.host, e.qp) else {
            return self.left(conn, end);
        };
        self.hosts[host].take_posts();
        self.report(host)?;
        if destroy {
            let engine = self.engine(host).ok_or("a dead host")?;
            engine.destroy_qp(qp).map_err(|e| e.to_string())?;
            self.owners.remove(&(host, qp));
            self.conns[conn].ends[end].qp = None;
            self.report(host)?;
        } else if self.state(host, Some(qp)) != Some(ibv_qp_state::IBV_QPS_RESET) {
            self.move_to(host, qp, ibv_qp_state::IBV_QPS_RESET)?;
        }
        self.left(conn, end)
    }

    /// The books of an end whose Queue Pair has nothing any more.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn left(&mut self, conn: usize, end: usize) -> Verdict {
        let mut first = true;
        while let Some(id) = self.conns[conn].ends[end].queue.pop_front() {
            let Some(receive) = self.receives.remove(&id) else {
                return Err(format!("receive {id:#x} is in no book"));
            };
            // The first one may have been in use.
            let pieces = if first { &receive.pieces[..] } else { &[] };
            let area = &mut self.areas[receive.slot.0];
            if first {
                area.soil(receive.slot.1);
            }
            if !area.gone {
                area.check(receive.slot.1, pieces, &[], Shape::Whole)
                    .map_err(|e| format!("a receive that was given up: {e}"))?;
            }
            area.release(receive.slot.1);
            first = false;
        }
        if self.conns[conn].ends[end].srq.is_some()
            || end == 1 && self.conns[conn].directions() == 1
        {
            self.soil_srqs(self.conns[conn].ends[end].host);
        }
        let life = self.conns[conn].ends[end].life;
        if end < self.conns[conn].directions()
            && let Some(stream) = self.conns[conn].ways[end].streams.get_mut(&life)
            && !stream.left[0]
        {
            stream.left[0] = true;
            let open = stream.sends.known..stream.sends.reqs.len();
            for at in open {
                self.give_up(conn, end, life, at)?;
            }
            self.close(conn, end, life)?;
        }
        let in_way = 1 - end;
        if let Some(stream) = self.conns[conn].ways[in_way].streams.get_mut(&life)
            && !stream.left[1]
        {
            stream.left[1] = true;
            self.close(conn, in_way, life)?;
        }
        Ok(())
    }

    /// A receive of a host's shared queues may have been given back half used.
    fn soil_srqs(&mut self, host: usize) {
        let of = |s: usize| self.srqs[s].host == host;
        for receive in self.receives.values() {
            if let Place::Srq(s) = receive.place
                && of(s)
            {
                self.areas[receive.slot.0].soil(receive.slot.1);
            }
        }
    }

    /// A connection will be made anew, a while from now.
    pub fn recover_soon(&mut self, conn: usize) {
        if !self.conns[conn].recovering && !self.healing {
            self.conns[conn].recovering = true;
            let most = Duration::from_micros(1 << self.rng.below(14));
            let at = self.soon(most);
            self.agenda.add(at, Happening::Recover(conn));
        }
    }

    /// A send queue leaves SQE, or SQD if it is drained.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn undrain(&mut self, conn: usize, end: usize, life: u32) -> Verdict {
        let e = &self.conns[conn].ends[end];
        let (host, Some(qp)) = (e.host, e.qp) else {
            return Ok(());
        };
        if e.life == life && self.end_state(conn, end) == Some(ibv_qp_state::IBV_QPS_SQE) {
            self.tally.mended += 1;
            self.move_to(host, qp, ibv_qp_state::IBV_QPS_RTS)?;
            if let Some(stream) = self.conns[conn].ways[end].streams.get_mut(&life) {
                stream.sends.failed = false;
            }
            return Ok(());
        }
        if e.life != life || self.end_state(conn, end) != Some(ibv_qp_state::IBV_QPS_SQD) {
            return Ok(());
        }
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            ..Default::default()
        };
        match self.modify(host, qp, &attr, ibv_qp_attr_mask::IBV_QP_STATE)? {
            Err(ModifyError::Draining) => {
                let later = self.now + Duration::from_millis(1);
                self.agenda
                    .add(later, Happening::Undrain { conn, end, life });
                Ok(())
            }
            Err(e) => Err(format!("SQD to RTS: {e}")),
            Ok(()) if self.conns[conn].ends[end].draining == Some(false) => {
                Err("drained, but IBV_EVENT_SQ_DRAINED did not come".to_owned())
            }
            Ok(()) => {
                let now = self.now;
                let e = &mut self.conns[conn].ends[end];
                (e.draining, e.sign) = (None, now);
                Ok(())
            }
        }
    }
}
