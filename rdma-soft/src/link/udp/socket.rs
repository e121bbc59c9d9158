//! One socket of a link, and what Linux must be told about it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::{Received, Sent, UdpLink};
use crate::link::IpFields;
use crate::verbs::sys::{self, SocketOption};

/// A UDP socket with a local address.
#[derive(Debug)]
pub(super) struct Socket {
    /// Shared with whoever waits on it.
    pub(super) fd: Arc<OwnedFd>,
    pub(super) local: SocketAddr,
    told: Told,
    /// It shows the IP header of what it receives.
    shows_headers: bool,
    /// It may give several datagrams at once.
    merges: bool,
    /// The system cuts what it sends into datagrams.
    segments: bool,
    /// The system refused to, and it may have been for another reason.
    in_doubt: bool,
}

/// What the system was last told about the headers of what is sent, so that it is told again only
/// when that changes.
#[derive(Debug, Default)]
struct Told {
    traffic_class: Option<u8>,
    hop_limit: Option<u8>,
    multicast_hop_limit: Option<u8>,
}

/// A step that the system refused, in words, and its error.
pub(super) type Refusal = (&'static str, Errno);

fn step<T>(name: &'static str, result: Result<T, Errno>) -> Result<T, Refusal> {
    result.map_err(|why| (name, why))
}

impl Socket {
    /// A socket for the frames that go from and to `local`.
    pub(super) fn unicast(local: SocketAddr) -> Result<Socket, Refusal> {
        let mut socket = Socket::open(local)?;
        // A big buffer is a favour: what the system allows must do.
        let fd = &socket.fd;
        let _ = sockopt::set_socket_recv_buffer_size_force(fd, UdpLink::BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(fd, UdpLink::BUFFER));
        socket.merges = sys::set_socket_option(fd.as_fd(), SocketOption::UDP_GRO, 1).is_ok();
        socket.sends()?;
        socket.bind()
    }

    /// A socket that sends from `local`. Nothing is received: what comes there is dropped.
    pub(super) fn sender(local: SocketAddr) -> Result<Socket, Refusal> {
        let mut socket = Socket::open(local)?;
        let _ = sockopt::set_socket_recv_buffer_size(&socket.fd, 0);
        socket.sends()?;
        socket.bind()
    }

    /// A socket for what comes to the UDP port of `group` on the interfaces of `members`.
    pub(super) fn group(group: SocketAddr, members: &[IpAddr]) -> Result<Socket, Refusal> {
        const JOINING: &str = "joining the group";
        let mut local = group;
        let first = members.iter().find_map(|member| interface_of(*member));
        if let (SocketAddr::V6(local), Some(interface)) = (&mut local, first) {
            // Addresses of link scope are none without their interface.
            local.set_scope_id(interface);
        }
        let mut socket = Socket::open(local)?;
        let fd = Arc::clone(&socket.fd);
        // So that every node of this machine can have such a socket; each gets all frames.
        step("sharing UDP port 4791 of the group", {
            sockopt::set_socket_reuseaddr(&fd, true)
        })?;
        let _ = sockopt::set_socket_recv_buffer_size_force(&fd, UdpLink::BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&fd, UdpLink::BUFFER));
        // Not what comes because some other socket joined on some other interface. Linux knows the
        // option of IPv6 since 4.20; before, a port may hear what another port's network carries.
        let only_joined = match group.ip() {
            IpAddr::V4(_) => SocketOption::IP_MULTICAST_ALL,
            IpAddr::V6(_) => SocketOption::IPV6_MULTICAST_ALL,
        };
        let _ = sys::set_socket_option(fd.as_fd(), only_joined, 0);
        socket.show_headers();
        let socket = socket.bind()?;
        for member in members {
            let joined = match (group.ip(), *member) {
                (IpAddr::V4(group), IpAddr::V4(member)) => {
                    sockopt::set_ip_add_membership(&fd, &group, &member)
                }
                (IpAddr::V6(group), _) => {
                    let interface = interface_of(*member).unwrap_or(0);
                    sockopt::set_ipv6_add_membership(&fd, &group, interface)
                }
                (IpAddr::V4(_), IpAddr::V6(_)) => Ok(()),
            };
            match joined {
                // Another member is on the same interface.
                Ok(()) | Err(Errno::ADDRINUSE) => {}
                Err(why) => return Err((JOINING, why)),
            }
        }
        Ok(socket)
    }

    fn open(local: SocketAddr) -> Result<Socket, Refusal> {
        let family = match local {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let opened = rustix::net::socket_with(family, SocketType::DGRAM, flags, None);
        let fd = step("opening a socket", opened)?;
        if local.is_ipv6() {
            step("leaving IPv4 out", sockopt::set_ipv6_v6only(&fd, true))?;
            // rxe sends no UDP checksums. Where the system does not know the flag, only such
            // peers go unheard.
            let _ = sys::set_socket_option(fd.as_fd(), SocketOption::UDP_NO_CHECK6_RX, 1);
        }
        Ok(Socket {
            fd: Arc::new(fd),
            local,
            told: Told::default(),
            shows_headers: false,
            merges: false,
            segments: false,
            in_doubt: false,
        })
    }

    /// Prepares for sending.
    fn sends(&mut self) -> Result<(), Refusal> {
        let fd = &self.fd;
        self.segments = sys::set_socket_option(fd.as_fd(), SocketOption::UDP_SEGMENT, 0).is_ok();
        let _ = sockopt::set_socket_send_buffer_size_force(fd, UdpLink::BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(fd, UdpLink::BUFFER));
        match self.local.ip() {
            IpAddr::V4(address) => {
                let whole = sockopt::set_ip_mtu_discover(fd, Ipv4PathMtuDiscovery::DO);
                step("forbidding fragments", whole)?;
                let interface = sockopt::set_ip_multicast_if(fd, &address);
                step("choosing the interface of multicasts", interface)?;
                step("multicasts to this machine", {
                    sockopt::set_ip_multicast_loop(fd, true)
                })
            }
            address @ IpAddr::V6(_) => {
                let whole = sockopt::set_ipv6_mtu_discover(fd, Ipv6PathMtuDiscovery::DO);
                step("forbidding fragments", whole)?;
                // The label of each frame is the one that was asked for, also if that is 0. A
                // system that knows no labels sends what it likes; nothing depends on it.
                let _ = sys::set_socket_option(fd.as_fd(), SocketOption::IPV6_AUTOFLOWLABEL, 0);
                let _ = sys::set_socket_option(fd.as_fd(), SocketOption::IPV6_FLOWINFO_SEND, 1);
                if let Some(interface) = interface_of(address) {
                    let chosen = sockopt::set_ipv6_multicast_if(fd, interface);
                    step("choosing the interface of multicasts", chosen)?;
                }
                step("multicasts to this machine", {
                    sockopt::set_ipv6_multicast_loop(fd, true)
                })
            }
        }
    }

    fn bind(self) -> Result<Socket, Refusal> {
        let bound = rustix::net::bind(&self.fd, &self.local);
        step("binding UDP port 4791", bound)?;
        Ok(self)
    }

    /// From now on, [`recv`](Socket::recv) tells what the IP headers say.
    pub(super) fn show_headers(&mut self) {
        if self.shows_headers {
            return;
        }
        let options = match self.local {
            SocketAddr::V4(_) => [SocketOption::IP_RECVTOS, SocketOption::IP_RECVTTL],
            SocketAddr::V6(_) => [SocketOption::IPV6_FLOWINFO, SocketOption::IPV6_RECVHOPLIMIT],
        };
        for option in options {
            // What the system does not show has its usual value.
            let _ = sys::set_socket_option(self.fd.as_fd(), option, 1);
        }
        self.shows_headers = true;
    }

    /// Sends `datagram` to `dst`.
    pub(super) fn send(&mut self, dst: SocketAddr, ip: IpFields, datagram: &[u8]) -> Sent {
        let dst = self.tell(dst, ip);
        let sent = retried(|| rustix::net::sendto(&self.fd, datagram, SendFlags::NOSIGNAL, &dst));
        if std::mem::take(&mut self.in_doubt) && sent.is_ok() {
            self.segments = false;
        }
        match sent {
            Ok(_) => Sent::Done,
            Err(Errno::AGAIN) => Sent::Later,
            Err(why) => Sent::Dropped(why),
        }
    }

    /// Sends `datagrams`, each of `segment` bytes and the last one perhaps shorter; `None` if they must be
    /// sent one by one. If one of them goes then, it was the cutting that the system refused, and it is not
    /// asked again.
    pub(super) fn send_run(
        &mut self,
        dst: SocketAddr,
        ip: IpFields,
        datagrams: &[u8],
        segment: usize,
    ) -> Option<Sent> {
        let segment = u16::try_from(segment).ok().filter(|_| self.segments)?;
        let dst = self.tell(dst, ip);
        match retried(|| sys::send_segmented(self.fd.as_fd(), &dst, datagrams, segment)) {
            Ok(()) => Some(Sent::Done),
            Err(Errno::AGAIN) => Some(Sent::Later),
            Err(_) => {
                self.in_doubt = true;
                None
            }
        }
    }

    /// Tells the system what the next headers to `dst` shall say, as far as it was not told. It knows all
    /// values, so it refuses none. Gives the address that says the rest.
    fn tell(&mut self, dst: SocketAddr, ip: IpFields) -> SocketAddr {
        let multicast = dst.ip().is_multicast();
        let (fd, is_v4) = (&self.fd, self.local.is_ipv4());
        if self.told.traffic_class != Some(ip.traffic_class) {
            self.told.traffic_class = Some(ip.traffic_class);
            let _ = if is_v4 {
                sockopt::set_ip_tos(fd, ip.traffic_class)
            } else {
                sockopt::set_ipv6_tclass(fd, ip.traffic_class.into())
            };
        }
        let hops = ip.hop_limit;
        let told = if multicast {
            &mut self.told.multicast_hop_limit
        } else {
            &mut self.told.hop_limit
        };
        if told.replace(hops) != Some(hops) {
            let _ = match (multicast, is_v4) {
                (true, true) => sockopt::set_ip_multicast_ttl(fd, hops.into()),
                (true, false) => sockopt::set_ipv6_multicast_hops(fd, hops.into()),
                (false, true) => sockopt::set_ip_ttl(fd, hops.into()),
                (false, false) => sockopt::set_ipv6_unicast_hops(fd, Some(hops)),
            };
        }
        match dst {
            SocketAddr::V6(to) if ip.flow_label != 0 => {
                let label = ip.flow_label & 0xf_ffff;
                SocketAddrV6::new(*to.ip(), to.port(), label, to.scope_id()).into()
            }
            other => other,
        }
    }

    /// Receives a datagram, or several that came together; `None` if there is none.
    pub(super) fn recv(&self, buffer: &mut [u8]) -> Option<Received> {
        retried(|| {
            if self.shows_headers || self.merges {
                sys::recv_with_control(self.fd.as_fd(), buffer)
            } else {
                self.recv_alone(buffer)
            }
        })
        .ok()
    }

    /// Receives a datagram and nothing about it.
    fn recv_alone(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        let (len, full, src) = rustix::net::recvfrom(&self.fd, buffer, RecvFlags::TRUNC)?;
        let src = src.and_then(|src| SocketAddr::try_from(src).ok());
        Ok(Received {
            len,
            segment: len,
            src: src.ok_or(Errno::INVAL)?,
            truncated: full > len,
            ip: IpFields::default(),
        })
    }
}

/// Makes a call again as long as a signal interrupts it.
fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Bytes of the longest IP packet that the interface of this address sends. `None` where the system does not tell.
///
/// It is what the kernel says of a route for multicasts from there, which is the interface itself; nothing is sent.
pub(crate) fn interface_mtu(address: IpAddr) -> Option<u32> {
    let socket = Socket::open(SocketAddr::new(address, 0)).ok()?;
    let (fd, port) = (&socket.fd, 9);
    match address {
        IpAddr::V4(address) => {
            sockopt::set_ip_multicast_if(fd, &address).ok()?;
            let everybody = SocketAddr::from((Ipv4Addr::new(224, 0, 0, 1), port));
            rustix::net::connect(fd, &everybody).ok()?;
            sockopt::ip_mtu(fd).ok()
        }
        IpAddr::V6(_) => {
            sockopt::set_ipv6_multicast_if(fd, interface_of(address)?).ok()?;
            let everybody = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            rustix::net::connect(fd, &SocketAddr::from((everybody, port))).ok()?;
            sockopt::ipv6_mtu(fd).ok()
        }
    }
}

/// The interface that has the IPv6 address, by its index; IPv4 needs none, for the system takes the
/// address itself. `None` also where the kernel's list cannot be read: then its routes decide.
fn interface_of(address: IpAddr) -> Option<u32> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let list = std::fs::read_to_string("/proc/net/if_inet6").ok()?;
    find_interface(&list, address)
}

/// The index in the line of `address`. A line is: address, index, prefix length, scope, flags, name,
/// all numbers hexadecimal.
pub(in crate::link) fn find_interface(list: &str, address: Ipv6Addr) -> Option<u32> {
    list.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let here = u128::from_str_radix(words.next()?, 16).ok()?;
        let index = u32::from_str_radix(words.next()?, 16).ok()?;
        (here == address.to_bits()).then_some(index)
    })
}
