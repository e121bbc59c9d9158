//! UC: messages arrive whole, in order and at most once, or not at all, and nobody is told.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask, ibv_wc_opcode, ibv_wc_status};
use rdma_soft::core::{Queue, Refused, Remote, SendOp, Sge};
use rdma_soft::link::Frame;
use rdma_soft::wire::{Bth, Opcode, Packet, Psn};

use super::datagram::datagram;
use super::net::*;
use super::pair::*;

fn uc() -> Pair {
    pair(&Conn::of(Transport::Uc))
}

/// A pair whose frames the test delivers itself.
fn by_hand() -> Pair {
    let mut p = uc();
    p.net.by_hand();
    p
}

impl Pair {
    fn deliver<'a>(&mut self, frames: impl IntoIterator<Item = &'a Frame>) {
        for f in frames {
            self.net.deliver(f);
        }
    }

    /// Sends the `len` bytes at `at` and gives the frames.
    fn message(&mut self, wr_id: u64, at: u64, len: u32) -> Vec<Frame> {
        let w = wqe(wr_id, SEND, &[self.a.sge(at, len)]);
        self.net.send(0, self.qa, w);
        self.net.frames()
    }
}

#[test]
fn messages_of_every_length_arrive_and_nothing_is_answered() {
    let mut p = uc();
    p.net.recorded = Some(vec![]);
    let lens = [0, 1, 1023, 1024, 1025, 3 * 1024 + 5];
    let mut wr_id = 0;
    for (i, len) in lens.into_iter().enumerate() {
        for imm in [None, Some(0xfeed_0000 + i as u32)] {
            let into = p.b.sge(4096 * i as u64, 4096);
            p.net.recv(1, p.qb, wr_id, &[into]);
            let op = SendOp::Send {
                imm,
                invalidate: None,
            };
            p.net.send(0, p.qa, wqe(wr_id, op, &[p.a.sge(7, len)]));
            p.net.settle();
            let got = *p.done(1, Queue::Recv).last().unwrap();
            assert_eq!(
                (got.wr_id, got.status, got.byte_len, got.imm, got.opcode),
                (wr_id, OK, len, imm, ibv_wc_opcode::IBV_WC_RECV)
            );
            let at = 4096 * i as u64;
            assert_eq!(p.b.bytes(at, len as usize), p.a.bytes(7, len as usize));
            wr_id += 1;
            let remote = p.b.remote(32_768);
            if imm.is_some() {
                p.net.recv(1, p.qb, wr_id, &[]);
            }
            p.b.region.write(32_768, &[0; 4096]).unwrap();
            let op = SendOp::Write { remote, imm };
            p.net.send(0, p.qa, wqe(wr_id, op, &[p.a.sge(9, len)]));
            p.net.settle();
            assert_eq!(p.b.bytes(32_768, len as usize), p.a.bytes(9, len as usize));
            assert_eq!(p.b.bytes(32_768 + u64::from(len), 1), [0]);
            let got = *p.done(1, Queue::Recv).last().unwrap();
            if imm.is_some() {
                let opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
                let want = (wr_id, len, imm, opcode);
                assert_eq!((got.wr_id, got.byte_len, got.imm, got.opcode), want);
            }
            wr_id += 1;
        }
    }
    let sends = p.net.sends(0, p.qa);
    assert_eq!(sends, (0..wr_id).map(|i| (i, OK)).collect::<Vec<_>>());
    let answers = p
        .net
        .frames()
        .iter()
        .filter(|f| f.src.ip() == addr(1))
        .count();
    assert_eq!(answers, 0);
}

#[test]
fn a_request_completes_when_its_last_packet_is_out_though_nobody_gets_it() {
    let mut p = by_hand();
    p.message(1, 0, 5000);
    let remote = p.b.remote(0);
    let w = wqe(2, SendOp::Write { remote, imm: None }, &[p.a.sge(0, 5000)]);
    p.net.send(0, p.qa, w);
    assert_eq!(p.net.ends(0), [(1, OK), (2, OK)]);
    p.net.settle();
    assert_eq!(p.net.frames().len(), 5, "and nothing is sent again");
}

#[test]
fn unsignaled_requests_complete_silently() {
    let mut p = pair(&Conn {
        sq_sig_all: false,
        ..Conn::of(Transport::Uc)
    });
    for i in 0..6 {
        let mut w = wqe(i, SEND, &[p.a.sge(0, 10)]);
        w.signaled = i % 3 == 2;
        p.net.send(0, p.qa, w);
    }
    p.net.settle();
    assert_eq!(p.net.ends(0), [(2, OK), (5, OK)]);
}

/// Three packets with one missing: the message is not delivered, what is left of it is counted, and the
/// next message arrives, into the receive that the lost one did not use up.
#[test]
fn a_lost_packet_costs_its_message_alone() {
    for missing in 0..3 {
        let mut p = by_hand();
        for i in 0..2 {
            let into = p.b.sge(i * 4096, 4096);
            p.net.recv(1, p.qb, i, &[into]);
        }
        let broken = p.message(1, 0, 3000);
        let whole = p.message(2, 10_000, 3000);
        assert_eq!((broken.len(), whole.len()), (3, 3));
        let there = (0..3).filter(|&i| i != missing);
        p.deliver(there.map(|i| &broken[i]));
        assert!(p.net.ends(1).is_empty());
        p.deliver(&whole);
        assert_eq!(p.net.ends(1), [(0, OK)], "packet {missing}");
        assert_eq!(p.b.bytes(0, 3000), p.a.bytes(10_000, 3000));
        assert_eq!(p.states(), [RTS, RTS]);
        assert!(p.net.nodes[1].events.is_empty());
        // A first packet was in order; everything after the hole was not.
        let after_the_hole = [2, 1, 0][missing];
        assert_eq!(
            p.net.refused(1, Refused::OutOfSequence),
            after_the_hole,
            "packet {missing}"
        );
        // Of the message whose first packet was lost nothing had begun.
        let begun = u64::from(missing > 0);
        let counters = p.net.nodes[1].engine.counters();
        assert_eq!(counters.rx_messages_dropped, begun);
        p.net.balanced();
    }
}

#[test]
fn a_write_with_a_hole_completes_no_receive() {
    for missing in 0..3 {
        let mut p = by_hand();
        p.net.recv(1, p.qb, 7, &[]);
        let (remote, imm) = (p.b.remote(0), Some(5));
        let w = wqe(1, SendOp::Write { remote, imm }, &[p.a.sge(0, 3000)]);
        p.net.send(0, p.qa, w);
        let broken = p.net.frames();
        p.deliver((0..3).filter(|&i| i != missing).map(|i| &broken[i]));
        assert!(p.net.ends(1).is_empty(), "packet {missing}");
        let w = wqe(2, SendOp::Write { remote, imm }, &[p.a.sge(0, 3000)]);
        p.net.send(0, p.qa, w);
        let whole = p.net.frames();
        p.deliver(&whole);
        assert_eq!(p.net.ends(1), [(7, OK)]);
        assert_eq!(p.b.bytes(0, 3000), p.a.bytes(0, 3000));
    }
}

#[test]
fn lost_messages_are_skipped_whole() {
    let mut p = by_hand();
    for i in 0..3 {
        let into = p.b.sge(i * 4096, 4096);
        p.net.recv(1, p.qb, i, &[into]);
    }
    let messages: Vec<_> = (0..5).map(|i| p.message(i, i * 5000, 2500)).collect();
    for i in [0, 2, 4] {
        p.deliver(&messages[i]);
    }
    assert_eq!(p.net.ends(1), [(0, OK), (1, OK), (2, OK)]);
    for (into, from) in [(0, 0), (1, 2), (2, 4)] {
        assert_eq!(p.b.bytes(into * 4096, 2500), p.a.bytes(from * 5000, 2500));
    }
}

#[test]
fn what_comes_twice_is_delivered_once() {
    let mut p = by_hand();
    for i in 0..4 {
        let into = p.b.sge(i * 4096, 4096);
        p.net.recv(1, p.qb, i, &[into]);
    }
    let one = p.message(1, 0, 100);
    let three = p.message(2, 0, 3000);
    p.deliver(&one);
    p.deliver(&one);
    for f in &three {
        p.deliver([f, f]);
    }
    p.deliver(&one);
    p.deliver(&three);
    assert_eq!(p.net.ends(1), [(0, OK), (1, OK)]);
    assert_eq!(p.net.refused(1, Refused::DuplicateRequest), 1 + 3 + 1 + 3);
    assert_eq!(p.b.bytes(4096, 3000), p.a.bytes(0, 3000));
    p.net.balanced();
}

#[test]
fn a_late_packet_of_a_lost_message_harms_no_later_one() {
    let mut p = by_hand();
    for i in 0..2 {
        let into = p.b.sge(i * 4096, 4096);
        p.net.recv(1, p.qb, i, &[into]);
    }
    let (lost, next) = (p.message(1, 0, 3000), p.message(2, 20_000, 3000));
    p.deliver([&lost[0], &next[0], &lost[1], &next[1], &lost[2], &next[2]]);
    assert_eq!(p.net.ends(1), [(0, OK)]);
    assert_eq!(p.b.bytes(0, 3000), p.a.bytes(20_000, 3000));
}

/// A sender that goes on for millions of packets while nothing arrives: when the wire is whole again, its
/// messages arrive, wherever its PSNs are by then.
#[test]
fn however_much_was_lost_the_next_message_arrives() {
    for lost in [1, 1 << 16, 1 << 22, (1 << 23) + 5, (1 << 24) - (1 << 17)] {
        let mut p = pair(&Conn {
            psn: [100, 100],
            ..Conn::of(Transport::Uc)
        });
        for i in 0..3 {
            p.net.recv(1, p.qb, i, &[]);
        }
        for (psn, sent) in [
            (100, true),
            (101 + lost, true),
            (102 + lost, true),
            (102 + lost, false),
        ] {
            let packet = Packet::new(Bth {
                opcode: Opcode::UC_SEND_ONLY,
                dest_qp: p.qb,
                psn: Psn::new(psn & 0xff_ffff),
                pkey: 0xffff,
                ..Bth::default()
            });
            let before = p.net.receives(1, p.qb).len();
            let now = p.net.now;
            let engine = &mut p.net.nodes[1].engine;
            engine.handle_packet(now, &path(addr(0), addr(1)), &packet, &[]);
            p.net.drain();
            let came = p.net.receives(1, p.qb).len() - before;
            assert_eq!(came, usize::from(sent), "{lost} lost, PSN {psn:#x}");
        }
    }
}

#[test]
fn a_write_without_the_right_is_dropped_and_the_pair_goes_on() {
    let mut p = uc();
    let wrong = Remote {
        rkey: p.b.lkey,
        ..p.b.remote(0)
    };
    let past = p.b.remote((1 << 16) - 10);
    for (i, remote) in [wrong, past].into_iter().enumerate() {
        for imm in [None, Some(1)] {
            p.net.recv(1, p.qb, 1, &[]);
            let w = wqe(1, SendOp::Write { remote, imm }, &[p.a.sge(0, 3000)]);
            p.net.send(0, p.qa, w);
            p.net.settle();
        }
        assert_eq!(p.net.refused(1, Refused::AccessDenied), 2 * (i as u64 + 1));
    }
    assert!(p.net.ends(1).is_empty());
    assert_eq!(p.b.bytes(0, 1 << 16), vec![0; 1 << 16]);
    assert_eq!(p.states(), [RTS, RTS]);
    assert!(p.net.nodes[1].events.is_empty());
    let w = wqe(2, SEND, &[p.a.sge(0, 0)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(p.net.ends(1), [(1, OK)]);
    assert!(
        p.net.ends(0).iter().all(|e| e.1 == OK),
        "the sender never knows"
    );
}

#[test]
fn a_queue_pair_without_the_right_takes_no_writes() {
    let mut p = pair(&Conn {
        access: ALL - rdma_core_sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        ..Conn::of(Transport::Uc)
    });
    let remote = p.b.remote(0);
    let w = wqe(1, SendOp::Write { remote, imm: None }, &[p.a.sge(0, 100)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(p.b.bytes(0, 100), [0; 100]);
    assert_eq!(p.net.refused(1, Refused::InvalidRequest), 1);
    assert_eq!(p.states(), [RTS, RTS]);
}

#[test]
fn a_message_without_a_receive_is_dropped_and_counted() {
    let mut p = uc();
    for i in 0..2 {
        p.net.send(0, p.qa, wqe(i, SEND, &[p.a.sge(0, 3000)]));
    }
    p.net.settle();
    assert_eq!(p.net.ends(0), [(0, OK), (1, OK)]);
    // The first packet of each found none; what followed belongs to nothing.
    assert_eq!(p.net.refused(1, Refused::NoReceive), 2);
    assert_eq!(p.net.nodes[1].engine.counters().rx_accepted, 0);
    let into = p.b.sge(0, 3000);
    p.net.recv(1, p.qb, 5, &[into]);
    p.net.send(0, p.qa, wqe(2, SEND, &[p.a.sge(50, 3000)]));
    p.net.settle();
    assert_eq!(p.net.ends(1), [(5, OK)]);
    assert_eq!(p.b.bytes(0, 3000), p.a.bytes(50, 3000));
    p.net.balanced();
}

#[test]
fn a_message_longer_than_its_receive_is_dropped_and_the_pair_goes_on() {
    for len in [100, 3000] {
        let mut p = uc();
        let short = p.b.sge(0, len - 1);
        p.net.recv(1, p.qb, 1, &[short]);
        let fits = p.b.sge(8192, len);
        p.net.recv(1, p.qb, 2, &[fits]);
        p.net.send(0, p.qa, wqe(1, SEND, &[p.a.sge(0, len)]));
        p.net.settle();
        assert_eq!(p.states(), [RTS, RTS]);
        assert_eq!(p.net.refused(1, Refused::TooLong), 1);
        // Nothing is written past the receive's end.
        assert_eq!(p.b.bytes(u64::from(len) - 1, 64), [0; 64]);
        let before = p.net.nodes[1].done.len();
        assert!(p.net.nodes[1].done.iter().all(|c| c.status != OK));
        p.net.send(0, p.qa, wqe(2, SEND, &[p.a.sge(0, 1)]));
        p.net.settle();
        assert_eq!(p.net.nodes[1].done.len(), before + 1);
        assert_eq!(p.net.nodes[1].done[before].status, OK);
    }
}

#[test]
fn a_failed_send_stops_the_sends_and_not_the_receives() {
    let mut p = uc();
    for (node, qp) in [(0, p.qa), (1, p.qb)] {
        for i in 0..3 {
            p.net.recv(node, qp, 100 + i, &[]);
        }
    }
    let bad = rdma_soft::core::Sge {
        addr: 0,
        len: 8,
        lkey: 1,
    };
    p.net.send(0, p.qa, wqe(1, SEND, &[]));
    p.net.send(0, p.qa, wqe(2, SEND, &[bad]));
    p.net.send(0, p.qa, wqe(3, SEND, &[]));
    p.net.settle();
    let prot = ibv_wc_status::IBV_WC_LOC_PROT_ERR;
    assert_eq!(p.net.sends(0, p.qa), [(1, OK), (2, prot), (3, FLUSHED)]);
    assert_eq!(p.states(), [SQE, RTS]);
    // A request that is posted now is flushed; what the peer sends arrives.
    p.net.send(0, p.qa, wqe(4, SEND, &[]));
    p.net.send(1, p.qb, wqe(5, SEND, &[]));
    p.net.settle();
    assert_eq!(p.net.sends(0, p.qa).last(), Some(&(4, FLUSHED)));
    assert_eq!(p.net.receives(0, p.qa), [(100, OK)]);
    // The application repairs it.
    p.net.move_to_state(0, p.qa, RTS);
    p.net.send(0, p.qa, wqe(6, SEND, &[]));
    p.net.settle();
    assert_eq!(p.net.sends(0, p.qa).last(), Some(&(6, OK)));
    assert_eq!(p.net.receives(1, p.qb), [(100, OK), (101, OK)]);
}

#[test]
fn sqd_lets_what_was_begun_go_and_holds_the_rest() {
    use ibv_qp_attr_mask as M;
    let mut p = pair(&Conn {
        mtu: 256,
        ..Conn::of(Transport::Uc)
    });
    for i in 0..2 {
        let into = p.b.sge(0, 60_000);
        p.net.recv(1, p.qb, i, &[into]);
    }
    p.net.send(0, p.qa, wqe(1, SEND, &[p.a.sge(0, 60_000)]));
    let attr = ibv_qp_attr {
        qp_state: SQD,
        en_sqd_async_notify: 1,
        ..Default::default()
    };
    p.net.modify(
        0,
        p.qa,
        &attr,
        M::IBV_QP_STATE | M::IBV_QP_EN_SQD_ASYNC_NOTIFY,
    );
    p.net.send(0, p.qa, wqe(2, SEND, &[p.a.sge(0, 1000)]));
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, OK)]);
    assert_eq!(
        p.net.nodes[0].events,
        [rdma_core_sys::ibv_event_type::IBV_EVENT_SQ_DRAINED]
    );
    p.net.move_to_state(0, p.qa, RTS);
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, OK), (2, OK)]);
    assert_eq!(p.net.ends(1), [(0, OK), (1, OK)]);
}

#[test]
fn err_flushes_and_reset_forgets() {
    let mut p = by_hand();
    let into = p.b.sge(0, 4096);
    p.net.recv(1, p.qb, 1, &[into]);
    p.net.recv(1, p.qb, 2, &[into]);
    let begun = p.message(1, 0, 3000);
    p.deliver(&begun[..1]);
    p.net.move_to_state(1, p.qb, ERR);
    assert_eq!(p.net.ends(1), [(1, FLUSHED), (2, FLUSHED)]);
    let (qa, qb) = (p.qa, p.qb);
    for (node, qp) in [(0, qa), (1, qb)] {
        p.net.move_to_state(node, qp, RESET);
    }
    p.net.connect(0, qa, 1, qb, &Conn::of(Transport::Uc));
    p.net.recv(1, qb, 3, &[into]);
    // The rest of the message of the former life finds nothing to go on with.
    p.deliver(&begun[1..]);
    let w = p.message(2, 0, 10);
    p.deliver(&w);
    assert_eq!(p.net.ends(1)[2..], [(3, OK)]);
}

/// What rxe does with a receive of UC and UD whose memory is not there, and what a program needs: the receive and those
/// behind it end, and an event says that the Queue Pair is of no use any more.
#[test]
fn a_receive_whose_memory_is_not_there_breaks_the_queue_pair() {
    for transport in [Transport::Uc, Transport::Ud] {
        let mut p = pair(&Conn::of(transport));
        let nowhere = Sge {
            lkey: 1,
            ..p.b.sge(0, 100)
        };
        p.net.recv(1, p.qb, 1, &[nowhere]);
        p.net.recv(1, p.qb, 2, &[p.b.sge(0, 100)]);
        let op = match transport {
            Transport::Ud => datagram(p.net.ah(0, addr(1)), p.qb),
            _ => SEND,
        };
        p.net.send(0, p.qa, wqe(1, op, &[p.a.sge(0, 8)]));
        p.net.settle();
        let prot = ibv_wc_status::IBV_WC_LOC_PROT_ERR;
        assert_eq!(
            p.net.receives(1, p.qb),
            [(1, prot), (2, FLUSHED)],
            "{transport}"
        );
        assert_eq!(p.states(), [RTS, ERR], "{transport}");
        let fatal = ibv_event_type::IBV_EVENT_QP_FATAL;
        assert_eq!(p.net.nodes[1].events, [fatal], "{transport}");
        assert_eq!(p.net.refused(1, Refused::LocalError), 1, "{transport}");
        // Nobody tells the sender.
        assert_eq!(p.net.sends(0, p.qa), [(1, OK)], "{transport}");
    }
}
