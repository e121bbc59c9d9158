//! The remote LID was filled in, `is_global` left at 0, and RTR said 22 about a port that has no LIDs.

use crate::common::*;
use rdma_core_sys::*;
use rdma_qp::{Path, PathMtu, Timing, ToRtr};
use rdma_soft::Profile;

/// By hand it is refused, with what to fill in.
#[test]
fn a_path_without_a_gid_is_refused_with_the_fields_to_fill_in() {
    let device = device(Profile::default());
    let mut end = End::new(&device, 64);
    let there = End::new(&device, 64).describe(&device).endpoint;
    end.describe(&device);
    end.qp.init().unwrap();
    let timing = Timing::default();
    let rtr = ToRtr {
        path: Path {
            port: 1,
            lid: 1,
            service_level: 0,
            global: None,
        },
        path_mtu: PathMtu::Mtu1024,
        dest_qp_num: there.qp_num,
        rq_psn: there.psn,
        max_dest_rd_atomic: 1,
        min_rnr_timer: timing.min_rnr_timer,
    };
    let error = end.qp.to(rtr).unwrap_err();
    assert!(error.refused_before_call());
    let text = error.to_string();
    for part in ["is_global is 0", "GRH", "grh.dgid", "grh.sgid_index"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(end.qp.state().unwrap(), IBV_QPS_INIT);
}

/// Connecting takes the peer's description, which has a GID and cannot be without: there is no way to leave it out.
#[test]
fn connecting_always_addresses_by_gid() {
    let device = device(Profile::default());
    let (mut p, mut q) = (End::new(&device, 64), End::new(&device, 64));
    let (of_q, of_p) = connect((&mut p, &device), (&mut q, &device), Timing::default());
    for (end, peer) in [(&p, of_q), (&q, of_p)] {
        let av = end.qp.query().unwrap().attr.ah_attr;
        assert_eq!(
            (av.is_global, av.grh.dgid.raw),
            (1, peer.endpoint.gid.bytes())
        );
    }
}

/// A peer whose record has no GID is refused by its own error, and not by a timeout.
#[test]
fn a_peer_without_a_gid_is_refused() {
    let device = device(Profile::default());
    let mut end = End::new(&device, 64);
    let mut there = End::new(&device, 64).describe(&device);
    there.endpoint.gid = rdma_qp::Gid::default();
    end.describe(&device);
    let error = end.qp.connect_begin(&there, Timing::default()).unwrap_err();
    assert!(error.to_string().contains("dgid is all zero"), "{error}");
}
