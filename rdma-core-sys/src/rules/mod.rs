//! The rules of `ibv_modify_qp` as pure data, with [`check`] over them.
//!
//! [`check`] answers, before any call to a device, whether a move is allowed with a given attribute mask, and names
//! everything that is wrong with it at once. [`check_values`] looks at the attributes themselves. Both are what the kernel
//! and uverbs do (Linux `drivers/infiniband/core/verbs.c` and `uverbs_cmd.c`, 6.12), except where a [`Violation`] says
//! that the limit is our own.
//!
//! ```
//! use rdma_core_sys::rules::{self, Transport};
//! use rdma_core_sys::*;
//!
//! let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_AV;
//! let refusal = rules::check(Transport::Rc, IBV_QPS_RESET, IBV_QPS_INIT, mask).unwrap_err();
//! assert_eq!(
//!     refusal.to_string(),
//!     "RESET->INIT on RC: missing IBV_QP_ACCESS_FLAGS; not allowed IBV_QP_AV"
//! );
//!
//! // An XRC initiator has no responder side: uverbs drops such bits before it checks, so they are reported, not refused.
//! let mask = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_MIN_RNR_TIMER;
//! let verdict = rules::check(Transport::XrcIni, IBV_QPS_RTS, IBV_QPS_RTS, mask).unwrap();
//! assert_eq!(verdict.ignored, IBV_QP_MIN_RNR_TIMER);
//! ```
//!
//! Facts that the table does not hold, because they belong to a device or to a state that only the device knows:
//! - uverbs adds `IBV_QP_PORT` to every call that sets `IBV_QP_AV` and does not go to RTR, so SQD->SQD with a new address
//!   vector on UC is allowed by the table and still fails through the kernel.
//! - mlx5's kernel driver has no RTS->SQD.
//! - A QP in SQD that still drains moves to ERR or RESET only.

mod table;
mod timers;
mod values;

use crate::types::*;
use core::fmt;
pub use timers::{ack_timeout, rnr_timer};
pub use values::{Kind, Limits, Violation, check_values};

/// The transport of a QP as the rules know it.
///
/// `repr(usize)` so that a value is an index; the order is that of [`Transport::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// XRC initiator: the sending end.
    XrcIni,
    /// XRC target: the receiving end, which delivers into SRQs.
    XrcTgt,
    /// Subnet management, QP 0 (kernel only).
    Smi,
    /// General services, QP 1 (kernel only).
    Gsi,
    /// Raw Ethernet packets.
    RawPacket,
}

impl Transport {
    /// Every transport, in the order of the discriminants.
    pub const ALL: [Self; 8] = [
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::XrcIni,
        Self::XrcTgt,
        Self::Smi,
        Self::Gsi,
        Self::RawPacket,
    ];

    /// The transport of a QP that a program can create; `None` for a vendor's own type and for unknown ones.
    #[must_use]
    pub const fn from_qp_type(qp_type: ibv_qp_type) -> Option<Self> {
        match qp_type {
            IBV_QPT_RC => Some(Self::Rc),
            IBV_QPT_UC => Some(Self::Uc),
            IBV_QPT_UD => Some(Self::Ud),
            IBV_QPT_XRC_SEND => Some(Self::XrcIni),
            IBV_QPT_XRC_RECV => Some(Self::XrcTgt),
            IBV_QPT_RAW_PACKET => Some(Self::RawPacket),
            _ => None,
        }
    }

    /// The C type of such a QP; `None` for the two that only the kernel makes.
    #[must_use]
    pub const fn qp_type(self) -> Option<ibv_qp_type> {
        match self {
            Self::Rc => Some(IBV_QPT_RC),
            Self::Uc => Some(IBV_QPT_UC),
            Self::Ud => Some(IBV_QPT_UD),
            Self::XrcIni => Some(IBV_QPT_XRC_SEND),
            Self::XrcTgt => Some(IBV_QPT_XRC_RECV),
            Self::RawPacket => Some(IBV_QPT_RAW_PACKET),
            Self::Smi | Self::Gsi => None,
        }
    }

    /// `RC`, `UC`, `UD`, `XRC_INI`, `XRC_TGT`, `SMI`, `GSI` or `RAW_PACKET`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcIni => "XRC_INI",
            Self::XrcTgt => "XRC_TGT",
            Self::Smi => "SMI",
            Self::Gsi => "GSI",
            Self::RawPacket => "RAW_PACKET",
        }
    }

    /// Whether a send request of this kind can be posted on this transport: the table of ibv_post_send(3).
    ///
    /// It differs from that table in two places. SEND_WITH_INV needs an opcode on the wire, and UC has none (in
    /// Linux's `rxe_opcode.c` the packets of that kind are RC's), so it is no operation of UC. TSO is an offload that only devices with `max_tso`
    /// have, so it is no operation of any transport here; nor are FLUSH and ATOMIC WRITE, which a device must announce.
    ///
    /// ```
    /// use rdma_core_sys::rules::Transport;
    /// use rdma_core_sys::*;
    ///
    /// assert!(Transport::Uc.supports(IBV_WR_RDMA_WRITE));
    /// assert!(!Transport::Uc.supports(IBV_WR_RDMA_READ));
    /// assert!(!Transport::XrcTgt.supports(IBV_WR_SEND));
    /// ```
    #[must_use]
    pub const fn supports(self, opcode: ibv_wr_opcode) -> bool {
        match opcode {
            IBV_WR_SEND => !matches!(self, Self::XrcTgt),
            IBV_WR_SEND_WITH_IMM => !matches!(self, Self::XrcTgt | Self::RawPacket),
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => {
                matches!(self, Self::Rc | Self::Uc | Self::XrcIni)
            }
            IBV_WR_SEND_WITH_INV
            | IBV_WR_RDMA_READ
            | IBV_WR_ATOMIC_CMP_AND_SWP
            | IBV_WR_ATOMIC_FETCH_AND_ADD => matches!(self, Self::Rc | Self::XrcIni),
            _ => false,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The seven states, each at the index of its number.
pub const STATES: [ibv_qp_state; 7] = [
    IBV_QPS_RESET,
    IBV_QPS_INIT,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_QPS_SQE,
    IBV_QPS_ERR,
];

/// The attributes of one allowed move. `IBV_QP_STATE` is implied and in neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Masks {
    /// All of these must be set.
    pub required: ibv_qp_attr_mask,
    /// Any of these may be set.
    pub optional: ibv_qp_attr_mask,
}

/// The masks of a move, `None` when it is not allowed (or a state is not one of [`STATES`]).
///
/// Whether a move is allowed depends on the two states only, never on the transport: RC has SQE->RTS on paper, with empty
/// masks, though only UC and UD ever get to SQE.
#[must_use]
pub fn masks(transport: Transport, from: ibv_qp_state, to: ibv_qp_state) -> Option<Masks> {
    *table::TABLE
        .get(from.0 as usize)?
        .get(to.0 as usize)?
        .get(transport as usize)?
}

/// What a move needs besides `IBV_QP_STATE`; `None` when it is not allowed.
#[must_use]
pub fn required(
    transport: Transport,
    from: ibv_qp_state,
    to: ibv_qp_state,
) -> Option<ibv_qp_attr_mask> {
    masks(transport, from, to).map(|masks| masks.required)
}

/// What a move may set besides what it needs; `None` when it is not allowed.
#[must_use]
pub fn optional(
    transport: Transport,
    from: ibv_qp_state,
    to: ibv_qp_state,
) -> Option<ibv_qp_attr_mask> {
    masks(transport, from, to).map(|masks| masks.optional)
}

/// The bits that uverbs drops from every mask of this transport before it checks (`modify_qp_mask` in `uverbs_cmd.c`).
///
/// An XRC initiator has no responder and an XRC target no requester, so these attributes mean nothing there.
#[must_use]
pub const fn ignored(transport: Transport) -> ibv_qp_attr_mask {
    match transport {
        Transport::XrcIni => IBV_QP_MAX_DEST_RD_ATOMIC.union(IBV_QP_MIN_RNR_TIMER),
        Transport::XrcTgt => IBV_QP_MAX_QP_RD_ATOMIC
            .union(IBV_QP_RETRY_CNT)
            .union(IBV_QP_RNR_RETRY),
        _ => ibv_qp_attr_mask::empty(),
    }
}

/// The states that a QP can be moved to from `from`.
pub fn reachable(from: ibv_qp_state) -> impl Iterator<Item = ibv_qp_state> {
    STATES
        .into_iter()
        .filter(move |&to| masks(Transport::Rc, from, to).is_some())
}

/// An allowed modify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Verdict {
    /// Bits that are set and have no effect on this transport.
    pub ignored: ibv_qp_attr_mask,
}

/// A modify that is not allowed, and all that is wrong with it.
///
/// `Display` reads `RESET->INIT on RC: missing IBV_QP_ACCESS_FLAGS; not allowed IBV_QP_AV`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The transport.
    pub transport: Transport,
    /// The state that the QP is in.
    pub from: ibv_qp_state,
    /// The state asked for.
    pub to: ibv_qp_state,
    /// False when the two states are no move at all; the masks below are empty then.
    pub is_transition: bool,
    /// Required bits that are not set.
    pub missing: ibv_qp_attr_mask,
    /// Bits that are set and must not be, unknown ones included.
    pub not_allowed: ibv_qp_attr_mask,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{} on {}: ", self.from, self.to, self.transport)?;
        if !self.is_transition {
            f.write_str("not a transition")?;
            let mut before = "; from here a QP goes to ";
            for state in reachable(self.from) {
                write!(f, "{before}{state}")?;
                before = ", ";
            }
            return Ok(());
        }
        let mut before = "";
        for (what, bits) in [("missing", self.missing), ("not allowed", self.not_allowed)] {
            if !bits.is_empty() {
                write!(f, "{before}{what} {}", Bits(bits))?;
                before = "; ";
            }
        }
        Ok(())
    }
}

impl core::error::Error for Refusal {}

/// Shows an attribute mask as `IBV_QP_PORT, IBV_QP_AV`, unknown bits as one hexadecimal number, an empty mask as `none`.
#[derive(Clone, Copy, Debug)]
pub struct Bits(pub ibv_qp_attr_mask);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let mut names = self.0.iter_names();
        let mut before = "";
        for (name, _) in &mut names {
            write!(f, "{before}{name}")?;
            before = ", ";
        }
        let unknown = names.remaining();
        if unknown.is_empty() {
            Ok(())
        } else {
            write!(f, "{before}{:#x}", unknown.bits())
        }
    }
}

/// Says whether a QP in state `from` may be modified to state `to` with these attributes.
///
/// `IBV_QP_STATE` may be in `mask` or not. `from` must be the QP's real state, which a query tells; `ibv_qp::state` is a
/// cache that is stale after an asynchronous error. The rule that `IBV_QP_CUR_STATE` is refused unless the QP is in RTR,
/// RTS, SQD or SQE follows from the table, where no other move has that bit.
///
/// # Errors
/// A [`Refusal`] that names the missing bits and those not allowed, or says that there is no such transition.
pub fn check(
    transport: Transport,
    from: ibv_qp_state,
    to: ibv_qp_state,
    mask: ibv_qp_attr_mask,
) -> Result<Verdict, Refusal> {
    let none = ibv_qp_attr_mask::empty();
    let refusal = Refusal {
        transport,
        from,
        to,
        is_transition: true,
        missing: none,
        not_allowed: none,
    };
    let Some(Masks { required, optional }) = masks(transport, from, to) else {
        return Err(Refusal {
            is_transition: false,
            ..refusal
        });
    };
    let ignored = mask & ignored(transport);
    let mask = mask - (ignored | IBV_QP_STATE);
    let missing = required - mask;
    let not_allowed = mask - (required | optional);
    if missing.is_empty() && not_allowed.is_empty() {
        Ok(Verdict { ignored })
    } else {
        Err(Refusal {
            missing,
            not_allowed,
            ..refusal
        })
    }
}

/// What becomes of work on one queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Nothing happens.
    Idle,
    /// It is processed.
    Processed,
    /// What has begun is finished, nothing new begins.
    Drains,
    /// It completes with `IBV_WC_WR_FLUSH_ERR`.
    Flushed,
}

/// What a QP does in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posts {
    /// A send may be posted.
    pub post_send: bool,
    /// A receive may be posted, to the QP's own receive queue (an SRQ takes receives at any time).
    pub post_recv: bool,
    /// What becomes of sends.
    pub send: Work,
    /// What becomes of receives and of incoming requests.
    pub recv: Work,
}

/// What may be posted in a state, and what becomes of it; `None` for an unknown state.
///
/// An XRC initiator has no receive queue; an XRC target has no queue at all and still serves requests.
#[must_use]
pub const fn allowed_posts(transport: Transport, state: ibv_qp_state) -> Option<Posts> {
    use Work::{Drains, Flushed, Idle, Processed};
    let (post_send, post_recv, send, recv) = match state {
        IBV_QPS_RESET => (false, false, Idle, Idle),
        IBV_QPS_INIT => (false, true, Idle, Idle),
        IBV_QPS_RTR => (false, true, Idle, Processed),
        IBV_QPS_RTS => (true, true, Processed, Processed),
        IBV_QPS_SQD => (true, true, Drains, Processed),
        IBV_QPS_SQE => (true, true, Flushed, Processed),
        IBV_QPS_ERR => (true, true, Flushed, Flushed),
        _ => return None,
    };
    Some(match transport {
        Transport::XrcIni => Posts {
            post_send,
            post_recv: false,
            send,
            recv: Idle,
        },
        Transport::XrcTgt => Posts {
            post_send: false,
            post_recv: false,
            send: Idle,
            recv,
        },
        _ => Posts {
            post_send,
            post_recv,
            send,
            recv,
        },
    })
}
