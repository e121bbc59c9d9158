//! Receives: where applications post them, and when.

use rdma_core_sys::ibv_qp_state;
use rdma_soft::core::RecvWqe;

use crate::books::{Place, Receive};
use crate::host::Post;
use crate::memory::{SlotId, cut};
use crate::traffic::list;
use crate::world::{Verdict, World};

impl World {
    /// Posts up to `count` receives, as many as there is memory for; none where the state takes none.
    ///
    /// # Errors
    /// Memory that was touched while it was in no use.
    pub fn feed(&mut self, place: Place, count: usize) -> Verdict {
        for _ in 0..count {
            let (host, inbox, waiting) = match place {
                Place::End(conn, end) => {
                    let e = &self.conns[conn].ends[end];
                    let (Some(inbox), Some(state)) = (e.inbox, self.end_state(conn, end)) else {
                        return Ok(());
                    };
                    // What is posted in ERR would be flushed at once: that is done on purpose elsewhere.
                    let open =
                        state != ibv_qp_state::IBV_QPS_RESET && state != ibv_qp_state::IBV_QPS_ERR;
                    if !open || e.life != self.conns[conn].life {
                        return Ok(());
                    }
                    (e.host, inbox, e.queue.len())
                }
                Place::Gram(g) => {
                    let gram = &self.grams[g];
                    let state = self.state(gram.host, gram.qp);
                    let Some(inbox) = gram
                        .inbox
                        .filter(|_| state == Some(ibv_qp_state::IBV_QPS_RTS))
                    else {
                        return Ok(());
                    };
                    (gram.host, inbox, gram.queue.len())
                }
                Place::Srq(s) => {
                    let srq = &self.srqs[s];
                    if srq.dead || srq.failed {
                        return Ok(());
                    }
                    (srq.host, srq.inbox, srq.waiting)
                }
            };
            if waiting >= self.knobs.receives || self.areas[inbox].gone {
                return Ok(());
            }
            let draw = self.rng.next_u64();
            let Some(slot) = self.areas[inbox].take(draw)? else {
                return Ok(());
            };
            self.post_receive(place, host, (inbox, slot));
        }
        Ok(())
    }

    fn post_receive(&mut self, place: Place, host: usize, slot: SlotId) {
        let room = self.room();
        let pieces = cut(&mut self.rng, room, self.knobs.sges);
        let id = 1 << 63 | self.next_receive;
        self.next_receive += 1;
        self.tally.wrs += 1;
        let sges = list(&self.areas[slot.0].sges(slot.1, &pieces));
        let wqe = |seq| RecvWqe {
            wr_id: id,
            seq,
            sges,
        };
        let post = match place {
            Place::End(conn, end) => {
                let e = &mut self.conns[conn].ends[end];
                let Some(qp) = e.qp else { return };
                e.queue.push_back(id);
                e.posted[1] += 1;
                Post::Recv(qp, wqe(e.posted[1] - 1))
            }
            Place::Gram(g) => {
                let gram = &mut self.grams[g];
                let Some(qp) = gram.qp else { return };
                gram.queue.push_back(id);
                gram.posted[1] += 1;
                Post::Recv(qp, wqe(gram.posted[1] - 1))
            }
            Place::Srq(s) => {
                let srq = &mut self.srqs[s];
                srq.waiting += 1;
                srq.posted += 1;
                Post::Srq(srq.id, wqe(srq.posted - 1))
            }
        };
        self.receives.insert(
            id,
            Receive {
                place,
                slot,
                pieces,
            },
        );
        self.tell(|| format!("host {host}: receive {id:#x} in {place:?}"));
        self.hosts[host].posts.push_back(post);
        self.wake(host);
    }
}
