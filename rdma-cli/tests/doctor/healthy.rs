//! Set-ups in which nothing is wrong: whatever the doctor is given, it finds nothing.

use crate::{doctor, observed, place, report};

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
    ("RC, recovered", "rc_that_was_recovered", &[]),
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
