//! GID index 0 or 1 timed out and index 3 worked: the first entries are link-local, and no router forwards them.

use std::net::Ipv4Addr;

use crate::common::*;
use crate::fake::{self, Fake, gid_entry};
use rdma_core_sys::*;
use rdma_qp::{Device, Gid, GidKind, Timing, Verdict};
use rdma_soft::Profile;

const ETIMEDOUT: i32 = 110;
const ENETUNREACH: i32 = 101;

/// The kernel's resolver ends with one of the two after seconds: the message says what it means, and between whom.
#[test]
fn a_modify_that_found_no_neighbour_says_so_with_both_gids() {
    for errno in [ETIMEDOUT, ENETUNREACH] {
        let fake = Fake::new();
        let device = Device::open(&fake::verbs(), "fake0").unwrap();
        let mut end = End::new(&device, 64);
        end.describe(&device);
        end.qp.init().unwrap();
        let mut there = End::new(&device, 64).describe(&device);
        there.endpoint.gid = Ipv4Addr::new(10, 0, 0, 99).into();
        fake.fail("modify_qp", errno);
        let error = end.qp.connect_begin(&there, Timing::default()).unwrap_err();
        let text = error.to_string();
        let expected =
            "no route to, or no neighbour ::ffff:10.0.0.99 from index 3 (::ffff:10.0.0.5, RoCE v2)";
        assert!(
            text.contains(expected) && text.contains(&format!("({errno})")),
            "{text}"
        );
        let rdma_qp::ConnectError::Modify(refused) = error else {
            panic!("{error:?}");
        };
        assert_eq!(refused.errno().raw_os_error(), errno);
        // At length with the network device.
        assert!(format!("{refused:#}").contains("netdev 7"), "{refused:#}");
    }
}

/// The entry that can reach an IPv4 peer is the same however the table is arranged.
#[test]
fn holes_and_order_do_not_change_the_choice() {
    let link_local = |index| gid_entry(1, index, "fe80::1", IBV_GID_TYPE_ROCE_V2);
    let mapped = |index| gid_entry(1, index, "::ffff:10.0.0.5", IBV_GID_TYPE_ROCE_V2);
    let v1 = |index| gid_entry(1, index, "::ffff:10.0.0.5", IBV_GID_TYPE_ROCE_V1);
    let peer: Gid = Ipv4Addr::new(10, 0, 0, 7).into();
    for (table, index) in [
        (vec![link_local(0), mapped(1)], 1),
        (vec![link_local(0), link_local(1), v1(2), mapped(3)], 3),
        (vec![link_local(5), mapped(6)], 6),
        (vec![mapped(0), link_local(1)], 0),
        (vec![v1(1), mapped(4), link_local(7)], 4),
    ] {
        let fake = Fake::new();
        fake.state().gids = table;
        let device = Device::open(&fake::verbs(), "fake0").unwrap();
        let port = device.port(1).unwrap();
        for choice in [port.best_gid().unwrap(), port.best_gid_for(peer).unwrap()] {
            let entry = choice.entry();
            assert_eq!((entry.index, entry.kind), (index, GidKind::RoceV2));
            assert!(
                choice.verdicts().iter().all(|(entry, verdict)| {
                    entry.gid.family() != rdma_qp::Family::LinkLocal
                        || *verdict == Verdict::LinkLocal
                }),
                "{choice}"
            );
        }
    }
}

/// On the software device: the table of the report, a peer with an IPv4 address.
#[test]
fn a_peer_with_an_ipv4_address_is_reached_from_one() {
    let local = "fe80::1".parse().unwrap();
    let mut profile = Profile::default();
    let v4 = Ipv4Addr::new(127, 88, 7, 1);
    profile.ports[0].addresses = vec![v4.into()];
    profile.ports[0].gids = Some(vec![
        rdma_soft::core::config::GidEntry::v2(local),
        rdma_soft::core::config::GidEntry::v2(v4.into()),
    ]);
    let device = device(profile);
    let choice = device.port(1).unwrap().best_gid_for(v4.into()).unwrap();
    assert_eq!(choice.entry().index, 1);
    let text = choice.to_string();
    assert!(
        text.contains("index 0 (fe80::1, RoCE v2): skipped: link-local, not routed"),
        "{text}"
    );
    let (mut p, mut q) = (End::new(&device, 64), End::new(&device, 64));
    connect((&mut p, &device), (&mut q, &device), Timing::default());
    let receive = q.qp.recv(q.mr.slice(0, 8).unwrap()).unwrap();
    let send = p.qp.send(p.mr.slice(0, 8).unwrap()).unwrap();
    p.cq.wait(&send, LIMIT).unwrap();
    q.cq.wait(&receive, LIMIT).unwrap();
}
