//! Making the process's own part of a mesh, and joining the others.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use rdma_qp::datagram::Layer;
use rdma_qp::{BufferPool, Cq, Device, GidEntry, Pd, Refill, RemoteRegion};

use super::card::{Card, CardError, Kind};
use super::datagrams::Grams;
use super::error::{MeshError, step};
use super::lane::Lane;
use super::leave::Departure;
use super::mail::{self, Mail};
use super::targets::Targets;
use super::{Inbox, Layout, Mesh, Options, Over, Peer, PeerState, Rank};

/// A process that has made its own part, and waits for the cards of the others. Made by [`Mesh::begin`].
pub struct Joining {
    me: Rank,
    layout: Layout,
    options: Options,
    over: Over,
    gid: GidEntry,
    mail: Mail,
    inbox: Inbox,
    outgoing: BufferPool,
    cq: Cq,
    pd: Pd,
    card: Card,
}

impl Mesh {
    /// Makes the part of a mesh that this process needs by itself: protection domain, CQ, SRQ with its receives, and the UD
    /// QP on the port of `gid`. Then its [card](Joining::card) goes to all others, and theirs come here
    /// ([`Joining::join`]).
    ///
    /// # Errors
    /// The layout has no such process, an option is out of its range, or something could not be made.
    pub fn begin(
        device: &Device,
        gid: impl Into<GidEntry>,
        over: Over,
        layout: &Layout,
        me: Rank,
        options: &Options,
    ) -> Result<Joining, MeshError> {
        options.check()?;
        let (gid, processes) = (gid.into(), layout.processes());
        if layout.node_of(me).is_none() {
            return Err(MeshError::NotInLayout { me, processes });
        }
        let lanes = match &over {
            Over::Rc => processes - 1,
            Over::Xrc(_) => layout.nodes(),
            Over::Datagrams => 0,
        };
        let sends = (lanes as u64).saturating_mul(options.send_depth.into());
        let receives = match &over {
            Over::Datagrams => Layer::cq_entries(&options.datagrams(processes)),
            Over::Rc | Over::Xrc(_) => options.srq_depth,
        };
        let fixed = u64::from(receives) + u64::from(mail::SENDS + mail::receives(processes));
        let most = u64::try_from(device.attr().max_cqe).unwrap_or(0);
        // If that is too little for all ways at a time, making one of them says so.
        let entries = sends.saturating_add(fixed).min(most).min(u32::MAX.into());
        let pd = device.alloc_pd().map_err(step("allocating the PD"))?;
        let cq = device.create_event_cq(entries as u32);
        let cq = cq.map_err(step("making the CQ"))?;
        let pool = |count: u32| {
            let pool = pd.buffers(count as usize, options.max_message as usize);
            pool.map_err(step("registering buffers"))
        };
        let (depth, low) = (options.srq_depth, options.low_water);
        let (mut srq_num, mut gram_card) = (None, None);
        let inbox = match &over {
            Over::Rc => {
                let srq = pd.srq().depth(depth).create();
                let srq = srq.map_err(step("making the SRQ"))?;
                Inbox::Rc(Refill::new(srq, pool(2 * depth)?, low))
            }
            Over::Xrc(domain) => {
                let srq = pd.xrc_srq(domain, &cq).depth(depth).create();
                let srq = srq.map_err(step("making the XRC SRQ"))?;
                srq_num = Some(srq.srq_num());
                Inbox::Xrc(Refill::new(srq, pool(2 * depth)?, low))
            }
            Over::Datagrams => {
                let grams = Grams::open((device, &pd, &cq), gid, options, processes)?;
                let card = grams.layer.card();
                gram_card = Some(card.map_err(step("encoding the card"))?);
                Inbox::Datagrams(Box::new(grams))
            }
        };
        // Datagrams have buffers of their own.
        let outgoing = pool(match gram_card {
            Some(_) => 1,
            None => options.send_buffers,
        })?;
        let (mail, here) = Mail::open(&pd, &cq, gid, processes)?;
        let mut joining = Joining {
            me,
            layout: layout.clone(),
            options: options.clone(),
            over,
            gid,
            mail,
            inbox,
            outgoing,
            cq,
            pd,
            card: Card {
                rank: me,
                srq: srq_num,
                datagrams: gram_card,
                max_message: options.max_message,
                mail: rdma_qp::Peer {
                    endpoint: here,
                    regions: Vec::new(),
                },
            },
        };
        joining.inbox.top_up()?;
        Ok(joining)
    }
}

impl Joining {
    /// The protection domain for regions of this process.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Offers a region to all other processes ([`Mesh::region`]), after those that were offered before. It must be registered
    /// with [`Joining::pd`], and stay registered.
    pub fn offer(&mut self, region: RemoteRegion) {
        self.card.mail.regions.push(region);
    }

    /// What the others need to know of this process: 84 bytes, over datagrams 160, and 24 more for each region.
    ///
    /// # Errors
    /// More than [`MAX_REGIONS`](rdma_qp::MAX_REGIONS) regions are offered.
    pub fn card(&self) -> Result<Vec<u8>, MeshError> {
        let card = self.card.encode();
        card.map_err(step("encoding the card"))
    }

    /// Joins the others, whose cards are given in the order of their ranks, this process's own among them. No way is connected
    /// yet: that happens when it is first needed, or with [`Mesh::connect_all`].
    ///
    /// # Errors
    /// The cards are not those of the processes of the layout.
    pub fn join(mut self, cards: &[impl AsRef<[u8]>]) -> Result<Mesh, MeshError> {
        let (given, processes) = (cards.len(), self.layout.processes());
        if given != processes {
            return Err(CardError::Count { given, processes }.into());
        }
        let xrc = matches!(self.over, Over::Xrc(_));
        let kind = Kind::of(&self.over);
        let mut peers = Vec::with_capacity(processes);
        for (rank, card) in cards.iter().enumerate() {
            let card = Card::decode(card.as_ref(), Rank(rank as u32), kind)?;
            let state = PeerState::Living;
            peers.push(Peer { card, state });
        }
        if peers[self.me.index()].card != self.card {
            return Err(CardError::NotOurs.into());
        }
        if let Inbox::Datagrams(grams) = &mut self.inbox {
            for peer in &peers {
                let card = peer.card.datagrams.as_deref();
                grams.add(peer.card.rank, card.filter(|_| peer.card.rank != self.me))?;
            }
        }
        let now = Instant::now();
        let lanes = if xrc { self.layout.nodes() } else { processes };
        let targets = match self.over {
            Over::Rc | Over::Datagrams => None,
            Over::Xrc(domain) => {
                let node = self.layout.node_of(self.me).unwrap_or(0);
                let others = self.layout.on(node).iter().copied();
                let others = others.filter(|rank| *rank != self.me);
                Some(Targets::new(domain, others, now))
            }
        };
        Ok(Mesh {
            me: self.me,
            layout: self.layout,
            options: self.options,
            gid: self.gid,
            lanes: (0..lanes).map(|_| Lane::new(now)).collect(),
            targets,
            mail: self.mail,
            inbox: self.inbox,
            outgoing: self.outgoing,
            held: 0,
            cq: self.cq,
            pd: self.pd,
            peers,
            lane_of: HashMap::new(),
            behind: HashMap::new(),
            unclaimed: HashMap::new(),
            wanted: VecDeque::new(),
            connecting: BTreeSet::new(),
            departure: Departure::Stays,
            events: VecDeque::new(),
            told: 0,
            next_op: 0,
            next_life: 0,
            next_tick: now,
        })
    }
}
