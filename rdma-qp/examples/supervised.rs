//! A connection that outlives the process at its other end.
//!
//! ```text
//! cargo run --release --example supervised -- --rounds 50 --transport all
//! ```
//!
//! This process sends numbered messages to a server, which is a process of its own and writes down what it receives. In each
//! round the server is killed, or stops without a word, with messages under way or while all is quiet; three seconds later it
//! is started again. The sender does nothing about it: it goes on sending what can be sent, and is told what became of the
//! rest. What the report says is compared with what the server had really written down.
//!
//! `--transport` is `rc` (if nothing is given), `uc`, `ud`, `xrc`, or `all` of them, one after the other. On UC and UD a message is
//! done when it has left, so more of them may never arrive; what arrives does once.

#[allow(dead_code)]
mod common;
#[path = "common/links.rs"]
#[allow(dead_code)]
pub mod links;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{LIMIT, Options, Result};
use links::{Link, Make, TRANSPORTS};
use rdma_qp::Device;
use rdma_qp::exchange::tcp;
use rdma_qp::supervise::{self, Event, Happened, NotPosted, Proof, Report};
use rustix::process::{Pid, Signal, kill_process};

/// Messages under way at a time.
const WINDOW: usize = 16;

#[allow(dead_code)]
fn main() -> Result {
    let exe = std::env::current_exe()?;
    run(std::env::args().skip(1), |transport, address, log| {
        let mut command = Command::new(&exe);
        command.args(["--transport", transport, "--serve", address, "--log"]);
        command.arg(log);
        command
    })
}

/// Runs the server (`--serve ADDRESS --log FILE`), or the sender, for which `command` makes the command of its server.
pub fn run(
    arguments: impl IntoIterator<Item = String>,
    command: impl Fn(&str, &str, &Path) -> Command,
) -> Result {
    let own = ["--transport", "--serve", "--log", "--rounds", "--pause"];
    let options = Options::parse(arguments, &own)?;
    let asked = options.get("--transport").unwrap_or("rc");
    let is_asked = |(name, _): &&(&str, Make)| asked == "all" || *name == asked;
    let transports: Vec<_> = TRANSPORTS.iter().filter(is_asked).collect();
    let [(_, first), ..] = transports[..] else {
        return Err(format!("{asked} is none of rc, uc, ud, xrc and all").into());
    };
    if let (Some(address), Some(log)) = (options.get("--serve"), options.get("--log")) {
        return serve(*first, &options.device()?, address.parse()?, Path::new(log));
    }
    let rounds = options.get("--rounds").unwrap_or("3").parse()?;
    let pause = Duration::from_secs(options.get("--pause").unwrap_or("3").parse()?);
    for &&(name, make) in &transports {
        let device = options.device()?;
        let command = |address: &str, log: &Path| command(name, address, log);
        println!("{name}:");
        print!("{}", play(make, &device, rounds, pause, command)?);
    }
    Ok(())
}

/// Receives of an end, and sends that it has room for.
const DEPTH: u32 = 2 * WINDOW as u32;

/// The server: takes messages until it is killed, or until whoever started it is gone.
fn serve(make: Make, device: &Device, address: SocketAddr, log: &Path) -> Result {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut log = OpenOptions::new().append(true).create(true).open(log)?;
    let meeting = Box::new(supervise::listen(tcp::listen(address)?));
    let mut link = make(device, meeting, supervise::Options::default(), DEPTH)?;
    loop {
        // What comes beside the connection does not wake it.
        match link.next(Duration::from_millis(1))? {
            Some(Happened::Received(done)) => log.write_all(&link.take(&done)?.to_be_bytes())?,
            Some(Happened::Heartbeat(done)) => _ = link.take(&done)?,
            _ => {}
        }
        while let Some(number) = link.beside()? {
            log.write_all(&number.to_be_bytes())?;
        }
    }
}

/// A server in a process of its own. It is gone when this is dropped.
struct Server(Child);

impl Server {
    fn start(
        command: &dyn Fn(&str, &Path) -> Command,
        address: SocketAddr,
        log: &Path,
    ) -> Result<Server> {
        let mut command = command(&address.to_string(), log);
        // What it says would stand between our lines.
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Ok(Server(command.spawn()?))
    }

    /// Stops it without a word: its connections stay open, and nobody answers.
    fn stop(&self) -> Result {
        let pid = Pid::from_raw(self.0.id().try_into()?).ok_or("no process")?;
        Ok(kill_process(pid, Signal::STOP)?)
    }

    fn kill(&mut self) -> Result {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The sender, with what it knows of one life of the connection.
struct Sender {
    link: Box<dyn Link>,
    next: u64,
    posted: Vec<u64>,
    done: Vec<u64>,
    report: Option<Report<u64>>,
    /// When the connection was found dead, and when a message was acknowledged first after that.
    dead: Option<Instant>,
    resumed: Option<Instant>,
}

impl Sender {
    /// Sends, if `sends`, and takes what comes, until `over` says so.
    fn pump(&mut self, sends: bool, over: impl Fn(&Sender) -> bool) -> Result {
        let until = Instant::now() + LIMIT;
        while !over(self) {
            if Instant::now() > until {
                return Err(format!("nothing comes of {:?}", self.link).into());
            }
            // Where they are done at once, so many in a turn.
            let most = self.next + WINDOW as u64;
            while sends && self.link.under_way() < WINDOW && self.next < most {
                match self.link.send(self.next) {
                    Ok(_) => {
                        self.posted.push(self.next);
                        self.next += 1;
                    }
                    Err(NotPosted::Down) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            while let Some(happened) = self.link.next(Duration::from_millis(1))? {
                match happened {
                    Happened::Done(message) => {
                        self.done.push(message.context);
                        if self.report.is_some() {
                            self.resumed.get_or_insert_with(Instant::now);
                        }
                    }
                    Happened::Heartbeat(done) => _ = self.link.take(&done)?,
                    Happened::Event(Event::Dead { .. }) => self.dead = Some(Instant::now()),
                    Happened::Ended(report) => {
                        self.report = Some(report);
                        return Ok(());
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// What was measured.
#[derive(Default)]
pub struct Figures {
    rounds: usize,
    /// Until a death was noticed, by what had happened.
    noticed: [Vec<Duration>; 3],
    /// From the start of the new server until its first message was acknowledged.
    resumed: Vec<Duration>,
    sent: usize,
    acknowledged: usize,
    unknown: Vec<usize>,
    unknown_received: usize,
    lost: usize,
}

const MODES: [&str; 3] = [
    "killed, messages under way",
    "stopped, messages under way",
    "stopped, all quiet",
];

fn play(
    make: Make,
    device: &Device,
    rounds: usize,
    pause: Duration,
    command: impl Fn(&str, &Path) -> Command,
) -> Result<Figures> {
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let directory = Directory::new()?;
    let log = directory.0.join("received");
    let mut server = Server::start(&command, address, &log)?;
    let meeting = Box::new(supervise::connect(address));
    let link = make(device, meeting, supervise::Options::default(), DEPTH)?;
    let mut sender = Sender {
        link,
        next: 0,
        posted: Vec::new(),
        done: Vec::new(),
        report: None,
        dead: None,
        resumed: None,
    };
    let bound = sender.link.notices_within();
    let mut figures = Figures::default();
    for round in 0..rounds {
        let mode = round % MODES.len();
        // Deaths at different moments.
        let busy = Duration::from_millis(100 + (round as u64 * 37) % 200);
        sender.pump(true, |sender| !sender.done.is_empty())?;
        let until = Instant::now() + busy;
        sender.pump(true, |_| Instant::now() > until)?;
        if mode == 2 {
            sender.pump(false, |sender| sender.link.under_way() == 0)?;
        }
        let died = Instant::now();
        match mode {
            0 => server.kill()?,
            _ => server.stop()?,
        }
        sender.pump(mode != 2, |sender| sender.report.is_some())?;
        if mode != 0 {
            server.kill()?;
        }
        let report = sender.report.clone().ok_or("no report")?;
        let noticed = sender.dead.take().ok_or("no event")? - died;
        let written = numbers(&log)?;
        let (received, lost) = compare(&sender, &report, &written)?;
        println!(
            "round {round}: {}: {} after {noticed:.1?} (promised within {bound:.1?}); of {} messages {} done, {} not done, {} \
             unknown, of which the server has {received}; {lost} were done and are not there",
            MODES[mode],
            report.why,
            sender.posted.len(),
            sender.done.len(),
            report.not_done.len(),
            report.unknown.len(),
        );
        figures.rounds += 1;
        figures.noticed[mode].push(noticed);
        figures.sent += sender.posted.len();
        figures.acknowledged += sender.done.len();
        figures.unknown.push(report.unknown.len());
        figures.unknown_received += received;
        figures.lost += lost;
        (sender.posted, sender.done) = (Vec::new(), Vec::new());
        // The sender goes on as if nothing had happened.
        sender.pump(true, |_| Instant::now() > died + pause)?;
        let started = Instant::now();
        server = Server::start(&command, address, &log)?;
        sender.resumed = None;
        // What is done has arrived on reliable transports only; so something new is to be there, too.
        let arrived =
            || std::fs::metadata(&log).is_ok_and(|log| log.len() > 8 * written.len() as u64);
        sender.pump(true, |sender| sender.resumed.is_some() && arrived())?;
        let resumed = sender.resumed.take().ok_or("nothing was resumed")? - started;
        println!("         sends again {resumed:.1?} after the server was started");
        figures.resumed.push(resumed);
        sender.report = None;
    }
    Ok(figures)
}

/// Compares the report with what the server wrote down. Gives how many of the unknown ones it has, and how many of those that
/// were done it has not: on reliable transports these were in its memory when it died.
fn compare(sender: &Sender, report: &Report<u64>, log: &[u64]) -> Result<(usize, usize)> {
    let reliable = matches!(sender.link.proof(), Proof::Process | Proof::Node);
    let context = |messages: &[supervise::Message<u64>]| -> Vec<u64> {
        messages.iter().map(|message| message.context).collect()
    };
    let (unknown, not_done) = (context(&report.unknown), context(&report.not_done));
    // Every message is told of once: first those that are done, then, from the first without an answer on, the others.
    let mut told = [&sender.done[..], &not_done, &unknown].concat();
    if !reliable {
        told.sort_unstable();
    }
    if told != sender.posted {
        return Err("the report and what was done are not all that was posted".into());
    }
    let log: Vec<u64> = (log.iter().copied())
        .filter(|number| sender.posted.first().is_some_and(|first| number >= first))
        .collect();
    // What the server has is a beginning of what was sent, or, where some of it may be lost, a part of it: each message once, and
    // in order. That holds for datagrams, too, where packets do not overtake one another.
    let right = match reliable {
        true => sender.posted.starts_with(&log),
        false => log.is_sorted_by(|a, b| a < b) && log.last() <= sender.posted.last(),
    };
    if !right {
        return Err("the server has something else than what was sent, once and in order".into());
    }
    // None that the report calls not done.
    if let Some(number) = log.iter().find(|number| not_done.contains(number)) {
        return Err(format!("message {number} is called not done, and the server has it").into());
    }
    let received = (unknown.iter())
        .filter(|number| log.binary_search(number).is_ok())
        .count();
    let lost = (sender.done.iter())
        .filter(|number| log.binary_search(number).is_err())
        .count();
    if reliable && lost > 2 * WINDOW {
        return Err(format!("{lost} acknowledged messages are nowhere").into());
    }
    Ok((received, lost))
}

/// The numbers in the log.
fn numbers(log: &Path) -> Result<Vec<u64>> {
    let mut bytes = Vec::new();
    File::open(log)?.read_to_end(&mut bytes)?;
    let (numbers, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err("the log ends in the middle of a number".into());
    }
    Ok(numbers
        .iter()
        .map(|number| u64::from_be_bytes(*number))
        .collect())
}

/// A directory that is gone afterwards.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Directory> {
        let path = std::env::temp_dir().join(format!("supervised-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let spread = |samples: &[Duration]| {
            let mut sorted = samples.to_vec();
            sorted.sort_unstable();
            match (sorted.get(sorted.len() / 2), sorted.last()) {
                (Some(median), Some(max)) => format!("median {median:.1?}, at most {max:.1?}"),
                _ => "none".to_owned(),
            }
        };
        writeln!(f, "{} rounds", self.rounds)?;
        for (mode, noticed) in MODES.iter().zip(&self.noticed) {
            writeln!(f, "  noticed, {mode}: {}", spread(noticed))?;
        }
        writeln!(
            f,
            "  sends again after the start: {}",
            spread(&self.resumed)
        )?;
        writeln!(
            f,
            "  messages: {} posted, {} done, {} unknown (at most {} at a time), of which the server had {}; {} were done and are \
             not there",
            self.sent,
            self.acknowledged,
            self.unknown.iter().sum::<usize>(),
            self.unknown.iter().max().unwrap_or(&0),
            self.unknown_received,
            self.lost
        )
    }
}
