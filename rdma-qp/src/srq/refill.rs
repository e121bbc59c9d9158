//! Keeping a queue supplied with receives.

use std::fmt;
use std::ops::{Deref, Range};

use rdma_core_sys::IBV_EVENT_SRQ_LIMIT_REACHED;

use super::{BadHeader, ConnectionId, Srq, SrqError, SrqKind};
use crate::buffer::{Buffer, BufferNotPosted, BufferPool};
use crate::cq::{Completion, Ticket};
use crate::device::AsyncEvent;
use crate::qp::{PostError, Qp, RecvQueue};
use crate::wr_id::QueueKind;

/// A queue that takes buffers for messages: an [`Srq`], or a QP with a receive queue of its own.
pub trait Receives: sealed::Queue {}

mod sealed {
    use super::*;

    pub trait Queue {
        /// Most receives outstanding at a time.
        fn depth(&self) -> u32;
        /// Receives that hold room: outstanding, or not handed to the application.
        fn occupied(&mut self) -> u64;
        fn recv_buffer(&mut self, buffer: Buffer) -> Result<Ticket, BufferNotPosted>;
        fn take_buffer(&mut self, done: &Completion) -> Option<Buffer>;
        fn ring(&mut self) -> Result<(), PostError>;
        /// Asks for the event that fewer than `limit` receives are left; nothing where there is none.
        fn arm(&self, limit: u32) -> Result<(), SrqError>;
        /// Number of the SRQ.
        fn srq(&self) -> Option<u32>;
    }
}

impl<K: SrqKind> Receives for Srq<K> {}
impl<T: RecvQueue> Receives for Qp<T> {}

impl<K: SrqKind> sealed::Queue for Srq<K> {
    fn depth(&self) -> u32 {
        Srq::depth(self)
    }
    fn occupied(&mut self) -> u64 {
        u64::from(Srq::depth(self)) - self.poster.room()
    }
    fn recv_buffer(&mut self, buffer: Buffer) -> Result<Ticket, BufferNotPosted> {
        Srq::recv_buffer(self, buffer)
    }
    fn take_buffer(&mut self, done: &Completion) -> Option<Buffer> {
        Srq::take_buffer(self, done)
    }
    fn ring(&mut self) -> Result<(), PostError> {
        Srq::ring(self)
    }
    fn arm(&self, limit: u32) -> Result<(), SrqError> {
        self.arm_limit(limit)
    }
    fn srq(&self) -> Option<u32> {
        Some(self.number())
    }
}

impl<T: RecvQueue> sealed::Queue for Qp<T> {
    fn depth(&self) -> u32 {
        self.recv_depth()
    }
    fn occupied(&mut self) -> u64 {
        self.recv_occupied()
    }
    fn recv_buffer(&mut self, buffer: Buffer) -> Result<Ticket, BufferNotPosted> {
        Qp::recv_buffer(self, buffer)
    }
    fn take_buffer(&mut self, done: &Completion) -> Option<Buffer> {
        (done.queue == QueueKind::Recv && done.qp_num == self.qp_num())
            .then(|| Qp::take_buffer(self, done))
            .flatten()
    }
    fn ring(&mut self) -> Result<(), PostError> {
        Qp::ring(self)
    }
    fn arm(&self, _: u32) -> Result<(), SrqError> {
        Ok(())
    }
    fn srq(&self) -> Option<u32> {
        None
    }
}

/// A queue was not supplied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefillError {
    /// A receive was refused. Its buffer is in the pool again.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The limit could not be armed.
    #[error(transparent)]
    Arm(#[from] SrqError),
}

/// A queue of receives that is filled up from a pool of buffers whenever it falls below a low-water mark.
///
/// It has the queue, an [`Srq`] or a [`Qp`]. Messages come out as owned buffers; when the program drops one, it is in the
/// pool again, for the next [`Refill::top_up`]. That call belongs into the loop that polls; where a program sleeps on the
/// device's events instead, [`Refill::on_event`] does the same when the SRQ's limit is reached. Whichever sees it first
/// fills up, and arms the limit again.
///
/// ```
/// # use rdma_qp::{Device, Timing, Refill};
/// # use std::time::Duration;
/// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
/// # let gid = device.port(1)?.best_gid()?.entry();
/// let srq = pd.srq().depth(64).create()?;
/// let mut client = pd.rc(&cq).create()?;
/// let mut server = pd.rc(&cq).srq(&srq).create()?;
/// let mut receives = Refill::new(srq, pd.buffers(64, 4096)?, 16);
/// receives.top_up()?;
/// # let (a, b) = (client.endpoint(gid)?, server.endpoint(gid)?);
/// # let (a, b) = (rdma_qp::Peer { endpoint: a, regions: vec![] }, rdma_qp::Peer { endpoint: b, regions: vec![] });
/// # let timing = Timing::default();
/// # let (x, y) = (client.connect_begin(&b, timing)?, server.connect_begin(&a, timing)?);
/// # client.connect_finish(x, timing)?;
/// # server.connect_finish(y, timing)?;
/// # let out = pd.buffers(1, 64)?;
/// # let mut hello = out.take().unwrap();
/// # hello[..5].copy_from_slice(b"hello");
/// # hello.set_len(5);
/// # client.post_buffer(rdma_qp::op::Send, hello, Default::default())?;
/// # let mut came = false;
/// while let Some(done) = cq.wait_any(Duration::from_millis(500))? {
///     if let Some(message) = receives.take(&done) {
///         assert_eq!((message.qp_num, &message[..]), (server.qp_num(), &b"hello"[..]));
/// #       came = true;
/// #       break;
///     }
///     receives.top_up()?;
/// }
/// # assert!(came);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Refill<Q: Receives> {
    queue: Q,
    pool: BufferPool,
    low: u32,
    header: bool,
    armed: bool,
}

impl<Q: Receives> Refill<Q> {
    /// Keeps at least `low` receives outstanding in `queue`, as long as `pool` has buffers: at least 1, and at most the
    /// queue's depth.
    pub fn new(queue: Q, pool: BufferPool, low: u32) -> Refill<Q> {
        Refill {
            low: low.max(1).min(queue.depth()),
            queue,
            pool,
            header: false,
            armed: false,
        }
    }

    /// Takes every message to begin with the header of a connection, see [`ConnectionId`].
    pub fn with_header(mut self) -> Refill<Q> {
        self.header = true;
        self
    }

    /// Posts receives until the queue or the pool has no more room, if fewer than the low-water mark are outstanding. Returns
    /// how many.
    ///
    /// # Errors
    /// A receive was refused, or the limit could not be armed. What was posted before stays posted.
    pub fn top_up(&mut self) -> Result<u32, RefillError> {
        let occupied = self.queue.occupied();
        if occupied >= u64::from(self.low) && self.armed {
            return Ok(0);
        }
        self.fill(occupied)
    }

    fn fill(&mut self, occupied: u64) -> Result<u32, RefillError> {
        let room = u64::from(self.queue.depth()).saturating_sub(occupied);
        let mut posted = 0;
        while u64::from(posted) < room
            && let Some(buffer) = self.pool.take()
        {
            self.queue
                .recv_buffer(buffer)
                .map_err(|refused| refused.error)?;
            posted += 1;
        }
        self.queue.ring()?;
        // An SRQ that is short of receives all the same would tell so at once, again and again.
        if !self.armed && occupied + u64::from(posted) >= u64::from(self.low) {
            self.queue.arm(self.low)?;
            self.armed = true;
        }
        Ok(posted)
    }

    /// Fills up if `event` says that the limit of this SRQ was reached. `false`: it says something else.
    ///
    /// # Errors
    /// As [`Refill::top_up`].
    pub fn on_event(&mut self, event: &AsyncEvent) -> Result<bool, RefillError> {
        let AsyncEvent::Srq {
            kind: IBV_EVENT_SRQ_LIMIT_REACHED,
            srq,
        } = *event
        else {
            return Ok(false);
        };
        if self.queue.srq() != Some(srq) {
            return Ok(false);
        }
        self.armed = false;
        self.top_up()?;
        Ok(true)
    }

    /// The message that a completion brings. `None`: it is not of this queue, or the receive failed or was flushed; its buffer
    /// is in the pool again then.
    pub fn take(&mut self, done: &Completion) -> Option<Message> {
        let buffer = self.queue.take_buffer(done)?;
        let success = done.outcome.ok()?;
        // An RDMA WRITE with immediate brings nothing into the buffer.
        let end = if success.by_write { 0 } else { buffer.len() };
        let begin = end.saturating_sub(success.byte_len as usize);
        let mut payload = begin..end;
        let mut connection = Ok(None);
        if self.header && !success.by_write {
            connection = ConnectionId::split(&buffer[payload.clone()]).map(|(id, rest)| {
                payload.start = payload.end - rest.len();
                Some(id)
            });
        }
        Some(Message {
            buffer,
            payload,
            qp_num: done.qp_num,
            imm: success.imm,
            connection,
        })
    }

    /// The queue.
    pub fn queue(&self) -> &Q {
        &self.queue
    }

    /// The queue, for what else there is to do with it.
    pub fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// The pool.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Gives queue and pool back.
    pub fn into_parts(self) -> (Q, BufferPool) {
        (self.queue, self.pool)
    }
}

impl<Q: Receives> fmt::Debug for Refill<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Refill(at least {} of {} receives from {:?})",
            self.low,
            self.queue.depth(),
            self.pool
        )
    }
}

/// A message that came in. Its bytes are those that the sender sent, without what was in front of them. Dropping it gives
/// its buffer back to the pool.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    buffer: Buffer,
    payload: Range<usize>,
    /// Number of the QP that it came by.
    pub qp_num: u32,
    /// Immediate data that came with it, in host byte order.
    pub imm: Option<u32>,
    /// The connection that it names; `Ok(None)` without [`Refill::with_header`]. An error: it has no such header, and its
    /// bytes are all that came.
    pub connection: Result<Option<ConnectionId>, BadHeader>,
}

impl Message {
    /// The whole buffer, as long as what came into it.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.payload.clone()]
    }
}
