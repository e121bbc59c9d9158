//! XRC targets: Queue Pairs without queues, through which the initiators of other nodes reach the SRQs of a domain.

use std::fmt;
use std::sync::Arc;

use rdma_core_sys::rules;
use rdma_core_sys::*;

use super::connect::{Connecting, Told};
use super::drain::{DrainError, Drained};
use super::modify::{self, Control, Moves};
use super::recover::reconnect;
use super::transition::ToErr;
use super::{
    Change, ChangeError, ConnectError, Connected, DrainProblem, EndpointError, Modified,
    ModifyError, Negotiated, PathOptions, QpInfo, QpSnapshot, QueryQpError, RecoverError,
    RecoverProblem, Recovered, Recovery, TransitionOf, inspect, sqd,
};
use crate::cq::{Cq, PollError, SrqUser};
use crate::deadline::Deadline;
use crate::dump::Dump;
use crate::endpoint::{Endpoint, Peer};
use crate::errno::Errno;
use crate::exchange::Exchange;
use crate::gid::GidEntry;
use crate::lint::{self, Finding};
use crate::pd::Access;
use crate::raw::xrc::TargetHandle;
use crate::rtt::Rtt;
use crate::units::Timing;
use crate::xrc::XrcRecv;

/// A target was not destroyed. It is inside the error.
#[derive(Debug, thiserror::Error)]
#[error("{} could not be destroyed: {source}", .target.info.name())]
pub struct CloseTargetError {
    /// The target, to try again or to drop.
    pub target: Box<XrcTarget>,
    /// What the library said.
    pub source: Errno,
}

/// An XRC target: the end at which one initiator of another node arrives.
///
/// It has no queue and no completion queue, and nothing is posted to it. What arrives names an SRQ of the domain in which
/// the target stands: that SRQ has the receives, completes them on its CQ, and decides by its protection domain which memory a
/// request reaches. A completion names the target that the message came by, and so who sent it.
///
/// Made by [`XrcDomain::create_target`](crate::xrc::XrcDomain::create_target). Other processes that have the domain open it by
/// its number, with [`XrcDomain::open_target`](crate::xrc::XrcDomain::open_target): each then has a handle like this one, may
/// modify and query it, and gets its events. It lives until the last of its handles is closed or dropped, wherever that is.
///
/// ```
/// # use rdma_qp::Device;
/// # use rdma_qp::xrc::XrcDomain;
/// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// let domain = XrcDomain::anonymous(&device)?;
/// let made = domain.create_target()?;
/// let opened = domain.open_target(made.qp_num())?;
/// made.close()?;
/// println!("still there: {opened}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct XrcTarget {
    handle: TargetHandle,
    info: Arc<QpInfo>,
    device: Arc<ibv_device_attr>,
    access: Access,
    told: Told,
}

impl XrcTarget {
    const TRANSPORT: rules::Transport = rules::Transport::XrcTgt;

    pub(crate) fn new(handle: TargetHandle, device: &Arc<ibv_device_attr>) -> XrcTarget {
        let name = &modify::Handle::context(&handle).name;
        XrcTarget {
            info: Arc::new(QpInfo::new(name, handle.number())),
            handle,
            device: device.clone(),
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            told: None,
        }
    }

    /// What the initiator may do, used by [`XrcTarget::init`] and what begins with it; WRITE, READ and atomics if not set. A
    /// region's own rights decide on top of it.
    pub fn with_access(mut self, access: Access) -> XrcTarget {
        self.access = access;
        self
    }

    /// Its number, 24 bits: what the initiator connects to, and what completions name.
    pub fn qp_num(&self) -> u32 {
        self.handle.number()
    }

    /// Name of the device that it is of.
    pub fn device(&self) -> &str {
        &self.info.device
    }

    /// The verbs object, for calls that this library does not have. It is destroyed with the target.
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.handle.as_ptr()
    }

    /// Its real state, asked of the device. Any process that has it open, and the device itself, may move it.
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
        modify::snapshot(&self.handle, &self.info, Self::TRANSPORT)
    }

    /// All that is known of this end, as [`Qp::dump`](super::Qp::dump); it has no books: they are those of the SRQs.
    pub fn dump(&self) -> Dump {
        let told = self.told.as_ref();
        inspect::take(
            &self.handle,
            &self.device,
            &self.info,
            Self::TRANSPORT,
            told,
        )
    }

    /// The settings that are legal and do harm, as [`Qp::lint`](super::Qp::lint).
    pub fn lint(&self, rtt: Option<Rtt>) -> Vec<Finding> {
        lint::check(&self.dump().settings(rtt))
    }

    /// Looks at a modify as [`Qp::check`](super::Qp::check) does, and does not make it. Returns the attributes that would be
    /// ignored: `IBV_QP_MAX_QP_RD_ATOMIC`, `IBV_QP_RETRY_CNT` and `IBV_QP_RNR_RETRY` mean nothing on a target.
    ///
    /// # Errors
    /// Everything that is wrong with the call, all at once.
    pub fn check(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<ibv_qp_attr_mask, ModifyError> {
        self.control().check(attr, mask)
    }

    /// `ibv_modify_qp`, after looking at the call, as [`Qp::modify`](super::Qp::modify).
    ///
    /// # Errors
    /// Everything that is wrong with the call, all at once; or the errno of the provider. Either way the target is unchanged.
    pub fn modify(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<Modified, ModifyError> {
        Moves::modify(self, attr, mask)
    }

    /// Makes a typed transition.
    ///
    /// # Errors
    /// As [`XrcTarget::modify`].
    pub fn to(&mut self, transition: impl TransitionOf<XrcRecv>) -> Result<Modified, ModifyError> {
        self.make(&transition)
    }

    /// Describes this end for the initiator, as [`Qp::endpoint`](super::Qp::endpoint).
    ///
    /// # Errors
    /// The port of the GID cannot be queried, no address vector can name the GID, or the system has no random bytes.
    pub fn endpoint(&mut self, gid: impl Into<GidEntry>) -> Result<Endpoint, EndpointError> {
        self.describe(gid.into(), PathOptions::default())
    }

    /// Describes this end with options of the path, as [`Qp::endpoint_with`](super::Qp::endpoint_with).
    ///
    /// # Errors
    /// As [`XrcTarget::endpoint`]; also an option that is out of its range.
    pub fn endpoint_with(
        &mut self,
        gid: impl Into<GidEntry>,
        options: PathOptions,
    ) -> Result<Endpoint, EndpointError> {
        self.describe(gid.into(), options)
    }

    /// Moves a fresh target to INIT on the port of the endpoint that was told.
    ///
    /// # Errors
    /// There is no endpoint yet, or the move was refused.
    pub fn init(&mut self) -> Result<(), ConnectError> {
        self.to_init()
    }

    /// Connects to the initiator, as [`Qp::connect`](super::Qp::connect). A target receives from RTR on, so it is connected
    /// when [`XrcTarget::connect_begin`] has succeeded; RTS gives it the timeout of what it repeats.
    ///
    /// # Errors
    /// A step was refused, or the peer did not come to the barrier. The target stays in the state that it has reached.
    pub fn connect(
        &mut self,
        there: &Peer,
        exchange: &mut (impl Exchange + ?Sized),
        timing: Timing,
    ) -> Result<Connected, ConnectError> {
        self.join(there, exchange, timing)
    }

    /// The first half of [`XrcTarget::connect`], to RTR, for programs with a barrier of their own.
    ///
    /// # Errors
    /// A step was refused.
    pub fn connect_begin(
        &mut self,
        there: &Peer,
        timing: Timing,
    ) -> Result<Negotiated, ConnectError> {
        self.begin(there, timing)
    }

    /// The second half of [`XrcTarget::connect`], to RTS.
    ///
    /// # Errors
    /// The step was refused.
    pub fn connect_finish(
        &mut self,
        agreed: Negotiated,
        timing: Timing,
    ) -> Result<Connected, ConnectError> {
        self.finish(agreed, timing)
    }

    /// Changes attributes of a connected target, as [`Qp::drain_and_modify`](super::Qp::drain_and_modify); it sends nothing of
    /// its own, so there is nothing to wait for.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn drain_and_modify(
        &mut self,
        change: &Change,
        deadline: impl Into<Deadline>,
    ) -> Result<(), ChangeError> {
        sqd::drain_and_modify(self, change, deadline.into())
    }

    /// Back to RTS from SQD, as [`Qp::resume`](super::Qp::resume).
    ///
    /// # Errors
    /// The target is in another state; or the provider refused.
    pub fn resume(&mut self) -> Result<Modified, ModifyError> {
        sqd::resume(self)
    }

    /// Lets `cq`, to which SRQs of its domain report, know this target: flushes that come by it then name the failure that
    /// they come from, [`Cq::explain`] knows its path, and completions that a former QP of its number left there are handed
    /// out as those of no QP.
    ///
    /// # Errors
    /// The CQ does not work any more.
    pub fn report_on(&self, cq: &Cq) -> Result<(), PollError> {
        cq.enter_user(SrqUser {
            info: self.info.clone(),
            recv: self.handle.lives.clone(),
            root: None,
        })
    }

    /// Ends what comes by this target: moves it to ERR, unless it is there or in RESET, and takes its completions from the CQs
    /// of the SRQs. A message that was half received ends with a flush. Completions of other targets stay.
    ///
    /// Receives are the SRQs' and not the target's, so no books of its own say when the last of its completions has come, and
    /// no event is promised: what a device reports later comes by the CQs like any other completion.
    ///
    /// # Errors
    /// The target could not be moved, or a CQ does not work. What was taken from the CQs by then is in the error.
    pub fn drain(&mut self, cqs: &[&Cq]) -> Result<Drained, DrainError> {
        let mut taken = Vec::new();
        let result = self.take_all(cqs, &mut taken);
        Drained::of(Self::TRANSPORT, taken).ended(result)
    }

    fn take_all(
        &mut self,
        cqs: &[&Cq],
        taken: &mut Vec<crate::cq::Completion>,
    ) -> Result<(), DrainProblem> {
        if ![IBV_QPS_RESET, IBV_QPS_ERR].contains(&self.state()?) {
            self.make(&ToErr)?;
        }
        for cq in cqs {
            cq.begin_drain();
            cq.take_of(self.qp_num(), taken)?;
        }
        Ok(())
    }

    /// Ends the present life of the target and connects it to its initiator again, which does the same at the same time, as
    /// [`Qp::recover`](super::Qp::recover). The receives are in their SRQs all the while.
    ///
    /// # Errors
    /// A step failed. What was drained by then is in the error.
    pub fn recover(
        &mut self,
        cqs: &[&Cq],
        exchange: &mut (impl Exchange + ?Sized),
        how: &Recovery<'_>,
    ) -> Result<Recovered, RecoverError> {
        let drained = match self.drain(cqs) {
            Ok(drained) => drained,
            Err(DrainError { drained, reason }) => {
                let reason = RecoverProblem::Drain(reason);
                return Err(RecoverError { drained, reason });
            }
        };
        match reconnect(self, exchange, how, |_| Ok(())) {
            Ok((there, connected)) => Ok(Recovered {
                drained,
                there,
                connected,
            }),
            Err(reason) => Err(RecoverError {
                drained: Box::new(drained),
                reason,
            }),
        }
    }

    /// Closes this handle and says whether that worked. The target itself ends with its last handle.
    ///
    /// # Errors
    /// The library refused.
    pub fn close(mut self) -> Result<(), CloseTargetError> {
        self.handle.destroy().map_err(|source| CloseTargetError {
            target: Box::new(self),
            source,
        })
    }
}

impl Moves for XrcTarget {
    fn control(&mut self) -> Control<'_> {
        Control {
            handle: &mut self.handle,
            device: &self.device,
            info: &self.info,
            transport: Self::TRANSPORT,
        }
    }

    fn modify(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<Modified, ModifyError> {
        self.control()
            .modify(attr, mask)
            .map(|(modified, _)| modified)
    }
}

impl Connecting for XrcTarget {
    fn told(&mut self) -> &mut Told {
        &mut self.told
    }

    fn access(&self) -> Access {
        self.access
    }
}

impl fmt::Debug for XrcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", Self::TRANSPORT, self.info.name())
    }
}

impl fmt::Display for XrcTarget {
    /// Asks the device and prints everything that it says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.query() {
            Ok(snapshot) => snapshot.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}
