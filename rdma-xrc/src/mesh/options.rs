//! What a mesh shall be like.

use std::time::Duration;

use rdma_qp::xrc::XrcDomain;
use rdma_qp::{AckTimeout, Timing};

use super::MeshError;
use crate::plan::Depths;

/// What a mesh is over.
#[derive(Clone, Debug)]
pub enum Over {
    /// RC: one QP for each peer, and one SRQ for all of them.
    Rc,
    /// XRC, in the domain that the processes of this node share: one initiator for each node, and one SRQ.
    ///
    /// Processes of the system share a domain by a file ([`XrcDomain::of_file`]); those that are values of one process have a
    /// clone each.
    Xrc(XrcDomain),
    /// Reliable datagrams ([`rdma_qp::datagram`]): one UD QP for all peers. Messages only, no one-sided requests.
    Datagrams,
}

/// What a process of a mesh shall be like. The same in the whole job, but for the number of buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Longest message, in bytes: the size of each receive. 4096 if not set.
    pub max_message: u32,
    /// Requests that one way may have outstanding; 64 if not set. Over datagrams, those of all together, at least 128.
    pub send_depth: u32,
    /// Receives that wait for messages; 512 if not set. The process has twice as many buffers, so that it can keep as many
    /// messages as there are receives. Where all peers together may have more under way, they wait for receives now and
    /// then, which costs the network the repetitions. Over datagrams, packets and not messages, at least 16; those
    /// who send at a time share half of them.
    pub srq_depth: u32,
    /// Receives are posted when fewer than so many wait; 256 if not set.
    pub low_water: u32,
    /// Messages that may be under way at a time, to all peers together; 256 if not set.
    pub send_buffers: u32,
    /// When requests are repeated, and when that ends: then a peer has failed for good. So it is more patient than
    /// [`Timing::default`], if not set: 7 x 268 ms, in which a busy peer has answered, and a lossy network has let something pass.
    pub timing: Timing,
    /// A peer that nothing was heard of for so long is probed; 1 s if not set. On XRC a process makes ways to the nodes whose
    /// processes send to it, so that it can probe them. More than a year counts as one. `None`: nobody is probed.
    pub heartbeat: Option<Duration>,
    /// A process that does not answer for so long when this one wants to connect to it has failed; 30 s if not set. It answers
    /// only while it polls.
    pub connect_within: Duration,
    /// Ways that this process connects at a time, when it wants several; 16 if not set.
    pub connect_at_once: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_message: 4096,
            send_depth: 64,
            srq_depth: 512,
            low_water: 256,
            send_buffers: 256,
            timing: Timing {
                timeout: AckTimeout::at_least(Duration::from_millis(250)),
                ..Timing::default()
            },
            heartbeat: Some(Duration::from_secs(1)),
            connect_within: Duration::from_secs(30),
            connect_at_once: 16,
        }
    }
}

/// The longest heartbeat: clocks can count some of these.
const YEAR: Duration = Duration::from_secs(365 * 86400);

impl Options {
    /// The heartbeat, no longer than clocks can count.
    pub(super) fn quiet_for(&self) -> Option<Duration> {
        self.heartbeat.map(|heartbeat| heartbeat.min(YEAR))
    }

    /// The depths with which [`plan`](crate::plan::plan) reckons what a mesh with these options takes.
    pub fn depths(&self) -> Depths {
        Depths {
            send: self.send_depth,
            recv: self.srq_depth,
            srq: self.srq_depth,
            buffer: self.max_message,
        }
    }

    pub(super) fn check(&self) -> Result<(), MeshError> {
        let at_least_one = [
            ("max_message", u64::from(self.max_message)),
            ("send_depth", self.send_depth.into()),
            ("srq_depth", self.srq_depth.into()),
            ("send_buffers", self.send_buffers.into()),
            ("connect_at_once", self.connect_at_once as u64),
        ];
        for (option, value) in at_least_one {
            if value == 0 {
                let cure = "give at least 1";
                return Err(MeshError::Option {
                    option,
                    value,
                    cure,
                });
            }
        }
        if self.low_water == 0 || self.low_water > self.srq_depth {
            return Err(MeshError::Option {
                option: "low_water",
                value: self.low_water.into(),
                cure: "give at least 1 and at most srq_depth",
            });
        }
        if self.timing.budget().is_none() {
            return Err(MeshError::Option {
                option: "timing.timeout",
                value: 0,
                cure: "with 0 a dead peer is never noticed; give at least 1",
            });
        }
        if self.heartbeat == Some(Duration::ZERO) {
            return Err(MeshError::Option {
                option: "heartbeat",
                value: 0,
                cure: "with 0 a probe is always due; give more, or None for no probes",
            });
        }
        Ok(())
    }
}
