//! A Queue Pair was reset for reuse, and a late completion of its former life hit what had been cleared.

use crate::common::*;
use crate::fake::{self, Fake, wc};
use rdma_core_sys::*;
use rdma_qp::{Completion, Cq, Device, NOTHING, PostFlags, Qp, Timing, ToErr, ToReset, op};
use rdma_soft::Profile;

/// Two connected QPs on one CQ, with four completions each, turn by turn, none taken; and their peers.
struct Scene {
    first: Qp,
    second: Qp,
    cq: Cq,
    device: Device,
    peers: (End, End),
}

impl Scene {
    fn new() -> Scene {
        let device = device(Profile::default());
        let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
        let cq = device.create_cq(128).unwrap();
        let mut peers = (End::new(&device, 64), End::new(&device, 64));
        for (end, peer) in [(&mut a, &mut peers.0), (&mut b, &mut peers.1)] {
            end.qp = end.pd.rc(&cq).create().unwrap();
            connect((end, &device), (peer, &device), Timing::default());
        }
        let (mut first, mut second) = (a.qp, b.qp);
        let regions = (peers.0.mr.remote(), peers.1.mr.remote());
        for _ in 0..4 {
            for (qp, region) in [(&mut first, regions.0), (&mut second, regions.1)] {
                let write = op::Write {
                    remote: region.at(0),
                };
                qp.post(write, NOTHING, PostFlags::empty()).unwrap();
            }
        }
        // SQD is left when all sends are done; no poll, so the CQ holds all eight.
        for qp in [&mut first, &mut second] {
            qp.drain_and_modify(&Default::default(), LIMIT).unwrap();
        }
        Scene {
            first,
            second,
            cq,
            device,
            peers,
        }
    }

    /// Everything that the CQ still gives.
    fn rest(&self) -> Vec<Completion> {
        std::iter::from_fn(|| self.cq.poll().unwrap()).collect()
    }

    fn is_of_second_only(&self) {
        let rest = self.rest();
        let numbers: Vec<_> = rest.iter().map(|done| done.qp_num).collect();
        assert_eq!(numbers, [self.second.qp_num(); 4]);
        assert!(rest.iter().all(|done| done.outcome.is_ok()));
        assert!(rest.is_sorted_by_key(|done| done.ticket.sequence()));
    }
}

#[test]
fn after_a_reset_the_cq_gives_those_of_the_other_qp_only_and_in_order() {
    let mut scene = Scene::new();
    scene.first.to(ToReset).unwrap();
    scene.is_of_second_only();
    let books = scene.first.send_account();
    assert_eq!((books.accepted, books.discarded), (4, 4));
}

#[test]
fn the_same_when_some_were_put_aside_before() {
    let mut scene = Scene::new();
    // Somebody waited for the last one: the seven before it are kept for later.
    let last = scene.second.post(op::Send, NOTHING, PostFlags::empty());
    scene.peers.1.qp.recv(NOTHING).unwrap();
    scene.cq.wait(&last.unwrap(), LIMIT).unwrap();
    scene.first.to(ToReset).unwrap();
    scene.is_of_second_only();
}

#[test]
fn after_a_destruction_too_and_a_qp_in_its_place_gets_none_of_them() {
    let mut scene = Scene::new();
    let device = scene.device.clone();
    let mut new = End::new(&device, 64);
    new.qp = new.pd.rc(&scene.cq).create().unwrap();
    scene.first = std::mem::replace(&mut new.qp, scene.first);
    new.qp.close().unwrap();
    scene.is_of_second_only();
    assert_eq!(scene.first.send_account().accepted, 0);
}

/// ERR first gives every request its flush; RESET alone throws them away.
#[test]
fn reset_throws_away_and_err_before_it_flushes() {
    let device = device(Profile::default());
    for err_first in [false, true] {
        let ((mut a, _), _b) = pair(&device, 64);
        for _ in 0..3 {
            a.qp.recv(NOTHING).unwrap();
        }
        if err_first {
            a.qp.to(ToErr).unwrap();
            for _ in 0..3 {
                let done = a.cq.wait_any(LIMIT).unwrap().expect("a flush");
                assert!(done.outcome.unwrap_err().is_flush());
            }
        }
        a.qp.to(ToReset).unwrap();
        assert!(a.cq.poll().unwrap().is_none());
        let books = a.qp.recv_account();
        let expected = if err_first { (3, 0) } else { (0, 3) };
        assert_eq!((books.flushed, books.discarded), expected);
    }
}

/// A provider that leaves old entries in the CQ until they are polled, as hardware may.
#[test]
fn entries_that_a_provider_left_behind_belong_to_nobody() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    let old: Vec<_> = (0..4)
        .map(|_| qp.post(op::Send, NOTHING, PostFlags::empty()).unwrap())
        .collect();
    for ticket in &old {
        fake.complete(0, wc(ticket.wr_id(), IBV_WC_SUCCESS));
    }
    qp.to(ToReset).unwrap();
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    let new = qp.post(op::Send, NOTHING, PostFlags::empty()).unwrap();
    assert!(cq.poll().unwrap().is_none());
    assert_eq!(cq.stale(), 4);
    fake.complete(0, wc(new.wr_id(), IBV_WC_SUCCESS));
    assert_eq!(cq.poll().unwrap().unwrap().ticket, new);
}
