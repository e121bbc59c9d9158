//! RoCEv2 over UDP sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::core::rng::Rng;
use crate::verbs::sys;
use crate::wire::ROCE_PORT;

/// Sockets of one node: one per address, all on UDP port 4791.
///
/// They do not block. They are not connected and do not fragment, so that Linux sends every
/// datagram with IPv4 identification 0, which the ICRC covers.
#[derive(Debug)]
pub struct UdpLink {
    sockets: Vec<Socket>,
}

#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    local: SocketAddr,
}

/// Why a node cannot use an address.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Another process, or another node of this one, has the address.
    #[error(
        "UDP port 4791 of {address} is in use: choose another address, or end the process that has it (`ss -lunp sport = :4791` names it)"
    )]
    InUse {
        /// The address.
        address: IpAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The address is not one of this machine.
    #[error(
        "{address} is not an address of this machine: choose one that `ip addr` lists, or any 127.x.y.z"
    )]
    NotLocal {
        /// The address.
        address: IpAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The address is unspecified, multicast or broadcast: no node can be it.
    #[error("{address} cannot be the address of a node: choose a unicast address")]
    NotUnicast {
        /// The address.
        address: IpAddr,
    },
    /// None of the random addresses that were tried is free.
    #[error("{tries} random addresses in 127.0.0.0/8 are all in use: choose one yourself")]
    NoFreeLoopback {
        /// How many were tried.
        tries: u32,
    },
    /// The system refused something else.
    #[error("{step} for {address}: {source}")]
    System {
        /// The address.
        address: IpAddr,
        /// What was refused.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// What became of a datagram that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The system has it.
    Done,
    /// The socket's buffer is full: try again when it is writable.
    Later,
    /// The system refused it; for the transport it is lost like any other. The cause may pass.
    Dropped(Errno),
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its bytes in the buffer.
    pub len: usize,
    /// Who sent it.
    pub src: SocketAddr,
    /// It was longer than the buffer, and the rest is lost: not a frame.
    pub truncated: bool,
}

impl UdpLink {
    /// Bytes that a socket's buffers should hold; the system may allow fewer.
    const BUFFER: usize = 8 << 20;

    /// Binds one socket per address.
    ///
    /// # Errors
    /// [`LinkError`], naming the address.
    pub fn bind(addresses: &[IpAddr]) -> Result<UdpLink, LinkError> {
        let sockets = addresses.iter().map(|&address| Socket::bind(address));
        Ok(UdpLink {
            sockets: sockets.collect::<Result<_, _>>()?,
        })
    }

    /// Binds one socket to a free address in 127.0.0.0/8, drawn from `rng`.
    ///
    /// # Errors
    /// [`LinkError::NoFreeLoopback`] after 64 draws, or another [`LinkError`] at once if it is not
    /// that an address is in use.
    pub fn bind_loopback(rng: &mut Rng) -> Result<UdpLink, LinkError> {
        const TRIES: u32 = 64;
        for _ in 0..TRIES {
            match UdpLink::bind(&[random_loopback(rng).into()]) {
                Err(LinkError::InUse { .. }) => {}
                other => return other,
            }
        }
        Err(LinkError::NoFreeLoopback { tries: TRIES })
    }

    /// Takes in the sockets of `other`, after its own.
    pub fn join(&mut self, other: UdpLink) {
        self.sockets.extend(other.sockets);
    }

    /// Address and port of each socket, in order.
    pub fn locals(&self) -> impl ExactSizeIterator<Item = SocketAddr> + '_ {
        self.sockets.iter().map(|socket| socket.local)
    }

    /// Each socket's descriptor, in order, to wait on.
    pub fn fds(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|socket| socket.fd.as_fd())
    }

    /// Sends `datagram` from socket number `from`, which must be one of [`locals`](Self::locals).
    pub fn send(&self, from: usize, dst: SocketAddr, datagram: &[u8]) -> Sent {
        let fd = &self.sockets[from].fd;
        loop {
            match rustix::net::sendto(fd, datagram, SendFlags::NOSIGNAL, &dst) {
                Ok(_) => return Sent::Done,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Sent::Later,
                Err(why) => return Sent::Dropped(why),
            }
        }
    }

    /// Receives one datagram on socket number `at`; `None` if there is none.
    pub fn recv(&self, at: usize, buffer: &mut [u8]) -> Option<Received> {
        let fd = &self.sockets[at].fd;
        let (len, full, src) = loop {
            match rustix::net::recvfrom(fd, &mut *buffer, RecvFlags::TRUNC) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        };
        Some(Received {
            len,
            src: SocketAddr::try_from(src?).ok()?,
            truncated: full > len,
        })
    }
}

impl Socket {
    fn bind(address: IpAddr) -> Result<Socket, LinkError> {
        let address = address.to_canonical();
        let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
        if address.is_unspecified() || address.is_multicast() || broadcast {
            return Err(LinkError::NotUnicast { address });
        }
        let refused = |step| {
            move |why: Errno| {
                let source = why.into();
                match why {
                    Errno::ADDRINUSE => LinkError::InUse { address, source },
                    Errno::ADDRNOTAVAIL => LinkError::NotLocal { address, source },
                    _ => LinkError::System {
                        address,
                        step,
                        source,
                    },
                }
            }
        };
        let family = match address {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)
            .map_err(refused("opening a socket"))?;
        match address {
            IpAddr::V4(_) => sockopt::set_ip_mtu_discover(&fd, Ipv4PathMtuDiscovery::DO),
            IpAddr::V6(_) => sockopt::set_ipv6_v6only(&fd, true)
                .and_then(|()| sockopt::set_ipv6_mtu_discover(&fd, Ipv6PathMtuDiscovery::DO)),
        }
        .map_err(refused("forbidding fragments"))?;
        if address.is_ipv6() {
            // rxe sends no UDP checksums. Where the system does not know the flag, only such
            // peers go unheard.
            let _ = sys::set_udp_flag(fd.as_fd(), sys::UDP_NO_CHECK6_RX);
        }
        // A big buffer is a favour: what the system allows must do.
        let _ = sockopt::set_socket_recv_buffer_size_force(&fd, UdpLink::BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&fd, UdpLink::BUFFER));
        let _ = sockopt::set_socket_send_buffer_size_force(&fd, UdpLink::BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&fd, UdpLink::BUFFER));
        let local = SocketAddr::new(address, ROCE_PORT);
        rustix::net::bind(&fd, &local).map_err(refused("binding UDP port 4791"))?;
        Ok(Socket { fd, local })
    }
}

/// An address in 127.0.0.0/8 that is neither 127.0.0.1 nor looks like a network or a broadcast.
pub(super) fn random_loopback(rng: &mut Rng) -> Ipv4Addr {
    loop {
        let [_, x, y, z] = rng.next_u32().to_be_bytes();
        if z != 0 && z != 255 && (x, y, z) != (0, 0, 1) {
            return Ipv4Addr::new(127, x, y, z);
        }
    }
}
