//! A program under observation: it runs on the software device, which writes what it sees.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rdma_qp::doctor::Record;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;
use crate::run::{self, SoftDevice};

/// A program that has ended.
pub struct Ended {
    /// How, in a sentence.
    pub status: String,
    /// It ended by itself, with status 0.
    pub well: bool,
    /// What was recorded of it, of its children, and of what else wrote there.
    pub records: Vec<Record>,
    /// Processes that are no more and did not end by themselves, nor because this command ended them.
    pub killed: Vec<u32>,
    /// Records of former runs in the directory, which were not looked at.
    pub left_out: usize,
}

/// A directory that is removed in the end.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How long a program has for its end before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Runs a program and waits for its end; after `limit` it is ended. What it prints goes to standard error if it shall be
/// `apart` from this command's own output.
///
/// # Errors
/// It cannot be run, or what was recorded cannot be read.
pub fn run(
    device: &SoftDevice,
    command: &[OsString],
    kept: Option<&Path>,
    limit: Option<Duration>,
    apart: bool,
) -> Result<Ended, Failure> {
    let cannot = |what: &str, path: &Path, error: std::io::Error| {
        Failure::CouldNotLook(format!("cannot {what} {}: {error}", path.display()))
    };
    let (dir, _temporary) = match kept {
        Some(dir) => (dir.to_owned(), None),
        None => {
            let dir = std::env::temp_dir().join(format!("qp-doctor-{}", std::process::id()));
            (dir.clone(), Some(Temporary(dir)))
        }
    };
    std::fs::create_dir_all(&dir).map_err(|error| cannot("make the directory", &dir, error))?;
    let dir = std::path::absolute(&dir).map_err(|error| cannot("find", &dir, error))?;
    // The program gets them too, from the terminal; it decides what they mean, and then it is looked at.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, interrupted.clone())
            .map_err(|error| Failure::CouldNotLook(format!("cannot watch signals: {error}")))?;
    }
    let mut prepared = run::prepare(device, command, &[("RDMA_SOFT_RECORD", dir.as_os_str())])
        .map_err(|failure| match failure {
            Failure::Told(why) | Failure::NoProgram(why) | Failure::CannotRun(why) => {
                Failure::CouldNotLook(why)
            }
            other => other,
        })?;
    if apart {
        prepared.stdout(std::io::stderr());
    }
    let name = command[0].to_string_lossy().into_owned();
    let begin = SystemTime::now();
    let mut child = prepared
        .spawn()
        .map_err(|error| cannot("run", Path::new(&command[0]), error))?;
    let (status, ended_for) = wait(&mut child, limit, &interrupted)
        .map_err(|error| Failure::CouldNotLook(format!("cannot wait for {name}: {error}")))?;
    // What the other of two programs that talk has met by now stands in its record soon.
    if kept.is_some() && records(&dir)?.iter().any(|record| !is_gone(record)) {
        std::thread::sleep(EVERY / 2);
    }
    let (records, left_out) = records_of_this_run(&dir, begin)?;
    if records.is_empty() {
        return Err(Failure::CouldNotLook(format!(
            "{name} {}, and never asked for RDMA devices (ibv_get_device_list): there is nothing to look at",
            told(status, ended_for)
        )));
    }
    let killed = match ended_for {
        Some(_) => Vec::new(),
        None => killed(&records),
    };
    Ok(Ended {
        killed,
        left_out,
        status: format!("{name} {}", told(status, ended_for)),
        well: status.success() && ended_for.is_none(),
        records,
    })
}

/// Why we ended a program.
#[derive(Clone, Copy)]
enum EndedFor {
    /// It had its time, which was that.
    Late(Duration),
    /// The user had enough.
    Interrupted,
}

/// Waits for its end. Says how it ended, and why we ended it, if we did.
fn wait(
    child: &mut Child,
    limit: Option<Duration>,
    interrupted: &AtomicBool,
) -> std::io::Result<(ExitStatus, Option<EndedFor>)> {
    let start = Instant::now();
    let mut told: Option<(Instant, EndedFor)> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, told.map(|(_, why)| why)));
        }
        let late = limit.filter(|limit| start.elapsed() > *limit);
        let interrupted = interrupted.load(Ordering::Relaxed);
        let why = match late {
            Some(limit) => Some(EndedFor::Late(limit)),
            None => interrupted.then_some(EndedFor::Interrupted),
        };
        match (told, why) {
            (None, Some(why)) => {
                let pid = rustix::process::Pid::from_child(child);
                // It may be gone in this very moment.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                told = Some((Instant::now(), why));
            }
            (Some((since, _)), _) if since.elapsed() > GRACE => {
                let _ = child.kill();
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How it ended.
fn told(status: ExitStatus, ended_for: Option<EndedFor>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (ended_for, status.code(), status.signal()) {
        (Some(EndedFor::Late(limit)), ..) => format!("did not end within {limit:?} and was ended"),
        (Some(EndedFor::Interrupted), ..) => "was interrupted".to_owned(),
        (_, Some(code), _) => format!("ended with status {code}"),
        (_, _, Some(signal)) => format!("was killed by signal {signal}"),
        _ => "ended".to_owned(),
    }
}

/// The records of a directory.
///
/// # Errors
/// It cannot be read, or one of them cannot.
pub fn records(dir: &Path) -> Result<Vec<Record>, Failure> {
    files(dir)?.iter().map(|file| read(file)).collect()
}

/// The records of a directory without those of former runs, and how many these are: of processes that were gone when this one
/// began.
fn records_of_this_run(dir: &Path, begin: SystemTime) -> Result<(Vec<Record>, usize), Failure> {
    let (mut records, mut left_out) = (Vec::new(), 0);
    for file in files(dir)? {
        let record = read(&file)?;
        let written = std::fs::metadata(&file).and_then(|about| about.modified());
        if is_gone(&record) && written.is_ok_and(|written| written + EVERY < begin) {
            left_out += 1;
        } else {
            records.push(record);
        }
    }
    Ok((records, left_out))
}

/// Longer than a record goes without being written while its process lives.
const EVERY: Duration = Duration::from_secs(1);

fn cannot_read(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::CouldNotLook(format!("cannot read {}: {error}", path.display()))
}

/// The files of a directory that are records, in order.
fn files(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(|error| cannot_read(dir, &error))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_record)
        .collect();
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<Record, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| cannot_read(file, &error))?;
    Record::from_json(&text).map_err(|error| cannot_read(file, &error))
}

/// Whether the process of a record is no more; a dump is of none that is known.
fn is_gone(record: &Record) -> bool {
    record.pid != 0 && !Path::new("/proc").join(record.pid.to_string()).exists()
}

/// Processes that are no more, and whose records do not say that they ended by themselves.
pub fn killed(records: &[Record]) -> Vec<u32> {
    let killed = records
        .iter()
        .filter(|record| is_gone(record) && !record.ended);
    killed.map(|record| record.pid).collect()
}
