//! A host: one engine, and what stands around it in production: a socket, requests that wait to be taken,
//! and somebody who drives it, late and slowly.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdma_core_sys::ibv_ah_attr;
use rdma_soft::core::config::{Caps, Config, GidEntry, PortConfig, Strict};
use rdma_soft::core::time::Instant;
use rdma_soft::core::{CqId, Engine, PdId, RecvWqe, SendWqe, SrqId, XrcdId};
use rdma_soft::link::Frame;

use crate::knobs::Knobs;
use crate::memory::mix;

/// A request that was posted, and that the engine has not taken yet.
#[derive(Debug)]
pub enum Post {
    /// To a send queue.
    Send(u32, Box<SendWqe>),
    /// To a receive queue.
    Recv(u32, RecvWqe),
    /// To a shared receive queue.
    Srq(SrqId, RecvWqe),
}

/// A host.
#[derive(Debug)]
pub struct Host {
    /// `None` while it is dead.
    pub engine: Option<Engine>,
    /// How often it was born.
    pub incarnation: u64,
    /// Its objects.
    pub pd: PdId,
    /// See `pd`.
    pub cqs: Vec<CqId>,
    /// See `pd`.
    pub xrcd: XrcdId,
    /// Its shared receive queues, as numbers of the world's: one for its own Queue Pairs, then those of XRC.
    pub srqs: Vec<usize>,
    /// Groups that its socket listens to.
    pub groups: Vec<IpAddr>,
    /// Frames that came and were not taken.
    pub socket: VecDeque<Frame>,
    /// Requests that were posted and not taken.
    pub posts: VecDeque<Post>,
    /// It is at work until then.
    pub busy: Instant,
    /// It stands still until then.
    pub paused: Option<Instant>,
    /// The next turn that is on the agenda.
    pub wake: Option<Instant>,
}

/// Address of a host: entry 0 of its GID table, or 1 for IPv6.
pub fn addr(host: usize, v6: bool) -> IpAddr {
    let n = host as u8 + 1;
    match v6 {
        false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)),
        true => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())),
    }
}

/// Address of a multicast group.
pub fn group(k: usize) -> IpAddr {
    match k % 2 {
        0 => IpAddr::V4(Ipv4Addr::new(239, 1, 2, k as u8)),
        _ => IpAddr::V6(Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 1, k as u16)),
    }
}

/// The host that has an address.
pub fn host_of(address: IpAddr) -> Option<usize> {
    let last = match address {
        IpAddr::V4(a) => usize::from(a.octets()[3]),
        IpAddr::V6(a) => usize::from(a.segments()[7]),
    };
    last.checked_sub(1).filter(|_| !address.is_multicast())
}

/// An address vector to `dst`, from the address of its family.
pub fn ah_attr(dst: IpAddr) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr {
        is_global: 1,
        port_num: 1,
        ..Default::default()
    };
    attr.grh.hop_limit = 64;
    attr.grh.sgid_index = dst.is_ipv6().into();
    attr.grh.dgid.raw = GidEntry::v2(dst).gid;
    attr
}

impl Host {
    /// A host that lives, with everything that does not depend on connections.
    pub fn born(number: usize, incarnation: u64, knobs: &Knobs, seed: u64) -> Result<Host, String> {
        let port = PortConfig {
            gids: [false, true]
                .map(|v6| GidEntry::v2(addr(number, v6)))
                .to_vec(),
            pkeys: vec![0xffff],
            active_mtu: knobs.active_mtu,
            max_msg_sz: 1 << 31,
        };
        let config = Config {
            ports: vec![port],
            caps: Caps::default(),
            window: knobs.window,
            strict: Strict::default(),
        };
        let own = mix(seed, (number as u64) << 32 | incarnation);
        let mut engine = Engine::new(config, own);
        let pd = engine.alloc_pd().map_err(|e| e.to_string())?;
        let cqs = (0..1 + mix(own, 1) % 3).map(|_| engine.create_cq().map_err(|e| e.to_string()));
        let cqs = cqs.collect::<Result<_, _>>()?;
        let xrcd = engine.open_xrcd();
        Ok(Host {
            engine: Some(engine),
            incarnation,
            pd,
            cqs,
            xrcd,
            srqs: vec![],
            groups: vec![],
            socket: VecDeque::new(),
            posts: VecDeque::new(),
            busy: Instant::ZERO,
            paused: None,
            wake: None,
        })
    }

    /// One of its completion queues.
    pub fn cq(&self, draw: u64) -> CqId {
        self.cqs[draw as usize % self.cqs.len()]
    }

    /// Gives all posted requests to the engine: receives of one queue together, as a list of them is.
    pub fn take_posts(&mut self) {
        let Some(engine) = &mut self.engine else {
            return self.posts.clear();
        };
        let mut list = VecDeque::new();
        while let Some(post) = self.posts.pop_front() {
            match post {
                Post::Send(qp, wqe) => engine.post_send(qp, *wqe),
                Post::Srq(srq, wqe) => engine.post_srq_recv(srq, wqe),
                Post::Recv(qp, wqe) => {
                    list.push_back(wqe);
                    let next =
                        matches!(self.posts.front(), Some(Post::Recv(other, _)) if *other == qp);
                    if !next {
                        engine.post_recvs(qp, &mut list);
                        list.clear();
                    }
                }
            }
        }
    }
}
