//! Shared receive queues: many Queue Pairs, one line of receives, none ever lost.

use std::collections::BTreeSet;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_event_type, ibv_wc_status};
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Event, Queue, SendOp, SrqAttr, SrqId, SrqInit};

use super::net::*;

const LIMIT: ibv_event_type = ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED;
const LAST: ibv_event_type = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED;

/// Node 0 has `n` Queue Pairs, connected to as many of node 1 that share one SRQ.
struct Shared {
    net: Net,
    srq: SrqId,
    qas: Vec<u32>,
    qbs: Vec<u32>,
    a: Mem,
    b: Mem,
    conn: Conn,
}

fn shared(n: usize, conn: Conn) -> Shared {
    let mut net = Net::clean(2);
    let srq = net.nodes[1].create_srq(0, None);
    let a = net.nodes[0].mem(0x10_0000, 1 << 16, ALL);
    let b = net.nodes[1].mem(0x20_0000, 1 << 16, ALL);
    let (mut qas, mut qbs) = (vec![], vec![]);
    for _ in 0..n {
        let (qa, qb) = (
            net.nodes[0].create_qp(&conn),
            net.nodes[1].create_qp_on(&conn, srq),
        );
        net.connect(0, qa, 1, qb, &conn);
        qas.push(qa);
        qbs.push(qb);
    }
    Shared {
        net,
        srq,
        qas,
        qbs,
        a,
        b,
        conn,
    }
}

impl Shared {
    fn fill(&mut self, ids: std::ops::Range<u64>) {
        for i in ids {
            let into = self.b.sge(i % 16 * 4096, 4096);
            self.net.srq_recv(1, self.srq, i, &[into]);
        }
    }

    fn send(&mut self, q: usize, wr_id: u64, len: u32) {
        let w = wqe(wr_id, SEND, &[self.a.sge(0, len)]);
        self.net.send(0, self.qas[q], w);
    }

    /// Who got which receive, in order.
    fn got(&self) -> Vec<(u64, u32)> {
        let done = self.net.nodes[1].done.iter();
        done.filter(|c| c.queue == Queue::Srq(self.srq) && c.status == OK)
            .map(|c| (c.wr_id, c.qp_num))
            .collect()
    }

    /// Connects a pair anew, with what its PSNs were.
    fn revive(&mut self, q: usize) {
        let (qa, qb) = (self.qas[q], self.qbs[q]);
        self.net.move_to_state(0, qa, RESET);
        self.net.move_to_state(1, qb, RESET);
        let c = self.conn.clone();
        self.net.connect(0, qa, 1, qb, &c);
    }
}

#[test]
fn the_oldest_receive_goes_to_whoever_is_first() {
    for transport in [Transport::Rc, Transport::Uc] {
        let mut s = shared(3, Conn::of(transport));
        s.fill(0..6);
        for (i, q) in [2, 0, 0, 1, 2, 1].into_iter().enumerate() {
            s.send(q, i as u64, 1500);
            s.net.settle();
        }
        let want = [(0, 2), (1, 0), (2, 0), (3, 1), (4, 2), (5, 1)];
        assert_eq!(s.got(), want.map(|(i, q): (u64, usize)| (i, s.qbs[q])));
        for i in 0..6 {
            assert_eq!(s.b.bytes(i * 4096, 1500), s.a.bytes(0, 1500));
        }
    }
}

#[test]
fn messages_that_interleave_hold_a_receive_each() {
    let mut s = shared(2, Conn::default());
    s.fill(0..3);
    s.net.by_hand();
    s.a.region.write(0, &[1; 2000]).unwrap();
    s.send(0, 0, 2000);
    let first = s.net.frames();
    s.a.region.write(0, &[2; 2000]).unwrap();
    s.send(1, 1, 2000);
    let second = s.net.frames();
    // The one that began first ends last: completions come in the order of ends.
    for f in [&first[0], &second[0], &second[1], &first[1]] {
        s.net.deliver(f);
    }
    assert_eq!(s.got(), [(1, s.qbs[1]), (0, s.qbs[0])]);
    assert_eq!(s.b.bytes(0, 2000), [1; 2000]);
    assert_eq!(s.b.bytes(4096, 2000), [2; 2000]);
}

#[test]
fn write_with_immediate_takes_a_receive_too() {
    let mut s = shared(1, Conn::default());
    s.fill(7..8);
    let remote = s.b.remote(60_000);
    let op = SendOp::Write {
        remote,
        imm: Some(3),
    };
    let w = wqe(1, op, &[s.a.sge(0, 100)]);
    s.net.send(0, s.qas[0], w);
    s.net.settle();
    assert_eq!(s.got(), [(7, s.qbs[0])]);
}

#[test]
fn the_limit_is_told_once_until_it_is_set_again() {
    let mut s = shared(1, Conn::default());
    s.fill(0..6);
    let limit = |s: &Shared| s.net.nodes[1].engine.query_srq(s.srq).unwrap().limit;
    s.net.nodes[1]
        .engine
        .modify_srq(s.srq, None, Some(4))
        .unwrap();
    s.net.drain();
    assert!(s.net.nodes[1].srq_events.is_empty(), "six are there");
    for (i, told) in [0, 0, 1, 1, 1].into_iter().enumerate() {
        s.send(0, i as u64, 10);
        s.net.settle();
        assert_eq!(s.net.nodes[1].srq_events.len(), told, "after {}", i + 1);
        // At four it is not below four.
        assert_eq!(limit(&s), if told == 0 { 4 } else { 0 });
    }
    assert_eq!(s.net.nodes[1].srq_events, [(s.srq, LIMIT)]);
    // One is left: a limit above that is reached as it is set.
    s.net.nodes[1]
        .engine
        .modify_srq(s.srq, None, Some(2))
        .unwrap();
    s.net.drain();
    assert_eq!(s.net.nodes[1].srq_events, [(s.srq, LIMIT); 2]);
    // Set in good time, it waits again.
    s.fill(6..10);
    s.net.nodes[1]
        .engine
        .modify_srq(s.srq, None, Some(5))
        .unwrap();
    s.net.drain();
    assert_eq!(s.net.nodes[1].srq_events.len(), 2);
    s.send(0, 9, 10);
    s.net.settle();
    assert_eq!(s.net.nodes[1].srq_events.len(), 3);
}

#[test]
fn an_empty_queue_makes_senders_wait_and_the_next_receives_serve_them() {
    let mut s = shared(
        3,
        Conn {
            rnr_retry: 7,
            ..Conn::default()
        },
    );
    for q in 0..3 {
        s.send(q, q as u64, 100);
    }
    s.net.run(std::time::Duration::from_millis(1), |_| false);
    assert!(s.net.nodes[0].done.is_empty());
    assert!(s.net.nodes[1].engine.counters().tx_rnr_naks >= 3);
    for q in 0..3 {
        let stats = s.net.nodes[1].engine.qp_stats(s.qbs[q]).unwrap();
        assert!(stats.rnr_naks_sent > 0);
        let stats = s.net.nodes[0].engine.qp_stats(s.qas[q]).unwrap();
        assert!(stats.rnr_naks_received > 0);
    }
    s.fill(0..3);
    s.net.settle();
    let got: BTreeSet<u32> = s.got().into_iter().map(|g| g.1).collect();
    assert_eq!(got, s.qbs.iter().copied().collect());
    assert_eq!(s.net.nodes[0].done.len(), 3);
}

#[test]
fn a_dying_queue_pair_flushes_what_it_had_taken_and_then_says_that_it_was_the_last() {
    let mut s = shared(2, Conn::default());
    s.fill(0..3);
    s.net.by_hand();
    s.send(0, 0, 2000);
    let begun = s.net.frames();
    s.net.deliver(&begun[0]);
    let engine = &mut s.net.nodes[1].engine;
    let attr = rdma_core_sys::ibv_qp_attr {
        qp_state: ERR,
        ..Default::default()
    };
    let mask = rdma_core_sys::ibv_qp_attr_mask::IBV_QP_STATE;
    engine.modify_qp(s.qbs[0], &attr, mask).unwrap();
    let mut told = vec![];
    while let Some(event) = engine.poll_event() {
        match event {
            Event::Completion { wc, .. } => told.push(format!("{} {:?}", wc.wr_id, wc.status)),
            Event::Qp { qp_num, kind } => {
                assert_eq!(qp_num, s.qbs[0]);
                told.push(format!("{kind:?}"));
            }
            _ => {}
        }
    }
    assert_eq!(told, [format!("0 {FLUSHED:?}"), format!("{LAST:?}")]);
    // The others go on with the next one.
    s.net.wire.set_faults(Default::default());
    s.send(1, 1, 10);
    s.net.settle();
    assert_eq!(s.got(), [(1, s.qbs[1])]);
}

#[test]
fn a_queue_pair_that_had_taken_nothing_says_it_was_the_last_at_once() {
    let mut s = shared(1, Conn::default());
    s.fill(0..3);
    s.net.move_to_state(1, s.qbs[0], ERR);
    assert_eq!(s.net.nodes[1].events, [LAST]);
    assert!(s.net.nodes[1].done.is_empty(), "the queue's receives stay");
    s.net.move_to_state(1, s.qbs[0], ERR);
    assert_eq!(s.net.nodes[1].events, [LAST], "once");
}

#[test]
fn reset_and_destroy_put_a_taken_receive_back_in_front() {
    for destroy in [false, true] {
        let mut s = shared(2, Conn::default());
        s.fill(0..3);
        s.net.by_hand();
        s.send(0, 0, 2000);
        let begun = s.net.frames();
        s.net.deliver(&begun[0]);
        if destroy {
            s.net.nodes[1].engine.destroy_qp(s.qbs[0]).unwrap();
        } else {
            s.net.move_to_state(1, s.qbs[0], RESET);
        }
        s.net.wire.set_faults(Default::default());
        for i in 0..3 {
            s.send(1, i, 10);
            s.net.settle();
        }
        let order: Vec<u64> = s.got().iter().map(|g| g.0).collect();
        assert_eq!(order, [0, 1, 2], "destroy: {destroy}");
        assert!(s.net.nodes[1].events.iter().all(|e| *e != LAST));
    }
}

#[test]
fn a_full_queue_keeps_its_receives_when_its_size_changes() {
    let mut s = shared(1, Conn::default());
    s.fill(0..6);
    let engine = &mut s.net.nodes[1].engine;
    let why = engine.modify_srq(s.srq, Some(5), None).unwrap_err();
    assert!(why.to_string().contains("6"), "{why}");
    engine.modify_srq(s.srq, Some(6), Some(6)).unwrap();
    let too_high = engine.modify_srq(s.srq, None, Some(7)).unwrap_err();
    assert!(too_high.to_string().contains("srq_limit"), "{too_high}");
    let want = SrqAttr {
        max_wr: 6,
        max_sge: 4,
        limit: 6,
    };
    assert_eq!(
        engine.query_srq(s.srq),
        Some(want),
        "a refused call changes nothing"
    );
}

#[test]
fn an_srq_that_is_used_or_wrong_is_refused_with_the_reason() {
    let mut s = shared(2, Conn::default());
    let node = &mut s.net.nodes[1];
    let busy = node.engine.destroy_srq(s.srq).unwrap_err();
    assert_eq!(busy.errno, rustix::io::Errno::BUSY);
    for qp in &s.qbs {
        assert!(busy.to_string().contains(&format!("{qp:#x}")), "{busy}");
    }
    for qp in &s.qbs {
        node.engine.destroy_qp(*qp).unwrap();
    }
    assert_eq!(node.engine.destroy_srq(s.srq), Ok(()));
    let good = SrqInit {
        pd: node.pd,
        max_wr: 10,
        max_sge: 1,
        limit: 0,
        xrc: None,
    };
    let wrong = [
        (SrqInit { max_wr: 0, ..good }, "max_wr"),
        (
            SrqInit {
                max_wr: 1 << 20,
                ..good
            },
            "max_srq_wr",
        ),
        (
            SrqInit {
                max_sge: 17,
                ..good
            },
            "max_srq_sge",
        ),
        (SrqInit { limit: 11, ..good }, "srq_limit"),
    ];
    for (init, text) in wrong {
        let why = node.engine.create_srq(init).unwrap_err();
        assert_eq!(why.errno, rustix::io::Errno::INVAL);
        assert!(why.to_string().contains(text), "{why}");
    }
}

#[test]
fn a_message_too_long_for_the_shared_receive_ends_its_queue_pair_alone() {
    let mut s = shared(2, Conn::default());
    let short = s.b.sge(0, 10);
    s.net.srq_recv(1, s.srq, 0, &[short]);
    s.fill(1..3);
    s.send(0, 0, 11);
    s.net.settle();
    let done = &s.net.nodes[1].done[0];
    assert_eq!(
        (done.wr_id, done.status),
        (0, ibv_wc_status::IBV_WC_LOC_LEN_ERR)
    );
    assert_eq!(done.qp_num, s.qbs[0]);
    assert_eq!(s.net.state(1, s.qbs[0]), ERR);
    assert!(s.net.nodes[1].events.contains(&LAST));
    s.send(1, 1, 11);
    s.net.settle();
    assert_eq!(s.got(), [(1, s.qbs[1])]);
}

/// Queue Pairs die at random in the middle of messages, and come back: of the receives that were posted,
/// each ends in one completion or is still in the queue.
#[test]
fn receives_are_conserved_whatever_dies() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let transport = [Transport::Rc, Transport::Uc][seed as usize % 2];
        let mut s = shared(
            4,
            Conn {
                mtu: 256,
                ..Conn::of(transport)
            },
        );
        s.net.wire.set_faults("loss=3%,delay=5us".parse().unwrap());
        let mut posted = 0;
        let mut sent = 0;
        for _ in 0..300 {
            let q = rng.below(4) as usize;
            match rng.below(10) {
                0..3 => {
                    s.fill(posted..posted + 1);
                    posted += 1;
                }
                3..6 => {
                    s.send(q, sent, rng.below(4000) as u32);
                    sent += 1;
                }
                6 => match rng.below(4) {
                    0 if s.net.state(1, s.qbs[q]) == RESET => s.revive(q),
                    0 => s.net.move_to_state(1, s.qbs[q], ERR),
                    1 => s.net.move_to_state(1, s.qbs[q], RESET),
                    2 => {
                        s.net.nodes[1].engine.destroy_qp(s.qbs[q]).unwrap();
                        let c = s.conn.clone();
                        s.qbs[q] = s.net.nodes[1].create_qp_on(&c, s.srq);
                        s.revive(q);
                    }
                    _ => s.revive(q),
                },
                _ => {
                    for _ in 0..rng.below(20) {
                        s.net.step();
                    }
                }
            }
        }
        // All die, and one more takes what is left.
        for qp in &s.qbs {
            s.net.nodes[1].engine.destroy_qp(*qp).unwrap();
        }
        s.net.settle();
        s.net.wire.set_faults(Default::default());
        let c = Conn::default();
        let (qa, qb) = (
            s.net.nodes[0].create_qp(&c),
            s.net.nodes[1].create_qp_on(&c, s.srq),
        );
        s.net.connect(0, qa, 1, qb, &c);
        let before = s.net.nodes[1].done.len() as u64;
        assert!(before <= posted);
        for i in before..posted {
            s.net.send(0, qa, wqe(i, SEND, &[]));
        }
        // Not until nothing happens: a receive that is missing would be asked for until then.
        let all = posted as usize;
        let limit = std::time::Duration::from_millis(100);
        s.net.run(limit, |net| net.nodes[1].done.len() == all);
        let done = s.net.nodes[1].done.iter();
        let mut ends: Vec<u64> = done.map(|c| c.wr_id).collect();
        ends.sort_unstable();
        assert_eq!(ends, (0..posted).collect::<Vec<_>>(), "seed {seed}");
        // And none is left over.
        s.net.send(0, qa, wqe(0, SEND, &[]));
        s.net.run(std::time::Duration::from_millis(5), |_| false);
        assert_eq!(s.net.nodes[1].done.len() as u64, posted);
    }
}

/// A CQ that lost a completion takes the XRC SRQs with it that complete there, and nobody else: each says so once,
/// and a request that names one is refused for good.
#[test]
fn an_srq_whose_cq_was_overrun_takes_no_more() {
    let mut net = Net::clean(2);
    let c = Conn::of(Transport::XrcIni);
    let node = &mut net.nodes[1];
    let (xrcd, other_cq) = (node.engine.open_xrcd(), node.engine.create_cq().unwrap());
    let broken = node.create_srq(0, Some(xrcd));
    let init = SrqInit {
        pd: node.pd,
        max_wr: 8,
        max_sge: 1,
        limit: 0,
        xrc: Some((xrcd, other_cq)),
    };
    let whole = node.engine.create_srq(init).unwrap();
    let targets = [0, 1].map(|_| node.create_target(xrcd));
    let inis = [0, 1].map(|_| net.nodes[0].create_qp(&c));
    for (ini, target) in inis.into_iter().zip(targets) {
        net.connect(0, ini, 1, target, &c);
    }
    for srq in [broken, whole] {
        net.srq_recv(1, srq, 1, &[]);
    }
    let cq = net.nodes[1].cq;
    for _ in 0..2 {
        net.nodes[1].engine.cq_overrun(cq);
    }
    net.drain();
    let error = ibv_event_type::IBV_EVENT_SRQ_ERR;
    assert_eq!(net.nodes[1].srq_events, [(broken, error)]);
    for (ini, srq) in inis.into_iter().zip([broken, whole]) {
        let mut w = wqe(1, SEND, &[]);
        w.xrc_srq = srq.0;
        net.send(0, ini, w);
    }
    net.settle();
    let refused = ibv_wc_status::IBV_WC_REM_OP_ERR;
    assert_eq!(net.sends(0, inis[0]), [(1, refused)]);
    assert_eq!(net.sends(0, inis[1]), [(1, OK)]);
    assert_eq!(
        [net.state(1, targets[0]), net.state(1, targets[1])],
        [ERR, RTS]
    );
}
