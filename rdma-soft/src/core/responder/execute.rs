//! Executing a request: a chain of checks, each with its own answer, then the memory.

use rdma_core_sys::{ibv_access_flags, ibv_wc_opcode, ibv_wc_status};

use super::{Fault, Fetched, Message, Response};
use crate::core::event::{PdId, SrqId};
use crate::core::keys::Asker;
use crate::core::qp::{Qp, RecvEnd, Shared};
use crate::core::transmit::{Payload, scatter};
use crate::core::wqe::Remote;
use crate::wire::{AtomicEth, OpcodeInfo, Operation, Packet, Place, Psn, Reth};

impl Qp {
    /// Executes the request that is due.
    pub(super) fn execute(
        &mut self,
        shared: &mut Shared,
        info: &OpcodeInfo,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<(), Fault> {
        let (srq, by) = self.receiver(shared, packet)?;
        self.check_place(info, packet)?;
        self.check_length(info.place, payload.len())?;
        match (info.op, packet.reth, packet.atomic) {
            (Operation::Send, ..) => {
                self.execute_send(shared, srq, by, info.place, packet, payload)
            }
            (Operation::Write, reth, _) => {
                self.execute_write(shared, srq, by, info.place, packet, reth, payload)
            }
            (Operation::ReadRequest, Some(reth), _) => self.execute_read(shared, by, packet, reth),
            (op @ (Operation::CompareSwap | Operation::FetchAdd), _, Some(atomic)) => {
                self.execute_atomic(shared, by, packet, op, atomic)
            }
            _ => Err(Fault::Invalid),
        }
    }

    /// First and middle packets leave a message open, and only its own kind continues it.
    fn check_place(&self, info: &OpcodeInfo, packet: &Packet) -> Result<(), Fault> {
        let fits = match &self.rq.message {
            None => info.place.starts(),
            Some(m) => !info.place.starts() && m.op == info.op && m.xrc_srq == packet.xrceth,
        };
        if fits { Ok(()) } else { Err(Fault::Invalid) }
    }

    /// All packets of a message but the last are full; a last one holds at least a byte.
    fn check_length(&self, place: Place, len: usize) -> Result<(), Fault> {
        let mtu = self.mtu as usize;
        let fits = match place {
            Place::First | Place::Middle => len == mtu,
            Place::Last => (1..=mtu).contains(&len),
            Place::Only => len <= mtu,
        };
        if fits { Ok(()) } else { Err(Fault::Invalid) }
    }

    pub(super) fn allows(&self, access: ibv_access_flags) -> Result<(), Fault> {
        let have = ibv_access_flags::from_bits_retain(self.attr.qp_access_flags);
        if have.contains(access) {
            Ok(())
        } else {
            Err(Fault::Invalid)
        }
    }

    fn execute_send(
        &mut self,
        shared: &mut Shared,
        srq: Option<SrqId>,
        by: Asker,
        place: Place,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> Result<(), Fault> {
        let (recv, done) = match self.rq.message.take() {
            // Without a receive its SRQ is gone.
            Some(m) => (self.rq.taken.as_ref().ok_or(Fault::Invalid)?, m.done),
            None => (self.take_receive(shared, srq).ok_or(Fault::NoReceive)?, 0),
        };
        let sges = recv.wqe.sges.as_slice();
        let stored = scatter(&shared.keys, by.pd, sges, u64::from(done), payload);
        if let Err(status) = stored {
            self.end_receive(shared, RecvEnd::error(status));
            return Err(match status {
                ibv_wc_status::IBV_WC_LOC_LEN_ERR => Fault::TooLong,
                _ => Fault::Local,
            });
        }
        // Fits: the sum of a receive's lengths is below 2^36, and what was stored fitted in.
        let done = done.saturating_add(payload.len() as u32);
        if let Some(rkey) = packet.ieth
            && shared.keys.invalidate(by, rkey, None).is_err()
        {
            // The peer must not believe that the key is dead, nor the application that all is well
            // (rxe ends the receive with this status, too).
            let status = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
            self.end_receive(shared, RecvEnd::error(status));
            return Err(Fault::Access);
        }
        if place.ends() {
            let end = RecvEnd {
                status: ibv_wc_status::IBV_WC_SUCCESS,
                opcode: ibv_wc_opcode::IBV_WC_RECV,
                byte_len: done,
                imm: packet.imm,
                invalidated: packet.ieth,
                sender: None,
                solicited: packet.bth.solicited,
            };
            self.end_receive(shared, end);
        } else {
            self.rq.message = Some(Message {
                op: Operation::Send,
                xrc_srq: packet.xrceth,
                remote: Remote::default(),
                total: 0,
                done,
            });
        }
        self.executed(packet, place);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn execute_write(
        &mut self,
        shared: &mut Shared,
        srq: Option<SrqId>,
        by: Asker,
        place: Place,
        packet: &Packet,
        reth: Option<Reth>,
        payload: &Payload<'_>,
    ) -> Result<(), Fault> {
        let write = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let mut m = match (self.rq.message, reth) {
            (Some(m), _) => m,
            (None, Some(reth)) => {
                self.allows(write)?;
                self.check_total(shared, reth.len)?;
                check_remote(shared, by, &reth, write)?;
                let remote = Remote {
                    addr: reth.va,
                    rkey: reth.rkey,
                };
                Message {
                    op: Operation::Write,
                    xrc_srq: packet.xrceth,
                    remote,
                    total: reth.len,
                    done: 0,
                }
            }
            (None, None) => return Err(Fault::Invalid),
        };
        let len = payload.len() as u32;
        let left = m.total - m.done;
        if len > left || (place.ends() && len != left) {
            return Err(Fault::Invalid);
        }
        if packet.imm.is_some() && !self.has_receive(shared, srq) {
            return Err(Fault::NoReceive);
        }
        if len > 0 {
            let at = m.remote.addr.wrapping_add(u64::from(m.done));
            let found = shared
                .keys
                .remote(by, m.remote.rkey, at, u64::from(len), write);
            let stored = found.and_then(|(region, offset)| {
                payload
                    .copy_to(0, region, offset, len as usize)
                    .map_err(Into::into)
            });
            stored.map_err(|_| Fault::Access)?;
        }
        m.done += len;
        if packet.imm.is_some() && self.take_receive(shared, srq).is_some() {
            let end = RecvEnd {
                status: ibv_wc_status::IBV_WC_SUCCESS,
                opcode: ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
                byte_len: m.done,
                imm: packet.imm,
                invalidated: None,
                sender: None,
                solicited: packet.bth.solicited,
            };
            self.end_receive(shared, end);
        }
        self.rq.message = (!place.ends()).then_some(m);
        self.executed(packet, place);
        Ok(())
    }

    fn execute_read(
        &mut self,
        shared: &mut Shared,
        by: Asker,
        packet: &Packet,
        reth: Reth,
    ) -> Result<(), Fault> {
        let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        self.allows(read)?;
        self.check_depth()?;
        self.check_total(shared, reth.len)?;
        check_remote(shared, by, &reth, read)?;
        let packets = reth.len.div_ceil(self.mtu).max(1);
        self.rq.advance(packets, true);
        self.fetch_executed(packet.bth.psn, packets, None);
        self.push_read(packet.bth.psn, by.pd, &reth, packets, false);
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        shared: &mut Shared,
        by: Asker,
        packet: &Packet,
        op: Operation,
        atomic: AtomicEth,
    ) -> Result<(), Fault> {
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        self.allows(access)?;
        if !atomic.va.is_multiple_of(8) {
            return Err(Fault::Invalid);
        }
        self.check_depth()?;
        let old = shared
            .keys
            .remote(by, atomic.rkey, atomic.va, 8, access)
            .and_then(|(region, offset)| {
                let result = match op {
                    Operation::CompareSwap => {
                        region.compare_swap(offset, atomic.compare, atomic.swap_or_add)
                    }
                    _ => region.fetch_add(offset, atomic.swap_or_add),
                };
                result.map_err(Into::into)
            })
            .map_err(|_| Fault::Access)?;
        self.rq.advance(1, true);
        self.fetch_executed(packet.bth.psn, 1, Some(old));
        self.rq.responses.push_back(Response::Atomic {
            psn: packet.bth.psn,
            old,
            msn: self.rq.msn,
            again: false,
        });
        Ok(())
    }

    /// Remembers a READ or atomic for when it is repeated.
    fn fetch_executed(&mut self, psn: Psn, packets: u32, result: Option<u64>) {
        if self.rq.fetched.len() >= usize::from(self.attr.max_dest_rd_atomic) {
            self.rq.fetched.pop_front();
        }
        self.rq.fetched.push_back(Fetched {
            psn,
            packets,
            result,
        });
    }

    /// At most `max_dest_rd_atomic` READs and atomics may wait for their answers.
    fn check_depth(&self) -> Result<(), Fault> {
        let room = self.rq.open_fetches(false) < usize::from(self.attr.max_dest_rd_atomic);
        if room { Ok(()) } else { Err(Fault::Invalid) }
    }

    pub(super) fn check_total(&self, shared: &Shared, len: u32) -> Result<(), Fault> {
        let port = self
            .path
            .and_then(|p| shared.config.ports.get(usize::from(p.port) - 1));
        let fits = port.is_some_and(|p| len <= p.max_msg_sz);
        if fits { Ok(()) } else { Err(Fault::Invalid) }
    }

    /// The packet is done with: move on, and say so if asked.
    fn executed(&mut self, packet: &Packet, place: Place) {
        self.rq.advance(1, place.ends());
        if packet.bth.ack_req {
            self.rq.ack(packet.bth.psn);
        }
    }

    pub(super) fn push_read(&mut self, psn: Psn, pd: PdId, reth: &Reth, packets: u32, again: bool) {
        let remote = Remote {
            addr: reth.va,
            rkey: reth.rkey,
        };
        let msn = self.rq.msn;
        self.rq.responses.push_back(Response::Read {
            psn,
            pd,
            remote,
            len: reth.len,
            packets,
            sent: 0,
            msn,
            again,
        });
    }
}

/// A request for no bytes accesses nothing, so its key is not looked at.
pub(super) fn check_remote(
    shared: &Shared,
    by: Asker,
    reth: &Reth,
    access: ibv_access_flags,
) -> Result<(), Fault> {
    if reth.len == 0 {
        return Ok(());
    }
    let found = (shared.keys).remote(by, reth.rkey, reth.va, u64::from(reth.len), access);
    found.map(|_| ()).map_err(|_| Fault::Access)
}
