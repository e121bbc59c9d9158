//! One of the four processes.

use std::error::Error;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rdma_qp::Device;

use crate::link::Link;
use crate::{WORKERS, Worker};

/// What the threads of a worker share. They talk to the parent by lines on the standard output.
pub struct Common {
    pub who: Worker,
    pub device: Device,
    pub stop: AtomicBool,
    /// Requests that ended.
    pub done: AtomicU64,
}

/// Tells the parent.
pub fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    // Without a parent there is nobody to tell, and the end of the input stops this process.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

impl Common {
    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Something is wrong.
    pub fn wrong(&self, what: impl std::fmt::Display) {
        tell(&format!("wrong {}", what.to_string().replace('\n', " ")));
    }
}

/// Memory that is resident, in KiB, and open descriptors, as the system counts them.
fn usage() -> std::io::Result<(u64, usize)> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    // One of them is that of the folder itself.
    let open = std::fs::read_dir("/proc/self/fd")?.count() - 1;
    Ok((resident.unwrap_or(0), open))
}

pub fn run(who: &Worker) -> Result<ExitCode, Box<dyn Error>> {
    let common = Common {
        who: who.clone(),
        device: Device::open_index(rdma_soft::verbs(), 0)?,
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
    };
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        scope.spawn(|| {
            // A line, or the end of the parent.
            let _ = std::io::stdin().lock().read_line(&mut String::new());
            common.stop.store(true, Relaxed);
        });
        let mut links = Vec::new();
        for peer in (0..WORKERS).filter(|peer| *peer != who.slot) {
            let common = &common;
            links.push(scope.spawn(move || {
                if let Err(error) = Link::new(common, peer).and_then(Link::run) {
                    common.wrong(format_args!("the link to {peer} ended: {error}"));
                }
            }));
        }
        while !links.iter().all(|link| link.is_finished()) {
            let (resident, open) = usage()?;
            let done = common.done.load(Relaxed);
            tell(&format!("use {resident} {open} {done}"));
            // What drains leave for who reads events: it would pile up.
            let until = std::time::Instant::now() + Duration::from_millis(250);
            while common.device.next_event(until)?.is_some() {}
        }
        Ok(())
    })?;
    tell("end");
    Ok(ExitCode::SUCCESS)
}
