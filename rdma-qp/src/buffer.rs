//! Buffers that move into a queue and come back with their completion.
//!
//! While the application has a [`Buffer`], it is an ordinary slice of bytes: no device touches it. Posting moves it into the
//! queue; when the request has ended, by success, error, flush or reset, it can be had back. So nothing is copied, no
//! reference to memory is held that a device may write to, and nothing can be freed too early.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::attach::Attachments;
use crate::cq::{Completion, Ticket};
use crate::mr::MrSlice;
use crate::pd::{Pd, RegisterError};
use crate::qp::{Op, PostError, PostFlags, Qp, RecvQueue, Transport};
use crate::raw::chunks::{Chunk, Chunks};
use crate::raw::memory::Memory;
use crate::wr_id::QueueKind;

/// Buffers of one size in one registered region.
///
/// Dropping it is fine at any time: the region lives as long as any of its buffers.
pub struct BufferPool {
    chunks: Arc<Chunks>,
}

impl BufferPool {
    /// A buffer that nobody has, with all its bytes; they are what its last user left. `None`: all are taken.
    pub fn take(&self) -> Option<Buffer> {
        let chunk = self.chunks.take()?;
        Some(Buffer {
            len: chunk.size(),
            chunk,
        })
    }

    /// Bytes of each buffer.
    pub fn size(&self) -> usize {
        self.chunks.size()
    }

    /// Buffers that there are.
    pub fn count(&self) -> usize {
        self.chunks.count()
    }

    /// Buffers that nobody has.
    pub fn free(&self) -> usize {
        self.chunks.free()
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "BufferPool({} of {} buffers of {} bytes are free)",
            self.free(),
            self.count(),
            self.size()
        )
    }
}

impl Pd {
    /// Registers memory for `count` buffers of `size` bytes each. Peers have no right to it.
    ///
    /// ```
    /// # use rdma_qp::{op, Device, PostFlags};
    /// # use std::time::Duration;
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// # let mut qp = pd.rc(&cq).create()?;
    /// # let gid = device.port(1)?.best_gid()?;
    /// # qp.endpoint(gid)?;
    /// # qp.init()?;
    /// let pool = pd.buffers(16, 4096)?;
    /// let mut buffer = pool.take().expect("a free buffer");
    /// buffer[..5].copy_from_slice(b"hello");
    /// qp.recv_buffer(buffer)?;
    /// assert_eq!(pool.free(), 15);
    /// qp.to(rdma_qp::ToErr)?;
    /// let done = cq.wait_any(Duration::from_secs(5))?.expect("a flush");
    /// let buffer = qp.take_buffer(&done).expect("it comes back, however the request ended");
    /// assert_eq!(&buffer[..5], b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn buffers(&self, count: usize, size: usize) -> Result<BufferPool, RegisterError> {
        let memory = size.checked_mul(count).and_then(Memory::try_zeroed);
        let memory = memory.ok_or(RegisterError::NoMemory { count, size })?;
        let region = self.register_owned(memory)?;
        Ok(BufferPool {
            chunks: Chunks::new(region, size),
        })
    }
}

/// A buffer of a [`BufferPool`]: while the application has it, ordinary bytes. Dropping it gives it back to the pool.
pub struct Buffer {
    chunk: Chunk,
    len: usize,
}

impl Buffer {
    /// Bytes that there is room for.
    pub fn capacity(&self) -> usize {
        self.chunk.size()
    }

    /// Makes it `len` bytes long, at most its capacity: so much is sent of it, or received into it.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    pub(crate) fn slice(&self) -> [MrSlice<'_>; 1] {
        match self.chunk.slice(self.len) {
            Some(local) => [MrSlice::from_local(local)],
            None => unreachable!("the length is at most the chunk's"),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.chunk.bytes()[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.chunk.bytes_mut()[..self.len]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len, self.capacity())
    }
}

/// A buffer was not posted. It is in the error.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct BufferNotPosted {
    /// The buffer. `None`: it was the last of a list of which the device refused a part; it is with the others, see
    /// [`Qp::take_ended_buffer`].
    pub buffer: Option<Buffer>,
    /// Why.
    #[source]
    pub error: PostError,
}

/// The buffers that the two queues of a QP have.
pub(crate) struct PostedBuffers {
    send: Posted,
    recv: Posted,
}

/// The buffers that a queue has. None of them is read, given away or dropped before the queue has let go of it.
struct Posted(Option<Attachments<Buffer>>);

impl PostedBuffers {
    pub(crate) fn new(send: Attachments<Buffer>, recv: Attachments<Buffer>) -> PostedBuffers {
        PostedBuffers {
            send: Posted(Some(send)),
            recv: Posted(Some(recv)),
        }
    }

    /// Sets aside the buffers of requests that were refused.
    pub(crate) fn settle(&mut self) {
        for posted in [&mut self.send, &mut self.recv] {
            if let Some(posted) = posted.0.as_mut() {
                posted.settle();
            }
        }
    }

    fn of(&mut self, queue: QueueKind) -> Option<&mut Attachments<Buffer>> {
        match queue {
            QueueKind::Send => self.send.0.as_mut(),
            _ => self.recv.0.as_mut(),
        }
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        // A QP that could not be destroyed goes on using them.
        if let Some(posted) = self.0.take()
            && !posted.is_over()
        {
            std::mem::forget(posted);
        }
    }
}

impl<T: Transport> Qp<T> {
    /// Posts a send request whose local side is `buffer`, which moves into the queue.
    ///
    /// # Errors
    /// As [`Qp::post`].
    pub fn post_buffer<O: Op<T>>(
        &mut self,
        op: O,
        buffer: Buffer,
        flags: PostFlags,
    ) -> Result<Ticket, BufferNotPosted> {
        let posted = self.post(op, buffer.slice(), flags);
        self.keep_buffer(QueueKind::Send, posted, buffer)
    }

    /// Posts a receive into `buffer`, which moves into the queue.
    ///
    /// # Errors
    /// As [`Qp::recv`].
    pub fn recv_buffer(&mut self, buffer: Buffer) -> Result<Ticket, BufferNotPosted>
    where
        T: RecvQueue,
    {
        let posted = self.recv(buffer.slice());
        self.keep_buffer(QueueKind::Recv, posted, buffer)
    }

    fn keep_buffer(
        &mut self,
        queue: QueueKind,
        posted: Result<Ticket, PostError>,
        buffer: Buffer,
    ) -> Result<Ticket, BufferNotPosted> {
        let ticket = match posted {
            Ok(ticket) => ticket,
            Err(error) => {
                return Err(BufferNotPosted {
                    buffer: Some(buffer),
                    error,
                });
            }
        };
        if let Some(posted) = self.buffers.of(queue)
            && let Err(buffer) = posted.attach(&ticket, buffer)
        {
            unreachable!("each post is the latest of its own queue: {buffer:?}");
        }
        Ok(ticket)
    }

    /// Takes the buffer of the request that `done` is of; of a receive that succeeded, it is as long as the message (and
    /// begins, on UD, with the 40 bytes that are the device's). `None`: the request had none, or it was taken.
    pub fn take_buffer(&mut self, done: &Completion) -> Option<Buffer> {
        let mut buffer = self.buffers.of(done.queue)?.take(&done.ticket)?;
        if done.queue == QueueKind::Recv
            && let Ok(success) = &done.outcome
            && !success.by_write
        {
            buffer.set_len(success.byte_len as usize + T::RECV_HEADER as usize);
        }
        Some(buffer)
    }

    /// The mark below which the device has let go of every receive.
    pub(crate) fn receives_let_go(&mut self) -> u64 {
        let posted = self.buffers.of(QueueKind::Recv);
        posted.map_or(0, |posted| posted.let_go())
    }

    /// Gives buffers of receives back to their pool of which nothing was told and nothing will be: of those that were refused when
    /// the doorbell was rung, and of those that a reset threw away since [`Qp::receives_let_go`] was `from`.
    pub(crate) fn give_back_receives(&mut self, from: u64) {
        if let Some(posted) = self.buffers.of(QueueKind::Recv) {
            posted.drop_untold(from);
        }
    }

    /// Takes the buffer of the oldest request of a queue that has ended, whether or not its completion was looked at: of an
    /// unsignaled send, of what a reset threw away, of what was refused when the doorbell was rung. `None`: there is none.
    pub fn take_ended_buffer(&mut self, queue: QueueKind) -> Option<Buffer> {
        self.buffers.of(queue)?.take_ended()
    }
}
