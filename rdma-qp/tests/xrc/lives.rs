//! Who holds whom, and what ends with what.

use rdma_core_sys::*;
use rdma_qp::xrc::{CloseDomainError, XrcDomain};
use rdma_qp::{CloseCqError, ClosePdError, CloseSrqError, ToErr, ToReset};

use crate::fake::{Fake, wc};
use crate::{EBUSY, Scene, scene};

/// Whoever destroys an SRQ holds its domain and its CQ while a region is freed with it; it is theirs no more.
#[test]
fn closing_waits_for_the_srq_that_another_thread_is_destroying() {
    let fake = Fake::new();
    let Scene {
        target,
        mut srq,
        initiator,
        domain,
        mr,
        cq,
        pd,
        device,
    } = scene();
    drop((target, initiator, pd, device));
    srq.recv(mr.all()).unwrap();
    drop(mr);
    let stop = fake.stop("dereg_mr");
    let (of_domain, of_cq) = std::thread::scope(|scope| {
        scope.spawn(move || drop(srq));
        stop.wait();
        let closing = scope.spawn(move || domain.close());
        let closing_cq = scope.spawn(move || cq.close());
        std::thread::sleep(std::time::Duration::from_millis(50));
        stop.wait();
        (closing.join().unwrap(), closing_cq.join().unwrap())
    });
    of_domain.unwrap();
    of_cq.unwrap();
    assert_eq!(fake.live(), 0);
}

/// What is still used is not destroyed, and the error says by whom.
#[test]
fn who_holds_what_is_said() {
    let _fake = Fake::new();
    let Scene {
        target,
        srq,
        initiator,
        domain,
        mr,
        cq,
        pd,
        device: _device,
    } = scene();
    let again = domain.open_target(target.qp_num()).unwrap();
    let error = domain.close().unwrap_err();
    let text = format!(
        "target {0:#x}, target {0:#x}, SRQ {1}",
        target.qp_num(),
        srq.srq_num()
    );
    assert!(error.to_string().ends_with(&text), "{error}");
    let CloseDomainError::Busy { domain, .. } = error else {
        panic!("{error}");
    };
    let clone = domain.clone();
    drop((target, again));
    let own = srq.number();
    drop(initiator);
    let error = cq.close().unwrap_err();
    assert!(
        error.to_string().ends_with(&format!("used by SRQ {own}")),
        "{error}"
    );
    let CloseCqError::Busy { cq, qps, srqs } = error else {
        panic!("{error}");
    };
    assert_eq!((qps, srqs), (vec![], vec![own]));
    drop(mr);
    let ClosePdError::Busy { pd, srqs, .. } = pd.close().unwrap_err() else {
        panic!("closed, or refused");
    };
    assert_eq!(srqs, [own]);
    srq.close().unwrap();
    let error = domain.close().unwrap_err();
    assert!(
        error.to_string().ends_with("another clone of it"),
        "{error}"
    );
    let CloseDomainError::Busy { domain, .. } = error else {
        panic!("{error}");
    };
    drop(clone);
    domain.close().unwrap();
    pd.close().unwrap();
    cq.close().unwrap();
}

/// What cannot be destroyed stays, with all that it stands on; everything else goes.
#[test]
fn what_cannot_be_destroyed_is_given_back_or_leaked_with_its_parents() {
    let fake = Fake::new();
    let Scene {
        target,
        srq,
        initiator,
        domain,
        mr,
        cq,
        pd,
        device,
    } = scene();
    drop(initiator);
    fake.fail("destroy_qp", EBUSY);
    let error = target.close().unwrap_err();
    assert_eq!(error.source.raw_os_error(), EBUSY);
    let target = error.target;
    fake.fail("destroy_srq", EBUSY);
    let CloseSrqError::Refused { srq, .. } = srq.close().unwrap_err() else {
        panic!("closed");
    };
    // Both refuse once more when they are dropped.
    fake.fail("destroy_qp", EBUSY);
    fake.fail("destroy_srq", EBUSY);
    drop((target, srq));
    drop((domain, mr, cq, pd, device));
    let live = fake.state().live.clone();
    let kinds = ["qp", "srq", "xrcd", "cq", "pd", "mr", "context"];
    assert_eq!(kinds.map(|kind| live[kind]), [1, 1, 1, 1, 1, 0, 1]);

    let fake = Fake::new();
    let device = crate::device();
    fake.fail("close_xrcd", EBUSY);
    let domain = XrcDomain::anonymous(&device).unwrap();
    let CloseDomainError::Refused { domain, source } = domain.close().unwrap_err() else {
        panic!("closed");
    };
    assert_eq!(source.raw_os_error(), EBUSY);
    domain.close().unwrap();
    drop(device);
    assert_eq!(fake.live(), 0);
}

/// Flushes name the failure that they come from, once the CQ knows the target; a failure of a former life is none.
#[test]
fn flushes_are_tied_to_the_first_failure_of_their_target() {
    let fake = Fake::new();
    let mut s = scene();
    let number = s.target.qp_num();
    let tickets: Vec<_> = (0..5).map(|_| s.srq.recv(s.mr.all()).unwrap()).collect();
    let roots = |statuses: &[(usize, ibv_wc_status)]| {
        let mut roots = Vec::new();
        for &(at, status) in statuses {
            let done = ibv_wc {
                qp_num: number,
                ..wc(tickets[at].wr_id(), status)
            };
            fake.complete(0, done);
            let done = s.cq.poll().unwrap().unwrap();
            assert_eq!((done.ticket, done.qp_num), (tickets[at], number));
            roots.push(done.outcome.unwrap_err().root.map(|root| root.ticket));
        }
        roots
    };
    let unknown = roots(&[(0, IBV_WC_LOC_LEN_ERR), (1, IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(unknown, [None, None]);
    s.target.report_on(&s.cq).unwrap();
    let known = roots(&[(2, IBV_WC_LOC_LEN_ERR), (3, IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(known, [None, Some(tickets[2])]);
    fake.set_state(number, IBV_QPS_ERR);
    s.target.to(ToReset).unwrap();
    assert_eq!(roots(&[(4, IBV_WC_WR_FLUSH_ERR)]), [None]);
    assert_eq!((s.srq.account().failed, s.srq.account().flushed), (2, 3));
}

/// A target gets the number of a QP that is gone and that left a completion: it is handed out, as that of no QP.
#[test]
fn a_completion_of_a_former_qp_is_not_taken_for_one_of_a_target_with_its_number() {
    let fake = Fake::new();
    let mut s = scene();
    let number = s.target.qp_num();
    let tickets = [0, 1].map(|_| s.srq.recv(s.mr.all()).unwrap());
    let done = |at: usize| ibv_wc {
        qp_num: number,
        ..wc(tickets[at].wr_id(), IBV_WC_SUCCESS)
    };
    fake.complete(0, done(0));
    drop(s.target);
    fake.reuse_number(number);
    let next = s.domain.create_target().unwrap();
    assert_eq!(next.qp_num(), number);
    next.report_on(&s.cq).unwrap();
    fake.complete(0, done(1));
    for (ticket, by) in tickets.iter().zip([0, number]) {
        let done = s.cq.poll().unwrap().unwrap();
        assert_eq!((done.ticket, done.qp_num), (*ticket, by));
    }
}

/// Two handles are two objects of one target: each is destroyed once, and what one drains is what came by the target.
#[test]
fn a_drain_takes_what_came_by_the_target_and_nothing_else() {
    let fake = Fake::new();
    let mut s = scene();
    let (number, other) = (s.target.qp_num(), s.domain.create_target().unwrap());
    let tickets = [0, 1, 2].map(|_| s.srq.recv(s.mr.all()).unwrap());
    for (ticket, qp_num) in tickets.iter().zip([number, other.qp_num(), number]) {
        fake.complete(
            0,
            ibv_wc {
                qp_num,
                ..wc(ticket.wr_id(), IBV_WC_SUCCESS)
            },
        );
    }
    fake.set_state(number, IBV_QPS_RTS);
    let drained = s.target.drain(&[&s.cq]).unwrap();
    let came: Vec<_> = drained.completions.iter().map(|done| done.ticket).collect();
    assert_eq!(came, [tickets[0], tickets[2]]);
    assert_eq!(s.target.state().unwrap(), IBV_QPS_ERR);
    let kept = s.cq.poll().unwrap().unwrap();
    assert_eq!((kept.ticket, kept.qp_num), (tickets[1], other.qp_num()));
    // In ERR already it is not moved again.
    let moves = fake.count("modify_qp");
    assert!(s.target.drain(&[&s.cq]).unwrap().completions.is_empty());
    assert_eq!(fake.count("modify_qp"), moves);
    s.target.to(ToErr).unwrap();
}

/// Domain, target, its second handle, SRQ, initiator, CQ, PD: in any order.
#[test]
fn every_drop_order_leaves_nothing_behind() {
    let mut orders = vec![vec![]];
    for n in 0..7usize {
        let longer = |order: &Vec<usize>| {
            let order = order.clone();
            (0..=order.len()).map(move |at| {
                let mut longer = order.clone();
                longer.insert(at, n);
                longer
            })
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    assert_eq!(orders.len(), 5040);
    for order in orders {
        let fake = Fake::new();
        let Scene {
            target,
            mut srq,
            initiator,
            domain,
            mr,
            cq,
            pd,
            device,
        } = scene();
        srq.recv(mr.all()).unwrap();
        drop((device, mr));
        let mut all: [Option<Box<dyn std::any::Any>>; 7] = [
            Some(Box::new(domain.open_target(target.qp_num()).unwrap())),
            Some(Box::new(target)),
            Some(Box::new(srq)),
            Some(Box::new(initiator)),
            Some(Box::new(domain)),
            Some(Box::new(cq)),
            Some(Box::new(pd)),
        ];
        for index in &order {
            all[*index] = None;
        }
        assert_eq!(fake.live(), 0, "order {order:?}");
    }
}
