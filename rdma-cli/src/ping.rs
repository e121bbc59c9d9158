//! `qp ping`: round trips over a Queue Pair, and what is wrong where there are none.

mod end;
mod passive;
mod report;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_qp::Timing;
use rdma_soft::link::parse_duration;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::device::{self, DeviceArgs, FaultArgs, Opened, TimingArgs};
use crate::failure::{Failure, told};
use crate::perf::Transport;
use crate::perf::control::{self, Peer, Trouble, attend};
use crate::perf::meeting::{self, Wish};
use crate::perf::times;
use crate::term::{Harmless, Style};
use crate::units::parse_size;
pub use end::End;
use end::Happened;
pub use passive::answer;
use report::Report;

/// Options of `qp ping`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
qp ping [OPTIONS]
       qp ping [OPTIONS] --listen ADDR
       qp ping [OPTIONS] ADDR")]
#[command(after_help = "\
Examples:
  qp ping                          both ends in this process: the first try
  qp ping --transport ud -c 1000 -i 0 -q
  qp ping --listen 0.0.0.0:7472    on one host: answers whoever comes, until it
                                   is interrupted
  qp ping -s 4096 192.0.2.7:7472   on another

The two ends meet over TCP at ADDR; the pings go by the Queue Pair, over UDP
port 4791 with the software device, which takes loopback addresses only unless
RDMA_SOFT_ADDR names another. In the end both ends are looked at as by
`qp doctor`.

Status: 0 an answer came, 1 none did or the Queue Pair failed, 2 wrong options.")]
pub struct Args {
    /// HOST:PORT of the end that answers; both ends are in this process if there is none
    #[arg(value_name = "ADDR")]
    address: Option<String>,
    /// Answer at this HOST:PORT whoever comes with `qp ping`, `qp lat` or `qp bw`; port 0 takes a free one
    #[arg(long, value_name = "ADDR", conflicts_with_all = [
        "address", "transport", "count", "interval", "size", "wait", "deadline", "quiet", "json", "timeout", "retry_cnt",
    ])]
    listen: Option<String>,
    /// With --listen: answer one peer and end
    #[arg(long, requires = "listen")]
    once: bool,
    /// rc, uc, ud or xrc
    #[arg(
        long,
        value_enum,
        default_value = "rc",
        ignore_case = true,
        hide_possible_values = true
    )]
    transport: Transport,
    /// Pings to send; 0 goes on until it is interrupted
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    count: u64,
    /// Time from one ping to the next; 0 sends the next when the answer is there
    #[arg(short, long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    interval: Duration,
    /// Bytes of a ping, 8 to 1M
    #[arg(short, long, value_name = "BYTES", default_value_t = 64, value_parser = parse_ping)]
    size: u32,
    /// How long to wait for an answer
    #[arg(short = 'W', long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    wait: Duration,
    /// End after this time, however many pings were sent
    #[arg(short = 'w', long, value_name = "TIME", value_parser = parse_duration)]
    deadline: Option<Duration>,
    /// Print the summary only
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object, for machines: sizes are bytes, and other fields name their unit
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    timing: TimingArgs,
    #[command(flatten)]
    faults: FaultArgs,
}

impl Args {
    fn pings(&self) -> Pings {
        let (transport, size) = (self.transport, self.size);
        Pings { transport, size }
    }
}

/// What the end that answers must know of pings.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pings {
    /// Over which transport.
    pub transport: Transport,
    /// Bytes of each.
    pub size: u32,
}

/// How long it waits at a time before it looks whether it was interrupted, and whether the other end is still there.
const SLICE: Duration = Duration::from_millis(50);

impl Pings {
    /// What a ping can have of bytes.
    const SIZES: std::ops::RangeInclusive<u32> = 8..=1 << 20;
}

fn parse_ping(text: &str) -> Result<u32, String> {
    let size = parse_size(text)?;
    match Pings::SIZES.contains(&size) {
        true => Ok(size),
        false => Err("a ping has 8 bytes to 1M (1048576)".to_owned()),
    }
}

/// Runs the command.
///
/// # Errors
/// No answer came; the ends did not meet; the device cannot be used.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some(address) = &args.listen {
        let choice = args.device.choice(&args.faults)?;
        return meeting::serve(address, &choice, args.once);
    }
    let timing = args.timing.check()?;
    let choice = args.device.choice(&args.faults)?;
    let opened = device::open(&choice)?;
    let end = End::new(&opened, args.pings(), choice.mtu)?;
    meeting::with_peer(args.address.as_deref(), &choice, |address| {
        ask(args, address, &opened, end, timing)
    })
}

/// The end that asks.
fn ask(
    args: &Args,
    address: &str,
    opened: &Opened,
    mut end: End,
    timing: Timing,
) -> Result<(), Failure> {
    let mut peer = meeting::greet(address, Wish::Ping(args.pings()), timing)?;
    end.meet(&mut peer, timing)?;
    let style = Style::of(&io::stdout());
    let mut out = io::stdout().lock();
    let talks = !args.json && !args.quiet;
    if !args.json {
        let by = format!(
            "by {}/{}, GID {}",
            opened.device.name(),
            opened.gid.port,
            opened.gid
        );
        writeln!(
            out,
            "{} bytes to {} over {}",
            args.size,
            style.bold(Harmless(address)),
            args.transport
        )?;
        writeln!(out, "{}", style.dim(format!("  {by}")))?;
        if let Some(faults) = &opened.faults {
            for line in device::shown(faults) {
                writeln!(out, "{}", style.dim(line))?;
            }
        }
    }
    let mut peer = Peer::that_answers(peer);
    let mut report = Report::new(args, &end, address);
    let ended = pings(args, &mut end, &mut peer, &mut report, |line| {
        if talks {
            writeln!(out, "{line}")
        } else {
            Ok(())
        }
    })?;
    // Both ends as they are now, whether or not it went well.
    report.end(|rtt| control::conclude(&mut peer, ended, |_| end.dump(), rtt));
    if args.json {
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        report.write(&mut out, style)?;
    }
    out.flush()?;
    if report.received > 0 && report.error.is_none() {
        Ok(())
    } else {
        Err(Failure::Found)
    }
}

/// Sends pings and waits for their answers; gives what ended it before its time, if something did.
fn pings(
    args: &Args,
    end: &mut End,
    peer: &mut Peer,
    report: &mut Report,
    mut tell: impl FnMut(String) -> io::Result<()>,
) -> Result<Result<(), Trouble>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).map_err(told)?;
    }
    let begin = Instant::now();
    let over = |now: Instant| {
        args.deadline
            .is_some_and(|deadline| now - begin >= deadline)
    };
    let mut sequence = 0u64;
    while (args.count == 0 || sequence < args.count)
        && !interrupted.load(Ordering::Relaxed)
        && !over(Instant::now())
    {
        if let Err(trouble) = attend(peer) {
            return Ok(Err(trouble));
        }
        sequence += 1;
        let sent = Instant::now();
        let until = args.deadline.map_or(sent + args.wait, |deadline| {
            (sent + args.wait).min(begin + deadline)
        });
        end.send(sequence)?;
        report.sent += 1;
        loop {
            match end.next(until.min(Instant::now() + SLICE))? {
                Happened::Came(number) if number == sequence => {
                    let rtt = sent.elapsed();
                    report.came(rtt);
                    tell(format!(
                        "{} bytes from {}: seq={sequence} time={}",
                        args.size,
                        report.peer,
                        times::short(rtt.as_nanos() as f64 / 1000.0)
                    ))?;
                    break;
                }
                // An answer that was given up.
                Happened::Came(_) => report.late += 1,
                Happened::Left => {}
                Happened::Nothing if interrupted.load(Ordering::Relaxed) => break,
                Happened::Nothing if Instant::now() < until => {
                    if let Err(trouble) = attend(peer) {
                        return Ok(Err(trouble));
                    }
                }
                Happened::Nothing => {
                    tell(format!(
                        "no answer to seq={sequence} within {:?}",
                        args.wait
                    ))?;
                    break;
                }
                Happened::Failed(why) => return Ok(Err(Trouble::Failed { lane: 0, why })),
            }
        }
        let next = sent + args.interval;
        let last = args.count != 0 && sequence == args.count;
        while !last
            && Instant::now() < next
            && !interrupted.load(Ordering::Relaxed)
            && !over(Instant::now())
        {
            if let Err(trouble) = attend(peer) {
                return Ok(Err(trouble));
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()).min(SLICE));
        }
    }
    Ok(Ok(()))
}
