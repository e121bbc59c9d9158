//! Posting: each request is checked, entered into the books, and handed to the device.

mod error;
mod op;

use rdma_core_sys::rules;

pub use error::PostError;
pub use op::{Op, PostFlags};

use super::{Qp, RdmaRead, RdmaWrite, Transport};
use crate::account::{Account, Operation};
use crate::cq::Ticket;
use crate::endpoint::RemoteAddr;
use crate::mr::MrSlice;
use crate::raw::qp::NotPosted;
use crate::wr_id::QueueKind;

/// No data: the local side of a request without any.
pub const NOTHING: [MrSlice<'static>; 0] = [];

/// The sum of the lengths.
#[inline]
fn total(local: &[MrSlice<'_>]) -> u64 {
    local.iter().map(|slice| slice.len() as u64).sum()
}

impl<T: Transport> Qp<T> {
    /// Posts a SEND of `local`: it goes into the next receive of the peer.
    ///
    /// `local` is a range of a region, or an array or slice of ranges, gathered in order.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn send<'m>(&mut self, local: impl AsRef<[MrSlice<'m>]>) -> Result<Ticket, PostError> {
        self.post_any(Op::Send { imm: None }, local, PostFlags::empty())
    }

    /// Posts a SEND as [`Qp::send`] does, with 32 bits of immediate data for the peer's completion.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn send_with_imm<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        imm: u32,
    ) -> Result<Ticket, PostError> {
        self.post_any(Op::Send { imm: Some(imm) }, local, PostFlags::empty())
    }

    /// Posts a receive into `local`: the next SEND of the peer goes there, scattered in order.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn recv<'m>(&mut self, local: impl AsRef<[MrSlice<'m>]>) -> Result<Ticket, PostError> {
        let local = local.as_ref();
        let cap = self.handle.cap.max_recv_sge;
        self.check_local(QueueKind::Recv, local, cap)?;
        if let Some(long) = local
            .iter()
            .find(|slice| u32::try_from(slice.len()).is_err())
        {
            return Err(PostError::MessageTooLong {
                len: long.len() as u64,
                max: u32::MAX,
            });
        }
        if let Some(entry) = local.iter().position(|slice| !slice.is_writable()) {
            return Err(PostError::NotWritable {
                entry,
                operation: Operation::Recv,
            });
        }
        if self.handle.recv.occupied() >= u64::from(self.handle.recv.depth) {
            return Err(self.full(QueueKind::Recv));
        }
        match self.handle.post_recv(local.iter().map(MrSlice::local)) {
            Ok(sequence) => Ok(Ticket::new(
                self.cqs.1,
                &self.handle.recv,
                sequence,
                Operation::Recv,
                true,
            )),
            Err(reason) => Err(self.not_posted(QueueKind::Recv, reason, local.len())),
        }
    }

    /// Checks and posts a request on ranges of regions. Public methods offer it for the operations that `T` has.
    #[inline]
    fn post_any<'m>(
        &mut self,
        op: Op,
        local: impl AsRef<[MrSlice<'m>]>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        let local = local.as_ref();
        self.check_local(QueueKind::Send, local, self.handle.cap.max_send_sge)?;
        let len = total(local);
        self.check_op(&op, len, flags)?;
        if op.returns()
            && let Some(entry) = local.iter().position(|slice| !slice.is_writable())
        {
            return Err(PostError::NotWritable {
                entry,
                operation: op.operation(),
            });
        }
        let posted = self
            .handle
            .post_send(&op, local.iter().map(MrSlice::local), flags.lower());
        self.posted(posted, &op, flags, local.len())
    }

    #[inline]
    fn check_local(
        &self,
        queue: QueueKind,
        local: &[MrSlice<'_>],
        limit: u32,
    ) -> Result<(), PostError> {
        if local.len() > limit as usize {
            return Err(PostError::TooManyEntries {
                queue,
                given: local.len(),
                limit,
            });
        }
        Ok(())
    }

    /// Checks everything that does not depend on where the local bytes are.
    #[inline]
    fn check_op(&self, op: &Op, len: u64, flags: PostFlags) -> Result<(), PostError> {
        if len > u64::from(self.max_msg_sz) {
            return Err(PostError::MessageTooLong {
                len,
                max: self.max_msg_sz,
            });
        }
        if flags.contains(PostFlags::INLINE) {
            let (limit, asked) = (self.handle.cap.max_inline_data, self.handle.inline_asked);
            if op.returns() {
                return Err(PostError::InlineReturns {
                    operation: op.operation(),
                });
            }
            if len > u64::from(limit) {
                return Err(PostError::InlineTooLong {
                    given: len,
                    limit,
                    asked,
                });
            }
        }
        if let Some(remote) = op.remote() {
            let atomic = matches!(op, Op::CompareSwap { .. } | Op::FetchAdd { .. });
            if atomic && len != 8 {
                return Err(PostError::AtomicLength { len });
            }
            if atomic && !remote.addr.is_multiple_of(8) {
                return Err(PostError::AtomicAlignment { addr: remote.addr });
            }
            if len > remote.room {
                return Err(PostError::OutOfRemoteRegion {
                    len,
                    room: remote.room,
                });
            }
        }
        if self.handle.send.occupied() >= u64::from(self.handle.send.depth) {
            return Err(self.full(QueueKind::Send));
        }
        Ok(())
    }

    #[inline]
    fn posted(
        &mut self,
        posted: Result<u64, NotPosted>,
        op: &Op,
        flags: PostFlags,
        given: usize,
    ) -> Result<Ticket, PostError> {
        match posted {
            Ok(sequence) => {
                let signaled = !flags.contains(PostFlags::UNSIGNALED);
                if signaled {
                    self.last_signaled = Some(sequence);
                }
                Ok(Ticket::new(
                    self.cqs.0,
                    &self.handle.send,
                    sequence,
                    op.operation(),
                    signaled,
                ))
            }
            Err(reason) => Err(self.not_posted(QueueKind::Send, reason, given)),
        }
    }

    #[cold]
    fn full(&self, queue: QueueKind) -> PostError {
        let books = if queue == QueueKind::Send {
            &self.handle.send
        } else {
            &self.handle.recv
        };
        let Account { pending, .. } = books.account();
        // Room is held by what is pending and by what was polled for another ticket and not taken yet.
        let untaken = books.occupied() > pending;
        let signaled = queue != QueueKind::Send
            || self
                .last_signaled
                .is_some_and(|last| !books.is_retired(last));
        PostError::QueueFull {
            queue,
            depth: books.depth,
            outstanding: books.occupied(),
            signaled_outstanding: signaled || untaken,
        }
    }

    #[cold]
    fn not_posted(&self, queue: QueueKind, reason: NotPosted, given: usize) -> PostError {
        match reason {
            NotPosted::Entry(entry) => PostError::OtherPd { entry },
            NotPosted::TooManyEntries => {
                let cap = &self.handle.cap;
                let limit = if queue == QueueKind::Send {
                    cap.max_send_sge
                } else {
                    cap.max_recv_sge
                };
                PostError::TooManyEntries {
                    queue,
                    given,
                    limit,
                }
            }
            NotPosted::Refused(errno) => {
                let posts = self.state().ok().and_then(|state| {
                    let posts = rules::allowed_posts(T::RULES, state)?;
                    Some((
                        state,
                        if queue == QueueKind::Send {
                            posts.post_send
                        } else {
                            posts.post_recv
                        },
                    ))
                });
                match posts {
                    Some((state, false)) => PostError::WrongState {
                        queue,
                        state,
                        errno,
                    },
                    _ => PostError::Refused { queue, errno },
                }
            }
        }
    }

    /// Posts a SEND of bytes that are copied during the call, so that they need no region.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    pub fn send_inline(
        &mut self,
        bytes: &[u8],
        imm: Option<u32>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        self.post_inline_any(Op::Send { imm }, bytes, flags)
    }

    fn post_inline_any(
        &mut self,
        op: Op,
        bytes: &[u8],
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        let flags = flags | PostFlags::INLINE;
        self.check_op(&op, bytes.len() as u64, flags)?;
        let posted = self.handle.post_inline(&op, bytes, flags.lower());
        self.posted(posted, &op, flags, 1)
    }
}

impl<T: RdmaWrite> Qp<T> {
    /// Posts an RDMA WRITE of `local` to `remote`. The peer is not told.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn write<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
    ) -> Result<Ticket, PostError> {
        self.post_any(Op::Write { remote, imm: None }, local, PostFlags::empty())
    }

    /// Posts an RDMA WRITE as [`Qp::write`] does, which also takes a receive of the peer and completes there with `imm`.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn write_with_imm<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
        imm: u32,
    ) -> Result<Ticket, PostError> {
        self.post_any(
            Op::Write {
                remote,
                imm: Some(imm),
            },
            local,
            PostFlags::empty(),
        )
    }

    /// Posts an RDMA WRITE of bytes that are copied during the call, so that they need no region.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    pub fn write_inline(
        &mut self,
        bytes: &[u8],
        remote: RemoteAddr,
        imm: Option<u32>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        self.post_inline_any(Op::Write { remote, imm }, bytes, flags)
    }
}

impl<T: RdmaRead> Qp<T> {
    /// Posts a send request with flags: the general form of [`Qp::send`], [`Qp::write`], [`Qp::read`] and the others.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_send<'m>(
        &mut self,
        op: Op,
        local: impl AsRef<[MrSlice<'m>]>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        self.post_any(op, local, flags)
    }

    /// Posts an RDMA READ from `remote` into `local`.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn read<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
    ) -> Result<Ticket, PostError> {
        self.post_any(Op::Read { remote }, local, PostFlags::empty())
    }

    /// Posts an atomic compare and swap of the 8 bytes at `remote`; `local`, 8 bytes, gets the old value in host order.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn compare_and_swap<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, PostError> {
        self.post_any(
            Op::CompareSwap {
                remote,
                compare,
                swap,
            },
            local,
            PostFlags::empty(),
        )
    }

    /// Posts an atomic addition to the 8 bytes at `remote`; `local`, 8 bytes, gets the old value in host order.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn fetch_and_add<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
        add: u64,
    ) -> Result<Ticket, PostError> {
        self.post_any(Op::FetchAdd { remote, add }, local, PostFlags::empty())
    }
}
