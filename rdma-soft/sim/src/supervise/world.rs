//! Two hosts, the clock, and the links between them.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rdma_core_sys::rules::Transport;
use rdma_qp::supervise::{Backoff, Options, Proof};
use rdma_qp::{AckTimeout, RetryCount, Timing};
use rdma_soft::core::MAX_FRAME;
use rdma_soft::core::rng::Rng;
use rdma_soft::core::time::Instant;
use rdma_soft::link::{FaultLayer, Faults, Frame};

use super::channel::{Channel, Note};
use super::end::Process;
use super::judge::{Arrived, Life, Tally, Watch};
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
    /// Something comes by a channel.
    Note(usize, u64, Note),
    /// The application of a host may post.
    Traffic(usize),
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
    /// How often a process was started.
    pub incarnation: u64,
    /// The process stands still.
    pub frozen: bool,
    /// The whole host is gone, and says nothing.
    pub gone: bool,
    /// The state of its port.
    pub port_up: bool,
    /// Its address.
    pub address: IpAddr,
    /// The next turn that is on the agenda.
    pub wake: Option<Instant>,
    /// Frames that came and were not taken.
    pub socket: VecDeque<Frame>,
    /// What came by a channel while it stood still.
    pub held: Vec<(u64, Note)>,
    /// The lives of its connections, as the sender: what was posted in each, and what became of it.
    pub lives: Vec<Life>,
    /// The messages that it received, as its log has them.
    pub log: Vec<Arrived>,
    /// The number of its next message.
    pub next: u64,
    /// The number of the life in which it had trouble of its own.
    pub disturbed: usize,
    /// Its address changed while it stood still.
    pub moved: bool,
}

/// Everything.
#[derive(Debug)]
pub struct World {
    pub seed: u64,
    pub verbose: bool,
    pub now: Instant,
    pub agenda: Agenda<Happening>,
    pub rng: Rng,
    pub options: Options,
    pub transport: Transport,
    /// One way of a message between the processes, apart from the links.
    pub channel_delay: Duration,
    /// The longest way of a frame.
    pub link_delay: Duration,
    pub hosts: [Host; 2],
    /// From each host to the other.
    pub links: [Wire; 2],
    /// The links are cut until then.
    pub cut: Instant,
    /// They will be, until then, as soon as that host has received a message.
    pub cut_behind: Option<(usize, Instant)>,
    pub channels: BTreeMap<u64, Channel>,
    pub next_channel: u64,
    pub trace: Trace,
    pub tally: Tally,
    pub buf: Vec<u8>,
}

/// Address of a host: it has two.
pub fn address(host: usize, other: bool) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, other.into(), host as u8 + 1))
}

impl World {
    /// A world out of a seed.
    pub fn new(seed: u64, verbose: bool) -> World {
        let mut rng = Rng::new(mix(seed, 1));
        let code = 10 + rng.below(6) as u8;
        let timing = Timing {
            timeout: AckTimeout::from_code(code).unwrap_or(Timing::default().timeout),
            retry_cnt: RetryCount::new(3 + rng.below(4) as u8)
                .unwrap_or(Timing::default().retry_cnt),
            ..Timing::default()
        };
        let options = Options {
            timing,
            probe: Duration::from_millis(50 + rng.below(1500)),
            backoff: Backoff {
                first: Duration::from_millis(1 + rng.below(50)),
                most: Duration::from_millis(100 + rng.below(2000)),
                jitter: [0.0, 0.5, 1.0][rng.below(3) as usize],
            },
            step: Duration::from_millis(200 + rng.below(3000)),
            settle: Duration::from_millis(5 + rng.below(10)),
            ..Options::default()
        };
        let delay = rng.below(400);
        let loss = [0.0, 0.0, 0.1, 1.0, 3.0][rng.below(5) as usize];
        let faults = format!("loss={loss}%,reorder=1%,duplicate=1%,delay={delay}us,jitter=100us");
        let faults: Faults = faults.parse().unwrap_or_default();
        let links =
            [0, 1].map(|way| Wire::new(FaultLayer::new(faults.clone(), mix(seed, 0x11 + way))));
        let hosts = [0, 1].map(|host| Host {
            process: None,
            incarnation: 0,
            frozen: false,
            gone: false,
            port_up: true,
            address: address(host, false),
            wake: None,
            socket: VecDeque::new(),
            held: Vec::new(),
            lives: Vec::new(),
            log: Vec::new(),
            next: 1,
            disturbed: 0,
            moved: false,
        });
        let drawn = (mix(seed, 3) % 4) as usize;
        let transport = [
            Transport::Rc,
            Transport::Uc,
            Transport::Ud,
            Transport::XrcIni,
        ][drawn];
        let mut tally = Tally::default();
        tally.rounds[drawn] = 1;
        World {
            transport,
            seed,
            verbose,
            now: Instant::ZERO,
            agenda: Agenda::new(mix(seed, 2)),
            channel_delay: Duration::from_micros(20 + rng.below(3000)),
            link_delay: Duration::from_micros(delay + 1200),
            rng,
            options,
            hosts,
            links,
            cut: Instant::ZERO,
            cut_behind: None,
            channels: BTreeMap::new(),
            next_channel: 0,
            trace: Trace::default(),
            tally,
            buf: vec![0; MAX_FRAME + 4],
        }
    }

    /// Plays the round.
    pub fn run(&mut self) -> Verdict {
        for host in 0..2 {
            self.start(host)?;
        }
        let over = self.plan_troubles();
        let until = over + self.patience();
        while let Some((at, what)) = self.agenda.next() {
            self.now = at.max(self.now);
            if self.now > until {
                return Err(self.hung());
            }
            match what {
                Happening::Turn(host) => self.turn(host)?,
                Happening::Arrival(way) => self.arrival(way),
                Happening::Note(host, channel, note) => self.note(host, channel, note)?,
                Happening::Traffic(host) => self.traffic(host)?,
                Happening::Trouble(trouble) => self.trouble(trouble)?,
                Happening::Watch(watch) => self.watch(&watch)?,
            }
            if self.now > over && self.is_well(over) {
                return self.judge();
            }
        }
        Err("nothing is to come".to_owned())
    }

    /// What probes prove.
    pub fn proof(&self) -> Proof {
        Proof::over(self.transport)
    }

    /// How long it may take until all is well again after the last trouble.
    fn patience(&self) -> Duration {
        let Options { backoff, step, .. } = &self.options;
        let notices = self.options.notices_within(self.proof());
        // An attempt may meet a peer that has not noticed, or be the other's last one: some go wrong.
        notices + (backoff.most + *step) * 8 + Duration::from_secs(2)
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
        let host_ = &mut self.hosts[host];
        if host_.wake.is_none_or(|due| due > at) {
            host_.wake = Some(at);
            self.agenda.add(at, Happening::Turn(host));
        }
    }

    /// A host's turn: frames, timers, packets, events.
    pub fn turn(&mut self, host: usize) -> Verdict {
        let now = self.now;
        if self.hosts[host].wake.is_some_and(|due| due <= now) {
            self.hosts[host].wake = None;
        }
        if self.hosts[host].frozen || self.hosts[host].process.is_none() {
            return Ok(());
        }
        let at = self.at();
        while let Some(frame) = self.hosts[host].socket.pop_front() {
            if let Some(process) = &mut self.hosts[host].process {
                give(&mut process.engine, now, &frame, 0);
            }
        }
        if let Some(process) = &mut self.hosts[host].process
            && process.engine.next_timeout().is_some_and(|due| due <= now)
        {
            process.engine.handle_timeout(now);
        }
        self.events(host)?;
        if let Some(process) = &mut self.hosts[host].process
            && process.machine.next_timeout().is_some_and(|due| due <= at)
        {
            process.machine.handle_timeout(at);
        }
        self.act(host)?;
        self.transmit(host);
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
    fn transmit(&mut self, host: usize) {
        let now = self.now;
        let mut buf = std::mem::take(&mut self.buf);
        let mut frames = Vec::new();
        if let Some(process) = &mut self.hosts[host].process {
            while let Some(t) = process.engine.poll_transmit(now) {
                frames.extend(make(&mut process.engine, &t, 0, &mut buf));
            }
        }
        self.buf = buf;
        for frame in frames {
            self.mark(&frame.bytes);
            let way = &self.hosts[1 - host];
            let goes = self.hosts[host].port_up && now >= self.cut;
            if goes && way.address == frame.dst.ip() && frame.src.ip() == self.hosts[host].address {
                self.links[host].layer.offer(now, frame);
            }
        }
        self.expect(host);
    }

    fn expect(&mut self, way: usize) {
        if let Some(due) = self.links[way].expect() {
            self.agenda.add(due, Happening::Arrival(way));
        }
    }

    /// Frames come out of a link.
    fn arrival(&mut self, way: usize) {
        let (now, to) = (self.now, 1 - way);
        let mut some = false;
        while let Some(frame) = self.links[way].arrived(now) {
            let host = &mut self.hosts[to];
            let takes = host.process.is_some() && host.port_up && host.address == frame.dst.ip();
            // A socket has an end.
            if takes && host.socket.len() < 256 {
                host.socket.push_back(frame);
                some = true;
            }
        }
        self.expect(way);
        if some {
            self.wake_at(to, now);
        }
    }
}
