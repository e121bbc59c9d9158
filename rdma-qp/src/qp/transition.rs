//! Typed transitions: what each needs is a field, and each is lowered to the attributes and the mask that verbs takes.
//!
//! Which of its fields a transport takes is not said here: the rules say what it needs.

use rdma_core_sys::rules;
use rdma_core_sys::*;

use super::{Connects, Transport, Ud};
use crate::gid::{Gid, GidEntry};
use crate::pd::Access;
use crate::units::{AckTimeout, PathMtu, Psn, RetryCount, RnrRetry, RnrTimer};

/// A move of a QP to another state.
pub trait Transition {
    /// The attributes and the mask of the `ibv_modify_qp` call that makes the move on that transport. What the transport
    /// has no use for is left out of the mask.
    fn lower(&self, transport: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask);
}

/// A transition that QPs of transport `T` make.
pub trait TransitionOf<T: Transport>: Transition {}

/// Attributes with the state set, and nothing else.
fn to(state: ibv_qp_state) -> ibv_qp_attr {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = state;
    attr
}

/// The mask of a move: of the attributes that are there, those that the transport needs.
fn needed(
    transport: rules::Transport,
    from: ibv_qp_state,
    to: ibv_qp_state,
    there: ibv_qp_attr_mask,
) -> ibv_qp_attr_mask {
    let required = rules::required(transport, from, to).unwrap_or(ibv_qp_attr_mask::empty());
    IBV_QP_STATE | (required & there)
}

/// To RESET: forgets everything, including requests that are under way, which get no completion. Allowed from every
/// state.
///
/// Completions that were not polled before are never delivered afterwards. A provider may leave them in the CQ, where they
/// take room until they are polled off: poll the CQ before the new life fills its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToReset;

impl<T: Transport> TransitionOf<T> for ToReset {}

impl Transition for ToReset {
    fn lower(&self, _: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        (to(IBV_QPS_RESET), IBV_QP_STATE)
    }
}

/// To ERR: flushes every request, those that are posted later too. Allowed from every state but RESET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToErr;

impl<T: Transport> TransitionOf<T> for ToErr {}

impl Transition for ToErr {
    fn lower(&self, _: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        (to(IBV_QPS_ERR), IBV_QP_STATE)
    }
}

/// From RTS to SQD: lets the sends that have begun finish and begins no others. Success of the move does not mean that
/// they are finished. Some devices (mlx5) have no SQD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToSqd {
    /// Raise the asynchronous event `IBV_EVENT_SQ_DRAINED` when they are.
    pub notify: bool,
}

impl<T: Transport> TransitionOf<T> for ToSqd {}

impl Transition for ToSqd {
    fn lower(&self, _: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        let mut attr = to(IBV_QPS_SQD);
        attr.en_sqd_async_notify = self.notify.into();
        let mask = if self.notify {
            IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY
        } else {
            IBV_QP_STATE
        };
        (attr, mask)
    }
}

/// From RESET to INIT: receives can be posted from there on. Of RC and UC; UD has [`ToInitUd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToInit {
    /// The port, counted from 1.
    pub port: u8,
    /// Place of the partition key in the port's table; on RoCE always 0.
    pub pkey_index: u16,
    /// What the peer may do.
    pub access: Access,
}

impl<T: Connects> TransitionOf<T> for ToInit {}

impl Transition for ToInit {
    fn lower(&self, transport: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        let mut attr = to(IBV_QPS_INIT);
        attr.port_num = self.port;
        attr.pkey_index = self.pkey_index;
        attr.qp_access_flags = self.access.bits();
        let there = IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
        let mask = needed(transport, IBV_QPS_RESET, IBV_QPS_INIT, there);
        (attr, mask)
    }
}

/// Where packets go, and from which address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Local port, counted from 1: that of the QP.
    pub port: u8,
    /// LID of the peer; 0 on Ethernet.
    pub lid: u16,
    /// Service level, 0..=15.
    pub service_level: u8,
    /// The global part. RoCE needs it.
    pub global: Option<Global>,
}

/// The part of a path that routers look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Global {
    /// GID of the peer.
    pub dgid: Gid,
    /// Place of the own GID in the port's table. There is no default: entry 0 is rarely the right one.
    pub sgid_index: u8,
    /// Routers that a packet may pass, plus one. On RoCE it becomes the TTL of the IP packet: 1 does not pass any router.
    pub hop_limit: u8,
    /// Traffic class; on RoCE the DSCP and ECN bits.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// Hop limit where none is given.
pub(crate) const HOP_LIMIT: u8 = 64;

impl Path {
    /// A path from a local GID table entry to `dgid`, with hop limit 64 and everything else 0.
    pub fn new(source: GidEntry, dgid: Gid) -> Path {
        // `Qp::endpoint` lets no index pass that the 8 bits of the field cannot name; from others it becomes the last one,
        // which the check before the call refuses where there is none.
        let sgid_index = source.sgid_index().unwrap_or(u8::MAX);
        let global = Global {
            dgid,
            sgid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
        };
        Path {
            port: source.port,
            lid: 0,
            service_level: 0,
            global: Some(global),
        }
    }

    pub(crate) fn lower(&self) -> ibv_ah_attr {
        let mut av = ibv_ah_attr::zeroed();
        av.port_num = self.port;
        av.dlid = self.lid;
        av.sl = self.service_level;
        if let Some(global) = self.global {
            av.is_global = 1;
            av.grh.dgid = ibv_gid::from_raw(global.dgid.bytes());
            av.grh.sgid_index = global.sgid_index;
            av.grh.hop_limit = global.hop_limit;
            av.grh.traffic_class = global.traffic_class;
            av.grh.flow_label = global.flow_label;
        }
        av
    }
}

/// From INIT to RTR: what arrives from the peer is handled from there on. UD has [`ToRtrUd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRtr {
    /// The way to the peer.
    pub path: Path,
    /// Largest payload of a packet; the same at both ends, and not above the port's active MTU.
    pub path_mtu: PathMtu,
    /// QP number of the peer.
    pub dest_qp_num: u32,
    /// First PSN that the peer sends.
    pub rq_psn: Psn,
    /// READs and atomics of the peer that can be served at a time: at least what the peer issues. UC has none.
    pub max_dest_rd_atomic: u8,
    /// How long the peer is asked to wait when no receive is posted. UC asks nobody.
    pub min_rnr_timer: RnrTimer,
}

impl<T: Connects> TransitionOf<T> for ToRtr {}

impl Transition for ToRtr {
    fn lower(&self, transport: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        let mut attr = to(IBV_QPS_RTR);
        attr.ah_attr = self.path.lower();
        attr.path_mtu = ibv_mtu(self.path_mtu.code());
        attr.dest_qp_num = self.dest_qp_num;
        attr.rq_psn = self.rq_psn.get();
        attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
        attr.min_rnr_timer = self.min_rnr_timer.code();
        let there = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let mask = needed(transport, IBV_QPS_INIT, IBV_QPS_RTR, there);
        (attr, mask)
    }
}

/// From RTR to RTS: sends can be posted from there on. UC takes of it the PSN only, because nothing is acknowledged there;
/// UD has [`ToRtsUd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRts {
    /// First PSN to send; the peer was told.
    pub sq_psn: Psn,
    /// How long to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often to repeat without one.
    pub retry_cnt: RetryCount,
    /// How often to repeat when the peer had no receive posted. 0 makes one late receive end the connection.
    pub rnr_retry: RnrRetry,
    /// READs and atomics under way at a time: at most what the peer serves.
    pub max_rd_atomic: u8,
}

impl<T: Connects> TransitionOf<T> for ToRts {}

impl Transition for ToRts {
    fn lower(&self, transport: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        let mut attr = to(IBV_QPS_RTS);
        attr.sq_psn = self.sq_psn.get();
        attr.timeout = self.timeout.code();
        attr.retry_cnt = self.retry_cnt.get();
        attr.rnr_retry = self.rnr_retry.code();
        attr.max_rd_atomic = self.max_rd_atomic;
        let there = IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        let mask = needed(transport, IBV_QPS_RTR, IBV_QPS_RTS, there);
        (attr, mask)
    }
}

/// From RESET to INIT, on UD: receives can be posted from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToInitUd {
    /// The port, counted from 1.
    pub port: u8,
    /// Place of the partition key in the port's table; on RoCE always 0.
    pub pkey_index: u16,
    /// What a datagram must carry to be received. With the high bit set it is for privileged programs, and the kernel
    /// refuses it with EPERM.
    pub qkey: u32,
}

impl TransitionOf<Ud> for ToInitUd {}

impl Transition for ToInitUd {
    fn lower(&self, transport: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        let mut attr = to(IBV_QPS_INIT);
        attr.port_num = self.port;
        attr.pkey_index = self.pkey_index;
        attr.qkey = self.qkey;
        let there = IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY;
        let mask = needed(transport, IBV_QPS_RESET, IBV_QPS_INIT, there);
        (attr, mask)
    }
}

/// From INIT to RTR, on UD: datagrams are received from there on. Each names its sender, so there is no peer to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRtrUd;

impl TransitionOf<Ud> for ToRtrUd {}

impl Transition for ToRtrUd {
    fn lower(&self, _: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        (to(IBV_QPS_RTR), IBV_QP_STATE)
    }
}

/// From RTR to RTS, on UD: datagrams can be sent from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRtsUd {
    /// First PSN to send. Receivers do not look at it.
    pub sq_psn: Psn,
}

impl TransitionOf<Ud> for ToRtsUd {}

impl Transition for ToRtsUd {
    fn lower(&self, transport: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        let mut attr = to(IBV_QPS_RTS);
        attr.sq_psn = self.sq_psn.get();
        let mask = needed(transport, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN);
        (attr, mask)
    }
}

#[cfg(test)]
mod tests;
