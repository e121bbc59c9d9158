//! `qp plan` as a user runs it.

use std::process::{Command, Output};

fn plan(options: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_qp"))
        .arg("plan")
        .args(options.split_whitespace())
        .output()
        .unwrap()
}

fn text(options: &str) -> String {
    let printed = plan(options);
    assert!(printed.status.success(), "{printed:?}");
    String::from_utf8(printed.stdout).unwrap()
}

/// Ten nodes of ten, as a person reads it.
const TEN_BY_TEN: &str = "\
100 processes: 10 nodes of 10
pairs on one node: over the fabric
depths: 64 sends, 64 receives, 1,024 shared ones, of 4,096 bytes

Queue Pairs        per process      per node          in all        at 100,000
RC                          99           990           9,900     9,999,900,000
RC + SRQ                    99           990           9,900     9,999,900,000
XRC initiators              10           100           1,000     1,000,000,000
XRC targets                 10           100           1,000     1,000,000,000
UD                           1            10             100           100,000
UD, reliable                 1            10             100           100,000

Receives           per process      per node          in all        at 100,000
RC                       6,336        63,360         633,600   639,993,600,000
RC + SRQ                 1,024        10,240         102,400       102,400,000
XRC                      1,024        10,240         102,400       102,400,000
UD                       1,024        10,240         102,400       102,400,000
UD, reliable             1,024        10,240         102,400       102,400,000

Memory             per process      per node          in all        at 100,000
RC                    27.6 MiB     275.5 MiB         2.7 GiB           2.6 PiB
RC + SRQ               6.1 MiB      61.3 MiB       612.6 MiB         196.0 TiB
XRC                    4.3 MiB      43.1 MiB       431.1 MiB          20.9 TiB
UD                     4.3 MiB      43.1 MiB       431.3 MiB        1016.6 GiB
UD, reliable           9.2 MiB      91.6 MiB       915.7 MiB           1.5 TiB

By processes per node, on as many nodes:
  XRC has fewer QPs than RC: from 3 on
  XRC takes less memory than RC + SRQ: from 2 on
  RC + SRQ takes less memory than RC: from 2 on
";

#[test]
fn ten_nodes_of_ten() {
    let printed = text("--nodes 10 --per-node 10");
    assert_eq!(printed, TEN_BY_TEN);
    assert!(printed.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn json_has_the_whole_job_and_its_memory() {
    let printed = plan("--nodes 10 --per-node 10 --json");
    let json: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(json["processes"], 100);
    assert_eq!(json["rc"]["qps"], 9_900);
    assert_eq!(json["rc_srq"]["qps"], 9_900);
    assert_eq!(json["xrc"]["initiators"], 1_000);
    assert_eq!(json["xrc"]["targets"], 1_000);
    assert_eq!(json["ud"]["qps"], 100);
    assert_eq!(json["datagrams"]["qps"], 100);
    let memory = |of: &str| json[of]["memory_bytes"].as_u64().unwrap();
    assert!(memory("xrc") < memory("rc_srq") && memory("rc_srq") < memory("rc"));
    // An SRQ of 1024 receives of 4096 bytes for each of 100 processes.
    assert_eq!(json["xrc"]["receive_bytes"], 100 * 1024 * 4096);
    assert_eq!(json["at_100000"]["rc"]["qps"], 9_999_900_000_u64);
    assert_eq!(json["break_even"]["xrc_fewer_qps_from"], 3);
}

#[test]
fn pairs_on_one_node_can_be_left_to_shared_memory() {
    let printed = plan("--nodes 10 --per-node 10 --intra-node shm --json");
    let json: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(json["rc"]["per_node"]["qps"], 900);
    assert_eq!(json["xrc"]["per_node"]["qps"], 180);
    assert_eq!(json["break_even"]["xrc_as_many_qps_at"], 2);
}

#[test]
fn depths_are_what_the_receives_follow() {
    let printed = plan("--nodes 2 --per-node 2 --recv-depth 10 --srq-depth 7 --buffer 100 --json");
    let json: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(json["rc"]["receives"], 4 * 3 * 10);
    assert_eq!(json["rc_srq"]["receives"], 4 * 7);
    assert_eq!(json["xrc"]["receive_bytes"], 4 * 7 * 100);
}

#[test]
fn the_largest_numbers_stay_in_their_columns() {
    for options in [
        "--nodes 1000 --per-node 1000",
        "--nodes 1 --per-node 1",
        "--nodes 100000 --per-node 1 --intra-node shm",
    ] {
        let printed = text(options);
        for line in printed.lines() {
            assert!(line.chars().count() <= 80, "{options}: {line}");
            // Columns do not run together.
            let widest = line.split_whitespace().map(str::len).max().unwrap_or(0);
            assert!(widest <= 17, "{options}: {line}");
        }
    }
}

#[test]
fn what_makes_no_job_is_explained() {
    for (options, why) in [
        ("--nodes 0 --per-node 4", "nodes is 0: give at least 1"),
        (
            "--nodes 4 --per-node 4 --buffer 0",
            "the size of a buffer is 0",
        ),
        (
            "--nodes 4000000000 --per-node 4000000000",
            "no machine is that large",
        ),
        ("--nodes 4", "--per-node"),
        (
            "--nodes 4 --per-node 4 --intra-node tcp",
            "possible values: fabric, shm",
        ),
    ] {
        let refused = plan(options);
        assert_eq!(refused.status.code(), Some(2), "{options}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(why), "{options}: {said}");
        assert!(refused.stdout.is_empty());
    }
}
