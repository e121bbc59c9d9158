//! The few calls of the C library that have no safe wrapper elsewhere.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

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

/// `UDP_NO_CHECK6_RX` of `linux/udp.h`: receive UDP over IPv6 without a checksum.
pub(crate) const UDP_NO_CHECK6_RX: c_int = 102;

/// Turns on a flag of a UDP socket.
///
/// # Errors
/// That of `setsockopt(2)`.
pub(crate) fn set_udp_flag(socket: BorrowedFd<'_>, flag: c_int) -> Result<(), Errno> {
    let on: c_int = 1;
    // SAFETY: the value is a live `c_int`, of which the kernel reads the size that is passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_UDP,
            flag,
            (&raw const on).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
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
