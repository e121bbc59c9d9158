//! The state machine over a real Queue Pair, a real clock and a real channel.

mod begin;
mod device;
mod steps;

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rdma_core_sys::{IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, rules};

use super::meeting::Sign;
use super::probes::{HEARTBEAT, Probes, heartbeat};
use super::wake::Wake;
use super::{Event, Ledger, Meeting, Message, Options, Proof, Report, Supervisor, Why};
use crate::account::Operation;
use crate::buffer::Buffer;
use crate::cq::{Armed, Completion, Cq, Failure, PollError, Ticket};
use crate::deadline::Deadline;
use crate::device::{AsyncEvent, Device, LOOK_AGAIN};
use crate::endpoint::Peer;
use crate::errno::Errno;
use crate::fd;
use crate::gid::GidEntry;
use crate::mr::MrSlice;
use crate::qp::{Fate, Op, PostError, PostFlags, Qp, Rc, RecvQueue};
use crate::wr_id::QueueKind;

/// How often the channel and the device's events are looked at while the connection is up and busy.
const LOOK_AROUND: Duration = Duration::from_millis(1);

/// Signs of the meeting that are taken in at a time: one that never ends keeps nobody beyond a deadline.
const SIGNS: usize = 64;

/// How long a device has to flush a Queue Pair.
const FLUSH: Duration = Duration::from_secs(2);

/// What [`Supervised::poll`] has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happened<C> {
    /// A request is done.
    Done(Message<C>),
    /// A message of the peer's arrived, or a WRITE with immediate data. Over a Queue Pair with an SRQ also: a receive of the SRQ's
    /// failed or was flushed, as its outcome says. Its SRQ has the buffer: post it again.
    Received(Completion),
    /// A probe of the peer's or the answer to one took this receive, where the transport acknowledges nothing: post it again.
    Heartbeat(Completion),
    /// A step in the life of the connection.
    Event(Event),
    /// The connection has ended, and this is what became of the requests that were not done. It follows
    /// [`Event::Dead`] as soon as the device has flushed the queues.
    Ended(Report<C>),
    /// Something happened to the device that is not of this connection alone: see [`Supervised::device_event`].
    Device(AsyncEvent),
}

/// The supervision has come to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperviseError {
    /// The CQ was made without a channel, so nothing could sleep until it has something.
    #[error("the CQ has no completion channel: create it with create_event_cq")]
    NoChannel,
    /// A queue of the QP reports elsewhere.
    #[error("the QP does not report to this CQ, or not with both queues")]
    OtherCq,
    /// The QP lets peers write nothing, so it would refuse probes, and end the connection by that.
    #[error(
        "the QP, or the XRC target, was made without Access::REMOTE_WRITE, which probes need: a region's own rights still decide who may write to it"
    )]
    NoRemoteWrite,
    /// The port does not exist, or cannot be asked.
    #[error("the port cannot be used: {0}")]
    Port(String),
    /// The device is gone, or does not work any more.
    #[error("{device} is gone or does not work any more: close everything, open it again")]
    DeviceRemoved {
        /// The device.
        device: String,
    },
    /// There was no connection for so long that it gave up.
    #[error("no connection within the time that Options::give_up allows")]
    GaveUp,
    /// The system refused.
    #[error("descriptors cannot be watched: {0}")]
    System(#[from] Errno),
}

/// A request was not posted. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPosted {
    /// There is no connection at present.
    #[error("there is no connection at present: wait for Event::Recovered")]
    Down,
    /// The Queue Pair did not take it.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// What posts the receives of each life.
type Receives<T> = Box<dyn FnMut(&mut Qp<T>) -> Result<(), PostError> + Send>;

/// A connection that is made, watched, and made anew when it fails. See [the module](super).
///
/// `C` is what the application gives along with each request, to know it again.
pub struct Supervised<C = u64, T: Probes = Rc> {
    /// Before the CQ, so that it is destroyed before.
    qp: Qp<T>,
    cq: Cq,
    device: Device,
    meeting: Box<dyn Meeting>,
    receives: Receives<T>,
    options: Options,
    machine: Supervisor,
    ledger: Ledger<C>,
    happened: VecDeque<Happened<C>>,
    origin: Instant,
    /// When to look at everything but the CQ.
    look_at: Duration,
    /// The meeting may have signs that were not taken in for now.
    more_signs: bool,
    /// The life of the Queue Pair is being ended, since then.
    ending: Option<Duration>,
    /// Why the connection ended, until that is told.
    why: Option<Why>,
    gid: Option<GidEntry>,
    there: Option<Peer>,
    beside: T::Beside,
    removed: bool,
    wake: Wake,
}

impl<C, T: Probes> Supervised<C, T> {
    /// Whether requests can be posted now.
    pub fn is_up(&self) -> bool {
        self.machine.is_up()
    }

    /// The peer of the present or last life, with the regions that it offers. A peer that was restarted has other ones.
    pub fn peer(&self) -> Option<&Peer> {
        self.there.as_ref()
    }

    /// The Queue Pair.
    pub fn qp(&self) -> &Qp<T> {
        &self.qp
    }

    /// Its CQ. Taking completions from it takes them away from the books.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Requests under way, probes included.
    pub fn under_way(&self) -> usize {
        self.ledger.len()
    }

    /// What a probe proves of the peer, on this transport.
    pub fn proof(&self) -> Proof {
        T::PROOF
    }

    /// Within which time the death of an idle peer is noticed; see [`Options::notices_within`].
    pub fn notices_within(&self) -> Duration {
        self.options.notices_within(T::PROOF)
    }

    /// Posts a request, see [`Qp::post`]. What becomes of it is told once, with `context`: by [`Happened::Done`], or by the
    /// report of the life that it was posted in.
    ///
    /// # Errors
    /// There is no connection at present, or the Queue Pair did not take it.
    pub fn post<'m, O: Op<T>>(
        &mut self,
        op: O,
        local: impl AsRef<[MrSlice<'m>]>,
        flags: PostFlags,
        context: C,
    ) -> Result<Ticket, NotPosted> {
        self.enter(context, |qp| qp.post(op, local, flags))
    }

    /// Posts a request of bytes that are copied during the call, see [`Qp::post_inline`].
    ///
    /// # Errors
    /// As [`Supervised::post`].
    pub fn post_inline<O: Op<T>>(
        &mut self,
        op: O,
        bytes: &[u8],
        flags: PostFlags,
        context: C,
    ) -> Result<Ticket, NotPosted> {
        self.enter(context, |qp| qp.post_inline(op, bytes, flags))
    }

    fn enter(
        &mut self,
        context: C,
        post: impl FnOnce(&mut Qp<T>) -> Result<Ticket, PostError>,
    ) -> Result<Ticket, NotPosted> {
        if !self.machine.is_up() {
            return Err(NotPosted::Down);
        }
        let ticket = post(&mut self.qp)?;
        // The sends alone: a refused receive would make this one look as if it were not posted.
        self.qp.ring_sends()?;
        let tells = ticket.is_signaled() && goes_out(ticket.operation());
        (self.ledger).posted(ticket, Some(context), tells);
        Ok(ticket)
    }

    /// Posts a receive, see [`Qp::recv`].
    ///
    /// # Errors
    /// There is no connection at present (each life begins with receives of its own), or the Queue Pair did not take it.
    pub fn recv<'m>(&mut self, local: impl AsRef<[MrSlice<'m>]>) -> Result<Ticket, NotPosted>
    where
        T: RecvQueue,
    {
        if !self.machine.is_up() {
            return Err(NotPosted::Down);
        }
        let ticket = self.qp.recv(local)?;
        self.qp.ring()?;
        Ok(ticket)
    }

    /// Posts a receive and keeps a number beside it, see [`Qp::recv_with`]; [`Cq::context`] of [`Supervised::cq`] has it until the
    /// next receive is posted.
    ///
    /// # Errors
    /// As [`Supervised::recv`].
    pub fn recv_with<'m>(
        &mut self,
        context: u64,
        local: impl AsRef<[MrSlice<'m>]>,
    ) -> Result<Ticket, NotPosted>
    where
        T: RecvQueue,
    {
        if !self.machine.is_up() {
            return Err(NotPosted::Down);
        }
        let ticket = self.qp.recv_with(context, local)?;
        self.qp.ring()?;
        Ok(ticket)
    }

    /// Posts a receive into a buffer, see [`Qp::recv_buffer`]. One that is not posted goes back to its pool.
    ///
    /// # Errors
    /// As [`Supervised::recv`].
    pub fn recv_buffer(&mut self, buffer: Buffer) -> Result<Ticket, NotPosted>
    where
        T: RecvQueue,
    {
        if !self.machine.is_up() {
            return Err(NotPosted::Down);
        }
        let posted = self.qp.recv_buffer(buffer).map_err(|not| not.error);
        let posted = posted.and_then(|ticket| self.qp.ring().map(|()| ticket));
        if posted.is_err() {
            let let_go = self.qp.receives_let_go();
            self.qp.give_back_receives(let_go);
        }
        Ok(posted?)
    }

    /// The buffer of a receive that [`Happened::Received`] or [`Happened::Heartbeat`] told. One of an SRQ is taken from
    /// [the SRQ](crate::Srq::take_buffer).
    pub fn take_buffer(&mut self, done: &Completion) -> Option<Buffer> {
        self.qp.take_buffer(done)
    }

    /// Ends the present life of the connection, as a failure would, and makes it anew.
    pub fn restart(&mut self) {
        let at = self.origin.elapsed();
        self.machine.down(at, Why::Asked);
        self.act(at);
    }

    /// Does what is to be done, and tells what happened next. `None`: nothing, for now. Never waits; call it as often as
    /// completions are wanted, or when the descriptor is readable ([`Supervised::arm`]).
    ///
    /// `now` is the present time, which a caller that polls often knows already.
    ///
    /// # Errors
    /// It has come to its end, and everything was told.
    pub fn poll(&mut self, now: Instant) -> Result<Option<Happened<C>>, SuperviseError> {
        if let Some(happened) = self.happened.pop_front() {
            return Ok(Some(happened));
        }
        let at = now.saturating_duration_since(self.origin);
        self.completions(at);
        if at >= self.look_at || !self.machine.is_up() {
            self.look_around(at);
        }
        if self.machine.next_timeout().is_some_and(|due| due <= at) {
            self.machine.handle_timeout(at);
            self.act(at);
        }
        match self.happened.pop_front() {
            Some(happened) => Ok(Some(happened)),
            None if self.removed && self.machine.is_over() => Err(SuperviseError::DeviceRemoved {
                device: self.device.name().to_owned(),
            }),
            None if self.machine.is_over() => Err(SuperviseError::GaveUp),
            None => Ok(None),
        }
    }

    /// Waits until something happened, until `deadline`. `None`: nothing did.
    ///
    /// # Errors
    /// As [`Supervised::poll`]; also where the system cannot wait.
    pub fn next(
        &mut self,
        deadline: impl Into<Deadline>,
    ) -> Result<Option<Happened<C>>, SuperviseError> {
        let deadline = deadline.into();
        loop {
            if let Some(happened) = self.poll(Instant::now())? {
                return Ok(Some(happened));
            }
            if deadline.passed() {
                return Ok(None);
            }
            if self.arm()? == Armed::Sleep {
                fd::wait_readable(self.wake.as_fd(), deadline)?;
                self.look_at = Duration::ZERO;
            }
        }
    }

    /// Prepares for sleeping on the descriptor of [`AsFd`], in any event loop: [`Armed::Sleep`]: it becomes readable when
    /// there is something to do, poll then; [`Armed::Ready`]: there is something now, poll first.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn arm(&mut self) -> Result<Armed, SuperviseError> {
        let at = self.origin.elapsed();
        // Whoever is woken looks at everything.
        self.look_at = Duration::ZERO;
        let kept = self.device.context().has_kept();
        if !self.happened.is_empty() || self.more_signs || self.machine.is_over() || kept {
            return Ok(Armed::Ready);
        }
        self.wake.follow(&*self.meeting)?;
        let armed = self.cq.take_events().and_then(|_| self.cq.arm());
        let due = [
            self.machine.next_timeout(),
            (self.meeting.poll_every()).map(|every| at.saturating_add(every)),
            self.ending.map(|_| at + LOOK_AROUND),
            // Whoever drains a QP with an SRQ meanwhile may take the event off the descriptor, and keep it.
            (self.machine.misses_port()).then(|| at + LOOK_AGAIN),
        ];
        let due = due.into_iter().flatten().min();
        self.wake.at(at, due)?;
        match armed {
            Ok(Armed::Sleep) if due.is_none_or(|due| due > at) => Ok(Armed::Sleep),
            // What is broken is told by the next poll.
            _ => Ok(Armed::Ready),
        }
    }

    /// Something happened to the device. It reads the device's events itself; where several connections are on one open
    /// device, whichever reads an event tells it by [`Happened::Device`], and the application hands it to the others here.
    pub fn device_event(&mut self, event: &AsyncEvent) {
        let at = self.origin.elapsed();
        self.note(at, event);
    }

    fn look_around(&mut self, at: Duration) {
        self.look_at = at + LOOK_AROUND;
        self.device_events(at);
        if self.ending.is_some() {
            self.go_on_ending(at);
        }
        self.more_signs = false;
        for _ in 0..SIGNS {
            let Some(sign) = self.meeting.poll() else {
                return;
            };
            match sign {
                Sign::Met => self.machine.met(at),
                Sign::Message(message) => self.machine.message(at, &message),
                Sign::Lost(why) => self.machine.channel_lost(at, why),
            }
            self.act(at);
        }
        self.more_signs = true;
    }

    /// Takes completions until there is something to tell, or nothing more.
    fn completions(&mut self, at: Duration) {
        while self.happened.is_empty() {
            match self.cq.poll() {
                Ok(Some(done)) => self.book(at, &done),
                Ok(None) => return,
                Err(PollError::Cq { .. } | PollError::Channel { .. } | PollError::NoChannel) => {
                    return self.device_removed(at);
                }
            }
        }
    }

    fn book(&mut self, at: Duration, done: &Completion) {
        match (done.queue, done.outcome) {
            (QueueKind::Send, outcome) => {
                let fate = Fate::of(T::RULES, done);
                let before = Fate::of_success(T::RULES, done.ticket.operation());
                let status = outcome.map_or_else(|failure| failure.status, |_| IBV_WC_SUCCESS);
                let happened = &mut self.happened;
                let tell = |message| happened.push_back(Happened::Done(message));
                let how = (status, outcome.is_ok());
                (self.ledger).completed(&done.ticket, (fate, before), how, tell);
                drop(self.qp.take_buffer(done));
                match outcome {
                    Ok(success) if T::PROOF != Proof::Echo && goes_out(success.operation) => {
                        self.machine.heard(at);
                    }
                    Ok(_) => {}
                    Err(failure) => self.failed(at, failure),
                }
            }
            (_, Ok(success)) => {
                let heartbeat = heartbeat(T::PROOF, &success);
                if T::is_of_peer(&self.beside, &success) {
                    match heartbeat {
                        Some(HEARTBEAT) => self.machine.asked(at),
                        _ => self.machine.heard(at),
                    }
                }
                self.happened.push_back(match heartbeat {
                    Some(_) => Happened::Heartbeat(*done),
                    None => Happened::Received(*done),
                });
            }
            (queue, Err(failure)) => {
                match queue {
                    // Its buffer is in the SRQ.
                    QueueKind::SharedRecv => self.happened.push_back(Happened::Received(*done)),
                    _ => drop(self.qp.take_buffer(done)),
                }
                self.failed(at, failure);
            }
        }
        self.act(at);
    }

    /// A request failed, and with it the Queue Pair.
    fn failed(&mut self, at: Duration, failure: Failure) {
        let status = failure.root.map_or(failure.status, |root| root.status);
        if self.machine.is_up() && status == IBV_WC_WR_FLUSH_ERR {
            // A flush says nothing of its cause; there may be an event that does.
            self.device_events(at);
        }
        self.machine.down(at, Why::Failed(status));
    }
}

/// Whether a request goes to the peer. Where nothing is acknowledged, what is known to be done was done here.
fn goes_out(operation: Operation) -> bool {
    Fate::of_success(rules::Transport::Uc, operation) != Fate::Done
}

impl<C, T: Probes> AsFd for Supervised<C, T> {
    /// Readable when there is something to do, see [`Supervised::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl<C, T: Probes> fmt::Debug for Supervised<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Supervised({:?}, {:?})", self.qp, self.machine)
    }
}
