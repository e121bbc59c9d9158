//! XRC SRQs.

use std::sync::Arc;

use super::{SrqNum, XrcDomain};
use crate::cq::Cq;
use crate::pd::Pd;
use crate::srq::{CreateSrqError, Srq, SrqBuilder};

/// The kind of an SRQ that XRC requests name by its number. It stands in an XRC domain, and its receives complete on one CQ,
/// whichever target they come by.
#[derive(Clone, Copy, Debug)]
pub struct Xrc {
    number: SrqNum,
}

impl Xrc {
    pub(super) fn number(&self) -> SrqNum {
        self.number
    }
}

/// What an XRC SRQ shall be like. Made by [`Pd::xrc_srq`].
#[derive(Debug)]
#[must_use = "nothing is made until create() is called"]
pub struct XrcSrqBuilder<'a> {
    srq: SrqBuilder<'a>,
    domain: &'a XrcDomain,
    cq: &'a Cq,
}

impl<'a> XrcSrqBuilder<'a> {
    pub(crate) fn new(pd: &'a Pd, domain: &'a XrcDomain, cq: &'a Cq) -> XrcSrqBuilder<'a> {
        XrcSrqBuilder {
            srq: pd.srq(),
            domain,
            cq,
        }
    }

    /// Most receives outstanding at a time; 16 if not set. The CQ needs room for so many.
    pub fn depth(mut self, receives: u32) -> Self {
        self.srq = self.srq.depth(receives);
        self
    }

    /// Most ranges that one receive scatters to; 1 if not set.
    pub fn sge(mut self, entries: u32) -> Self {
        self.srq = self.srq.sge(entries);
        self
    }

    /// Creates the SRQ.
    ///
    /// # Errors
    /// Domain, CQ and PD do not fit together, the CQ has not so much room, the device's limits are exceeded, or the library
    /// refused.
    pub fn create(self) -> Result<Srq<Xrc>, CreateSrqError> {
        let (pd, xrcd, cq) = (self.srq.pd, self.domain.handle(), self.cq.handle());
        let parts = [("XRC domain", &xrcd.context), ("CQ", &cq.context)];
        for (part, context) in parts {
            if !Arc::ptr_eq(context, &pd.handle().context) {
                let (other, pd) = (context.name.clone(), pd.device().to_owned());
                return Err(CreateSrqError::OtherDevice { part, other, pd });
            }
        }
        self.cq.settle()?;
        let poster = self.srq.make(Some((xrcd.clone(), cq.clone())))?;
        let device = || pd.device().to_owned();
        let number = poster.handle.xrc_number();
        let number = number.map_err(|source| CreateSrqError::NoNumber {
            device: device(),
            source,
        })?;
        let number = SrqNum::new(number).map_err(|source| CreateSrqError::Number {
            device: device(),
            source,
        })?;
        // It has no receives yet, so nothing can complete before there is room for it.
        let share = poster.handle.attach(cq);
        let (share, _) = share.ok_or_else(|| CreateSrqError::NoRoomInCq {
            depth: self.srq.depth,
            capacity: self.cq.capacity(),
            unreserved: self.cq.unreserved(),
        })?;
        self.cq.enter_srq(&share, pd.handle())?;
        tracing::debug!(device = pd.device(), srq = poster.handle.shared.number, %number, "XRC SRQ created");
        Ok(Srq::of(poster, Xrc { number }))
    }
}
