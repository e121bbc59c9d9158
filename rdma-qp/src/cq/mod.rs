//! Completion queues: polling, waiting, and what completions say.
//!
//! A [`Cq`] has one owner, who polls it: it can move to another thread, but not be shared. It keeps the books of the
//! queues that report to it, and hands out every completion once, either by [`Cq::poll`] or by [`Cq::wait`].

mod batch;
mod books;
mod close;
mod completion;
mod drain;
mod events;
mod srq;
mod usual;
mod wait;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rdma_core_sys::ibv_cq;

pub use batch::{Completions, Row};
pub use close::CloseCqError;
pub use completion::{Completion, Failure, Root, Sender, Success, Ticket};
pub use events::Armed;
pub(crate) use srq::SrqUser;
pub use usual::{Quick, Usual};
pub use wait::WaitError;

use crate::account::Queue;
use crate::errno::Errno;
use crate::qp::QpInfo;
use crate::raw::cq::CqHandle;
use crate::raw::intake::Intake;
use crate::raw::pd::PdHandle;
use crate::report::FailureReport;
use crate::wr_id;
use books::{Booked, Entry, Poller, success};

/// A completion queue could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateCqError {
    /// The number of entries is not possible.
    #[error("a CQ of {entries} entries is not possible: the device allows 1 to {max}")]
    Entries {
        /// Entries asked for.
        entries: u32,
        /// Most entries that the device allows.
        max: u32,
    },
    /// The library refused.
    #[error("{device} did not create a CQ of {entries} entries: {source}")]
    Refused {
        /// The device.
        device: String,
        /// Entries asked for.
        entries: u32,
        /// What the library said.
        source: Errno,
    },
}

/// The CQ does not work any more, or its channel does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// Polling failed: the CQ overran, or the device is gone.
    #[error(
        "polling a CQ of {device} failed: {source}; it has overrun or the device is gone: destroy it and its QPs"
    )]
    Cq {
        /// The device.
        device: String,
        /// What the library said.
        source: Errno,
    },
    /// The completion channel failed.
    #[error("the completion channel of a CQ of {device} failed: {source}")]
    Channel {
        /// The device.
        device: String,
        /// What the system said.
        source: Errno,
    },
    /// The CQ was created without a channel.
    #[error("this CQ has no completion channel: create it with create_event_cq")]
    NoChannel,
}

/// A completion queue.
///
/// ```
/// use rdma_qp::Device;
/// let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// let cq = device.create_cq(16)?;
/// assert!(cq.poll()?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cq {
    handle: Arc<CqHandle>,
    /// Tells it apart from the other CQs of the process.
    id: u32,
    intake: Intake,
    poller: RefCell<Poller>,
    /// What [`Cq::poll`] came to on its long way.
    found: Cell<Option<Completion>>,
    /// The request whose completion the long way handed out last, and what the user keeps beside it.
    context: Cell<(u64, u64)>,
    /// How long a wait polls before it sleeps.
    spin: Cell<Duration>,
    failed: Cell<Option<PollError>>,
}

/// What the long way of [`Cq::poll`] came to.
enum Polled {
    Nothing,
    Found,
    Failed,
}

impl Cq {
    pub(crate) fn new(handle: Arc<CqHandle>) -> Cq {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let poller = Poller {
            entries: Default::default(),
            stash: VecDeque::with_capacity(handle.room.capacity as usize),
            drained: Default::default(),
            srqs: Default::default(),
            stale: 0,
        };
        Cq {
            intake: Intake::new(&handle),
            handle,
            id: NEXT.fetch_add(1, Relaxed),
            poller: RefCell::new(poller),
            found: Cell::new(None),
            // No request has that number: no queue has such a slot.
            context: Cell::new((wr_id::NOBODY, 0)),
            spin: Cell::default(),
            failed: Cell::new(None),
        }
    }

    pub(crate) fn handle(&self) -> &Arc<CqHandle> {
        &self.handle
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Name of the device that it is of.
    pub fn device(&self) -> &str {
        &self.handle.context.name
    }

    /// The verbs object, for calls that this library does not have. It is destroyed with the last QP that reports to it.
    ///
    /// Polling it through the pointer takes completions away from the books.
    pub fn as_ptr(&self) -> *mut ibv_cq {
        self.handle.as_ptr()
    }

    /// Completions that it has room for.
    pub fn capacity(&self) -> u32 {
        self.handle.room.capacity
    }

    /// Completions that it has room for beyond what is promised to QPs.
    pub fn unreserved(&self) -> u32 {
        self.handle.room.unreserved()
    }

    /// Completions seen so far that belonged to no outstanding request: leftovers of QPs that were reset or destroyed,
    /// or of requests that were not posted through this library.
    pub fn stale(&self) -> u64 {
        self.poller.borrow().stale
    }

    /// Takes everything off the device's queue, so that what former QPs left there takes no room of new ones.
    pub(crate) fn settle(&self) -> Result<(), PollError> {
        let mut poller = self.poller.borrow_mut();
        while let Some(done) = self.next(&mut poller)? {
            poller.keep(&self.intake, done);
        }
        self.keep_rest(&mut poller);
        Ok(())
    }

    /// Enters a queue of a new QP.
    pub(crate) fn enter(&self, queue: &Arc<Queue>, info: &Arc<QpInfo>, pd: &Arc<PdHandle>) {
        let mut poller = self.poller.borrow_mut();
        self.intake.enter(&self.handle, queue);
        let entry = Entry {
            info: info.clone(),
            pd: Arc::downgrade(pd),
            root: None,
        };
        poller.entries.insert(queue.slot, entry);
        poller.drop_stale(&self.intake);
    }

    /// Takes the next completion. `None`: there is none at present. Does not wait.
    ///
    /// # Errors
    /// The CQ does not work any more.
    #[inline(always)]
    pub fn poll(&self) -> Result<Option<Completion>, PollError> {
        self.poll_as::<Completion>()
    }

    /// [`Cq::poll`] for functions of this crate that are compiled with it: they have a long way of their own, so that each program
    /// has one, too, which it calls directly.
    pub(crate) fn poll_inside(&self) -> Result<Option<Completion>, PollError> {
        struct Inside;
        self.poll_as::<Inside>()
    }

    #[inline(always)]
    fn poll_as<R>(&self) -> Result<Option<Completion>, PollError> {
        // What is usual: the next request of a queue, and it succeeded.
        if let Some(taken) = self.intake.look() {
            return Ok(Some(success(self.id, &taken)));
        }
        // The result comes by way of a cell, so that the compiler need not put the usual one into memory too.
        match self.poll_on::<R>() {
            Polled::Nothing => Ok(None),
            Polled::Found => Ok(self.found.get()),
            Polled::Failed => Err(self.failed.take().unwrap_or(PollError::NoChannel)),
        }
    }

    /// The way of [`Cq::poll`] for everything else.
    ///
    /// It has a parameter so that it is compiled along with its caller, who then calls it directly.
    #[allow(clippy::extra_unused_type_parameters)]
    #[cold]
    #[inline(never)]
    fn poll_on<R>(&self) -> Polled {
        if let Some(taken) = self.intake.look_on() {
            self.found.set(Some(success(self.id, &taken)));
            return Polled::Found;
        }
        if self.intake.is_empty() && !self.is_asked_for_regions() {
            return Polled::Nothing;
        }
        match self.poll_unusual() {
            Ok(None) => Polled::Nothing,
            Ok(found) => {
                self.found.set(found);
                Polled::Found
            }
            Err(error) => {
                self.failed.set(Some(error));
                Polled::Failed
            }
        }
    }

    /// Whether regions that wait to be freed are to be looked at, on the long way.
    fn is_asked_for_regions(&self) -> bool {
        self.handle.attention.load(Relaxed) && self.intake.progress()
    }

    pub(crate) fn intake_mut(&mut self) -> &mut Intake {
        &mut self.intake
    }

    fn poll_unusual(&self) -> Result<Option<Completion>, PollError> {
        let poller = &mut *self.poller.borrow_mut();
        if let Some(kept) = poller.next_kept(&self.intake) {
            return Ok(Some(self.hand_out(kept)));
        }
        self.intake.go_on();
        let next = self.next(poller)?;
        if next.is_none() {
            self.look_after_regions(poller);
        }
        Ok(next.map(|booked| self.hand_out(booked)))
    }

    /// Notes what the user keeps beside the request, for [`Cq::context`].
    fn hand_out(&self, booked: Booked) -> Completion {
        let done = booked.done;
        self.context.set((done.ticket.wr_id(), booked.context));
        done
    }

    /// The next completion of a request of the application's, booked, but not handed out yet.
    fn next(&self, poller: &mut Poller) -> Result<Option<Booked>, PollError> {
        loop {
            let taken = self.intake.take().map_err(|errno| self.broken(errno))?;
            let Some(wc) = taken else {
                return Ok(None);
            };
            let booked = poller.book(&self.intake, self.id, &wc);
            if booked.is_some() {
                return Ok(booked);
            }
        }
    }

    /// Keeps what is left of the batch, see [`Poller::stash`], if anything is kept.
    fn keep_rest(&self, poller: &mut Poller) {
        if poller.stash.is_empty() {
            self.intake.go_on();
            return;
        }
        while let Some(wc) = self.intake.take_taken() {
            if let Some(done) = poller.book(&self.intake, self.id, &wc) {
                poller.keep(&self.intake, done);
            }
        }
        self.intake.wait();
    }

    #[cold]
    fn broken(&self, source: Errno) -> PollError {
        PollError::Cq {
            device: self.device().to_owned(),
            source,
        }
    }

    /// Frees the regions that only waited for queues that report here, if some may do, and if there were completions since.
    fn look_after_regions(&self, poller: &Poller) {
        // What a region waits for is progress.
        if self.handle.attention.load(Relaxed)
            && self.intake.take_progress()
            && self.handle.attention.swap(false, Relaxed)
        {
            self.sweep(poller);
        }
    }

    /// Frees the regions that only waited for queues that report here.
    #[cold]
    fn sweep(&self, poller: &Poller) {
        let mut swept: Vec<u64> = Vec::new();
        for pd in poller
            .entries
            .values()
            .filter_map(|entry| entry.pd.upgrade())
            .chain(poller.srqs.pds())
        {
            if !swept.contains(&pd.id) {
                swept.push(pd.id);
                pd.sweep();
            }
        }
    }
}

impl Cq {
    /// All that the library knows about a failed request: which operation, towards whom, and what the usual cause is.
    /// `None`: the completion is no failure, or not of this CQ. Ask before the QP is reset or destroyed: afterwards its
    /// path and its books are gone, and the report has only what the completion itself says.
    pub fn explain(&self, completion: &Completion) -> Option<FailureReport> {
        let failure = completion.outcome.err()?;
        let poller = self.poller.borrow();
        (completion.cq == self.id).then(|| poller.report(&self.intake, completion, failure))
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Cq({} of {} entries on {})",
            self.id,
            self.capacity(),
            self.device()
        )
    }
}
