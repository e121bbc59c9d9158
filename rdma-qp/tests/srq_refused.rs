//! Shared receive queues over a provider that refuses, loses and mixes up.

mod fake;

use fake::{Fake, wc};
use rdma_core_sys::*;
use rdma_qp::{
    Access, CloseSrqError, Cq, CreateQpError, CreateSrqError, Device, Doorbell, Memory, Mr, Pd,
    PostError, QueueKind, Srq,
};

fn scene() -> (Device, Pd, Cq, Mr, Srq) {
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    let srq = pd.srq().depth(8).create().unwrap();
    (device, pd, cq, mr, srq)
}

/// Of four receives that are handed over together the third is refused: two are posted, two are out of the books, and
/// their buffers are in the pool.
#[test]
fn of_a_list_what_was_accepted_and_what_was_not_is_exact() {
    let fake = Fake::new();
    let (_device, pd, cq, _mr, mut srq) = scene();
    let _qp = pd.rc(&cq).srq(&srq).create().unwrap();
    let pool = pd.buffers(4, 64).unwrap();
    srq.set_doorbell(Doorbell::Every(4)).unwrap();
    let mut tickets = Vec::new();
    for _ in 0..3 {
        tickets.push(srq.recv_buffer(pool.take().unwrap()).unwrap());
    }
    for errno in [0, 0, 12] {
        fake.fail("post_srq_recv", errno);
    }
    let refused = srq.recv_buffer(pool.take().unwrap()).unwrap_err();
    let PostError::List {
        queue: QueueKind::SharedRecv,
        accepted: 2,
        refused: 2,
        first,
        reason,
    } = refused.error
    else {
        panic!("{}", refused.error)
    };
    assert_eq!(first, tickets[2]);
    assert!(reason.to_string().contains("ENOMEM"), "{reason}");
    assert_eq!((srq.account().accepted, srq.account().pending), (2, 2));
    drop(refused.buffer);
    assert_eq!(pool.free(), 2);
    for ticket in &tickets[..2] {
        fake.complete(0, wc(ticket.wr_id(), IBV_WC_SUCCESS));
        let done = cq.poll().unwrap().unwrap();
        assert_eq!(done.ticket, *ticket);
        assert!(srq.take_buffer(&done).is_some());
    }
    fake.complete(0, wc(tickets[2].wr_id(), IBV_WC_SUCCESS));
    assert!(cq.poll().unwrap().is_none());
    assert_eq!((cq.stale(), pool.free()), (1, 4));
}

#[test]
fn what_belongs_to_no_outstanding_receive_is_stale() {
    let fake = Fake::new();
    let (_device, pd, cq, mr, mut srq) = scene();
    let _qp = pd.rc(&cq).srq(&srq).create().unwrap();
    let ticket = srq.recv(mr.all()).unwrap();
    let other = pd.srq().create().unwrap();
    for (stale, id) in [
        ticket.wr_id() + (1 << 24),
        // Another SRQ, whose receives do not complete here.
        ticket.wr_id() ^ u64::from(srq.number() ^ other.number()) << 4,
        0,
    ]
    .into_iter()
    .enumerate()
    {
        fake.complete(0, wc(id, IBV_WC_SUCCESS));
        assert!(cq.poll().unwrap().is_none());
        assert_eq!(cq.stale(), stale as u64 + 1);
    }
    fake.complete(0, wc(ticket.wr_id(), IBV_WC_SUCCESS));
    assert!(cq.poll().unwrap().is_some());
    fake.complete(0, wc(ticket.wr_id(), IBV_WC_SUCCESS));
    assert!(cq.poll().unwrap().is_none(), "once");
}

/// A QP gets the number of one that is gone and that left a completion: it is handed out, as that of no QP.
#[test]
fn a_completion_of_a_former_qp_is_not_taken_for_one_of_the_next_with_its_number() {
    let fake = Fake::new();
    let (_device, pd, cq, mr, mut srq) = scene();
    let former = pd.rc(&cq).srq(&srq).create().unwrap();
    let number = former.qp_num();
    let tickets = [srq.recv(mr.all()).unwrap(), srq.recv(mr.all()).unwrap()];
    let done = |ticket: &rdma_qp::Ticket| ibv_wc {
        qp_num: number,
        ..wc(ticket.wr_id(), IBV_WC_SUCCESS)
    };
    fake.complete(0, done(&tickets[0]));
    drop(former);
    fake.reuse_number(number);
    let next = pd.rc(&cq).srq(&srq).create().unwrap();
    assert_eq!(next.qp_num(), number);
    fake.complete(0, done(&tickets[1]));
    for (ticket, by) in tickets.iter().zip([0, number]) {
        let done = cq.poll().unwrap().unwrap();
        assert_eq!((done.ticket, done.qp_num), (*ticket, by));
    }
}

#[test]
fn flushes_are_tied_to_the_first_failure_of_their_qp() {
    let fake = Fake::new();
    let (_device, pd, cq, mr, mut srq) = scene();
    let qps = [0, 1].map(|_| pd.rc(&cq).srq(&srq).create().unwrap());
    let tickets: Vec<_> = (0..4).map(|_| srq.recv(mr.all()).unwrap()).collect();
    let steps = [
        (0, IBV_WC_LOC_LEN_ERR),
        (1, IBV_WC_WR_FLUSH_ERR),
        (0, IBV_WC_WR_FLUSH_ERR),
        (0, IBV_WC_LOC_PROT_ERR),
    ];
    let mut roots = Vec::new();
    for (ticket, (qp, status)) in tickets.iter().zip(steps) {
        let qp_num = qps[qp].qp_num();
        fake.complete(
            0,
            ibv_wc {
                qp_num,
                ..wc(ticket.wr_id(), status)
            },
        );
        let done = cq.poll().unwrap().unwrap();
        assert_eq!(done.qp_num, qp_num);
        roots.push(done.outcome.unwrap_err().root.map(|root| root.ticket));
    }
    assert_eq!(roots, [None, None, Some(tickets[0]), None]);
    let account = srq.account();
    assert_eq!((account.failed, account.flushed), (2, 2));
}

#[test]
fn what_cannot_be_made_or_destroyed_says_so_and_leaves_nothing_or_everything() {
    let fake = Fake::new();
    let (device, pd, cq, mr, mut srq) = scene();
    fake.fail("create_srq", 12);
    let error = pd.srq().create().unwrap_err();
    assert!(matches!(error, CreateSrqError::Refused { .. }));
    assert!(error.to_string().contains("ENOMEM (12)"), "{error}");
    // A QP that is not made leaves no room reserved.
    fake.fail("create_qp", 12);
    let error = pd.rc(&cq).srq(&srq).create().unwrap_err();
    assert!(matches!(error, CreateQpError::Refused { .. }));
    assert_eq!(cq.unreserved(), cq.capacity());

    srq.recv(mr.all()).unwrap();
    fake.fail("destroy_srq", 16);
    let CloseSrqError::Refused { srq, source } = srq.close().unwrap_err() else {
        panic!("refused")
    };
    assert_eq!(source.name(), Some("EBUSY"));
    // It is leaked with the PD and the region that it may write to.
    fake.fail("destroy_srq", 16);
    drop(srq);
    drop((mr, pd, cq, device));
    let live = fake.state().live.clone();
    assert_eq!(
        ["srq", "pd", "mr", "context", "cq"].map(|kind| live[kind]),
        [1, 1, 1, 1, 0]
    );
}

/// PD, CQ, region, SRQ, and two QPs, one of which has a CQ of its own: in any order.
#[test]
fn every_drop_order_leaves_nothing_behind() {
    let mut orders = vec![vec![]];
    for n in 0..6usize {
        orders = orders
            .iter()
            .flat_map(|order: &Vec<usize>| {
                (0..=order.len()).map(move |at| {
                    let mut longer = order.clone();
                    longer.insert(at, n);
                    longer
                })
            })
            .collect();
    }
    assert_eq!(orders.len(), 720);
    for order in orders {
        let fake = Fake::new();
        let (device, pd, cq, mr, mut srq) = scene();
        let own = device.create_cq(64).unwrap();
        let one = pd.rc(&cq).srq(&srq).create().unwrap();
        let two = pd.rc(&cq).recv_cq(&own).srq(&srq).create().unwrap();
        srq.recv(mr.all()).unwrap();
        drop((device, own));
        let mut all: [Option<Box<dyn std::any::Any>>; 6] = [
            Some(Box::new(pd)),
            Some(Box::new(cq)),
            Some(Box::new(mr)),
            Some(Box::new(srq)),
            Some(Box::new(one)),
            Some(Box::new(two)),
        ];
        for index in &order {
            all[*index] = None;
        }
        assert_eq!(fake.live(), 0, "order {order:?}");
    }
}
