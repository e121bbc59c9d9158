//! The other host's unicast address was given as the multicast group; the sender finished, nobody got anything.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::common::datagram::*;
use crate::common::device;
use rdma_qp::{DestinationError, Gid, McastError, NotAGroup};
use rdma_soft::Profile;

/// Neither joined nor sent to, and the error shows the form that a group has.
#[test]
fn is_refused_before_the_call_with_the_form_that_a_group_has() {
    let device = device(Profile::default());
    let mut p = Member::new(&device);
    let unicast: [Gid; 6] = [
        Ipv4Addr::new(192, 0, 2, 1).into(),
        Ipv4Addr::new(223, 255, 255, 255).into(),
        Ipv4Addr::new(240, 0, 0, 1).into(),
        Ipv6Addr::LOCALHOST.into(),
        Gid::default(),
        p.gid(),
    ];
    for gid in unicast {
        let error = p.qp.attach(gid, 0).unwrap_err();
        assert_eq!(error, McastError::NotAGroup(NotAGroup(gid)));
        for part in [
            &gid.to_string()[..],
            "multicast",
            "::ffff:224.0.0.0",
            "ff00::/8",
        ] {
            assert!(error.to_string().contains(part), "{error}");
        }
        let error = p.qp.group(gid, 0).unwrap_err();
        assert!(matches!(error, DestinationError::NotAGroup(_)), "{error}");
    }
    assert_eq!(p.qp.groups(), []);
    // The first and the last that are groups.
    for gid in [
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::new(239, 255, 255, 255),
    ] {
        p.qp.group(gid.into(), 0).unwrap();
    }
}
