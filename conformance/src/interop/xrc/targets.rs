//! The end with the targets and the SRQs.

use std::rc::Rc;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::steps::{
    ADDED, MOST, Message, REACHED, RECEIVES, SLOT, Step, Trouble, WORD, operands, steps,
};
use super::{hello, numbers, step_to};
use crate::bytes::{pattern, same};
use crate::device::{Buffer, Cq, Device, Pd, Qp, QpInit, Srq, Xrcd};
use crate::interop::Control;
use crate::interop::case::Shape;
use crate::interop::end::{Route, next, nothing_more};
use crate::interop::place::{immediate, parts};

/// What the targets' end has.
#[derive(Debug)]
pub(super) struct Targets {
    pd: Rc<Pd>,
    xrcd: Rc<Xrcd>,
    srqs: [(Rc<Srq>, Rc<Cq>, Rc<Buffer>); 2],
}

impl Targets {
    pub(super) fn meet(control: &mut Control, device: &Rc<Device>) -> Result<Targets, String> {
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
    pub(super) fn follow(&self, control: &mut Control, route: &Route) -> Result<(), String> {
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
            // Messages take receives as they begin, and complete as they end.
            let mut slots: Vec<_> = (0..expected.len() as u64).collect();
            while !expected.is_empty() {
                let wc = next(cq, "a receive")?;
                let slot = slots.iter().position(|slot| *slot == wc.wr_id);
                let slot = slot.ok_or_else(|| format!("receive {} ended twice", wc.wr_id))?;
                let slot = slots.swap_remove(slot) as usize;
                // Of each initiator the oldest that is left: in order, and each once.
                let from = qps.iter().position(|qp| qp.number() == wc.qp_num);
                let from = from.ok_or_else(|| format!("a receive of QP {}", wc.qp_num))?;
                let oldest = expected.iter().position(|(_, m)| m.from == from);
                let (at, message) = expected.remove(oldest.ok_or("a message too many")?);
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
        let found = (wc.status, wc.opcode, wc.byte_len as usize, wc.imm_data());
        let wanted = (IBV_WC_SUCCESS, kind, message.len, imm);
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
