//! Tests of profiles: what is accepted, and what is said about the rest.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{PortProfile, Profile, ProfileError, variables};
use crate::core::config::{Caps, GidEntry, GidKind, Strict};
use crate::link::{IpIds, SourcePort};

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

/// One value for all ports, or one for each.
#[test]
fn what_each_port_has_of_its_own() {
    let profile = with(&[
        ("RDMA_SOFT_PORTS", "2"),
        ("RDMA_SOFT_STATE", "down;up"),
        ("RDMA_SOFT_MTU", "256; 1024"),
        ("RDMA_SOFT_MAX_MTU", "2048"),
        ("RDMA_SOFT_PKEYS", "0xffff;0x8001,2"),
        ("RDMA_SOFT_MAX_MSG_SZ", "1048576;4096"),
        ("RDMA_SOFT_GIDS", "v1:10.0.0.5;-,10.0.0.6"),
    ]);
    let [first, second] = &profile.ports[..] else {
        panic!("{:?}", profile.ports)
    };
    assert_eq!((first.up, second.up), (false, true));
    assert_eq!((first.active_mtu, second.active_mtu), (256, 1024));
    assert_eq!((first.max_mtu, second.max_mtu), (2048, 2048));
    assert_eq!((first.max_msg_sz, second.max_msg_sz), (1 << 20, 4096));
    assert_eq!(
        (&first.pkeys[..], &second.pkeys[..]),
        (&[0xffff][..], &[0x8001, 2][..])
    );
    assert_eq!(first.gids.as_ref().map(Vec::len), Some(1));
    assert!(
        second
            .gids
            .as_ref()
            .is_some_and(|gids| gids[0].is_empty() && gids.len() == 2)
    );

    assert_eq!(
        refused("RDMA_SOFT_MTU", "1024;4096;256"),
        "RDMA_SOFT_MTU=\"1024;4096;256\": 3 parts for 1 ports; write 256, 512, 1024, 2048 or 4096 \
         (one for all ports, or one each with semicolons)"
    );
    assert!(refused("RDMA_SOFT_MAX_MSG_SZ", "2147483649").contains("max_msg_sz is 2147483649"));
    assert_eq!(
        refused("RDMA_SOFT_MAX_MTU", "1024"),
        "port 1: active MTU 4096 exceeds the maximum 1024: lower it, or raise max_mtu"
    );
}

#[test]
fn strictness() {
    assert_eq!(with(&[]).strict, Strict::default());
    let strict = with(&[("RDMA_SOFT_STRICT", "-poison, reorder,-keys,-hazards")]).strict;
    let expected = Strict {
        poison: false,
        reorder_completions: true,
        distinct_keys: false,
        hazards: false,
    };
    assert_eq!(strict, expected);
    let strict = with(&[("RDMA_SOFT_STRICT", "reorder")]).strict;
    let expected = Strict {
        reorder_completions: true,
        ..Strict::default()
    };
    assert_eq!(strict, expected);
    assert!(refused("RDMA_SOFT_STRICT", "order").contains("\"order\" is none of them"));
}

/// A file for one test.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let name = format!("rdma-soft-profile-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        File(path)
    }

    fn error(name: &str, text: &str) -> (PathBuf, usize, String) {
        let file = File::new(name, text);
        match Profile::from_file(&file.0).unwrap_err() {
            ProfileError::Line {
                path,
                line,
                problem,
            } => {
                assert_eq!(path, file.0);
                (path, line, problem)
            }
            other => panic!("{other}"),
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn a_file_has_the_same_settings() {
    let file = File::new(
        "same",
        "# Two ports.\n\
         mtu = 4096;1024   # the order of lines does not matter\n\
         ports=2\n\
         \n\
         \t state = down;up\n\
         caps = max_qp=16,max_srq=4\n\
         faults = loss=1%,seed=7\n\
         source_port = flow\n\
         traffic_class = 104\n\
         explain = 1\n\
         shm = 0\n",
    );
    let from_file = Profile::from_file(&file.0).unwrap();
    let from_vars = with(&[
        ("RDMA_SOFT_PORTS", "2"),
        ("RDMA_SOFT_MTU", "4096;1024"),
        ("RDMA_SOFT_STATE", "down;up"),
        ("RDMA_SOFT_CAPS", "max_qp=16,max_srq=4"),
        ("RDMA_SOFT_FAULTS", "loss=1%,seed=7"),
        ("RDMA_SOFT_SOURCE_PORT", "flow"),
        ("RDMA_SOFT_TRAFFIC_CLASS", "104"),
        ("RDMA_SOFT_EXPLAIN", "1"),
        ("RDMA_SOFT_SHM", "0"),
    ]);
    assert_eq!(format!("{from_file:?}"), format!("{from_vars:?}"));
    assert_eq!(from_file.source_port, SourcePort::ByFlow);
    assert_eq!((from_file.traffic_class, from_file.explain), (104, true));
    assert!(!from_file.shm && Profile::default().shm);
    assert_eq!((from_file.caps.max_qp, from_file.caps.max_srq), (16, 4));

    // Each setting of the file can also be a variable of the environment, and that wins.
    let path = file.0.to_str().unwrap();
    let both = with(&[
        ("RDMA_SOFT_CAPS", "max_cq=3"),
        ("RDMA_SOFT_PROFILE", path),
        ("RDMA_SOFT_MTU", "512"),
    ]);
    assert_eq!(both.ports.len(), 2);
    assert_eq!(
        [both.ports[0].active_mtu, both.ports[1].active_mtu],
        [512, 512]
    );
    assert_eq!(
        (both.caps.max_cq, both.caps.max_qp),
        (3, Caps::default().max_qp)
    );
    assert_eq!(both.faults.to_string(), "loss=1%,seed=7");
}

/// Whatever a variable is called, a file calls it so.
#[test]
fn every_variable_is_a_setting_of_files() {
    for variable in variables() {
        let name = variable.name.strip_prefix("RDMA_SOFT_").unwrap();
        let file = File::new("every", &format!("{} = ?\n", name.to_ascii_lowercase()));
        if let Err(error) = Profile::from_file(&file.0) {
            assert!(!error.to_string().contains("no setting"), "{error}");
        }
        let (_, _, problem) = File::error("upper", &format!("{name} = ?\n"));
        assert!(problem.contains("no setting"), "{problem}");
    }
}

#[test]
fn errors_of_files_name_file_and_line() {
    let file = File::new("wrong", "ports = 2\nmtu = 1500\n");
    assert_eq!(
        Profile::from_file(&file.0).unwrap_err().to_string(),
        format!(
            "{}, line 2: mtu = 1500: 1500 is none of them; write 256, 512, 1024, 2048 or 4096 \
             (one for all ports, or one each with semicolons)",
            file.0.display()
        )
    );
    let named = [("RDMA_SOFT_PROFILE", file.0.to_str().unwrap())];
    let error = Profile::from_vars(named).unwrap_err();
    assert!(error.to_string().contains("line 2: mtu = 1500"), "{error}");

    let problem = |text| File::error("problem", text);
    let (_, line, problem_) = problem("\n\nmtu 1024");
    assert_eq!(
        (line, problem_.as_str()),
        (3, "\"mtu 1024\" has no =; write name = value")
    );
    let (_, line, problem_) = problem("mtus = 1024");
    assert_eq!(line, 1);
    assert!(
        problem_.starts_with("\"mtus\" is no setting: there are ports, addr, "),
        "{problem_}"
    );
    let (_, line, problem_) = problem("seed = 1\nseed = 2");
    assert_eq!(
        (line, problem_.as_str()),
        (2, "seed stands here a second time")
    );
    let (_, _, problem_) = problem("profile = other");
    assert!(problem_.contains("names no other"), "{problem_}");
    // What holds for the whole is checked for the whole.
    let file = File::new("whole", "caps = max_sge=17");
    let error = Profile::from_file(&file.0).unwrap_err();
    assert_eq!(error.to_string(), "max_sge is 17: at most 16");

    let missing = std::env::temp_dir().join("rdma-soft-profile-that-is-not-there");
    let error = Profile::from_file(&missing).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: No such file or directory (os error 2)",
            missing.display()
        )
    );
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
    assert!(count >= 18, "{fields}");
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
