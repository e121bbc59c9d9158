//! What is refused before the provider is called, what the provider refuses, and what is said about it.

mod fake;

use std::time::Duration;

use fake::{Fake, wc};
use rdma_core_sys::*;
use rdma_qp::{
    Access, AckTimeout, CreateQpError, Device, Doorbell, DrainProblem, Errno, Global, Memory,
    OpenError, Path, PathMtu, PostError, PostFlags, Problem, Psn, Qp, QueueKind, RetryCount,
    RnrRetry, RnrTimer, ToErr, ToInit, ToReset, ToRtr, ToRts, ToSqd, Transition as _, op,
};

fn device() -> Device {
    Device::open(&fake::verbs(), "fake0").unwrap()
}

/// A QP whose PD and CQ are dropped already.
fn qp() -> Qp {
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    pd.rc(&cq).create().unwrap()
}

fn init(port: u8) -> ToInit {
    ToInit {
        port,
        pkey_index: 0,
        access: Access::empty(),
    }
}

fn rtr(sgid_index: u8, dgid: &str) -> ToRtr {
    let dgid = dgid.parse::<std::net::Ipv6Addr>().unwrap().into();
    let global = Global {
        dgid,
        sgid_index,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
    };
    ToRtr {
        path: Path {
            port: 1,
            lid: 0,
            service_level: 0,
            global: Some(global),
        },
        path_mtu: PathMtu::Mtu1024,
        dest_qp_num: 0x77,
        rq_psn: Psn::new(1).unwrap(),
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer::from_code(12).unwrap(),
    }
}

fn rts() -> ToRts {
    ToRts {
        sq_psn: Psn::new(2).unwrap(),
        timeout: AckTimeout::from_code(14).unwrap(),
        retry_cnt: RetryCount::MAX,
        rnr_retry: RnrRetry::FOREVER,
        max_rd_atomic: 16,
    }
}

const PEER: &str = "::ffff:10.0.0.7";

/// A QP in RTR, on port 1.
fn in_rtr() -> Qp {
    let mut qp = qp();
    qp.to(init(1)).unwrap();
    qp.to(rtr(3, PEER)).unwrap();
    qp
}

#[test]
fn everything_wrong_is_named_at_once_and_the_provider_is_not_called() {
    let fake = Fake::new();
    let mut qp = qp();
    let mut attr = ibv_qp_attr::zeroed();
    (attr.qp_state, attr.port_num, attr.pkey_index) = (IBV_QPS_INIT, 3, 9);
    let mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_TIMEOUT;
    attr.timeout = 32;
    let error = qp.modify(&attr, mask).unwrap_err();
    let text = error.to_string();
    for part in [
        &format!("RESET -> INIT refused on fake0 QP {:#x}: ", qp.qp_num())[..],
        "missing IBV_QP_ACCESS_FLAGS",
        "not allowed IBV_QP_TIMEOUT",
        "port_num is 3: must be 1 to 2",
        "timeout is 32: must be 0 to 31",
        "Nothing was changed.",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.refused_before_call());
    assert_eq!(fake.count("modify_qp"), 0);
    assert_eq!(qp.state().unwrap(), IBV_QPS_RESET);
}

#[test]
fn the_real_state_is_asked_for() {
    let fake = Fake::new();
    let mut qp = in_rtr();
    qp.to(rts()).unwrap();
    fake.set_state(qp.qp_num(), IBV_QPS_ERR);
    let error = qp.to(ToSqd { notify: false }).unwrap_err();
    assert!(
        error.to_string().starts_with("ERR -> SQD refused"),
        "{error}"
    );
    assert!(
        error.to_string().contains("not a transition") && error.to_string().contains("RESET, ERR"),
        "{error}"
    );
    assert_eq!(error.from, Some(IBV_QPS_ERR));
}

/// ibv_modify_qp(3) on `cur_qp_state`: "Assume this is the current QP state".
#[test]
fn a_wrong_belief_about_the_state_is_refused() {
    let fake = Fake::new();
    let mut qp = in_rtr();
    let (mut attr, mut mask) = rts().lower(rules::Transport::Rc);
    mask |= IBV_QP_CUR_STATE;
    attr.cur_qp_state = IBV_QPS_RTS;
    let before = fake.count("modify_qp");
    let refused = qp.modify(&attr, mask).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("cur_qp_state is RTS, but the QP is in RTR"),
        "{refused}"
    );
    assert_eq!(fake.count("modify_qp"), before);
    attr.cur_qp_state = IBV_QPS_RTR;
    qp.modify(&attr, mask).unwrap();
}

#[test]
fn the_errno_of_the_provider_is_kept_with_the_context() {
    let fake = Fake::new();
    let mut qp = qp();
    qp.to(init(1)).unwrap();
    fake.fail("modify_qp", 110);
    let error = qp.to(rtr(3, PEER)).unwrap_err();
    assert_eq!(error.errno().raw_os_error(), 110);
    assert!(!error.refused_before_call());
    let source = std::error::Error::source(&error).and_then(|s| s.downcast_ref::<Errno>());
    assert_eq!(source, Some(&Errno::from_raw(110)));
    let text = format!("{error:#}");
    for part in [
        "INIT -> RTR refused by the provider on fake0/1",
        "ETIMEDOUT (110)",
        "no neighbour ::ffff:10.0.0.7 from index 3 (::ffff:10.0.0.5, RoCE v2)",
        "transport RC, mask IBV_QP_STATE, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_RQ_PSN",
        "dgid ::ffff:10.0.0.7, sgid_index 3, hop_limit 64",
        "local GID: index 3 (::ffff:10.0.0.5, RoCE v2), netdev 7",
        "path_mtu 1024, active MTU of the port 1024",
        "dest_qp_num 0x77",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    // The same move again: the refusal changed nothing.
    qp.to(rtr(3, PEER)).unwrap();
}

#[test]
fn three_calls_wrong_in_three_ways_give_three_reports() {
    let _fake = Fake::new();
    let mut qp = qp();
    qp.to(init(1)).unwrap();
    let (attr, mask) = rtr(3, PEER).lower(rules::Transport::Rc);
    let a = qp
        .modify(&attr, mask - IBV_QP_MIN_RNR_TIMER)
        .unwrap_err()
        .to_string();
    let b = qp
        .modify(&attr, mask | IBV_QP_TIMEOUT)
        .unwrap_err()
        .to_string();
    let c = qp
        .to(ToRtr {
            path_mtu: PathMtu::Mtu4096,
            ..rtr(3, PEER)
        })
        .unwrap_err()
        .to_string();
    assert!(a.contains("missing IBV_QP_MIN_RNR_TIMER"), "{a}");
    assert!(b.contains("not allowed IBV_QP_TIMEOUT"), "{b}");
    assert!(
        c.contains("path_mtu is 4096 bytes: the port's active MTU is 1024"),
        "{c}"
    );
}

#[test]
fn a_family_mismatch_is_refused_with_the_right_index() {
    let fake = Fake::new();
    let mut qp = qp();
    qp.to(init(1)).unwrap();
    let error = qp.to(rtr(0, PEER)).unwrap_err();
    let expected = format!(
        "INIT -> RTR refused on fake0/1 QP {:#x}: sgid_index 0 is fe80::1 (link-local, RoCE v2) but dgid is \
         ::ffff:10.0.0.7 (IPv4): choose index 3 (::ffff:10.0.0.5, RoCE v2). Nothing was changed.",
        qp.qp_num()
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(fake.count("modify_qp"), 1, "only the move to INIT");
}

#[test]
fn bad_gids_are_told_apart() {
    let _fake = Fake::new();
    let mut qp = qp();
    qp.to(init(1)).unwrap();
    let mut text = |to: ToRtr| qp.to(to).unwrap_err().to_string();
    assert!(
        text(rtr(2, PEER)).contains("of type RoCE v1, which is not supported here: choose index 3")
    );
    assert!(
        text(rtr(1, PEER))
            .contains("sgid_index 1 is an empty slot of the GID table; filled are index 0")
    );
    assert!(text(rtr(9, PEER)).contains("ah_attr.grh.sgid_index is 9: must be 0 to 7"));
    assert!(text(rtr(3, "::")).contains("dgid is all zero"));
    let local = ToRtr {
        path: Path {
            port: 1,
            lid: 1,
            service_level: 0,
            global: None,
        },
        ..rtr(3, PEER)
    };
    let error = text(local);
    assert!(
        error.contains("ah_attr.is_global is 0: RoCE needs 1 and a GRH"),
        "{error}"
    );
    assert!(
        error.contains("grh.dgid") && error.contains("grh.sgid_index"),
        "{error}"
    );
    let other_port = Path {
        port: 2,
        ..rtr(3, PEER).path
    };
    let error = text(ToRtr {
        path: other_port,
        ..rtr(3, PEER)
    });
    assert!(
        error.contains("ah_attr.port_num is 2: the QP is on port 1"),
        "{error}"
    );
}

#[test]
fn a_port_that_needs_a_grh_is_treated_like_ethernet() {
    let fake = Fake::new();
    fake.state().ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
    fake.state().ports[0].flags = IBV_QPF_GRH_REQUIRED;
    let mut qp = qp();
    qp.to(init(1)).unwrap();
    let local = ToRtr {
        path: Path {
            port: 1,
            lid: 1,
            service_level: 0,
            global: None,
        },
        ..rtr(3, PEER)
    };
    assert!(
        qp.to(local)
            .unwrap_err()
            .to_string()
            .contains("is_global is 0")
    );
    fake.state().ports[0].flags = 0;
    qp.to(local).unwrap();
}

#[test]
fn ranges_are_checked_with_the_limits_of_the_device() {
    let fake = Fake::new();
    let mut qp = qp();
    qp.to(init(1)).unwrap();
    let error = qp
        .to(ToRtr {
            max_dest_rd_atomic: 5,
            ..rtr(3, PEER)
        })
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("max_dest_rd_atomic is 5: must be 0 to 4"),
        "{error}"
    );
    qp.to(rtr(3, PEER)).unwrap();
    let error = qp
        .to(ToRts {
            max_rd_atomic: 17,
            ..rts()
        })
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("max_rd_atomic is 17: must be 0 to 16"),
        "{error}"
    );
    let (mut attr, mask) = rts().lower(rules::Transport::Rc);
    (attr.retry_cnt, attr.rnr_retry) = (20, 8);
    let error = qp.modify(&attr, mask).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("retry_cnt is 20: must be 0 to 7; rnr_retry is 8: must be 0 to 7"),
        "{error}"
    );
    assert_eq!(error.problems.len(), 2);
    assert_eq!(fake.state().qps[&qp.qp_num()].attr.qp_state, IBV_QPS_RTR);
    qp.to(rts()).unwrap();
}

#[test]
fn attributes_outside_the_mask_are_not_looked_at() {
    let _fake = Fake::new();
    let mut qp = in_rtr();
    let (mut attr, mask) = rts().lower(rules::Transport::Rc);
    (attr.path_mtu, attr.min_rnr_timer, attr.port_num) = (ibv_mtu(77), 99, 99);
    let error = qp.modify(&attr, mask | IBV_QP_PATH_MTU).unwrap_err();
    assert!(
        error.to_string().contains("not allowed IBV_QP_PATH_MTU"),
        "{error}"
    );
    qp.modify(&attr, mask).unwrap();
}

#[test]
fn empty_pkey_slots_are_refused() {
    let _fake = Fake::new();
    let mut qp = qp();
    let error = qp
        .to(ToInit {
            pkey_index: 1,
            ..init(1)
        })
        .unwrap_err();
    assert_eq!(error.problems, [Problem::EmptyPkey { index: 1 }]);
    let error = qp
        .to(ToInit {
            pkey_index: 2,
            ..init(1)
        })
        .unwrap_err()
        .to_string();
    assert!(error.contains("pkey_index is 2: must be 0 to 1"), "{error}");
}

#[test]
fn everything_works_on_port_two_and_nothing_asks_port_one() {
    let fake = Fake::new();
    fake.state().ports[0].state = IBV_PORT_DOWN;
    let device = device();
    let port = device.port(2).unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    let here = qp.endpoint(port.best_gid().unwrap()).unwrap();
    assert_eq!(
        (here.port, here.gid.to_string()),
        (2, "::ffff:10.0.1.5".to_owned())
    );
    let there = rdma_qp::Peer {
        endpoint: here,
        regions: Vec::new(),
    };
    let timing = rdma_qp::Timing::default();
    let agreed = qp.connect_begin(&there, timing).unwrap();
    qp.connect_finish(agreed, timing).unwrap();
    assert_eq!(fake.count("query_port 1"), 0);
    assert_eq!(
        fake.state().qps[&qp.qp_num()].attr.ah_attr.grh.hop_limit,
        64
    );
}

#[test]
fn bad_ports_are_named_with_the_valid_range() {
    let _fake = Fake::new();
    let device = device();
    for bad in [0, 3] {
        let error = device.port(bad).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("fake0 has no port {bad}: its ports are 1 to 2")
        );
    }
    let error = device.port(1).unwrap().gid(1).unwrap_err().to_string();
    assert!(
        error.contains("GID index 1 of fake0/1 is empty; filled are index 0 (fe80::1, RoCE v2)"),
        "{error}"
    );
    assert_eq!(device.port(1).unwrap().best_gid().unwrap().entry().index, 3);
}

/// `ibv_global_route.sgid_index` is a `uint8_t`.
#[test]
fn a_gid_that_no_address_vector_can_name_is_neither_chosen_nor_taken_for_another() {
    let fake = Fake::new();
    fake.state().ports[0].gid_tbl_len = 512;
    let far = fake::gid_entry(1, 300, "::ffff:10.0.9.9", IBV_GID_TYPE_ROCE_V2);
    fake.state().gids = vec![
        fake::gid_entry(1, 255, "2001:db8::1", IBV_GID_TYPE_ROCE_V2),
        far,
    ];
    let device = device();
    let port = device.port(1).unwrap();
    let choice = port.best_gid().unwrap();
    assert_eq!(choice.entry().index, 255);
    assert!(choice.to_string().contains("no index above 255"));
    let mut qp = qp();
    let refused = qp.endpoint(port.gid(300).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("index 300"), "{refused}");
    assert!(qp.endpoint(choice).is_ok());
}

#[test]
fn libraries_without_a_gid_table_call_are_asked_slot_by_slot() {
    let fake = Fake::new();
    let functions = Functions {
        query_gid_table: None,
        ..fake::functions()
    };
    // SAFETY: the functions of the provider for tests, one less.
    let verbs = unsafe { Verbs::new(functions) };
    let device = Device::open(&verbs, "fake0").unwrap();
    let gids = device.port(1).unwrap().gids().unwrap();
    assert_eq!(gids.iter().map(|e| e.index).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(fake.count("query_gid"), 8);
    assert_eq!(
        device.port(1).unwrap().best_gid().unwrap().entry().index,
        2,
        "the type is not known"
    );
}

#[test]
fn reset_is_reached_from_every_state_and_again() {
    let fake = Fake::new();
    let mut qp = qp();
    for state in [
        IBV_QPS_RESET,
        IBV_QPS_INIT,
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        IBV_QPS_SQD,
        IBV_QPS_SQE,
        IBV_QPS_ERR,
    ] {
        fake.set_state(qp.qp_num(), state);
        qp.to(ToReset).unwrap();
        qp.to(ToReset).unwrap();
        qp.to(init(1)).unwrap();
    }
    qp.to(ToReset).unwrap();
    let error = qp.to(ToErr).unwrap_err().to_string();
    assert!(
        error.contains("not a transition") && error.contains("RESET, INIT"),
        "{error}"
    );
}

#[test]
fn devices_that_are_not_there_are_answered_with_those_that_are() {
    let _fake = Fake::new();
    let error = Device::open(&fake::verbs(), "mlx5_0").unwrap_err();
    assert!(matches!(error, OpenError::NoSuchDevice { .. }));
    assert_eq!(
        error.to_string(),
        "there is no RDMA device \"mlx5_0\"; there are: fake0"
    );
    assert!(
        Device::open_index(&fake::verbs(), 1)
            .unwrap_err()
            .to_string()
            .contains("number 1 (counted from 0)")
    );
}

#[test]
fn objects_of_two_devices_are_not_mixed() {
    let fake = Fake::new();
    let (one, other) = (device(), device());
    let (pd, cq) = (one.alloc_pd().unwrap(), other.create_cq(64).unwrap());
    let error = pd.rc(&cq).create().unwrap_err();
    assert!(
        matches!(
            &error,
            CreateQpError::OtherDevice {
                queue: QueueKind::Send,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("fake0 opened another time"),
        "{error}"
    );
    assert_eq!(fake.count("create_qp"), 0);
}

#[test]
fn a_qp_that_could_overrun_its_cq_is_refused_with_numbers() {
    let fake = Fake::new();
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(40).unwrap());
    let first = pd.rc(&cq).send_depth(16).recv_depth(16).create().unwrap();
    assert_eq!(cq.unreserved(), 8);
    let error = pd.rc(&cq).send_depth(4).recv_depth(5).create().unwrap_err();
    assert_eq!(
        error,
        CreateQpError::NoRoomInCq {
            queue: QueueKind::Recv,
            depth: 5,
            capacity: 40,
            unreserved: 4
        }
    );
    assert_eq!((cq.unreserved(), fake.count("create_qp")), (8, 1));
    drop(first);
    assert_eq!(cq.unreserved(), 40);
    fake.fail("create_qp", 12);
    let error = pd.rc(&cq).create().unwrap_err();
    assert!(error.to_string().contains("ENOMEM (12)"), "{error}");
    assert_eq!(cq.unreserved(), 40, "a QP that was not made holds no room");
    let error = pd.rc(&cq).send_sge(5).create().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("max_send_sge is 5, but fake0 allows at most 4"),
        "{error}"
    );
}

#[test]
fn posts_that_cannot_work_are_told_apart_and_never_made() {
    let fake = Fake::new();
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).send_depth(8).send_sge(2).create().unwrap();
    qp.to(init(1)).unwrap();
    let mr = pd
        .register(Memory::zeroed(2 << 20), Access::REMOTE_READ)
        .unwrap();
    let small = mr.slice(0, 8).unwrap();
    let remote = rdma_qp::RemoteRegion {
        addr: 4096,
        len: 64,
        rkey: 5,
    };

    let error = qp.send([small, small, small]).unwrap_err();
    assert_eq!(
        error,
        PostError::TooManyEntries {
            queue: QueueKind::Send,
            given: 3,
            limit: 2
        }
    );
    let error = qp
        .post_inline(op::Send, &[0; 16], Default::default())
        .unwrap_err();
    assert_eq!(
        error,
        PostError::InlineTooLong {
            given: 16,
            limit: 0,
            asked: 0
        }
    );
    let error = qp.send(mr.slice(0, (1 << 20) + 1).unwrap()).unwrap_err();
    assert_eq!(
        error,
        PostError::MessageTooLong {
            len: (1 << 20) + 1,
            max: 1 << 20
        }
    );
    let half = mr.slice(0, (1 << 19) + 1).unwrap();
    assert_eq!(
        qp.send([half, half]).unwrap_err(),
        PostError::MessageTooLong {
            len: (1 << 20) + 2,
            max: 1 << 20
        }
    );
    assert_eq!(
        qp.recv(small).unwrap_err(),
        PostError::NotWritable {
            entry: 0,
            operation: rdma_qp::Operation::Recv
        }
    );
    let error = qp.read(small, remote.at(0)).unwrap_err();
    assert!(
        matches!(error, PostError::NotWritable { entry: 0, .. }),
        "{error}"
    );
    assert_eq!(
        qp.write(small, remote.at(57)).unwrap_err(),
        PostError::OutOfRemoteRegion { len: 8, room: 7 }
    );
    let error = qp.fetch_and_add(small, remote.at(4), 1).unwrap_err();
    assert_eq!(error, PostError::AtomicAlignment { addr: 4100 });
    let error = qp
        .fetch_and_add(mr.slice(0, 9).unwrap(), remote.at(0), 1)
        .unwrap_err();
    assert_eq!(error, PostError::AtomicLength { len: 9 });
    assert!(
        mr.slice(1 << 21, 1)
            .unwrap_err()
            .to_string()
            .contains("not inside a region of 2097152 bytes")
    );

    let other_pd = device.alloc_pd().unwrap();
    let foreign = other_pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    assert_eq!(
        qp.send([small, foreign.all()]).unwrap_err(),
        PostError::OtherPd { entry: 1 }
    );
    assert_eq!(
        qp.recv(foreign.all()).unwrap_err(),
        PostError::OtherPd { entry: 0 }
    );
    assert_eq!((fake.count("post_send"), fake.count("post_recv")), (0, 0));
    assert_eq!(qp.send_account().accepted + qp.recv_account().accepted, 0);
    qp.send(mr.slice(0, 1 << 20).unwrap()).unwrap();
    // An empty range never reaches the device: some take a length of 0 for 2^31.
    qp.send([mr.slice(0, 0).unwrap(), small]).unwrap();
    qp.send(mr.slice(5, 0).unwrap()).unwrap();
    let entries: Vec<_> = fake.state().qps[&qp.qp_num()]
        .sends
        .iter()
        .map(|send| send.num_sge)
        .collect();
    assert_eq!(entries, [1, 1, 0]);
}

#[test]
fn a_queue_cannot_fill_with_unsignaled_requests() {
    let fake = Fake::new();
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).send_depth(8).create().unwrap();
    let mr = pd.register(Memory::zeroed(64), Access::empty()).unwrap();
    let silent = rdma_qp::PostFlags::UNSIGNALED;
    for _ in 0..7 {
        qp.post(op::Send, mr.all(), silent).unwrap();
    }
    let error = qp.post(op::Send, mr.all(), silent).unwrap_err();
    assert_eq!(
        error,
        PostError::QueueFull {
            queue: QueueKind::Send,
            depth: 8,
            outstanding: 7,
            last_signaled: None,
            place_is_kept: true,
        }
    );
    assert!(
        error.to_string().contains("no completion can make room"),
        "{error}"
    );
    let signaled = qp.send(mr.all()).unwrap();
    let error = qp.send(mr.all()).unwrap_err();
    assert!(
        matches!(
            &error,
            PostError::QueueFull {
                depth: 8,
                outstanding: 8,
                last_signaled: Some(last),
                place_is_kept: false,
                ..
            } if *last == signaled.sequence()
        ),
        "{error:?}"
    );
    assert_eq!(fake.count("post_send"), 8);
    let sends = fake.state().qps[&qp.qp_num()].sends.clone();
    assert!(
        sends[..7].iter().all(|wr| wr.send_flags == 0),
        "not signaled"
    );
    // A flush completion is made for unsignaled requests too.
    fake.complete(0, wc(sends[6].wr_id, IBV_WC_WR_FLUSH_ERR));
    assert!(cq.poll().unwrap().unwrap().outcome.unwrap_err().is_flush());
    qp.send(mr.all()).unwrap();
    assert_eq!(
        fake.state().qps[&qp.qp_num()].sends[8].send_flags,
        IBV_SEND_SIGNALED.bits()
    );
}

#[test]
fn a_post_in_the_wrong_state_is_explained_and_not_counted() {
    let fake = Fake::new();
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    fake.fail("post_send", 22);
    let error = qp.send(mr.all()).unwrap_err();
    assert_eq!(
        error,
        PostError::WrongState {
            queue: QueueKind::Send,
            state: IBV_QPS_RESET,
            errno: Errno::EINVAL
        }
    );
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    fake.fail("post_recv", 12);
    let error = qp.recv(mr.all()).unwrap_err();
    assert_eq!(
        error,
        PostError::Refused {
            queue: QueueKind::Recv,
            errno: Errno::ENOMEM
        }
    );
    assert_eq!(
        (qp.send_account().accepted, qp.recv_account().accepted),
        (0, 0)
    );
    mr.close().expect("a refused post holds no region");
}

#[test]
fn refusals_to_register_give_the_memory_back() {
    let fake = Fake::new();
    let pd = device().alloc_pd().unwrap();
    fake.fail("reg_mr", 12);
    let error = pd
        .register(Memory::copy_of(b"precious"), Access::empty())
        .unwrap_err();
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    let rdma_qp::RegisterError::Refused { memory, source, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((&memory[..], source), (&b"precious"[..], Errno::ENOMEM));
    assert!(matches!(
        pd.register(Memory::zeroed(0), Access::empty()),
        Err(rdma_qp::RegisterError::Empty)
    ));
}

/// Requests that wait for one doorbell go as one list; of a list that the provider refuses in the middle it is told what
/// was accepted, and the books hold that and no more.
#[test]
fn a_list_refused_in_the_middle_is_told_exactly() {
    let fake = Fake::new();
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).send_depth(8).create().unwrap();
    let mr = pd.register(Memory::zeroed(64), Access::empty()).unwrap();
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    qp.set_doorbell(Doorbell::Every(5), Doorbell::Each).unwrap();
    let mut tickets: Vec<_> = (0..4)
        .map(|at| qp.send(mr.slice(at * 8, 8).unwrap()).unwrap())
        .collect();
    assert_eq!((qp.waiting(), fake.count("post_send")), ((4, 0), 0));
    fake.state().refuse_at = Some(3);
    let error = qp.send(mr.all()).unwrap_err();
    assert!(
        matches!(
            &error,
            PostError::List { queue: QueueKind::Send, accepted: 3, refused: 2, first, reason }
                if *first == tickets[3]
                    && matches!(**reason, PostError::Refused { errno: Errno::ENOMEM, .. })
        ),
        "{error:?}"
    );
    assert_eq!((qp.waiting(), fake.count("post_send")), ((0, 0), 1));
    assert_eq!(
        (qp.send_account().accepted, qp.send_account().pending),
        (3, 3)
    );
    let sends = fake.state().qps[&qp.qp_num()].sends.clone();
    let ids: Vec<u64> = sends.iter().map(|send| send.wr_id).collect();
    assert_eq!(
        ids,
        tickets[..3]
            .iter()
            .map(rdma_qp::Ticket::wr_id)
            .collect::<Vec<_>>()
    );
    // The places of what was refused are free for others.
    tickets.truncate(3);
    for _ in 0..5 {
        tickets.push(qp.send(mr.all()).unwrap());
    }
    assert_eq!((qp.waiting(), fake.count("post_send")), ((0, 0), 2));
    assert!(matches!(
        qp.send(mr.all()).unwrap_err(),
        PostError::QueueFull {
            depth: 8,
            outstanding: 8,
            ..
        }
    ));
    for ticket in tickets {
        fake.complete(0, wc(ticket.wr_id(), IBV_WC_SUCCESS));
        assert_eq!(cq.poll().unwrap().unwrap().ticket, ticket);
    }
    assert_eq!(qp.send_account().succeeded, 8);
}

#[test]
fn a_reset_throws_away_what_waits_for_the_doorbell() {
    let fake = Fake::new();
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).send_depth(8).create().unwrap();
    let mr = pd.register(Memory::zeroed(64), Access::empty()).unwrap();
    qp.set_doorbell(Doorbell::Every(4), Doorbell::Each).unwrap();
    qp.send(mr.all()).unwrap();
    qp.to(rdma_qp::ToReset).unwrap();
    assert_eq!((qp.waiting(), qp.send_account().discarded), ((0, 0), 1));
    qp.ring().unwrap();
    assert_eq!(fake.count("post_send"), 0);
    mr.close().expect("nothing holds it");
}

/// A QP in RTS, with so deep a send queue, its CQ, and a region.
fn in_rts(fake: &Fake, send_depth: u32) -> (Qp, rdma_qp::Cq, rdma_qp::Mr) {
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let builder = pd.rc(&cq).send_depth(send_depth).recv_depth(2);
    let qp = builder.create().unwrap();
    let access = Access::LOCAL_WRITE;
    let mr = pd.register(Memory::zeroed(64), access).unwrap();
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    (qp, cq, mr)
}

fn is_kept(error: &PostError) -> bool {
    matches!(
        error,
        PostError::QueueFull {
            place_is_kept: true,
            ..
        }
    )
}

/// Posts sends, one for each letter: S signaled, U not.
fn post_letters(qp: &mut Qp, mr: &rdma_qp::Mr, letters: &str) -> Vec<rdma_qp::Ticket> {
    let flags = |letter| match letter {
        'S' => PostFlags::empty(),
        _ => PostFlags::UNSIGNALED,
    };
    let post = |letter| qp.post(op::Send, mr.all(), flags(letter)).unwrap();
    letters.chars().map(post).collect()
}

#[test]
fn a_refused_receive_takes_nothing_from_what_is_known_of_the_sends() {
    let fake = Fake::new();
    let (mut qp, cq, mr) = in_rts(&fake, 4);
    for _ in 0..100 {
        let ticket = qp.send(mr.all()).unwrap();
        fake.complete(0, wc(ticket.wr_id(), IBV_WC_SUCCESS));
        assert_eq!(cq.poll().unwrap().unwrap().ticket, ticket);
    }
    post_letters(&mut qp, &mr, "U");
    fake.fail("post_recv", 12);
    qp.recv(mr.all()).unwrap_err();
    post_letters(&mut qp, &mr, "UU");
    let fourth = qp.post(op::Send, mr.all(), PostFlags::UNSIGNALED);
    let kept = fourth.unwrap_err();
    assert!(is_kept(&kept), "{kept}");
    let error = qp.finish_sends(&[&cq], Duration::from_secs(10));
    let reason = error.unwrap_err().reason;
    assert!(
        matches!(reason, DrainProblem::Silent { count: 3 }),
        "{reason}"
    );
}

/// Whatever of a list is refused: the unsignaled sends that are the last in the queue stay known.
#[test]
fn unsignaled_sends_before_the_refused_part_of_a_list_stay_known() {
    for (before, list, accepted) in [
        ("", "USU", 1),
        ("", "USU", 2),
        ("", "UUU", 2),
        ("U", "USU", 0),
        ("U", "USU", 1),
        ("UU", "UUU", 2),
        ("UU", "UUU", 0),
        ("US", "UUS", 2),
        ("US", "USUSU", 0),
        ("US", "USUSU", 1),
        ("U", "SU", 1),
        ("U", "SU", 0),
        ("U", "SS", 0),
        ("U", "SUSU", 2),
        ("UU", "USUSU", 1),
        ("UU", "USUSU", 4),
    ] {
        let what = format!("{before} {list} {accepted}");
        let fake = Fake::new();
        let (mut qp, cq, mr) = in_rts(&fake, 16);
        let doorbell = Doorbell::Every(16);
        qp.set_doorbell(doorbell, Doorbell::Each).unwrap();
        let mut tickets = post_letters(&mut qp, &mr, before);
        qp.ring().unwrap();
        tickets.extend(post_letters(&mut qp, &mr, list));
        fake.state().refuse_at = Some(accepted);
        qp.ring().unwrap_err();
        let posted = format!("{before}{}", &list[..accepted]);
        for (ticket, letter) in tickets.iter().zip(posted.chars()) {
            if letter == 'S' {
                fake.complete(0, wc(ticket.wr_id(), IBV_WC_SUCCESS));
            }
        }
        let silent = posted.len() - posted.trim_end_matches('U').len();
        let ended = qp.finish_sends(&[&cq], Duration::from_secs(10));
        match ended.map_err(|error| error.reason) {
            Ok(_) => assert_eq!(silent, 0, "{what}"),
            Err(DrainProblem::Silent { count }) => assert_eq!(count, silent as u64, "{what}"),
            Err(reason) => panic!("{what}: {reason}"),
        }
    }
}

#[test]
fn a_place_is_kept_behind_unsignaled_sends_of_a_list_that_was_refused() {
    let fake = Fake::new();
    let (mut qp, cq, mr) = in_rts(&fake, 8);
    let doorbell = Doorbell::Every(8);
    qp.set_doorbell(doorbell, Doorbell::Each).unwrap();
    post_letters(&mut qp, &mr, "USU");
    fake.state().refuse_at = Some(1);
    qp.ring().unwrap_err();
    let error = qp.finish_sends(&[&cq], Duration::from_secs(10));
    let reason = error.unwrap_err().reason;
    assert!(
        matches!(reason, DrainProblem::Silent { count: 1 }),
        "{reason}"
    );
    post_letters(&mut qp, &mr, "UUUUUU");
    let eighth = qp.post(op::Send, mr.all(), PostFlags::UNSIGNALED);
    let kept = eighth.unwrap_err();
    assert!(is_kept(&kept), "{kept}");
}

#[test]
fn a_doorbell_for_more_than_the_queue_takes_is_for_what_it_takes() {
    let fake = Fake::new();
    let (mut qp, _cq, mr) = in_rts(&fake, 4);
    for many in [8, u32::MAX] {
        let doorbell = Doorbell::Every(many);
        qp.set_doorbell(doorbell, doorbell).unwrap();
    }
    post_letters(&mut qp, &mr, "SSS");
    qp.recv(mr.all()).unwrap();
    assert_eq!(qp.waiting(), (3, 1));
    post_letters(&mut qp, &mr, "S");
    qp.recv(mr.all()).unwrap();
    assert_eq!(qp.waiting(), (0, 0));
    assert_eq!((fake.count("post_send"), fake.count("post_recv")), (1, 1));
    assert_eq!(fake.state().qps[&qp.qp_num()].sends.len(), 4);
}

/// Whoever is told to poll for room waits for what the device has.
#[test]
fn a_full_queue_hands_over_what_waits() {
    let fake = Fake::new();
    let (mut qp, cq, mr) = in_rts(&fake, 6);
    let doorbell = Doorbell::Every(4);
    qp.set_doorbell(doorbell, Doorbell::Each).unwrap();
    let tickets = post_letters(&mut qp, &mr, "UUUUUS");
    assert_eq!(qp.waiting(), (2, 0));
    let full = qp.send(mr.all()).unwrap_err();
    assert!(
        matches!(full, PostError::QueueFull { outstanding: 6, .. }),
        "{full}"
    );
    assert_eq!((qp.waiting(), fake.count("post_send")), ((0, 0), 2));
    fake.complete(0, wc(tickets[5].wr_id(), IBV_WC_SUCCESS));
    assert_eq!(cq.poll().unwrap().unwrap().ticket, tickets[5]);
    // What it refuses then is told, though it is not what was to be posted.
    let tickets = post_letters(&mut qp, &mr, "SSSSS");
    qp.ring().unwrap();
    let last = post_letters(&mut qp, &mr, "S");
    assert_eq!(qp.waiting(), (1, 0));
    fake.fail("post_send", 12);
    let refused = qp.send(mr.all()).unwrap_err();
    assert!(
        matches!(
            &refused,
            PostError::List { accepted: 0, refused: 1, first, .. } if *first == last[0]
        ),
        "{refused}"
    );
    assert_eq!(qp.send_account().pending, tickets.len() as u64);
}
