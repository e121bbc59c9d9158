//! Ways over XRC that end, and those that are made meanwhile.

use std::time::{Duration, Instant};

use rdma_qp::{AckTimeout, Timing};
use rdma_xrc::mesh::{Event, Layout, Mesh, Options, Rank};

use crate::job::{Job, LIMIT, Transports};
use crate::traffic::{Checked, message};

/// A dead peer is an error after about a second; nobody is probed, so ways end by what the tests do.
fn impatient() -> Options {
    Options {
        timing: Timing {
            timeout: AckTimeout::from_code(15).unwrap(),
            ..Timing::default()
        },
        heartbeat: None,
        ..Options::default()
    }
}

/// Polls these until it is so.
#[track_caller]
fn poll_until(meshes: &mut [&mut Mesh], mut it_is_so: impl FnMut(&[&mut Mesh], &[Event]) -> bool) {
    let until = Instant::now() + LIMIT;
    let mut events = Vec::new();
    while !it_is_so(meshes, &events) {
        assert!(Instant::now() < until, "it never is so: {events:?}");
        for mesh in meshes.iter_mut() {
            while let Some(event) = mesh.poll().unwrap() {
                events.push(event);
            }
        }
    }
}

/// What was flushed comes back in parts, and between them somebody else leaves.
#[test]
fn what_comes_back_goes_before_what_was_sent_later() {
    let layout = Layout::new([0, 1, 1, 1]);
    let mut job = Job::of(layout, Transports::Xrc, &impatient());
    job.bring_up();
    // The targets of all four on the second node are open in the two others there.
    job.until_opened(4 * 2);
    drop(job.meshes.remove(1));
    let number = |number| message(Rank(0), Rank(2), number);
    let [sender, receiver, leaver] = &mut job.meshes[..] else {
        panic!("three are left");
    };
    while !sender.arm().unwrap() {
        assert!(sender.poll().unwrap().is_none());
    }
    sender.send(Rank(1), b"to the dead").unwrap();
    sender.send(Rank(2), &number(0)).unwrap();
    // The refusal is in its CQ, with the flush; the goodbye comes behind them, and then one more flush.
    while sender.arm().unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
    leaver.begin_leave();
    poll_until(&mut [receiver, leaver], |_, events| {
        events.iter().any(|event| matches!(event, Event::Left(_)))
    });
    let enough = Instant::now() + Duration::from_millis(300);
    poll_until(&mut [receiver, leaver], |_, _| Instant::now() > enough);
    sender.send(Rank(2), &number(1)).unwrap();
    let mut seen = Checked::new(Rank(2), 4);
    job.until(|rank, event| {
        if let Event::Message(message) = event {
            assert_eq!(rank, Rank(2));
            seen.check(&message);
        }
        seen.from(Rank(0)) == 2
    });
}
