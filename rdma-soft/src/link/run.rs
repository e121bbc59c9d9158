//! Runs: datagrams that leave with one call.

use std::net::SocketAddr;

use super::{IpFields, UdpLink};
use crate::wire::icrc::{self, Flow};

/// The way that a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The number of the address that it leaves from.
    pub from: usize,
    /// Address and UDP port of the sender.
    pub src: SocketAddr,
    /// Address and UDP port of the receiver.
    pub dst: SocketAddr,
    /// What else the IP header says.
    pub ip: IpFields,
}

/// Datagrams that go the same way, one behind the other in one buffer, all of one size but for the last,
/// which may be shorter: what [`UdpLink::send_run`] takes.
///
/// ```
/// use rdma_soft::link::{IpFields, Run, Way};
///
/// let way = Way {
///     from: 0,
///     src: "127.0.0.2:4791".parse().unwrap(),
///     dst: "127.0.0.3:4791".parse().unwrap(),
///     ip: IpFields::default(),
/// };
/// let mut run = Run::new(64);
/// for len in [20, 20, 16] {
///     assert!(run.takes(&way, len));
///     run.room()[..len].fill(7);
///     run.push(way, len);
/// }
/// assert!(!run.takes(&way, 16), "the one before was shorter");
/// let (_, datagrams, count) = run.next().unwrap();
/// assert_eq!((datagrams.len(), count, run.segment()), (24 + 24 + 20, 3, 24));
/// ```
#[derive(Debug, Default)]
pub struct Run {
    bytes: Vec<u8>,
    way: Option<Way>,
    /// Bytes of each datagram but the last.
    segment: usize,
    /// What is left to be sent: `begin..end` of `bytes`.
    begin: usize,
    end: usize,
    /// Datagrams that were pushed.
    count: usize,
    /// They are sent one by one.
    singly: bool,
}

impl Run {
    /// An empty run that takes packets of up to `longest` bytes without the ICRC.
    pub fn new(longest: usize) -> Run {
        Run {
            bytes: vec![0; UdpLink::RUN_BYTES + longest + icrc::LEN],
            ..Run::default()
        }
    }

    /// A run of one datagram, whole with its ICRC.
    pub fn of_one(way: Way, datagram: Vec<u8>) -> Run {
        let len = datagram.len();
        Run {
            bytes: datagram,
            way: Some(way),
            segment: len,
            end: len,
            count: 1,
            ..Run::default()
        }
    }

    /// True if nothing is left to be sent.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Bytes of each datagram but the last, ICRC included.
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// True if a packet of `len` bytes that goes that way may be pushed behind those that are there.
    pub fn takes(&self, way: &Way, len: usize) -> bool {
        let len = len + icrc::LEN;
        if self.is_empty() {
            return true;
        }
        let full = self.end == self.count * self.segment;
        self.way.as_ref() == Some(way)
            && full
            && len <= self.segment
            && self.count < UdpLink::RUN_DATAGRAMS
            && self.end + len <= UdpLink::RUN_BYTES
    }

    /// Where the next packet is to be written, before it is pushed.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Appends the packet that was written to the first `len` bytes of [`room`](Run::room) (BTH to
    /// padding), which [`takes`](Run::takes) it, and adds its ICRC.
    pub fn push(&mut self, way: Way, len: usize) {
        let flow = flow(&way, self.count);
        let packet = &mut self.bytes[self.end..self.end + len + icrc::LEN];
        seal(&flow, packet);
        if self.count == 0 {
            (self.way, self.segment) = (Some(way), packet.len());
        }
        self.end += len + icrc::LEN;
        self.count += 1;
    }

    /// What is to be sent next, with the number of datagrams in it; `None` if nothing is left.
    pub fn next(&self) -> Option<(Way, &[u8], usize)> {
        let left = self.end - self.begin;
        let len = if self.singly {
            left.min(self.segment)
        } else {
            left
        };
        let way = self.way.filter(|_| len > 0)?;
        let datagrams = &self.bytes[self.begin..self.begin + len];
        Some((way, datagrams, len.div_ceil(self.segment)))
    }

    /// What [`next`](Run::next) gave was sent.
    pub fn sent(&mut self) {
        let sent = self.next().map_or(0, |(_, datagrams, _)| datagrams.len());
        self.begin += sent;
    }

    /// They go one by one from now on: each has the identification 0, and its ICRC says so.
    pub fn split(&mut self) {
        self.singly = true;
        if let Some(way) = &self.way {
            let flow = flow(way, 0);
            let left = &mut self.bytes[self.begin..self.end];
            left.chunks_mut(self.segment)
                .for_each(|datagram| seal(&flow, datagram));
        }
    }

    /// Its buffer.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Run {
            bytes: std::mem::take(&mut self.bytes),
            ..Run::default()
        };
    }
}

/// The flow of datagram number `at` of a run: Linux counts the identifications of what it cuts.
fn flow(way: &Way, at: usize) -> Flow {
    Flow {
        ip_id: at as u16,
        ..Flow::new(way.src, way.dst)
    }
}

/// Writes the ICRC into the last bytes of a datagram.
fn seal(flow: &Flow, datagram: &mut [u8]) {
    if let Some((packet, end)) = datagram.split_last_chunk_mut() {
        *end = icrc::icrc(flow, packet).to_le_bytes();
    }
}
