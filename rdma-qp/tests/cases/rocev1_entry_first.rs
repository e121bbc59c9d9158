//! Each address is twice in the table, and the RoCE v1 entry came first: connecting worked, every transfer died.

use std::net::Ipv4Addr;

use crate::common::*;
use rdma_core_sys::*;
use rdma_qp::{Device, GidKind, PathOptions, Timing, Verdict};
use rdma_soft::Profile;
use rdma_soft::core::config::{GidEntry, GidKind as SoftKind};

/// A device with the table [v1 IPv4-mapped, v2 IPv4-mapped].
fn both_versions(last: u8) -> Device {
    let v4 = Ipv4Addr::new(127, 88, 10, last);
    let mut profile = Profile::default();
    profile.ports[0].addresses = vec![v4.into()];
    let v2 = GidEntry::v2(v4.into());
    let v1 = GidEntry {
        kind: SoftKind::RoceV1,
        ..v2
    };
    profile.ports[0].gids = Some(vec![v1, v2]);
    device(profile)
}

#[test]
fn version_one_is_never_chosen() {
    let device = both_versions(1);
    let choice = device.port(1).unwrap().best_gid().unwrap();
    assert_eq!(
        (choice.entry().index, choice.entry().kind),
        (1, GidKind::RoceV2)
    );
    assert_eq!(choice.verdicts()[0].1, Verdict::RoceV1);
}

/// Asked for by its index it is refused at RTR, long before a status 12.
#[test]
fn version_one_is_refused_at_rtr() {
    let (a, b) = (both_versions(2), both_versions(3));
    let (mut p, mut q) = (End::new(&a, 64), End::new(&b, 64));
    let there = q.describe(&b);
    let v1 = a.port(1).unwrap().gid(0).unwrap();
    p.qp.endpoint_with(v1, PathOptions::default()).unwrap();
    let error = p.qp.connect_begin(&there, Timing::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("sgid_index 0 is ::ffff:127.88.10.2 of type RoCE v1, which is not supported here: choose index 1"),
        "{text}"
    );
    assert_eq!(p.qp.state().unwrap(), IBV_QPS_INIT);
    // The dump shows which entry it is and which is better.
    let dump = p.qp.dump();
    assert_eq!(
        (dump.gids[0].kind, dump.gids[1].kind),
        (GidKind::RoceV1, GidKind::RoceV2)
    );
    assert!(dump.last_error.unwrap().text.contains("RoCE v1"));
}
