//! Frames, and the buffers that they travel in.

use std::net::SocketAddr;

/// The fields of the IP header that the sender chooses for each packet.
///
/// The ICRC covers none of them: routers may change them.
///
/// ```
/// use rdma_soft::link::IpFields;
///
/// let usual = IpFields::default();
/// assert_eq!((usual.traffic_class, usual.hop_limit, usual.flow_label), (0, 64, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpFields {
    /// Traffic class, which IPv4 calls type of service: six bits of DSCP, two of congestion
    /// notification.
    pub traffic_class: u8,
    /// Hop limit, which IPv4 calls time to live.
    pub hop_limit: u8,
    /// Flow label of an IPv6 header, 20 bits; IPv4 has none.
    pub flow_label: u32,
}

impl Default for IpFields {
    /// What a Linux socket sends of which nothing was asked.
    fn default() -> IpFields {
        IpFields {
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }
}

/// One datagram: BTH..padding and ICRC, with the addresses it travels between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Address and UDP port of the sender.
    pub src: SocketAddr,
    /// Address and UDP port of the receiver.
    pub dst: SocketAddr,
    /// What else the IP header says.
    pub ip: IpFields,
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
