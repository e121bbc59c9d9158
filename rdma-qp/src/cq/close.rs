//! Destroying a CQ, and why that may not work.

use std::sync::Arc;

use super::Cq;
use crate::errno::Errno;
use crate::raw::last;

/// A CQ was not destroyed. It is inside the error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseCqError {
    /// QPs or XRC SRQs still report to it. If none is named, another thread is destroying one, and was for a second.
    #[error("the CQ is still used by {}", names(.qps, .srqs))]
    Busy {
        /// The CQ.
        cq: Box<Cq>,
        /// Numbers of the QPs.
        qps: Vec<u32>,
        /// Numbers of the XRC SRQs, see [`Srq::number`](crate::Srq::number).
        srqs: Vec<u32>,
    },
    /// The library refused.
    #[error("the CQ could not be destroyed: {source}")]
    Refused {
        /// The CQ.
        cq: Box<Cq>,
        /// What the library said.
        source: Errno,
    },
}

fn names(qps: &[u32], srqs: &[u32]) -> String {
    let qps = qps.iter().map(|n| format!("QP {n:#x}"));
    let all: Vec<_> = qps.chain(srqs.iter().map(|n| format!("SRQ {n}"))).collect();
    all.join(", ")
}

impl Cq {
    /// Destroys the CQ and says whether that worked. Dropping it instead destroys it when the last QP and the last XRC
    /// SRQ that report to it are gone.
    ///
    /// Where only such are left as another thread is destroying, it waits for that.
    ///
    /// # Errors
    /// QPs or XRC SRQs still report to it (the error says which), or the library refused.
    pub fn close(self) -> Result<(), CloseCqError> {
        let Cq {
            handle,
            id,
            intake,
            poller,
            found,
            context,
            spin,
            failed,
        } = self;
        let mut users = (Vec::new(), Vec::new());
        let alone = last::owner(handle, |_| {
            users = (intake.live_qps(), poller.borrow().srqs.reporting());
            users.0.is_empty() && users.1.is_empty()
        });
        let (again, reason) = match alone {
            Ok(mut handle) => match handle.destroy() {
                Ok(()) => return Ok(()),
                Err(source) => (Arc::new(handle), Err(source)),
            },
            Err(handle) => (handle, Ok(users)),
        };
        let cq = Box::new(Cq {
            handle: again,
            id,
            intake,
            poller,
            found,
            context,
            spin,
            failed,
        });
        Err(match reason {
            Ok((qps, srqs)) => CloseCqError::Busy { cq, qps, srqs },
            Err(source) => CloseCqError::Refused { cq, source },
        })
    }
}
