//! Messages that come, and directions of connections that are over.

use rdma_core_sys::{ibv_qp_state, ibv_wc_opcode, ibv_wc_status};
use rdma_soft::core::{Completion, Queue};

use crate::books::{Op, Opening, Place, Poison, Receive, Stream};
use crate::memory::{Piece, Shape, SlotId, text};
use crate::world::{Verdict, World};

const OK: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const FLUSHED: ibv_wc_status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;

impl World {
    /// A receive's completion at an end of a connection.
    ///
    /// # Errors
    /// What is wrong.
    pub fn received(&mut self, conn: usize, end: usize, wc: &Completion) -> Verdict {
        let receive = self.take_receive(Place::End(conn, end), wc)?;
        let way = 1 - end;
        let c = &self.conns[conn];
        let life = c.ends[end].life;
        let (slot, reliable) = (receive.slot, c.reliable());
        let stream = c.ways[way].streams.get(&life).ok_or("no such life")?;
        if wc.status != OK {
            let state = self.end_state(conn, end);
            let gone = self.areas[slot.0].gone;
            let reqs = stream.sends.reqs.iter().skip(stream.next);
            let asked = |poison| reqs.clone().any(|r| r.poison == Some(poison));
            let fits = match wc.status {
                FLUSHED => state == Some(ibv_qp_state::IBV_QPS_ERR),
                ibv_wc_status::IBV_WC_LOC_LEN_ERR => asked(Poison::Oversize),
                ibv_wc_status::IBV_WC_LOC_PROT_ERR => gone,
                ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => asked(Poison::Invalidate),
                _ => false,
            };
            self.areas[slot.0].release(slot.1);
            return if fits {
                Ok(())
            } else {
                Err(format!("no end for a receive (state {state:?}): {wc:?}"))
            };
        }
        let at = match reliable {
            true => {
                let next = stream
                    .sends
                    .reqs
                    .iter()
                    .skip(stream.next)
                    .position(|r| r.op.is_message());
                next.map(|skip| stream.next + skip)
            }
            false => self.which(stream, slot, &receive.pieces, wc),
        };
        let at = at.ok_or_else(|| format!("a message that nobody sent: {wc:?}"))?;
        let req = stream.sends.reqs[at].clone();
        if at < stream.next {
            return Err(format!("late, or twice: {wc:?}, {req:?}"));
        }
        let first = if reliable { 0 } else { at };
        if let Some(bad) = stream.sends.reqs[first..=at]
            .iter()
            .find(|r| r.poison.is_some())
        {
            return Err(format!(
                "delivered, although {bad:?} goes before or is it: {wc:?}"
            ));
        }
        let opcode = match req.op {
            Op::WriteImm => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            _ => ibv_wc_opcode::IBV_WC_RECV,
        };
        let want = (req.len, req.imm, req.key, opcode);
        if (wc.byte_len, wc.imm, wc.invalidated, wc.opcode) != want {
            return Err(format!("not what was sent: {wc:?}, {req:?}"));
        }
        if let (Some(id), Queue::Srq(queue)) = (req.srq, wc.queue)
            && id != queue
        {
            return Err(format!(
                "to another SRQ than the request names: {wc:?}, {req:?}"
            ));
        }
        let bytes = if req.op == Op::WriteImm {
            vec![]
        } else {
            text(req.id, req.len as usize)
        };
        let area = &mut self.areas[slot.0];
        if !area.gone {
            if !reliable {
                // A message that was dropped half-way may have been here.
                area.soil(slot.1);
            }
            let done = area.check(slot.1, &receive.pieces, &bytes, Shape::Whole);
            done.map_err(|e| format!("not the bytes that were sent: {e}: {req:?}"))?;
        }
        area.release(slot.1);
        self.delivered(conn, way, life, at)?;
        if self
            .rng
            .chance(if self.healing { 1.0 } else { self.knobs.feeds })
        {
            self.feed(receive.place, 2)?;
        }
        Ok(())
    }

    /// Which message of UC this is.
    fn which(
        &self,
        stream: &Stream,
        slot: SlotId,
        pieces: &[Piece],
        wc: &Completion,
    ) -> Option<usize> {
        let reqs = &stream.sends.reqs;
        if wc.imm.is_some() {
            return reqs.iter().position(|r| r.imm == wc.imm);
        }
        let head: Vec<u8> = self.areas[slot.0]
            .pieces(slot.1, pieces)
            .into_iter()
            .take(8)
            .collect();
        let id = u64::from_ne_bytes(head.try_into().ok()?);
        reqs.iter().position(|r| r.id == id)
    }

    /// A message was delivered: on a reliable connection every WRITE before it is there; on UC nothing
    /// before it can come any more.
    fn delivered(&mut self, conn: usize, way: usize, life: u32, at: usize) -> Verdict {
        let reliable = self.conns[conn].reliable();
        self.tally.delivered += 1;
        let stream = &self.conns[conn].ways[way].streams[&life];
        let from = stream.next;
        for i in from..=at {
            let req = self.conns[conn].ways[way].streams[&life].sends.reqs[i].clone();
            if req.op.is_write() && !req.seen && req.poison.is_none() {
                let whole = reliable || i == at;
                let shape = if whole {
                    Shape::Whole
                } else {
                    Shape::Part(self.knobs.mtu)
                };
                self.check_write(&req, shape)
                    .map_err(|e| format!("at a message behind it: {e}"))?;
            }
            if !reliable && req.op.is_write() {
                self.free_remote(conn, way, life, i);
            }
            if let (Op::SendInv, Some(w)) = (req.op, &mut self.conns[conn].ways[way].window)
                && Some(w.rkey) == req.key
            {
                w.opening = Opening::Closed;
            }
            if let Some(stream) = self.conns[conn].ways[way].streams.get_mut(&life) {
                stream.sends.reqs[i].seen = true;
                stream.next = i + 1;
            }
        }
        Ok(())
    }

    /// Takes the receive that ends out of the books: each ends once, and those of a queue of its own in
    /// their order. `place` is where the Queue Pair's own ones wait.
    ///
    /// # Errors
    /// What is wrong.
    pub fn take_receive(&mut self, place: Place, wc: &Completion) -> Result<Receive, String> {
        let receive = self.receives.remove(&wc.wr_id);
        let receive = receive.ok_or_else(|| format!("a receive that does not wait: {wc:?}"))?;
        let queue = match (receive.place, wc.queue) {
            (Place::Srq(s), Queue::Srq(id)) if self.srqs[s].id == id => {
                self.srqs[s].waiting -= 1;
                return Ok(receive);
            }
            (Place::End(conn, end), Queue::Recv) if receive.place == place => {
                &mut self.conns[conn].ends[end].queue
            }
            (Place::Gram(g), Queue::Recv) if receive.place == place => &mut self.grams[g].queue,
            _ => {
                return Err(format!(
                    "a receive of {:?} ends elsewhere: {wc:?}",
                    receive.place
                ));
            }
        };
        match queue.pop_front() {
            Some(first) if first == wc.wr_id => Ok(receive),
            first => Err(format!(
                "receives out of order: {wc:?} goes before {first:?}"
            )),
        }
    }

    /// A direction of a connection is over once both ends have left its life: what is still open had its
    /// last chance.
    ///
    /// # Errors
    /// What is wrong.
    pub fn close(&mut self, conn: usize, way: usize, life: u32) -> Verdict {
        let Some(stream) = self.conns[conn].ways[way].streams.get(&life) else {
            return Ok(());
        };
        if stream.left != [true, true] {
            return Ok(());
        }
        let count = stream.sends.reqs.len();
        for at in 0..count {
            let req = self.conns[conn].ways[way].streams[&life].sends.reqs[at].clone();
            if req.op.is_write() && req.remote.is_some() {
                let shape = Shape::Part(self.knobs.mtu);
                self.check_write(&req, shape)
                    .map_err(|e| format!("in the end: {e}"))?;
                self.free_remote(conn, way, life, at);
            }
        }
        self.atomics(conn, way, life)?;
        self.conns[conn].ways[way].streams.remove(&life);
        Ok(())
    }

    /// Atomics that did not succeed were executed once, or not at all; in order.
    fn atomics(&mut self, conn: usize, way: usize, life: u32) -> Verdict {
        let w = &self.conns[conn].ways[way];
        let words = w.words;
        if self.areas[words].gone {
            return Ok(());
        }
        let mut values = w.values;
        for (word, value) in values.iter_mut().enumerate() {
            let at = crate::build::word_at(word);
            let there = self.areas[words].pieces(0, &[(at, 8)]);
            let there = u64::from_ne_bytes(there.try_into().map_err(|_| "8 bytes")?);
            let reqs = w.streams[&life]
                .sends
                .reqs
                .iter()
                .filter(|r| r.poison.is_none());
            let unsure = reqs.filter(|r| r.outcome != Some(ibv_wc_status::IBV_WC_SUCCESS));
            let unsure = unsure.filter_map(|r| r.atomic).filter(|a| a.word == word);
            let mut may = *value;
            let mut steps = 0;
            for atomic in unsure {
                if may == there {
                    break;
                }
                may = atomic.apply(may);
                steps += 1;
            }
            if may != there {
                return Err(format!(
                    "word {word} of conn {conn}.{way} is {there:#x}: {steps} atomics of unknown end after {value:#x} do not give that"
                ));
            }
            *value = there;
        }
        self.conns[conn].ways[way].values = values;
        Ok(())
    }
}
