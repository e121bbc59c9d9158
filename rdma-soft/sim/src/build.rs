//! What a cluster consists of: hosts, memory, shared receive queues, connections.

use std::collections::{BTreeMap, VecDeque};

use rdma_core_sys::ibv_access_flags;
use rdma_core_sys::rules::Transport;
use rdma_soft::core::rng::Rng;
use rdma_soft::core::time::Instant;
use rdma_soft::core::{QpInit, SrqInit};

use crate::books::{Conn, End, Kind, Srq, WORDS, Way};
use crate::host::Host;
use crate::memory::{Area, AreaInit, mix};
use crate::world::{Owner, Verdict, World};

/// All rights.
pub const ALL: ibv_access_flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
    .union(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)
    .union(ibv_access_flags::IBV_ACCESS_REMOTE_READ)
    .union(ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC);

/// What an area is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// What is sent.
    Source,
    /// Where READs and atomics put what they bring.
    Landing,
    /// What peers write.
    Target,
    /// What peers read.
    Fixed,
    /// What peers' atomics work on.
    Words,
    /// Where messages go.
    Inbox,
}

/// Bytes that the longest message may be too long by, where that is meant.
pub const TOO_LONG: u32 = 32;

impl World {
    /// Bytes that a receive has room for: the longest message, and what stands before a datagram.
    pub fn room(&self) -> u32 {
        self.knobs.longest + rdma_soft::core::GRH_LEN as u32
    }

    /// Registers memory at a host.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn area(&mut self, host: usize, of: Use) -> Result<usize, String> {
        let number = self.areas.len();
        let slot = u64::from(self.room() + TOO_LONG + 8 * 16);
        let depth = self.knobs.depth;
        let (slots, access) = match of {
            Use::Source => ((depth.min(8) + 1, slot), ibv_access_flags::empty()),
            Use::Landing => (
                (depth.min(4) + 1, slot),
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            ),
            Use::Target => (
                (depth.min(6) + 2, slot),
                ALL | ibv_access_flags::IBV_ACCESS_MW_BIND,
            ),
            Use::Fixed => ((1, slot), ibv_access_flags::IBV_ACCESS_REMOTE_READ),
            Use::Words => ((1, 64), ALL),
            Use::Inbox => (
                (self.knobs.receives + 1, slot),
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            ),
        };
        let mark = mix(self.seed, 0xa << 32 | number as u64);
        // Words are aligned to 8 bytes; nothing else need be.
        let odd = if of == Use::Words { 0 } else { mark % 64 };
        let iova = (host as u64 + 1) << 48 | (number as u64) << 24 | odd;
        let pd = self.hosts[host].pd;
        let init = AreaInit {
            host,
            pd,
            iova,
            slots,
            access,
            mark,
        };
        let engine = self.hosts[host].engine.as_mut().ok_or("a dead host")?;
        let mut area = Area::new(engine, init)?;
        if of == Use::Words {
            area.hold(0);
            for word in 0..WORDS {
                area.put(0, &[(word_at(word), 8)], &[0; 8]);
            }
        }
        self.areas.push(area);
        Ok(number)
    }

    /// A host begins to live.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn born(&mut self, host: usize, incarnation: u64) -> Verdict {
        let born = Host::born(host, incarnation, &self.knobs, self.seed)?;
        match incarnation {
            0 => self.hosts.push(born),
            _ => self.hosts[host] = born,
        }
        let now = self.now;
        self.hosts[host].busy = now;
        let drawn = mix(self.seed, 0xb << 32 | host as u64);
        for at in 0..2 + drawn % 2 {
            self.srq(host, at > 0)?;
        }
        Ok(())
    }

    fn srq(&mut self, host: usize, xrc: bool) -> Verdict {
        let inbox = self.area(host, Use::Inbox)?;
        let h = &mut self.hosts[host];
        let number = self.srqs.len();
        let init = SrqInit {
            pd: h.pd,
            max_wr: 64,
            max_sge: 4,
            limit: 0,
            xrc: xrc.then_some((h.xrcd, h.cq(number as u64))),
        };
        let engine = h.engine.as_mut().ok_or("a dead host")?;
        let id = engine.create_srq(init).map_err(|e| e.to_string())?;
        h.srqs.push(number);
        self.srqs.push(Srq {
            host,
            id,
            xrc,
            dead: false,
            failed: false,
            armed: false,
            inbox,
            waiting: 0,
            posted: 0,
        });
        Ok(())
    }

    /// What a Queue Pair is created with.
    pub fn qp_init(
        &self,
        host: usize,
        transport: Transport,
        srq: Option<usize>,
        draw: u64,
    ) -> QpInit {
        let h = &self.hosts[host];
        let target = transport == Transport::XrcTgt;
        let sends = !target;
        let receives = !target && transport != Transport::XrcIni;
        let own = receives && srq.is_none();
        QpInit {
            transport,
            pd: sends.then_some(h.pd),
            send_cq: sends.then(|| h.cq(draw)),
            recv_cq: receives.then(|| h.cq(draw >> 8)),
            srq: srq.map(|s| self.srqs[s].id),
            xrcd: target.then_some(h.xrcd),
            block_self_multicast: draw >> 16 & 1 == 1,
            sq_sig_all: false,
            max_send_wr: if sends { 64 } else { 0 },
            max_recv_wr: if own { 64 } else { 0 },
            max_send_sge: if sends { 8 } else { 0 },
            max_recv_sge: if own { 8 } else { 0 },
            max_inline: if sends { 256 } else { 0 },
        }
    }

    /// Creates a Queue Pair.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn create(&mut self, host: usize, init: QpInit, owner: Owner) -> Result<u32, String> {
        let engine = self.hosts[host].engine.as_mut().ok_or("a dead host")?;
        let qp = engine.create_qp(init).map_err(|e| e.to_string())?;
        if let Some(other) = self.owners.insert((host, qp), owner) {
            return Err(format!("QP {qp:#x} is {other:?} and {owner:?}"));
        }
        Ok(qp)
    }

    /// Draws the connections and makes them.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn build_conns(&mut self) -> Verdict {
        let mut rng = Rng::new(mix(self.seed, 5));
        let n = self.knobs.nodes as u64;
        for number in 0..self.knobs.conns {
            let a = rng.below(n) as usize;
            let b = match rng.chance(0.15) {
                true => a,
                false => (a + 1 + rng.below(n - 1) as usize) % n as usize,
            };
            let (transport, shared) = match rng.below(8) {
                0..3 => (Transport::Rc, false),
                3 => (Transport::Rc, true),
                4 => (Transport::Uc, false),
                5 => (Transport::Uc, true),
                _ => (Transport::XrcIni, true),
            };
            let kind = Kind { transport, shared };
            let ends = [self.end(a, kind)?, self.end(b, kind)?];
            let ways = [self.way([a, b])?, self.way([b, a])?];
            self.conns.push(Conn {
                kind,
                v6: rng.chance(0.3),
                life: 0,
                psn: [0; 2],
                ends,
                ways,
                recovering: true,
            });
            self.recover(number)?;
        }
        Ok(())
    }

    fn end(&mut self, host: usize, kind: Kind) -> Result<End, String> {
        let own = !kind.shared && kind.transport != Transport::XrcIni;
        let shared = kind.shared && kind.transport != Transport::XrcIni;
        Ok(End {
            host,
            qp: None,
            life: 0,
            posted: [0; 2],
            queue: VecDeque::new(),
            inbox: own.then(|| self.area(host, Use::Inbox)).transpose()?,
            srq: shared.then(|| self.hosts[host].srqs[0]),
            sign: Instant::ZERO,
            joined: Instant::ZERO,
            robbed: None,
            draining: None,
        })
    }

    fn way(&mut self, [from, to]: [usize; 2]) -> Result<Way, String> {
        Ok(Way {
            streams: BTreeMap::new(),
            source: self.area(from, Use::Source)?,
            landing: self.area(from, Use::Landing)?,
            target: self.area(to, Use::Target)?,
            fixed: self.area(to, Use::Fixed)?,
            words: self.area(to, Use::Words)?,
            values: [0; WORDS],
            window: None,
        })
    }

    /// Registers anew what a connection had and has no more.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn refurnish(&mut self, conn: usize) -> Verdict {
        for end in 0..2 {
            let host = self.conns[conn].ends[end].host;
            if let Some(inbox) = self.conns[conn].ends[end].inbox
                && self.areas[inbox].gone
            {
                let new = self.area(host, Use::Inbox)?;
                self.conns[conn].ends[end].inbox = Some(new);
            }
            if self.conns[conn].ends[end].srq.is_some() {
                self.conns[conn].ends[end].srq = Some(self.hosts[host].srqs[0]);
            }
        }
        for at in 0..2 {
            let (from, to) = (
                self.conns[conn].ends[at].host,
                self.conns[conn].ends[1 - at].host,
            );
            for (host, of) in [
                (from, Use::Source),
                (from, Use::Landing),
                (to, Use::Target),
                (to, Use::Fixed),
                (to, Use::Words),
            ] {
                if self.areas[*self.conns[conn].ways[at].place(of)].gone {
                    let new = self.area(host, of)?;
                    *self.conns[conn].ways[at].place(of) = new;
                    if of == Use::Words {
                        self.conns[conn].ways[at].values = [0; WORDS];
                    }
                }
            }
        }
        Ok(())
    }
}

impl Way {
    /// Where the number of an area stands. A direction has no inbox of its own.
    pub fn place(&mut self, of: Use) -> &mut usize {
        match of {
            Use::Source | Use::Inbox => &mut self.source,
            Use::Landing => &mut self.landing,
            Use::Target => &mut self.target,
            Use::Fixed => &mut self.fixed,
            Use::Words => &mut self.words,
        }
    }
}

/// Where a word is in its area.
pub fn word_at(word: usize) -> u64 {
    8 + 16 * word as u64
}
