//! Work queues and completion queues: capacities, accounting, order, what errors leave behind.

use std::ptr::null_mut;
use std::time::Duration;

use crate::common::*;
use rdma_core_sys::*;

fn unsignaled(mut wr: ibv_send_wr) -> ibv_send_wr {
    wr.send_flags &= !IBV_SEND_SIGNALED.bits();
    wr
}

/// Case 33: slots come free when a completion of them or of a later request is polled.
#[test]
fn a_full_send_queue() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        send_wr: 8,
        sge: 2,
        inline: 0,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 64));
    let mut sges = [from.sge(0, 8)];
    let write = rdma(IBV_WR_RDMA_WRITE, 0, &mut sges, &to, 0);
    for _ in 0..8 {
        assert_eq!(x.send(&mut unsignaled(write)), 0);
    }
    until("all eight are executed", || b.counter("rx_accepted") >= 8);
    nothing(x.scq, Duration::from_millis(20));
    assert_eq!(
        x.send(&mut unsignaled(write)),
        ENOMEM,
        "no signaled request, so no slot"
    );

    let mut three = [from.sge(0, 1), from.sge(1, 1), from.sge(2, 1)];
    let (x, y) = pair(&a, &b, opt);
    let to = Buf::new(&y, 64);
    let from = Buf::new(&x, 64);
    for sge in &mut three {
        sge.lkey = from.lkey();
    }
    assert_eq!(
        x.send(&mut wr(IBV_WR_SEND, 0, &mut three)),
        EINVAL,
        "three entries of two"
    );
    let mut sges = [from.sge(0, 8)];
    let mut inline = wr(IBV_WR_SEND, 0, &mut sges);
    inline.send_flags |= IBV_SEND_INLINE.bits();
    assert_eq!(
        x.send(&mut inline),
        EINVAL,
        "inline data of a QP that takes none"
    );

    // Seven unsignaled and one signaled: its completion frees all eight.
    let write = rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0);
    for round in 0..3 {
        for _ in 0..7 {
            assert_eq!(x.send(&mut unsignaled(write)), 0, "round {round}");
        }
        assert_eq!(x.send(&mut write.clone()), 0);
        assert_eq!(x.send(&mut write.clone()), ENOMEM);
        assert_eq!(ok(x.sent()).wr_id, 1);
    }
    nothing(x.scq, Duration::from_millis(5));
}

#[test]
fn a_full_receive_queue() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(
        &a,
        &b,
        Options {
            recv_wr: 3,
            ..Options::default()
        },
    );
    for id in 0..3 {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    assert_eq!(y.recv(3, &mut []), ENOMEM);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 0, &mut [])), 0);
    ok(x.sent());
    assert_eq!(y.recv(3, &mut []), ENOMEM, "completed, but not polled");
    assert_eq!(ok(y.received()).wr_id, 0);
    assert_eq!(y.recv(3, &mut []), 0);
}

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

/// Case 16: in ERR every request completes with a flush, signaled or not, in order.
#[test]
fn err_flushes_everything_in_order() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 64));
    // The peer answers nothing from here on.
    assert!(rdma_soft::partition(&a.name, gid_addr(&b), true));
    for id in 0..5 {
        let mut sges = [from.sge(0, 8)];
        let write = rdma(IBV_WR_RDMA_WRITE, id, &mut sges, &to, 0);
        assert_eq!(x.send(&mut unsignaled(write)), 0);
    }
    for id in 0..3 {
        assert_eq!(x.recv(id, &mut []), 0);
    }
    x.to(IBV_QPS_ERR);
    assert_eq!(x.send(&mut unsignaled(wr(IBV_WR_SEND, 99, &mut []))), 0);
    for id in [0, 1, 2, 3, 4, 99] {
        let wc = x.sent();
        assert_eq!(
            (wc.wr_id, wc.status, wc.qp_num),
            (id, IBV_WC_WR_FLUSH_ERR, x.qpn())
        );
    }
    for id in 0..3 {
        let wc = x.received();
        assert_eq!((wc.wr_id, wc.status), (id, IBV_WC_WR_FLUSH_ERR));
    }
    nothing(x.scq, Duration::from_millis(5));
    nothing(x.rcq, Duration::from_millis(5));
}

/// Waits until all that was posted is completed, without polling for it.
fn drain(device: &Device, end: &End) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_SQD;
    attr.en_sqd_async_notify = 1;
    assert_eq!(
        modify(end.qp, &mut attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY),
        0
    );
    assert!(device.has_async_event(PATIENCE));
    assert_eq!(device.async_event().event_type, IBV_EVENT_SQ_DRAINED);
    end.to(IBV_QPS_RTS);
}

pub fn gid_addr(device: &Device) -> std::net::IpAddr {
    std::net::Ipv6Addr::from(device.gid().raw).to_canonical()
}

/// Case 17: of a failed completion only wr_id, status, vendor_err and qp_num are defined.
#[test]
fn undefined_fields_of_failures_are_poisoned() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        timeout: 10,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, y) = (End::new(&a, opt), End::new(&b, opt));
    x.to_init();
    // A number that nobody has.
    x.to_rtr(y.qpn() ^ 0x40_0000, b.gid(), 0);
    x.to_rts();
    let before = b.counter("rx_unknown_qp");
    for id in [11, 12] {
        assert_eq!(x.recv(id, &mut []), 0);
    }
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 10, &mut [])), 0);
    let sent = x.sent();
    assert_eq!((sent.wr_id, sent.status), (10, IBV_WC_RETRY_EXC_ERR));
    let received = [x.received(), x.received()];
    assert_eq!(received.map(|wc| wc.wr_id), [11, 12]);
    for wc in [sent, received[0], received[1]] {
        assert_ne!(wc.status, IBV_WC_SUCCESS);
        assert_eq!((wc.qp_num, wc.vendor_err), (x.qpn(), 0));
        assert_eq!(wc.opcode.0, rdma_soft::POISON);
        assert_eq!(
            (wc.byte_len, wc.wc_flags),
            (rdma_soft::POISON, rdma_soft::POISON)
        );
    }
    assert_eq!(x.state(), IBV_QPS_ERR);
    // The request and one retry.
    b.counts("rx_unknown_qp", before, 2);
}

/// Case 19: after RESET, and after destruction, no completion of the former life is polled.
#[test]
fn reset_leaves_nothing_of_the_former_life() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    // A second pair whose sends complete in the CQ of the first.
    let (second, second_peer) = (x.create_qp().expect("a QP"), y.create_qp().expect("a QP"));
    let opt = x.opt;
    for qp in [second, second_peer] {
        to_init(qp, &opt);
    }
    to_rtr(second, &opt, qpn(second_peer), b.gid(), opt.psn);
    to_rtr(second_peer, &opt, qpn(second), a.gid(), opt.psn);
    to_rts(second, &opt);
    to_rts(second_peer, &opt);

    let to = Buf::new(&y, 64);
    for (qp, ids) in [
        (x.qp, 0..2),
        (second, 10..12),
        (x.qp, 2..4),
        (second, 12..14),
    ] {
        for id in ids {
            let mut write = rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0);
            assert_eq!(post_send(qp, &mut write), 0);
        }
    }
    // The CQ has eight when the second four, which were sent last, are done, and so the first four.
    until("all eight arrive", || b.counter("rx_accepted") >= 8);
    std::thread::sleep(Duration::from_millis(20));
    x.to(IBV_QPS_RESET);
    for id in 10..14 {
        let wc = ok(x.sent());
        assert_eq!((wc.wr_id, wc.qp_num), (id, qpn(second)));
    }
    nothing(x.scq, Duration::from_millis(5));

    for id in 20..22 {
        assert_eq!(
            post_send(second, &mut rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0)),
            0
        );
    }
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: both QPs are live, and not used any more.
    unsafe {
        assert_eq!(rdma_soft::verbs().destroy_qp(second), 0);
        assert_eq!(rdma_soft::verbs().destroy_qp(second_peer), 0);
    }
    nothing(x.scq, Duration::from_millis(5));
}

/// Case 19: the full cycle carries traffic again, with new PSNs, many times.
#[test]
fn recovery_many_times() {
    let (a, b) = (Device::plain(), Device::plain());
    let (mut x, mut y) = pair(&a, &b, Options::default());
    let (from, to) = (Buf::new(&x, 3000), Buf::new(&y, 3000));
    for round in 0..100u32 {
        let data = from.fill(round as u8);
        assert_eq!(y.recv(round.into(), &mut [to.sge(0, 3000)]), 0);
        // Left behind by every life: discarded by RESET, flushed by ERR.
        assert_eq!(y.recv(1000, &mut []), 0);
        assert_eq!(
            x.send(&mut wr(IBV_WR_SEND, round.into(), &mut [from.sge(0, 3000)])),
            0
        );
        assert_eq!(ok(x.sent()).wr_id, round.into());
        assert_eq!(ok(y.received()).wr_id, round.into());
        assert!(to.read(0, 3000) == data);
        if round % 2 == 0 {
            y.to(IBV_QPS_ERR);
            assert_eq!(y.received().status, IBV_WC_WR_FLUSH_ERR);
        }
        x.to(IBV_QPS_RESET);
        y.to(IBV_QPS_RESET);
        x.opt.psn = round.wrapping_mul(0x9e37_79b9) & 0xff_ffff;
        y.opt.psn = x.opt.psn ^ 0x5a_5a5a;
        connect(&a, &x, &b, &y);
    }
}

/// Case 36: a CQ that overruns says so, on every channel there is; nothing is overwritten.
#[test]
fn an_overrun_is_never_silent() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(
        &a,
        &b,
        Options {
            cqe: 4,
            ..Options::default()
        },
    );
    let to = Buf::new(&y, 64);
    for id in 0..5 {
        assert_eq!(x.send(&mut rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0)), 0);
    }
    let mut kinds = Vec::new();
    for _ in 0..2 {
        assert!(a.has_async_event(PATIENCE));
        let event = a.async_event();
        kinds.push(event.event_type);
        // SAFETY: the event's kind says which member is set.
        unsafe {
            match event.event_type {
                IBV_EVENT_CQ_ERR => assert!(std::ptr::eq(event.element.cq, x.scq)),
                _ => assert!(std::ptr::eq(event.element.qp, x.qp)),
            }
        }
    }
    assert_eq!(kinds, [IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL]);
    assert_eq!(x.state(), IBV_QPS_ERR);
    for id in 0..4 {
        assert_eq!(ok(x.sent()).wr_id, id);
    }
    assert!(poll_once(x.scq).expect_err("an error") < 0);
    assert!(poll_once(x.scq).expect_err("an error, again") < 0);
}

#[test]
fn resizing_a_cq() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(
        &a,
        &b,
        Options {
            cqe: 4,
            ..Options::default()
        },
    );
    let to = Buf::new(&y, 64);
    // SAFETY: the CQ is live.
    let resize = |cqe| unsafe { rdma_soft::verbs().resize_cq(x.scq, cqe) };
    assert_eq!(
        (resize(0), resize(-1), resize(i32::MAX)),
        (EINVAL, EINVAL, EINVAL)
    );
    assert_eq!(resize(8), 0);
    for id in 0..8 {
        assert_eq!(x.send(&mut rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0)), 0);
    }
    drain(&a, &x);
    // Eight lie there, so it cannot become smaller than that.
    assert_eq!((resize(1), resize(7), resize(8)), (EINVAL, EINVAL, 0));
    for id in 0..8 {
        assert_eq!(ok(x.sent()).wr_id, id);
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

/// Case 38: `max_msg_sz` is enforced when posting; the sum over the entries counts.
#[test]
fn the_longest_message() {
    let mut profile = rdma_soft::Profile::default();
    profile.ports[0].max_msg_sz = 65536;
    let (a, b) = (Device::new(profile.clone()), Device::new(profile));
    let (x, y) = pair(&a, &b, Options::default());
    let (from, to) = (Buf::new(&x, 70_000), Buf::new(&y, 70_000));
    let data = from.fill(1);
    assert_eq!(y.recv(1, &mut [to.sge(0, 70_000)]), 0);
    let mut sges = [from.sge(0, 65_000), from.sge(65_000, 537)];
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut sges)), EINVAL);
    let mut sges = [from.sge(0, 65_000), from.sge(65_000, 536)];
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut sges)), 0);
    ok(x.sent());
    assert_eq!(ok(y.received()).byte_len, 65_536);
    assert!(to.read(0, 65_536) == data[..65_536]);

    // Longer than the receive: both ends end, each with its own status.
    assert_eq!(y.recv(2, &mut [to.sge(0, 64)]), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 2, &mut [from.sge(0, 100)])), 0);
    assert_eq!(x.sent().status, IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(y.received().status, IBV_WC_LOC_LEN_ERR);
    assert_eq!((x.state(), y.state()), (IBV_QPS_ERR, IBV_QPS_ERR));
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
