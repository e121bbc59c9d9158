//! `qp ping` as a user runs it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn qp() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qp"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RDMA_SOFT_")) {
        command.env_remove(name);
    }
    command.arg("ping");
    command
}

fn ping(line: &str) -> Output {
    qp().args(line.split_whitespace()).output().unwrap()
}

/// Its status and its report.
fn report(line: &str) -> (Option<i32>, serde_json::Value) {
    let ended = ping(&format!("--json {line}"));
    let report = serde_json::from_slice(&ended.stdout)
        .unwrap_or_else(|error| panic!("{line}: {error}: {ended:?}"));
    (ended.status.code(), report)
}

/// Both ends in one process, over each transport, of the shortest ping and of several packets.
#[test]
fn every_transport() {
    for (transport, sizes) in [
        ("rc", &[8, 64, 100_000][..]),
        ("uc", &[8, 5000]),
        ("ud", &[8, 4096]),
        ("xrc", &[8, 5000]),
    ] {
        for size in sizes {
            // The machine may be busy: a datagram waits as long as it must.
            let (status, report) = report(&format!(
                "--transport {transport} -s {size} -c 20 -i 0 -W 20s --timeout 22"
            ));
            assert_eq!(status, Some(0), "{report}");
            let count = |name: &str| report[name].as_u64().unwrap();
            assert_eq!(
                (count("sent"), count("received"), count("late")),
                (20, 20, 0),
                "{report}"
            );
            assert_eq!(
                (&report["transport"], &report["size"]),
                (&transport.into(), &(*size).into())
            );
            assert_eq!(
                (&report["error"], &report["findings"]),
                (&serde_json::Value::Null, &serde_json::json!([])),
                "{report}"
            );
            let rtt = &report["rtt_us"];
            let times: Vec<_> = ["min", "p50", "p90", "p99", "max"]
                .iter()
                .map(|name| rtt[name].as_f64().unwrap())
                .collect();
            assert!(times[0] > 0.0 && times.is_sorted(), "{rtt}");
        }
    }
}

/// What RC mends, UD loses: it is counted, and the next goes on.
#[test]
fn losses() {
    let (status, report) = report("-c 50 -i 0 -W 20s --loss 10% --seed 3");
    assert_eq!(
        (status, &report["received"]),
        (Some(0), &50.into()),
        "{report}"
    );
    let (status, report) = self::report("--transport ud -c 50 -i 0 -W 100ms --loss 20% --seed 3");
    let received = report["received"].as_u64().unwrap();
    assert_eq!(status, Some(0));
    assert!(
        (1..50).contains(&received) && report["sent"] == 50,
        "{report}"
    );
}

/// Nothing comes through: RC fails, and both ends are looked at over the exchange; UC hears nothing.
#[test]
fn nothing_comes_through() {
    let (status, report) = report("-c 3 --loss 100% --timeout 10 --retry-cnt 1");
    assert_eq!(
        (status, &report["received"]),
        (Some(1), &0.into()),
        "{report}"
    );
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("IBV_WC_RETRY_EXC_ERR (12)"), "{error}");
    let codes: Vec<_> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["code"].as_str().unwrap())
        .collect();
    // With both dumps, what they exclude is not suspected.
    assert_eq!(
        codes,
        [
            "peer-gone",
            "no-route",
            "firewall",
            "mtu-path",
            "timeout-short"
        ]
    );
    let (status, report) =
        self::report("--transport xrc -c 3 --loss 100% --timeout 10 --retry-cnt 1");
    assert_eq!(status, Some(1), "{report}");
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .contains("IBV_WC_RETRY_EXC_ERR (12)"),
        "{report}"
    );
    let ended = ping("--transport uc -c 2 -i 0 -W 20ms --loss 100%");
    let out = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{out}");
    assert!(
        out.contains("no answer to seq=1 within 20ms")
            && out.contains("2 sent, 0 answered, 2 lost (100.0 %)"),
        "{out}"
    );
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

/// A timeout of 1.05 ms, and answers that take half a millisecond and often more: named, with the round trip that was measured
/// before it failed, or by the answers that came too late.
#[test]
fn a_timeout_below_the_round_trip() {
    let faults = "-c 100 -i 0 --delay 250us --jitter 8ms --seed 5 --retry-cnt 1";
    let (status, report) = report(&format!("{faults} --timeout 8"));
    assert_eq!(status, Some(1), "{report}");
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .contains("IBV_WC_RETRY_EXC_ERR"),
        "{report}"
    );
    let (status, report) = self::report(&format!("{faults} --timeout 16"));
    assert_eq!(
        (status, &report["received"], &report["error"]),
        (Some(0), &100.into(), &serde_json::Value::Null),
        "{report}"
    );
}

/// A process of its own that is ended with the test.
struct Listening(Child, String);

impl Listening {
    fn new(options: &[&str]) -> Listening {
        let mut child = qp()
            .args(["--listen", "127.0.0.1:0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        Listening(child, address)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two processes; the one that answers goes on for the next, of another transport, after one that talks nonsense.
#[test]
fn two_processes() {
    let end = Listening::new(&[]);
    let address = &end.1;
    let (status, first) = report(&format!("-c 5 -i 0 -W 20s {address}"));
    assert_eq!(
        (status, &first["received"]),
        (Some(0), &5.into()),
        "{first}"
    );
    let mut nonsense = std::net::TcpStream::connect(address).unwrap();
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(nonsense);
    let (status, second) = report(&format!("--transport ud -c 5 -i 0 -W 20s {address}"));
    assert_eq!(
        (status, &second["received"]),
        (Some(0), &5.into()),
        "{second}"
    );
    assert!(
        first["peer"].as_str().unwrap().starts_with("::ffff:127."),
        "{first}"
    );
    let mut once = Listening::new(&["--once"]);
    let ended = ping(&format!("-c 1 -W 20s {}", once.1));
    assert!(ended.status.success(), "{ended:?}");
    assert!(once.0.wait().unwrap().success());
}

/// The end that answers is killed meanwhile: that is said, and nothing else is blamed.
#[test]
fn the_other_end_dies() {
    let end = Listening::new(&[]);
    let asks = qp()
        .args([
            "--json",
            "-c",
            "0",
            "-i",
            "10ms",
            "-W",
            "20s",
            "--timeout",
            "12",
            &end.1,
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    drop(end);
    let ended = asks.wait_with_output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{report}");
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .contains("the other end is gone"),
        "{report}"
    );
    assert_eq!(report["findings"], serde_json::json!([]));
}

/// A time is a bound, however many pings are wanted.
#[test]
fn a_deadline_ends_it() {
    let (status, report) = report("-c 0 -i 10ms -w 1s");
    assert_eq!(status, Some(0), "{report}");
    assert!(report["sent"].as_u64().unwrap() >= 1);
}

/// An interruption is not kept waiting for an answer.
#[test]
fn an_interruption_ends_the_wait_for_an_answer() {
    let mut asks = qp()
        .args("--json --transport uc --loss 100% -W 300s".split(' '))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mask = 1 << (Signal::INT.as_raw() - 1);
    let begin = Instant::now();
    while status_mask(asks.id(), "SigCgt:") & mask == 0 {
        assert!(begin.elapsed().as_secs() < 60, "it has no handler");
        std::thread::sleep(Duration::from_millis(10));
    }
    // So it waits for the answer.
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&asks), Signal::INT).unwrap();
    let begin = Instant::now();
    while asks.try_wait().unwrap().is_none() {
        if begin.elapsed().as_secs() > 60 {
            asks.kill().unwrap();
            asks.wait().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = asks.wait_with_output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{report}");
    assert_eq!(
        (&report["sent"], &report["received"], &report["error"]),
        (&1.into(), &0.into(), &serde_json::Value::Null),
        "{report}"
    );
}

/// A mask of signals of proc(5).
fn status_mask(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap())
}

/// What is refused says what to change.
#[test]
fn refusals() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = silent.local_addr().unwrap();
    drop(silent);
    for (line, status, word) in [
        ("--transport ud -s 5000", 2, "--size 4096 or less"),
        ("-s 4", 2, "8"),
        ("--transport tcp", 2, "xrc"),
        ("-i 5", 2, "unit"),
        ("--listen 127.0.0.1:0 127.0.0.1:1", 2, "cannot be used"),
        ("--listen 127.0.0.1:0 --once --json", 2, "cannot be used"),
        ("--listen 127.0.0.1:0 -c 3", 2, "cannot be used"),
        (&format!("{nobody}"), 1, "cannot connect to"),
        ("--device no-such-device", 1, "no-such-device"),
    ] {
        let ended = ping(line);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(status), "{line}: {said}");
        assert!(said.contains(word), "{line}: {said}");
    }
}
