//! post_send gave ENOMEM, and nobody could say which of three limits it was.

use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

fn options() -> Options {
    Options {
        send_wr: 8,
        recv_wr: 3,
        sge: 2,
        inline: 0,
        ..Options::default()
    }
}

/// Eight unsignaled sends that are all executed, and the ninth: the queue is full, and nothing that is
/// outstanding can ever free a slot.
#[test]
fn a_full_queue_says_so() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, options());
    let to = Buf::new(&y, 8);
    let write = rdma(IBV_WR_RDMA_WRITE, 0, &mut [], &to, 0);
    for _ in 0..8 {
        assert_eq!(x.send(&mut unsignaled(write)), 0);
    }
    until("all eight are executed", || {
        query(x.qp).0.sq_psn == x.opt.psn + 8
    });
    nothing(x.scq, Duration::from_millis(20));
    assert_eq!(x.send(&mut unsignaled(write)), ENOMEM);
    says(&[
        "send queue is full",
        "capacity 8",
        "in flight 8",
        "no signaled request",
    ]);

    // With a signaled one among them, polling for it helps, and the words differ.
    let (x, y) = pair(&a, &b, options());
    let to = Buf::new(&y, 8);
    let write = rdma(IBV_WR_RDMA_WRITE, 1, &mut [], &to, 0);
    for _ in 0..7 {
        assert_eq!(x.send(&mut unsignaled(write)), 0);
    }
    assert_eq!(x.send(&mut write.clone()), 0);
    assert_eq!(x.send(&mut write.clone()), ENOMEM);
    says(&[
        "send queue is full",
        "capacity 8",
        "in flight 8",
        "request 7",
    ]);
    assert_eq!(ok(x.sent()).wr_id, 1);
    for _ in 0..8 {
        assert_eq!(
            x.send(&mut unsignaled(write)),
            0,
            "one completion freed all eight"
        );
    }
}

/// A receive frees its slot when its completion is polled, not when it completes.
#[test]
fn a_full_receive_queue_says_so() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, options());
    for id in 0..3 {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    assert_eq!(y.recv(3, &mut []), ENOMEM);
    says(&["receive queue is full", "capacity 3"]);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 0, &mut [])), 0);
    ok(x.sent());
    assert_eq!(y.recv(3, &mut []), ENOMEM, "completed, but not polled");
    assert_eq!(ok(y.received()).wr_id, 0);
    assert_eq!(y.recv(3, &mut []), 0);
}

/// Too many entries, and inline data that is too long: EINVAL with what was given and what there is.
#[test]
fn the_other_two_are_einval_with_the_numbers() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, _y) = pair(&a, &b, options());
    let from = Buf::new(&x, 64);
    let mut three = [from.sge(0, 1), from.sge(1, 1), from.sge(2, 1)];
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 0, &mut three)), EINVAL);
    says(&["num_sge", "3", "2"]);
    assert_eq!(x.recv(0, &mut three), EINVAL);
    says(&["num_sge", "3", "2"]);
    let mut sixteen = [from.sge(0, 16)];
    let inline = flagged(wr(IBV_WR_SEND, 0, &mut sixteen), IBV_SEND_INLINE);
    assert_eq!(x.send(&mut inline.clone()), EINVAL);
    says(&["16 bytes of inline data", "max_inline_data 0"]);

    let some = Options {
        inline: 10,
        ..options()
    };
    let (x, _y) = pair(&a, &b, some);
    assert_eq!(x.send(&mut inline.clone()), EINVAL);
    says(&["16 bytes of inline data", "max_inline_data 10"]);
}

/// Of a list, what comes before the bad one is taken, and `bad_wr` is the first that was not.
#[test]
fn lists_are_taken_up_to_the_bad_one() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, options());
    let from = Buf::new(&x, 8);
    let to = Buf::new(&y, 8);
    let mut three = [from.sge(0, 1), from.sge(1, 1), from.sge(2, 1)];
    let mut list: Vec<_> = (0..5)
        .map(|id| rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0))
        .collect();
    list[3].sg_list = three.as_mut_ptr();
    list[3].num_sge = 3;
    assert_eq!(post_list(x.qp, &mut list), (EINVAL, Some(3)));
    for id in 0..3 {
        assert_eq!(ok(x.sent()).wr_id, id);
    }
    nothing(x.scq, Duration::from_millis(5));
    // And one that is too long for the queue.
    let mut list: Vec<_> = (0..12)
        .map(|id| rdma(IBV_WR_RDMA_WRITE, id, &mut [], &to, 0))
        .collect();
    assert_eq!(post_list(x.qp, &mut list), (ENOMEM, Some(8)));
    for id in 0..8 {
        assert_eq!(ok(x.sent()).wr_id, id);
    }
}

/// Creation gives at least what was asked for and says so in place; inline data that was asked for is there.
#[test]
fn creation_gives_what_was_asked_for() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    for inline in [0, 1, 33, 256] {
        let mut attr = end.init_attr_ex(IBV_QPT_RC);
        attr.cap.max_inline_data = inline;
        let asked = attr.cap;
        let qp = Qp::create(&device, &mut attr, end.opt).expect("a QP");
        for cap in [attr.cap, query(qp.qp).0.cap, query(qp.qp).1.cap] {
            assert!(cap.max_inline_data >= inline, "{cap:?}");
            assert!(cap.max_send_wr >= asked.max_send_wr && cap.max_recv_wr >= asked.max_recv_wr);
            assert!(
                cap.max_send_sge >= asked.max_send_sge && cap.max_recv_sge >= asked.max_recv_sge
            );
        }
    }
    let mut attr = end.init_attr_ex(IBV_QPT_RC);
    attr.cap.max_inline_data = 257;
    assert_eq!(Qp::create(&device, &mut attr, end.opt).err(), Some(EINVAL));
    says(&["max_inline_data is 257", "256"]);
}
