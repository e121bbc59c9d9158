//! A mesh: every process of a job sends to every other one, by name.
//!
//! Whoever starts a job knows its processes, the nodes that they live on, and a way to hand some bytes around: MPI, PMIx, a
//! file system. A [`Mesh`] needs no more than that. It makes the Queue Pairs, over XRC, over RC with a shared receive
//! queue, or over datagrams ([`Over`] chooses, everything else is the same but for one-sided requests), connects them when they are first needed or all at once, keeps
//! the receives supplied, and tells of each message who sent it, and of each request how it ended.
//!
//! ```
//! use rdma_qp::Device;
//! use rdma_xrc::XrcDomain;
//! use rdma_xrc::mesh::{Event, Layout, Mesh, Options, Over, Rank};
//! use std::time::Duration;
//!
//! let device = Device::open_index(rdma_soft::verbs(), 0)?;
//! let gid = device.port(1)?.best_gid()?;
//! // Two processes, both on this node: on real adapters each would be a process of the system, here they are values.
//! let layout = Layout::even(1, 2);
//! let domain = XrcDomain::anonymous(&device)?;
//! let begin = |me| {
//!     Mesh::begin(&device, &gid, Over::Xrc(domain.clone()), &layout, Rank(me), &Options::default())
//! };
//! let (zero, one) = (begin(0)?, begin(1)?);
//! // What the launcher does: give everybody everybody's card, in the order of the ranks (MPI_Allgather).
//! let cards = [zero.card()?, one.card()?];
//! let (mut zero, mut one) = (zero.join(&cards)?, one.join(&cards)?);
//!
//! zero.send(Rank(1), b"hello")?;
//! let received = loop {
//!     // Both have to poll: connecting takes two.
//!     zero.poll()?;
//!     if let Some(Event::Message(message)) = one.wait(Duration::from_millis(1))? {
//!         break message;
//!     }
//! };
//! assert_eq!((received.from, &received[..]), (Rank(0), &b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is made of
//!
//! Each process has one protection domain, one CQ for everything, one SRQ of [`Options::srq_depth`] receives, and one UD QP for
//! the datagrams by which ways are connected. On RC it has a QP for each process that it talks with; on XRC an
//! initiator for each node that it sends to, and its share of the targets at which the initiators of others arrive.
//! [`plan`](crate::plan) says how many that is, [`Mesh::counts`] how many there are.
//!
//! Over datagrams ([`Over::Datagrams`]) it has no SRQ and no connections, but one more UD QP, over which the reliable datagrams of
//! [`rdma_qp::datagram`] go to all others: two Queue Pairs, however large the job is. Messages only: one-sided requests are
//! refused with [`SendError::OneSided`].
//!
//! There is no thread. [`Mesh::poll`] does what is to be done and returns the next [`Event`]; whoever sleeps uses
//! [`Mesh::wait`], or [`Mesh::fd`] with [`Mesh::arm`] and [`Mesh::next_timeout`] in a loop of its own. A process that does not poll
//! receives what comes into its SRQ, and serves one-sided requests, but nobody can connect to it meanwhile.
//!
//! # Messages
//!
//! Those of one process to another arrive once and in order. A message is at most [`Options::max_message`] bytes long, which is
//! the size of each receive; what is longer is written or read one-sided ([`Mesh::write`], [`Mesh::read`]), directly between the
//! regions of the two, and a message says that it is there. A receiver that keeps too many messages, or does not poll,
//! stalls its senders when its SRQ is empty: repeated without limit, nothing is lost. On XRC it stalls what they send to
//! other processes of the same node, too ([`isolation`](crate::isolation)).
//!
//! # Failures
//!
//! Every request ends with one [`Event::Done`]. A peer that fails is reported once, with [`Event::Failed`], and everything else
//! goes on:
//!
//! * Nothing answers on a way: the peer is gone (RC), or the whole node (XRC), so all processes behind that way are named.
//!   But if one of them has not polled since the way was made, its end may have died with the process that made it: only that
//!   one is named, and the next of the node is asked.
//!   Requests that are under way notice it when their repetitions are used up; where there are none, a probe (a WRITE of no
//!   bytes) goes out after [`Options::heartbeat`]. [`Mesh::notices_within`] is the bound.
//! * A SEND or a probe is refused: that process is gone, and others of its node are not. The way is connected again, and what
//!   was flushed and is known not to be executed is sent again.
//! * A one-sided request is refused (a wrong key, a wrong range): it is the request's fault. The way is connected again;
//!   one-sided requests that were flushed are reported as not executed.
//! * Over datagrams: a process that was asked says nothing for the time of all repetitions ([`Options::timing`]), or knows
//!   nothing of this one any more.
//! * A process does not answer for [`Options::connect_within`] when this one wants to connect to it. On XRC the next process
//!   of the node is asked.
//!
//! Each process judges for itself: one that counts as failed here may live, and talk with the others. Nothing is sent to it any
//! more; on XRC messages of it may still come.
//!
//! A process that leaves ([`Mesh::leave`]) has not failed.

mod card;
mod connect;
mod datagrams;
mod error;
mod fail;
mod handshake;
mod join;
mod lane;
mod layout;
mod leave;
mod mail;
mod note;
mod operate;
mod options;
mod progress;
mod targets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::time::Instant;

use rdma_qp::{Buffer, BufferPool, Cq, GidEntry, Pd, Refill, RemoteRegion, Srq};

pub use card::CardError;
pub use error::{MeshError, NotDone, SendError, Why};
pub use join::Joining;
pub use layout::{Layout, Rank};
pub use options::{Options, Over};

use crate::XrcSrq;
pub(crate) use datagrams::LEAST_RECEIVES;

use card::Card;
use datagrams::Grams;
use lane::{Lane, Phase};
use leave::Departure;
use mail::Mail;
use targets::Targets;

/// The name of a request, as long as the mesh lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(u64);

impl OpId {
    /// Its number: that of the first request of a mesh is the smallest, and none comes twice.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A message that came in: its bytes, and who sent it. Dropping it gives its buffer back to the receives.
#[derive(Debug)]
pub struct Message {
    /// Who sent it.
    pub from: Rank,
    inner: Inner,
}

/// Where its bytes are.
#[derive(Debug)]
enum Inner {
    Receive(rdma_qp::Message),
    Datagram(rdma_qp::datagram::Message),
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.inner {
            Inner::Receive(message) => message,
            Inner::Datagram(message) => message,
        }
    }
}

impl Message {
    pub(crate) fn received(from: Rank, message: rdma_qp::Message) -> Message {
        let inner = Inner::Receive(message);
        Message { from, inner }
    }

    pub(crate) fn datagram(from: Rank, message: rdma_qp::datagram::Message) -> Message {
        let inner = Inner::Datagram(message);
        Message { from, inner }
    }

    /// The whole buffer that it came in, as long as what came. `None`: it came by datagrams, and has none of its own.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self.inner {
            Inner::Receive(message) => Some(message.into_buffer()),
            Inner::Datagram(_) => None,
        }
    }
}

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A message came.
    Message(Message),
    /// A request ended.
    Done {
        /// Which.
        op: OpId,
        /// Towards whom.
        to: Rank,
        /// How. Success means that the peer has it: a message is in its memory, a WRITE in its region, and what a READ or an
        /// atomic brings back is here.
        result: Result<(), NotDone>,
    },
    /// Processes failed. Nothing is sent to them any more; the others go on.
    Failed {
        /// All that the failure concerns, in the order of their ranks.
        processes: Vec<Rank>,
        /// Why.
        why: Why,
    },
    /// A process has left the job. Nothing is sent to it any more.
    Left(Rank),
}

/// What is known of another process.
struct Peer {
    card: Card,
    state: PeerState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerState {
    Living,
    Failed(Why),
    Left,
}

/// The receives of the process.
enum Inbox {
    Rc(Refill<Srq>),
    Xrc(Refill<XrcSrq>),
    Datagrams(Box<Grams>),
}

/// How many objects a process of a mesh has at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// RC QPs.
    pub rc: usize,
    /// XRC initiators.
    pub initiators: usize,
    /// XRC targets that this process made.
    pub targets: usize,
    /// XRC targets of other processes of the node that this one keeps open: no QPs more, only handles.
    pub opened: usize,
    /// UD QPs for messages.
    pub ud: usize,
}

/// One process of a mesh. See the [module](self).
pub struct Mesh {
    me: Rank,
    layout: Layout,
    options: Options,
    gid: GidEntry,
    /// Before what they report to and take their memory from.
    lanes: Vec<Lane>,
    targets: Option<Targets>,
    mail: Mail,
    inbox: Inbox,
    outgoing: BufferPool,
    /// Buffers of it that messages have.
    held: u32,
    cq: Cq,
    pd: Pd,
    peers: Vec<Peer>,
    /// By the number of a QP: the lane that it is the end of.
    lane_of: HashMap<u32, usize>,
    /// By the number of the QP or target that a message comes by: who sent it.
    behind: HashMap<u32, Rank>,
    /// Messages that came by targets of which it is not known yet who is behind them.
    unclaimed: HashMap<u32, VecDeque<rdma_qp::Message>>,
    /// Lanes that wait for their turn to connect, and those that are at it.
    wanted: VecDeque<usize>,
    connecting: BTreeSet<usize>,
    departure: Departure,
    events: VecDeque<Event>,
    /// Events that were told since it was looked what came.
    told: u32,
    next_op: u64,
    next_life: u32,
    /// When there is something to do without anything coming in.
    next_tick: Instant,
}

impl Mesh {
    /// This process.
    pub fn rank(&self) -> Rank {
        self.me
    }

    /// The job's processes and their nodes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The options that it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The protection domain of the regions that one-sided requests of this process bring bytes from and to.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Whether it is over XRC.
    pub fn is_xrc(&self) -> bool {
        self.targets.is_some()
    }

    /// Region `index` of those that a process offered when it joined, in its own order; at a place in it one-sided requests
    /// are aimed ([`RemoteRegion::at`]). Regions that it tells of later, in messages, do as well.
    ///
    /// # Errors
    /// There is no such process, or it offered fewer.
    pub fn region(&self, of: Rank, index: usize) -> Result<RemoteRegion, SendError> {
        let peer = self.peers.get(of.index()).ok_or(SendError::NoSuchProcess {
            to: of,
            processes: self.layout.processes(),
        })?;
        let regions = &peer.card.mail.regions;
        regions.get(index).copied().ok_or(SendError::NoSuchRegion {
            of,
            index,
            offered: regions.len(),
        })
    }

    /// Processes that have failed, in the order of their ranks.
    pub fn failed(&self) -> Vec<Rank> {
        self.peers
            .iter()
            .filter(|peer| matches!(peer.state, PeerState::Failed(_)))
            .map(|peer| peer.card.rank)
            .collect()
    }

    /// The QPs that it has at present, without the one for datagrams by which ways are connected, which each process has.
    pub fn counts(&self) -> Counts {
        let ends = self.lanes.iter().filter(|lane| lane.end.is_some()).count();
        match &self.targets {
            None if self.grams().is_some() => Counts {
                ud: 1,
                ..Counts::default()
            },
            None => Counts {
                rc: ends,
                ..Counts::default()
            },
            Some(targets) => Counts {
                initiators: ends,
                targets: targets.made(),
                opened: targets.opened(),
                ..Counts::default()
            },
        }
    }

    /// The way that leads to a process: its place among the lanes.
    fn lane_to(&self, to: Rank) -> usize {
        match self.is_xrc() {
            false => to.index(),
            true => self.layout.node_of(to).unwrap_or(0),
        }
    }

    /// The processes behind a way.
    fn behind_lane(&self, lane: usize) -> &[Rank] {
        match self.is_xrc() {
            false => std::slice::from_ref(&self.peers[lane].card.rank),
            true => self.layout.on(lane),
        }
    }

    /// Those of them that are neither this process, nor failed, nor gone.
    fn living_behind(&self, lane: usize) -> Vec<Rank> {
        let ranks = self.behind_lane(lane).iter().copied();
        ranks.filter(|rank| self.is_living(*rank)).collect()
    }

    fn is_living(&self, rank: Rank) -> bool {
        rank != self.me && self.peers[rank.index()].state == PeerState::Living
    }

    fn is_known(&self, rank: Rank) -> bool {
        rank != self.me && rank.index() < self.peers.len()
    }

    /// The name of what it is over.
    fn over(&self) -> &'static str {
        match &self.inbox {
            Inbox::Rc(_) => "RC",
            Inbox::Xrc(_) => "XRC",
            Inbox::Datagrams(_) => "datagrams",
        }
    }

    fn life(&mut self) -> u32 {
        self.next_life += 1;
        self.next_life
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = self.lanes.iter().filter(|lane| lane.phase == Phase::Up);
        write!(
            f,
            "Mesh({} of {} on {} nodes, over {}, {} ways up)",
            self.me,
            self.layout.processes(),
            self.layout.nodes(),
            self.over(),
            up.count()
        )
    }
}
