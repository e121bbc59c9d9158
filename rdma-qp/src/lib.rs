//! Safe RDMA Queue Pairs over any table of verbs: rdma-core's, or the software device's.
//!
//! ```
//! use rdma_qp::exchange::{Exchange, tcp};
//! use rdma_qp::{Access, Device, Memory, Timing};
//! use std::time::Duration;
//!
//! # fn end(verbs: &rdma_core_sys::Verbs, peer: &mut tcp::Channel, writes: bool) -> Result<(), Box<dyn std::error::Error>> {
//! let limit = Duration::from_secs(5);
//! let device = Device::open_index(verbs, 0)?;
//! let port = device.port(1)?;
//! let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
//! let mr = pd.register(Memory::zeroed(1 << 20), Access::REMOTE_WRITE)?;
//! let mut qp = pd.rc(&cq).send_depth(128).recv_depth(128).create()?; // RESET
//!
//! let here = qp.endpoint(port.best_gid()?)?;
//! let there = peer.swap(&here, &[mr.remote()])?;
//! qp.connect(&there, peer, Timing::default())?; // INIT, RTR, barrier, RTS: each checked, told, explained
//!
//! if writes {
//!     mr.write_at(0, b"hello")?;
//!     let ticket = qp.write(mr.slice(0, 5)?, there.region(0)?.at(0))?;
//!     cq.wait(&ticket, limit)?;
//! }
//! peer.barrier()?;
//! if !writes {
//!     let mut bytes = [0; 5];
//!     mr.read_at(0, &mut bytes)?;
//!     assert_eq!(&bytes, b"hello");
//! }
//! # Ok(())
//! # }
//! # let listener = tcp::listen("127.0.0.1:0")?;
//! # let address = listener.local_addr()?;
//! # let limit = Duration::from_secs(20);
//! # let passive = std::thread::spawn(move || {
//! #     let mut peer = listener.accept(limit).unwrap();
//! #     end(rdma_soft::verbs(), &mut peer, false).unwrap();
//! # });
//! # end(rdma_soft::verbs(), &mut tcp::connect(address, limit)?, true)?;
//! # passive.join().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Here `verbs` is `rdma_core_sys::Verbs::open()?` for the adapters that the system's libibverbs knows, or `rdma_soft::verbs()` for the
//! software device, and `peer` a channel to the other end, by [`tcp::connect`](exchange::tcp::connect) or a listener.
//!
//! The [`guide`] explains states, memory, transports, posting and errors, with examples.
//!
//! # What it keeps
//!
//! * **Lifetimes.** Everything keeps what it was made from alive; any drop order is fine, and nothing panics when the
//!   library refuses to destroy an object: `close` says so, `Drop` tells `tracing` and leaks.
//! * **Memory.** A registered region is never lent as a slice, see [`Mr`]. Dropping or forgetting anything at any time is
//!   sound: memory stays registered and allocated until the requests that may use it are done.
//! * **Accounts.** Every accepted request ends in exactly one outcome, see [`Account`]. A completion of a former life of a
//!   QP is never delivered. A QP is only made if its CQs have room for everything that it may have outstanding.
//! * **Errors.** A modify that cannot succeed is refused before the call, with everything that is wrong with it, see
//!   [`Qp::modify`]. The errno of the provider is never lost.
#![deny(unsafe_code)]

mod account;
mod ah;
mod attach;
mod buffer;
mod cq;
pub mod datagram;
mod deadline;
mod device;
mod dmabuf;
pub mod doctor;
mod draw;
pub mod dump;
mod endpoint;
mod errno;
pub mod exchange;
mod fd;
mod gid;
pub mod guide;
pub mod lint;
mod mcast;
mod mr;
mod number;
mod pd;
mod port;
mod qkey;
mod qp;
#[allow(unsafe_code)]
mod raw;
mod report;
mod rtt;
mod shared;
mod srq;
pub mod supervise;
mod units;
mod window;
mod wr_id;
pub mod xrc;

pub use account::{Account, Operation};
pub use ah::{Ah, AhError, Destination, DestinationError, Grh, GrhError, NotAGroup};
pub use attach::Attachments;
pub use buffer::{Buffer, BufferNotPosted, BufferPool};
pub use cq::{
    Armed, CloseCqError, Completion, Completions, Cq, CreateCqError, Failure, PollError, Quick,
    Root, Row, Sender, Success, Ticket, Usual, WaitError,
};
pub use deadline::Deadline;
pub use device::{AllocPdError, AsyncEvent, Device, DeviceInfo, OpenError};
pub use dmabuf::{CloseDmabufError, DmabufError, DmabufMr};
pub use dump::Dump;
pub use endpoint::{
    DecodeError, Endpoint, LinkLayer, MAX_REGIONS, NoSuchRegion, Peer, RemoteAddr, RemoteRegion,
};
pub use errno::Errno;
pub use gid::{Family, Gid, GidChoice, GidEntry, GidKind, NoUsableGid, Verdict};
pub use mcast::McastError;
pub use mr::{BadAtomic, CloseMrError, Mr, MrSlice, OutOfRegion};
pub use pd::{Access, ClosePdError, Pd, RegisterError};
pub use port::{BadPort, GidError, Port, PortInfo, QueryPortError};
pub use qkey::QKey;
pub use qp::{
    ActivateError, CapAsked, Change, ChangeError, CloseQpError, ConnectError, Connected, Connects,
    CreateQpError, Doorbell, DrainError, DrainProblem, Drained, DrainedQueue, EndpointError, Fate,
    GidProblem, Global, MeasureError, Modified, ModifyError, ModifyReport, NOTHING, Negotiated,
    NotTaken, Op, Path, PathOptions, PostError, PostFlags, Problem, Qp, QpBuilder, QpRef,
    QpRefGidError, QpSnapshot, QueryQpError, QuickPost, Rc, RdmaRead, RdmaWrite, RecoverError,
    RecoverProblem, Recovered, Recovery, RecvQueue, RefDrainError, RefDrained, Sends, ToErr,
    ToInit, ToInitUd, ToReset, ToRtr, ToRtrUd, ToRts, ToRtsUd, ToSqd, Transition, TransitionOf,
    Transport, Uc, Ud, op,
};
pub use raw::memory::Memory;
pub use raw::pd::Holder;
pub use report::FailureReport;
pub use rtt::Rtt;
pub use shared::{AnyOp, Behind, Shared, SharedQp, SharedSlice, StillShared};
pub use srq::{
    BadHeader, Basic, CloseSrqError, ConnectionId, Connections, CreateSrqError, Message, Receives,
    Refill, RefillError, Srq, SrqBuilder, SrqError, SrqKind,
};
pub use units::{AckTimeout, OutOfRange, PathMtu, Psn, RetryCount, RnrRetry, RnrTimer, Timing};
pub use window::{BindWindow, Window, WindowError};
pub use wr_id::QueueKind;
