//! Tests of profiles: what is accepted, and what is said about the rest.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{PortProfile, Profile, ProfileError, variables};
use crate::core::config::{Caps, GidEntry, GidKind};
use crate::link::IpIds;

fn with(vars: &[(&str, &str)]) -> Profile {
    Profile::from_vars(vars.iter().copied()).unwrap()
}

fn refused(name: &str, value: &str) -> String {
    match Profile::from_vars([(name, value)]) {
        Ok(profile) => panic!("{name}={value} was accepted: {profile:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_default_is_one_port_with_a_chosen_loopback_address() {
    let profile = with(&[("PATH", "/bin"), ("RDMA_SOFTWARE", "1")]);
    assert_eq!(profile.ports.len(), 1);
    assert!(profile.ports[0].addresses.is_empty());
    assert!(profile.ports[0].up);
    assert_eq!(profile.ports[0].pkeys, [0xffff]);
    assert!(profile.faults.is_none());
    assert_eq!((profile.seed, &profile.pcap), (None, &None));
    Profile::default().check().unwrap();
}

#[test]
fn ports_and_addresses() {
    let profile = with(&[
        ("RDMA_SOFT_ADDR", "127.0.0.5, ::1;127.0.0.6"),
        ("RDMA_SOFT_PORTS", "3"),
    ]);
    let addresses: Vec<Vec<String>> = (profile.ports.iter())
        .map(|port| port.addresses.iter().map(ToString::to_string).collect())
        .collect();
    assert_eq!(
        addresses,
        [vec!["127.0.0.5", "::1"], vec!["127.0.0.6"], vec![]]
    );
    // More groups make more ports; an empty group chooses its address.
    assert_eq!(with(&[("RDMA_SOFT_ADDR", ";127.0.0.6")]).ports.len(), 2);
    assert_eq!(with(&[("RDMA_SOFT_PORTS", "255")]).ports.len(), 255);

    assert_eq!(
        refused("RDMA_SOFT_ADDR", "127.0.0.5,localhost"),
        "RDMA_SOFT_ADDR=\"127.0.0.5,localhost\": \"localhost\" is no IP address; \
         write IP addresses with commas between them, and a semicolon between ports"
    );
    assert_eq!(
        refused("RDMA_SOFT_PORTS", "256"),
        "RDMA_SOFT_PORTS=\"256\": 256 is too large; write the number of ports, 1 to 255"
    );
    assert_eq!(
        refused("RDMA_SOFT_PORTS", "0"),
        "0 ports: a node has 1 to 255"
    );
    assert_eq!(
        refused("RDMA_SOFT_ADDR", &";".repeat(255)),
        "256 ports: a node has 1 to 255"
    );
}

#[test]
fn gid_tables() {
    let profile = with(&[("RDMA_SOFT_GIDS", "fe80::1,-,v1:10.0.0.5,10.0.0.5")]);
    let table = profile.ports[0].gid_table(&["127.0.0.9".parse().unwrap()]);
    let entry = |gid: [u8; 16], kind| GidEntry { gid, kind };
    let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 5];
    let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(
        table,
        [
            entry(link_local, GidKind::RoceV2),
            entry([0; 16], GidKind::RoceV2),
            entry(v4, GidKind::RoceV1),
            entry(v4, GidKind::RoceV2),
        ]
    );
    assert!(table[1].is_empty());
    let from_addresses = PortProfile::default().gid_table(&["10.0.0.5".parse().unwrap()]);
    assert_eq!(from_addresses, [entry(v4, GidKind::RoceV2)]);
    assert!(refused("RDMA_SOFT_GIDS", "v3:10.0.0.5").contains("\"v3:10.0.0.5\" is no IP address"));
}

#[test]
fn what_holds_for_all_ports() {
    let profile = with(&[
        ("RDMA_SOFT_STATE", "down"),
        ("RDMA_SOFT_PKEYS", "0xffff, 0x8001,7"),
        ("RDMA_SOFT_MTU", "1024"),
        ("RDMA_SOFT_PORTS", "2"),
    ]);
    for port in &profile.ports {
        assert!(!port.up);
        assert_eq!(port.active_mtu, 1024);
        assert_eq!(port.max_mtu, 4096);
        assert_eq!(port.pkeys, [0xffff, 0x8001, 7]);
    }
    for mtu in ["1500", "0", "8192"] {
        assert!(refused("RDMA_SOFT_MTU", mtu).contains("write 256, 512, 1024, 2048 or 4096"));
    }
    assert!(refused("RDMA_SOFT_STATE", "UP").contains("write up or down"));
    assert!(refused("RDMA_SOFT_PKEYS", "0x10000").contains("0x10000 is too large"));
}

#[test]
fn the_rest() {
    let profile = with(&[
        ("RDMA_SOFT_FAULTS", "loss=1%,seed=7"),
        ("RDMA_SOFT_SEED", "42"),
        ("RDMA_SOFT_PCAP", "/tmp/frames.pcap"),
        ("RDMA_SOFT_WINDOW", "16"),
        ("RDMA_SOFT_IP_IDS", "any"),
        ("RDMA_SOFT_CAPS", "max_qp=16, max_mr_size=0x100000000"),
    ]);
    assert_eq!(profile.faults.to_string(), "loss=1%,seed=7");
    assert_eq!(profile.seed, Some(42));
    assert_eq!(profile.pcap, Some(PathBuf::from("/tmp/frames.pcap")));
    assert_eq!(profile.window, 16);
    assert_eq!(profile.ip_ids, IpIds::Any);
    assert_eq!(profile.caps.max_qp, 16);
    assert_eq!(profile.caps.max_mr_size, 1 << 32);
    assert_eq!(profile.caps.max_cq, Caps::default().max_cq);

    assert_eq!(
        refused("RDMA_SOFT_FAULTS", "loss=1%,delay=200"),
        "RDMA_SOFT_FAULTS=\"loss=1%,delay=200\": delay: \"200\" is not accepted here: write a time \
         with its unit, such as 200us, 1.5ms or 2s, at most 3600s; write faults with commas between \
         them, such as loss=1%,duplicate=1%,reorder=1%,corrupt=0.1%,delay=200us,jitter=50us,seed=7"
    );
    assert!(refused("RDMA_SOFT_SEED", "-1").contains("RDMA_SOFT_SEED=\"-1\""));
    assert!(refused("RDMA_SOFT_PCAP", "").contains("there is no path"));
    assert_eq!(
        refused("RDMA_SOFT_WINDOW", "0"),
        "the window must not be empty or 0"
    );
    assert!(refused("RDMA_SOFT_IP_IDS", "some").contains("it is neither"));
    assert!(refused("RDMA_SOFT_CAPS", "max_qp").contains("\"max_qp\" has no ="));
    assert!(refused("RDMA_SOFT_CAPS", "max_qps=1").contains("\"max_qps\" is none of max_pd, "));
    assert_eq!(
        refused("RDMA_SOFT_CAPS", "max_sge=17"),
        "max_sge is 17: at most 16"
    );
}

/// A limit that the device has and the environment cannot set would show here.
#[test]
fn every_limit_can_be_set() {
    let debug = format!("{:?}", Caps::default());
    let fields = debug.trim_start_matches("Caps { ").trim_end_matches(" }");
    let mut count = 0;
    for field in fields.split(", ") {
        let (name, _) = field.split_once(": ").unwrap();
        let profile = with(&[("RDMA_SOFT_CAPS", &format!("{name}=3"))]);
        assert!(
            format!("{:?}", profile.caps).contains(&format!("{name}: 3")),
            "{name}"
        );
        count += 1;
    }
    assert!(count >= 12, "{fields}");
}

#[test]
fn typing_errors_in_names_do_not_go_unseen() {
    let error = Profile::from_vars([("RDMA_SOFT_FAULT", "loss=1%")]).unwrap_err();
    let unknown = ProfileError::UnknownVariable {
        name: "RDMA_SOFT_FAULT".to_owned(),
    };
    assert_eq!(error, unknown);
    for variable in variables() {
        assert!(
            error.to_string().contains(variable.name),
            "{}",
            variable.name
        );
    }
}

#[test]
fn a_value_that_is_not_text_is_refused() {
    let vars = [(
        OsString::from("RDMA_SOFT_MTU"),
        OsStr::from_bytes(b"\xff4096").to_owned(),
    )];
    let error = Profile::from_vars(vars).unwrap_err();
    assert!(error.to_string().contains("it is not UTF-8"), "{error}");
}

#[test]
fn profiles_made_by_hand_are_checked() {
    let changed = |change: fn(&mut Profile)| {
        let mut profile = Profile::default();
        change(&mut profile);
        profile.check().unwrap_err().to_string()
    };
    assert_eq!(changed(|p| p.ports.clear()), "0 ports: a node has 1 to 255");
    assert_eq!(
        changed(|p| p.ports[0].active_mtu = 1500),
        "port 1: an MTU of 1500 bytes; write 256, 512, 1024, 2048 or 4096"
    );
    assert_eq!(
        changed(|p| p.ports[0].max_mtu = 1024),
        "port 1: active MTU 4096 exceeds the maximum 1024: lower it, or raise max_mtu"
    );
    assert_eq!(
        changed(|p| p.ports[0].pkeys.clear()),
        "the partition key table must not be empty or 0"
    );
    assert_eq!(
        changed(|p| p.caps.max_inline_data = 1 << 20),
        "max_inline_data is 1048576: at most 256"
    );
}
