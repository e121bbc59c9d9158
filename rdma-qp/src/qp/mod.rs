//! Queue Pairs.

mod builder;
mod connect;
mod drain;
mod initiator;
mod inspect;
mod modify;
mod post;
mod qp_ref;
mod recover;
mod sqd;
mod target;
mod transition;
mod ud;

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rdma_core_sys::rules;
use rdma_core_sys::*;

pub use builder::{CapAsked, CreateQpError, QpBuilder};
pub(crate) use connect::Connecting;
pub use connect::{ConnectError, Connected, EndpointError, Negotiated, PathOptions};
pub use drain::{DrainError, DrainProblem, Drained, DrainedQueue, Fate};
pub use inspect::MeasureError;
pub(crate) use inspect::counters;
pub use modify::{GidProblem, Modified, ModifyError, ModifyReport, Problem};
pub(crate) use modify::{Handle, check_gid};
pub(crate) use post::check_recv;
pub use post::{Doorbell, NOTHING, NotTaken, Op, PostError, PostFlags, QuickPost, Sends, op};
pub use qp_ref::{QpRef, QpRefGidError, RefDrainError, RefDrained};
pub use recover::{RecoverError, RecoverProblem, Recovered, Recovery};
pub use sqd::{Change, ChangeError};
pub use target::{CloseTargetError, XrcTarget};
pub use transition::{
    Global, Path, ToErr, ToInit, ToInitUd, ToReset, ToRtr, ToRtrUd, ToRts, ToRtsUd, ToSqd,
    Transition, TransitionOf,
};
pub use ud::ActivateError;

use crate::account::Account;
use crate::attach::Attachments;
use crate::buffer::PostedBuffers;
use crate::dump::LastError;
use crate::endpoint::Endpoint;
use crate::errno::Errno;
use crate::gid::{Gid, GidEntry};
use crate::raw::qp::QpHandle;
use crate::units::{AckTimeout, PathMtu, RnrTimer};
use crate::wr_id::QueueKind;

/// A transport: the type of a QP. It decides which operations the QP has.
pub trait Transport: sealed::Sealed + 'static {
    /// The transport as the transition rules know it.
    const RULES: rules::Transport;
    /// Bytes that the device writes into each receive before the message.
    const RECV_HEADER: u32 = 0;
}

/// Transports whose QPs have a receive queue: all but those of XRC.
#[diagnostic::on_unimplemented(
    message = "a QP of transport {Self} has no receive queue",
    note = "what XRC requests bring goes to the XRC SRQs of the other end: post the receives there"
)]
pub trait RecvQueue: Transport {}

/// Transports that connect to one peer.
pub trait Connects: Transport {}

/// Transports with RDMA WRITE.
pub trait RdmaWrite: Connects {}

/// Transports with RDMA READ and atomics.
pub trait RdmaRead: Connects {}

/// Reliable connection: every operation, acknowledged and in order, with one peer.
#[derive(Clone, Copy, Debug)]
pub struct Rc;

/// Unreliable connection: SEND and RDMA WRITE with one peer; what is lost on the way is not repeated, and nobody is told.
#[derive(Clone, Copy, Debug)]
pub struct Uc;

/// Unreliable datagrams: SEND of up to one path MTU, each to a peer or a group of its own. A receive begins with 40 bytes
/// that are the device's.
#[derive(Clone, Copy, Debug)]
pub struct Ud;

impl Transport for Rc {
    const RULES: rules::Transport = rules::Transport::Rc;
}
impl RecvQueue for Rc {}
impl Connects for Rc {}
impl RdmaWrite for Rc {}
impl RdmaRead for Rc {}

impl Transport for Uc {
    const RULES: rules::Transport = rules::Transport::Uc;
}
impl RecvQueue for Uc {}
impl Connects for Uc {}
impl RdmaWrite for Uc {}

impl Transport for Ud {
    const RULES: rules::Transport = rules::Transport::Ud;
    const RECV_HEADER: u32 = crate::ah::Grh::LEN as u32;
}
impl RecvQueue for Ud {}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Rc {}
    impl Sealed for super::Uc {}
    impl Sealed for super::Ud {}
}

/// What is known about a QP beyond its books, for reports. Written on slow paths only.
pub(crate) struct QpInfo {
    pub(crate) device: String,
    pub(crate) qp_num: u32,
    path: Mutex<PathInfo>,
    last_error: Mutex<Option<LastError>>,
}

/// What the last successful modifies set up.
#[derive(Clone, Default)]
pub(crate) struct PathInfo {
    pub(crate) port: Option<u8>,
    pub(crate) source: Option<GidEntry>,
    pub(crate) sgid_index: Option<u8>,
    pub(crate) dgid: Option<Gid>,
    pub(crate) dest_qp_num: Option<u32>,
    pub(crate) sq_psn: Option<u32>,
    pub(crate) rq_psn: Option<u32>,
    pub(crate) qkey: Option<u32>,
    pub(crate) timeout: Option<u8>,
    pub(crate) retry_cnt: Option<u8>,
    pub(crate) rnr_retry: Option<u8>,
    pub(crate) ready_since: Option<Instant>,
    /// What this end and the peer told each other.
    pub(crate) ends: Option<Box<(Endpoint, Endpoint)>>,
}

impl QpInfo {
    pub(crate) fn new(device: &str, qp_num: u32) -> QpInfo {
        QpInfo {
            device: device.to_owned(),
            qp_num,
            path: Mutex::default(),
            last_error: Mutex::default(),
        }
    }

    pub(crate) fn path(&self) -> MutexGuard<'_, PathInfo> {
        // Plain values: whoever panicked left them whole.
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an error, for the dump.
    pub(crate) fn failed(&self, error: LastError) {
        *self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// The last error that was noted.
    pub(crate) fn last_error(&self) -> Option<LastError> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Device, port and number, as in `soft0/1 QP 0x4f`.
    pub(crate) fn name(&self) -> String {
        match self.path().port {
            Some(port) => format!("{}/{port} QP {:#x}", self.device, self.qp_num),
            None => format!("{} QP {:#x}", self.device, self.qp_num),
        }
    }
}

/// A QP could not be queried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{qp} cannot be queried: {source}")]
pub struct QueryQpError {
    /// The QP.
    pub qp: String,
    /// What the library said.
    pub source: Errno,
}

/// A QP could not be destroyed. It is inside the error.
#[derive(Debug, thiserror::Error)]
#[error("{} could not be destroyed: {source}", .qp.info.name())]
pub struct CloseQpError<T: Transport> {
    /// The QP, to try again or to drop.
    pub qp: Box<Qp<T>>,
    /// What the library said.
    pub source: Errno,
}

/// A Queue Pair.
///
/// It has one owner, who posts; its completions go to its CQs. The device may move it to the error state at any time,
/// so its state is asked for ([`Qp::state`]), not remembered.
///
/// Dropping it destroys it; requests that are under way are thrown away, and what they used is free afterwards.
pub struct Qp<T: Transport = Rc> {
    /// Before the buffers, so that it is destroyed before they are given back.
    handle: QpHandle,
    pub(crate) buffers: PostedBuffers,
    info: Arc<QpInfo>,
    device: Arc<ibv_device_attr>,
    /// Ids of the CQs of its two queues.
    cqs: (u32, u32),
    /// Unsignaled sends at the end of the send queue.
    silence: post::Silence,
    /// The same before the list of sends that waits for the doorbell, if any of that list is unsignaled.
    silence_before_list: post::Silence,
    /// Whether data that is to be copied may wait for the doorbell.
    copies_wait: bool,
    /// What the peer may do, for `connect`.
    access: crate::pd::Access,
    /// What `endpoint` told the peer.
    told: connect::Told,
    /// The request behind unsignaled ones that a drain waits for.
    marker: Option<u64>,
    transport: PhantomData<T>,
}

/// All attributes of a QP at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpSnapshot {
    /// Name of device, port and QP.
    pub name: String,
    /// Its transport.
    pub transport: rules::Transport,
    /// Its attributes, as `ibv_query_qp` gave them.
    pub attr: ibv_qp_attr,
}

impl<T: Transport> Qp<T> {
    /// Its number, 24 bits.
    pub fn qp_num(&self) -> u32 {
        self.handle.number()
    }

    /// Name of the device that it is of.
    pub fn device(&self) -> &str {
        &self.info.device
    }

    /// What creation granted: at least what was asked for. The library holds the queue depths to what was asked for,
    /// because that is what the CQs have room for.
    pub fn cap(&self) -> ibv_qp_cap {
        self.handle.cap
    }

    /// Its real state, asked of the device.
    ///
    /// # Errors
    /// The library refused.
    pub fn state(&self) -> Result<ibv_qp_state, QueryQpError> {
        modify::state(&self.handle, &self.info)
    }

    /// All its attributes, asked of the device. `Display` prints them.
    ///
    /// # Errors
    /// The library refused.
    pub fn query(&self) -> Result<QpSnapshot, QueryQpError> {
        modify::snapshot(&self.handle, &self.info, T::RULES)
    }

    pub(crate) fn handle_mut(&mut self) -> &mut QpHandle {
        &mut self.handle
    }

    /// Ids of the CQs of its two queues.
    pub(crate) fn cq_ids(&self) -> (u32, u32) {
        self.cqs
    }

    /// Sends that there is room for in its send queue.
    pub(crate) fn send_room(&self) -> u64 {
        let send = &self.handle.send;
        u64::from(send.depth).saturating_sub(send.occupied())
    }

    /// Most receives outstanding at a time.
    pub(crate) fn recv_depth(&self) -> u32 {
        self.handle.recv.depth
    }

    /// Receives that hold room in its receive queue.
    pub(crate) fn recv_occupied(&self) -> u64 {
        self.handle.recv.occupied()
    }

    /// Number of the SRQ that it takes its receives from; `None`: it has a receive queue of its own.
    pub fn srq(&self) -> Option<u32> {
        self.handle.srq().map(|srq| srq.shared.number)
    }

    /// The books of its send queue.
    pub fn send_account(&self) -> Account {
        self.handle.send.account()
    }

    /// The books of its receive queue; all zero with an SRQ, which has books of its own.
    pub fn recv_account(&self) -> Account {
        self.handle.recv.account()
    }

    /// A place for values of the application's that belong to requests of one of its queues: the send queue, or else the
    /// receive queue.
    pub fn attachments<V>(&self, queue: QueueKind) -> Attachments<V> {
        Attachments::new(match queue {
            QueueKind::Send => &self.handle.send,
            _ => &self.handle.recv,
        })
    }

    /// The books of one of its queues; all zero for a queue that it does not have.
    pub fn account(&self, queue: QueueKind) -> Account {
        match queue {
            QueueKind::Send => self.send_account(),
            QueueKind::Recv => self.recv_account(),
            QueueKind::SharedRecv => Account::default(),
        }
    }

    /// The verbs object, for calls that this library does not have. It is destroyed with the QP.
    ///
    /// Posting to it, modifying or destroying it through the pointer takes `unsafe` code, which then answers for the books
    /// and the memory of this QP.
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.handle.as_ptr()
    }

    /// Destroys the QP and says whether that worked.
    ///
    /// # Errors
    /// The library refused; the QP is in the error.
    pub fn close(mut self) -> Result<(), CloseQpError<T>> {
        match self.handle.destroy() {
            Ok(()) => Ok(()),
            Err(source) => Err(CloseQpError {
                qp: Box::new(self),
                source,
            }),
        }
    }
}

impl<T: Transport> fmt::Debug for Qp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", T::RULES, self.info.name())
    }
}

impl<T: Transport> fmt::Display for Qp<T> {
    /// Asks the device and prints everything that it says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.query() {
            Ok(snapshot) => snapshot.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for QpSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attr = &self.attr;
        write!(f, "{} {}: {}", self.transport, self.name, attr.qp_state)?;
        if attr.qp_state == IBV_QPS_RESET {
            return Ok(());
        }
        let access = crate::pd::Access::from_bits_retain(attr.qp_access_flags);
        write!(
            f,
            "\n  port {}, pkey_index {}, access {access:?}",
            attr.port_num, attr.pkey_index
        )?;
        let connected = matches!(
            attr.qp_state,
            IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE | IBV_QPS_ERR
        );
        if !connected || attr.dest_qp_num == 0 {
            return Ok(());
        }
        let (av, grh) = (&attr.ah_attr, &attr.ah_attr.grh);
        write!(f, "\n  to QP {:#x}", attr.dest_qp_num)?;
        if av.is_global != 0 {
            write!(
                f,
                " at {}, sgid_index {}, hop_limit {}, traffic_class {}, flow_label {:#x}",
                grh.dgid, grh.sgid_index, grh.hop_limit, grh.traffic_class, grh.flow_label
            )?;
        }
        write!(f, ", lid {}, sl {}", av.dlid, av.sl)?;
        match PathMtu::from_code(attr.path_mtu.0) {
            Some(mtu) => write!(f, ", path MTU {}", mtu.bytes())?,
            None => write!(f, ", path MTU code {}", attr.path_mtu.0)?,
        }
        // What a transport needs on the way there is what it has.
        let has = |from, to, attribute| {
            rules::required(self.transport, from, to).is_some_and(|mask| mask.contains(attribute))
        };
        let receives = |attribute| has(IBV_QPS_INIT, IBV_QPS_RTR, attribute);
        write!(f, "\n  receives from PSN {:#08x}", attr.rq_psn)?;
        if receives(IBV_QP_MAX_DEST_RD_ATOMIC) {
            write!(f, ", serves {} reads", attr.max_dest_rd_atomic)?;
        }
        if receives(IBV_QP_MIN_RNR_TIMER)
            && let Ok(timer) = RnrTimer::from_code(attr.min_rnr_timer)
        {
            write!(f, ", RNR timer {:?}", timer.interval())?;
        }
        if attr.qp_state != IBV_QPS_RTR {
            let sends = |attribute| has(IBV_QPS_RTR, IBV_QPS_RTS, attribute);
            write!(f, "\n  sends from PSN {:#08x}", attr.sq_psn)?;
            if sends(IBV_QP_MAX_QP_RD_ATOMIC) {
                write!(f, ", issues {} reads", attr.max_rd_atomic)?;
            }
            if sends(IBV_QP_TIMEOUT)
                && let Ok(timeout) = AckTimeout::from_code(attr.timeout)
            {
                write!(f, ", timeout {timeout}")?;
            }
            if sends(IBV_QP_RETRY_CNT) {
                let (retries, rnr) = (attr.retry_cnt, attr.rnr_retry);
                write!(f, ", retry_cnt {retries}, rnr_retry {rnr}")?;
            }
        }
        if attr.sq_draining != 0 {
            f.write_str("\n  the send queue is draining")?;
        }
        Ok(())
    }
}
