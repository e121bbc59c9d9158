//! One way out of a process: to another process on RC, to all processes of a node on XRC.

use std::collections::VecDeque;
use std::time::Instant;

use rdma_qp::xrc::{SrqNum, XrcSend};
use rdma_qp::{
    Buffer, BufferNotPosted, Completion, ConnectError, Cq, CreateQpError, Endpoint, EndpointError,
    GidEntry, MrSlice, Op, Pd, PostError, PostFlags, Qp, Rc, Srq, Ticket, Timing, ToErr, op,
};

use super::error::{MeshError, step};
use super::handshake::{Handshake, Heard};
use super::{OpId, Rank};

/// The sending end.
pub(super) enum Sender {
    Rc(Qp<Rc>),
    Xrc(Qp<XrcSend>),
}

impl Sender {
    /// Makes one: with an SRQ it is an RC QP, without an XRC initiator.
    pub(super) fn new(
        pd: &Pd,
        cq: &Cq,
        srq: Option<&Srq>,
        depth: u32,
    ) -> Result<Sender, CreateQpError> {
        Ok(match srq {
            Some(srq) => Sender::Rc(pd.rc(cq).send_depth(depth).srq(srq).create()?),
            None => Sender::Xrc(pd.xrc(cq).send_depth(depth).create()?),
        })
    }

    pub(super) fn qp_num(&self) -> u32 {
        match self {
            Sender::Rc(qp) => qp.qp_num(),
            Sender::Xrc(qp) => qp.qp_num(),
        }
    }

    pub(super) fn handshake(
        &mut self,
        gid: GidEntry,
        life: u32,
        now: Instant,
    ) -> Result<Handshake, EndpointError> {
        match self {
            Sender::Rc(qp) => Handshake::new(qp, gid, life, now),
            Sender::Xrc(qp) => Handshake::new(qp, gid, life, now),
        }
    }

    /// Posts `op` towards the process whose SRQ is `srq`, which only XRC needs to know.
    pub(super) fn post<'m, O>(
        &mut self,
        srq: Option<SrqNum>,
        op: O,
        local: &[MrSlice<'m>],
    ) -> Result<Ticket, PostError>
    where
        O: Op<Rc>,
        op::ToSrq<O>: Op<XrcSend>,
    {
        match (self, srq) {
            (Sender::Xrc(qp), Some(srq)) => {
                qp.post(op::ToSrq { srq, op }, local, PostFlags::empty())
            }
            (Sender::Rc(qp), _) => qp.post(op, local, PostFlags::empty()),
            (Sender::Xrc(_), None) => unreachable!("the card of a process on XRC has an SRQ"),
        }
    }

    /// Posts a SEND of `buffer`.
    pub(super) fn send(
        &mut self,
        srq: Option<SrqNum>,
        buffer: Buffer,
    ) -> Result<Ticket, BufferNotPosted> {
        let (op, flags) = (op::Send, PostFlags::empty());
        match (self, srq) {
            (Sender::Xrc(qp), Some(srq)) => qp.post_buffer(op::ToSrq { srq, op }, buffer, flags),
            (Sender::Rc(qp), _) => qp.post_buffer(op, buffer, flags),
            (Sender::Xrc(_), None) => unreachable!("the card of a process on XRC has an SRQ"),
        }
    }

    fn take_buffer(&mut self, done: &Completion) -> Option<Buffer> {
        match self {
            Sender::Rc(qp) => qp.take_buffer(done),
            Sender::Xrc(qp) => qp.take_buffer(done),
        }
    }
}

/// A message that waits for its way.
pub(super) struct Waiting {
    pub(super) op: OpId,
    pub(super) to: Rank,
    pub(super) buffer: Buffer,
}

/// A request that the device has.
pub(super) struct UnderWay {
    ticket: Ticket,
    /// `None`: it is a probe.
    pub(super) op: Option<OpId>,
    pub(super) to: Rank,
}

/// How far a way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is none, and nobody wants it.
    Idle,
    /// It is wanted; its turn to connect has not come.
    Wanted,
    /// The ends look for each other.
    Connecting,
    /// It carries requests.
    Up,
    /// It failed, and what was under way comes back.
    Failed,
}

/// A way out of the process.
pub(super) struct Lane {
    pub(super) phase: Phase,
    /// There from `Connecting` to the end of `Failed`.
    pub(super) end: Option<(Sender, Handshake)>,
    /// Messages that were not posted yet.
    pub(super) backlog: VecDeque<Waiting>,
    /// Messages that came back undone, to be sent again before the backlog.
    pub(super) again: VecDeque<Waiting>,
    pub(super) under_way: VecDeque<UnderWay>,
    /// Since when nothing has proved that the other end is there.
    pub(super) quiet_since: Instant,
    /// When the present attempt to connect began.
    pub(super) began: Instant,
    /// Who has the other end, once it has answered.
    pub(super) host: Option<Rank>,
    /// All processes behind it keep the other end alive, and not only who made it.
    pub(super) shared: bool,
    /// Something succeeded since the clock was looked at last.
    pub(super) heard: bool,
    /// Whose turn it is to be probed, and when somebody was.
    pub(super) probed: usize,
    pub(super) probed_at: Instant,
}

impl Lane {
    pub(super) fn new(now: Instant) -> Lane {
        Lane {
            phase: Phase::Idle,
            end: None,
            backlog: VecDeque::new(),
            again: VecDeque::new(),
            under_way: VecDeque::new(),
            quiet_since: now,
            began: now,
            host: None,
            shared: false,
            heard: false,
            probed: 0,
            probed_at: now,
        }
    }

    /// Requests that wait or are under way.
    pub(super) fn load(&self) -> usize {
        self.backlog.len() + self.again.len() + self.under_way.len()
    }

    /// The end, if it carries requests and has room for one more.
    pub(super) fn open(&mut self, depth: u32) -> Option<&mut Sender> {
        let room = self.under_way.len() < depth as usize;
        match &mut self.end {
            Some((sender, _)) if room && self.phase == Phase::Up => Some(sender),
            _ => None,
        }
    }

    /// Enters a request that was posted.
    pub(super) fn posted(&mut self, ticket: Ticket, op: Option<OpId>, to: Rank) {
        self.under_way.push_back(UnderWay { ticket, op, to });
    }

    /// Takes out the request that a completion is of, and its buffer, if it has one.
    pub(super) fn ended(&mut self, done: &Completion) -> Option<(UnderWay, Option<Buffer>)> {
        let (sender, _) = self.end.as_mut()?;
        let buffer = sender.take_buffer(done);
        // All are signaled, and those of one queue end in order.
        if self.under_way.front()?.ticket != done.ticket {
            return None;
        }
        Some((self.under_way.pop_front()?, buffer))
    }

    /// Has everything that is under way come back, executed or flushed.
    pub(super) fn flush_all(&mut self) -> Result<(), MeshError> {
        let moved = match &mut self.end {
            Some((Sender::Rc(qp), _)) => qp.to(ToErr),
            Some((Sender::Xrc(qp), _)) => qp.to(ToErr),
            None => return Ok(()),
        };
        moved.map(drop).map_err(step("moving a QP to ERR"))
    }

    /// Takes in what the other end says.
    pub(super) fn hear(
        &mut self,
        hello: (u32, u32, Endpoint),
        timing: Timing,
    ) -> Result<Heard, ConnectError> {
        match &mut self.end {
            Some((Sender::Rc(qp), handshake)) => handshake.hear(qp, hello, timing),
            Some((Sender::Xrc(qp), handshake)) => handshake.hear(qp, hello, timing),
            None => Ok(Heard::Late),
        }
    }
}
