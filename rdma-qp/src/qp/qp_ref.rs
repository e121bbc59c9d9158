//! A QP that the program owns, brought through its states with the checks and reports of this library.

mod drain;

use std::fmt;
use std::marker::PhantomData;

use rdma_core_sys::rules;
use rdma_core_sys::*;

pub use drain::{RefDrainError, RefDrained};

use super::connect::{Connecting, Description, Told};
use super::inspect;
use super::modify::{self, Control, Moves};
use super::sqd;
use super::{
    Change, ChangeError, ConnectError, Connected, EndpointError, Modified, ModifyError, Negotiated,
    PathOptions, QpInfo, QpSnapshot, QueryQpError, Transition,
};
use crate::deadline::Deadline;
use crate::dump::Dump;
use crate::endpoint::{Endpoint, Peer};
use crate::exchange::Exchange;
use crate::gid::GidEntry;
use crate::lint::{self, Finding};
use crate::pd::Access;
use crate::port::{BadPort, GidError, Port};
use crate::raw::foreign::ForeignQp;
use crate::rtt::Rtt;
use crate::units::Timing;

/// A Queue Pair that the program owns, as `BorrowedFd` is to a file descriptor: it is asked, checked, modified and connected
/// here, and neither made nor destroyed. Made by [`QpRef::from_raw`].
///
/// The program posts and polls by itself, so this library keeps no books for it: how many of its requests are outstanding is
/// not known.
///
/// After a failure it gets a new life by [`QpRef::drain`], [`ToReset`](super::ToReset), a new [`QpRef::endpoint`] that the peer
/// is told, [`QpRef::init`], the program's receives, and [`QpRef::connect`].
pub struct QpRef<'a> {
    handle: ForeignQp,
    device: Box<ibv_device_attr>,
    info: QpInfo,
    transport: rules::Transport,
    access: Access,
    told: Told,
    /// What [`QpRef::drain`] posts.
    marks: drain::Marks,
    life: PhantomData<&'a ibv_qp>,
}

impl<'a> QpRef<'a> {
    /// What [`QpRef::from_raw`] makes of a QP that was looked at.
    pub(crate) fn new(
        handle: ForeignQp,
        qp_num: u32,
        transport: rules::Transport,
        device: ibv_device_attr,
        life: PhantomData<&'a ibv_qp>,
    ) -> QpRef<'a> {
        let name = &modify::Handle::context(&handle).name;
        QpRef {
            info: QpInfo::new(name, qp_num),
            handle,
            device: Box::new(device),
            transport,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            told: None,
            marks: drain::Marks::default(),
            life,
        }
    }

    /// What the peer may do, used by [`QpRef::init`] and what begins with it; WRITE, READ and atomics if not set.
    pub fn with_access(mut self, access: Access) -> QpRef<'a> {
        self.access = access;
        self
    }

    /// The verbs object.
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.handle.as_ptr()
    }

    /// Its number, 24 bits.
    pub fn qp_num(&self) -> u32 {
        self.info.qp_num
    }

    /// Its transport.
    pub fn transport(&self) -> rules::Transport {
        self.transport
    }

    /// Name of the device that it is of.
    pub fn device(&self) -> &str {
        &self.info.device
    }

    /// The GID table entry `index` of port `port`, for [`QpRef::endpoint`].
    ///
    /// # Errors
    /// There is no such port, the slot is empty, or the library refused.
    pub fn gid(&self, port: u8, index: u32) -> Result<GidEntry, QpRefGidError> {
        Ok(self.port(port)?.gid(index)?)
    }

    /// The GID that [`Port::best_gid`] chooses on port `port`.
    ///
    /// # Errors
    /// There is no such port, no entry will do, or the library refused.
    pub fn best_gid(&self, port: u8) -> Result<GidEntry, QpRefGidError> {
        Ok(self.port(port)?.best_gid()?.entry())
    }

    fn port(&self, number: u8) -> Result<Port, BadPort> {
        let context = modify::Handle::context(&self.handle).clone();
        Port::new(context, number, self.device.phys_port_cnt)
    }

    /// Its real state, asked of the device. `ibv_qp::state` is a copy that is stale after an asynchronous error.
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
        modify::snapshot(&self.handle, &self.info, self.transport)
    }

    /// All that is known of this end, as [`Qp::dump`](super::Qp::dump); without books, and without what its queues hold.
    pub fn dump(&self) -> Dump {
        let told = self.told.as_ref();
        inspect::take(&self.handle, &self.device, &self.info, self.transport, told)
    }

    /// The settings that are legal and do harm, as [`Qp::lint`](super::Qp::lint).
    pub fn lint(&self, rtt: Option<Rtt>) -> Vec<Finding> {
        lint::check(&self.dump().settings(rtt))
    }

    /// Looks at a modify as [`Qp::check`](super::Qp::check) does, and does not make it.
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
    /// Everything that is wrong with the call, all at once; or the errno of the provider. Either way the QP is unchanged.
    pub fn modify(
        &mut self,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<Modified, ModifyError> {
        Moves::modify(self, attr, mask)
    }

    /// Makes a typed transition, with those of its fields that the QP's transport needs. One that lacks something which the
    /// transport needs is refused.
    ///
    /// # Errors
    /// As [`QpRef::modify`].
    pub fn to(&mut self, transition: impl Transition) -> Result<Modified, ModifyError> {
        self.make(&transition)
    }

    /// Describes this end for the peer, as [`Qp::endpoint`](super::Qp::endpoint).
    ///
    /// # Errors
    /// The port of the GID cannot be queried, no address vector can name the GID, or the system has no random bytes.
    pub fn endpoint(&mut self, gid: impl Into<GidEntry>) -> Result<Endpoint, EndpointError> {
        self.describe(gid.into(), PathOptions::default())
    }

    /// Describes this end with options of the path, as [`Qp::endpoint_with`](super::Qp::endpoint_with).
    ///
    /// # Errors
    /// As [`QpRef::endpoint`]; also an option that is out of its range.
    pub fn endpoint_with(
        &mut self,
        gid: impl Into<GidEntry>,
        options: PathOptions,
    ) -> Result<Endpoint, EndpointError> {
        self.describe(gid.into(), options)
    }

    /// Goes on with an endpoint that an earlier `QpRef` of the same QP made, and that the peer was told: for programs that do
    /// not keep the value between the steps. `gid` and `pkey_index` are those that it was made with.
    ///
    /// # Errors
    /// The endpoint is that of another QP, or the port of the GID cannot be queried.
    ///
    /// ```
    /// # use rdma_core_sys::*;
    /// # use rdma_qp::QpRef;
    /// # let verbs = rdma_soft::verbs();
    /// # // SAFETY: each object is live until the process ends.
    /// # unsafe {
    /// # let list = verbs.get_device_list(std::ptr::null_mut());
    /// # let context = verbs.open_device(*list);
    /// # let pd = verbs.alloc_pd(context);
    /// # let cq = verbs.create_cq(context, 16, std::ptr::null_mut(), std::ptr::null_mut(), 0);
    /// # let mut init = ibv_qp_init_attr::zeroed();
    /// # (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
    /// # (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
    /// # let raw = verbs.create_qp(pd, &mut init);
    /// let mut qp = QpRef::from_raw(verbs, raw)?;
    /// let gid = qp.best_gid(1)?;
    /// let here = qp.endpoint(gid)?;
    /// drop(qp);
    /// // Later, when the peer has answered:
    /// let mut qp = QpRef::from_raw(verbs, raw)?;
    /// qp.endpoint_again(here, gid, 0)?;
    /// qp.init()?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn endpoint_again(
        &mut self,
        here: Endpoint,
        gid: impl Into<GidEntry>,
        pkey_index: u16,
    ) -> Result<(), EndpointError> {
        let gid = gid.into();
        if here.qp_num != self.qp_num() {
            return Err(EndpointError::OtherQp {
                qp: self.info.name(),
                qp_num: here.qp_num,
            });
        }
        let port_state = self.port(gid.port)?.query()?.state;
        self.told = Some(Description::again(here, gid, pkey_index, port_state));
        Ok(())
    }

    /// Moves a fresh QP to INIT on the port of the endpoint that was told, as [`Qp::init`](super::Qp::init).
    ///
    /// # Errors
    /// There is no endpoint yet, or the move was refused.
    pub fn init(&mut self) -> Result<(), ConnectError> {
        self.to_init()
    }

    /// Connects to the peer, as [`Qp::connect`](super::Qp::connect).
    ///
    /// # Errors
    /// A step was refused, or the peer did not come to the barrier. The QP stays in the state that it has reached.
    pub fn connect(
        &mut self,
        there: &Peer,
        exchange: &mut (impl Exchange + ?Sized),
        timing: Timing,
    ) -> Result<Connected, ConnectError> {
        self.join(there, exchange, timing)
    }

    /// The first half of [`QpRef::connect`], to RTR, for programs with a barrier of their own.
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

    /// The second half of [`QpRef::connect`], to RTS. Only call it when the peer is in RTR.
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

    /// Changes attributes of a connected QP, as [`Qp::drain_and_modify`](super::Qp::drain_and_modify).
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

    /// Back to RTS from SQE or SQD, as [`Qp::resume`](super::Qp::resume).
    ///
    /// # Errors
    /// The QP is in another state, or in SQD and not drained yet; or the provider refused.
    pub fn resume(&mut self) -> Result<Modified, ModifyError> {
        sqd::resume(self)
    }
}

/// A GID of a port could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QpRefGidError {
    /// There is no such port.
    #[error(transparent)]
    Port(#[from] BadPort),
    /// The port has no such GID, or none that will do.
    #[error(transparent)]
    Gid(#[from] GidError),
}

impl Moves for QpRef<'_> {
    fn control(&mut self) -> Control<'_> {
        Control {
            handle: &mut self.handle,
            device: &self.device,
            info: &self.info,
            transport: self.transport,
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

impl Connecting for QpRef<'_> {
    fn told(&mut self) -> &mut Told {
        &mut self.told
    }

    fn access(&self) -> Access {
        self.access
    }
}

impl fmt::Debug for QpRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport, self.info.name())
    }
}

impl fmt::Display for QpRef<'_> {
    /// Asks the device and prints everything that it says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.query() {
            Ok(snapshot) => snapshot.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}
