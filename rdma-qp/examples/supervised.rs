//! A connection that outlives the process at its other end.
//!
//! ```text
//! cargo run --release --example supervised -- --rounds 50
//! ```
//!
//! This process sends numbered messages to a server, which is a process of its own and writes down what it receives. In each
//! round the server is killed, or stops without a word, with messages under way or while all is quiet; three seconds later it
//! is started again. The sender does nothing about it: it goes on sending what can be sent, and is told what became of the
//! rest. What the report says is compared with what the server had really written down.

#[allow(dead_code)]
mod common;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{LIMIT, Options, Result};
use rdma_qp::exchange::tcp;
use rdma_qp::supervise::{self, Event, Happened, NotPosted, Report, Supervised};
use rdma_qp::{Device, PostFlags, op};
use rustix::process::{Pid, Signal, kill_process};

/// Messages under way at a time.
const WINDOW: usize = 16;

#[allow(dead_code)]
fn main() -> Result {
    let exe = std::env::current_exe()?;
    run(std::env::args().skip(1), |address, log| {
        let mut command = Command::new(&exe);
        command.args(["--serve", address, "--log"]).arg(log);
        command
    })
}

/// Runs the server (`--serve ADDRESS --log FILE`), or the sender, for which `command` makes the command of its server.
pub fn run(
    arguments: impl IntoIterator<Item = String>,
    command: impl Fn(&str, &Path) -> Command,
) -> Result {
    let options = Options::parse(arguments, &["--serve", "--log", "--rounds", "--pause"])?;
    if let (Some(address), Some(log)) = (options.get("--serve"), options.get("--log")) {
        return serve(&options.device()?, address.parse()?, Path::new(log));
    }
    let rounds = options.get("--rounds").unwrap_or("3").parse()?;
    let pause = options.get("--pause").unwrap_or("3").parse()?;
    let device = options.device()?;
    let figures = play(&device, rounds, Duration::from_secs(pause), command)?;
    print!("{figures}");
    Ok(())
}

/// The server: takes messages until it is killed, or until whoever started it is gone.
fn serve(device: &Device, address: SocketAddr, log: &Path) -> Result {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut log = OpenOptions::new().append(true).create(true).open(log)?;
    let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(128)?);
    let pool = pd.buffers(2 * WINDOW, 8)?;
    let qp = pd.rc(&cq).recv_depth(2 * WINDOW as u32).create()?;
    let meeting = supervise::listen(tcp::listen(address)?);
    let mut link: Supervised = Supervised::new(
        device,
        (qp, cq),
        meeting,
        supervise::Options::default(),
        // A life begins with receives.
        move |qp| {
            while let Some(buffer) = pool.take() {
                qp.recv_buffer(buffer).map_err(|not| not.error)?;
            }
            Ok(())
        },
    )?;
    loop {
        let Some(Happened::Received(done)) = link.next(LIMIT)? else {
            continue;
        };
        if let Some(buffer) = link.take_buffer(&done) {
            log.write_all(&buffer)?;
            match link.recv_buffer(buffer) {
                Ok(_) | Err(NotPosted::Down) => {}
                Err(error) => return Err(error.into()),
            }
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
    link: Supervised<u64>,
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
            while sends && self.link.under_way() < WINDOW {
                let bytes = self.next.to_be_bytes();
                match self
                    .link
                    .post_inline(op::Send, &bytes, PostFlags::empty(), self.next)
                {
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
    let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(64)?);
    let qp = pd
        .rc(&cq)
        .send_depth(2 * WINDOW as u32)
        .inline_data(8)
        .create()?;
    let options = supervise::Options::default();
    let meeting = supervise::connect(address);
    let mut sender = Sender {
        link: Supervised::new(device, (qp, cq), meeting, options, |_| Ok(()))?,
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
        let (received, lost) = compare(&sender, &report, &numbers(&log)?)?;
        println!(
            "round {round}: {}: {} after {noticed:.1?} (promised within {bound:.1?}); of {} messages {} done, {} not done, {} \
             unknown, of which the server has {received}; {lost} were acknowledged and died with it",
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
        sender.pump(true, |sender| sender.resumed.is_some())?;
        let resumed = sender.resumed.take().ok_or("nothing was resumed")? - started;
        println!("         sends again {resumed:.1?} after the server was started");
        figures.resumed.push(resumed);
        sender.report = None;
    }
    Ok(figures)
}

/// Compares the report with what the server wrote down. Gives how many of the unknown ones it has, and how many of the
/// acknowledged ones it has not: those were in its memory when it died.
fn compare(sender: &Sender, report: &Report<u64>, log: &[u64]) -> Result<(usize, usize)> {
    let context = |messages: &[supervise::Message<u64>]| -> Vec<u64> {
        messages.iter().map(|message| message.context).collect()
    };
    let (unknown, not_done) = (context(&report.unknown), context(&report.not_done));
    // Every message is told of once: first those that are done, then, from the first without an answer on, the others.
    if [&sender.done[..], &not_done, &unknown].concat() != sender.posted {
        return Err("the report and what was done are not all that was posted".into());
    }
    let log: Vec<u64> = (log.iter().copied())
        .filter(|number| sender.posted.first().is_some_and(|first| number >= first))
        .collect();
    // The server has a beginning of what was sent, each message once.
    if !sender.posted.starts_with(&log) {
        return Err("the server has something else than a beginning of what was sent".into());
    }
    // None that the report calls not done, and none behind the unknown ones.
    if let Some(number) = log.iter().find(|number| not_done.contains(number)) {
        return Err(format!("message {number} is called not done, and the server has it").into());
    }
    let received = log.len().saturating_sub(sender.done.len());
    let lost = sender.done.len().saturating_sub(log.len());
    if lost > 2 * WINDOW {
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
            "  messages: {} sent, {} acknowledged, {} unknown (at most {} at a time), of which the server had {}; {} were \
             acknowledged and died with the server",
            self.sent,
            self.acknowledged,
            self.unknown.iter().sum::<usize>(),
            self.unknown.iter().max().unwrap_or(&0),
            self.unknown_received,
            self.lost
        )
    }
}
