//! The end with the initiators.

use std::rc::Rc;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::steps::{ADDED, MOST, NO_SRQ, SLOT, Step, Trouble, WORD, operands, steps};
use super::{hello, numbers, step_to};
use crate::Tally;
use crate::bytes::{pattern, same};
use crate::device::{Buffer, Cq, Device, Pd, Qp, QpInit, Send};
use crate::interop::Control;
use crate::interop::case::Shape;
use crate::interop::end::{Route, next, nothing_more};
use crate::interop::place::{immediate, parts};

/// What the initiators' end has.
#[derive(Debug)]
pub(super) struct Initiators {
    pd: Rc<Pd>,
    cq: Rc<Cq>,
    buffer: Rc<Buffer>,
    far: Far,
    lossy: bool,
}

/// What the initiators' end is told: the number of each SRQ, and address and key of its memory.
#[derive(Clone, Copy, Debug)]
struct Far([(u32, u64, u32); 2]);

impl Initiators {
    pub(super) fn meet(
        control: &mut Control,
        device: &Rc<Device>,
        lossy: bool,
    ) -> Result<Initiators, String> {
        let pd = Pd::new(device)?;
        let line = control.swap("initiators")?;
        let [a, b, c, d, e, f] = numbers::<u64>(&line)?
            .try_into()
            .map_err(|_| format!("peer: {line}"))?;
        let far = Far([(a as u32, b, c as u32), (d as u32, e, f as u32)]);
        for (srq, address, rkey) in far.0 {
            println!("srq {srq} reaches {MOST} x {SLOT} bytes at {address:#x} by key {rkey:#x}");
        }
        println!("no srq {NO_SRQ}");
        Ok(Initiators {
            cq: Cq::new(device, 2 * MOST as i32)?,
            buffer: Buffer::new(&pd, MOST * SLOT)?,
            pd,
            far,
            lossy,
        })
    }

    /// Goes through all steps.
    pub(super) fn lead(
        &self,
        control: &mut Control,
        mtus: &[u32],
        route: &Route,
    ) -> Result<Tally, String> {
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
                if verdict != "ok" {
                    tally.failed += 1;
                    // Receives may be left over, which the next step would meet.
                    control.swap("end")?;
                    return Ok(tally);
                }
                tally.passed += 1;
                if step.messages.iter().all(|m| m.trouble == Trouble::None) {
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
