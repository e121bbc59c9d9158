//! What each transport does in its own way: the records, the way to RTS, and how it proves that the peer is there.

use std::fmt::Display;

use rdma_core_sys::{IBV_QPS_ERR, rules};

use super::Proof;
use crate::ah::Destination;
use crate::cq::{Success, Ticket};
use crate::endpoint::{Endpoint, Peer, RemoteAddr, RemoteRegion, encode};
use crate::gid::GidEntry;
use crate::pd::Access;
use crate::qkey::QKey;
use crate::qp::{
    Connecting, NOTHING, Negotiated, Op, PathOptions, PostFlags, Qp, Rc, ToErr, ToReset, Transport,
    Uc, Ud, XrcTarget, op,
};
use crate::units::Timing;
use crate::xrc::{SrqNum, XrcSend};

/// Immediate data of a probe where nothing is acknowledged: a message of no bytes with it is no message of the application's.
pub const HEARTBEAT: u32 = 0xffff_5afe;

/// Immediate data of the answer to a probe, which has no bytes either.
pub const HEARTBEAT_ANSWER: u32 = 0xffff_5aff;

/// A request without bytes names no memory, and neither address nor rkey is looked at.
const NOWHERE: RemoteAddr = RemoteAddr {
    addr: 0,
    rkey: 0,
    room: 0,
};

/// What an end tells its peer besides its Queue Pairs, and how: the same in each life.
#[doc(hidden)]
#[derive(Debug)]
pub struct Own<'a> {
    pub gid: GidEntry,
    pub path: PathOptions,
    pub offered: &'a [RemoteRegion],
}

/// Posts the receives of a life.
#[doc(hidden)]
pub type PostReceives<'a, T> = &'a mut dyn FnMut(&mut Qp<T>) -> Result<(), String>;

/// Transports whose connections can be supervised.
pub trait Probes: Transport {
    /// What a probe proves.
    const PROOF: Proof;

    /// What an end has besides its Queue Pair.
    #[doc(hidden)]
    type Beside: Send;

    /// Whether the peer's probes are let in.
    #[doc(hidden)]
    fn lets_probes_in(_qp: &Qp<Self>, _beside: &Self::Beside) -> bool
    where
        Self: Sized,
    {
        true
    }

    /// From ERR, or from wherever it is, to a record for the peer.
    #[doc(hidden)]
    fn describe(
        qp: &mut Qp<Self>,
        beside: &mut Self::Beside,
        own: &Own<'_>,
    ) -> Result<Vec<u8>, String>
    where
        Self: Sized;

    /// To RTR, receives posted, with the peer of a record.
    #[doc(hidden)]
    fn join(
        qp: &mut Qp<Self>,
        beside: &mut Self::Beside,
        record: &[u8],
        timing: Timing,
        receives: PostReceives<'_, Self>,
    ) -> Result<Peer, String>
    where
        Self: Sized;

    /// To RTS.
    #[doc(hidden)]
    fn finish(qp: &mut Qp<Self>, beside: &mut Self::Beside, timing: Timing) -> Result<(), String>
    where
        Self: Sized;

    /// Ends what is not the Queue Pair, whose queues the driver empties.
    #[doc(hidden)]
    fn end(_beside: &mut Self::Beside) {}

    /// Whether the end has failed, as events say of this Queue Pair. `None`: it is none of this end.
    #[doc(hidden)]
    fn has_failed(qp: &Qp<Self>, _beside: &Self::Beside, qp_num: u32) -> Option<bool>
    where
        Self: Sized,
    {
        let failed = || qp.state().is_ok_and(|state| state == IBV_QPS_ERR);
        (qp_num == qp.qp_num()).then(failed)
    }

    /// Posts a probe. `None`: the Queue Pair does not take it.
    #[doc(hidden)]
    fn probe(qp: &mut Qp<Self>, beside: &Self::Beside) -> Option<Ticket>
    where
        Self: Sized;

    /// Posts the answer to a probe, where the transport does not answer by itself.
    #[doc(hidden)]
    fn answer(_qp: &mut Qp<Self>, _beside: &Self::Beside) -> Option<Ticket>
    where
        Self: Sized,
    {
        None
    }

    /// Whether a message came from the peer, and not from somebody else who may send to this end.
    #[doc(hidden)]
    fn is_of_peer(_beside: &Self::Beside, _success: &Success) -> bool {
        true
    }
}

fn told(error: impl Display) -> String {
    error.to_string()
}

/// What the Queue Pair does not take shows by itself: it is full, or in error.
fn post<T: Transport, O: Op<T>>(qp: &mut Qp<T>, op: O) -> Option<Ticket> {
    let ticket = qp.post(op, NOTHING, PostFlags::empty()).ok()?;
    qp.ring().ok()?;
    Some(ticket)
}

/// What the two ends of a connection agreed on, between RTR and RTS.
type Agreed = Option<Negotiated>;

fn describe(end: &mut impl Connecting, own: &Own<'_>) -> Result<Endpoint, String> {
    end.make(&ToReset).map_err(told)?;
    end.describe(own.gid, own.path).map_err(told)
}

/// [`Probes::describe`], [`Probes::join`] and [`Probes::finish`] of the transports that are a Queue Pair at each end.
fn describe_pair<T: Transport>(qp: &mut Qp<T>, own: &Own<'_>) -> Result<Vec<u8>, String> {
    let here = describe(qp, own)?;
    encode(&here, own.offered).map_err(told)
}

fn join_pair<T: Transport>(
    qp: &mut Qp<T>,
    agreed: &mut Agreed,
    (record, timing): (&[u8], Timing),
    receives: PostReceives<'_, T>,
) -> Result<Peer, String> {
    let there = Peer::decode(record).map_err(told)?;
    qp.to_init().map_err(told)?;
    receives(qp)?;
    *agreed = Some(qp.begin(&there, timing).map_err(told)?);
    Ok(there)
}

fn finish_one(
    end: &mut impl Connecting,
    agreed: &mut Agreed,
    timing: Timing,
) -> Result<(), String> {
    let agreed = agreed.take().ok_or("nothing was agreed on")?;
    end.finish(agreed, timing).map_err(told).map(drop)
}

/// The steps of a transport that is a Queue Pair at each end.
macro_rules! pair {
    () => {
        type Beside = Agreed;

        fn describe(qp: &mut Qp<Self>, _: &mut Agreed, own: &Own<'_>) -> Result<Vec<u8>, String> {
            describe_pair(qp, own)
        }

        fn join(
            qp: &mut Qp<Self>,
            agreed: &mut Agreed,
            record: &[u8],
            timing: Timing,
            receives: PostReceives<'_, Self>,
        ) -> Result<Peer, String> {
            join_pair(qp, agreed, (record, timing), receives)
        }

        fn finish(qp: &mut Qp<Self>, agreed: &mut Agreed, timing: Timing) -> Result<(), String> {
            finish_one(qp, agreed, timing)
        }
    };
}

impl Probes for Rc {
    const PROOF: Proof = Proof::Process;

    pair!();

    fn lets_probes_in(qp: &Qp<Rc>, _: &Agreed) -> bool {
        Connecting::access(qp).contains(Access::REMOTE_WRITE)
    }

    fn probe(qp: &mut Qp<Rc>, _: &Agreed) -> Option<Ticket> {
        post(qp, op::Write { remote: NOWHERE })
    }
}

impl Probes for Uc {
    const PROOF: Proof = Proof::Echo;

    pair!();

    fn probe(qp: &mut Qp<Uc>, _: &Agreed) -> Option<Ticket> {
        post(qp, op::SendImm(HEARTBEAT))
    }

    fn answer(qp: &mut Qp<Uc>, _: &Agreed) -> Option<Ticket> {
        post(qp, op::SendImm(HEARTBEAT_ANSWER))
    }
}

/// A Q_Key for each life: what was sent in another one does not get in.
impl Probes for Ud {
    const PROOF: Proof = Proof::Echo;

    type Beside = Option<Destination>;

    fn describe(
        qp: &mut Qp<Ud>,
        beside: &mut Option<Destination>,
        own: &Own<'_>,
    ) -> Result<Vec<u8>, String> {
        *beside = None;
        qp.to(ToReset).map_err(told)?;
        let qkey = QKey::random().map_err(told)?;
        let here = qp.activate_begin(own.gid, qkey, own.path).map_err(told)?;
        encode(&here, own.offered).map_err(told)
    }

    fn join(
        qp: &mut Qp<Ud>,
        beside: &mut Option<Destination>,
        record: &[u8],
        _: Timing,
        receives: PostReceives<'_, Ud>,
    ) -> Result<Peer, String> {
        let there = Peer::decode(record).map_err(told)?;
        receives(qp)?;
        *beside = Some(qp.destination(&there.endpoint).map_err(told)?);
        qp.activate_receiving().map_err(told)?;
        Ok(there)
    }

    fn finish(qp: &mut Qp<Ud>, _: &mut Option<Destination>, _: Timing) -> Result<(), String> {
        qp.activate_sending().map_err(told)
    }

    fn probe(qp: &mut Qp<Ud>, beside: &Option<Destination>) -> Option<Ticket> {
        let (to, imm) = (beside.as_ref()?, HEARTBEAT);
        post(qp, op::SendToImm { to, imm })
    }

    fn answer(qp: &mut Qp<Ud>, beside: &Option<Destination>) -> Option<Ticket> {
        let (to, imm) = (beside.as_ref()?, HEARTBEAT_ANSWER);
        post(qp, op::SendToImm { to, imm })
    }

    fn is_of_peer(beside: &Option<Destination>, success: &Success) -> bool {
        let number = |to: &Destination| Some(to.qp_num());
        beside.as_ref().and_then(number) == success.sender.map(|sender| sender.qp_num)
    }
}

/// What an end of XRC has besides its initiator: the target at which the peer's arrives, and the SRQs.
#[doc(hidden)]
#[derive(Debug)]
pub struct XrcSide {
    pub(super) target: XrcTarget,
    /// What the peer's requests are to name.
    pub(super) srq: SrqNum,
    /// What requests to the peer name.
    pub(super) theirs: Option<SrqNum>,
    /// Of the initiator, and of the target.
    agreed: (Agreed, Agreed),
}

impl XrcSide {
    pub(super) fn new(target: XrcTarget, srq: SrqNum) -> XrcSide {
        XrcSide {
            target,
            srq,
            theirs: None,
            agreed: (None, None),
        }
    }
}

/// The record of the initiator, the number of the SRQ, the record of the target with the regions that are offered.
impl Probes for XrcSend {
    const PROOF: Proof = Proof::Node;

    type Beside = XrcSide;

    fn lets_probes_in(_: &Qp<XrcSend>, side: &XrcSide) -> bool {
        side.target.access().contains(Access::REMOTE_WRITE)
    }

    fn describe(
        qp: &mut Qp<XrcSend>,
        side: &mut XrcSide,
        own: &Own<'_>,
    ) -> Result<Vec<u8>, String> {
        side.theirs = None;
        let initiator = encode(&describe(qp, own)?, &[]).map_err(told)?;
        let target = describe(&mut side.target, own)?;
        let target = encode(&target, own.offered).map_err(told)?;
        Ok([&initiator[..], &side.srq.get().to_be_bytes(), &target].concat())
    }

    fn join(
        qp: &mut Qp<XrcSend>,
        side: &mut XrcSide,
        record: &[u8],
        timing: Timing,
        _: PostReceives<'_, XrcSend>,
    ) -> Result<Peer, String> {
        let split = record.split_at_checked(Peer::encoded_len(0));
        let split =
            split.and_then(|(initiator, rest)| Some((initiator, rest.split_first_chunk()?)));
        let (initiator, (srq, target)) = split.ok_or("the peer's record is not that of XRC")?;
        let initiator = Peer::decode(initiator).map_err(told)?;
        let there = Peer::decode(target).map_err(told)?;
        side.theirs = Some(SrqNum::new(u32::from_be_bytes(*srq)).map_err(told)?);
        let receives = side.target.begin(&initiator, timing).map_err(told)?;
        let sends = qp.begin(&there, timing).map_err(told)?;
        side.agreed = (Some(sends), Some(receives));
        Ok(there)
    }

    fn finish(qp: &mut Qp<XrcSend>, side: &mut XrcSide, timing: Timing) -> Result<(), String> {
        finish_one(&mut side.target, &mut side.agreed.1, timing)?;
        finish_one(qp, &mut side.agreed.0, timing)
    }

    fn end(side: &mut XrcSide) {
        // One that cannot be moved any more is of a device that is gone.
        let _ = side.target.to(ToErr);
    }

    fn has_failed(qp: &Qp<XrcSend>, side: &XrcSide, qp_num: u32) -> Option<bool> {
        let state = match qp_num {
            number if number == qp.qp_num() => qp.state(),
            number if number == side.target.qp_num() => side.target.state(),
            _ => return None,
        };
        Some(state.is_ok_and(|state| state == IBV_QPS_ERR))
    }

    fn probe(qp: &mut Qp<XrcSend>, side: &XrcSide) -> Option<Ticket> {
        // The target refuses a request whose SRQ is gone, even one without bytes.
        let srq = side.theirs?;
        let op = op::Write { remote: NOWHERE };
        post(qp, op::ToSrq { srq, op })
    }
}

impl Proof {
    /// What can be proven of a peer over a transport.
    ///
    /// ```
    /// use rdma_core_sys::rules::Transport;
    /// use rdma_qp::supervise::Proof;
    /// // The target of XRC answers as long as any process of its node holds it.
    /// assert_eq!(Proof::over(Transport::XrcIni), Proof::Node);
    /// assert_eq!(Proof::over(Transport::Rc), Proof::Process);
    /// assert_eq!(Proof::over(Transport::Ud), Proof::Echo);
    /// ```
    pub fn over(transport: rules::Transport) -> Proof {
        match transport {
            rules::Transport::Rc => Proof::Process,
            rules::Transport::XrcIni | rules::Transport::XrcTgt => Proof::Node,
            _ => Proof::Echo,
        }
    }
}

/// The immediate of a message that was received, if it is a probe or the answer to one.
pub(super) fn heartbeat(proof: Proof, success: &Success) -> Option<u32> {
    let imm = success
        .imm
        .filter(|_| proof == Proof::Echo && success.byte_len == 0);
    imm.filter(|imm| [HEARTBEAT, HEARTBEAT_ANSWER].contains(imm))
}
