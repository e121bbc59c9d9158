//! Waking a loop from another thread, and sleeping until something happens.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// A bell: rung by threads that work, heard by the loop that drives the Queue Pair.
#[derive(Clone, Debug)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(Arc::new(eventfd(
            0,
            EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
        )?)))
    }

    /// Rings it.
    pub fn ring(&self) {
        // It can only fail by being rung 2^64 times unheard, and then it is heard anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences it.
    pub fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    /// Readable while it rings.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of `descriptors` is readable or `limit` is over.
///
/// # Errors
/// The system refused; a signal only ends the sleep.
pub fn sleep_on<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    limit: Duration,
) -> io::Result<()> {
    let mut all = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let limit = Timespec {
        tv_sec: limit.as_secs().min(1 << 30) as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    match poll(&mut all, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_bell_ends_a_sleep_until_it_is_silenced() {
        let bell = Bell::new().unwrap();
        let long = Duration::from_secs(3600);
        let ringer = bell.clone();
        std::thread::spawn(move || ringer.ring());
        sleep_on([bell.as_fd()], long).unwrap();
        sleep_on([bell.as_fd()], long).unwrap();
        bell.silence();
        let began = Instant::now();
        sleep_on([bell.as_fd()], Duration::from_millis(20)).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(20));
    }
}
