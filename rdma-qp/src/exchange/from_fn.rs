//! An exchange out of what a program has already.

use std::error::Error;
use std::fmt;

use super::{Exchange, ExchangeError};

/// What the functions of [`from_fn`] may fail with.
type BoxError = Box<dyn Error + Send + Sync>;

/// An exchange out of two functions, for MPI, PMIx, a launcher, files, a message queue: `swap` gives the peer some bytes
/// and returns the bytes that the peer gave, `barrier` returns when the peer has called it too.
///
/// How long they may wait is the functions' affair: let them end with an error after a time, or a peer that died makes them
/// wait for ever. Their errors come back as [`ExchangeError::Other`]. Where bytes are left under a key (PMIx, files), take a
/// new key for each swap, such as a count: both ends swap in the same order.
///
/// ```
/// use rdma_qp::exchange::{Exchange, from_fn};
/// use std::sync::{Arc, Barrier, mpsc};
/// use std::time::Duration;
///
/// // The program's own means: here a queue in each direction, and a barrier.
/// let (to_b, from_a) = mpsc::channel::<Vec<u8>>();
/// let (to_a, from_b) = mpsc::channel::<Vec<u8>>();
/// let both = Arc::new(Barrier::new(2));
/// let limit = Duration::from_secs(5);
///
/// let there = both.clone();
/// let peer = std::thread::spawn(move || {
///     let mut exchange = from_fn(
///         |mine| { to_a.send(mine.to_vec())?; Ok(from_a.recv_timeout(limit)?) },
///         || { there.wait(); Ok(()) },
///     );
///     let got = exchange.swap_bytes(b"of b")?;
///     exchange.barrier()?;
///     Ok::<_, rdma_qp::exchange::ExchangeError>(got)
/// });
/// let mut exchange = from_fn(
///     |mine| { to_b.send(mine.to_vec())?; Ok(from_b.recv_timeout(limit)?) },
///     || { both.wait(); Ok(()) },
/// );
/// assert_eq!(exchange.swap_bytes(b"of a")?, b"of b");
/// exchange.barrier()?;
/// assert_eq!(peer.join().unwrap()?, b"of a");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn from_fn<S, B>(swap: S, barrier: B) -> FromFn<S, B>
where
    S: FnMut(&[u8]) -> Result<Vec<u8>, BoxError>,
    B: FnMut() -> Result<(), BoxError>,
{
    FromFn { swap, barrier }
}

/// An exchange out of two functions, see [`from_fn`].
pub struct FromFn<S, B> {
    swap: S,
    barrier: B,
}

impl<S, B> Exchange for FromFn<S, B>
where
    S: FnMut(&[u8]) -> Result<Vec<u8>, BoxError>,
    B: FnMut() -> Result<(), BoxError>,
{
    fn swap_bytes(&mut self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        (self.swap)(mine).map_err(ExchangeError::Other)
    }

    fn barrier(&mut self) -> Result<(), ExchangeError> {
        (self.barrier)().map_err(ExchangeError::Other)
    }
}

impl<S, B> fmt::Debug for FromFn<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}
