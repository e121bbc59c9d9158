//! Running `qp lat` and `qp bw`.

use std::io::{BufRead, BufReader, Read as _};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub fn qp() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qp"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RDMA_SOFT_")) {
        command.env_remove(name);
    }
    command
}

pub fn run(line: &str) -> Output {
    qp().args(line.split_whitespace()).output().unwrap()
}

/// Its status and its report. The machine may be busy: nothing is given up early.
pub fn report(line: &str) -> (Option<i32>, Value) {
    let patience = if line.contains("--timeout") {
        ""
    } else {
        "--timeout 22"
    };
    let ended = run(&format!("{line} --json {patience}"));
    let report = serde_json::from_slice(&ended.stdout)
        .unwrap_or_else(|error| panic!("{line}: {error}: {ended:?}"));
    (ended.status.code(), report)
}

/// Its status, in a time that is enough for whatever ends at all.
pub fn ends_within(command: &mut Command, line: &str) -> ExitStatus {
    let mut child = command.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{line}: it hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn number(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} of {value}"))
}

/// A process of its own that asks, and is ended with the test, even if it is stopped.
pub struct Asking(pub Child);

impl Asking {
    pub fn new(line: &str) -> Asking {
        let mut command = qp();
        command.args(line.split(' ')).arg("--json");
        Asking(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits until it has ended; gives its report.
    pub fn report(&mut self) -> Value {
        let mut text = String::new();
        let output = self.0.stdout.as_mut().unwrap();
        output.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process of its own that answers, and is ended with the test.
pub struct Listening(pub Child, pub String);

impl Listening {
    pub fn new(options: &[&str]) -> Listening {
        let mut child = qp()
            .args(["bw", "--listen", "127.0.0.1:0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap();
        let address = address.to_owned();
        Listening(child, address)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
