//! Every completion status that this device has, each produced; and what is counted on the way.

use std::collections::BTreeMap;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_access_flags, ibv_event_type, ibv_wc_status};
use rdma_soft::core::{Queue, Refused, Remote, SendOp, Sge, WindowBind};
use rdma_soft::wire::{Aeth, Bth, NakCode, Opcode, Packet, Psn, Syndrome};

use super::net::*;
use super::pair::*;

const NOWHERE: Sge = Sge {
    addr: 0,
    len: 8,
    lkey: 1,
};

/// A send's status, of a pair whose receiver has one receive of 64 bytes.
fn send(c: &Conn, op: SendOp, sge: Option<Sge>) -> (ibv_wc_status, Pair) {
    let mut p = pair(c);
    let into = p.b.sge(0, 64);
    p.net.recv(1, p.qb, 100, &[into]);
    let sge = sge.unwrap_or_else(|| p.a.sge(0, 8));
    p.net.send(0, p.qa, wqe(1, op, &[sge]));
    p.net.settle();
    let done = p.done(0, Queue::Send);
    assert_eq!(done.len(), 1);
    (done[0].status, p)
}

/// The status of a READ or of an atomic whose answer is forged.
fn forged_answer(op: fn(Remote) -> SendOp, forge: impl Fn(&mut Packet) -> Vec<u8>) -> Pair {
    let mut p = pair(&Conn {
        psn: [5, 5],
        ..Conn::default()
    });
    p.net.by_hand();
    let remote = p.b.remote(0);
    let w = wqe(1, op(remote), &[p.a.sge(0, 8)]);
    p.net.send(0, p.qa, w);
    let mut answer = Packet::new(Bth {
        opcode: Opcode::RC_ACKNOWLEDGE,
        dest_qp: p.qa,
        psn: Psn::new(5),
        pkey: 0xffff,
        ..Bth::default()
    });
    answer.aeth = Some(Aeth {
        syndrome: Syndrome::Ack { credits: 31 },
        msn: 1,
    });
    let payload = forge(&mut answer);
    let now = p.net.now;
    let from = path(addr(1), addr(0));
    let engine = &mut p.net.nodes[0].engine;
    engine.handle_packet(now, &from, &answer, &payload);
    p.net.drain();
    p
}

#[test]
fn every_status_of_this_device_can_be_produced() {
    use ibv_wc_status as S;
    let rc = Conn::default();
    let mut seen: BTreeMap<u32, &str> = BTreeMap::new();
    let mut see = |status: ibv_wc_status, want: ibv_wc_status, how| {
        assert_eq!(status, want, "{how}");
        seen.insert(status.0, how);
    };
    see(send(&rc, SEND, None).0, S::IBV_WC_SUCCESS, "a SEND");
    see(
        send(&rc, SEND, Some(NOWHERE)).0,
        S::IBV_WC_LOC_PROT_ERR,
        "a key that opens nothing here",
    );
    let (status, p) = send(&rc, SEND, None);
    assert_eq!(status, OK);
    let fetch = SendOp::Read {
        remote: p.b.remote(0),
    };
    let none = Conn {
        rd_atomic: 0,
        ..Conn::default()
    };
    see(
        send(&none, fetch, None).0,
        S::IBV_WC_LOC_QP_OP_ERR,
        "a READ without a depth for READs",
    );
    let window = SendOp::BindWindow(WindowBind {
        window: 0x100,
        rkey: 0x101,
        lkey: Some(1),
        addr: 0,
        len: 1,
        access: ibv_access_flags::empty(),
    });
    let mut p = pair(&rc);
    p.net.send(0, p.qa, wqe(1, window, &[]));
    p.net.send(0, p.qa, wqe(2, SEND, &[]));
    p.net.settle();
    let ends = p.net.ends(0);
    see(ends[0].1, S::IBV_WC_MW_BIND_ERR, "a bind of no window");
    see(
        ends[1].1,
        S::IBV_WC_WR_FLUSH_ERR,
        "what comes after a failure",
    );

    let (status, p) = send(
        &rc,
        SEND,
        Some(Sge {
            len: 65,
            ..sge_of_a()
        }),
    );
    see(
        status,
        S::IBV_WC_REM_INV_REQ_ERR,
        "a message too long, there",
    );
    see(
        p.net.ends(1)[0].1,
        S::IBV_WC_LOC_LEN_ERR,
        "a message too long, here",
    );
    let remote = Remote { addr: 0, rkey: 1 };
    see(
        send(&rc, SendOp::Write { remote, imm: None }, None).0,
        S::IBV_WC_REM_ACCESS_ERR,
        "a key that opens nothing there",
    );
    let mut p = pair(&rc);
    p.net.recv(1, p.qb, 1, &[NOWHERE]);
    p.net.send(0, p.qa, wqe(1, SEND, &[p.a.sge(0, 8)]));
    p.net.settle();
    see(
        p.net.ends(0)[0].1,
        S::IBV_WC_REM_OP_ERR,
        "a receive of the peer whose key opens nothing",
    );
    assert_eq!(p.net.ends(1), [(1, S::IBV_WC_LOC_PROT_ERR)]);
    let mut p = pair(&rc);
    p.net.wire.partition(addr(1), true);
    p.net.send(0, p.qa, wqe(1, SEND, &[]));
    p.net.settle();
    see(
        p.net.ends(0)[0].1,
        S::IBV_WC_RETRY_EXC_ERR,
        "a peer that is silent",
    );
    let mut p = pair(&Conn {
        rnr_retry: 1,
        ..Conn::default()
    });
    p.net.send(0, p.qa, wqe(1, SEND, &[]));
    p.net.settle();
    see(
        p.net.ends(0)[0].1,
        S::IBV_WC_RNR_RETRY_EXC_ERR,
        "a peer without a receive",
    );
    let p = forged_answer(
        |remote| SendOp::Read { remote },
        |answer| {
            answer.bth.opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
            vec![1; 7]
        },
    );
    see(
        p.net.ends(0)[0].1,
        S::IBV_WC_BAD_RESP_ERR,
        "a READ answered with too little",
    );
    let names: Vec<_> = seen.keys().map(|&s| ibv_wc_status(s)).collect();
    assert_eq!(
        names,
        [
            S::IBV_WC_SUCCESS,
            S::IBV_WC_LOC_LEN_ERR,
            S::IBV_WC_LOC_QP_OP_ERR,
            S::IBV_WC_LOC_PROT_ERR,
            S::IBV_WC_WR_FLUSH_ERR,
            S::IBV_WC_MW_BIND_ERR,
            S::IBV_WC_BAD_RESP_ERR,
            S::IBV_WC_REM_INV_REQ_ERR,
            S::IBV_WC_REM_ACCESS_ERR,
            S::IBV_WC_REM_OP_ERR,
            S::IBV_WC_RETRY_EXC_ERR,
            S::IBV_WC_RNR_RETRY_EXC_ERR,
        ],
        "the list in the order of their numbers"
    );
}

/// An entry of the region that every pair's node 0 has; the keys of all pairs are the same.
fn sge_of_a() -> Sge {
    pair(&Conn::default()).a.sge(0, 8)
}

#[test]
fn a_forged_answer_is_never_taken_for_data() {
    type Op = fn(Remote) -> SendOp;
    type Forge = fn(&mut Packet) -> Vec<u8>;
    let read: Op = |remote| SendOp::Read { remote };
    let add: Op = |remote| SendOp::FetchAdd { remote, add: 1 };
    let forgeries: [(&str, Op, Forge); 6] = [
        ("too little", read, |p| {
            p.bth.opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
            vec![1; 7]
        }),
        ("too much", read, |p| {
            p.bth.opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
            vec![1; 9]
        }),
        ("more to come", read, |p| {
            p.bth.opcode = Opcode::RC_RDMA_READ_RESPONSE_FIRST;
            vec![1; 1024]
        }),
        ("an atomic's answer to a READ", read, |p| {
            p.bth.opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
            p.atomic_ack = Some(0x0101_0101_0101_0101);
            vec![]
        }),
        ("a READ's answer to an atomic", add, |p| {
            p.bth.opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
            vec![1; 8]
        }),
        ("a plain acknowledgement of an atomic", add, |_| vec![]),
    ];
    for (what, op, forge) in forgeries {
        let p = forged_answer(op, forge);
        assert!(p.net.ends(0).iter().all(|e| e.1 != OK), "{what}");
        assert_ne!(p.a.bytes(0, 8), [1; 8], "{what}");
        let k = p.net.nodes[0].engine.counters();
        assert_eq!(k.rx_accepted, 0, "{what}");
        p.net.balanced();
    }
}

#[test]
fn each_fatal_nak_has_its_status() {
    for (code, status) in [
        (
            NakCode::InvalidRequest,
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
        ),
        (
            NakCode::RemoteAccessError,
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
        ),
        (
            NakCode::RemoteOperationalError,
            ibv_wc_status::IBV_WC_REM_OP_ERR,
        ),
    ] {
        let p = forged_answer(
            |remote| SendOp::Write { remote, imm: None },
            |answer| {
                answer.aeth = Some(Aeth {
                    syndrome: Syndrome::Nak(code),
                    msn: 0,
                });
                vec![]
            },
        );
        assert_eq!(p.net.ends(0), [(1, status)]);
        assert_eq!(p.net.state(0, p.qa), ERR);
    }
}

#[test]
fn the_first_message_in_rtr_is_told() {
    for transport in [Transport::Rc, Transport::Uc] {
        let c = Conn::of(transport);
        let mut net = Net::clean(2);
        let (qa, qb) = (net.nodes[0].create_qp(&c), net.nodes[1].create_qp(&c));
        net.move_to_rtr(0, qa, 1, qb, &c, 1);
        net.move_to_rtr(1, qb, 0, qa, &c, 0);
        net.move_to_rts(0, qa, &c, 0);
        for i in 0..2 {
            net.recv(1, qb, i, &[]);
            net.send(0, qa, wqe(i, SEND, &[]));
        }
        net.settle();
        assert_eq!(net.nodes[1].events, [ibv_event_type::IBV_EVENT_COMM_EST]);
        assert_eq!(net.receives(1, qb), [(0, OK), (1, OK)]);
    }
}

/// Requests whose order against an open READ is left to chance, because nothing says "wait".
#[test]
fn unfenced_hazards_are_counted() {
    let hazards = |second: &dyn Fn(&Pair) -> (SendOp, Sge), fence: bool, wait: bool| {
        let mut p = pair(&Conn::default());
        for i in 0..2 {
            let into = p.b.sge(40_000, 4096);
            p.net.recv(1, p.qb, i, &[into]);
        }
        let remote = p.b.remote(0);
        let read = wqe(1, SendOp::Read { remote }, &[p.a.sge(0, 1000)]);
        p.net.send(0, p.qa, read);
        if wait {
            p.net.settle();
        }
        let (op, sge) = second(&p);
        let mut w = wqe(2, op, &[sge]);
        w.fence = fence;
        p.net.send(0, p.qa, w);
        p.net.settle();
        assert_eq!(p.net.ends(0), [(1, OK), (2, OK)]);
        let all = p.net.nodes[0].engine.counters().all();
        let mut all = all.filter(|c| c.0 == "tx_unfenced_hazards");
        all.next().expect("the counter").1
    };
    type Second = fn(&Pair) -> (SendOp, Sge);
    let cases: [(&str, Second, u64); 7] = [
        (
            "a WRITE to what is read",
            |p| {
                let remote = p.b.remote(999);
                (SendOp::Write { remote, imm: None }, p.a.sge(5000, 8))
            },
            1,
        ),
        (
            "a WRITE beside it",
            |p| {
                let remote = p.b.remote(1000);
                (SendOp::Write { remote, imm: None }, p.a.sge(5000, 8))
            },
            0,
        ),
        (
            "a SEND of what is being read into",
            |p| (SEND, p.a.sge(999, 8)),
            1,
        ),
        ("a SEND of something else", |p| (SEND, p.a.sge(1000, 8)), 0),
        (
            "a WRITE from what is being read into",
            |p| {
                let remote = p.b.remote(9000);
                (SendOp::Write { remote, imm: None }, p.a.sge(0, 8))
            },
            1,
        ),
        (
            "a READ of the same: harmless",
            |p| {
                let remote = p.b.remote(0);
                (SendOp::Read { remote }, p.a.sge(5000, 8))
            },
            0,
        ),
        ("nothing at all", |p| (SEND, p.a.sge(0, 0)), 0),
    ];
    for (what, second, count) in cases {
        assert_eq!(hazards(&second, false, false), count, "{what}");
        assert_eq!(hazards(&second, true, false), 0, "{what}, with a fence");
        assert_eq!(
            hazards(&second, false, true),
            0,
            "{what}, after the completion"
        );
    }
}

#[test]
fn a_message_longer_than_the_port_takes_is_refused_by_the_peer() {
    for (len, status) in [
        (10_000, OK),
        (10_001, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR),
    ] {
        for read in [false, true] {
            let mut p = pair(&Conn::default());
            let mut port = p.net.nodes[1].engine.config().ports[0].clone();
            port.max_msg_sz = 10_000;
            p.net.nodes[1].engine.set_port(1, port).unwrap();
            let remote = p.b.remote(0);
            let op = if read {
                SendOp::Read { remote }
            } else {
                SendOp::Write { remote, imm: None }
            };
            assert_eq!(p.status(op, len), status, "{len}");
        }
    }
}

/// The longest message that verbs know, inside one node, so that nothing is copied but the payload.
#[test]
#[ignore = "run by ci/long.sh: a region of 2 GiB, and a minute without optimization"]
fn a_message_of_two_to_the_31st_bytes() {
    const LEN: u64 = 1 << 31;
    let mut net = Net::clean(1);
    let c = Conn {
        mtu: 4096,
        ..Conn::default()
    };
    let (qa, qb) = net.pair(0, 0, &c);
    // One region is both ends, and the message lands one page on: each packet's target is the source of the
    // next, so that the first page ends up in the last place if every packet came, in order.
    let m = net.nodes[0].mem(0x10_0000, LEN as usize + 4096, ALL);
    let (here, there) = (m.sge(0, LEN as u32), m.sge(4096, LEN as u32));
    let write = SendOp::Write {
        remote: m.remote(4096),
        imm: Some(9),
    };
    let read = SendOp::Read {
        remote: m.remote(0),
    };
    for (i, op, sge) in [(1, write, here), (2, SEND, here), (3, read, there)] {
        let page: Vec<u8> = (0..4096u32).map(|k| (k * 7 % 251) as u8 ^ i).collect();
        m.region.write(0, &page).unwrap();
        let now = net.now;
        let engine = &mut net.nodes[0].engine;
        engine.post_recvs(qb, &mut [recv_wqe(i.into(), &[there])].into());
        engine.post_send(qa, wqe(i.into(), op, &[sge]));
        let mut packets = 0u64;
        while let Some(t) = engine.poll_transmit(now) {
            engine.loopback(now, &t);
            packets += u64::from(t.payload_len > 0);
        }
        assert_eq!(packets, LEN / 4096);
        net.drain();
        assert_eq!(net.sends(0, qa).last(), Some(&(i.into(), OK)));
        assert!(m.bytes(LEN, 4096) == page, "{op:?}");
    }
    let got: Vec<_> = net.nodes[0].done.iter().collect();
    let got: Vec<_> = got.iter().filter(|c| c.queue == Queue::Recv).collect();
    assert_eq!(got.len(), 2, "a READ uses none");
    assert!(
        got.iter()
            .all(|c| u64::from(c.byte_len) == LEN && c.status == OK)
    );
    assert_eq!(net.refused(0, Refused::Nak), 0);
}
