//! XRC: one receive queue per process, one Queue Pair per process and node.
//!
//! With RC every process has a Queue Pair for each process that it talks with: N processes on nodes of P need N (N - 1) of
//! them, and each receives for itself. XRC (eXtended Reliable Connection) is RC whose requests say which *SRQ* they are for.
//! So one connection carries what a process sends to *all* processes of a node, and a process needs as many as there are
//! nodes. It has every operation of RC, and its guarantees: acknowledged, in order, once. [`plan`] counts what a job
//! saves (and where it saves nothing), and [`isolation`] says what it costs: a failure reaches further.
//!
//! # The four objects
//!
//! ```text
//!      node A                                   node B, whose processes share an XRC domain
//!  process a                                 ┌───────────────────────────────────────────────┐
//!  ┌───────────┐   requests, each names      │             ┌─► SRQ 0x12 ─► CQ of process b   │
//!  │ initiator ├──────── an SRQ ─────────────┼──► target ──┤                                 │
//!  └───────────┘                             │             └─► SRQ 0x13 ─► CQ of process c   │
//!                                            └───────────────────────────────────────────────┘
//! ```
//!
//! * [`XrcDomain`]: what the processes of a node share, by a file, or of one process alone. A target reaches the SRQs of its
//!   domain and no others.
//! * [`XrcSrq`]: the receives of one process, and the CQ on which they complete. Its protection domain also decides which
//!   memory requests that name it may write, read, or add to. Its number ([`srq_num`](rdma_qp::Srq::srq_num)) is what senders
//!   are told.
//! * [`XrcInitiator`]: the sending end, a Queue Pair with a send queue and nothing else. Each request names an [`SrqNum`].
//! * [`XrcTarget`]: the end at which one initiator arrives. It has no queue: nothing is posted to it. A completion on an
//!   SRQ's CQ names the target that the message came by, and so its sender. Processes of the domain open it by number, and
//!   it lives until the last of them closes it.
//!
//! # An example
//!
//! One sender, and two processes of another node that share a target. Here the nodes are two software devices in one
//! process, and what would be processes are values.
//!
//! ```
//! use rdma_qp::{Access, Device, Memory, Peer, Timing};
//! use rdma_xrc::XrcDomain;
//! use std::time::Duration;
//!
//! let limit = Duration::from_secs(5);
//! let node = || -> Result<Device, Box<dyn std::error::Error>> {
//!     let name = rdma_soft::add_device(rdma_soft::Profile::default())?;
//!     Ok(Device::open(rdma_soft::verbs(), &name)?)
//! };
//! let (here, there) = (node()?, node()?);
//!
//! // Two processes on the node over there: a domain for both, and an SRQ, a CQ and memory for each.
//! let domain = XrcDomain::anonymous(&there)?;
//! let process = || -> Result<_, Box<dyn std::error::Error>> {
//!     let (pd, cq) = (there.alloc_pd()?, there.create_cq(64)?);
//!     let mr = pd.register(Memory::zeroed(4096), Access::REMOTE_WRITE)?;
//!     let mut srq = pd.xrc_srq(&domain, &cq).depth(16).create()?;
//!     srq.recv(mr.slice(0, 64)?)?;
//!     Ok((srq, cq, mr))
//! };
//! let (b, c) = (process()?, process()?);
//! // The sender has no receive queue: what comes back would go to an SRQ of its own.
//! let (pd, cq) = (here.alloc_pd()?, here.create_cq(64)?);
//! let mr = pd.register(Memory::copy_of(b"hello"), Access::empty())?;
//! let mut initiator = pd.xrc(&cq).create()?;
//!
//! // They meet as RC Queue Pairs do: each end is described to the other, by any exchange.
//! let mut target = domain.create_target()?;
//! let of_initiator = initiator.endpoint(here.port(1)?.best_gid()?)?;
//! let of_target = target.endpoint(there.port(1)?.best_gid()?)?;
//! let peer = |endpoint| Peer { endpoint, regions: Vec::new() };
//! let timing = Timing::default();
//! let agreed = target.connect_begin(&peer(of_initiator), timing)?;
//! target.connect_finish(agreed, timing)?;
//! let agreed = initiator.connect_begin(&peer(of_target), timing)?;
//! initiator.connect_finish(agreed, timing)?;
//!
//! // One connection, two receivers.
//! for (srq, cq_of_process, region) in [&b, &c] {
//!     let sent = initiator.send_to(mr.all(), srq.srq_num())?;
//!     cq.wait(&sent, limit)?;
//!     let done = cq_of_process.wait_any(limit)?.expect("a message");
//!     assert_eq!(done.qp_num, target.qp_num()); // who sent it
//!     let mut bytes = [0; 5];
//!     region.read_at(0, &mut bytes)?;
//!     assert_eq!(&bytes, b"hello");
//! }
//! // One-sided requests name the SRQ of the process whose memory they reach.
//! let written = initiator.write_to(mr.all(), c.0.srq_num(), c.2.remote().at(1024))?;
//! cq.wait(&written, limit)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The example `xrc_pingpong` has a server and its clients, between processes and hosts; a [`mesh`] connects all processes of a
//! job with all, and does the book-keeping.
//!
//! # What is the same as on RC
//!
//! An initiator is a [`Qp`](rdma_qp::Qp), and a target does all that a `Qp` does which has no queue, by the same code: checked
//! transitions and their reports, endpoint records and exchange, timing and its advice, dumps, draining, recovery, changes
//! while connected, explained failures. An SRQ has the books, the buffers, the limit event and the
//! [`Refill`](rdma_qp::Refill) that any [`Srq`](rdma_qp::Srq) has. Threads share an initiator by
//! [`SharedQp`](rdma_qp::SharedQp). Attributes that mean nothing at an end are ignored, as the kernel ignores them, and
//! [`Modified::ignored`](rdma_qp::Modified) tells so.
//!
//! # Wrong uses
//!
//! | wrong | what happens |
//! |---|---|
//! | a receive queue, its depth, or an SRQ for an initiator; a receive posted to one | does not compile |
//! | anything posted to a target | does not compile |
//! | a request that names no SRQ | does not compile |
//! | an XRC SRQ for an RC, UC or UD Queue Pair | does not compile |
//! | an SRQ number that is 0 or has more than 24 bits | [`SrqNum::new`] refuses it |
//! | a target without domain, an SRQ without domain or CQ | cannot be written down |
//! | domain, CQ and PD of different devices | refused before the call |
//! | a domain, a CQ or a PD closed while something stands in it | given back, with the names of who holds it |
//! | a device without XRC (soft-RoCE, siw) | [`OpenDomainError::NoXrc`], before the call |
//! | a number of an SRQ that is gone, or of another domain | the target refuses it, and the pair is in error: [`isolation`] |
//!
//! # Processes that share a domain
//!
//! On an adapter the processes of a node each open the domain by one file ([`XrcDomain::of_file`]), and open each other's
//! targets in it by their numbers. The software device makes each process a node of its own, so there a domain is
//! shared by what opens it in one process: by several [`Device`](rdma_qp::Device)s of one name, as two parts of a program, or the
//! processes of the tests here, do. Programs need not know the difference; but a software device cannot show two operating-system
//! processes behind one target.

#![forbid(unsafe_code)]

#[doc = include_str!("isolation.md")]
pub mod isolation {}
pub mod mesh;
pub mod plan;

pub use rdma_qp::xrc::{
    BadSrqNum, CloseDomainError, CloseTargetError, CreateTargetError, OpenDomainError,
    OpenTargetError, Opening, SrqNum, Xrc, XrcDomain, XrcRecv, XrcSend, XrcSrqBuilder, XrcTarget,
};

/// An XRC SRQ: the receives of one process, named by its number in each request. Made by
/// [`Pd::xrc_srq`](rdma_qp::Pd::xrc_srq).
///
/// ```
/// # use rdma_qp::{Access, Device, Memory};
/// # use rdma_xrc::{XrcDomain, XrcSrq};
/// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
/// let domain = XrcDomain::anonymous(&device)?;
/// let mut srq: XrcSrq = pd.xrc_srq(&domain, &cq).depth(32).create()?;
/// let mr = pd.register(Memory::zeroed(4096), Access::LOCAL_WRITE)?;
/// srq.recv(mr.slice(0, 1024)?)?;
/// println!("send to SRQ {}", srq.srq_num());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type XrcSrq = rdma_qp::Srq<Xrc>;

/// An XRC initiator: it sends to the SRQs of one node. Made by [`Pd::xrc`](rdma_qp::Pd::xrc).
///
/// [`send_to`](rdma_qp::Qp::send_to) and its like name the SRQ; [`post`](rdma_qp::Qp::post) takes any operation as an
/// [`op::ToSrq`](rdma_qp::op::ToSrq), with flags.
///
/// ```
/// # use rdma_qp::{Access, Device, Memory, PostError, PostFlags, op};
/// # use rdma_xrc::{XrcDomain, XrcInitiator};
/// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
/// # let domain = XrcDomain::anonymous(&device)?;
/// # let srq = pd.xrc_srq(&domain, &cq).create()?.srq_num();
/// # let mr = pd.register(Memory::zeroed(64), Access::LOCAL_WRITE)?;
/// let mut initiator: XrcInitiator = pd.xrc(&cq).send_depth(128).create()?;
/// let send = op::ToSrq { srq, op: op::SendImm(7) };
/// let refused = initiator.post(send, mr.all(), PostFlags::SOLICITED);
/// // It is not connected yet.
/// assert!(matches!(refused, Err(PostError::WrongState { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type XrcInitiator = rdma_qp::Qp<XrcSend>;
