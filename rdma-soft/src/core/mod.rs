//! The sans-IO engine: one node's Queue Pairs, driven by packets, time and requests.
//!
//! - [`Engine`] holds the node and is driven by [`handle_packet`](Engine::handle_packet),
//!   [`handle_timeout`](Engine::handle_timeout), [`poll_transmit`](Engine::poll_transmit) and
//!   [`poll_event`](Engine::poll_event). Time and randomness come in as arguments, so a whole
//!   cluster runs deterministically from a seed.
//! - A Queue Pair is three machines: the requester cuts requests into packets, the responder
//!   executes the peer's, the completer takes the answers.
//! - Payload travels by reference: a [`Transmit`] says where its bytes are, and
//!   [`emit`](Engine::emit) copies them when a link needs them, with the key looked up then.

mod agenda;
mod completer;
pub mod config;
mod counters;
mod datagram;
mod engine;
mod error;
mod event;
mod keys;
mod modify;
mod objects;
mod pace;
mod qp;
mod requester;
mod responder;
pub mod rng;
mod srq;
pub mod time;
mod transmit;
mod wqe;

pub use counters::{Counters, Mishap, Refused};
pub use datagram::GRH_LEN;
pub use engine::{Engine, MULTICAST_QP, Path};
pub use error::CallError;
pub use event::{Completion, CqId, Event, PdId, Queue, Sender, SrqId, XrcdId};
pub use keys::MrKeys;
pub use modify::{ModifyError, mtu_code};
pub use qp::{QpInit, QpStats};
pub use srq::{SrqAttr, SrqInit};
pub use transmit::{MAX_FRAME, MAX_PAYLOAD, Transmit};
pub use wqe::{Ah, Data, InlineData, RecvWqe, Remote, SendOp, SendWqe, Sge, SgeList, WindowBind};
