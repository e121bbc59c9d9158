//! Answers: their order against requests, repeats, and the way inside one node.

use std::time::Duration;

use rdma_core_sys::{ibv_qp_state, ibv_wc_status};
use rdma_soft::core::{Remote, SendOp};

use super::net::*;
use super::pair::*;

#[test]
fn two_queue_pairs_of_one_node_talk_without_a_wire() {
    // The self link passes payload by reference, also when the two regions overlap.
    let mut net = Net::clean(1);
    let (qa, qb) = net.pair(0, 0, &Conn::default());
    let m = net.nodes[0].mem(0x1000, 1 << 16, ALL);
    let bytes: Vec<u8> = (0..20_000u32).map(|i| ((i * 13) >> 2) as u8).collect();
    m.region.write(0, &bytes).unwrap();
    let node = &mut net.nodes[0];
    let receive = recv_wqe(7, &[m.sge(50_000, 300)]);
    node.engine.post_recvs(qb, &mut [receive].into());
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
fn a_read_of_another_numbering_is_no_repetition() {
    // One end was connected anew, the other not yet: what it asks for lies behind what the other waits
    // for. An answer would count for the WRITE before it, too, which was never executed.
    let mut p = pair(&Conn {
        psn: [0x80_0000, 0],
        ..Conn::default()
    });
    p.net.move_to_state(0, p.qa, RESET);
    let anew = Conn {
        psn: [0x1000, 0],
        retry_cnt: 1,
        ..Conn::default()
    };
    p.net.move_to_rtr(0, p.qa, 1, p.qb, &anew, 1);
    p.net.move_to_rts(0, p.qa, &anew, 0);
    let remote = p.b.remote(0);
    let write = SendOp::Write { remote, imm: None };
    p.net.send(0, p.qa, wqe(1, write, &[p.a.sge(0, 100)]));
    let read = SendOp::Read { remote };
    p.net.send(0, p.qa, wqe(2, read, &[p.a.sge(200, 100)]));
    p.net.settle();
    let ends = [(1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR), (2, FLUSHED)];
    assert_eq!(p.net.ends(0), ends);
    assert_eq!(p.b.bytes(0, 100), [0; 100]);
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

/// An acknowledgement goes another way, data never does.
#[test]
fn without_room_an_acknowledgement_goes_out_and_an_answer_with_data_waits() {
    for goes in [true, false] {
        let mut p = pair(&Conn::default());
        let remote = p.b.remote(0);
        let op = match goes {
            true => SendOp::Write { remote, imm: None },
            false => SendOp::Read { remote },
        };
        p.net.recorded = Some(vec![]);
        let request = wqe(1, op, &[p.a.sge(0, 100)]);
        p.net.send(0, p.qa, request);
        p.net.settle();
        assert_eq!(p.net.ends(0), [(1, OK)]);
        // It comes again, and is answered again.
        let (path, packet, payload) = p.first();
        let (now, node) = (p.net.now, &mut p.net.nodes[1].engine);
        node.handle_packet(now, &path, &packet, &payload);
        let out = node.poll_transmit_where(now, |_, _, _| false);
        assert_eq!(out.is_some(), goes);
        node.release();
        assert_eq!(node.poll_transmit(now).is_some(), !goes);
    }
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

/// What was executed before the request that is refused is answered before it is refused, however many requests
/// came at once: the peer learns which of its requests failed.
#[test]
fn a_refusal_waits_for_the_answers_before_it() {
    let access = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    let mut p = pair(&Conn::default());
    p.b.region.write(0, &[7; 5000]).unwrap();
    p.b.region.write(8192, &41u64.to_ne_bytes()).unwrap();
    let wrong = Remote {
        rkey: p.b.lkey,
        ..p.b.remote(0)
    };
    let ops = [
        (
            SendOp::Read {
                remote: p.b.remote(0),
            },
            5000,
        ),
        (
            SendOp::FetchAdd {
                remote: p.b.remote(8192),
                add: 1,
            },
            8,
        ),
        (
            SendOp::Write {
                remote: p.b.remote(20_000),
                imm: None,
            },
            100,
        ),
        (
            SendOp::Write {
                remote: wrong,
                imm: None,
            },
            100,
        ),
        (
            SendOp::Write {
                remote: p.b.remote(0),
                imm: None,
            },
            100,
        ),
    ];
    p.net.by_hand();
    for (i, (op, len)) in ops.into_iter().enumerate() {
        let at = 8192 * i as u64;
        let w = wqe(i as u64, op, &[p.a.sge(at, len)]);
        p.net.nodes[0].engine.post_send(p.qa, w);
    }
    p.net.drain();
    // All of them are there before the first is answered.
    let (now, from) = (p.net.now, path(addr(0), addr(1)));
    for frame in p.net.frames() {
        let (packet, payload) = parsed(&frame);
        let engine = &mut p.net.nodes[1].engine;
        engine.handle_packet(now, &from, &packet, &payload);
    }
    p.net.wire.set_faults(Default::default());
    p.net.drain();
    p.net.settle();
    let want = [(0, OK), (1, OK), (2, OK), (3, access), (4, FLUSHED)];
    assert_eq!(p.net.ends(0), want);
    assert_eq!(p.a.bytes(0, 5000), [7; 5000]);
    assert_eq!(p.a.word(8192), 41);
    assert_eq!(p.states(), [ERR; 2]);
    assert_eq!(p.net.nodes[0].engine.counters().timeouts, 0);
}

/// The memory of a READ that waits for its turn to be answered goes, and a request behind it was refused: the
/// READ is what failed first.
#[test]
fn a_read_before_a_refusal_whose_region_goes_ends_the_answers() {
    let mut p = pair(&Conn {
        timeout: 1,
        retry_cnt: 1,
        ..Conn::default()
    });
    p.net.by_hand();
    let wrong = Remote {
        rkey: p.b.lkey,
        ..p.b.remote(0)
    };
    let read = SendOp::Read {
        remote: p.b.remote(0),
    };
    let write = SendOp::Write {
        remote: wrong,
        imm: None,
    };
    for (i, op) in [read, write].into_iter().enumerate() {
        let w = wqe(i as u64, op, &[p.a.sge(0, 5000)]);
        p.net.nodes[0].engine.post_send(p.qa, w);
    }
    p.net.drain();
    let (now, from) = (p.net.now, path(addr(0), addr(1)));
    for frame in p.net.frames() {
        let (packet, payload) = parsed(&frame);
        let engine = &mut p.net.nodes[1].engine;
        engine.handle_packet(now, &from, &packet, &payload);
    }
    assert_eq!(p.net.state(1, p.qb), ERR);
    p.net.nodes[1].engine.dereg_mr(p.b.lkey).unwrap();
    p.net.wire.set_faults(Default::default());
    p.net.drain();
    p.net.settle();
    let access = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    assert_eq!(p.net.ends(0), [(0, access), (1, FLUSHED)]);
    let events = &p.net.nodes[1].events;
    assert_eq!(events.len(), 1, "{events:?}");
}

#[test]
fn a_repeated_request_does_not_take_back_a_later_acknowledgement() {
    let mut p = pair(&Conn {
        psn: [0, 0],
        ..Conn::default()
    });
    p.net.by_hand();
    let remote = p.b.remote(0);
    let write = SendOp::Write { remote, imm: None };
    for (i, op) in [write, SendOp::Read { remote }, write]
        .into_iter()
        .enumerate()
    {
        p.net.send(0, p.qa, wqe(i as u64, op, &[p.a.sge(0, 8)]));
    }
    let frames: Vec<_> = p.net.frames().iter().map(parsed).collect();
    let (now, from) = (p.net.now, path(addr(0), addr(1)));
    let node = &mut p.net.nodes[1].engine;
    for (packet, payload) in &frames[..2] {
        node.handle_packet(now, &from, packet, payload);
        while node.poll_transmit(now).is_some() {}
    }
    // The last WRITE is executed, and the first comes again before that is said.
    for at in [2, 0] {
        let (packet, payload) = &frames[at];
        node.handle_packet(now, &from, packet, payload);
    }
    let ack = node.poll_transmit(now).unwrap().packet.bth;
    assert_eq!(ack.psn.value(), 2);
}

/// Answers count the messages that were completed, modulo 2^24: not packets, and repeats not again.
#[test]
fn answers_count_messages() {
    let mut p = pair(&Conn {
        psn: [0, 0],
        ..Conn::default()
    });
    p.net.by_hand();
    let remote = p.b.remote(0);
    let read = SendOp::Read { remote };
    let ops = [
        (SendOp::Write { remote, imm: None }, 3000),
        (read, 3000),
        (SendOp::FetchAdd { remote, add: 1 }, 8),
        (SEND, 8),
    ];
    let into = p.b.sge(0, 8);
    p.net.recv(1, p.qb, 1, &[into]);
    for (i, (op, len)) in ops.into_iter().enumerate() {
        p.net.send(0, p.qa, wqe(i as u64, op, &[p.a.sge(0, len)]));
    }
    let frames = p.net.frames();
    for again in [false, true] {
        for frame in &frames {
            p.net.deliver(frame);
        }
        let answers: Vec<_> = p.net.frames().iter().map(|f| parsed(f).0).collect();
        let msns = answers.iter().filter_map(|a| Some(a.aeth?.msn));
        let msns: Vec<u32> = msns.collect();
        if again {
            assert!(msns.iter().all(|&n| n == 4 || n == 3), "{msns:?}");
        } else {
            // The first and the last part of the READ's answer say it.
            assert_eq!(msns, [1, 2, 2, 3, 4]);
        }
    }
}
