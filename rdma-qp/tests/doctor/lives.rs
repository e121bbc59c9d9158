//! Former lives, several processes, and devices that do otherwise.

use rdma_qp::doctor::{Evidence, Weight, diagnose};
use rdma_qp::{NOTHING, RetryCount, Timing, ToErr};
use rdma_soft::Profile;

use crate::common::*;
use crate::ends::{connect_as, dumps, fails, impatient};
use crate::{codes, first, found};

/// What only the kernel's soft-RoCE does: its vendor number and its counter are put into the dump of an end that waits.
#[test]
fn soft_roce_repeats_for_ever() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let timing = Timing {
        retry_cnt: RetryCount::new(7).unwrap(),
        ..Timing::default()
    };
    let (of_a, of_b) = (a.describe(&device), b.describe(&device));
    connect_as(&mut a, &of_b, &mut b, &of_a, timing);
    let waiting = a.qp.send(NOTHING).unwrap();
    let mut seen = a.qp.dump();
    let repeated = "hw_counters/completer_retry_err";
    seen.counters.insert(repeated.into(), 9);
    assert_eq!(codes(&found(vec![seen.clone()])), [""; 0], "not soft-RoCE");
    seen.device.vendor_id = 0xff_ffff;
    first(
        &found(vec![seen.clone()]),
        "repeats-for-ever",
        Weight::Likely,
        &[
            "retry_cnt is 7; 1 sends",
            "completer_retry_err is 9",
            "retry_cnt to 6 or less",
            "5.10",
        ],
    );
    seen.qp.attributes.retry_cnt = Some(6);
    assert_eq!(codes(&found(vec![seen])), [""; 0]);
    b.qp.recv(NOTHING).unwrap();
    a.cq.wait(&waiting, LIMIT).unwrap();
    assert_eq!(codes(&found(vec![a.qp.dump()])), [""; 0]);
}

/// A failure explains nothing any more when the connection has been made anew.
#[test]
fn a_failure_of_a_former_life() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let (of_a, of_b) = (a.describe(&device), b.describe(&device));
    connect_as(&mut a, &of_b, &mut b, &of_a, impatient());
    b.qp.to(ToErr).unwrap();
    assert_eq!(fails(&mut a, 0), 12);
    assert_eq!(codes(&found(dumps(&a, &b)))[0], "peer-gone");
    for end in [&mut a, &mut b] {
        end.qp.to(rdma_qp::ToReset).unwrap();
    }
    // In RESET it still says why it failed.
    assert!(codes(&found(vec![a.qp.dump()])).contains(&"peer-gone"));
    connect((&mut a, &device), (&mut b, &device), Timing::default());
    assert!(a.qp.dump().last_error.is_some(), "the dump keeps it");
    assert_eq!(codes(&found(dumps(&a, &b))), [""; 0]);
    assert_eq!(codes(&found(vec![a.qp.dump()])), [""; 0]);
}

/// Ends of two processes are told apart, and so are those of two hosts; a process that was killed answers nobody.
#[test]
fn ends_of_several_processes() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let (of_a, of_b) = (a.describe(&device), b.describe(&device));
    connect_as(&mut a, &of_b, &mut b, &of_a, impatient());
    let before = b.qp.dump();
    b.qp.to(ToErr).unwrap();
    assert_eq!(fails(&mut a, 0), 12);
    let mut evidence = Evidence::default();
    evidence.ends = vec![a.qp.dump(), before];
    let own = evidence.ends[0].taken.pid;
    evidence.ends[1].taken.pid = own + 1;
    evidence.killed = vec![own + 1];
    let seen = diagnose(&evidence);
    let top = first(
        &seen,
        "peer-gone",
        Weight::Likely,
        &[
            "was killed, or crashed",
            &format!("of process {} is gone", own + 1),
        ],
    );
    assert!(top.end.unwrap().ends_with(&format!(" of process {own}")));
    evidence.killed.clear();
    evidence.ends[1].taken.host = Some("elsewhere".into());
    evidence.ends[0].taken.host = Some("here".into());
    let seen = diagnose(&evidence);
    assert_eq!(seen[0].weight, Weight::Possible);
    assert!(
        seen[0].end.as_ref().unwrap().ends_with(" on here"),
        "{seen:?}"
    );
}

/// With the dumps of both ends alone, without what the software device notes, rights are compared.
#[test]
fn rights_of_the_peers_qp() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let cq = device.create_cq(64).unwrap();
    let narrow = b.pd.rc(&cq).access(rdma_qp::Access::REMOTE_WRITE);
    (b.qp, b.cq) = (narrow.create().unwrap(), cq);
    let (of_a, of_b) = (a.describe(&device), b.describe(&device));
    connect_as(&mut a, &of_b, &mut b, &of_a, impatient());
    let read = a.qp.read(a.mr.slice(0, 8).unwrap(), of_b.regions[0].at(0));
    assert!(a.cq.wait(&read.unwrap(), LIMIT).is_err());
    first(
        &found(dumps(&a, &b)),
        "qp-access",
        Weight::Certain,
        &[
            "RDMA READ failed",
            "lack IBV_ACCESS_REMOTE_READ",
            "are REMOTE_WRITE",
        ],
    );
    // Of one end alone, what a READ cannot fail by is left out: it takes no receive, and is no atomic.
    assert_eq!(
        codes(&found(vec![a.qp.dump()])),
        ["qp-access", "mtu-differs"]
    );
}
