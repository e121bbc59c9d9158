//! Making ways: who asks whom, and what is made of what comes back.

use std::time::Instant;

use rdma_qp::{ConnectError, Deadline, Endpoint};

use super::error::{MeshError, step};
use super::handshake::Heard;
use super::lane::{Phase, Sender};
use super::note::{Behind, Body, Note, Role};
use super::targets::NewTarget;
use super::{Event, Inbox, Mesh, PeerState, Rank, Why};

impl Mesh {
    /// Begins to connect all ways to processes that live, a few at a time ([`Options::connect_at_once`](super::Options)).
    pub fn connect_all(&mut self) {
        if self.grams().is_some() {
            for rank in self.living() {
                if let Some(grams) = self.grams_mut() {
                    grams.connect(rank);
                }
            }
            return;
        }
        // Everybody begins somewhere else, so that not all ask one process first.
        let (count, own) = (self.lanes.len(), self.lane_to(self.me));
        for at in (0..count).map(|step| (own + 1 + step) % count) {
            if !self.living_behind(at).is_empty() {
                self.want(at);
            }
        }
    }

    /// Connects all ways and waits until they are up, or their processes have failed. All processes of the job have to do it at
    /// about the same time, or to poll. Events that come meanwhile are kept for [`Mesh::poll`].
    ///
    /// # Errors
    /// Some ways are not up at `deadline`; or the mesh does not work.
    pub fn bring_up(&mut self, deadline: impl Into<Deadline>) -> Result<(), MeshError> {
        let deadline = deadline.into();
        loop {
            // A way may be lost while others come up.
            self.connect_all();
            self.progress()?;
            let missing = self.ways_missing();
            if missing == 0 {
                return Ok(());
            }
            if deadline.passed() {
                let living = (0..self.lanes.len()).filter(|at| !self.living_behind(*at).is_empty());
                let wanted = living.count();
                return Err(MeshError::TimedOut { missing, wanted });
            }
            self.sleep(deadline)?;
        }
    }

    /// Ways to processes that live which are not up.
    pub fn ways_missing(&self) -> usize {
        if let Some(grams) = self.grams() {
            let living = self.living().into_iter();
            return living.filter(|rank| !grams.is_connected(*rank)).count();
        }
        let lanes = self.lanes.iter().enumerate();
        lanes
            .filter(|(at, lane)| lane.phase != Phase::Up && !self.living_behind(*at).is_empty())
            .count()
    }

    /// Whether a request to that process leaves at once.
    pub fn is_connected(&self, to: Rank) -> bool {
        match self.grams() {
            Some(grams) => grams.is_connected(to),
            None => self.is_known(to) && self.lanes[self.lane_to(to)].phase == Phase::Up,
        }
    }

    /// Has a way connected when its turn comes.
    pub(super) fn want(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        if lane.phase == Phase::Idle {
            lane.phase = Phase::Wanted;
            self.wanted.push_back(at);
            self.next_tick = self.next_tick.min(Instant::now());
        }
    }

    /// Begins with those whose turn has come.
    pub(super) fn begin_wanted(&mut self, now: Instant) -> Result<(), MeshError> {
        while self.connecting.len() < self.options.connect_at_once
            && let Some(at) = self.wanted.pop_front()
        {
            // It may have come up by the peer's doing, or have nobody behind it any more.
            if self.lanes[at].phase == Phase::Wanted {
                if self.living_behind(at).is_empty() {
                    self.lanes[at].phase = Phase::Idle;
                } else {
                    self.make_end(at, now)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the end of a way.
    fn make_end(&mut self, at: usize, now: Instant) -> Result<(), MeshError> {
        let life = self.life();
        let srq = match &self.inbox {
            Inbox::Rc(refill) => Some(refill.queue()),
            Inbox::Xrc(_) | Inbox::Datagrams(_) => None,
        };
        let sender = Sender::new(&self.pd, &self.cq, srq, self.options.send_depth);
        let mut sender = sender.map_err(step("making a QP"))?;
        let handshake = sender.handshake(self.gid, life, now);
        let handshake = handshake.map_err(step("describing a QP"))?;
        let qp_num = sender.qp_num();
        self.lane_of.insert(qp_num, at);
        if matches!(sender, Sender::Rc(_)) {
            self.behind.insert(qp_num, self.peers[at].card.rank);
        }
        let lane = &mut self.lanes[at];
        (lane.end, lane.began) = (Some((sender, handshake)), now);
        (lane.phase, lane.host, lane.shared) = (Phase::Connecting, None, false);
        self.connecting.insert(at);
        Ok(())
    }

    /// The process that is asked for the other end of a way: on XRC one of the node that lives.
    fn host(&self, at: usize) -> Option<Rank> {
        if !self.is_xrc() {
            return self.living_behind(at).first().copied();
        }
        let mut hosts = self.layout.hosts(self.me, at);
        hosts.find(|rank| self.is_living(*rank))
    }

    /// Asks again for ways whose other end is silent, and gives those up that were silent for too long.
    pub(super) fn ask_again(&mut self, now: Instant) -> Result<(), MeshError> {
        for at in self.connecting.clone() {
            let Some(host) = self.host(at) else {
                self.end_lane(at)?;
                continue;
            };
            let lane = &mut self.lanes[at];
            if now.duration_since(lane.began) >= self.options.connect_within {
                lane.began = now;
                self.fail_processes(vec![host], Why::NotConnected)?;
            } else if let Some((_, handshake)) = &mut lane.end
                && handshake.is_due(now)
            {
                let hello = handshake.hello();
                self.tell(host, true, hello)?;
            }
        }
        Ok(())
    }

    /// Sends a note.
    pub(super) fn tell(&mut self, to: Rank, answer: bool, body: Body) -> Result<(), MeshError> {
        let note = Note {
            from: self.me,
            answer,
            body,
        };
        self.mail
            .send(&note, &self.peers[to.index()].card.mail.endpoint)
    }

    /// Takes in a note.
    pub(super) fn hear(&mut self, note: Note) -> Result<(), MeshError> {
        let Note { from, answer, body } = note;
        if !self.is_known(from) {
            return Ok(());
        }
        if body == Body::Leave {
            return self.hear_leave(from, answer);
        }
        // Who has failed is not talked to again: the others of the job may think so, too. But if it lives, others send by the
        // targets that it makes.
        let is_list = matches!(body, Body::Targets { .. });
        if self.peers[from.index()].state != PeerState::Living && !is_list {
            return Ok(());
        }
        match body {
            Body::Hello {
                role,
                life,
                ready_for,
                endpoint,
            } => {
                let hello = (life, ready_for, endpoint);
                match (role, self.is_xrc()) {
                    _ if self.grams().is_some() => Ok(()),
                    (Role::Rc, false) => self.hear_rc(from, answer, hello),
                    (Role::Initiator, true) => self.hear_initiator(from, answer, hello),
                    (Role::Target, true) => self.hear_target(from, false, hello),
                    (Role::SharedTarget, true) => self.hear_target(from, true, hello),
                    _ => Ok(()),
                }
            }
            Body::Targets { first, targets } => {
                let Some(own) = &mut self.targets else {
                    return Ok(());
                };
                let (reply, changes) = own.read(from, first, &targets);
                self.know_of(from, &changes)?;
                reply.map_or(Ok(()), |body| self.tell(from, false, body))
            }
            Body::Seen { known } => {
                if let Some(targets) = &mut self.targets {
                    targets.seen(from, known, Instant::now());
                    self.next_tick = self.next_tick.min(Instant::now());
                }
                Ok(())
            }
            Body::Leave => Ok(()),
        }
    }

    /// The other end of an RC connection.
    fn hear_rc(&mut self, from: Rank, answer: bool, hello: Hello) -> Result<(), MeshError> {
        let at = from.index();
        if matches!(self.lanes[at].phase, Phase::Idle | Phase::Wanted) {
            self.make_end(at, Instant::now())?;
        }
        self.hear_on(at, from, true, hello)?;
        match &self.lanes[at].end {
            Some((_, handshake)) if answer && self.lanes[at].phase != Phase::Failed => {
                // Whoever is not up yet wants to know the same of the other.
                let (hello, asks) = (handshake.hello(), !handshake.is_up());
                self.tell(from, asks, hello)
            }
            _ => Ok(()),
        }
    }

    /// The target of one of this process's initiators.
    fn hear_target(&mut self, from: Rank, shared: bool, hello: Hello) -> Result<(), MeshError> {
        let at = self.lane_to(from);
        let host = self.lanes[at].host;
        // Two processes may have been asked one after the other: the first that answers has the target.
        if host.is_some_and(|host| host != from) {
            return Ok(());
        }
        self.hear_on(at, from, shared, hello)
    }

    /// The other end of a way, and whether all processes behind the way keep it alive.
    fn hear_on(
        &mut self,
        at: usize,
        from: Rank,
        shared: bool,
        hello: Hello,
    ) -> Result<(), MeshError> {
        let heard = match self.lanes[at].hear(hello, self.options.timing) {
            Ok(heard) => heard,
            Err(error) => return self.cannot_connect(from, error),
        };
        let lane = &mut self.lanes[at];
        match heard {
            Heard::Late => return Ok(()),
            // The peer's end is a new one. What is under way here comes back; then it is this end's turn.
            Heard::Reborn => return self.lose_lane(at),
            Heard::Fine => (lane.host, lane.shared) = (Some(from), lane.shared || shared),
        }
        let is_up = matches!(&lane.end, Some((_, handshake)) if handshake.is_up());
        if is_up && lane.phase == Phase::Connecting {
            (lane.phase, lane.quiet_since) = (Phase::Up, Instant::now());
            self.connecting.remove(&at);
            self.flush(at)?;
        }
        Ok(())
    }

    /// This process's end and that of another do not go together.
    fn cannot_connect(&mut self, from: Rank, error: ConnectError) -> Result<(), MeshError> {
        tracing::warn!(me = self.me.0, peer = from.0, %error, "a peer cannot be connected to");
        self.fail_processes(vec![from], Why::BadEnd)
    }

    /// An initiator that wants a target here.
    fn hear_initiator(&mut self, from: Rank, answer: bool, hello: Hello) -> Result<(), MeshError> {
        let life = self.life();
        let new = NewTarget {
            cq: &self.cq,
            gid: self.gid,
            life,
            timing: self.options.timing,
            connect_within: self.options.connect_within,
            now: Instant::now(),
        };
        let Some(targets) = &mut self.targets else {
            return Ok(());
        };
        let heard = targets.hear(from, hello, new)?;
        for done in heard.completions {
            self.book(&done)?;
        }
        self.know_of(self.me, &heard.changes)?;
        if let Some(error) = heard.refused {
            return self.cannot_connect(from, error);
        }
        match heard.reply {
            Some(body) if answer => self.tell(from, false, body),
            _ => Ok(()),
        }
    }

    /// Takes in what a process of this node made and ended. Whoever has a target of it has given up all that it asks before, so
    /// theirs are of no use any more.
    fn know_of(&mut self, maker: Rank, changes: &[Behind]) -> Result<(), MeshError> {
        self.know(changes);
        let own = self.lane_to(self.me);
        for initiator in changes.iter().filter_map(|(_, behind)| *behind) {
            let hosts = self.layout.hosts(initiator, own);
            let asked: Vec<Rank> = hosts.take_while(|host| *host != maker).collect();
            if let Some(targets) = &mut self.targets {
                let gone = targets.let_go(initiator, &asked);
                self.know(&gone);
            }
            if asked.contains(&self.me) {
                self.withdraw(initiator)?;
            }
        }
        Ok(())
    }

    /// Ends the target that an initiator has here.
    pub(super) fn withdraw(&mut self, initiator: Rank) -> Result<(), MeshError> {
        let targets = self.targets.as_mut();
        if let Some((entry, completions)) = targets.and_then(|t| t.withdraw(initiator, &self.cq)) {
            for done in completions {
                self.book(&done)?;
            }
            self.know(&[entry]);
        }
        Ok(())
    }

    /// Takes in who is behind which targets, and hands out the messages that waited for it.
    pub(super) fn know(&mut self, changes: &[Behind]) {
        for &(qp_num, rank) in changes {
            self.next_tick = self.next_tick.min(Instant::now());
            let Some(from) = rank.filter(|rank| rank.index() < self.peers.len()) else {
                self.behind.remove(&qp_num);
                continue;
            };
            self.behind.insert(qp_num, from);
            for inner in self.unclaimed.remove(&qp_num).into_iter().flatten() {
                let message = super::Message::received(from, inner);
                self.events.push_back(Event::Message(message));
            }
        }
    }
}

/// What a hello says: the life of the end, the life that it is ready for, its record.
type Hello = (u32, u32, Endpoint);
