//! What a process asks for: messages, and one-sided requests.

use rdma_qp::xrc::XrcSend;
use rdma_qp::{MrSlice, Op, PostError, Rc, RemoteAddr, op};

use super::error::{MeshError, step};
use super::lane::{Phase, Waiting};
use super::{Mesh, OpId, PeerState, Rank, SendError};

impl Mesh {
    /// Whether requests to that process are taken.
    fn check(&self, to: Rank) -> Result<(), SendError> {
        let processes = self.layout.processes();
        let peer = self.peers.get(to.index());
        let peer = peer.ok_or(SendError::NoSuchProcess { to, processes })?;
        if self.peers[self.me.index()].state == PeerState::Left {
            return Err(SendError::Left(self.me));
        }
        match peer.state {
            _ if to == self.me => Err(SendError::Itself(to)),
            PeerState::Living => Ok(()),
            PeerState::Failed(why) => Err(SendError::Failed { to, why }),
            PeerState::Left => Err(SendError::Left(to)),
        }
    }

    fn op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op)
    }

    /// Sends `bytes`, which are copied, to a process. If there is no way to it yet, one is made, and the message waits for
    /// it. [`Event::Done`](super::Event::Done) tells when the process has it in its memory.
    ///
    /// # Errors
    /// There is no such process, or it has failed or left; the message is too long for a receive; or there is no buffer for it:
    /// then poll, and try again. A way that is stalled takes no more buffers than twice as many as it leaves for the others.
    pub fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<OpId, SendError> {
        self.check(to)?;
        let max = self.peers[to.index()].card.max_message;
        let max = max.min(self.options.max_message);
        if bytes.len() > max as usize {
            let len = bytes.len();
            return Err(SendError::TooLong { len, max, to });
        }
        if let Some(grams) = self.grams_mut() {
            return grams.send(to, bytes);
        }
        let at = self.lane_to(to);
        if self.lanes[at].load() > 2 * (self.options.send_buffers - self.held) as usize {
            return Err(SendError::Busy);
        }
        let mut buffer = self.outgoing.take().ok_or(SendError::Busy)?;
        self.held += 1;
        buffer.set_len(bytes.len());
        buffer.copy_from_slice(bytes);
        let op = self.op();
        self.lanes[at].backlog.push_back(Waiting { op, to, buffer });
        self.flush(at)?;
        self.want(at);
        Ok(op)
    }

    /// Posts what waits for a way, as far as there is room.
    pub(super) fn flush(&mut self, at: usize) -> Result<(), MeshError> {
        loop {
            let lane = &mut self.lanes[at];
            if lane.open(self.options.send_depth).is_none() {
                return Ok(());
            }
            let Some(Waiting { op, to, buffer }) = lane.backlog.pop_front() else {
                return Ok(());
            };
            let Some(sender) = lane.open(self.options.send_depth) else {
                return Ok(());
            };
            let refused = match sender.send(self.peers[to.index()].card.srq, buffer) {
                Ok(ticket) => {
                    lane.posted(ticket, Some(op), to);
                    continue;
                }
                Err(refused) => refused,
            };
            match refused.buffer {
                Some(buffer) => lane.backlog.push_front(Waiting { op, to, buffer }),
                None => self.held -= 1,
            }
            return match refused.error {
                PostError::QueueFull { .. } => Ok(()),
                // It went to the error state with nothing under way that could have told.
                PostError::WrongState { .. } => self.lose_lane(at),
                error => Err(step("posting a message")(error)),
            };
        }
    }

    /// Posts a one-sided request on a way that is up.
    fn one_sided<O>(
        &mut self,
        to: Rank,
        request: O,
        local: &[MrSlice<'_>],
    ) -> Result<OpId, SendError>
    where
        O: Op<Rc>,
        op::ToSrq<O>: Op<XrcSend>,
    {
        self.check(to)?;
        if self.grams().is_some() {
            return Err(SendError::OneSided(to));
        }
        let at = self.lane_to(to);
        let srq = self.peers[to.index()].card.srq;
        let lane = &mut self.lanes[at];
        if lane.phase != Phase::Up {
            self.want(at);
            return Err(SendError::Connecting(to));
        }
        // Behind the messages that wait for room: what is asked for later is not done earlier.
        let waits = !lane.backlog.is_empty();
        let Some(sender) = lane.open(self.options.send_depth).filter(|_| !waits) else {
            return Err(SendError::Busy);
        };
        let ticket = match sender.post(srq, request, local) {
            Ok(ticket) => ticket,
            Err(PostError::QueueFull { .. }) => return Err(SendError::Busy),
            Err(PostError::WrongState { .. }) => {
                self.lose_lane(at)?;
                self.want(at);
                return Err(SendError::Connecting(to));
            }
            Err(error) => return Err(error.into()),
        };
        let op = self.op();
        self.lanes[at].posted(ticket, Some(op), to);
        Ok(op)
    }

    /// Writes `local`, a range of a region of [`Mesh::pd`], to a place in a region of a process. Nobody there is told. The
    /// range may be changed again when the request has ended.
    ///
    /// # Errors
    /// There is no way to the process yet (it is being made), or no room: then poll, and try again. There is no such process,
    /// or it has failed or left; the mesh is over datagrams; or the request cannot be posted.
    pub fn write(
        &mut self,
        to: Rank,
        local: MrSlice<'_>,
        remote: RemoteAddr,
    ) -> Result<OpId, SendError> {
        self.one_sided(to, op::Write { remote }, &[local])
    }

    /// Reads from a place in a region of a process into `local`.
    ///
    /// # Errors
    /// As [`Mesh::write`].
    pub fn read(
        &mut self,
        from: Rank,
        local: MrSlice<'_>,
        remote: RemoteAddr,
    ) -> Result<OpId, SendError> {
        self.one_sided(from, op::Read { remote }, &[local])
    }

    /// Adds to the 8 bytes at a place in a region of a process, atomically; `local`, 8 bytes, gets what was there before, in
    /// host byte order.
    ///
    /// # Errors
    /// As [`Mesh::write`].
    pub fn fetch_and_add(
        &mut self,
        to: Rank,
        local: MrSlice<'_>,
        remote: RemoteAddr,
        add: u64,
    ) -> Result<OpId, SendError> {
        self.one_sided(to, op::FetchAdd { remote, add }, &[local])
    }

    /// Replaces the 8 bytes at a place in a region of a process by `swap` if they are `compare`, atomically; `local`, 8 bytes,
    /// gets what was there before, in host byte order.
    ///
    /// # Errors
    /// As [`Mesh::write`].
    pub fn compare_and_swap(
        &mut self,
        to: Rank,
        local: MrSlice<'_>,
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Result<OpId, SendError> {
        let request = op::CompareSwap {
            remote,
            compare,
            swap,
        };
        self.one_sided(to, request, &[local])
    }
}
