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
    /// [`Qp::ring`] hands over what is there; so does a request whose data is copied during the call, and one for which the
    /// queue has no room. 0 means the same as 1, and more than the queue is deep the same as its depth.
    Every(u32),
}

impl Doorbell {
    /// How many that is, of a queue that is so deep: a longer list would never be full.
    pub(crate) fn requests(self, depth: u32) -> u32 {
        match self {
            Doorbell::Each => 1,
            Doorbell::Every(requests) => requests.min(depth).max(1),
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
        self.set_doorbell_of_calls(sends, recvs)?;
        self.copies_wait = false;
        Ok(())
    }

    /// As [`Qp::set_doorbell`], for whoever posts within calls of its own and rings at their end: data that is to be copied waits as
    /// all else does.
    #[doc(hidden)]
    pub fn set_doorbell_of_calls(
        &mut self,
        sends: Doorbell,
        recvs: Doorbell,
    ) -> Result<(), PostError> {
        let (send, recv) = (self.handle.send.depth, self.handle.recv.depth);
        self.set_lists(sends.requests(send), recvs.requests(recv))
    }

    /// The same with the lengths of the lists, which may be greater than the queues are deep: then only [`Qp::ring`] and a full
    /// queue hand over what waits.
    pub(crate) fn set_lists(&mut self, sends: u32, recvs: u32) -> Result<(), PostError> {
        self.ring()?;
        self.handle.set_doorbells(sends, recvs);
        self.copies_wait = true;
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
