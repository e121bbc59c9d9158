//! An exchange over a TCP connection, and a control channel afterwards.
//!
//! Each message is a frame: one byte of kind, four bytes of length (network order), then the body. Every step ends
//! within the limit of the channel; no frame is longer than [`MAX_MESSAGE`].
//!
//! ```
//! use rdma_qp::exchange::{Exchange, tcp};
//! use std::time::Duration;
//!
//! let limit = Duration::from_secs(5);
//! let listener = tcp::listen("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let passive = std::thread::spawn(move || {
//!     let mut peer = listener.accept(limit)?;
//!     let got = peer.swap_bytes(b"pong")?;
//!     peer.barrier()?;
//!     Ok::<_, rdma_qp::exchange::ExchangeError>(got)
//! });
//! let mut peer = tcp::connect(address, limit)?;
//! assert_eq!(peer.swap_bytes(b"ping")?, b"pong");
//! peer.barrier()?;
//! assert_eq!(passive.join().unwrap()?, b"ping");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Exchange, ExchangeError};

/// Longest message, in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;

const HEADER: usize = 5;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Swap = 1,
    Barrier = 2,
    Message = 3,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Swap => "swap",
            Kind::Barrier => "barrier",
            Kind::Message => "message",
        }
    }
}

/// Waits for peers.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

/// Listens on `address`; port 0 takes a free one.
///
/// # Errors
/// The address does not resolve, is not of this host, or is in use.
pub fn listen(address: impl ToSocketAddrs) -> Result<Listener, ExchangeError> {
    let mut text = String::from("an address that does not resolve");
    let bound = resolve(address).and_then(|addresses| {
        text = addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" or ");
        let socket = TcpListener::bind(&addresses[..])?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Listener { socket, address })
    });
    bound.map_err(|source| {
        let hint = match source.kind() {
            ErrorKind::AddrInUse => {
                "; another program has this port: choose another, or 0 for a free one"
            }
            ErrorKind::AddrNotAvailable => "; this host has no such address",
            ErrorKind::PermissionDenied => "; ports below 1024 are for privileged programs",
            _ => "",
        };
        ExchangeError::Address {
            action: "listen on",
            address: text,
            hint,
            source,
        }
    })
}

/// Connects to a listening peer. `limit` bounds this call and every later step of the channel, but not the system's
/// look-up of a host name: give a [`SocketAddr`] where that matters.
///
/// # Errors
/// The address does not resolve, nobody listens there, or no answer within `limit`.
pub fn connect(address: impl ToSocketAddrs, limit: Duration) -> Result<Channel, ExchangeError> {
    let mut text = String::from("an address that does not resolve");
    let until = after(limit);
    let connected = resolve(address).and_then(|addresses| {
        text = addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" or ");
        let mut last = io::Error::new(ErrorKind::NotFound, "no address");
        for (tried, &address) in addresses.iter().enumerate() {
            // An address that does not answer leaves the others their share of the time.
            let others = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let left = (until.saturating_duration_since(Instant::now()) / others)
                .max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return Ok((stream, address)),
                Err(error) => last = error,
            }
        }
        Err(last)
    });
    connected
        .and_then(|(stream, address)| Channel::new(stream, address, limit))
        .map_err(|source| {
            let hint = match source.kind() {
                ErrorKind::ConnectionRefused => {
                    "; nobody listens there: start the other side first"
                }
                ErrorKind::TimedOut => {
                    "; no answer: is the address right, and no firewall between?"
                }
                _ => "",
            };
            ExchangeError::Address {
                action: "connect to",
                address: text,
                hint,
                source,
            }
        })
}

/// The instant `limit` from now; a limit beyond what the clock can tell counts as a century.
fn after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit)
        .unwrap_or(now + Duration::from_secs(100 * 365 * 86400))
}

fn resolve(address: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<_> = address.to_socket_addrs()?.collect();
    if addresses.is_empty() {
        Err(io::Error::new(ErrorKind::NotFound, "no address"))
    } else {
        Ok(addresses)
    }
}

impl Listener {
    /// The address that is listened on.
    ///
    /// # Errors
    /// None at present; the system is asked when listening starts.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    /// Takes the next peer. `limit` bounds this call and every later step of the channel.
    ///
    /// # Errors
    /// Nobody came within `limit`, or the system refused.
    pub fn accept(&self, limit: Duration) -> Result<Channel, ExchangeError> {
        let until = after(limit);
        loop {
            match self.socket.accept() {
                Ok((stream, address)) => match Channel::new(stream, address, limit) {
                    Ok(channel) => return Ok(channel),
                    Err(source) => return Err(self.refused(source)),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !wait(self.socket.as_fd(), PollFlags::IN, until)
                        .map_err(|e| self.refused(e))?
                    {
                        let peer = format!("a peer on {}", self.address);
                        return Err(ExchangeError::TimedOut {
                            peer,
                            step: "accept",
                            limit,
                        });
                    }
                }
                // A peer that came and went before it was taken is no reason to stop waiting.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => return Err(self.refused(error)),
            }
        }
    }

    fn refused(&self, source: io::Error) -> ExchangeError {
        ExchangeError::Address {
            action: "accept on",
            address: self.address.to_string(),
            hint: "",
            source,
        }
    }
}

impl AsFd for Listener {
    /// Readable when a peer waits to be accepted.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until `fd` is ready. `false`: `until` has come, and the caller has looked at `fd` just before.
fn wait(fd: BorrowedFd<'_>, flags: PollFlags, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Also when it is ready: a peer that always has one byte more must not keep a step going.
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A connection to one peer.
///
/// After the connecting is done it serves as the control channel: a peer that dies closes it, which
/// [`Channel::check`] and the readiness of its file descriptor tell at once.
#[derive(Debug)]
pub struct Channel {
    stream: TcpStream,
    peer: SocketAddr,
    limit: Duration,
    sent: u64,
    received: u64,
    /// Bytes of frames that have arrived but were not asked for yet.
    inbox: Vec<u8>,
}

impl Channel {
    fn new(stream: TcpStream, peer: SocketAddr, limit: Duration) -> io::Result<Channel> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Channel {
            stream,
            peer,
            limit,
            sent: 0,
            received: 0,
            inbox: Vec::new(),
        })
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Sets the limit of every later step.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Bytes sent so far, frame headers included.
    pub fn bytes_sent(&self) -> u64 {
        self.sent
    }

    /// Bytes received so far, frame headers included.
    pub fn bytes_received(&self) -> u64 {
        self.received
    }

    /// Sends one message of the application, at most [`MAX_MESSAGE`] bytes.
    ///
    /// # Errors
    /// The message is too long, the peer is gone, or takes nothing within the limit.
    pub fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        self.send_frame(Kind::Message, message)
    }

    /// Receives one message of the application, within the limit of the channel.
    ///
    /// # Errors
    /// The peer is gone, silent, or does something else.
    pub fn recv(&mut self) -> Result<Vec<u8>, ExchangeError> {
        self.recv_frame(Kind::Message)
    }

    /// Receives one message if it has arrived, without waiting. `None`: not yet, and the peer is still there.
    ///
    /// # Errors
    /// The peer is gone, or did something else.
    pub fn try_recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        // What has arrived counts, even when the peer closed the channel after it.
        let state = self.fill();
        match self.take_frame(Kind::Message)? {
            Some(message) => Ok(Some(message)),
            None => state.map(|_| None),
        }
    }

    /// Whether the peer is still there, as far as this host knows. Does not wait.
    ///
    /// # Errors
    /// The peer closed the channel or reset it, as the system does for a process that was killed.
    pub fn check(&mut self) -> Result<(), ExchangeError> {
        self.fill().map(|_| ())
    }

    fn lost(&self, reason: impl ToString) -> ExchangeError {
        ExchangeError::PeerLost {
            peer: self.peer.to_string(),
            reason: reason.to_string(),
        }
    }

    fn send_frame(&mut self, kind: Kind, body: &[u8]) -> Result<(), ExchangeError> {
        if body.len() > MAX_MESSAGE {
            return Err(ExchangeError::TooLong {
                len: body.len(),
                max: MAX_MESSAGE,
            });
        }
        let mut frame = Vec::with_capacity(HEADER + body.len());
        frame.push(kind as u8);
        frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
        frame.extend_from_slice(body);
        let until = after(self.limit);
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(self.lost("it takes no more bytes")),
                Ok(n) => {
                    self.sent += n as u64;
                    rest = &rest[n..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Two ends that both send before they read must not wait for each other.
                    self.fill()?;
                    let mut flags = PollFlags::OUT;
                    flags.set(PollFlags::IN, self.room() > 0);
                    let ready = wait(self.stream.as_fd(), flags, until);
                    if !ready.map_err(|e| self.lost(e))? {
                        return Err(self.timed_out(kind));
                    }
                }
                Err(error) => return Err(self.lost(error)),
            }
        }
        Ok(())
    }

    fn recv_frame(&mut self, expected: Kind) -> Result<Vec<u8>, ExchangeError> {
        let until = after(self.limit);
        loop {
            let state = self.fill();
            if let Some(body) = self.take_frame(expected)? {
                return Ok(body);
            }
            state?;
            if !wait(self.stream.as_fd(), PollFlags::IN, until).map_err(|e| self.lost(e))? {
                return Err(self.timed_out(expected));
            }
        }
    }

    fn timed_out(&self, kind: Kind) -> ExchangeError {
        ExchangeError::TimedOut {
            peer: self.peer.to_string(),
            step: kind.name(),
            limit: self.limit,
        }
    }

    /// Bytes that the inbox still takes.
    fn room(&self) -> usize {
        (HEADER + MAX_MESSAGE).saturating_sub(self.inbox.len())
    }

    /// Takes what has arrived into the inbox, up to one frame of the greatest length; more stays with the system.
    fn fill(&mut self) -> Result<(), ExchangeError> {
        let mut chunk = [0u8; 4096];
        loop {
            let room = self.room().min(chunk.len());
            if room == 0 {
                return Ok(());
            }
            match self.stream.read(&mut chunk[..room]) {
                Ok(0) => return Err(self.lost("it closed the control channel")),
                Ok(n) => {
                    self.received += n as u64;
                    self.inbox.extend_from_slice(&chunk[..n]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error)),
            }
        }
    }

    /// Takes the first frame off the inbox, if all of it is there.
    fn take_frame(&mut self, expected: Kind) -> Result<Option<Vec<u8>>, ExchangeError> {
        let Some((&[kind, a, b, c, d], body)) = self.inbox.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        if kind != expected as u8 {
            let got = [Kind::Swap, Kind::Barrier, Kind::Message]
                .into_iter()
                .find(|k| *k as u8 == kind)
                .map_or_else(
                    || format!("frame of unknown kind {kind:#04x}"),
                    |k| k.name().to_owned(),
                );
            let peer = self.peer.to_string();
            return Err(ExchangeError::OutOfStep {
                peer,
                expected: expected.name(),
                got,
            });
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > MAX_MESSAGE {
            return Err(ExchangeError::TooLong {
                len,
                max: MAX_MESSAGE,
            });
        }
        let Some(body) = body.get(..len) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.inbox.drain(..HEADER + len);
        Ok(Some(body))
    }
}

impl AsFd for Channel {
    /// Readable when something arrived, and when the peer is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Exchange for Channel {
    fn swap_bytes(&mut self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        self.send_frame(Kind::Swap, mine)?;
        self.recv_frame(Kind::Swap)
    }

    fn barrier(&mut self) -> Result<(), ExchangeError> {
        self.send_frame(Kind::Barrier, &[])?;
        self.recv_frame(Kind::Barrier).map(|_| ())
    }
}

#[cfg(test)]
mod tests;
