//! A supervised connection in a task.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Instant;

use ::tokio::io::unix::AsyncFd;

use super::{Happened, Probes, SuperviseError, Supervised};
use crate::cq::Armed;
use crate::errno::Errno;
use crate::qp::Rc;

/// What tokio watches.
struct Watched<C, T: Probes>(Supervised<C, T>);

impl<C, T: Probes> AsRawFd for Watched<C, T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// A [`Supervised`] connection in a task of tokio. Exists with the feature `tokio`; the runtime has its IO driver enabled.
///
/// ```
/// use rdma_qp::exchange::tcp;
/// use rdma_qp::supervise::{self, AsyncSupervised, Happened, Options, Supervised};
/// use rdma_qp::{Device, PostFlags, op};
///
/// type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
///
/// fn end(device: &Device, meeting: impl supervise::Meeting + 'static) -> Result<AsyncSupervised<u64>> {
///     let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(64)?);
///     let pool = pd.buffers(16, 64)?;
///     let qp = pd.rc(&cq).inline_data(64).create()?;
///     let link = Supervised::new(device, (qp, cq), meeting, Options::default(), move |qp| {
///         while let Some(buffer) = pool.take() {
///             qp.recv_buffer(buffer).map_err(|not| not.error)?;
///         }
///         Ok(())
///     })?;
///     Ok(AsyncSupervised::new(link)?)
/// }
///
/// async fn sends(mut link: AsyncSupervised<u64>) -> Result {
///     loop {
///         if link.get_ref().is_up() && link.get_ref().under_way() == 0 {
///             link.get_mut().post_inline(op::Send, b"hello", PostFlags::empty(), 7)?;
///         }
///         if let Happened::Done(message) = link.next().await? {
///             assert_eq!(message.context, 7);
///             return Ok(());
///         }
///     }
/// }
///
/// async fn receives(mut link: AsyncSupervised<u64>) -> Result<Vec<u8>> {
///     loop {
///         if let Happened::Received(done) = link.next().await? {
///             let buffer = link.get_mut().take_buffer(&done).ok_or("it was a buffer")?;
///             return Ok(buffer.to_vec());
///         }
///     }
/// }
///
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// runtime.block_on(async {
///     let device = Device::open_index(rdma_soft::verbs(), 0)?;
///     let listener = tcp::listen("127.0.0.1:0")?;
///     let sender = end(&device, supervise::connect(listener.local_addr()?))?;
///     let receiver = end(&device, supervise::listen(listener))?;
///     let sender = tokio::spawn(sends(sender));
///     assert_eq!(receives(receiver).await?, b"hello");
///     // Whether its acknowledgement arrives before the peer's end is gone is another question.
///     sender.abort();
///     Result::Ok(())
/// }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct AsyncSupervised<C = u64, T: Probes = Rc> {
    inner: AsyncFd<Watched<C, T>>,
}

impl<C, T: Probes> AsyncSupervised<C, T> {
    /// Takes a connection into the runtime of the present task.
    ///
    /// # Errors
    /// The system refused to watch its descriptor.
    ///
    /// # Panics
    /// There is no runtime, or it has no IO driver.
    pub fn new(link: Supervised<C, T>) -> io::Result<Self> {
        // Its successor is unsafe because a type might change its descriptor; this one has the same as long as it lives.
        #[allow(deprecated)]
        let inner = AsyncFd::new(Watched(link))?;
        Ok(AsyncSupervised { inner })
    }

    /// Waits until something happened. Dropping the future before it is ready loses nothing.
    ///
    /// # Errors
    /// As [`Supervised::poll`].
    pub async fn next(&mut self) -> Result<Happened<C>, SuperviseError> {
        loop {
            let link = self.get_mut();
            if let Some(happened) = link.poll(Instant::now())? {
                return Ok(happened);
            }
            if link.arm()? == Armed::Sleep {
                let watched = self.inner.readable_mut().await;
                // Forgotten before the next look: whatever comes after it is told again.
                watched.map_err(system)?.clear_ready();
            }
        }
    }

    /// The connection.
    pub fn get_ref(&self) -> &Supervised<C, T> {
        &self.inner.get_ref().0
    }

    /// The connection, to post.
    pub fn get_mut(&mut self) -> &mut Supervised<C, T> {
        &mut self.inner.get_mut().0
    }
}

fn system(error: io::Error) -> SuperviseError {
    SuperviseError::System(Errno::from_raw(error.raw_os_error().unwrap_or(5)))
}

impl<C, T: Probes> std::fmt::Debug for AsyncSupervised<C, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get_ref().fmt(f)
    }
}
