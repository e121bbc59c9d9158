//! Troubles of GIDs, ports and the way between, of ends on the software device that have them.

use std::net::{IpAddr, Ipv4Addr};

use rdma_core_sys::*;
use rdma_qp::doctor::Weight;
use rdma_qp::{Access, Device, Global, Path, PathMtu, Psn, RnrTimer, Timing, ToInit, ToRtr, ToRts};
use rdma_soft::core::config::GidEntry;
use rdma_soft::profile::PortProfile;
use rdma_soft::{Profile, set_gid};

use crate::common::*;
use crate::ends::{fails, impatient};
use crate::{codes, first, found};

fn address(text: &str) -> IpAddr {
    text.parse::<Ipv4Addr>().unwrap().into()
}

pub fn to_init() -> ToInit {
    ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    }
}

/// On the way to a GID: RTR by hand.
fn rtr(end: &mut End, sgid_index: u8, dgid: IpAddr, hop_limit: u8) {
    end.qp.to(to_init()).unwrap();
    let path = Path {
        lid: 0,
        service_level: 0,
        global: Some(Global {
            dgid: dgid.into(),
            sgid_index,
            hop_limit,
            traffic_class: 0,
            flow_label: 0,
        }),
        port: 1,
    };
    let step = ToRtr {
        path,
        path_mtu: PathMtu::Mtu1024,
        dest_qp_num: 0x77,
        rq_psn: Psn::default(),
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::from_code(12).unwrap(),
    };
    end.qp.to(step).unwrap();
    let Timing {
        timeout,
        retry_cnt,
        rnr_retry,
        ..
    } = impatient();
    end.qp
        .to(ToRts {
            sq_psn: Psn::default(),
            timeout,
            retry_cnt,
            rnr_retry,
            max_rd_atomic: 1,
        })
        .unwrap();
}

/// A device with GIDs of other networks than its own, from which nothing comes back.
fn with_gids(gids: &[&str]) -> Device {
    let mut profile = Profile::default();
    let entry = |gid: &&str| GidEntry::v2(gid.parse().unwrap());
    profile.ports[0].gids = Some(gids.iter().map(entry).collect());
    device(profile)
}

/// A hop limit of 1 is blamed where the two addresses are of two subnets, and not where they are of one.
#[test]
fn a_hop_limit_of_one() {
    let device = with_gids(&["10.1.0.5"]);
    for (dgid, hop_limit, top) in [
        ("10.2.0.7", 1, "hop-limit"),
        ("10.1.0.7", 1, "peer-not-ready"),
        ("10.2.0.7", 64, "peer-not-ready"),
    ] {
        let mut end = End::new(&device, 64);
        rtr(&mut end, 0, address(dgid), hop_limit);
        assert_eq!(fails(&mut end, 0), 12);
        let seen = found(vec![end.qp.dump()]);
        assert_eq!(seen[0].code, top, "{dgid}, {hop_limit}: {seen:?}");
        assert_eq!(codes(&seen).contains(&"hop-limit"), top == "hop-limit");
        if top == "hop-limit" {
            first(
                &seen,
                "hop-limit",
                Weight::Likely,
                &[
                    "the first router drops every packet",
                    "10.1.0.5",
                    "set hop_limit to 64",
                ],
            );
        }
    }
}

/// An entry became one of RoCE v1 after the QP had taken it; requests end in status 12.
#[test]
fn a_gid_of_roce_v1() {
    let device = with_gids(&["10.1.0.5", "10.1.0.5"]);
    let mut end = End::new(&device, 64);
    rtr(&mut end, 0, address("10.1.0.7"), 64);
    let v1 = GidEntry {
        kind: rdma_soft::core::config::GidKind::RoceV1,
        ..GidEntry::v2(address("10.1.0.5"))
    };
    set_gid(device.name(), 1, 0, Some(v1)).unwrap();
    assert_eq!(fails(&mut end, 0), 12);
    let seen = found(vec![end.qp.dump()]);
    first(
        &seen,
        "gid-roce-v1",
        Weight::Likely,
        &["RoCE v1", "set ah_attr.grh.sgid_index to 1"],
    );
}

/// Both ends at link-local addresses, of which one is nobody's.
#[test]
fn link_local_gids() {
    let device = with_gids(&["fe80::1", "10.1.0.5"]);
    let mut end = End::new(&device, 64);
    rtr(&mut end, 0, "fe80::99".parse().unwrap(), 64);
    assert_eq!(fails(&mut end, 0), 12);
    let seen = found(vec![end.qp.dump()]);
    first(
        &seen,
        "gid-link-local",
        Weight::Likely,
        &["fe80::1", "here sgid_index 1 (::ffff:10.1.0.5, RoCE v2)"],
    );
}

/// Port 1 has nothing but zero GIDs, and was assumed; port 2 works.
#[test]
fn a_port_that_was_assumed() {
    let mut profile = Profile {
        ports: vec![PortProfile::default(), PortProfile::default()],
        ..Profile::default()
    };
    profile.ports[0].gids = Some(vec![GidEntry::EMPTY; 4]);
    let device = device(profile);
    let mut end = End::new(&device, 64);
    let (verbs, raw) = (rdma_soft::verbs(), end.qp.as_ptr());
    end.qp.to(to_init()).unwrap();
    // As the program did that asked for GID 0 of port 1: it is zero, and so was the one that it told its peer.
    let mut attr = ibv_qp_attr::zeroed();
    (attr.qp_state, attr.path_mtu, attr.dest_qp_num) = (IBV_QPS_RTR, IBV_MTU_1024, 5);
    (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 12);
    (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
    let mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    // SAFETY: the QP is live, `attr` is whole.
    let errno = unsafe { verbs.modify_qp(raw, &mut attr, mask.bits() as _) };
    assert_eq!(errno, 22);
    let refused = end.qp.modify(&attr, mask).unwrap_err();
    assert_eq!(refused.errno().raw_os_error(), 22);
    let seen = found(vec![end.qp.dump()]);
    first(
        &seen,
        "port-assumed",
        Weight::Certain,
        &[
            "port 1 has no GID at all",
            "a modify was refused",
            "port 2 is IBV_PORT_ACTIVE",
            "use port_num 2",
            "qp devices",
        ],
    );
    assert_eq!(codes(&seen), ["port-assumed"]);
}

#[test]
fn a_port_that_is_down() {
    let mut profile = Profile::default();
    profile.ports[0].up = false;
    let device = device(profile);
    let mut end = End::new(&device, 64);
    end.qp.to(to_init()).unwrap();
    first(
        &found(vec![end.qp.dump()]),
        "port-down",
        Weight::Certain,
        &["port 1 is IBV_PORT_DOWN"],
    );
}

/// The interface behind the GID carries less than the path MTU: told before anything is lost.
#[test]
fn an_interface_below_the_path_mtu() {
    let device = device(Profile::default());
    let ((a, _), _) = pair(&device, 64);
    let mut seen = a.qp.dump();
    // The software device's addresses are of no interface; an adapter's are.
    seen.gids[0].netdev_mtu = Some(1500);
    first(
        &found(vec![seen]),
        "mtu-over-interface",
        Weight::Risk,
        &["4096", "1500", "set path_mtu to 1024"],
    );
}
