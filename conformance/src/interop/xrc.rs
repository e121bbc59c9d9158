//! XRC between two nodes: two SRQs through one target, two targets into one SRQ, and what has no receive.
//!
//! The connecting end has two initiators, each connected to a target of the listening end. That end has two SRQs, each with
//! a protection domain, memory and a CQ of its own. Every message names its SRQ; both ends know what it holds.

use std::fmt;
use std::rc::Rc;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::*;

use super::case::Shape;
use super::end::{Route, next, nothing_more};
use super::place::{immediate, parts};
use super::{Control, PORT};
use crate::Tally;
use crate::bytes::{pattern, same};
use crate::device::{Buffer, Cq, Device, Pd, Qp, QpInit, Send, Srq, Xrcd};

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Message {
    /// The initiator, 0 or 1.
    from: usize,
    /// The SRQ, 0 or 1.
    to: usize,
    opcode: ibv_wr_opcode,
    len: usize,
    trouble: Trouble,
}

/// What is wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    None,
    /// It names an SRQ that is none.
    NoSrq,
    /// It names memory of the other SRQ's protection domain.
    OthersMemory,
    /// The SRQ has no receive.
    NoReceive,
}

impl Message {
    fn receives(&self) -> bool {
        let consumes = matches!(
            self.opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
        );
        consumes && self.trouble == Trouble::None
    }

    fn with_immediate(&self) -> bool {
        matches!(
            self.opcode,
            IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
        )
    }

    fn sends(&self) -> bool {
        matches!(self.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM)
    }

    /// It may end so. A NAK that ends a connection is sent once, and may be lost.
    fn may_end(&self, status: ibv_wc_status, lossy: bool) -> bool {
        let wanted = match self.trouble {
            Trouble::None => IBV_WC_SUCCESS,
            Trouble::NoSrq => IBV_WC_REM_INV_REQ_ERR,
            Trouble::OthersMemory => IBV_WC_REM_ACCESS_ERR,
            Trouble::NoReceive => IBV_WC_RNR_RETRY_EXC_ERR,
        };
        let last_nak = matches!(self.trouble, Trouble::NoSrq | Trouble::OthersMemory);
        status == wanted || lossy && last_nak && status == IBV_WC_RETRY_EXC_ERR
    }
}

/// Requests that are posted before the first completion is waited for.
#[derive(Clone, Debug)]
struct Step {
    name: String,
    messages: Vec<Message>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.messages.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{}, {count} request{plural}", self.name)
    }
}

/// The longest message, and the room of each receive and of each WRITE and READ.
const SLOT: usize = 1 << 16;
/// Requests of a step at most.
const MOST: usize = 16;
/// Where receives go, in the memory of an SRQ.
const RECEIVES: usize = 0;
/// What WRITEs and READs reach. Its first word is for atomics as well.
const REACHED: usize = MOST * SLOT;
const WORD: u64 = 0x0123_4567_89ab_cdef;
const ADDED: u64 = 0x7fff_ffff_0000_0001;
/// A number that no SRQ has: devices count from small numbers or draw them, so the chance is one in millions.
const NO_SRQ: u32 = 0xab_cdef;

/// What is tried at one path MTU.
fn steps(mtu: usize) -> Vec<Step> {
    let message = |from, to, opcode, len| Message {
        from,
        to,
        opcode,
        len,
        trouble: Trouble::None,
    };
    let lengths = [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, SLOT];
    let step = |name: String, messages| Step { name, messages };
    let mut all = Vec::new();
    for opcode in [
        IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_WRITE_WITH_IMM,
    ] {
        let name = opcode.name().unwrap_or("?").trim_start_matches("IBV_WR_");
        let both = lengths
            .iter()
            .flat_map(|&len| [0, 1].map(|to| message(0, to, opcode, len)));
        let name_of = |what| format!("{name} to {what}");
        all.push(step(name_of("two SRQs through one target"), both.collect()));
        let crowd = (0..MOST).map(|at| message(at % 2, 0, opcode, lengths[at % lengths.len()]));
        all.push(step(
            name_of("one SRQ through two targets"),
            crowd.collect(),
        ));
    }
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let name = opcode.name().unwrap_or("?").trim_start_matches("IBV_WR_");
        let both = lengths
            .iter()
            .flat_map(|&len| [0, 1].map(|to| message(to, to, opcode, len)));
        all.push(step(
            format!("{name} of the memory of two SRQs"),
            both.collect(),
        ));
    }
    let one = |opcode| vec![message(1, 0, opcode, 8)];
    all.push(step(
        "compare and swap".to_owned(),
        one(IBV_WR_ATOMIC_CMP_AND_SWP),
    ));
    let adds = (0..MOST).map(|at| message(at % 2, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, 8));
    all.push(step(
        "fetch and add through two targets".to_owned(),
        adds.collect(),
    ));
    for (trouble, opcode, name) in [
        (Trouble::NoSrq, IBV_WR_SEND, "SEND to an SRQ that is none"),
        (
            Trouble::OthersMemory,
            IBV_WR_RDMA_WRITE,
            "WRITE to memory of another SRQ's domain",
        ),
        (
            Trouble::NoReceive,
            IBV_WR_SEND,
            "SEND to an SRQ without a receive, no RNR retry",
        ),
    ] {
        let wrong = Message {
            trouble,
            ..message(0, 1, opcode, mtu + 1)
        };
        all.push(step(name.to_owned(), vec![wrong]));
    }
    all
}

/// What the initiators' end has.
#[derive(Debug)]
struct Initiators {
    pd: Rc<Pd>,
    cq: Rc<Cq>,
    buffer: Rc<Buffer>,
    far: Far,
    lossy: bool,
}

/// What the targets' end has.
#[derive(Debug)]
struct Targets {
    pd: Rc<Pd>,
    xrcd: Rc<Xrcd>,
    srqs: [(Rc<Srq>, Rc<Cq>, Rc<Buffer>); 2],
}

/// What the initiators' end is told: the number of each SRQ, and address and key of its memory.
#[derive(Clone, Copy, Debug)]
struct Far([(u32, u64, u32); 2]);

/// Runs one end: with MTUs in bytes the one of the initiators, which says what is tried, whether the wire loses packets, and
/// prints the table.
///
/// # Errors
/// Where the two ends lost each other: a text. A step that fails is counted.
pub fn run(
    mut control: Control,
    plan: Option<(&[u32], bool)>,
    device: &Rc<Device>,
    gid_index: u8,
) -> Result<Tally, String> {
    let mine = device.gid(PORT, gid_index)?;
    let theirs = control.swap(&mine.to_string())?;
    let theirs: std::net::Ipv6Addr = theirs.parse().map_err(|e| format!("peer: {e}"))?;
    let route = Route {
        gid_index,
        mine,
        theirs: ibv_gid::from(theirs),
    };
    match plan {
        Some((mtus, lossy)) => {
            Initiators::meet(&mut control, device, lossy)?.lead(&mut control, mtus, &route)
        }
        None => {
            Targets::meet(&mut control, device)?.follow(&mut control, &route)?;
            Ok(Tally::default())
        }
    }
}

fn numbers<T: std::str::FromStr>(line: &str) -> Result<Vec<T>, String> {
    let parsed: Result<Vec<T>, _> = line.split(' ').map(str::parse).collect();
    parsed.map_err(|_| format!("peer: {line}"))
}

/// The QP number and first PSN of one end of a pair, in a line.
fn hello(qps: &[Qp; 2]) -> String {
    format!("{} {}", qps[0].number(), qps[1].number())
}

/// First PSNs, by end: they wrap round in the first longer message.
const PSN: [u32; 2] = [0xff_fff8, 0x7f_fff8];

/// Moves a QP along these states.
fn step_to(
    qp: &Qp,
    transport: Transport,
    states: &[ibv_qp_state],
    (peer, mtu, rnr_retry): (u32, ibv_mtu, u8),
    route: &Route,
) -> Result<(), String> {
    let initiates = transport == Transport::XrcIni;
    let mut attr = ibv_qp_attr::zeroed();
    attr.port_num = PORT;
    let access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    attr.qp_access_flags = if initiates { 0 } else { access.bits() };
    attr.path_mtu = mtu;
    attr.dest_qp_num = peer;
    [attr.sq_psn, attr.rq_psn] = if initiates { PSN } else { [PSN[1], PSN[0]] };
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (4, 4);
    // 0.64 ms; 67 ms.
    (attr.min_rnr_timer, attr.timeout) = (12, 14);
    (attr.retry_cnt, attr.rnr_retry) = (7, rnr_retry);
    attr.ah_attr = route.vector(route.theirs);
    let mut from = IBV_QPS_RESET;
    for &to in states {
        attr.qp_state = to;
        let mask = rules::required(transport, from, to).unwrap_or_default();
        (qp.modify(&attr, mask | IBV_QP_STATE))
            .map_err(|e| format!("{transport} {from}->{to}: {e}"))?;
        from = to;
    }
    Ok(())
}

impl Initiators {
    fn meet(control: &mut Control, device: &Rc<Device>, lossy: bool) -> Result<Initiators, String> {
        let pd = Pd::new(device)?;
        let line = control.swap("initiators")?;
        let [a, b, c, d, e, f] = numbers::<u64>(&line)?
            .try_into()
            .map_err(|_| format!("peer: {line}"))?;
        let far = Far([(a as u32, b, c as u32), (d as u32, e, f as u32)]);
        println!("srqs: {} {}, none: {NO_SRQ}", far.0[0].0, far.0[1].0);
        Ok(Initiators {
            cq: Cq::new(device, 2 * MOST as i32)?,
            buffer: Buffer::new(&pd, MOST * SLOT)?,
            pd,
            far,
            lossy,
        })
    }

    /// Goes through all steps.
    fn lead(&self, control: &mut Control, mtus: &[u32], route: &Route) -> Result<Tally, String> {
        let mut tally = Tally::default();
        let mut number = 0;
        for &bytes in mtus {
            let mtu = ibv_mtu::from_bytes(bytes).ok_or_else(|| format!("no MTU of {bytes}"))?;
            let mut qps = None;
            for (at, step) in steps(bytes as usize).iter().enumerate() {
                let ready = match qps.take() {
                    Some(ready) => ready,
                    None => self.connect(control, (bytes, mtu), route)?,
                };
                control.swap(&format!("step {at} {number}"))?;
                let mine = self.ask(&ready, step, number);
                let theirs = control.swap(if mine.is_ok() { "ok" } else { "failed" })?;
                let verdict = match (&mine, theirs.as_str()) {
                    (Ok(()), "ok") => "ok".to_owned(),
                    (Ok(()), theirs) => format!("FAILED: the targets' end: {theirs}"),
                    (Err(mine), theirs) => format!("FAILED: {mine}; the targets' end: {theirs}"),
                };
                println!("XRC  mtu {bytes:<4}  {step}: {verdict}");
                if verdict == "ok" {
                    tally.passed += 1;
                } else {
                    tally.failed += 1;
                }
                if verdict == "ok" && step.messages.iter().all(|m| m.trouble == Trouble::None) {
                    qps = Some(ready);
                }
                number += MOST as u32;
            }
        }
        control.swap("end")?;
        Ok(tally)
    }

    /// Two fresh initiators, connected to two fresh targets.
    fn connect(
        &self,
        control: &mut Control,
        (bytes, mtu): (u32, ibv_mtu),
        route: &Route,
    ) -> Result<[Qp; 2], String> {
        let cap = ibv_qp_cap {
            max_send_wr: MOST as u32,
            max_send_sge: 4,
            ..ibv_qp_cap::zeroed()
        };
        let init = QpInit {
            recv_cq: None,
            ..QpInit::new(&self.pd, [&self.cq; 2], IBV_QPT_XRC_SEND, cap)
        };
        let qps = [Qp::new(&init)?, Qp::new(&init)?];
        control.swap(&format!("connect {bytes}"))?;
        let line = control.swap(&hello(&qps))?;
        let peers = numbers::<u32>(&line)?;
        let states = [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS];
        for (qp, peer) in qps.iter().zip(peers) {
            // The one step that has no receive is to end at once; all others have theirs before they begin.
            step_to(qp, Transport::XrcIni, &states, (peer, mtu, 0), route)?;
        }
        control.swap("connected")?;
        Ok(qps)
    }

    fn ask(&self, qps: &[Qp; 2], step: &Step, number: u32) -> Result<(), String> {
        for (at, message) in step.messages.iter().enumerate() {
            let wrong = |trouble| message.trouble == trouble;
            let (srq, address, _) = self.far.0[message.to];
            let reached = if wrong(Trouble::OthersMemory) {
                1 - message.to
            } else {
                message.to
            };
            let (_, other, rkey) = self.far.0[reached];
            let address = if wrong(Trouble::OthersMemory) {
                other
            } else {
                address
            };
            let offset = if message.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
                0
            } else {
                at * SLOT
            };
            let here = at * SLOT;
            self.buffer.write(
                here,
                &match message.opcode {
                    IBV_WR_RDMA_READ => vec![0; message.len],
                    _ => pattern(number + at as u32, message.len),
                },
            );
            qps[message.from].post_send(&Send {
                wr_id: at as u64,
                opcode: message.opcode,
                flags: IBV_SEND_SIGNALED,
                imm: immediate(number, at),
                sges: self
                    .buffer
                    .sges(&parts(here, message.len, Shape::Pieces, [1, 2, 4])),
                remote: (address + offset as u64, rkey),
                operands: operands(message.opcode),
                srq: if wrong(Trouble::NoSrq) { NO_SRQ } else { srq },
                ..Send::default()
            })?;
        }
        let mut last = [None, None];
        for _ in &step.messages {
            let wc = next(&self.cq, "a request")?;
            let at = usize::try_from(wc.wr_id).unwrap_or(usize::MAX);
            let message = step.messages.get(at).ok_or("a completion of no request")?;
            if !message.may_end(wc.status, self.lossy) || wc.qp_num != qps[message.from].number() {
                return Err(format!("request {at} ended with {:?}", wc.status));
            }
            if last[message.from] >= Some(at) {
                return Err(format!("request {at} completed out of order"));
            }
            last[message.from] = Some(at);
        }
        nothing_more(&self.cq)?;
        self.results(step, number)
    }

    /// What READs and atomics brought back.
    fn results(&self, step: &Step, number: u32) -> Result<(), String> {
        let mut befores = Vec::new();
        for (at, message) in step.messages.iter().enumerate() {
            let found = self.buffer.read(at * SLOT, message.len);
            match message.opcode {
                IBV_WR_RDMA_READ => same(&found, &pattern(number + at as u32, message.len))?,
                IBV_WR_ATOMIC_CMP_AND_SWP => same(&found, &WORD.to_ne_bytes())?,
                IBV_WR_ATOMIC_FETCH_AND_ADD => befores.push(found),
                _ => {}
            }
        }
        // Two targets add in any order, and each sum is seen once.
        let sums = (0..befores.len() as u64).map(|n| WORD.wrapping_add(ADDED.wrapping_mul(n)));
        for sum in sums {
            let at = befores
                .iter()
                .position(|before| *before == sum.to_ne_bytes());
            befores.swap_remove(at.ok_or_else(|| format!("nobody saw the sum {sum:#x}"))?);
        }
        Ok(())
    }
}

impl Targets {
    fn meet(control: &mut Control, device: &Rc<Device>) -> Result<Targets, String> {
        let xrcd = Xrcd::new(device)?;
        let srq = || -> Result<_, String> {
            let (pd, cq) = (Pd::new(device)?, Cq::new(device, 2 * MOST as i32)?);
            let srq = Srq::xrc(&pd, &xrcd, &cq, MOST as u32, 4)?;
            Ok((srq, cq, Buffer::new(&pd, 2 * MOST * SLOT)?))
        };
        let srqs = [srq()?, srq()?];
        let about = |(srq, _, buffer): &(Rc<Srq>, Rc<Cq>, Rc<Buffer>)| -> Result<String, String> {
            Ok(format!(
                "{} {} {}",
                srq.number()?,
                buffer.address(REACHED),
                buffer.rkey()
            ))
        };
        control.swap(&format!("{} {}", about(&srqs[0])?, about(&srqs[1])?))?;
        Ok(Targets {
            pd: Pd::new(device)?,
            xrcd,
            srqs,
        })
    }

    /// Does what the other end says.
    fn follow(&self, control: &mut Control, route: &Route) -> Result<(), String> {
        let mut ready = None;
        loop {
            let line = control.recv()?;
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["connect", bytes] => {
                    control.send("go on")?;
                    let bytes: u32 = bytes.parse().map_err(|_| format!("peer: {line}"))?;
                    drop(ready.take());
                    ready = Some((self.connect(control, bytes, route)?, steps(bytes as usize)));
                }
                ["step", at, number] => {
                    let (qps, steps) = ready.as_ref().ok_or("a step before a connection")?;
                    let (at, number) = (at.parse::<usize>(), number.parse::<u32>());
                    let (Ok(at), Ok(number)) = (at, number) else {
                        return Err(format!("peer: {line}"));
                    };
                    let step = steps.get(at).ok_or_else(|| format!("peer: {line}"))?;
                    self.prepare(step, number)?;
                    control.send("ready")?;
                    control.recv()?;
                    let verdict = self.answered(qps, step, number);
                    control.send(&verdict.err().unwrap_or_else(|| "ok".to_owned()))?;
                }
                ["end"] => return control.send("end"),
                _ => return Err(format!("peer: {line}")),
            }
        }
    }

    fn connect(&self, control: &mut Control, bytes: u32, route: &Route) -> Result<[Qp; 2], String> {
        let mtu = ibv_mtu::from_bytes(bytes).ok_or_else(|| format!("no MTU of {bytes}"))?;
        let init = QpInit {
            send_cq: None,
            recv_cq: None,
            xrcd: Some(Rc::clone(&self.xrcd)),
            ..QpInit::new(
                &self.pd,
                [&self.srqs[0].1; 2],
                IBV_QPT_XRC_RECV,
                ibv_qp_cap::zeroed(),
            )
        };
        let qps = [Qp::new(&init)?, Qp::new(&init)?];
        let line = control.swap(&hello(&qps))?;
        let states = [IBV_QPS_INIT, IBV_QPS_RTR];
        for (qp, peer) in qps.iter().zip(numbers::<u32>(&line)?) {
            step_to(qp, Transport::XrcTgt, &states, (peer, mtu, 0), route)?;
        }
        control.swap("connected")?;
        Ok(qps)
    }

    /// Fills the memory, and posts a receive for each message that consumes one.
    fn prepare(&self, step: &Step, number: u32) -> Result<(), String> {
        for (srq, _, buffer) in &self.srqs {
            let _ = srq;
            buffer.write(0, &vec![0xee; 2 * MOST * SLOT]);
        }
        let mut posted = [0, 0];
        for (at, message) in step.messages.iter().enumerate() {
            let (srq, _, buffer) = &self.srqs[message.to];
            match message.opcode {
                IBV_WR_RDMA_READ => {
                    buffer.write(
                        REACHED + at * SLOT,
                        &pattern(number + at as u32, message.len),
                    );
                }
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    buffer.write(REACHED, &WORD.to_ne_bytes());
                }
                _ => {}
            }
            if message.receives() {
                let slot = posted[message.to];
                let room = parts(RECEIVES + slot * SLOT, SLOT, Shape::Pieces, [2, 5, 3]);
                srq.post(slot as u64, &buffer.sges(&room))?;
                posted[message.to] += 1;
            }
        }
        Ok(())
    }

    /// Holds completions and memory against what was sent.
    fn answered(&self, qps: &[Qp; 2], step: &Step, number: u32) -> Result<(), String> {
        for (to, (_, cq, _)) in self.srqs.iter().enumerate() {
            let mut expected: Vec<_> = (step.messages.iter().enumerate())
                .filter(|(_, m)| m.to == to && m.receives())
                .collect();
            for slot in 0..expected.len() {
                let wc = next(cq, "a receive")?;
                // Of each initiator the oldest that is left: in order, and each once.
                let oldest = |from: usize| expected.iter().position(|(_, m)| m.from == from);
                let from = qps.iter().position(|qp| qp.number() == wc.qp_num);
                let from = from.ok_or_else(|| format!("a receive of QP {}", wc.qp_num))?;
                let at = oldest(from).ok_or("a message too many")?;
                let (at, message) = expected.remove(at);
                self.received(&wc, slot, message, number, at)?;
            }
            nothing_more(cq)?;
        }
        self.reached(step, number)
    }

    fn received(
        &self,
        wc: &ibv_wc,
        slot: usize,
        message: &Message,
        number: u32,
        at: usize,
    ) -> Result<(), String> {
        let kind = if message.sends() {
            IBV_WC_RECV
        } else {
            IBV_WC_RECV_RDMA_WITH_IMM
        };
        let imm = message.with_immediate().then(|| immediate(number, at));
        let found = (
            wc.status,
            wc.wr_id,
            wc.opcode,
            wc.byte_len as usize,
            wc.imm_data(),
        );
        let wanted = (IBV_WC_SUCCESS, slot as u64, kind, message.len, imm);
        if found != wanted {
            return Err(format!("the receive says {found:?} instead of {wanted:?}"));
        }
        let buffer = &self.srqs[message.to].2;
        let held = buffer.read(RECEIVES + slot * SLOT, SLOT);
        let mut data = vec![0xee; SLOT];
        if message.sends() {
            data[..message.len].copy_from_slice(&pattern(number + at as u32, message.len));
        }
        same(&held, &data).map_err(|e| format!("receive {slot}: {e}"))
    }

    /// The memory that WRITEs and atomics reach.
    fn reached(&self, step: &Step, number: u32) -> Result<(), String> {
        let mut wanted = vec![vec![0xee; MOST * SLOT]; 2];
        let mut word = WORD;
        for (at, message) in step.messages.iter().enumerate() {
            let bytes = match message.opcode {
                _ if message.trouble != Trouble::None => continue,
                IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                    pattern(number + at as u32, message.len)
                }
                IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    word = word.wrapping_add(ADDED);
                    word.to_ne_bytes().to_vec()
                }
                IBV_WR_ATOMIC_CMP_AND_SWP => operands(message.opcode).1.to_ne_bytes().to_vec(),
                _ => continue,
            };
            let offset = if message.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
                0
            } else {
                at * SLOT
            };
            wanted[message.to][offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        for ((_, _, buffer), wanted) in self.srqs.iter().zip(&wanted) {
            same(&buffer.read(REACHED, MOST * SLOT), wanted)
                .map_err(|e| format!("what WRITEs reach: {e}"))?;
        }
        Ok(())
    }
}

/// What an atomic compares with or adds, and swaps in.
fn operands(opcode: ibv_wr_opcode) -> (u64, u64) {
    match opcode {
        IBV_WR_ATOMIC_CMP_AND_SWP => (WORD, 0xfeed_face_cafe_beef),
        _ => (ADDED, 0),
    }
}
