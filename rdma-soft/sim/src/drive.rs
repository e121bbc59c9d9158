//! Turns of hosts, in the order of the running device's driver: requests, frames, timers, packets, events.

use std::time::Duration;

use rdma_soft::core::Transmit;
use rdma_soft::core::time::Instant;
use rdma_soft::link::Frame;
use rdma_soft::wire::Operation;

use crate::books::End;
use crate::frames::{give, make};
use crate::host::{addr, host_of};
use crate::world::{Happening, Owner, Verdict, World};

/// Who sends so many packets takes as many in before the next ones.
const FAIR: u32 = 16;

impl World {
    /// Gives a host a turn soon, unless it has one already.
    pub fn wake(&mut self, host: usize) {
        let late = Duration::from_nanos(self.knobs.late);
        let at = self.soon(late);
        self.wake_at(host, at);
    }

    fn wake_at(&mut self, host: usize, at: Instant) {
        let h = &mut self.hosts[host];
        let at = at.max(h.busy).max(h.paused.unwrap_or(Instant::ZERO));
        if h.wake.is_none_or(|due| due > at) {
            h.wake = Some(at);
            self.agenda.add(at, Happening::Turn(host));
        }
    }

    /// A host's turn.
    pub fn turn(&mut self, host: usize) -> Verdict {
        let now = self.now;
        let h = &mut self.hosts[host];
        if h.wake.is_some_and(|due| due <= now) {
            h.wake = None;
        }
        if h.engine.is_none() {
            return Ok(());
        }
        if h.paused.is_some_and(|until| until > now) || h.busy > now {
            self.wake_at(host, now);
            return Ok(());
        }
        if h.paused.take().is_some() {
            self.resumed(host);
        }
        let [rx, tx] = self.knobs.budget;
        self.hosts[host].take_posts();
        let received = self.receive(host, rx);
        if let Some(engine) = self.engine(host)
            && engine.next_timeout().is_some_and(|at| at <= now)
        {
            engine.handle_timeout(now);
        }
        let sent = self.transmit(host, tx);
        self.report(host)?;
        let [turn, frame] = self.knobs.cost;
        let cost =
            self.rng.below(turn + 1) + u64::from(received + sent) * self.rng.below(frame + 1);
        let h = &mut self.hosts[host];
        h.busy = now + Duration::from_nanos(cost);
        let Some(engine) = &h.engine else {
            return Ok(());
        };
        let more = engine.has_transmit() || !h.socket.is_empty() || !h.posts.is_empty();
        let timer = engine.next_timeout();
        if more {
            self.wake(host);
        } else if let Some(at) = timer {
            let late = self.rng.below(self.knobs.late + 1);
            self.wake_at(host, at + Duration::from_nanos(late));
        }
        Ok(())
    }

    /// Takes up to `most` frames from a host's socket; gives their number.
    fn receive(&mut self, host: usize, most: u32) -> u32 {
        let mut count = 0;
        while count < most
            && let Some(frame) = self.hosts[host].socket.pop_front()
        {
            count += 1;
            self.hosts[host].take_posts();
            self.take_frame(host, &frame);
        }
        count
    }

    fn take_frame(&mut self, host: usize, frame: &Frame) {
        let now = self.now;
        let own = host_of(frame.src.ip()) == Some(host);
        if frame.dst.ip().is_multicast() && own {
            return;
        }
        // Some of those that came together are not the first.
        let place = self.rng.below(4) as u16;
        let Some(engine) = self.hosts[host].engine.as_mut() else {
            return;
        };
        if let Some(qp) = give(engine, now, frame, place) {
            self.heard(host, qp);
        }
    }

    /// A Queue Pair heard something.
    fn heard(&mut self, host: usize, qp: u32) {
        if let Some(&Owner::End(conn, end)) = self.owners.get(&(host, qp)) {
            self.conns[conn].ends[end].sign = self.now;
        }
    }

    /// A host goes on: what its Queue Pairs wait for counts from now.
    fn resumed(&mut self, host: usize) {
        let now = self.now;
        let ends = self.conns.iter_mut().flat_map(|c| &mut c.ends);
        ends.filter(|e: &&mut End| e.host == host)
            .for_each(|e| e.sign = now);
    }

    /// Sends up to `most` packets; gives their number.
    fn transmit(&mut self, host: usize, most: u32) -> u32 {
        let now = self.now;
        let mut count = 0;
        while count < most {
            if count > 0 && count.is_multiple_of(FAIR) {
                self.receive(host, FAIR);
            }
            let Some(t) = self.engine(host).and_then(|e| e.poll_transmit(now)) else {
                break;
            };
            count += 1;
            self.noted(host, &t);
            let own = [false, true].iter().any(|&v6| addr(host, v6) == t.dst);
            if own && !self.knobs.self_frames {
                self.hosts[host].take_posts();
                self.heard(host, t.packet.bth.dest_qp);
                if let Some(engine) = self.engine(host) {
                    engine.loopback(now, &t);
                    count += engine.loopback_middle(now, &t, most - count);
                }
            } else {
                self.send(host, &t);
            }
        }
        count
    }

    /// Makes a packet a frame, and puts it on its way.
    fn send(&mut self, host: usize, t: &Transmit) {
        let now = self.now;
        if t.is_multicast() {
            self.hosts[host].take_posts();
            if let Some(engine) = self.engine(host) {
                engine.loopback(now, t);
            }
        }
        let mut buf = std::mem::take(&mut self.buf);
        // What a socket that sends several at once counts up.
        let ip_id = if t.src.is_ipv4() {
            self.rng.below(4) as u16
        } else {
            0
        };
        let frame = (self.engine(host)).and_then(|engine| make(engine, t, ip_id, &mut buf));
        if let Some(frame) = frame {
            self.mark(&frame.bytes);
            self.offer(host, frame);
        }
        self.buf = buf;
    }

    fn offer(&mut self, from: usize, frame: Frame) {
        let now = self.now;
        let to: Vec<usize> = match host_of(frame.dst.ip()) {
            Some(to) if to < self.knobs.nodes => vec![to],
            Some(_) => vec![],
            None => {
                let listens =
                    |&to: &usize| to != from && self.hosts[to].groups.contains(&frame.dst.ip());
                (0..self.knobs.nodes).filter(listens).collect()
            }
        };
        for to in to {
            let at = self.link(from, to);
            self.links[at].wire.layer.offer(now, frame.clone());
            self.arrival(at);
        }
    }

    fn arrival(&mut self, at: usize) {
        if let Some(due) = self.links[at].wire.expect() {
            self.agenda.add(due, Happening::Arrival(at));
        }
    }

    /// Frames come out of a link.
    pub fn arrivals(&mut self, at: usize) {
        let to = at % self.knobs.nodes;
        let now = self.now;
        let mut some = false;
        while let Some(frame) = self.links[at].wire.arrived(now) {
            let room = self.hosts[to].socket.len() < self.knobs.socket;
            if self.hosts[to].engine.is_some() && room {
                self.hosts[to].socket.push_back(frame);
                some = true;
            }
        }
        self.arrival(at);
        if some {
            self.wake(to);
        }
    }

    /// Keeps the books of a packet that leaves.
    fn noted(&mut self, host: usize, t: &Transmit) {
        self.tally.packets += 1;
        let bth = &t.packet.bth;
        let head = [
            host as u32,
            t.qp_num,
            bth.psn.value(),
            bth.dest_qp,
            t.payload_len,
        ];
        self.mark(&head.map(u32::to_le_bytes).concat());
        self.tell(|| {
            let name = bth
                .opcode
                .info()
                .map_or("?".to_owned(), |i| format!("{:?} {:?}", i.op, i.place));
            let aeth = t
                .packet
                .aeth
                .map_or(String::new(), |a| format!(" {:?}", a.syndrome));
            format!(
                "host {host} QP {:#x} -> {} QP {:#x} psn {:#x}: {name}{aeth} {} bytes",
                t.qp_num,
                t.dst,
                bth.dest_qp,
                bth.psn.value(),
                t.payload_len
            )
        });
        if bth
            .opcode
            .info()
            .is_some_and(|i| i.op == Operation::AtomicAck)
        {
            let life = match self.owners.get(&(host, t.qp_num)) {
                Some(&Owner::End(conn, end)) => self.conns[conn].ends[end].life,
                _ => 0,
            };
            let first = self
                .tally
                .atomics
                .insert((host, t.qp_num, life, bth.psn.value()));
            self.tally.atomic_replays += u64::from(!first);
        }
    }
}
