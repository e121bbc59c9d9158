//! Shared receive queues.
//!
//! QPs of one protection domain can take their receives from one queue, so that a server needs buffers for the messages
//! that are under way, and not for each of its connections. A completion then names the QP that the message came by.

mod connections;
mod error;
mod header;
mod refill;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use rdma_core_sys::{ibv_srq, ibv_srq_attr};

pub use connections::Connections;
pub use error::{CloseSrqError, CreateSrqError, SrqError};
pub use header::{BadHeader, ConnectionId};
pub use refill::{Message, Receives, Refill, RefillError};

use crate::account::{Account, Shared};
use crate::buffer::{Buffer, BufferNotPosted};
use crate::cq::{Completion, Ticket};
use crate::errno::Errno;
use crate::mr::MrSlice;
use crate::number::NumberHasher;
use crate::pd::Pd;
use crate::qp::{Doorbell, PostError, check_recv};
use crate::raw::post::{NotPosted, Refusal};
use crate::raw::srq::{NoSrq, SrqHandle, SrqPoster, XrcParts};
use crate::wr_id::{self, QueueKind};

/// What an SRQ shall be like. Made by [`Pd::srq`].
#[derive(Debug)]
#[must_use = "nothing is made until create() is called"]
pub struct SrqBuilder<'a> {
    pub(crate) pd: &'a Pd,
    pub(crate) depth: u32,
    sge: u32,
}

impl Pd {
    /// Begins a shared receive queue.
    ///
    /// ```
    /// # use rdma_qp::{Access, Device, Memory};
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
    /// let mut srq = pd.srq().depth(64).create()?;
    /// let (one, two) = (pd.rc(&cq).srq(&srq).create()?, pd.rc(&cq).srq(&srq).create()?);
    /// let mr = pd.register(Memory::zeroed(4096), Access::LOCAL_WRITE)?;
    /// srq.recv(mr.slice(0, 1024)?)?;
    /// assert_eq!(srq.account().pending, 1);
    /// # drop((one, two));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn srq(&self) -> SrqBuilder<'_> {
        SrqBuilder {
            pd: self,
            depth: 16,
            sge: 1,
        }
    }
}

impl SrqBuilder<'_> {
    /// Most receives outstanding at a time; 16 if not set. Every CQ on which they complete needs room for so many.
    pub fn depth(mut self, receives: u32) -> Self {
        self.depth = receives;
        self
    }

    /// Most ranges that one receive scatters to; 1 if not set.
    pub fn sge(mut self, entries: u32) -> Self {
        self.sge = entries;
        self
    }

    /// Creates the SRQ.
    ///
    /// # Errors
    /// The device's limits are exceeded, or the library refused.
    pub fn create(self) -> Result<Srq, CreateSrqError> {
        let poster = self.make(None)?;
        tracing::debug!(
            device = self.pd.device(),
            srq = poster.handle.shared.number,
            "SRQ created"
        );
        Ok(Srq::of(poster, Basic))
    }

    /// Makes the SRQ; with `xrc`, one for XRC.
    pub(crate) fn make(&self, xrc: Option<XrcParts>) -> Result<SrqPoster, CreateSrqError> {
        let (attr, device) = (self.pd.device_attr(), self.pd.device());
        if attr.max_srq <= 0 {
            let device = device.to_owned();
            return Err(CreateSrqError::None { device });
        }
        let limits = [
            ("max_wr", self.depth, attr.max_srq_wr),
            ("max_sge", self.sge, attr.max_srq_sge),
        ];
        for (field, value, max) in limits {
            let max = u32::try_from(max).unwrap_or(0);
            if value == 0 || value > max {
                return Err(CreateSrqError::OverLimit {
                    field,
                    value,
                    max,
                    device: device.to_owned(),
                });
            }
        }
        SrqPoster::create(self.pd.handle(), self.depth, self.sge, xrc).map_err(
            |reason| match reason {
                NoSrq::TooMany => CreateSrqError::TooMany,
                NoSrq::Refused(source) => CreateSrqError::Refused {
                    device: device.to_owned(),
                    depth: self.depth,
                    sge: self.sge,
                    max: attr.max_srq,
                    source,
                },
            },
        )
    }
}

/// The kind of an SRQ: [`Basic`], or [`Xrc`](crate::xrc::Xrc).
pub trait SrqKind: sealed::Sealed + fmt::Debug + Send + Sync + 'static {}

/// An SRQ whose receives serve the QPs that were made with it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Basic;

impl SrqKind for Basic {}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Basic {}
}

/// A shared receive queue: receives that serve the messages of many QPs, in the order in which they come.
///
/// It has one owner, who posts. Its receives end in any order, on the CQs of its QPs; their completions have the kind
/// [`QueueKind::SharedRecv`], the SRQ's ticket, and the number of the QP that the message came by. The room that they may
/// need is reserved in each of these CQs with the first QP, until the SRQ is destroyed.
///
/// A receive that a QP had taken, and whose completion was not polled when the QP was reset or destroyed, may never come
/// back: devices throw such completions away. It then stays pending until the SRQ is destroyed. [`Qp::drain`](crate::Qp::drain)
/// before the reset or the end of the QP takes them all.
///
/// Dropping it destroys it when the last of its QPs is gone. Receives that are outstanding then are thrown away.
pub struct Srq<K: SrqKind = Basic> {
    /// Before the poster, so that there is an SRQ to keep the buffers until it is destroyed, whoever destroys it.
    lent: Lent,
    poster: SrqPoster,
    pub(crate) kind: K,
}

/// The buffers that an SRQ has. None of them is read, given away or dropped before its books have let go of it.
struct Lent {
    buffers: HashMap<u64, Buffer, NumberHasher>,
    shared: Arc<Shared>,
    srq: Weak<SrqHandle>,
}

impl Lent {
    fn new(srq: &Arc<SrqHandle>) -> Lent {
        Lent {
            buffers: HashMap::default(),
            shared: srq.shared.clone(),
            srq: Arc::downgrade(srq),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let buffers = std::mem::take(&mut self.buffers);
        if buffers.is_empty() || self.shared.is_ended() {
            return;
        }
        let buffers: Box<dyn Any + Send> = Box::new(buffers);
        match self.srq.upgrade() {
            // QPs go on using it.
            Some(srq) => srq.keep(buffers),
            // It could not be destroyed.
            None => std::mem::forget(buffers),
        }
    }
}

impl<K: SrqKind> Srq<K> {
    pub(crate) fn of(poster: SrqPoster, kind: K) -> Srq<K> {
        let lent = Lent::new(&poster.handle);
        Srq { poster, lent, kind }
    }

    pub(crate) fn handle(&self) -> &Arc<SrqHandle> {
        &self.poster.handle
    }

    fn shared(&self) -> &Shared {
        &self.handle().shared
    }

    /// Its number in this process: what errors and [`AsyncEvent::Srq`](crate::AsyncEvent::Srq) name it by.
    pub fn number(&self) -> u32 {
        self.shared().number
    }

    /// Name of the device that it is of.
    pub fn device(&self) -> &str {
        &self.handle().pd().context.name
    }

    /// Most receives outstanding at a time.
    pub fn depth(&self) -> u32 {
        self.shared().depth
    }

    /// Posts a receive into `local`: a message of one of its QPs goes there, scattered in order. For QPs with datagrams it
    /// begins with 40 bytes that are the device's.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then, and of a list what the error says.
    #[inline]
    pub fn recv<'m>(&mut self, local: impl AsRef<[MrSlice<'m>]>) -> Result<Ticket, PostError> {
        self.recv_keeping(None, local.as_ref())
    }

    /// Posts a receive as [`Srq::recv`] does, and keeps a number beside it, see [`Qp::post_with`](crate::Qp::post_with).
    ///
    /// # Errors
    /// As [`Srq::recv`].
    pub fn recv_with<'m>(
        &mut self,
        context: u64,
        local: impl AsRef<[MrSlice<'m>]>,
    ) -> Result<Ticket, PostError> {
        self.recv_keeping(Some(context), local.as_ref())
    }

    #[inline]
    fn recv_keeping(
        &mut self,
        context: Option<u64>,
        local: &[MrSlice<'_>],
    ) -> Result<Ticket, PostError> {
        let limit = self.handle().cap.max_sge;
        if local.len() > 1 && local.len() > limit as usize {
            return Err(PostError::TooManyEntries {
                queue: QueueKind::SharedRecv,
                given: local.len(),
                limit,
            });
        }
        check_recv(local, 0)?;
        match self.poster.post(local.iter().map(MrSlice::local), context) {
            Ok(id) => Ok(Ticket::new(id, true)),
            Err(reason) => Err(self.not_posted(reason)),
        }
    }

    /// Posts a receive into `buffer`, which moves into the queue.
    ///
    /// # Errors
    /// As [`Srq::recv`].
    pub fn recv_buffer(&mut self, buffer: Buffer) -> Result<Ticket, BufferNotPosted> {
        match self.recv(buffer.slice()) {
            Ok(ticket) => {
                self.lent.buffers.insert(ticket.wr_id(), buffer);
                Ok(ticket)
            }
            Err(error) => {
                // Of a list that was refused, the last request is this one.
                let buffer = Some(buffer);
                Err(BufferNotPosted { buffer, error })
            }
        }
    }

    /// Takes the buffer of the receive that `done` is of; if that succeeded, it is as long as the message (and begins, for a
    /// datagram, with the 40 bytes that are the device's). `None`: the receive had none, or it was taken.
    pub fn take_buffer(&mut self, done: &Completion) -> Option<Buffer> {
        let id = done.ticket.wr_id();
        if !done.ticket.is_shared() || !self.shared().is_retired(id) {
            return None;
        }
        let mut buffer = self.lent.buffers.remove(&id)?;
        if let Ok(success) = &done.outcome
            && !success.by_write
        {
            let header = success.sender.map_or(0, |_| crate::ah::Grh::LEN);
            buffer.set_len(success.byte_len as usize + header);
        }
        Some(buffer)
    }

    #[cold]
    fn not_posted(&mut self, reason: NotPosted) -> PostError {
        let queue = QueueKind::SharedRecv;
        let Refusal {
            accepted,
            refused,
            first,
            errno,
        } = match reason {
            NotPosted::OtherPd(entry) => return PostError::OtherPd { entry },
            NotPosted::Refused(refusal) => *refusal,
            // What else there is, only sends have.
            _ => {
                return PostError::QueueFull {
                    queue,
                    depth: self.depth(),
                    outstanding: u64::from(self.depth()) - self.poster.room(),
                    last_signaled: None,
                    place_is_kept: false,
                };
            }
        };
        // What was built before this call and is refused is nobody's; its buffer goes back to its pool.
        self.lent
            .buffers
            .retain(|id, _| wr_id::is_before(*id, first));
        let reason = PostError::Refused { queue, errno };
        if accepted + refused <= 1 {
            return reason;
        }
        PostError::List {
            queue,
            accepted,
            refused,
            first: Ticket::new(first, true),
            reason: Box::new(reason),
        }
    }

    /// Sets how many receives one doorbell is for. What waits is handed over first. See [`Qp::set_doorbell`](crate::Qp::set_doorbell).
    ///
    /// # Errors
    /// The device refused what waited; the doorbell stays as it was.
    pub fn set_doorbell(&mut self, doorbell: Doorbell) -> Result<(), PostError> {
        self.ring()?;
        let requests = doorbell.requests(self.depth());
        self.poster.set_doorbell(requests);
        Ok(())
    }

    /// Hands over all receives that wait.
    ///
    /// # Errors
    /// The device refused some of them, see [`PostError::List`].
    pub fn ring(&mut self) -> Result<(), PostError> {
        match self.poster.ring() {
            Ok(()) => Ok(()),
            Err(reason) => Err(self.not_posted(reason)),
        }
    }

    /// Receives that wait for the doorbell.
    pub fn waiting(&self) -> u32 {
        self.poster.waiting()
    }

    /// Its books: `accepted` is always the sum of the other counts. `discarded` is 0 as long as it lives.
    pub fn account(&self) -> Account {
        self.shared().account()
    }

    /// Its attributes, asked of the device. `srq_limit` is 0 when the limit is not armed, or was reached.
    ///
    /// # Errors
    /// The library refused.
    pub fn query(&self) -> Result<ibv_srq_attr, SrqError> {
        self.handle()
            .query()
            .map_err(|source| self.failed("a query", source))
    }

    /// Asks for one event [`AsyncEvent::Srq`](crate::AsyncEvent::Srq) of the kind `IBV_EVENT_SRQ_LIMIT_REACHED` when fewer
    /// than `limit` receives are left: [`Device::next_event`](crate::Device::next_event) has it. It comes once; then the
    /// limit is armed again with this call (`ibv_modify_srq(3)`). 0 disarms it.
    ///
    /// ```
    /// # use rdma_core_sys::IBV_EVENT_SRQ_LIMIT_REACHED;
    /// # use rdma_qp::{AsyncEvent, Device};
    /// # use std::time::Duration;
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let pd = device.alloc_pd()?;
    /// let srq = pd.srq().depth(64).create()?;
    /// // There are none at all, so it comes at once.
    /// srq.arm_limit(8)?;
    /// let event = device.next_event(Duration::from_secs(5))?.expect("an event");
    /// let kind = IBV_EVENT_SRQ_LIMIT_REACHED;
    /// assert_eq!(event, AsyncEvent::Srq { kind, srq: srq.number() });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The library refused.
    pub fn arm_limit(&self, limit: u32) -> Result<(), SrqError> {
        self.handle()
            .set_limit(limit)
            .map_err(|source| self.failed("arming its limit", source))
    }

    #[cold]
    fn failed(&self, what: &'static str, source: Errno) -> SrqError {
        SrqError {
            srq: self.number(),
            what,
            source,
        }
    }

    /// The verbs object, for calls that this library does not have. It is destroyed with the SRQ.
    ///
    /// Posting to it, modifying or destroying it through the pointer takes `unsafe` code, which then answers for the books
    /// and the memory of this SRQ.
    pub fn as_ptr(&self) -> *mut ibv_srq {
        self.handle().as_ptr()
    }

    /// Destroys the SRQ and says whether that worked. Dropping it instead destroys it when the last of its QPs is gone.
    ///
    /// Where only such are left as another thread is destroying, it waits for that.
    ///
    /// # Errors
    /// QPs still take their receives from it (the error says which), or the library refused.
    pub fn close(self) -> Result<(), CloseSrqError<K>> {
        let Srq { poster, lent, kind } = self;
        let (poster, reason) = match poster.destroy() {
            Ok(()) => return Ok(()),
            Err(kept) => kept,
        };
        let mut lent = lent;
        lent.srq = Arc::downgrade(&poster.handle);
        let poster = *poster;
        let srq = Box::new(Srq { poster, lent, kind });
        Err(match reason {
            Ok(qps) => CloseSrqError::Busy { srq, qps },
            Err(source) => CloseSrqError::Refused { srq, source },
        })
    }
}

impl Srq {
    /// Numbers of the QPs that take their receives from it.
    pub fn qps(&self) -> Vec<u32> {
        self.handle().qps()
    }
}

impl<K: SrqKind> fmt::Debug for Srq<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Srq({} of {} receives on {})",
            self.number(),
            self.depth(),
            self.device()
        )
    }
}
