//! One end of a pair of QPs, and its part in each case.

use std::time::{Duration, Instant};

use rdma_core_sys::rules;
use rdma_core_sys::*;

use super::case::{Case, DIFFERENCES, Difference, Kind, Shape};
use super::{PORT, Session, Verdict};
use crate::device::{Cq, Failed, Qp, Send};

/// How the two QPs of a pair are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Setting {
    pub(super) mtu: ibv_mtu,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    /// The answering end goes to RTS; else it stays in INIT, where it drops what comes.
    pub(super) answers: bool,
}

impl Setting {
    /// The kernel's rxe takes 7 for ever, and needs that on a lossy wire: a sequence NAK costs it one, even where it says
    /// that packets came (`rxe_comp.c`, `check_ack`).
    pub(super) const USUAL: Setting = Setting {
        mtu: IBV_MTU_1024,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        answers: true,
    };
}

/// What the other end must know of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    qp_num: u32,
    psn: u32,
    /// Of the target area.
    addr: u64,
    rkey: u32,
}

impl Address {
    pub(super) fn to_line(self) -> String {
        format!("{} {} {} {}", self.qp_num, self.psn, self.addr, self.rkey)
    }

    pub(super) fn from_line(line: &str) -> Option<Address> {
        let mut words = line.split(' ');
        Some(Address {
            qp_num: words.next()?.parse().ok()?,
            psn: words.next()?.parse().ok()?,
            addr: words.next()?.parse().ok()?,
            rkey: words.next()?.parse().ok()?,
        })
    }
}

/// Bytes come from here ...
const SOURCE: usize = 64;
/// ... and go there. Atomics work on its first 8 bytes, and leave what was there at `SOURCE`.
const TARGET: usize = (2 << 20) + 64;
/// What lies around a target must stay as it is.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xee;
/// The size of the buffer.
pub(super) const BUFFER: usize = 4 << 20;
/// Bytes that every QP can send inline.
pub(super) const MAX_INLINE: u32 = 128;
/// Longest time that a completion may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How late a late receive is: many RNR timers of `MIN_RNR_TIMER`.
const LATE: Duration = Duration::from_millis(40);
/// 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
const RD_ATOMIC: u8 = 4;
const WORD: u64 = 0x0123_4567_89ab_cdef;

pub(super) struct End {
    pub(super) qp: Qp,
    pub(super) setting: Setting,
    buffer: std::rc::Rc<crate::device::Buffer>,
    peer: Option<Address>,
}

fn text(error: Failed) -> String {
    error.to_string()
}

impl End {
    /// A QP in RESET.
    pub(super) fn new(session: &Session, setting: Setting) -> Result<End, String> {
        let cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: MAX_INLINE,
        };
        let [sends, receives] = &session.cqs;
        let buffer = &session.buffer;
        let qp = Qp::new(
            &session.pd,
            [sends, receives],
            Some(buffer),
            IBV_QPT_RC,
            cap,
        );
        let (qp, buffer) = (qp.map_err(text)?, std::rc::Rc::clone(buffer));
        Ok(End {
            qp,
            setting,
            buffer,
            peer: None,
        })
    }

    /// What the other end must know. The PSNs wrap round in the first longer message, on either end in another way.
    pub(super) fn local(&self, leads: bool) -> Address {
        Address {
            qp_num: self.qp.number(),
            psn: if leads { 0xff_fff8 } else { 0x7f_fff8 },
            addr: self.buffer.address(TARGET),
            rkey: self.buffer.rkey(),
        }
    }

    /// Goes to RTS, or only to INIT.
    pub(super) fn connect(
        &mut self,
        local: Address,
        peer: Address,
        (sgid_index, dgid): (u8, ibv_gid),
        to_rts: bool,
    ) -> Result<(), String> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.port_num = PORT;
        attr.qp_access_flags =
            (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC).bits();
        attr.path_mtu = self.setting.mtu;
        attr.dest_qp_num = peer.qp_num;
        attr.rq_psn = peer.psn;
        attr.sq_psn = local.psn;
        attr.max_rd_atomic = RD_ATOMIC;
        attr.max_dest_rd_atomic = RD_ATOMIC;
        attr.min_rnr_timer = MIN_RNR_TIMER;
        attr.timeout = self.setting.timeout;
        attr.retry_cnt = self.setting.retry_cnt;
        attr.rnr_retry = self.setting.rnr_retry;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = PORT;
        attr.ah_attr.grh.dgid = dgid;
        attr.ah_attr.grh.sgid_index = sgid_index;
        attr.ah_attr.grh.hop_limit = 64;
        let moves = [
            (IBV_QPS_RESET, IBV_QPS_INIT),
            (IBV_QPS_INIT, IBV_QPS_RTR),
            (IBV_QPS_RTR, IBV_QPS_RTS),
        ];
        for (from, to) in &moves[..if to_rts { 3 } else { 1 }] {
            attr.qp_state = *to;
            let mask = rules::required(rules::Transport::Rc, *from, *to).unwrap_or_default();
            (self.qp.modify(&attr, mask | IBV_QP_STATE))
                .map_err(|e| format!("{from}->{to}: {e}"))?;
        }
        self.peer = Some(peer);
        Ok(())
    }

    /// Fills the memory of this end, and posts what the other end's requests need.
    pub(super) fn prepare(&self, case: &Case, asks: bool, number: u32) -> Result<(), String> {
        let total = case.len * case.burst;
        let reads = case.opcode() == IBV_WR_RDMA_READ;
        let data = pattern(number, total);
        // The source is at the asking end, but for READs.
        let untouched = vec![UNTOUCHED; total + 2 * GUARD];
        self.buffer.write(TARGET - GUARD, &untouched);
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
        if !asks && case.receives() && case.kind != Kind::ReceiveLate {
            self.post_receives(case)?;
        }
        Ok(())
    }

    fn post_receives(&self, case: &Case) -> Result<(), String> {
        for at in 0..case.burst {
            let start = TARGET + at * case.len;
            let parts = match (case.kind, case.opcode()) {
                (_, IBV_WR_RDMA_WRITE_WITH_IMM) => vec![],
                (Kind::TooLong, _) => vec![(start, case.len - 1)],
                _ => parts(start, case.len, case.shape, [2, 5, 3]),
            };
            self.qp.post_recv(at as u64, &parts).map_err(text)?;
        }
        Ok(())
    }

    /// The asking end's part: posts, waits, looks.
    pub(super) fn ask(&self, case: &Case, number: u32, (peer, lossy): (&str, bool)) -> Verdict {
        let Address { addr, rkey, .. } = self.peer.ok_or("not connected")?;
        let opcode = case.opcode();
        // A READ lands where the source of others lies.
        for at in 0..case.burst {
            let (start, offset) = (SOURCE + at * case.len, at * case.len);
            let inline = match case.shape {
                Shape::Inline => IBV_SEND_INLINE,
                _ => ibv_send_flags::empty(),
            };
            let signaled = match at + 1 == case.burst {
                true => IBV_SEND_SIGNALED,
                false => ibv_send_flags::empty(),
            };
            let remote = if case.atomic() {
                addr
            } else {
                addr + offset as u64
            };
            let rkey = if case.kind == Kind::BadKey {
                rkey ^ 0x5a5a_5a00
            } else {
                rkey
            };
            let send = Send {
                wr_id: at as u64,
                opcode,
                flags: inline | signaled,
                imm: immediate(number, at),
                parts: parts(start, case.len, case.shape, [1, 2, 4]),
                remote: (remote, rkey),
                operands: operands(case),
            };
            self.qp.post_send(&send).map_err(text)?;
        }
        let wc = next(self.qp.send_cq(), "the request")?;
        let wanted = case.status();
        let known = |d: &&Difference| {
            let here = if d.lossy {
                lossy
            } else {
                peer.starts_with(d.driver)
            };
            here && d.status == wc.status && d.kinds.contains(&case.kind)
        };
        let difference = DIFFERENCES.iter().find(known).map(|d| d.name.to_owned());
        if wc.status != wanted && difference.is_none() {
            return Err(format!("{:?} instead of {wanted:?}", wc.status));
        }
        if wc.wr_id != case.burst as u64 - 1 || wc.qp_num != self.qp.number() {
            return Err(format!(
                "a completion of request {} of QP {:#x}",
                wc.wr_id, wc.qp_num
            ));
        }
        if wanted == IBV_WC_SUCCESS {
            let kind = completion_of(opcode);
            if wc.opcode != kind {
                return Err(format!("{:?} instead of {kind:?}", wc.opcode));
            }
        } else {
            self.in_state(IBV_QPS_ERR)?;
        }
        nothing_more(self.qp.send_cq())?;
        if opcode == IBV_WR_RDMA_READ {
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
        Ok(difference)
    }

    /// The answering end's part until the other end has its completion.
    pub(super) fn answer(&self, case: &Case, number: u32) -> Result<(), String> {
        if case.kind == Kind::ReceiveLate {
            std::thread::sleep(LATE);
            self.post_receives(case)?;
        }
        if !case.receives() {
            return Ok(());
        }
        for at in 0..case.burst {
            let wc = next(self.qp.recv_cq(), "the receive")?;
            if case.kind == Kind::TooLong {
                // IBA calls it a local length error.
                match wc.status {
                    IBV_WC_SUCCESS => return Err("the receive completed".to_owned()),
                    _ => return Ok(()),
                }
            }
            if wc.status != IBV_WC_SUCCESS {
                return Err(format!("the receive ended with {:?}", wc.status));
            }
            let kind = match case.opcode() {
                IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RECV_RDMA_WITH_IMM,
                _ => IBV_WC_RECV,
            };
            let imm = matches!(
                case.opcode(),
                IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
            )
            .then(|| immediate(number, at));
            let found = (
                wc.wr_id,
                wc.qp_num,
                wc.opcode,
                wc.byte_len as usize,
                wc.imm_data(),
            );
            let wanted = (at as u64, self.qp.number(), kind, case.len, imm);
            if found != wanted {
                return Err(format!("the receive says {found:?} instead of {wanted:?}"));
            }
        }
        nothing_more(self.qp.recv_cq())
    }

    /// The answering end's part afterwards: looks at its memory.
    pub(super) fn answered(&self, case: &Case, number: u32) -> Result<(), String> {
        let total = case.len * case.burst;
        let mut wanted = vec![UNTOUCHED; total + 2 * GUARD];
        let target = &mut wanted[GUARD..GUARD + total];
        match case.kind {
            Kind::NoReceive => self.in_state(IBV_QPS_RTS)?,
            Kind::NoAnswer => self.in_state(IBV_QPS_INIT)?,
            _ => {}
        }
        if case.kind == Kind::TooLong {
            // Whatever fits may have been written.
            return Ok(());
        }
        if case.atomic() {
            let (compare_add, swap) = operands(case);
            let after = match case.kind {
                Kind::CompareMisses => WORD,
                Kind::Op(IBV_WR_ATOMIC_CMP_AND_SWP) => swap,
                _ => WORD.wrapping_add(compare_add.wrapping_mul(case.burst as u64)),
            };
            target[..8].copy_from_slice(&after.to_ne_bytes());
        } else if !case.breaks() {
            target.copy_from_slice(&pattern(number, total));
        }
        same(
            &self.buffer.read(TARGET - GUARD, total + 2 * GUARD),
            &wanted,
        )
    }

    fn in_state(&self, wanted: ibv_qp_state) -> Result<(), String> {
        // A device may need a moment between a completion and the state.
        let end = Instant::now() + PATIENCE;
        loop {
            let state = self.qp.query().map_err(text)?.qp_state;
            if state == wanted {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("the QP is in {state} instead of {wanted}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The next completion.
fn next(cq: &Cq, of: &str) -> Result<ibv_wc, String> {
    let end = Instant::now() + PATIENCE;
    let mut polls = 0_u32;
    loop {
        if let Some(wc) = cq.poll().map_err(text)? {
            return Ok(wc);
        }
        polls += 1;
        if polls > 500 {
            std::thread::sleep(Duration::from_micros(20));
            if Instant::now() > end {
                return Err(format!("no completion of {of} within {PATIENCE:?}"));
            }
        }
    }
}

fn nothing_more(cq: &Cq) -> Result<(), String> {
    match cq.poll().map_err(text)? {
        None => Ok(()),
        Some(wc) => Err(format!(
            "one completion too many: {:?} of {}",
            wc.status, wc.wr_id
        )),
    }
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

/// The immediate data of a message.
fn immediate(number: u32, at: usize) -> u32 {
    0x8001_0000 | number << 8 | at as u32
}

/// The parts of a message, in pieces by these weights.
fn parts(start: usize, len: usize, shape: Shape, weights: [usize; 3]) -> Vec<(usize, usize)> {
    match shape {
        _ if len == 0 => vec![],
        Shape::Plain | Shape::Inline => vec![(start, len)],
        Shape::Pieces => {
            let all: usize = weights.iter().sum();
            let (first, second) = (len * weights[0] / all, len * weights[1] / all);
            vec![
                (start, first),
                (start + first, second),
                (start + first + second, len - first - second),
            ]
        }
    }
}

/// The bytes of a case: no part of them looks like another part, or like another case.
fn pattern(number: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(number) + 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // A linear congruential generator (Knuth, MMIX); its upper half is good enough for this.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 32).to_ne_bytes()[..4]);
    }
    bytes.truncate(len);
    bytes
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

fn same(found: &[u8], wanted: &[u8]) -> Result<(), String> {
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => {
            let wrong = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
            Err(format!(
                "{wrong} bytes are wrong, the first at {at} of {}",
                wanted.len()
            ))
        }
    }
}
