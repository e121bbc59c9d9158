//! Datagrams that come: whole, to whom they were sent, and not more often than the network makes of one.

use rdma_core_sys::{ibv_qp_state, ibv_wc_opcode, ibv_wc_status};
use rdma_soft::core::{Completion, GRH_LEN};

use crate::books::Place;
use crate::datagrams::To;
use crate::memory::{Shape, text};
use crate::world::{Verdict, World};

impl World {
    /// A datagram came.
    ///
    /// # Errors
    /// What is wrong.
    pub fn gram_received(&mut self, g: usize, wc: &Completion) -> Verdict {
        let receive = self.take_receive(Place::Gram(g), wc)?;
        let slot = receive.slot;
        let (host, qp) = (self.grams[g].host, wc.qp_num);
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            let gone = self.areas[slot.0].gone;
            let state = self.state(host, self.grams[g].qp);
            let fits = match wc.status {
                ibv_wc_status::IBV_WC_WR_FLUSH_ERR => state == Some(ibv_qp_state::IBV_QPS_ERR),
                ibv_wc_status::IBV_WC_LOC_PROT_ERR => gone,
                _ => false,
            };
            self.areas[slot.0].release(slot.1);
            return if fits {
                Ok(())
            } else {
                Err(format!("no end for a receive: {wc:?}"))
            };
        }
        let there = self.areas[slot.0].pieces(slot.1, &receive.pieces);
        let id = match wc.imm {
            Some(_) => self
                .sent
                .iter()
                .find(|(_, d)| d.imm == wc.imm)
                .map(|(&id, _)| id),
            None => there
                .get(GRH_LEN..GRH_LEN + 8)
                .and_then(|b| b.try_into().ok())
                .map(u64::from_ne_bytes),
        };
        let datagram = id.and_then(|id| self.sent.get_mut(&id));
        let (Some(id), Some(d)) = (id, datagram) else {
            return Err(format!("a datagram that nobody sent: {wc:?}"));
        };
        let times = d.got.entry((host, qp)).or_default();
        *times += 1;
        let addressed = match d.to {
            To::One(h, q) => (h, q) == (host, qp),
            To::Group(k) => self.grams[g].groups[1].contains(&k),
        };
        let sender = wc.sender.map(|s| s.qp_num);
        let fine = *times <= 2
            && addressed
            && !d.poison
            && wc.opcode == ibv_wc_opcode::IBV_WC_RECV
            && wc.byte_len == GRH_LEN as u32 + d.len
            && (wc.imm, sender) == (d.imm, Some(d.from));
        if !fine {
            return Err(format!("not what was sent: {wc:?}, {d:?}"));
        }
        let mut bytes = there[..GRH_LEN].to_vec();
        bytes.extend(text(id, d.len as usize));
        let area = &mut self.areas[slot.0];
        if !area.gone {
            let done = area.check(slot.1, &receive.pieces, &bytes, Shape::Whole);
            done.map_err(|e| format!("a datagram is not whole: {e}"))?;
        }
        area.release(slot.1);
        self.tally.delivered += 1;
        if self
            .rng
            .chance(if self.healing { 1.0 } else { self.knobs.feeds })
        {
            self.feed(receive.place, 2)?;
        }
        Ok(())
    }
}
