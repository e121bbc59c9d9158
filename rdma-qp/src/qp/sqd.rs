//! Changing a QP that is connected, by way of SQD; and back to RTS from where sends stand still.

use std::thread;
use std::time::Duration;

use rdma_core_sys::rules;
use rdma_core_sys::*;

use super::modify::{Moves, ask};
use super::transition::{Path, ToSqd, Transition};
use super::{Modified, ModifyError, Qp, QueryQpError, Transport};
use crate::deadline::Deadline;
use crate::errno::Errno;
use crate::pd::Access;
use crate::units::{AckTimeout, RetryCount, RnrRetry, RnrTimer};

/// What [`Qp::drain_and_modify`] changes: the attributes that are `Some`.
///
/// The path MTU, the peer's QP number and the PSNs cannot be changed without connecting again. Which of the others a
/// transport has, the rules say: UC has path, P_Key index and access, UD has Q_Key and P_Key index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The way to the peer.
    pub path: Option<Path>,
    /// Place of the partition key in the port's table.
    pub pkey_index: Option<u16>,
    /// What the peer may do.
    pub access: Option<Access>,
    /// The Q_Key that datagrams must have.
    pub qkey: Option<u32>,
    /// How long to wait for an acknowledgement.
    pub timeout: Option<AckTimeout>,
    /// How often to repeat without one.
    pub retry_cnt: Option<RetryCount>,
    /// How often to repeat when the peer had no receive posted.
    pub rnr_retry: Option<RnrRetry>,
    /// How long the peer is asked to wait when no receive is posted.
    pub min_rnr_timer: Option<RnrTimer>,
    /// READs and atomics under way at a time: at most what the peer serves.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics of the peer that can be served at a time.
    pub max_dest_rd_atomic: Option<u8>,
}

impl Transition for Change {
    /// The modify in SQD. Nothing is left out: what the transport does not have is refused.
    fn lower(&self, _: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_SQD;
        let mut mask = IBV_QP_STATE;
        /// Sets the fields of what is there.
        macro_rules! set {
            ($($bit:ident: $there:expr => $field:ident;)*) => {
                $(if let Some(value) = $there {
                    attr.$field = value;
                    mask |= $bit;
                })*
            };
        }
        set! {
            IBV_QP_AV: self.path.map(|path| path.lower()) => ah_attr;
            IBV_QP_PKEY_INDEX: self.pkey_index => pkey_index;
            IBV_QP_ACCESS_FLAGS: self.access.map(|access| access.bits()) => qp_access_flags;
            IBV_QP_QKEY: self.qkey => qkey;
            IBV_QP_TIMEOUT: self.timeout.map(AckTimeout::code) => timeout;
            IBV_QP_RETRY_CNT: self.retry_cnt.map(RetryCount::get) => retry_cnt;
            IBV_QP_RNR_RETRY: self.rnr_retry.map(RnrRetry::code) => rnr_retry;
            IBV_QP_MIN_RNR_TIMER: self.min_rnr_timer.map(RnrTimer::code) => min_rnr_timer;
            IBV_QP_MAX_QP_RD_ATOMIC: self.max_rd_atomic => max_rd_atomic;
            IBV_QP_MAX_DEST_RD_ATOMIC: self.max_dest_rd_atomic => max_dest_rd_atomic;
        }
        (attr, mask)
    }
}

/// Back to RTS, with nothing changed.
struct Resume;

impl Transition for Resume {
    fn lower(&self, _: rules::Transport) -> (ibv_qp_attr, ibv_qp_attr_mask) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_RTS;
        (attr, IBV_QP_STATE)
    }
}

/// A connected QP was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The change itself cannot be made. The QP was not touched.
    #[error(transparent)]
    Refused(ModifyError),
    /// The QP is not in RTS, nor in SQD.
    #[error("{qp} is in {state}; it can be drained and changed in RTS: in other states, modify it")]
    NotReady {
        /// The QP.
        qp: String,
        /// Its state.
        state: ibv_qp_state,
    },
    /// The device has no SQD. The QP is in RTS as before.
    #[error(
        "this device has no SQD, so a connected QP of it cannot be changed: wait until its requests are done, move it to \
         ERR and RESET and connect it again with the new attributes (Qp::recover does), or connect a second QP with them \
         and drop this one when its requests are done. {0}"
    )]
    NoSqd(#[source] ModifyError),
    /// The move to SQD failed otherwise. The QP is in RTS as before.
    #[error(transparent)]
    NotStopped(ModifyError),
    /// Sends that had begun are not finished. The QP is in SQD: what was posted goes on when it is in RTS again.
    #[error(
        "{qp} still drains, and the deadline has passed: call drain_and_modify again, or resume when it is drained, or \
         move it to ERR"
    )]
    TimedOut {
        /// The QP.
        qp: String,
    },
    /// The QP left SQD while it drained: a send failed.
    #[error("{qp} went to {state} while it drained: a request failed; its completions say which")]
    Failed {
        /// The QP.
        qp: String,
        /// Its state.
        state: ibv_qp_state,
    },
    /// The device refused the change. The QP is in RTS again, and sends go on.
    #[error("{0} The QP is in RTS again.")]
    NotChanged(#[source] ModifyError),
    /// The QP does not come back to RTS. `changed` says whether the change was made.
    #[error("{source} The QP stays in SQD, and {}", if *.changed { "was changed" } else { "was not changed" })]
    Stuck {
        /// Whether the change was made.
        changed: bool,
        /// Why it does not come back.
        source: ModifyError,
    },
    /// The QP could not be queried.
    #[error(transparent)]
    Query(#[from] QueryQpError),
}

/// Passes some time between two looks: 20 microseconds at first, then up to a millisecond.
pub(crate) fn pause(turn: u32) {
    thread::sleep(Duration::from_micros(20 << turn.min(6)).min(Duration::from_millis(1)));
}

/// See [`Qp::drain_and_modify`].
pub(crate) fn drain_and_modify(
    qp: &mut dyn Moves,
    change: &Change,
    deadline: Deadline,
) -> Result<(), ChangeError> {
    let control = qp.control();
    let (attr, mask) = change.lower(control.transport);
    let mut now = ask(control.handle, control.info, IBV_QP_STATE | IBV_QP_PORT)?;
    let state = std::mem::replace(&mut now.qp_state, IBV_QPS_SQD);
    if ![IBV_QPS_RTS, IBV_QPS_SQD].contains(&state) {
        let qp = control.info.name();
        return Err(ChangeError::NotReady { qp, state });
    }
    control
        .check_from(&now, &attr, mask)
        .map_err(ChangeError::Refused)?;
    if state == IBV_QPS_RTS
        && let Err(error) = qp.make(&ToSqd { notify: false })
    {
        return Err(not_stopped(qp, error));
    }
    wait_until_drained(qp, deadline)?;
    let changed = qp.modify(&attr, mask);
    match (changed, qp.make(&Resume)) {
        (Ok(_), Ok(_)) => Ok(()),
        (Err(error), Ok(_)) => Err(ChangeError::NotChanged(error)),
        (changed, Err(source)) => Err(ChangeError::Stuck {
            changed: changed.is_ok(),
            source,
        }),
    }
}

/// Why the move from RTS to SQD was refused.
fn not_stopped(qp: &mut dyn Moves, error: ModifyError) -> ChangeError {
    let lacks = [Errno::EINVAL, Errno::EOPNOTSUPP].contains(&error.errno());
    if error.refused_before_call() || !lacks {
        return ChangeError::NotStopped(error);
    }
    // A request may have failed between the look and the call.
    let control = qp.control();
    match ask(control.handle, control.info, IBV_QP_STATE) {
        Ok(now) if now.qp_state != IBV_QPS_RTS => ChangeError::Failed {
            qp: control.info.name(),
            state: now.qp_state,
        },
        _ => ChangeError::NoSqd(error),
    }
}

/// Success of the move to SQD does not mean that the sends are finished: `sq_draining` says when they are. The event
/// `IBV_EVENT_SQ_DRAINED` says it too, but the events of a device are the application's.
fn wait_until_drained(qp: &mut dyn Moves, deadline: Deadline) -> Result<(), ChangeError> {
    for turn in 0.. {
        let control = qp.control();
        let now = ask(control.handle, control.info, IBV_QP_STATE)?;
        let qp = || control.info.name();
        match (now.qp_state, now.sq_draining) {
            (IBV_QPS_SQD, 0) => return Ok(()),
            (IBV_QPS_SQD, _) if deadline.passed() => {
                return Err(ChangeError::TimedOut { qp: qp() });
            }
            (IBV_QPS_SQD, _) => pause(turn),
            (state, _) => return Err(ChangeError::Failed { qp: qp(), state }),
        }
    }
    Ok(())
}

/// See [`Qp::resume`].
pub(crate) fn resume(qp: &mut dyn Moves) -> Result<Modified, ModifyError> {
    qp.make(&Resume)
}

impl<T: Transport> Qp<T> {
    /// Changes attributes of a connected QP without connecting again: RTS to SQD, which lets the sends finish that have
    /// begun, a wait until they are, the change, and back to RTS. Nothing is lost: receiving goes on meanwhile, and sends that
    /// had not begun, or are posted meanwhile, begin afterwards. The books do not change.
    ///
    /// What is wrong with the change is found before the QP is touched.
    ///
    /// # Errors
    /// See [`ChangeError`]: each says in which state the QP is. Some devices have no SQD at all (mlx5's kernel driver
    /// answers the move with EINVAL): [`ChangeError::NoSqd`] says what to do instead.
    ///
    /// ```
    /// # use rdma_qp::{AckTimeout, Change, Device, Peer, Timing};
    /// # use std::time::Duration;
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// # let mut qp = pd.rc(&cq).create()?;
    /// # let gid = device.port(1)?.best_gid()?;
    /// # let there = Peer { endpoint: qp.endpoint(gid)?, regions: Vec::new() };
    /// # let agreed = qp.connect_begin(&there, Timing::default())?;
    /// # qp.connect_finish(agreed, Timing::default())?;
    /// // Connected, and the network became slower: wait four times as long for acknowledgements.
    /// let change = Change { timeout: Some(AckTimeout::from_code(16)?), ..Change::default() };
    /// qp.drain_and_modify(&change, Duration::from_secs(5))?;
    /// assert_eq!(qp.query()?.attr.timeout, 16);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain_and_modify(
        &mut self,
        change: &Change,
        deadline: impl Into<Deadline>,
    ) -> Result<(), ChangeError> {
        drain_and_modify(self, change, deadline.into())
    }

    /// Back to RTS from where sends stand still: from SQE, where a UC or UD QP goes when one of its sends failed (the sends
    /// after that one are flushed, receiving goes on), and from SQD, where [`Qp::drain_and_modify`] may leave it.
    ///
    /// In RTS already it changes nothing.
    ///
    /// # Errors
    /// The QP is in another state, or in SQD and not drained yet; or the provider refused.
    pub fn resume(&mut self) -> Result<Modified, ModifyError> {
        resume(self)
    }
}
