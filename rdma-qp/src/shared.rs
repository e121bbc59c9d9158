//! One QP, many threads that post to it.
//!
//! A [`Qp`] has one poster. Threads that shall share it put their requests into a queue; whichever of them finds the QP
//! free posts everything that is in the queue, as one list with one doorbell, and looks again after it has let go of the
//! QP. So nobody waits for a lock, and the more threads post at a time, the more requests one doorbell is for.

use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use crossbeam_queue::ArrayQueue;

use crate::ah::Destination;
use crate::attach::Attachments;
use crate::cq::Completion;
use crate::mr::{Mr, OutOfRegion};
use crate::qp::op::{self, Op};
use crate::qp::{Doorbell, NOTHING, PostError, PostFlags, Qp, Rc, Transport, Uc, Ud};
use crate::wr_id::QueueKind;
use crate::xrc::XrcSend;

/// A range of a region that a request takes along: the region lives until the request is posted, and then as any other.
#[derive(Clone, Debug)]
pub struct SharedSlice {
    mr: Arc<Mr>,
    offset: usize,
    len: usize,
}

impl SharedSlice {
    /// The `len` bytes from `offset` of `mr`.
    ///
    /// # Errors
    /// They are not all inside the region.
    pub fn new(mr: &Arc<Mr>, offset: usize, len: usize) -> Result<SharedSlice, OutOfRegion> {
        mr.slice(offset, len)?;
        Ok(SharedSlice {
            mr: mr.clone(),
            offset,
            len,
        })
    }
}

/// Any operation that names nothing which it must not outlive: all but the binding of a window.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyOp {
    /// See [`op::Send`].
    Send(op::Send),
    /// See [`op::SendImm`].
    SendImm(op::SendImm),
    /// See [`op::SendInv`].
    SendInv(op::SendInv),
    /// See [`op::Write`].
    Write(op::Write),
    /// See [`op::WriteImm`].
    WriteImm(op::WriteImm),
    /// See [`op::Read`].
    Read(op::Read),
    /// See [`op::CompareSwap`].
    CompareSwap(op::CompareSwap),
    /// See [`op::FetchAdd`].
    FetchAdd(op::FetchAdd),
    /// See [`op::LocalInv`].
    LocalInv(op::LocalInv),
    /// [`op::SendTo`]: where to.
    SendTo(Destination),
    /// [`op::SendToImm`]: where to, and the immediate data.
    SendToImm(Destination, u32),
    /// [`op::Send`] of an XRC initiator.
    SendToSrq(op::ToSrq<op::Send>),
    /// [`op::SendImm`] of an XRC initiator.
    SendImmToSrq(op::ToSrq<op::SendImm>),
    /// [`op::SendInv`] of an XRC initiator.
    SendInvToSrq(op::ToSrq<op::SendInv>),
    /// [`op::Write`] of an XRC initiator.
    WriteToSrq(op::ToSrq<op::Write>),
    /// [`op::WriteImm`] of an XRC initiator.
    WriteImmToSrq(op::ToSrq<op::WriteImm>),
    /// [`op::Read`] of an XRC initiator.
    ReadToSrq(op::ToSrq<op::Read>),
    /// [`op::CompareSwap`] of an XRC initiator.
    CompareSwapToSrq(op::ToSrq<op::CompareSwap>),
    /// [`op::FetchAdd`] of an XRC initiator.
    FetchAddToSrq(op::ToSrq<op::FetchAdd>),
}

macro_rules! any_op {
    ($($variant:ident: $op:ty),+ $(,)?) => {
        $(impl From<$op> for AnyOp {
            fn from(op: $op) -> AnyOp {
                AnyOp::$variant(op)
            }
        })+
    };
}
any_op! {
    Send: op::Send,
    SendImm: op::SendImm,
    SendInv: op::SendInv,
    Write: op::Write,
    WriteImm: op::WriteImm,
    Read: op::Read,
    CompareSwap: op::CompareSwap,
    FetchAdd: op::FetchAdd,
    LocalInv: op::LocalInv,
    SendToSrq: op::ToSrq<op::Send>,
    SendImmToSrq: op::ToSrq<op::SendImm>,
    SendInvToSrq: op::ToSrq<op::SendInv>,
    WriteToSrq: op::ToSrq<op::Write>,
    WriteImmToSrq: op::ToSrq<op::WriteImm>,
    ReadToSrq: op::ToSrq<op::Read>,
    CompareSwapToSrq: op::ToSrq<op::CompareSwap>,
    FetchAddToSrq: op::ToSrq<op::FetchAdd>,
}

impl From<op::SendTo<'_>> for AnyOp {
    fn from(op: op::SendTo<'_>) -> AnyOp {
        AnyOp::SendTo(op.to.clone())
    }
}

impl From<op::SendToImm<'_>> for AnyOp {
    fn from(op: op::SendToImm<'_>) -> AnyOp {
        AnyOp::SendToImm(op.to.clone(), op.imm)
    }
}

/// Transports whose QPs can be shared: all that have a send queue.
pub trait Shared: Transport {
    /// Posts an operation that the transport has, as [`Qp::post_with`]; `None`: it has not.
    #[doc(hidden)]
    fn post_any(
        qp: &mut Qp<Self>,
        context: u64,
        op: &AnyOp,
        local: Option<&SharedSlice>,
        flags: PostFlags,
    ) -> Option<Result<crate::Ticket, PostError>>
    where
        Self: Sized;
}

/// Posts an operation on what a request brings along.
fn post<T: Transport, O: Op<T>>(
    qp: &mut Qp<T>,
    context: u64,
    op: O,
    local: Option<&SharedSlice>,
    flags: PostFlags,
) -> Result<crate::Ticket, PostError> {
    match local.map(|slice| slice.mr.slice(slice.offset, slice.len)) {
        Some(Ok(slice)) => qp.post_with(context, op, slice, flags),
        // A `SharedSlice` lies inside its region, so this is a request without local side.
        _ => qp.post_with(context, op, NOTHING, flags),
    }
}

macro_rules! shared {
    ($($transport:ident: $($op:ident),+;)+) => {$(
        impl Shared for $transport {
            fn post_any(
                qp: &mut Qp<Self>,
                context: u64,
                op: &AnyOp,
                local: Option<&SharedSlice>,
                flags: PostFlags,
            ) -> Option<Result<crate::Ticket, PostError>> {
                match op {
                    $(AnyOp::$op(op) => Some(post(qp, context, *op, local, flags)),)+
                    _ => None,
                }
            }
        }
    )+};
}
shared! {
    Rc: Send, SendImm, SendInv, Write, WriteImm, Read, CompareSwap, FetchAdd, LocalInv;
    Uc: Send, SendImm, Write, WriteImm, LocalInv;
    XrcSend: SendToSrq, SendImmToSrq, SendInvToSrq, WriteToSrq, WriteImmToSrq, ReadToSrq, CompareSwapToSrq, FetchAddToSrq, LocalInv;
}

impl Shared for Ud {
    fn post_any(
        qp: &mut Qp<Self>,
        context: u64,
        op: &AnyOp,
        local: Option<&SharedSlice>,
        flags: PostFlags,
    ) -> Option<Result<crate::Ticket, PostError>> {
        match op {
            AnyOp::SendTo(to) => Some(post(qp, context, op::SendTo { to }, local, flags)),
            AnyOp::SendToImm(to, imm) => {
                let op = op::SendToImm { to, imm: *imm };
                Some(post(qp, context, op, local, flags))
            }
            _ => None,
        }
    }
}

/// A request on its way to the QP.
struct Job {
    op: AnyOp,
    local: Option<SharedSlice>,
    flags: PostFlags,
    context: u64,
}

/// What whoever posts holds.
struct Poster<T: Transport> {
    qp: Qp<T>,
    contexts: Attachments<u64>,
    /// A request that was taken off the queue and found the send queue full.
    next: Option<Job>,
    refused: Vec<(u64, PostError)>,
}

struct Inner<T: Transport> {
    jobs: ArrayQueue<Job>,
    poster: Mutex<Poster<T>>,
    /// Somebody wants the requests in the queue posted: whoever has the poster does so after letting go of it.
    asked: AtomicBool,
}

/// The queue of requests is full: the QP is behind. Poll its CQ, tell [`SharedQp::finish`] what came, and try again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} requests wait for the QP already: poll its CQ, and try again")]
pub struct Behind {
    /// Requests that wait.
    pub waiting: usize,
}

/// A QP cannot be taken back ([`SharedQp::into_qp`]): something of it would be lost. The handle is as it was.
#[derive(Debug, thiserror::Error)]
#[error(
    "QP {qp_num:#x} is still shared: {handles} other handles, {waiting} requests that wait for room (poll its CQ and \
     advance), {refused} refused requests of which nobody took the reason"
)]
pub struct StillShared<T: Transport> {
    /// The handle.
    pub shared: SharedQp<T>,
    /// The number of the QP.
    pub qp_num: u32,
    /// Other handles.
    pub handles: usize,
    /// Requests that wait for room in the send queue.
    pub waiting: usize,
    /// Refused requests that [`SharedQp::take_refused`] would tell of.
    pub refused: usize,
}

/// A QP that many threads post to. Clones are handles on the same QP.
///
/// Each request has a `context` of the application's, which comes back with its completion ([`SharedQp::finish`], or
/// [`Cq::context`](crate::Cq::context)), or with the reason why it was not posted ([`SharedQp::take_refused`]). One thread
/// polls the CQ. Requests that wait when the last handle is dropped are dropped with it.
///
/// ```
/// # use rdma_qp::{op, Access, Device, Memory, PostFlags, SharedQp, SharedSlice};
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # let limit = Duration::from_secs(5);
/// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
/// # let gid = device.port(1)?.best_gid()?.entry();
/// # let (mut a, mut b) = (pd.rc(&cq).send_depth(64).create()?, pd.rc(&cq).create()?);
/// # let timing = rdma_qp::Timing::default();
/// # let peers = (a.endpoint(gid)?, b.endpoint(gid)?);
/// # let (of_a, of_b) = (rdma_qp::Peer { endpoint: peers.0, regions: vec![] }, rdma_qp::Peer { endpoint: peers.1, regions: vec![] });
/// # let begun = (a.connect_begin(&of_b, timing)?, b.connect_begin(&of_a, timing)?);
/// # a.connect_finish(begun.0, timing)?;
/// # b.connect_finish(begun.1, timing)?;
/// # let mr = Arc::new(pd.register(Memory::zeroed(4096), Access::REMOTE_WRITE)?);
/// # let remote = mr.remote();
/// let shared = SharedQp::new(a, 256);
/// std::thread::scope(|scope| {
///     for thread in 0..4u64 {
///         let (shared, mr) = (shared.clone(), mr.clone());
///         scope.spawn(move || {
///             let local = SharedSlice::new(&mr, 0, 8).unwrap();
///             let write = op::Write { remote: remote.at(64 + thread * 8) };
///             shared.post(write, local, PostFlags::empty(), thread).unwrap();
///         });
///     }
/// });
/// let mut done = Vec::new();
/// while done.len() < 4 {
///     let completion = cq.wait_any(limit)?.expect("four completions");
///     done.extend(shared.finish(&completion));
/// }
/// done.sort();
/// assert_eq!(done, [0, 1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedQp<T: Transport = Rc>(Arc<Inner<T>>);

impl<T: Transport> Clone for SharedQp<T> {
    fn clone(&self) -> SharedQp<T> {
        SharedQp(self.0.clone())
    }
}

/// Requests that one doorbell is for at most.
const LIST: u32 = 32;

impl<T: Shared> SharedQp<T> {
    /// Shares a QP; up to `waiting` requests wait for it.
    pub fn new(mut qp: Qp<T>, waiting: usize) -> SharedQp<T> {
        let mut refused = Vec::new();
        let contexts = qp.attachments(QueueKind::Send);
        // What waited for the doorbell before is not of this queue. `Poster::post` rings, so that no list is handed over within a
        // post.
        if let Err(error) = qp.set_lists(LIST + 1, 1) {
            refused.push((0, error));
        }
        let poster = Mutex::new(Poster {
            qp,
            contexts,
            next: None,
            refused,
        });
        SharedQp(Arc::new(Inner {
            jobs: ArrayQueue::new(waiting.max(1)),
            poster,
            asked: AtomicBool::new(false),
        }))
    }

    /// Gives a send request to the QP, with a `context` of the application's. Does not wait; it may post what others gave.
    ///
    /// The request is posted now or later: [`PostFlags::INLINE`] copies the bytes then, so they must stay until it is done. One
    /// that is [`PostFlags::UNSIGNALED`] may have a completion all the same, where nothing else would tell when there is room.
    ///
    /// # Errors
    /// Too many requests wait. Why a request was refused is told by [`SharedQp::take_refused`].
    pub fn post<O: Op<T> + Into<AnyOp>>(
        &self,
        op: O,
        local: impl Into<Option<SharedSlice>>,
        flags: PostFlags,
        context: u64,
    ) -> Result<(), Behind> {
        let mut job = Job {
            op: op.into(),
            local: local.into(),
            flags,
            context,
        };
        let Inner { jobs, .. } = &*self.0;
        // What is in the queue may be posted now, so that there is room.
        for _ in 0..2 {
            match jobs.push(job) {
                Ok(()) => {
                    self.advance();
                    return Ok(());
                }
                Err(back) => job = back,
            }
            self.advance();
        }
        Err(Behind {
            waiting: jobs.len(),
        })
    }

    /// Posts what waits, or has it posted by whoever is at it. Does not wait.
    pub fn advance(&self) {
        self.0.asked.store(true, SeqCst);
        self.serve();
    }

    /// Posts what waits, as long as anybody asks for it. Whoever had the poster calls this after letting go of it.
    ///
    /// Who asks finds the poster free, or finds it taken: then whoever has it lets go of it afterwards, and looks, after the
    /// fence, whether anybody asked.
    fn serve(&self) {
        fence(SeqCst);
        while self.0.asked.load(Relaxed) {
            let mut poster = match self.0.poster.try_lock() {
                Ok(poster) => poster,
                Err(TryLockError::WouldBlock) => return,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            };
            // Requests that were put into the queue before anybody asked are there now.
            self.0.asked.swap(false, SeqCst);
            poster.post(&self.0.jobs);
            drop(poster);
            fence(SeqCst);
        }
    }

    /// Takes the context of a completion of this QP, and posts what waited for room. `None`: the completion is of another
    /// QP, or of a receive, or [`SharedQp::finish_silent`] has taken the context.
    ///
    /// The contexts of unsignaled requests come back with [`SharedQp::finish_silent`].
    pub fn finish(&self, done: &Completion) -> Option<u64> {
        let (is_ours, context) = self.locked(|poster| {
            let is_ours = done.queue == QueueKind::Send && done.qp_num == poster.qp.qp_num();
            let context = is_ours.then(|| poster.contexts.take(&done.ticket));
            (is_ours, context.flatten())
        });
        if is_ours {
            self.advance();
        }
        context
    }

    /// Takes the context of the oldest request that has ended and whose context is not taken: of an unsignaled one, or of
    /// one that a reset threw away.
    ///
    /// It does not tell these from signaled ones whose completion was polled and not yet given to [`SharedQp::finish`], or is kept
    /// by the CQ, as after a wait: take all completions from the CQ, and give each to `finish`, first.
    pub fn finish_silent(&self) -> Option<u64> {
        self.locked(|poster| poster.contexts.take_ended())
    }

    /// Takes the context of a request that could not be posted, and the reason.
    pub fn take_refused(&self) -> Option<(u64, PostError)> {
        self.locked(|poster| poster.refused.pop())
    }

    /// Does something with the QP itself: posts receives, moves it, asks for its books. Others wait meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(&mut Qp<T>) -> R) -> R {
        let result = self.locked(|poster| f(&mut poster.qp));
        self.advance();
        result
    }

    /// Requests that wait for room in the send queue.
    pub fn waiting(&self) -> usize {
        let next = self.locked(|poster| usize::from(poster.next.is_some()));
        next + self.0.jobs.len()
    }

    /// Takes the QP back; the doorbell is for one request again. The contexts of requests that are under way come with their
    /// completions ([`Cq::context`](crate::Cq::context)).
    ///
    /// # Errors
    /// There are other handles, requests that wait for room, or refused requests that nobody was told of.
    pub fn into_qp(self) -> Result<Qp<T>, StillShared<T>> {
        self.advance();
        let waiting = self.waiting();
        let (qp_num, refused) = self.locked(|poster| (poster.qp.qp_num(), poster.refused.len()));
        let handles = Arc::strong_count(&self.0) - 1;
        let still = |shared, handles| StillShared {
            shared,
            qp_num,
            handles,
            waiting,
            refused,
        };
        if (handles, waiting, refused) != (0, 0, 0) {
            return Err(still(self, handles));
        }
        let inner = Arc::try_unwrap(self.0).map_err(|inner| still(SharedQp(inner), 1))?;
        let poster = inner.poster.into_inner();
        let Poster { mut qp, .. } = poster.unwrap_or_else(PoisonError::into_inner);
        // Nothing waits for the doorbell: each round of posting rings it at its end.
        let _ = qp.set_doorbell(Doorbell::Each, Doorbell::Each);
        Ok(qp)
    }

    /// Waits for the poster, and does something with it.
    fn locked<R>(&self, f: impl FnOnce(&mut Poster<T>) -> R) -> R {
        // Whoever panicked was the application's closure or had posted or refused its request by then.
        let mut poster = self.0.poster.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut poster);
        drop(poster);
        self.serve();
        result
    }
}

impl<T: Shared> Poster<T> {
    /// Posts requests off the queue until it is empty, or the send queue is full.
    fn post(&mut self, jobs: &ArrayQueue<Job>) {
        while let Some(job) = self.next.take().or_else(|| jobs.pop()) {
            let (local, flags) = (job.local.as_ref(), job.flags);
            match T::post_any(&mut self.qp, job.context, &job.op, local, flags) {
                Some(Ok(ticket)) => {
                    // Each request is the latest of its queue, so it takes its context.
                    let _ = self.contexts.attach(&ticket, job.context);
                    // What it brought along is let go of before it can be done.
                    drop(job);
                    if self.qp.waiting().0 >= LIST {
                        self.ring();
                    }
                }
                // All that is outstanding is unsignaled: this one must tell when there is room.
                Some(Err(PostError::QueueFull {
                    place_is_kept: true,
                    ..
                })) => {
                    let flags = job.flags - PostFlags::UNSIGNALED;
                    self.next = Some(Job { flags, ..job });
                }
                Some(Err(PostError::QueueFull { .. })) => {
                    self.next = Some(job);
                    break;
                }
                Some(Err(error)) => self.refuse(Some(job.context), error),
                // `SharedQp::post` takes only what the transport has.
                None => {}
            }
        }
        self.ring();
    }

    /// Hands over what waits for the doorbell.
    fn ring(&mut self) {
        if let Err(error) = self.qp.ring() {
            self.refuse(None, error);
        }
    }

    /// Notes that a request, and those that were handed over with it and refused, are not posted.
    fn refuse(&mut self, context: Option<u64>, error: PostError) {
        while let Some(context) = self.contexts.take_refused() {
            self.refused.push((context, error.clone()));
        }
        self.refused.extend(context.map(|context| (context, error)));
    }
}

impl<T: Transport> fmt::Debug for SharedQp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedQp({} requests wait)", self.0.jobs.len())
    }
}
