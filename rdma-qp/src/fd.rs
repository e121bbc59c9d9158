//! The two things that are done with event descriptors.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::deadline::Deadline;
use crate::errno::Errno;

/// Makes reads from `fd` return at once when nothing is there.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = fcntl_getfl(fd)?;
    if !flags.contains(OFlags::NONBLOCK) {
        fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    }
    Ok(())
}

/// Sleeps until `fd` is readable. `false`: it was not, until `deadline`.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, deadline: Deadline) -> Result<bool, Errno> {
    loop {
        let left = deadline.remaining();
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            timeout.as_ref(),
        ) {
            Ok(0) if deadline.passed() => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
    }
}
