//! An exchange over a TCP connection, and a control channel afterwards.
//!
//! Each message is a frame: one byte of kind (1 swap, 2 barrier, 3 message), four bytes of length (network order), then the
//! body. Every step ends within the limit of the channel; no message is longer than [`MAX_MESSAGE`].
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

pub use super::MAX_MESSAGE;
use super::frames::{Frames, Kind, Stream, after};
use super::{Exchange, ExchangeError};

/// Named in an error whose address is not known.
pub(crate) const UNRESOLVED: &str = "an address that does not resolve";

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
    let mut text = String::from(UNRESOLVED);
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
    let mut text = String::from(UNRESOLVED);
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

/// All that an address resolves to: one at least.
pub(crate) fn resolve(address: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
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

    /// Takes the next peer if one has come; `None`: nobody has. `limit` bounds every later step of the channel.
    ///
    /// # Errors
    /// The system refused.
    pub(crate) fn try_accept(&self, limit: Duration) -> Result<Option<Channel>, ExchangeError> {
        let accepted = self.socket.accept();
        match accepted.and_then(|(stream, address)| Channel::new(stream, address, limit)) {
            Ok(channel) => Ok(Some(channel)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {
                    Ok(None)
                }
                _ => Err(self.refused(error)),
            },
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

/// A connected socket that does not block.
#[derive(Debug)]
struct Socket(TcpStream);

impl Stream for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn wait(&mut self, read: bool, write: bool, until: Instant) -> io::Result<bool> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, read);
        flags.set(PollFlags::OUT, write);
        wait(self.0.as_fd(), flags, until)
    }

    fn is_over(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(found) => Ok(found > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// A connection to one peer.
///
/// After the connecting is done it serves as the control channel: a peer that dies closes it, which
/// [`Channel::check`] and the readiness of its file descriptor tell at once.
#[derive(Debug)]
pub struct Channel {
    frames: Frames<Socket>,
    peer: SocketAddr,
}

impl Channel {
    /// A channel over a socket that is connected.
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr, limit: Duration) -> io::Result<Channel> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let frames = Frames::new(Socket(stream), peer.to_string(), limit);
        Ok(Channel { frames, peer })
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// This end's address.
    ///
    /// # Errors
    /// The system cannot tell it (getsockname(2)).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.frames.stream.0.local_addr()
    }

    /// Sets the limit of every later step.
    pub fn set_limit(&mut self, limit: Duration) {
        self.frames.limit = limit;
    }

    /// Bytes sent so far, frame headers included.
    pub fn bytes_sent(&self) -> u64 {
        self.frames.sent
    }

    /// Bytes received so far, frame headers included.
    pub fn bytes_received(&self) -> u64 {
        self.frames.received
    }

    /// Sends one message of the application, at most [`MAX_MESSAGE`] bytes.
    ///
    /// # Errors
    /// The message is too long, the peer is gone, or takes nothing within the limit. A message that is half sent by then is not
    /// lost: the next step of this end sends its rest first.
    pub fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        self.frames.send(Kind::Message, message)
    }

    /// Receives one message of the application, within the limit of the channel.
    ///
    /// # Errors
    /// The peer is gone, silent, or does something else.
    pub fn recv(&mut self) -> Result<Vec<u8>, ExchangeError> {
        self.frames.recv(Kind::Message)
    }

    /// Receives one message if it has arrived, without waiting. `None`: not yet, and the peer is still there.
    ///
    /// # Errors
    /// The peer is gone, or did something else.
    pub fn try_recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        self.frames.try_recv(Kind::Message)
    }

    /// Whether the peer is still there, as far as this host knows. Does not wait.
    ///
    /// # Errors
    /// The peer closed the channel or reset it, as the system does for a process that was killed.
    pub fn check(&mut self) -> Result<(), ExchangeError> {
        self.frames.check()
    }
}

impl AsFd for Channel {
    /// Readable when something arrived, and when the peer is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.frames.stream.0.as_fd()
    }
}

impl Exchange for Channel {
    fn swap_bytes(&mut self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        self.frames.swap(mine)
    }

    fn barrier(&mut self) -> Result<(), ExchangeError> {
        self.frames.barrier()
    }
}

#[cfg(test)]
mod tests;
