//! What can go wrong.

use std::fmt;

use rdma_core_sys::ibv_wc_status;
use rdma_qp::{Failure, Fate};

use super::{CardError, Rank};

/// A mesh could not be made, or does not work any more. What concerns single peers is no such error: it comes as an
/// [`Event`](super::Event).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// The layout has no such process.
    #[error("{me} is not among the {processes} processes of the layout: ranks are counted from 0")]
    NotInLayout {
        /// The rank that was given.
        me: Rank,
        /// Processes of the layout.
        processes: usize,
    },
    /// An option cannot be what it is.
    #[error("{option} is {value}: {cure}")]
    Option {
        /// The option.
        option: &'static str,
        /// What it is.
        value: u64,
        /// What it must be.
        cure: &'static str,
    },
    /// The cards of the others cannot be used.
    #[error(transparent)]
    Card(#[from] CardError),
    /// A step that makes or drives something of this process failed.
    #[error("{step}: {source}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The deadline has passed.
    #[error("the deadline has passed, and {missing} of {wanted} ways are not up yet")]
    TimedOut {
        /// Ways that are not up.
        missing: usize,
        /// Ways that were wanted.
        wanted: usize,
    },
}

/// Makes an error of a step.
pub(super) fn step<E>(step: &'static str) -> impl FnOnce(E) -> MeshError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| MeshError::Step {
        step,
        source: source.into(),
    }
}

/// A request was not taken. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The job has no such process.
    #[error("the job has no {to}: it has {processes} processes, counted from 0")]
    NoSuchProcess {
        /// Who was named.
        to: Rank,
        /// Processes of the job.
        processes: usize,
    },
    /// A process needs no mesh to reach itself.
    #[error("{0} is this process itself: copy the bytes")]
    Itself(Rank),
    /// Longer than what the peer receives.
    #[error(
        "a message of {len} bytes is over the limit of {max} of {to}: write it into a region of that process, or set max_message"
    )]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: u32,
        /// Who was to get it.
        to: Rank,
    },
    /// There is no room at present: poll, and try again.
    #[error("there is no room for another request at present: poll, and try again")]
    Busy,
    /// A one-sided request towards a process to which there is no way yet. It is being made.
    #[error("there is no way to {0} yet; it is being made: poll, and try again")]
    Connecting(Rank),
    /// A one-sided request, in a mesh over datagrams, which carry messages only.
    #[error(
        "a one-sided request towards {0} needs a connection, and this mesh is over datagrams: send a message, or make the mesh over RC or XRC"
    )]
    OneSided(Rank),
    /// The process has failed.
    #[error("{to} has failed: {why}")]
    Failed {
        /// Who.
        to: Rank,
        /// Why.
        why: Why,
    },
    /// The process has left the job.
    #[error("{0} has left the job")]
    Left(Rank),
    /// The process offers fewer regions.
    #[error("{of} offers {offered} regions; there is no number {index} (they are counted from 0)")]
    NoSuchRegion {
        /// Whose region it was to be.
        of: Rank,
        /// The region that was asked for.
        index: usize,
        /// Regions that it offers.
        offered: usize,
    },
    /// The request cannot be posted.
    #[error(transparent)]
    Post(#[from] rdma_qp::PostError),
    /// The mesh does not work any more.
    #[error(transparent)]
    Mesh(#[from] MeshError),
}

impl SendError {
    /// Whether polling and trying again is all that is to be done.
    pub fn is_busy(&self) -> bool {
        matches!(self, SendError::Busy | SendError::Connecting(_))
    }
}

/// Why a process counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Nothing answered: the process is gone, or the way to it. On XRC that is the whole node, or the process that made the end
    /// of the way there and had it alone.
    NoAnswer,
    /// Its end refused what only a living process takes: its receive queue is gone.
    Refused(ibv_wc_status),
    /// It did not answer when this process wanted to connect.
    NotConnected,
    /// What it says of its end cannot be connected to from here.
    BadEnd,
    /// It knows nothing of this process any more: it was restarted, or had given this one up. Only over datagrams.
    Restarted,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NoAnswer => f.write_str("nothing answers"),
            Why::Refused(status) => write!(f, "its receive queue is gone ({status:?})"),
            Why::NotConnected => f.write_str("it does not answer when asked to connect"),
            Why::BadEnd => f.write_str("its end cannot be connected to from here"),
            Why::Restarted => f.write_str("it was restarted, or had given this process up"),
        }
    }
}

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotDone {
    /// What its completion says; `None`: it had not left yet when its process failed or left. Over datagrams there is none.
    pub failure: Option<Failure>,
    /// What the peer made of it.
    pub fate: Fate,
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.failure, self.fate) {
            (None, Fate::Unknown) => f.write_str("it was not acknowledged")?,
            (None, _) => f.write_str("it was not sent")?,
            (Some(failure), _) => write!(f, "it ended with {:?}", failure.status)?,
        }
        f.write_str(match self.fate {
            Fate::Done => ", and was executed",
            Fate::NotDone => ", and was not executed",
            Fate::Unknown => ", and whether it was executed is not known",
        })
    }
}
