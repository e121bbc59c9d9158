//! RoCEv2 over UDP sockets.

mod socket;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::IpFields;
use crate::core::rng::Rng;
use crate::verbs::sys;
use crate::wire::ROCE_PORT;
#[cfg(test)]
pub(in crate::link) use socket::find_interface;
pub(crate) use socket::interface_mtu;
use socket::{Refusal, Socket};

/// Sockets of one node: one per address, all on UDP port 4791; and one for each group that it joined
/// at a port.
///
/// They do not block. They are not connected and do not fragment, so that Linux sends every
/// datagram with IPv4 identification 0, which the ICRC covers.
///
/// # Multicast
///
/// A socket that is bound to a unicast address hears nothing of a group. So a group that was joined
/// has sockets of its own, bound to the group's address and port 4791 and shared
/// (`SO_REUSEADDR`): Linux gives a copy of each datagram to every such socket of the machine, in
/// whatever process, that is a member on the interface it came by. Frames to a group go out by the
/// interface of the address that sends them, and the kernel loops a copy back to the members on this
/// machine, the sender's own sockets included; whoever uses the link tells those by their source.
///
/// This holds on the loopback interface too, although it does not call itself able to multicast:
/// over IPv4 as it is, for all of 127.0.0.0/8. Over IPv6 Linux has no route for groups there, and
/// sending fails with `ENETUNREACH` until there is one:
/// `ip -6 route add local ff00::/8 dev lo table local` (one of type multicast, or in another table,
/// sends but delivers nothing). Since the loopback interface has just one IPv6 address unless more
/// are added, a machine has one node there anyway. On other interfaces nothing is needed.
///
/// # Header fields
///
/// Traffic class and hop limit are settings of the socket, changed when a frame wants others than the
/// frame before: as long as they stay, a frame costs one system call. The flow label of IPv6 goes
/// along with the address; no lease from the kernel's flow label manager is needed, unless some
/// process of the network namespace leased labels exclusively: then the kernel refuses others.
#[derive(Debug)]
pub struct UdpLink {
    sockets: Vec<Socket>,
    groups: Vec<Group>,
    /// Sockets that only send, by the address's number and the source port; `None` where it could
    /// not be had.
    senders: HashMap<(usize, u16), Option<Socket>>,
    /// Readable when a socket of a group is.
    group_waiter: Arc<OwnedFd>,
    /// What sockets dropped that are closed now.
    past_overflows: u64,
}

#[derive(Debug)]
struct Group {
    /// The addresses at whose interfaces it was joined; not empty.
    members: Vec<usize>,
    socket: Socket,
    /// Waits for the socket, among others.
    waiter: Arc<OwnedFd>,
}

impl Drop for Group {
    fn drop(&mut self) {
        // A child that was forked may hold the socket, too: closing alone would not end the waiting for it.
        let _ = epoll::delete(&self.waiter, &self.socket.fd);
    }
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
        /// The address, which may be that of a group.
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

/// A datagram that was received, or several of one size that came together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes of each datagram but the last, which has what is left; `len` if there is one.
    pub segment: usize,
    /// Who sent it.
    pub src: SocketAddr,
    /// It was longer than the buffer, and the rest is lost: not a frame.
    pub truncated: bool,
    /// What its IP header said, if the socket shows that: those of groups do, others after
    /// [`UdpLink::show_headers`]. Else the default.
    pub ip: IpFields,
}

impl Received {
    /// The datagrams in the buffer that it was received into.
    pub fn datagrams<'a>(
        &self,
        buffer: &'a [u8],
    ) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = &buffer[..self.len.min(buffer.len())];
        // An empty datagram is one, too; a size that makes no sense is that of all.
        let segment = match self.segment {
            0 => bytes.len(),
            segment => segment.min(bytes.len()),
        };
        let count = bytes.len().div_ceil(segment.max(1)).max(1);
        (0..count).map(move |i| &bytes[i * segment..bytes.len().min((i + 1) * segment)])
    }
}

/// What a socket of a link is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The number of the node's address that it serves. A group may have been joined at several,
    /// which [`UdpLink::join_group`] was told together; this is the first.
    pub at: usize,
    /// The address and port that its datagrams were sent to: that of the node, or of the group.
    pub addr: SocketAddr,
}

impl UdpLink {
    /// Bytes that a socket's buffers should hold; the system may allow fewer.
    const BUFFER: usize = 32 << 20;

    /// Bytes that [`send_run`](UdpLink::send_run) takes at most, and [`recv`](UdpLink::recv) gives: those of
    /// the longest UDP datagram over IPv4.
    pub const RUN_BYTES: usize = 65_535 - 20 - 8;

    /// Datagrams that [`send_run`](UdpLink::send_run) takes at most. Linux takes as many
    /// (`UDP_MAX_SEGMENTS` of `include/linux/udp.h`, which is 64 or more).
    pub const RUN_DATAGRAMS: usize = 64;

    /// Most source ports besides 4791 that frames of one link come from.
    pub const MAX_SOURCES: usize = 64;

    /// Binds one socket per address.
    ///
    /// # Errors
    /// [`LinkError`], naming the address.
    pub fn bind(addresses: &[IpAddr]) -> Result<UdpLink, LinkError> {
        let sockets = addresses.iter().map(|&address| bind(address));
        let sockets = sockets.collect::<Result<_, _>>()?;
        let waiter = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|why| {
            let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            let address = addresses.first().copied().unwrap_or(unspecified);
            refused(address)(("making the descriptor to wait on groups", why))
        })?;
        Ok(UdpLink {
            sockets,
            groups: Vec::new(),
            senders: HashMap::new(),
            group_waiter: Arc::new(waiter),
            past_overflows: 0,
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

    /// Takes in the addresses of `other`, which has joined no groups yet, after its own.
    pub fn join(&mut self, other: UdpLink) {
        self.sockets.extend(other.sockets);
    }

    /// Closes all sockets.
    pub fn close(&mut self) {
        self.past_overflows = self.overflows();
        self.sockets.clear();
        self.groups.clear();
        self.senders.clear();
    }

    /// Address and port of each of the node's addresses, in order.
    pub fn locals(&self) -> impl ExactSizeIterator<Item = SocketAddr> + '_ {
        self.sockets.iter().map(|socket| socket.local)
    }

    /// The descriptor of each address's socket, in order.
    pub fn fds(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|socket| socket.fd.as_fd())
    }

    /// The descriptor of the socket of the group that was joined first.
    #[cfg(test)]
    pub(in crate::link) fn group_fd(&self) -> BorrowedFd<'_> {
        self.groups[0].socket.fd.as_fd()
    }

    /// Descriptors to wait on: one of them is readable when a datagram is there. They cover groups
    /// that are joined later.
    pub fn waiters(&self) -> Vec<Arc<OwnedFd>> {
        let fds = self.sockets.iter().map(|socket| Arc::clone(&socket.fd));
        fds.chain([Arc::clone(&self.group_waiter)]).collect()
    }

    /// Sockets that receive: first those of the addresses, in order, then those of groups.
    pub fn receivers(&self) -> usize {
        self.sockets.len() + self.groups.len()
    }

    /// What receiving socket number `at` is bound to.
    ///
    /// # Panics
    /// If there is no such socket.
    pub fn bound(&self, at: usize) -> Bound {
        match self.sockets.get(at) {
            Some(socket) => Bound {
                at,
                addr: socket.local,
            },
            None => {
                let group = &self.groups[at - self.sockets.len()];
                Bound {
                    at: group.members[0],
                    addr: group.socket.local,
                }
            }
        }
    }

    /// Packets that a socket's buffer holds when each of them is full and a datagram of its own; at a peer on
    /// a machine like this one it may be so many.
    pub fn holds(&self) -> u32 {
        /// What Linux charges for a datagram of 4 KiB and a little (`skb->truesize`): memory comes in
        /// powers of two.
        const CHARGED: usize = 9 << 10;
        let sockets = self.sockets.iter();
        let buffers = sockets.map(|s| sockopt::socket_recv_buffer_size(&s.fd).unwrap_or(0));
        let smallest = buffers.min().unwrap_or(0);
        u32::try_from(smallest / CHARGED).unwrap_or(u32::MAX).max(1)
    }

    /// Datagrams that the system dropped because a socket's buffer was full.
    pub fn overflows(&self) -> u64 {
        let groups = self.groups.iter().map(|group| &group.socket);
        let sockets = self.sockets.iter().chain(groups);
        self.past_overflows
            + sockets
                .map(|socket| sys::socket_drops(socket.fd.as_fd()))
                .sum::<u64>()
    }

    /// Lets [`Received::ip`] say what the headers say, from now on and for all sockets. It makes
    /// receiving a little dearer.
    pub fn show_headers(&mut self) {
        self.sockets.iter_mut().for_each(Socket::show_headers);
    }

    /// Joins a group on the interfaces of the addresses with the numbers `at`, as far as they are of
    /// its family. The group gets one socket for all of them, however many share an interface, so
    /// each datagram comes once; call it once for each set of addresses (a port's) that is to get its
    /// own copy. If no address is of the group's family, there is nothing to join.
    ///
    /// # Errors
    /// [`LinkError::System`] with the group's address and what the system refused; nothing was
    /// joined then.
    pub fn join_group(&mut self, group: IpAddr, at: &[usize]) -> Result<(), LinkError> {
        let group = SocketAddr::new(group.to_canonical(), ROCE_PORT);
        let of_its_family = |at: &usize| {
            let socket = self.sockets.get(*at);
            socket.is_some_and(|s| s.local.is_ipv4() == group.is_ipv4())
        };
        let members: Vec<usize> = at.iter().copied().filter(of_its_family).collect();
        if members.is_empty() {
            return Ok(());
        }
        let addresses: Vec<IpAddr> = (members.iter())
            .map(|&at| self.sockets[at].local.ip())
            .collect();
        let refused = |(step, why): Refusal| LinkError::System {
            address: group.ip(),
            step,
            source: why.into(),
        };
        let socket = Socket::group(group, &addresses).map_err(refused)?;
        let (data, readable) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::add(&self.group_waiter, &socket.fd, data, readable)
            .map_err(|why| refused(("waiting for the group", why)))?;
        let waiter = Arc::clone(&self.group_waiter);
        self.groups.push(Group {
            members,
            socket,
            waiter,
        });
        Ok(())
    }

    /// Leaves a group everywhere. What came from it and was not received yet is lost.
    pub fn leave_group(&mut self, group: IpAddr) {
        let group = group.to_canonical();
        let dropped = (self.groups)
            .extract_if(.., |g| g.socket.local.ip() == group)
            .map(|g| sys::socket_drops(g.socket.fd.as_fd()));
        self.past_overflows += dropped.sum::<u64>();
    }

    /// Address and port that frames come from which should come from port `wanted` of address number
    /// `from`: that port's, which the ICRC needs to know, or 4791's.
    ///
    /// A socket is made for each port at its first use and kept. Where the port belongs to another
    /// process, and for all new ports once there are [`MAX_SOURCES`](UdpLink::MAX_SOURCES), frames
    /// come from 4791.
    ///
    /// # Panics
    /// If there is no such address.
    pub fn source(&mut self, from: usize, wanted: u16) -> SocketAddr {
        let local = self.sockets[from].local;
        if wanted == ROCE_PORT {
            return local;
        }
        let own = SocketAddr::new(local.ip(), wanted);
        let known = self.senders.len();
        let had = match self.senders.get(&(from, wanted)) {
            Some(sender) => sender.is_some(),
            None if known >= UdpLink::MAX_SOURCES => false,
            None => {
                let sender = Socket::sender(own).ok();
                let had = sender.is_some();
                self.senders.insert((from, wanted), sender);
                had
            }
        };
        if had { own } else { local }
    }

    /// Sends `datagram` from port `src_port` of address number `from`; both must be what
    /// [`locals`](Self::locals) or [`source`](Self::source) gave.
    ///
    /// # Panics
    /// If there is no such address.
    pub fn send(
        &mut self,
        from: usize,
        src_port: u16,
        dst: SocketAddr,
        ip: IpFields,
        datagram: &[u8],
    ) -> Sent {
        self.sender(from, src_port).send(dst, ip, datagram)
    }

    /// Sends `datagrams`, which follow one another, as [`send`](UdpLink::send) does each: all are `segment`
    /// bytes long, but the last one may be shorter. Over IPv4 they have the identifications 0, 1, 2 and so
    /// on, which their ICRCs cover (`inet_gso_segment` of the kernel). If the socket has no room, none is
    /// sent.
    ///
    /// `None` if the system does not cut datagrams, here and now: then nothing was sent, and they are to be
    /// sent one by one, each with identification 0.
    ///
    /// # Panics
    /// If there is no such address.
    pub fn send_run(
        &mut self,
        from: usize,
        src_port: u16,
        dst: SocketAddr,
        ip: IpFields,
        datagrams: &[u8],
        segment: usize,
    ) -> Option<Sent> {
        (self.sender(from, src_port)).send_run(dst, ip, datagrams, segment)
    }

    /// The socket that sends from that port of address number `from`.
    fn sender(&mut self, from: usize, src_port: u16) -> &mut Socket {
        let sender = match src_port {
            ROCE_PORT => None,
            port => self.senders.get_mut(&(from, port)).and_then(Option::as_mut),
        };
        sender.unwrap_or(&mut self.sockets[from])
    }

    /// Receives on receiving socket number `at`: one datagram, or several that came together if the socket
    /// is that of an address and the system does so ([`Received::datagrams`]); `None` if there is none.
    ///
    /// # Panics
    /// If there is no such socket.
    pub fn recv(&self, at: usize, buffer: &mut [u8]) -> Option<Received> {
        let socket = match self.sockets.get(at) {
            Some(socket) => socket,
            None => &self.groups[at - self.sockets.len()].socket,
        };
        socket.recv(buffer)
    }
}

/// Binds the socket of an address.
fn bind(address: IpAddr) -> Result<Socket, LinkError> {
    let address = address.to_canonical();
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.is_unspecified() || address.is_multicast() || broadcast {
        return Err(LinkError::NotUnicast { address });
    }
    Socket::unicast(SocketAddr::new(address, ROCE_PORT)).map_err(refused(address))
}

/// What a refusal means for a node's address.
fn refused(address: IpAddr) -> impl Fn(Refusal) -> LinkError {
    move |(step, why)| {
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
