//! `qp devices` as a user runs it.

use std::net::UdpSocket;
use std::process::{Command, Output};

fn devices(environment: &[(&str, &str)], options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qp"));
    command
        .arg("devices")
        .args(options)
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

/// The software device as JSON has it.
fn software(environment: &[(&str, &str)]) -> serde_json::Value {
    let printed = devices(environment, &["--json"]);
    assert!(printed.status.success(), "{printed:?}");
    let listing: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    let all = listing["devices"].as_array().unwrap();
    all.iter()
        .find(|device| device["provider"] == "software")
        .unwrap()
        .clone()
}

#[test]
fn the_software_device_is_there_without_any_hardware() {
    let device = software(&[]);
    let port = &device["ports"][0];
    assert_eq!(
        (&port["port"], &port["state"], &port["link_layer"]),
        (&1.into(), &"active".into(), &"Ethernet".into())
    );
    assert_eq!(
        (&port["max_mtu"], &port["active_mtu"]),
        (&4096.into(), &4096.into())
    );
    let gid = port["gids"][0]["gid"].as_str().unwrap();
    assert!(gid.starts_with("::ffff:127."), "{gid}");
    assert_eq!(port["best_gid_index"], 0);
}

/// A table as real hosts have it: link-local, RoCE v1 and empty entries before the one that works.
#[test]
fn every_filled_entry_is_listed_with_what_speaks_against_it() {
    let table = ("RDMA_SOFT_GIDS", "fe80::1,v1:127.3.3.3,-,127.3.3.3");
    let device = software(&[
        ("RDMA_SOFT_ADDR", "127.3.3.3"),
        table,
        ("RDMA_SOFT_MTU", "1024"),
    ]);
    let port = &device["ports"][0];
    assert_eq!(port["active_mtu"], 1024);
    let entries: Vec<(u64, &str, &str)> = port["gids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry["index"].as_u64().unwrap(),
                entry["type"].as_str().unwrap(),
                entry["verdict"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        entries
            .iter()
            .map(|entry| (entry.0, entry.1))
            .collect::<Vec<_>>(),
        [(0, "RoCE v2"), (1, "RoCE v1"), (3, "RoCE v2")]
    );
    assert!(
        entries[0].2.contains("link-local") && entries[1].2.contains("RoCE v1"),
        "{entries:?}"
    );
    assert_eq!(
        (&port["best_gid_index"], entries[2].2),
        (&3.into(), "chosen")
    );
}

#[test]
fn all_ports_are_listed_and_a_port_without_usable_gid_says_so() {
    let environment = [
        ("RDMA_SOFT_PORTS", "2"),
        ("RDMA_SOFT_ADDR", "127.3.3.4;127.3.3.5"),
        ("RDMA_SOFT_GIDS", "127.3.3.4;fe80::2"),
    ];
    let device = software(&environment);
    let ports = device["ports"].as_array().unwrap();
    assert_eq!(ports.len(), 2);
    assert!(ports[0]["error"].is_null());
    assert!(
        ports[1]["error"]
            .as_str()
            .unwrap()
            .contains("no usable GID"),
        "{}",
        ports[1]
    );
    let text = String::from_utf8(devices(&environment, &[]).stdout).unwrap();
    assert!(
        text.contains("port 2") && text.contains("link-local"),
        "{text}"
    );
}

/// Eight full groups are the longest address; nothing is wider than a terminal.
#[test]
fn the_longest_addresses_fit_80_columns() {
    let table = "v1:2001:db8:1111:2222:3333:4444:5555:6666,127.3.3.7";
    let environment = [("RDMA_SOFT_ADDR", "127.3.3.7"), ("RDMA_SOFT_GIDS", table)];
    let text = String::from_utf8(devices(&environment, &[]).stdout).unwrap();
    assert!(
        text.contains(":6666") && text.contains("does not cross"),
        "{text}"
    );
    let wide: Vec<_> = (text.lines().filter(|line| line.chars().count() > 80)).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn a_device_that_cannot_start_is_listed_with_the_reason() {
    let _taken = UdpSocket::bind("127.3.3.6:4791").unwrap();
    let device = software(&[("RDMA_SOFT_ADDR", "127.3.3.6")]);
    assert!(
        device["error"].as_str().unwrap().contains("in use"),
        "{device}"
    );
}

#[test]
fn a_wrong_environment_is_a_note() {
    let printed = devices(&[("RDMA_SOFT_MTU", "1500")], &[]);
    assert!(printed.status.success());
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(
        text.contains("RDMA_SOFT_MTU") && text.contains("2048"),
        "{text}"
    );
}
