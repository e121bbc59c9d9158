//! One trouble each: its evidence comes from ends on the software device that have it.

use std::time::Duration;

use rdma_core_sys::*;
use rdma_qp::doctor::{Evidence, Weight, diagnose};
use rdma_qp::lint;
use rdma_qp::{
    AckTimeout, Device, Dump, NOTHING, PathMtu, PathOptions, Peer, RetryCount, RnrRetry, RnrTimer,
    Timing, ToErr, WaitError,
};
use rdma_soft::Profile;

use crate::common::*;
use crate::fake::{self, Fake};
use crate::paths::to_init;
use crate::{codes, first, found};

/// A dead peer is an error soon.
pub fn impatient() -> Timing {
    Timing {
        timeout: AckTimeout::from_code(10).unwrap(),
        retry_cnt: RetryCount::new(1).unwrap(),
        ..Timing::default()
    }
}

/// Connects two ends of which each believes what it is told of the other.
pub fn connect_as(a: &mut End, of_b: &Peer, b: &mut End, of_a: &Peer, timing: Timing) {
    let agreed = a.qp.connect_begin(of_b, timing).unwrap();
    let also = b.qp.connect_begin(of_a, timing).unwrap();
    a.qp.connect_finish(agreed, timing).unwrap();
    b.qp.connect_finish(also, timing).unwrap();
}

/// Sends a message; gives the status with which that failed.
pub fn fails(from: &mut End, len: usize) -> u32 {
    let sent = if len == 0 {
        from.qp.send(NOTHING)
    } else {
        from.qp.send(from.mr.slice(0, len).unwrap())
    };
    match from.cq.wait(&sent.unwrap(), LIMIT) {
        Err(WaitError::Failed(report)) => report.status.0,
        other => panic!("{other:?}"),
    }
}

pub fn dumps(a: &End, b: &End) -> Vec<Dump> {
    vec![a.qp.dump(), b.qp.dump()]
}

#[test]
fn two_path_mtus() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 4096), End::new(&device, 4096));
    let (mut of_a, mut of_b) = (a.describe(&device), b.describe(&device));
    (of_b.endpoint.mtu, of_a.endpoint.mtu) = (PathMtu::Mtu2048, PathMtu::Mtu1024);
    connect_as(&mut a, &of_b, &mut b, &of_a, Timing::default());
    b.qp.recv(b.mr.slice(0, 4096).unwrap()).unwrap();
    // Before anything failed, and after.
    first(
        &found(dumps(&a, &b)),
        "mtu-differs",
        Weight::Certain,
        &["2048", "1024"],
    );
    assert_eq!(fails(&mut a, 2000), 9);
    let found = found(dumps(&a, &b));
    let top = first(
        &found,
        "mtu-differs",
        Weight::Certain,
        &[
            "2048 here and 1024 at the peer",
            "IBV_WC_REM_INV_REQ_ERR (9)",
        ],
    );
    assert!(top.cure.ends_with("such as 1024"), "{}", top.cure);
    assert_eq!(codes(&found), ["mtu-differs"], "nothing else is blamed");
}

/// Numbers and PSNs that are crossed: each end with what it sent itself, one of an earlier connection.
#[test]
fn numbers_and_psns_that_are_crossed() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let (of_a, of_b) = (a.describe(&device), b.describe(&device));
    let mut wrong = of_b.clone();
    wrong.endpoint.qp_num = of_a.endpoint.qp_num;
    connect_as(&mut a, &wrong, &mut b, &of_a, impatient());
    assert_eq!(fails(&mut a, 0), 12);
    let seen = found(dumps(&a, &b));
    let own = format!(
        "dest_qp_num is {:#x}, which is its own",
        of_a.endpoint.qp_num
    );
    first(
        &seen,
        "qpn-differs",
        Weight::Certain,
        &[&own, &format!("{:#x}", of_b.endpoint.qp_num)],
    );
    assert_eq!(codes(&seen), ["qpn-differs"]);

    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let (mut of_a, of_b) = (a.describe(&device), b.describe(&device));
    of_a.endpoint.psn = of_b.endpoint.psn;
    connect_as(&mut a, &of_b, &mut b, &of_a, impatient());
    assert_eq!(fails(&mut a, 0), 12);
    let seen = found(dumps(&a, &b));
    let sends = a.qp.dump().qp.attributes.first_sq_psn.unwrap();
    first(
        &seen,
        "psn-differs",
        Weight::Certain,
        &[
            &format!("sq_psn is {:#08x}", sends.get()),
            "that is the peer's own sq_psn",
            "do not match",
        ],
    );
    assert_eq!(codes(&seen), ["psn-differs"]);
}

/// Among many ends, partners are found by what they say of each other, and one that has no partner by elimination.
#[test]
fn among_many_the_crossed_one_is_found() {
    let device = device(Profile::default());
    let ((a, _), (b, _)) = pair(&device, 64);
    let ((c, _), (d, _)) = pair(&device, 64);
    let (mut e, mut f) = (End::new(&device, 64), End::new(&device, 64));
    let (of_e, mut of_f) = (e.describe(&device), f.describe(&device));
    of_f.endpoint.qp_num ^= 1;
    connect_as(&mut e, &of_f, &mut f, &of_e, impatient());
    let ends = [&a, &e, &c, &b, &f, &d].map(|end| end.qp.dump());
    let seen = found(ends.to_vec());
    assert_eq!(codes(&seen), ["qpn-differs"]);
    assert!(
        seen[0]
            .end
            .as_ref()
            .unwrap()
            .ends_with(&format!("{:#x}", e.qp.qp_num()))
    );
}

/// The peer stayed in INIT; this end went on and sent.
#[test]
fn a_peer_that_is_not_ready() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let of_b = b.describe(&device);
    a.describe(&device);
    b.qp.init().unwrap();
    let agreed = a.qp.connect_begin(&of_b, impatient()).unwrap();
    a.qp.connect_finish(agreed, impatient()).unwrap();
    assert_eq!(fails(&mut a, 0), 12);
    let seen = found(dumps(&a, &b));
    first(
        &seen,
        "peer-not-ready",
        Weight::Certain,
        &["the peer is in INIT", "a barrier"],
    );
}

/// With one dump alone the likeliest causes of status 12 stand in order, and with both those that they exclude are gone.
#[test]
fn a_dead_peer_leaves_what_may_be() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let (of_a, of_b) = (a.describe(&device), b.describe(&device));
    connect_as(&mut a, &of_b, &mut b, &of_a, impatient());
    b.qp.to(ToErr).unwrap();
    assert_eq!(fails(&mut a, 0), 12);
    let alone = found(vec![a.qp.dump()]);
    assert_eq!(
        codes(&alone),
        [
            "peer-not-ready",
            "peer-gone",
            "qpn-differs",
            "psn-differs",
            "pkey-differs",
            "no-route",
            "firewall",
            "mtu-path",
            "timeout-short"
        ]
    );
    assert!(
        alone
            .iter()
            .all(|finding| finding.weight == Weight::Possible)
    );
    let both = found(dumps(&a, &b));
    assert_eq!(
        codes(&both),
        [
            "peer-gone",
            "no-route",
            "firewall",
            "mtu-path",
            "timeout-short"
        ]
    );
}

/// What worked before was set up rightly: numbers, PSNs, GIDs and ports are not suspected then.
#[test]
fn a_peer_that_died_meanwhile() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let (of_a, of_b) = (a.describe(&device), b.describe(&device));
    connect_as(&mut a, &of_b, &mut b, &of_a, impatient());
    let ticket = a.qp.write(NOTHING, of_b.regions[0].at(0)).unwrap();
    a.cq.wait(&ticket, LIMIT).unwrap();
    b.qp.to(ToErr).unwrap();
    assert_eq!(fails(&mut a, 0), 12);
    let alone = found(vec![a.qp.dump()]);
    assert_eq!(codes(&alone), ["peer-gone", "mtu-path", "timeout-short"]);
}

fn with_keys(pkeys: &[u16]) -> Device {
    let mut profile = Profile::default();
    profile.ports[0].pkeys = pkeys.to_vec();
    device(profile)
}

#[test]
fn two_partitions() {
    const FULL: u16 = 0xffff;
    for (keys, differ) in [
        ([FULL, 0x8001], true),
        ([0x0001, 0x8001], false),
        ([0x0001, 0x0001], true),
    ] {
        let device = with_keys(&keys);
        let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
        let gid = device.port(1).unwrap().best_gid().unwrap().entry();
        let describe = |end: &mut End, pkey_index| Peer {
            endpoint: end
                .qp
                .endpoint_with(
                    gid,
                    PathOptions {
                        pkey_index,
                        ..PathOptions::default()
                    },
                )
                .unwrap(),
            regions: vec![],
        };
        let (of_a, of_b) = (describe(&mut a, 0), describe(&mut b, 1));
        connect_as(&mut a, &of_b, &mut b, &of_a, impatient());
        if !differ {
            assert_eq!(
                codes(&found(dumps(&a, &b))),
                [""; 0],
                "a limited and a full member talk"
            );
            continue;
        }
        assert_eq!(fails(&mut a, 0), 12);
        let seen = found(dumps(&a, &b));
        let (here, there) = (format!("{:#06x}", keys[0]), format!("{:#06x}", keys[1]));
        let top = first(&seen, "pkey-differs", Weight::Certain, &[&here, &there]);
        assert_eq!(top.cause.contains("limited"), keys[0] == keys[1]);
        assert_eq!(codes(&seen), ["pkey-differs"]);
    }
}

/// What the peer's datagrams must carry, and what they carry.
#[test]
fn two_qkeys() {
    use crate::common::datagram::Member;
    let device = device(Profile::default());
    let (a, b) = (
        Member::with_key(&device, 0x1111_1111),
        Member::with_key(&device, 0x2222_2222),
    );
    assert_eq!(
        codes(&found(vec![a.qp.dump(), b.qp.dump()])),
        [""; 0],
        "each may have its own"
    );
    // The record of b as a got it, from before b took another key.
    let mut stale = a.qp.dump();
    let mut there = b.here.clone();
    there.qkey = Some(crate::common::datagram::qkey(0x1111_1111));
    stale.endpoint = Some(rdma_qp::dump::Ends {
        here: a.here.clone(),
        there: Some(there),
    });
    let seen = found(vec![stale, b.qp.dump()]);
    first(
        &seen,
        "qkey-differs",
        Weight::Certain,
        &["0x11111111", "0x22222222"],
    );
}

/// Status 13: how often it was tried, and what the peer asked for.
#[test]
fn no_receive_at_the_peer() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let timing = Timing {
        rnr_retry: RnrRetry::times(2).unwrap(),
        ..Timing::default()
    };
    let (of_a, of_b) = (a.describe(&device), b.describe(&device));
    connect_as(&mut a, &of_b, &mut b, &of_a, timing);
    assert_eq!(fails(&mut a, 0), 13);
    let seen = found(dumps(&a, &b));
    first(
        &seen,
        "no-receive",
        Weight::Certain,
        &[
            "the peer had no receive posted",
            "rnr_retry is 2: it was sent 3 times",
            "min_rnr_timer is 12 (640µs)",
            "0 receives posted",
        ],
    );
    assert_eq!(codes(&seen), ["no-receive"]);
    first(
        &found(vec![a.qp.dump()]),
        "no-receive",
        Weight::Likely,
        &["rnr_retry is 2"],
    );
}

/// Code 0 is the longest timer. What the counter of the kernel shows makes it sure.
#[test]
fn rnr_timer_zero() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let timing = Timing {
        min_rnr_timer: RnrTimer::from_code(0).unwrap(),
        ..Timing::default()
    };
    let (of_a, of_b) = (a.describe(&device), b.describe(&device));
    connect_as(&mut a, &of_b, &mut b, &of_a, timing);
    first(
        &found(vec![b.qp.dump()]),
        "rnr-timer-longest",
        Weight::Risk,
        &["655.36 ms", "set min_rnr_timer to 12"],
    );
    let sent = a.qp.send(NOTHING).unwrap();
    while rdma_soft::qp_stats(device.name(), b.qp.qp_num())
        .unwrap()
        .rnr_naks_sent
        == 0
    {
        std::thread::yield_now();
    }
    let mut seen = b.qp.dump();
    let naks = rdma_soft::qp_stats(device.name(), b.qp.qp_num())
        .unwrap()
        .rnr_naks_sent;
    seen.counters.insert("qp/rnr_naks_sent".into(), naks);
    first(
        &found(vec![seen]),
        "rnr-timer-longest",
        Weight::Certain,
        &["655.36 ms", "qp/rnr_naks_sent is 1"],
    );
    b.qp.recv(b.mr.slice(0, 8).unwrap()).unwrap();
    a.cq.wait(&sent, LIMIT).unwrap();
}

/// Half a millisecond there and back, with jitter, and a timeout of 1.05 ms three times: it fails; 14 cures it.
#[test]
fn a_timeout_below_the_round_trip() {
    let profile = || Profile {
        faults: "delay=250us,jitter=8ms,seed=5".parse().unwrap(),
        ..Profile::default()
    };
    let run = |code| {
        let (here, there) = (device(profile()), device(profile()));
        let (mut a, mut b) = (End::new(&here, 64), End::new(&there, 64));
        let timing = Timing {
            timeout: AckTimeout::from_code(code).unwrap(),
            retry_cnt: RetryCount::new(2).unwrap(),
            ..Timing::default()
        };
        let (of_a, of_b) = (a.describe(&here), b.describe(&there));
        connect_as(&mut a, &of_b, &mut b, &of_a, timing);
        let to = of_b.regions[0].at(0);
        // One may be quick; among so many some are not.
        let failed = (0..100).find_map(|_| {
            let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), to).unwrap();
            match a.cq.wait(&ticket, LIMIT) {
                Ok(_) => None,
                Err(WaitError::Failed(report)) => Some(report.status.0),
                Err(other) => panic!("{other}"),
            }
        });
        (failed, dumps(&a, &b))
    };
    let (failed, ends) = run(8);
    assert_eq!(failed, Some(12));
    assert_eq!(ends[1].qp.state, "RTS", "every state of the peer is right");
    let mut evidence = Evidence::default();
    (evidence.ends, evidence.rtt) = (ends, Some(Duration::from_micros(500).into()));
    let seen = diagnose(&evidence);
    first(
        &seen,
        "timeout-short",
        Weight::Likely,
        &["timeout 8 (1.048576ms)", "500µs", "set timeout to 12"],
    );
    let (failed, ends) = run(14);
    assert_eq!(failed, None);
    evidence.ends = ends;
    let seen = diagnose(&evidence);
    assert!(!codes(&seen).contains(&"timeout-short"), "{seen:?}");
}

/// A provider that refuses what the rules allow is no mistake of the caller's, and the state before the call is told.
#[test]
fn a_provider_that_refuses() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    qp.to(rdma_qp::ToReset).unwrap();
    fake.state()
        .answers
        .entry("modify_qp")
        .or_default()
        .push_back(22);
    qp.to(to_init()).unwrap_err();
    first(
        &found(vec![qp.dump()]),
        "provider-refused",
        Weight::Certain,
        &[
            "RESET -> INIT was refused by the provider, although the rules allow it",
            "before the call the QP was in RESET",
            "EINVAL (22)",
        ],
    );
    // Mended: history.
    qp.to(to_init()).unwrap();
    assert_eq!(codes(&found(vec![qp.dump()])), [""; 0]);
    // A mistake of the caller's is another finding, and names it.
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_RTS;
    qp.modify(&attr, IBV_QP_STATE).unwrap_err();
    first(
        &found(vec![qp.dump()]),
        "no-transition",
        Weight::Certain,
        &["INIT -> RTS", "before the call the QP was in INIT"],
    );
}

/// More READs under way than the peer serves.
#[test]
fn more_reads_than_the_peer_serves() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let (mut of_a, mut of_b) = (a.describe(&device), b.describe(&device));
    (of_b.endpoint.responder_depth, of_a.endpoint.initiator_depth) = (16, 4);
    connect_as(&mut a, &of_b, &mut b, &of_a, Timing::default());
    let seen = found(dumps(&a, &b));
    first(
        &seen,
        "rd-atomic-over-peer",
        Weight::Risk,
        &[
            "max_rd_atomic is 16",
            "max_dest_rd_atomic is 4",
            "set max_rd_atomic to 4",
        ],
    );
}

/// Every finding of the lint is one here, with the same code: there is one list.
#[test]
fn what_the_lint_finds_is_found() {
    let device = device(Profile::default());
    let ((a, _), _) = pair(&device, 64);
    let mut dump = a.qp.dump();
    let attributes = &mut dump.qp.attributes;
    (
        attributes.timeout,
        attributes.retry_cnt,
        attributes.rnr_retry,
    ) = (Some(0), Some(0), Some(0));
    dump.qp.cap.as_mut().unwrap().max_send_wr = 1;
    let linted: Vec<_> = lint::check(&dump.settings(None))
        .iter()
        .map(|finding| finding.code())
        .collect();
    assert_eq!(
        linted,
        [
            "timeout-infinite",
            "retry-cnt-zero",
            "rnr-retry-zero",
            "depth-one"
        ]
    );
    assert_eq!(codes(&found(vec![dump])), linted);
}
