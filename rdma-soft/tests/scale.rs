//! What ten thousand connected Queue Pairs cost, in a process of its own: memory that others use would blur
//! the figure.

#[path = "abi/common.rs"]
#[allow(dead_code, reason = "the ABI tests use the rest")]
mod common;

use common::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const QPS: usize = 10_000;

/// Bytes of memory that this process has resident, of its own.
fn resident() -> usize {
    let maps =
        std::fs::read_to_string("/proc/self/smaps_rollup").expect("the kernel has smaps_rollup");
    let of = |name: &str| -> usize {
        let line = maps.lines().find(|l| l.starts_with(name));
        let amount = line.and_then(|l| l.split_whitespace().nth(1));
        amount.and_then(|a| a.parse().ok()).expect(name)
    };
    // Pages of the program's file are shared with whoever runs it, and come as they are touched.
    (of("Private_Dirty:") + of("Private_Clean:")) * 1024
}

#[test]
fn ten_thousand_connected_queue_pairs_take_at_most_8_kib_each() {
    let device = Device::plain();
    let opt = Options {
        send_wr: 16,
        recv_wr: 16,
        sge: 1,
        inline: 0,
        ..Options::default()
    };
    let end = End::new(&device, opt);
    let buf = Buf::new(&end, 1 << 16);
    let create = || {
        let mut attr = end.init_attr();
        attr.recv_cq = end.scq;
        // SAFETY: PD and CQ are live, `attr` is a whole struct.
        let qp = unsafe { verbs().create_qp(end.pd, &mut attr) };
        assert!(!qp.is_null(), "errno {}", errno());
        qp
    };
    let gid = device.gid();
    let connect = |a, b| {
        for (qp, peer) in [(a, b), (b, a)] {
            to_init(qp, &opt);
            to_rtr(qp, &opt, qpn(peer), gid, opt.psn);
        }
        for qp in [a, b] {
            to_rts(qp, &opt);
        }
    };
    // What is made once for all, by the first.
    let first = [create(), create()];
    connect(first[0], first[1]);
    let mut qps = Vec::with_capacity(QPS + 2);
    let before = resident();
    for _ in 0..QPS / 2 {
        let pair = [create(), create()];
        connect(pair[0], pair[1]);
        qps.extend(pair);
    }
    let each = (resident() - before) / QPS;
    println!("{QPS} connected RC Queue Pairs: {each} bytes of resident memory each");
    assert!(each <= 8192, "{each} bytes");

    // And with what an application gives them to hold; the counters are asked so that the node has taken it.
    for (i, &qp) in qps.iter().enumerate() {
        for _ in 0..opt.recv_wr {
            let mut into = [buf.sge(4096 + 256 * (i % 2), 256)];
            assert_eq!(post_recv(qp, 1, &mut into), 0);
        }
    }
    device.counters();
    let filled = (resident() - before) / QPS;
    println!(
        "with {} receives waiting in each: {filled} bytes",
        opt.recv_wr
    );

    // They are no dummies: every hundredth pair talks, both ways at once.
    let talked = qps.chunks(2).step_by(100).count();
    for (i, pair) in qps.chunks(2).step_by(100).enumerate() {
        for (side, &qp) in pair.iter().enumerate() {
            buf.write(256 * side, &pattern((i + side) as u8, 256));
            let mut sges = [buf.sge(256 * side, 256)];
            assert_eq!(post_send(qp, &mut wr(IBV_WR_SEND, 2, &mut sges)), 0);
        }
        let mut received = 0;
        for _ in 0..4 {
            received += u32::from(ok(wait(end.scq)).opcode == IBV_WC_RECV);
        }
        assert_eq!(received, 2);
        for side in 0..2 {
            let from_the_other = pattern((i + 1 - side) as u8, 256);
            assert_eq!(buf.read(4096 + 256 * side, 256), from_the_other);
        }
    }
    assert_eq!(talked, 50);
    for qp in qps.into_iter().chain(first) {
        // SAFETY: made above, destroyed here only.
        assert_eq!(unsafe { verbs().destroy_qp(qp) }, 0);
    }
}
