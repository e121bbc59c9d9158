//! Messages of RC: what a receive is used for, and how it ends.

use rdma_core_sys::{ibv_access_flags, ibv_event_type, ibv_wc_opcode, ibv_wc_status};
use rdma_soft::core::{Queue, Remote, SendOp};

use super::net::*;
use super::pair::*;

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
    // Errors count as solicited, on either queue (ibv_req_notify_cq(3)).
    p.net.recv(1, p.qb, 3, &[]);
    p.net.move_to_state(1, p.qb, ERR);
    p.net.send(1, p.qb, wqe(3, SEND, &[]));
    assert_eq!(p.net.nodes[1].solicited[2..], [true, true]);
}
