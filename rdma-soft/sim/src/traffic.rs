//! Random verbs programs: send requests of connections.

use rdma_core_sys::rules::{Transport, allowed_posts};
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Data, InlineData, Remote, SendOp, SendWqe, Sge, SgeList};

use crate::books::{Atomic, Op, Opening, Poison, Req, WORDS};
use crate::build::{TOO_LONG, word_at};
use crate::host::Post;
use crate::memory::{Piece, SlotId, cut, text};
use crate::world::{Verdict, World};

/// A list of entries.
pub fn list(sges: &[Sge]) -> SgeList {
    let mut list = SgeList::new();
    for &sge in sges {
        let room = list.push(sge);
        debug_assert!(room, "the simulator draws fewer");
    }
    list
}

impl World {
    /// Draws a connection's direction, and posts some requests.
    ///
    /// # Errors
    /// As [`feed`](World::feed).
    pub fn send_some(&mut self, rng: &mut Rng) -> Verdict {
        let conn = rng.below(self.conns.len() as u64) as usize;
        let way = rng.below(self.conns[conn].directions() as u64) as usize;
        for _ in 0..1 + rng.below(8) {
            self.send_one(rng, conn, way)?;
        }
        Ok(())
    }

    /// Room for one more request: the life of the sender, if there is.
    pub fn may_send(&self, conn: usize, way: usize) -> Option<u32> {
        let c = &self.conns[conn];
        let state = self.end_state(conn, way)?;
        let allowed = allowed_posts(c.transport(way), state)?.post_send;
        let life = c.ends[way].life;
        let stream = c.ways[way].streams.get(&life)?;
        let room = stream.sends.open() < self.knobs.depth && stream.sends.reqs.len() < 0xf_0000;
        (allowed && room && life == c.life && !stream.left[0]).then_some(life)
    }

    fn send_one(&mut self, rng: &mut Rng, conn: usize, way: usize) -> Verdict {
        let Some(life) = self.may_send(conn, way) else {
            return Ok(());
        };
        let transport = self.conns[conn].kind.transport;
        let op = if transport == Transport::Uc {
            [Op::Send, Op::SendImm, Op::Write, Op::WriteImm][rng.below(4) as usize]
        } else {
            let fetches = [Op::Read, Op::Read, Op::CompareSwap, Op::FetchAdd];
            let others = [Op::Send, Op::SendImm, Op::Write, Op::Write, Op::WriteImm];
            match rng.below(20) {
                0..12 => others[rng.below(5) as usize],
                12..19 => fetches[rng.below(4) as usize],
                _ => Op::SendInv,
            }
        };
        let Some(mut req) = self.draft(rng, conn, way, life, op)? else {
            return Ok(());
        };
        let wqe = self.dress(rng, conn, way, &mut req)?;
        if let Some(wqe) = wqe {
            self.post(conn, way, life, req, wqe);
        }
        Ok(())
    }

    /// A request as far as its operation says.
    pub fn draft(
        &mut self,
        rng: &mut Rng,
        conn: usize,
        way: usize,
        life: u32,
        op: Op,
    ) -> Result<Option<Req>, String> {
        let c = &self.conns[conn];
        let w = &c.ways[way];
        let stream = &w.streams[&life];
        let index = stream.sends.reqs.len() as u64;
        let id =
            (conn as u64 + 1) << 48 | (way as u64) << 44 | u64::from(life & 0xfff) << 20 | index;
        let unreliable = c.kind.transport == Transport::Uc;
        let mtu = u64::from(self.knobs.mtu);
        let edges = [0, 1, 8, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5];
        let drawn = match rng.chance(0.5) {
            true => edges[rng.below(8) as usize],
            false => rng.below(u64::from(self.knobs.longest) + 1),
        };
        let mut len = drawn.min(self.knobs.longest.into()) as u32;
        let imm = matches!(op, Op::SendImm | Op::WriteImm).then(|| id as u32 ^ (id >> 32) as u32);
        if matches!(op, Op::CompareSwap | Op::FetchAdd) {
            len = 8;
        }
        if unreliable && op == Op::Send && len < 8 {
            // Nothing would tell which one came.
            len = 8.min(self.knobs.longest);
            if len < 8 {
                return Ok(None);
            }
        }
        let mut poison = None;
        if rng.chance(self.knobs.poison) {
            let any = [
                Poison::Lkey,
                Poison::Rkey,
                Poison::PastEnd,
                Poison::Unaligned,
                Poison::Oversize,
                Poison::Invalidate,
                Poison::Srq,
            ];
            let drawn = any[rng.below(7) as usize];
            let fits = match drawn {
                Poison::Lkey => len > 0,
                Poison::Rkey | Poison::PastEnd => (op.is_write() || op == Op::Read) && len > 0,
                Poison::Unaligned => matches!(op, Op::CompareSwap | Op::FetchAdd),
                Poison::Oversize => matches!(op, Op::Send | Op::SendImm),
                Poison::Invalidate => op == Op::SendInv,
                Poison::Srq => c.kind.transport == Transport::XrcIni,
                Poison::Qkey => false,
            };
            poison = Some(drawn).filter(|_| fits);
            if poison == Some(Poison::Oversize) {
                len = self.room() + 1 + rng.below(TOO_LONG.into()) as u32;
            }
        }
        Ok(Some(Req {
            id,
            op,
            len,
            signaled: rng.chance(self.knobs.signals) || stream.sends.open() + 1 >= self.knobs.depth,
            imm,
            key: None,
            local: None,
            remote: None,
            fetched: None,
            atomic: None,
            srq: None,
            poison,
            posted: self.now,
            outcome: None,
            seen: false,
        }))
    }

    /// Finds the memory of a request, and makes what is posted; `None` where something is lacking.
    fn dress(
        &mut self,
        rng: &mut Rng,
        conn: usize,
        way: usize,
        req: &mut Req,
    ) -> Result<Option<SendWqe>, String> {
        let (source, landing) = (
            self.conns[conn].ways[way].source,
            self.conns[conn].ways[way].landing,
        );
        let fetches = matches!(req.op, Op::Read | Op::CompareSwap | Op::FetchAdd);
        let bytes = text(req.id, req.len as usize);
        // Where the bytes come from, or go.
        let area = if fetches { landing } else { source };
        let inline =
            !fetches && req.len <= 256 && req.poison != Some(Poison::Lkey) && rng.chance(0.3);
        let mut fence = rng.chance(0.1);
        let slot = match inline {
            true => None,
            false if self.areas[area].gone => return Ok(None),
            false => match self.areas[area].take(rng.next_u64())? {
                None => return Ok(None),
                slot => slot,
            },
        };
        // What it reaches over there; a READ may turn out to be shorter.
        let Some((op, remote)) = self.aim(rng, conn, way, req, &mut fence)? else {
            if let Some(slot) = slot {
                self.areas[area].release(slot);
            }
            return Ok(None);
        };
        let data = if let Some(slot) = slot {
            let pieces = cut(rng, req.len, self.knobs.sges);
            if !fetches {
                self.areas[area].put(slot, &pieces, &bytes);
            }
            let mut sges = self.areas[area].sges(slot, &pieces);
            if req.poison == Some(Poison::Lkey) {
                sges.iter_mut().for_each(|s| s.lkey ^= 0x55);
            }
            req.local = Some(((area, slot), pieces));
            Data::Sges(list(&sges))
        } else {
            let mut data = InlineData::default();
            let room = data.grow(bytes.len()).ok_or("inline data")?;
            room.copy_from_slice(&bytes);
            Data::Inline(data)
        };
        if let Some(slot) = remote {
            self.areas[slot.0].hold(slot.1);
        }
        let posted = &mut self.conns[conn].ends[way].posted[0];
        *posted += 1;
        Ok(Some(SendWqe {
            wr_id: req.id,
            seq: *posted - 1,
            op,
            data,
            signaled: req.signaled,
            solicited: rng.chance(0.2),
            fence,
            xrc_srq: match req.poison {
                Some(Poison::Srq) => 0xff_fff0,
                _ => req.srq.map_or(0, |s| s.0),
            },
        }))
    }

    /// What a request does over there, and the slot that it then holds one more time.
    fn aim(
        &mut self,
        rng: &mut Rng,
        conn: usize,
        way: usize,
        req: &mut Req,
        fence: &mut bool,
    ) -> Result<Option<(SendOp, Option<SlotId>)>, String> {
        let c = &self.conns[conn];
        let w = &c.ways[way];
        let (target, fixed, words) = (w.target, w.fixed, w.words);
        let window = w
            .window
            .filter(|w| w.opening == Opening::Open && w.life == c.life);
        if c.kind.transport == Transport::XrcIni {
            let to = &self.hosts[c.ends[1].host];
            let of_xrc: Vec<usize> = to
                .srqs
                .iter()
                .copied()
                .filter(|&s| self.srqs[s].xrc)
                .collect();
            let Some(&srq) = of_xrc.get(rng.below(of_xrc.len() as u64) as usize) else {
                return Ok(None);
            };
            req.srq = Some(self.srqs[srq].id);
        }
        let spoil = |remote: Remote, poison: Option<Poison>, end: u64| match poison {
            Some(Poison::Rkey) => Remote {
                rkey: remote.rkey ^ 0x5500,
                ..remote
            },
            Some(Poison::PastEnd) => Remote {
                addr: end,
                ..remote
            },
            Some(Poison::Unaligned) => Remote {
                addr: remote.addr + 3,
                ..remote
            },
            _ => remote,
        };
        Ok(match req.op {
            Op::Send | Op::SendImm => Some((
                SendOp::Send {
                    imm: req.imm,
                    invalidate: None,
                },
                None,
            )),
            Op::SendInv => {
                let key = match (req.poison, window) {
                    (Some(Poison::Invalidate), _) => 0x1234_5678,
                    (_, Some(open)) => open.rkey,
                    _ => return Ok(None),
                };
                if req.poison.is_none()
                    && let Some(window) = &mut self.conns[conn].ways[way].window
                {
                    window.opening = Opening::Changing;
                }
                // READs by the window are over before it ends.
                *fence = true;
                req.key = Some(key);
                Some((
                    SendOp::Send {
                        imm: None,
                        invalidate: Some(key),
                    },
                    None,
                ))
            }
            Op::Write | Op::WriteImm => {
                let area = &mut self.areas[target];
                if area.gone {
                    return Ok(None);
                }
                let Some(slot) = area.take(rng.next_u64())? else {
                    return Ok(None);
                };
                // Held by the request from here on: `hold` is for those who come later.
                let at = rng.below(u64::from(TOO_LONG) + 64);
                let (start, len) = area.range();
                let mut remote = spoil(
                    area.remote(slot, at),
                    req.poison,
                    start + len - u64::from(req.len) + 1,
                );
                if let Some(open) = window.filter(|_| rng.chance(0.5) && req.poison.is_none()) {
                    remote.rkey = open.rkey;
                }
                req.remote = Some(((target, slot), (at, req.len)));
                Some((
                    SendOp::Write {
                        remote,
                        imm: req.imm,
                    },
                    None,
                ))
            }
            Op::Read => {
                let pending = self.pending_write(rng, conn, way);
                if self.areas[fixed].gone || self.areas[target].gone {
                    return Ok(None);
                }
                let (slot, from, hold) = match pending {
                    Some((slot, (at, len), id)) if rng.chance(0.5) => {
                        req.len = req.len.min(len);
                        let skip = rng.below(u64::from(len - req.len) + 1);
                        req.fetched = Some((id, len, skip as u32));
                        (slot, at + skip, Some(slot))
                    }
                    _ => ((fixed, 0), rng.below(64), None),
                };
                req.remote = Some((slot, (from, req.len)));
                let area = &self.areas[slot.0];
                let (start, len) = area.range();
                let end = start + len - u64::from(req.len) + 1;
                let mut remote = spoil(area.remote(slot.1, from), req.poison, end);
                if req.len == 0 {
                    req.poison = req
                        .poison
                        .filter(|p| !matches!(p, Poison::Rkey | Poison::PastEnd | Poison::Lkey));
                }
                if let Some(open) =
                    window.filter(|_| hold.is_some() && rng.chance(0.5) && req.poison.is_none())
                {
                    remote.rkey = open.rkey;
                }
                Some((SendOp::Read { remote }, hold))
            }
            Op::CompareSwap | Op::FetchAdd => {
                if self.areas[words].gone {
                    return Ok(None);
                }
                let word = rng.below(WORDS as u64) as usize;
                let value = self.conns[conn].ways[way].values[word];
                let operand = rng.next_u64();
                let compare = (req.op == Op::CompareSwap)
                    .then(|| if rng.chance(0.6) { value } else { !value });
                req.atomic = Some(Atomic {
                    word,
                    compare,
                    operand,
                });
                let slot = (words, 0);
                req.remote = Some((slot, (word_at(word), 8)));
                let remote = spoil(self.areas[words].remote(0, word_at(word)), req.poison, 0);
                let op = match compare {
                    Some(compare) => SendOp::CompareSwap {
                        remote,
                        compare,
                        swap: operand,
                    },
                    None => SendOp::FetchAdd {
                        remote,
                        add: operand,
                    },
                };
                Some((op, None))
            }
            Op::Bind | Op::LocalInv | Op::Datagram | Op::Receive => None,
        })
    }

    /// A WRITE of this direction that is under way.
    fn pending_write(
        &self,
        rng: &mut Rng,
        conn: usize,
        way: usize,
    ) -> Option<(SlotId, Piece, u64)> {
        let c = &self.conns[conn];
        let stream = c.ways[way].streams.get(&c.life)?;
        let open = &stream.sends.reqs[stream.sends.known..];
        let writes: Vec<_> = open
            .iter()
            .filter(|r| r.op.is_write() && r.poison.is_none())
            .collect();
        let r = writes.get(rng.below(writes.len() as u64) as usize)?;
        let (slot, at) = r.remote?;
        Some((slot, at, r.id))
    }

    pub fn post(&mut self, conn: usize, way: usize, life: u32, req: Req, wqe: SendWqe) {
        let e = &mut self.conns[conn].ends[way];
        let (host, Some(qp)) = (e.host, e.qp) else {
            return;
        };
        self.tally.wrs += 1;
        let now = self.now;
        let kind = self.conns[conn].kind;
        self.tell(|| {
            format!(
                "host {host} QP {qp:#x} ({} {conn}.{way} life {life}) posts {req:?}",
                kind.transport
            )
        });
        if let Some(stream) = self.conns[conn].ways[way].streams.get_mut(&life) {
            if stream.sends.open() == 0 {
                self.conns[conn].ends[way].sign = now;
            }
            if let Some(stream) = self.conns[conn].ways[way].streams.get_mut(&life) {
                stream.sends.reqs.push(req);
            }
        }
        self.hosts[host]
            .posts
            .push_back(Post::Send(qp, Box::new(wqe)));
        self.wake(host);
    }
}
