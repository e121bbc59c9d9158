//! How each transport proves that the peer is there.

use rdma_core_sys::rules;

use super::Proof;
use crate::cq::{Success, Ticket};
use crate::endpoint::RemoteAddr;
use crate::qp::op::Op;
use crate::qp::{Connects, NOTHING, PostError, PostFlags, Qp, Rc, RecvQueue, Uc, op};

/// Immediate data of a heartbeat: a message of no bytes with it is no message of the application's.
pub const HEARTBEAT: u32 = 0xffff_5afe;

/// A request without bytes names no memory, and neither address nor rkey is looked at.
const NOWHERE: RemoteAddr = RemoteAddr {
    addr: 0,
    rkey: 0,
    room: 0,
};

/// Transports whose connections can be supervised.
pub trait Probes: Connects + RecvQueue {
    /// What a probe proves.
    const PROOF: Proof;

    /// Posts a probe.
    #[doc(hidden)]
    fn probe(qp: &mut Qp<Self>) -> Result<Ticket, PostError>
    where
        Self: Sized;
}

fn post<T: Connects, O: Op<T>>(qp: &mut Qp<T>, op: O) -> Result<Ticket, PostError> {
    let ticket = qp.post(op, NOTHING, PostFlags::empty())?;
    qp.ring()?;
    Ok(ticket)
}

impl Probes for Rc {
    const PROOF: Proof = Proof::Process;

    fn probe(qp: &mut Qp<Rc>) -> Result<Ticket, PostError> {
        post(qp, op::Write { remote: NOWHERE })
    }
}

impl Probes for Uc {
    const PROOF: Proof = Proof::Heartbeat;

    fn probe(qp: &mut Qp<Uc>) -> Result<Ticket, PostError> {
        post(qp, op::SendImm(HEARTBEAT))
    }
}

impl Proof {
    /// What can be proven of a peer over a transport; UD, which has no one peer, by messages only.
    ///
    /// ```
    /// use rdma_core_sys::rules::Transport;
    /// use rdma_qp::supervise::Proof;
    /// // The target of XRC answers as long as any process of its node holds it.
    /// assert_eq!(Proof::over(Transport::XrcIni), Proof::Node);
    /// assert_eq!(Proof::over(Transport::Rc), Proof::Process);
    /// ```
    pub fn over(transport: rules::Transport) -> Proof {
        match transport {
            rules::Transport::Rc => Proof::Process,
            rules::Transport::XrcIni | rules::Transport::XrcTgt => Proof::Node,
            _ => Proof::Heartbeat,
        }
    }
}

/// Whether a message that was received is a heartbeat.
pub(super) fn is_heartbeat(proof: Proof, success: &Success) -> bool {
    proof == Proof::Heartbeat && success.byte_len == 0 && success.imm == Some(HEARTBEAT)
}
