//! Datagrams.

use rdma_core_sys::*;
use rdma_qp::{Grh, NOTHING, PathOptions, PostFlags, QKey, op};

use super::{End, INLINE, Place, Play, told};
use crate::suite::arm::SOURCE;
use crate::suite::check::Outcome;
use crate::suite::matrix::Legality;

/// The bytes in front of a datagram.
const HEADER: usize = Grh::LEN;

impl Play<'_> {
    pub(super) fn datagram(&self, a: Place, b: Place, mtu: usize) -> Outcome {
        let make = |place: &Place| {
            let builder = place.pd.ud(&place.cq).send_depth(8).recv_depth(8);
            builder
                .recv_sge(2)
                .inline_data(INLINE)
                .create()
                .map_err(told)
        };
        let (qp_a, qp_b) = (make(&a)?, make(&b)?);
        let (mut a, mut b) = (End { place: a, qp: qp_a }, End { place: b, qp: qp_b });
        let qkey = QKey::new(0x1122_3344).map_err(told)?;
        let options = PathOptions::default();
        let gid = a.place.gid;
        a.qp.activate(gid, qkey, options).map_err(told)?;
        let gid = b.place.gid;
        let there = b.qp.activate(gid, qkey, options).map_err(told)?;
        let to = a.qp.destination(&there).map_err(told)?;
        self.fill(&a.place, &b.place)?;
        let legality = self.cell.legality(mtu, a.qp.cap().max_inline_data as usize);
        let receives = match legality {
            Legality::Legal => self.post_receives(&mut b, HEADER)?,
            Legality::Illegal(..) => Vec::new(),
        };
        let local = a.place.mr.slice(SOURCE, self.len).map_err(told)?;
        let posted = match self.cell.opcode {
            IBV_WR_SEND => a.qp.post(op::SendTo { to: &to }, local, self.flags()),
            _ => {
                let imm = self.imm();
                let send = op::SendToImm { to: &to, imm };
                a.qp.post(send, local, self.flags())
            }
        };
        let ticket = match (legality, posted) {
            (Legality::Legal, posted) => posted.map_err(told)?,
            (Legality::Illegal(_, why), Ok(_)) => {
                return Err(format!("accepted, although {why}").into());
            }
            (Legality::Illegal(..), Err(_)) => return self.untouched(&a),
        };
        let second = match self.needs_second() {
            true => {
                let imm = !self.imm();
                let send = op::SendToImm { to: &to, imm };
                let posted = a.qp.post(send, NOTHING, PostFlags::empty());
                Some(posted.map_err(told)?)
            }
            false => None,
        };
        self.check_sent(&mut a, ticket, second)?;
        self.check_received(&b, &receives, a.qp.qp_num(), 0)?;
        self.check_memory(&a.place, &b.place)?;
        self.check_books(&a, &b, receives.len() as u64)
    }
}
