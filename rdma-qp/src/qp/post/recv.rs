//! Posting receives.

use super::PostError;
use crate::account::Operation;
use crate::cq::Ticket;
use crate::mr::MrSlice;
use crate::qp::{Qp, RecvQueue, Transport};
use crate::raw::post::Alike;
use crate::wr_id::QueueKind;

impl<T: Transport> Qp<T> {
    /// Posts a receive into `local`: the next SEND of the peer goes there, scattered in order.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then, and of a list what the error says.
    #[inline(always)]
    pub fn recv<'m>(&mut self, local: impl AsRef<[MrSlice<'m>]>) -> Result<Ticket, PostError>
    where
        T: RecvQueue,
    {
        self.recv_keeping(None, local)
    }

    /// Posts a receive as [`Qp::recv`] does, and keeps a number beside it, as [`Qp::post_with`] does.
    ///
    /// # Errors
    /// As [`Qp::recv`].
    #[inline(always)]
    pub fn recv_with<'m>(
        &mut self,
        context: u64,
        local: impl AsRef<[MrSlice<'m>]>,
    ) -> Result<Ticket, PostError>
    where
        T: RecvQueue,
    {
        self.recv_keeping(Some(context), local)
    }

    #[inline(always)]
    fn recv_keeping<'m>(
        &mut self,
        context: Option<u64>,
        local: impl AsRef<[MrSlice<'m>]>,
    ) -> Result<Ticket, PostError>
    where
        T: RecvQueue,
    {
        let local = local.as_ref();
        let [slice] = local else {
            return self.recv_on(context, local);
        };
        match self.recv_alike(context, *slice) {
            Alike::Posted(id) => Ok(Ticket::new(id, true)),
            Alike::Refused(status) => Err(self.refused_recv(status)),
            Alike::Other => self.recv_on(context, &[*slice]),
        }
    }

    /// The short way, see [`QpHandle::post_recv_alike`].
    ///
    /// [`QpHandle::post_recv_alike`]: crate::raw::qp::QpHandle::post_recv_alike
    #[inline(always)]
    pub(super) fn recv_alike(&mut self, context: Option<u64>, slice: MrSlice<'_>) -> Alike
    where
        T: RecvQueue,
    {
        if check_recv(&[slice], T::RECV_HEADER).is_ok() && !slice.is_empty() {
            self.handle.post_recv_alike(slice.local(), context)
        } else {
            Alike::Other
        }
    }

    /// The error of a receive that the device refused on the short way.
    #[cold]
    #[inline(never)]
    pub(super) fn refused_recv(&mut self, status: i32) -> PostError {
        let reason = self.handle.refused_recv(status);
        self.not_posted(QueueKind::Recv, reason)
    }

    /// Posts whatever receive is not for the short way.
    #[cold]
    #[inline(never)]
    fn recv_on(
        &mut self,
        context: Option<u64>,
        local: &[MrSlice<'_>],
    ) -> Result<Ticket, PostError> {
        if local.len() > 1 && local.len() > self.handle.cap.max_recv_sge as usize {
            return Err(self.too_many(QueueKind::Recv, local.len()));
        }
        check_recv(local, T::RECV_HEADER)?;
        let local = local.iter().map(MrSlice::local);
        match self.handle.post_recv(local, context) {
            Ok(id) => Ok(Ticket::new(id, true)),
            Err(reason) => Err(self.not_posted(QueueKind::Recv, reason)),
        }
    }
}

/// Refuses receives into what is not made for it. `header` bytes are the device's.
#[inline]
pub(crate) fn check_recv(local: &[MrSlice<'_>], header: u32) -> Result<(), PostError> {
    let mut len = 0;
    for (entry, slice) in local.iter().enumerate() {
        if slice.len() as u64 > u64::from(u32::MAX) {
            return Err(PostError::MessageTooLong {
                len: slice.len() as u64,
                max: u32::MAX,
            });
        }
        if !slice.is_writable() {
            return Err(PostError::NotWritable {
                entry,
                operation: Operation::Recv,
            });
        }
        len += slice.len() as u64;
    }
    if len < u64::from(header) {
        return Err(PostError::NoRoomForHeader { len, header });
    }
    Ok(())
}
