//! What each end does in a case, and what the asking one must see.

use std::rc::Rc;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::Verdict;
use super::case::{Case, Kind, Shape};
use super::difference::{Difference, Side};
use super::end::{End, QKEY, next, nothing_more};
use super::place::{GRHS, GUARD, SECOND, SOURCE, TARGET, UNTOUCHED, immediate, parts};
use crate::bytes::{pattern, same, word};
use crate::device::{Qp, Send, To};

/// What the word of an atomic is before.
pub(super) const WORD: u64 = 0x0123_4567_89ab_cdef;
/// Bytes of the header in front of a datagram.
pub(super) const GRH: usize = 40;
/// The QP number of all members of a group.
pub(super) const EVERY_MEMBER: u32 = 0xff_ffff;

/// What an end knows of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) case: &'a Case,
    /// Tells the cases of a session apart.
    pub(super) number: u32,
    /// The names of the devices that ask and that answer.
    pub(super) devices: [&'a str; 2],
    /// The wire loses packets.
    pub(super) lossy: bool,
}

impl Part<'_> {
    /// Nobody asks again for what this wire loses.
    pub(super) fn may_lose(&self) -> bool {
        self.lossy && !self.case.service.reliable()
    }

    fn known(&self, shows: Side) -> impl Iterator<Item = &'static Difference> {
        Difference::known(self.case, shows, self.devices, self.lossy)
    }

    /// No receive completes, for a reason that has a name.
    pub(super) fn stays_away(&self) -> bool {
        self.known(Side::Answers).any(|d| d.status.is_none())
    }

    /// Holds what completed, if anything did, against what the rules say and against the differences that are known.
    pub(super) fn judge(
        &self,
        shows: Side,
        found: Option<ibv_wc_status>,
        wanted: ibv_wc_status,
    ) -> Verdict {
        let known: Vec<_> = self.known(shows).collect();
        if let Some(difference) = known.iter().find(|d| d.status == found) {
            return Ok(Seen::Differs(difference.name.to_owned()));
        }
        match (known.iter().find(|d| !d.lossy), found) {
            (Some(d), Some(found)) if found == wanted => {
                Err(format!("{} is gone: take it out of the list", d.name))
            }
            (_, Some(found)) if found == wanted => Ok(Seen::AsRuled),
            (_, Some(found)) => Err(format!("{found:?} instead of {wanted:?}")),
            (_, None) => Err(format!("no completion instead of {wanted:?}")),
        }
    }
}

/// What an end saw of a case that did not fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// What the rules say.
    AsRuled,
    /// A difference that has this name.
    Differs(String),
    /// So many messages did not come, on a wire that loses some and where nobody asks for them again.
    Lost(usize),
}

impl End {
    /// Fills the memory of this end, and posts what the other end's requests need.
    pub(super) fn prepare(&self, part: Part<'_>, asks: bool) -> Result<(), String> {
        let (case, number) = (part.case, part.number);
        let total = case.len * case.burst;
        let reads = case.opcode() == IBV_WR_RDMA_READ;
        let data = pattern(number, total);
        // The source is at the asking end, but for READs.
        let untouched = vec![UNTOUCHED; total + 2 * GUARD];
        self.buffer.write(TARGET - GUARD, &untouched);
        self.buffer.write(
            SECOND - GUARD,
            &untouched[..(total + 2 * GUARD).min(1 << 16)],
        );
        self.buffer.write(SOURCE, &vec![!UNTOUCHED; total]);
        if case.atomic() {
            let word = if asks { 0 } else { WORD };
            self.buffer
                .write(if asks { SOURCE } else { TARGET }, &word.to_ne_bytes());
        } else if reads && !asks {
            // A peer knows the target area only.
            self.buffer.write(TARGET, &data);
        } else if !reads && asks {
            self.buffer.write(SOURCE, &data);
        }
        if asks {
            if case.kind == Kind::Answer {
                self.post_receive(&self.qp, 0, TARGET, case, case.len)?;
            }
            return Ok(());
        }
        if case.for_group() {
            let group = self.route.group();
            let second = self.second.as_ref().ok_or("no second member")?;
            self.qp.attach(&group)?;
            second.attach(&group)?;
            self.post_receive(second, 0, SECOND, case, case.len)?;
            if case.kind == Kind::GroupLeft {
                self.qp.detach(&group)?;
            }
        }
        if case.posts_receives() && case.kind != Kind::ReceiveLate {
            self.post_receives(case)?;
        }
        Ok(())
    }

    pub(super) fn post_receives(&self, case: &Case) -> Result<(), String> {
        let room = match (case.kind, case.opcode()) {
            (_, IBV_WR_RDMA_WRITE_WITH_IMM) => 0,
            (Kind::TooLong, _) => case.len - 1,
            _ => case.len,
        };
        for at in 0..case.burst {
            self.post_receive(&self.qp, at, TARGET + at * case.len, case, room)?;
        }
        Ok(())
    }

    /// Posts receive `at` with so much room at `start` and, for a datagram, for the header in front of it.
    fn post_receive(
        &self,
        qp: &Qp,
        at: usize,
        start: usize,
        case: &Case,
        room: usize,
    ) -> Result<(), String> {
        let mut all = Vec::new();
        if case.service.transport == Transport::Ud {
            all.push((grh_of(at, start), GRH));
        }
        all.extend(parts(start, room, case.shape, [2, 5, 3]));
        let sges = self.buffer.sges(&all);
        Ok(match &self.srq {
            Some(srq) => srq.post(at as u64, &sges),
            None => qp.post_recv(at as u64, &sges),
        }?)
    }

    /// The asking end's part: posts, waits, looks.
    pub(super) fn ask(&self, part: Part<'_>) -> Verdict {
        let Part { case, number, .. } = part;
        // Address handles live until the requests that name them are done.
        let requests: Result<Vec<_>, String> = (0..case.burst)
            .map(|at| self.request(case, number, at))
            .collect();
        let requests = requests?;
        for request in &requests {
            self.qp.post_send(request)?;
        }
        let wc = next(self.qp.send_cq(), "the request")?;
        drop(requests);
        let wanted = case.status();
        let seen = part.judge(Side::Asks, Some(wc.status), wanted)?;
        if wc.wr_id != case.burst as u64 - 1 || wc.qp_num != self.qp.number() {
            return Err(format!(
                "a completion of request {} of QP {:#x}",
                wc.wr_id, wc.qp_num
            ));
        }
        if wanted == IBV_WC_SUCCESS {
            let kind = completion_of(case.opcode());
            if wc.opcode != kind {
                return Err(format!("{:?} instead of {kind:?}", wc.opcode));
            }
        } else {
            self.in_state(IBV_QPS_ERR)?;
        }
        nothing_more(self.qp.send_cq())?;
        if case.kind == Kind::Answer {
            let answer = next(self.qp.recv_cq(), "the answer")?;
            self.received(part, &answer, &self.qp, self.qp.number(), 0)?;
            same(
                &self.buffer.read(TARGET, case.len),
                &pattern(number, case.len),
            )?;
        }
        self.asked(part)?;
        Ok(seen)
    }

    /// Request `at` of a case.
    fn request(&self, case: &Case, number: u32, at: usize) -> Result<Send, String> {
        let (peer, way) = self.peer.as_ref().ok_or("not connected")?;
        // A READ lands where the source of others lies.
        let (start, offset) = (SOURCE + at * case.len, at * case.len);
        let bytes = parts(start, case.len, case.shape, [1, 2, 4]);
        let inline = |&(at, len): &(usize, usize)| self.buffer.read(at, len);
        let inline = match case.shape {
            Shape::Inline => Some(bytes.iter().map(inline).collect()),
            _ => None,
        };
        let flags = match at + 1 == case.burst {
            true => IBV_SEND_SIGNALED,
            false => ibv_send_flags::empty(),
        };
        let offset = if case.atomic() { 0 } else { offset as u64 };
        let wrong = if case.kind == Kind::BadKey {
            0x5a5a_5a00
        } else {
            0
        };
        let to = match way {
            None => None,
            Some(_) if case.for_group() => Some(To {
                ah: self.way_to(self.route.group())?,
                qp_num: EVERY_MEMBER,
                qkey: QKEY,
            }),
            Some(way) => Some(To {
                ah: Rc::clone(way),
                qp_num: peer.qp_num,
                qkey: match case.kind {
                    Kind::BadQkey => QKEY + 1,
                    Kind::OwnQkey => 1 << 31 | (QKEY + 1),
                    _ => QKEY,
                },
            }),
        };
        Ok(Send {
            wr_id: at as u64,
            opcode: case.opcode(),
            flags,
            imm: immediate(number, at),
            sges: self.buffer.sges(&bytes),
            inline,
            remote: (peer.addr + offset, peer.rkey ^ wrong),
            operands: operands(case),
            to,
            ..Send::default()
        })
    }

    /// What the asking end must find in its memory.
    fn asked(&self, part: Part<'_>) -> Result<(), String> {
        let Part { case, number, .. } = part;
        if case.opcode() == IBV_WR_RDMA_READ {
            let total = case.len * case.burst;
            same(&self.buffer.read(SOURCE, total), &pattern(number, total))?;
        } else if case.atomic() {
            // What the word was before: for each request of a burst, the sum so far.
            for at in 0..case.burst {
                let before = WORD.wrapping_add(operands(case).0.wrapping_mul(at as u64));
                let found = word(&self.buffer.read(SOURCE + at * case.len, 8));
                if found != before {
                    return Err(format!("result {at} is {found:#x} instead of {before:#x}"));
                }
            }
        }
        Ok(())
    }
}

/// Where the header of receive `at` goes; the second member of a group has a place of its own.
pub(super) fn grh_of(at: usize, target: usize) -> usize {
    GRHS + GRH * if target == SECOND { 16 } else { at }
}

fn completion_of(opcode: ibv_wr_opcode) -> ibv_wc_opcode {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
        IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
        _ => IBV_WC_SEND,
    }
}

/// What an atomic compares with or adds, and swaps in. The sums of a burst wrap round.
pub(super) fn operands(case: &Case) -> (u64, u64) {
    match case.kind {
        Kind::CompareMisses => (WORD + 1, 0xdead),
        Kind::Op(IBV_WR_ATOMIC_CMP_AND_SWP) => (WORD, 0xfeed_face_cafe_beef),
        _ => (0x7fff_ffff_0000_0001, 0),
    }
}
