//! One end: its Queue Pair, and the memory that pings go through.

use std::time::Instant;

use rdma_qp::exchange::{Exchange as _, tcp};
use rdma_qp::xrc::{self, SrqNum, XrcDomain, XrcSend, XrcTarget};
use rdma_qp::{
    Access, Cq, Destination, Dump, Grh, Memory, Mr, PathMtu, PathOptions, QKey, Qp, Rc, Srq,
    Ticket, Timing, Uc, Ud,
};

use super::Transport;
use crate::device::Opened;
use crate::failure::{Failure, told};

/// Receives that an end keeps posted, and sends that it may have under way.
const SLOTS: usize = 16;
/// How long a wait polls before it sleeps: about what a round trip takes on one host.
const SPIN: std::time::Duration = std::time::Duration::from_micros(50);

/// One end.
pub struct End {
    wire: Wire,
    cq: Cq,
    /// [`SLOTS`] receives, and behind them as many places to send from.
    mr: Mr,
    gid: rdma_qp::GidEntry,
    size: usize,
    /// Bytes of a receive in front of the ping.
    header: usize,
    /// Receives that are posted, with their places.
    receives: Vec<(Ticket, usize)>,
    /// The next place to send from.
    place: usize,
    /// Largest path MTU.
    mtu: Option<PathMtu>,
    /// GID of the peer, once it is met.
    peer: Option<rdma_qp::Gid>,
}

enum Wire {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>, Option<Destination>),
    Xrc(Box<Xrc>),
}

/// The objects of XRC: an initiator towards the peer's target, a target for the peer's initiator, and the SRQ that the peer names.
struct Xrc {
    initiator: Qp<XrcSend>,
    target: XrcTarget,
    srq: Srq<xrc::Xrc>,
    /// The peer's.
    to: Option<SrqNum>,
}

/// What became of something.
pub enum Happened {
    /// A ping, or an answer, with this number came.
    Came(u64),
    /// One has left.
    Left,
    /// Nothing, in time.
    Nothing,
    /// The Queue Pair failed; the sentence says how.
    Failed(String),
}

impl End {
    /// Makes everything; it meets no peer yet.
    ///
    /// # Errors
    /// The device cannot do it; a ping of that size does not go into a datagram.
    pub fn new(
        opened: &Opened,
        transport: Transport,
        size: u32,
        mtu: Option<PathMtu>,
    ) -> Result<End, Failure> {
        let device = &opened.device;
        let active = device
            .port(opened.gid.port)
            .map_err(told)?
            .query()
            .map_err(told)?
            .active_mtu;
        let most = [active, mtu]
            .into_iter()
            .flatten()
            .min_by_key(|mtu| mtu.bytes());
        if let (Transport::Ud, Some(most)) = (transport, most)
            && size > most.bytes()
        {
            let most = most.bytes();
            return Err(Failure::Usage(format!(
                "a datagram carries at most {most} bytes here: give --size {most} or less, or another --transport"
            )));
        }
        let (size, header) = (
            size as usize,
            if transport == Transport::Ud {
                Grh::LEN
            } else {
                0
            },
        );
        let depth = SLOTS as u32;
        let pd = device.alloc_pd().map_err(told)?;
        let cq = device.create_event_cq(2 * depth).map_err(told)?;
        cq.set_spin(SPIN);
        let mr = pd
            .register(
                Memory::zeroed(SLOTS * (header + 2 * size)),
                Access::LOCAL_WRITE,
            )
            .map_err(told)?;
        let wire = match transport {
            Transport::Rc => Wire::Rc(
                pd.rc(&cq)
                    .send_depth(depth)
                    .recv_depth(depth)
                    .create()
                    .map_err(told)?,
            ),
            Transport::Uc => Wire::Uc(
                pd.uc(&cq)
                    .send_depth(depth)
                    .recv_depth(depth)
                    .create()
                    .map_err(told)?,
            ),
            Transport::Ud => Wire::Ud(
                pd.ud(&cq)
                    .send_depth(depth)
                    .recv_depth(depth)
                    .create()
                    .map_err(told)?,
                None,
            ),
            Transport::Xrc => {
                let domain = XrcDomain::anonymous(device).map_err(told)?;
                let srq = pd
                    .xrc_srq(&domain, &cq)
                    .depth(depth)
                    .create()
                    .map_err(told)?;
                let initiator = pd.xrc(&cq).send_depth(depth).create().map_err(told)?;
                let target = domain.create_target().map_err(told)?;
                target.report_on(&cq).map_err(told)?;
                Wire::Xrc(Box::new(Xrc {
                    initiator,
                    target,
                    srq,
                    to: None,
                }))
            }
        };
        Ok(End {
            wire,
            cq,
            mr,
            gid: opened.gid,
            size,
            header,
            receives: Vec::new(),
            place: 0,
            mtu,
            peer: None,
        })
    }

    /// Meets the peer, and is ready: receives are posted before the peer may send.
    ///
    /// # Errors
    /// The peer is gone or says something else, or a step was refused.
    pub fn meet(&mut self, peer: &mut tcp::Channel, timing: Timing) -> Result<(), Failure> {
        macro_rules! connect {
            ($qp:ident) => {{
                let mut here = $qp.endpoint(self.gid).map_err(told)?;
                if let Some(mtu) = self.mtu.filter(|mtu| mtu.bytes() < here.mtu.bytes()) {
                    here.mtu = mtu;
                }
                let there = peer.swap(&here, &[]).map_err(told)?;
                $qp.init().map_err(told)?;
                there
            }};
        }
        match &mut self.wire {
            Wire::Rc(qp) => {
                let there = connect!(qp);
                self.peer = Some(there.endpoint.gid);
                self.receive_all()?;
                let Wire::Rc(qp) = &mut self.wire else {
                    return Ok(());
                };
                qp.connect(&there, peer, timing).map_err(told)?;
            }
            Wire::Uc(qp) => {
                let there = connect!(qp);
                self.peer = Some(there.endpoint.gid);
                self.receive_all()?;
                let Wire::Uc(qp) = &mut self.wire else {
                    return Ok(());
                };
                qp.connect(&there, peer, timing).map_err(told)?;
            }
            Wire::Ud(qp, to) => {
                let key = QKey::random().map_err(told)?;
                let here = qp
                    .activate(self.gid, key, PathOptions::default())
                    .map_err(told)?;
                let there = peer.swap(&here, &[]).map_err(told)?;
                *to = Some(qp.destination(&there.endpoint).map_err(told)?);
                self.peer = Some(there.endpoint.gid);
                self.receive_all()?;
                peer.barrier().map_err(told)?;
            }
            Wire::Xrc(end) => {
                let of_initiator = end.initiator.endpoint(self.gid).map_err(told)?;
                let of_target = end.target.endpoint(self.gid).map_err(told)?;
                let their_initiator = peer.swap(&of_initiator, &[]).map_err(told)?;
                let their_target = peer.swap(&of_target, &[]).map_err(told)?;
                let number = end.srq.srq_num().get().to_be_bytes();
                let number = peer.swap_bytes(&number).map_err(told)?;
                let number = number.try_into().map(u32::from_be_bytes);
                let number =
                    number.map_err(|_| Failure::told("the other end sent no SRQ number"))?;
                end.to = Some(SrqNum::new(number).map_err(told)?);
                self.peer = Some(their_target.endpoint.gid);
                self.receive_all()?;
                let Wire::Xrc(end) = &mut self.wire else {
                    return Ok(());
                };
                let below = end
                    .target
                    .connect_begin(&their_initiator, timing)
                    .map_err(told)?;
                let above = end
                    .initiator
                    .connect_begin(&their_target, timing)
                    .map_err(told)?;
                peer.barrier().map_err(told)?;
                end.target.connect_finish(below, timing).map_err(told)?;
                end.initiator.connect_finish(above, timing).map_err(told)?;
                // Nobody sends before the other one's initiator is ready, too.
                peer.barrier().map_err(told)?;
            }
        }
        Ok(())
    }

    fn receive_all(&mut self) -> Result<(), Failure> {
        (0..SLOTS).try_for_each(|place| self.receive(place))
    }

    fn receive(&mut self, place: usize) -> Result<(), Failure> {
        let len = self.header + self.size;
        let slice = self.mr.slice(place * len, len).map_err(told)?;
        let ticket = match &mut self.wire {
            Wire::Rc(qp) => qp.recv(slice).map_err(told),
            Wire::Uc(qp) => qp.recv(slice).map_err(told),
            Wire::Ud(qp, _) => qp.recv(slice).map_err(told),
            Wire::Xrc(end) => end.srq.recv(slice).map_err(told),
        };
        self.receives.push((ticket?, place));
        Ok(())
    }

    /// Sends a ping of that number.
    ///
    /// # Errors
    /// The send queue is full, or it was refused.
    pub fn send(&mut self, number: u64) -> Result<(), Failure> {
        let at = SLOTS * (self.header + self.size) + self.place * self.size;
        self.place = (self.place + 1) % SLOTS;
        self.mr.write_at(at, &number.to_be_bytes()).map_err(told)?;
        let slice = self.mr.slice(at, self.size).map_err(told)?;
        const EARLY: &str = "a ping before the ends have met";
        match &mut self.wire {
            Wire::Rc(qp) => qp.send(slice),
            Wire::Uc(qp) => qp.send(slice),
            Wire::Ud(qp, to) => qp.send_to(slice, to.as_ref().ok_or_else(|| told(EARLY))?),
            Wire::Xrc(end) => {
                let to = end.to.ok_or_else(|| told(EARLY))?;
                end.initiator.send_to(slice, to)
            }
        }
        .map_err(told)?;
        Ok(())
    }

    /// Waits for what happens next, until then. A receive that was used is posted again.
    ///
    /// # Errors
    /// The CQ does not work any more, or a receive was refused.
    pub fn next(&mut self, until: Instant) -> Result<Happened, Failure> {
        let left = until.saturating_duration_since(Instant::now());
        let Some(done) = self.cq.wait_any(left).map_err(told)? else {
            return Ok(Happened::Nothing);
        };
        if done.outcome.is_err() {
            let report = self.cq.explain(&done);
            return Ok(Happened::Failed(
                report.map_or_else(|| format!("{done:?}"), |report| report.to_string()),
            ));
        }
        let Some(known) = self
            .receives
            .iter()
            .position(|(ticket, _)| *ticket == done.ticket)
        else {
            return Ok(Happened::Left);
        };
        let (_, place) = self.receives.swap_remove(known);
        let mut number = [0; 8];
        self.mr
            .read_at(place * (self.header + self.size) + self.header, &mut number)
            .map_err(told)?;
        self.receive(place)?;
        Ok(Happened::Came(u64::from_be_bytes(number)))
    }

    /// GID of the peer, once it is met.
    pub fn peer(&self) -> Option<rdma_qp::Gid> {
        self.peer
    }

    /// The Queue Pair that takes what the peer's sends, as a document.
    pub fn taking(&self) -> Dump {
        match &self.wire {
            Wire::Xrc(end) => end.target.dump(),
            _ => self.dump(),
        }
    }

    /// The Queue Pair that sends, as a document.
    pub fn dump(&self) -> Dump {
        match &self.wire {
            Wire::Xrc(end) => end.initiator.dump(),
            Wire::Rc(qp) => qp.dump(),
            Wire::Uc(qp) => qp.dump(),
            Wire::Ud(qp, _) => qp.dump(),
        }
    }
}
