//! How a supervision begins, and what only some transports have.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Receives, SuperviseError, Supervised};
use crate::ah::Destination;
use crate::cq::Cq;
use crate::device::Device;
use crate::errno::Errno;
use crate::fd;
use crate::qp::{PostError, Qp, RecvQueue, Ud, XrcTarget};
use crate::supervise::probes::XrcSide;
use crate::supervise::wake::Wake;
use crate::supervise::{Ledger, Meeting, Options, Probes, Supervisor};
use crate::xrc::{SrqNum, XrcSend};

impl<C, T: Probes<Beside: Default> + RecvQueue> Supervised<C, T> {
    /// Supervises `qp`, all of whose completions go to `cq`, which has a channel. The connection is made by
    /// [`Supervised::poll`] and its like, as one that is lost is made anew.
    ///
    /// `receives` posts the receives that a life begins with, when the Queue Pair is in INIT. What it posts by
    /// [`Qp::recv_buffer`] goes back to its pool when a life ends; what the device has not flushed then, before the next one begins.
    ///
    /// The receives of a Queue Pair with an SRQ are the application's, and `receives` posts none.
    /// [`Happened::Received`](super::Happened::Received) also tells those that failed or were flushed, so that the application can
    /// post them again.
    ///
    /// # Errors
    /// The CQ has no channel or is not that of the QP, the QP lets peers write nothing, the port cannot be queried, or the system has no descriptors left.
    pub fn new(
        device: &Device,
        (qp, cq): (Qp<T>, Cq),
        meeting: impl Meeting + 'static,
        options: Options,
        receives: impl FnMut(&mut Qp<T>) -> Result<(), PostError> + Send + 'static,
    ) -> Result<Self, SuperviseError> {
        let beside = T::Beside::default();
        Supervised::begin(
            device,
            (qp, cq, beside),
            Box::new(meeting),
            options,
            Box::new(receives),
        )
    }
}

impl<C> Supervised<C, Ud> {
    /// The way to the peer of the present life, for requests: [`op::SendTo`](crate::op::SendTo). It is another one in each life;
    /// what is sent by that of a former one does not get in. `None`: there was no peer yet.
    pub fn destination(&self) -> Option<Destination> {
        self.beside.clone()
    }
}

impl<C> Supervised<C, XrcSend> {
    /// Supervises an end of XRC: an initiator, all of whose completions go to `cq`, and a target, at which the initiator of the
    /// peer arrives. Both are connected together, and each end probes by its initiator. The peer is told the number of the XRC
    /// SRQ that its requests shall name.
    ///
    /// The receives, and the CQ on which they complete, are the application's, because they are for all its peers; they stay
    /// while lives come and go. Let that CQ know the target by [`XrcTarget::report_on`]. Messages that have arrived are told
    /// there, and not here.
    ///
    /// Over XRC it is the peer's node that a probe proves, see [`Proof::Node`](crate::supervise::Proof::Node).
    ///
    /// # Errors
    /// As [`Supervised::new`].
    pub fn over_xrc(
        device: &Device,
        (initiator, cq): (Qp<XrcSend>, Cq),
        (target, srq): (XrcTarget, SrqNum),
        meeting: impl Meeting + 'static,
        options: Options,
    ) -> Result<Self, SuperviseError> {
        let parts = (initiator, cq, XrcSide::new(target, srq));
        Supervised::begin(
            device,
            parts,
            Box::new(meeting),
            options,
            Box::new(|_| Ok(())),
        )
    }

    /// The SRQ that requests to the peer of the present life name, see [`op::ToSrq`](crate::op::ToSrq). `None`: there was no
    /// peer yet.
    pub fn peer_srq(&self) -> Option<SrqNum> {
        self.beside.theirs
    }

    /// The target, whose number completions of the SRQ name.
    pub fn target(&self) -> &XrcTarget {
        &self.beside.target
    }
}

impl<C, T: Probes> Supervised<C, T> {
    fn begin(
        device: &Device,
        (qp, cq, beside): (Qp<T>, Cq, T::Beside),
        meeting: Box<dyn Meeting>,
        options: Options,
        receives: Receives<T>,
    ) -> Result<Self, SuperviseError> {
        if qp.cq_ids() != (cq.id(), cq.id()) {
            return Err(SuperviseError::OtherCq);
        }
        if !T::lets_probes_in(&qp, &beside) {
            return Err(SuperviseError::NoRemoteWrite);
        }
        let channel = cq.event_fd().ok_or(SuperviseError::NoChannel)?;
        fd::set_nonblocking(device.event_fd())?;
        let wake = Wake::new(&[channel, device.event_fd()])?;
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(Errno::from)?;
        let seed = u64::from_ne_bytes(seed);
        let machine = Supervisor::new(&options, T::PROOF, seed, Duration::ZERO);
        let mut supervised = Supervised {
            qp,
            cq,
            device: device.clone(),
            meeting,
            receives,
            options,
            machine,
            ledger: Ledger::new(),
            happened: VecDeque::new(),
            origin: Instant::now(),
            look_at: Duration::ZERO,
            more_signs: false,
            ending: None,
            why: None,
            gid: None,
            there: None,
            beside,
            removed: false,
            wake,
        };
        let up = supervised.port_is_up().map_err(SuperviseError::Port)?;
        supervised.machine.port(Duration::ZERO, up);
        supervised.act(Duration::ZERO);
        Ok(supervised)
    }
}
