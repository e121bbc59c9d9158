//! The requests of the table once more, through the safe layer: what it builds, posts, books and hands out is held to the
//! same cells, with the data checked on both sides.
//!
//! What a transport lacks cannot be written down there, so those cells are the compiler's; what a request may not be
//! otherwise must be refused before the device is asked.

use std::sync::Arc;
use std::time::Duration;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;
use rdma_qp::{
    Access, AnyOp, Completion, Connects, Cq, Device, GidEntry, Memory, Mr, NOTHING, Operation,
    PathOptions, Pd, Peer, PostError, PostFlags, QKey, Qp, QueueKind, Rc, RemoteRegion, Shared,
    SharedSlice, Success, Ticket, Timing, Uc, Ud, Window, op,
};

use super::Arm;
use super::arm::{GRHS, MEMORY, PORT, SOURCE, Side, TARGET};
use super::check::{Check, Done, Outcome, Trouble, expect};
use super::matrix::{Cell, Legality, cells, is_atomic};
use crate::bytes::{pattern, same, word};

/// Bytes that one request may carry inline.
const INLINE: u32 = 64;
/// What lies around a target must stay as it is.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xee;
/// What an atomic finds, and what it brings.
const WORD: u64 = 0x0123_4567_89ab_cdef;
const SWAP: u64 = 0xfeed_face_cafe_beef;
const ADDEND: u64 = 0xf000_0000_0000_0003;
/// Longer than anything takes.
const LIMIT: Duration = Duration::from_secs(20);
/// A lost message is given up after this.
const LOST: Duration = Duration::from_secs(2);

/// A check for each cell that can be written down.
#[must_use]
pub fn checks(quick: bool) -> Vec<Check> {
    let mut all = Vec::new();
    for (number, cell) in (1u32..).zip(cells(quick)) {
        let safe = matches!(
            cell.transport,
            Transport::Rc | Transport::Uc | Transport::Ud
        );
        if !(safe && cell.transport.supports(cell.opcode)) {
            continue;
        }
        all.push(Check::rule(format!("safe/{cell}"), move |arm| {
            play(arm, cell, number)
        }));
    }
    all
}

/// An error of the safe layer, as a check tells it.
fn told(error: impl std::fmt::Display) -> Trouble {
    Trouble::Wrong(error.to_string())
}

/// What each side has, whatever the QP.
struct Place {
    device: Device,
    pd: Pd,
    cq: Cq,
    mr: Arc<Mr>,
    gid: GidEntry,
}

impl Place {
    fn new(side: &Side) -> Result<Place, Trouble> {
        let device = Device::open(&side.device.verbs(), side.device.name()).map_err(told)?;
        let pd = device.alloc_pd().map_err(told)?;
        let cq = device.create_cq(64).map_err(told)?;
        let access =
            Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::MW_BIND;
        let mr = match pd.register(Memory::zeroed(MEMORY), access) {
            Ok(mr) => mr,
            // Not every device has windows.
            Err(_) => pd
                .register(Memory::zeroed(MEMORY), access - Access::MW_BIND)
                .map_err(told)?,
        };
        let gid = device
            .port(PORT)
            .map_err(told)?
            .gid(side.gid_index.into())
            .map_err(told)?;
        Ok(Place {
            device,
            pd,
            cq,
            mr: Arc::new(mr),
            gid,
        })
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Trouble> {
        self.mr.write_at(at, bytes).map_err(told)
    }

    fn read(&self, at: usize, len: usize) -> Result<Vec<u8>, Trouble> {
        let mut bytes = vec![0; len];
        self.mr.read_at(at, &mut bytes).map_err(told)?;
        Ok(bytes)
    }
}

/// A QP at a place.
struct End<T: rdma_qp::Transport> {
    place: Place,
    qp: Qp<T>,
}

/// Plays a cell; `number` tells it from others.
fn play(arm: &Arm, cell: Cell, number: u32) -> Outcome {
    let [a, b] = [&arm.sides[0], &arm.sides[1]].map(|side| Place::new(side));
    let (a, b) = (a?, b?);
    let mtu = arm.mtu().bytes().unwrap_or(0) as usize;
    let play = Play {
        arm,
        cell,
        number,
        len: cell.length.bytes(mtu),
    };
    match cell.transport {
        Transport::Rc => {
            let make = |place: &Place| {
                let builder = place.pd.rc(&place.cq).send_depth(8).recv_depth(8);
                builder.inline_data(INLINE).create().map_err(told)
            };
            play.connected::<Rc>(a, b, make, mtu)
        }
        Transport::Uc => {
            let make = |place: &Place| {
                let builder = place.pd.uc(&place.cq).send_depth(8).recv_depth(8);
                builder.inline_data(INLINE).create().map_err(told)
            };
            play.connected::<Uc>(a, b, make, mtu)
        }
        _ => play.datagram(a, b, mtu),
    }
}

/// Operations that only some connected transports have, in the words of one.
trait Binds: Shared + Connects {
    /// Binds the window of this end.
    fn bind(
        end: &mut End<Self>,
        window: &mut Window,
        flags: PostFlags,
    ) -> Result<(Ticket, RemoteRegion), PostError>
    where
        Self: Sized;
}

macro_rules! binds {
    ($($transport:ident),+) => {
        $(impl Binds for $transport {
            fn bind(
                end: &mut End<Self>,
                window: &mut Window,
                flags: PostFlags,
            ) -> Result<(Ticket, RemoteRegion), PostError> {
                let mr = end.place.mr.clone();
                match mr.slice(TARGET, 4096) {
                    Ok(slice) => end.qp.bind(window, slice, Access::REMOTE_WRITE, flags),
                    Err(_) => unreachable!("the region is longer"),
                }
            }
        })+
    };
}
binds!(Rc, Uc);

#[derive(Clone, Copy)]
struct Play<'a> {
    arm: &'a Arm,
    cell: Cell,
    number: u32,
    len: usize,
}

impl Play<'_> {
    fn flags(&self) -> PostFlags {
        let mut flags = PostFlags::empty();
        flags.set(PostFlags::INLINE, self.cell.inline);
        flags.set(PostFlags::UNSIGNALED, !self.cell.signaled);
        flags
    }

    fn imm(&self) -> u32 {
        0x8100_0000 | self.number
    }

    fn sends(&self) -> bool {
        matches!(
            self.cell.opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV
        )
    }

    fn takes_receive(&self) -> bool {
        self.sends() || self.cell.opcode == IBV_WR_RDMA_WRITE_WITH_IMM
    }

    /// A second message tells that the first one is done.
    fn needs_second(&self) -> bool {
        let silent = self.cell.transport == Transport::Uc && self.cell.opcode == IBV_WR_RDMA_WRITE;
        !self.cell.signaled || silent
    }

    fn operation(&self) -> Operation {
        match self.cell.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => Operation::Send,
            IBV_WR_SEND_WITH_INV => Operation::SendInv,
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => Operation::Write,
            IBV_WR_RDMA_READ => Operation::Read,
            IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap,
            IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd,
            IBV_WR_BIND_MW => Operation::BindWindow,
            _ => Operation::LocalInv,
        }
    }

    /// The operation, with a key for those that are about one.
    fn op(&self, remote: &RemoteRegion, key: u32) -> AnyOp {
        let remote = remote.at(TARGET as u64);
        let imm = self.imm();
        match self.cell.opcode {
            IBV_WR_SEND => op::Send.into(),
            IBV_WR_SEND_WITH_IMM => op::SendImm(imm).into(),
            IBV_WR_SEND_WITH_INV => op::SendInv(key).into(),
            IBV_WR_RDMA_WRITE => op::Write { remote }.into(),
            IBV_WR_RDMA_WRITE_WITH_IMM => op::WriteImm { remote, imm }.into(),
            IBV_WR_RDMA_READ => op::Read { remote }.into(),
            IBV_WR_ATOMIC_CMP_AND_SWP => op::CompareSwap {
                remote,
                compare: WORD,
                swap: SWAP,
            }
            .into(),
            IBV_WR_ATOMIC_FETCH_AND_ADD => op::FetchAdd {
                remote,
                add: ADDEND,
            }
            .into(),
            _ => op::LocalInv(key).into(),
        }
    }

    /// What both sides hold before.
    fn fill(&self, a: &Place, b: &Place) -> Result<(), Trouble> {
        let around = vec![UNTOUCHED; self.len + 2 * GUARD];
        let (from, to) = match self.cell.opcode {
            IBV_WR_RDMA_READ => ((b, TARGET), (a, SOURCE)),
            _ => ((a, SOURCE), (b, TARGET)),
        };
        to.0.write(to.1 - GUARD, &around)?;
        from.0.write(from.1 - GUARD, &around)?;
        from.0.write(from.1, &pattern(self.number, self.len))?;
        if is_atomic(self.cell.opcode) {
            a.write(SOURCE - GUARD, &around)?;
            b.write(TARGET, &WORD.to_ne_bytes())?;
        }
        Ok(())
    }

    fn connected<T: Binds>(
        &self,
        a: Place,
        b: Place,
        make: impl Fn(&Place) -> Result<Qp<T>, Trouble>,
        mtu: usize,
    ) -> Outcome {
        let (qp_a, qp_b) = (make(&a)?, make(&b)?);
        let (mut a, mut b) = (End { place: a, qp: qp_a }, End { place: b, qp: qp_b });
        connect(&mut a, &mut b)?;
        let inline = a.qp.cap().max_inline_data as usize;
        self.fill(&a.place, &b.place)?;
        if let Legality::Illegal(_, why) = self.cell.legality(mtu, inline) {
            return self.illegal(&mut a, &b, why);
        }
        let (window, key) = match self.cell.opcode {
            IBV_WR_BIND_MW | IBV_WR_LOCAL_INV => self.window(&mut a)?,
            IBV_WR_SEND_WITH_INV => self.window(&mut b)?,
            _ => (None, 0),
        };
        let receives = self.post_receives(&mut b, 0)?;
        let ticket = if self.cell.opcode == IBV_WR_BIND_MW {
            let mut window = window.ok_or("no window")?;
            let bound = T::bind(&mut a, &mut window, self.flags());
            let (ticket, _) = bound.map_err(told)?;
            // The queue keeps what it needs of it.
            drop(window);
            ticket
        } else {
            let remote = b.place.mr.remote();
            self.post(&mut a, self.op(&remote, key), self.len)?
        };
        let second = match self.needs_second() {
            true => {
                let any = op::SendImm(!self.imm()).into();
                Some(post_any(&mut a.qp, any, None, PostFlags::empty())?)
            }
            false => None,
        };
        self.check_sent(&mut a, ticket, second)?;
        self.check_received(&mut b, &receives, a.qp.qp_num(), key)?;
        self.check_memory(&a.place, &b.place)?;
        self.check_books(&a, &b, receives.len() as u64)
    }

    /// A window, bound unless the check is about that.
    fn window<T: Binds>(&self, end: &mut End<T>) -> Result<(Option<Window>, u32), Trouble> {
        let mut window = match end.place.pd.window() {
            Ok(window) => window,
            Err(error) => return Err(Trouble::Skip(error.to_string())),
        };
        if self.cell.opcode == IBV_WR_BIND_MW {
            return Ok((Some(window), 0));
        }
        let bound = T::bind(end, &mut window, PostFlags::empty());
        let (ticket, _) = bound.map_err(told)?;
        end.place.cq.wait(&ticket, LIMIT).map_err(told)?;
        let key = window.rkey();
        Ok((Some(window), key))
    }

    fn post<T: Binds>(&self, a: &mut End<T>, op: AnyOp, len: usize) -> Result<Ticket, Trouble> {
        let local = match (self.cell.opcode, len) {
            (IBV_WR_LOCAL_INV, _) | (_, 0) => None,
            _ => Some(SharedSlice::new(&a.place.mr, SOURCE, len).map_err(told)?),
        };
        post_any(&mut a.qp, op, local, self.flags())
    }

    fn post_receives<T: rdma_qp::Transport>(
        &self,
        b: &mut End<T>,
        header: usize,
    ) -> Result<Vec<Ticket>, Trouble> {
        let mr = b.place.mr.clone();
        let slice = |at, len| mr.slice(at, len).map_err(told);
        let mut tickets = Vec::new();
        if self.takes_receive() {
            let len = if self.sends() { self.len } else { 0 };
            let posted = match header {
                0 if len == 0 => b.qp.recv(NOTHING),
                0 => b.qp.recv(slice(TARGET, len)?),
                _ => b.qp.recv([slice(GRHS, header)?, slice(TARGET, len)?]),
            };
            tickets.push(posted.map_err(told)?);
        }
        if self.needs_second() {
            let posted = match header {
                0 => b.qp.recv(NOTHING),
                _ => b.qp.recv(slice(GRHS + 64, header)?),
            };
            tickets.push(posted.map_err(told)?);
        }
        Ok(tickets)
    }

    fn check_sent<T: rdma_qp::Transport>(
        &self,
        a: &mut End<T>,
        ticket: Ticket,
        second: Option<Ticket>,
    ) -> Result<(), Trouble> {
        expect("the operation", ticket.operation(), self.operation())?;
        let success = a.place.cq.wait(&ticket, LIMIT);
        if self.cell.signaled {
            self.check_success(success.map_err(told)?)?;
            if let Some(second) = second {
                a.place.cq.wait(&second, LIMIT).map_err(told)?;
            }
        } else if let Some(second) = second {
            // It is done when the one behind it is, and has no completion of its own.
            a.place.cq.wait(&second, LIMIT).map_err(told)?;
            success.map_err(told)?;
        }
        expect("completions left", a.place.cq.poll().map_err(told)?, None)
    }

    fn check_success(&self, success: Success) -> Result<(), Trouble> {
        expect("the operation", success.operation, self.operation())?;
        let fetches = self.cell.opcode == IBV_WR_RDMA_READ || is_atomic(self.cell.opcode);
        let wanted = if fetches { self.len } else { 0 };
        expect("byte_len", success.byte_len as usize, wanted)
    }

    fn check_received<T: rdma_qp::Transport>(
        &self,
        b: &mut End<T>,
        receives: &[Ticket],
        from: u32,
        key: u32,
    ) -> Result<(), Trouble> {
        let reliable = self.cell.transport == Transport::Rc;
        for (at, ticket) in receives.iter().enumerate() {
            let wait = if reliable { LIMIT } else { LOST };
            let Some(done) = b.place.cq.wait_any(wait).map_err(told)? else {
                return Err(Trouble::Lost("a message did not come".to_owned()));
            };
            let Completion { queue, qp_num, .. } = done;
            expect("the queue", queue, QueueKind::Recv)?;
            expect("the QP", qp_num, b.qp.qp_num())?;
            expect("the receive", done.ticket, *ticket)?;
            let success = match done.outcome {
                Ok(success) => success,
                Err(failure) => return Err(format!("a receive failed: {failure:?}").into()),
            };
            let first = at == 0 && self.takes_receive();
            let imm = match (first, self.cell.opcode) {
                (false, _) => Some(!self.imm()),
                (_, IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM) => Some(self.imm()),
                _ => None,
            };
            if success.imm != imm && !reliable && first && success.imm == Some(!self.imm()) {
                return Err(Trouble::Lost("the second message came first".to_owned()));
            }
            expect("the immediate data", success.imm, imm)?;
            if first {
                expect("byte_len", success.byte_len as usize, self.len)?;
                let by_write = self.cell.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
                expect("by_write", success.by_write, by_write)?;
                let ended = (self.cell.opcode == IBV_WR_SEND_WITH_INV).then_some(key);
                expect("the key that ended", success.invalidated, ended)?;
            }
            if self.cell.transport == Transport::Ud {
                let sender = success.sender.ok_or("a datagram without a sender")?;
                expect("the sender", (sender.qp_num, sender.has_grh), (from, true))?;
            }
        }
        expect("completions left", b.place.cq.poll().map_err(told)?, None)
    }

    fn check_memory(&self, a: &Place, b: &Place) -> Result<(), Trouble> {
        let mut wanted = vec![UNTOUCHED; self.len + 2 * GUARD];
        let middle = GUARD..GUARD + self.len;
        if is_atomic(self.cell.opcode) {
            let after = match self.cell.opcode {
                IBV_WR_ATOMIC_CMP_AND_SWP => SWAP,
                _ => WORD.wrapping_add(ADDEND),
            };
            expect("the word at the peer", word(&b.read(TARGET, 8)?), after)?;
            wanted[middle].copy_from_slice(&WORD.to_ne_bytes());
            return Ok(same(&a.read(SOURCE - GUARD, wanted.len())?, &wanted)?);
        }
        wanted[middle].copy_from_slice(&pattern(self.number, self.len));
        let (place, at) = match self.cell.opcode {
            IBV_WR_RDMA_READ => (a, SOURCE),
            _ => (b, TARGET),
        };
        let found = place.read(at - GUARD, wanted.len())?;
        let gap = |(found, wanted): (&u8, &u8)| found == wanted || *found == UNTOUCHED;
        let unreliable = self.cell.transport == Transport::Uc && self.arm.is_wire();
        if unreliable && found != wanted && found.iter().zip(&wanted).all(gap) {
            return Err(Trouble::Lost("a part of the WRITE did not come".to_owned()));
        }
        Ok(same(&found, &wanted)?)
    }

    /// Every request has its end, and nothing else happened.
    fn check_books<T: rdma_qp::Transport>(&self, a: &End<T>, b: &End<T>, receives: u64) -> Outcome {
        for (what, account) in [
            ("a's sends", a.qp.send_account()),
            ("b's sends", b.qp.send_account()),
            ("b's receives", b.qp.recv_account()),
        ] {
            let ended = (account.succeeded, account.pending);
            expect(what, ended, (account.accepted, 0))?;
        }
        expect("receives", b.qp.recv_account().accepted, receives)?;
        let stale = (a.place.cq.stale(), b.place.cq.stale());
        expect("completions that belong to nobody", stale, (0, 0))?;
        expect("the device", a.place.device.name(), a.qp.device())?;
        Ok(Done::Passed)
    }

    /// What cannot succeed is refused by the library, and nothing is changed.
    fn illegal<T: Binds>(&self, a: &mut End<T>, b: &End<T>, why: &str) -> Outcome {
        let posted = self.post(a, self.op(&b.place.mr.remote(), 0), self.len);
        if posted.is_ok() {
            return Err(format!("accepted, although {why}").into());
        }
        self.untouched(a)
    }

    fn untouched<T: rdma_qp::Transport>(&self, a: &End<T>) -> Outcome {
        expect("requests accepted", a.qp.send_account().accepted, 0)?;
        let state = a.qp.state().map_err(told)?;
        expect("the state after a refusal", state, IBV_QPS_RTS)?;
        expect("completions", a.place.cq.poll().map_err(told)?, None)?;
        Ok(Done::Refused)
    }

    fn datagram(&self, a: Place, b: Place, mtu: usize) -> Outcome {
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
            Legality::Legal => self.post_receives(&mut b, Ud::HEADER)?,
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
        self.check_received(&mut b, &receives, a.qp.qp_num(), 0)?;
        self.check_memory(&a.place, &b.place)?;
        self.check_books(&a, &b, receives.len() as u64)
    }
}

/// The 40 bytes in front of a datagram.
trait Header {
    const HEADER: usize;
}

impl Header for Ud {
    const HEADER: usize = rdma_qp::Grh::LEN;
}

fn post_any<T: Shared>(
    qp: &mut Qp<T>,
    op: AnyOp,
    local: Option<SharedSlice>,
    flags: PostFlags,
) -> Result<Ticket, Trouble> {
    match T::post_any(qp, op, local.as_ref(), flags) {
        Some(posted) => posted.map_err(told),
        None => Err("the transport has no such operation".into()),
    }
}

/// Both to RTR, then both to RTS.
fn connect<T: Connects>(a: &mut End<T>, b: &mut End<T>) -> Result<(), Trouble> {
    let describe = |end: &mut End<T>| -> Result<Peer, Trouble> {
        let endpoint = end.qp.endpoint(end.place.gid).map_err(told)?;
        let regions = vec![end.place.mr.remote()];
        Ok(Peer { endpoint, regions })
    };
    let (of_a, of_b) = (describe(a)?, describe(b)?);
    let timing = Timing::default();
    let agreed_a = a.qp.connect_begin(&of_b, timing).map_err(told)?;
    let agreed_b = b.qp.connect_begin(&of_a, timing).map_err(told)?;
    a.qp.connect_finish(agreed_a, timing).map_err(told)?;
    b.qp.connect_finish(agreed_b, timing).map_err(told)?;
    Ok(())
}
