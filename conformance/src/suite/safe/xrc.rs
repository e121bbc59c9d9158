//! XRC: requests of an initiator, through a target, to SRQs.

use std::sync::Arc;

use rdma_core_sys::*;
use rdma_qp::xrc::{SrqNum, Xrc, XrcDomain, XrcSend, XrcTarget};
use rdma_qp::{
    Account, AnyOp, Memory, Mr, MrSlice, PostError, PostFlags, Qp, QueueKind, Srq, Ticket, Timing,
    WaitError, op,
};

use super::{Arrives, Binds, End, INLINE, LIMIT, Place, Play, post_any, told};
use crate::bytes::{pattern, same};
use crate::suite::Arm;
use crate::suite::arm::{SOURCE, TARGET};
use crate::suite::check::{Check, Done, Outcome, Trouble, expect};
use crate::suite::matrix::Legality;

/// What no cell of the table is about.
pub(super) fn checks() -> Vec<Check> {
    let rule =
        |name: &str, body: fn(&Arm) -> Outcome| Check::rule(format!("safe/XRC/{name}"), body);
    vec![
        rule("every-operation-to-two-srqs-through-one-target", two_srqs),
        rule(
            "two-initiators-through-two-targets-into-one-srq",
            two_targets,
        ),
    ]
}

/// The end that receives: an SRQ, and a target in its domain.
struct Served {
    place: Place,
    target: XrcTarget,
    srq: Srq<Xrc>,
}

impl Arrives for Served {
    fn place(&self) -> &Place {
        &self.place
    }
    fn recv(&mut self, local: &[MrSlice<'_>]) -> Result<Ticket, PostError> {
        self.srq.recv(local)
    }
    fn arrival(&self) -> (QueueKind, u32) {
        (QueueKind::SharedRecv, self.target.qp_num())
    }
    fn accounts(&self) -> [Account; 2] {
        [Account::default(), self.srq.account()]
    }
}

/// A domain of the device of a place; a device may have no XRC.
fn domain(place: &Place) -> Result<XrcDomain, Trouble> {
    XrcDomain::anonymous(&place.device).map_err(|error| Trouble::Skip(error.to_string()))
}

fn initiator(place: Place) -> Result<End<XrcSend>, Trouble> {
    let builder = place.pd.xrc(&place.cq).send_depth(32).inline_data(INLINE);
    let qp = builder.create().map_err(told)?;
    Ok(End { place, qp })
}

/// Target and initiator to RTR, then both to RTS.
fn connect(
    (qp, here): (&mut Qp<XrcSend>, &Place),
    (target, there): (&mut XrcTarget, &Place),
) -> Result<(), Trouble> {
    let peer = |endpoint| rdma_qp::Peer {
        endpoint,
        regions: Vec::new(),
    };
    let of_qp = peer(qp.endpoint(here.gid).map_err(told)?);
    let of_target = peer(target.endpoint(there.gid).map_err(told)?);
    let timing = Timing::default();
    let at_target = target.connect_begin(&of_qp, timing).map_err(told)?;
    let at_qp = qp.connect_begin(&of_target, timing).map_err(told)?;
    target.connect_finish(at_target, timing).map_err(told)?;
    qp.connect_finish(at_qp, timing).map_err(told)?;
    Ok(())
}

/// The operation towards an SRQ; what touches no peer is itself.
fn towards(srq: SrqNum, op: AnyOp) -> AnyOp {
    match op {
        AnyOp::Send(op) => op::ToSrq { srq, op }.into(),
        AnyOp::SendImm(op) => op::ToSrq { srq, op }.into(),
        AnyOp::SendInv(op) => op::ToSrq { srq, op }.into(),
        AnyOp::Write(op) => op::ToSrq { srq, op }.into(),
        AnyOp::WriteImm(op) => op::ToSrq { srq, op }.into(),
        AnyOp::Read(op) => op::ToSrq { srq, op }.into(),
        AnyOp::CompareSwap(op) => op::ToSrq { srq, op }.into(),
        AnyOp::FetchAdd(op) => op::ToSrq { srq, op }.into(),
        local => local,
    }
}

impl Play<'_> {
    pub(super) fn xrc(&self, a: Place, b: Place, mtu: usize) -> Outcome {
        let domain = domain(&b)?;
        let srq = b.pd.xrc_srq(&domain, &b.cq).depth(8);
        let mut b = Served {
            srq: srq.create().map_err(told)?,
            target: domain.create_target().map_err(told)?,
            place: b,
        };
        let mut a = initiator(a)?;
        connect((&mut a.qp, &a.place), (&mut b.target, &b.place))?;
        let number = b.srq.srq_num();
        self.fill(&a.place, &b.place)?;
        let op = |key| towards(number, self.op(&b.place.mr.remote(), key));
        let inline = a.qp.cap().max_inline_data as usize;
        if let Legality::Illegal(_, why) = self.cell.legality(mtu, inline) {
            return self.illegal(&mut a, op(0), why);
        }
        let (window, key) = match self.cell.opcode {
            IBV_WR_BIND_MW | IBV_WR_LOCAL_INV => self.window(&mut a)?,
            _ => (None, 0),
        };
        let op = op(key);
        let receives = self.post_receives(&mut b, 0)?;
        let ticket = match window {
            Some(mut window) if self.cell.opcode == IBV_WR_BIND_MW => {
                let bound = XrcSend::bind(&mut a, &mut window, self.flags());
                bound.map_err(told)?.0
            }
            _ => self.post(&mut a, op, self.len)?,
        };
        if self.cell.opcode == IBV_WR_SEND_WITH_INV {
            return self.nothing_to_invalidate(&a, &b, &ticket);
        }
        let second = match self.needs_second() {
            true => {
                let any = towards(number, op::SendImm(!self.imm()).into());
                Some(post_any(&mut a.qp, any, None, PostFlags::empty())?)
            }
            false => None,
        };
        self.check_sent(&mut a, ticket, second)?;
        self.check_received(&b, &receives, a.qp.qp_num(), key)?;
        self.check_memory(&a.place, &b.place)?;
        self.check_books(&a, &b, receives.len() as u64)
    }

    /// A target's requests run in the domain of an SRQ, where no program can have a key that a message may end: windows of type
    /// 2 belong to the QP that bound them, and a target binds none. So the message goes out, and its key is refused.
    fn nothing_to_invalidate(&self, a: &End<XrcSend>, b: &Served, ticket: &Ticket) -> Outcome {
        let done = a
            .place
            .cq
            .wait_any(LIMIT)
            .map_err(told)?
            .ok_or("no completion")?;
        expect("the request", done.ticket, *ticket)?;
        let status = done.outcome.map_err(|failure| failure.status);
        no_access(self.arm, status.err())?;
        expect("the target", b.target.state().map_err(told)?, IBV_QPS_ERR)?;
        expect("the initiator", a.qp.state().map_err(told)?, IBV_QPS_ERR)?;
        Ok(Done::Passed)
    }
}

/// The other side says that the request may not reach what it names. It says so once: a target in ERR answers nothing.
fn no_access(arm: &Arm, status: Option<ibv_wc_status>) -> Result<(), Trouble> {
    if status == Some(IBV_WC_RETRY_EXC_ERR) && arm.is_wire() {
        return Err(Trouble::Lost("the refusal did not come".to_owned()));
    }
    expect("the status", status, Some(IBV_WC_REM_ACCESS_ERR))
}

/// One process of the receiving node: SRQ, CQ and memory of its own.
struct Process {
    place: Place,
    srq: Srq<Xrc>,
    mr: Mr,
}

/// Bytes of each message.
const LEN: usize = 3000;
/// Where READs and WRITEs go in the memory of a process, behind the receives.
const REACHED: usize = 16 * LEN;

impl Process {
    fn new(arm: &Arm, of: &Place, domain: &XrcDomain) -> Result<Process, Trouble> {
        // The device of the domain, and everything else of its own.
        let mut place = Place::new(&arm.sides[1])?;
        place.device = of.device.clone();
        place.pd = place.device.alloc_pd().map_err(told)?;
        place.cq = place.device.create_cq(64).map_err(told)?;
        let memory = Memory::zeroed(REACHED + 4 * LEN);
        let access = rdma_qp::Access::REMOTE_WRITE
            | rdma_qp::Access::REMOTE_READ
            | rdma_qp::Access::REMOTE_ATOMIC;
        let mr = place.pd.register(memory, access).map_err(told)?;
        let srq = place.pd.xrc_srq(domain, &place.cq).depth(16).create();
        let srq = srq.map_err(told)?;
        Ok(Process { place, srq, mr })
    }

    fn recv(&mut self, slot: usize) -> Result<Ticket, Trouble> {
        let slice = self.mr.slice(slot * LEN, LEN).map_err(told)?;
        self.srq.recv(slice).map_err(told)
    }

    /// The next message went into that receive, by that target.
    fn came(&self, receive: Ticket, target: &XrcTarget, imm: Option<u32>) -> Result<(), Trouble> {
        let done = self.place.cq.wait_any(LIMIT).map_err(told)?;
        let done = done.ok_or("a message did not come")?;
        expect("the receive", done.ticket, receive)?;
        expect("the target", done.qp_num, target.qp_num())?;
        let success = done.outcome.map_err(|failure| format!("{failure:?}"))?;
        expect("the immediate data", success.imm, imm)?;
        expect("byte_len", success.byte_len as usize, LEN)
    }

    fn holds(&self, at: usize, number: u32) -> Result<(), Trouble> {
        let mut bytes = vec![0; LEN];
        self.mr.read_at(at, &mut bytes).map_err(told)?;
        Ok(same(&bytes, &pattern(number, LEN))?)
    }
}

/// What it takes to try something with two processes behind one node.
fn two_processes(arm: &Arm) -> Result<(Place, Place, XrcDomain, [Process; 2]), Trouble> {
    let (a, b) = (Place::new(&arm.sides[0])?, Place::new(&arm.sides[1])?);
    let domain = domain(&b)?;
    let processes = [
        Process::new(arm, &b, &domain)?,
        Process::new(arm, &b, &domain)?,
    ];
    Ok((a, b, domain, processes))
}

fn wait(a: &End<XrcSend>, posted: Result<Ticket, PostError>) -> Result<(), Trouble> {
    let ticket = posted.map_err(told)?;
    a.place
        .cq
        .wait(&ticket, LIMIT)
        .map_err(|error: WaitError| told(error))?;
    Ok(())
}

/// Each operation goes to both SRQs in turn, and reaches the memory of the process that has the SRQ.
fn two_srqs(arm: &Arm) -> Outcome {
    let (a, b, domain, mut processes) = two_processes(arm)?;
    let mut target = domain.create_target().map_err(told)?;
    let mut a = initiator(a)?;
    connect((&mut a.qp, &a.place), (&mut target, &b))?;
    let mr = Arc::clone(&a.place.mr);
    let source = mr.slice(SOURCE, LEN).map_err(told)?;
    let word = mr.slice(TARGET, 8).map_err(told)?;
    let mut number = 0;
    let mut fill = |place: &Place| -> Result<u32, Trouble> {
        number += 1;
        place.write(SOURCE, &pattern(number, LEN))?;
        Ok(number)
    };
    for process in &mut processes {
        let (srq, remote) = (process.srq.srq_num(), process.mr.remote());
        let (receive, sent) = (process.recv(0)?, fill(&a.place)?);
        let posted = a.qp.send_to(source, srq);
        wait(&a, posted)?;
        process.came(receive, &target, None)?;
        process.holds(0, sent)?;
        let (receive, sent) = (process.recv(1)?, fill(&a.place)?);
        let posted = a.qp.send_to_with_imm(source, srq, sent);
        wait(&a, posted)?;
        process.came(receive, &target, Some(sent))?;
        process.holds(LEN, sent)?;
        let sent = fill(&a.place)?;
        let posted = a.qp.write_to(source, srq, remote.at(REACHED as u64));
        wait(&a, posted)?;
        process.holds(REACHED, sent)?;
        let (receive, sent) = (process.recv(2)?, fill(&a.place)?);
        let place = REACHED + LEN;
        let posted =
            a.qp.write_to_with_imm(source, srq, remote.at(place as u64), sent);
        wait(&a, posted)?;
        process.came(receive, &target, Some(sent))?;
        process.holds(place, sent)?;
        fill(&a.place)?;
        let posted = a.qp.read_from(source, srq, remote.at(REACHED as u64));
        wait(&a, posted)?;
        // What the WRITE had brought there.
        same(&a.place.read(SOURCE, LEN)?, &pattern(sent - 1, LEN))?;
        let counter = remote.at((REACHED + 2 * LEN) as u64 / 8 * 8);
        let posted = a.qp.compare_and_swap_at(word, srq, counter, 0, 40);
        wait(&a, posted)?;
        let posted = a.qp.fetch_and_add_at(word, srq, counter, 2);
        wait(&a, posted)?;
        expect(
            "the word before the addition",
            a.place.read(TARGET, 8)?,
            40u64.to_ne_bytes().to_vec(),
        )?;
        let mut after = [0; 8];
        let at = (counter.addr - remote.addr) as usize;
        process.mr.read_at(at, &mut after).map_err(told)?;
        expect("the word afterwards", u64::from_ne_bytes(after), 42)?;
    }
    // The key of one process does not open its memory to requests for the other's SRQ.
    let foreign = processes[1].mr.remote().at(REACHED as u64);
    let refused =
        a.qp.write_to(source, processes[0].srq.srq_num(), foreign)
            .map_err(told)?;
    match a.place.cq.wait(&refused, LIMIT) {
        Err(WaitError::Failed(report)) => {
            no_access(arm, Some(report.status))?;
        }
        other => return Err(format!("a WRITE into memory of another process: {other:?}").into()),
    }
    for process in &processes {
        let books = process.srq.account();
        expect("receives", (books.succeeded, books.pending), (3, 0))?;
    }
    Ok(Done::Passed)
}

/// Messages of two senders in one SRQ: each names its target, and each sender's are in order.
fn two_targets(arm: &Arm) -> Outcome {
    const ROUNDS: u32 = 8;
    let (a, b, domain, [mut process, _]) = two_processes(arm)?;
    let mut pairs = Vec::new();
    for place in [a, Place::new(&arm.sides[0])?] {
        let mut target = domain.create_target().map_err(told)?;
        let mut end = initiator(place)?;
        connect((&mut end.qp, &end.place), (&mut target, &b))?;
        pairs.push((end, target));
    }
    let mut receives = Vec::new();
    for slot in 0..2 * ROUNDS as usize {
        receives.push(process.recv(slot)?);
    }
    let mut posted = Vec::new();
    for round in 0..ROUNDS {
        for (of, (end, _)) in pairs.iter_mut().enumerate() {
            let at = SOURCE + round as usize * LEN;
            end.place.write(at, &pattern(2 * round + of as u32, LEN))?;
            let slice = end.place.mr.slice(at, LEN).map_err(told)?;
            let srq = process.srq.srq_num();
            posted.push((
                of,
                end.qp.send_to_with_imm(slice, srq, round).map_err(told)?,
            ));
        }
    }
    let mut rounds = [0, 0];
    for _ in 0..2 * ROUNDS {
        let done = process.place.cq.wait_any(LIMIT).map_err(told)?;
        let done = done.ok_or("a message did not come")?;
        let of = pairs
            .iter()
            .position(|(_, target)| target.qp_num() == done.qp_num);
        let of = of.ok_or("a completion of no target")?;
        let success = done.outcome.map_err(|failure| format!("{failure:?}"))?;
        expect("the sender's next message", success.imm, Some(rounds[of]))?;
        let slot = receives.iter().position(|ticket| *ticket == done.ticket);
        let slot = slot.ok_or("a completion of no receive")?;
        process.holds(slot * LEN, 2 * rounds[of] + of as u32)?;
        rounds[of] += 1;
    }
    for (of, ticket) in posted {
        pairs[of].0.place.cq.wait(&ticket, LIMIT).map_err(told)?;
    }
    expect(
        "completions left",
        process.place.cq.poll().map_err(told)?,
        None,
    )?;
    Ok(Done::Passed)
}
