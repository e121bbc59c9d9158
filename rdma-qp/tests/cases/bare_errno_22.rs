//! The log said "ibv_modify_qp failed: 22" and nothing else; 22 has a dozen causes.

use crate::fake::{self, Fake};
use rdma_core_sys::*;
use rdma_qp::{
    Access, Device, Errno, Global, ModifyError, Path, PathMtu, Psn, Qp, RnrTimer, ToInit, ToRtr,
    Transition,
};

/// A QP in INIT on the provider for tests, whose port has an active MTU of 1024.
fn in_init() -> Qp {
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    qp.to(ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    })
    .unwrap();
    qp
}

/// The right call.
fn to_rtr() -> (ibv_qp_attr, ibv_qp_attr_mask) {
    let global = Global {
        dgid: std::net::Ipv4Addr::new(10, 0, 0, 7).into(),
        sgid_index: 3,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
    };
    let rtr = ToRtr {
        path: Path {
            port: 1,
            lid: 0,
            service_level: 0,
            global: Some(global),
        },
        path_mtu: PathMtu::Mtu1024,
        dest_qp_num: 0x77,
        rq_psn: Psn::new(1).unwrap(),
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::from_code(12).unwrap(),
    };
    rtr.lower(rules::Transport::Rc)
}

/// The three wrong calls: an attribute missing, one too many, one over the port's limit.
fn three(qp: &mut Qp) -> [ModifyError; 3] {
    let (attr, mask) = to_rtr();
    let mut large = attr;
    large.path_mtu = IBV_MTU_4096;
    [
        (attr, mask - IBV_QP_MIN_RNR_TIMER),
        (attr, mask | IBV_QP_TIMEOUT),
        (large, mask),
    ]
    .map(|(attr, mask)| qp.modify(&attr, mask).unwrap_err())
}

#[test]
fn three_causes_of_one_errno_give_three_reports() {
    let fake = Fake::new();
    let mut qp = in_init();
    let before = fake.count("modify_qp");
    let errors = three(&mut qp);
    for (error, cause) in errors.iter().zip([
        "missing IBV_QP_MIN_RNR_TIMER",
        "not allowed IBV_QP_TIMEOUT",
        "path_mtu is 4096 bytes: the port's active MTU is 1024",
    ]) {
        let head = format!("INIT -> RTR refused on fake0/1 QP {:#x}: ", qp.qp_num());
        assert_eq!(
            error.to_string(),
            format!("{head}{cause}. Nothing was changed.")
        );
        assert_eq!(error.errno().raw_os_error(), 22, "what verbs would say");
    }
    assert_eq!(fake.count("modify_qp"), before, "the device was not asked");
}

#[test]
fn the_long_form_has_all_that_an_operator_asks_for() {
    let _fake = Fake::new();
    let mut qp = in_init();
    let [_, _, error] = three(&mut qp);
    let text = format!("{error:#}");
    for part in [
        "fake0/1",
        &format!("QP {:#x}", qp.qp_num()),
        "INIT -> RTR",
        "transport RC",
        "mask IBV_QP_STATE, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_RQ_PSN, IBV_QP_MIN_RNR_TIMER, \
         IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN",
        "path_mtu 4096, active MTU of the port 1024",
        "dgid ::ffff:10.0.0.7, sgid_index 3",
        "local GID: index 3 (::ffff:10.0.0.5, RoCE v2)",
        "dest_qp_num 0x77",
        "the provider was not called",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    // The same as values, for a program that is to react.
    assert_eq!(
        (error.device.as_str(), error.port, error.qp_num),
        ("fake0", Some(1), qp.qp_num())
    );
    assert_eq!(
        (error.from, error.to, error.active_mtu),
        (Some(IBV_QPS_INIT), IBV_QPS_RTR, Some(1024))
    );
}

/// Where the provider itself says 22, its number is not lost in the words around it.
#[test]
fn the_providers_errno_survives_the_text() {
    let fake = Fake::new();
    let mut qp = in_init();
    fake.fail("modify_qp", 22);
    let (attr, mask) = to_rtr();
    let error = qp.modify(&attr, mask).unwrap_err();
    assert!(!error.refused_before_call());
    assert_eq!(error.provider, Some(Errno::EINVAL));
    let source = std::error::Error::source(&error).unwrap();
    let errno = source.downcast_ref::<Errno>().unwrap();
    assert_eq!(std::io::Error::from(*errno).raw_os_error(), Some(22));
    assert!(
        error.to_string().contains("EINVAL (22)")
            && error.to_string().contains("every value is in range"),
        "{error}"
    );
}
