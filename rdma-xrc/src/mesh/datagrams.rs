//! A mesh without connections: one UD Queue Pair for all peers, with the reliable datagrams of `rdma-qp` over it.
//!
//! There are no ways to be made and lost, so the lanes stay idle; messages, their fate, and the death of peers come from the
//! layer.

use rdma_qp::datagram::{DatagramError, Event as Happened, Layer, PeerId, SendError as Refused};
use rdma_qp::{Completion, Cq, Device, GidEntry, Pd};

use super::error::{MeshError, step};
use super::{Event, Inbox, Mesh, Message, NotDone, OpId, Options, PeerState, Rank, SendError, Why};

/// The layer, and who its peers are.
pub(super) struct Grams {
    pub(super) layer: Layer,
    /// By rank; `None` for the process itself.
    peers: Vec<Option<PeerId>>,
    /// By the index of a peer.
    ranks: Vec<Rank>,
}

impl Options {
    /// What they come to for datagrams.
    pub(super) fn datagrams(&self, processes: usize) -> rdma_qp::datagram::Options {
        let peers = (processes as u32).saturating_sub(1).max(1);
        let usual = rdma_qp::datagram::Options::default();
        // As many messages as there are buffers, of the smallest MTU at worst, and one may be as long as half of them.
        let longest = self.max_message.div_ceil(SMALLEST_PART).max(1);
        rdma_qp::datagram::Options {
            peers,
            // Room is given to those who send, so it need not be for all peers.
            receives: self.srq_depth.max(LEAST_RECEIVES),
            send_packets: self.send_buffers.max(longest.saturating_mul(2)),
            send_depth: self.send_depth.max(usual.send_depth),
            max_message: self.max_message,
            // Unlimited is refused before.
            dead_after: self.timing.budget().unwrap_or(usual.dead_after),
            heartbeat: self.quiet_for(),
            ..usual
        }
    }
}

/// Receives that there are at least.
pub(crate) const LEAST_RECEIVES: u32 = 16;

/// Bytes of a message in a packet of 256 bytes, which is the smallest MTU.
const SMALLEST_PART: u32 = 200;

impl Grams {
    pub(super) fn open(
        (device, pd, cq): (&Device, &Pd, &Cq),
        gid: GidEntry,
        options: &Options,
        processes: usize,
    ) -> Result<Grams, MeshError> {
        let layer = Layer::new(device, pd, cq, gid, &options.datagrams(processes));
        let layer = layer.map_err(|error| match error {
            // They follow from these two, and nothing else of the mesh's is refused.
            DatagramError::Option {
                option: "send_packets",
                ..
            } => {
                let long = options.max_message > options.send_buffers;
                let (option, value) = match long {
                    true => ("max_message", options.max_message),
                    false => ("send_buffers", options.send_buffers),
                };
                MeshError::Option {
                    option,
                    value: value.into(),
                    cure: "over datagrams a packet of it is kept for each 200 bytes, or for each message, at most 2^20: give less",
                }
            }
            error => step("making the end for datagrams")(error),
        })?;
        Ok(Grams {
            layer,
            peers: Vec::new(),
            ranks: Vec::new(),
        })
    }

    /// Adds the process of the next rank; without a card, it is this one.
    pub(super) fn add(&mut self, rank: Rank, card: Option<&[u8]>) -> Result<(), MeshError> {
        let peer = card.map(|card| self.layer.add_peer(card)).transpose();
        let peer = peer.map_err(step("adding a peer for datagrams"))?;
        self.peers.push(peer);
        // Peers are numbered in the order in which they are added, and none is added later.
        self.ranks.extend(peer.map(|_| rank));
        Ok(())
    }

    fn peer(&self, rank: Rank) -> Option<PeerId> {
        *self.peers.get(rank.index())?
    }

    pub(super) fn is_its(&self, done: &Completion) -> bool {
        self.layer.is_its(done)
    }

    pub(super) fn book(&mut self, done: &Completion) -> Result<(), MeshError> {
        self.layer.book(done).map_err(step("exchanging datagrams"))
    }

    pub(super) fn progress(&mut self) -> Result<(), MeshError> {
        self.layer.progress().map_err(step("exchanging datagrams"))
    }

    pub(super) fn is_connected(&self, rank: Rank) -> bool {
        (self.peer(rank)).is_some_and(|peer| self.layer.is_connected(peer))
    }

    /// Begins a session.
    pub(super) fn connect(&mut self, rank: Rank) {
        if let Some(peer) = self.peer(rank) {
            // Whoever was removed is not asked for: the mesh knows that it is gone.
            let _ = self.layer.connect(peer);
        }
    }

    pub(super) fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<OpId, SendError> {
        let peer = self.peer(to).ok_or(SendError::Itself(to))?;
        match self.layer.send(peer, bytes) {
            // The layer's only messages are those of the mesh.
            Ok(id) => Ok(OpId(id.number())),
            Err(Refused::WouldBlock) => Err(SendError::Busy),
            Err(Refused::TooLong { len, max, .. }) => {
                let max = max as u32;
                Err(SendError::TooLong { len, max, to })
            }
            Err(error) => Err(step("sending a message")(error).into()),
        }
    }

    /// Gives a process up: what is under way to it is reported.
    pub(super) fn remove(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank.index()).and_then(Option::take) {
            // It is removed once, because it is forgotten here.
            let _ = self.layer.remove_peer(peer);
        }
    }
}

impl Mesh {
    /// The layer of datagrams, if the mesh is over that.
    pub(super) fn grams(&self) -> Option<&Grams> {
        match &self.inbox {
            Inbox::Datagrams(grams) => Some(grams),
            Inbox::Rc(_) | Inbox::Xrc(_) => None,
        }
    }

    pub(super) fn grams_mut(&mut self) -> Option<&mut Grams> {
        match &mut self.inbox {
            Inbox::Datagrams(grams) => Some(grams),
            Inbox::Rc(_) | Inbox::Xrc(_) => None,
        }
    }

    /// Takes what the layer tells.
    pub(super) fn take_datagrams(&mut self) -> Result<(), MeshError> {
        while let Some(grams) = self.grams_mut()
            && let Some(happened) = grams.layer.next_event()
        {
            let of = |peer: PeerId| grams.ranks.get(peer.index()).copied();
            let gone = match happened {
                Happened::Received { peer, message } => {
                    if let Some(from) = of(peer)
                        && self.peers[from.index()].state == PeerState::Living
                    {
                        let message = Message::datagram(from, message);
                        self.events.push_back(Event::Message(message));
                    }
                    None
                }
                Happened::Acknowledged { peer, message } => {
                    if let Some(to) = of(peer) {
                        let (op, result) = (OpId(message.number()), Ok(()));
                        self.events.push_back(Event::Done { op, to, result });
                    }
                    None
                }
                Happened::Lost {
                    peer,
                    message,
                    fate,
                } => {
                    if let Some(to) = of(peer) {
                        let (op, failure) = (OpId(message.number()), None);
                        let result = Err(NotDone { failure, fate });
                        self.events.push_back(Event::Done { op, to, result });
                    }
                    None
                }
                Happened::Dead { peer } => of(peer).zip(Some(Why::NoAnswer)),
                Happened::Restarted { peer } => of(peer).zip(Some(Why::Restarted)),
                _ => None,
            };
            if let Some((rank, why)) = gone {
                self.fail_processes(vec![rank], why)?;
            }
        }
        Ok(())
    }
}
