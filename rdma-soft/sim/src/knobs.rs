//! What a run draws from its seed before it begins.

use std::fmt;
use std::time::Duration;

use rdma_soft::core::rng::Rng;
use rdma_soft::link::{Faults, Probability, display_duration};

macro_rules! profiles {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Which kind of trouble a run has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Profile { $($(#[$doc])* $name,)* }

        impl Profile {
            /// All of them.
            pub const ALL: &'static [Profile] = &[$(Profile::$name,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Profile::$name => $text,)* }
            }
        }
    };
}

profiles! {
    /// Nothing goes wrong on the way.
    Clean = "clean",
    /// Frames are lost.
    Loss = "loss",
    /// Frames come twice.
    Duplicate = "duplicate",
    /// Frames overtake one another.
    Reorder = "reorder",
    /// Bits flip.
    Corrupt = "corrupt",
    /// Frames are late.
    Delay = "delay",
    /// Nodes are cut off for a while.
    Partition = "partition",
    /// Nodes stand still for a while.
    Pause = "pause",
    /// Nodes die, and come back as others.
    Death = "death",
    /// All of it.
    Mixed = "mixed",
}

/// What a run draws from its seed before it begins.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// Which kind of trouble.
    pub profile: Profile,
    /// Nodes.
    pub nodes: usize,
    /// Connections, and Queue Pairs for datagrams.
    pub conns: usize,
    /// See `conns`.
    pub datagrams: usize,
    /// What the program does, and how long it takes.
    pub actions: usize,
    /// See `actions`.
    pub span: Duration,
    /// Faults of every link.
    pub faults: Faults,
    /// Path MTU, and that of the ports.
    pub mtu: u32,
    /// See `mtu`.
    pub active_mtu: u32,
    /// Packets in flight.
    pub window: u32,
    /// Requests of a send queue.
    pub depth: usize,
    /// Receives that a program keeps in a queue.
    pub receives: usize,
    /// Scatter/gather entries.
    pub sges: u64,
    /// Bytes of the longest message.
    pub longest: u32,
    /// READs and atomics in flight.
    pub rd_atomic: u8,
    /// Acknowledgement timeout, its retries, those without a receive, and the wait before one.
    pub timeout: u8,
    /// See `timeout`.
    pub retry_cnt: u8,
    /// See `timeout`.
    pub rnr_retry: u8,
    /// See `timeout`.
    pub min_rnr_timer: u8,
    /// How likely an application posts the next receive at once.
    pub feeds: f64,
    /// How likely a request asks for a completion.
    pub signals: f64,
    /// How likely a request breaks a rule.
    pub poison: f64,
    /// How likely a PSN is shortly before the wrap.
    pub wrap: f64,
    /// Packets of a node to itself become frames.
    pub self_frames: bool,
    /// Frames that a node takes in one turn, and that it sends.
    pub budget: [u32; 2],
    /// Nanoseconds that a turn takes at most, and each frame in it.
    pub cost: [u64; 2],
    /// Nanoseconds that a turn is late at most.
    pub late: u64,
    /// Frames that wait for a node at most; what comes then is lost.
    pub socket: usize,
}

impl Knobs {
    /// Draws all knobs.
    pub fn draw(seed: u64) -> Knobs {
        let rng = &mut Rng::new(seed);
        let profile = Profile::ALL[rng.below(Profile::ALL.len() as u64) as usize];
        let nodes = match rng.below(4) {
            0 => 2,
            1 => 3 + rng.below(2),
            2 => 2 + rng.below(6),
            _ => 2 + rng.below(15),
        };
        let (mtu, spread) = (256 << rng.below(5), rng.below(5));
        // Short messages mostly, sometimes of many packets.
        let packets = [1, 2, 3, 6, 12][spread as usize];
        let quiet = profile == Profile::Clean || profile == Profile::Duplicate;
        Knobs {
            profile,
            nodes: nodes as usize,
            conns: 1 + rng.below(nodes + 2) as usize,
            datagrams: [0, 2, 3, 5][rng.below(4) as usize],
            actions: 200 + rng.below(400) as usize,
            span: Duration::from_micros(500 << rng.below(8)),
            faults: faults(profile, rng),
            mtu,
            active_mtu: (mtu << rng.below(3)).min(4096),
            window: 1 + magnitude(rng, 8) as u32,
            depth: [1, 2, 4, 8, 32][rng.below(5) as usize],
            receives: [1, 2, 4, 8][rng.below(4) as usize],
            sges: 1 + rng.below(4),
            longest: (1 + rng.below(u64::from(mtu) * packets)) as u32,
            rd_atomic: 1 + magnitude(rng, 4) as u8,
            timeout: match rng.below(20) {
                0 => 0,
                // So long that no queue of work runs into it.
                _ if quiet => 16,
                _ => 9 + rng.below(6) as u8,
            },
            retry_cnt: if rng.chance(0.6) {
                7
            } else {
                rng.below(7) as u8
            },
            rnr_retry: if rng.chance(0.6) {
                7
            } else {
                rng.below(7) as u8
            },
            min_rnr_timer: match rng.below(20) {
                0 => 0,
                1 => rng.below(32) as u8,
                _ => 1 + rng.below(12) as u8,
            },
            feeds: [1.0, 0.9, 0.5, 0.1][rng.below(4) as usize],
            signals: [1.0, 0.7, 0.3, 0.1][rng.below(4) as usize],
            poison: [0.0, 0.0, 0.01, 0.05][rng.below(4) as usize],
            wrap: rng.below(2) as f64 * 0.7,
            self_frames: rng.chance(0.5),
            budget: [1 + rng.below(64) as u32, 1 + rng.below(64) as u32],
            cost: [magnitude(rng, 14), magnitude(rng, 11)],
            late: magnitude(rng, 17),
            socket: if rng.chance(0.8) {
                4096
            } else {
                8 + rng.below(64) as usize
            },
        }
    }

    /// Sets a knob by its name.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
            value
                .parse()
                .map_err(|_| format!("{name}={value}: not a value of that knob"))
        }
        let chance = |value| {
            let p: f64 = number(name, value)?;
            Probability::new(p).ok_or_else(|| format!("{name}={value}: a probability is 0 to 1"))
        };
        match name {
            "nodes" => self.nodes = number(name, value).map(|n: usize| n.clamp(2, 16))?,
            "conns" => self.conns = number(name, value).map(|n: usize| n.max(1))?,
            "datagrams" => self.datagrams = number(name, value)?,
            "mtu" => {
                self.mtu = number(name, value)?;
                self.active_mtu = self.active_mtu.max(self.mtu);
            }
            "window" => self.window = number(name, value)?,
            "depth" => self.depth = number(name, value).map(|n: usize| n.max(1))?,
            "receives" => self.receives = number(name, value).map(|n: usize| n.max(1))?,
            "sges" => self.sges = number(name, value).map(|n: u64| n.clamp(1, 4))?,
            "longest" => self.longest = number(name, value).map(|n: u32| n.max(1))?,
            "rd_atomic" => self.rd_atomic = number(name, value).map(|n: u8| n.clamp(1, 16))?,
            "timeout" => self.timeout = number(name, value)?,
            "retry_cnt" => self.retry_cnt = number(name, value)?,
            "rnr_retry" => self.rnr_retry = number(name, value)?,
            "min_rnr_timer" => self.min_rnr_timer = number(name, value)?,
            "feeds" => self.feeds = number(name, value)?,
            "signals" => self.signals = number(name, value)?,
            "poison" => self.poison = number(name, value)?,
            "wrap" => self.wrap = number(name, value)?,
            "loss" => self.faults.loss = chance(value)?,
            "duplicate" => self.faults.duplicate = chance(value)?,
            "reorder" => self.faults.reorder = chance(value)?,
            "corrupt" => self.faults.corrupt = chance(value)?,
            "delay" => self.faults.delay = Duration::from_nanos(number(name, value)?),
            "jitter" => self.faults.jitter = Duration::from_nanos(number(name, value)?),
            "self_frames" => self.self_frames = number(name, value)?,
            "cost" => self.cost = [number(name, value)?; 2],
            "late" => self.late = number(name, value)?,
            "socket" => self.socket = number(name, value).map(|n: usize| n.max(1))?,
            _ => return Err(format!("{name} is no knob that can be set")),
        }
        Ok(())
    }

    /// True if a frame that was sent may not arrive, or arrive late or out of order.
    pub fn unsafe_wire(&self) -> bool {
        !matches!(self.profile, Profile::Clean | Profile::Duplicate) || self.socket < 4096
    }
}

/// A number below 2^`bits`, of any magnitude.
pub fn magnitude(rng: &mut Rng, bits: u64) -> u64 {
    let below = 1 << rng.below(bits);
    rng.below(below)
}

fn faults(profile: Profile, rng: &mut Rng) -> Faults {
    let mixed = profile == Profile::Mixed;
    let mut chance = |of: Profile, most: f64| {
        // Drawn for every profile, so that the draws after it are the same.
        let drawn = rng.below(1000) as f64 / 1000.0 * most;
        let on = profile == of || mixed;
        Probability::new(if on { drawn } else { 0.0 }).unwrap_or_default()
    };
    let (loss, duplicate) = (chance(Profile::Loss, 0.08), chance(Profile::Duplicate, 0.2));
    let (reorder, corrupt) = (
        chance(Profile::Reorder, 0.1),
        chance(Profile::Corrupt, 0.08),
    );
    let late = profile == Profile::Delay || mixed;
    let (near, far) = (rng.below(20_000), rng.below(400_000));
    let jitter = rng.below(200_000);
    Faults {
        loss,
        duplicate,
        reorder,
        corrupt,
        delay: Duration::from_nanos(if late { far } else { near }),
        jitter: Duration::from_nanos(if late { jitter } else { jitter / 100 }),
        seed: None,
    }
}

impl fmt::Display for Knobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "profile={} nodes={} conns={} datagrams={} actions={} span={} faults={} mtu={}/{} window={} depth={} receives={} \
             sges={} longest={} rd_atomic={} timeout={} retry_cnt={} rnr_retry={} min_rnr_timer={} feeds={} signals={} \
             poison={} wrap={} self_frames={} budget={}/{} cost={}/{}ns late={}ns socket={}",
            self.profile.name(),
            self.nodes,
            self.conns,
            self.datagrams,
            self.actions,
            display_duration(self.span),
            self.faults,
            self.mtu,
            self.active_mtu,
            self.window,
            self.depth,
            self.receives,
            self.sges,
            self.longest,
            self.rd_atomic,
            self.timeout,
            self.retry_cnt,
            self.rnr_retry,
            self.min_rnr_timer,
            self.feeds,
            self.signals,
            self.poison,
            self.wrap,
            self.self_frames,
            self.budget[0],
            self.budget[1],
            self.cost[0],
            self.cost[1],
            self.late,
            self.socket,
        )
    }
}
