//! What the application is told, and what the state machine asks for.

use std::fmt;
use std::time::Duration;

use rdma_core_sys::{ibv_event_type, ibv_wc_status};

use super::Proof;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// A request or a probe failed, and with it the Queue Pair. `IBV_WC_RETRY_EXC_ERR`: the peer does not answer.
    Failed(ibv_wc_status),
    /// Nothing was heard for too long, and the device did not tell.
    Silent,
    /// The channel to the peer closed: its process ended, or it has noticed a failure.
    ChannelLost(String),
    /// The peer came anew: it was restarted, or has noticed a failure.
    PeerCameAnew,
    /// An asynchronous event said that the Queue Pair is in error.
    Event(ibv_event_type),
    /// The GID that the peer knows is gone.
    GidChanged,
    /// The device is gone, or does not work any more.
    DeviceRemoved,
    /// The application asked for it.
    Asked,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Failed(status) => match status.name() {
                Some(name) => write!(f, "a request failed with {name}"),
                None => write!(f, "a request failed with status {}", status.0),
            },
            Why::Silent => f.write_str("the peer was silent for too long"),
            Why::ChannelLost(reason) => write!(f, "the channel to the peer is gone: {reason}"),
            Why::PeerCameAnew => f.write_str("the peer came anew"),
            Why::Event(kind) => write!(f, "the device reported {kind:?}"),
            Why::GidChanged => f.write_str("the local GID changed"),
            Why::DeviceRemoved => f.write_str("the device is gone"),
            Why::Asked => f.write_str("the application asked for it"),
        }
    }
}

/// A step in the life of a supervised connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Nothing was heard for a while, so the peer is probed.
    Probing,
    /// Requests are under way, nothing was heard for so long, and the device has not given up. A peer that posts no receives
    /// looks like this, too, where `rnr_retry` is for ever.
    Silent {
        /// Since when.
        lasts: Duration,
    },
    /// The connection is dead. The report of its requests follows.
    Dead {
        /// Why.
        why: Why,
    },
    /// The peer will be looked for.
    Recovering {
        /// The number of the attempt, from 1.
        attempt: u32,
        /// How long is waited before.
        wait: Duration,
        /// Why the last attempt failed, if there was one.
        because: Option<String>,
    },
    /// The connection is there, for the first time or again.
    Recovered {
        /// The attempt that led to it.
        attempt: u32,
        /// How long there was no connection.
        after: Duration,
        /// What will be known of the peer while it is idle.
        proof: Proof,
    },
    /// Nobody is looked for any more: see [`Options::give_up`](super::Options::give_up).
    GaveUp {
        /// How long there was no connection.
        after: Duration,
        /// Why the last attempt failed, if there was one.
        because: Option<String>,
    },
    /// The port went down. Nobody is probed or looked for until it is up.
    PortDown,
    /// The port is up again.
    PortUp,
    /// The GID that the peer knows is gone: the connection is made anew with another one.
    GidChanged,
    /// The device is gone, or does not work any more: this is the end.
    DeviceRemoved,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Probing => f.write_str("probing the peer"),
            Event::Silent { lasts } => write!(f, "nothing heard for {lasts:?}"),
            Event::Dead { why } => write!(f, "dead: {why}"),
            Event::Recovering {
                attempt,
                wait,
                because,
            } => {
                write!(f, "attempt {attempt} in {wait:?}")?;
                match because {
                    Some(because) => write!(f, ", because the last one failed: {because}"),
                    None => Ok(()),
                }
            }
            Event::Recovered {
                attempt,
                after,
                proof,
            } => {
                write!(f, "connected by attempt {attempt}, after {after:?}")?;
                match proof {
                    Proof::Node => write!(f, "; {proof}"),
                    _ => Ok(()),
                }
            }
            Event::GaveUp { after, because } => {
                write!(f, "gave up after {after:?}")?;
                match because {
                    Some(because) => write!(f, ": {because}"),
                    None => Ok(()),
                }
            }
            Event::PortDown => f.write_str("the port is down"),
            Event::PortUp => f.write_str("the port is up"),
            Event::GidChanged => f.write_str("the local GID changed"),
            Event::DeviceRemoved => f.write_str("the device is gone"),
        }
    }
}

/// What the [`Supervisor`](super::Supervisor) wants done. Those that say so are answered by a call, at once or later.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Look for the peer; answered by [`met`](super::Supervisor::met), or by
    /// [`channel_lost`](super::Supervisor::channel_lost).
    Seek,
    /// Close the channel, and look for nobody.
    Leave,
    /// End the life of the Queue Pair: ERR, and every request gets its outcome; answered by
    /// [`ended`](super::Supervisor::ended).
    End,
    /// Reset the Queue Pair and describe it; answered by [`described`](super::Supervisor::described) or
    /// [`failed`](super::Supervisor::failed).
    Describe,
    /// Send a message over the channel.
    Send(Vec<u8>),
    /// Go to RTR with the peer of this record, receives posted; answered by [`joined`](super::Supervisor::joined) or
    /// [`failed`](super::Supervisor::failed).
    Join(Vec<u8>),
    /// Go to RTS; answered by [`finished`](super::Supervisor::finished) or [`failed`](super::Supervisor::failed).
    Finish,
    /// Probe the peer; answered by [`probed`](super::Supervisor::probed).
    Probe,
    /// Answer a probe of the peer's, if there is room for it.
    Answer,
    /// Tell the application.
    Tell(Event),
}
