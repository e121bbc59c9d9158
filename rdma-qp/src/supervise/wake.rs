//! One descriptor for everything that can wake a supervised connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::Meeting;
use crate::errno::Errno;

/// An epoll instance, in which are the CQ's channel, the device's events, a timer, and another epoll instance with the
/// descriptors of the meeting, which change.
pub(crate) struct Wake {
    outer: OwnedFd,
    timer: OwnedFd,
    inner: Option<(u64, OwnedFd)>,
    /// What the timer is set to.
    set: Option<Duration>,
}

fn add(epoll: &OwnedFd, fd: impl AsFd, flags: EventFlags) -> Result<(), Errno> {
    Ok(epoll::add(epoll, fd, EventData::new_u64(0), flags)?)
}

impl Wake {
    pub(crate) fn new(watched: &[BorrowedFd<'_>]) -> Result<Wake, Errno> {
        let outer = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        add(&outer, &timer, EventFlags::IN)?;
        for fd in watched {
            add(&outer, fd, EventFlags::IN)?;
        }
        Ok(Wake {
            outer,
            timer,
            inner: None,
            set: None,
        })
    }

    /// Watches what the meeting has to watch now.
    pub(super) fn follow(&mut self, meeting: &dyn Meeting) -> Result<(), Errno> {
        let generation = meeting.generation();
        if self.inner.as_ref().is_some_and(|(of, _)| *of == generation) {
            return Ok(());
        }
        // Closing it takes it out of the outer one.
        self.inner = None;
        let inner = epoll::create(CreateFlags::CLOEXEC)?;
        for (fd, writable) in meeting.descriptors() {
            let flags = match writable {
                true => EventFlags::OUT,
                false => EventFlags::IN,
            };
            add(&inner, fd, flags)?;
        }
        add(&self.outer, &inner, EventFlags::IN)?;
        self.inner = Some((generation, inner));
        Ok(())
    }

    /// Wakes at that time; `None`: the timer wakes nobody.
    pub(crate) fn at(&mut self, now: Duration, at: Option<Duration>) -> Result<(), Errno> {
        if self.set == at && at.is_none_or(|at| at > now) {
            return Ok(());
        }
        // Zero would be no wake-up at all.
        let left = at.map(|at| at.saturating_sub(now).max(Duration::from_nanos(1)));
        let left = left.unwrap_or_default();
        let it_value = Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let it_interval = Timespec::default();
        let value = Itimerspec {
            it_interval,
            it_value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        self.set = at;
        Ok(())
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outer.as_fd()
    }
}
