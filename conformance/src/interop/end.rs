//! One end of a pair of QPs: how it is made, and how it learns of the other one.

use std::net::Ipv6Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::*;

use super::case::Service;
use super::place::TARGET;
use super::{PORT, Session};
use crate::device::{Ah, Buffer, Cq, Pd, Qp, QpInit, Srq};

/// How the two QPs of a pair are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Setting {
    pub(super) service: Service,
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
        service: Service {
            transport: Transport::Rc,
            shared: false,
        },
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
    pub(super) qp_num: u32,
    psn: u32,
    /// Of the target area.
    pub(super) addr: u64,
    pub(super) rkey: u32,
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

/// The two ends' GIDs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) gid_index: u8,
    pub(super) mine: ibv_gid,
    pub(super) theirs: ibv_gid,
}

impl Route {
    /// The addresses are IPv4.
    pub(super) fn v4(&self) -> bool {
        Ipv6Addr::from(self.mine).to_ipv4_mapped().is_some()
    }

    /// The multicast group of this family. Both addresses are from the ranges for local use (RFC 2365, RFC 4291).
    pub(super) fn group(&self) -> ibv_gid {
        let group = match self.v4() {
            true => "::ffff:239.192.77.1",
            false => "ff15::4d:1",
        };
        ibv_gid::from(group.parse::<Ipv6Addr>().unwrap_or(Ipv6Addr::UNSPECIFIED))
    }

    pub(super) fn vector(&self, dgid: ibv_gid) -> ibv_ah_attr {
        let mut vector = ibv_ah_attr::zeroed();
        vector.is_global = 1;
        vector.port_num = PORT;
        vector.grh.dgid = dgid;
        vector.grh.sgid_index = self.gid_index;
        vector.grh.hop_limit = HOP_LIMIT;
        vector
    }
}

/// Bytes that every QP can send inline.
pub(super) const MAX_INLINE: u32 = 128;
/// The key of all datagram QPs.
pub(super) const QKEY: u32 = 0x1234_5678;
/// Datagrams tell it to their receiver.
pub(super) const HOP_LIMIT: u8 = 64;
/// 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
const RD_ATOMIC: u8 = 4;
/// Longest time that a completion may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct End {
    pub(super) qp: Qp,
    /// The second member of a multicast group; the first one is `qp`.
    pub(super) second: Option<Qp>,
    pub(super) srq: Option<Rc<Srq>>,
    pub(super) setting: Setting,
    pub(super) pd: Rc<Pd>,
    pub(super) buffer: Rc<Buffer>,
    pub(super) route: Route,
    /// The other end and, for datagrams, the way there.
    pub(super) peer: Option<(Address, Option<Rc<Ah>>)>,
}

impl End {
    /// A QP in RESET.
    pub(super) fn new(session: &Session, setting: Setting) -> Result<End, String> {
        let Service { transport, shared } = setting.service;
        let (pd, buffer) = (Rc::clone(&session.pd), Rc::clone(&session.buffer));
        let srq = match shared {
            true => Some(Srq::new(&pd, 16, 4)?),
            false => None,
        };
        let cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: if shared { 0 } else { 16 },
            max_send_sge: 4,
            max_recv_sge: if shared { 0 } else { 4 },
            max_inline_data: MAX_INLINE,
        };
        let [sends, receives] = &session.cqs;
        let qp_type = transport.qp_type().ok_or("no program can make such a QP")?;
        let init = QpInit {
            srq: srq.clone(),
            ..QpInit::new(&pd, [sends, receives], qp_type, cap)
        };
        Ok(End {
            qp: Qp::new(&init)?,
            second: match transport {
                Transport::Ud => Some(Qp::new(&init)?),
                _ => None,
            },
            srq,
            setting,
            route: session.route,
            pd,
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
        to_rts: bool,
    ) -> Result<(), String> {
        let transport = self.setting.service.transport;
        let mut attr = ibv_qp_attr::zeroed();
        attr.port_num = PORT;
        let mut access = IBV_ACCESS_REMOTE_WRITE;
        if transport == Transport::Rc {
            access |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        }
        attr.qp_access_flags = access.bits();
        attr.qkey = QKEY;
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
        attr.ah_attr = self.route.vector(self.route.theirs);
        let moves = [
            (IBV_QPS_RESET, IBV_QPS_INIT),
            (IBV_QPS_INIT, IBV_QPS_RTR),
            (IBV_QPS_RTR, IBV_QPS_RTS),
        ];
        for qp in [Some(&self.qp), self.second.as_ref()].into_iter().flatten() {
            for (from, to) in &moves[..if to_rts { 3 } else { 1 }] {
                attr.qp_state = *to;
                let mask = rules::required(transport, *from, *to).unwrap_or_default();
                (qp.modify(&attr, mask | IBV_QP_STATE))
                    .map_err(|e| format!("{transport} {from}->{to}: {e}"))?;
            }
        }
        let way = match transport {
            Transport::Ud => Some(self.way_to(self.route.theirs)?),
            _ => None,
        };
        self.peer = Some((peer, way));
        Ok(())
    }

    /// An address handle.
    pub(super) fn way_to(&self, dgid: ibv_gid) -> Result<Rc<Ah>, String> {
        Ok(Ah::new(&self.pd, &self.route.vector(dgid))?)
    }

    /// Waits until the QP is in this state: a device may need a moment between a completion and the state.
    pub(super) fn in_state(&self, wanted: ibv_qp_state) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let state = self.qp.query()?.qp_state;
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
pub(super) fn next(cq: &Cq, of: &str) -> Result<ibv_wc, String> {
    next_within(cq, PATIENCE)?.ok_or_else(|| format!("no completion of {of} within {PATIENCE:?}"))
}

/// The next completion, if one comes in time.
pub(super) fn next_within(cq: &Cq, patience: Duration) -> Result<Option<ibv_wc>, String> {
    Ok(cq.next_within(patience)?)
}

pub(super) fn nothing_more(cq: &Cq) -> Result<(), String> {
    match cq.poll()? {
        None => Ok(()),
        Some(wc) => Err(format!(
            "one completion too many: {:?} of {}",
            wc.status, wc.wr_id
        )),
    }
}
