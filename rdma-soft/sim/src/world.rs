//! The cluster of a run, and its clock.

use std::collections::BTreeMap;
use std::time::Duration;

use rdma_soft::core::rng::Rng;
use rdma_soft::core::time::Instant;
use rdma_soft::core::{Engine, MAX_FRAME};
use rdma_soft::link::{FaultLayer, Faults};

use crate::agenda::Agenda;
use crate::books::{Conn, Receive, Srq};
use crate::datagrams::{Datagram, Gram};
use crate::host::Host;
use crate::knobs::Knobs;
use crate::memory::{Area, mix};
use crate::program::{self, Action};
use crate::tally::Tally;
use crate::wire::{Trace, Wire};

/// What the model says: nothing, or what is wrong.
pub type Verdict = Result<(), String>;

/// Something that is on the agenda.
#[derive(Clone, Copy, Debug)]
pub enum Happening {
    /// An action of the program.
    Action(usize),
    /// A host has its turn.
    Turn(usize),
    /// A link may have a frame to deliver.
    Arrival(usize),
    /// An end of a connection enters a life.
    Join {
        /// The connection.
        conn: usize,
        /// The end.
        end: usize,
        /// The life.
        life: u32,
    },
    /// A connection is made anew.
    Recover(usize),
    /// A Queue Pair for datagrams goes on after an error.
    Mend(usize),
    /// A send queue may leave SQD.
    Undrain {
        /// The connection.
        conn: usize,
        /// The end.
        end: usize,
        /// The life that it is to be in.
        life: u32,
    },
    /// A link, or all of a host's, is as it was.
    Heal(usize),
    /// A host is there again.
    Rebirth(usize),
    /// Look for what hangs.
    Watch,
}

/// Whose a Queue Pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// An end of a connection.
    End(usize, usize),
    /// One for datagrams.
    Gram(usize),
    /// One that empties a shared receive queue in the end: the SRQ, and whether it sends.
    Probe(usize, bool),
}

/// A stretch between two hosts, one way.
#[derive(Debug)]
pub struct Link {
    /// The stretch itself.
    pub wire: Wire,
    /// It is cut, or bad, until then.
    pub bad: Instant,
}

/// A cluster.
#[derive(Debug)]
pub struct World {
    /// What the run has drawn.
    pub knobs: Knobs,
    /// Its seed.
    pub seed: u64,
    /// The clock.
    pub now: Instant,
    /// What is to come.
    pub agenda: Agenda<Happening>,
    /// Draws of everything that is no action.
    pub rng: Rng,
    /// The hosts, and the links from each to each.
    pub hosts: Vec<Host>,
    /// See `hosts`.
    pub links: Vec<Link>,
    /// All memory.
    pub areas: Vec<Area>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Connections.
    pub conns: Vec<Conn>,
    /// Queue Pairs for datagrams.
    pub grams: Vec<Gram>,
    /// Whose each Queue Pair is.
    pub owners: BTreeMap<(usize, u32), Owner>,
    /// Receives that wait, by their marks.
    pub receives: BTreeMap<u64, Receive>,
    /// Datagrams that were sent, by their marks.
    pub sent: BTreeMap<u64, Datagram>,
    /// The mark of the next receive.
    pub next_receive: u64,
    /// The program.
    pub actions: Vec<Action>,
    /// Actions that are left out.
    pub skip: Vec<bool>,
    /// The program is over; applications post every receive that they can.
    pub healing: bool,
    /// Hash of every frame and every event, with its time.
    pub trace: Trace,
    /// What happened how often.
    pub tally: Tally,
    /// Room for a frame.
    pub buf: Vec<u8>,
    /// Tell everything.
    pub verbose: bool,
}

/// How often hangs are looked for.
pub const WATCH: Duration = Duration::from_millis(2);

impl World {
    /// A cluster with everything that its seed says, at the beginning of time.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn new(seed: u64, knobs: Knobs, verbose: bool) -> Result<World, String> {
        let n = knobs.nodes;
        let links = (0..n * n).map(|at| {
            let own = at / n == at % n;
            // On the same host nothing is lost but by a socket that is full.
            let faults = if own {
                Faults::default()
            } else {
                knobs.faults.clone()
            };
            Link {
                wire: Wire::new(FaultLayer::new(faults, mix(seed, 0x11 << 32 | at as u64))),
                bad: Instant::ZERO,
            }
        });
        let actions = program::draw(&knobs, mix(seed, 2));
        let mut world = World {
            seed,
            now: Instant::ZERO,
            agenda: Agenda::new(mix(seed, 3)),
            rng: Rng::new(mix(seed, 4)),
            hosts: vec![],
            links: links.collect(),
            areas: vec![],
            srqs: vec![],
            conns: vec![],
            grams: vec![],
            owners: BTreeMap::new(),
            receives: BTreeMap::new(),
            sent: BTreeMap::new(),
            next_receive: 0,
            skip: vec![false; actions.len()],
            actions,
            healing: false,
            trace: Trace::default(),
            tally: Tally::new(knobs.profile),
            buf: vec![0; MAX_FRAME + 4],
            verbose,
            knobs,
        };
        for host in 0..n {
            world.born(host, 0)?;
        }
        world.build_conns()?;
        world.build_grams()?;
        Ok(world)
    }

    /// Prints what happens, if that was asked for.
    pub fn tell(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>12} {}", self.now.as_nanos(), text());
        }
    }

    /// The engine of a host that lives.
    pub fn engine(&mut self, host: usize) -> Option<&mut Engine> {
        self.hosts[host].engine.as_mut()
    }

    /// Adds to the trace.
    pub fn mark(&mut self, bytes: &[u8]) {
        self.trace.mark(self.now, bytes);
    }

    /// The number of the link from one host to another.
    pub fn link(&self, from: usize, to: usize) -> usize {
        from * self.knobs.nodes + to
    }

    /// A time up to `most` from now on.
    pub fn soon(&mut self, most: Duration) -> Instant {
        let most = most.as_nanos() as u64;
        self.now + Duration::from_nanos(self.rng.below(most + 1))
    }

    /// Nothing is on its way from one host to the other, and nothing waits there.
    pub fn quiet(&self, from: usize, to: usize) -> bool {
        let waits = |f: &rdma_soft::link::Frame| crate::host::host_of(f.src.ip()) == Some(from);
        self.links[self.link(from, to)].wire.layer.held() == 0
            && !self.hosts[to].socket.iter().any(waits)
    }

    /// Does what is next on the agenda; false if nothing is.
    ///
    /// # Errors
    /// What the model found to be wrong.
    pub fn step(&mut self) -> Result<bool, String> {
        let Some((at, what)) = self.agenda.next() else {
            return Ok(false);
        };
        self.now = at.max(self.now);
        match what {
            Happening::Action(i) if self.skip[i] => {}
            Happening::Action(i) => self.act(i)?,
            Happening::Turn(host) => self.turn(host)?,
            Happening::Arrival(link) => self.arrivals(link),
            Happening::Join { conn, end, life } => self.join(conn, end, life)?,
            Happening::Recover(conn) => self.recover(conn)?,
            Happening::Mend(gram) => self.mend(gram)?,
            Happening::Undrain { conn, end, life } => self.undrain(conn, end, life)?,
            Happening::Heal(link) => self.heal(link),
            Happening::Rebirth(host) => self.reborn(host)?,
            Happening::Watch => {
                self.watch()?;
                self.agenda.add(self.now + WATCH, Happening::Watch);
            }
        }
        Ok(true)
    }
}
