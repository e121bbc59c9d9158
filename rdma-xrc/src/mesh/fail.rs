//! What becomes of a way that failed, and of those behind it.

use std::time::{Duration, Instant};

use rdma_core_sys::{
    IBV_WC_REM_ABORT_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR, rules,
};
use rdma_qp::{Buffer, Completion, Failure, Fate};

use super::error::MeshError;
use super::lane::{Lane, Phase, UnderWay, Waiting};
use super::{Event, Mesh, NotDone, PeerState, Rank, Why};

impl Mesh {
    /// How long it takes at most until the death of a peer is reported, on a way that is up, while this process polls.
    /// `None`: for ever, without heartbeat.
    ///
    /// Over datagrams that is a heartbeat and the time of all repetitions, once there is a session with the peer. Otherwise it
    /// is one and a half heartbeats, because it is looked twice in each, and four times the time of all repetitions, because
    /// devices may take so much longer than they are told (`ibv_modify_qp(3)`, `timeout`). On XRC it holds for the death of a
    /// node all of whose processes have polled since the way was made; otherwise they are named one after the other.
    /// The processes of one node are probed in turn, so the death of one of them takes a heartbeat more for each other one, if
    /// nobody sends to it before.
    pub fn notices_within(&self) -> Option<Duration> {
        let heartbeat = self.options.quiet_for()?;
        if self.grams().is_some() {
            let options = self.options.datagrams(self.layout.processes());
            return options.notices_within();
        }
        Some(heartbeat + heartbeat / 2 + 4 * self.options.timing.budget()?)
    }

    /// A request failed, the first of its way or one behind it.
    pub(super) fn book_failure(
        &mut self,
        at: usize,
        (request, buffer): (UnderWay, Option<Buffer>),
        done: &Completion,
        failure: Failure,
    ) -> Result<(), MeshError> {
        let UnderWay { op, to, .. } = request;
        self.lanes[at].phase = Phase::Failed;
        self.connecting.remove(&at);
        let is_root = !failure.is_flush();
        if is_root && failure.status == IBV_WC_RETRY_EXC_ERR {
            let lane = &self.lanes[at];
            let gone = match lane.host {
                // The other end has died with it, and the others behind the way may live.
                Some(host) if !lane.shared => vec![host],
                _ => self.living_behind(at),
            };
            self.fail_processes(gone, Why::NoAnswer)?;
        } else if is_root && is_refusal(&failure) && (op.is_none() || buffer.is_some()) {
            self.fail_processes(vec![to], Why::Refused(failure.status))?;
        }
        let transport = match self.is_xrc() {
            true => rules::Transport::XrcIni,
            false => rules::Transport::Rc,
        };
        let fate = Fate::of(transport, done);
        match (op, buffer) {
            (Some(op), Some(buffer)) if fate == Fate::NotDone && !is_root && self.is_living(to) => {
                self.lanes[at].again.push_back(Waiting { op, to, buffer });
            }
            (Some(op), buffer) => {
                self.held -= u32::from(buffer.is_some());
                let failure = Some(failure);
                let result = Err(NotDone { failure, fate });
                self.events.push_back(Event::Done { op, to, result });
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// Marks processes as failed, reports them, and ends what leads to them only.
    pub(super) fn fail_processes(
        &mut self,
        mut processes: Vec<Rank>,
        why: Why,
    ) -> Result<(), MeshError> {
        processes.retain(|rank| self.is_living(*rank));
        if processes.is_empty() {
            return Ok(());
        }
        tracing::warn!(me = self.me.0, ?processes, %why, "processes have failed");
        // Before what this does to requests.
        let told = processes.clone();
        self.events.push_back(Event::Failed { processes, why });
        self.gone(&told, PeerState::Failed(why))
    }

    /// Lets go of processes that have failed or left.
    pub(super) fn gone(&mut self, processes: &[Rank], state: PeerState) -> Result<(), MeshError> {
        for &rank in processes {
            self.peers[rank.index()].state = state;
            self.departure.heard_of(rank);
            if let Some(grams) = self.grams_mut() {
                grams.remove(rank);
            }
            if let Some(targets) = &mut self.targets {
                targets.forget_reader(rank);
                // Initiators may have waited for it.
                self.next_tick = self.next_tick.min(Instant::now());
                // Who has failed here may live, and sends to all of the node by its target.
                if state == PeerState::Left {
                    self.withdraw(rank)?;
                }
            }
        }
        for &rank in processes {
            let at = self.lane_to(rank);
            self.drop_waiting(at);
            if self.living_behind(at).is_empty() {
                self.lose_lane(at)?;
            }
        }
        Ok(())
    }

    /// Reports the messages of a way that wait for somebody who is gone. The others keep their places.
    fn drop_waiting(&mut self, at: usize) {
        let living = self.living_behind(at);
        let Lane { again, backlog, .. } = &mut self.lanes[at];
        for queue in [again, backlog] {
            for message in std::mem::take(queue) {
                if living.contains(&message.to) {
                    queue.push_back(message);
                    continue;
                }
                let Waiting { op, to, .. } = message;
                self.held -= 1;
                let (failure, fate) = (None, Fate::NotDone);
                let result = Err(NotDone { failure, fate });
                self.events.push_back(Event::Done { op, to, result });
            }
        }
    }

    /// A way is of no use any more. It ends at once, or when what is under way has come back.
    pub(super) fn lose_lane(&mut self, at: usize) -> Result<(), MeshError> {
        let lane = &mut self.lanes[at];
        if lane.end.is_none() {
            lane.phase = match lane.phase {
                Phase::Wanted => Phase::Wanted,
                _ => Phase::Idle,
            };
            return Ok(());
        }
        lane.phase = Phase::Failed;
        self.connecting.remove(&at);
        if self.lanes[at].under_way.is_empty() {
            return self.end_lane(at);
        }
        self.lanes[at].flush_all()
    }

    /// Destroys the end of a way of which nothing is under way. It is connected again if somebody waits for it.
    pub(super) fn end_lane(&mut self, at: usize) -> Result<(), MeshError> {
        self.connecting.remove(&at);
        let lane = &mut self.lanes[at];
        if let Some((sender, _)) = lane.end.take() {
            // Who is behind it stays known: messages that came by it may be in the CQ still.
            self.lane_of.remove(&sender.qp_num());
        }
        lane.phase = Phase::Idle;
        // All that was under way has come back: now it goes before what came later.
        lane.again.append(&mut lane.backlog);
        std::mem::swap(&mut lane.again, &mut lane.backlog);
        self.drop_waiting(at);
        if !self.lanes[at].backlog.is_empty() {
            self.want(at);
        }
        Ok(())
    }
}

/// Whether the peer's end refused a request.
fn is_refusal(failure: &Failure) -> bool {
    matches!(
        failure.status,
        IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_OP_ERR | IBV_WC_REM_ABORT_ERR
    )
}
