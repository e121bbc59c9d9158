//! Shared receive queues.

use std::time::Duration;

use rdma_core_sys::*;
use rdma_soft::verbs;

use crate::common::*;
use crate::kinds::*;

/// Runs a test on one device that talks to itself, and on two that talk to each other.
pub fn on_both_links(test: impl Fn(&Device, &Device)) {
    let a = Device::plain();
    test(&a, &a);
    test(&a, &Device::plain());
}

fn attributes(srq: &Srq) -> ibv_srq_attr {
    let mut attr = ibv_srq_attr::zeroed();
    // SAFETY: the SRQ is live, the place is writable.
    assert_eq!(unsafe { verbs().query_srq(srq.srq, &mut attr) }, 0);
    attr
}

fn modify(srq: &Srq, max_wr: Option<u32>, limit: Option<u32>) -> i32 {
    let mut attr = ibv_srq_attr::zeroed();
    let mut mask = ibv_srq_attr_mask::empty();
    if let Some(max_wr) = max_wr {
        (attr.max_wr, mask) = (max_wr, mask | IBV_SRQ_MAX_WR);
    }
    if let Some(limit) = limit {
        (attr.srq_limit, mask) = (limit, mask | IBV_SRQ_LIMIT);
    }
    // SAFETY: the SRQ is live, the attributes are a whole struct.
    unsafe { verbs().modify_srq(srq.srq, &mut attr, mask.bits() as i32) }
}

/// Receives of one SRQ serve Queue Pairs of all transports that have receives, in the order in which
/// they were posted.
#[test]
fn serves_many_queue_pairs() {
    on_both_links(|a, b| {
        let opt = Options::default();
        let (p, q) = (End::bare(a, opt), End::bare(b, opt));
        let srq = Srq::new(&q, 16);
        let (src, dst) = (Buf::new(&p, 4096), Buf::new(&q, 16 * 256));
        let data = src.fill(7);
        let ah = Ah::new(&p, b.gid());
        let pairs: Vec<_> = [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RC]
            .into_iter()
            .map(|kind| {
                let (x, y) = (Qp::new(a, &p, kind), Qp::on_srq(b, &q, kind, &srq));
                join(a, &x, b, &y);
                (kind, x, y)
            })
            .collect();
        for slot in 0..16 {
            assert_eq!(srq.recv(slot, &mut [dst.sge(slot as usize * 256, 256)]), 0);
        }
        for slot in 0..16 {
            let (kind, x, y) = &pairs[slot % pairs.len()];
            let len = 100 + slot;
            let mut sges = [src.sge(slot, len)];
            let mut send = match *kind {
                IBV_QPT_UD => datagram(9, &mut sges, &ah, y.num(), QKEY),
                _ => wr(IBV_WR_SEND, 9, &mut sges),
            };
            assert_eq!(x.send(&mut send), 0, "{}", why());
            ok(wait(p.scq));
            let got = ok(wait(q.rcq));
            let front = if *kind == IBV_QPT_UD { 40 } else { 0 };
            assert_eq!(got.wr_id, slot as u64);
            assert_eq!(got.qp_num, y.num());
            assert_eq!(got.byte_len as usize, front + len);
            assert_eq!(
                dst.read(slot * 256 + front, len),
                &data[slot..slot + len],
                "{kind:?}"
            );
        }
    });
}

/// What a Queue Pair on an SRQ says of a receive queue of its own is ignored, and there is none.
#[test]
fn instead_of_a_receive_queue() {
    let a = Device::plain();
    let p = End::bare(&a, Options::default());
    let srq = Srq::new(&p, 4);
    let mut attr = p.init_attr_ex(IBV_QPT_RC);
    attr.srq = srq.srq;
    (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (u32::MAX, u32::MAX);
    let x = Qp::create(&a, &mut attr, p.opt).expect("a QP");
    assert_eq!((attr.cap.max_recv_wr, attr.cap.max_recv_sge), (0, 0));
    assert_eq!(attr.cap.max_send_wr, p.opt.send_wr);
    let (now, init) = query(x.qp);
    assert_eq!((now.cap.max_recv_wr, now.cap.max_recv_sge), (0, 0));
    assert_eq!(init.srq, srq.srq);
    x.step(IBV_QPS_INIT, Peer::nobody(&a));
    assert_eq!(x.recv(1, &mut []), EINVAL);
    says(&["SRQ", "ibv_post_srq_recv"]);
}

#[test]
fn capacities_and_their_changes() {
    let a = Device::plain();
    let p = End::bare(&a, Options::default());
    let refused = |max_wr, max_sge| {
        let mut attr = ibv_srq_init_attr::zeroed();
        (attr.attr.max_wr, attr.attr.max_sge) = (max_wr, max_sge);
        // SAFETY: the PD is live, the attributes are a whole struct.
        assert!(unsafe { verbs().create_srq(p.pd, &mut attr) }.is_null());
        errno()
    };
    assert_eq!(refused(0, 1), EINVAL);
    assert_eq!(refused(u32::MAX, 1), EINVAL);
    says(&["max_srq_wr"]);
    assert_eq!(refused(1, 17), EINVAL);
    says(&["max_srq_sge", "16"]);

    let srq = Srq::new(&p, 5);
    let now = attributes(&srq);
    assert_eq!((now.max_wr, now.max_sge, now.srq_limit), (5, p.opt.sge, 0));
    assert_eq!(modify(&srq, None, Some(6)), EINVAL);
    says(&["6", "5"]);
    assert_eq!(modify(&srq, Some(u32::MAX), None), EINVAL);
    for id in 0..5 {
        assert_eq!(srq.recv(id, &mut []), 0);
    }
    assert_eq!(srq.recv(5, &mut []), ENOMEM);
    says(&["full", "5"]);
    assert_eq!(modify(&srq, Some(4), None), EINVAL, "5 are in it");
    assert_eq!(attributes(&srq).max_wr, 5, "nothing was changed");
    assert_eq!(modify(&srq, Some(6), Some(2)), 0);
    let now = attributes(&srq);
    assert_eq!((now.max_wr, now.srq_limit), (6, 2));
    assert_eq!(srq.recv(5, &mut []), 0);
    assert_eq!(srq.recv(6, &mut []), ENOMEM);

    let mut num = 0;
    // SAFETY: the SRQ is live, the place is writable.
    let result = unsafe { ops::ibv_get_srq_num(srq.srq, &mut num) };
    assert_eq!(result, EINVAL, "a basic SRQ has none");
}

/// A slot is free when the completion of its receive was polled, in whatever order Queue Pairs finish;
/// and when the Queue Pair that used it takes the completion along.
#[test]
fn slots_come_back_with_completions() {
    let a = Device::plain();
    let p = End::bare(&a, Options::default());
    let q = End::bare(&a, Options::default());
    let srq = Srq::new(&q, 4);
    let (x, y) = (Qp::new(&a, &p, IBV_QPT_RC), Qp::new(&a, &p, IBV_QPT_RC));
    let (x2, y2) = (
        Qp::on_srq(&a, &q, IBV_QPT_RC, &srq),
        Qp::on_srq(&a, &q, IBV_QPT_RC, &srq),
    );
    join(&a, &x, &a, &x2);
    join(&a, &y, &a, &y2);
    let full = |from: u64| {
        let mut posted = 0;
        while srq.recv(from + posted, &mut []) == 0 {
            posted += 1;
        }
        posted
    };
    assert_eq!(full(0), 4);
    for qp in [&x, &y, &x] {
        assert_eq!(qp.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
        ok(wait(p.scq));
    }
    assert_eq!(
        full(10),
        0,
        "completions that nobody polled hold their slots"
    );
    ok(wait(q.rcq));
    assert_eq!(full(20), 1);
    // Two completions left: one of each Queue Pair. A reset takes that of its own along.
    assert_eq!(x2.to(IBV_QPS_RESET), 0);
    assert_eq!(full(30), 1);
    drop(y2);
    assert_eq!(full(40), 1);
    nothing(q.rcq, Duration::from_millis(2));
}

/// The limit event comes once when fewer receives are left than the limit says, on the SRQ, and has to
/// be armed again.
#[test]
fn the_limit_is_raised_once() {
    on_both_links(|a, b| {
        let opt = Options::default();
        let (p, q) = (End::bare(a, opt), End::bare(b, opt));
        let srq = Srq::new(&q, 8);
        let (x, y) = (
            Qp::new(a, &p, IBV_QPT_RC),
            Qp::on_srq(b, &q, IBV_QPT_RC, &srq),
        );
        join(a, &x, b, &y);
        for id in 0..4 {
            assert_eq!(srq.recv(id, &mut []), 0);
        }
        assert_eq!(modify(&srq, None, Some(3)), 0);
        let soon = Duration::from_millis(5);
        let send = || {
            assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
            ok(wait(p.scq));
            ok(wait(q.rcq));
        };
        // The first message of a connection may say so.
        send();
        let mut events = Vec::new();
        send();
        while b.has_async_event(soon) {
            events.push(b.async_event());
        }
        let limits: Vec<_> = (events.iter())
            .filter(|e| e.event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
            .collect();
        assert_eq!(limits.len(), 1, "{}", events.len());
        // SAFETY: an event of an SRQ holds an SRQ.
        assert_eq!(unsafe { limits[0].element.srq }, srq.srq);
        assert_eq!(attributes(&srq).srq_limit, 0, "it is disarmed");
        send();
        assert!(!b.has_async_event(soon));
        // A limit that is above what is left is reached already.
        assert_eq!(modify(&srq, None, Some(2)), 0);
        assert!(b.has_async_event(PATIENCE));
        assert_eq!(b.async_event().event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    });
}

/// Destroying an SRQ waits until its events are acknowledged; those that nobody took are gone.
#[test]
fn destruction_waits_for_acknowledgements() {
    let a = Device::plain();
    let p = End::bare(&a, Options::default());
    let srq = Srq::new(&p, 2);
    assert_eq!(modify(&srq, None, Some(1)), 0);
    let mut event = ibv_async_event::zeroed();
    // SAFETY: the context is open, the place is writable.
    assert_eq!(unsafe { verbs().get_async_event(a.ctx, &mut event) }, 0);
    let handle = srq.srq as usize;
    std::mem::forget(srq);
    std::thread::scope(|s| {
        let destroyer = s.spawn(move || {
            // SAFETY: the SRQ is live, and given up here.
            unsafe { verbs().destroy_srq(handle as *mut ibv_srq) }
        });
        std::thread::sleep(Duration::from_millis(10));
        assert!(!destroyer.is_finished());
        // SAFETY: the event was got and is acknowledged once.
        unsafe { verbs().ack_async_event(&mut event) };
        assert_eq!(destroyer.join().expect("no panic"), 0);
    });
    let other = Srq::new(&p, 2);
    assert_eq!(modify(&other, None, Some(1)), 0);
    drop(other);
    assert!(!a.has_async_event(Duration::from_millis(2)));
}

/// Lists, entries and lengths are checked as those of a receive queue.
#[test]
fn requests_that_make_no_sense_are_refused() {
    let a = Device::plain();
    let p = End::bare(
        &a,
        Options {
            sge: 2,
            ..Options::default()
        },
    );
    let srq = Srq::new(&p, 3);
    let buf = Buf::new(&p, 64);
    let mut three = [buf.sge(0, 8), buf.sge(8, 8), buf.sge(16, 8)];
    assert_eq!(srq.recv(1, &mut three), EINVAL);
    says(&["num_sge is 3", "2"]);
    let mut list = [ibv_recv_wr::zeroed(), ibv_recv_wr::zeroed()];
    list[1].num_sge = -1;
    let second: *mut _ = &mut list[1];
    list[0].next = second;
    let mut bad = std::ptr::null_mut();
    // SAFETY: the SRQ is live; the list lives until the call returns.
    let result = unsafe { ops::ibv_post_srq_recv(srq.srq, &mut list[0], &mut bad) };
    assert_eq!(result, EINVAL);
    assert!(std::ptr::eq(bad, second));
    for id in 0..2 {
        assert_eq!(srq.recv(id, &mut []), 0, "the first of the list was taken");
    }
    assert_eq!(srq.recv(3, &mut []), ENOMEM);
}

/// Three threads send to three Queue Pairs of one SRQ, a fourth posts and polls: every message arrives
/// once, whole and in the order of its Queue Pair; and when two of the Queue Pairs are gone no receive
/// is.
#[test]
fn under_many_threads() {
    const SENDERS: usize = 3;
    const MESSAGES: u64 = 400;
    const SLOTS: usize = 8;
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options::default();
    let q = End::bare(&b, opt);
    let srq = Srq::new(&q, SLOTS as u32);
    let landing = Buf::new(&q, SLOTS * 16);
    let pairs: Vec<_> = (0..SENDERS)
        .map(|_| {
            let p = End::bare(&a, opt);
            let (x, y) = (
                Qp::new(&a, &p, IBV_QPT_RC),
                Qp::on_srq(&b, &q, IBV_QPT_RC, &srq),
            );
            join(&a, &x, &b, &y);
            let src = Buf::new(&p, 16);
            (x, y, src, p)
        })
        .collect();
    for slot in 0..SLOTS {
        let id = slot as u64;
        assert_eq!(srq.recv(id, &mut [landing.sge(slot * 16, 16)]), 0);
    }
    let numbers: Vec<u32> = pairs.iter().map(|(_, y, _, _)| y.num()).collect();
    std::thread::scope(|s| {
        for (sender, (x, _, src, p)) in pairs.iter().enumerate() {
            // What a thread works with alone; the owners outlive the scope.
            let (x, cq) = (x.qp as usize, p.scq as usize);
            let (addr, lkey) = (src.addr as usize, src.lkey());
            s.spawn(move || {
                for n in 0..MESSAGES {
                    let words = [sender as u64, n];
                    // SAFETY: the buffer has 16 bytes, and this thread's last request is done.
                    unsafe { (addr as *mut [u64; 2]).write(words) };
                    let mut sges = [ibv_sge {
                        addr: addr as u64,
                        length: 16,
                        lkey,
                    }];
                    let qp = x as *mut ibv_qp;
                    assert_eq!(post_send(qp, &mut wr(IBV_WR_SEND, n, &mut sges)), 0);
                    ok(wait(cq as *mut ibv_cq));
                }
            });
        }
        let mut next = [0; SENDERS];
        while next != [MESSAGES; SENDERS] {
            let got = ok(wait(q.rcq));
            let slot = got.wr_id as usize;
            let (sender, n) = (landing.word(slot * 16), landing.word(slot * 16 + 8));
            let sender = sender as usize;
            assert_eq!((got.byte_len, n), (16, next[sender]));
            assert_eq!(got.qp_num, numbers[sender]);
            next[sender] += 1;
            assert_eq!(srq.recv(slot as u64, &mut [landing.sge(slot * 16, 16)]), 0);
        }
    });
    assert_eq!(srq.recv(0, &mut []), ENOMEM, "all slots are taken again");
    // The receives are all there: a Queue Pair that is left gets them one by one.
    let left = pairs.into_iter().next().expect("a pair");
    let (x, y, src, p) = &left;
    for _ in 0..SLOTS {
        let mut sges = [src.sge(0, 16)];
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut sges)), 0);
        ok(wait(p.scq));
        assert_eq!(ok(wait(q.rcq)).qp_num, y.num());
    }
    nothing(q.rcq, Duration::from_millis(1));
}
