//! A new life for a QP whose connection failed.

use std::fmt;

use super::connect::Connecting;
use super::drain::{DrainError, Drained};
use super::transition::ToReset;
use super::{
    ConnectError, Connected, Connects, EndpointError, ModifyError, PathOptions, PostError, Qp,
};
use crate::cq::Cq;
use crate::deadline::Deadline;
use crate::endpoint::{Peer, RemoteRegion};
use crate::exchange::{Exchange, ExchangeError};
use crate::gid::GidEntry;
use crate::units::Timing;

/// How [`Qp::recover`] connects again.
#[derive(Clone, Copy, Debug)]
pub struct Recovery<'a> {
    /// The local GID.
    pub gid: GidEntry,
    /// Options of the path.
    pub options: PathOptions,
    /// Regions that the peer is told.
    pub offered: &'a [RemoteRegion],
    /// Timing of the new connection.
    pub timing: Timing,
}

impl<'a> Recovery<'a> {
    /// From that GID, with usual options and timing, offering nothing.
    pub fn new(gid: impl Into<GidEntry>) -> Recovery<'a> {
        Recovery {
            gid: gid.into(),
            options: PathOptions::default(),
            offered: &[],
            timing: Timing::default(),
        }
    }
}

/// A QP that was connected again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recovered {
    /// What became of the requests of the former life that the application had no completion of.
    pub drained: Drained,
    /// The peer, as it described itself for the new life.
    pub there: Peer,
    /// The new connection.
    pub connected: Connected,
}

/// A QP could not be connected again. What was drained is in the error: it is not told again.
#[derive(Debug)]
#[non_exhaustive]
pub struct RecoverError {
    /// What became of the requests of the former life.
    pub drained: Box<Drained>,
    /// At which step it ended.
    pub reason: RecoverProblem,
}

/// The step of a recovery that failed. Calling [`Qp::recover`] again begins anew, whichever it was; the peer has to as well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverProblem {
    /// The former life did not end.
    #[error(transparent)]
    Drain(super::DrainProblem),
    /// The QP could not be moved to RESET.
    #[error(transparent)]
    Reset(#[from] ModifyError),
    /// This end could not be described.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The peer did not answer.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// Receives could not be posted.
    #[error("the receives could not be posted again: {0}")]
    Repost(#[source] PostError),
    /// A step of connecting failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl fmt::Display for RecoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the QP was not connected again: {}", self.reason)
    }
}

impl std::error::Error for RecoverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

impl<T: Connects> Qp<T> {
    /// Ends the present life of the QP and connects it to its peer again: [`Qp::drain`], RESET, a new description with a
    /// fresh PSN swapped through `exchange`, INIT, the receives, RTR, the barrier, RTS. The peer's end does the same at the
    /// same time, whether it has seen the failure or not.
    ///
    /// `repost` posts the receives that the first messages of the peer need; receives of an SRQ stay in it, so there is
    /// nothing to post for a QP with one. What had been sent before is told by [`Recovered::drained`], and it is for the
    /// application to send again what was not done, and to find out about what is unknown.
    ///
    /// `deadline` is for the drain; the exchange has a limit of its own. No completion of the former life is delivered
    /// afterwards.
    ///
    /// # Errors
    /// A step failed. What was drained by then is in the error.
    pub fn recover(
        &mut self,
        cqs: &[&Cq],
        exchange: &mut (impl Exchange + ?Sized),
        how: &Recovery<'_>,
        deadline: impl Into<Deadline>,
        repost: impl FnOnce(&mut Qp<T>) -> Result<(), PostError>,
    ) -> Result<Recovered, RecoverError> {
        let drained = match self.drain(cqs, deadline) {
            Ok(drained) => drained,
            Err(DrainError { drained, reason }) => {
                let reason = RecoverProblem::Drain(reason);
                return Err(RecoverError { drained, reason });
            }
        };
        let between = |qp: &mut Qp<T>| repost(qp).and_then(|()| qp.ring());
        match reconnect(self, exchange, how, between) {
            Ok((there, connected)) => {
                tracing::info!(qp = ?self, "QP recovered");
                Ok(Recovered {
                    drained,
                    there,
                    connected,
                })
            }
            Err(reason) => {
                let drained = Box::new(drained);
                Err(RecoverError { drained, reason })
            }
        }
    }
}

/// RESET, and the way back to RTS with a peer that does the same. `between` is done in INIT.
pub(super) fn reconnect<Q: Connecting>(
    qp: &mut Q,
    exchange: &mut (impl Exchange + ?Sized),
    how: &Recovery<'_>,
    between: impl FnOnce(&mut Q) -> Result<(), PostError>,
) -> Result<(Peer, Connected), RecoverProblem> {
    qp.make(&ToReset)?;
    let here = qp.describe(how.gid, how.options)?;
    let there = exchange.swap(&here, how.offered)?;
    qp.to_init()?;
    between(qp).map_err(RecoverProblem::Repost)?;
    let connected = qp.join(&there, exchange, how.timing)?;
    Ok((there, connected))
}
