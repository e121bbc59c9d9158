//! The answering end's part of a case.

use std::time::{Duration, Instant};

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::case::Kind;
use super::difference::Side;
use super::end::{End, HOP_LIMIT, QKEY, next, next_within, nothing_more};
use super::part::{EVERY_MEMBER, GRH, Part, Seen, WORD, grh_of, operands};
use super::place::{GUARD, SECOND, TARGET, UNTOUCHED, immediate};
use super::{PORT, Verdict};
use crate::bytes::{pattern, same};
use crate::device::{Ah, Qp, Send, To};

/// How late a late receive is: many RNR timers.
const LATE: Duration = Duration::from_millis(40);
/// Longer than any packet is on its way: what has not come by then is lost, or was dropped.
const QUIET: Duration = Duration::from_millis(60);
/// Longest time that a message is on its way without anybody being told.
const LANDS: Duration = Duration::from_secs(5);

impl End {
    /// The answering end's part until the other end has its completion.
    pub(super) fn answer(&self, part: Part<'_>) -> Verdict {
        let case = part.case;
        if case.kind == Kind::ReceiveLate {
            std::thread::sleep(LATE);
            self.post_receives(case)?;
        }
        if !case.receives() || part.may_lose() || part.stays_away() {
            return Ok(Seen::AsRuled);
        }
        if case.kind == Kind::TooLong {
            return self.too_long(part);
        }
        if case.for_group() {
            return self.members(part).map(|()| Seen::AsRuled);
        }
        for at in 0..case.burst {
            let wc = next(self.qp.recv_cq(), "the receive")?;
            self.received(part, &wc, &self.qp, self.qp.number(), at)?;
            if case.kind == Kind::Answer {
                self.send_back(part, &wc)?;
            }
        }
        nothing_more(self.qp.recv_cq())?;
        Ok(Seen::AsRuled)
    }

    /// The receive of a message that is too long.
    fn too_long(&self, part: Part<'_>) -> Verdict {
        let wc = next(self.qp.recv_cq(), "the receive")?;
        if part.case.service.reliable() {
            // The asking end is told; IBA calls it a local length error here.
            return match wc.status {
                IBV_WC_SUCCESS => Err("the receive completed".to_owned()),
                _ => Ok(Seen::AsRuled),
            };
        }
        let seen = part.judge(Side::Answers, Some(wc.status), IBV_WC_LOC_LEN_ERR)?;
        // Only what is taken for a fault of the receiver's own stops it.
        self.in_state(match wc.status {
            IBV_WC_LOC_QP_OP_ERR => IBV_QPS_ERR,
            _ => IBV_QPS_RTS,
        })?;
        Ok(seen)
    }

    /// The receives of the members of a group, in any order.
    fn members(&self, part: Part<'_>) -> Result<(), String> {
        let second = self.second.as_ref().ok_or("no second member")?;
        let mut left = vec![second];
        if part.case.kind == Kind::Group {
            left.push(&self.qp);
        }
        while !left.is_empty() {
            let wc = next(self.qp.recv_cq(), "a member's receive")?;
            let at = left.iter().position(|qp| qp.number() == wc.qp_num);
            let at = at.ok_or_else(|| format!("QP {:#x} received twice", wc.qp_num))?;
            let qp = left.swap_remove(at);
            self.received(part, &wc, qp, EVERY_MEMBER, 0)?;
        }
        Ok(())
    }

    /// Holds the completion of receive `at` against what it must say.
    pub(super) fn received(
        &self,
        part: Part<'_>,
        wc: &ibv_wc,
        qp: &Qp,
        to: u32,
        at: usize,
    ) -> Result<(), String> {
        let Part { case, number, .. } = part;
        if wc.status != IBV_WC_SUCCESS {
            return Err(format!("the receive ended with {:?}", wc.status));
        }
        let kind = match case.opcode() {
            IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RECV_RDMA_WITH_IMM,
            _ => IBV_WC_RECV,
        };
        let with = matches!(
            case.opcode(),
            IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
        );
        let imm = with.then(|| immediate(number, at));
        let datagram = case.service.transport == Transport::Ud;
        let len = case.len + if datagram { GRH } else { 0 };
        let found = (
            wc.wr_id,
            wc.qp_num,
            wc.opcode,
            wc.byte_len as usize,
            wc.imm_data(),
        );
        let wanted = (at as u64, qp.number(), kind, len, imm);
        if found != wanted {
            return Err(format!("the receive says {found:?} instead of {wanted:?}"));
        }
        if datagram {
            let source = self.peer.as_ref().map(|(peer, _)| peer.qp_num);
            if Some(wc.src_qp) != source || !wc.flags().contains(IBV_WC_GRH) {
                return Err(format!(
                    "a datagram of QP {:#x} with flags {:?}",
                    wc.src_qp,
                    wc.flags()
                ));
            }
            let target = if qp.number() == self.qp.number() {
                TARGET + at * case.len
            } else {
                SECOND
            };
            let dgid = match to {
                EVERY_MEMBER => self.route.group(),
                _ => self.route.mine,
            };
            let grh = self.buffer.read(grh_of(at, target), GRH);
            self.header(&grh, dgid, case.len, imm.is_some())?;
        }
        Ok(())
    }

    /// The header in front of a datagram: a GRH or, on IPv4, 20 undefined bytes and the IPv4 header.
    fn header(&self, grh: &[u8], dgid: ibv_gid, len: usize, imm: bool) -> Result<(), String> {
        // UDP, BTH, DETH, immediate data, the bytes with their padding, ICRC.
        let behind = 8 + 12 + 8 + if imm { 4 } else { 0 } + len.next_multiple_of(4) + 4;
        let [from, to] = [self.route.theirs, dgid].map(|gid| gid.raw);
        let (found, wanted) = if self.route.v4() {
            let ip = &grh[20..];
            (
                (
                    ip[0],
                    usize::from(ip[2]) << 8 | usize::from(ip[3]),
                    ip[8],
                    ip[9],
                    [&ip[12..16], &ip[16..20]],
                ),
                (0x45, 20 + behind, HOP_LIMIT, 17, [&from[12..], &to[12..]]),
            )
        } else {
            (
                (
                    grh[0],
                    usize::from(grh[4]) << 8 | usize::from(grh[5]),
                    grh[7],
                    grh[6],
                    [&grh[8..24], &grh[24..40]],
                ),
                (0x60, behind, HOP_LIMIT, 17, [&from[..], &to[..]]),
            )
        };
        match found == wanted {
            true => Ok(()),
            false => Err(format!(
                "the header says version, length, hop limit, protocol, addresses {found:02x?} instead of {wanted:02x?}"
            )),
        }
    }

    /// Sends what was received back to where the completion says that it came from.
    fn send_back(&self, part: Part<'_>, wc: &ibv_wc) -> Result<(), String> {
        let case = part.case;
        let grh = self.buffer.read(grh_of(0, TARGET), GRH);
        let grh: [u8; GRH] = grh.try_into().map_err(|_| "a short header")?;
        let answer = Send {
            wr_id: 77,
            flags: IBV_SEND_SIGNALED,
            sges: vec![self.buffer.sge(TARGET, case.len)],
            to: Some(To {
                ah: Ah::for_answer(&self.pd, wc, &grh, PORT)?,
                qp_num: wc.src_qp,
                qkey: QKEY,
            }),
            ..Send::default()
        };
        self.qp.post_send(&answer)?;
        let done = next(self.qp.send_cq(), "the answer")?;
        match (done.status, done.wr_id) {
            (IBV_WC_SUCCESS, 77) => Ok(()),
            other => Err(format!("the answer ended with {other:?}")),
        }
    }

    /// The answering end's part afterwards: looks at its memory, and at what the wire left of messages without promise.
    pub(super) fn answered(&self, part: Part<'_>) -> Verdict {
        let case = part.case;
        if case.for_group() {
            let group = self.route.group();
            if case.kind == Kind::Group {
                self.qp.detach(&group)?;
            }
            if let Some(second) = &self.second {
                second.detach(&group)?;
            }
        }
        if part.may_lose() {
            return self.gather(part);
        }
        if part.stays_away() {
            let wc = next_within(self.qp.recv_cq(), QUIET)?;
            return part.judge(Side::Answers, wc.map(|wc| wc.status), IBV_WC_SUCCESS);
        }
        match case.kind {
            Kind::NoAnswer => self.in_state(IBV_QPS_INIT)?,
            Kind::NoReceive => self.in_state(IBV_QPS_RTS)?,
            // Whatever fits may have been written.
            Kind::TooLong => return Ok(Seen::AsRuled),
            _ => {}
        }
        if !case.arrives() && !case.service.reliable() || case.kind == Kind::GroupLeft {
            if let Some(wc) = next_within(self.qp.recv_cq(), QUIET)? {
                let (status, at) = (wc.status, wc.wr_id);
                return Err(format!(
                    "a completion for what was to be dropped: {status:?} of {at}"
                ));
            }
            self.in_state(IBV_QPS_RTS)?;
        }
        let arrived = case.arrives() && case.kind != Kind::GroupLeft;
        // Nothing tells when a WRITE has arrived that nobody answers.
        let end = Instant::now() + LANDS;
        loop {
            match self.holds(part, TARGET, arrived) {
                Err(_) if !case.service.reliable() && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                verdict => break verdict?,
            }
        }
        if case.for_group() {
            self.holds(part, SECOND, true)?;
        }
        Ok(Seen::AsRuled)
    }

    /// The memory at `target` holds the messages or, where they were not to arrive, what it held before.
    fn holds(&self, part: Part<'_>, target: usize, arrived: bool) -> Result<(), String> {
        let Part { case, number, .. } = part;
        let total = case.len * case.burst;
        let mut wanted = vec![UNTOUCHED; total + 2 * GUARD];
        let inside = &mut wanted[GUARD..GUARD + total];
        if case.atomic() {
            let (compare_add, swap) = operands(case);
            let after = match case.kind {
                Kind::CompareMisses => WORD,
                Kind::Op(IBV_WR_ATOMIC_CMP_AND_SWP) => swap,
                _ => WORD.wrapping_add(compare_add.wrapping_mul(case.burst as u64)),
            };
            inside[..8].copy_from_slice(&after.to_ne_bytes());
        } else if arrived {
            inside.copy_from_slice(&pattern(number, total));
        }
        same(
            &self.buffer.read(target - GUARD, total + 2 * GUARD),
            &wanted,
        )
    }

    /// Takes what a wire with losses left of messages that nobody asks for again: each whole or not at all. A packet that
    /// came twice may make two messages of one.
    fn gather(&self, part: Part<'_>) -> Verdict {
        let Part { case, number, .. } = part;
        let data = pattern(number, case.len * case.burst);
        let message = |m: usize| &data[m * case.len..(m + 1) * case.len];
        let mut came = vec![false; case.burst];
        let mut differs = None;
        while let Some(wc) = next_within(self.qp.recv_cq(), QUIET)? {
            if wc.status != IBV_WC_SUCCESS {
                differs = Some(part.judge(Side::Answers, Some(wc.status), IBV_WC_SUCCESS)?);
                continue;
            }
            let at = usize::try_from(wc.wr_id).unwrap_or(usize::MAX);
            if at >= case.burst {
                return Err(format!("a completion of receive {at}"));
            }
            let found = self.buffer.read(TARGET + at * case.len, case.len);
            let is = |m: &usize| {
                found == message(*m) && wc.imm_data().is_none_or(|imm| imm == immediate(number, *m))
            };
            let m = (0..case.burst).find(is);
            let m = m.ok_or_else(|| format!("receive {at} holds no message of this case"))?;
            came[m] = true;
        }
        if case.opcode() == IBV_WR_RDMA_WRITE {
            came[0] = self.buffer.read(TARGET, case.len) == message(0);
        }
        for outside in [TARGET - GUARD, TARGET + data.len()] {
            same(&self.buffer.read(outside, GUARD), &[UNTOUCHED; GUARD])?;
        }
        match (differs, came.iter().filter(|came| !**came).count()) {
            (Some(differs), _) => Ok(differs),
            (None, 0) => Ok(Seen::AsRuled),
            (None, lost) => Ok(Seen::Lost(lost)),
        }
    }
}
