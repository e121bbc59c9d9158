//! 20 retries were asked for: an old driver cut them to three bits, a new one said 22, and the program guessed wrong.

use crate::common::*;
use rdma_core_sys::*;
use rdma_qp::{
    Negotiated, Path, PathMtu, Peer, Problem, Psn, Qp, Timing, ToInit, ToRtr, ToRts, Transition,
};
use rdma_soft::Profile;

fn to_init() -> ToInit {
    ToInit {
        port: 1,
        pkey_index: 0,
        access: all(),
    }
}

/// To RTR, towards `there`.
fn to_rtr(device: &rdma_qp::Device, there: &Peer) -> ToRtr {
    let source = device.port(1).unwrap().best_gid().unwrap().entry();
    ToRtr {
        path: Path::new(source, there.endpoint.gid),
        path_mtu: PathMtu::Mtu1024,
        dest_qp_num: there.endpoint.qp_num,
        rq_psn: there.endpoint.psn,
        max_dest_rd_atomic: 1,
        min_rnr_timer: Timing::default().min_rnr_timer,
    }
}

fn to_rts() -> ToRts {
    let timing = Timing::default();
    ToRts {
        sq_psn: Psn::new(7).unwrap(),
        timeout: timing.timeout,
        retry_cnt: timing.retry_cnt,
        rnr_retry: timing.rnr_retry,
        max_rd_atomic: 1,
    }
}

/// The call of a typed transition, to be spoiled.
fn call(qp: &Qp, transition: &dyn Transition) -> (ibv_qp_attr, ibv_qp_attr_mask) {
    transition.lower(qp.query().unwrap().transport)
}

/// All fields that these moves set.
fn fields(qp: &Qp) -> impl PartialEq + std::fmt::Debug + use<> {
    let attr = qp.query().unwrap().attr;
    (
        (attr.qp_state, attr.path_mtu, attr.dest_qp_num, attr.rq_psn),
        (attr.sq_psn, attr.timeout, attr.retry_cnt, attr.rnr_retry),
        (
            attr.max_rd_atomic,
            attr.max_dest_rd_atomic,
            attr.min_rnr_timer,
        ),
    )
}

#[test]
fn each_field_out_of_range_is_named_with_its_value_and_range_and_changes_nothing() {
    let device = device(Profile::default());
    let mut end = End::new(&device, 64);
    let there = End::new(&device, 64).describe(&device);
    end.qp.to(to_init()).unwrap();

    let before = fields(&end.qp);
    let (mut attr, mask) = call(&end.qp, &to_rtr(&device, &there));
    attr.min_rnr_timer = 32;
    let refused = end.qp.modify(&attr, mask).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("min_rnr_timer is 32: must be 0 to 31"),
        "{refused}"
    );
    assert_eq!(refused.errno().raw_os_error(), 22);
    assert_eq!(fields(&end.qp), before);

    end.qp.to(to_rtr(&device, &there)).unwrap();
    let before = fields(&end.qp);
    type Spoil = fn(&mut ibv_qp_attr);
    let spoils: [(Spoil, &str); 3] = [
        (
            |attr| attr.retry_cnt = 20,
            "retry_cnt is 20: must be 0 to 7",
        ),
        (|attr| attr.rnr_retry = 8, "rnr_retry is 8: must be 0 to 7"),
        (|attr| attr.timeout = 32, "timeout is 32: must be 0 to 31"),
    ];
    for (spoil, text) in spoils {
        let (mut attr, mask) = call(&end.qp, &to_rts());
        spoil(&mut attr);
        let refused = end.qp.modify(&attr, mask).unwrap_err();
        assert!(refused.to_string().contains(text), "{refused}");
        assert_eq!(refused.errno().raw_os_error(), 22);
        assert_eq!(refused.problems.len(), 1);
        assert_eq!(fields(&end.qp), before, "all or nothing");
    }
    end.qp.to(to_rts()).unwrap();
}

/// What the program tried next: another MTU in the same structure, on a move that has none.
#[test]
fn an_mtu_in_the_structure_counts_only_with_its_bit_and_not_on_the_way_to_rts() {
    let device = device(Profile::default());
    let mut end = End::new(&device, 64);
    let there = End::new(&device, 64).describe(&device);
    end.qp.to(to_init()).unwrap();
    end.qp.to(to_rtr(&device, &there)).unwrap();
    let (mut attr, mask) = call(&end.qp, &to_rts());
    attr.path_mtu = IBV_MTU_256;
    let refused = end.qp.modify(&attr, mask | IBV_QP_PATH_MTU).unwrap_err();
    assert!(
        refused.to_string().contains("not allowed IBV_QP_PATH_MTU"),
        "{refused}"
    );
    assert!(matches!(refused.problems[..], [Problem::Mask(_)]));
    end.qp.modify(&attr, mask).unwrap();
    assert_eq!(end.qp.query().unwrap().attr.path_mtu, IBV_MTU_1024);
}

/// Where it ended: two ends with two MTUs. A message of more than one packet is then an invalid request to the receiver.
#[test]
fn ends_with_two_mtus_fail_at_the_first_long_message_and_the_report_says_so() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 4096), End::new(&device, 4096));
    let (mut of_a, mut of_b) = (a.describe(&device), b.describe(&device));
    // The record says what the port can do; here each end believes something else.
    of_b.endpoint.mtu = PathMtu::Mtu2048;
    of_a.endpoint.mtu = PathMtu::Mtu1024;
    let timing = Timing::default();
    let agreed: Negotiated = a.qp.connect_begin(&of_b, timing).unwrap();
    let also = b.qp.connect_begin(&of_a, timing).unwrap();
    assert_eq!(
        (agreed.path_mtu, also.path_mtu),
        (PathMtu::Mtu2048, PathMtu::Mtu1024)
    );
    a.qp.connect_finish(agreed, timing).unwrap();
    b.qp.connect_finish(also, timing).unwrap();
    b.qp.recv(b.mr.slice(0, 4096).unwrap()).unwrap();
    let sent = a.qp.send(a.mr.slice(0, 2000).unwrap()).unwrap();
    let text = a.cq.wait(&sent, LIMIT).unwrap_err().to_string();
    assert!(
        text.contains("IBV_WC_REM_INV_REQ_ERR (9)") && text.contains("the path MTUs differ"),
        "{text}"
    );
}
