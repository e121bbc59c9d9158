//! Receives that end, and directions of connections that are over.

use rdma_core_sys::ibv_wc_status;
use rdma_soft::core::{Completion, Queue};

use crate::books::{Place, Receive};
use crate::memory::Shape;
use crate::world::{Verdict, World};

impl World {
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
