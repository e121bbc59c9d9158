//! `qp copy`: a file or a directory from one process to another through a Queue Pair each.

mod args;
mod child;
mod connection;
mod console;
mod end;
mod file;
mod interrupt;
mod protocol;
mod receiver;
mod report;
mod sender;
mod wake;
mod writer;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use indicatif::BinaryBytes;
use rdma_qp::exchange::tcp;
use rdma_qp::{Access, Timing};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

pub use args::Args;
use args::{Plan, Role};
use child::{Child, LISTENING};
use console::{Console, Narrator, Sink};
use end::LocalEnd;
use file::{Source, Target};
use interrupt::Interrupt;
use report::{Report, in_words, short};
use sender::Receiver;

use crate::address::resolve;
use crate::device;
use crate::failure::{Failure, told};
use crate::term::Harmless;

/// Runs the command.
///
/// # Errors
/// It did not arrive; nothing is left under its final name then.
pub fn run(args: Args) -> Result<(), Failure> {
    let plan = args.plan()?;
    let sink = match (plan.child, plan.json) {
        (true, _) => Sink::Parent,
        (false, true) => Sink::Errors,
        (false, false) => Sink::Output,
    };
    let end = if matches!(plan.role, Role::Receive { .. }) {
        "receiver"
    } else {
        "sender"
    };
    let console = Arc::new(Console::new(sink, end));
    listen_to_libraries(&console);
    let interrupt = Interrupt::watch().map_err(told)?;
    let copied = match &plan.role {
        Role::Both {
            source,
            destination,
        } => both(&plan, source, destination, interrupt, &console),
        Role::Send { source, address } => send(&plan, source, address, interrupt, &console),
        Role::Receive { address, place } => receive(&plan, address, place, interrupt, &console),
    };
    console.finish();
    let report = copied?;
    if plan.json {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if !plan.child {
        report
            .lines(console.style())
            .iter()
            .for_each(|line| console.line(line));
    }
    Ok(())
}

/// Turns what the libraries tell into steps on the console, and all of it into a log if `RUST_LOG` asks for one.
fn listen_to_libraries(console: &Arc<Console>) {
    let log = std::env::var_os("RUST_LOG").map(|_| {
        tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_filter(EnvFilter::from_default_env())
    });
    // Nothing else in this process could have set another one before.
    let _ = tracing_subscriber::registry()
        .with(Narrator(console.clone()))
        .with(log)
        .try_init();
}

/// Sends to a process of this machine, which it starts.
fn both(
    plan: &Plan,
    source: &Path,
    destination: &Path,
    interrupt: Interrupt,
    console: &Arc<Console>,
) -> Result<Report, Failure> {
    let source = Source::open(source)?;
    let target = Target::new(
        destination,
        source.name().unwrap_or(OsStr::new("")),
        plan.force,
    )
    .map_err(Failure::Told)?;
    if source.has(&target.path) {
        let what = if source.tree.is_some() {
            "is in the source"
        } else {
            "is the source"
        };
        return Err(Failure::told(format!(
            "{} {what} itself: choose another destination",
            target.path.display()
        )));
    }
    let tree = source.tree.is_some();
    target.check(tree).map_err(Failure::Told)?;
    let end = LocalEnd::open(&plan.device, plan.timing, Access::empty())?;
    introduce(
        plan,
        &source,
        &target.path.display().to_string(),
        &end,
        console,
    );
    let secret = child::new_secret()?;
    let child = Child::start(&plan.child_options(), destination, &secret, console)?;
    let to = Receiver {
        address: child.address.clone(),
        secret,
    };
    sender::send(plan, source, end, &to, interrupt, console)
        .map_err(|failure| child.explain(failure))
}

/// Sends to a receiver that waits.
fn send(
    plan: &Plan,
    source: &Path,
    address: &str,
    interrupt: Interrupt,
    console: &Console,
) -> Result<Report, Failure> {
    let source = Source::open(source)?;
    let end = LocalEnd::open(&plan.device, plan.timing, Access::empty())?;
    introduce(plan, &source, address, &end, console);
    let to = Receiver {
        address: address.to_owned(),
        secret: String::new(),
    };
    sender::send(plan, source, end, &to, interrupt, console)
}

/// Receives from whoever comes.
fn receive(
    plan: &Plan,
    address: &str,
    place: &Path,
    interrupt: Interrupt,
    console: &Console,
) -> Result<Report, Failure> {
    if !plan.child && !place.is_dir() {
        let cure = "give the directory to receive into";
        return Err(Failure::told(format!(
            "{} is not a directory: {cure}",
            place.display()
        )));
    }
    let end = LocalEnd::open(&plan.device, plan.timing, Access::REMOTE_WRITE)?;
    let listener = tcp::listen(&*resolve(address)?).map_err(told)?;
    let listening = listener.local_addr().map_err(told)?;
    if plan.child {
        console.line(format_args!("{LISTENING}{listening}"));
    } else {
        let style = console.style();
        console.line(format_args!(
            "{LISTENING}{} for one file or directory into {}",
            style.bold(listening),
            Harmless(place.display())
        ));
        describe(plan, &end, console);
    }
    let secret = if plan.child {
        child::given_secret()?
    } else {
        String::new()
    };
    receiver::receive(plan, listener, place, &secret, end, interrupt, console)
}

/// Says what is about to happen.
fn introduce(plan: &Plan, source: &Source, destination: &str, end: &LocalEnd, console: &Console) {
    let style = console.style();
    let name = source
        .name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let size = BinaryBytes(source.size);
    console.line(format_args!(
        "{} ({size}) → {}",
        style.bold(Harmless(name)),
        style.bold(Harmless(destination))
    ));
    if let Some((_, counts)) = source.tree {
        console.line(style.dim(format!("  {}", in_words(counts))));
    }
    describe(plan, end, console);
}

/// Says what this end is like, and when it gives up.
fn describe(plan: &Plan, end: &LocalEnd, console: &Console) {
    let style = console.style();
    let device = format!("  by {}/{}, GID {}", end.device, end.gid.port, end.gid);
    console.line(style.dim(device));
    console.line(style.dim(format!("  retry budget {}", budget(&plan.timing))));
    if let Some(faults) = &end.faults {
        for line in device::shown(faults) {
            console.line(style.dim(line));
        }
    }
}

/// The retry budget, and how it comes about.
fn budget(timing: &Timing) -> String {
    let (count, exponent) = (timing.retry_cnt.get(), timing.timeout.code());
    match timing.budget() {
        Some(budget) => format!(
            "{} = ({count} + 1) × 4.096 µs × 2^{exponent}",
            short(budget)
        ),
        None => "without end: a timeout of 0 never gives up".to_owned(),
    }
}
