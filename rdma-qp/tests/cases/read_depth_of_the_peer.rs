//! Each side programmed `max_rd_atomic` with the number that the peer had advertised, which was more than its own device
//! can have under way.

use crate::common::*;
use rdma_core_sys::*;
use rdma_qp::{Device, Negotiated, PathMtu, Timing, ToReset};
use rdma_soft::Profile;

/// A device that can have `initiates` READs under way and serve `serves`.
fn with_depths(initiates: u8, serves: u8) -> Device {
    let mut profile = Profile::default();
    profile.caps.max_qp_init_rd_atom = initiates;
    profile.caps.max_qp_rd_atom = serves;
    device(profile)
}

/// The reproduction: A has 16, B has 4. B tries the peer's 16, then its own 4.
#[test]
fn one_above_the_own_limit_is_refused_and_the_limit_itself_is_not() {
    let (a, b) = (with_depths(16, 8), with_depths(4, 2));
    let (mut p, mut q) = (End::new(&a, 64), End::new(&b, 64));
    let (of_p, of_q) = (p.describe(&a), q.describe(&b));
    assert_eq!(
        (of_p.endpoint.initiator_depth, of_p.endpoint.responder_depth),
        (16, 8)
    );
    let timing = Timing::default();

    // What the peer can have under way is not what this device serves.
    q.qp.init().unwrap();
    let rtr = rdma_qp::ToRtr {
        path: rdma_qp::Path::new(
            b.port(1).unwrap().best_gid().unwrap().entry(),
            of_p.endpoint.gid,
        ),
        path_mtu: PathMtu::Mtu1024,
        dest_qp_num: of_p.endpoint.qp_num,
        rq_psn: of_p.endpoint.psn,
        max_dest_rd_atomic: 3,
        min_rnr_timer: timing.min_rnr_timer,
    };
    let error = q.qp.to(rtr).unwrap_err().to_string();
    assert!(
        error.contains("max_dest_rd_atomic is 3: must be 0 to 2"),
        "{error}"
    );
    q.qp.to(rdma_qp::ToRtr {
        max_dest_rd_atomic: 2,
        ..rtr
    })
    .unwrap();

    // Nor is what the peer serves what this device can have under way.
    let rts = rdma_qp::ToRts {
        sq_psn: of_q.endpoint.psn,
        timeout: timing.timeout,
        retry_cnt: timing.retry_cnt,
        rnr_retry: timing.rnr_retry,
        max_rd_atomic: 16,
    };
    for too_many in [16, 5] {
        let error =
            q.qp.to(rdma_qp::ToRts {
                max_rd_atomic: too_many,
                ..rts
            })
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("max_rd_atomic is {too_many}: must be 0 to 4")),
            "{text}"
        );
        assert_eq!(q.qp.state().unwrap(), IBV_QPS_RTR);
    }
    q.qp.to(rdma_qp::ToRts {
        max_rd_atomic: 4,
        ..rts
    })
    .unwrap();

    // The helper gives each direction the smaller of what one asks for and the other serves.
    q.qp.to(ToReset).unwrap();
    let seen_from_a = Negotiated::between(&of_p.endpoint, &of_q.endpoint);
    let seen_from_b = Negotiated::between(&of_q.endpoint, &of_p.endpoint);
    assert_eq!(
        (seen_from_a.max_rd_atomic, seen_from_a.max_dest_rd_atomic),
        (2, 4)
    );
    assert_eq!(
        (seen_from_b.max_rd_atomic, seen_from_b.max_dest_rd_atomic),
        (4, 2)
    );
    connect((&mut p, &a), (&mut q, &b), timing);
    for (end, initiates, serves) in [(&p, 2, 4), (&q, 4, 2)] {
        let attr = end.qp.query().unwrap().attr;
        assert_eq!(
            (attr.max_rd_atomic, attr.max_dest_rd_atomic),
            (initiates, serves)
        );
    }
}

/// The same for the path MTU.
#[test]
fn the_path_mtu_is_the_smaller_of_both() {
    let with_mtu = |active_mtu| {
        let mut profile = Profile::default();
        profile.ports[0].active_mtu = active_mtu;
        device(profile)
    };
    let (a, b) = (with_mtu(4096), with_mtu(512));
    let (p, q) = (End::new(&a, 64).describe(&a), End::new(&b, 64).describe(&b));
    let agreed = Negotiated::between(&p.endpoint, &q.endpoint);
    assert_eq!(agreed.path_mtu, PathMtu::Mtu512);
    assert_eq!(
        Negotiated::between(&q.endpoint, &p.endpoint).path_mtu,
        agreed.path_mtu
    );
}
