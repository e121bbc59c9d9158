use super::*;
use crate::dump::RegionDump;

fn gid(text: &str) -> Gid {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

#[test]
fn subnets_are_guessed_by_the_usual_lengths() {
    for (a, b, same) in [
        ("10.0.0.5", "10.0.0.7", true),
        ("10.0.0.5", "10.0.1.5", false),
        ("127.1.2.3", "127.200.1.1", true),
        ("2001:db8::1", "2001:db8::9:1", true),
        ("2001:db8::1", "2001:db8:1::1", false),
        ("fe80::1", "fe80::2", true),
        ("10.0.0.5", "fe80::1", false),
    ] {
        assert_eq!(way::same_subnet(gid(a), gid(b)), same, "{a} {b}");
    }
}

/// A record is read as it was written, a dump is a record, and anything else is refused by name.
#[test]
fn records() {
    let dump = Dump::from_json(include_str!("../../tests/fixtures/dump-v1.json")).unwrap();
    let mut record = Record::new("program");
    record.dumps.push(dump.clone());
    record.refusals.push(Refusal {
        errno: 22,
        why: Some("no".into()),
        software: true,
        ..Refusal::default()
    });
    assert_eq!(Record::from_json(&record.to_json()).unwrap(), record);
    assert_eq!(Record::from_json(&dump.to_json()).unwrap().dumps, [dump]);
    for (text, word) in [
        ("{}", "no record"),
        ("[]", "no record"),
        ("{\"format\":\"rdma-qp-record\",\"version\":2}", "version 2"),
        ("{\"format\":\"rdma-qp-record\",\"version\":1}", "damaged"),
        ("{\"format\":\"rdma-qp-dump\",\"version\":7}", "version 7"),
        ("nonsense", "damaged"),
    ] {
        let error = Record::from_json(text).unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}

/// A key that no region has is the program's mistake only where all regions are known.
#[test]
fn keys_of_regions_that_were_left_out() {
    let found = |regions_left_out, rkey: u32| {
        let mut here = Dump::from_json(include_str!("../../tests/fixtures/dump-v1.json")).unwrap();
        let mut there = here.clone();
        here.qp.state = "ERR".into();
        here.mishaps = vec![Mishap::Request {
            opcode: "IBV_WC_RDMA_WRITE".into(),
            status: 10,
            addr: Some(0x1000),
            rkey: Some(rkey),
            len: 8,
        }];
        there.qp.number += 1;
        there.taken.pid += 1;
        there.regions = vec![RegionDump {
            addr: 0x1000,
            len: 4096,
            lkey: 0x100,
            rkey: 0x200,
            access: 1,
            gone: false,
        }];
        let mut evidence = Evidence::default();
        evidence.add(Record {
            pid: here.taken.pid,
            dumps: vec![here],
            ..Record::new("client")
        });
        evidence.add(Record {
            pid: there.taken.pid,
            dumps: vec![there],
            regions_left_out,
            ..Record::new("server")
        });
        let of_regions = |code: &str| {
            ["rkey-", "region-", "lkey-"]
                .iter()
                .any(|of| code.starts_with(of))
        };
        let found = diagnose(&evidence).into_iter();
        found
            .filter(|finding| of_regions(&finding.code) && finding.weight <= Weight::Likely)
            .map(|finding| (finding.code, finding.weight))
            .collect::<Vec<_>>()
    };
    let one = |code: &str, weight| vec![(code.to_owned(), weight)];
    assert_eq!(found(false, 0x300), one("rkey-unknown", Weight::Certain));
    assert!(found(true, 0x300).is_empty());
    assert_eq!(found(true, 0x100), one("lkey-sent", Weight::Likely));
    for left_out in [false, true] {
        assert_eq!(
            found(left_out, 0x200),
            one("region-access", Weight::Certain)
        );
    }
}

/// The limit on locked memory is a hint only where it is plausible, and only for real devices.
#[test]
fn locked_memory() {
    let found = |soft, size, software| {
        let mut evidence = Evidence {
            machine: Some(Machine {
                memlock: Some(Memlock { soft, hard: None }),
                ..Machine::default()
            }),
            ..Evidence::default()
        };
        evidence.refusals.push(Refusal {
            call: Some("ibv_reg_mr".into()),
            errno: 12,
            size,
            software,
            ..Refusal::default()
        });
        let found = diagnose(&evidence);
        found.iter().any(|finding| finding.code == "memlock")
    };
    assert!(found(Some(64 << 10), Some(100 << 10), false));
    assert!(
        !found(Some(64 << 10), Some(4096), false),
        "far below the limit"
    );
    assert!(!found(None, Some(100 << 10), false), "no limit");
    assert!(
        !found(Some(64 << 10), Some(100 << 10), true),
        "the software device locks nothing"
    );
    assert!(!found(Some(64 << 10), None, false));
}

/// Only what stands in the way of the adapter that was chosen is found.
#[test]
fn machines() {
    let codes = |machine: Machine| {
        let evidence = Evidence {
            machine: Some(machine),
            ..Evidence::default()
        };
        let found = diagnose(&evidence);
        found
            .iter()
            .map(|finding| finding.code.clone())
            .collect::<Vec<_>>()
    };
    let bare = || Machine {
        memlock: Some(Memlock {
            soft: Some(64 << 10),
            hard: Some(64 << 10),
        }),
        library: Some(Err("cannot load libibverbs.so.1".into())),
        ..Machine::default()
    };
    assert_eq!(
        codes(bare()),
        [""; 0],
        "the software device needs none of it"
    );
    assert_eq!(
        codes(Machine {
            chosen: Some("mlx5_0".into()),
            ..bare()
        }),
        ["no-library", "no-device"]
    );
    let there = || Machine {
        chosen: Some("mlx5_0".into()),
        adapters: vec!["mlx5_0".into()],
        library: Some(Ok(Library::default())),
        ..bare()
    };
    assert_eq!(codes(there()), ["no-access", "memlock"]);
    let uverbs = vec![("/dev/infiniband/uverbs0".into(), true)];
    assert_eq!(
        codes(Machine {
            uverbs,
            memlock: None,
            ..there()
        }),
        [""; 0]
    );
    assert_eq!(
        codes(Machine {
            mappings: Some((60_000, 65_530)),
            ..Machine::default()
        }),
        ["mappings"]
    );
}
