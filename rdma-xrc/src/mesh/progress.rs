//! What moves a mesh: completions, and the clock.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rdma_qp::{Armed, Completion, Deadline, QueueKind, RemoteAddr, op};

use super::error::{MeshError, step};
use super::lane::Phase;
use super::{Event, Inbox, Mesh, Message, Rank};

/// Completions that one turn takes in.
const BATCH: usize = 32;
/// Over datagrams: events that are told before it is looked again what came, though more of them wait.
const EVENTS: u32 = 4;
/// The clock is looked at when so much has passed, if nothing is due earlier.
const IDLE: Duration = Duration::from_secs(1);
/// Where a probe writes nothing to.
const NOWHERE: RemoteAddr = RemoteAddr {
    addr: 0,
    rkey: 0,
    room: 0,
};

impl Inbox {
    pub(super) fn top_up(&mut self) -> Result<(), MeshError> {
        let posted = match self {
            Inbox::Rc(refill) => refill.top_up(),
            Inbox::Xrc(refill) => refill.top_up(),
            Inbox::Datagrams(grams) => return grams.progress(),
        };
        posted.map(drop).map_err(step("posting receives"))
    }

    fn take(&mut self, done: &Completion) -> Option<rdma_qp::Message> {
        match self {
            Inbox::Rc(refill) => refill.take(done),
            Inbox::Xrc(refill) => refill.take(done),
            Inbox::Datagrams(_) => None,
        }
    }
}

impl Mesh {
    /// Does what is to be done, and returns the next event. `None`: there is none at present. Does not wait. Over datagrams it is
    /// looked with every fourth event what came, and peers are answered, though more events wait.
    ///
    /// # Errors
    /// The mesh does not work any more.
    pub fn poll(&mut self) -> Result<Option<Event>, MeshError> {
        if self.events.is_empty() {
            self.told = 0;
            self.progress()?;
        } else if self.told >= EVENTS && self.grams().is_some() {
            // What the layer has to tell stays there, so that peers send no more than is taken.
            self.told = 0;
            self.take_in()?;
        }
        self.told += 1;
        Ok(self.events.pop_front())
    }

    /// Waits for the next event until `deadline`. `None`: there was none.
    ///
    /// # Errors
    /// The mesh does not work any more.
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Option<Event>, MeshError> {
        let deadline = deadline.into();
        loop {
            if let Some(event) = self.poll()? {
                return Ok(Some(event));
            }
            if deadline.passed() {
                return Ok(None);
            }
            self.sleep(deadline)?;
        }
    }

    /// Sleeps until something completes, something is due, or `deadline`.
    pub(super) fn sleep(&mut self, deadline: impl Into<Deadline>) -> Result<(), MeshError> {
        let due = self.next_timeout();
        let left = deadline.into().remaining().unwrap_or(due);
        let done = self.cq.wait_any(due.min(left));
        if let Some(done) = done.map_err(step("waiting for completions"))? {
            self.book(&done)?;
        }
        Ok(())
    }

    /// The descriptor that becomes readable when there is something for [`Mesh::poll`] to do, after [`Mesh::arm`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.cq.event_fd()
    }

    /// Asks for one wake-up of [`Mesh::fd`]. `false`: there is something already, poll. Whoever sleeps on the descriptor sleeps no
    /// longer than [`Mesh::next_timeout`].
    ///
    /// # Errors
    /// The mesh does not work any more.
    pub fn arm(&mut self) -> Result<bool, MeshError> {
        let datagrams = self.grams().is_some_and(|grams| grams.layer.has_event());
        if !self.events.is_empty() || datagrams {
            return Ok(false);
        }
        let armed = self.take_wake_ups().and_then(|()| self.cq.arm());
        Ok(armed.map_err(step("arming the CQ"))? == Armed::Sleep)
    }

    fn take_wake_ups(&self) -> Result<(), rdma_qp::PollError> {
        self.cq.take_events().map(drop)
    }

    /// How long it is until [`Mesh::poll`] has something to do although nothing came in.
    pub fn next_timeout(&self) -> Duration {
        let tick = self.next_tick.saturating_duration_since(Instant::now());
        let grams = self.grams().and_then(|grams| grams.layer.next_timeout());
        grams.map_or(tick, |due| due.min(tick))
    }

    /// Takes in some completions, and does what is due.
    pub(super) fn progress(&mut self) -> Result<(), MeshError> {
        self.take_in()?;
        self.take_datagrams()?;
        let now = Instant::now();
        if now >= self.next_tick {
            self.tick(now)?;
        }
        Ok(())
    }

    /// Takes in some completions, and posts receives.
    fn take_in(&mut self) -> Result<(), MeshError> {
        for _ in 0..BATCH {
            match self.cq.poll().map_err(step("polling the CQ"))? {
                Some(done) => self.book(&done)?,
                None => break,
            }
        }
        self.inbox.top_up()
    }

    /// Takes in one completion.
    pub(super) fn book(&mut self, done: &Completion) -> Result<(), MeshError> {
        if done.queue == QueueKind::SharedRecv {
            if let Some(inner) = self.inbox.take(done) {
                self.received(done.qp_num, inner);
            }
            return Ok(());
        }
        if self.mail.is_its(done) {
            return match self.mail.take(done)? {
                Some(note) => self.hear(note),
                None => Ok(()),
            };
        }
        if let Some(grams) = self.grams_mut()
            && grams.is_its(done)
        {
            return grams.book(done);
        }
        let Some(&at) = self.lane_of.get(&done.qp_num) else {
            return Ok(());
        };
        let lane = &mut self.lanes[at];
        let Some((request, buffer)) = lane.ended(done) else {
            return Ok(());
        };
        match done.outcome {
            Ok(_) => {
                lane.heard = true;
                // The buffer is free before the next message asks for one.
                self.held -= u32::from(buffer.is_some());
                drop(buffer);
                if let Some(op) = request.op {
                    let (to, result) = (request.to, Ok(()));
                    self.events.push_back(Event::Done { op, to, result });
                }
                self.flush(at)?;
            }
            Err(failure) => self.book_failure(at, (request, buffer), done, failure)?,
        }
        let lane = &self.lanes[at];
        if lane.phase == Phase::Failed && lane.under_way.is_empty() {
            self.end_lane(at)?;
        }
        Ok(())
    }

    /// A message came by that QP.
    fn received(&mut self, qp_num: u32, inner: rdma_qp::Message) {
        match self.behind.get(&qp_num) {
            Some(&from) => {
                let message = Message::received(from, inner);
                self.events.push_back(Event::Message(message));
            }
            None if qp_num == 0 => {
                tracing::error!(
                    me = self.me.0,
                    "a message came by a QP that is gone: dropped"
                );
            }
            None => self.unclaimed.entry(qp_num).or_default().push_back(inner),
        }
    }

    /// Does what is due.
    fn tick(&mut self, now: Instant) -> Result<(), MeshError> {
        self.next_tick = now + IDLE;
        self.begin_wanted(now)?;
        self.ask_again(now)?;
        if let Some(targets) = &mut self.targets {
            let (parts, opened) = (targets.due(now), targets.newly_shared());
            for (reader, part) in parts {
                self.tell(reader, true, part)?;
            }
            for (initiator, hello) in opened {
                self.tell(initiator, false, hello)?;
            }
        }
        self.go_on_leaving(now)?;
        if let Some(heartbeat) = self.options.quiet_for() {
            self.probe_quiet(now, heartbeat)?;
            self.next_tick = self.next_tick.min(now + heartbeat / 2);
        }
        let asks = self.connecting.iter().filter_map(|at| {
            let (_, handshake) = self.lanes[*at].end.as_ref()?;
            handshake.next()
        });
        let lists = self.targets.as_ref().and_then(|targets| targets.next());
        let wanted = (!self.wanted.is_empty()).then_some(now + Duration::from_millis(10));
        let goodbyes = self.departure.next(now);
        let due = asks.chain(lists).chain(wanted).chain(goodbyes).min();
        self.next_tick = due.map_or(self.next_tick, |due| due.min(self.next_tick));
        Ok(())
    }

    /// Probes the ways on which nothing was heard for `heartbeat`, and makes those over which others are to be probed that
    /// only send here.
    fn probe_quiet(&mut self, now: Instant, heartbeat: Duration) -> Result<(), MeshError> {
        for at in 0..self.lanes.len() {
            let lane = &mut self.lanes[at];
            if std::mem::take(&mut lane.heard) {
                lane.quiet_since = now;
            }
            // What is under way proves as much as a probe; but on XRC only of the processes that it is for.
            let quiet = lane.under_way.is_empty() && lane.quiet_since + heartbeat <= now;
            let due = self.targets.is_some() && lane.probed_at + heartbeat <= now;
            if lane.phase == Phase::Up && (quiet || due) {
                lane.probed_at = now;
                self.probe(at)?;
            }
        }
        let Some(targets) = &self.targets else {
            return Ok(());
        };
        let senders: Vec<Rank> = targets.initiators().collect();
        for rank in senders {
            let at = self.lane_to(rank);
            if self.lanes[at].phase == Phase::Idle && self.is_living(rank) {
                self.want(at);
            }
        }
        Ok(())
    }

    /// Sends a WRITE of no bytes; on XRC it names the SRQ of one process of the node after the other.
    fn probe(&mut self, at: usize) -> Result<(), MeshError> {
        let living = self.living_behind(at);
        let lane = &self.lanes[at];
        if let (false, Some(host), Some((_, handshake))) = (lane.shared, lane.host, &lane.end) {
            // It may be by now.
            let hello = handshake.hello();
            self.tell(host, true, hello)?;
        }
        let lane = &mut self.lanes[at];
        lane.probed = lane.probed.wrapping_add(1);
        let Some(&to) = living.get(lane.probed % living.len().max(1)) else {
            return Ok(());
        };
        let srq = self.peers[to.index()].card.srq;
        let Some(sender) = lane.open(self.options.send_depth) else {
            return Ok(());
        };
        match sender.post(srq, op::Write { remote: NOWHERE }, &[]) {
            Ok(ticket) => {
                lane.posted(ticket, None, to);
                Ok(())
            }
            // It is in the error state, and nothing was under way that could have told.
            Err(_) => self.lose_lane(at),
        }
    }
}
