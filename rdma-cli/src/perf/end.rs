//! One end: its CQ and its Queue Pairs, of any transport.

use std::time::Duration;

use rdma_qp::exchange::{Exchange as _, tcp};
use rdma_qp::xrc::{self, SrqNum, XrcDomain, XrcSend, XrcTarget};
use rdma_qp::{
    Cq, Destination, Dump, Gid, GidEntry, MrSlice, Negotiated, PathMtu, PathOptions, Pd, Peer,
    PostFlags, QKey, Qp, Rc, RemoteAddr, RemoteRegion, Srq, Ticket, Timing, Uc, Ud, op,
};

use super::Transport;
use crate::device::{Opened, check_reach};
use crate::failure::{Failure, told};

/// What an end shall have.
pub struct Wants {
    /// Of which transport.
    pub transport: Transport,
    /// Pairs of queues.
    pub lanes: usize,
    /// Sends that each may have under way.
    pub send_depth: u32,
    /// Receives that each may have posted.
    pub recv_depth: u32,
    /// Bytes of a send that can go inline.
    pub inline: u32,
    /// Whether waiting may sleep, after it has polled for so long.
    pub sleeps: Option<Duration>,
    /// Largest path MTU.
    pub mtu: Option<PathMtu>,
}

/// One end.
pub struct End {
    /// Everything completes here.
    pub cq: Cq,
    /// What is sent by and received by; never empty.
    pub lanes: Vec<Lane>,
    /// What memory is registered with.
    pub pd: Pd,
    gid: GidEntry,
    mtu: Option<PathMtu>,
}

/// A Queue Pair, or what stands for one on XRC.
pub struct Lane {
    wire: Wire,
    /// The peer's records: one; on XRC those of its initiator and of its target.
    there: Vec<Peer>,
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

/// What a send asks for.
#[derive(Clone, Copy)]
pub enum Ask {
    /// SEND.
    Send,
    /// SEND with a number.
    SendImm(u32),
    /// RDMA WRITE.
    Write(RemoteAddr),
    /// RDMA WRITE that tells the peer a number.
    WriteImm(RemoteAddr, u32),
    /// RDMA READ.
    Read(RemoteAddr),
    /// Compare with the first number, swap in the second.
    CompareSwap(RemoteAddr, u64, u64),
    /// Fetch, and add the number.
    FetchAdd(RemoteAddr, u64),
}

/// The largest message that a datagram carries on that port; `None` for other transports.
///
/// # Errors
/// The port cannot be queried.
pub fn datagram_limit(
    opened: &Opened,
    transport: Transport,
    mtu: Option<PathMtu>,
) -> Result<Option<u32>, Failure> {
    if transport != Transport::Ud {
        return Ok(None);
    }
    let port = opened.device.port(opened.gid.port).map_err(told)?;
    let active = port.query().map_err(told)?.active_mtu;
    Ok([active, mtu]
        .into_iter()
        .flatten()
        .map(PathMtu::bytes)
        .min())
}

/// Why a datagram of that many bytes does not go.
pub fn too_long_for_a_datagram(most: u32) -> Failure {
    Failure::Usage(format!(
        "a datagram carries at most {most} bytes here: give --size {most} or less, or another --transport"
    ))
}

impl End {
    /// Makes everything; it meets no peer yet.
    ///
    /// # Errors
    /// The device cannot do it.
    pub fn new(opened: &Opened, wants: &Wants) -> Result<End, Failure> {
        let device = &opened.device;
        let pd = device.alloc_pd().map_err(told)?;
        let room = wants.lanes as u32 * (wants.send_depth + wants.recv_depth);
        let cq = match wants.sleeps {
            Some(spin) => {
                let cq = device.create_event_cq(room).map_err(told)?;
                cq.set_spin(spin);
                cq
            }
            None => device.create_cq(room).map_err(told)?,
        };
        let domain = match wants.transport {
            Transport::Xrc => Some(XrcDomain::anonymous(device).map_err(told)?),
            _ => None,
        };
        let lanes = (0..wants.lanes)
            .map(|_| Lane::new(&pd, &cq, domain.as_ref(), wants))
            .collect::<Result<_, _>>()?;
        Ok(End {
            cq,
            lanes,
            pd,
            gid: opened.gid,
            mtu: wants.mtu,
        })
    }

    /// Each end tells the other of its Queue Pairs, and of the region that it offers. Receives can be posted afterwards.
    ///
    /// # Errors
    /// The peer is gone or says something else, or a step was refused.
    pub fn introduce(
        &mut self,
        peer: &mut tcp::Channel,
        offered: &[RemoteRegion],
    ) -> Result<(), Failure> {
        let (gid, mtu) = (self.gid, self.mtu);
        (self.lanes.iter_mut()).try_for_each(|lane| lane.introduce(peer, gid, mtu, offered))
    }

    /// Connects all Queue Pairs: after this both ends can send.
    ///
    /// # Errors
    /// The peer is gone, or a step was refused.
    pub fn connect(&mut self, peer: &mut tcp::Channel, timing: Timing) -> Result<(), Failure> {
        let begun = (self.lanes.iter_mut())
            .map(|lane| lane.begin(timing))
            .collect::<Result<Vec<_>, _>>()?;
        peer.barrier().map_err(told)?;
        for (lane, agreed) in self.lanes.iter_mut().zip(begun) {
            lane.finish(&agreed, timing)?;
        }
        // Nobody sends before the other end can answer.
        peer.barrier().map_err(told)
    }

    /// The path MTU in bytes, once the peer is introduced; of datagrams the port's.
    pub fn path_mtu(&self) -> Option<u32> {
        let settings = self.lanes.first()?.dump().settings(None);
        settings.path_mtu.map(PathMtu::bytes)
    }

    /// GID of the peer, once it is introduced.
    pub fn peer(&self) -> Option<Gid> {
        let there = self.lanes.first()?.there.last()?;
        Some(there.endpoint.gid)
    }
}

impl Lane {
    fn new(pd: &Pd, cq: &Cq, domain: Option<&XrcDomain>, wants: &Wants) -> Result<Lane, Failure> {
        macro_rules! pair {
            ($begin:expr) => {
                $begin
                    .send_depth(wants.send_depth)
                    .recv_depth(wants.recv_depth)
                    .inline_data(wants.inline)
                    .create()
                    .map_err(told)?
            };
        }
        let wire = match (wants.transport, domain) {
            (Transport::Uc, _) => Wire::Uc(pair!(pd.uc(cq))),
            (Transport::Ud, _) => Wire::Ud(pair!(pd.ud(cq)), None),
            (Transport::Xrc, Some(domain)) => {
                let srq = pd.xrc_srq(domain, cq).depth(wants.recv_depth);
                let srq = srq.create().map_err(told)?;
                let initiator = pd.xrc(cq).send_depth(wants.send_depth);
                let initiator = initiator.inline_data(wants.inline).create().map_err(told)?;
                let target = domain.create_target().map_err(told)?;
                target.report_on(cq).map_err(told)?;
                let to = None;
                Wire::Xrc(Box::new(Xrc {
                    initiator,
                    target,
                    srq,
                    to,
                }))
            }
            _ => Wire::Rc(pair!(pd.rc(cq))),
        };
        let there = Vec::new();
        Ok(Lane { wire, there })
    }

    fn introduce(
        &mut self,
        peer: &mut tcp::Channel,
        gid: GidEntry,
        mtu: Option<PathMtu>,
        offered: &[RemoteRegion],
    ) -> Result<(), Failure> {
        macro_rules! swap {
            ($qp:expr) => {{
                let mut here = $qp.endpoint(gid).map_err(told)?;
                if let Some(mtu) = mtu.filter(|mtu| mtu.bytes() < here.mtu.bytes()) {
                    here.mtu = mtu;
                }
                let there = peer.swap(&here, offered).map_err(told)?;
                check_reach(here.gid, there.endpoint.gid, peer)?;
                self.there.push(there);
            }};
        }
        match &mut self.wire {
            Wire::Rc(qp) => {
                swap!(qp);
                qp.init().map_err(told)
            }
            Wire::Uc(qp) => {
                swap!(qp);
                qp.init().map_err(told)
            }
            Wire::Ud(qp, to) => {
                let key = QKey::random().map_err(told)?;
                let here = qp.activate(gid, key, PathOptions::default());
                let here = here.map_err(told)?;
                let there = peer.swap(&here, &[]).map_err(told)?;
                check_reach(here.gid, there.endpoint.gid, peer)?;
                *to = Some(qp.destination(&there.endpoint).map_err(told)?);
                self.there.push(there);
                Ok(())
            }
            Wire::Xrc(end) => {
                swap!(end.initiator);
                swap!(end.target);
                let number = end.srq.srq_num().get().to_be_bytes();
                let number = peer.swap_bytes(&number).map_err(told)?;
                let number = number.try_into().map(u32::from_be_bytes);
                let number =
                    number.map_err(|_| Failure::told("the other end sent no SRQ number"))?;
                end.to = Some(SrqNum::new(number).map_err(told)?);
                Ok(())
            }
        }
    }

    fn begin(&mut self, timing: Timing) -> Result<Vec<Negotiated>, Failure> {
        match (&mut self.wire, &self.there[..]) {
            (Wire::Rc(qp), [there]) => Ok(vec![qp.connect_begin(there, timing).map_err(told)?]),
            (Wire::Uc(qp), [there]) => Ok(vec![qp.connect_begin(there, timing).map_err(told)?]),
            (Wire::Ud(..), _) => Ok(Vec::new()),
            (Wire::Xrc(end), [initiator, target]) => Ok(vec![
                end.target.connect_begin(initiator, timing).map_err(told)?,
                end.initiator.connect_begin(target, timing).map_err(told)?,
            ]),
            _ => Err(told(EARLY)),
        }
    }

    fn finish(&mut self, agreed: &[Negotiated], timing: Timing) -> Result<(), Failure> {
        match (&mut self.wire, agreed) {
            (Wire::Rc(qp), [agreed]) => qp.connect_finish(*agreed, timing).map(|_| ()),
            (Wire::Uc(qp), [agreed]) => qp.connect_finish(*agreed, timing).map(|_| ()),
            (Wire::Xrc(end), [below, above]) => (end.target.connect_finish(*below, timing))
                .and_then(|_| end.initiator.connect_finish(*above, timing))
                .map(|_| ()),
            _ => Ok(()),
        }
        .map_err(told)
    }

    /// The region that the peer offers.
    ///
    /// # Errors
    /// It offers none.
    pub fn offered(&self) -> Result<RemoteRegion, Failure> {
        let there = self.there.last().ok_or_else(|| told(EARLY))?;
        there.region(0).map_err(told)
    }

    /// Numbers of the Queue Pairs that its completions name: the one that sends, and the one that receives.
    pub fn numbers(&self) -> [u32; 2] {
        match &self.wire {
            Wire::Rc(qp) => [qp.qp_num(); 2],
            Wire::Uc(qp) => [qp.qp_num(); 2],
            Wire::Ud(qp, _) => [qp.qp_num(); 2],
            Wire::Xrc(end) => [end.initiator.qp_num(), end.target.qp_num()],
        }
    }

    /// Sets for how many sends one doorbell is.
    ///
    /// # Errors
    /// The device refused what waited.
    pub fn set_list(&mut self, sends: u32) -> Result<(), Failure> {
        let (sends, recvs) = (rdma_qp::Doorbell::Every(sends), rdma_qp::Doorbell::Each);
        match &mut self.wire {
            Wire::Rc(qp) => qp.set_doorbell(sends, recvs),
            Wire::Uc(qp) => qp.set_doorbell(sends, recvs),
            Wire::Ud(qp, _) => qp.set_doorbell(sends, recvs),
            Wire::Xrc(end) => end.initiator.set_doorbell(sends, recvs),
        }
        .map_err(told)
    }

    /// Hands over the sends that wait for the doorbell.
    ///
    /// # Errors
    /// The device refused some of them.
    pub fn ring(&mut self) -> Result<(), Failure> {
        match &mut self.wire {
            Wire::Rc(qp) => qp.ring(),
            Wire::Uc(qp) => qp.ring(),
            Wire::Ud(qp, _) => qp.ring(),
            Wire::Xrc(end) => end.initiator.ring(),
        }
        .map_err(told)
    }

    /// Posts a send.
    ///
    /// # Errors
    /// The queue is full, the request was refused, the transport has no such operation, or the ends have not met.
    #[inline(always)]
    pub fn post(
        &mut self,
        ask: Ask,
        local: MrSlice<'_>,
        flags: PostFlags,
    ) -> Result<Ticket, Failure> {
        let posted = match (&mut self.wire, ask) {
            (Wire::Rc(qp), Ask::Send) => qp.post(op::Send, local, flags),
            (Wire::Rc(qp), Ask::SendImm(imm)) => qp.post(op::SendImm(imm), local, flags),
            (Wire::Rc(qp), Ask::Write(remote)) => qp.post(op::Write { remote }, local, flags),
            (Wire::Rc(qp), Ask::WriteImm(remote, imm)) => {
                qp.post(op::WriteImm { remote, imm }, local, flags)
            }
            (Wire::Rc(qp), Ask::Read(remote)) => qp.post(op::Read { remote }, local, flags),
            (Wire::Rc(qp), Ask::CompareSwap(remote, compare, swap)) => {
                let op = op::CompareSwap {
                    remote,
                    compare,
                    swap,
                };
                qp.post(op, local, flags)
            }
            (Wire::Rc(qp), Ask::FetchAdd(remote, add)) => {
                qp.post(op::FetchAdd { remote, add }, local, flags)
            }
            (Wire::Uc(qp), Ask::Send) => qp.post(op::Send, local, flags),
            (Wire::Uc(qp), Ask::SendImm(imm)) => qp.post(op::SendImm(imm), local, flags),
            (Wire::Uc(qp), Ask::Write(remote)) => qp.post(op::Write { remote }, local, flags),
            (Wire::Uc(qp), Ask::WriteImm(remote, imm)) => {
                qp.post(op::WriteImm { remote, imm }, local, flags)
            }
            (Wire::Ud(qp, Some(to)), Ask::Send) => qp.post(op::SendTo { to }, local, flags),
            (Wire::Ud(qp, Some(to)), Ask::SendImm(imm)) => {
                qp.post(op::SendToImm { to, imm }, local, flags)
            }
            (Wire::Xrc(end), ask) => return end.post(ask, local, flags),
            _ => return Err(told(EARLY)),
        };
        posted.map_err(told)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The queue is full, or it was refused.
    #[inline(always)]
    pub fn recv(&mut self, local: MrSlice<'_>) -> Result<Ticket, Failure> {
        match &mut self.wire {
            Wire::Rc(qp) => qp.recv(local),
            Wire::Uc(qp) => qp.recv(local),
            Wire::Ud(qp, _) => qp.recv(local),
            Wire::Xrc(end) => end.srq.recv(local),
        }
        .map_err(told)
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

const EARLY: &str = "the ends have not met, or the transport has no such operation";

impl Xrc {
    fn post(&mut self, ask: Ask, local: MrSlice<'_>, flags: PostFlags) -> Result<Ticket, Failure> {
        let srq = self.to.ok_or_else(|| told(EARLY))?;
        macro_rules! post {
            ($op:expr) => {
                self.initiator
                    .post(op::ToSrq { srq, op: $op }, local, flags)
            };
        }
        match ask {
            Ask::Send => post!(op::Send),
            Ask::SendImm(imm) => post!(op::SendImm(imm)),
            Ask::Write(remote) => post!(op::Write { remote }),
            Ask::WriteImm(remote, imm) => post!(op::WriteImm { remote, imm }),
            Ask::Read(remote) => post!(op::Read { remote }),
            Ask::CompareSwap(remote, compare, swap) => post!(op::CompareSwap {
                remote,
                compare,
                swap
            }),
            Ask::FetchAdd(remote, add) => post!(op::FetchAdd { remote, add }),
        }
        .map_err(told)
    }
}
