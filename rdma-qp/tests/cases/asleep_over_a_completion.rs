//! A completion came between the last poll and the arming, gave no event, and the program slept for ever. A CQ's wait looks
//! once more after it has armed (the gap itself is tried in `lifetimes`); here many round trips depend on it.

use crate::common::*;
use rdma_qp::{Device, Memory, Timing};
use rdma_soft::Profile;
use std::time::Duration;

const ROUNDS: usize = 20_000;

/// An end whose CQ sleeps, with `spin` before.
fn end(device: &Device, spin: Duration) -> End {
    let (pd, cq) = (
        device.alloc_pd().unwrap(),
        device.create_event_cq(64).unwrap(),
    );
    cq.set_spin(spin);
    let mr = pd.register(Memory::zeroed(64), all()).unwrap();
    let qp = pd.rc(&cq).create().unwrap();
    End { qp, cq, mr, pd }
}

fn round_trips(spin: Duration) {
    let device = device(Profile::default());
    let (mut a, mut b) = (end(&device, spin), end(&device, spin));
    connect((&mut a, &device), (&mut b, &device), Timing::default());
    // One CQ for sends and receives: both wake it.
    let play = |mut end: End, begins: bool| {
        let mut receive = end.qp.recv(end.mr.slice(0, 8).unwrap()).unwrap();
        for round in 0..ROUNDS {
            if begins || round > 0 {
                let sent = end.qp.send(end.mr.slice(8, 8).unwrap()).unwrap();
                end.cq.wait(&sent, LIMIT).unwrap();
            }
            end.cq.wait(&receive, LIMIT).unwrap();
            receive = end.qp.recv(end.mr.slice(0, 8).unwrap()).unwrap();
        }
        if !begins {
            let sent = end.qp.send(end.mr.slice(8, 8).unwrap()).unwrap();
            end.cq.wait(&sent, LIMIT).unwrap();
        }
        end
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(move || play(b, false));
        play(a, true);
        other.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost_over_many_round_trips() {
    round_trips(Duration::ZERO);
}

#[test]
fn nor_where_it_polls_a_while_before_it_sleeps() {
    round_trips(Duration::from_micros(5));
}
