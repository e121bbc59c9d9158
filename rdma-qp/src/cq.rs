//! Completion queues: polling, waiting, and what completions say.
//!
//! A [`Cq`] has one owner, who polls it: it can move to another thread, but not be shared. It keeps the books of the
//! queues that report to it, and hands out every completion once, either by [`Cq::poll`] or by [`Cq::wait`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use rdma_core_sys::{
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_wc, ibv_wc_status,
};

use crate::account::{Ending, Operation, Queue, Retired};
use crate::deadline::Deadline;
use crate::errno::Errno;
use crate::fd;
use crate::qp::QpInfo;
use crate::raw::cq::CqHandle;
use crate::raw::pd::PdHandle;
use crate::report::FailureReport;
use crate::wr_id::{self, Prefix, QueueKind};

/// Completions taken from the device by one call.
const BATCH: usize = 16;

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

/// Waiting for one request did not end with its success.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The request failed or was flushed.
    #[error(transparent)]
    Failed(Box<FailureReport>),
    /// It was not done in time. It is still under way.
    #[error(
        "{queue} request {ticket} of QP {qp_num:#x} is not done yet, and the deadline has passed ({pending} requests of that queue are outstanding)"
    )]
    TimedOut {
        /// The request.
        ticket: Ticket,
        /// Its queue.
        queue: QueueKind,
        /// Its QP.
        qp_num: u32,
        /// Requests of that queue without an outcome.
        pending: u64,
    },
    /// Its completion was already handed out.
    #[error("the completion of request {0} was already taken, by poll or wait")]
    Taken(Ticket),
    /// The QP was reset or destroyed: the request was thrown away and has no outcome.
    #[error("request {0} was thrown away: its QP was reset or destroyed after the post")]
    Discarded(Ticket),
    /// The request reports to another CQ.
    #[error("request {0} does not report to this CQ")]
    OtherCq(Ticket),
    /// The CQ does not work any more.
    #[error(transparent)]
    Poll(#[from] PollError),
}

/// The name of one accepted request, to wait for it or to find its completion.
///
/// Two tickets are equal if they name the same request. A ticket may be dropped or forgotten; it holds nothing.
#[derive(Clone, Copy)]
pub struct Ticket {
    /// Id of the CQ.
    cq: u32,
    /// Kind of queue and slot, as in the `wr_id`.
    queue: u32,
    /// The sequence; the top bit says that the request is not signaled.
    sequence: u64,
}

const SILENT: u64 = 1 << 63;

impl Ticket {
    #[inline]
    pub(crate) fn new(cq: u32, queue: &Queue, sequence: u64, signaled: bool) -> Ticket {
        let silent = if signaled { 0 } else { SILENT };
        Ticket {
            cq,
            queue: queue.prefix.short(),
            sequence: sequence | silent,
        }
    }

    /// The `wr_id` that the request went to the device with.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        Prefix::from_short(self.queue).wr_id(self.sequence)
    }

    #[inline]
    fn sequence(&self) -> u64 {
        self.sequence & !SILENT
    }

    fn key(&self) -> (u32, u32, u64) {
        (self.cq, self.queue, self.sequence())
    }
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Ticket) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ticket {}

impl Hash for Ticket {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({self})")
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (wr_id {:#x})", self.sequence(), self.wr_id())
    }
}

/// One request is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which request.
    pub ticket: Ticket,
    /// Number of its QP.
    pub qp_num: u32,
    /// Its queue.
    pub queue: QueueKind,
    /// How it ended.
    pub outcome: Result<Success, Failure>,
}

/// A request that ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Success {
    /// What it asked for.
    pub operation: Operation,
    /// Bytes received (receives), or read (READ, atomics). 0 for other requests.
    pub byte_len: u32,
    /// Immediate data that came with it (receives), in host byte order.
    pub imm: Option<u32>,
    /// A receive was consumed by an RDMA WRITE with immediate: the data is in the region that the peer wrote to, not
    /// in the buffer of the receive.
    pub by_write: bool,
}

/// A request that failed or was flushed.
///
/// Of such a completion a device promises `wr_id`, status, QP and vendor error only, so that is all that there is here;
/// queue and operation are known because the library keeps its own record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Why.
    pub status: ibv_wc_status,
    /// The vendor's own code.
    pub vendor_err: u32,
    /// What it asked for, from the library's record.
    pub operation: Operation,
    /// For a flushed request: the first request of that queue that failed by itself, if one did. A QP that the
    /// application, or the peer's fault on the other queue, moved to the error state has none.
    pub root: Option<Root>,
}

impl Failure {
    /// Whether it was flushed, rather than failed by itself.
    pub fn is_flush(&self) -> bool {
        self.status == IBV_WC_WR_FLUSH_ERR
    }
}

/// The failure that the flushes after it come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The request that failed.
    pub ticket: Ticket,
    /// Why.
    pub status: ibv_wc_status,
    /// The vendor's own code.
    pub vendor_err: u32,
    /// What it asked for.
    pub operation: Operation,
}

/// A queue that reports here.
struct Entry {
    queue: Arc<Queue>,
    info: Arc<QpInfo>,
    pd: std::sync::Weak<PdHandle>,
    root: Option<Root>,
}

/// What only the owner of the CQ touches.
struct Poller {
    /// By slot.
    table: Vec<Option<Entry>>,
    /// Completions taken from the device and not looked at: `batch[next..filled]`.
    batch: [ibv_wc; BATCH],
    next: usize,
    filled: usize,
    /// Completions looked at while waiting for another one.
    stash: VecDeque<(Completion, Retired)>,
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
    poller: RefCell<Poller>,
    /// Completions that belonged to no outstanding request.
    stale: Cell<u64>,
}

impl Cq {
    pub(crate) fn new(handle: Arc<CqHandle>) -> Cq {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let poller = Poller {
            table: Vec::new(),
            batch: [ibv_wc::zeroed(); BATCH],
            next: 0,
            filled: 0,
            stash: VecDeque::with_capacity(handle.capacity as usize),
        };
        Cq {
            handle,
            id: NEXT.fetch_add(1, Relaxed),
            poller: RefCell::new(poller),
            stale: Cell::new(0),
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

    /// Completions that it has room for.
    pub fn capacity(&self) -> u32 {
        self.handle.capacity
    }

    /// Completions that it has room for beyond what is promised to QPs.
    pub fn unreserved(&self) -> u32 {
        self.handle.unreserved()
    }

    /// Completions seen so far that belonged to no outstanding request: leftovers of QPs that were reset or destroyed,
    /// or of requests that were not posted through this library.
    pub fn stale(&self) -> u64 {
        self.stale.get()
    }

    /// Takes everything off the device's queue, so that what former QPs left there takes no room of new ones.
    pub(crate) fn settle(&self) -> Result<(), PollError> {
        let mut poller = self.poller.borrow_mut();
        while let Some(done) = self.next(&mut poller)? {
            poller.stash.push_back(done);
        }
        Ok(())
    }

    /// Enters a queue of a new QP.
    pub(crate) fn enter(&self, queue: &Arc<Queue>, info: &Arc<QpInfo>, pd: &Arc<PdHandle>) {
        let mut poller = self.poller.borrow_mut();
        let slot = queue.slot as usize;
        if poller.table.len() <= slot {
            poller.table.resize_with(slot + 1, || None);
        }
        let (queue, info, pd) = (queue.clone(), info.clone(), Arc::downgrade(pd));
        poller.table[slot] = Some(Entry {
            queue,
            info,
            pd,
            root: None,
        });
        let Poller { table, stash, .. } = &mut *poller;
        stash.retain(|(done, _)| {
            find(table, done.ticket.wr_id())
                .is_some_and(|e| !e.queue.is_stale(done.ticket.sequence()))
        });
    }

    /// Takes the next completion. `None`: there is none at present. Does not wait.
    ///
    /// # Errors
    /// The CQ does not work any more.
    #[inline]
    pub fn poll(&self) -> Result<Option<Completion>, PollError> {
        let poller = &mut *self.poller.borrow_mut();
        while let Some((done, retired)) = poller.stash.pop_front() {
            if release(&poller.table, &done, retired) {
                return Ok(Some(done));
            }
        }
        while self.refill(poller)? {
            let wc = &poller.batch[poller.next];
            poller.next += 1;
            match book(&mut poller.table, self.id, wc) {
                Some((done, retired, queue)) if queue.release(retired) => return Ok(Some(done)),
                Some(_) => {}
                None => self.stale.set(self.stale.get() + 1),
            }
        }
        Ok(None)
    }

    /// Sees to it that there is a completion to look at. `false`: the device has none.
    #[inline]
    fn refill(&self, poller: &mut Poller) -> Result<bool, PollError> {
        if poller.next < poller.filled {
            return Ok(true);
        }
        if self.handle.sweep.load(Relaxed) {
            self.sweep(poller);
        }
        (poller.next, poller.filled) = (0, 0);
        match self.handle.poll(&mut poller.batch) {
            Ok(filled) => poller.filled = filled,
            Err(source) => return Err(self.broken(source)),
        }
        Ok(poller.filled != 0)
    }

    /// The next completion that belongs to an outstanding request, booked, but not handed out yet.
    fn next(&self, poller: &mut Poller) -> Result<Option<(Completion, Retired)>, PollError> {
        while self.refill(poller)? {
            let wc = &poller.batch[poller.next];
            poller.next += 1;
            match book(&mut poller.table, self.id, wc) {
                Some((done, retired, _)) => return Ok(Some((done, retired))),
                None => self.stale.set(self.stale.get() + 1),
            }
        }
        Ok(None)
    }

    #[cold]
    fn broken(&self, source: Errno) -> PollError {
        PollError::Cq {
            device: self.device().to_owned(),
            source,
        }
    }

    /// Frees the regions that only waited for queues that report here.
    #[cold]
    fn sweep(&self, poller: &Poller) {
        self.handle.sweep.store(false, Relaxed);
        let mut swept: Vec<u64> = Vec::new();
        for pd in poller
            .table
            .iter()
            .flatten()
            .filter_map(|entry| entry.pd.upgrade())
        {
            if !swept.contains(&pd.id) {
                swept.push(pd.id);
                pd.sweep();
            }
        }
    }

    /// Waits until `ticket` is done, and takes its completion. Completions of other requests that come in meanwhile are
    /// kept for [`Cq::poll`] and later waits.
    ///
    /// A CQ with a channel sleeps; one without polls, at first busily, then with short naps.
    ///
    /// An unsignaled request has no completion of its own: it is done when a later one of its queue is.
    ///
    /// # Errors
    /// The request failed or was flushed, or is not done by `deadline`; see [`WaitError`].
    pub fn wait(
        &self,
        ticket: &Ticket,
        deadline: impl Into<Deadline>,
    ) -> Result<Success, WaitError> {
        let deadline = deadline.into();
        if ticket.cq != self.id {
            return Err(WaitError::OtherCq(*ticket));
        }
        let mut nap = Nap::new();
        loop {
            if let Some(result) = self.look_for(ticket)? {
                return result;
            }
            if self.handle.event_fd().is_some() {
                // Whatever came before the arming gives no event: look once more.
                let _ = self.arm()?;
                if let Some(result) = self.look_for(ticket)? {
                    return result;
                }
                if !self.sleep(deadline)? {
                    return self
                        .look_for(ticket)?
                        .unwrap_or_else(|| Err(self.too_late(ticket)));
                }
            } else if nap.due(deadline) {
                return Err(self.too_late(ticket));
            }
        }
    }

    fn too_late(&self, ticket: &Ticket) -> WaitError {
        let poller = self.poller.borrow();
        match find(&poller.table, ticket.wr_id()) {
            Some(entry) => WaitError::TimedOut {
                ticket: *ticket,
                queue: entry.queue.kind,
                qp_num: entry.queue.qp_num(),
                pending: entry.queue.account().pending,
            },
            None => WaitError::Discarded(*ticket),
        }
    }

    /// The outcome of `ticket`, if it has one by now.
    fn look_for(&self, ticket: &Ticket) -> Result<Option<Result<Success, WaitError>>, PollError> {
        let mut poller = self.poller.borrow_mut();
        let poller = &mut *poller;
        let mut found = poller
            .stash
            .iter()
            .position(|(done, _)| done.ticket == *ticket);
        while found.is_none() {
            let Some(done) = self.next(poller)? else {
                break;
            };
            if done.0.ticket == *ticket {
                found = Some(poller.stash.len());
            }
            poller.stash.push_back(done);
        }
        if let Some((done, retired)) = found.and_then(|at| poller.stash.remove(at)) {
            return Ok(Some(if release(&poller.table, &done, retired) {
                done.outcome.map_err(|failure| {
                    WaitError::Failed(Box::new(report(&poller.table, &done, failure)))
                })
            } else {
                Err(WaitError::Discarded(*ticket))
            }));
        }
        let Some(entry) = find(&poller.table, ticket.wr_id()) else {
            return Ok(Some(Err(WaitError::Discarded(*ticket))));
        };
        let (queue, sequence) = (&entry.queue, ticket.sequence());
        if queue.is_stale(sequence) {
            return Ok(Some(Err(WaitError::Discarded(*ticket))));
        }
        if !queue.is_retired(sequence) {
            return Ok(None);
        }
        // It has an outcome, and no completion here. Unsignaled requests before the first failure succeeded silently.
        let silent = ticket.sequence & SILENT != 0
            && queue.first_error().is_none_or(|error| sequence < error);
        Ok(Some(if silent {
            let operation = queue.operation(sequence);
            Ok(Success {
                operation,
                byte_len: 0,
                imm: None,
                by_write: false,
            })
        } else {
            Err(WaitError::Taken(*ticket))
        }))
    }

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
            poller.stash.push_back(done);
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
    fn sleep(&self, deadline: Deadline) -> Result<bool, PollError> {
        let fd = self.handle.event_fd().ok_or(PollError::NoChannel)?;
        let woken = fd::wait_readable(fd, deadline).map_err(|source| self.channel(source))?;
        if woken {
            self.take_events()?;
        }
        Ok(woken)
    }

    /// Waits for any completion until `deadline`, and takes it. `None`: there was none.
    ///
    /// # Errors
    /// The CQ does not work any more.
    pub fn wait_any(&self, deadline: impl Into<Deadline>) -> Result<Option<Completion>, PollError> {
        let deadline = deadline.into();
        let mut nap = Nap::new();
        loop {
            if let Some(done) = self.poll()? {
                return Ok(Some(done));
            }
            if self.handle.event_fd().is_some() {
                if self.arm()? == Armed::Sleep && !self.sleep(deadline)? {
                    return self.poll();
                }
            } else if nap.due(deadline) {
                return Ok(None);
            }
        }
    }

    /// All that the library knows about a failed request: which operation, towards whom, and what the usual cause is.
    /// `None`: the completion is no failure, or not of this CQ.
    pub fn explain(&self, completion: &Completion) -> Option<FailureReport> {
        let failure = completion.outcome.err()?;
        let poller = self.poller.borrow();
        (completion.ticket.cq == self.id).then(|| report(&poller.table, completion, failure))
    }
}

/// A CQ was not destroyed. It is inside the error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseCqError {
    /// QPs still report to it.
    #[error("the CQ is still used by {}", names(.qps))]
    Busy {
        /// The CQ.
        cq: Box<Cq>,
        /// Numbers of the QPs.
        qps: Vec<u32>,
    },
    /// The library refused.
    #[error("the CQ could not be destroyed: {source}")]
    Refused {
        /// The CQ.
        cq: Box<Cq>,
        /// What the library said.
        source: Errno,
    },
}

fn names(qps: &[u32]) -> String {
    qps.iter()
        .map(|n| format!("QP {n:#x}"))
        .collect::<Vec<_>>()
        .join(", ")
}

impl Cq {
    /// Destroys the CQ and says whether that worked. Dropping it instead destroys it when the last QP that reports to it
    /// is gone.
    ///
    /// # Errors
    /// QPs still report to it (the error says which), or the library refused.
    pub fn close(self) -> Result<(), CloseCqError> {
        let Cq {
            handle,
            id,
            poller,
            stale,
        } = self;
        let (again, reason) = match Arc::try_unwrap(handle) {
            Ok(mut handle) => match handle.destroy() {
                Ok(()) => return Ok(()),
                Err(source) => (Arc::new(handle), Err(source)),
            },
            Err(handle) => {
                let table = &poller.borrow().table;
                let live = table
                    .iter()
                    .flatten()
                    .filter(|entry| !entry.queue.is_ended());
                let mut qps: Vec<u32> = live.map(|entry| entry.queue.qp_num()).collect();
                qps.dedup();
                (handle, Ok(qps))
            }
        };
        let cq = Box::new(Cq {
            handle: again,
            id,
            poller,
            stale,
        });
        Err(match reason {
            Ok(qps) => CloseCqError::Busy { cq, qps },
            Err(source) => CloseCqError::Refused { cq, source },
        })
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

/// What [`Cq::arm`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// Something is there: poll.
    Ready,
    /// Nothing is there; the descriptor tells when something is.
    Sleep,
}

/// The queue that a `wr_id` belongs to.
#[inline]
fn find(table: &[Option<Entry>], id: u64) -> Option<&Entry> {
    let entry = table.get(wr_id::slot(id))?.as_ref()?;
    entry.queue.prefix.owns(id).then_some(entry)
}

/// Books a completion; with it comes its queue. `None`: it belongs to no outstanding request.
#[inline]
fn book<'t>(
    table: &'t mut [Option<Entry>],
    cq: u32,
    wc: &ibv_wc,
) -> Option<(Completion, Retired, &'t Queue)> {
    let entry = table.get_mut(wr_id::slot(wc.wr_id))?.as_mut()?;
    if !entry.queue.prefix.owns(wc.wr_id) {
        return None;
    }
    let ending = match wc.status {
        IBV_WC_SUCCESS => Ending::Success,
        IBV_WC_WR_FLUSH_ERR => Ending::Flush,
        _ => Ending::Error,
    };
    let retired = entry.queue.retire(wc.wr_id, ending)?;
    let operation = entry.queue.operation(retired.sequence);
    let ticket = Ticket::new(cq, &entry.queue, retired.sequence, true);
    let outcome = if ending == Ending::Success {
        let receives = matches!(operation, Operation::Recv);
        let returns = matches!(
            operation,
            Operation::Read | Operation::CompareSwap | Operation::FetchAdd
        );
        Ok(Success {
            operation,
            byte_len: if receives || returns { wc.byte_len } else { 0 },
            imm: if receives { wc.imm_data() } else { None },
            by_write: receives && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM,
        })
    } else {
        Err(fail(entry, ticket, wc, operation, ending))
    };
    Some((
        Completion {
            ticket,
            qp_num: entry.queue.qp_num(),
            queue: entry.queue.kind,
            outcome,
        },
        retired,
        &entry.queue,
    ))
}

/// The failure of a request, tied to the one that it comes from.
#[cold]
fn fail(
    entry: &mut Entry,
    ticket: Ticket,
    wc: &ibv_wc,
    operation: Operation,
    ending: Ending,
) -> Failure {
    let (status, vendor_err) = (wc.status, wc.vendor_err);
    // A root of a former life says nothing about this one.
    let root = entry
        .root
        .filter(|root| !entry.queue.is_stale(root.ticket.sequence()));
    entry.root = match ending {
        Ending::Flush => root,
        _ => Some(root.unwrap_or(Root {
            ticket,
            status,
            vendor_err,
            operation,
        })),
    };
    Failure {
        status,
        vendor_err,
        operation,
        root: if ending == Ending::Flush { root } else { None },
    }
}

/// Gives the room of a completion back, because the application gets it. `false`: its QP was reset or destroyed.
#[inline]
fn release(table: &[Option<Entry>], done: &Completion, retired: Retired) -> bool {
    find(table, done.ticket.wr_id()).is_some_and(|entry| entry.queue.release(retired))
}

fn report(table: &[Option<Entry>], done: &Completion, failure: Failure) -> FailureReport {
    let entry = find(table, done.ticket.wr_id());
    FailureReport::new(
        done,
        failure,
        entry.map(|entry| (&*entry.info, entry.queue.account())),
    )
}

/// How a wait without channel passes the time: busily for about a millisecond, then with naps.
struct Nap {
    turns: u32,
}

impl Nap {
    fn new() -> Nap {
        Nap { turns: 0 }
    }

    /// Passes some time. `true`: the deadline has passed.
    fn due(&mut self, deadline: Deadline) -> bool {
        self.turns = self.turns.saturating_add(1);
        match self.turns {
            0..64 => std::hint::spin_loop(),
            64..2048 => std::thread::yield_now(),
            _ => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
        // A look at the clock costs about as much as a poll: do it now and then while busy.
        (self.turns.is_multiple_of(32) || self.turns >= 2048) && deadline.passed()
    }
}
