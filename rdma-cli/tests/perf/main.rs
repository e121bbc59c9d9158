//! `qp lat` and `qp bw` as a user runs them.

mod plots;
mod run;

use std::io::Read;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use run::{Asking, Listening, ends_within, number, qp, report, run};

/// What each transport has: the table of ibv_post_send(3).
const OPERATIONS: [(&str, &[&str]); 4] = [
    ("rc", &["send", "write", "read", "cas", "faa"]),
    ("uc", &["send", "write"]),
    ("ud", &["send"]),
    ("xrc", &["send", "write", "read", "cas", "faa"]),
];

/// Both ends in one process, each operation over each transport that has it, and every byte compared.
#[test]
fn everything_arrives_as_it_was_sent() {
    for (transport, ops) in OPERATIONS {
        for op in ops {
            for command in ["lat", "bw"] {
                let size = match *op {
                    "cas" | "faa" => "",
                    _ => "-s 1,64,3000",
                };
                let line =
                    format!("{command} -c {transport} --op {op} {size} -n 40 --check -W 20s");
                let (status, report) = report(&line);
                assert_eq!(
                    (status, &report["error"]),
                    (Some(0), &().into()),
                    "{line}: {report}"
                );
                let results = report["results"].as_array().unwrap();
                assert_eq!(results.len(), if size.is_empty() { 1 } else { 3 }, "{line}");
                for result in results {
                    let (count, lost) = (number(result, "count"), number(result, "lost"));
                    // What a busy machine drops of datagrams is told.
                    assert_eq!(count + lost, 40, "{line}: {result}");
                    assert!(lost == 0 || transport == "ud", "{line}: {result}");
                }
            }
        }
    }
}

/// Other pairs are refused, with what would do.
#[test]
fn what_a_transport_does_not_have_is_refused() {
    for (transport, ops) in OPERATIONS {
        for op in ["send", "write", "read", "cas", "faa"] {
            if ops.contains(&op) {
                continue;
            }
            for command in ["lat", "bw"] {
                let ended = run(&format!("{command} -c {transport} --op {op}"));
                let said = String::from_utf8(ended.stderr).unwrap();
                assert_eq!(ended.status.code(), Some(2), "{transport} {op}: {said}");
                let instead = format!("give --op {}, or --transport rc", ops.join(" or "));
                assert!(said.contains(&instead), "{transport} {op}: {said}");
            }
        }
    }
}

/// Many Queue Pairs, lists, both ways, inline, asleep: all that is asked for arrives.
#[test]
fn ways_to_send() {
    for line in [
        "bw -q 4 -l 8 -n 100 -s 64",
        "bw -q 3 -b --op write -n 50 -s 5000 --check",
        "bw -b -c xrc -q 2 -n 50 -s 64 -Q 1 -t 4 -r 16",
        "bw --op read -b -n 50 -s 100 -t 8 --check",
        "bw -c uc --op write -I 64 -s 64 -n 100 -l 3 -Q 7",
        "bw --op faa -q 2 -b -n 60",
        "bw -e -n 100 -s 64 -q 2",
        "lat -e -n 20 -s 64",
        "lat -I 32 -s 32 -n 20 --op write -m 1024",
    ] {
        let (status, report) = report(line);
        let result = &report["results"][0];
        assert_eq!(
            (status, &report["error"]),
            (Some(0), &().into()),
            "{line}: {report}"
        );
        let word = |name: &str| -> u64 {
            let words: Vec<_> = line.split(' ').collect();
            let place = words.iter().position(|word| *word == name);
            place.map_or(1, |at| words[at + 1].parse().unwrap())
        };
        let ways = if line.contains("-b") { 2 } else { 1 };
        let wanted = word("-n") * word("-q") * ways;
        assert_eq!(
            number(result, "count") + number(result, "lost"),
            wanted,
            "{line}: {report}"
        );
    }
}

/// A list, and what has no completion before it, may together be more than the depth: it goes on all the same.
#[test]
fn lists_and_completions_share_the_depth() {
    for line in [
        "-Q 100 -l 64",
        "-t 14 -l 14",
        "-t 8 -l 5 -Q 8 -c uc",
        "-t 8 -l 8 -Q 8 -q 2 -b",
    ] {
        for limit in ["-n 500", "-D 50ms"] {
            let line = format!("bw -s 64 {limit} {line} --json");
            let status = ends_within(qp().args(line.split(' ')).stdout(Stdio::null()), &line);
            assert!(status.success(), "{line}: {status}");
        }
    }
}

#[test]
fn figures_of_a_report() {
    let (_, half) = report("lat -s 8 -n 200");
    let (_, full) = report("lat --op read -s 8 -n 200");
    assert_eq!(
        (&half["trip"], &full["trip"]),
        (&"half".into(), &"full".into())
    );
    for report in [&half, &full] {
        assert_eq!(
            (&report["version"], &report["command"]),
            (&1.into(), &"lat".into())
        );
        let us = &report["results"][0]["us"];
        let times: Vec<_> = ["min", "p50", "p90", "p99", "p99_9", "max"]
            .iter()
            .map(|name| us[name].as_f64().unwrap())
            .collect();
        assert!(times[0] > 0.0 && times.is_sorted(), "{us}");
        let avg = us["avg"].as_f64().unwrap();
        assert!((times[0]..=times[5]).contains(&avg), "{us}");
    }
    let (_, bw) = report("bw -s 1000 -n 300 -m 256");
    let result = &bw["results"][0];
    let figure = |name: &str| result[name].as_f64().unwrap();
    assert_eq!(bw["path_mtu"], 256);
    assert_eq!(figure("count"), 300.0);
    let rate = 300.0 / figure("seconds");
    assert!(
        (figure("messages_per_second") / rate - 1.0).abs() < 1e-9,
        "{result}"
    );
    assert!(
        (figure("bytes_per_second") / rate / 1000.0 - 1.0).abs() < 1e-9,
        "{result}"
    );
    assert!(
        figure("peak_bytes_per_second") >= figure("bytes_per_second"),
        "{result}"
    );
}

/// What UC and UD lose is counted, whatever comes; RC loses nothing.
#[test]
fn losses_are_counted() {
    for (line, lossy) in [
        ("bw -c uc -n 500 -s 64 --loss 10%", true),
        (
            "bw -c uc --op write -n 500 -s 64 --loss 10% --duplicate 10% --check",
            true,
        ),
        (
            "bw -c ud -n 500 -s 64 --loss 10% --duplicate 20% --reorder 10%",
            true,
        ),
        ("lat -c ud -n 50 -s 64 --loss 20% -W 200ms", true),
        ("lat -c uc --op write -n 50 -s 64 --loss 20% -W 200ms", true),
        ("bw -c rc -n 300 -s 64 --loss 5% --timeout 14", false),
    ] {
        let (status, report) = report(&format!("{line} --seed 3"));
        let result = &report["results"][0];
        let (count, lost) = (number(result, "count"), number(result, "lost"));
        let wanted = line
            .split(' ')
            .skip_while(|word| *word != "-n")
            .nth(1)
            .unwrap();
        assert_eq!(status, Some(0), "{line}: {report}");
        assert_eq!(
            count + lost,
            wanted.parse::<u64>().unwrap(),
            "{line}: {report}"
        );
        assert!(count > 0 && (lost > 0) == lossy, "{line}: {report}");
    }
}

/// Two processes; one that answers does so for whoever comes, whatever the command.
#[test]
fn two_processes() {
    let end = Listening::new(&[]);
    let address = &end.1;
    for line in [
        format!("lat -s 64 -n 20 {address}"),
        format!("bw -s 64,1M -n 20 --check {address}"),
        format!("bw -D 300ms -b -c ud {address}"),
        format!("ping -c 2 -i 0 -W 20s {address}"),
    ] {
        let (status, report) = report(&line);
        assert_eq!(
            (status, &report["error"]),
            (Some(0), &().into()),
            "{line}: {report}"
        );
        assert!(
            report["peer"].as_str().unwrap().starts_with("::ffff:127."),
            "{report}"
        );
    }
    let mut once = Listening::new(&["--once"]);
    assert!(run(&format!("lat -n 5 {}", once.1)).status.success());
    assert!(once.0.wait().unwrap().success());
}

/// The end that answers is killed meanwhile: that is said, and nothing else is blamed.
#[test]
fn a_killed_peer_is_named() {
    for command in ["lat --op write", "bw", "bw -c ud", "bw --op read -q 2"] {
        let end = Listening::new(&[]);
        let asks = qp()
            .args(command.split(' '))
            .args(["--json", "-D", "60", "--timeout", "12", &end.1])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_secs(1));
        drop(end);
        let ended = asks.wait_with_output().unwrap();
        let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{command}: {report}");
        let error = report["error"].as_str().unwrap();
        assert!(
            error.contains("the other end is gone"),
            "{command}: {report}"
        );
    }
}

/// An end that asks and is stopped is given up, and the next one is answered; one that goes on later is told.
#[test]
fn a_stopped_peer_keeps_nobody_waiting_for_ever() {
    let lines = [
        "bw -D 600 -c ud -b",
        "lat -D 600 --op read",
        "ping -c 0 --transport uc",
    ];
    let ends: Vec<_> = (lines.into_iter())
        .map(|line| {
            let end = Listening::new(&[]);
            let asks = Asking::new(&format!("{line} --timeout 22 {}", end.1));
            (line, asks, end)
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    for (_, asks, _) in &ends {
        asks.signal(Signal::STOP);
    }
    for (line, mut asks, end) in ends {
        let until = Instant::now() + Duration::from_secs(90);
        while !run(&format!("ping -c 1 -W 20s {}", end.1)).status.success() {
            assert!(Instant::now() < until, "{line}: nobody else is answered");
        }
        asks.signal(Signal::CONT);
        let report = asks.report();
        assert_eq!(
            report["error"], "at the other end: nothing was heard of the end that asks for 10s",
            "{line}: {report}"
        );
    }
}

/// One that has little to say is no silent one.
#[test]
fn a_slow_peer_is_waited_for() {
    let lines = [
        "ping -c 2 -i 12s -W 20s",
        "ping -c 1 -W 12s --transport uc --loss 100%",
        "lat -e -D 12 --op read",
    ];
    let asking = lines.map(|line| {
        let end = Listening::new(&["--once"]);
        let line = format!("{line} {}", end.1);
        std::thread::spawn(move || (report(&line).1, line, end))
    });
    for asking in asking {
        let (report, line, mut end) = asking.join().unwrap();
        assert_eq!(report["error"], Value::Null, "{line}: {report}");
        assert!(end.0.wait().unwrap().success(), "{line}");
    }
}

/// A Queue Pair that fails is explained as `qp ping` does it, at both ends.
#[test]
fn a_failed_queue_pair_is_explained_at_both_ends() {
    let mut end = Listening::new(&["--once"]);
    let options = "bw -n 10 --loss 100% --timeout 10 --retry-cnt 1";
    let (status, report) = report(&format!("{options} {}", end.1));
    assert_eq!(status, Some(1), "{report}");
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("IBV_WC_RETRY_EXC_ERR (12)"), "{error}");
    let findings = report["findings"].as_array().unwrap();
    let codes: Vec<_> = findings.iter().map(|finding| &finding["code"]).collect();
    assert!(codes.contains(&&"peer-gone".into()), "{codes:?}");
    let mut there = String::new();
    let output = end.0.stdout.as_mut().unwrap();
    output.read_to_string(&mut there).unwrap();
    assert_eq!(end.0.wait().unwrap().code(), Some(1), "{there}");
    let words = there.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        "at the other end:",
        "IBV_WC_RETRY_EXC_ERR (12)",
        "peer-gone",
    ] {
        assert!(words.contains(said), "{said}: {there}");
    }
}

/// Screens of 80 columns.
#[test]
fn nothing_is_wider_than_a_screen() {
    for line in [
        "lat --help",
        "bw --help",
        "lat -n 20 -s 8,4M",
        "lat -c ud -n 20",
        "bw -c uc -b -q 2 -n 50 -s 1,1M",
    ] {
        let ended = run(line);
        let out = String::from_utf8(ended.stdout).unwrap();
        assert!(ended.status.success(), "{line}");
        for line in out.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

/// Whatever goes wrong, machines get one document, and the status tells.
#[test]
fn whatever_goes_wrong_is_one_document() {
    let dir = std::env::temp_dir().display().to_string();
    for (line, status, word) in [
        ("lat -c uc --op read", 2, "UC has no READ"),
        ("lat -c ud -s 9000", 2, "--size"),
        ("lat --timeout 99", 2, "99"),
        ("bw --seed 3", 2, "--seed without any fault"),
        ("bw -d no-such-device --loss 1%", 2, "leave out --device"),
        ("bw -d no-such-device", 1, "no-such-device"),
        ("bw -t 8 -l 9", 2, "--post-list 9"),
        ("lat 127.0.0.1:1", 1, "cannot connect to"),
        ("lat -n 10 --plot /dev/full", 1, "cannot write the plot"),
        (
            &format!("bw -n 10 --plot {dir}"),
            1,
            "cannot write the plot",
        ),
        (
            "bw -n 10 --loss 100% --timeout 8 --retry-cnt 1",
            1,
            "IBV_WC_RETRY_EXC_ERR",
        ),
        ("ping --timeout 99", 2, "99"),
        ("ping --seed 3", 2, "--seed without any fault"),
        ("ping --transport ud -s 5000", 2, "--size"),
        ("ping -d no-such-device", 1, "no-such-device"),
        ("ping 127.0.0.1:1", 1, "cannot connect to"),
    ] {
        let ended = run(&format!("{line} --json"));
        let document: Value = serde_json::from_slice(&ended.stdout)
            .unwrap_or_else(|error| panic!("{line}: {error}: {ended:?}"));
        let error = document["error"].as_str().unwrap();
        assert!(error.contains(word), "{line}: {document}");
        assert_eq!(ended.status.code(), Some(status), "{line}: {document}");
    }
    // What was measured is not lost with the picture of it.
    let (_, report) = report("lat -n 10 --plot /dev/full");
    assert_eq!(number(&report["results"][0], "count"), 10, "{report}");
}

/// What is refused says what to change.
#[test]
fn refusals() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = silent.local_addr().unwrap();
    drop(silent);
    for (line, status, word) in [
        ("lat -c ud -s 5000", 2, "--size 4096 or less"),
        ("bw -s 0", 2, "not within 1 to"),
        ("bw -s 64,x", 2, "such as 64, 4K or 1M"),
        ("lat --op cas -s 16", 2, "leave --size and --all out"),
        ("bw -t 8 -l 9", 2, "--post-list 9 is not within 1 to 8"),
        ("bw --op read -I 8", 2, "leave --inline out"),
        ("lat -e --op write", 2, "leave --events out"),
        ("bw -n 0", 2, "0 messages measure nothing"),
        ("bw -q 64 -s 256M", 2, "give fewer --qp"),
        ("lat -D 5 -n 5", 2, "cannot be used"),
        ("lat --listen 127.0.0.1:0 --json", 2, "cannot be used"),
        ("lat --listen 127.0.0.1:0 -s 64", 2, "cannot be used"),
        ("bw --listen 127.0.0.1:0 -q 2", 2, "cannot be used"),
        ("bw --listen 127.0.0.1:0 --timeout 8", 2, "cannot be used"),
        ("lat --plot /nowhere/at/all.svg", 1, "cannot write the plot"),
        ("bw -d no-such-device", 1, "no-such-device"),
        (&format!("lat {nobody}"), 1, "cannot connect to"),
    ] {
        let ended = run(line);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(status), "{line}: {said}");
        assert!(said.contains(word), "{line}: {said}");
    }
}
