//! XRC: one receive queue per process, one Queue Pair per process and node.

#![forbid(unsafe_code)]

#[doc = include_str!("isolation.md")]
pub mod isolation {}
pub mod mesh;
pub mod plan;

pub use rdma_qp::xrc::{
    BadSrqNum, CloseDomainError, CloseTargetError, CreateTargetError, OpenDomainError,
    OpenTargetError, Opening, SrqNum, Xrc, XrcDomain, XrcRecv, XrcSend, XrcSrqBuilder, XrcTarget,
};

/// An XRC SRQ: the receives of one process, named by its number in each request ([`XrcSrq::srq_num`](rdma_qp::Srq::srq_num)).
pub type XrcSrq = rdma_qp::Srq<Xrc>;

/// An XRC initiator: it sends to the SRQs of one node.
pub type XrcInitiator = rdma_qp::Qp<XrcSend>;
