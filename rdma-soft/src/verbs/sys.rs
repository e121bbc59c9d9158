//! The few calls of the C library that have no safe wrapper elsewhere.
//!
//! Some of its functions are cancellation points (pthreads(7)). Posts and polls are none: a thread that was cancelled would
//! leave the frames of this library by an unwinding that they do not expect, and the process would end. So what they call
//! that might wait is called by its number.

use std::ffi::{c_int, c_long};
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;

use crate::link::{IpFields, Received};

/// Runs `call` with all signals blocked in this thread. A thread that `call` starts inherits that,
/// so it never takes a signal from the application's threads.
pub(crate) fn with_signals_blocked<R>(call: impl FnOnce() -> R) -> R {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is writable, and `sigfillset` initialises it before `pthread_sigmask` reads it;
    // `before` is written by the latter.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = call();
    if blocked {
        // SAFETY: the call above succeeded, so `before` holds this thread's former mask.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}

/// Runs `call`, in which a pipe that nobody reads is an error alone: SIGPIPE, which comes with it, ends a process that has not
/// said otherwise.
pub(crate) fn without_sigpipe<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: all-zero is valid for sets of integers, and `sigemptyset` makes an empty set of one.
    let [mut pipe, mut before, mut pending]: [libc::sigset_t; 3] = unsafe { std::mem::zeroed() };
    // SAFETY: three sets of this function's own, written and read one after the other.
    let (blocked, was_pending) = unsafe {
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before) == 0;
        let known = libc::sigpending(&mut pending) == 0;
        let was_pending = !known || libc::sigismember(&pending, libc::SIGPIPE) == 1;
        (blocked, was_pending)
    };
    let result = call();
    if blocked {
        let at_once = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        /// Bytes of the kernel's set of signals, which is the beginning of the C library's.
        const KERNELS: c_long = 8;
        // SAFETY: sets as above, and a time; nobody asks who sent the signal. One that was there before is the application's, and
        // stays.
        unsafe {
            while !was_pending
                && libc::syscall(
                    libc::SYS_rt_sigtimedwait,
                    &raw const pipe,
                    std::ptr::null_mut::<libc::siginfo_t>(),
                    &raw const at_once,
                    KERNELS,
                ) == -1
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }
    result
}

/// How many forks lie between this process and the one that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between this process and the one that loaded the library. What was made at
/// another number belongs to a parent: its threads are not here, its locks may be held for ever.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Makes [`forks`] count from now on.
pub(crate) fn count_forks() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded while its
        // devices are in use, and does nothing but an atomic addition.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if result != 0 {
            tracing::warn!(
                errno = result,
                "no fork handler: a child that uses inherited devices is not stopped"
            );
        }
    });
}

/// What epoll tells of `waiter` at this moment: the numbers that its descriptors were added with, and how many of `ready`
/// they are.
///
/// # Errors
/// As epoll_wait(2).
pub(crate) fn epoll_now(waiter: BorrowedFd<'_>, ready: &mut [u64]) -> Result<usize, Errno> {
    const MOST: usize = 16;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
    let most = ready.len().min(MOST);
    let (now, no_signals) = (0 as c_long, std::ptr::null::<libc::sigset_t>());
    // SAFETY: `events` has room for `most` events, which the call writes to; without a set of signals its size is not looked at.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            c_long::from(waiter.as_raw_fd()),
            events.as_mut_ptr(),
            most as c_long,
            now,
            no_signals,
            0 as c_long,
        )
    };
    let count = usize::try_from(count).map_err(|_| last_errno())?;
    for (number, event) in ready.iter_mut().zip(&events[..count]) {
        *number = event.u64;
    }
    Ok(count)
}

/// Sets the calling thread's `errno`.
pub(super) fn set_errno(errno: Errno) {
    // SAFETY: the C library gives the address of this thread's errno, which is always valid.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// Checks that every page of `addr..addr + len` can be read, and also written if `write`; and has
/// the system provide it now, as a device that pins memory does.
///
/// # Errors
/// `EFAULT` if one cannot, `ENOMEM` if the system has no memory for one.
pub(super) fn check_usable(addr: usize, len: usize, write: bool) -> Result<(), Errno> {
    let page = rustix::param::page_size();
    let start = (addr - addr % page) as *mut libc::c_void;
    let len = len + addr % page;
    let advice = if write {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    // SAFETY: populating faults pages in as an access would, but changes no byte and raises no
    // signal; what is not mapped or not permitted gives an error (madvise(2)). A length of 0
    // asks only whether the kernel (5.14 and later) knows this advice.
    let (known, populated) = unsafe {
        (
            libc::madvise(start, 0, advice) == 0,
            libc::madvise(start, len, advice),
        )
    };
    if known && populated == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    // SAFETY: MS_ASYNC alone starts no write and changes no memory (msync(2), NOTES); the kernel
    // only looks at which ranges are mapped, and answers ENOMEM for a hole whatever `start` is.
    let mapped = unsafe { libc::msync(start, len, libc::MS_ASYNC) } == 0;
    match (known, mapped, error) {
        // All that an older kernel can tell.
        (false, true, _) => Ok(()),
        (true, true, Some(libc::ENOMEM)) => Err(Errno::NOMEM),
        _ => Err(Errno::FAULT),
    }
}

/// Names of `linux/udp.h`, both of options and of control messages.
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;

/// An option of a socket that takes an integer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketOption {
    level: c_int,
    name: c_int,
}

impl SocketOption {
    const fn ip(name: c_int) -> SocketOption {
        let level = libc::IPPROTO_IP;
        SocketOption { level, name }
    }

    const fn ipv6(name: c_int) -> SocketOption {
        let level = libc::IPPROTO_IPV6;
        SocketOption { level, name }
    }

    /// Receive UDP over IPv6 without a checksum (`linux/udp.h`).
    pub(crate) const UDP_NO_CHECK6_RX: SocketOption = SocketOption {
        level: libc::IPPROTO_UDP,
        name: 102,
    };
    /// Send UDP over IPv6 without a checksum, as some peers do (`linux/udp.h`).
    #[cfg(test)]
    pub(crate) const UDP_NO_CHECK6_TX: SocketOption = SocketOption {
        level: libc::IPPROTO_UDP,
        name: 101,
    };
    /// Hand over datagrams of one size that came together as one (`linux/udp.h`, udp(7)).
    pub(crate) const UDP_GRO: SocketOption = SocketOption {
        level: libc::IPPROTO_UDP,
        name: UDP_GRO,
    };
    /// Cut what is sent into datagrams of this size; 0 for whole (`linux/udp.h`, udp(7)).
    pub(crate) const UDP_SEGMENT: SocketOption = SocketOption {
        level: libc::IPPROTO_UDP,
        name: UDP_SEGMENT,
    };
    /// Hear of a group also where another socket joined it.
    pub(crate) const IP_MULTICAST_ALL: SocketOption = SocketOption::ip(libc::IP_MULTICAST_ALL);
    /// The same over IPv6 (`linux/in6.h`).
    pub(crate) const IPV6_MULTICAST_ALL: SocketOption = SocketOption::ipv6(29);
    /// Show the type of service of what is received.
    pub(crate) const IP_RECVTOS: SocketOption = SocketOption::ip(libc::IP_RECVTOS);
    /// Show the time to live of what is received.
    pub(crate) const IP_RECVTTL: SocketOption = SocketOption::ip(libc::IP_RECVTTL);
    /// Show the traffic class and the flow label of what is received.
    pub(crate) const IPV6_FLOWINFO: SocketOption = SocketOption::ipv6(libc::IPV6_FLOWINFO);
    /// Show the hop limit of what is received.
    pub(crate) const IPV6_RECVHOPLIMIT: SocketOption = SocketOption::ipv6(libc::IPV6_RECVHOPLIMIT);
    /// Send the flow label that stands in the address.
    pub(crate) const IPV6_FLOWINFO_SEND: SocketOption =
        SocketOption::ipv6(libc::IPV6_FLOWINFO_SEND);
    /// Invent a flow label for each flow that was given none.
    pub(crate) const IPV6_AUTOFLOWLABEL: SocketOption =
        SocketOption::ipv6(libc::IPV6_AUTOFLOWLABEL);
}

/// Sets an option of a socket.
///
/// # Errors
/// That of `setsockopt(2)`.
pub(crate) fn set_socket_option(
    socket: BorrowedFd<'_>,
    option: SocketOption,
    value: c_int,
) -> Result<(), Errno> {
    // SAFETY: the value is a live `c_int`, of which the kernel reads the size that is passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            option.level,
            option.name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Sends `datagrams`, which are `segment` bytes long each, the last one perhaps less, with one call:
/// the kernel, or the adapter, cuts them (udp(7), `UDP_SEGMENT`).
///
/// # Errors
/// That of `sendmsg(2)`; nothing was sent then.
pub(crate) fn send_segmented(
    socket: BorrowedFd<'_>,
    dst: &SocketAddr,
    datagrams: &[u8],
    segment: u16,
) -> Result<(), Errno> {
    const HEAD: usize = CONTROL_HEAD;
    let mut control = [0u8; (HEAD + size_of::<u16>()).next_multiple_of(size_of::<usize>())];
    let len: usize = HEAD + size_of::<u16>();
    control[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
    control[size_of::<usize>()..][..4].copy_from_slice(&libc::IPPROTO_UDP.to_ne_bytes());
    control[size_of::<usize>() + 4..][..4].copy_from_slice(&UDP_SEGMENT.to_ne_bytes());
    control[HEAD..len].copy_from_slice(&segment.to_ne_bytes());
    let mut data = libc::iovec {
        iov_base: datagrams.as_ptr().cast_mut().cast(),
        iov_len: datagrams.len(),
    };
    // SAFETY: a message header is integers and pointers, for which all zeroes are valid values.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
    // SAFETY: name, data and control point to the caller's address and bytes and to the buffer above,
    // all of which live beyond the call; the kernel reads no more than the lengths beside them, and
    // writes to none.
    let result = unsafe {
        dst.with_sockaddr(|name, len| {
            message.msg_name = name.cast_mut().cast();
            message.msg_namelen = len;
            libc::syscall(
                libc::SYS_sendmsg,
                c_long::from(socket.as_raw_fd()),
                &raw const message,
                c_long::from(libc::MSG_NOSIGNAL),
            )
        })
    };
    match result {
        0.. => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Receives a datagram, or several of one size that came together ([`SocketOption::UDP_GRO`]), with what
/// the IP header says, as far as options of the socket ask for that.
///
/// # Errors
/// That of `recvmsg(2)`; `EINVAL` if the sender has no Internet address.
pub(crate) fn recv_with_control(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<Received, Errno> {
    /// Room for four control messages of an integer each, where at most two are asked for.
    const CONTROL: usize = 4 * (CONTROL_HEAD + 8);
    let mut name = [0u8; size_of::<libc::sockaddr_in6>()];
    let mut control = [0u8; CONTROL];
    let mut data = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: a message header is integers and pointers, for which all zeroes are valid values.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = name.len() as libc::socklen_t;
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
    // SAFETY: name, data and control point to the three buffers above, which live beyond the call
    // and which nothing else uses during it; the kernel writes no more than the lengths beside
    // them, and any bytes are valid there.
    let result = unsafe {
        libc::syscall(
            libc::SYS_recvmsg,
            c_long::from(socket.as_raw_fd()),
            &raw mut message,
            0 as c_long,
        )
    };
    let len = usize::try_from(result).map_err(|_| last_errno())?;
    let told: usize = message.msg_controllen as _;
    let mut received = Received {
        len,
        segment: len,
        src: socket_addr(&name).ok_or(Errno::INVAL)?,
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        ip: IpFields::default(),
    };
    read_control(control.get(..told).unwrap_or(&[]), &mut received);
    Ok(received)
}

/// The Internet address in the bytes of a `sockaddr` (ip(7), ipv6(7)).
fn socket_addr(bytes: &[u8; size_of::<libc::sockaddr_in6>()]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes[2..].first_chunk()?);
    match c_int::from(family) {
        libc::AF_INET => {
            let octets: [u8; 4] = *bytes[4..].first_chunk()?;
            Some(SocketAddr::new(octets.into(), port))
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = *bytes[8..].first_chunk()?;
            let scope = u32::from_ne_bytes(*bytes[24..].first_chunk()?);
            Some(SocketAddrV6::new(octets.into(), port, 0, scope).into())
        }
        _ => None,
    }
}

/// Bytes in front of a control message's data: its length, a `size_t`, then level and type.
const CONTROL_HEAD: usize = size_of::<usize>() + 8;

/// What the control messages say of an IP header, and of the datagrams in one (cmsg(3), ip(7), ipv6(7),
/// udp(7)).
fn read_control(mut control: &[u8], received: &mut Received) {
    let ip = &mut received.ip;
    while let Some((head, rest)) = control.split_at_checked(CONTROL_HEAD) {
        let (len, kind) = head.split_at(size_of::<usize>());
        let len = len.try_into().map_or(0, usize::from_ne_bytes);
        let Some(data) = len.checked_sub(CONTROL_HEAD).and_then(|n| rest.get(..n)) else {
            break;
        };
        let int = |at: usize| kind[at..].first_chunk().map(|b| c_int::from_ne_bytes(*b));
        let value = data.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
        match (int(0).unwrap_or(0), int(4).unwrap_or(0)) {
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                ip.traffic_class = data.first().copied().unwrap_or(0);
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                ip.hop_limit = value as u8;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                let value = u32::from_be(value);
                ip.traffic_class = (value >> 20) as u8;
                ip.flow_label = value & 0xf_ffff;
            }
            (libc::IPPROTO_UDP, UDP_GRO) => received.segment = value as usize,
            _ => {}
        }
        control = rest
            .get(data.len().next_multiple_of(size_of::<usize>())..)
            .unwrap_or(&[]);
    }
}

/// Datagrams that the kernel dropped because the socket's buffer was full (`sock_diag(7)`,
/// `SK_MEMINFO_DROPS`); 0 where the kernel does not tell.
pub(crate) fn socket_drops(socket: BorrowedFd<'_>) -> u64 {
    /// `SO_MEMINFO` of `asm-generic/socket.h`, and an index of `linux/sock_diag.h`.
    const SO_MEMINFO: c_int = 55;
    const SK_MEMINFO_DROPS: usize = 8;
    let mut info = [0u32; SK_MEMINFO_DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: `info` has room for `len` bytes, and the kernel writes no more than that; any bytes
    // are valid integers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let told = result == 0 && len as usize == size_of_val(&info);
    if told {
        info[SK_MEMINFO_DROPS].into()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_or_written_is_seen() {
        let mut memory = vec![0u8; 3 * 4096];
        memory[5000] = 7;
        let addr = memory.as_ptr() as usize;
        assert_eq!(check_usable(addr + 1, 2 * 4096, true), Ok(()));
        assert_eq!(memory[5000], 7);
        assert_eq!(
            check_usable(8, 16, false),
            Err(Errno::FAULT),
            "the null page"
        );
        static CONSTANT: [u8; 16] = [1; 16];
        let constant = CONSTANT.as_ptr() as usize;
        assert_eq!(check_usable(constant, 16, false), Ok(()));
        assert_eq!(
            check_usable(constant, 16, true),
            Err(Errno::FAULT),
            "read-only memory"
        );
    }

    #[test]
    fn what_a_full_socket_drops_is_told() {
        use std::os::fd::AsFd;
        let to = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        to.set_nonblocking(true).unwrap();
        let from = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(socket_drops(to.as_fd()), 0);
        let sent = 20_000u64;
        for _ in 0..sent {
            from.send_to(&[0; 4096], to.local_addr().unwrap()).unwrap();
        }
        let mut buffer = [0; 4096];
        let received = std::iter::from_fn(|| to.recv(&mut buffer).ok()).count() as u64;
        assert!(received < sent, "the buffer held them all");
        assert_eq!(socket_drops(to.as_fd()), sent - received);
    }
}
