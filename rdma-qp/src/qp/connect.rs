//! Connecting: INIT, RTR, a barrier, RTS, so that nobody sends before the peer is ready to receive.

use rdma_core_sys::{IBV_QPS_INIT, IBV_QPS_RESET, ibv_device_attr, ibv_qp_state};

use super::modify::{self, Moves};
use super::transition::{Global, HOP_LIMIT};
use super::{ModifyError, Path, Qp, QueryQpError, Rc, ToInit, ToRtr, ToRts};
use crate::endpoint::{Endpoint, Peer};
use crate::exchange::{Exchange, ExchangeError};
use crate::gid::GidEntry;
use crate::pd::Access;
use crate::port::{BadPort, Port, QueryPortError};
use crate::units::{PathMtu, Psn, Timing};

/// An endpoint could not be described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The GID is of a port that the device does not have.
    #[error(transparent)]
    Port(#[from] BadPort),
    /// The port could not be queried.
    #[error(transparent)]
    Query(#[from] QueryPortError),
    /// The port has an MTU that this library does not know.
    #[error("{device}/{port} has active MTU code {code}, which is none of 1 to 5")]
    Mtu {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The code.
        code: u32,
    },
    /// No address vector can name the GID.
    #[error("GID {0} cannot be used: an address vector names no index above 255; choose another")]
    GidIndex(GidEntry),
    /// The system has no random bytes for a PSN.
    #[error("no random PSN: {0}")]
    Random(#[from] std::io::Error),
}

/// Connecting failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer was not told about this QP, or not since it was connected last.
    #[error(
        "the peer knows nothing of this QP: call endpoint() and swap the result before connect()"
    )]
    NoEndpoint,
    /// The QP is connected already, or in error.
    #[error("{qp} is in {state}; connecting begins in RESET or INIT: move it to RESET first")]
    NotFresh {
        /// The QP.
        qp: String,
        /// Its state.
        state: ibv_qp_state,
    },
    /// The QP could not be queried.
    #[error(transparent)]
    Query(#[from] QueryQpError),
    /// A transition was refused.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The peer did not come to the barrier.
    #[error("waiting for the peer to be ready to receive: {0}")]
    Exchange(#[from] ExchangeError),
}

/// What two ends agree on: for each, the smaller of what one can ask for and the other can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// The path MTU of both ends.
    pub path_mtu: PathMtu,
    /// READs and atomics that this end can have under way.
    pub max_rd_atomic: u8,
    /// READs and atomics that this end serves at a time.
    pub max_dest_rd_atomic: u8,
}

impl Negotiated {
    /// What `here` and `there` agree on, seen from `here`.
    pub fn between(here: &Endpoint, there: &Endpoint) -> Negotiated {
        Negotiated {
            path_mtu: here.mtu.min(there.mtu),
            max_rd_atomic: here.initiator_depth.min(there.responder_depth),
            max_dest_rd_atomic: here.responder_depth.min(there.initiator_depth),
        }
    }
}

/// A connection that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connected {
    /// What both ends agreed on.
    pub agreed: Negotiated,
    /// The timing that was set.
    pub timing: Timing,
}

/// The READ depths that a device allows: as initiator, and as responder.
fn depths(attr: &ibv_device_attr) -> (u8, u8) {
    let cut = |n: i32| u8::try_from(n.clamp(0, 255)).unwrap_or(u8::MAX);
    (cut(attr.max_qp_init_rd_atom), cut(attr.max_qp_rd_atom))
}

/// What the peer is told of a QP, and the GID that it was told.
pub(crate) type Told = Option<(Endpoint, GidEntry)>;

/// The steps of connecting, for any QP.
pub(crate) trait Connecting: Moves {
    /// What the peer was told.
    fn told(&mut self) -> &mut Told;

    /// What the peer may do.
    fn access(&self) -> Access;

    /// See [`Qp::endpoint`].
    fn describe(&mut self, gid: GidEntry) -> Result<Endpoint, EndpointError> {
        if gid.sgid_index().is_none() {
            return Err(EndpointError::GidIndex(gid));
        }
        let qp = self.control();
        let context = qp.handle.context().clone();
        let port = Port::new(context, gid.port, qp.device.phys_port_cnt)?;
        let info = port.query()?;
        let mtu = info.active_mtu.ok_or_else(|| EndpointError::Mtu {
            device: qp.info.device.clone(),
            port: gid.port,
            code: info.raw.active_mtu.0,
        })?;
        let (initiator_depth, responder_depth) = depths(qp.device);
        let endpoint = Endpoint {
            qp_num: qp.info.qp_num,
            psn: Psn::random()?,
            gid: gid.gid,
            lid: info.lid,
            link_layer: info.link_layer,
            mtu,
            initiator_depth,
            responder_depth,
            traffic_class: 0,
            service_level: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            port: gid.port,
            pkey: port.pkey(0)?,
        };
        *self.told() = Some((endpoint.clone(), gid));
        Ok(endpoint)
    }

    /// See [`Qp::init`].
    fn to_init(&mut self) -> Result<(), ConnectError> {
        let port = self.told().as_ref().ok_or(ConnectError::NoEndpoint)?.0.port;
        let access = self.access();
        self.make(&ToInit {
            port,
            pkey_index: 0,
            access,
        })?;
        Ok(())
    }

    /// See [`Qp::connect_begin`].
    fn begin(&mut self, there: &Peer, timing: Timing) -> Result<Negotiated, ConnectError> {
        let Some((here, source)) = self.told().clone() else {
            return Err(ConnectError::NoEndpoint);
        };
        let qp = self.control();
        match modify::state(qp.handle, qp.info)? {
            IBV_QPS_RESET => self.to_init()?,
            IBV_QPS_INIT => {}
            state => {
                return Err(ConnectError::NotFresh {
                    qp: qp.info.name(),
                    state,
                });
            }
        }
        let agreed = Negotiated::between(&here, &there.endpoint);
        let mut path = Path::new(source, there.endpoint.gid);
        path.lid = there.endpoint.lid;
        path.service_level = here.service_level;
        path.global = path.global.map(|global| Global {
            hop_limit: here.hop_limit,
            traffic_class: here.traffic_class,
            flow_label: here.flow_label,
            ..global
        });
        self.make(&ToRtr {
            path,
            path_mtu: agreed.path_mtu,
            dest_qp_num: there.endpoint.qp_num,
            rq_psn: there.endpoint.psn,
            max_dest_rd_atomic: agreed.max_dest_rd_atomic,
            min_rnr_timer: timing.min_rnr_timer,
        })?;
        Ok(agreed)
    }

    /// See [`Qp::connect_finish`].
    fn finish(&mut self, agreed: Negotiated, timing: Timing) -> Result<Connected, ConnectError> {
        let Some((here, _)) = self.told().clone() else {
            return Err(ConnectError::NoEndpoint);
        };
        self.make(&ToRts {
            sq_psn: here.psn,
            timeout: timing.timeout,
            retry_cnt: timing.retry_cnt,
            rnr_retry: timing.rnr_retry,
            max_rd_atomic: agreed.max_rd_atomic,
        })?;
        // Its PSN is used now: a next life gets one of its own, so that nothing of this one falls into its window.
        *self.told() = None;
        Ok(Connected { agreed, timing })
    }
}

impl Connecting for Qp<Rc> {
    fn told(&mut self) -> &mut Told {
        &mut self.told
    }

    fn access(&self) -> Access {
        self.access
    }
}

impl Qp<Rc> {
    /// Describes this end for the peer, reached by the GID `gid`, with a new random PSN. Tell the peer with
    /// [`Exchange::swap`](crate::exchange::Exchange::swap); then [`Qp::connect`] uses the same values. One description is
    /// good for one connection.
    ///
    /// # Errors
    /// The port of the GID cannot be queried, no address vector can name the GID, or the system has no random bytes.
    pub fn endpoint(&mut self, gid: impl Into<GidEntry>) -> Result<Endpoint, EndpointError> {
        self.describe(gid.into())
    }

    /// Moves a fresh QP to INIT on the port of the endpoint that was told, so that receives can be posted before
    /// [`Qp::connect`]: then no message of the peer finds none.
    ///
    /// # Errors
    /// There is no endpoint yet, or the move was refused.
    pub fn init(&mut self) -> Result<(), ConnectError> {
        self.to_init()
    }

    /// Connects to the peer that was described by `there`: RESET to INIT (unless the QP is in INIT already), INIT to RTR, a
    /// barrier, RTR to RTS. Each step is checked, and told to `tracing`. The path MTU is the smaller of the two ports', the
    /// READ depths are the smaller of what one end asks for and the other serves.
    ///
    /// Post the receives that the peer's first messages need before this call, see [`Qp::init`].
    ///
    /// # Errors
    /// A step was refused, or the peer did not come to the barrier. The QP stays in the state that it has reached.
    pub fn connect(
        &mut self,
        there: &Peer,
        exchange: &mut (impl Exchange + ?Sized),
        timing: Timing,
    ) -> Result<Connected, ConnectError> {
        let agreed = self.begin(there, timing)?;
        exchange.barrier()?;
        self.finish(agreed, timing)
    }

    /// The first half of [`Qp::connect`], for programs with a barrier of their own (MPI, a launcher): to RTR. When every
    /// peer has done this, call [`Qp::connect_finish`].
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

    /// The second half of [`Qp::connect`]: to RTS. Only call it when the peer is in RTR, because what is sent before that
    /// is dropped silently.
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
}
