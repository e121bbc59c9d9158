//! The suite on the software device, and the suite itself: its tables, and that it tells what is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use conformance::device::{Device, Source};
use conformance::suite::matrix::{self, Legality, TRANSPORTS};
use conformance::suite::{
    self, Arm, Check, Difference, Done, Origin, Report, STATUSES, Shows, Trouble, Verdict,
};
use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;
use serde_json::Value;

#[test]
fn the_software_device_passes() {
    let done = Command::new(env!("CARGO_BIN_EXE_conformance"))
        .args(["--quick", "--json"])
        .output()
        .expect("conformance runs");
    let said = String::from_utf8_lossy(&done.stdout);
    let found: Value = serde_json::from_str(&said).expect("one JSON object");
    let checks = found["checks"].as_array().expect("a list");
    let of = |verdict: &str| checks.iter().filter(|c| c["verdict"] == verdict).count();
    for check in checks.iter().filter(|c| c["verdict"] == "failed") {
        println!("{check}");
    }
    assert_eq!((of("failed"), of("expected difference")), (0, 0));
    assert!(done.status.success());
    // Each arm that ran has run every check, and none of them could not.
    let mut arms = BTreeMap::<&str, usize>::new();
    for check in checks.iter().filter(|c| c["check"] != "all") {
        *arms
            .entry(check["arm"].as_str().expect("a text"))
            .or_default() += 1;
        assert_ne!(check["verdict"], "skipped", "{check}");
    }
    for check in checks.iter().filter(|c| c["check"] == "all") {
        println!(
            "SKIP conformance-{}: {}",
            check["arm"].as_str().expect("a text").replace(' ', "-"),
            check["text"].as_str().expect("a text")
        );
    }
    let all = suite::checks(true).len();
    for arm in ["self IPv4", "shm IPv4", "udp IPv4", "self IPv6"] {
        assert_eq!(arms.get(arm), Some(&all), "{arm}");
    }
    assert!(arms.values().all(|&count| count == all), "{arms:?}");
}

#[test]
fn the_output_ends_with_the_counts() {
    let done = Command::new(env!("CARGO_BIN_EXE_conformance"))
        .args([
            "--arm",
            "self IPv4",
            "statuses/SUCCESS",
            "xrc/a-target-takes-no",
        ])
        .output()
        .expect("conformance runs");
    let said = String::from_utf8_lossy(&done.stdout);
    let last = said.lines().last();
    assert_eq!(last, Some("1 passed, 0 failed, 2 refused, 0 skipped"));
    let unknown = Command::new(env!("CARGO_BIN_EXE_conformance"))
        .arg("no-check-has-this-name")
        .output()
        .expect("conformance runs");
    assert!(!unknown.status.success());
}

/// Legal and illegal requests of a transport at an MTU of 4096 bytes with 64 bytes inline.
fn count(transport: Transport) -> (usize, usize) {
    let cells = matrix::cells(false);
    let of: Vec<_> = (cells.iter())
        .filter(|cell| cell.transport == transport)
        .collect();
    let legal = |cell: &&&matrix::Cell| cell.legality(4096, 64) == Legality::Legal;
    let count = of.iter().filter(legal).count();
    (count, of.len() - count)
}

/// The numbers follow from the table of ibv_post_send(3). Each transport: 11 operations that carry bytes or are unknown x 7
/// lengths x 4, 2 atomics x 8 lengths x 4, and 2 that touch no peer x 2: 376.
#[test]
fn the_table_has_what_the_manual_page_has() {
    // SEND, SEND_WITH_IMM, SEND_WITH_INV, WRITE and WRITE_WITH_IMM: 7 lengths, and 2 of them inline; READ: 7 lengths; atomics:
    // one length; LOCAL_INV and BIND_MW. All of it signaled or not.
    let all = 2 * (5 * (7 + 2) + 7 + 2 + 2);
    assert_eq!(count(Transport::Rc), (all, 376 - all));
    assert_eq!(count(Transport::XrcIni), (all, 376 - all));
    // No READ, no atomics; and no SEND_WITH_INV, for which the wire has no opcode.
    let all = 2 * (4 * (7 + 2) + 2);
    assert_eq!(count(Transport::Uc), (all, 376 - all));
    // SEND and SEND_WITH_IMM of 0, 1, MTU - 1 and MTU bytes, and 2 of them inline.
    let all = 2 * (2 * (4 + 2));
    assert_eq!(count(Transport::Ud), (all, 376 - all));
}

#[test]
fn no_request_is_legal_that_its_transport_has_not() {
    for cell in matrix::cells(false) {
        let legal = cell.legality(4096, 64) == Legality::Legal;
        assert!(!legal || cell.transport.supports(cell.opcode), "{cell}");
    }
    for transport in TRANSPORTS {
        let tried = |opcode| {
            let mut cells = matrix::cells(true).into_iter();
            cells.any(|cell| (cell.transport, cell.opcode) == (transport, opcode))
        };
        for opcode in (0..32).map(ibv_wr_opcode) {
            assert!(opcode.name().is_none() || tried(opcode), "{opcode:?}");
        }
    }
}

#[test]
fn each_check_has_a_name_of_its_own() {
    for quick in [false, true] {
        let checks = suite::checks(quick);
        let names: BTreeSet<_> = checks.iter().map(|check| &check.name).collect();
        assert_eq!(names.len(), checks.len());
    }
}

#[test]
fn every_status_is_produced_or_cannot_be() {
    let listed: Vec<_> = STATUSES.iter().map(|(status, _)| status.0).collect();
    let known: Vec<_> = (0..64)
        .filter(|&n| ibv_wc_status(n).name().is_some())
        .collect();
    assert_eq!(listed, known);
    let checks = suite::checks(true);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a root");
    for (status, origin) in STATUSES {
        let name = status.name().expect("a name");
        match origin {
            Origin::Check(check) => {
                assert!(checks.iter().any(|c| c.name == *check), "{name}: {check}");
                let of_status = check.trim_start_matches("statuses/");
                assert_eq!(format!("IBV_WC_{of_status}"), name);
            }
            Origin::Test(file) => {
                let text = std::fs::read_to_string(root.join(file)).expect(file);
                assert!(text.contains(name), "{file} does not name {name}");
            }
            Origin::Never(why) => assert!(!why.is_empty()),
        }
    }
}

fn arm(strict: bool) -> Arm {
    let name = rdma_soft::add_device(rdma_soft::Profile::default()).expect("a device");
    let device: Rc<Device> = Device::open(Source::Soft, Some(&name)).expect("it opens");
    Arm::new("arm", [(&device, 0), (&device, 0)], true, strict).expect("an arm")
}

fn verdicts(arm: &Arm, checks: &[Check], differences: &'static [Difference]) -> Vec<Verdict> {
    let mut report = Report::default();
    suite::run(arm, checks, differences, &mut report);
    report.results.into_iter().map(|r| r.verdict).collect()
}

fn wrong() -> Result<Done, Trouble> {
    Err("the sky is green".into())
}

#[test]
fn what_is_wrong_fails_the_run() {
    let checks = [
        Check::rule("a/good", |_| Ok(Done::Passed)),
        Check::rule("a/bad", |_| wrong()),
        Check::ours("a/strict", |_| wrong()),
    ];
    let bad = Verdict::Failed("the sky is green".to_owned());
    let found = verdicts(&arm(true), &checks, &[]);
    assert_eq!(found, [Verdict::Passed, bad.clone(), bad.clone()]);
    // What only we promise is not expected of others.
    let found = verdicts(&arm(false), &checks, &[]);
    let expected = Verdict::Expected("the sky is green".to_owned(), "stricter-by-us");
    assert_eq!(found, [Verdict::Passed, bad, expected]);
    let mut report = Report::default();
    suite::run(&arm(true), &checks, &[], &mut report);
    assert_eq!(
        report.last_line(),
        "1 passed, 2 failed, 0 refused, 0 skipped"
    );
    assert_eq!(report.tally().failed, 2);
}

const GREEN: &[Difference] = &[Difference {
    name: "green-sky",
    driver: "soft",
    when: &[],
    checks: &["a/*"],
    says: "green",
    shows: Shows::Always,
    source: "nowhere",
    reason: "a test",
}];

#[test]
fn a_difference_explains_what_it_names_and_must_not_disappear() {
    let differs = [Check::rule("a/bad", |_| wrong())];
    let found = verdicts(&arm(false), &differs, GREEN);
    assert_eq!(
        found,
        [Verdict::Expected(
            "the sky is green".to_owned(),
            "green-sky"
        )]
    );
    let otherwise = [Check::rule("a/bad", |_| Err("the sky is red".into()))];
    let found = verdicts(&arm(false), &otherwise, GREEN);
    assert!(matches!(
        found[..],
        [Verdict::Failed(_), Verdict::Failed(_)]
    ));
    let gone = [Check::rule("a/bad", |_| Ok(Done::Passed))];
    let found = verdicts(&arm(false), &gone, GREEN);
    assert!(matches!(found[..], [Verdict::Passed, Verdict::Failed(_)]));
    // A difference of checks that did not run is none that has disappeared.
    let other = [Check::rule("b/good", |_| Ok(Done::Passed))];
    assert_eq!(verdicts(&arm(false), &other, GREEN), [Verdict::Passed]);
}

/// Within one device nothing can be lost.
#[test]
fn a_lost_message_is_a_failure_where_none_may_be_lost() {
    let lost = [Check::rule("a/lost", |_| {
        Err(Trouble::Lost("it did not come".to_owned()))
    })];
    let found = verdicts(&arm(true), &lost, &[]);
    assert_eq!(found, [Verdict::Failed("it did not come".to_owned())]);
}

#[test]
fn what_a_check_leaves_behind_is_seen() {
    // A region cannot go while a window is bound to it.
    let careless = [Check::rule("a/careless", |arm| {
        let pair = arm.fresh(suite::Setting::new(Transport::Rc, arm.mtu()))?;
        let pd = &pair.a.side.pd;
        let buffer =
            conformance::device::Buffer::with_access(pd, 64, conformance::device::Buffer::ALL)?;
        let window = conformance::device::Window::new(pd, IBV_MW_TYPE_2)?;
        let mut send = pair.request(IBV_WR_BIND_MW, 0);
        send.bind = Some(conformance::device::Bind {
            rkey: ops::ibv_inc_rkey(window.rkey()),
            window: Rc::clone(&window),
            buffer,
            offset: 0,
            len: 64,
            access: IBV_ACCESS_REMOTE_WRITE,
        });
        pair.ends_with(send, IBV_WC_SUCCESS)?;
        Ok(Done::Passed)
    })];
    let found = verdicts(&arm(true), &careless, &[]);
    let why = "an object could not be destroyed".to_owned();
    assert_eq!(found, [Verdict::Failed(why)]);
}
