use super::*;
use crate::units::Timing;

/// The state before, and a transition from it.
type Step = (ibv_qp_state, Box<dyn Transition>);

fn connected() -> Vec<Step> {
    let timing = Timing::default();
    let path = Path {
        port: 1,
        lid: 0,
        service_level: 0,
        global: None,
    };
    let init = ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    };
    let rtr = ToRtr {
        path,
        path_mtu: PathMtu::Mtu1024,
        dest_qp_num: 1,
        rq_psn: Psn::default(),
        max_dest_rd_atomic: 1,
        min_rnr_timer: timing.min_rnr_timer,
    };
    let rts = ToRts {
        sq_psn: Psn::default(),
        timeout: timing.timeout,
        retry_cnt: timing.retry_cnt,
        rnr_retry: timing.rnr_retry,
        max_rd_atomic: 1,
    };
    vec![
        (IBV_QPS_RESET, Box::new(init)),
        (IBV_QPS_INIT, Box::new(rtr)),
        (IBV_QPS_RTR, Box::new(rts)),
    ]
}

fn datagram() -> Vec<Step> {
    let sq_psn = Psn::default();
    let (port, pkey_index, qkey) = (1, 0, 0x1111_1111);
    let init = ToInitUd {
        port,
        pkey_index,
        qkey,
    };
    vec![
        (IBV_QPS_RESET, Box::new(init)),
        (IBV_QPS_INIT, Box::new(ToRtrUd)),
        (IBV_QPS_RTR, Box::new(ToRtsUd { sq_psn })),
    ]
}

fn of_all() -> Vec<Step> {
    vec![
        (IBV_QPS_RTS, Box::new(ToSqd { notify: false })),
        (IBV_QPS_RTS, Box::new(ToSqd { notify: true })),
        (IBV_QPS_RTS, Box::new(ToErr)),
        (IBV_QPS_ERR, Box::new(ToReset)),
    ]
}

/// The masks of ibv_modify_qp(3), "the following table", besides IBV_QP_STATE.
#[test]
fn each_transport_sets_what_the_manual_requires() {
    let rc = [
        IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER,
        IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC,
    ];
    let uc = [
        IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
        IBV_QP_SQ_PSN,
    ];
    let ud = [
        IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        ibv_qp_attr_mask::empty(),
        IBV_QP_SQ_PSN,
    ];
    let cases = [
        (rules::Transport::Rc, connected(), rc),
        (rules::Transport::Uc, connected(), uc),
        (rules::Transport::Ud, datagram(), ud),
    ];
    for (transport, steps, manual) in cases {
        for ((from, step), manual) in steps.iter().zip(manual) {
            let (attr, mask) = step.lower(transport);
            assert_eq!(
                mask,
                manual | IBV_QP_STATE,
                "{from} -> {} on {transport}",
                attr.qp_state
            );
        }
    }
}

#[test]
fn what_is_lowered_is_allowed_on_every_transport_that_has_it() {
    let cases = [
        (rules::Transport::Rc, connected()),
        (rules::Transport::Uc, connected()),
        (rules::Transport::XrcIni, connected()),
        (rules::Transport::XrcTgt, connected()),
        (rules::Transport::Ud, datagram()),
    ];
    for (transport, steps) in cases {
        for (from, step) in steps.iter().chain(&of_all()) {
            let (attr, mask) = step.lower(transport);
            let verdict = rules::check(transport, *from, attr.qp_state, mask);
            assert!(
                verdict.is_ok_and(|verdict| verdict.ignored.is_empty()),
                "{from} -> {} on {transport}: {verdict:?}",
                attr.qp_state
            );
        }
    }
}

/// A transition of another transport lacks something, and is refused rather than made without it.
#[test]
fn a_transition_of_another_transport_is_refused() {
    let (_, init) = &connected()[0];
    let (attr, mask) = init.lower(rules::Transport::Ud);
    let refusal =
        rules::check(rules::Transport::Ud, IBV_QPS_RESET, attr.qp_state, mask).unwrap_err();
    assert_eq!(refusal.missing, IBV_QP_QKEY);
}
