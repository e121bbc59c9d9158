//! Posting: each request is checked, entered into the books, built in place, and handed to the device.

mod calls;
mod doorbell;
mod error;
mod list;
pub mod op;
mod quick;
mod recv;
mod silence;

use rdma_core_sys::rules;

pub use doorbell::Doorbell;
pub use error::PostError;
pub use list::Sends;
pub use op::{Op, PostFlags};
pub use quick::{NotTaken, QuickPost};
pub(crate) use recv::check_recv;
pub(crate) use silence::Silence;

use super::{Qp, Transport};
use crate::account::Operation;
use crate::cq::Ticket;
use crate::mr::MrSlice;
use crate::raw::post::{Alike, Asked, NotPosted, Refusal};
use crate::wr_id::{OPERATION_MASK, QueueKind, STEP, sequence};

/// No data: the local side of a request without any.
pub const NOTHING: [MrSlice<'static>; 0] = [];

/// What the form of a request says of the operation. `None`: a request of one range with these flags has no form.
#[inline(always)]
fn asked<T: Transport, O: Op<T>>(flags: PostFlags) -> Option<Asked> {
    let usual = PostFlags::FENCE | PostFlags::SOLICITED | PostFlags::UNSIGNALED;
    (usual.contains(flags)).then(|| Asked::send(O::OPCODE, flags.lower()))
}

/// The ticket of a request with these flags.
#[inline(always)]
fn ticket(id: u64, flags: PostFlags) -> Ticket {
    Ticket::new(id, !flags.contains(PostFlags::UNSIGNALED))
}

/// The sum of the lengths.
#[inline]
fn total(local: &[MrSlice<'_>]) -> u64 {
    local.iter().map(|slice| slice.len() as u64).sum()
}

impl<T: Transport> Qp<T> {
    /// Posts a send request: `op` says what it asks for, `local` is a range of a region, or an array or slice of ranges,
    /// gathered (or, for READ, scattered to) in order.
    ///
    /// The request is handed to the device at once, or with others, as [`Qp::set_doorbell`] says.
    ///
    /// ```
    /// # use rdma_qp::{op, Access, Device, Memory, PostFlags, RemoteAddr};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// # let mr = pd.register(Memory::zeroed(64), Access::REMOTE_WRITE)?;
    /// # let mut qp = pd.rc(&cq).create()?;
    /// # let remote = mr.remote().at(0);
    /// let flags = PostFlags::FENCE | PostFlags::UNSIGNALED;
    /// let refused = qp.post(op::Write { remote }, mr.slice(0, 8)?, flags);
    /// // A QP in RESET takes nothing, and says so.
    /// assert!(refused.unwrap_err().to_string().contains("sends need RTS"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then, and of a list what the error says.
    #[inline(always)]
    pub fn post<'m, O: Op<T>>(
        &mut self,
        op: O,
        local: impl AsRef<[MrSlice<'m>]>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        self.post_keeping(None, op, local, flags)
    }

    /// Posts a send request as [`Qp::post`] does, and keeps a number beside it: what the application wants to know when it
    /// is done, such as the place of its own record. The number is there before the device has the request, and comes with the
    /// completion: [`Usual::context`](crate::Usual::context), [`Cq::context`](crate::Cq::context).
    ///
    /// ```
    /// # use rdma_qp::{op, Device, PostFlags, NOTHING};
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// # let mut qp = pd.rc(&cq).create()?;
    /// let posted = qp.post_with(7, op::Send, NOTHING, PostFlags::empty());
    /// // In RESET nothing is posted.
    /// assert!(posted.is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Qp::post`].
    #[inline(always)]
    pub fn post_with<'m, O: Op<T>>(
        &mut self,
        context: u64,
        op: O,
        local: impl AsRef<[MrSlice<'m>]>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        self.post_keeping(Some(context), op, local, flags)
    }

    #[inline(always)]
    fn post_keeping<'m, O: Op<T>>(
        &mut self,
        context: Option<u64>,
        op: O,
        local: impl AsRef<[MrSlice<'m>]>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        let local = local.as_ref();
        let [slice] = local else {
            return self.post_on(context, op, local, flags);
        };
        match self.post_alike::<false, O>(context, &op, *slice, flags) {
            Alike::Posted(id) => Ok(ticket(id, flags)),
            Alike::Refused(status) => Err(self.refused(status)),
            Alike::Other => self.post_on(context, op, &[*slice], flags),
        }
    }

    /// The short way, see [`QpHandle::post_send_alike`].
    ///
    /// [`QpHandle::post_send_alike`]: crate::raw::qp::QpHandle::post_send_alike
    #[inline(always)]
    fn post_alike<const LIST: bool, O: Op<T>>(
        &mut self,
        context: Option<u64>,
        op: &O,
        slice: MrSlice<'_>,
        flags: PostFlags,
    ) -> Alike {
        let (len, signaled) = (slice.len(), !flags.contains(PostFlags::UNSIGNALED));
        if len == 0 || op.check(len as u64).is_err() {
            return Alike::Other;
        }
        let Some(asked) = asked::<T, O>(flags) else {
            return Alike::Other;
        };
        let posted = self.handle.post_send_alike::<LIST>(
            O::OPERATION,
            asked,
            op.names(),
            slice.local(),
            context,
            #[inline(always)]
            |request| op.fill(request),
        );
        if !signaled && matches!(posted, Alike::Posted(_)) {
            self.note_silence::<LIST>();
        }
        posted
    }

    /// The error of a request that the device refused on the short way.
    #[cold]
    #[inline(never)]
    pub(super) fn refused(&mut self, status: i32) -> PostError {
        let reason = self.handle.refused_send(status);
        self.not_posted(QueueKind::Send, reason)
    }

    /// Posts whatever is not for the short way.
    #[cold]
    #[inline(never)]
    fn post_on<O: Op<T>>(
        &mut self,
        context: Option<u64>,
        op: O,
        local: &[MrSlice<'_>],
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        let posted = match local {
            [slice] if self.handle.find_room() => {
                self.post_alike::<false, O>(context, &op, *slice, flags)
            }
            _ => Alike::Other,
        };
        match posted {
            Alike::Posted(id) => Ok(ticket(id, flags)),
            Alike::Refused(status) => Err(self.refused(status)),
            Alike::Other => self.post_after(context, op, local, flags),
        }
    }

    /// Posts what is not for the short way although there is room.
    #[cold]
    #[inline(never)]
    fn post_after<O: Op<T>>(
        &mut self,
        context: Option<u64>,
        op: O,
        local: &[MrSlice<'_>],
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        if let Err(reason) = self.handle.make_place() {
            return Err(self.not_posted(QueueKind::Send, reason));
        }
        if let [slice] = local {
            // It may wait for the doorbell.
            match self.post_alike::<true, O>(context, &op, *slice, flags) {
                Alike::Posted(id) => return Ok(ticket(id, flags)),
                Alike::Refused(status) => return Err(self.refused(status)),
                Alike::Other => {}
            }
        }
        self.post_anew(context, op, local, flags)
    }

    /// Posts a request of any form.
    #[cold]
    #[inline(never)]
    fn post_anew<O: Op<T>>(
        &mut self,
        context: Option<u64>,
        op: O,
        local: &[MrSlice<'_>],
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        if local.len() > 1 && local.len() > self.handle.cap.max_send_sge as usize {
            return Err(self.too_many(QueueKind::Send, local.len()));
        }
        self.check_request(&op, total(local), flags)?;
        if O::RETURNS
            && let Some(entry) = local.iter().position(|slice| !slice.is_writable())
        {
            return Err(PostError::NotWritable {
                entry,
                operation: O::OPERATION,
            });
        }
        if flags.contains(PostFlags::INLINE)
            && let Some(entry) = local.iter().position(|slice| !slice.has_bytes())
        {
            return Err(PostError::InlineOfDevice { entry });
        }
        let posted = self.handle.post_send(
            O::OPERATION,
            asked::<T, O>(flags),
            op.names(),
            local.iter().map(MrSlice::local),
            context,
            |request| {
                request.opcode = O::OPCODE;
                request.send_flags = flags.lower().bits();
                op.fill(request);
            },
        );
        let ticket = self.posted(posted, flags)?;
        if flags.contains(PostFlags::INLINE) && !self.copies_wait {
            // The library reads the region when it is called.
            self.ring_sends()?;
        }
        Ok(ticket)
    }

    /// Posts a send request of bytes that are copied during the call, so that they need no region. It is handed to the
    /// device at once, with what waits for the doorbell.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then, and of a list what the error says.
    pub fn post_inline<O: Op<T>>(
        &mut self,
        op: O,
        bytes: &[u8],
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        self.post_inline_keeping(None, op, bytes, flags)
    }

    /// Posts bytes as [`Qp::post_inline`] does, and keeps a number beside the request, as [`Qp::post_with`] does.
    ///
    /// # Errors
    /// As [`Qp::post_inline`].
    pub fn post_inline_with<O: Op<T>>(
        &mut self,
        context: u64,
        op: O,
        bytes: &[u8],
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        self.post_inline_keeping(Some(context), op, bytes, flags)
    }

    fn post_inline_keeping<O: Op<T>>(
        &mut self,
        context: Option<u64>,
        op: O,
        bytes: &[u8],
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        let flags = flags | PostFlags::INLINE;
        self.check_request(&op, bytes.len() as u64, flags)?;
        let posted = self
            .handle
            .post_inline(O::OPERATION, op.names(), bytes, context, |request| {
                request.opcode = O::OPCODE;
                request.send_flags = flags.lower().bits();
                op.fill(request);
            });
        self.posted(posted, flags)
    }

    #[cold]
    fn too_many(&self, queue: QueueKind, given: usize) -> PostError {
        let cap = &self.handle.cap;
        let limit = match queue {
            QueueKind::Send => cap.max_send_sge,
            _ => cap.max_recv_sge,
        };
        PostError::TooManyEntries {
            queue,
            given,
            limit,
        }
    }

    /// Checks everything that does not depend on where the local bytes are.
    #[inline]
    fn check_request<O: Op<T>>(
        &mut self,
        op: &O,
        len: u64,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        let max = self.handle.max_msg_sz();
        if len > u64::from(max) {
            return Err(PostError::MessageTooLong { len, max });
        }
        if flags.contains(PostFlags::INLINE) {
            self.check_inline(O::OPERATION, O::RETURNS, len)?;
        }
        op.check(len)?;
        if flags.contains(PostFlags::UNSIGNALED)
            && self.handle.takes_last_place()
            && self.all_silent()
        {
            return Err(self.full(QueueKind::Send, true));
        }
        Ok(())
    }

    fn check_inline(
        &self,
        operation: Operation,
        returns: bool,
        given: u64,
    ) -> Result<(), PostError> {
        if returns {
            return Err(PostError::InlineReturns { operation });
        }
        let (limit, asked) = (self.handle.cap.max_inline_data, self.handle.inline_asked);
        if given > u64::from(limit) {
            return Err(PostError::InlineTooLong {
                given,
                limit,
                asked,
            });
        }
        Ok(())
    }

    fn posted(
        &mut self,
        posted: Result<u64, NotPosted>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        let signaled = !flags.contains(PostFlags::UNSIGNALED);
        match posted {
            Ok(id) => {
                if !signaled {
                    self.note_silence::<true>();
                }
                Ok(Ticket::new(id, signaled))
            }
            Err(reason) => Err(self.not_posted(QueueKind::Send, reason)),
        }
    }

    #[cold]
    fn full(&self, queue: QueueKind, place_is_kept: bool) -> PostError {
        let books = if queue == QueueKind::Send {
            &self.handle.send
        } else {
            &self.handle.recv
        };
        let silent = queue == QueueKind::Send && self.all_silent();
        let last_signaled = if queue == QueueKind::Send && self.silence.to == books.posted() {
            self.silence.from
        } else {
            books.posted()
        };
        PostError::QueueFull {
            queue,
            depth: books.depth,
            outstanding: books.occupied(),
            last_signaled: (!silent).then(|| sequence(last_signaled.wrapping_sub(STEP))),
            place_is_kept,
        }
    }

    #[cold]
    pub(super) fn not_posted(&mut self, queue: QueueKind, reason: NotPosted) -> PostError {
        match reason {
            NotPosted::OtherPd(entry) => PostError::OtherPd { entry },
            NotPosted::OtherPdAh => PostError::OtherPdAh,
            NotPosted::OtherPortAh { ah, qp } => PostError::OtherPortAh { ah, qp },
            NotPosted::OtherPdWindow => PostError::OtherPdWindow,
            NotPosted::Full => self.no_room(queue),
            NotPosted::Refused(refusal) => {
                let alone = refusal.accepted + refusal.refused <= 1;
                match self.list_refused(queue, *refusal) {
                    PostError::List { reason, .. } if alone => *reason,
                    error => error,
                }
            }
        }
    }

    /// The error of a request for which there is no room. What waits for the doorbell is handed over: with a full queue it never
    /// becomes more, and whoever polls for room waits for it.
    #[cold]
    fn no_room(&mut self, queue: QueueKind) -> PostError {
        let is_send = queue == QueueKind::Send;
        let rung = if is_send {
            self.handle.ring_sends()
        } else {
            self.handle.ring_recvs()
        };
        if let Err(NotPosted::Refused(refusal)) = rung {
            // Not of the request that was to be posted, so it is told as a list even if it is one.
            return self.list_refused(queue, *refusal);
        }
        match self.srq() {
            Some(srq) if !is_send => PostError::OnSrq { srq },
            _ => self.full(queue, false),
        }
    }

    /// The error of requests that were handed over together.
    #[cold]
    fn list_refused(&mut self, queue: QueueKind, refusal: Refusal) -> PostError {
        let Refusal {
            accepted,
            refused,
            first,
            errno,
        } = refusal;
        self.buffers.settle();
        if queue == QueueKind::Send {
            self.note_refusal(first & !OPERATION_MASK, accepted);
        }
        let posts = self.state().ok().and_then(|state| {
            let posts = rules::allowed_posts(T::RULES, state)?;
            let allowed = if queue == QueueKind::Send {
                posts.post_send
            } else {
                posts.post_recv
            };
            Some((state, allowed))
        });
        let reason = match posts {
            Some((state, false)) => PostError::WrongState {
                queue,
                state,
                errno,
            },
            _ => PostError::Refused { queue, errno },
        };
        PostError::List {
            queue,
            accepted,
            refused,
            first: Ticket::new(first, true),
            reason: Box::new(reason),
        }
    }
}
