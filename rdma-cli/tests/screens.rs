//! Every command as it is seen: no line is wider than a terminal of 80 columns, and what machines read is JSON.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Commands with what they need to end soon; FILE and COPY are paths. All of them succeed.
const SCREENS: &[&str] = &[
    "devices",
    "states",
    "states --transport xrc --transport raw_packet",
    "plan --nodes 1 --per-node 1",
    "plan --nodes 4000 --per-node 100 --intra-node shm --buffer 8K",
    "ping -c 3 -i 0 --timeout 22",
    "ping -c 3 -i 0 --transport xrc -s 1M --timeout 22",
    "lat -n 20 -s 2,1M --timeout 22",
    "lat -n 20 -c UD --op send --loss 5% --seed 3 -W 1ms",
    "bw -n 20 -s 2,1M -b -q 16 --timeout 22",
    "bw -n 20 -s 64 --loss 1% --duplicate 1% --reorder 1% --corrupt 0.1% --delay 1us --jitter 50us --seed 4294967295 --timeout 16",
    "doctor env",
    "doctor abi",
    "doctor path --remote 127.0.0.1",
    "watch -w 1ms",
    "copy FILE COPY",
];

fn qp() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qp"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RDMA_SOFT_")) {
        command.env_remove(name);
    }
    command
}

/// Runs a line of [`SCREENS`] with more options, in a directory that is removed afterwards.
fn run(line: &str, more: &[&str]) -> Output {
    let name = format!("screens-{}-{}", std::process::id(), more.len());
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("FILE"), [7; 5000]).unwrap();
    let words = line.split_whitespace().chain(more.iter().copied());
    let ended = qp().args(words).current_dir(&dir).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    ended
}

#[test]
fn nothing_is_wider_than_80_columns() {
    for line in SCREENS {
        let ended = run(line, &[]);
        assert!(ended.status.success(), "{line}: {ended:?}");
        let text = String::from_utf8(ended.stdout).unwrap();
        assert!(!text.is_empty(), "{line}");
        let wide: Vec<_> = (text.lines().filter(|line| line.chars().count() > 80)).collect();
        // A network interface of this machine may have a long name, and libibverbs lie deep; neither is ours.
        assert!(wide.is_empty(), "{line}: {wide:#?}");
        assert!(
            text.lines().all(|line| line == line.trim_end()),
            "blanks at the end of a line: {line}: {text}"
        );
    }
}

#[test]
fn what_machines_read_is_json() {
    for line in SCREENS {
        let ended = run(line, &["--json"]);
        assert!(ended.status.success(), "{line}: {ended:?}");
        let text = String::from_utf8(ended.stdout).unwrap();
        let documents: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&text)
            .into_iter()
            .collect();
        let documents = documents.unwrap_or_else(|error| panic!("{line}: {error}: {text}"));
        let one = !line.starts_with("watch");
        assert!(
            if one {
                documents.len() == 1
            } else {
                !documents.is_empty()
            },
            "{line}: {text}"
        );
    }
}

/// Commands that fail before there is anything to print.
const FAILURES: &[&str] = &[
    "doctor",
    "doctor no-such-file",
    "doctor explain hello",
    "doctor path --remote 10.0.0.1 --device no-such-device",
    "plan --nodes 0 --per-node 1",
    "watch no-such-device",
    "watch -i 0",
];

#[test]
fn what_machines_are_told_of_a_failure_is_json() {
    for line in FAILURES {
        let words: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let ended = qp().args(words).output().unwrap();
        assert!(!ended.status.success(), "{line}: {ended:?}");
        let told: Value = serde_json::from_slice(&ended.stdout)
            .unwrap_or_else(|error| panic!("{line}: {error}: {ended:?}"));
        let people = String::from_utf8(ended.stderr).unwrap();
        // It is the same that people are told.
        let told = told["error"].as_str().unwrap();
        assert!(
            people.contains(told.lines().next().unwrap()),
            "{line}: {told}: {people}"
        );
    }
}

/// `qp ping | head -1`: somebody has read enough.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    for line in SCREENS
        .iter()
        .chain(&["ping -c 3 -i 50ms", "doctor explain EINVAL", "man ping"])
    {
        if line.starts_with("copy") {
            // It goes on: `tests/copy` has that.
            continue;
        }
        let mut child = qp()
            .args(line.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        assert!(
            ended.status.success() && ended.stderr.is_empty(),
            "{line}: {ended:?}"
        );
    }
}

/// Whether that process has a handler for SIGINT: the mask `SigCgt` of proc(5).
fn hears_interruptions(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (Signal::INT.as_raw() - 1) != 0)
}

/// Runs the command, and interrupts it as soon as it hears that.
fn interrupted(arguments: &[&str]) -> Output {
    let mut child = qp()
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !hears_interruptions(child.id()) {
        assert!(Instant::now() < until, "it has no handler");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// An interruption before there is any result is told by the status, and in the report.
#[test]
fn an_interrupted_measurement_says_so() {
    let ended = interrupted(&["bw", "-D", "60", "--json"]);
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(
        (&report["interrupted"], &report["results"]),
        (&true.into(), &Value::Array(Vec::new()))
    );
}
