//! Tests of completion queues: order, room, stamps.

use std::collections::BTreeSet;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_wc_opcode, ibv_wc_status};

use super::*;
use crate::core::{QpInit, SrqId};

pub(crate) fn queue_pair(num: u32) -> Arc<Qp> {
    let init = QpInit {
        transport: Transport::Rc,
        pd: None,
        send_cq: None,
        recv_cq: None,
        srq: None,
        xrcd: None,
        block_self_multicast: false,
        sq_sig_all: false,
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    };
    Arc::new(Qp::new(num, &init, None, None))
}

fn cq(depth: u32, timestamps: bool, seed: Option<u64>) -> Cq {
    let init = CqInit {
        depth,
        channel: None,
        events: Arc::new(EventQueue::new().unwrap()),
        timestamps,
    };
    let clock = Clock::start();
    Cq::new(CqId(1), init, clock, seed.map(Rng::new))
}

/// Completion `seq` of a queue; the mark tells the QP, whether it is a send, and `seq`.
fn completion(qp: &Qp, queue: Queue, seq: u64) -> Completion {
    let send = u64::from(queue == Queue::Send);
    Completion {
        wr_id: u64::from(qp.num) << 32 | send << 31 | seq,
        queue,
        seq,
        status: ibv_wc_status::IBV_WC_SUCCESS,
        opcode: ibv_wc_opcode::IBV_WC_SEND,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qp_num: qp.num,
        sender: None,
    }
}

fn marks(cq: &Cq) -> Vec<u64> {
    let mut marks = Vec::new();
    cq.poll(usize::MAX, |_, wc, _| marks.push(wc.wr_id))
        .unwrap();
    marks
}

/// Sends and receives of two QPs, in turn, through a CQ with that seed.
fn order_of(seed: Option<u64>) -> Vec<u64> {
    let (a, b) = (queue_pair(1), queue_pair(2));
    let cq = cq(256, false, seed);
    for seq in 0..20 {
        for qp in [&a, &b] {
            for queue in [Queue::Send, Queue::Recv] {
                let wc = completion(qp, queue, seq);
                assert_eq!(cq.push(&wc, qp, None, false), Pushed::Quiet);
            }
        }
    }
    marks(&cq)
}

#[test]
fn without_a_seed_completions_stay_in_the_order_of_time() {
    let order = order_of(None);
    let expected: Vec<u64> = (0..20)
        .flat_map(|seq| {
            [(1, 1), (1, 0), (2, 1), (2, 0)].map(|(qp, send)| qp << 32 | send << 31 | seq)
        })
        .collect();
    assert_eq!(order, expected);
}

#[test]
fn with_a_seed_only_the_order_of_each_queue_stays() {
    let in_time = order_of(None);
    let mut orders = BTreeSet::new();
    for seed in 0..8 {
        let order = order_of(Some(seed));
        assert_eq!(order, order_of(Some(seed)), "the same seed, the same order");
        assert_ne!(order, in_time);
        assert_eq!(
            order.iter().collect::<BTreeSet<_>>(),
            in_time.iter().collect()
        );
        for queue in [1 << 32, 1 << 32 | 1 << 31, 2 << 32, 2 << 32 | 1 << 31] {
            let of_queue: Vec<u64> = (order.iter())
                .filter(|&&mark| mark & !0x7fff_ffff == queue)
                .map(|&mark| mark & 0x7fff_ffff)
                .collect();
            assert_eq!(of_queue, (0..20).collect::<Vec<_>>());
        }
        orders.insert(order);
    }
    assert_eq!(orders.len(), 8, "each seed has an order of its own");
}

/// A full CQ loses the new completion, not those that it holds; changing its size does neither.
#[test]
fn room() {
    let qp = queue_pair(1);
    let cq = cq(3, false, None);
    let push = |seq| cq.push(&completion(&qp, Queue::Recv, seq), &qp, None, false);
    for seq in 0..3 {
        assert_eq!(push(seq), Pushed::Quiet);
    }
    let error = cq.resize(2).unwrap_err();
    assert_eq!(error.errno, rustix::io::Errno::INVAL);
    assert_eq!(
        error.to_string(),
        "cqe is 2, but 3 completions wait in the CQ: poll them first"
    );
    cq.resize(4).unwrap();
    assert_eq!(push(3), Pushed::Quiet);
    assert_eq!((push(4), push(5)), (Pushed::Overrun, Pushed::Lost));
    let base = 1 << 32;
    assert_eq!(marks(&cq), [base, base | 1, base | 2, base | 3]);
    assert_eq!(cq.poll(1, |_, _, _| unreachable!()), Err(Overrun));
}

#[test]
fn stamps_never_go_backwards_and_are_there_only_when_asked_for() {
    let qp = queue_pair(1);
    let mut stamps = Vec::new();
    let stamped = cq(8, true, None);
    let before = SystemTime::now();
    for seq in 0..4 {
        stamped.push(&completion(&qp, Queue::Send, seq), &qp, None, false);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    stamped.poll(8, |_, _, stamp| stamps.push(stamp)).unwrap();
    assert!(
        stamps.windows(2).all(|w| w[1] >= w[0] + 1_000_000),
        "{stamps:?}"
    );
    let wall = UNIX_EPOCH + std::time::Duration::from_nanos(stamped.wall_clock(stamps[0]));
    let off = wall.duration_since(before).unwrap_or_else(|e| e.duration());
    assert!(off < std::time::Duration::from_secs(1), "{off:?}");

    let plain = cq(8, false, None);
    plain.push(&completion(&qp, Queue::Send, 0), &qp, None, false);
    plain.poll(1, |_, _, stamp| assert_eq!(stamp, 0)).unwrap();
    assert_eq!(plain.wall_clock(5), 0);
}

/// Forgetting a QP's completions frees the slots of the shared receive queue that they came from.
#[test]
fn purging() {
    let (a, b) = (queue_pair(1), queue_pair(2));
    let srq = Arc::new(Srq::new(
        SrqId(7),
        4,
        None,
        Arc::new(EventQueue::new().unwrap()),
    ));
    let wqe = |seq| crate::core::RecvWqe {
        wr_id: seq,
        seq,
        sges: crate::core::SgeList::new(),
    };
    let mut posting = srq.post();
    for _ in 0..4 {
        let seq = posting.slot().unwrap();
        posting.push(wqe(seq), true);
    }
    assert!(posting.slot().is_err());
    drop(posting);
    let cq = cq(8, false, None);
    for (qp, seq) in [(&a, 0), (&b, 1), (&a, 2)] {
        let wc = completion(qp, Queue::Srq(SrqId(7)), seq);
        cq.push(&wc, qp, Some(&srq), false);
    }
    assert_eq!(srq.in_use(), 4);
    cq.purge(&a);
    assert_eq!(srq.in_use(), 2);
    assert_eq!(marks(&cq), [2 << 32 | 1]);
    assert_eq!(srq.in_use(), 1, "polled");
}
