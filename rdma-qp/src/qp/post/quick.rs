//! The short way to post alone.

use std::mem::ManuallyDrop;

use super::{Op, PostError, PostFlags, ticket};
use crate::cq::Ticket;
use crate::mr::MrSlice;
use crate::qp::{Qp, RecvQueue, Transport};
use crate::raw::post::Alike;

/// What [`Qp::post_quick`] came to.
#[derive(Debug)]
pub enum QuickPost<'q, T: Transport> {
    /// The request is posted.
    Done(Ticket),
    /// The device refused it.
    Refused(NotTaken<'q, T>),
    /// It is not for the short way. Nothing was done.
    Other,
}

/// A request that the device refused. It goes out of the books when this ends.
#[derive(Debug)]
#[must_use]
pub struct NotTaken<'q, T: Transport> {
    qp: &'q mut Qp<T>,
    status: i32,
}

impl<T: Transport> NotTaken<'_, T> {
    /// Why.
    #[cold]
    #[inline(never)]
    pub fn error(self) -> PostError {
        ManuallyDrop::new(self).take_back()
    }

    fn take_back(&mut self) -> PostError {
        self.qp.refused(self.status)
    }
}

impl<T: Transport> Drop for NotTaken<'_, T> {
    #[cold]
    fn drop(&mut self) {
        let _ = self.take_back();
    }
}

impl<T: Transport> Qp<T> {
    /// The short way of [`Qp::post_with`] alone, for callers that have little room on their own short way: a request like the one
    /// before it. After [`QuickPost::Other`] nothing was done, and [`Qp::post_with`] posts it.
    ///
    /// ```
    /// # use rdma_qp::{op, Access, Device, Memory, PostFlags, QuickPost};
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// # let mr = pd.register(Memory::zeroed(64), Access::empty())?;
    /// # let mut qp = pd.rc(&cq).create()?;
    /// // The first request of a queue is like none.
    /// let posted = qp.post_quick(7, op::Send, mr.all(), PostFlags::empty());
    /// assert!(matches!(posted, QuickPost::Other));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn post_quick<O: Op<T>>(
        &mut self,
        context: u64,
        op: O,
        slice: MrSlice<'_>,
        flags: PostFlags,
    ) -> QuickPost<'_, T> {
        match self.post_alike::<false, O>(Some(context), &op, slice, flags) {
            Alike::Posted(id) => QuickPost::Done(ticket(id, flags)),
            Alike::Refused(status) => QuickPost::Refused(NotTaken { qp: self, status }),
            Alike::Other => QuickPost::Other,
        }
    }

    /// The short way of [`Qp::recv_with`] alone, as [`Qp::post_quick`] is that of [`Qp::post_with`]. `None`: nothing was done, also
    /// where the device refused it.
    #[inline(always)]
    pub fn recv_quick(&mut self, context: u64, slice: MrSlice<'_>) -> Option<Ticket>
    where
        T: RecvQueue,
    {
        match self.recv_alike(Some(context), slice) {
            Alike::Posted(id) => Some(Ticket::new(id, true)),
            Alike::Refused(status) => {
                let _ = self.refused_recv(status);
                None
            }
            Alike::Other => None,
        }
    }
}
