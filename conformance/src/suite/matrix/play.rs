//! Plays one request of the table.

use std::rc::Rc;
use std::time::Duration;

use libc::EINVAL;
use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::{Cell, Legality, is_atomic};
use crate::bytes::{pattern, same, word};
use crate::device::{Bind, Send, Window};
use crate::suite::{
    Arm, Done, GRHS, Outcome, Pair, SOURCE, Setting, TARGET, Trouble, expect, within,
};

/// What lies around a target must stay as it is.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xee;
/// The completion of a request that the device refuses after the post comes at once.
const SOON: Duration = Duration::from_secs(1);
/// What an atomic finds.
const WORD: u64 = 0x0123_4567_89ab_cdef;
const SWAP: u64 = 0xfeed_face_cafe_beef;
const ADDEND: u64 = 0xf000_0000_0000_0003;

/// Plays a cell; `number` tells it from others.
pub(super) fn play(arm: &Arm, cell: Cell, number: u32) -> Outcome {
    let pair = arm.pair(Setting::new(cell.transport, arm.mtu()))?;
    let mtu = pair.setting.mtu.bytes().unwrap_or(0) as usize;
    let max_inline = pair.a.qp.cap().max_inline_data as usize;
    let play = Play {
        arm,
        pair: &pair,
        cell,
        number,
        len: cell.length.bytes(mtu),
    };
    let outcome = match cell.legality(mtu, max_inline) {
        Legality::Legal => play.legal(),
        Legality::Illegal(_, why) => play.illegal(why),
    };
    if !matches!(outcome, Ok(_) | Err(Trouble::Skip(_))) {
        arm.forget();
    }
    outcome
}

struct Play<'a> {
    arm: &'a Arm,
    pair: &'a Pair,
    cell: Cell,
    number: u32,
    len: usize,
}

impl Play<'_> {
    fn wr_id(&self) -> u64 {
        u64::from(self.number) << 8
    }

    fn is_ud(&self) -> bool {
        self.cell.transport == Transport::Ud
    }

    /// Immediate data of the message, and of the one behind it.
    fn imm(&self) -> [u32; 2] {
        [0x8100_0000 | self.number, 0xf000_0000 | self.number]
    }

    /// The request takes a receive of the peer.
    fn takes_receive(&self) -> bool {
        self.sends() || self.cell.opcode == IBV_WR_RDMA_WRITE_WITH_IMM
    }

    fn sends(&self) -> bool {
        matches!(
            self.cell.opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV
        )
    }

    fn carries_imm(&self) -> bool {
        matches!(
            self.cell.opcode,
            IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
        )
    }

    /// A second message tells that the first one is done: where that makes no completion, or one that says too little.
    fn needs_second(&self) -> bool {
        let silent = self.cell.transport == Transport::Uc && self.cell.opcode == IBV_WR_RDMA_WRITE;
        !self.cell.signaled || silent
    }

    /// The request, with a window for those that are about one.
    fn request(&self, key: Option<(&Rc<Window>, u32)>) -> Result<Send, Trouble> {
        let (a, b) = (&self.pair.a.side.buffer, &self.pair.b.side.buffer);
        let parts: &[_] = if self.len == 0 {
            &[]
        } else {
            &[(SOURCE, self.len)]
        };
        let inline = (self.cell.inline).then(|| vec![a.read(SOURCE, self.len)]);
        let operands = match self.cell.opcode {
            IBV_WR_ATOMIC_CMP_AND_SWP => (WORD, SWAP),
            _ => (ADDEND, 0),
        };
        let mut send = Send {
            wr_id: self.wr_id(),
            opcode: self.cell.opcode,
            imm: self.imm()[0],
            sges: a.sges(parts),
            inline,
            remote: (b.address(TARGET), b.rkey()),
            operands,
            ..Send::default()
        };
        if self.cell.signaled {
            send.flags = IBV_SEND_SIGNALED;
        }
        if let Some((window, rkey)) = key {
            send.invalidate = rkey;
            send.bind = Some(self.binding(window, rkey, self.cell.opcode != IBV_WR_SEND_WITH_INV));
        }
        self.pair.address(send)
    }

    fn binding(&self, window: &Rc<Window>, rkey: u32, at_a: bool) -> Bind {
        let end = if at_a { &self.pair.a } else { &self.pair.b };
        Bind {
            window: Rc::clone(window),
            rkey,
            buffer: Rc::clone(&end.side.buffer),
            offset: TARGET,
            len: 4096,
            access: IBV_ACCESS_REMOTE_WRITE,
        }
    }

    /// A window for requests that are about one, bound where it must be before they are posted.
    fn window(&self) -> Result<Option<(Rc<Window>, u32)>, Trouble> {
        let at_a = match self.cell.opcode {
            IBV_WR_BIND_MW | IBV_WR_LOCAL_INV => true,
            IBV_WR_SEND_WITH_INV => false,
            _ => return Ok(None),
        };
        let end = if at_a { &self.pair.a } else { &self.pair.b };
        let window = Window::new(&end.side.pd, IBV_MW_TYPE_2)?;
        let rkey = ops::ibv_inc_rkey(window.rkey());
        // A target has no send queue to bind a window by.
        if self.cell.opcode != IBV_WR_BIND_MW && end.transport != Transport::XrcTgt {
            end.qp.post_send(&Send {
                opcode: IBV_WR_BIND_MW,
                flags: IBV_SEND_SIGNALED,
                bind: Some(self.binding(&window, rkey, at_a)),
                ..Send::default()
            })?;
            let wc = crate::suite::next(&end.sends, "the bind before it")?;
            expect("the bind before it", wc.status, IBV_WC_SUCCESS)?;
        }
        Ok(Some((window, rkey)))
    }

    /// What both sides hold before.
    fn fill(&self) {
        let (a, b) = (&self.pair.a.side.buffer, &self.pair.b.side.buffer);
        let data = pattern(self.number, self.len);
        let around = vec![UNTOUCHED; self.len + 2 * GUARD];
        let (from, to) = match self.cell.opcode {
            IBV_WR_RDMA_READ => ((b, TARGET), (a, SOURCE)),
            _ => ((a, SOURCE), (b, TARGET)),
        };
        to.0.write(to.1 - GUARD, &around);
        from.0.write(from.1 - GUARD, &around);
        from.0.write(from.1, &data);
        if is_atomic(self.cell.opcode) {
            a.write(SOURCE - GUARD, &around);
            b.write(TARGET, &WORD.to_ne_bytes());
        }
        b.write(GRHS, &[UNTOUCHED; 256]);
    }

    fn post_receives(&self) -> Result<(), Trouble> {
        let b = &self.pair.b;
        let parts = |grh: usize, parts: &[(usize, usize)]| {
            let header = self.is_ud().then_some((grh, 40));
            let all: Vec<_> = header.into_iter().chain(parts.iter().copied()).collect();
            b.side.buffer.sges(&all)
        };
        if self.takes_receive() {
            let room = [(TARGET, self.len)];
            let room = if self.sends() && self.len > 0 {
                &room[..]
            } else {
                &[]
            };
            b.receive(self.wr_id(), &parts(GRHS, room))?;
        }
        if self.needs_second() {
            b.receive(self.wr_id() | 1, &parts(GRHS + 64, &[]))?;
        }
        Ok(())
    }

    fn legal(&self) -> Outcome {
        let window = self.window()?;
        self.fill();
        self.post_receives()?;
        let key = window.as_ref().map(|(window, rkey)| (window, *rkey));
        self.pair.a.qp.post_send(&self.request(key)?)?;
        if self.cell.transport == Transport::XrcIni && self.cell.opcode == IBV_WR_SEND_WITH_INV {
            return self.nothing_to_invalidate();
        }
        if self.needs_second() {
            self.pair.ask(Send {
                wr_id: self.wr_id() | 1,
                opcode: IBV_WR_SEND_WITH_IMM,
                flags: IBV_SEND_SIGNALED,
                imm: self.imm()[1],
                ..Send::default()
            })?;
        }
        if self.cell.signaled {
            self.check_sent(self.pair.sent()?)?;
        }
        if self.needs_second() {
            let wc = self.pair.sent()?;
            expect("the second request", wc.status, IBV_WC_SUCCESS)?;
            expect(
                "the wr_id of the second request",
                wc.wr_id,
                self.wr_id() | 1,
            )?;
        }
        if self.takes_receive() {
            self.check_received(self.pair.received()?, key.map(|(_, rkey)| rkey))?;
        }
        if self.needs_second() {
            let wc = self.pair.received()?;
            expect("the second message", wc.status, IBV_WC_SUCCESS)?;
            expect(
                "the immediate data of the second message",
                wc.imm_data(),
                Some(self.imm()[1]),
            )?;
        }
        self.pair.quiet()?;
        self.check_memory()?;
        Ok(Done::Passed)
    }

    /// A target's requests run in the domain of an SRQ, where no program can have a key that a message may end: windows
    /// of type 2 belong to the QP that bound them, and a target cannot bind. So the message goes out, and its key is refused.
    fn nothing_to_invalidate(&self) -> Outcome {
        let wc = self.pair.sent()?;
        self.arm.forget();
        expect("the status", wc.status, IBV_WC_REM_ACCESS_ERR)?;
        expect("the wr_id", wc.wr_id, self.wr_id())?;
        Ok(Done::Passed)
    }

    fn check_sent(&self, wc: ibv_wc) -> Result<(), Trouble> {
        expect("the status", wc.status, IBV_WC_SUCCESS)?;
        expect("the wr_id", wc.wr_id, self.wr_id())?;
        expect("the QP of the request", wc.qp_num, self.pair.a.qp.number())?;
        let opcode = match self.cell.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
            IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
            IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
            IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
            IBV_WR_LOCAL_INV => IBV_WC_LOCAL_INV,
            IBV_WR_BIND_MW => IBV_WC_BIND_MW,
            _ => IBV_WC_SEND,
        };
        expect("the opcode", wc.opcode, opcode)?;
        // They say something of receives only (ibv_poll_cq(3)), so other devices may set any.
        if self.arm.strict {
            expect("the flags of a send", wc.wc_flags, 0)?;
        }
        if self.cell.opcode == IBV_WR_RDMA_READ || is_atomic(self.cell.opcode) {
            expect("byte_len of what came back", wc.byte_len as usize, self.len)?;
        }
        Ok(())
    }

    fn check_received(&self, wc: ibv_wc, key: Option<u32>) -> Result<(), Trouble> {
        let second = self.needs_second() && wc.imm_data() == Some(self.imm()[1]);
        if second && matches!(self.cell.transport, Transport::Uc | Transport::Ud) {
            return Err(Trouble::Lost("the second message came first".to_owned()));
        }
        expect("the receive's status", wc.status, IBV_WC_SUCCESS)?;
        expect("the receive's wr_id", wc.wr_id, self.wr_id())?;
        expect("the QP of the receive", wc.qp_num, self.pair.b.qp.number())?;
        let opcode = if self.sends() {
            IBV_WC_RECV
        } else {
            IBV_WC_RECV_RDMA_WITH_IMM
        };
        expect("the receive's opcode", wc.opcode, opcode)?;
        let header = if self.is_ud() { 40 } else { 0 };
        expect(
            "the receive's byte_len",
            wc.byte_len as usize,
            self.len + header,
        )?;
        let imm = self.carries_imm().then(|| self.imm()[0]);
        expect("the immediate data", wc.imm_data(), imm)?;
        let key = key.filter(|_| self.cell.opcode == IBV_WR_SEND_WITH_INV);
        expect("the key that ended", wc.invalidated_rkey(), key)?;
        // It means something on UD only (ibv_poll_cq(3)).
        if self.is_ud() || self.arm.strict {
            let flag = wc.flags().contains(IBV_WC_GRH);
            expect("the GRH flag", flag, self.is_ud())?;
        }
        if self.is_ud() {
            expect("the sender's QP", wc.src_qp, self.pair.a.qp.number())?;
            self.check_header()?;
        }
        Ok(())
    }

    /// The 40 bytes in front of a datagram: an IPv6 header, or 20 bytes of anything and an IPv4 header.
    fn check_header(&self) -> Result<(), Trouble> {
        let (from, to) = (&self.pair.a.side, &self.pair.b.side);
        let header = to.buffer.read(GRHS, 40);
        if from.is_v4() {
            expect("version and header length", header[20], 0x45)?;
            expect("the protocol", header[29], 17)?;
            expect("the source", &header[32..36], &from.gid.raw[12..])?;
            expect("the destination", &header[36..40], &to.gid.raw[12..])
        } else {
            expect("the version", header[0] >> 4, 6)?;
            expect("the source", &header[8..24], &from.gid.raw[..])?;
            expect("the destination", &header[24..40], &to.gid.raw[..])
        }
    }

    fn check_memory(&self) -> Result<(), Trouble> {
        let (a, b) = (&self.pair.a.side.buffer, &self.pair.b.side.buffer);
        let mut wanted = vec![UNTOUCHED; self.len + 2 * GUARD];
        let middle = GUARD..GUARD + self.len;
        if is_atomic(self.cell.opcode) {
            let after = match self.cell.opcode {
                IBV_WR_ATOMIC_CMP_AND_SWP => SWAP,
                _ => WORD.wrapping_add(ADDEND),
            };
            expect("the word at the peer", word(&b.read(TARGET, 8)), after)?;
            expect("what came back", word(&a.read(SOURCE, 8)), WORD)?;
            wanted[middle.clone()].copy_from_slice(&after.to_ne_bytes());
            same(&b.read(TARGET - GUARD, wanted.len()), &wanted)?;
            wanted[middle].copy_from_slice(&WORD.to_ne_bytes());
            return Ok(same(&a.read(SOURCE - GUARD, wanted.len()), &wanted)?);
        }
        wanted[middle].copy_from_slice(&pattern(self.number, self.len));
        let (buffer, at) = match self.cell.opcode {
            IBV_WR_RDMA_READ => (a, SOURCE),
            _ => (b, TARGET),
        };
        let found = buffer.read(at - GUARD, wanted.len());
        // What UC loses in the middle of a WRITE leaves memory as it was; anything else is no loss.
        let gap = |(found, wanted): (&u8, &u8)| found == wanted || *found == UNTOUCHED;
        let unreliable = self.cell.transport == Transport::Uc && self.arm.is_wire();
        if unreliable && found != wanted && found.iter().zip(&wanted).all(gap) {
            return Err(Trouble::Lost("a part of the WRITE did not come".to_owned()));
        }
        Ok(same(&found, &wanted)?)
    }

    fn illegal(&self, why: &str) -> Outcome {
        let window = match self.cell.opcode {
            IBV_WR_BIND_MW => Some(Window::new(&self.pair.a.side.pd, IBV_MW_TYPE_2)?),
            _ => None,
        };
        self.fill();
        let key = window.as_ref().map(|w| (w, ops::ibv_inc_rkey(w.rkey())));
        let posted = self.pair.a.qp.post_send(&self.request(key)?);
        match posted {
            Err(failed) if failed.errno == EINVAL => {}
            Err(failed) if !self.arm.strict => {
                let _ = failed;
            }
            Err(failed) => return Err(format!("refused with {failed}, although {why}").into()),
            Ok(()) if self.arm.strict => return Err(format!("accepted, although {why}").into()),
            Ok(()) => {
                self.arm.forget();
                let Some(wc) = within(&self.pair.a.sends, SOON)? else {
                    return Err(format!("accepted without a completion, although {why}").into());
                };
                return match wc.status {
                    IBV_WC_LOC_QP_OP_ERR | IBV_WC_LOC_LEN_ERR => Ok(Done::Refused),
                    status => Err(format!("accepted with {status:?}, although {why}").into()),
                };
            }
        }
        self.pair.quiet()?;
        expect(
            "the state after a refusal",
            self.pair.a.qp.query()?.qp_state,
            IBV_QPS_RTS,
        )?;
        Ok(Done::Refused)
    }
}
