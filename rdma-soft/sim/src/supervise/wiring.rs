//! The Queue Pairs of an end, by transport: what it tells its peer, and how they move.

use std::net::Ipv4Addr;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::{ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use rdma_qp::Timing;
use rdma_qp::supervise::{HEARTBEAT, HEARTBEAT_ANSWER, Proof};
use rdma_soft::core::{
    Ah, CqId, Engine, PdId, QpInit, RecvWqe, Remote, SendOp, SrqId, SrqInit, mtu_code,
};

use crate::host::ah_attr;
use crate::round::Verdict;

/// Bytes that the device writes in front of a datagram.
pub const GRH: u64 = 40;

/// What an end tells the other.
#[derive(Clone, Copy, Debug)]
pub struct There {
    /// Its Queue Pair, or its initiator.
    pub qp: u32,
    /// The first PSN of that.
    pub psn: u32,
    /// Its target, where the transport has one.
    pub target: u32,
    /// The SRQ that requests to it name, where they do.
    pub srq: u32,
    /// The Q_Key of this life; on every transport it tells one life from the others.
    pub key: u32,
    /// Its address.
    pub address: Ipv4Addr,
}

impl There {
    /// As bytes.
    pub fn encode(self) -> Vec<u8> {
        let words = [self.qp, self.psn, self.target, self.srq, self.key];
        let words = words.map(u32::to_be_bytes).concat();
        [&words[..], &self.address.octets()].concat()
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Option<There> {
        let (words, _) = bytes.as_chunks::<4>();
        let &[qp, psn, target, srq, key, address] = words else {
            return None;
        };
        let [qp, psn, target, srq, key] = [qp, psn, target, srq, key].map(u32::from_be_bytes);
        Some(There {
            qp,
            psn,
            target,
            srq,
            key,
            address: address.into(),
        })
    }
}

/// The Queue Pairs of an end.
#[derive(Debug)]
pub struct Wiring {
    transport: Transport,
    pd: PdId,
    qp: u32,
    /// On XRC.
    target: Option<(u32, SrqId)>,
    /// What this end told the peer.
    pub here: Option<There>,
    /// What the peer told.
    pub there: Option<There>,
    /// On UD, the way to it.
    ah: Option<Ah>,
}

fn refused(what: impl ToString) -> String {
    format!("the engine refused: {}", what.to_string())
}

impl Wiring {
    /// The Queue Pairs of a process.
    pub fn new(
        engine: &mut Engine,
        transport: Transport,
        (pd, cq): (PdId, CqId),
    ) -> Result<Wiring, String> {
        let xrc = transport == Transport::XrcIni;
        let init = QpInit {
            transport,
            pd: Some(pd),
            send_cq: Some(cq),
            recv_cq: (!xrc).then_some(cq),
            srq: None,
            xrcd: None,
            block_self_multicast: false,
            sq_sig_all: false,
            max_send_wr: 64,
            max_recv_wr: if xrc { 0 } else { 64 },
            max_send_sge: 1,
            max_recv_sge: if xrc { 0 } else { 1 },
            max_inline: 0,
        };
        let qp = engine.create_qp(init).map_err(refused)?;
        let mut target = None;
        if xrc {
            let xrcd = engine.open_xrcd();
            let srq = SrqInit {
                pd,
                max_wr: 64,
                max_sge: 1,
                limit: 0,
                xrc: Some((xrcd, cq)),
            };
            let srq = engine.create_srq(srq).map_err(refused)?;
            let init = QpInit {
                transport: Transport::XrcTgt,
                pd: None,
                send_cq: None,
                xrcd: Some(xrcd),
                max_send_wr: 0,
                max_send_sge: 0,
                ..init
            };
            target = Some((engine.create_qp(init).map_err(refused)?, srq));
        }
        Ok(Wiring {
            transport,
            pd,
            qp,
            target,
            here: None,
            there: None,
            ah: None,
        })
    }

    /// The Queue Pair that sends.
    pub fn qp(&self) -> u32 {
        self.qp
    }

    /// What this end tells the peer in its next life.
    pub fn describe(&mut self, (psn, key): (u32, u32), address: Ipv4Addr) -> There {
        let (target, srq) = self.target.map_or((0, 0), |(qp, srq)| (qp, srq.0));
        let here = There {
            qp: self.qp,
            psn,
            target,
            srq,
            key,
            address,
        };
        self.here = Some(here);
        here
    }

    /// Takes the peer's record in.
    pub fn meet(&mut self, engine: &mut Engine, there: There) -> Verdict {
        self.there = Some(there);
        if self.transport == Transport::Ud {
            let attr = ah_attr(there.address.into());
            if let Some(former) = self.ah.take() {
                engine.destroy_ah(&former);
            }
            self.ah = Some(engine.create_ah(self.pd, &attr).map_err(refused)?);
        }
        Ok(())
    }

    /// Moves all that it has.
    pub fn to(&self, engine: &mut Engine, state: ibv_qp_state, timing: &Timing) -> Verdict {
        if let Some((target, _)) = self.target {
            let there = self.there.map_or(0, |there| there.qp);
            self.one(engine, (target, Transport::XrcTgt, there), state, timing)?;
        }
        let peer = |there: There| match self.target {
            Some(_) => there.target,
            None => there.qp,
        };
        let there = self.there.map_or(0, peer);
        self.one(engine, (self.qp, self.transport, there), state, timing)
    }

    fn one(
        &self,
        engine: &mut Engine,
        (qp, transport, dest_qp_num): (u32, Transport, u32),
        state: ibv_qp_state,
        timing: &Timing,
    ) -> Verdict {
        let (now, _) = engine.query_qp(qp).ok_or("no Queue Pair")?;
        // From RESET is no way to ERR, and nothing to be flushed.
        let idle = now.qp_state == ibv_qp_state::IBV_QPS_RESET;
        if state == ibv_qp_state::IBV_QPS_ERR && idle {
            return Ok(());
        }
        let attr = ibv_qp_attr {
            qp_state: state,
            port_num: 1,
            // What lets probes in.
            qp_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.bits(),
            qkey: self.here.map_or(0, |here| here.key),
            path_mtu: mtu_code(1024),
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: timing.min_rnr_timer.code(),
            timeout: timing.timeout.code(),
            retry_cnt: timing.retry_cnt.get(),
            rnr_retry: timing.rnr_retry.code(),
            dest_qp_num,
            rq_psn: self.there.map_or(0, |there| there.psn),
            sq_psn: self.here.map_or(0, |here| here.psn),
            ah_attr: (self.there)
                .map_or_else(Default::default, |there| ah_attr(there.address.into())),
            ..Default::default()
        };
        let required = rules::required(transport, now.qp_state, state).unwrap_or_default();
        let mask = required | ibv_qp_attr_mask::IBV_QP_STATE;
        let moved = engine.modify_qp(qp, &attr, mask);
        moved
            .map(|_| ())
            .map_err(|error| format!("{transport} to {state}: {error}"))
    }

    /// Posts a receive where messages of the peer's arrive.
    pub fn receive(&self, engine: &mut Engine, wqe: RecvWqe) {
        match self.target {
            Some((_, srq)) => engine.post_srq_recv(srq, wqe),
            None => engine.post_recvs(self.qp, &mut [wqe].into()),
        }
    }

    /// Whether receives stay while lives come and go.
    pub fn shares_receives(&self) -> bool {
        self.target.is_some()
    }

    /// A message to the peer, with immediate data.
    pub fn message(&self, imm: Option<u32>) -> Result<SendOp, String> {
        if self.transport != Transport::Ud {
            let invalidate = None;
            return Ok(SendOp::Send { imm, invalidate });
        }
        let (there, ah) = self.there.zip(self.ah).ok_or("a peer without a record")?;
        Ok(SendOp::Datagram {
            ah,
            qp_num: there.qp,
            qkey: there.key,
            imm,
        })
    }

    /// A probe, or the answer to one.
    pub fn probe(&self, proof: Proof, answers: bool) -> Result<SendOp, String> {
        match proof {
            Proof::Echo if answers => self.message(Some(HEARTBEAT_ANSWER)),
            Proof::Echo => self.message(Some(HEARTBEAT)),
            _ => Ok(SendOp::Write {
                remote: Remote { addr: 0, rkey: 0 },
                imm: None,
            }),
        }
    }

    /// The SRQ that requests name.
    pub fn names(&self) -> u32 {
        self.there.map_or(0, |there| there.srq)
    }

    /// Bytes of a receive that are not the message's.
    pub fn front(&self) -> u64 {
        match self.transport {
            Transport::Ud => GRH,
            _ => 0,
        }
    }
}
