//! The requests of the table once more, through the safe layer: what it builds, posts, books and hands out is held to the
//! same cells, with the data checked on both sides.
//!
//! What a transport lacks cannot be written down there, so those cells are the compiler's; what a request may not be
//! otherwise must be refused before the device is asked.

use std::sync::Arc;
use std::time::Duration;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;
use rdma_qp::xrc::XrcSend;
use rdma_qp::{
    Access, Account, AnyOp, Connects, Cq, Device, GidEntry, Memory, Mr, MrSlice, NOTHING,
    Operation, Pd, Peer, PostError, PostFlags, Qp, QueueKind, Rc, RecvQueue, RemoteRegion, Shared,
    SharedSlice, Ticket, Timing, Uc, Window, op,
};

mod datagram;
mod judge;
mod xrc;

use super::Arm;
use super::arm::{GRHS, MEMORY, PORT, SOURCE, Side, TARGET};
use super::check::{Check, Outcome, Trouble};
use super::matrix::{Cell, Legality, cells, is_atomic};
use crate::bytes::pattern;

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
        if !cell.transport.supports(cell.opcode) {
            continue;
        }
        all.push(Check::rule(format!("safe/{cell}"), move |arm| {
            play(arm, cell, number)
        }));
    }
    all.extend(xrc::checks());
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

/// An end at which messages arrive.
trait Arrives {
    fn place(&self) -> &Place;
    fn recv(&mut self, local: &[MrSlice<'_>]) -> Result<Ticket, PostError>;
    /// The queue and the QP that their completions name.
    fn arrival(&self) -> (QueueKind, u32);
    /// The books of what it sent, and of its receives.
    fn accounts(&self) -> [Account; 2];
}

impl<T: RecvQueue> Arrives for End<T> {
    fn place(&self) -> &Place {
        &self.place
    }
    fn recv(&mut self, local: &[MrSlice<'_>]) -> Result<Ticket, PostError> {
        self.qp.recv(local)
    }
    fn arrival(&self) -> (QueueKind, u32) {
        (QueueKind::Recv, self.qp.qp_num())
    }
    fn accounts(&self) -> [Account; 2] {
        [self.qp.send_account(), self.qp.recv_account()]
    }
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
        Transport::XrcIni => play.xrc(a, b, mtu),
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
binds!(Rc, Uc, XrcSend);

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

    fn connected<T: Binds + RecvQueue>(
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
            let op = self.op(&b.place.mr.remote(), 0);
            return self.illegal(&mut a, op, why);
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
        self.check_received(&b, &receives, a.qp.qp_num(), key)?;
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

    fn post_receives(&self, b: &mut impl Arrives, header: usize) -> Result<Vec<Ticket>, Trouble> {
        let mr = b.place().mr.clone();
        let slice = |at, len| mr.slice(at, len).map_err(told);
        let mut tickets = Vec::new();
        if self.takes_receive() {
            let len = if self.sends() { self.len } else { 0 };
            let posted = match header {
                0 if len == 0 => b.recv(&NOTHING),
                0 => b.recv(&[slice(TARGET, len)?]),
                _ => b.recv(&[slice(GRHS, header)?, slice(TARGET, len)?]),
            };
            tickets.push(posted.map_err(told)?);
        }
        if self.needs_second() {
            let posted = match header {
                0 => b.recv(&NOTHING),
                _ => b.recv(&[slice(GRHS + 64, header)?]),
            };
            tickets.push(posted.map_err(told)?);
        }
        Ok(tickets)
    }
}

fn post_any<T: Shared>(
    qp: &mut Qp<T>,
    op: AnyOp,
    local: Option<SharedSlice>,
    flags: PostFlags,
) -> Result<Ticket, Trouble> {
    match T::post_any(qp, 0, &op, local.as_ref(), flags) {
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
