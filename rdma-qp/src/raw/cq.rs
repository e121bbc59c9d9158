//! Completion queues and their channels.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_core_sys::*;

use super::context::ContextHandle;
use super::slots::Slots;
use super::table::Table;
use super::{pointer, status};
use crate::account::{Queue, Room};
use crate::errno::Errno;

/// A completion channel: it belongs to one CQ.
struct Channel(NonNull<ibv_comp_channel>);

/// What finds the queues that report to a CQ.
struct Queues {
    slots: Slots,
    table: Arc<Table>,
}

/// A completion queue.
pub(crate) struct CqHandle {
    pub(crate) context: Arc<ContextHandle>,
    pub(super) ptr: NonNull<ibv_cq>,
    channel: Option<Channel>,
    destroyed: bool,
    /// Its entries, and what is promised of them.
    pub(crate) room: Arc<Room>,
    /// Set when a queue that reports here is to be looked at by [`crate::raw::pd::PdHandle::sweep`].
    pub(crate) attention: Arc<AtomicBool>,
    queues: Mutex<Queues>,
    /// Not 0 when a place of the table was closed since the poller, who looks at it before each completion of a batch, took it
    /// back.
    pub(super) closed: Arc<AtomicU32>,
    /// Events taken from the channel and not acknowledged yet.
    unacknowledged: AtomicU32,
}

// SAFETY: an ibv_cq, an ibv_comp_channel and all calls on them may be used from any thread.
unsafe impl Send for CqHandle {}
// SAFETY: as above.
unsafe impl Sync for CqHandle {}

/// After so many events they are acknowledged: each acknowledgement takes a lock in the library.
const ACKNOWLEDGE_AFTER: u32 = 256;

impl CqHandle {
    /// A CQ of at least `entries`, with a channel of its own if `events`.
    pub(crate) fn create(
        context: &Arc<ContextHandle>,
        entries: u32,
        events: bool,
    ) -> Result<CqHandle, Errno> {
        let verbs = &context.verbs;
        let entries = c_int::try_from(entries).map_err(|_| Errno::EINVAL)?;
        let channel = if events {
            // SAFETY: the context is live (invariant 1).
            Some(Channel(pointer(unsafe {
                verbs.create_comp_channel(context.as_ptr())
            })?))
        } else {
            None
        };
        let raw_channel = channel.as_ref().map_or(ptr::null_mut(), |c| c.0.as_ptr());
        // SAFETY: the context and the channel, if any, are live; completion vector 0 always exists.
        let made = pointer(unsafe {
            verbs.create_cq(context.as_ptr(), entries, ptr::null_mut(), raw_channel, 0)
        });
        let ptr = match made {
            Ok(ptr) => ptr,
            Err(errno) => {
                if let Some(channel) = channel {
                    // SAFETY: the channel was made above and no CQ uses it.
                    let _ = unsafe { verbs.destroy_comp_channel(channel.0.as_ptr()) };
                }
                return Err(errno);
            }
        };
        // SAFETY: the library just made the CQ; it is valid until it is destroyed.
        let capacity = u32::try_from(unsafe { ptr.as_ref().cqe }).unwrap_or(0);
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Ok(CqHandle {
            context: context.clone(),
            ptr,
            channel,
            destroyed: false,
            room: Arc::new(Room::new(capacity)),
            attention: Arc::default(),
            queues: Mutex::new(Queues {
                slots: Slots::new(NEXT.fetch_add(1, Relaxed)),
                table: Arc::default(),
            }),
            closed: Arc::default(),
            unacknowledged: AtomicU32::new(0),
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.ptr.as_ptr()
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // They are valid after every single operation on them.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a slot and `entries` of room. Returns the slot and the sequence that its queue starts with; `None` when
    /// there is not so much room.
    pub(crate) fn reserve(&self, entries: u32) -> Option<(u32, u64)> {
        if !self.room.reserve(entries) {
            return None;
        }
        let taken = self.queues().slots.take();
        if taken.is_none() {
            self.room.release(entries);
        }
        taken
    }

    /// Gives a slot and its room back; `next` is the sequence at which the next queue in it starts.
    pub(crate) fn release(&self, slot: u32, entries: u32, next: u64) {
        self.room.release(entries);
        self.queues().slots.give_back(slot, next);
    }

    /// The table, with a place for a queue, which is opened, and with those of the queues that the poller holds. It holds
    /// each until its place is another's.
    pub(super) fn enter<'a>(
        &self,
        queue: &Queue,
        held: impl Iterator<Item = &'a Arc<Queue>>,
    ) -> Arc<Table> {
        let mut queues = self.queues();
        let places = queues.slots.places();
        queues.table = queues.table.grown(places, held);
        queues.table.open(queue);
        queues.table.clone()
    }

    /// Keeps the poller from the short way to a queue that was reset, which its books know already.
    pub(super) fn close(&self, queue: &Queue) {
        self.queues().table.close(queue);
        // After the place, so that who sees this sees that too.
        self.closed.store(1, SeqCst);
    }

    /// Asks for one event at the next completion.
    pub(crate) fn arm(&self) -> Result<(), Errno> {
        // SAFETY: the CQ is live (invariant 1).
        status(unsafe { ops::ibv_req_notify_cq(self.as_ptr(), 0) })
    }

    /// The descriptor that is readable when an event waits.
    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the channel is live as long as self, and so is its descriptor.
        self.channel
            .as_ref()
            .map(|channel| unsafe { BorrowedFd::borrow_raw(channel.0.as_ref().fd) })
    }

    /// Takes one event off the channel. Blocks if none waits and the descriptor is blocking.
    pub(crate) fn take_event(&self) -> Result<(), Errno> {
        let channel = self.channel.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        let mut cq = ptr::null_mut();
        let mut user = ptr::null_mut();
        let verbs = &self.context.verbs;
        // SAFETY: the channel is live; both places are pointers of the right type. The channel belongs to this CQ alone,
        // so the event is of this CQ.
        status(unsafe { verbs.get_cq_event(channel.0.as_ptr(), &mut cq, &mut user) })?;
        if self.unacknowledged.fetch_add(1, Relaxed) + 1 >= ACKNOWLEDGE_AFTER {
            self.acknowledge();
        }
        Ok(())
    }

    /// Acknowledges all events taken so far.
    fn acknowledge(&self) {
        let events = self.unacknowledged.swap(0, Relaxed);
        if events != 0 {
            // SAFETY: the CQ is live, and so many of its events were taken and not acknowledged.
            unsafe { self.context.verbs.ack_cq_events(self.as_ptr(), events) };
        }
    }
}

impl CqHandle {
    /// Destroys the CQ and its channel, and says whether that worked. No QP uses it: the caller has the only `Arc`.
    pub(crate) fn destroy(&mut self) -> Result<(), Errno> {
        let verbs = self.context.verbs;
        if !self.destroyed {
            self.acknowledge();
            // SAFETY: the CQ is live (`destroyed`), its QPs held an Arc to it and are gone (invariant 2), and no event is
            // unacknowledged.
            status(unsafe { verbs.destroy_cq(self.as_ptr()) })?;
            self.destroyed = true;
        }
        if let Some(channel) = &self.channel {
            // SAFETY: the channel is live as long as it is in its place, and its only CQ is destroyed.
            status(unsafe { verbs.destroy_comp_channel(channel.0.as_ptr()) })?;
            self.channel = None;
        }
        Ok(())
    }
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        if let Err(errno) = self.destroy() {
            tracing::error!(device = %self.context.name, %errno, "a completion queue could not be destroyed and stays");
            std::mem::forget(self.context.clone());
        }
    }
}
