//! How the two ends of a supervised connection meet, again and again, without waiting.

use std::fmt;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::exchange::ExchangeError;
use crate::exchange::tcp::{self, Channel, Listener};

/// A message is a few hundred bytes, so a channel that takes none for so long is broken.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// Peers that were accepted and have not said anything.
const SILENT_PEERS: usize = 8;

/// What happened at a [`Meeting`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// There is a channel to the peer; one that was there before is closed.
    Met,
    /// A message came over the channel.
    Message(Vec<u8>),
    /// The channel broke, or none can be had.
    Lost(String),
}

/// A way to meet the peer, as often as needed, either of whose ends may be restarted: a channel that carries messages of some
/// hundred bytes in order, and that both ends see end. Nothing here waits.
///
/// [`connect`], [`connect_any`] and [`listen`] make one over TCP, [`carried`](super::carried) over what carries messages: a launcher,
/// MPI, a message service.
pub trait Meeting: Send {
    /// Looks for the peer from now on. What comes of it is told by [`Meeting::poll`].
    fn seek(&mut self);

    /// What happened next, if anything did.
    fn poll(&mut self) -> Option<Sign>;

    /// Sends a message over the channel.
    ///
    /// # Errors
    /// There is no channel, or it broke.
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError>;

    /// Closes the channel, if there is one, and looks for nobody.
    fn leave(&mut self);

    /// The descriptors that are ready when [`Meeting::poll`] has something to tell: each with whether it is to be writable,
    /// rather than readable.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, bool)> {
        Vec::new()
    }

    /// A number that changes whenever [`Meeting::descriptors`] does.
    fn generation(&self) -> u64 {
        0
    }

    /// How often to poll where descriptors do not tell everything.
    fn poll_every(&self) -> Option<Duration> {
        None
    }
}

impl<M: Meeting + ?Sized> Meeting for Box<M> {
    fn seek(&mut self) {
        (**self).seek();
    }
    fn poll(&mut self) -> Option<Sign> {
        (**self).poll()
    }
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        (**self).send(message)
    }
    fn leave(&mut self) {
        (**self).leave();
    }
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, bool)> {
        (**self).descriptors()
    }
    fn generation(&self) -> u64 {
        (**self).generation()
    }
    fn poll_every(&self) -> Option<Duration> {
        (**self).poll_every()
    }
}

/// Meets the peer at this address, where it listens.
///
/// ```
/// use rdma_qp::supervise::{Meeting, Sign, connect};
/// // Nobody is there:
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// drop(listener);
/// let mut meeting = connect(address);
/// meeting.seek();
/// let sign = loop {
///     if let Some(sign) = meeting.poll() {
///         break sign;
///     }
/// };
/// assert!(matches!(sign, Sign::Lost(why) if why.contains("refused")));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn connect(address: SocketAddr) -> Connect {
    Connect::new(vec![address])
}

/// Meets the peer at one of these addresses: each attempt tries them in turn, beginning with the one where the peer was met
/// last. A host name mostly stands for several, `localhost` for `::1` and `127.0.0.1`.
///
/// A name is looked up here and never again, since a [`Meeting`] does not wait, and a look-up may.
///
/// ```
/// use rdma_qp::supervise::{Meeting, Sign, connect_any};
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let mut meeting = connect_any(("localhost", listener.local_addr()?.port()))?;
/// meeting.seek();
/// let sign = loop {
///     if let Some(sign) = meeting.poll() {
///         break sign;
///     }
/// };
/// assert_eq!(sign, Sign::Met);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The name does not resolve, or to no address.
pub fn connect_any(addresses: impl ToSocketAddrs) -> Result<Connect, ExchangeError> {
    let found = tcp::resolve(addresses).map_err(|source| ExchangeError::Address {
        action: "connect to",
        address: tcp::UNRESOLVED.to_owned(),
        hint: "",
        source,
    })?;
    Ok(Connect::new(found))
}

/// Meets the peer here, wherever it comes from. One listener is for one peer: a new one that introduces itself takes the place
/// of the one before.
pub fn listen(listener: Listener) -> Listen {
    Listen {
        listener,
        guests: Vec::new(),
        channel: None,
        said: None,
        generation: 0,
    }
}

/// A [`Meeting`] over TCP, see [`connect`] and [`connect_any`].
#[derive(Debug)]
pub struct Connect {
    /// One at least.
    addresses: Vec<SocketAddr>,
    /// Which of them is tried, or was met.
    at: usize,
    /// Why nobody was met at those that this attempt has tried.
    failures: Vec<String>,
    state: Connecting,
    generation: u64,
}

#[derive(Debug)]
enum Connecting {
    No,
    Failed(String),
    Begun(OwnedFd),
    Open(Box<Channel>),
}

impl Connect {
    fn new(addresses: Vec<SocketAddr>) -> Connect {
        Connect {
            addresses,
            at: 0,
            failures: Vec::new(),
            state: Connecting::No,
            generation: 0,
        }
    }

    fn set(&mut self, state: Connecting) {
        self.state = state;
        self.generation += 1;
    }

    fn address(&self) -> SocketAddr {
        self.addresses[self.at]
    }

    /// Begins to connect to the next address that this attempt has not tried.
    fn begin(&mut self) {
        while self.failures.len() < self.addresses.len() {
            match socket_to(self.address()) {
                Ok(socket) => return self.set(Connecting::Begun(socket)),
                Err(errno) => self.not_reached(errno),
            }
        }
        let why = self.failures.join("; ");
        self.set(Connecting::Failed(why));
    }

    fn not_reached(&mut self, why: impl fmt::Display) {
        let address = self.address();
        (self.failures).push(format!("cannot connect to {address}: {why}"));
        self.turn();
    }

    /// It is the turn of the next address.
    fn turn(&mut self) {
        self.at = (self.at + 1) % self.addresses.len();
    }

    /// Goes on with connecting; true if there is a channel now.
    fn go_on(&mut self) -> Result<bool, String> {
        let told = |errno: rustix::io::Errno| errno.to_string();
        match &self.state {
            Connecting::Begun(socket) if connected(socket).map_err(told)? => {}
            _ => return Ok(false),
        }
        let Connecting::Begun(socket) = std::mem::replace(&mut self.state, Connecting::No) else {
            return Ok(false);
        };
        self.generation += 1;
        let (stream, address) = (TcpStream::from(socket), self.address());
        // Where nobody listens, a socket may come to be connected to itself (tcp(7), simultaneous open).
        if stream.local_addr().is_ok_and(|own| own == address) {
            return Err("nobody listens there".to_owned());
        }
        let channel = Channel::new(stream, address, SEND_LIMIT).map_err(|e| e.to_string())?;
        self.set(Connecting::Open(Box::new(channel)));
        Ok(true)
    }
}

/// A socket that is about to be connected.
fn socket_to(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Whether connecting has come to an end, and to which.
fn connected(socket: &OwnedFd) -> rustix::io::Result<bool> {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec::default()))? == 0 {
        return Ok(false);
    }
    sockopt::socket_error(socket)?.map(|()| true)
}

impl Meeting for Connect {
    fn seek(&mut self) {
        self.leave();
        self.failures.clear();
        self.begin();
    }

    fn poll(&mut self) -> Option<Sign> {
        match &mut self.state {
            Connecting::No => None,
            Connecting::Failed(why) => {
                let why = std::mem::take(why);
                self.set(Connecting::No);
                Some(Sign::Lost(why))
            }
            Connecting::Open(channel) => match channel.try_recv() {
                Ok(message) => message.map(Sign::Message),
                Err(error) => {
                    self.set(Connecting::No);
                    Some(Sign::Lost(error.to_string()))
                }
            },
            Connecting::Begun(_) => {
                while let Connecting::Begun(_) = self.state {
                    match self.go_on() {
                        Ok(true) => return Some(Sign::Met),
                        Ok(false) => return None,
                        Err(why) => {
                            self.not_reached(why);
                            self.begin();
                        }
                    }
                }
                self.poll()
            }
        }
    }

    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        match &mut self.state {
            Connecting::Open(channel) => channel.send(message),
            _ => Err(no_channel(self.address())),
        }
    }

    fn leave(&mut self) {
        // An address that does not answer leaves the next attempt to the others.
        if let Connecting::Begun(_) = self.state {
            self.turn();
        }
        self.set(Connecting::No);
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, bool)> {
        match &self.state {
            Connecting::No | Connecting::Failed(_) => Vec::new(),
            Connecting::Begun(socket) => vec![(socket.as_fd(), true)],
            Connecting::Open(channel) => vec![(channel.as_fd(), false)],
        }
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn poll_every(&self) -> Option<Duration> {
        // Told at once, and by no descriptor.
        matches!(self.state, Connecting::Failed(_)).then_some(Duration::ZERO)
    }
}

fn no_channel(peer: impl ToString) -> ExchangeError {
    ExchangeError::PeerLost {
        peer: peer.to_string(),
        reason: "there is no channel".to_owned(),
    }
}

/// A [`Meeting`] over TCP, see [`listen`].
#[derive(Debug)]
pub struct Listen {
    listener: Listener,
    /// They came, and have not introduced themselves.
    guests: Vec<Channel>,
    channel: Option<Channel>,
    /// What the peer introduced itself with.
    said: Option<Vec<u8>>,
    generation: u64,
}

impl Listen {
    /// Lets in whoever waits. A channel counts when its peer has introduced itself: whatever else may knock disturbs nobody.
    fn look_around(&mut self) -> Option<Sign> {
        loop {
            match self.listener.try_accept(SEND_LIMIT) {
                Ok(None) => break,
                Ok(Some(guest)) => {
                    if self.guests.len() == SILENT_PEERS {
                        self.guests.remove(0);
                    }
                    self.guests.push(guest);
                    self.generation += 1;
                }
                Err(error) => {
                    tracing::warn!(%error, "a peer could not be let in");
                    break;
                }
            }
        }
        let mut at = 0;
        while let Some(guest) = self.guests.get_mut(at) {
            match guest.try_recv() {
                Ok(None) => at += 1,
                Ok(Some(message)) => {
                    self.generation += 1;
                    self.said = Some(message);
                    self.channel = Some(self.guests.remove(at));
                    return Some(Sign::Met);
                }
                Err(_) => {
                    self.generation += 1;
                    self.guests.remove(at);
                }
            }
        }
        None
    }
}

impl Meeting for Listen {
    fn seek(&mut self) {}

    fn poll(&mut self) -> Option<Sign> {
        if let Some(message) = self.said.take() {
            return Some(Sign::Message(message));
        }
        if let Some(channel) = &mut self.channel {
            match channel.try_recv() {
                Ok(Some(message)) => return Some(Sign::Message(message)),
                Ok(None) => {}
                Err(error) => {
                    self.leave();
                    return Some(Sign::Lost(error.to_string()));
                }
            }
        }
        self.look_around()
    }

    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        match &mut self.channel {
            Some(channel) => channel.send(message),
            None => Err(no_channel("that was to come")),
        }
    }

    fn leave(&mut self) {
        (self.channel, self.said) = (None, None);
        self.generation += 1;
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, bool)> {
        let channels = self.guests.iter().chain(&self.channel);
        let channels = channels.map(|channel| (channel.as_fd(), false));
        channels.chain([(self.listener.as_fd(), false)]).collect()
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn poll_every(&self) -> Option<Duration> {
        // What the peer introduced itself with is off the socket.
        self.said.is_some().then_some(Duration::ZERO)
    }
}
