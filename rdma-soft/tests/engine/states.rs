//! States of a Queue Pair: what each does with requests, and who may leave it.

use rdma_core_sys::{ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_wc_status};
use rdma_soft::core::{Queue, Refused, SendOp};

use super::net::*;
use super::pair::*;

#[test]
fn err_flushes_both_queues_in_order_and_takes_posts() {
    let mut p = pair(&Conn {
        sq_sig_all: false,
        ..Conn::default()
    });
    p.net.wire.partition(addr(1), true);
    for i in 0..4 {
        p.net.recv(0, p.qa, 10 + i, &[]);
        let mut w = wqe(i, SEND, &[]);
        w.signaled = i % 2 == 0;
        p.net.send(0, p.qa, w);
    }
    p.net.move_to_state(0, p.qa, ERR);
    // Posted in ERR: flushed at once, after all others of their queues. That marks the end of a drain.
    p.net.send(0, p.qa, wqe(99, SEND, &[]));
    p.net.recv(0, p.qa, 98, &[]);
    let ids = |q| {
        p.done(0, q)
            .iter()
            .map(|c| (c.wr_id, c.status))
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(Queue::Send), [0, 1, 2, 3, 99].map(|i| (i, FLUSHED)));
    assert_eq!(ids(Queue::Recv), [10, 11, 12, 13, 98].map(|i| (i, FLUSHED)));
}

#[test]
fn reset_discards_without_completions_and_the_pair_lives_again() {
    let mut p = pair(&Conn::default());
    let (qa, qb) = (p.qa, p.qb);
    for round in 0..100u32 {
        p.net.recv(1, qb, 1, &[]);
        p.net.send(0, qa, wqe(1, SEND, &[]));
        p.net.settle();
        assert_eq!(
            (p.net.ends(0), p.net.ends(1)),
            (vec![(1, OK)], vec![(1, OK)]),
            "round {round}"
        );
        p.net.nodes.iter_mut().for_each(|n| n.done.clear());
        p.net.recv(0, qa, 2, &[]);
        p.net.wire.partition(addr(1), true);
        p.net.send(0, qa, wqe(3, SEND, &[]));
        // Twice: RESET from RESET is allowed too.
        for state in [ibv_qp_state::IBV_QPS_RESET, ibv_qp_state::IBV_QPS_RESET] {
            p.net.move_to_state(0, qa, state);
            p.net.move_to_state(1, qb, state);
        }
        p.net.settle();
        assert!(p.net.nodes[0].done.is_empty());
        p.net.wire.partition(addr(1), false);
        let c = Conn {
            psn: [round * 77_777, 0xff_ffff - round],
            ..Conn::default()
        };
        p.net.connect(0, qa, 1, qb, &c);
    }
}

#[test]
fn sqd_finishes_what_it_began_and_says_when() {
    use ibv_qp_attr_mask as M;
    let mut p = pair(&Conn::default());
    let remote = p.b.remote(0);
    let long = p.a.sge(0, 60_000);
    p.net.send(
        0,
        p.qa,
        wqe(1, SendOp::Write { remote, imm: None }, &[long]),
    );
    let mut attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_SQD,
        ..Default::default()
    };
    attr.en_sqd_async_notify = 1;
    p.net.modify(
        0,
        p.qa,
        &attr,
        M::IBV_QP_STATE | M::IBV_QP_EN_SQD_ASYNC_NOTIFY,
    );
    p.net.send(
        0,
        p.qa,
        wqe(2, SendOp::Write { remote, imm: None }, &[long]),
    );
    assert_eq!(
        p.net.nodes[0].engine.query_qp(p.qa).unwrap().0.sq_draining,
        1
    );
    // Leaving while it drains is refused, and changes nothing.
    let back = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTS,
        ..Default::default()
    };
    let refused = p.net.nodes[0]
        .engine
        .modify_qp(p.qa, &back, M::IBV_QP_STATE);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the send queue is still draining"
    );
    p.net.settle();
    assert_eq!(
        p.net.ends(0),
        [(1, OK)],
        "what was begun ends, what was not waits"
    );
    assert_eq!(
        p.net.nodes[0].events,
        [ibv_event_type::IBV_EVENT_SQ_DRAINED]
    );
    assert_eq!(
        p.net.nodes[0].engine.query_qp(p.qa).unwrap().0.sq_draining,
        0
    );
    p.net.modify(0, p.qa, &back, M::IBV_QP_STATE);
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, OK), (2, OK)]);
}

#[test]
fn a_refused_modify_changes_nothing() {
    use ibv_qp_attr_mask as M;
    let mut net = Net::clean(2);
    let qp = net.nodes[0].create_qp(&Conn::default());
    let mut attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_INIT,
        port_num: 2,
        ..Default::default()
    };
    let mask = M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS;
    let try_it = |net: &mut Net, attr: &ibv_qp_attr, mask| {
        net.nodes[0]
            .engine
            .modify_qp(qp, attr, mask)
            .map_err(|e| (e.to_string(), e.errno()))
    };
    assert!(try_it(&mut net, &attr, mask).is_err(), "there is no port 2");
    attr.port_num = 1;
    assert!(try_it(&mut net, &attr, mask - M::IBV_QP_PORT).is_err());
    assert_eq!(net.state(0, qp), ibv_qp_state::IBV_QPS_RESET);
    assert_eq!(net.nodes[0].engine.query_qp(qp).unwrap().0.port_num, 0);
    assert!(try_it(&mut net, &attr, mask).is_ok());

    let rtr = M::IBV_QP_STATE
        | M::IBV_QP_AV
        | M::IBV_QP_PATH_MTU
        | M::IBV_QP_DEST_QPN
        | M::IBV_QP_RQ_PSN
        | M::IBV_QP_MAX_DEST_RD_ATOMIC
        | M::IBV_QP_MIN_RNR_TIMER;
    let mut good = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTR,
        ..Default::default()
    };
    good.path_mtu = rdma_core_sys::ibv_mtu::IBV_MTU_1024;
    good.ah_attr.is_global = 1;
    good.ah_attr.port_num = 1;
    good.ah_attr.grh.dgid.raw = rdma_soft::core::config::GidEntry::v2(addr(1)).gid;
    type Spoil = fn(&mut ibv_qp_attr);
    let spoiled: [(&str, Spoil); 7] = [
        ("is_global", |a| a.ah_attr.is_global = 0),
        ("sgid_index", |a| a.ah_attr.grh.sgid_index = 9),
        ("dgid", |a| a.ah_attr.grh.dgid.raw = [0; 16]),
        ("IPv6", |a| a.ah_attr.grh.dgid.raw = [0x20; 16]),
        ("path_mtu", |a| a.path_mtu = rdma_core_sys::ibv_mtu(9)),
        ("min_rnr_timer", |a| a.min_rnr_timer = 32),
        ("max_dest_rd_atomic", |a| a.max_dest_rd_atomic = 17),
    ];
    for (what, spoil) in spoiled {
        let mut attr = good;
        spoil(&mut attr);
        let (text, errno) = try_it(&mut net, &attr, rtr).unwrap_err();
        assert!(text.contains(what), "{what}: {text}");
        assert_eq!(errno.raw_os_error(), 22);
        assert_eq!(net.state(0, qp), ibv_qp_state::IBV_QPS_INIT);
    }
    assert!(try_it(&mut net, &good, rtr).is_ok());
}

#[test]
fn busy_objects_are_not_destroyed() {
    let mut p = pair(&Conn::default());
    let node = &mut p.net.nodes[0];
    let busy = rustix::io::Errno::BUSY;
    assert_eq!(node.engine.destroy_cq(node.cq).unwrap_err().errno, busy);
    assert_eq!(node.engine.dealloc_pd(node.pd).unwrap_err().errno, busy);
    node.engine.destroy_qp(p.qa).unwrap();
    assert_eq!(node.engine.destroy_cq(node.cq), Ok(()));
    let left = node.engine.dealloc_pd(node.pd).unwrap_err();
    assert_eq!(left.errno, busy, "a region is left");
    assert!(left.to_string().contains("MR"), "{left}");
    node.engine.dereg_mr(p.a.lkey).unwrap();
    assert_eq!(node.engine.dealloc_pd(node.pd), Ok(()));
}

/// A Queue Pair whose entry of the partition key table is gone is in no partition: it hears nobody, and nobody
/// hears it.
#[test]
fn without_its_partition_key_a_queue_pair_is_in_no_partition() {
    for emptied in [vec![], vec![0]] {
        for node in [0, 1] {
            let mut p = pair(&Conn {
                timeout: 1,
                retry_cnt: 1,
                ..Conn::default()
            });
            let engine = &mut p.net.nodes[node].engine;
            let mut port = engine.config().ports[0].clone();
            port.pkeys = emptied.clone();
            engine.set_port(1, port).unwrap();
            p.net.recv(1, p.qb, 1, &[]);
            p.net.send(0, p.qa, wqe(1, SEND, &[]));
            p.net.settle();
            let lost = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
            assert_eq!(p.net.sends(0, p.qa), [(1, lost)], "{emptied:?} {node}");
            assert!(p.net.receives(1, p.qb).is_empty());
            assert!(p.net.refused(1, Refused::BadPkey) > 0);
        }
    }
}
