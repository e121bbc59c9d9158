//! Sleeping until something completes: arming, the descriptor, and the events.

use std::os::fd::BorrowedFd;

use super::{Cq, PollError};
use crate::deadline::Deadline;
use crate::errno::Errno;
use crate::fd;

/// What [`Cq::arm`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// Something is there: poll.
    Ready,
    /// Nothing is there; the descriptor tells when something is.
    Sleep,
}

impl Cq {
    /// Asks for one wake-up of [`Cq::event_fd`], and looks once more at the queue, because a completion that came just
    /// before gives none.
    ///
    /// [`Armed::Ready`]: something is there, poll; [`Armed::Sleep`]: nothing is there, and the descriptor will become
    /// readable when something is.
    ///
    /// # Errors
    /// The CQ has no channel, or does not work any more.
    pub fn arm(&self) -> Result<Armed, PollError> {
        if self.handle.event_fd().is_none() {
            return Err(PollError::NoChannel);
        }
        self.handle.arm().map_err(|source| self.channel(source))?;
        let mut poller = self.poller.borrow_mut();
        if let Some(done) = self.next(&mut poller)? {
            poller.keep(&self.intake, done);
            self.keep_rest(&mut poller);
        }
        Ok(if poller.stash.is_empty() {
            Armed::Sleep
        } else {
            Armed::Ready
        })
    }

    /// The descriptor that becomes readable after [`Cq::arm`]; `None` for a CQ without channel.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.handle.event_fd()
    }

    /// Takes the wake-ups off the channel; call it when [`Cq::event_fd`] is readable. They are acknowledged in batches.
    /// Returns how many there were.
    ///
    /// # Errors
    /// The CQ has no channel, or the channel failed.
    pub fn take_events(&self) -> Result<u32, PollError> {
        if self.handle.event_fd().is_none() {
            return Err(PollError::NoChannel);
        }
        let mut taken = 0;
        loop {
            match self.handle.take_event() {
                Ok(()) => taken += 1,
                Err(errno) if errno.is_again() => return Ok(taken),
                Err(source) => return Err(self.channel(source)),
            }
        }
    }

    #[cold]
    fn channel(&self, source: Errno) -> PollError {
        PollError::Channel {
            device: self.device().to_owned(),
            source,
        }
    }

    /// Sleeps until the channel has an event, and takes it. `false`: there was none until `deadline`.
    pub(super) fn sleep(&self, deadline: Deadline) -> Result<bool, PollError> {
        let fd = self.handle.event_fd().ok_or(PollError::NoChannel)?;
        let woken = fd::wait_readable(fd, deadline).map_err(|source| self.channel(source))?;
        if woken {
            self.take_events()?;
        }
        Ok(woken)
    }
}
