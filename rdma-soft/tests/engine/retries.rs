//! Retries: how often, how long, and what ends them; sequence numbers.

use std::time::Duration;

use rdma_core_sys::rules::rnr_timer;
use rdma_core_sys::{ibv_qp_state, ibv_wc_status};
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Event, Refused, SendOp};
use rdma_soft::wire::{Aeth, Bth, NakCode, Opcode, Operation, Packet, Psn, Syndrome};

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
        // The second request followed the first once; then the first one asks alone.
        assert_eq!(p.sent(Operation::Send), 1 + naks as usize);
    }
}

/// A request that failed is the last one that is not flushed, whatever is heard of those behind it before that is told.
#[test]
fn nothing_succeeds_behind_a_request_that_failed() {
    let mut p = pair(&Conn {
        retry_cnt: 0,
        timeout: 1,
        ..Conn::default()
    });
    let (qa, sge) = (p.qa, p.a.sge(0, 8));
    let mut now = p.net.now;
    let engine = &mut p.net.nodes[0].engine;
    let three = [1, 2, 3].map(|mark| wqe(mark, SEND, &[sge]));
    engine.post_sends(qa, &mut three.into());
    let mut second = None;
    while engine.query_qp(qa).expect("it is there").0.qp_state != ERR {
        while let Some(sent) = engine.poll_transmit(now) {
            if second.is_none() && sent.packet.bth.psn == Psn::new(0xff_ffff) {
                second = Some((sent.src, sent.dst));
            }
        }
        now = engine.next_timeout().expect("it waits for an answer");
        engine.handle_timeout(now);
    }
    let (src, dst) = second.expect("all were sent");
    engine.handle_executed(now, src, dst, qa, Psn::new(0xff_ffff));
    let told = std::iter::from_fn(|| engine.poll_event()).filter_map(|event| match event {
        Event::Completion { wc, .. } => Some((wc.wr_id, wc.status)),
        _ => None,
    });
    let failed = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
    assert_eq!(
        told.collect::<Vec<_>>(),
        [(1, failed), (2, FLUSHED), (3, FLUSHED)]
    );
}

/// Who says that it is not ready is there: only silence, or a gap, uses up `retry_cnt`. On a wire that
/// loses packets a long wait for a receive ends well, too.
#[test]
fn waiting_for_a_receive_uses_up_no_other_retries() {
    for seed in 1..=5 {
        let faults = "loss=5%,delay=5us".parse().unwrap();
        let mut net = Net::new(2, 4096, 64, faults, seed);
        let c = Conn {
            rnr_retry: 7,
            retry_cnt: 6,
            min_rnr_timer: 1,
            timeout: 8,
            ..Conn::default()
        };
        let (qa, qb) = net.pair(0, 1, &c);
        let src = net.nodes[0].mem(0x1000, 64, ALL);
        let dst = net.nodes[1].mem(0x1000, 64, ALL);
        net.send(0, qa, wqe(1, SEND, &[src.sge(0, 64)]));
        // Thousands of times not ready, some of them lost.
        assert!(!net.run(Duration::from_millis(300), |net| {
            !net.nodes[0].done.is_empty()
        }));
        net.recv(1, qb, 9, &[dst.sge(0, 64)]);
        assert!(net.run(Duration::from_secs(2), |net| !net.nodes[0].done.is_empty()));
        assert_eq!(net.nodes[0].done[0].status, ibv_wc_status::IBV_WC_SUCCESS);
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

/// A peer without a receive is asked with one packet each time, however many wait: it takes none of them before it takes
/// the first, and then it gets all.
#[test]
fn a_peer_without_a_receive_is_asked_with_one_packet() {
    let mut p = pair(&Conn {
        rnr_retry: 7,
        min_rnr_timer: 12,
        ..Conn::default()
    });
    let sends = 16;
    for mark in 1..=sends {
        p.net.send(0, p.qa, wqe(mark, SEND, &[p.a.sge(0, 10)]));
    }
    p.net.run(Duration::from_millis(50), |_| false);
    let naks = p.net.nodes[1].engine.counters().tx_rnr_naks;
    assert!((70..=80).contains(&naks), "every 0.64 ms: {naks}");
    let repeated = p.net.nodes[0].engine.counters().tx_retransmitted;
    assert!(repeated <= naks, "{repeated} packets for {naks} NAKs");
    for mark in 1..=sends {
        let sge = p.b.sge(0, 64);
        p.net.recv(1, p.qb, 100 + mark, &[sge]);
    }
    p.net.settle();
    let ends = |from| {
        (1..=sends)
            .map(|mark| (from + mark, OK))
            .collect::<Vec<_>>()
    };
    assert_eq!(p.net.ends(0), ends(0));
    assert_eq!(p.net.ends(1), ends(100));
    // And what was held back goes out once.
    let in_all = p.net.nodes[0].engine.counters().tx_retransmitted;
    assert!(in_all <= repeated + sends, "{in_all} after {repeated}");
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

/// An answer of node 1 that the test makes up.
fn answer(p: &mut Pair, psn: u32, syndrome: Syndrome) {
    let mut packet = Packet::new(Bth {
        opcode: Opcode::RC_ACKNOWLEDGE,
        dest_qp: p.qa,
        psn: Psn::new(psn),
        pkey: 0xffff,
        ..Bth::default()
    });
    packet.aeth = Some(Aeth { syndrome, msn: 0 });
    let (now, from) = (p.net.now, path(addr(1), addr(0)));
    let engine = &mut p.net.nodes[0].engine;
    engine.handle_packet(now, &from, &packet, &[]);
}

#[test]
fn what_is_acknowledged_before_it_is_sent_again_is_not_sent_again() {
    let mut p = pair(&Conn {
        psn: [0, 0],
        ..Conn::default()
    });
    p.net.by_hand();
    let remote = p.b.remote(0);
    let w = wqe(1, SendOp::Write { remote, imm: None }, &[p.a.sge(0, 5000)]);
    p.net.send(0, p.qa, w);
    // A gap, and then, from before it or by a late packet that filled it, an acknowledgement beyond.
    answer(&mut p, 1, Syndrome::Nak(NakCode::PsnSequenceError));
    answer(&mut p, 2, Syndrome::Ack { credits: 31 });
    let now = p.net.now;
    let engine = &mut p.net.nodes[0].engine;
    let psns = std::iter::from_fn(|| engine.poll_transmit(now));
    let psns: Vec<u32> = psns.map(|t| t.packet.bth.psn.value()).collect();
    assert_eq!(psns, [3, 4]);
}

#[test]
fn an_rnr_nak_that_comes_twice_counts_once() {
    let mut p = pair(&Conn {
        psn: [0, 0],
        rnr_retry: 1,
        ..Conn::default()
    });
    p.net.by_hand();
    p.net.send(0, p.qa, wqe(1, SEND, &[]));
    for _ in 0..2 {
        answer(&mut p, 0, Syndrome::Rnr { timer: 12 });
    }
    p.net.drain();
    assert!(p.net.ends(0).is_empty());
    let stats = p.net.nodes[0].engine.qp_stats(p.qa).unwrap();
    assert_eq!(stats.rnr_naks_received, 1);
    assert_eq!(stats.rnr_wait, rnr_timer(12));
    p.net.recv(1, p.qb, 2, &[]);
    p.net.wire.set_faults(Default::default());
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, OK)]);
}

/// With an acknowledgement timer that runs for 67 ms: longer than it takes to ask.
fn patient() -> Conn {
    Conn {
        timeout: 14,
        ..Conn::default()
    }
}

/// A peer that is only slow is asked with one packet: it does not get the whole window again before it has
/// answered.
#[test]
fn a_slow_peer_is_asked_with_one_packet() {
    let mut p = pair(&patient());
    let write = |remote, mark| wqe(mark, SendOp::Write { remote, imm: None }, &[p.a.sge(0, 64)]);
    let remote = p.b.remote(0);
    // A first answer, after which the round trip is known.
    p.net.send(0, p.qa, write(remote, 0));
    p.net.settle();
    p.net.by_hand();
    for mark in 1..=16 {
        p.net.send(0, p.qa, write(remote, mark));
    }
    let first = p.net.frames();
    assert_eq!(first.len(), 16);
    let mut asked = p.net.frames();
    while asked.is_empty() {
        assert!(p.net.step());
        asked = p.net.frames();
    }
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].bytes, first[0].bytes);
    for frame in first.iter().chain(&asked) {
        p.net.deliver(frame);
    }
    // One acknowledgement may speak for all.
    let answers = p.net.frames();
    p.net.deliver(answers.last().unwrap());
    assert_eq!(p.net.frames().len(), 0);
    let expected: Vec<_> = (0..=16).map(|mark| (mark, OK)).collect();
    assert_eq!(p.net.ends(0), expected);
    assert_eq!(p.net.nodes[0].engine.counters().tx_retransmitted, 1);
}

/// Where packets were lost, the answer to the one that asked brings the others.
#[test]
fn the_answer_to_a_probe_brings_what_was_lost() {
    let mut p = pair(&patient());
    let write = |remote, mark| wqe(mark, SendOp::Write { remote, imm: None }, &[p.a.sge(0, 64)]);
    let remote = p.b.remote(0);
    p.net.send(0, p.qa, write(remote, 0));
    p.net.settle();
    p.net.by_hand();
    for mark in 1..=16 {
        p.net.send(0, p.qa, write(remote, mark));
    }
    assert_eq!(p.net.frames().len(), 16, "all are lost");
    while p.net.nodes[0].done.len() < 17 {
        assert!(p.net.step());
        loop {
            let frames = p.net.frames();
            if frames.is_empty() {
                break;
            }
            frames.iter().for_each(|frame| p.net.deliver(frame));
        }
    }
    assert!(p.net.ends(0).iter().all(|end| end.1 == OK));
    assert_eq!(p.net.nodes[0].engine.counters().tx_retransmitted, 16);
    assert_eq!(p.net.nodes[0].engine.counters().timeouts, 0);
}

/// A peer that vanishes: every request ends once, the oldest with the cause, the others flushed, and
/// nothing that was reported as done is missing at the peer.
#[test]
fn a_vanished_peer_leaves_no_request_without_an_end() {
    for seed in 1..=50 {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(2, 4096, 32, "delay=20us,loss=1%".parse().unwrap(), seed);
        let (qa, qb) = net.pair(0, 1, &Conn::default());
        let src = net.nodes[0].mem(0x1000, 8192, ALL);
        let dst = net.nodes[1].mem(0x1000, 8192, ALL);
        for i in 0..40 {
            net.recv(1, qb, 100 + i, &[dst.sge(0, 8192)]);
        }
        for i in 0..40 {
            net.send(
                0,
                qa,
                wqe(i, SEND, &[src.sge(0, 1 + rng.below(8000) as u32)]),
            );
        }
        for _ in 0..rng.below(200) {
            net.step();
        }
        net.wire.partition(addr(1), true);
        net.settle();
        let ends = net.ends(0);
        assert_eq!(
            ends.iter().map(|e| e.0).collect::<Vec<_>>(),
            (0..40).collect::<Vec<u64>>()
        );
        let good = ends.iter().take_while(|e| e.1 == OK).count();
        if good < 40 {
            assert_eq!(ends[good].1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
            assert!(ends[good + 1..].iter().all(|e| e.1 == FLUSHED));
            assert_eq!(net.state(0, qa), ERR);
        }
        assert!(
            net.nodes[1].done.len() >= good,
            "what succeeded was delivered"
        );
    }
}
