//! Destroying a CQ, and why that may not work.

use std::sync::Arc;

use super::Cq;
use crate::errno::Errno;

/// A CQ was not destroyed. It is inside the error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseCqError {
    /// QPs still report to it.
    #[error("the CQ is still used by {}", names(.qps))]
    Busy {
        /// The CQ.
        cq: Box<Cq>,
        /// Numbers of the QPs.
        qps: Vec<u32>,
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

fn names(qps: &[u32]) -> String {
    qps.iter()
        .map(|n| format!("QP {n:#x}"))
        .collect::<Vec<_>>()
        .join(", ")
}

impl Cq {
    /// Destroys the CQ and says whether that worked. Dropping it instead destroys it when the last QP that reports to it
    /// is gone.
    ///
    /// # Errors
    /// QPs still report to it (the error says which), or the library refused.
    pub fn close(self) -> Result<(), CloseCqError> {
        let Cq {
            handle,
            id,
            intake,
            poller,
            stale,
            found,
            spin,
            failed,
        } = self;
        let (again, reason) = match Arc::try_unwrap(handle) {
            Ok(mut handle) => match handle.destroy() {
                Ok(()) => return Ok(()),
                Err(source) => (Arc::new(handle), Err(source)),
            },
            Err(handle) => {
                let qps = intake.live_qps();
                (handle, Ok(qps))
            }
        };
        let cq = Box::new(Cq {
            handle: again,
            id,
            intake,
            poller,
            stale,
            found,
            spin,
            failed,
        });
        Err(match reason {
            Ok(qps) => CloseCqError::Busy { cq, qps },
            Err(source) => CloseCqError::Refused { cq, source },
        })
    }
}
