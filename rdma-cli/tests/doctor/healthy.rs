//! Set-ups in which nothing is wrong: whatever the doctor is given, it finds nothing.

use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::{command, doctor, observed, place, report, stub};

type Environment = &'static [(&'static str, &'static str)];

const FAR: Environment = &[
    ("RDMA_SOFT_FAULTS", "delay=250us,jitter=8ms,seed=5"),
    ("TIMEOUT", "14"),
];
const AS_HOSTS_HAVE_THEM: Environment = &[
    ("RDMA_SOFT_GIDS", "fe80::1,-,127.9.9.9"),
    ("RDMA_SOFT_ADDR", "127.9.9.9"),
];
const TWO_KEYS: Environment = &[("RDMA_SOFT_PKEYS", "0xffff,0x8001")];
const FIRST_DOWN: Environment = &[("RDMA_SOFT_PORTS", "2"), ("RDMA_SOFT_STATE", "down;up")];
const FIRST_EMPTY: Environment = &[
    ("RDMA_SOFT_PORTS", "2"),
    ("RDMA_SOFT_ADDR", ";127.9.9.8"),
    ("RDMA_SOFT_GIDS", "-,-;127.9.9.8"),
];

/// A name, the program, and its device.
#[rustfmt::skip]
const SET_UPS: &[(&str, &str, Environment)] = &[
    ("RC, after messages", "rc_after_messages", &[]),
    ("RC, idle", "rc_idle", &[]),
    ("RC, under traffic", "rc_under_traffic", &[]),
    ("RC, before the barrier (RTR)", "rc_before_the_barrier", &[]),
    ("RC, MTU of the smaller end", "rc_with_an_mtu_that_was_agreed", &[]),
    ("RC, port of 256 bytes", "rc_after_messages", &[("RDMA_SOFT_MTU", "256")]),
    ("RC, one packet of twenty lost", "rc_after_messages", &[("RDMA_SOFT_FAULTS", "loss=5%,seed=3")]),
    ("RC, reordered and doubled", "rc_after_messages", &[("RDMA_SOFT_FAULTS", "reorder=5%,duplicate=5%,seed=3")]),
    ("RC, far away, timeout 14", "../connection::a_timeout_below_the_round_trip", FAR),
    ("RC, a receiver that is late", "rc_whose_receiver_is_late", &[]),
    ("RC, IPv6", "rc_after_messages", &[("RDMA_SOFT_ADDR", "::1")]),
    ("RC, a GID table with holes", "rc_after_messages", AS_HOSTS_HAVE_THEM),
    ("RC, second port, first is down", "rc_on_the_second_port", FIRST_DOWN),
    ("RC, second port, first is empty", "rc_on_the_second_port", FIRST_EMPTY),
    ("RC, pkey_index 1, traffic class", "rc_with_another_pkey", TWO_KEYS),
    ("RC, SQD", "rc_in_sqd", &[]),
    ("RC, drained", "rc_after_a_drain", &[]),
    ("RC, recovered after a failure", "rc_that_was_recovered", &[]),
    ("RC, supervised", "supervised", &[]),
    ("RC, empty messages", "rc_with_empty_messages", &[]),
    ("RC, a fence where one belongs", "../requests::a_write_behind_a_fence", &[]),
    ("32 Queue Pairs", "many_queue_pairs", &[]),
    ("RC with an SRQ", "shared_receives", &[]),
    ("UC", "uc", &[]),
    ("UD", "ud", &[]),
    ("UD, two Q_Keys", "ud_with_two_qkeys", &[]),
    ("XRC", "xrc", &[]),
    ("one that tries, and goes on", "one_that_tries", &[]),
];

/// Each as a failing program would be given, then the dump of each end, and then all dumps.
#[test]
fn no_false_alarm() {
    let mut alarms = Vec::new();
    for (name, program, environment) in SET_UPS {
        let dir = place(&format!("healthy-{}", name.replace([' ', ','], "-")));
        let program = match program.strip_prefix("../") {
            Some(other) => other.to_owned(),
            None => format!("healthy::{program}"),
        };
        let mut look = |given: &str, output: &std::process::Output| {
            let answer = report(output);
            let nothing = answer
                .as_ref()
                .is_some_and(|answer| answer["findings"] == serde_json::json!([]));
            if !nothing || output.status.code() != Some(0) {
                let said = String::from_utf8_lossy(&output.stderr);
                alarms.push(format!("{name} ({given}): {answer:#?}\n{said}"));
            }
        };
        look("program", &observed(&program, &[], environment, &dir));
        let mut dumps: Vec<_> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
            .filter(|path| path.ends_with(".json"))
            .collect();
        dumps.sort();
        for dump in dumps.iter().take(2) {
            look("one end", &doctor(&["--json", dump], &[]));
        }
        let mut all = vec!["--json"];
        all.extend(dumps.iter().map(|dump| &dump[..]));
        if !dumps.is_empty() {
            look("all ends", &doctor(&all, &[]));
        }
        println!("healthy: {name} (program, {} dumps)", dumps.len());
    }
    println!("{} set-ups, {} alarms", SET_UPS.len(), alarms.len());
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}

/// Programs of rdma-core and perftest, which know nothing of the doctor: a server and a client each.
const OTHERS: &[&[&str]] = &[
    &["ibv_rc_pingpong", "-g", "0", "-n", "100"],
    &["ibv_uc_pingpong", "-g", "0", "-n", "100"],
    &["ibv_ud_pingpong", "-g", "0", "-n", "100"],
    &["ibv_srq_pingpong", "-g", "0", "-n", "100"],
    &["ib_write_bw", "-F", "-n", "100"],
    &["ib_read_lat", "-F", "-n", "100"],
    &["ib_send_bw", "-F", "-n", "100", "-c", "UD"],
];

/// Whether the program is in the PATH.
fn is_here(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Runs one of two programs that talk, with the records of both in `records`.
fn start(records: &str, program: &[&str]) -> Child {
    let arguments = ["--json", "--limit", "20s", "--records", records, "--"];
    command(&[&arguments, program].concat(), &[])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A TCP port that nobody has at this moment.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A client and its server, under the doctor; the client is started again while the server is not there yet. The client's answer,
/// the server's, and where the records are.
fn both_ends(name: &str, program: &[&str], client: &[&str]) -> ([Output; 2], PathBuf) {
    let dir = place(name);
    let records = dir.to_str().unwrap();
    let port = free_port().to_string();
    let mut server = start(records, &[program, &["-p", &port]].concat());
    let begin = Instant::now();
    loop {
        let asks = start(
            records,
            &[program, client, &["-p", &port, "127.0.0.1"]].concat(),
        );
        let asked = asks.wait_with_output().unwrap();
        // As the pingpongs and perftest say it.
        let refused = |output: &Output| {
            let said = [&output.stderr[..], &output.stdout[..]].concat();
            let said = String::from_utf8_lossy(&said).to_lowercase();
            [
                "couldn't connect to 127.0.0.1",
                "connection refused",
                "unable to init the socket",
            ]
            .iter()
            .any(|words| said.contains(words))
        };
        if refused(&asked)
            && begin.elapsed() < Duration::from_secs(15)
            && server.try_wait().unwrap().is_none()
        {
            // Its record is of nothing.
            for entry in std::fs::read_dir(&dir).unwrap().flatten() {
                let _ = std::fs::remove_file(entry.path());
            }
            std::thread::sleep(Duration::from_millis(200));
            continue;
        }
        return ([asked, server.wait_with_output().unwrap()], dir);
    }
}

#[test]
fn no_false_alarm_over_programs_of_others() {
    let (mut alarms, mut seen) = (Vec::new(), 0);
    for program in OTHERS {
        if !is_here(program[0]) {
            stub::skip(
                &format!("doctor_over_{}", program[0]),
                "it is not installed",
            );
            continue;
        }
        seen += 1;
        for output in both_ends(&format!("others-{}-{seen}", program[0]), program, &[]).0 {
            let answer = report(&output);
            let nothing = answer
                .as_ref()
                .is_some_and(|answer| answer["findings"] == serde_json::json!([]));
            if !nothing || output.status.code() != Some(0) {
                let said = String::from_utf8_lossy(&output.stderr);
                alarms.push(format!("{program:?}: {answer:#?}\n{said}"));
            }
        }
        println!("healthy: {} (both ends)", program.join(" "));
    }
    println!("{seen} programs of others, {} alarms", alarms.len());
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}

/// The same programs used wrongly: the cause is named, at the latest when both have ended.
#[test]
fn programs_of_others_in_trouble() {
    if !is_here("ibv_rc_pingpong") {
        return stub::skip("doctor_over_ibv_rc_pingpong", "it is not installed");
    }
    for (name, server, client, code) in [
        ("no-gid", &["-n", "10"][..], &[][..], "grh-missing"),
        (
            "two-mtus",
            &["-g", "0", "-s", "3000", "-m", "4096"],
            &["-m", "1024"],
            "mtu-differs",
        ),
        (
            "two-sizes",
            &["-g", "0", "-s", "300"],
            &["-s", "3000"],
            "receive-short",
        ),
    ] {
        let program = [&["ibv_rc_pingpong"], server].concat();
        let name = format!("trouble-{name}");
        let dir = both_ends(&name, &program, client).1;
        let answer = report(&doctor(&["--json", dir.to_str().unwrap()], &[])).unwrap();
        assert_eq!(answer["findings"][0]["code"], code, "{name}: {answer:#}");
        println!("in trouble: {name}: {code}");
    }
}
