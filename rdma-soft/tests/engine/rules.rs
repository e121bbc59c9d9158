//! What verbs promise, one rule at a time: statuses, retries, order, states.

use std::time::Duration;

use rdma_core_sys::rules::rnr_timer;
use rdma_core_sys::{
    ibv_access_flags, ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_wc_opcode,
    ibv_wc_status,
};
use rdma_soft::core::{Queue, Refused, Remote, SendOp};
use rdma_soft::wire::Operation;

use super::net::*;
use super::pair::*;

#[test]
fn rnr_retry_counts_transmissions_exactly() {
    for retries in [0u8, 3, 6] {
        let mut p = pair(&Conn {
            rnr_retry: retries,
            ..Conn::default()
        });
        p.net.recorded = Some(vec![]);
        let two = [
            wqe(1, SEND, &[p.a.sge(0, 10)]),
            wqe(2, SEND, &[p.a.sge(0, 10)]),
        ];
        for w in two {
            p.net.send(0, p.qa, w);
        }
        p.net.settle();
        let rnr = ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR;
        assert_eq!(p.net.ends(0), [(1, rnr), (2, FLUSHED)]);
        assert_eq!(p.net.state(0, p.qa), ERR);
        let naks = u64::from(retries) + 1;
        assert_eq!(p.net.nodes[1].engine.counters().tx_rnr_naks, naks);
        // The second request followed the first each time.
        assert_eq!(p.sent(Operation::Send), 2 * naks as usize);
    }
}

#[test]
fn rnr_retry_7_waits_until_a_receive_is_posted() {
    let mut p = pair(&Conn {
        rnr_retry: 7,
        min_rnr_timer: 12,
        ..Conn::default()
    });
    let w = wqe(1, SEND, &[p.a.sge(0, 10)]);
    p.net.send(0, p.qa, w);
    p.net.run(Duration::from_millis(50), |_| false);
    assert!(p.net.ends(0).is_empty());
    let naks = p.net.nodes[1].engine.counters().tx_rnr_naks;
    assert!(
        (70..=80).contains(&naks),
        "every 0.64 ms and a round trip: {naks}"
    );
    let sge = p.b.sge(0, 64);
    p.net.recv(1, p.qb, 9, &[sge]);
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, OK)]);
    assert_eq!(p.net.ends(1), [(9, OK)]);
}

#[test]
fn rnr_timer_code_0_is_the_longest() {
    // Values of ibv_modify_qp(3), min_rnr_timer.
    assert_eq!(rnr_timer(0), Duration::from_micros(655_360));
    assert_eq!(rnr_timer(1), Duration::from_micros(10));
    assert_eq!(rnr_timer(12), Duration::from_micros(640));
    assert_eq!(rnr_timer(31), Duration::from_micros(491_520));
    for (code, least, most) in [(12, 0, 50), (0, 655, 700)] {
        let mut p = pair(&Conn {
            min_rnr_timer: code,
            ..Conn::default()
        });
        let w = wqe(1, SEND, &[p.a.sge(0, 10)]);
        p.net.send(0, p.qa, w);
        p.net.run(Duration::from_millis(5), |_| false);
        let sge = p.b.sge(0, 64);
        p.net.recv(1, p.qb, 9, &[sge]);
        p.net
            .run(Duration::from_secs(2), |n| !n.nodes[0].done.is_empty());
        let ms = p.net.now.as_nanos() / 1_000_000;
        assert!((least..most).contains(&ms), "code {code}: {ms} ms");
    }
}

#[test]
fn a_silent_peer_costs_retry_cnt_plus_one_timeouts() {
    for retry_cnt in [0u8, 3, 7] {
        let c = Conn {
            timeout: 10,
            retry_cnt,
            ..Conn::default()
        };
        let mut net = Net::clean(2);
        let (qa, qb) = (net.nodes[0].create_qp(&c), net.nodes[1].create_qp(&c));
        // The peer stays in INIT: it must stay silent, and count.
        net.move_to_rtr(0, qa, 1, qb, &c, 1);
        net.move_to_rts(0, qa, &c, 0);
        net.recorded = Some(vec![]);
        net.send(0, qa, wqe(1, SEND, &[]));
        net.settle();
        assert_eq!(net.ends(0), [(1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR)]);
        let tries = u64::from(retry_cnt) + 1;
        assert_eq!(net.recorded.as_ref().unwrap().len() as u64, tries);
        let budget = tries * 4096 * 1024;
        assert_eq!(net.now.as_nanos(), budget, "4.096 us x 2^10 each");
        assert_eq!(
            net.nodes[1].engine.counters().refused(Refused::QpState),
            tries
        );
    }
}

#[test]
fn timeout_0_never_gives_up() {
    let mut p = pair(&Conn {
        timeout: 0,
        ..Conn::default()
    });
    p.net.wire.partition(addr(1), true);
    p.net.send(0, p.qa, wqe(1, SEND, &[]));
    p.net.settle();
    assert!(p.net.ends(0).is_empty());
    assert_eq!(p.net.state(0, p.qa), ibv_qp_state::IBV_QPS_RTS);
}

#[test]
fn write_with_immediate_consumes_one_receive() {
    let mut p = pair(&Conn {
        rnr_retry: 0,
        ..Conn::default()
    });
    let remote = p.b.remote(0);
    p.net.recv(1, p.qb, 1, &[]);
    let sge = p.b.sge(40_000, 16);
    p.net.recv(1, p.qb, 2, &[sge]);
    p.b.region.write(40_000, &[0xee; 16]).unwrap();
    for i in 0..3 {
        let w = wqe(i, SendOp::Write { remote, imm: None }, &[p.a.sge(0, 3000)]);
        p.net.send(0, p.qa, w);
    }
    for (i, imm) in [(3, 0xdead_beef), (4, 7)] {
        let w = wqe(
            i,
            SendOp::Write {
                remote,
                imm: Some(imm),
            },
            &[p.a.sge(0, 3000)],
        );
        p.net.send(0, p.qa, w);
    }
    p.net.settle();
    let got = p.done(1, Queue::Recv);
    let want = [(1, 3000, Some(0xdead_beef)), (2, 3000, Some(7))];
    assert_eq!(
        got.iter()
            .map(|c| (c.wr_id, c.byte_len, c.imm))
            .collect::<Vec<_>>(),
        want
    );
    assert!(
        got.iter()
            .all(|c| c.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM)
    );
    assert_eq!(
        p.b.bytes(40_000, 16),
        [0xee; 16],
        "the receive's buffer is not touched"
    );
    assert!(p.net.ends(0).iter().all(|e| e.1 == OK));
    // And without a receive there is no success.
    let w = wqe(
        5,
        SendOp::Write {
            remote,
            imm: Some(1),
        },
        &[p.a.sge(0, 1)],
    );
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(
        p.net.ends(0).last(),
        Some(&(5, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR))
    );
}

#[test]
fn zero_length_messages_are_empty_messages() {
    let mut p = pair(&Conn::default());
    for i in 0..4 {
        p.net.recv(1, p.qb, i, &[]);
    }
    let garbage = Remote {
        addr: u64::MAX - 3,
        rkey: 0x1234_5678,
    };
    let nowhere = rdma_soft::core::Sge {
        addr: 1,
        len: 0,
        lkey: 99,
    };
    p.net.send(0, p.qa, wqe(1, SEND, &[]));
    p.net.send(0, p.qa, wqe(2, SEND, &[nowhere]));
    p.net.send(
        0,
        p.qa,
        wqe(
            3,
            SendOp::Write {
                remote: garbage,
                imm: None,
            },
            &[],
        ),
    );
    p.net.send(
        0,
        p.qa,
        wqe(
            4,
            SendOp::Write {
                remote: garbage,
                imm: Some(5),
            },
            &[],
        ),
    );
    p.net
        .send(0, p.qa, wqe(5, SendOp::Read { remote: garbage }, &[]));
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, OK), (2, OK), (3, OK), (4, OK), (5, OK)]);
    let got = p.done(1, Queue::Recv);
    assert_eq!(
        got.iter()
            .map(|c| (c.wr_id, c.byte_len, c.imm))
            .collect::<Vec<_>>(),
        [(0, 0, None), (1, 0, None), (2, 0, Some(5))]
    );
    // Into a receive without room, one byte is too long.
    let w = wqe(6, SEND, &[p.a.sge(0, 1)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(
        p.net.ends(0).last(),
        Some(&(6, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR))
    );
    assert_eq!(
        p.done(1, Queue::Recv)[3].status,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR
    );
}

#[test]
fn a_message_longer_than_its_receive_is_1_here_and_9_there() {
    for len in [100, 5000] {
        let mut p = pair(&Conn::default());
        let sge = p.b.sge(0, len - 1);
        p.net.recv(1, p.qb, 1, &[sge]);
        let w = wqe(2, SEND, &[p.a.sge(0, len)]);
        p.net.send(0, p.qa, w);
        p.net.settle();
        assert_eq!(p.net.ends(0), [(2, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR)]);
        assert_eq!(p.net.ends(1), [(1, ibv_wc_status::IBV_WC_LOC_LEN_ERR)]);
        assert_eq!((p.net.state(0, p.qa), p.net.state(1, p.qb)), (ERR, ERR));
        assert_eq!(
            p.net.nodes[1].events.last(),
            Some(&ibv_event_type::IBV_EVENT_QP_REQ_ERR)
        );
    }
}

#[test]
fn each_atomic_mistake_has_its_status() {
    let add = |remote| SendOp::FetchAdd { remote, add: 1 };
    let inv = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
    let access = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;

    let mut p = pair(&Conn::default());
    let no_atomics = ALL - ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
    let m = p.net.nodes[1].mem(0x9000, 64, no_atomics);
    assert_eq!(p.status(add(m.remote(0)), 8), access, "the region's rights");

    let p = pair(&Conn {
        access: no_atomics,
        ..Conn::default()
    });
    let remote = p.b.remote(0);
    assert_eq!(p.status(add(remote), 8), inv, "the QP's rights");

    let p = pair(&Conn {
        dest_rd_atomic: 0,
        ..Conn::default()
    });
    let remote = p.b.remote(0);
    assert_eq!(p.status(add(remote), 8), inv, "no depth at the responder");

    let p = pair(&Conn::default());
    let remote = p.b.remote(4);
    assert_eq!(p.status(add(remote), 8), inv, "alignment");

    let p = pair(&Conn {
        rd_atomic: 0,
        ..Conn::default()
    });
    let remote = p.b.remote(0);
    assert_eq!(
        p.status(add(remote), 8),
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
        "no depth here"
    );

    let mut p = pair(&Conn::default());
    p.b.region.write(8, &41u64.to_ne_bytes()).unwrap();
    let w = wqe(1, add(p.b.remote(8)), &[p.a.sge(16, 8)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, OK)]);
    assert_eq!((p.a.word(16), p.b.word(8)), (41, 42));
    assert_eq!(p.done(0, Queue::Send)[0].byte_len, 8);
}

#[test]
fn each_wrong_key_has_its_status() {
    let access = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    type Wrong = fn(&Pair) -> Remote;
    let cases: [(&str, Wrong); 4] = [
        ("an lkey is no rkey", |p| Remote {
            addr: p.b.iova,
            rkey: p.b.lkey,
        }),
        ("past the end", |p| p.b.remote((1 << 16) - 99)),
        ("before the start", |p| Remote {
            addr: p.b.iova - 1,
            rkey: p.b.rkey,
        }),
        ("wraps", |p| Remote {
            addr: u64::MAX - 10,
            rkey: p.b.rkey,
        }),
    ];
    for (what, remote) in cases {
        for read in [false, true] {
            let p = pair(&Conn::default());
            let remote = remote(&p);
            let op = if read {
                SendOp::Read { remote }
            } else {
                SendOp::Write { remote, imm: None }
            };
            let b = p.b.clone();
            assert_eq!(p.status(op, 100), access, "{what}");
            assert_eq!(b.bytes(0, 1 << 16), vec![0; 1 << 16], "{what}");
        }
    }
    // Local keys: unknown, of another domain, too short, and without the right to write.
    let mut p = pair(&Conn::default());
    let read_only = p.net.nodes[0].mem(0x5000, 64, ibv_access_flags::empty());
    let remote = p.b.remote(0);
    let w = wqe(
        1,
        SendOp::Write { remote, imm: None },
        &[read_only.sge(0, 64)],
    );
    p.net.send(0, p.qa, w);
    let w = wqe(2, SendOp::Read { remote }, &[read_only.sge(0, 64)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(
        p.net.ends(0),
        [(1, OK), (2, ibv_wc_status::IBV_WC_LOC_PROT_ERR)]
    );
}

#[test]
fn a_request_that_cannot_be_executed_fails_after_those_before_it() {
    let mut p = pair(&Conn::default());
    let remote = p.b.remote(0);
    let bad = rdma_soft::core::Sge {
        addr: 0,
        len: 8,
        lkey: 1,
    };
    let good = p.a.sge(0, 60_000);
    p.net.send(
        0,
        p.qa,
        wqe(1, SendOp::Write { remote, imm: None }, &[good]),
    );
    p.net
        .send(0, p.qa, wqe(2, SendOp::Write { remote, imm: None }, &[bad]));
    p.net.send(
        0,
        p.qa,
        wqe(3, SendOp::Write { remote, imm: None }, &[good]),
    );
    p.net.settle();
    assert_eq!(
        p.net.ends(0),
        [
            (1, OK),
            (2, ibv_wc_status::IBV_WC_LOC_PROT_ERR),
            (3, FLUSHED)
        ]
    );
    assert_eq!(p.b.bytes(0, 60_000), p.a.bytes(0, 60_000));
}

#[test]
fn a_fence_makes_a_write_wait_for_earlier_reads() {
    // READ then WRITE to the same word, over a wire that loses much: with the fence on the WRITE the
    // READ gives the old value, always.
    for seed in 0..200 {
        let mut net = Net::new(
            2,
            4096,
            64,
            "loss=20%,reorder=10%,delay=5us".parse().unwrap(),
            seed,
        );
        let (qa, _) = net.pair(0, 1, &Conn::default());
        let a = net.nodes[0].mem(0x1000, 64, ALL);
        let b = net.nodes[1].mem(0x1000, 64, ALL);
        b.region.write(0, &1u64.to_ne_bytes()).unwrap();
        a.region.write(8, &2u64.to_ne_bytes()).unwrap();
        net.send(
            0,
            qa,
            wqe(
                1,
                SendOp::Read {
                    remote: b.remote(0),
                },
                &[a.sge(0, 8)],
            ),
        );
        let mut w = wqe(
            2,
            SendOp::Write {
                remote: b.remote(0),
                imm: None,
            },
            &[a.sge(8, 8)],
        );
        w.fence = true;
        net.send(0, qa, w);
        net.settle();
        assert_eq!(net.ends(0), [(1, OK), (2, OK)]);
        assert_eq!((a.word(0), b.word(0)), (1, 2), "seed {seed}");
    }
}

#[test]
fn without_a_fence_a_read_may_see_a_later_write() {
    // The hazard is real on this device, so that programs can be tested for it.
    let mut seen = 0;
    for seed in 0..200 {
        let mut net = Net::new(2, 4096, 64, "loss=20%,delay=5us".parse().unwrap(), seed);
        let (qa, _) = net.pair(0, 1, &Conn::default());
        let a = net.nodes[0].mem(0x1000, 64, ALL);
        let b = net.nodes[1].mem(0x1000, 64, ALL);
        b.region.write(0, &1u64.to_ne_bytes()).unwrap();
        a.region.write(8, &2u64.to_ne_bytes()).unwrap();
        let mut read = wqe(
            1,
            SendOp::Read {
                remote: b.remote(0),
            },
            &[a.sge(0, 8)],
        );
        read.fence = true; // on the wrong request: protects nothing
        net.send(0, qa, read);
        net.send(
            0,
            qa,
            wqe(
                2,
                SendOp::Write {
                    remote: b.remote(0),
                    imm: None,
                },
                &[a.sge(8, 8)],
            ),
        );
        net.settle();
        seen += usize::from(a.word(0) == 2);
    }
    assert!(seen > 0);
}

#[test]
fn psn_wraps_in_every_kind_of_message() {
    for psn in [0xff_fffe, 0xff_fff0, 0xff_ffff] {
        for seed in 0..5 {
            let mut net = Net::new(2, 4096, 16, "loss=3%,delay=5us".parse().unwrap(), seed);
            let c = Conn {
                mtu: 256,
                psn: [psn, psn],
                ..Conn::default()
            };
            let (qa, qb) = net.pair(0, 1, &c);
            let a = net.nodes[0].mem(0x1000, 16384, ALL);
            let b = net.nodes[1].mem(0x1000, 16384, ALL);
            a.region.write(0, &[7; 16384]).unwrap();
            for i in 0..8 {
                net.recv(1, qb, i, &[b.sge(0, 16384)]);
                net.send(0, qa, wqe(3 * i, SEND, &[a.sge(0, 5000)]));
                net.send(
                    0,
                    qa,
                    wqe(
                        3 * i + 1,
                        SendOp::Read {
                            remote: b.remote(8192),
                        },
                        &[a.sge(8192, 5000)],
                    ),
                );
                net.send(
                    0,
                    qa,
                    wqe(
                        3 * i + 2,
                        SendOp::FetchAdd {
                            remote: b.remote(16376),
                            add: 1,
                        },
                        &[a.sge(16376, 8)],
                    ),
                );
            }
            net.settle();
            assert!(net.nodes[0].done.iter().all(|c| c.status == OK));
            assert_eq!((net.nodes[0].done.len(), b.word(16376)), (24, 8));
        }
    }
}

#[test]
fn psns_that_do_not_match_end_in_retry_exceeded() {
    let mut net = Net::clean(2);
    let c = Conn {
        psn: [100, 200],
        ..Conn::default()
    };
    let (qa, qb) = (net.nodes[0].create_qp(&c), net.nodes[1].create_qp(&c));
    // Node 1 expects a PSN that is earlier than the first one that comes.
    net.move_to_rtr(0, qa, 1, qb, &c, 1);
    net.move_to_rtr(
        1,
        qb,
        0,
        qa,
        &Conn {
            psn: [50, 200],
            ..c.clone()
        },
        0,
    );
    net.move_to_rts(0, qa, &c, 0);
    net.move_to_rts(1, qb, &c, 1);
    net.recv(1, qb, 9, &[]);
    net.send(0, qa, wqe(1, SEND, &[]));
    net.settle();
    assert_eq!(net.ends(0), [(1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR)]);
    assert!(
        net.nodes[1]
            .engine
            .counters()
            .refused(Refused::OutOfSequence)
            > 0
    );
    assert!(net.nodes[1].done.is_empty());
}

#[test]
fn replayed_packets_of_a_former_life_are_dropped() {
    let mut p = pair(&Conn {
        psn: [1000, 1000],
        ..Conn::default()
    });
    p.net.recorded = Some(vec![]);
    let sge = p.b.sge(0, 64);
    p.net.recv(1, p.qb, 1, &[sge]);
    let w = wqe(1, SEND, &[p.a.sge(0, 64)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    let frames = p.net.recorded.take().unwrap();
    // Both ends begin anew with other PSNs.
    for (node, qp) in [(0, p.qa), (1, p.qb)] {
        p.net.move_to_state(node, qp, ibv_qp_state::IBV_QPS_RESET);
    }
    let (qa, qb) = (p.qa, p.qb);
    p.net.connect(
        0,
        qa,
        1,
        qb,
        &Conn {
            psn: [0x80_0000, 0x90_0000],
            ..Conn::default()
        },
    );
    p.net.recv(1, p.qb, 2, &[sge]);
    let before = p.net.nodes[1].done.len();
    for f in &frames {
        p.net.deliver(f);
    }
    assert_eq!(p.net.nodes[1].done.len(), before);
    let c = p.net.nodes[1].engine.counters();
    assert!(c.refused(Refused::DuplicateRequest) + c.refused(Refused::OutOfSequence) > 0);
}

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
fn a_deregistered_region_is_never_touched_again() {
    // At the sender, in mid-message.
    let mut p = pair(&Conn {
        timeout: 14,
        ..Conn::default()
    });
    let remote = p.b.remote(0);
    let long = p.a.sge(0, 65_536);
    p.net.send(
        0,
        p.qa,
        wqe(1, SendOp::Write { remote, imm: None }, &[long]),
    );
    for _ in 0..3 {
        p.net.step();
    }
    p.net.nodes[0].engine.dereg_mr(p.a.lkey).unwrap();
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, ibv_wc_status::IBV_WC_LOC_PROT_ERR)]);
    // At the target of a READ and of a WRITE, in mid-message.
    for read in [true, false] {
        let mut p = pair(&Conn {
            timeout: 14,
            ..Conn::default()
        });
        let remote = p.b.remote(0);
        let op = if read {
            SendOp::Read { remote }
        } else {
            SendOp::Write { remote, imm: None }
        };
        let long = p.a.sge(0, 65_536);
        p.net.send(0, p.qa, wqe(1, op, &[long]));
        for _ in 0..3 {
            p.net.step();
        }
        p.net.nodes[1].engine.dereg_mr(p.b.lkey).unwrap();
        let before = p.b.bytes(0, 65_536);
        p.net.settle();
        assert_eq!(p.net.ends(0), [(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR)]);
        assert_eq!(p.b.bytes(0, 65_536), before);
        assert_eq!(
            p.net.nodes[1].events.last(),
            Some(&ibv_event_type::IBV_EVENT_QP_ACCESS_ERR)
        );
    }
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
fn two_queue_pairs_of_one_node_talk_without_a_wire() {
    // The self link passes payload by reference, also when the two regions overlap.
    let mut net = Net::clean(1);
    let (qa, qb) = net.pair(0, 0, &Conn::default());
    let m = net.nodes[0].mem(0x1000, 1 << 16, ALL);
    let bytes: Vec<u8> = (0..20_000u32).map(|i| ((i * 13) >> 2) as u8).collect();
    m.region.write(0, &bytes).unwrap();
    let node = &mut net.nodes[0];
    let mut list = rdma_soft::core::SgeList::new();
    assert!(list.push(m.sge(50_000, 300)));
    node.engine.post_recv(
        qb,
        rdma_soft::core::RecvWqe {
            wr_id: 7,
            seq: 0,
            sges: list,
        },
    );
    let posts = [
        wqe(
            1,
            SendOp::Write {
                remote: m.remote(30_000),
                imm: None,
            },
            &[m.sge(0, 9_000), m.sge(9_000, 11_000)],
        ),
        inline(2, SEND, &[9; 200]),
        wqe(
            3,
            SendOp::Read {
                remote: m.remote(0),
            },
            &[m.sge(51_000, 5_000)],
        ),
    ];
    for w in posts {
        node.engine.post_send(qa, w);
    }
    while let Some(t) = node.engine.poll_transmit(net.now) {
        node.engine.loopback(net.now, &t);
    }
    net.drain();
    assert_eq!(
        net.ends(0),
        [(7, OK), (1, OK), (2, OK), (3, OK)].map(|e| e),
        "{:?}",
        net.ends(0)
    );
    assert_eq!(m.bytes(30_000, 20_000), bytes);
    assert_eq!(m.bytes(50_000, 200), [9; 200]);
    assert_eq!(m.bytes(51_000, 5_000), bytes[..5_000]);
    assert_eq!(net.wire.counters().offered, 0);
}

#[test]
fn solicited_events_are_marked() {
    let mut p = pair(&Conn::default());
    for i in 0..2 {
        p.net.recv(1, p.qb, i, &[]);
    }
    p.net.send(0, p.qa, wqe(1, SEND, &[]));
    let mut w = wqe(2, SEND, &[]);
    w.solicited = true;
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(p.net.nodes[1].solicited, [false, true]);
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

#[test]
fn answers_and_requests_take_turns() {
    // Node 1 answers a long READ and has something to say itself: that does not wait for the end.
    let mut p = pair(&Conn {
        mtu: 256,
        ..Conn::default()
    });
    let (read, write) = (p.b.remote(0), p.a.remote(0));
    let w = wqe(1, SendOp::Read { remote: read }, &[p.a.sge(0, 1 << 16)]);
    p.net.send(0, p.qa, w);
    p.net.run(Duration::from_secs(1), |n| {
        n.nodes[1].engine.counters().rx_accepted > 0
    });
    let w = wqe(
        2,
        SendOp::Write {
            remote: write,
            imm: None,
        },
        &[p.b.sge(0, 8)],
    );
    p.net.send(1, p.qb, w);
    p.net
        .run(Duration::from_secs(1), |n| !n.nodes[1].done.is_empty());
    assert!(p.net.ends(0).is_empty(), "the READ still goes on");
    p.net.settle();
    assert_eq!(
        (p.net.ends(0), p.net.ends(1)),
        (vec![(1, OK)], vec![(2, OK)])
    );
}

#[test]
fn a_repeated_read_whose_region_is_gone_harms_nobody() {
    let mut p = pair(&Conn::default());
    p.net.recorded = Some(vec![]);
    let remote = p.b.remote(0);
    let w = wqe(1, SendOp::Read { remote }, &[p.a.sge(0, 4000)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, OK)]);
    // The question comes again; the region goes while the answer is on its way out.
    let (path, packet, _) = p.first();
    let (now, node) = (p.net.now, &mut p.net.nodes[1].engine);
    node.handle_packet(now, &path, &packet, &[]);
    let answer = node.poll_transmit(now).unwrap();
    node.dereg_mr(p.b.lkey).unwrap();
    assert_eq!(
        node.emit(&answer, &mut [0; rdma_soft::core::MAX_FRAME]),
        None
    );
    p.net.settle();
    assert_eq!(p.net.state(1, p.qb), ibv_qp_state::IBV_QPS_RTS);
    assert!(p.net.nodes[1].events.is_empty());
}

#[test]
fn a_repeated_write_is_acknowledged_without_the_read_behind_it() {
    // WRITE then READ; the answers to both are lost, the WRITE comes again.
    let mut p = pair(&Conn {
        psn: [0, 0],
        ..Conn::default()
    });
    p.net.recorded = Some(vec![]);
    let remote = p.b.remote(0);
    let w = wqe(1, SendOp::Write { remote, imm: None }, &[p.a.sge(0, 8)]);
    p.net.send(0, p.qa, w);
    let w = wqe(2, SendOp::Read { remote }, &[p.a.sge(8, 8)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    let (path, packet, payload) = p.first();
    let (now, node) = (p.net.now, &mut p.net.nodes[1].engine);
    node.handle_packet(now, &path, &packet, &payload);
    let ack = node.poll_transmit(now).unwrap().packet.bth;
    assert_eq!(ack.psn.value(), 0, "the WRITE's PSN; 1 is the READ's");
}

#[test]
fn the_self_link_counts_what_it_carried() {
    let mut net = Net::clean(1);
    let (qa, _) = net.pair(0, 0, &Conn::default());
    let m = net.nodes[0].mem(0x1000, 64, ALL);
    let (now, node) = (net.now, &mut net.nodes[0].engine);
    node.post_send(
        qa,
        wqe(
            1,
            SendOp::Write {
                remote: m.remote(8),
                imm: None,
            },
            &[m.sge(0, 8)],
        ),
    );
    let t = node.poll_transmit(now).unwrap();
    node.dereg_mr(m.lkey).unwrap();
    node.loopback(now, &t);
    assert_eq!(
        (node.counters().tx_frames, node.counters().rx_frames),
        (0, 0)
    );
    net.drain();
    assert_eq!(net.ends(0), [(1, ibv_wc_status::IBV_WC_LOC_PROT_ERR)]);
}

#[test]
fn a_read_asked_again_from_a_hole_goes_on_from_there() {
    let mut p = pair(&Conn {
        psn: [0, 0],
        ..Conn::default()
    });
    p.net.recorded = Some(vec![]);
    let remote = p.b.remote(0);
    let w = wqe(1, SendOp::Read { remote }, &[p.a.sge(0, 8 * 1024)]);
    p.net.send(0, p.qa, w);
    let (path, mut packet, _) = p.first();
    let (now, node) = (p.net.now, &mut p.net.nodes[1].engine);
    node.handle_packet(now, &path, &packet, &[]);
    let psns = |node: &mut rdma_soft::core::Engine, n: usize| {
        let all = std::iter::from_fn(|| node.poll_transmit(now)).take(n);
        all.map(|t| (t.packet.bth.psn.value(), t.packet.bth.opcode))
            .collect::<Vec<_>>()
    };
    use rdma_soft::wire::Opcode as O;
    let (first, middle, last) = (
        O::RC_RDMA_READ_RESPONSE_FIRST,
        O::RC_RDMA_READ_RESPONSE_MIDDLE,
        O::RC_RDMA_READ_RESPONSE_LAST,
    );
    assert_eq!(
        psns(node, 4),
        [(0, first), (1, middle), (2, middle), (3, middle)]
    );
    // Packet 2 was lost: the peer asks for 2..8, and 4..8 are not sent before that.
    packet.bth.psn = rdma_soft::wire::Psn::new(2);
    packet.reth.as_mut().unwrap().va += 2 * 1024;
    packet.reth.as_mut().unwrap().len = 6 * 1024;
    node.handle_packet(now, &path, &packet, &[]);
    let want = [
        (2, first),
        (3, middle),
        (4, middle),
        (5, middle),
        (6, middle),
        (7, last),
    ];
    assert_eq!(psns(node, 99), want);
}
