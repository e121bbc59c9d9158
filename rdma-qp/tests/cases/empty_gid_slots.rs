//! The usable GIDs were at indices 4 to 7 and everything below was zeros.

use crate::common::*;
use crate::fake::{self, Fake, gid_entry};
use rdma_core_sys::*;
use rdma_qp::{Device, GidError, Path, PathMtu, Timing, ToRtr};

/// Entries at 4 and 6 only.
fn with_holes() -> (Fake, Device) {
    let fake = Fake::new();
    fake.state().gids = vec![
        gid_entry(1, 4, "fe80::1", IBV_GID_TYPE_ROCE_V2),
        gid_entry(1, 6, "::ffff:10.0.0.5", IBV_GID_TYPE_ROCE_V2),
    ];
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    (fake, device)
}

#[test]
fn an_empty_slot_is_an_answer_of_its_own_and_does_not_end_the_table() {
    let (_fake, device) = with_holes();
    let port = device.port(1).unwrap();
    let indices: Vec<u32> = port
        .gids()
        .unwrap()
        .iter()
        .map(|entry| entry.index)
        .collect();
    assert_eq!(indices, [4, 6]);
    let error = port.gid(0).unwrap_err();
    assert!(matches!(&error, GidError::Empty { index: 0, filled, .. } if filled.len() == 2));
    assert_eq!(
        error.to_string(),
        "GID index 0 of fake0/1 is empty; filled are index 4 (fe80::1, RoCE v2), index 6 (::ffff:10.0.0.5, RoCE v2)"
    );
    assert_eq!(port.best_gid().unwrap().entry().index, 6);
}

#[test]
fn rtr_from_an_empty_slot_and_to_an_empty_gid_are_two_errors() {
    let (fake, device) = with_holes();
    let mut end = End::new(&device, 64);
    end.describe(&device);
    end.qp.init().unwrap();
    let source = device.port(1).unwrap().best_gid().unwrap().entry();
    let peer = std::net::Ipv4Addr::new(10, 0, 0, 7).into();
    let rtr = |path| ToRtr {
        path,
        path_mtu: PathMtu::Mtu1024,
        dest_qp_num: 7,
        rq_psn: Default::default(),
        max_dest_rd_atomic: 1,
        min_rnr_timer: Timing::default().min_rnr_timer,
    };
    let mut hole = Path::new(source, peer);
    hole.global.as_mut().unwrap().sgid_index = 0;
    let text = end.qp.to(rtr(hole)).unwrap_err().to_string();
    assert!(
        text.contains("sgid_index 0 is an empty slot of the GID table; filled are index 4")
            && text.contains("index 6 (::ffff:10.0.0.5"),
        "{text}"
    );
    let text = end
        .qp
        .to(rtr(Path::new(source, Default::default())))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("dgid is all zero: fill in the GID that the peer sent"),
        "{text}"
    );
    assert_eq!(fake.count("modify_qp"), 1, "only the move to INIT");
    end.qp.to(rtr(Path::new(source, peer))).unwrap();
}

#[test]
fn no_usable_gid_says_why_and_what_to_do() {
    let (fake, device) = with_holes();
    fake.state().gids.truncate(1);
    let text = device.port(1).unwrap().best_gid().unwrap_err().to_string();
    assert!(
        text.contains("give the interface an IPv4 address")
            && text.contains("index 4 (fe80::1, RoCE v2): skipped: link-local"),
        "{text}"
    );
    fake.state().gids.clear();
    let text = device.port(1).unwrap().best_gid().unwrap_err().to_string();
    assert!(
        text.contains("the table is empty: bring the network interface"),
        "{text}"
    );
}
