//! Work queues and completion queues: capacities, accounting, order, what errors leave behind.

use std::ptr::null_mut;
use std::time::Duration;

use crate::common::*;
use crate::kinds::unsignaled;
use rdma_core_sys::*;
use rdma_soft::verbs;

/// A list is taken up to the first bad request, which `bad_wr` names.
#[test]
fn lists_are_taken_up_to_the_bad_one() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    for id in 0..4 {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    let mut list: Vec<_> = (0..4).map(|id| wr(IBV_WR_SEND, id, &mut [])).collect();
    list[2].num_sge = -1;
    assert_eq!(post_list(x.qp, &mut list), (EINVAL, Some(2)));
    for id in 0..2 {
        assert_eq!(ok(x.sent()).wr_id, id);
        assert_eq!(ok(y.received()).wr_id, id);
    }
    nothing(x.scq, Duration::from_millis(5));

    // A circle ends when the queue is full.
    let mut one = wr(IBV_WR_SEND, 9, &mut []);
    one.next = &mut one;
    let mut bad = null_mut();
    // SAFETY: the QP is live; the request points to itself and outlives the call.
    let result = unsafe { ops::ibv_post_send(x.qp, &mut one, &mut bad) };
    assert_eq!(result, ENOMEM);
    assert!(std::ptr::eq(bad, &one));
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(
        &a,
        &b,
        Options {
            sge: 2,
            ..Options::default()
        },
    );
    let (local, remote) = (Buf::new(&x, 64), Buf::new(&y, 64));
    let mut sges = [local.sge(0, 8)];
    let good = rdma(IBV_WR_RDMA_WRITE, 0, &mut sges, &remote, 0);

    for count in [-1, i32::MIN, 3, i32::MAX] {
        let mut bad = good;
        bad.num_sge = count;
        assert_eq!(x.send(&mut bad), EINVAL, "{count} entries");
    }
    let mut bad = good;
    bad.sg_list = null_mut();
    assert_eq!(x.send(&mut bad), EINVAL, "one entry of no list");
    bad.opcode = ibv_wr_opcode(77);
    bad.num_sge = 0;
    assert_eq!(x.send(&mut bad), EINVAL, "no opcode");
    for known in [
        IBV_WR_TSO,
        IBV_WR_DRIVER1,
        IBV_WR_FLUSH,
        IBV_WR_ATOMIC_WRITE,
    ] {
        bad.opcode = known;
        assert_eq!(x.send(&mut bad), EINVAL, "{known:?}");
    }
    for len in [0, 4, 7, 9, 16] {
        let mut sges = [local.sge(0, len)];
        let op = IBV_WR_ATOMIC_FETCH_AND_ADD;
        assert_eq!(
            x.send(&mut atomic(op, 0, &mut sges, &remote, 0, 1, 0)),
            EINVAL,
            "{len}"
        );
    }
    // Lengths whose sum is beyond 32 bits.
    let mut huge = [local.sge(0, 8), local.sge(0, 8)];
    huge[0].length = u32::MAX;
    huge[1].length = u32::MAX;
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 0, &mut huge)), EINVAL);
    let mut inline = wr(IBV_WR_SEND, 0, &mut huge);
    inline.send_flags |= IBV_SEND_INLINE.bits();
    assert_eq!(x.send(&mut inline), EINVAL);
    // Inline data at no address.
    let mut nowhere = [ibv_sge {
        addr: 0,
        length: 8,
        lkey: 0,
    }];
    let mut inline = wr(IBV_WR_SEND, 0, &mut nowhere);
    inline.send_flags |= IBV_SEND_INLINE.bits();
    assert_eq!(x.send(&mut inline), EINVAL);

    let mut sge = [local.sge(0, 8)];
    let mut recv = ibv_recv_wr::zeroed();
    recv.sg_list = sge.as_mut_ptr();
    let mut bad = null_mut();
    for count in [-1, i32::MIN, 3] {
        recv.num_sge = count;
        // SAFETY: the QP is live, the request outlives the call.
        let result = unsafe { ops::ibv_post_recv(y.qp, &mut recv, &mut bad) };
        assert_eq!(result, EINVAL);
    }
    // After all that the connection works.
    assert_eq!(x.send(&mut good.clone()), 0);
    ok(x.sent());
}

/// Which state takes which request.
#[test]
fn posting_by_state() {
    let a = Device::plain();
    let (x, y) = (
        End::new(&a, Options::default()),
        End::new(&a, Options::default()),
    );
    let mut send = wr(IBV_WR_SEND, 1, &mut []);
    let (yes, no) = (0, EINVAL);
    assert_eq!((x.send(&mut send), x.recv(1, &mut [])), (no, no), "RESET");
    x.to_init();
    y.to_init();
    assert_eq!((x.send(&mut send), x.recv(1, &mut [])), (no, yes), "INIT");
    x.to_rtr(y.qpn(), a.gid(), y.opt.psn);
    y.to_rtr(x.qpn(), a.gid(), x.opt.psn);
    assert_eq!((x.send(&mut send), x.recv(2, &mut [])), (no, yes), "RTR");
    x.to_rts();
    assert_eq!(y.recv(3, &mut []), 0);
    assert_eq!((x.send(&mut send), x.recv(4, &mut [])), (yes, yes), "RTS");
    ok(x.sent());
    x.to(IBV_QPS_ERR);
    assert_eq!((x.send(&mut send), x.recv(5, &mut [])), (yes, yes), "ERR");
    assert_eq!(x.sent().status, IBV_WC_WR_FLUSH_ERR);
    for id in [1, 2, 4, 5] {
        let wc = x.received();
        assert_eq!((wc.wr_id, wc.status), (id, IBV_WC_WR_FLUSH_ERR));
    }
}

#[test]
fn sq_sig_all_completes_every_request() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(
        &a,
        &b,
        Options {
            sig_all: true,
            ..Options::default()
        },
    );
    let to = Buf::new(&y, 64);
    for id in 0..5 {
        let write = rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0);
        assert_eq!(x.send(&mut unsignaled(write)), 0);
    }
    for id in 0..5 {
        assert_eq!(ok(x.sent()).wr_id, id);
    }
}

/// Many threads post to one QP: every request completes once, in its own thread's order.
#[test]
fn many_posters_one_queue_pair() {
    const THREADS: u64 = 4;
    const EACH: u64 = 2000;
    struct Shared(*mut ibv_qp);
    // SAFETY: verbs let any thread post to any QP.
    unsafe impl Sync for Shared {}
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        send_wr: 100,
        cqe: 1000,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 64));
    let shared = Shared(x.qp);
    let (remote_addr, rkey, sge) = (to.at(0), to.rkey(), from.sge(0, 64));
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let shared = &shared;
            s.spawn(move || {
                for i in 0..EACH {
                    let mut sges = [sge];
                    let mut request = wr(IBV_WR_RDMA_WRITE, thread << 32 | i, &mut sges);
                    request.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
                    loop {
                        match post_send(shared.0, &mut request) {
                            0 => break,
                            ENOMEM => std::thread::yield_now(),
                            other => panic!("post: {other}"),
                        }
                    }
                }
            });
        }
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let wc = ok(x.sent());
            let thread = (wc.wr_id >> 32) as usize;
            assert_eq!(wc.wr_id & 0xffff_ffff, next[thread]);
            next[thread] += 1;
        }
        assert_eq!(next, [EACH; THREADS as usize]);
    });
}

/// Who posts a receive and then has the peer send, is not told that there was none: not even if the
/// node is in the middle of other packets at that moment.
#[test]
fn a_receive_posted_before_the_send_is_found() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        rnr_retry: 0,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let (p, q) = pair(&a, &b, opt);
    let (from, to) = (Buf::new(&p, 1 << 16), Buf::new(&q, 1 << 16));
    let mut streaming = 0;
    for id in 0..2000 {
        // Packets that keep the far node busy.
        let mut sges = [from.sge(0, 1 << 16)];
        let mut write = rdma(IBV_WR_RDMA_WRITE, 0, &mut sges, &to, 0);
        if p.send(&mut write) == 0 {
            streaming += 1;
        }
        assert_eq!(y.recv(id, &mut []), 0);
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
        ok(x.sent());
        assert_eq!(ok(y.received()).wr_id, id);
        while poll_once(p.scq).expect("a poll").is_some() {
            streaming -= 1;
        }
    }
    while streaming > 0 {
        ok(p.sent());
        streaming -= 1;
    }
    assert_eq!(b.counter("tx_rnr_naks"), 0);
}

/// A number of completions is an `int`: a negative one is refused however high the device's limit is.
#[test]
fn a_negative_number_of_completions() {
    let mut profile = rdma_soft::Profile::default();
    profile.caps.max_cqe = u32::MAX;
    let a = Device::new(profile);
    let x = End::new(&a, Options::default());
    // SAFETY: the context is open, the CQ is live.
    unsafe {
        let cq = verbs().create_cq(a.ctx, -1, null_mut(), null_mut(), 0);
        assert!(cq.is_null());
        assert_eq!(errno(), EINVAL);
        assert_eq!(verbs().resize_cq(x.scq, -1), EINVAL);
        assert_eq!((*x.scq).cqe, x.opt.cqe);
    }
}
