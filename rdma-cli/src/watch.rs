//! `qp watch`: what changes on a device, or in the Queue Pairs of programs that are recorded: events, states, counters.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_qp::dump::Failed;
use rdma_qp::{AsyncEvent, Device};
use rdma_soft::link::parse_duration;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::device;
use crate::devices;
use crate::doctor;
use crate::doctor::print::paragraph;
use crate::failure::{Failure, told};
use crate::term::{Harmless, Style, WIDTH, folded};

/// Options of `qp watch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  qp watch mlx5_0                        events, port states, GIDs and counters
                                         of an adapter
  qp doctor --records dir -- ./program   in one terminal,
  qp watch --records dir                 and in another: its Queue Pairs, and
                                         what the software device counts

It says what there is, and then what changes.")]
pub struct Args {
    /// The device, as `qp devices` names it; the software device of this process if not given
    #[arg(value_name = "DEVICE", conflicts_with = "records")]
    device: Option<String>,
    /// Programs that write their records to this directory (of `qp doctor --records DIR` or `qp run --set record=DIR`)
    #[arg(long, value_name = "DIR")]
    records: Option<PathBuf>,
    /// How often to look
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// End after this time
    #[arg(short = 'w', long, value_name = "TIME", value_parser = parse_duration)]
    deadline: Option<Duration>,
    /// Print one JSON object a line, for machines
    #[arg(long)]
    pub json: bool,
}

/// Something that may change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    Count(u64),
}

/// What is known, by whose it is and what it is called.
type Snapshot = BTreeMap<(String, String), Value>;

/// A line for machines.
#[derive(Serialize)]
struct Line<'a> {
    /// Milliseconds since 1970, UTC.
    unix_ms: u128,
    /// Device and port, or program and Queue Pair.
    of: &'a str,
    /// `event`, or the name of what changed.
    what: &'a str,
    /// The text, or the count, that it is now; `null` if it is gone.
    now: Option<serde_json::Value>,
    /// By how much a count rose since the last look.
    rose: Option<u64>,
}

/// Where a text begins that has lines of its own: behind the time.
const INDENT: usize = 12;

/// Where changes are told.
struct Teller {
    json: bool,
    style: Style,
    begin: Instant,
    out: io::StdoutLock<'static>,
}

impl Teller {
    fn line(
        &mut self,
        of: &str,
        what: &str,
        now: Option<&Value>,
        rose: Option<u64>,
    ) -> io::Result<()> {
        if self.json {
            let now = now.map(|value| match value {
                Value::Text(text) => text.as_str().into(),
                Value::Count(count) => (*count).into(),
            });
            let unix_ms = std::time::UNIX_EPOCH
                .elapsed()
                .unwrap_or_default()
                .as_millis();
            serde_json::to_writer(
                &mut self.out,
                &Line {
                    unix_ms,
                    of,
                    what,
                    now,
                    rose,
                },
            )?;
            writeln!(self.out)?;
        } else {
            let text = match (now, rose) {
                (Some(Value::Count(count)), Some(rose)) => format!("+{rose} = {count}"),
                (Some(Value::Count(count)), None) => count.to_string(),
                (Some(Value::Text(text)), _) => text.clone(),
                (None, _) => "gone".to_owned(),
            };
            let time = format!("{:>8.1} s", self.begin.elapsed().as_secs_f64());
            let text = Harmless(text).to_string();
            write!(
                self.out,
                "{}  {}  {}",
                self.style.dim(time),
                self.style.cyan(Harmless(of)),
                Harmless(what),
            )?;
            let before = 10 + 2 + of.chars().count() + 2 + what.chars().count();
            if before + 2 + text.chars().count() <= WIDTH {
                writeln!(self.out, "  {}", self.style.bold(text))?;
            } else {
                writeln!(self.out)?;
                for line in folded(&text, WIDTH - INDENT) {
                    writeln!(self.out, "{:INDENT$}{}", "", self.style.bold(line))?;
                }
            }
        }
        self.out.flush()
    }

    /// Tells what is other than it was; of counts that are new only those that are not 0.
    fn changes(&mut self, before: &Snapshot, now: &Snapshot) -> io::Result<()> {
        for ((of, what), value) in now {
            let was = before.get(&(of.clone(), what.clone()));
            match (was, value) {
                (Some(was), value) if was == value => {}
                (None, Value::Count(0)) => {}
                (Some(Value::Count(was)), Value::Count(count)) if count > was => {
                    self.line(of, what, Some(value), Some(count - was))?;
                }
                _ => self.line(of, what, Some(value), None)?,
            }
        }
        let gone = before.keys().filter(|key| !now.contains_key(*key));
        for (of, what) in gone {
            self.line(of, what, None, None)?;
        }
        Ok(())
    }
}

/// Runs the command.
///
/// # Errors
/// There is no such device, or its events cannot be read.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.interval.is_zero() {
        let why = "--interval 0 would look all the time: give a time above 0, such as 100ms";
        return Err(Failure::Usage(why.to_owned()));
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).map_err(told)?;
    }
    let mut teller = Teller {
        json: args.json,
        style: Style::of(&io::stdout()),
        begin: Instant::now(),
        out: io::stdout().lock(),
    };
    let device = match (&args.records, &args.device) {
        (Some(_), _) => None,
        (None, Some(name)) => Some(open(name)?),
        (None, None) => Some(Device::open_index(rdma_soft::verbs(), 0).map_err(told)?),
    };
    let look = || match (&device, &args.records) {
        (Some(device), _) => Ok(of_device(device)),
        (None, Some(dir)) => of_records(dir),
        (None, None) => Ok(Snapshot::new()),
    };
    let mut before = Snapshot::new();
    if let (Some(dir), true) = (&args.records, look()?.is_empty()) {
        let note = format!(
            "nothing is recorded in {} yet: `qp doctor --records DIR -- PROGRAM` writes there",
            dir.display()
        );
        paragraph(&mut io::stderr(), "", &note, str::to_owned)?;
    }
    let end = args.deadline.map(|deadline| Instant::now() + deadline);
    loop {
        let now = look()?;
        teller.changes(&before, &now)?;
        before = now;
        let next = Instant::now() + args.interval;
        let next = end.map_or(next, |end| next.min(end));
        // Once at least: looking may have taken as long as the interval is.
        loop {
            // Signals end neither kind of wait: it is looked for them in between.
            let left = next.saturating_duration_since(Instant::now());
            let slice = left.min(Duration::from_millis(100));
            match &device {
                Some(device) => {
                    if let Some(event) = device.next_event(slice).map_err(told)? {
                        teller.line(
                            &subject(device, &event),
                            "event",
                            Some(&Value::Text(name(&event))),
                            None,
                        )?;
                    }
                }
                None => std::thread::sleep(slice),
            }
            if Instant::now() >= next || interrupted.load(Ordering::Relaxed) {
                break;
            }
        }
        if interrupted.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end) {
            return Ok(());
        }
    }
}

/// A device of rdma-core, or the software device if that is its name.
fn open(name: &str) -> Result<Device, Failure> {
    let software = Device::list(rdma_soft::verbs()).unwrap_or_default();
    if software.iter().any(|info| info.name == name) {
        return Device::open(rdma_soft::verbs(), name).map_err(told);
    }
    device::open_real(name)
}

/// Whose event it is.
fn subject(device: &Device, event: &AsyncEvent) -> String {
    let device = device.name();
    match event {
        AsyncEvent::Port { port, .. } => format!("{device}/{port}"),
        AsyncEvent::Qp { qp_num, .. } => format!("{device} QP {qp_num:#x}"),
        AsyncEvent::Srq { srq, .. } => format!("{device} SRQ {srq}"),
        _ => device.to_owned(),
    }
}

fn name(event: &AsyncEvent) -> String {
    let kind = event.kind();
    kind.name()
        .map_or_else(|| format!("event {}", kind.0), str::to_owned)
}

/// Ports, GIDs and counters of a device.
fn of_device(device: &Device) -> Snapshot {
    let mut seen = Snapshot::new();
    for port in device.ports() {
        let of = format!("{}/{}", device.name(), port.number());
        let mut add = |what: String, value| seen.insert((of.clone(), what), value);
        match port.query() {
            Ok(info) => {
                add("state".to_owned(), Value::Text(devices::state(&info)));
                if let Some(mtu) = info.active_mtu {
                    add(
                        "active MTU".to_owned(),
                        Value::Text(mtu.bytes().to_string()),
                    );
                }
            }
            Err(error) => {
                add("state".to_owned(), Value::Text(error.to_string()));
            }
        }
        for entry in port.gids().unwrap_or_default() {
            add(
                format!("GID {}", entry.index),
                Value::Text(format!("{} ({})", entry.gid, entry.kind)),
            );
        }
        for (counter, count) in port.counters() {
            add(counter, Value::Count(count));
        }
    }
    if let Some(counters) = rdma_soft::counters(device.name()) {
        let all = counters.engine.all().chain(counters.link.all());
        seen.extend(all.map(|(counter, count)| {
            (
                (device.name().to_owned(), counter.to_owned()),
                Value::Count(count),
            )
        }));
    }
    seen
}

/// Queue Pairs of recorded programs, and what their devices count.
fn of_records(dir: &Path) -> Result<Snapshot, Failure> {
    let mut seen = Snapshot::new();
    // Before the first program there may be no directory.
    if !dir.exists() {
        return Ok(seen);
    }
    for record in doctor::program::records(dir)? {
        let program = format!("{} {}", record.program, record.pid);
        let mut add =
            |of: &str, what: &str, value| seen.insert((of.to_owned(), what.to_owned()), value);
        for dump in &record.dumps {
            let of = format!("{program} {} QP {:#x}", dump.qp.transport, dump.qp.number);
            add(&of, "state", Value::Text(dump.qp.state.clone()));
            if let Some(error) = dump
                .last_error
                .as_ref()
                .filter(|error| matches!(error.what, Failed::Modify { .. }))
            {
                add(&of, "refused", Value::Text(error.text.clone()));
            }
            add(&of, "mishaps", Value::Count(dump.mishaps.len() as u64));
            for (counter, count) in &dump.counters {
                let whose = if counter.starts_with("qp/") {
                    &of
                } else {
                    &format!("{program} {}", dump.device.name)
                };
                add(whose, counter, Value::Count(*count));
            }
        }
        add(
            &program,
            "refusals",
            Value::Count(record.refusals.len() as u64),
        );
    }
    Ok(seen)
}
