//! What happens to memory that is dropped or forgotten while the device works on it. Every frame takes 20 ms, so each of
//! these is in the middle of a transfer when it lets go. To be run under AddressSanitizer too (`ci/asan.sh`).

mod common;

use std::time::Duration;

use common::{End, LIMIT, connect, device, pair};
use rdma_qp::{CloseMrError, Device, Memory, Peer, Timing};
use rdma_soft::Profile;

const LEN: usize = 64 * 1024;

/// Two connected ends on two devices, 20 ms apart. The far region is full of ones.
fn slow_pair() -> (Device, Device, (End, Peer), (End, Peer)) {
    let profile = Profile {
        faults: "delay=20ms,seed=3".parse().unwrap(),
        ..Profile::default()
    };
    let (left, right) = (device(profile.clone()), device(profile));
    let (mut a, mut b) = (End::new(&left, LEN), End::new(&right, LEN));
    b.mr.write_at(0, &vec![1; LEN]).unwrap();
    let timing = Timing::from_rtt(Duration::from_millis(40));
    let (of_b, of_a) = connect((&mut a, &left), (&mut b, &right), timing);
    (left, right, (a, of_b), (b, of_a))
}

/// Memory of the size of a region, taken and looked at: if the region's memory was freed too early, a late packet
/// lands in one of these.
fn take_the_place_of_freed_memory() -> Vec<Memory> {
    (0..32).map(|_| Memory::zeroed(LEN)).collect()
}

fn untouched(taken: &[Memory]) -> bool {
    taken
        .iter()
        .all(|memory| memory.iter().all(|byte| *byte == 0))
}

#[test]
fn a_region_dropped_under_a_read_stays_until_the_read_is_done() {
    let (_left, _right, (a, of_b), _b) = slow_pair();
    let End { mut qp, cq, mr, pd } = a;
    let ticket = qp.read(mr.all(), of_b.region(0).unwrap().at(0)).unwrap();
    drop(mr);
    let taken = take_the_place_of_freed_memory();
    assert_eq!(pd.retired_regions(), 1);
    cq.wait(&ticket, LIMIT).unwrap();
    assert_eq!(pd.retired_regions(), 0);
    assert!(untouched(&taken));
}

#[test]
fn closing_a_region_under_a_read_says_who_holds_it_and_gives_the_bytes_afterwards() {
    let (_left, _right, (a, of_b), _b) = slow_pair();
    let End { mut qp, cq, mr, .. } = a;
    let ticket = qp.read(mr.all(), of_b.region(0).unwrap().at(0)).unwrap();
    let Err(CloseMrError::Held { mr, holders }) = mr.close() else {
        panic!("the read is under way")
    };
    assert_eq!(
        (holders.len(), holders[0].qp_num, holders[0].outstanding),
        (1, qp.qp_num(), 1)
    );
    cq.wait(&ticket, LIMIT).unwrap();
    let memory = mr.close().unwrap();
    assert!(memory.iter().all(|byte| *byte == 1), "the read is whole");
}

#[test]
fn dropping_the_qp_ends_the_read_before_the_memory_goes() {
    let (_left, _right, (a, of_b), _b) = slow_pair();
    let End { mut qp, cq, mr, pd } = a;
    qp.read(mr.all(), of_b.region(0).unwrap().at(0)).unwrap();
    drop(mr);
    drop(qp);
    assert_eq!(pd.retired_regions(), 0);
    let taken = take_the_place_of_freed_memory();
    std::thread::sleep(Duration::from_millis(100));
    assert!(cq.poll().unwrap().is_none());
    assert!(untouched(&taken));
}

#[test]
fn forgetting_region_ticket_and_qp_is_harmless() {
    let (_left, _right, (a, of_b), _b) = slow_pair();
    let End { mut qp, cq, mr, pd } = a;
    qp.read(mr.all(), of_b.region(0).unwrap().at(0)).unwrap();
    std::mem::forget(mr);
    std::mem::forget(qp);
    drop(pd);
    let taken = take_the_place_of_freed_memory();
    cq.wait_any(LIMIT)
        .unwrap()
        .expect("the read")
        .outcome
        .unwrap();
    drop(cq);
    assert!(untouched(&taken));
}

#[test]
fn everything_dropped_at_once_in_the_middle_of_a_receive_and_a_write() {
    let (left, right, (mut a, of_b), (mut b, _)) = slow_pair();
    b.qp.recv(b.mr.slice(0, 128).unwrap()).unwrap();
    a.qp.send(a.mr.slice(0, 128).unwrap()).unwrap();
    a.qp.write(a.mr.all(), of_b.region(0).unwrap().at(0))
        .unwrap();
    drop(b.mr);
    drop((a.mr, a.pd, a.cq));
    let taken = take_the_place_of_freed_memory();
    std::thread::sleep(Duration::from_millis(30));
    drop((a.qp, left, b.qp, b.cq, b.pd, right));
    std::thread::sleep(Duration::from_millis(60));
    assert!(untouched(&taken));
}

#[test]
fn a_region_dropped_under_remote_writes_is_out_of_reach_at_once() {
    let device = device(Profile::default());
    let ((mut a, of_b), (b, _)) = pair(&device, LEN);
    let End {
        mr,
        pd: _pd,
        qp: _qp,
        ..
    } = b;
    drop(mr);
    let taken = take_the_place_of_freed_memory();
    a.mr.write_at(0, &vec![7; LEN]).unwrap();
    let ticket =
        a.qp.write(a.mr.all(), of_b.region(0).unwrap().at(0))
            .unwrap();
    let error = a.cq.wait(&ticket, LIMIT).unwrap_err().to_string();
    assert!(error.contains("IBV_WC_REM_ACCESS_ERR"), "{error}");
    assert!(untouched(&taken));
}

#[test]
fn regions_come_and_go_beside_a_busy_queue() {
    let device = device(Profile::default());
    let ((mut a, of_b), _b) = pair(&device, LEN);
    let remote = of_b.region(0).unwrap();
    for round in 0..200 {
        let mr = a.pd.register(Memory::zeroed(LEN), common::all()).unwrap();
        let ticket = a.qp.write(mr.all(), remote.at(0)).unwrap();
        if round % 3 == 0 {
            drop(mr);
        } else {
            a.cq.wait(&ticket, LIMIT).unwrap();
            mr.close().unwrap();
        }
        while a.cq.poll().unwrap().is_some() {}
    }
    while a.qp.send_account().pending > 0 {
        a.cq.wait_any(LIMIT).unwrap().expect("the last write");
    }
    assert_eq!(a.pd.retired_regions(), 0);
}
