//! XRC: Queue Pairs of which a node needs one for each process that sends to it, and not one for each pair of processes.
//!
//! Four kinds of objects, which the crate `rdma-xrc` explains and puts together:
//!
//! * an [`XrcDomain`], which the processes of a node share;
//! * an XRC SRQ ([`Srq`]`<`[`Xrc`]`>`) for each process that receives: [`Pd::xrc_srq`](crate::Pd::xrc_srq);
//! * an initiator ([`Qp`](crate::Qp)`<`[`XrcSend`]`>`), which sends, and names the SRQ in each request: [`Pd::xrc`](crate::Pd::xrc);
//! * an [`XrcTarget`], at which an initiator of another node arrives: [`XrcDomain::create_target`].

mod domain;
mod srq;

use std::fmt;

use rdma_core_sys::rules;

pub use domain::{
    CloseDomainError, CreateTargetError, OpenDomainError, OpenTargetError, Opening, XrcDomain,
};
pub use srq::{Xrc, XrcSrqBuilder};

pub use crate::qp::{CloseTargetError, XrcTarget};
use crate::qp::{Connects, Transport};
use crate::srq::{Srq, sealed};

/// XRC, the sending end: every operation of RC, each towards an SRQ of the peer's node that the request names. It has a send
/// queue, and no receive queue.
#[derive(Clone, Copy, Debug)]
pub struct XrcSend;

/// XRC, the receiving end: no queue at all, see [`XrcTarget`].
#[derive(Clone, Copy, Debug)]
pub struct XrcRecv;

impl crate::qp::sealed::Sealed for XrcSend {}
impl Transport for XrcSend {
    const RULES: rules::Transport = rules::Transport::XrcIni;
}
impl Connects for XrcSend {}

impl crate::qp::sealed::Sealed for XrcRecv {}
impl Transport for XrcRecv {
    const RULES: rules::Transport = rules::Transport::XrcTgt;
}
impl Connects for XrcRecv {}

impl sealed::Sealed for Xrc {}
impl crate::srq::SrqKind for Xrc {}

/// The number by which requests name an XRC SRQ: 24 bits, not 0.
///
/// ```
/// use rdma_qp::xrc::SrqNum;
/// assert_eq!(SrqNum::new(0x12)?.get(), 0x12);
/// let refused = SrqNum::new(0).unwrap_err();
/// assert!(refused.to_string().contains("ask the XRC SRQ of the process that shall receive"));
/// # Ok::<(), rdma_qp::xrc::BadSrqNum>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqNum(u32);

/// A number that no request can name an SRQ by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{number:#x} is no number of an XRC SRQ, which has 24 bits and is not 0: ask the XRC SRQ of the process that shall receive \
     (srq_num)"
)]
pub struct BadSrqNum {
    /// The number.
    pub number: u32,
}

impl SrqNum {
    /// The number, if it is one.
    ///
    /// # Errors
    /// It is 0, which a program that forgot to ask sends, or does not fit into the 24 bits of the header (XRCETH).
    pub const fn new(number: u32) -> Result<SrqNum, BadSrqNum> {
        match number {
            1..=0xff_ffff => Ok(SrqNum(number)),
            _ => Err(BadSrqNum { number }),
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for SrqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Srq<Xrc> {
    /// The number by which XRC requests name it: what the senders are told.
    pub fn srq_num(&self) -> SrqNum {
        self.kind.number()
    }
}
