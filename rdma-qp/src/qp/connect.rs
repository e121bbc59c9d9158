//! Connecting: INIT, RTR, a barrier, RTS, so that nobody sends before the peer is ready to receive.

mod options;

use rdma_core_sys::rules;
use rdma_core_sys::{IBV_QPS_INIT, IBV_QPS_RESET, ibv_device_attr, ibv_port_state, ibv_qp_state};

pub use options::PathOptions;

use super::modify::{self, Moves};
use super::transition::Global;
use super::{Connects, ModifyError, Path, Qp, QueryQpError, ToInit, ToRtr, ToRts, Transport};
use crate::dump::Ends;
use crate::endpoint::{Endpoint, LinkLayer, Peer};
use crate::exchange::{Exchange, ExchangeError};
use crate::gid::{Gid, GidEntry};
use crate::lint::{self, Settings};
use crate::pd::Access;
use crate::port::{BadPort, Port, QueryPortError};
use crate::units::{OutOfRange, PathMtu, Psn, Timing};

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
    /// The endpoint was made of another QP.
    #[error("the endpoint is that of QP {qp_num:#x}, not of {qp}: each QP needs one of its own")]
    OtherQp {
        /// The QP.
        qp: String,
        /// The one that it was made of.
        qp_num: u32,
    },
    /// An option of the path is out of its range.
    #[error(transparent)]
    Options(#[from] OutOfRange),
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
    /// The peer's record is that of a UD QP: it has a Q_Key, and connects to nobody.
    #[error(
        "the record of QP {qp_num:#x} at {gid} has a Q_Key, so it is a UD QP, which connects to nobody: make one of the same transport at both ends"
    )]
    PeerIsUd {
        /// The peer's QP number.
        qp_num: u32,
        /// Its GID.
        gid: Gid,
    },
    /// The peer's record is not that of the other end of XRC: an initiator connects to a target, and to nothing else.
    #[error(
        "the record of QP {qp_num:#x} at {gid} is not that of an XRC {needed}, to which alone this end connects: were the peer's two records mixed up?"
    )]
    NotOtherEnd {
        /// `target` or `initiator`.
        needed: &'static str,
        /// The peer's QP number.
        qp_num: u32,
        /// Its GID.
        gid: Gid,
    },
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

/// The end of XRC that `there` would have to be and is not: a target says that it issues no READs, and an initiator that it
/// serves none.
fn lacks(transport: rules::Transport, there: &Endpoint) -> Option<&'static str> {
    let (needed, tells) = match transport {
        rules::Transport::XrcIni => ("target", there.initiator_depth),
        rules::Transport::XrcTgt => ("initiator", there.responder_depth),
        _ => return None,
    };
    (tells != 0).then_some(needed)
}

/// What the peer is told of a QP, and what only this end needs of it.
#[derive(Clone)]
pub(crate) struct Description {
    here: Endpoint,
    source: GidEntry,
    pkey_index: u16,
    port_state: ibv_port_state,
    /// The peer, once connecting has begun.
    there: Option<Endpoint>,
}

impl Description {
    /// What was told before, by another value for the same QP.
    pub(super) fn again(
        here: Endpoint,
        source: GidEntry,
        pkey_index: u16,
        port_state: ibv_port_state,
    ) -> Description {
        Description {
            here,
            source,
            pkey_index,
            port_state,
            there: None,
        }
    }

    pub(super) fn here(&self) -> &Endpoint {
        &self.here
    }

    pub(super) fn set_here(&mut self, here: Endpoint) {
        self.here = here;
    }

    pub(super) fn source(&self) -> GidEntry {
        self.source
    }

    pub(super) fn port(&self) -> u8 {
        self.here.port
    }

    pub(super) fn ends(&self) -> Ends {
        Ends {
            here: self.here.clone(),
            there: self.there.clone(),
        }
    }
}

/// What the peer was told, until it is used up.
pub(crate) type Told = Option<Description>;

/// The steps of connecting, for any QP.
pub(crate) trait Connecting: Moves {
    /// What the peer was told.
    fn told(&mut self) -> &mut Told;

    /// What the peer may do.
    fn access(&self) -> Access;

    /// Depths of its queues, where they are known.
    fn depths(&self) -> Option<(u32, u32)> {
        None
    }

    /// See [`Qp::endpoint_with`].
    fn describe(&mut self, gid: GidEntry, options: PathOptions) -> Result<Endpoint, EndpointError> {
        options.check()?;
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
        let (mut initiator_depth, mut responder_depth) = depths(qp.device);
        match qp.transport {
            rules::Transport::XrcIni => responder_depth = 0,
            rules::Transport::XrcTgt => initiator_depth = 0,
            _ => {}
        }
        let endpoint = Endpoint {
            qp_num: qp.info.qp_num,
            psn: Psn::random()?,
            gid: gid.gid,
            lid: info.lid,
            link_layer: info.link_layer,
            mtu,
            initiator_depth,
            responder_depth,
            traffic_class: options.traffic_class,
            service_level: options.service_level,
            flow_label: options.flow_label,
            hop_limit: options.hop_limit,
            port: gid.port,
            pkey: port.pkey(options.pkey_index)?,
            qkey: None,
        };
        *self.told() = Some(Description {
            here: endpoint.clone(),
            source: gid,
            pkey_index: options.pkey_index,
            port_state: info.state,
            there: None,
        });
        Ok(endpoint)
    }

    /// See [`Qp::init`].
    fn to_init(&mut self) -> Result<(), ConnectError> {
        let told = self.told().as_ref().ok_or(ConnectError::NoEndpoint)?;
        let (port, pkey_index) = (told.here.port, told.pkey_index);
        let access = self.access();
        self.make(&ToInit {
            port,
            pkey_index,
            access,
        })?;
        Ok(())
    }

    /// See [`Qp::connect_begin`].
    fn begin(&mut self, there: &Peer, timing: Timing) -> Result<Negotiated, ConnectError> {
        let told = self.told().as_mut().ok_or(ConnectError::NoEndpoint)?;
        let Endpoint { qp_num, gid, .. } = there.endpoint;
        if there.endpoint.qkey.is_some() {
            return Err(ConnectError::PeerIsUd { qp_num, gid });
        }
        told.there = Some(there.endpoint.clone());
        let (here, source) = (told.here.clone(), told.source);
        let qp = self.control();
        if let Some(needed) = lacks(qp.transport, &there.endpoint) {
            return Err(ConnectError::NotOtherEnd {
                needed,
                qp_num,
                gid,
            });
        }
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

    /// See [`Qp::connect`].
    fn join(
        &mut self,
        there: &Peer,
        exchange: &mut (impl Exchange + ?Sized),
        timing: Timing,
    ) -> Result<Connected, ConnectError> {
        let agreed = self.begin(there, timing)?;
        exchange.barrier()?;
        self.finish(agreed, timing)
    }

    /// See [`Qp::connect_finish`].
    fn finish(&mut self, agreed: Negotiated, timing: Timing) -> Result<Connected, ConnectError> {
        let told = self.told().clone().ok_or(ConnectError::NoEndpoint)?;
        self.make(&ToRts {
            sq_psn: told.here.psn,
            timeout: timing.timeout,
            retry_cnt: timing.retry_cnt,
            rnr_retry: timing.rnr_retry,
            max_rd_atomic: agreed.max_rd_atomic,
        })?;
        // Its PSN is used now: a next life gets one of its own, so that nothing of this one falls into its window.
        *self.told() = None;
        let depths = self.depths();
        let qp = self.control();
        let here = told.here;
        let ends = told.there.map(|there| (here.clone(), there));
        let settings = Settings {
            path_mtu: Some(agreed.path_mtu),
            hop_limit: (here.link_layer == LinkLayer::Ethernet).then_some(here.hop_limit),
            send_depth: depths.map(|(send, _)| send),
            recv_depth: depths.map(|(_, recv)| recv),
            port: Some((here.port, told.port_state)),
            ends: ends.clone(),
            ..Settings::of(qp.transport, timing)
        };
        for finding in lint::check(&settings) {
            tracing::warn!(qp = %qp.info.name(), code = finding.code(), "{finding}");
        }
        qp.info.path().ends = ends.map(Box::new);
        Ok(Connected { agreed, timing })
    }
}

impl<T: Transport> Connecting for Qp<T> {
    fn told(&mut self) -> &mut Told {
        &mut self.told
    }

    fn access(&self) -> Access {
        self.access
    }

    fn depths(&self) -> Option<(u32, u32)> {
        let cap = self.cap();
        Some((cap.max_send_wr, cap.max_recv_wr))
    }
}

impl<T: Connects> Qp<T> {
    /// Describes this end for the peer, reached by the GID `gid`, with a new random PSN. Tell the peer with
    /// [`Exchange::swap`](crate::exchange::Exchange::swap); then [`Qp::connect`] uses the same values. One description is
    /// good for one connection.
    ///
    /// # Errors
    /// The port of the GID cannot be queried, no address vector can name the GID, or the system has no random bytes.
    pub fn endpoint(&mut self, gid: impl Into<GidEntry>) -> Result<Endpoint, EndpointError> {
        self.describe(gid.into(), PathOptions::default())
    }

    /// Describes this end as [`Qp::endpoint`] does, with a traffic class, a service level, a flow label, a hop limit or a
    /// partition key of its own.
    ///
    /// # Errors
    /// As [`Qp::endpoint`]; also an option that is out of its range.
    pub fn endpoint_with(
        &mut self,
        gid: impl Into<GidEntry>,
        options: PathOptions,
    ) -> Result<Endpoint, EndpointError> {
        self.describe(gid.into(), options)
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
        self.join(there, exchange, timing)
    }

    /// The first half of [`Qp::connect`], for programs with a barrier of their own (MPI, a launcher): to RTR, where the QP
    /// receives. When the peer has done this too, call [`Qp::connect_finish`] with what this gives: the program's barrier
    /// stands between the two, and one barrier does for any number of QPs. See [`exchange`](crate::exchange) for an example.
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
