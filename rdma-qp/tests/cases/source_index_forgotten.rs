//! The GRH was filled in except for `sgid_index`, whose zero pointed at a link-local entry.

use std::net::Ipv4Addr;

use crate::common::*;
use rdma_core_sys::*;
use rdma_qp::{Device, Timing};
use rdma_soft::Profile;

/// A device with the table [fe80 v2, IPv4-mapped v2], at an address that ends in `last`.
fn two_families(last: u8) -> (Device, Ipv4Addr) {
    let v4 = Ipv4Addr::new(127, 88, 8, last);
    let mut profile = Profile::default();
    profile.ports[0].addresses = vec![v4.into()];
    profile.ports[0].gids = Some(vec![
        rdma_soft::core::config::GidEntry::v2("fe80::1".parse().unwrap()),
        rdma_soft::core::config::GidEntry::v2(v4.into()),
    ]);
    (device(profile), v4)
}

/// By hand, as the report has it: dgid right, sgid_index never set.
#[test]
fn both_gids_and_the_index_are_named() {
    let (device, v4) = two_families(1);
    let mut end = End::new(&device, 64);
    end.describe(&device);
    end.qp.init().unwrap();
    let mut attr = ibv_qp_attr::zeroed();
    (attr.qp_state, attr.path_mtu, attr.dest_qp_num) = (IBV_QPS_RTR, IBV_MTU_1024, 7);
    (attr.ah_attr.port_num, attr.ah_attr.is_global) = (1, 1);
    attr.ah_attr.grh.dgid = ibv_gid::from_raw(v4.to_ipv6_mapped().octets());
    let mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    let text = end.qp.modify(&attr, mask).unwrap_err().to_string();
    let expected = format!(
        "sgid_index 0 is fe80::1 (link-local, RoCE v2) but dgid is ::ffff:{v4} (IPv4): choose index 1 (::ffff:{v4}, RoCE v2)"
    );
    assert!(text.contains(&expected), "{text}");
    attr.ah_attr.grh.sgid_index = 1;
    end.qp.modify(&attr, mask).unwrap();
}

/// There is no default: a description takes an entry, with its index, that was chosen or asked for. And an entry knows its
/// port, so the two numbers cannot be given in the wrong places.
#[test]
fn a_description_names_the_entry_that_it_uses() {
    let (device, v4) = two_families(2);
    let port = device.port(1).unwrap();
    let (mut p, mut q) = (End::new(&device, 64), End::new(&device, 64));
    // On purpose the wrong one.
    let wrong = p.qp.endpoint(port.gid(0).unwrap()).unwrap();
    assert_eq!(wrong.gid.to_string(), "fe80::1");
    let there = q.describe(&device);
    assert_eq!(there.endpoint.gid, v4.into());
    let error = p.qp.connect_begin(&there, Timing::default()).unwrap_err();
    assert!(error.to_string().contains("choose index 1"), "{error}");
    assert_eq!(p.qp.state().unwrap(), IBV_QPS_INIT);
    p.qp.endpoint(port.best_gid_for(there.endpoint.gid).unwrap())
        .unwrap();
    p.qp.connect_begin(&there, Timing::default()).unwrap();
    let av = p.qp.query().unwrap().attr.ah_attr;
    assert_eq!((av.port_num, av.grh.sgid_index), (1, 1));
}
