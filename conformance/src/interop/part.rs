//! What each end does in a case, and what it must see.

use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::case::{Case, Kind, Shape};
use super::difference::{Difference, Side};
use super::end::{End, HOP_LIMIT, QKEY, next, next_within, nothing_more};
use super::place::{GRHS, GUARD, SECOND, SOURCE, TARGET, UNTOUCHED, immediate, parts};
use super::{PORT, Verdict};
use crate::bytes::{pattern, same, word};
use crate::device::{Ah, Qp, Send, To};

/// How late a late receive is: many RNR timers.
const LATE: Duration = Duration::from_millis(40);
/// Longer than any packet is on its way: what has not come by then is lost, or was dropped.
const QUIET: Duration = Duration::from_millis(60);
/// Longest time that a message is on its way without anybody being told.
const LANDS: Duration = Duration::from_secs(5);
const WORD: u64 = 0x0123_4567_89ab_cdef;
/// Bytes of the header in front of a datagram.
const GRH: usize = 40;
/// The QP number of all members of a group.
const EVERY_MEMBER: u32 = 0xff_ffff;

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
    fn may_lose(&self) -> bool {
        self.lossy && !self.case.service.reliable()
    }

    fn known(&self, shows: Side) -> impl Iterator<Item = &'static Difference> {
        Difference::known(self.case, shows, self.devices, self.lossy)
    }

    /// No receive completes, for a reason that has a name.
    fn stays_away(&self) -> bool {
        self.known(Side::Answers).any(|d| d.status.is_none())
    }

    /// Holds what completed, if anything did, against what the rules say and against the differences that are known.
    fn judge(&self, shows: Side, found: Option<ibv_wc_status>, wanted: ibv_wc_status) -> Verdict {
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

    fn post_receives(&self, case: &Case) -> Result<(), String> {
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
        self.in_state(match seen {
            Seen::AsRuled => IBV_QPS_RTS,
            _ => IBV_QPS_ERR,
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
    fn received(
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
        while let Some(wc) = next_within(self.qp.recv_cq(), QUIET)? {
            if wc.status != IBV_WC_SUCCESS {
                return Err(format!("the receive ended with {:?}", wc.status));
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
        match came.iter().filter(|came| !**came).count() {
            0 => Ok(Seen::AsRuled),
            lost => Ok(Seen::Lost(lost)),
        }
    }
}

/// Where the header of receive `at` goes; the second member of a group has a place of its own.
fn grh_of(at: usize, target: usize) -> usize {
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
fn operands(case: &Case) -> (u64, u64) {
    match case.kind {
        Kind::CompareMisses => (WORD + 1, 0xdead),
        Kind::Op(IBV_WR_ATOMIC_CMP_AND_SWP) => (WORD, 0xfeed_face_cafe_beef),
        _ => (0x7fff_ffff_0000_0001, 0),
    }
}
