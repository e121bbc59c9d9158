//! The hosts, the clock, and the links between them.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rdma_qp::Gid;
use rdma_qp::datagram::Options;
use rdma_soft::core::MAX_FRAME;
use rdma_soft::core::rng::Rng;
use rdma_soft::core::time::Instant;
use rdma_soft::link::{FaultLayer, Faults, Frame};

use super::judge::{Sent, Tally, Watch};
use super::node::{Card, Process};
use super::trouble::Trouble;
use crate::agenda::Agenda;
use crate::frames::{give, make};
use crate::memory::mix;
use crate::round::Verdict;
use crate::wire::{Trace, Wire};

/// Something that is on the agenda.
#[derive(Clone, Debug)]
pub enum Happening {
    /// A host has its turn.
    Turn(usize),
    /// A link may have a frame to deliver.
    Arrival(usize),
    /// The application of a host may send.
    Traffic(usize),
    /// A host is told where a process is now.
    Told(usize, usize),
    /// A frame comes late.
    Replay(usize, Frame),
    /// Somebody says something to a host.
    Stranger(usize),
    /// Something goes wrong, or is right again.
    Trouble(Trouble),
    /// A death must have been noticed by now.
    Watch(Watch),
}

/// A host, and what it keeps when its process dies.
#[derive(Debug)]
pub struct Host {
    /// `None` while it is dead.
    pub process: Option<Process>,
    /// How often a process was started, or forgot everything.
    pub incarnation: u64,
    /// The process stands still.
    pub frozen: bool,
    /// The incarnation in which it had trouble of its own last.
    pub disturbed: u64,
    /// Its address.
    pub address: IpAddr,
    /// Where its process is, or was last.
    pub card: Card,
    /// The next turn that is on the agenda.
    pub wake: Option<Instant>,
    /// Frames that came and were not taken.
    pub socket: VecDeque<Frame>,
    /// By peer: sessions that have ended, as far as it was told.
    pub ended: Vec<u64>,
    /// By peer: when the last of the messages to it was sent that were acknowledged.
    pub reached: Vec<Duration>,
    /// By sender: the last message that was received.
    pub last: Vec<Option<usize>>,
    /// How its process behaves.
    pub options: Options,
    /// It takes messages now and then only.
    pub lazy: bool,
    /// It is told of nobody when it starts, and takes in who introduces itself.
    pub listens: bool,
}

/// Everything.
#[derive(Debug)]
pub struct World {
    pub seed: u64,
    pub verbose: bool,
    pub now: Instant,
    pub agenda: Agenda<Happening>,
    pub rng: Rng,
    pub mtu: u32,
    pub qkey: u32,
    /// The longest way of a frame.
    pub slowest: Duration,
    /// How late frames come that come late.
    pub replays: f64,
    pub hosts: Vec<Host>,
    /// From each host to each other: `from * hosts + to`.
    pub links: Vec<Wire>,
    /// So little gets lost that live hosts always find one another.
    pub gentle: bool,
    /// For each host and each other: when the last trouble that concerned both was over, or will be.
    pub troubled: Vec<Option<Instant>>,
    /// Hosts on different sides are cut off from one another until then.
    pub cut: (Instant, u64),
    /// All messages, by number.
    pub sent: Vec<Sent>,
    /// Those without a fate.
    pub open: usize,
    /// Nobody sends any more.
    pub closing: bool,
    pub trace: Trace,
    pub tally: Tally,
    buf: Vec<u8>,
}

impl World {
    /// A world out of a seed.
    pub fn new(seed: u64, verbose: bool) -> World {
        let mut rng = Rng::new(mix(seed, 1));
        let count = match rng.below(8) {
            0..4 => 2 + rng.below(2),
            4..7 => 3 + rng.below(5),
            _ => 8 + rng.below(9),
        } as usize;
        let mtu = [256, 512, 1024][rng.below(3) as usize];
        let delay = [0, 5, 50, 400, 3000][rng.below(5) as usize];
        let jitter = delay / 2 + rng.below(50);
        let part = |rng: &mut Rng, parts: &[f64]| parts[rng.below(parts.len() as u64) as usize];
        let loss = part(&mut rng, &[0.0, 0.1, 1.0, 5.0, 5.0, 10.0, 20.0]);
        let (twice, order) = (
            part(&mut rng, &[0.0, 1.0, 5.0]),
            part(&mut rng, &[0.0, 1.0, 10.0]),
        );
        let broken = part(&mut rng, &[0.0, 0.5, 2.0]);
        let faults = format!(
            "loss={loss}%,duplicate={twice}%,reorder={order}%,corrupt={broken}%,delay={delay}us,jitter={jitter}us"
        );
        let faults: Faults = faults.parse().unwrap_or_default();
        let links = (0..count * count)
            .map(|way| {
                Wire::new(FaultLayer::new(
                    faults.clone(),
                    mix(seed, 0x11 + way as u64),
                ))
            })
            .collect();
        let dead_after = Duration::from_millis(200 + rng.below(1500));
        let listener = rng.chance(0.4).then(|| rng.below(count as u64) as usize);
        // In some worlds there are less receives than peers.
        let few = rng.chance(0.5);
        let hosts = (0..count)
            .map(|host| {
                let packets = 4 << rng.below(6);
                let widest = if rng.chance(0.5) { 4 } else { 65 };
                let window = 1 + rng.below(widest) as u32;
                let others = count as u32 - 1;
                let receives = match few {
                    true => 4 + rng.below(2 * u64::from(others)) as u32,
                    false => others * 2 * window.max(2),
                };
                let listens = listener == Some(host);
                Host {
                    process: None,
                    incarnation: 0,
                    frozen: false,
                    disturbed: 0,
                    address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host as u8 + 1)),
                    card: Card::default(),
                    wake: None,
                    socket: VecDeque::new(),
                    ended: vec![0; count],
                    reached: vec![Duration::ZERO; count],
                    last: vec![None; count],
                    options: Options {
                        // Who listens keeps those that are dead for a while.
                        peers: if listens { 4 * others } else { others },
                        receives,
                        send_packets: packets,
                        send_depth: 16 + rng.below(64) as u32,
                        max_message: 8 + rng.below(6000) as u32,
                        ack_delay: Duration::from_micros(rng.below(200)),
                        first_timeout: Duration::from_micros(500 + rng.below(20_000)),
                        least_timeout: Duration::from_micros(50 + rng.below(2000)),
                        dead_after,
                        heartbeat: (rng.chance(0.9))
                            .then(|| Duration::from_millis(20 + rng.below(1000))),
                        ..Options::default()
                    },
                    lazy: rng.chance(0.2),
                    listens,
                }
            })
            .collect();
        World {
            seed,
            verbose,
            now: Instant::ZERO,
            agenda: Agenda::new(mix(seed, 2)),
            mtu,
            qkey: rng.next_u32() >> 1,
            // A frame that is held back is let go after a millisecond.
            slowest: Duration::from_micros(delay + jitter + 3000),
            replays: part(&mut rng, &[0.0, 0.0, 0.003]),
            rng,
            hosts,
            links,
            gentle: loss <= 5.0 && broken <= 2.0,
            troubled: vec![None; count * count],
            cut: (Instant::ZERO, 0),
            sent: Vec::new(),
            open: 0,
            closing: false,
            trace: Trace::default(),
            tally: Tally {
                hosts: count as u64,
                ..Tally::default()
            },
            buf: vec![0; MAX_FRAME + 4],
        }
    }

    /// Plays the round.
    pub fn run(&mut self) -> Verdict {
        for host in 0..self.hosts.len() {
            self.start(host)?;
        }
        for host in 0..self.hosts.len() {
            self.introduce(host)?;
        }
        let end = self.plan_troubles();
        let mut until = end + self.patience();
        let over = Duration::from_nanos(end.as_nanos());
        while let Some((at, what)) = self.agenda.next() {
            self.now = at.max(self.now);
            if self.now > until {
                return Err(self.hung());
            }
            match what {
                Happening::Turn(host) => self.turn(host)?,
                Happening::Arrival(way) => self.arrival(way),
                Happening::Traffic(host) => self.traffic(host)?,
                Happening::Told(host, of) => self.told(host, of)?,
                Happening::Replay(way, frame) => {
                    self.tally.replays += 1;
                    self.links[way].layer.offer(self.now, frame);
                    self.expect(way);
                }
                Happening::Stranger(host) => self.stranger(host)?,
                Happening::Trouble(trouble) => self.trouble(trouble)?,
                Happening::Watch(watch) => self.watch(&watch)?,
            }
            if self.now > end && !self.closing && self.all_reached(over) {
                (self.closing, until) = (true, self.now + self.patience());
            }
            if self.closing && self.open == 0 {
                for host in 0..self.hosts.len() {
                    self.end(host)?;
                }
                return self.judge();
            }
        }
        Err("nothing is to come".to_owned())
    }

    /// How long it may take until all is well again after the last trouble: a session may have to be found dead, twice, as
    /// both of its ends find it out one after the other, and then everything that waits must get through.
    fn patience(&self) -> Duration {
        let dead = self.hosts.iter().map(|host| host.options.dead_after).max();
        dead.unwrap_or_default() * 6 + Duration::from_secs(60)
    }

    /// The time for the state machines.
    pub fn at(&self) -> Duration {
        Duration::from_nanos(self.now.as_nanos())
    }

    /// Prints what happens, if that was asked for.
    pub fn tell(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>14?} {}", self.at(), text());
        }
    }

    /// Adds to the trace.
    pub fn mark(&mut self, bytes: &[u8]) {
        self.trace.mark(self.now, bytes);
    }

    /// Gives a host a turn at that time.
    pub fn wake_at(&mut self, host: usize, at: Instant) {
        let at = at.max(self.now);
        let h = &mut self.hosts[host];
        if h.wake.is_none_or(|due| due > at) {
            h.wake = Some(at);
            self.agenda.add(at, Happening::Turn(host));
        }
    }

    /// A host's turn: frames, timers, packets, events.
    fn turn(&mut self, host: usize) -> Verdict {
        let now = self.now;
        if self.hosts[host].wake.is_some_and(|due| due <= now) {
            self.hosts[host].wake = None;
        }
        if self.hosts[host].frozen || self.hosts[host].process.is_none() {
            return Ok(());
        }
        while let Some(frame) = self.hosts[host].socket.pop_front() {
            if let Some(process) = &mut self.hosts[host].process {
                give(&mut process.engine, now, &frame, 0);
            }
        }
        let at = self.at();
        if let Some(process) = &mut self.hosts[host].process {
            if process.engine.next_timeout().is_some_and(|due| due <= now) {
                process.engine.handle_timeout(now);
            }
            process.completions(at)?;
            process.machine.handle_timeout(at);
        }
        if !self.hosts[host].lazy {
            self.events(host, usize::MAX)?;
        }
        self.transmit(host)?;
        let Some(process) = &self.hosts[host].process else {
            return Ok(());
        };
        let timer = process.machine.next_timeout();
        let timer = timer.map(|due| Instant::ZERO + due);
        let due = process.engine.next_timeout().into_iter().chain(timer).min();
        if process.engine.has_transmit() {
            self.wake_at(host, now);
        } else if let Some(due) = due {
            self.wake_at(host, due);
        }
        Ok(())
    }

    /// Sends everything that is to be sent.
    fn transmit(&mut self, host: usize) -> Verdict {
        let (now, at) = (self.now, self.at());
        let mut buf = std::mem::take(&mut self.buf);
        let mut frames = Vec::new();
        if let Some(process) = &mut self.hosts[host].process {
            loop {
                process.post(at)?;
                let mut some = false;
                while let Some(t) = process.engine.poll_transmit(now) {
                    frames.extend(make(&mut process.engine, &t, 0, &mut buf));
                    some = true;
                }
                process.completions(at)?;
                if !some {
                    break;
                }
            }
        }
        self.buf = buf;
        let count = self.hosts.len();
        for frame in frames {
            self.mark(&frame.bytes);
            let Some(to) = self.hosts.iter().position(|h| h.address == frame.dst.ip()) else {
                continue;
            };
            let way = host * count + to;
            if self.rng.chance(self.replays) {
                let later = self.soon(6_000_000);
                self.agenda
                    .add(later, Happening::Replay(way, frame.clone()));
            }
            let (until, side) = self.cut;
            if now >= until || side >> host & 1 == side >> to & 1 {
                self.links[way].layer.offer(now, frame);
                self.expect(way);
            }
        }
        Ok(())
    }

    /// The host at an address.
    pub fn host_at(&self, gid: Gid) -> Option<usize> {
        self.hosts.iter().position(|h| Gid::from(h.address) == gid)
    }

    fn expect(&mut self, way: usize) {
        if let Some(due) = self.links[way].expect() {
            self.agenda.add(due, Happening::Arrival(way));
        }
    }

    /// Frames come out of a link.
    fn arrival(&mut self, way: usize) {
        let (now, to) = (self.now, way % self.hosts.len());
        let mut some = false;
        while let Some(frame) = self.links[way].arrived(now) {
            let host = &mut self.hosts[to];
            // A socket has an end.
            if host.process.is_some() && host.socket.len() < 4096 {
                host.socket.push_back(frame);
                some = true;
            }
        }
        self.expect(way);
        if some {
            self.wake_at(to, now);
        }
    }

    /// A time up to so many microseconds from now on.
    pub fn soon(&mut self, micros: u64) -> Instant {
        self.now + Duration::from_micros(self.rng.below(micros + 1))
    }
}
