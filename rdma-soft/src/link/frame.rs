//! Frames, and the buffers that they travel in.

use std::net::SocketAddr;

/// One datagram: BTH..padding and ICRC, with the addresses it travels between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Address and UDP port of the sender.
    pub src: SocketAddr,
    /// Address and UDP port of the receiver.
    pub dst: SocketAddr,
    /// The datagram.
    pub bytes: Vec<u8>,
}

/// Buffers of frames that have been sent, to be used again.
///
/// ```
/// use rdma_soft::link::Pool;
///
/// let mut pool = Pool::default();
/// let mut buffer = pool.take();
/// buffer.extend_from_slice(b"a frame");
/// pool.give(buffer);
/// assert!(pool.take().is_empty());
/// ```
#[derive(Debug, Default)]
pub struct Pool {
    free: Vec<Vec<u8>>,
}

impl Pool {
    /// Buffers that the pool keeps; more are given back to the allocator.
    const MOST: usize = 256;

    /// An empty buffer, with the capacity of its former life.
    pub fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if self.free.len() < Pool::MOST {
            buffer.clear();
            self.free.push(buffer);
        }
    }
}
