//! Events that an application waits for through a file descriptor, and their acknowledgements.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::lock;

/// A queue with a file descriptor that is readable while something is queued.
///
/// The descriptor is an eventfd that counts items, so that a read takes the right to one item:
/// it blocks, or fails with `EAGAIN`, just as the application set `O_NONBLOCK`, and `poll(2)`
/// and its like work on it.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    items: VecDeque<T>,
    /// Rights whose items were removed after somebody had taken the right, or on a kernel that cannot
    /// take it back.
    ///
    /// Rights, with those taken and not used yet, = items + surplus, at any time: a push adds an item and
    /// either writes a right or uses up a surplus one; who takes a right takes an item, or a surplus if
    /// there is none; a removal takes an item and either reads its right or leaves it as a surplus. So no
    /// item waits without a right that is readable or in somebody's hands, and whoever has a right and
    /// finds no item lowers the surplus, which is above 0 then.
    surplus: usize,
}

impl<T> EventQueue<T> {
    /// An empty queue; the descriptor blocks.
    pub(crate) fn new() -> Result<EventQueue<T>, Errno> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        let inner = Mutex::new(Inner {
            items: VecDeque::new(),
            surplus: 0,
        });
        Ok(EventQueue { fd, inner })
    }

    /// The descriptor, for the ABI's structs.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    #[cfg(test)]
    pub(crate) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Appends `item`, unless `alive` says that its object is being destroyed.
    ///
    /// [`remove`](EventQueue::remove) and this exclude each other, so an object that first
    /// declares itself dead and then removes its items leaves none behind.
    pub(crate) fn push_if(&self, item: T, alive: impl FnOnce() -> bool) {
        let mut inner = lock(&self.inner);
        if !alive() {
            return;
        }
        inner.items.push_back(item);
        if inner.surplus > 0 {
            inner.surplus -= 1;
            return;
        }
        // Under the lock, so that a removal finds the right of every item. Fails only when the count
        // is at its end, 2^64 - 2.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Takes the oldest item, waiting as the descriptor's flags say. `taken` runs before anybody
    /// else can get at the queue.
    pub(crate) fn take(&self, taken: impl FnOnce(&T)) -> Result<T, Errno> {
        loop {
            let mut right = [0; 8];
            rustix::io::read(self.fd.as_fd(), &mut right)?;
            let mut inner = lock(&self.inner);
            if let Some(item) = inner.items.pop_front() {
                taken(&item);
                return Ok(item);
            }
            inner.surplus = inner.surplus.saturating_sub(1);
        }
    }

    /// Removes the items that `which` picks, and with them what made the descriptor readable.
    pub(crate) fn remove(&self, mut which: impl FnMut(&T) -> bool) {
        let mut inner = lock(&self.inner);
        let before = inner.items.len();
        inner.items.retain(|item| !which(item));
        for _ in inner.items.len()..before {
            // Without waiting, whatever the descriptor's flags say (eventfds can since Linux 5.12); at
            // "the current position", which is all that an eventfd has.
            let (mut right, here) = ([0; 8], u64::MAX);
            let mut into = [std::io::IoSliceMut::new(&mut right)];
            if preadv2(&self.fd, &mut into, here, ReadWriteFlags::NOWAIT).is_err() {
                inner.surplus += 1;
            }
        }
    }
}

/// Events of one object that the application has taken, and those that it has acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    state: Mutex<AckState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct AckState {
    taken: u64,
    acked: u64,
}

impl Acks {
    /// Counts one event as taken.
    pub(crate) fn taken(&self) {
        lock(&self.state).taken += 1;
    }

    /// Counts `n` events as acknowledged.
    pub(crate) fn ack(&self, n: u32) {
        // Notified under the lock: who waits may free this as soon as the lock is free.
        let mut state = lock(&self.state);
        state.acked += u64::from(n);
        self.changed.notify_all();
    }

    /// Waits until every event taken is acknowledged.
    pub(crate) fn wait(&self) {
        let mut state = lock(&self.state);
        while state.acked < state.taken {
            state = (self.changed.wait(state)).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    fn readable<T>(q: &EventQueue<T>) -> bool {
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&q.fd, PollFlags::IN)];
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn the_descriptor_counts_items() {
        let q = EventQueue::new().unwrap();
        fcntl_setfl(&q.fd, OFlags::NONBLOCK).unwrap();
        assert!(!readable(&q));
        assert_eq!(q.take(|_| ()), Err(Errno::AGAIN));
        q.push_if(1, || true);
        q.push_if(2, || true);
        q.push_if(3, || false);
        assert!(readable(&q));
        assert_eq!(q.take(|_| ()), Ok(1));
        assert_eq!(q.take(|_| ()), Ok(2));
        assert!(!readable(&q));
        assert_eq!(q.take(|_| ()), Err(Errno::AGAIN));
    }

    #[test]
    fn removed_items_are_never_taken_and_later_ones_are() {
        let q = EventQueue::new().unwrap();
        fcntl_setfl(&q.fd, OFlags::NONBLOCK).unwrap();
        for i in 0..4 {
            q.push_if(i, || true);
        }
        q.remove(|i| i % 2 == 0);
        assert_eq!(q.take(|_| ()), Ok(1));
        q.push_if(4, || true);
        assert_eq!(q.take(|_| ()), Ok(3));
        assert_eq!(q.take(|_| ()), Ok(4));
        assert_eq!(q.take(|_| ()), Err(Errno::AGAIN));
    }

    #[test]
    fn a_blocking_descriptor_is_not_readable_for_what_was_removed() {
        let q = EventQueue::new().unwrap();
        for i in 0..3 {
            q.push_if(i, || true);
        }
        q.remove(|&i| i != 1);
        assert!(readable(&q));
        assert_eq!(q.take(|_| ()), Ok(1));
        assert!(!readable(&q));
        q.push_if(5, || true);
        assert!(readable(&q));
        q.remove(|_| true);
        assert!(!readable(&q));
    }

    #[test]
    fn waiting_for_acknowledgements_ends_with_the_last_one() {
        let acks = Acks::default();
        acks.wait();
        acks.taken();
        acks.taken();
        std::thread::scope(|s| {
            let waiter = s.spawn(|| acks.wait());
            acks.ack(1);
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert!(!waiter.is_finished());
            acks.ack(1);
        });
    }
}
