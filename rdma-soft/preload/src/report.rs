//! What is told at the end of a process: the counters of its devices, where `RDMA_SOFT_COUNTERS` names a file.
#![allow(unsafe_code)]

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rdma_soft::{Profile, Snapshot};

use crate::{devices, ending};

/// The process that will report, and where to.
static REPORT: Mutex<Option<(u32, PathBuf)>> = Mutex::new(None);

/// Makes this process report when it ends, if that is wanted. A child that was forked reports once it asks for devices itself.
pub(crate) fn at_exit() {
    fn tell() {
        let mut wanted = REPORT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((pid, path)) = wanted.take_if(|(pid, _)| *pid == std::process::id()) {
            write(pid, &path);
        }
    }
    extern "C" fn report() {
        // A child that was forked has nothing to tell.
        let of_another = |wanted: &Option<(u32, PathBuf)>| {
            (wanted.as_ref()).is_none_or(|(pid, _)| *pid != std::process::id())
        };
        if REPORT.try_lock().is_ok_and(|wanted| of_another(&wanted)) {
            return;
        }
        if !ending::do_last(tell) {
            crate::say(format_args!(
                "the counters cannot be read: the process ends within a call of the device"
            ));
        }
    }
    let mut wanted = REPORT.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if wanted.as_ref().is_some_and(|(known, _)| *known == pid) {
        return;
    }
    // What is wrong with a profile is told where devices are listed.
    if let Ok(Profile {
        counters: Some(path),
        ..
    }) = Profile::from_env()
    {
        // SAFETY: a function of this library, which is preloaded and never unloaded.
        if unsafe { libc::atexit(report) } == 0 {
            *wanted = Some((pid, path));
        }
    }
}

/// Appends one line for each device that was used, in one write each: several processes may share the file.
fn write(pid: u32, path: &Path) {
    let program = std::fs::read("/proc/self/comm").unwrap_or_default();
    let program = String::from_utf8_lossy(&program);
    let names = devices::names();
    let lines = names.iter().filter_map(|device| {
        let counters = rdma_soft::counters(device)?;
        Some(line(program.trim_end(), pid, device, &counters))
    });
    for line in lines {
        ending::step();
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            crate::say(format_args!(
                "cannot write the counters to {}: {error}",
                path.display()
            ));
        }
    }
}

/// A JSON object and the end of the line.
fn line(program: &str, pid: u32, device: &str, all: &Snapshot) -> String {
    let (program, device) = (quoted(program), quoted(device));
    let mut line = format!("{{\"program\":{program},\"pid\":{pid},\"device\":{device}");
    let mut group = |name: &str, counters: &mut dyn Iterator<Item = (&'static str, u64)>| {
        let members: Vec<_> = counters
            .map(|(name, value)| format!("{}:{value}", quoted(name)))
            .collect();
        let _ = write!(line, ",{}:{{{}}}", quoted(name), members.join(","));
    };
    group("counters", &mut all.engine.all());
    group("link", &mut all.link.all());
    if let Some(faults) = all.faults {
        group("faults", &mut faults.all().chain([("held", all.held)]));
    }
    line.push_str("}\n");
    line
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
