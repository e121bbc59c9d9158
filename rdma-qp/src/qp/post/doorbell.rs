//! When requests are handed to the device: each at once, or several with one call.

use super::{PostError, Qp, Transport};
use crate::wr_id::QueueKind;

/// How many requests one doorbell is for. Every call into the device costs something that does not depend on how many
/// requests it brings; a request that waits for others is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Doorbell {
    /// Each request is handed over by the call that posts it.
    #[default]
    Each,
    /// Requests are built and linked in place; the one that makes up the number hands them all over with one call.
    /// [`Qp::ring`] hands over what is there. 0 means the same as 1.
    Every(u32),
}

impl Doorbell {
    pub(crate) fn requests(self) -> u32 {
        match self {
            Doorbell::Each => 1,
            Doorbell::Every(requests) => requests.max(1),
        }
    }
}

impl<T: Transport> Qp<T> {
    /// Sets how many sends, and how many receives, one doorbell is for. What waits is handed over first.
    ///
    /// Each request that waits has its place in the queue, and its ticket, from the post on; if the device refuses it
    /// when the doorbell is rung, the error says so, and its ticket names nothing any more.
    ///
    /// ```
    /// # use rdma_qp::{Access, Device, Doorbell, Memory};
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// # let mr = pd.register(Memory::zeroed(4096), Access::LOCAL_WRITE)?;
    /// # let mut qp = pd.rc(&cq).create()?;
    /// # let gid = device.port(1)?.best_gid()?;
    /// # qp.endpoint(gid)?;
    /// # qp.init()?;
    /// qp.set_doorbell(Doorbell::Each, Doorbell::Every(8))?;
    /// for slot in 0..10 {
    ///     qp.recv(mr.slice(slot * 64, 64)?)?;
    /// }
    /// assert_eq!(qp.waiting(), (0, 2));
    /// qp.ring()?;
    /// assert_eq!(qp.waiting(), (0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device refused what waited; the doorbell stays as it was.
    pub fn set_doorbell(&mut self, sends: Doorbell, recvs: Doorbell) -> Result<(), PostError> {
        self.ring()?;
        self.handle
            .set_doorbells(sends.requests(), recvs.requests());
        Ok(())
    }

    /// Hands over all requests that wait.
    ///
    /// # Errors
    /// The device refused some of them, see [`PostError::List`]. Receives are handed over even if it refused sends; the
    /// error is the first one.
    pub fn ring(&mut self) -> Result<(), PostError> {
        let sends = self.ring_sends();
        let recvs =
            (self.handle.ring_recvs()).map_err(|reason| self.not_posted(QueueKind::Recv, reason));
        sends.and(recvs)
    }

    /// Hands over all sends that wait.
    #[inline]
    pub(crate) fn ring_sends(&mut self) -> Result<(), PostError> {
        (self.handle.ring_sends()).map_err(|reason| self.not_posted(QueueKind::Send, reason))
    }

    /// Requests that wait for the doorbell: sends, and receives.
    pub fn waiting(&self) -> (u32, u32) {
        self.handle.waiting()
    }
}
